//! `underlay ycsb`: one workload on one system, without a study.

pub(super) mod cautions;
pub(super) mod rates;
pub(super) mod results;
mod search;
pub(super) mod summary;
pub(crate) mod words;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use underlay_attach::{OwnFolder, ResourceRegistry};
use underlay_config::units;
use underlay_files::{Access, Folder};
use underlay_record::{GeneratorCost, MeasuredWindow};
use underlay_study::session::nodes::NodeDesk;
use underlay_study::session::{BudgetEnforcement, LoadOutcome, ServerSession, ServerSite, SessionError};
use underlay_study::standstill::{PauseMeter, StepClock};
use underlay_systems::system::{StoragePaths, System, SystemSettings};
use underlay_workload::ycsb::{OutputOptions, RunFacts};
use underlay_workload::{
    ArrivalProcess, CoreWorkload, OperationKind, OperationMix, PropertyErrors, PropertyOrigin, RateProfile,
    RunAftermath, RunError, RunHandle, RunSpec, YcsbProperties,
};

use crate::arguments::{RateArgument, YcsbArguments, YcsbArrivals, YcsbPhase};
use crate::exit_codes::{ExitFailure, INCOMPLETE, INTERRUPTED};
use crate::{output, signals};
use cautions::{RunCircumstances, asked, caution, standstill, unfinished};
use rates::rate_parts;
use summary::sum_up;

const DEFAULT_DURATION: Duration = Duration::from_secs(60);
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
const SETTLE_LIMIT: Duration = Duration::from_secs(600);
const SERIES_INTERVALS: u32 = 60;
const DEFAULT_MEMORY: &str = "512 MiB";
/// A year. Longer measurements are a slip of the keyboard.
const MAX_SECONDS: f64 = 365.0 * 86_400.0;

