//! The output of a YCSB run: YCSB's text or ours, logs of its intervals, and a line on standard error now and then.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use underlay_files::Access;
use underlay_record::{Histogram, IntervalLog, MeasuredWindow};
use underlay_workload::ycsb::{
    LatencyIntervals, MeasurementType, OutputOptions, RunFacts, SectionLatencies, StatusLine, entries,
    export, summary,
};
use underlay_workload::{IntervalLatencies, OperationKind, RawLog, RunHandle};

use crate::exit_codes::ExitFailure;
use crate::output;

/// Whether anything that is asked for needs the latencies of each interval.
pub(crate) fn needs_intervals(options: &OutputOptions, hlog: Option<&Path>) -> bool {
    options.histogram_logs.is_some() || hlog.is_some()
}

/// Takes every operation of the next run where the type of measurement needs them.
pub(crate) fn gather_points(
    control: &RunHandle<'_>,
    options: &OutputOptions,
    measured: Duration,
) -> Option<JoinHandle<SectionLatencies>> {
    options.measurement.needs_points().then(|| {
        let (log, operations) = RawLog::new();
        control.log_operations(log);
        let options = options.clone();
        std::thread::spawn(move || SectionLatencies::from_operations(operations, &options, measured))
    })
}

/// Prints the measurement as YCSB does, where it does. A file that can't be written takes nothing else along: the
/// figures are then printed, and the first error is returned at the end.
pub(crate) fn print(
    measured: &MeasuredWindow,
    facts: RunFacts<'_>,
    began: SystemTime,
    options: &OutputOptions,
) -> Result<(), ExitFailure> {
    let mut outcome = Ok(());
    if let Some(points) = facts.points.filter(|_| options.measurement.is_raw()) {
        let began_ms = began.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let list = points.list(options, i64::try_from(began_ms).unwrap_or(i64::MAX));
        match &options.raw_file {
            None => output::print(list.trim_end()),
            Some(file) => {
                let appended = underlay_files::append(file);
                let written = appended.and_then(|mut file| file.write_all(list.as_bytes()));
                outcome = written.map_err(|error| cannot_write(file, &error));
            }
        }
    }
    let text = export(&entries(measured, facts, options), options.exporter);
    let Some(file) = &options.export_file else {
        output::print(&text);
        return outcome;
    };
    let written = underlay_files::write(file, text.as_bytes()).map_err(|error| cannot_write(file, &error));
    if written.is_err() {
        output::print(&text);
    }
    outcome.and(written)
}

/// Checks before a run the files that are written at its end, so that no measurement is wasted:
/// `replaced` are those that must be regular files.
pub(crate) fn check_places(options: &OutputOptions, replaced: &[Option<&Path>]) -> Result<(), ExitFailure> {
    let own = [
        options.export_file.as_deref(),
        options.raw_file.as_deref().filter(|_| options.measurement.is_raw()),
    ];
    let all: Vec<&Path> = own.iter().chain(replaced).flatten().copied().collect();
    for (index, file) in all.iter().enumerate() {
        if all[..index].contains(file) {
            return Err(ExitFailure::Mistake(format!(
                "{} is named for two outputs: name a file for each",
                file.display()
            )));
        }
    }
    let mistake = |file: &Path, error: std::io::Error| {
        ExitFailure::from_place_error(format!("cannot write {}: {error}", file.display()), &error)
    };
    for file in own.iter().flatten() {
        underlay_files::check_writable(file).map_err(|error| mistake(file, error))?;
    }
    for file in replaced.iter().flatten() {
        underlay_files::check_replaceable(file).map_err(|error| mistake(file, error))?;
    }
    if let Some(path) = &options.histogram_logs {
        let directory = path.rfind('/').map_or(".", |end| &path[..=end]);
        if !Path::new(directory).is_dir() {
            return Err(ExitFailure::Mistake(format!(
                "hdrhistogram.output.path is {path}: there is no directory {directory}, create it first"
            )));
        }
    }
    Ok(())
}

fn cannot_write(file: &Path, error: &std::io::Error) -> ExitFailure {
    ExitFailure::Failed(format!("cannot write {}: {error}", file.display()))
}

