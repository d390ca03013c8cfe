//! The fidelity certificate: from what was measured, whether the figures may be believed.

mod latencies;
mod processors;
mod searching;
mod waits;

use underlay_record::{
    Certificate, Check, CpuRecord, DeviceActivity, Generator, IntegrityRecord, Measured, PathRecord,
};
use underlay_workload::Aftermath;

use latencies::Latencies;
pub use searching::Searching;

/// Mean latency over all device requests: what decides a system's throughput.
const MEAN_TOLERANCE: f64 = 0.10;
/// Operations that fail, find nothing or are refused may be this share of all.
const UNANSWERED_TOLERANCE: f64 = 0.001;
/// Operations that were due and not sent may be this share: the end of the time meets some that wait for a moment.
const UNSENT_TOLERANCE: f64 = 0.001;
const STEAL_TOLERANCE: f64 = 0.05;

/// What a certificate is made from.
pub struct Evidence<'a> {
    pub devices: &'a [DeviceActivity],
    /// What programs waited on the way to them; empty where that isn't known.
    pub paths: &'a [PathRecord],
    /// Absent for a batch job.
    pub measured: Option<&'a Measured>,
    /// The attachment's own p50 in modelled microseconds, when something was modelled.
    pub floor_us: Option<f64>,
    pub aftermath: &'a Aftermath,
    /// Absent where the study names no cores.
    pub cpu: Option<&'a CpuRecord>,
    /// Of a cell that looked for its rate.
    pub searching: Option<&'a Searching>,
    /// Whether a cgroup held the system and its page cache to the budget; absent where there is none to be held to.
    pub memory_enforced: Option<bool>,
    /// The highest throughput that the generator can reach here, in modelled operations per second.
    pub ceiling_per_s: Option<f64>,
    pub open_loop: bool,
    /// Some readers must find nothing, because they lack an authorisation.
    pub hides_records: bool,
    pub time_scale: f64,
}

pub fn certify(evidence: &Evidence<'_>) -> Certificate {
    let latencies = Latencies::of(evidence.devices, evidence.paths);
    let any_modelled = latencies.any_modelled;
    let mut checks = latencies.checks(evidence.paths, evidence.floor_us, evidence.time_scale);
    if let Some(measured) = evidence.measured {
        answer_checks(evidence, measured, &mut checks);
        generator_checks(evidence, measured, &mut checks);
    }
    if let Some(enforced) = evidence.memory_enforced {
        checks.push(Check {
            name: "memory budget".into(),
            passed: enforced,
            finding: if enforced {
                "a memory cgroup held the system and its page cache to the budget".into()
            } else {
                "nothing held the page cache to the budget: the data may have been in memory".into()
            },
            extent: None,
            remedy: (!enforced).then(|| "`underlay doctor` says how to get a memory cgroup".into()),
        });
    }
    let steal = evidence.aftermath.steal_share;
    let slower = match any_modelled {
        true => slower_remedy(evidence.time_scale),
        // Real storage can't be slowed down.
        false => "run on a host with more idle CPUs, or name fewer `cores` in [machine]".to_owned(),
    };
    match evidence.cpu {
        Some(cpu) => checks.extend(processors::checks(cpu, &slower)),
        // Nobody knows how much of it the system would have had.
        None => checks.push(steal_check(steal)),
    }
    if let Some(searching) = evidence.searching {
        checks.extend(searching::failed_checks(searching, evidence.time_scale, &slower));
    }
    latencies.certificate(checks, evidence.floor_us, steal)
}

/// Fewer requests than this tell nothing of percentiles.
const ENOUGH_REQUESTS: u64 = 100;

/// What can be said of devices alone, whatever drove them: whether they kept the modelled time. `None` where they had too few requests
/// for that.
pub fn certify_devices(
    devices: &[DeviceActivity],
    paths: &[PathRecord],
    time_scale: f64,
) -> Option<Certificate> {
    let latencies = Latencies::of(devices, paths);
    (latencies.requests() >= ENOUGH_REQUESTS).then(|| {
        let checks = latencies.checks(paths, None, time_scale);
        latencies.certificate(checks, None, 0.0)
    })
}

/// What was wrong with devices and CPUs during a search, in words.
pub(super) fn search_findings(searching: &Searching, time_scale: f64) -> Vec<String> {
    let failed = searching::failed_checks(searching, time_scale, "");
    failed.into_iter().map(|check| format!("{}: {}", check.name, check.finding)).collect()
}

