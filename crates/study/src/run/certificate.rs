//! The fidelity certificate: whether the metrics can be trusted, judged by the measurements.

mod latencies;
mod offered;
mod own_time;
mod pauses;
mod processors;
mod searching;
mod traffic;
mod waits;

use std::collections::BTreeMap;

use underlay_record::certificate_metrics::{CPU_STEAL, PATH_FLOOR};
use underlay_record::{
    Certificate, Check, CheckId, CpuRecord, DeviceActivity, GeneratorCost, GivenUp, IntegrityRecord,
    MeasuredWindow, MetricRow, OperationStats, PathRecord, PauseRecord, ReadBackRecord, latency_in_words,
};
use underlay_workload::RunAftermath;

use latencies::DeviceLatencies;
pub use own_time::CallerKind;
pub(super) use own_time::worth_telling as own_time_worth_telling;
pub use searching::SearchObservation;

pub use super::traffic::CellTraffic;

/// The mean latency over all device requests decides a system's throughput.
const MEAN_TOLERANCE: f64 = 0.10;
/// Operations that fail, find nothing or are refused may make up this share.
const UNANSWERED_TOLERANCE: f64 = 0.001;
const STEAL_TOLERANCE: f64 = 0.05;

/// The evidence for a certificate. The default is that of a cell in which nothing was observed.
pub struct CertificateEvidence<'a> {
    pub devices: &'a [DeviceActivity],
    /// Programs' waits on the path to the devices; empty where unknown.
    pub paths: &'a [PathRecord],
    /// Absent for a batch job.
    pub measured: Option<&'a MeasuredWindow>,
    /// The path cost's p50 in modelled microseconds, when something was modelled.
    pub floor_us: Option<f64>,
    pub aftermath: RunAftermath,
    /// Absent where the study names no cores.
    pub cpu: Option<&'a CpuRecord>,
    pub callers: CallerKind,
    /// Processes that stalled during the measurement; absent where this was not observed.
    pub pauses: Option<&'a PauseRecord>,
    /// Of a batch job.
    pub lost_tasks: Option<LostTasks>,
    /// Absent where the requests to the devices are unknown.
    pub traffic: Option<CellTraffic>,
    /// For a cell that searched for its rate.
    pub searching: Option<&'a SearchObservation>,
    /// Whether a cgroup held the system and its page cache to the budget; absent without a budget.
    pub memory_enforced: Option<bool>,
    /// The highest throughput that the generator can reach here, in modelled operations per second.
    pub ceiling_per_s: Option<f64>,
    pub open_loop: bool,
    /// Some readers must find nothing, because they lack an authorisation.
    pub hides_records: bool,
    /// Failures while all nodes were up, where some were stopped. Failures while nodes are down are expected.
    pub nodes_away: Option<OutsideOfEvents>,
    /// The result of reading back acknowledged writes; absent if they were not read back.
    pub read_back: Option<&'a ReadBackRecord>,
    pub time_scale: f64,
}

impl Default for CertificateEvidence<'_> {
    fn default() -> Self {
        CertificateEvidence {
            devices: &[],
            paths: &[],
            measured: None,
            floor_us: None,
            aftermath: RunAftermath::default(),
            cpu: None,
            callers: CallerKind::Nobody,
            pauses: None,
            lost_tasks: None,
            traffic: None,
            searching: None,
            memory_enforced: None,
            ceiling_per_s: None,
            open_loop: false,
            hides_records: false,
            nodes_away: None,
            read_back: None,
            time_scale: 1.0,
        }
    }
}

/// The tasks of a job that failed or were killed, and ran again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostTasks {
    pub count: u64,
    /// Nodes went down, as planned or by hand, and took their tasks with them.
    pub nodes_went: bool,
}

/// Operations that ended while no node was down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutsideOfEvents {
    pub operations: u64,
    pub failed: u64,
    /// How many may have begun while a node was down: one per client thread each time a node came back.
    pub under_way: u64,
}

