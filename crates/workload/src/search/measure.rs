//! Runs the search: each step is a separate run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use underlay_record::{Histogram, MeasuredWindow};

use super::find::{RateSearch, SearchAction, SearchOutcome, SearchSpec, TriedStep};
use super::judge::{IntervalCounts, LatencyBound, StepCounts, StepVerdict};
use crate::mix::OperationKind;
use crate::run::control::RunHandle;
use crate::run::runner::{RunError, ThreadConnector, run};
use crate::run::series::IntervalLatencies;
use crate::run::spec::RunSpec;
use crate::workload::CoreWorkload;

/// After an overload, a system works off its queue, in itself and below it.
const REST_AFTER_OVERLOAD: u32 = 3;
/// How long the system settles before each step, as a part of the step's measured time.
const SETTLE_PART: f64 = 0.25;

/// The length of a search's steps, in wall time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTimes {
    /// The time before each step for the system to adapt to its rate.
    pub settle: Duration,
    pub measure: Duration,
}

impl StepTimes {
    /// Steps that measure for `measure`.
    pub fn from_measure(measure: Duration) -> Self {
        StepTimes { settle: measure.mul_f64(SETTLE_PART), measure }
    }

    /// The total time of a step.
    pub fn whole(&self) -> Duration {
        self.settle + self.measure
    }
}

/// The rate that was found, with details.
#[derive(Clone, Debug)]
pub struct FoundRate {
    pub found: SearchOutcome,
    pub steps: Vec<TriedStep>,
    /// The last step at the found rate.
    pub measured: Option<MeasuredWindow>,
    /// Why a step did not depend on the system alone: this process stalled in it.
    pub disturbed: Option<String>,
    /// The workload including the records that the steps added, for later runs.
    pub workload: Arc<CoreWorkload>,
}

/// Searches for the highest rate that the system sustains. `spec` describes the workload; its rate, times and limits
/// are replaced by the search's. `stepped` is called after each step.
///
/// # Errors
/// When nothing can be searched, or a step's run fails.
pub fn find_rate(
    spec: &RunSpec,
    search: SearchSpec,
    times: StepTimes,
    connect: ThreadConnector<'_>,
    stop: &Arc<AtomicBool>,
    stepped: &dyn Fn(&TriedStep),
) -> Result<FoundRate, RunError> {
    let bounds = search.bounds.clone();
    let mut search = RateSearch::new(search).map_err(|problem| RunError::Spec { problems: vec![problem] })?;
    if spec.mix.visits_every_record() {
        let problem = format!("{} ends with its records: a rate is searched for with another mix", spec.mix);
        return Err(RunError::Spec { problems: vec![problem] });
    }
    let mut workload = CoreWorkload::clone(&spec.workload);
    let mut last: Option<(f64, MeasuredWindow)> = None;
    let mut disturbed = None;
    loop {
        let (rate_per_s, after_overload) = match search.next() {
            SearchAction::Measure { rate_per_s, after_overload } => (rate_per_s, after_overload),
            SearchAction::Done(found) => {
                let measured = last.filter(|(rate, _)| Some(*rate) == found.holds_per_s);
                let measured = measured.map(|(_, measured)| measured);
                let steps = search.tried().to_vec();
                return Ok(FoundRate { found, steps, measured, disturbed, workload: Arc::new(workload) });
            }
        };
        let rest = if after_overload { REST_AFTER_OVERLOAD } else { 1 };
        let step = RunSpec {
            workload: Arc::new(workload.clone()),
            rate_per_s: Some(rate_per_s),
            rate_profile: None,
            warmup: times.settle * rest,
            duration: times.measure,
            operation_limit: None,
            // Different requests than in the previous step, which are in the system's caches.
            seed: spec.seed ^ crate::draw::values::mix(search.tried().len() as u64),
            ..spec.clone()
        };
        let mut control = RunHandle::with_stop(Arc::clone(stop));
        control.keeps_intervals = true;
        let measured = run(&step, connect, &control)?;
        disturbed = disturbed
            .or_else(|| measured.generator.pauses.and_then(|pauses| pauses.problem(measured.wall_s)));
        let timed_timeouts = control.aftermath().timed_timeouts;
        search.report(counts(&measured, timed_timeouts, &control.intervals(), &bounds));
        let tried = search.tried().last().expect("a step was just reported");
        stepped(tried);
        // Records added by a step exist for the next one, which adds others.
        let added = measured.by_operation.get(OperationKind::Insert.name());
        let warm =
            step.warmup.as_secs_f64() / spec.dilation * rate_per_s * spec.mix.share(OperationKind::Insert);
        let added = added.map_or(0, |stats| stats.count + stats.errors) + (2.0 * warm).ceil() as u64;
        if spec.mix.share(OperationKind::Insert) > 0.0 {
            workload.record_count = workload.record_count.saturating_add(2 * added);
        }
        let is_better = match &last {
            Some((rate, _)) => rate_per_s >= *rate || tried.confirms,
            None => true,
        };
        if tried.verdict == StepVerdict::Holds && is_better {
            last = Some((rate_per_s, measured));
        }
    }
}