fn steal_check(steal: f64) -> Check {
    Check {
        name: "stolen time".into(),
        passed: steal <= STEAL_TOLERANCE,
        finding: format!(
            "the hypervisor took {:.1} % of the time (allowed: {:.0} %)",
            steal * 100.0,
            STEAL_TOLERANCE * 100.0
        ),
        extent: Some(steal),
        remedy: (steal > STEAL_TOLERANCE).then(|| "run again when the host is quieter".into()),
    }
}

/// What failed of a certificate that a slower motion would mend, in the certificate's words; `None` where nothing did.
pub fn too_fast(certificate: &Certificate) -> Option<String> {
    let mends = |name: &str| latencies::is_mended(name) || processors::is_mended(name) || waits::is_one(name);
    let mut failed = certificate.checks.iter().filter(|check| !check.passed);
    let found = failed.find(|check| mends(searching::plain_name(&check.name)))?;
    Some(format!("{}: {}", found.name, found.finding))
}

fn slower_remedy(time_scale: f64) -> String {
    format!(
        "use slower motion than x{time_scale} (`--time`, or `[scale] time`), or run when this machine is less busy"
    )
}

/// Whether the system did what was asked of it: a refusal is quicker than an answer.
fn answer_checks(evidence: &Evidence<'_>, measured: &Measured, checks: &mut Vec<Check>) {
    let missing: u64 = measured.by_operation.values().map(|stats| stats.missing).sum();
    let throttled: u64 = measured.by_operation.values().map(|stats| stats.throttled).sum();
    let refused = if evidence.hides_records { throttled } else { missing + throttled };
    if evidence.hides_records {
        checks.push(Check {
            name: "hidden records".into(),
            passed: missing > 0,
            finding: format!("{missing} operations found no record, as readers without authorisation must"),
            extent: None,
            remedy: (missing == 0).then(|| {
                "readers without authorisation saw records, or there were none of these readers".into()
            }),
        });
    }
    let unanswered = measured.errors + refused;
    // Those that failed are not among the operations.
    let all = measured.operations + measured.errors;
    let share = unanswered as f64 / all.max(1) as f64;
    let passed = measured.operations > 0 && share <= UNANSWERED_TOLERANCE;
    checks.push(Check {
        name: "operations answered".into(),
        passed,
        finding: format!(
            "{all} operations, of which {} failed and {refused} found no record or were refused (allowed: {:.1} %)",
            measured.errors,
            UNANSWERED_TOLERANCE * 100.0
        ),
        extent: Some(share),
        remedy: (!passed).then(|| "look at the cell's errors, and whether all its records were loaded".into()),
    });
    if let Some(IntegrityRecord { checked, mismatches, wrong_values }) = &measured.integrity {
        let first = wrong_values.first().map_or(String::new(), |wrong| format!("; the first: {wrong}"));
        checks.push(Check {
            name: "checked values".into(),
            passed: *mismatches == 0,
            finding: format!(
                "{mismatches} of {checked} records that were read were not what was written{first}"
            ),
            extent: Some(*mismatches as f64 / (*checked).max(1) as f64),
            remedy: (*mismatches > 0)
                .then(|| "look for faults of the storage, and read the system's log of this cell".into()),
        });
    }
    let Aftermath { lost_threads, unstarted, .. } = *evidence.aftermath;
    if lost_threads > 0 {
        checks.push(Check {
            name: "clients".into(),
            passed: false,
            finding: format!("{lost_threads} client threads lost their connection for good"),
            extent: Some(lost_threads as f64),
            remedy: Some("look at the system's log".into()),
        });
    }
    if evidence.open_loop {
        let unsent = unstarted as f64 / (measured.operations + unstarted).max(1) as f64;
        let is_offered = unsent <= UNSENT_TOLERANCE;
        checks.push(Check {
            name: "offered rate".into(),
            passed: is_offered,
            finding: format!(
                "{unstarted} operations that were due could not be sent before the end, {:.2} % (allowed: {:.1} %)",
                unsent * 100.0,
                UNSENT_TOLERANCE * 100.0
            ),
            extent: Some(unsent),
            remedy: (!is_offered).then(|| {
                "the system is slower than the rate: lower it, or read the latency as a lower bound".into()
            }),
        });
    }
}