pub(crate) fn ycsb(arguments: &YcsbArguments) -> Result<ExitCode, ExitFailure> {
    let properties = properties(arguments)?;
    let workload = properties.workload().map_err(mistaken)?;
    let options = OutputOptions::from_properties(&properties).map_err(mistaken)?;
    let directory_given = given_directory(arguments, &properties);
    for unknown in properties.unknown() {
        if directory_property(arguments) == Some(unknown.property.name.as_str()) && directory_given.is_some()
        {
            continue;
        }
        let hint = unknown.suggestion.map_or_else(String::new, |name| format!("; did you mean {name}?"));
        output::say(format_args!(
            "note: {}: '{}' is not a CoreWorkload property{hint}",
            unknown.property.origin, unknown.property.name
        ));
    }
    for one in properties.without_effect() {
        output::say(format_args!(
            "note: {}: '{}' changes nothing here: {}",
            one.property.origin, one.property.name, one.reason
        ));
    }
    let system = underlay_systems::find(&arguments.system).ok_or_else(|| {
        let names = underlay_systems::names().join(", ");
        ExitFailure::Mistake(format!("there is no system '{}': expected one of {names}", arguments.system))
    })?;
    if !system.capabilities().jobs.is_empty() {
        return Err(ExitFailure::Mistake(format!(
            "{0} runs jobs, not YCSB workloads: `underlay new my-jobs --system {0}` writes a study of its jobs",
            system.name()
        )));
    }
    let spec = spec(arguments, workload)?;
    let wanted = search::wanted(arguments)?;
    let settings = settings(arguments, system, &spec.workload)?;
    let has_workers = !arguments.from.workers.is_empty();
    let runs_elsewhere = system.capabilities().runs_elsewhere(&settings.values);
    if runs_elsewhere {
        refuse_what_is_the_clusters(arguments, system, directory_given.as_deref())?;
    }
    let data = if has_workers || runs_elsewhere {
        Vec::new()
    } else {
        directory(arguments, system, &spec, directory_given)?
    };
    if spec.mix.scans() && !system.capabilities().scan {
        return Err(ExitFailure::Mistake(format!("the mix has scans, and {} cannot scan", system.name())));
    }
    refuse_what_does_not_go_together(arguments, system, &spec.workload, &options)?;
    results::check_places(&options, &[arguments.hlog.as_deref(), arguments.raw.as_deref()])?;
    let run_on_workers = super::worker::coordinate::elsewhere;
    if let Some(code) = run_on_workers(arguments, &properties, &spec, &settings.values, &options)? {
        return Ok(code);
    }

    let stop = signals::stop_flag()?;
    let registry = ResourceRegistry::open()?;
    // For the system's socket and log.
    let scratch = OwnFolder::temporary("ycsb", &registry)?;
    let memory = arguments.memory.as_deref().unwrap_or(DEFAULT_MEMORY);
    let budget_bytes = units::parse_bytes(memory)
        .map_err(|problem| ExitFailure::Mistake(format!("--memory {memory}: {problem}")))?;
    let budget_of_data = (!data.is_empty()).then_some(budget_bytes);
    let place = data.first().cloned();
    let paths = StoragePaths { data, scratch: scratch.path().to_path_buf(), ..StoragePaths::default() };
    let enforcement = match runs_elsewhere {
        true => BudgetEnforcement::None,
        false => BudgetEnforcement::Kernel { name: "ycsb", registry: &registry },
    };
    let session = ServerSession::start(
        system,
        vec![ServerSite { paths, budget_bytes, share: None }],
        enforcement,
        &settings,
        &stop,
    )?;
    if let Some(missing) = session.unenforced() {
        output::say(format_args!("note: the memory budget is not enforced: {missing}"));
    }

    let meter = PauseMeter::watch(session.groups());
    if let Some(wanted) = wanted {
        let steps = StepClock::begin(&meter);
        let outcome = search::search(&spec, wanted, &|thread| session.connect(thread), &stop, &steps);
        let stopped = steps.problem();
        let found = match outcome {
            Ok(found) => found,
            Err(RunError::Stopped) => {
                drop(session);
                say_stopped("stopped before the search had found a rate", arguments, place.as_deref());
                return Ok(ExitCode::from(INTERRUPTED));
            }
            Err(error) => return Err(ended(error, &session)),
        };
        let was_killed = say_killed(&session);
        let finished = finish(arguments, session, &stop, place.as_deref());
        let mut printed = Ok(());
        let disturbed = stopped.or_else(|| found.disturbed.clone());
        if let Some(disturbed) = &disturbed {
            output::say(format_args!("note: in a step, {disturbed}: the rate is not the system's alone"));
        }
        let is_whole = disturbed.is_none() && !was_killed;
        if let Some(measured) = &found.measured {
            printed = results::print(measured, RunFacts::default(), SystemTime::now(), &options);
            let at_that_rate = RunSpec { rate_per_s: found.found.holds_per_s, ..spec.clone() };
            let asked = asked(&at_that_rate, &options);
            caution(measured, &RunCircumstances { budget_bytes: budget_of_data, ..asked });
        }
        search::print(&found.found);
        printed.and(finished)?;
        let is_sound = found.measured.as_ref().is_none_or(|measured| mismatches(measured) == 0);
        let is_found = found.found.holds_per_s.is_some();
        return Ok(if is_found && is_sound && is_whole {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(INCOMPLETE)
        });
    }

    let began = OnceLock::new();
    // Only a study tells figures.
    let desk = session.servers().nodes().map(|nodes| NodeDesk::new(nodes, &|| {}, spec.dilation));
    let begin_events = desk.as_ref().map(NodeDesk::beginning);
    let mut control = RunHandle::with_stop(Arc::clone(&stop));
    control.keeps_intervals = results::needs_intervals(&options, arguments.hlog.as_deref());
    control.keeps_particulars = true;
    control.keeps_stopped_run = true;
    control.on_measurement_started = Some(Box::new(|| {
        began.get_or_init(SystemTime::now);
    }));
    control.on_window = Some(Box::new(|instant| begin_events.iter().for_each(|begin| begin(instant))));
    let points = results::gather_points(&control, &options, spec.duration);
    let act = || {
        let raw = arguments.raw.as_deref();
        results::with_status(&control, &options, || session.run(&spec, &control, raw, None))
    };
    let LoadOutcome { measured: outcome, raw_problem } = match &desk {
        Some(desk) => desk.attend(&[], &registry, &stop, act)?,
        None => act(),
    };
    for event in desk.iter().flat_map(NodeDesk::events) {
        output::say(format_args!("node: {}", underlay_report::node_event_in_words(&event)));
    }
    let points = points.map(JoinHandle::join).transpose();
    let points =
        points.map_err(|_| ExitFailure::Failed("the reader of single latencies panicked".to_owned()))?;
    let mut measured = match outcome {
        Ok(measured) => measured,
        Err(RunError::Stopped) => {
            drop(session);
            say_stopped("stopped before anything was measured", arguments, place.as_deref());
            return Ok(ExitCode::from(INTERRUPTED));
        }
        Err(error) => return Err(ended(error, &session)),
    };
    let RunAftermath { unstarted, outside, window, .. } = control.aftermath();
    measured.stopped_processes = window.map_or_else(Vec::new, |window| meter.stopped_over(&window));
    drop(meter);
    let was_killed = say_killed(&session);
    let finished = finish(arguments, session, &stop, place.as_deref());
    let intervals = control.intervals();
    let began = began.get().copied().unwrap_or_else(SystemTime::now);
    if !(system.capabilities().keeps_nothing || measured.stopped) {
        // After the session's end: a system that still works would take cores from the generator.
        let enough_per_s = GeneratorCost::MIN_HEADROOM * measured.throughput_per_s;
        measured.generator.ceiling_per_s = underlay_workload::null_ceiling_up_to(&spec, enough_per_s).ok();
    }
    let mut printed = Ok(());
    if arguments.json {
        output::print(&serde_json::to_string_pretty(&measured).expect("a measurement is plain data"));
    } else {
        let particulars = control.particulars();
        let facts = RunFacts { particulars: Some(&particulars), points: points.as_ref() };
        printed = results::print(&measured, facts, began, &options);
        sum_up(&measured);
    }
    let asked = asked(&spec, &options);
    caution(&measured, &RunCircumstances { budget_bytes: budget_of_data, unstarted, outside, ..asked });
    // A file that fails must not lose the measurement: all are tried, and the first error comes last.
    let logged = results::write_logs(&intervals, began, &options, arguments.hlog.as_deref());
    let written = raw_problem.map_or(Ok(()), |problem| Err(ExitFailure::Failed(problem)));
    if measured.stopped {
        let notice = "stopped: the figures are those of the part that was measured by then";
        say_stopped(notice, arguments, place.as_deref());
    }
    printed.and(logged).and(written).and(finished)?;
    if stop.load(Ordering::Relaxed) {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let is_disturbed = was_killed || standstill(&measured).is_some();
    // A load that lacks records is no base for a run. A run has measured what it was given time for.
    let lacks_records = arguments.phase == YcsbPhase::Load && unfinished(&measured, outside, &spec).is_some();
    let is_incomplete = is_disturbed || lacks_records || found_almost_nothing(&measured);
    Ok(if measured.errors + mismatches(&measured) > 0 || is_incomplete {
        ExitCode::from(INCOMPLETE)
    } else {
        ExitCode::SUCCESS
    })
}

/// Where a cluster that runs already keeps its data, and in how much memory, is its own matter.
fn refuse_what_is_the_clusters(
    arguments: &YcsbArguments,
    system: &dyn System,
    directory: Option<&Path>,
) -> Result<(), ExitFailure> {
    let key = system.capabilities().elsewhere.map_or("", |setting| setting.key);
    let flags = [("--dir", directory.is_some()), ("--memory", arguments.memory.is_some())];
    match flags.into_iter().find(|&(_, is_given)| is_given) {
        None => Ok(()),
        Some((option, _)) => Err(ExitFailure::Mistake(format!(
            "{option} does not go with --set {key}: the cluster is already running, on its own storage and memory"
        ))),
    }
}

/// Each is right by itself.
fn refuse_what_does_not_go_together(
    arguments: &YcsbArguments,
    system: &dyn System,
    workload: &CoreWorkload,
    options: &OutputOptions,
) -> Result<(), ExitFailure> {
    let mistake = |text: String| Err(ExitFailure::Mistake(text));
    if workload.data_integrity && system.capabilities().keeps_nothing {
        return mistake(format!(
            "dataintegrity checks values that are read, and {} stores nothing",
            system.name()
        ));
    }
    if arguments.json && (options.export_file.is_some() || options.measurement.is_raw()) {
        return mistake(
            "--json prints the measurement in place of YCSB's figures: leave it out, or exportfile and measurementtype=raw".into(),
        );
    }
    if !options.measurement.needs_points() {
        return Ok(());
    }
    let kind = "this measurementtype records every single operation";
    if arguments.raw.is_some() {
        return mistake(format!("{kind}, and so does --raw: use only one of them"));
    }
    if arguments.find_rate.is_some() {
        return mistake(format!("{kind}, which --find-rate does not: leave one of them out"));
    }
    Ok(())
}

/// A run that failed and brought nothing back.
fn ended(error: RunError, session: &ServerSession) -> ExitFailure {
    match error {
        RunError::Spec { problems } => ExitFailure::Mistake(problems.join("; ")),
        error => match session.servers().health() {
            Ok(()) => ExitFailure::Failed(error.to_string()),
            Err(health) => health.into(),
        },
    }
}

/// Says it where the kernel has killed processes of the system, which may have gone on without them.
fn say_killed(session: &ServerSession) -> bool {
    let killed = session.check_oom_kills(0, "while it ran");
    if let Err(error) = &killed {
        output::say(format_args!("note: {}", session.explain(error.clone())));
    }
    killed.is_err()
}

/// Prints what a signal cut short, and where the data is.
fn say_stopped(message: &str, arguments: &YcsbArguments, place: Option<&Path>) {
    let data = match (arguments.phase, place) {
        (_, None) => String::new(),
        (YcsbPhase::Load, Some(place)) => {
            format!("; the records loaded so far are in {}", place.display())
        }
        (YcsbPhase::Run, Some(place)) => format!("; the data is kept in {}", place.display()),
    };
    output::say(format_args!("{message}{data}"));
}

fn mistaken(mistakes: PropertyErrors) -> ExitFailure {
    match mistakes.0.len() {
        1 => ExitFailure::Mistake(mistakes.to_string()),
        _ => ExitFailure::Mistakes(mistakes.to_string()),
    }
}

fn properties(arguments: &YcsbArguments) -> Result<YcsbProperties, ExitFailure> {
    let mut properties = YcsbProperties::new();
    for file in &arguments.property_files {
        properties.read_file(file).map_err(mistaken)?;
    }
    for argument in &arguments.properties {
        properties.add_argument(argument).map_err(mistaken)?;
    }
    if arguments.status {
        properties.add("status", "true", PropertyOrigin::Argument("-s".to_owned()));
    }
    if let Some(label) = &arguments.label {
        properties.add("label", label, PropertyOrigin::Argument(format!("--label {label}")));
    }
    Ok(properties)
}

fn spec(arguments: &YcsbArguments, workload: CoreWorkload) -> Result<RunSpec, ExitFailure> {
    // Without --mix its properties have to mean what they mean in YCSB.
    let workload = if arguments.mix.is_none() { workload.with_core_defaults() } else { workload };
    let mix = match (arguments.phase, &arguments.mix) {
        (YcsbPhase::Load, None) => OperationMix::parse("load"),
        (YcsbPhase::Load, Some(_)) => {
            return Err(ExitFailure::Mistake("--mix goes with `ycsb run`: a load only inserts".into()));
        }
        (YcsbPhase::Run, Some(name)) => OperationMix::parse(name),
        (YcsbPhase::Run, None) => Ok(workload.mix()),
    }
    .map_err(|unknown| ExitFailure::Mistake(unknown.to_string()))?;
    let operation_limit = if arguments.phase == YcsbPhase::Run { workload.operation_count } else { None };
    let limited = operation_limit.is_some() || mix.visits_every_record();
    let duration = match (arguments.duration, workload.max_execution_time) {
        (Some(value), _) => seconds("duration", value)?,
        (None, Some(limit)) => limit,
        // The operations end it.
        (None, None) if limited => Duration::MAX,
        (None, None) => DEFAULT_DURATION,
    };
    let warmup = seconds("warmup", arguments.warmup)?.max(workload.warmup_time);
    let (rate_per_s, rate_profile) = match &arguments.rate {
        None => (workload.target_rate_per_s, None),
        Some(RateArgument::Constant(rate)) => (Some(*rate), None),
        Some(changing) => {
            let parts = rate_parts(changing, warmup, duration)?;
            (None, Some(RateProfile::from_parts(&parts).map_err(ExitFailure::Mistake)?))
        }
    };
    let has_rate = rate_per_s.is_some() || rate_profile.is_some();
    Ok(RunSpec {
        threads: arguments.threads.unwrap_or(workload.threads),
        rate_per_s,
        rate_profile,
        arrivals: match arguments.arrivals {
            Some(_) if !has_rate => {
                return Err(ExitFailure::Mistake(
                    "--arrivals says how operations of a rate follow one another: expected --rate as well"
                        .into(),
                ));
            }
            None | Some(YcsbArrivals::Constant) => ArrivalProcess::Constant,
            Some(YcsbArrivals::Poisson) => ArrivalProcess::Poisson,
        },
        warmup,
        duration,
        operation_limit,
        series_intervals: SERIES_INTERVALS,
        workload: Arc::new(workload),
        // This workload only fills a place: the field above has another.
        ..RunSpec::new(Arc::new(CoreWorkload::new(1, 1, 1)), mix)
    })
}

/// The seconds that an option asks for.
fn seconds(option: &str, value: f64) -> Result<Duration, ExitFailure> {
    if !(0.0..=MAX_SECONDS).contains(&value) {
        return Err(ExitFailure::Mistake(format!(
            "--{option} is {value:?}: expected a number of seconds from 0 to {MAX_SECONDS:.0}, which is a year"
        )));
    }
    Ok(Duration::from_secs_f64(value))
}

fn settings(
    arguments: &YcsbArguments,
    system: &dyn System,
    workload: &CoreWorkload,
) -> Result<SystemSettings, ExitFailure> {
    let mut settings = SystemSettings {
        fields: workload.field_count,
        field_bytes: workload.field_length.max_bytes(),
        timeout: CLIENT_TIMEOUT,
        ..SystemSettings::default()
    };
    for setting in &arguments.settings {
        let (key, value) = setting
            .split_once('=')
            .ok_or_else(|| ExitFailure::Mistake(format!("--set {setting}: expected KEY=VALUE")))?;
        settings.values.insert(key.trim().to_owned(), value.trim().to_owned());
    }
    let mistakes = system.check_settings(&settings.values);
    if mistakes.is_empty() {
        return Ok(settings);
    }
    let lines: Vec<String> =
        mistakes.iter().map(|(key, expected)| format!("--set {key}: {expected}")).collect();
    Err(ExitFailure::Mistake(lines.join("\n")))
}

/// The name of `--dir` in YCSB's own binding of the system.
fn directory_property(arguments: &YcsbArguments) -> Option<&'static str> {
    underlay_systems::find(&arguments.system)?.profile().ycsb_directory
}

