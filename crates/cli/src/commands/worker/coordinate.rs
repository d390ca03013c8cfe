//! `underlay ycsb ... --workers`: the load comes from several hosts.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use underlay_attach::ResourceRegistry;
use underlay_hosts::{
    CombinedResults, HostAddress, HostError, HostReport, ProgressReport, RemoteJob, WorkerCoordinator,
    WorkerProgress,
};
use underlay_record::MeasuredWindow;
use underlay_report::quantity;
use underlay_sync::UnsimulatedMutex;
use underlay_workload::ycsb::{ExporterFormat, OutputOptions, RunFacts, StatusLine};
use underlay_workload::{RunSpec, YcsbProperties};

use super::{shared, trust};
use crate::arguments::{TrustArguments, YcsbArguments, YcsbPhase};
use crate::commands::live_service::ServiceReporter;
use crate::commands::ycsb::cautions::{RunCircumstances, asked, caution, standstill, unfinished};
use crate::commands::ycsb::rates::rate_parts;
use crate::commands::ycsb::results;
use crate::commands::ycsb::summary::sum_up;
use crate::exit_codes::{ExitFailure, INCOMPLETE, INTERRUPTED};
use crate::{output, signals};

/// Where workers are given, the load comes from them; `None` where none are.
pub(crate) fn elsewhere(
    arguments: &YcsbArguments,
    properties: &YcsbProperties,
    spec: &RunSpec,
    settings: &BTreeMap<String, String>,
    options: &OutputOptions,
) -> Result<Option<ExitCode>, ExitFailure> {
    if !arguments.from.workers.is_empty() {
        return coordinate(arguments, properties, spec, settings, options).map(Some);
    }
    let TrustArguments { token_file, authority, .. } = &arguments.from.trust;
    if token_file.is_some() || authority.is_some() {
        return Err(ExitFailure::Mistake(
            "a token or certificates need workers: expected --workers as well".to_owned(),
        ));
    }
    Ok(None)
}

