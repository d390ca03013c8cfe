//! Runs a study, from its beginning or from where it was interrupted, in rounds. If this host turns out to be too slow,
//! everything begins again in slower motion.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underlay_attach::{IdlePreventer, OwnFolder, ResourceRegistry};
use underlay_record::{CellLimit, PlannedCell, RecordedProfile, RunHeader, SCHEMA_VERSION, WallRecord};

use super::cell::RunContext;
use super::control_requests::{ControlRequests, RunControl};
use super::dataset::PreparedDatasets;
use super::directory::RunDirectory;
use super::feed::RunFeed;
use super::host::{HostInfo, timestamp};
use super::kept_logs::KeptLogs;
use super::round::{self, RoundEnding, RunRound};
use super::slow_motion::{self, DilatedStudy};
use super::stopwatch::{Stopwatch, StopwatchTimes};
use super::{RunError, RunObserver, RunOptions, RunOutcome, preflight, space};
use crate::estimate;
use crate::machine::CpuPlacement;
use crate::plan;
use crate::selection::{RunSelections, extended};
use crate::spec::{Study, StudyForm, SystemSpec};

/// Runs a study from its beginning into a fresh directory.
///
/// # Errors
/// When the run can't begin or continue: a mistake of the user, something that this host lacks, or a failure of the
/// directory in which it is kept. A cell that fails is recorded and is not an error.
pub fn start(
    study: &Study,
    options: &RunOptions,
    observer: &dyn RunObserver,
    stop: &AtomicBool,
) -> Result<RunOutcome, RunError> {
    // First of all, and locked from then on: otherwise a user might wait for measurements and then be refused the
    // directory.
    start_in(RunDirectory::create(&options.directory)?, study, options, observer, stop)
}

/// The same in a directory that was created for it, which must be the one in `options`.
///
/// # Errors
/// As [`start`].
pub fn start_in(
    directory: RunDirectory,
    study: &Study,
    options: &RunOptions,
    observer: &dyn RunObserver,
    stop: &AtomicBool,
) -> Result<RunOutcome, RunError> {
    match begin(study, options, observer, stop) {
        Ok(begun) => run_new(study, begun, directory, observer, stop),
        // A refused run leaves nothing behind.
        Err(error) => {
            directory.give_up();
            Err(error)
        }
    }
}

/// The state before a run's first record.
struct BegunRun {
    limits: Vec<CellLimit>,
    selections: RunSelections,
    registry: ResourceRegistry,
    awake: Option<IdlePreventer>,
    paced: DilatedStudy,
    elsewhere: Option<OwnFolder>,
    /// See [`WallRecord::measuring_host_s`].
    measuring_host_s: f64,
}

fn begin(
    study: &Study,
    options: &RunOptions,
    observer: &dyn RunObserver,
    stop: &AtomicBool,
) -> Result<BegunRun, RunError> {
    let limits = if options.limit.is_whole() { Vec::new() } else { vec![options.limit.clone()] };
    let selections = RunSelections::new(study, &limits).map_err(RunError::Mistake)?;
    let registry = registry()?;
    let work_folder = look_at_ground(study, &selections.plan(study), options, &registry, observer)?;
    // Before the first device is measured, and until the run ends.
    let awake = keep_awake(study);
    let expected_s = |paced: &Study| estimate_s(paced, &selections);
    let start = Instant::now();
    let paced = slow_motion::begin(study, options, &registry, observer, stop, &expected_s)?;
    let measuring_host_s = paced.placement.as_ref().map_or(0.0, |_| start.elapsed().as_secs_f64());
    Ok(BegunRun { limits, selections, registry, awake, paced, elsewhere: work_folder, measuring_host_s })
}

/// All refusals come before anything is measured or written. Creates the `--work` directory.
fn look_at_ground(
    study: &Study,
    left: &[PlannedCell],
    options: &RunOptions,
    registry: &ResourceRegistry,
    observer: &dyn RunObserver,
) -> Result<Option<OwnFolder>, RunError> {
    space::check(study, left.iter(), options.work.as_ref().unwrap_or(&options.directory))?;
    preflight::check(study, left.iter(), registry)?;
    let work_folder = options.work.as_deref().map(|work| make_work_in(work, registry)).transpose()?;
    preflight::tell_what_holds_nothing(study, left.iter(), observer);
    Ok(work_folder)
}

/// How long all selected cells take at the study's factor.
fn estimate_s(paced: &Study, selections: &RunSelections) -> f64 {
    let plan = selections.plan(paced);
    let count = |id: &str| plan.iter().filter(|planned| planned.cell.id == id).count();
    estimate::counted(paced, &|id| u32::try_from(count(id)).unwrap_or(u32::MAX)).total_s()
}