fn given_directory(arguments: &YcsbArguments, properties: &YcsbProperties) -> Option<PathBuf> {
    let by_property = || properties.get(directory_property(arguments)?);
    arguments.dir.clone().or_else(|| by_property().map(|property| PathBuf::from(&property.value)))
}

/// Where the system keeps its data: one directory, which a load makes, or none where nothing is kept.
fn directory(
    arguments: &YcsbArguments,
    system: &dyn System,
    spec: &RunSpec,
    requested: Option<PathBuf>,
) -> Result<Vec<PathBuf>, ExitFailure> {
    let Some(directory) = requested else {
        if system.capabilities().keeps_nothing {
            return Ok(Vec::new());
        }
        let or = match system.capabilities().elsewhere {
            Some(setting) => format!(", or --set {}=... for a cluster that is already running", setting.key),
            None => String::new(),
        };
        return Err(ExitFailure::Mistake(format!(
            "--dir is missing: expected the directory where {} keeps its data{or}",
            arguments.system
        )));
    };
    let asks_for_records = spec.mix.share(OperationKind::Insert) < 1.0;
    let needs_records = asks_for_records && !system.capabilities().keeps_nothing;
    if needs_records && is_empty(&system.folder_on(&directory)) {
        return Err(ExitFailure::Mistake(format!(
            "no {0} data in {1}: load some first with `underlay ycsb load {0} --dir {1}` and the same properties",
            system.name(),
            directory.display()
        )));
    }
    let folder = Folder::make(&directory, Access::Private).map_err(|error| {
        ExitFailure::from_place_error(format!("cannot keep data in {}: {error}", directory.display()), &error)
    })?;
    Ok(vec![folder.path().to_path_buf()])
}