fn generator_checks(evidence: &Evidence<'_>, measured: &Measured, checks: &mut Vec<Check>) {
    if let Some(ceiling) = evidence.ceiling_per_s {
        let headroom = ceiling / measured.throughput_per_s.max(f64::MIN_POSITIVE);
        let needed = Generator::MIN_HEADROOM;
        checks.push(Check {
            name: "generator headroom".into(),
            passed: headroom >= needed,
            finding: format!(
                "the generator can offer {ceiling:.0} operations/s, {headroom:.1} times what was measured \
                     (needed: {needed})"
            ),
            extent: Some(headroom.recip()),
            remedy: (headroom < needed).then(|| "more threads, or a larger [scale] time".into()),
        });
    }
    if evidence.open_loop
        && let Some(lateness_us) = measured.generator.lateness_p99_us
    {
        let p99_us = measured.latency.us.p99;
        let passed = !Generator::is_too_late(lateness_us, p99_us);
        checks.push(Check {
            name: "schedule lateness".into(),
            passed,
            finding: format!(
                "operations were sent up to {lateness_us:.0} µs late (p99) because of the generator itself, \
                     against a p99 of {p99_us:.0} µs"
            ),
            extent: Some(lateness_us),
            remedy: (!passed).then(|| "lower the rate, or use fewer threads".into()),
        });
    }
}

#[cfg(test)]
mod tests {
    use underlay_record::{Histogram, OperationStats, PathWait, Verdict, WrongValue, WrongValueProblem};

    use super::*;

    fn device(modelled_us: u64, delivered_us: u64) -> DeviceActivity {
        let mut activity = DeviceActivity::default();
        let mut asked = Histogram::default();
        let mut got = Histogram::default();
        asked.record_n_ns(modelled_us * 1000, 1000);
        got.record_n_ns(delivered_us * 1000, 1000);
        activity.modelled = Some(asked);
        activity.delivered = Some(got);
        activity
    }

    fn certificate_of(devices: &[DeviceActivity], ceiling: f64, steal_share: f64) -> Certificate {
        let measured = Measured { throughput_per_s: 1000.0, operations: 1000, ..Measured::default() };
        let aftermath = Aftermath { steal_share, ..Aftermath::default() };
        certify(&Evidence {
            devices,
            paths: &[],
            measured: Some(&measured),
            hides_records: false,
            floor_us: Some(10.0),
            cpu: None,
            searching: None,
            aftermath: &aftermath,
            memory_enforced: Some(true),
            ceiling_per_s: Some(ceiling),
            open_loop: false,
            time_scale: 4.0,
        })
    }

    fn failed(certificate: &Certificate) -> Vec<&str> {
        certificate.checks.iter().filter(|check| !check.passed).map(|check| check.name.as_str()).collect()
    }

    #[test]
    fn wrong_values_are_told_apart_from_errors() {
        let problem = WrongValueProblem::Content { field: 0, from_byte: 8, length: 100 };
        let wrong = WrongValue { record: "user1".to_owned(), problem };
        let certificate = |mismatches| {
            let measured = Measured {
                throughput_per_s: 1000.0,
                operations: 1000,
                integrity: Some(IntegrityRecord {
                    checked: 900,
                    mismatches,
                    wrong_values: vec![wrong.clone(); usize::from(mismatches > 0)],
                }),
                error_samples: vec!["read: no answer".into()],
                ..Measured::default()
            };
            certify(&Evidence {
                devices: &[],
                paths: &[],
                measured: Some(&measured),
                hides_records: false,
                floor_us: None,
                cpu: None,
                searching: None,
                aftermath: &Aftermath::default(),
                memory_enforced: Some(true),
                ceiling_per_s: Some(1e6),
                open_loop: false,
                time_scale: 1.0,
            })
        };
        assert!(failed(&certificate(0)).is_empty());
        let wrong = certificate(2);
        assert_eq!((failed(&wrong), wrong.verdict), (vec!["checked values"], Verdict::Doubtful));
        let check = wrong.checks.iter().find(|check| !check.passed).unwrap();
        assert_eq!(
            check.finding,
            "2 of 900 records that were read were not what was written; the first: record user1 field 0 differs \
                 from what was \
             written, from byte 8 of 100"
        );
    }

    #[test]
    fn a_device_on_time_is_faithful() {
        let certificate = certificate_of(&[device(1000, 1030)], 50_000.0, 0.0);
        assert_eq!((certificate.verdict, failed(&certificate)), (Verdict::Faithful, vec![]));
    }

    #[test]
    fn a_late_device_is_doubtful_and_says_what_to_try() {
        let certificate = certificate_of(&[device(1000, 1300)], 50_000.0, 0.0);
        assert_eq!(certificate.verdict, Verdict::Doubtful);
        assert_eq!(failed(&certificate), ["device latency mean", "device latency p50", "device latency p99"]);
        assert!(
            certificate.checks[0].remedy.as_deref().is_some_and(|remedy| remedy.contains("[scale] time"))
        );
    }

