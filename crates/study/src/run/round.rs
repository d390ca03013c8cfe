//! One round through the cells of a run in the plan's random order. It ends when all are recorded, or the motion turns
//! out to be too fast.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underlay_record::{CellStatus, DisturbedBy, GivenUp, PlannedCell, RunHeader, RunRecord, WallParts};

use super::cell::RunContext;
use super::cell_plan::CellPlan;
use super::certificate::{TooFast, too_fast};
use super::control_requests::ControlRequests;
use super::dataset::PreparedDatasets;
use super::directory::RunDirectory;
use super::{CellError, RunError, RunObserver, RunOutcome};
use crate::estimate;
use crate::plan;
use crate::spec::Study;

/// How a round ended.
pub(super) enum RoundEnding {
    Done(RunOutcome),
    /// The motion was too fast for this host; `next` is the factor for the new beginning.
    TooFast {
        given_up: GivenUp,
        next: f64,
    },
}

/// The state of a round.
pub(super) struct RunRound<'a> {
    pub study: &'a Study,
    pub run: &'a RunHeader,
    /// The part of the plan to run now.
    pub is_wanted: &'a dyn Fn(&PlannedCell) -> bool,
    pub directory: &'a RunDirectory,
    /// The factor at which everything may begin again, if allowed.
    pub slower: Option<f64>,
    pub wishes: &'a ControlRequests,
}

/// The positions in the plan of the cells that still have to run. `tell` gets the reason why a cell with a record has
/// to run again.
pub(super) fn left_of(
    run: &RunHeader,
    is_wanted: &dyn Fn(&PlannedCell) -> bool,
    directory: &RunDirectory,
    tell: &mut dyn FnMut(&PlannedCell, &str),
) -> Result<Vec<usize>, RunError> {
    let mut left = Vec::new();
    for (position, planned) in run.plan.iter().enumerate().filter(|(_, planned)| is_wanted(planned)) {
        if !directory.is_finished(planned, run, &mut |reason| tell(planned, reason))? {
            left.push(position);
        }
    }
    Ok(left)
}

impl RunRound<'_> {
    pub(super) fn run(
        &self,
        mut bench: RunContext,
        datasets: &mut PreparedDatasets,
        observer: &dyn RunObserver,
        stop: &AtomicBool,
    ) -> Result<RoundEnding, RunError> {
        let RunRound { study, run, directory, .. } = *self;
        // A resumed run has reported the reasons already.
        let positions = left_of(run, self.is_wanted, directory, &mut |_, _| {})?;
        // Jobs that run together finish together, since a job reads what an earlier one wrote.
        let is_left = |group: &Range<usize>| group.clone().any(|position| positions.contains(&position));
        let groups: Vec<Range<usize>> = plan::groups(&run.plan).into_iter().filter(is_left).collect();
        let left: usize = groups.iter().map(Range::len).sum();
        let planned = groups.iter().flat_map(|group| &run.plan[group.clone()]);
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        planned.for_each(|planned| *counts.entry(&planned.cell.id).or_default() += 1);
        let expected = estimate::counted(study, &|id| counts.get(id).copied().unwrap_or(0));
        bench.clock().expect(expected, left);
        let pace = RemainingEstimate::new(&expected, left);
        // Jobs that run together may be more than the selected ones.
        let wanted = run.plan.iter().filter(|planned| (self.is_wanted)(planned)).count().max(left);
        observer.planned(wanted, wanted - left, pace.remaining(left));
        let outcome = RunOutcome {
            directory: directory.path().to_path_buf(),
            completed: wanted - left,
            ..RunOutcome::default()
        };
        let mut recorder = CellRecorder {
            directory,
            observer,
            outcome,
            left,
            pace,
            begun: Instant::now(),
            slower: self.slower,
            wishes: self.wishes,
            given_up: run.slow_motion.as_ref().map_or(&[], |chosen| &chosen.given_up),
            late_cells: 0,
            too_fast: None,
            broken: None,
        };
        for group in groups {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let plans = self.plans_of(group)?;
            if recorder.run_group(&mut bench, &plans, datasets, stop).is_break() {
                break;
            }
        }
        let CellRecorder { mut outcome, left, too_fast, broken, .. } = recorder;
        match (broken, too_fast, self.slower) {
            (Some(error), ..) => Err(error),
            // A stopped run keeps its records: this cell has none, and a resumed run measures it again.
            (None, Some(given_up), Some(next)) if !stop.load(Ordering::Relaxed) => {
                Ok(RoundEnding::TooFast { given_up, next })
            }
            _ => {
                outcome.left = left;
                Ok(RoundEnding::Done(outcome))
            }
        }
    }

    fn plans_of(&self, group: Range<usize>) -> Result<Vec<CellPlan<'_>>, RunError> {
        group
            .map(|position| {
                let planned = &self.run.plan[position];
                CellPlan::new(self.study, planned, position as u32).ok_or_else(|| {
                    RunError::Failed(format!(
                        "the plan names a cell that the study lacks: {}",
                        planned.cell.id
                    ))
                })
            })
            .collect()
    }
}