fn run_new(
    study: &Study,
    begun: BegunRun,
    directory: RunDirectory,
    observer: &dyn RunObserver,
    stop: &AtomicBool,
) -> Result<RunOutcome, RunError> {
    let BegunRun { limits, selections, registry, awake, paced, elsewhere: work_folder, measuring_host_s } =
        begun;
    let DilatedStudy { study: paced, slow_motion, placement } = paced;
    let HostInfo { machine, versions } = HostInfo::new(study, awake.as_ref());
    let mut run = RunHeader {
        schema: SCHEMA_VERSION,
        name: study.name.clone(),
        title: study.title.clone(),
        started_at: timestamp(Duration::ZERO),
        study_toml: study.source_toml.clone(),
        overrides: study.overrides.clone(),
        limits,
        media_files: study.media_files.clone(),
        systems: study.systems.iter().map(|system| system.name.clone()).collect(),
        profiles: study.systems.iter().filter_map(recorded_profile).collect(),
        storages: study.storages.iter().map(|storage| storage.name.clone()).collect(),
        baseline: study.baseline.clone(),
        scale: paced.scale,
        slow_motion: Some(slow_motion),
        seed: study.run.seed,
        short: study.short,
        shortened: crate::shortened::find_amount(study),
        repetitions: selections.repetitions(study),
        warmup_wall_s: paced.run.warmup.as_secs_f64(),
        duration_wall_s: paced.run.duration.as_secs_f64(),
        machine,
        versions,
        plan: selections.plan(&paced),
        reference: study.reference.clone(),
        walls: Vec::new(),
    };
    // Before the first cell, so that a killed run can be resumed with the study that it began with.
    if let Err(error) = directory.write_run(&run) {
        directory.give_up();
        return Err(error);
    }
    let missing = (0..run.plan.len()).collect();
    let site = RunLocation {
        directory,
        missing,
        elsewhere: work_folder,
        registry,
        placement,
        awake,
        measuring_host_s,
    };
    run_what_is_left(study, paced, &mut run, &selections, site, observer, stop)
}

/// A system's name and profile.
fn recorded_profile(system: &SystemSpec) -> Option<(String, RecordedProfile)> {
    let kind = underlay_systems::find(&system.kind)?;
    let title = kind.profile().title_of(kind.name(), &system.name).to_owned();
    let keeps_nothing = kind.capabilities().keeps_nothing;
    Some((system.name.clone(), RecordedProfile { title, keeps_nothing }))
}