    #[test]
    fn a_device_faster_than_the_path_is_doubtful() {
        assert_eq!(failed(&certificate_of(&[device(20, 21)], 50_000.0, 0.0)), ["path overhead"]);
    }

    #[test]
    fn a_way_that_costs_more_than_was_taken_off_is_late_and_says_so() {
        let devices = [device(1000, 1000)];
        let certificate = |path_mean_us: f64| {
            let reads = PathWait {
                requests: 1000,
                modelled_mean_us: 1000.0,
                waited_mean_us: 970.0 + path_mean_us,
                path_mean_us,
                dated_back_mean_us: 30.0,
                is_estimate: false,
            };
            let path = PathRecord { is_direct: true, reads, ..PathRecord::default() };
            certify(&Evidence {
                cpu: None,
                searching: None,
                devices: &devices,
                paths: &[path],
                measured: None,
                floor_us: Some(10.0),
                aftermath: &Aftermath::default(),
                memory_enforced: Some(true),
                ceiling_per_s: None,
                open_loop: false,
                hides_records: false,
                time_scale: 4.0,
            })
        };
        let as_expected = certificate(30.0);
        assert_eq!((as_expected.verdict, failed(&as_expected)), (Verdict::Faithful, vec![]));
        assert_eq!(as_expected.delivered_p50_us.map(f64::round), Some(1000.0));
        // 300 µs more on the way, and nobody took them off.
        let late = certificate(330.0);
        assert_eq!(
            failed(&late),
            ["device latency mean", "device latency p50", "device latency p99", "read latency mean"]
        );
        assert!((late.delivered_p50_us.unwrap() - 1300.0).abs() < 2.0, "{late:?}");
        let found = late.checks.iter().find(|check| check.name == "read latency mean").unwrap();
        assert!(found.finding.contains("the way to the device and back took 330.0 µs"), "{}", found.finding);
        assert!(found.remedy.as_deref().is_some_and(|remedy| remedy.contains("[scale] time")));
    }

    #[test]
    fn a_saturated_generator_and_stolen_time_are_doubtful() {
        let certificate = certificate_of(&[device(1000, 1000)], 1500.0, 0.2);
        assert_eq!(failed(&certificate), ["generator headroom", "stolen time"]);
    }

    #[test]
    fn a_job_is_certified_by_its_devices_alone() {
        let devices = [device(1000, 1030)];
        let certificate = certify(&Evidence {
            devices: &devices,
            paths: &[],
            measured: None,
            floor_us: Some(10.0),
            cpu: None,
            searching: None,
            aftermath: &Aftermath::default(),
            memory_enforced: Some(true),
            ceiling_per_s: None,
            open_loop: false,
            hides_records: false,
            time_scale: 8.0,
        });
        assert_eq!((certificate.verdict, failed(&certificate)), (Verdict::Faithful, vec![]));
        assert!(certificate.checks.iter().all(|check| check.name != "operations answered"));
    }

    #[test]
    fn readers_without_authorisation_have_to_find_nothing() {
        let of = |missing: u64| {
            let stats = OperationStats { missing, ..OperationStats::default() };
            let measured = Measured {
                throughput_per_s: 1000.0,
                operations: 1000,
                by_operation: [("read".to_owned(), stats)].into(),
                ..Measured::default()
            };
            certify(&Evidence {
                devices: &[],
                paths: &[],
                measured: Some(&measured),
                floor_us: None,
                cpu: None,
                searching: None,
                aftermath: &Aftermath::default(),
                memory_enforced: Some(true),
                ceiling_per_s: None,
                open_loop: false,
                hides_records: true,
                time_scale: 1.0,
            })
        };
        assert_eq!(failed(&of(250)), Vec::<&str>::new());
        assert_eq!(failed(&of(0)), ["hidden records"]);
    }

    fn of_cpu(lost_share: f64, emulation_busy_share: f64, enforced_by: &str) -> Certificate {
        of_waiting(lost_share, emulation_busy_share, enforced_by, None)
    }