/// Writes the logs that were asked for: ours with all kinds of operation in one file, YCSB's with a file for each. All
/// are tried, and the first error is returned.
pub(crate) fn write_logs(
    intervals: &[IntervalLatencies],
    began: SystemTime,
    options: &OutputOptions,
    hlog: Option<&Path>,
) -> Result<(), ExitFailure> {
    let mut lines = lines(intervals);
    let mut outcome = Ok(());
    if let Some(path) = &options.histogram_logs {
        let mut files: BTreeMap<String, Vec<IntervalLine>> = BTreeMap::new();
        for line in &lines {
            let Some(name) = &line.tag else { continue };
            let own = IntervalLine { tag: None, latencies: to_microseconds(&line.latencies), ..*line };
            files.entry(name.clone()).or_default().push(own);
        }
        for (name, own) in files {
            let file = format!("{path}{name}.hdr");
            let written = write_log(Path::new(&file), &format!("[Logging for: {name}]"), began, own);
            outcome = outcome.and(written);
        }
    }
    if let Some(file) = hlog {
        add_totals(&mut lines, intervals);
        outcome = outcome.and(write_log(file, "underlay ycsb", began, lines));
    }
    outcome
}

/// An interval of one kind of latency, or of all.
struct IntervalLine {
    tag: Option<String>,
    begin: Duration,
    length: Duration,
    latencies: Histogram,
}

/// The same latencies with a microsecond as the unit, which YCSB counts in.
fn to_microseconds(latencies: &Histogram) -> Histogram {
    let mut counted = Histogram::default();
    latencies.values_ns().for_each(|(ns, count)| counted.record_n_ns(ns / 1000, count));
    counted
}

/// Adds a line without a tag to each interval: all that was answered in it, from its intended start. Viewers that know
/// no tags show it, and the library's own log processor fails without one.
fn add_totals(lines: &mut Vec<IntervalLine>, intervals: &[IntervalLatencies]) {
    for of_one_time in intervals.chunk_by(|left, right| left.begin_ns == right.begin_ns) {
        let mut latencies = Histogram::default();
        of_one_time.iter().for_each(|interval| latencies.merge(&interval.latency));
        let (begin, length) = times(&of_one_time[0]);
        lines.push(IntervalLine { tag: None, begin, length, latencies });
    }
    // It is stable: totals come after the parts.
    lines.sort_by_key(|line| line.begin);
}

fn times(interval: &IntervalLatencies) -> (Duration, Duration) {
    (Duration::from_nanos(interval.begin_ns), Duration::from_nanos(interval.length_ns))
}

fn lines(intervals: &[IntervalLatencies]) -> Vec<IntervalLine> {
    let mut lines = Vec::new();
    for interval in intervals {
        let name = name(interval.kind);
        let mut add = |tag: String, latencies: &Histogram| {
            let (begin, length) = times(interval);
            lines.push(IntervalLine { tag: Some(tag), begin, length, latencies: latencies.clone() });
        };
        match &interval.service {
            None => add(name, &interval.latency),
            Some(service) => {
                add(name.clone(), service);
                add(format!("Intended-{name}"), &interval.latency);
            }
        }
    }
    lines
}

fn write_log(
    file: &Path,
    comment: &str,
    began: SystemTime,
    lines: Vec<IntervalLine>,
) -> Result<(), ExitFailure> {
    let write = |file: File| -> std::io::Result<()> {
        let mut log = IntervalLog::begin(BufWriter::new(file), comment, began)?;
        for line in lines {
            log.write(line.tag.as_deref(), line.begin, line.length, &line.latencies)?;
        }
        log.finish().map(drop)
    };
    underlay_files::replace_with(file, Access::Readable, write).map_err(|error| cannot_write(file, &error))
}

/// Runs `work`, and says how far it is: at the start, as often as the options ask for, and at the end.
pub(crate) fn with_status<T>(
    control: &RunHandle<'_>,
    options: &OutputOptions,
    work: impl FnOnce() -> T,
) -> T {
    if !options.status {
        return work();
    }
    std::thread::scope(|scope| {
        let (ended, ends) = mpsc::channel::<()>();
        scope.spawn(move || {
            let began = std::time::Instant::now();
            let mut before = PreviousLine::default();
            loop {
                let line = status(control, options, began.elapsed(), &mut before).line();
                // A reader that has read enough of them must not end the run.
                output::say(&line);
                // As YCSB does, for scripts that plot standard output.
                if options.measurement == MeasurementType::TimeSeries {
                    output::print(&line);
                }
                if before.is_last {
                    return;
                }
                before.is_last = ends.recv_timeout(options.status_interval) != Err(RecvTimeoutError::Timeout);
            }
        });
        let result = work();
        drop(ended);
        result
    })
}