/// The counts of a step for the search.
fn counts(
    measured: &MeasuredWindow,
    timed_timeouts: u64,
    intervals: &[IntervalLatencies],
    bounds: &[LatencyBound],
) -> StepCounts {
    let throttled: u64 = measured.by_operation.values().map(|stats| stats.throttled).sum();
    let errors = measured.errors + throttled;
    let count_beyond =
        |latencies: &Histogram| -> Vec<u64> { bounds.iter().map(|bound| slower(latencies, bound)).collect() };
    let mut by_time: BTreeMap<u64, IntervalCounts> = BTreeMap::new();
    for one in intervals {
        let interval = by_time.entry(one.begin_ns).or_default();
        interval.operations += one.latency.count();
        interval.beyond.resize(bounds.len(), 0);
        for (sum, count) in interval.beyond.iter_mut().zip(count_beyond(&one.latency)) {
            *sum += count;
        }
    }
    StepCounts {
        // Errors and refusals were due too, but have no latency, except timeouts.
        due: measured.latency.histogram.count() + errors.saturating_sub(timed_timeouts),
        answered: measured.operations,
        errors,
        integrity: measured.integrity.clone().unwrap_or_default(),
        beyond: count_beyond(&measured.latency.histogram),
        intervals: by_time.into_values().collect(),
    }
}

