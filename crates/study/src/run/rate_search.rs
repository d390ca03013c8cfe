//! A cell that searches for the highest rate under a latency: the search, before the cell is measured at the rate
//! found.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underlay_record::{SearchRecord, SearchStep};
use underlay_workload::search::{
    FoundRate, LatencyBound, SearchEnding, SearchSpec, StepTimes, StepVerdict, TriedStep, find_rate,
};
use underlay_workload::{CoreWorkload, RunError, RunSpec, RunWindow};

use super::attached::CellStorages;
use super::cell_plan::CellPlan;
use super::certificate::{SearchObservation, search_findings};
use super::cpu::{CpuCounters, CpuMeter};
use super::{CellError, LiveCell, RunObserver};
use crate::session::ServerSession;
use crate::spec::FindRate;
use crate::standstill::{PauseMeter, StepClock};

const WATCH_INTERVAL: Duration = Duration::from_millis(200);
/// The interval between samples of the devices, which are not used.
const WATCHED_INTERVAL_S: f64 = 10.0;

/// A search's result.
#[derive(Debug)]
pub(super) struct RateSearchResult {
    pub holds_per_s: f64,
    pub record: SearchRecord,
    /// Includes the records that it added.
    pub workload: Arc<CoreWorkload>,
}

/// Counts what devices and CPUs do during a search.
struct SearchWatch<'a> {
    storages: &'a CellStorages,
    cpu: Option<(CpuMeter<'a>, CpuCounters)>,
    pauses: PauseMeter,
    began: Instant,
}

impl<'a> SearchWatch<'a> {
    fn begin(
        session: &ServerSession,
        storages: &'a CellStorages,
        cpu: Option<CpuMeter<'a>>,
    ) -> Result<SearchWatch<'a>, CellError> {
        let cpu = match cpu {
            Some(meter) => {
                let began = meter.read()?;
                Some((meter, began))
            }
            None => None,
        };
        storages.begin_measurement(WATCHED_INTERVAL_S)?;
        let pauses = PauseMeter::watch(session.groups());
        Ok(SearchWatch { storages, cpu, pauses, began: Instant::now() })
    }

    /// `stopped` describes the processes that stalled in one of the steps.
    fn end(self, threads: u32, stopped: Option<String>) -> Result<SearchObservation, CellError> {
        let (devices, _) = self.storages.end_measurement()?;
        let cpu = match &self.cpu {
            Some((meter, began)) => Some(meter.between(began, &meter.read()?)),
            None => None,
        };
        let pauses = self.pauses.over(&RunWindow::alone(self.began, Instant::now()));
        Ok(SearchObservation { devices, paths: self.storages.path_records(), cpu, pauses, stopped, threads })
    }
}

/// The name of the phase.
const SEARCHING: &str = "searching for a rate";

/// Searches where the study requires it, and counts the work of devices and CPUs meanwhile.
pub(super) fn watched_search(
    plan: &CellPlan<'_>,
    spec: &RunSpec,
    session: &ServerSession,
    storages: &CellStorages,
    cpu: Option<CpuMeter<'_>>,
    observer: &dyn RunObserver,
    stop: &AtomicBool,
) -> Result<(Option<RateSearchResult>, Option<SearchObservation>), CellError> {
    let Some(wanted) = plan.workload.find_rate.as_ref().filter(|_| spec.rate_per_s.is_none()) else {
        return Ok((None, None));
    };
    let watch = SearchWatch::begin(session, storages, cpu)?;
    let steps = StepClock::begin(&watch.pauses);
    let outcome = search(plan, wanted, spec, session, observer, (stop, &steps));
    let stopped = steps.problem();
    match outcome {
        Ok(found) => Ok((Some(found), Some(watch.end(spec.threads, stopped)?))),
        Err(CellError::NoRate { reason, search }) => {
            // This machine may be the reason why no rate held.
            let found = watch.end(spec.threads, stopped);
            let found = found.map(|searching| search_findings(&searching, plan.scale.time));
            let notes: String = found.unwrap_or_default().iter().map(|one| format!("\n{one}")).collect();
            Err(CellError::NoRate { reason: reason + &notes, search })
        }
        Err(error) => Err(error),
    }
}

/// `spec` is the specification of the cell's measurement. The search reports the end of each step.
fn search(
    plan: &CellPlan<'_>,
    wanted: &FindRate,
    spec: &RunSpec,
    session: &ServerSession,
    observer: &dyn RunObserver,
    (stop, steps): (&AtomicBool, &StepClock<'_>),
) -> Result<RateSearchResult, CellError> {
    let measure = wanted.step(plan.study.run.duration);
    let times = StepTimes::from_measure(measure);
    let wanted_search = wanted.search(measure, plan.scale.time);
    let (stopped, ended) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let connect = |thread: u32| session.connect(thread);
    let stepped = |tried: &TriedStep| {
        steps.end_step();
        observer.live(&LiveCell {
            phase: SEARCHING.into(),
            throughput_per_s: tried.rate_per_s,
            errors: tried.counts.errors,
            ..LiveCell::default()
        });
    };
    observer.live(&LiveCell { phase: SEARCHING.into(), ..LiveCell::default() });
    let outcome = std::thread::scope(|scope| {
        // Passes the user's stop on: the search shares its flag with every step's run.
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                if stop.load(Ordering::Relaxed) {
                    stopped.store(true, Ordering::Relaxed);
                }
                std::thread::sleep(WATCH_INTERVAL);
            }
        });
        let outcome = find_rate(spec, wanted_search.clone(), times, &connect, &stopped, &stepped);
        ended.store(true, Ordering::Relaxed);
        outcome
    });
    if stop.load(Ordering::Relaxed) {
        return Err(CellError::Interrupted);
    }
    match outcome {
        Ok(outcome) => searched(&wanted_search, outcome),
        Err(RunError::Stopped) => Err(CellError::Interrupted),
        Err(error) => Err(CellError::Failed(error.to_string())),
    }
}