/// Records each cell as it ends.
struct CellRecorder<'a> {
    directory: &'a RunDirectory,
    observer: &'a dyn RunObserver,
    outcome: RunOutcome,
    left: usize,
    pace: RemainingEstimate,
    /// When the running cell began.
    begun: Instant,
    /// The factor at which everything may begin again, if allowed.
    slower: Option<f64>,
    wishes: &'a ControlRequests,
    /// The earlier factors, and why they were abandoned.
    given_up: &'a [GivenUp],
    /// Cells for which the motion was too fast, but whose records were kept.
    late_cells: usize,
    /// Why everything has to begin again.
    too_fast: Option<GivenUp>,
    /// Why nothing more can be recorded.
    broken: Option<RunError>,
}

impl CellRecorder<'_> {
    /// Runs a cell, or jobs that run together. Returns early if the round has to end.
    fn run_group(
        &mut self,
        bench: &mut RunContext,
        plans: &[CellPlan<'_>],
        datasets: &mut PreparedDatasets,
        stop: &AtomicBool,
    ) -> ControlFlow<()> {
        self.begun = Instant::now();
        let left_before = self.left;
        // Raised for everything, or only for these cells.
        let wishes = self.wishes;
        let is_skipped_at_once = wishes.begin(plans.iter().map(|plan| plan.position));
        let ended = match (is_skipped_at_once, plans) {
            (true, _) => Err(CellError::Interrupted),
            (false, [only]) if only.job.is_none() => self.measure(bench, only, datasets, wishes.halt()),
            (false, jobs) => self.run_jobs(bench, jobs, wishes.halt()),
        };
        let skipped = wishes.are_skipped() && !stop.load(Ordering::Relaxed);
        wishes.end();
        let mut searched = None;
        let status = match ended {
            Ok(()) => return ControlFlow::Continue(()),
            Err(error) if skipped && self.broken.is_none() && self.too_fast.is_none() => {
                CellStatus::Skipped {
                    failure: match error {
                        // It may have failed on its own a moment earlier.
                        CellError::Failed(message) | CellError::NoRate { reason: message, .. } => {
                            Some(message)
                        }
                        CellError::Interrupted | CellError::Unavailable { .. } => None,
                    },
                }
            }
            // Not recorded, so that a resumed run repeats this cell.
            Err(CellError::Interrupted) => return ControlFlow::Break(()),
            Err(CellError::Unavailable { missing, remedy }) => CellStatus::Unavailable { missing, remedy },
            // A failure while the user stops everything says nothing about the system.
            Err(CellError::Failed(_)) if stop.load(Ordering::Relaxed) => return ControlFlow::Break(()),
            Err(CellError::Failed(reason)) => CellStatus::Failed { reason },
            Err(CellError::NoRate { reason, search }) => {
                searched = Some(*search);
                CellStatus::Failed { reason }
            }
        };
        // Jobs of the group with a record keep it; the failure applies to the rest.
        let recorded = left_before - self.left;
        for plan in plans.iter().skip(recorded) {
            // A cell that never began took no time.
            let wall = if is_skipped_at_once { Duration::ZERO } else { self.begun.elapsed() };
            let mut record = bench.record(plan, status.clone(), wall);
            record.search = searched.take();
            record.wall = (!is_skipped_at_once).then(|| bench.clock().take_cell());
            if self.keep(plan, &record).is_err() {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// Measures a cell, and once more if the motion seems too fast for this host. A brief disturbance is no reason to
    /// begin everything again.
    fn measure(
        &mut self,
        bench: &mut RunContext,
        plan: &CellPlan<'_>,
        datasets: &mut PreparedDatasets,
        stop: &AtomicBool,
    ) -> Result<(), CellError> {
        let run = |bench: &mut RunContext, datasets: &mut PreparedDatasets| match plan.benchmark {
            Some(benchmark) => bench.run_benchmark(plan, benchmark, datasets, self.observer, stop),
            None => bench.run(plan, datasets, self.observer, stop),
        };
        let mut record = run(bench, datasets)?;
        if let Some(given_up) = self.too_fast(plan, &record) {
            let cell = &given_up.cell;
            self.observer.notice(&format!("measuring {cell} again, because of {}", given_up.finding));
            self.observer.delayed(self.pace.remaining(self.left));
            record = run(bench, datasets)?;
            record.warnings.push(measured_twice(&given_up));
        }
        // The time of both measurements, if there were two.
        record.wall = Some(bench.clock().take_cell());
        self.keep(plan, &record)
    }

    /// Runs jobs that run together, and all of them once more if the motion seems too fast.
    fn run_jobs(
        &mut self,
        bench: &mut RunContext,
        plans: &[CellPlan<'_>],
        stop: &AtomicBool,
    ) -> Result<(), CellError> {
        let observer = self.observer;
        let before = (self.outcome.clone(), self.left, self.pace.clone(), self.late_cells);
        let ended = bench.run_jobs(plans, observer, stop, &mut |plan, record| self.keep(plan, &record));
        let Some(given_up) = self.too_fast.take() else { return ended };
        observer.notice(&format!("running jobs again, because of {}, {}", given_up.cell, given_up.finding));
        (self.outcome, self.left, self.pace, self.late_cells) = before;
        observer.delayed(self.pace.remaining(self.left));
        bench.run_jobs(plans, observer, stop, &mut |plan, mut record| {
            if plan.cell().id == given_up.cell {
                record.warnings.push(measured_twice(&given_up));
            }
            self.keep(plan, &record)
        })
    }

    /// The sign that motion is too fast, if everything may begin again because of it. This applies only in the first
    /// repetition, so that little work is lost.
    fn too_fast(&self, plan: &CellPlan<'_>, record: &RunRecord) -> Option<GivenUp> {
        if self.slower.is_none() || plan.planned.repetition > 1 {
            return None;
        }
        // A disturbance by hand says nothing about this host's speed.
        if record.disturbed_by() == Some(DisturbedBy::Hand) {
            return None;
        }
        let (time, cell) = (plan.scale.time, plan.cell().id.clone());
        let certificate = record.certificate.as_ref()?;
        let earlier: Vec<&GivenUp> = self.given_up.iter().filter(|earlier| earlier.cell == cell).collect();
        let TooFast { finding, check, late_us, extent } =
            too_fast(certificate, &record.devices, &record.paths, time, &earlier)?;
        let name = Some(check.title().to_owned());
        Some(GivenUp { time, cell, finding, check_id: Some(check), check: name, late_us, extent })
    }

    fn keep(&mut self, plan: &CellPlan<'_>, record: &RunRecord) -> Result<(), CellError> {
        if let Some(given_up) = self.too_fast(plan, record) {
            if is_worth_it(self.late_cells + 1, self.outcome.completed + 1) {
                self.too_fast = Some(given_up);
                return Err(CellError::Interrupted);
            }
            self.late_cells += 1;
            self.observer.notice(&format!(
                "{} stays doubtful ({}): the {} cells before it would be lost for it; `--time` with a higher factor measures all again",
                given_up.cell, given_up.finding, self.outcome.completed
            ));
        }
        if let Err(error) = self.directory.write_cell(plan.planned, record) {
            self.broken = Some(error);
            return Err(CellError::Interrupted);
        }
        match record.status {
            CellStatus::Completed if record.disturbed_by() == Some(DisturbedBy::Hand) => {
                self.outcome.disturbed += 1;
            }
            CellStatus::Completed => self.outcome.completed += 1,
            CellStatus::Failed { .. } => self.outcome.failed += 1,
            CellStatus::Unavailable { .. } => self.outcome.unavailable += 1,
            CellStatus::Skipped { .. } => self.outcome.skipped += 1,
        }
        self.left -= 1;
        // A cell that was cut short says nothing about the duration of the next one.
        if !matches!(record.status, CellStatus::Skipped { .. }) {
            self.pace.took(self.begun.elapsed());
        }
        self.begun = Instant::now();
        self.observer.cell_ended(plan.planned, record, self.pace.remaining(self.left));
        Ok(())
    }
}

/// A note for the record of a cell: its metrics come from a second measurement, with the reason.
fn measured_twice(first: &GivenUp) -> String {
    format!("measured twice: the first time was doubtful because of {}", first.finding)
}

/// One cell in this many may stay doubtful, so that the others need not be discarded.
const CELLS_TO_A_LATE_ONE: usize = 10;

/// Whether everything should begin again for this many late cells among the measured ones.
fn is_worth_it(late: usize, measured: usize) -> bool {
    late * CELLS_TO_A_LATE_ONE > measured
}

/// The estimate for the remaining time, based on the time that cells took so far.
#[derive(Clone)]
struct RemainingEstimate {
    /// The expected time of a cell.
    expected: Duration,
    /// For all data sets; the first cell that uses one takes that much longer.
    loading: Duration,
    spent: Duration,
    cells: u32,
}

impl RemainingEstimate {
    /// For this number of cells with this expected time.
    fn new(expected: &WallParts, cells: usize) -> RemainingEstimate {
        let seconds = |value: f64| Duration::try_from_secs_f64(value.max(0.0)).unwrap_or(Duration::MAX);
        let of_cells = seconds(expected.total_s() - expected.load_s);
        RemainingEstimate {
            expected: of_cells / u32::try_from(cells).unwrap_or(u32::MAX).max(1),
            loading: seconds(expected.load_s),
            spent: Duration::ZERO,
            cells: 0,
        }
    }

    fn took(&mut self, wall: Duration) {
        self.spent += wall;
        self.cells += 1;
    }

    fn remaining(&self, cells_left: usize) -> Duration {
        if cells_left == 0 {
            return Duration::ZERO;
        }
        // Time beyond the cells' estimate counts as loading, as long as there was any to do.
        let loaded = self.spent.saturating_sub(self.expected * self.cells).min(self.loading);
        // The first guess counts as one cell, so that one slow start doesn't dominate the estimate.
        let mean = (self.expected + self.spent - loaded) / (self.cells + 1);
        mean * u32::try_from(cells_left).unwrap_or(u32::MAX) + (self.loading - loaded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_set_is_loaded_once_for_all_cells() {
        let s = Duration::from_secs;
        let mut pace = RemainingEstimate { expected: s(20), loading: s(40), spent: Duration::ZERO, cells: 0 };
        assert_eq!(pace.remaining(10), s(240));
        pace.took(s(60));
        assert_eq!(pace.remaining(9), s(180), "the first one loaded it");
        pace.took(s(26));
        assert_eq!(pace.remaining(8), s(176), "and the second was slower than expected");
        assert_eq!(pace.remaining(0), Duration::ZERO);
    }

    #[test]
    fn single_late_cell_discards_nothing() {
        assert!(is_worth_it(1, 1) && is_worth_it(1, 9), "little is lost");
        assert!(!is_worth_it(1, 10) && !is_worth_it(1, 21));
        // Three of 22 mean that the host is too slow.
        assert!(!is_worth_it(2, 22) && is_worth_it(3, 22));
    }
}
