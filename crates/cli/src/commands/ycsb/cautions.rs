//! Where a measurement is weak: said on standard error after it, so that the output stays YCSB's.

use std::time::Duration;

use underlay_record::{GeneratorCost, MeasuredWindow, PauseRecord};
use underlay_report::quantity;
use underlay_report::statistics::quantile::is_measurable;
use underlay_report::steadiness::{SteadinessMetric, WarmUp};
use underlay_workload::ycsb::OutputOptions;
use underlay_workload::{OperationKind, RunSpec};

use crate::output;

/// Inserts that others are still about to make leave fewer behind.
const MISSING_SHARE: f64 = 0.05;

/// The circumstances that a measurement is judged by.
pub(crate) struct RunCircumstances<'a> {
    pub spec: &'a RunSpec,
    /// That are printed, in percent.
    pub percentiles: &'a [f64],
    /// The memory budget of the system and its page cache; absent where the data are on no storage of this host.
    pub budget_bytes: Option<u64>,
    /// Operations of a rate that were due within the measured time and never sent.
    pub unstarted: u64,
    /// Operations that were answered before or after the measured time.
    pub outside: u64,
}

/// A measurement's request, before its outcome is known.
pub(in crate::commands) fn asked<'a>(spec: &'a RunSpec, options: &'a OutputOptions) -> RunCircumstances<'a> {
    RunCircumstances { spec, percentiles: &options.percentiles, budget_bytes: None, unstarted: 0, outside: 0 }
}

/// Says where the measurement is weak.
pub(in crate::commands) fn caution(measured: &MeasuredWindow, circumstances: &RunCircumstances<'_>) {
    for caution in about(measured, circumstances) {
        output::say(format_args!("note: {caution}"));
    }
}

/// Each caution with what to try.
pub(crate) fn about(measured: &MeasuredWindow, circumstances: &RunCircumstances<'_>) -> Vec<String> {
    let spec = circumstances.spec;
    let has_rate = spec.rate_per_s.is_some() || spec.rate_profile.is_some();
    let cautions = [
        standstill(measured),
        unfinished(measured, circumstances.outside, spec).map(|unfinished| unfinished.describe(spec)),
        missing(measured),
        headroom(measured),
        warn_of_backlog(measured, circumstances.unstarted),
        lateness(measured).filter(|_| has_rate),
        few(measured, circumstances.percentiles),
        warm_up(measured, spec, has_rate),
        circumstances.budget_bytes.and_then(|budget_bytes| fits(spec, budget_bytes)),
    ];
    cautions.into_iter().flatten().collect()
}

/// A load or run that was to do a number of operations, and ended before.
pub(in crate::commands) struct UnfinishedRun {
    done: u64,
    asked: u64,
    stopped: bool,
}

/// `None` where everything that was asked for was done, or no number of operations was. Operations of the warm-up, and
/// those answered after the measured time, are done too, although they are in no figure: `outside` is how many
/// operations that are.
pub(in crate::commands) fn unfinished(
    measured: &MeasuredWindow,
    outside: u64,
    spec: &RunSpec,
) -> Option<UnfinishedRun> {
    let asked = spec.operations_in_all()?;
    let limit_s = spec.duration.as_secs_f64();
    let done = measured.operations.saturating_add(outside);
    // One that ended before its time had some fail, which is said apart.
    let is_out_of_time = spec.duration < Duration::MAX && measured.wall_s >= 0.99 * limit_s;
    let is_cut_short = done < asked && (measured.stopped || is_out_of_time);
    is_cut_short.then_some(UnfinishedRun { done, asked, stopped: measured.stopped })
}

impl UnfinishedRun {
    fn describe(&self, spec: &RunSpec) -> String {
        let [done, asked] = [self.done, self.asked].map(|count| quantity::number(count as f64, 1));
        let reason = match self.stopped {
            true => "it was stopped".to_owned(),
            false => format!(
                "the maximum execution time of {} has passed",
                quantity::duration(spec.duration.as_secs_f64())
            ),
        };
        let (subject, advice) = match spec.mix.visits_every_record() {
            true if spec.mix.share(OperationKind::Insert) > 0.0 => (
                "records were inserted",
                "a run on this data would ask for missing records. Load again with more time, or set this recordcount",
            ),
            true => ("records were deleted", "the others are still there"),
            false => (
                "operations were done",
                "its figures cover only the measured ones. Allow more time, or lower operationcount",
            ),
        };
        format!("{done} of {asked} {subject}: {reason}, and {advice}")
    }
}