/// A search's result, or the error that no rate holds.
fn searched(wanted: &SearchSpec, outcome: FoundRate) -> Result<RateSearchResult, CellError> {
    let FoundRate { found, steps, workload, .. } = outcome;
    let record = SearchRecord {
        bounds: wanted.bounds.iter().map(LatencyBound::to_string).collect(),
        holds_per_s: found.holds_per_s,
        fails_per_s: found.fails_per_s,
        reason: found.reason,
        confirmed: found.confirmed.0,
        confirmations: found.confirmed.1,
        is_closed: found.ending != SearchEnding::OutOfSteps,
        steps: steps.into_iter().map(step).collect(),
    };
    match record.holds_per_s {
        Some(holds_per_s) => Ok(RateSearchResult { holds_per_s, record, workload }),
        None => Err(CellError::NoRate { reason: explain_no_rate(wanted, &record), search: Box::new(record) }),
    }
}

fn explain_no_rate(wanted: &SearchSpec, record: &SearchRecord) -> String {
    let bounds = record.bounds.join(" and ");
    let tried = match record.fails_per_s {
        Some(fails_per_s) => format!("{}/s, the lowest rate tried, fails too", rounded(fails_per_s)),
        None => "no step was conclusive".to_owned(),
    };
    let reason = record.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
    let longer = if wanted.is_limited_by_steps() { "; a longer `step` can judge lower ones" } else { "" };
    format!("no rate meets {bounds}: {tried}{reason}{longer}")
}

/// To three digits.
fn rounded(rate_per_s: f64) -> f64 {
    let parts = 10f64.powf(2.0 - rate_per_s.max(1e-9).log10().floor()).max(1.0);
    (rate_per_s * parts).round() / parts
}

fn step(tried: TriedStep) -> SearchStep {
    SearchStep {
        rate_per_s: tried.rate_per_s,
        due: tried.counts.due,
        answered: tried.counts.answered,
        errors: tried.counts.errors,
        beyond: tried.counts.beyond,
        verdict: match tried.verdict {
            StepVerdict::Holds => "holds".to_owned(),
            StepVerdict::Undecided => "undecided".to_owned(),
            StepVerdict::Fails(reason) => reason,
        },
        confirms: tried.confirms,
    }
}

#[cfg(test)]
mod tests {
    use underlay_workload::search::{SearchOutcome, StepCounts};

    use super::*;

    const P99: LatencyBound = LatencyBound { quantile: 0.99, limit_ns: 10_000_000 };

    fn wanted() -> SearchSpec {
        SearchSpec::new(vec![P99], 1_000.0)
    }

    fn found(holds_per_s: Option<f64>, ending: SearchEnding) -> FoundRate {
        let counts = StepCounts { due: 100, answered: 98, beyond: vec![3], ..StepCounts::default() };
        let verdict = StepVerdict::Fails("not sustained".to_owned());
        FoundRate {
            found: SearchOutcome {
                holds_per_s,
                fails_per_s: Some(500.0),
                ending,
                confirmed: (2, 3),
                reason: Some("not sustained".to_owned()),
            },
            steps: vec![TriedStep { rate_per_s: 500.0, counts, verdict, confirms: false }],
            measured: None,
            disturbed: None,
            workload: Arc::new(CoreWorkload::new(1, 1, 1)),
        }
    }

    #[test]
    fn search_is_recorded_with_its_steps() {
        let RateSearchResult { holds_per_s, record, .. } =
            searched(&wanted(), found(Some(480.0), SearchEnding::Closed)).unwrap();
        assert_eq!((holds_per_s, record.holds_per_s, record.fails_per_s), (480.0, Some(480.0), Some(500.0)));
        assert_eq!((record.confirmed, record.confirmations, record.is_closed), (2, 3, true));
        assert_eq!(record.bounds, ["p99 within 10 ms"]);
        let step = &record.steps[0];
        assert_eq!((step.due, step.answered, step.verdict.as_str()), (100, 98, "not sustained"));
    }

    #[test]
    fn system_holding_no_rate_fails_its_cell() {
        let Err(CellError::NoRate { reason, search }) =
            searched(&wanted(), found(None, SearchEnding::NothingHolds))
        else {
            panic!("it held no rate")
        };
        assert_eq!(
            reason,
            "no rate meets p99 within 10 ms: 500/s, the lowest rate tried, fails too: not sustained"
        );
        let short =
            searched(&wanted().with_steps_of(1.0), found(None, SearchEnding::NothingHolds)).unwrap_err();
        let CellError::NoRate { reason, .. } = short else { panic!("{short:?}") };
        assert!(reason.ends_with("; a longer `step` can judge lower ones"), "{reason}");
        assert_eq!((search.holds_per_s, search.steps.len()), (None, 1));
        let rates = [26.802, 0.024_414, 1_234.56].map(|rate| format!("{}", rounded(rate)));
        assert_eq!(rates, ["26.8", "0.0244", "1235"]);
    }
}