/// Continues an interrupted run: completed records are kept.
///
/// # Errors
/// As [`start`], and when there is no run, or its study can no longer be read.
pub fn resume(
    options: &RunOptions,
    observer: &dyn RunObserver,
    stop: &AtomicBool,
) -> Result<RunOutcome, RunError> {
    let directory = RunDirectory::open(&options.directory)?;
    let mut run = directory.read_run()?;
    // The run's own copies, since the user's files may have changed.
    let stored = |name: &str| run.media_files.get(name).cloned().ok_or_else(|| "not kept in run.json".into());
    let form = StudyForm { short: run.short, overrides: &run.overrides };
    let study = Study::parse_with_media("the study in run.json", &run.study_toml, form, &stored)
        .map_err(|mistakes| RunError::Mistake(mistakes.to_string()))?;
    // At the factor that the run has reached.
    let paced = study.with_slow_motion(run.scale.time);
    if paced.scale != run.scale {
        return Err(RunError::Mistake(format!(
            "{}/run.json is refused: scale.data is {}, but its study has {}",
            options.directory.display(),
            run.scale.data,
            paced.scale.data
        )));
    }
    // A run begun by an earlier version has none.
    for (name, profile) in study.systems.iter().filter_map(recorded_profile) {
        run.profiles.entry(name).or_insert(profile);
    }
    if run.slow_motion.is_some() && run.scale.time != 1.0 {
        observer.notice(&format!("slow motion x{}, as the run has it", run.scale.time));
    }
    let before = RunSelections::new(&paced, &run.limits).map_err(RunError::Mistake)?;
    let order = before.plan(&paced);
    if !plan::is_same(&order, &run.plan) {
        return Err(RunError::Mistake(format!(
            "{} was planned by another version of underlay, which ordered the cells differently: start the study again",
            options.directory.display()
        )));
    }
    let asked = &options.limit;
    let wanted = if asked.is_whole() { Vec::new() } else { vec![asked.clone()] };
    let now = RunSelections::new(&paced, &wanted).map_err(RunError::Mistake)?;
    if !(run.limits.is_empty() && asked.is_whole()) {
        let earlier_limits = run.limits.iter().map(CellLimit::describe).collect::<Vec<_>>().join("; ");
        let earlier_limits =
            if earlier_limits.is_empty() { "the whole study".to_owned() } else { earlier_limits };
        let current_limits = if asked.is_whole() { "the whole study".to_owned() } else { asked.describe() };
        observer.notice(&format!(
            "this run was started with {earlier_limits}; now running what {current_limits} still lacks"
        ));
    }
    run.limits = extended(&paced, &run.limits, asked);
    let planned = RunSelections::new(&paced, &run.limits).map_err(RunError::Mistake)?;
    run.repetitions = planned.repetitions(&paced);
    // An earlier version recorded less about a cell.
    run.plan = planned.plan(&paced);
    let now = if asked.is_whole() { planned } else { now };
    let registry = registry()?;
    let missing = round::left_of(&run, &|_| true, &directory, &mut |planned, reason| {
        // Cells that this call does not measure again need no message.
        if now.has(planned, paced.run.repetitions) {
            observer.notice(reason);
        }
    })?;
    let planned = missing.iter().map(|&position| &run.plan[position]);
    let left: Vec<_> = planned.filter(|planned| now.has(planned, paced.run.repetitions)).cloned().collect();
    let work_folder = look_at_ground(&paced, &left, options, &registry, observer)?;
    let awake = keep_awake(&study);
    let start = Instant::now();
    let placement = match left.is_empty() {
        true => None,
        false => slow_motion::placement(&study, &registry, reference_of(&run), observer)?,
    };
    // For a run that did not record its speed yet, or a lower one: from here on.
    let now_us = placement.as_ref().and_then(|here| here.speed).map(|speed| speed.reference_us);
    if let (Some(now_us), Some(slow_motion)) = (now_us, &mut run.slow_motion) {
        if slow_motion.reference_probe_us.is_some_and(|before| now_us < before * (1.0 - FASTER)) {
            observer.notice(
                "this host's CPUs are faster than when the run began. Cells from now on model a faster machine: start the study again to \
                 compare",
            );
        }
        slow_motion.reference_probe_us = Some(now_us);
    }
    let measuring_host_s = placement.as_ref().map_or(0.0, |_| start.elapsed().as_secs_f64());
    slow_motion::warn_if_too_small(&paced, &run, placement.as_ref(), observer);
    // Before the first cell, so that the report of a killed run has the whole plan.
    directory.write_run(&run)?;
    let site = RunLocation {
        directory,
        missing,
        elsewhere: work_folder,
        registry,
        placement,
        awake,
        measuring_host_s,
    };
    run_what_is_left(&study, paced, &mut run, &now, site, observer, stop)
}

/// The smallest gain of a faster host that is worth a message.
const FASTER: f64 = 0.1;

/// The speed that a run's cells were compared with, if it was this host's.
fn reference_of(run: &RunHeader) -> Option<f64> {
    let here = super::machine::describe();
    let is_here = here.hostname == run.machine.hostname && here.cpu == run.machine.cpu;
    run.slow_motion.as_ref().filter(|_| is_here)?.reference_probe_us
}

/// Real storage is measured on this host as it is, and so is everything compared with it.
fn keep_awake(study: &Study) -> Option<IdlePreventer> {
    study.is_modelled().then(IdlePreventer::keep).flatten()
}

fn registry() -> Result<ResourceRegistry, RunError> {
    ResourceRegistry::open().map_err(|error| RunError::Failed(error.to_string()))
}

/// The text of the study that a run began with.
///
/// # Errors
/// When there is no run in `directory`.
pub fn study_of(directory: &Path) -> Result<String, RunError> {
    Ok(RunDirectory::read(directory)?.study_toml)
}

/// The location of a run, and what it runs on.
struct RunLocation {
    directory: RunDirectory,
    /// The positions in the plan of all cells that are not on record yet, whether or not this run selects them.
    missing: Vec<usize>,
    /// The `--work` directory.
    elsewhere: Option<OwnFolder>,
    registry: ResourceRegistry,
    placement: Option<CpuPlacement>,
    /// `None` where this host's CPUs may sleep.
    awake: Option<IdlePreventer>,
    measuring_host_s: f64,
}

/// Runs the remaining cells. Each time the first repetition shows that this host is too slow, it starts over in slower
/// motion. `study` is as written, `paced` has the run's current factor.
fn run_what_is_left(
    study: &Study,
    paced: Study,
    run: &mut RunHeader,
    wanted: &RunSelections,
    site: RunLocation,
    observer: &dyn RunObserver,
    stop: &AtomicBool,
) -> Result<RunOutcome, RunError> {
    let wishes = ControlRequests::for_cells(run.plan.len());
    // Without it the run goes on, and can't be commanded.
    let listening = RunControl::listen(&wishes, site.directory.path(), &site.registry);
    if let Err(error) = &listening {
        observer.notice(&format!("the console can't command this run: {error}"));
    }
    let _control = listening.ok();
    let feed = RunFeed::open(site.directory.path(), observer);
    let plan = run.plan.clone();
    let tell = |command| feed.asked(&command, &plan);
    let outcome =
        wishes.fulfilled(stop, &tell, || run_rounds(study, paced, run, wanted, site, &wishes, &feed, stop));
    feed.ended(&outcome);
    outcome
}