fn headroom(measured: &MeasuredWindow) -> Option<String> {
    let ceiling_per_s = measured.generator.ceiling_per_s?;
    let headroom = measured.generator.headroom(measured.throughput_per_s)?;
    (headroom < GeneratorCost::MIN_HEADROOM).then(|| {
        format!(
            "the generator alone reaches {}/s here, {} times the measured rate: it may be the limit, and not the system. \
             Try more threads, or more hosts (--workers)",
            quantity::rate(ceiling_per_s),
            quantity::number(headroom, 2)
        )
    })
}

/// Why nothing of a measurement is the system's: its own process or a worker's was stopped meanwhile, or one that they
/// had started.
pub(in crate::commands) fn standstill(measured: &MeasuredWindow) -> Option<String> {
    let record = PauseRecord {
        window_wall_s: measured.wall_s,
        own: measured.generator.pauses.unwrap_or_default(),
        stopped: measured.stopped_processes.clone(),
        counted_off_wall_s: None,
    };
    let problem = record.stop_problem().or_else(|| record.own.delay_problem(record.window_wall_s))?;
    Some(format!("{problem}: these figures don't reflect the system alone. Measure again"))
}

/// Answers about nothing say nothing of a storage.
fn missing(measured: &MeasuredWindow) -> Option<String> {
    let (count, missing) = measured
        .by_operation
        .values()
        .fold((0_u64, 0_u64), |(count, missing), stats| (count + stats.count, missing + stats.missing));
    let share = missing as f64 / count.max(1) as f64;
    (share > MISSING_SHARE).then(|| {
        format!(
            "{} of the operations found no record: load the data first with `underlay ycsb load`, and the same recordcount and \
             insertorder",
            quantity::percent(share)
        )
    })
}

/// YCSB's sections have what was sent alone.
fn warn_of_backlog(measured: &MeasuredWindow, unstarted: u64) -> Option<String> {
    (unstarted > 0).then(|| {
        let due = measured.operations.saturating_add(unstarted).max(1);
        format!(
            "{unstarted} operations ({} of those due) were never sent because the system was behind until the end: its latencies keep \
             growing at this rate. --json has them among the latencies, with the time that they had waited",
            quantity::percent(unstarted as f64 / due as f64)
        )
    })
}

fn lateness(measured: &MeasuredWindow) -> Option<String> {
    let (late_us, p99_us) = (measured.generator.lateness_p99_us?, measured.latency.us.p99);
    GeneratorCost::is_too_late(late_us, p99_us).then(|| {
        format!(
            "the generator itself sent operations up to {} late (p99), beside a p99 of {} from the intended start: try fewer \
             threads, a lower rate, or a machine that does nothing else",
            quantity::latency(late_us),
            quantity::latency(p99_us)
        )
    })
}

/// Percentiles for which there were too few operations.
fn few(measured: &MeasuredWindow, percentiles: &[f64]) -> Option<String> {
    let lacks = |percentile: &f64| {
        let lacking = measured.by_operation.iter().filter(|(_, stats)| {
            let count = stats.latency.us.count;
            count > 0 && !is_measurable(count, percentile / 100.0)
        });
        let names: Vec<&str> = lacking.map(|(name, _)| name.as_str()).collect();
        (!names.is_empty()).then(|| format!("p{percentile} of {}", names.join(", ")))
    };
    let lacking: Vec<String> = percentiles.iter().filter_map(lacks).collect();
    (!lacking.is_empty()).then(|| {
        let lacking = lacking.join("; ");
        format!("too few operations for {lacking}: fewer than ten lie beyond. Measure longer")
    })
}

fn warm_up(measured: &MeasuredWindow, spec: &RunSpec, has_rate: bool) -> Option<String> {
    // A rate that changes is meant to, and so is a data set that grows or shrinks.
    if spec.rate_profile.is_some() || spec.mix.visits_every_record() {
        return None;
    }
    let figure = if has_rate { SteadinessMetric::MeanLatency } else { SteadinessMetric::Throughput };
    let warm_up = WarmUp::from_measurement(measured, figure, spec.dilation)?;
    let figure = figure.describe();
    let Some(difference) = warm_up.difference else {
        return Some(format!(
            "{figure} still changed in the second half of the measured window: try a longer --warmup"
        ));
    };
    let direction = if difference > 0.0 { "higher" } else { "lower" };
    let enough_s = (spec.warmup.as_secs_f64() + warm_up.lacking_wall_s).ceil();
    Some(format!(
        "still warming up when the measurement began: {figure} was {} {direction} at first. Try --warmup {enough_s}",
        quantity::percent(difference.abs())
    ))
}