fn coordinate(
    arguments: &YcsbArguments,
    properties: &YcsbProperties,
    spec: &RunSpec,
    settings: &BTreeMap<String, String>,
    options: &OutputOptions,
) -> Result<ExitCode, ExitFailure> {
    refuse_what_workers_do_not_send(options)?;
    shared::check(&arguments.system, settings).map_err(ExitFailure::Mistake)?;
    let job = job(arguments, properties, spec, settings)?;
    let from = &arguments.from;
    let program = from.remote_program.as_deref().unwrap_or("underlay");
    let workers: Vec<HostAddress> =
        from.workers.iter().map(|text| HostAddress::parse(text, program)).collect::<Result<_, _>>()?;
    // A load that can't be divided is refused before any connection.
    job.divided(u32::try_from(workers.len()).unwrap_or(u32::MAX))?;
    let stop = signals::stop_flag()?;
    let began = SystemTime::now();
    let coordinator = WorkerCoordinator::connect(&workers, trust(&from.trust)?.as_ref())?;
    let progress = UnsimulatedMutex::new(WorkersProgress::new(options, spec.operation_limit));
    let reporter = ResourceRegistry::open().ok().and_then(|registry| {
        ServiceReporter::begin("load", describe_job(arguments, &job), "begins", &registry)
    });
    let reported = |report: &ProgressReport, workers: &[WorkerProgress]| {
        if let Some(reporter) = &reporter {
            reporter.say(if report.has_ended { "done" } else { "running" });
            reporter.add(report, workers);
        }
        progress.lock().show(report);
    };
    let together = match coordinator.run(&job, &stop, &reported) {
        Ok(together) => together,
        Err(HostError::Stopped) => {
            output::say("stopped: the workers' measurements are discarded");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        Err(error) => return Err(error.into()),
    };
    let mut printed = Ok(());
    if arguments.json {
        let record = serde_json::to_string_pretty(&WithHosts::new(&together));
        output::print(&record.expect("a measurement is plain data"));
    } else {
        let facts = RunFacts { particulars: Some(&together.particulars), points: None };
        printed = results::print(&together.measured, facts, began, options);
        // In JSON, only YCSB's own objects are expected.
        if options.exporter == ExporterFormat::Text || options.export_file.is_some() {
            output::print(&format_lines(&together));
        }
        sum_up(&together.measured);
    }
    // Where the data are, and how much memory there is, is the system's own matter.
    let CombinedResults { unstarted, outside, .. } = together;
    caution(&together.measured, &RunCircumstances { unstarted, outside, ..asked(spec, options) });
    for lost in &together.lost {
        output::say(format_args!(
            "note: {}; the {} operations that it had reported are not counted above",
            lost.error, lost.last.operations
        ));
    }
    printed?;
    if let Some(lost) = together.lost.first() {
        return Err(ExitFailure::Failed(format!(
            "{}; the measurements of the other {} of {} workers were kept",
            lost.error,
            together.hosts.len(),
            workers.len()
        )));
    }
    if stop.load(Ordering::Relaxed) {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let mismatches = together.measured.integrity.as_ref().map_or(0, |integrity| integrity.mismatches);
    let lacks_records =
        arguments.phase == YcsbPhase::Load && unfinished(&together.measured, outside, spec).is_some();
    let is_good = together.measured.errors + mismatches == 0
        && together.lost_threads == 0
        && standstill(&together.measured).is_none()
        && !lacks_records;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

/// `cassandra: run, mix b, 64 threads on 2 workers`
fn describe_job(arguments: &YcsbArguments, job: &RemoteJob) -> String {
    let phase = match arguments.phase {
        YcsbPhase::Load => "load".to_owned(),
        YcsbPhase::Run => format!("run, mix {}", job.mix.as_deref().unwrap_or("of the properties")),
    };
    let workers = arguments.from.workers.len();
    format!(
        "{}: {phase}, {} on {}",
        job.system,
        quantity::plural(job.threads as usize, "thread"),
        quantity::plural(workers, "worker")
    )
}

fn refuse_what_workers_do_not_send(options: &OutputOptions) -> Result<(), ExitFailure> {
    let refused = |feature: &str| {
        Err(ExitFailure::Mistake(format!("{feature}, which workers don't send: run it on one host")))
    };
    if options.measurement.needs_points() {
        return refused("this measurementtype needs every single operation");
    }
    if options.histogram_logs.is_some() {
        return refused("hdrhistogram.fileoutput needs the latencies of every interval");
    }
    Ok(())
}

fn job(
    arguments: &YcsbArguments,
    properties: &YcsbProperties,
    spec: &RunSpec,
    settings: &BTreeMap<String, String>,
) -> Result<RemoteJob, ExitFailure> {
    let changes = match (&arguments.rate, &spec.rate_profile) {
        (Some(rate), Some(_)) => rate_parts(rate, spec.warmup, spec.duration)?,
        _ => Vec::new(),
    };
    Ok(RemoteJob {
        system: arguments.system.clone(),
        settings: settings.clone(),
        properties: properties.iter().map(|one| (one.name.clone(), one.value.clone())).collect(),
        mix: match arguments.phase {
            YcsbPhase::Load => Some("load".to_owned()),
            YcsbPhase::Run => arguments.mix.clone(),
        },
        threads: spec.threads,
        rate_per_s: spec.rate_per_s,
        rate_changes: changes.into_iter().map(Into::into).collect(),
        arrivals: spec.arrivals.name().to_owned(),
        warmup: spec.warmup,
        duration: spec.duration,
        operation_limit: spec.operation_limit,
        series_intervals: spec.series_intervals,
        seed: spec.seed,
        ..RemoteJob::default()
    })
}

/// YCSB's line on standard error now and then, of all workers together.
struct WorkersProgress<'a> {
    options: &'a OutputOptions,
    operation_limit: Option<u64>,
    /// Since the first report, which comes once all workers know when to begin.
    began: Option<Instant>,
    before: (Duration, u64),
}

impl<'a> WorkersProgress<'a> {
    fn new(options: &'a OutputOptions, operation_limit: Option<u64>) -> Self {
        WorkersProgress { options, operation_limit, began: None, before: (Duration::ZERO, 0) }
    }

    fn show(&mut self, report: &ProgressReport) {
        let elapsed = self.began.get_or_insert_with(Instant::now).elapsed();
        let (elapsed_before, operations_before) = self.before;
        let is_due = elapsed >= elapsed_before + self.options.status_interval || report.has_ended;
        if !(self.options.status && is_due) {
            return;
        }
        let span_s = (elapsed - elapsed_before).as_secs_f64().max(1e-9);
        let mean_per_s = report.operations as f64 / elapsed.as_secs_f64().max(1e-9);
        let left = self.operation_limit.map(|limit| limit.saturating_sub(report.operations) as f64);
        let remaining_s =
            left.filter(|left| report.operations > 0 && *left > 0.0).map(|left| left / mean_per_s);
        let status = StatusLine {
            label: self.options.label.clone(),
            time: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M:%S:%3f").to_string(),
            elapsed,
            operations: report.operations,
            current_per_s: report.operations.saturating_sub(operations_before) as f64 / span_s,
            remaining: remaining_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            ..StatusLine::default()
        };
        output::say(status.line());
        self.before = (elapsed, report.operations);
    }
}

/// A measurement as JSON, as of one host, and what was special about several.
#[derive(Serialize)]
struct WithHosts<'a> {
    #[serde(flatten)]
    measured: &'a MeasuredWindow,
    hosts: HostResults,
}

#[derive(Serialize)]
struct HostResults {
    /// How far apart the workers may have begun.
    start_spread_us: f64,
    unstarted: u64,
    reconnections: u32,
    lost_threads: u32,
    workers: Vec<OneHost>,
    lost: Vec<OneLost>,
}

#[derive(Serialize)]
struct OneHost {
    worker: String,
    cores: u32,
    threads: u32,
    operations: u64,
    start_uncertainty_us: f64,
    start_lateness_us: f64,
    clock_gain_us: Option<f64>,
}

#[derive(Serialize)]
struct OneLost {
    problem: String,
    /// The last number that it told, warm-up included.
    operations: u64,
    errors: u64,
}

fn us(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}

impl From<&HostReport> for OneHost {
    fn from(host: &HostReport) -> Self {
        OneHost {
            worker: host.worker.clone(),
            cores: host.cores,
            threads: host.threads,
            operations: host.operations,
            start_uncertainty_us: us(host.start_uncertainty),
            start_lateness_us: us(host.start_lateness),
            clock_gain_us: host.clock_gain_ns.map(|ns| ns as f64 / 1e3),
        }
    }
}

impl<'a> WithHosts<'a> {
    fn new(together: &'a CombinedResults) -> Self {
        let lost = together.lost.iter().map(|lost| OneLost {
            problem: lost.error.to_string(),
            operations: lost.last.operations,
            errors: lost.last.errors,
        });
        WithHosts {
            measured: &together.measured,
            hosts: HostResults {
                start_spread_us: us(together.start_spread),
                unstarted: together.unstarted,
                reconnections: together.reconnections,
                lost_threads: together.lost_threads,
                workers: together.hosts.iter().map(OneHost::from).collect(),
                lost: lost.collect(),
            },
        }
    }
}

/// In the form of YCSB's text, after YCSB's own lines.
fn format_lines(together: &CombinedResults) -> String {
    let mut lines = vec![
        format!("[HOSTS], Workers, {}", together.hosts.len()),
        format!("[HOSTS], Lost, {}", together.lost.len()),
        format!("[HOSTS], StartSpread(us), {:.1}", us(together.start_spread)),
    ];
    for host in together.hosts.iter().map(OneHost::from) {
        let mut say =
            |name: &str, value: String| lines.push(format!("[WORKER {}], {name}, {value}", host.worker));
        say("Operations", host.operations.to_string());
        say("Threads", host.threads.to_string());
        say("StartUncertainty(us)", format!("{:.1}", host.start_uncertainty_us));
        say("StartLateness(us)", format!("{:.1}", host.start_lateness_us));
        if let Some(gain_us) = host.clock_gain_us {
            // Without a sign where it is nothing.
            say("ClockGain(us)", format!("{:.1}", (gain_us * 10.0).round() / 10.0 + 0.0));
        }
    }
    lines.join("\n")
}