#[expect(clippy::too_many_arguments, reason = "what a run has come to so far")]
fn run_rounds(
    study: &Study,
    mut paced: Study,
    run: &mut RunHeader,
    wanted: &RunSelections,
    site: RunLocation,
    wishes: &ControlRequests,
    observer: &dyn RunObserver,
    stop: &AtomicBool,
) -> Result<RunOutcome, RunError> {
    let RunLocation {
        directory,
        missing,
        elsewhere: work_folder,
        registry,
        mut placement,
        awake,
        measuring_host_s,
    } = site;
    let is_wanted = |planned: &PlannedCell| wanted.has(planned, study.run.repetitions);
    // Long work is not discarded: once any cell has a record of a later repetition, the factor stays.
    let is_finished = |position: &usize| !missing.contains(position);
    // Nor are records that this call would not measure again (`--only`).
    let is_settled = (0..run.plan.len())
        .any(|index| is_finished(&index) && (run.plan[index].repetition > 1 || !is_wanted(&run.plan[index])));
    let work = match work_folder {
        Some(work) => work,
        None => make_work(&directory, &registry)?,
    };
    // Data sets are loaded at this machine's own speed, so that slower motion needs no new ones.
    let mut datasets =
        PreparedDatasets::new(work.path(), registry.clone(), KeptLogs::new(&directory.records()));
    // Read again, since a run may be resumed after an upgrade, or on another machine.
    let here = HostInfo::new(study, awake.as_ref());
    if let Some(changed) = here.changed_since(&run.machine, &run.versions) {
        observer.notice(&changed);
    }
    let (clock, started_at) = (Arc::new(Stopwatch::start()), timestamp(Duration::ZERO));
    let mut outcome = loop {
        let slower = slow_motion::slower(study, run).filter(|_| !is_settled);
        let bench = RunContext::new(
            here.clone(),
            registry.clone(),
            work.path(),
            &directory.records(),
            placement.clone(),
            Arc::clone(&clock),
        );
        let round =
            RunRound { study: &paced, run, is_wanted: &is_wanted, directory: &directory, slower, wishes };
        match round.run(bench, &mut datasets, observer, stop)? {
            RoundEnding::Done(outcome) => break outcome,
            RoundEnding::TooFast { given_up, next } => {
                // Other programs may have started or ended, which changes the free CPUs.
                placement = slow_motion::placement(study, &registry, reference_of(run), observer)?;
                if stop.load(Ordering::Relaxed) {
                    // Before anything is discarded: a resumed run continues with the existing records.
                    return Err(RunError::Stopped);
                }
                let next = slow_motion::fitting(study, next, placement.as_ref());
                observer.notice(&slow_motion::beginning_again(&given_up, next, run));
                paced = study.with_slow_motion(next);
                slow_motion::tell_what_stays(&paced, observer);
                slow_motion::enter(run, &paced, placement.as_ref(), given_up)?;
                directory.begin_again(run)?;
                wishes.begin_again();
                clock.give_up();
            }
        }
    };
    let StopwatchTimes { expected: estimated, cells, took: spent, given_up_s } = clock.all();
    if cells > 0 {
        let (cells, left) = (cells as u64, outcome.left as u64);
        let wall =
            WallRecord { started_at, cells, left, measuring_host_s, estimated, took: spent, given_up_s };
        run.walls.push(wall.clone());
        outcome.wall = Some(wall);
        // The cells are on record, which matters more than this.
        if let Err(error) = directory.write_ended_run(run) {
            observer.notice(&error.to_string());
        }
    }
    // The lock outlives the directory: no other process may take over while it is being removed.
    drop(work);
    drop(directory);
    Ok(outcome)
}

/// Creates the `--work` directory before anything is measured. A user should not wait for measurements and then learn
/// that the directory can't be used.
fn make_work_in(parent: &Path, registry: &ResourceRegistry) -> Result<OwnFolder, RunError> {
    let above = std::path::absolute(parent)
        .map_err(|error| RunError::Mistake(format!("cannot find {}: {error}", parent.display())))?;
    let made = OwnFolder::make_in(&above, "underlay", registry);
    made.map_err(|error| preflight::refused(&format!("--work {}", parent.display()), &error))
}

/// The folder for images and prepared data.
fn make_work(directory: &RunDirectory, registry: &ResourceRegistry) -> Result<OwnFolder, RunError> {
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