fn fits(spec: &RunSpec, budget_bytes: u64) -> Option<String> {
    let data_bytes = spec.workload.record_count as f64 * spec.workload.record_bytes();
    (!spec.mix.visits_every_record() && data_bytes <= budget_bytes as f64).then(|| {
        format!(
            "the data ({}) fits in the memory budget ({}): reads come from there, and not from the storage. Use four times as \
             much data as --memory to see the storage",
            quantity::bytes(data_bytes),
            quantity::memory(budget_bytes as f64)
        )
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use underlay_record::{Histogram, OperationStats, RecordedLatency, SeriesPoint};
    use underlay_workload::{CoreWorkload, OperationMix};

    use super::*;

    fn spec(rate_per_s: Option<f64>) -> RunSpec {
        let workload = Arc::new(CoreWorkload::new(1_000_000, 10, 100));
        RunSpec {
            rate_per_s,
            warmup: Duration::from_secs(1),
            ..RunSpec::new(workload, OperationMix::parse("c").unwrap())
        }
    }

    /// So many reads of 1 ms in 60 seconds, with a throughput for each second.
    fn measured(reads: u64, throughput_per_s: impl Fn(usize) -> f64) -> MeasuredWindow {
        let mut histogram = Histogram::default();
        histogram.record_n_ns(1_000_000, reads);
        let latency = RecordedLatency::new(histogram);
        let point = |second: usize| SeriesPoint {
            t_s: second as f64 + 1.0,
            throughput_per_s: throughput_per_s(second),
            mean_us: 1_000.0,
            ..SeriesPoint::default()
        };
        let read = OperationStats { count: reads, latency: latency.clone(), ..OperationStats::default() };
        MeasuredWindow {
            throughput_per_s: reads as f64 / 60.0,
            latency,
            by_operation: [("read".to_owned(), read)].into(),
            series: (0..60).map(point).collect(),
            ..MeasuredWindow::default()
        }
    }

    fn with_percentiles<'a>(spec: &'a RunSpec, percentiles: &'a [f64]) -> RunCircumstances<'a> {
        RunCircumstances { spec, percentiles, budget_bytes: None, unstarted: 0, outside: 0 }
    }

    fn cautions(measured: &MeasuredWindow, spec: &RunSpec) -> Vec<String> {
        let circumstances =
            RunCircumstances { budget_bytes: Some(256 << 20), ..with_percentiles(spec, &[95.0, 99.0]) };
        about(measured, &circumstances)
    }

    #[test]
    fn sound_measurement_has_no_cautions() {
        let mut measured = measured(60_000, |second| 1_000.0 + (second % 7) as f64);
        measured.generator = GeneratorCost {
            ceiling_per_s: Some(1e6),
            lateness_p99_us: Some(60.0),
            ..GeneratorCost::default()
        };
        assert_eq!(cautions(&measured, &spec(None)), [""; 0]);
        assert_eq!(cautions(&measured, &spec(Some(1_000.0))), [""; 0]);
    }

    /// A load once inserted 28,011 of two million records and did not say so.
    #[test]
    fn timed_out_run_reports_missing_operations() {
        let load = RunSpec {
            duration: Duration::from_secs(2),
            warmup: Duration::ZERO,
            ..RunSpec::new(
                Arc::new(CoreWorkload::new(2_000_000, 10, 100)),
                OperationMix::parse("load").unwrap(),
            )
        };
        let by_then = |operations: u64, wall_s: f64, stopped: bool| MeasuredWindow {
            operations,
            wall_s,
            stopped,
            ..MeasuredWindow::default()
        };
        let caution = |measured: &MeasuredWindow, spec: &RunSpec| {
            unfinished(measured, 0, spec).map(|unfinished| unfinished.describe(spec))
        };
        let message = caution(&by_then(28_011, 2.0, false), &load).unwrap();
        assert!(
            message.starts_with(
                "28,011 of 2,000,000 records were inserted: the maximum execution time of 2.0 s"
            ),
            "{message}"
        );
        assert!(caution(&by_then(28_011, 1.0, true), &load).unwrap().contains("it was stopped"));
        assert_eq!(caution(&by_then(2_000_000, 1.9, false), &load), None);
        // Until all is done, however long that takes.
        let endless = RunSpec { duration: Duration::MAX, ..load.clone() };
        assert_eq!(caution(&by_then(2_000_000, 900.0, false), &endless), None);
        let run =
            RunSpec { operation_limit: Some(1_000), mix: OperationMix::parse("a").unwrap(), ..load.clone() };
        assert!(
            caution(&by_then(300, 2.0, false), &run)
                .unwrap()
                .starts_with("300 of 1,000 operations were done")
        );
        let timed = RunSpec { operation_limit: None, ..run };
        assert_eq!(caution(&by_then(300, 2.0, false), &timed), None);
    }

    /// A load of 20,000 at 2,000 a second, with a warm-up of 3 s and 1 s to measure: 8,000 are there.
    #[test]
    fn load_counts_records_of_warm_up() {
        let load = RunSpec {
            rate_per_s: Some(2_000.0),
            warmup: Duration::from_secs(3),
            duration: Duration::from_secs(1),
            ..RunSpec::new(Arc::new(CoreWorkload::new(20_000, 10, 100)), OperationMix::parse("load").unwrap())
        };
        let by_then = |operations| MeasuredWindow { operations, wall_s: 1.0, ..MeasuredWindow::default() };
        let found = unfinished(&by_then(2_000), 6_000, &load).unwrap();
        assert!(found.describe(&load).starts_with("8,000 of 20,000 records were inserted"));
        assert!(unfinished(&by_then(2_000), 18_000, &load).is_none(), "all of it");
        assert!(unfinished(&by_then(2_000), 17_999, &load).is_some());
    }

    /// The engine of an embedded system is a process of its own, and so are clients in Java.
    #[test]
    fn stopped_engine_is_reported() {
        let mut measured = measured(60_000, |_| 1_000.0);
        measured.wall_s = 4.0;
        measured.stopped_processes = vec![underlay_record::StoppedProcess {
            name: "underlay-engine".to_owned(),
            pid: 12,
            stopped_wall_s: 1.5,
            ..Default::default()
        }];
        let message = standstill(&measured).unwrap();
        assert!(
            message.starts_with("underlay-engine (process 12) was stopped for 1.50 s of 4.00 s"),
            "{message}"
        );
        measured.stopped_processes[0].stopped_wall_s = 0.1;
        assert_eq!(standstill(&measured), None);
    }

    #[test]
    fn stopped_generator_measured_nothing() {
        let mut measured = measured(60_000, |_| 1_000.0);
        measured.wall_s = 60.0;
        measured.generator.pauses = Some(underlay_record::Pauses {
            paused_wall_s: 5.0,
            longest_wall_s: 5.0,
            pauses: 1,
            ..Default::default()
        });
        let messages = cautions(&measured, &spec(None));
        assert!(messages[0].contains("stood still for 5.00 s of 60.00 s"), "{messages:?}");
    }

    #[test]
    fn weaknesses_come_with_advice() {
        let mut measured = measured(600, |second| if second < 6 { 2.0 } else { 10.0 + (second % 3) as f64 });
        measured.generator = GeneratorCost {
            ceiling_per_s: Some(15.0),
            lateness_p99_us: Some(800.0),
            ..GeneratorCost::default()
        };
        let mut spec = spec(None);
        let messages = cautions(&measured, &spec);
        assert!(
            messages[0].starts_with("the generator alone reaches 15.0/s here, 1.5 times the measured rate"),
            "{messages:?}"
        );
        assert!(
            messages[1].starts_with("too few operations for p99 of read: fewer than ten"),
            "{messages:?}"
        );
        assert!(messages[2].ends_with("lower at first. Try --warmup 7"), "{messages:?}");
        assert_eq!(messages.len(), 3);
        spec.rate_per_s = Some(10.0);
        let messages = cautions(&measured, &spec);
        assert!(
            messages[1].starts_with("the generator itself sent operations up to 800 µs late (p99)"),
            "{messages:?}"
        );
        spec.workload = Arc::new(CoreWorkload::new(100_000, 10, 100));
        let messages = cautions(&measured, &spec);
        assert!(messages.last().unwrap().contains("fits in the memory budget (256 MiB)"), "{messages:?}");
    }
}