pub fn certify(evidence: &CertificateEvidence<'_>) -> Certificate {
    let latencies = DeviceLatencies::new(evidence.devices, evidence.paths);
    let any_modelled = latencies.any_modelled;
    let mut checks = latencies.checks(evidence.paths, evidence.floor_us, evidence.time_scale);
    if let Some(measured) = evidence.measured {
        answer_checks(evidence, measured, &mut checks);
        checks.extend(window_check(measured));
        generator_checks(evidence, measured, &mut checks);
    }
    let slower = match any_modelled {
        true => slower_remedy(evidence.time_scale),
        // Real storage can't be slowed down.
        false => "run on a host with more idle CPUs, or name fewer `cores` in [machine]".to_owned(),
    };
    if let Some(pauses) = evidence.pauses {
        let tails = evidence.measured.map(|measured| (measured, evidence.open_loop));
        checks.push(pauses::stops(pauses, tails, evidence.time_scale));
        checks.push(pauses::delays(pauses, &slower));
    }
    checks.extend(evidence.traffic.map(traffic::check));
    checks.extend(evidence.lost_tasks.map(lost_tasks_check));
    if let Some(enforced) = evidence.memory_enforced {
        let finding = match enforced {
            true => "a memory cgroup held the system and its page cache to the budget",
            false => "nothing held the page cache to the budget: the data may have been in memory",
        };
        let check = Check::new(CheckId::MemoryBudget, enforced, finding);
        checks.push(check.with_remedy("`underlay doctor` says how to get a memory cgroup"));
    }
    let steal = evidence.aftermath.steal_share;
    match evidence.cpu {
        Some(cpu) => {
            checks.extend(processors::checks(cpu, evidence.measured.map(mean_in_flight), &slower));
            checks.extend(own_time::check(evidence.callers, evidence.devices, cpu, evidence.time_scale));
        }
        // How much of it the system would have had is unknown.
        None => checks.push(steal_check(steal)),
    }
    if let Some(searching) = evidence.searching {
        checks.extend(searching::failed_checks(searching, evidence.time_scale, &slower));
    }
    let mut metrics: Vec<MetricRow> = latencies.metrics().collect();
    metrics.extend(evidence.floor_us.and_then(|floor_us| PATH_FLOOR.row(floor_us)));
    metrics.extend(CPU_STEAL.row(steal * 100.0));
    Certificate { verdict: latencies.verdict(&checks), checks, metrics }
}

/// The mean number of operations in flight by Little's law, counted from when each was actually sent. Background
/// operations count too.
fn mean_in_flight(measured: &MeasuredWindow) -> f64 {
    let beside_us = measured.beside.as_ref().map_or(0.0, |background| served_us(&background.by_operation));
    (served_us(&measured.by_operation) + beside_us) / (measured.duration_s * 1e6).max(f64::MIN_POSITIVE)
}

/// The service times of all operations together.
fn served_us(by_operation: &BTreeMap<String, OperationStats>) -> f64 {
    by_operation.values().map(|one| one.count as f64 * one.service.us.mean).sum()
}

/// Operations take longer than the window in which they are counted. Most of them began before it, so its result is
/// chance.
fn window_check(measured: &MeasuredWindow) -> Option<Check> {
    let window_us = measured.duration_s * 1e6;
    let operations: u64 = measured.by_operation.values().map(|one| one.count).sum();
    if window_us <= 0.0 || operations == 0 {
        return None;
    }
    let mean_us = served_us(&measured.by_operation) / operations as f64;
    let finding = format!(
        "an operation took {:.1} ms in the mean, and the measured window has {:.1} ms",
        mean_us / 1000.0,
        window_us / 1000.0
    );
    let check = Check::new(CheckId::Window, mean_us <= window_us, finding).with_extent(mean_us / window_us);
    Some(check.with_remedy("measure for longer: a longer `duration` in [run], or in [short]"))
}

/// Fewer requests than this give no percentiles.
const ENOUGH_REQUESTS: u64 = 100;

/// The verdict on devices alone, under any load: whether they kept up. `None` if they had too few requests for that.
pub fn certify_devices(
    devices: &[DeviceActivity],
    paths: &[PathRecord],
    time_scale: f64,
) -> Option<Certificate> {
    let latencies = DeviceLatencies::new(devices, paths);
    (latencies.requests() >= ENOUGH_REQUESTS).then(|| {
        let checks = latencies.checks(paths, None, time_scale);
        Certificate { verdict: latencies.verdict(&checks), checks, metrics: latencies.metrics().collect() }
    })
}

/// Findings about devices and CPUs during a search, in words.
pub(super) fn search_findings(searching: &SearchObservation, time_scale: f64) -> Vec<String> {
    let failed = searching::failed_checks(searching, time_scale, "");
    failed.into_iter().map(|check| format!("{}: {}", check.name, check.finding)).collect()
}