/// Whether there is nothing: no such folder, or none with anything in it. The system refuses a folder that can't be
/// read.
fn is_empty(folder: &Path) -> bool {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

/// After a load the data is written out and compacted, so that a run begins from a defined state. The results are
/// printed even if the system fails at its end.
fn finish(
    arguments: &YcsbArguments,
    session: ServerSession,
    stop: &AtomicBool,
    place: Option<&Path>,
) -> Result<(), ExitFailure> {
    // Who stops is not kept waiting for a server that may have stopped too, or hangs: dropping the session ends it at
    // once, and what it has said to have stored is there.
    let unsettled = || {
        if arguments.phase == YcsbPhase::Load {
            let place = place.map_or_else(String::new, |place| format!(" in {}", place.display()));
            output::say(format_args!(
                "note: stopped before the data{place} was written out and compacted: load again before you measure"
            ));
        }
    };
    if stop.load(Ordering::Relaxed) {
        unsettled();
        return Ok(());
    }
    session.servers().health()?;
    if arguments.phase == YcsbPhase::Load {
        match session.settle(SETTLE_LIMIT, stop) {
            // The exit code says so too; the servers have ended.
            Err(SessionError::Stopped) => {
                unsettled();
                return Ok(());
            }
            settled => settled?,
        }
    }
    session.finish()?;
    Ok(())
}

/// Whether most operations found no record: they are not those that were loaded.
fn found_almost_nothing(measured: &MeasuredWindow) -> bool {
    let missing: u64 = measured.by_operation.values().map(|stats| stats.missing).sum();
    missing > measured.operations / 2
}

/// Records that were not what was written.
fn mismatches(measured: &MeasuredWindow) -> u64 {
    measured.integrity.as_ref().map_or(0, |integrity| integrity.mismatches)
}