/// The totals at the last line.
#[derive(Default)]
struct PreviousLine {
    elapsed: Duration,
    operations: u64,
    latencies: BTreeMap<String, Histogram>,
    is_last: bool,
}

fn status(
    control: &RunHandle<'_>,
    options: &OutputOptions,
    elapsed: Duration,
    before: &mut PreviousLine,
) -> StatusLine {
    let progress = control.progress();
    let operations = progress.operations;
    let span_s = elapsed.saturating_sub(before.elapsed).as_secs_f64();
    let mean_per_s = operations as f64 / elapsed.as_secs_f64().max(1e-9);
    let left =
        progress.operation_limit.map(|limit| limit.saturating_sub(operations)).filter(|&left| left > 0);
    let remaining_s = left.map(|left| if operations > 0 { left as f64 / mean_per_s } else { 0.0 });
    let new_operations = operations.saturating_sub(before.operations);
    (before.elapsed, before.operations) = (elapsed, operations);
    StatusLine {
        label: options.label.clone(),
        time: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M:%S:%3f").to_string(),
        elapsed,
        operations,
        current_per_s: new_operations as f64 / span_s.max(1e-9),
        remaining: remaining_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        summaries: summaries(control, options, &mut before.latencies),
    }
}

/// The latencies of each kind of operation since the last line, from the actual start before those from the intended
/// one.
fn summaries(
    control: &RunHandle<'_>,
    options: &OutputOptions,
    before: &mut BTreeMap<String, Histogram>,
) -> Vec<String> {
    let (mut actual, mut intended) = (Vec::new(), Vec::new());
    for one in control.latencies_so_far() {
        let name = name(one.kind);
        let is_open_loop = one.service.is_some();
        let service = one.service.unwrap_or_else(|| one.latency.clone());
        match options.intervals {
            LatencyIntervals::Service => actual.push((name, service)),
            LatencyIntervals::Intended => actual.push((name, one.latency)),
            LatencyIntervals::BothWhereTheyDiffer if !is_open_loop => actual.push((name, service)),
            LatencyIntervals::Both | LatencyIntervals::BothWhereTheyDiffer => {
                intended.push((format!("Intended-{name}"), one.latency));
                actual.push((name, service));
            }
        }
    }
    let mut texts = Vec::new();
    for (name, latencies) in actual.into_iter().chain(intended) {
        let mut new = latencies.clone();
        if let Some(seen) = before.insert(name.clone(), latencies) {
            new.subtract(&seen);
        }
        texts.push(summary(options.measurement, &name, &new));
    }
    texts
}