/// Tasks that ran again made the job longer, and repeated their reads and writes on the storage.
fn lost_tasks_check(lost: LostTasks) -> Check {
    let LostTasks { count, nodes_went } = lost;
    let finding = match (count, nodes_went) {
        (0, _) => "no task failed or was killed".into(),
        (_, true) => format!("{count} tasks failed or were killed and ran again, as nodes were sent away"),
        (_, false) => format!("{count} tasks failed or were killed and ran again (allowed: 0)"),
    };
    Check::new(CheckId::LostTasks, count == 0 || nodes_went, finding)
        .with_extent(count as f64)
        .with_remedy("look at the job's log: give the system more memory if its tasks ran out of it")
}

fn steal_check(steal: f64) -> Check {
    let finding = format!(
        "the hypervisor took {:.1} % of the time (allowed: {:.0} %)",
        steal * 100.0,
        STEAL_TOLERANCE * 100.0
    );
    Check::new(CheckId::StolenTime, steal <= STEAL_TOLERANCE, finding)
        .with_extent(steal)
        .with_remedy("run again when the host is quieter")
}

/// A failure that slower motion would mend.
#[derive(Clone, Debug, PartialEq)]
pub struct TooFast {
    /// In the certificate's words.
    pub finding: String,
    /// The check that failed.
    pub check: CheckId,
    /// How late requests are, in modelled time; absent where the check is about something else.
    pub late_us: Option<f64>,
    /// How far the check failed.
    pub extent: Option<f64>,
}

/// The worst failure in a cell's certificate that slower motion would mend; `None` without one. `earlier` are the
/// factors that were abandoned because of this cell: a failure that they did not mend, another factor won't mend
/// either.
pub fn too_fast(
    certificate: &Certificate,
    devices: &[DeviceActivity],
    paths: &[PathRecord],
    time_scale: f64,
    earlier: &[&GivenUp],
) -> Option<TooFast> {
    // All other failures follow from the stop. Mere delays by a busy host are mended like the rest.
    if certificate.failed().any(|failed| failed.id == Some(CheckId::ProcessPauses)) {
        return None;
    }
    let latencies = DeviceLatencies::new(devices, paths);
    certificate
        .failed()
        .filter_map(|failed| {
            let check = failed.id?;
            let late_us = latencies.missed_us(check).or_else(|| waits::late_us(paths, check));
            let finding = format!("{}: {}", failed.name, failed.finding);
            Some(TooFast { finding, check, late_us, extent: failed.extent })
        })
        .find(|found| {
            let mut of_it = earlier.iter().filter(|earlier| earlier.check_id == Some(found.check));
            let Some(late_us) = latencies.late_us(found.check).or(found.late_us) else {
                let was_no_help = |earlier: &&&GivenUp| {
                    let extents = earlier.extent.zip(found.extent);
                    extents.is_some_and(|(before, now)| now > before * (1.0 - MIN_IMPROVEMENT))
                };
                let was_given_up = of_it.filter(was_no_help).count() >= NO_HELP_AT_LAST;
                return found.check.is_mended_by_slower_motion() && !was_given_up;
            };
            let was_no_help = |earlier: &&GivenUp| {
                let late = earlier.late_us.zip(found.late_us);
                late.is_some_and(|(before_us, now_us)| {
                    waits::is_unchanged(before_us, earlier.time, now_us, time_scale)
                })
            };
            !waits::is_stretched(paths, late_us, time_scale) && !of_it.any(was_no_help)
        })
}

/// Slower motion that reduced a failure by less than this share did not help. A program that uses all free CPU time
/// does so at every factor.
const MIN_IMPROVEMENT: f64 = 0.1;
/// A share that is at its maximum looks the same at half the load, so one step of slower motion proves nothing.
const NO_HELP_AT_LAST: usize = 2;

fn slower_remedy(time_scale: f64) -> String {
    format!(
        "use slower motion than x{time_scale} (`--time`, or `[scale] time`), or run when this machine is less busy"
    )
}

