//! `underlay ycsb`: one workload on one system, without a study.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use underlay_attach::{MemoryBudget, OwnFolder, Registry};
use underlay_record::Measured;
use underlay_report::quantity;
use underlay_study::units;
use underlay_systems::system::{Memory, Running, Settings, StoragePaths, System};
use underlay_workload::client::ClientError;
use underlay_workload::values::FieldLength;
use underlay_workload::{Arrivals, Control, Mix, Properties, RunError, RunSpec, Workload};

use crate::arguments::{YcsbArguments, YcsbPhase};
use crate::exit_codes::{Failure, INCOMPLETE, INTERRUPTED};
use crate::{output, signals};

const DEFAULT_DURATION: Duration = Duration::from_secs(60);
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
const SETTLE_LIMIT: Duration = Duration::from_secs(600);
const SERIES_INTERVALS: u32 = 60;

pub fn ycsb(arguments: &YcsbArguments) -> Result<ExitCode, Failure> {
    let properties = properties(arguments)?;
    let workload = properties.workload().map_err(|mistakes| Failure::Mistake(format!("\n{mistakes}")))?;
    for unknown in properties.unknown() {
        let hint = unknown.suggestion.map_or_else(String::new, |name| format!("; did you mean {name}?"));
        eprintln!(
            "note: {}: '{}' is no CoreWorkload property{hint}",
            unknown.property.origin, unknown.property.name
        );
    }
    let system = underlay_systems::find(&arguments.system).ok_or_else(|| {
        let known = underlay_systems::names().join(", ");
        Failure::Mistake(format!("there is no system '{}': expected one of {known}", arguments.system))
    })?;
    let spec = spec(arguments, workload)?;
    let settings = settings(arguments, system, &spec.workload)?;
    std::fs::create_dir_all(&arguments.dir)
        .map_err(|error| Failure::Mistake(format!("cannot make {}: {error}", arguments.dir.display())))?;
    if spec.mix.scans() && !system.capabilities().scan {
        return Err(Failure::Mistake(format!("the mix scans, and {} cannot", system.name())));
    }

    let stop = signals::stop_flag()?;
    let registry = Registry::open()?;
    // For the system's socket and log.
    let scratch_path = std::env::temp_dir().join(format!("underlay-ycsb-{}", std::process::id()));
    let scratch = OwnFolder::make(&scratch_path, &registry)?;
    let budget_bytes = units::parse_bytes(&arguments.memory)
        .map_err(|problem| Failure::Mistake(format!("--memory {}: {problem}", arguments.memory)))?;
    let mut budget = match MemoryBudget::create("ycsb", budget_bytes, &registry) {
        Ok(budget) => Some(budget),
        Err(underlay_attach::AttachError::Missing(missing)) => {
            eprintln!("note: the memory budget is not enforced: {missing}");
            None
        }
        Err(other) => return Err(other.into()),
    };
    let paths = StoragePaths {
        data: vec![absolute(&arguments.dir)?],
        scratch: scratch.path().to_path_buf(),
        ..StoragePaths::default()
    };
    let cgroup_procs = budget.as_ref().map(MemoryBudget::procs_files).unwrap_or_default();
    // Pages of its files that others have read are not charged to the budget.
    underlay_attach::memory_budget::drop_file_caches(&paths.data)?;
    let running = system.start(&paths, &Memory { budget_bytes, cgroup_procs }, &settings)?;

    let control = Control::with_stop(Arc::clone(&stop));
    let connect = |_thread: u32| running.connect().map_err(|error| ClientError::Lost(error.to_string()));
    let outcome = underlay_workload::run(&spec, &connect, &control);
    let measured = match outcome {
        Ok(measured) => measured,
        Err(RunError::Stopped) => return Ok(ExitCode::from(INTERRUPTED)),
        Err(RunError::Spec { problems }) => return Err(Failure::Mistake(problems.join("; "))),
        Err(error) => {
            running.health()?;
            return Err(Failure::Failed(error.to_string()));
        }
    };
    finish(arguments, running)?;
    if let Some(budget) = &mut budget {
        budget.remove()?;
    }
    show(arguments, &measured, &spec.workload);
    if stop.load(Ordering::Relaxed) {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(if measured.errors > 0 { ExitCode::from(INCOMPLETE) } else { ExitCode::SUCCESS })
}

fn properties(arguments: &YcsbArguments) -> Result<Properties, Failure> {
    let mut properties = Properties::new();
    for file in &arguments.property_files {
        properties.read_file(file).map_err(|mistakes| Failure::Mistake(format!("\n{mistakes}")))?;
    }
    for argument in &arguments.properties {
        properties.add_argument(argument).map_err(|mistakes| Failure::Mistake(mistakes.to_string()))?;
    }
    Ok(properties)
}

fn spec(arguments: &YcsbArguments, workload: Workload) -> Result<RunSpec, Failure> {
    let mix = match (arguments.phase, &arguments.mix) {
        (YcsbPhase::Load, None) => Mix::parse("load"),
        (YcsbPhase::Load, Some(_)) => {
            return Err(Failure::Mistake("--mix goes with `ycsb run`: a load only inserts".into()));
        }
        (YcsbPhase::Run, Some(name)) => Mix::parse(name),
        (YcsbPhase::Run, None) => Ok(workload.mix()),
    }
    .map_err(|unknown| Failure::Mistake(unknown.to_string()))?;
    let seconds = |name: &str, value: f64| {
        Duration::try_from_secs_f64(value)
            .map_err(|_| Failure::Mistake(format!("--{name} is {value}: expected a number of seconds")))
    };
    let operation_limit = if arguments.phase == YcsbPhase::Run { workload.operation_count } else { None };
    let limited = operation_limit.is_some() || mix.visits_every_record();
    let duration = match (arguments.duration, workload.max_execution_time) {
        (Some(value), _) => seconds("duration", value)?,
        (None, Some(limit)) => limit,
        (None, None) if limited => Duration::MAX,
        (None, None) => DEFAULT_DURATION,
    };
    Ok(RunSpec {
        threads: arguments.threads.unwrap_or(workload.threads),
        rate_per_s: arguments.rate.or(workload.target_rate_per_s),
        arrivals: Arrivals::Constant,
        warmup: seconds("warmup", arguments.warmup)?.max(workload.warmup_time),
        duration,
        operation_limit,
        series_intervals: SERIES_INTERVALS,
        workload: Arc::new(workload),
        ..RunSpec::new(Arc::new(Workload::new(1, 1, 1)), mix)
    })
}

fn settings(
    arguments: &YcsbArguments,
    system: &dyn System,
    workload: &Workload,
) -> Result<Settings, Failure> {
    let mut settings = Settings {
        fields: workload.field_count,
        field_bytes: match workload.field_length {
            FieldLength::Constant(bytes) => bytes,
            FieldLength::Uniform(_, most) | FieldLength::Zipfian(_, most) => most,
        },
        timeout: CLIENT_TIMEOUT,
        ..Settings::default()
    };
    for setting in &arguments.settings {
        let (key, value) = setting
            .split_once('=')
            .ok_or_else(|| Failure::Mistake(format!("--set {setting}: expected KEY=VALUE")))?;
        settings.values.insert(key.trim().to_owned(), value.trim().to_owned());
    }
    let mistakes = system.check_settings(&settings.values);
    if mistakes.is_empty() {
        return Ok(settings);
    }
    let lines: Vec<String> =
        mistakes.iter().map(|(key, expected)| format!("--set {key}: {expected}")).collect();
    Err(Failure::Mistake(lines.join("\n")))
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|error| Failure::Mistake(format!("cannot open {}: {error}", path.display())))
}

/// After a load the data is written out and compacted, so that a run begins from a defined state.
fn finish(arguments: &YcsbArguments, running: Box<dyn Running>) -> Result<(), Failure> {
    running.health()?;
    if arguments.phase == YcsbPhase::Load {
        running.settle(SETTLE_LIMIT)?;
    }
    Ok(running.stop()?)
}

fn show(arguments: &YcsbArguments, measured: &Measured, workload: &Workload) {
    if arguments.json {
        output::print(&serde_json::to_string_pretty(measured).expect("a measurement is plain data"));
        return;
    }
    output::print(&underlay_workload::ycsb_output::summary(measured, &workload.output_percentiles));
    eprintln!(
        "{} operations in {}: {}/s, mean {}, p99 {}",
        measured.operations,
        quantity::duration(measured.wall_s),
        quantity::rate(measured.throughput_per_s),
        quantity::latency(measured.latency.us.mean),
        quantity::latency(measured.latency.us.p99)
    );
    for sample in &measured.error_samples {
        eprintln!("error: {sample}");
    }
}
