//! The order of a run: every cell of every repetition, in the plan's random order, until all are recorded.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underlay_attach::{OwnFolder, Registry};
use underlay_record::{CellStatus, Run, RunRecord, SCHEMA_VERSION};

use super::cell::Bench;
use super::cell_plan::CellPlan;
use super::dataset::Datasets;
use super::directory::RunDirectory;
use super::host::{HostInfo, timestamp};
use super::{CellError, Observer, RunError, RunOptions, RunOutcome, machine, space};
use crate::plan;
use crate::spec::Study;

/// A first guess of how long a batch job takes on this machine's clock: nobody knows before one has run.
const JOB_WALL_GUESS: Duration = Duration::from_secs(25);

/// Runs a study from its beginning into a fresh directory.
///
/// # Errors
/// When the run can't be begun or continued: a mistake of the user's, something that this host lacks, or a failure of the
/// place where it is kept. A cell that fails is recorded, and no error.
pub fn start(
    study: &Study,
    options: &RunOptions,
    observer: &dyn Observer,
    stop: &AtomicBool,
) -> Result<RunOutcome, RunError> {
    let order = plan::order(study);
    // Before anything is made: what is refused leaves nothing behind.
    space::check(study, order.iter(), options.work.as_ref().unwrap_or(&options.directory))?;
    let registry = registry()?;
    let elsewhere = options.work.as_deref().map(|work| make_work_in(work, &registry)).transpose()?;
    let directory = RunDirectory::create(&options.directory)?;
    let systems = study.systems.iter().filter_map(|spec| underlay_systems::find(&spec.kind));
    let run = Run {
        schema: SCHEMA_VERSION,
        name: study.name.clone(),
        title: study.title.clone(),
        started_at: timestamp(Duration::ZERO),
        study_toml: study.source_toml.clone(),
        media_files: study.media_files.clone(),
        systems: study.systems.iter().map(|system| system.name.clone()).collect(),
        storages: study.storages.iter().map(|storage| storage.name.clone()).collect(),
        baseline: study.baseline.clone(),
        scale: study.scale,
        seed: study.run.seed,
        short: study.short,
        shortened: crate::shortened::of(study),
        repetitions: study.run.repetitions,
        warmup_wall_s: study.run.warmup.as_secs_f64(),
        duration_wall_s: study.run.duration.as_secs_f64(),
        machine: machine::describe(),
        versions: machine::versions(systems.flat_map(|system| system.versions())),
        plan: order,
        reference: study.reference.clone(),
    };
    // Before the first cell: a run that is killed can then be resumed with the study it began with.
    directory.write_run(&run)?;
    run_what_is_left(study, &run, &directory, elsewhere, registry, observer, stop)
}

/// Goes on with a run that was interrupted: what is recorded as completed is kept.
///
/// # Errors
/// As [`start`], and when there is no run, or its study can no longer be read.
pub fn resume(
    options: &RunOptions,
    observer: &dyn Observer,
    stop: &AtomicBool,
) -> Result<RunOutcome, RunError> {
    let directory = RunDirectory::open(&options.directory)?;
    let mut run = directory.read_run()?;
    // The run's own copies: the user's files may have changed since.
    let stored = |name: &str| run.media_files.get(name).cloned().ok_or_else(|| "not kept in run.json".into());
    let study = Study::parse_with_media("the study in run.json", &run.study_toml, run.short, &stored)
        .map_err(|mistakes| RunError::Mistake(mistakes.to_string()))?;
    let order = plan::order(&study);
    if !plan::is_same(&order, &run.plan) {
        return Err(RunError::Mistake(format!(
            "{} was planned by another version of underlay, which ordered the cells differently: start the study again",
            options.directory.display()
        )));
    }
    // An earlier schema says less of a cell.
    run.plan = order;
    let registry = registry()?;
    let elsewhere = options.work.as_deref().map(|work| make_work_in(work, &registry)).transpose()?;
    run_what_is_left(&study, &run, &directory, elsewhere, registry, observer, stop)
}