/// Whether the system did what was requested: a refusal is quicker than an answer.
fn answer_checks(evidence: &CertificateEvidence<'_>, measured: &MeasuredWindow, checks: &mut Vec<Check>) {
    let missing: u64 = measured.by_operation.values().map(|stats| stats.missing).sum();
    let throttled: u64 = measured.by_operation.values().map(|stats| stats.throttled).sum();
    let refused = if evidence.hides_records { throttled } else { missing + throttled };
    if evidence.hides_records {
        let finding = format!("{missing} operations found no record, as readers without authorisation must");
        checks.push(
            Check::new(CheckId::HiddenRecords, missing > 0, finding).with_remedy(
                "readers without authorisation saw records, or there were none of these readers",
            ),
        );
    }
    let unanswered = measured.errors + refused;
    // Failed operations are not counted as operations.
    let all = measured.operations + measured.errors;
    let share = unanswered as f64 / all.max(1) as f64;
    // A node that is down refuses and fails; missing records are a different problem.
    let missing_share = (refused - throttled) as f64 / all.max(1) as f64;
    let percent = UNANSWERED_TOLERANCE * 100.0;
    let (tolerated, allowed) = match evidence.nodes_away {
        Some(outside) => {
            let failed_share = outside.failed.saturating_sub(outside.under_way) as f64
                / (outside.operations + outside.failed).max(1) as f64;
            let allowed = format!(
                "failing is allowed while nodes are away, where all were there {} failed, allowed: {percent:.1} %, as many without a record",
                outside.failed
            );
            (missing_share.max(failed_share), allowed)
        }
        None => (share, format!("allowed: {percent:.1} %")),
    };
    let passed = measured.operations > 0 && tolerated <= UNANSWERED_TOLERANCE;
    let finding = format!(
        "{all} operations: {} failed and {refused} found no record or were refused ({allowed})",
        measured.errors,
    );
    checks.push(
        Check::new(CheckId::OperationsAnswered, passed, finding)
            .with_extent(share)
            .with_remedy("look at the cell's errors, and whether all its records were loaded"),
    );
    if let Some(IntegrityRecord { checked, mismatches, wrong_values }) = &measured.integrity {
        let first = wrong_values.first().map_or(String::new(), |wrong| format!("; the first: {wrong}"));
        let finding =
            format!("{mismatches} of {checked} records that were read differ from the written ones{first}");
        checks.push(
            Check::new(CheckId::CheckedValues, *mismatches == 0, finding)
                .with_extent(*mismatches as f64 / (*checked).max(1) as f64)
                .with_remedy("look for faults of the storage, and read the system's log of this cell"),
        );
    }
    if let Some(read_back) = evidence.read_back {
        let lost = read_back.lost();
        checks.push(
            Check::new(CheckId::AcknowledgedWrites, read_back.is_sound(), read_back.to_string())
                .with_extent(lost as f64 / read_back.checked.max(1) as f64)
                .with_remedy(
                    "the system's promises depend on its durability and consistency: see its settings",
                ),
        );
    }
    let lost_threads = evidence.aftermath.lost_threads;
    if lost_threads > 0 {
        let finding = format!("{lost_threads} client threads lost their connection for good");
        checks.push(
            Check::new(CheckId::Clients, false, finding)
                .with_extent(f64::from(lost_threads))
                .with_remedy("look at the system's log"),
        );
    }
    if evidence.open_loop {
        checks.push(offered::check(measured, &evidence.aftermath));
    }
}

fn generator_checks(evidence: &CertificateEvidence<'_>, measured: &MeasuredWindow, checks: &mut Vec<Check>) {
    if let Some(ceiling) = evidence.ceiling_per_s {
        let headroom = ceiling / measured.throughput_per_s.max(f64::MIN_POSITIVE);
        let needed = GeneratorCost::MIN_HEADROOM;
        let finding = format!(
            "the generator can offer {ceiling:.0} operations/s, {headroom:.1} times the measured rate \
             (needed: {needed})"
        );
        checks.push(
            Check::new(CheckId::GeneratorHeadroom, headroom >= needed, finding)
                .with_extent(headroom.recip())
                .with_remedy("more threads, or a larger [scale] time"),
        );
    }
    if evidence.open_loop
        && let Some(lateness_us) = measured.generator.lateness_p99_us
    {
        let p99_us = measured.latency.us.p99;
        let passed = !GeneratorCost::is_too_late(lateness_us, p99_us);
        let finding = format!(
            "operations were sent up to {} late (p99) because of the generator itself, against a p99 of {}",
            latency_in_words(lateness_us),
            latency_in_words(p99_us)
        );
        checks.push(
            Check::new(CheckId::ScheduleLateness, passed, finding)
                .with_extent(lateness_us)
                .with_remedy("lower the rate, use fewer threads, or a larger [scale] time"),
        );
    }
}

#[cfg(test)]
mod disturbance_tests;
#[cfg(test)]
mod tests;