    fn of_waiting(
        lost_share: f64,
        emulation_busy_share: f64,
        enforced_by: &str,
        waited_share: Option<f64>,
    ) -> Certificate {
        let cpu = CpuRecord {
            modelled_cores: 16,
            due_cpus: 0.5,
            held_to_cpus: 0.5,
            enforced_by: enforced_by.to_owned(),
            used_cpus: 0.4,
            throttled_share: 0.2,
            lost_share,
            system_cpus: "0".to_owned(),
            system_stolen_share: 0.3,
            emulation_cpus: "1".to_owned(),
            emulation_busy_share,
            emulation_stolen_share: 0.1,
            waited_share,
        };
        let measured = Measured { throughput_per_s: 1000.0, operations: 1000, ..Measured::default() };
        certify(&Evidence {
            paths: &[],
            devices: &[device(1000, 1000)],
            measured: Some(&measured),
            hides_records: false,
            floor_us: Some(10.0),
            cpu: Some(&cpu),
            searching: None,
            aftermath: &Aftermath { steal_share: 0.3, ..Aftermath::default() },
            memory_enforced: Some(true),
            ceiling_per_s: None,
            open_loop: false,
            time_scale: 4.0,
        })
    }

    #[test]
    fn stolen_time_is_judged_by_what_it_did() {
        assert_eq!(of_cpu(0.0, 0.5, "cgroup v2").verdict, Verdict::Faithful);
        assert_eq!(failed(&of_cpu(0.06, 0.5, "cgroup v2")), ["system CPU"]);
        assert_eq!(failed(&of_cpu(0.0, 0.89, "cgroup v1")), ["emulation CPU"]);
        assert_eq!(failed(&of_cpu(0.0, 0.5, "none")), ["CPU budget"]);
        assert_eq!(failed(&of_waiting(0.0, 0.5, "cgroup v1", Some(0.12))), ["wait for CPU"]);
        assert_eq!(failed(&of_waiting(0.0, 0.5, "cgroup v1", Some(0.09))), Vec::<&str>::new());
        // Slower motion holds nobody to anything.
        assert_eq!(too_fast(&of_cpu(0.0, 0.5, "none")), None);
    }

    #[test]
    fn a_slower_motion_mends_what_came_too_late() {
        assert_eq!(too_fast(&of_cpu(0.0, 0.5, "cgroup v2")), None);
        let busy = too_fast(&of_cpu(0.0, 0.95, "cgroup v2")).unwrap();
        assert!(
            busy.starts_with("emulation CPU: 100 % of the time of CPU 1, where the load generator"),
            "{busy}"
        );
        let late = certificate_of(&[device(1000, 1300)], 50_000.0, 0.0);
        assert!(too_fast(&late).unwrap().starts_with("device latency mean: modelled 1000 µs"));
        // Nobody knows what stolen time did to a system that may have all CPUs.
        assert_eq!(too_fast(&certificate_of(&[device(1000, 1000)], 50_000.0, 0.5)), None);
    }

    #[test]
    fn real_storage_is_said_to_be_real() {
        assert_eq!(certificate_of(&[DeviceActivity::default()], 50_000.0, 0.0).verdict, Verdict::RealStorage);
    }

    #[test]
    fn what_was_not_measured_is_never_faithful() {
        let devices = [device(1000, 1000)];
        let certify_with = |measured: &Measured, aftermath: &Aftermath, enforced: bool| {
            certify(&Evidence {
                devices: &devices,
                paths: &[],
                measured: Some(measured),
                hides_records: false,
                floor_us: Some(10.0),
                cpu: None,
                searching: None,
                aftermath,
                memory_enforced: Some(enforced),
                ceiling_per_s: None,
                open_loop: true,
                time_scale: 1.0,
            })
        };
        let fine = Measured { throughput_per_s: 1000.0, operations: 1000, ..Measured::default() };
        let steady = Aftermath::default();
        assert_eq!(certify_with(&fine, &steady, true).verdict, Verdict::Faithful);
        assert_eq!(failed(&certify_with(&fine, &steady, false)), ["memory budget"]);
        assert_eq!(failed(&certify_with(&Measured::default(), &steady, true)), ["operations answered"]);
        let third_failed = certify_with(&Measured { errors: 500, ..fine.clone() }, &steady, true);
        assert_eq!(failed(&third_failed), ["operations answered"]);
        let finding = &third_failed.checks.iter().find(|check| !check.passed).unwrap().finding;
        assert!(
            finding.starts_with("1500 operations, of which 500 failed and 0 found no record"),
            "{finding}"
        );
        let lost = Aftermath { lost_threads: 1, unstarted: 9, ..Aftermath::default() };
        assert_eq!(failed(&certify_with(&fine, &lost, true)), ["clients", "offered rate"]);
    }
}