fn registry() -> Result<Registry, RunError> {
    Registry::open().map_err(|error| RunError::Failed(error.to_string()))
}

/// The text of the study that a run began with.
///
/// # Errors
/// When there is no run in `directory`.
pub fn study_of(directory: &Path) -> Result<String, RunError> {
    Ok(RunDirectory::read(directory)?.study_toml)
}

fn run_what_is_left(
    study: &Study,
    run: &Run,
    directory: &RunDirectory,
    work: Option<OwnFolder>,
    registry: Registry,
    observer: &dyn Observer,
    stop: &AtomicBool,
) -> Result<RunOutcome, RunError> {
    let mut finished = Vec::new();
    for planned in &run.plan {
        finished.push(directory.is_finished(planned, &mut |damaged| observer.notice(damaged))?);
    }
    let left = run.plan.iter().zip(&finished).filter(|&(_, &finished)| !finished);
    space::check(
        study,
        left.map(|(planned, _)| planned),
        work.as_ref().map_or(directory.path(), OwnFolder::path),
    )?;
    let work = match work {
        Some(work) => work,
        None => make_work(directory, &registry)?,
    };
    // Jobs that run together are done together: a job reads what an earlier one wrote.
    let is_left = |group: &Range<usize>| !finished[group.clone()].iter().all(|&finished| finished);
    let groups: Vec<Range<usize>> = plan::groups(&run.plan).into_iter().filter(is_left).collect();
    let left: usize = groups.iter().map(Range::len).sum();
    let has_jobs = study.workloads.iter().any(|workload| !workload.jobs.is_empty());
    let cells = u32::try_from(run.plan.len()).unwrap_or(u32::MAX).max(1);
    let cell_wall = match has_jobs {
        true => JOB_WALL_GUESS,
        false => plan::measuring_wall(study) * study.run.repetitions / cells,
    };
    let slowest = study.systems.iter().filter_map(|spec| underlay_systems::find(&spec.kind));
    let overhead = slowest.map(|system| system.start_and_stop()).max().unwrap_or_default();
    // Jobs of a group have one start in common.
    let share = groups.len() as f64 / left.max(1) as f64;
    let pace = Pace { expected: cell_wall + overhead.mul_f64(share), spent: Duration::ZERO, cells: 0 };
    observer.planned(run.plan.len(), run.plan.len() - left, pace.remaining(left));

    let mut outcome = RunOutcome { directory: directory.path().to_path_buf(), ..RunOutcome::default() };
    outcome.completed = run.plan.len() - left;
    // Taken afresh: a run may be resumed after an upgrade, or on another machine.
    let systems = study.systems.iter().filter_map(|spec| underlay_systems::find(&spec.kind));
    let here = HostInfo {
        machine: machine::describe(),
        versions: machine::versions(systems.flat_map(|system| system.versions())),
    };
    if let Some(changed) = here.changed_since(&run.machine, &run.versions) {
        observer.notice(&changed);
    }
    let mut bench = Bench::new(here, registry.clone(), work.path(), &directory.records());
    let mut datasets = Datasets::new(work.path(), registry);
    let mut book =
        CellRecorder { directory, observer, outcome, left, pace, begun: Instant::now(), broken: None };
    for group in groups {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let mut plans = Vec::new();
        for position in group {
            let planned = &run.plan[position];
            plans.push(CellPlan::new(study, planned, position as u32).ok_or_else(|| {
                RunError::Failed(format!("the plan names a cell that the study lacks: {}", planned.cell.id))
            })?);
        }
        book.begun = Instant::now();
        let left_before = book.left;
        let ended = match plans.as_slice() {
            [only] if only.job.is_none() => {
                bench.run(only, &mut datasets, observer, stop).and_then(|record| book.keep(only, &record))
            }
            jobs => bench.run_jobs(jobs, observer, stop, &mut |plan, record| book.keep(plan, &record)),
        };
        let mut searched = None;
        let status = match ended {
            Ok(()) => continue,
            // Not recorded, so that a resumed run does this cell again.
            Err(CellError::Interrupted) => break,
            Err(CellError::Unavailable { missing, remedy }) => CellStatus::Unavailable { missing, remedy },
            // What breaks while the user stops everything is no finding about the system.
            Err(CellError::Failed(_)) if stop.load(Ordering::Relaxed) => break,
            Err(CellError::Failed(reason)) => CellStatus::Failed { reason },
            Err(CellError::NoRate { reason, search }) => {
                searched = Some(*search);
                CellStatus::Failed { reason }
            }
        };
        // Jobs of the group that have a record keep it; the failure is that of the rest.
        let recorded = left_before - book.left;
        let kept = plans.iter().skip(recorded).try_for_each(|plan| {
            let mut record = bench.record(plan, status.clone(), book.begun.elapsed());
            record.search = searched.take();
            book.keep(plan, &record)
        });
        if kept.is_err() {
            break;
        }
    }
    let CellRecorder { mut outcome, left, broken, .. } = book;
    if let Some(error) = broken {
        return Err(error);
    }
    outcome.left = left;
    // The lock outlives the folder: another process must not take over while it is being removed.
    drop(work);
    directory.remove_lock();
    Ok(outcome)
}