/// How many took longer than a bound allows. The buckets have three digits: the one that contains the limit counts as
/// within it.
fn slower(latencies: &Histogram, bound: &LatencyBound) -> u64 {
    // An HdrHistogram of three digits: 2048 buckets of 1 ns, then 1024 for each power of two.
    let width = |ns: u64| -> u64 { if ns < 2048 { 1 } else { 1 << (ns.ilog2() - 10) } };
    let is_slower = |ns: u64| ns >= bound.limit_ns.saturating_add(width(bound.limit_ns));
    latencies.values_ns().filter(|&(ns, _)| is_slower(ns)).map(|(_, count)| count).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::Ordering;

    use super::super::find::SearchEnding;
    use super::*;
    use crate::client::{Client, ClientError, FieldSelection, FieldValues, OperationOutcome};
    use crate::{NullClient, OperationMix};

    const P99: LatencyBound = LatencyBound { quantile: 0.99, limit_ns: 50_000_000 };
    const TIMES: StepTimes =
        StepTimes { settle: Duration::from_millis(5), measure: Duration::from_millis(100) };

    fn spec(mix: &str) -> RunSpec {
        RunSpec {
            threads: 2,
            ..RunSpec::new(Arc::new(CoreWorkload::new(1000, 1, 10)), OperationMix::parse(mix).unwrap())
        }
    }

    /// Refuses everything.
    struct Refusing;

    impl Client for Refusing {
        fn read(
            &mut self,
            _: &[u8],
            _: FieldSelection,
            _: &mut FieldValues,
        ) -> Result<OperationOutcome, ClientError> {
            Ok(OperationOutcome::Throttled)
        }
        fn scan(
            &mut self,
            _: &[u8],
            _: u32,
            _: FieldSelection,
        ) -> Result<(OperationOutcome, u32), ClientError> {
            Ok((OperationOutcome::Throttled, 0))
        }
        fn update(&mut self, _: &[u8], _: &FieldValues) -> Result<OperationOutcome, ClientError> {
            Ok(OperationOutcome::Throttled)
        }
        fn insert(&mut self, _: &[u8], _: &FieldValues) -> Result<OperationOutcome, ClientError> {
            Ok(OperationOutcome::Throttled)
        }
        fn delete(&mut self, _: &[u8]) -> Result<OperationOutcome, ClientError> {
            Ok(OperationOutcome::Throttled)
        }
    }

    #[test]
    fn refusing_system_holds_no_rate() {
        let search = SearchSpec { extensions: 0, ..SearchSpec::new(vec![P99], 20_000.0) };
        let stop = Arc::new(AtomicBool::new(false));
        let steps = Mutex::new(Vec::new());
        let noted = |tried: &TriedStep| steps.lock().unwrap().push(tried.rate_per_s);
        let connect = |_| -> Result<Box<dyn Client>, ClientError> { Ok(Box::new(Refusing)) };
        let outcome = find_rate(&spec("c"), search, TIMES, &connect, &stop, &noted).unwrap();
        assert_eq!((outcome.found.holds_per_s, outcome.found.ending), (None, SearchEnding::NothingHolds));
        assert!(outcome.measured.is_none());
        let rates: Vec<f64> = outcome.steps.iter().map(|tried| tried.rate_per_s).collect();
        assert_eq!(*steps.lock().unwrap(), rates);
        assert_eq!(rates[..3], [20_000.0, 5_000.0, 1_250.0]);
        let StepVerdict::Fails(reason) = &outcome.steps[0].verdict else { panic!("{:?}", outcome.steps[0]) };
        // On a busy machine, a few operations due are not sent within the step.
        assert!(reason.ends_with(" % of the operations failed"), "{reason}");
    }

    #[test]
    fn timeout_was_due_once() {
        struct Late;
        impl Client for Late {
            fn read(
                &mut self,
                _: &[u8],
                _: FieldSelection,
                _: &mut FieldValues,
            ) -> Result<OperationOutcome, ClientError> {
                Err(ClientError::Timeout(Duration::from_micros(1)))
            }
            fn scan(
                &mut self,
                _: &[u8],
                _: u32,
                _: FieldSelection,
            ) -> Result<(OperationOutcome, u32), ClientError> {
                unreachable!("mix c only reads")
            }
            fn update(&mut self, _: &[u8], _: &FieldValues) -> Result<OperationOutcome, ClientError> {
                unreachable!("mix c only reads")
            }
            fn insert(&mut self, _: &[u8], _: &FieldValues) -> Result<OperationOutcome, ClientError> {
                unreachable!("mix c only reads")
            }
            fn delete(&mut self, _: &[u8]) -> Result<OperationOutcome, ClientError> {
                unreachable!("mix c only reads")
            }
        }
        let connect = |_| -> Result<Box<dyn Client>, ClientError> { Ok(Box::new(Late)) };
        let search = SearchSpec { extensions: 0, most_steps: 1, ..SearchSpec::new(vec![P99], 1_000.0) };
        let stop = Arc::new(AtomicBool::new(false));
        let outcome = find_rate(&spec("c"), search, TIMES, &connect, &stop, &|_| ()).unwrap();
        // Counted twice, they would be twice the errors, wherever the window's edges are.
        let counts = &outcome.steps[0].counts;
        assert!(
            counts.errors > 0 && counts.due < counts.errors * 3 / 2,
            "{} due, {} errors",
            counts.due,
            counts.errors
        );
    }

    #[test]
    fn records_that_a_step_added_are_not_added_again() {
        struct Adding(Arc<Mutex<Vec<Vec<u8>>>>);
        impl Client for Adding {
            fn read(
                &mut self,
                _: &[u8],
                _: FieldSelection,
                _: &mut FieldValues,
            ) -> Result<OperationOutcome, ClientError> {
                Ok(OperationOutcome::Found)
            }
            fn scan(
                &mut self,
                _: &[u8],
                limit: u32,
                _: FieldSelection,
            ) -> Result<(OperationOutcome, u32), ClientError> {
                Ok((OperationOutcome::Found, limit))
            }
            fn update(&mut self, _: &[u8], _: &FieldValues) -> Result<OperationOutcome, ClientError> {
                Ok(OperationOutcome::Found)
            }
            fn insert(&mut self, key: &[u8], _: &FieldValues) -> Result<OperationOutcome, ClientError> {
                self.0.lock().unwrap().push(key.to_vec());
                Ok(OperationOutcome::Found)
            }
            fn delete(&mut self, _: &[u8]) -> Result<OperationOutcome, ClientError> {
                Ok(OperationOutcome::Found)
            }
        }
        let keys = Arc::new(Mutex::new(Vec::new()));
        let connect = |_| -> Result<Box<dyn Client>, ClientError> { Ok(Box::new(Adding(Arc::clone(&keys)))) };
        let search = SearchSpec { most_steps: 3, ..SearchSpec::new(vec![P99], 5_000.0) };
        let stop = Arc::new(AtomicBool::new(false));
        // Mix d inserts. A step that began with the first count would insert the same keys again.
        let outcome = find_rate(&spec("d"), search, TIMES, &connect, &stop, &|_| ()).unwrap();
        assert_eq!(outcome.steps.len(), 3);
        assert!(outcome.workload.record_count > 1000);
        let mut keys = std::mem::take(&mut *keys.lock().unwrap());
        let added = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert!(added > 0 && keys.len() == added, "{} of {added} are different", keys.len());
    }

    #[test]
    fn stop_ends_search() {
        let stop = Arc::new(AtomicBool::new(false));
        let connect = |_| -> Result<Box<dyn Client>, ClientError> { Ok(Box::new(NullClient)) };
        let search = SearchSpec::new(vec![P99], 100.0);
        let stopped = |_: &TriedStep| stop.store(true, Ordering::Relaxed);
        let error = find_rate(&spec("c"), search, TIMES, &connect, &stop, &stopped).unwrap_err();
        assert!(matches!(error, RunError::Stopped), "{error}");
    }

    #[test]
    fn self_ending_mix_is_refused() {
        let connect = |_| -> Result<Box<dyn Client>, ClientError> { Ok(Box::new(NullClient)) };
        let stop = Arc::new(AtomicBool::new(false));
        let search = SearchSpec::new(vec![P99], 100.0);
        let error = find_rate(&spec("load"), search, TIMES, &connect, &stop, &|_| ()).unwrap_err();
        assert!(error.to_string().contains("load ends with its records"), "{error}");
    }

    #[test]
    fn slow_operations_are_those_beyond_the_limits_bucket() {
        let mut histogram = Histogram::default();
        for ns in [1_000, 9_999_999, 10_000_000, 10_000_001, 10_020_000, 3_000_000_000] {
            histogram.record_ns(ns);
        }
        assert_eq!(slower(&histogram, &LatencyBound { quantile: 0.5, limit_ns: 10_000_000 }), 2);
        assert_eq!(slower(&histogram, &LatencyBound { quantile: 0.5, limit_ns: 1_000 }), 5);
        assert_eq!(slower(&histogram, &LatencyBound { quantile: 0.5, limit_ns: u64::MAX }), 0);
    }
}