fn name(kind: OperationKind) -> String {
    kind.name().to_uppercase()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use underlay_workload::ycsb::ExporterFormat;
    use underlay_workload::{CoreWorkload, MemoryStore, OperationMix, RunSpec};

    use super::*;

    /// A run on a map in memory, printed into files.
    #[test]
    fn latencies_and_figures_are_written_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let options = OutputOptions {
            measurement: MeasurementType::HdrHistogramAndRaw,
            raw_file: Some(folder.path().join("raw")),
            export_file: Some(folder.path().join("figures")),
            exporter: ExporterFormat::JsonArray,
            ..OutputOptions::default()
        };
        let store = MemoryStore::new();
        let run_on = |mix: &str, operation_limit| {
            let spec = RunSpec {
                duration: Duration::MAX,
                operation_limit,
                ..RunSpec::new(Arc::new(CoreWorkload::new(50, 1, 20)), OperationMix::parse(mix).unwrap())
            };
            let mut control = RunHandle::new();
            control.keeps_particulars = true;
            let points = gather_points(&control, &options, spec.duration);
            let measured =
                underlay_workload::run(&spec, &|_| Ok(Box::new(store.client())), &control).unwrap();
            let points = points.map(|points| points.join().unwrap());
            let particulars = control.particulars();
            let facts = RunFacts { particulars: Some(&particulars), points: points.as_ref() };
            print(&measured, facts, UNIX_EPOCH, &options).unwrap();
            measured
        };
        run_on("load", None);
        let measured = run_on("f", Some(200));
        let lines = std::fs::read_to_string(folder.path().join("raw")).unwrap();
        let count = |head: &str| lines.lines().filter(|line| line.starts_with(head)).count() as u64;
        let modified = measured.by_operation["read-modify-write"].count;
        // The load's lines are still there: a run's are appended.
        assert_eq!(count("RawINSERT,"), 50);
        assert_eq!(count("RawREAD,"), 200);
        assert_eq!((count("RawUPDATE,"), count("RawREAD-MODIFY-WRITE,")), (modified, modified));
        let text = std::fs::read_to_string(folder.path().join("figures")).unwrap();
        let figures: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        let figure = |metric: &str, measurement: &str| {
            let found =
                figures.iter().find(|one| one["metric"] == metric && one["measurement"] == measurement);
            found.and_then(|one| one["value"].as_u64())
        };
        assert_eq!(figure("HdrREAD", "Operations"), Some(200));
        assert_eq!(figure("HdrREAD", "Return=OK"), Some(200));
        assert_eq!(figure("RawUPDATE", "Total Operations"), Some(modified));
        assert_eq!(figure("HdrCLEANUP", "Operations"), Some(1));
    }

    fn intervals() -> Vec<IntervalLatencies> {
        let histogram = |ns| {
            let mut histogram = Histogram::default();
            histogram.record_ns(ns);
            histogram
        };
        let closed = IntervalLatencies {
            begin_ns: 0,
            length_ns: 1_000_000_000,
            kind: OperationKind::Read,
            latency: histogram(90_000),
            service: None,
        };
        let open = IntervalLatencies {
            kind: OperationKind::ReadModifyWrite,
            service: Some(histogram(50_000)),
            ..closed.clone()
        };
        vec![closed, open]
    }

    #[test]
    fn logs_are_written_where_they_are_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let hlog = folder.path().join("run.hlog");
        let options = OutputOptions {
            histogram_logs: Some(format!("{}/", folder.path().display())),
            ..OutputOptions::default()
        };
        assert!(needs_intervals(&options, None) && needs_intervals(&OutputOptions::default(), Some(&hlog)));
        write_logs(&intervals(), SystemTime::UNIX_EPOCH, &options, Some(&hlog)).unwrap();
        // Tag, largest latency and all latencies of each line.
        let logged = |name: &str| {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
            let logged = |line: &str| {
                let (tag, rest) = match line.strip_prefix("Tag=") {
                    Some(tagged) => tagged.split_once(',').unwrap(),
                    None => ("", line),
                };
                let [begin, length, max, histogram] = rest.split(',').collect::<Vec<_>>()[..] else {
                    panic!("{line}")
                };
                assert_eq!((begin, length), ("0.000", "1.000"));
                let values = Histogram::decode(histogram).unwrap().values_ns().collect::<Vec<_>>();
                (tag.to_owned(), max.to_owned(), values)
            };
            let lines = text.lines().filter(|line| !line.starts_with(['#', '"']));
            lines.map(logged).collect::<Vec<_>>()
        };
        let line = |tag: &str, max: &str, values_ns: &[u64]| {
            let mut histogram = Histogram::default();
            values_ns.iter().for_each(|&ns| histogram.record_ns(ns));
            (tag.to_owned(), max.to_owned(), histogram.values_ns().collect::<Vec<_>>())
        };
        let all = [
            line("READ", "0.090", &[90_000]),
            line("READ-MODIFY-WRITE", "0.050", &[50_000]),
            line("Intended-READ-MODIFY-WRITE", "0.090", &[90_000]),
            // Both, from their intended start.
            line("", "0.090", &[90_000, 90_000]),
        ];
        assert_eq!(logged("run.hlog"), all);
        assert_eq!(logged("READ.hdr"), [line("", "0.000", &[90])]);
        assert_eq!(logged("Intended-READ-MODIFY-WRITE.hdr"), [line("", "0.000", &[90])]);
        let nowhere = folder.path().join("there/is/none.hlog");
        let error =
            write_logs(&intervals(), SystemTime::UNIX_EPOCH, &OutputOptions::default(), Some(&nowhere));
        assert!(error.unwrap_err().to_string().starts_with("cannot write "));
    }
}