/// Records each cell as it ends.
struct CellRecorder<'a> {
    directory: &'a RunDirectory,
    observer: &'a dyn Observer,
    outcome: RunOutcome,
    left: usize,
    pace: Pace,
    /// When the cell that runs began.
    begun: Instant,
    /// Why nothing more can be recorded.
    broken: Option<RunError>,
}

impl CellRecorder<'_> {
    fn keep(&mut self, plan: &CellPlan<'_>, record: &RunRecord) -> Result<(), CellError> {
        if let Err(error) = self.directory.write_cell(plan.planned, record) {
            self.broken = Some(error);
            return Err(CellError::Interrupted);
        }
        match record.status {
            CellStatus::Completed => self.outcome.completed += 1,
            CellStatus::Failed { .. } => self.outcome.failed += 1,
            CellStatus::Unavailable { .. } => self.outcome.unavailable += 1,
        }
        self.left -= 1;
        self.pace.took(self.begun.elapsed());
        self.begun = Instant::now();
        self.observer.cell_ended(plan.planned, record, self.pace.remaining(self.left));
        Ok(())
    }
}

/// The estimate of what is left, from what the cells took so far.
struct Pace {
    expected: Duration,
    spent: Duration,
    cells: u32,
}

impl Pace {
    fn took(&mut self, wall: Duration) {
        self.spent += wall;
        self.cells += 1;
    }

    fn remaining(&self, cells_left: usize) -> Duration {
        // The first guess counts as one cell, so that one slow beginning doesn't rule the estimate.
        let mean = (self.expected + self.spent) / (self.cells + 1);
        mean * u32::try_from(cells_left).unwrap_or(u32::MAX)
    }
}

/// `--work`: before the run is made, so that a directory that can't be used leaves none.
fn make_work_in(elsewhere: &Path, registry: &Registry) -> Result<OwnFolder, RunError> {
    let above = std::path::absolute(elsewhere)
        .map_err(|error| RunError::Mistake(format!("cannot find {}: {error}", elsewhere.display())))?;
    OwnFolder::make_in(&above, "underlay", registry).map_err(|error| RunError::Mistake(error.to_string()))
}

/// The folder for images and prepared data.
fn make_work(directory: &RunDirectory, registry: &Registry) -> Result<OwnFolder, RunError> {
    let path = &directory.work();
    if path.symlink_metadata().is_ok() {
        let is_gone = OwnFolder::remove_forgotten(path, registry)
            .map_err(|error| RunError::Failed(error.to_string()))?;
        if !is_gone {
            return Err(RunError::Mistake(format!(
                "{} is left from a run that was killed: `underlay clean` removes it",
                path.display()
            )));
        }
    }
    OwnFolder::make(path, registry).map_err(|error| RunError::Mistake(error.to_string()))
}
