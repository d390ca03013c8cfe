//! The output for small runs whose values were computed by hand. Below 2.048 us the record's buckets are exact.

use std::time::Duration;

use underlay_record::{Histogram, IntegrityRecord, MeasuredWindow, OperationStats, RecordedLatency};

use super::exporter::export;
use super::options::{ExporterFormat, LatencyIntervals, MeasurementType, OutputOptions};
use super::output::{RunFacts, entries};
use super::points::SectionLatencies;
use crate::mix::OperationKind;
use crate::run::raw::{RawAnswer, RawOperation};
use crate::run::ycsb_stats::{BothLatencies, YcsbStatistics};

/// The common part of all of them.
const HEAD: &str = "[OVERALL], RunTime(ms), 2500\n[OVERALL], Throughput(ops/sec), 1.6\n[TOTAL_GCs], Count, 0\n\
    [TOTAL_GC_TIME], Time(ms), 0\n[TOTAL_GC_TIME_%], Time(%), 0.0\n";

fn histogram(values_ns: &[u64]) -> Histogram {
    let mut histogram = Histogram::default();
    values_ns.iter().for_each(|&ns| histogram.record_ns(ns));
    histogram
}

fn stats(count: u64, values_ns: &[u64]) -> OperationStats {
    let latency = RecordedLatency::new(histogram(values_ns));
    OperationStats { count, service: latency.clone(), latency, ..OperationStats::default() }
}

fn both(values_ns: &[u64]) -> BothLatencies {
    BothLatencies { intended: histogram(values_ns), service: histogram(values_ns) }
}

/// A closed loop: four reads, one of which found nothing, and in addition a failed one.
fn reads() -> (MeasuredWindow, YcsbStatistics) {
    let read = OperationStats { missing: 1, errors: 1, ..stats(4, &[1000, 1000, 2000, 1000]) };
    let mut measured =
        MeasuredWindow { duration_s: 2.5, operations: 4, throughput_per_s: 1.6, ..MeasuredWindow::default() };
    measured.by_operation.insert("read".to_owned(), read);
    let mut particulars = YcsbStatistics::default();
    particulars.failed.insert((OperationKind::Read, RawAnswer::Missing), both(&[1000]));
    particulars.failed.insert((OperationKind::Read, RawAnswer::Error), both(&[2000]));
    (measured, particulars)
}

fn read(start_ms: i64, took_us: i64, answer: RawAnswer) -> RawOperation {
    let start_ns = start_ms * 1_000_000;
    let end_ns = start_ns + took_us * 1000;
    RawOperation {
        kind: OperationKind::Read,
        thread: 0,
        intended_ns: start_ns,
        start_ns,
        end_ns,
        read_end_ns: None,
        answer,
    }
}

/// The same one by one.
fn operations() -> Vec<RawOperation> {
    vec![
        read(0, 1, RawAnswer::Found),
        read(1200, 2, RawAnswer::Found),
        read(400, 1, RawAnswer::Found),
        read(600, 1, RawAnswer::Missing),
        read(2400, 2, RawAnswer::Error),
    ]
}

fn shown(measured: &MeasuredWindow, facts: RunFacts<'_>, options: &OutputOptions) -> String {
    let text = export(&entries(measured, facts, options), ExporterFormat::Text);
    text.strip_prefix(HEAD).unwrap_or_else(|| panic!("{text}")).to_owned()
}

fn options_for(measurement: MeasurementType) -> OutputOptions {
    OutputOptions { measurement, percentiles: vec![50.0, 99.9], ..OutputOptions::default() }
}

/// The reads, printed with a measurement type.
fn reads_as(options: &OutputOptions) -> String {
    let (measured, particulars) = reads();
    let points = SectionLatencies::from_operations(std::iter::once(operations()), options, Duration::MAX);
    shown(&measured, RunFacts { particulars: Some(&particulars), points: Some(&points) }, options)
}

const READ_PERCENTILES: &str = "\
[READ], Operations, 3
[READ], AverageLatency(us), 1.3333333333333333
[READ], MinLatency(us), 1
[READ], MaxLatency(us), 2
[READ], 50thPercentileLatency(us), 1
[READ], 99.9PercentileLatency(us), 2
[READ], Return=OK, 3
[READ], Return=NOT_FOUND, 1
[READ], Return=ERROR, 1
";
const FAILED_PERCENTILES: &str = "\
[READ-FAILED], Operations, 2
[READ-FAILED], AverageLatency(us), 1.5
[READ-FAILED], MinLatency(us), 1
[READ-FAILED], MaxLatency(us), 2
[READ-FAILED], 50thPercentileLatency(us), 1
[READ-FAILED], 99.9PercentileLatency(us), 2
";

#[test]
fn hdr_histograms_show_percentiles_and_answers() {
    let options = options_for(MeasurementType::HdrHistogram);
    assert_eq!(reads_as(&options), format!("{READ_PERCENTILES}{FAILED_PERCENTILES}"));
    let verbose = OutputOptions { verbose: true, ..options };
    let expected = format!(
        "{READ_PERCENTILES}[READ], 1, 2.0\n[READ], 2, 1.0\n\
         {FAILED_PERCENTILES}[READ-FAILED], 1, 1.0\n[READ-FAILED], 2, 1.0\n"
    );
    assert_eq!(reads_as(&verbose), expected);
    // A record alone does not know how long failed operations took.
    let (measured, _) = reads();
    let alone = "[READ], Operations, 4\n[READ], AverageLatency(us), 1.25\n[READ], MinLatency(us), 1\n\
        [READ], MaxLatency(us), 2\n[READ], 50thPercentileLatency(us), 1\n[READ], 99.9PercentileLatency(us), 2\n\
        [READ], Return=OK, 3\n[READ], Return=NOT_FOUND, 1\n[READ], Return=ERROR, 1\n";
    let options = options_for(MeasurementType::HdrHistogram);
    assert_eq!(shown(&measured, RunFacts::default(), &options), alone);
}

const READ_BUCKETS: &str = "\
[READ], Operations, 3
[READ], AverageLatency(us), 1.3333333333333333
[READ], LatencyVariance(us), 0.222
[READ], MinLatency(us), 1
[READ], MaxLatency(us), 2
[READ], 95thPercentileLatency(us), 0
[READ], 99thPercentileLatency(us), 0
";
const FAILED_BUCKETS: &str = "\
[READ-FAILED], Operations, 2
[READ-FAILED], AverageLatency(us), 1.5
[READ-FAILED], LatencyVariance(us), 0.250
[READ-FAILED], MinLatency(us), 1
[READ-FAILED], MaxLatency(us), 2
[READ-FAILED], 95thPercentileLatency(us), 0
[READ-FAILED], 99thPercentileLatency(us), 0
";
const READ_RETURNS: &str = "[READ], Return=OK, 3\n[READ], Return=NOT_FOUND, 1\n[READ], Return=ERROR, 1\n";

/// A difference of two nearly equal numbers: its last digits are noise.
fn with_short_variance(text: &str) -> String {
    let short = |line: &str| match line.rsplit_once(", ") {
        Some((name, value)) if name.ends_with("LatencyVariance(us)") => {
            format!("{name}, {:.3}\n", value.parse::<f64>().unwrap())
        }
        _ => format!("{line}\n"),
    };
    text.lines().map(short).collect()
}

#[test]
fn plain_histograms_have_buckets_of_a_millisecond() {
    let options = OutputOptions { buckets: 2, ..options_for(MeasurementType::Histogram) };
    let text = with_short_variance(&reads_as(&options));
    assert_eq!(text, format!("{READ_BUCKETS}{READ_RETURNS}{FAILED_BUCKETS}"));

    let verbose = OutputOptions { verbose: true, buckets: 4, ..options.clone() };
    let mut measured = reads().0;
    let slow = stats(5, &[500_000, 1_200_000, 1_300_000, 2_500_000, 9_000_000]);
    measured.by_operation = [("read".to_owned(), slow)].into();
    let text = shown(&measured, RunFacts::default(), &verbose);
    let (before, after) = text.split_once("[READ], MinLatency(us), ").unwrap();
    let figures: Vec<f64> =
        before.lines().map(|line| line.rsplit_once(", ").unwrap().1.parse().unwrap()).collect();
    // The mean of the squares minus the square of the mean is 9,716,000; buckets have a width of a thousandth.
    let near = |found: f64, exact: f64| (found / exact - 1.0).abs() < 0.01;
    assert!(figures[0] == 5.0 && near(figures[1], 2900.0) && near(figures[2], 9_716_000.0), "{figures:?}");
    // The fifth is beyond the last bucket, and so is p95.
    let expected = "500\n[READ], MaxLatency(us), 9003\n[READ], Return=OK, 5\n\
        [READ], 0, 1\n[READ], 1, 2\n[READ], 2, 1\n[READ], 3, 0\n[READ], >4, 1\n";
    assert_eq!(after, expected);
    let wide = OutputOptions { buckets: 1000, verbose: false, ..options };
    let text = shown(&measured, RunFacts::default(), &wide);
    assert!(
        text.contains("[READ], 95thPercentileLatency(us), 9000\n[READ], 99thPercentileLatency(us), 9000\n")
    );
}

/// Renames sections.
fn renamed(text: &str, prefix: &str) -> String {
    text.replace("[READ", &format!("[{prefix}READ"))
}

#[test]
fn two_types_in_one_have_names_of_their_own() {
    let text = with_short_variance(&reads_as(&options_for(MeasurementType::HdrHistogramAndHistogram)));
    let expected = [
        renamed(READ_PERCENTILES, "Hdr"),
        renamed(READ_BUCKETS, "Bucket"),
        renamed(FAILED_PERCENTILES, "Hdr"),
        renamed(FAILED_BUCKETS, "Bucket"),
    ];
    assert_eq!(text, expected.concat());
    let text = reads_as(&options_for(MeasurementType::HdrHistogramAndRaw));
    let expected = [
        renamed(READ_PERCENTILES, "Hdr"),
        renamed(READ_RAW, "Raw"),
        renamed(FAILED_PERCENTILES, "Hdr"),
        renamed(FAILED_RAW, "Raw"),
    ];
    assert_eq!(text, expected.concat());
}

#[test]
fn time_series_has_mean_per_time_unit() {
    let options =
        OutputOptions { granularity: Duration::from_millis(500), ..options_for(MeasurementType::TimeSeries) };
    let expected = "\
[READ], Operations, 3
[READ], AverageLatency(us), 1.3333333333333333
[READ], MinLatency(us), 1
[READ], MaxLatency(us), 2
[READ], Return=OK, 3
[READ], Return=NOT_FOUND, 1
[READ], Return=ERROR, 1
[READ], 0, 1.0
[READ], 1000, 2.0
[READ-FAILED], Operations, 2
[READ-FAILED], AverageLatency(us), 1.5
[READ-FAILED], MinLatency(us), 1
[READ-FAILED], MaxLatency(us), 2
[READ-FAILED], 500, 1.0
[READ-FAILED], 2000, 2.0
";
    assert_eq!(reads_as(&options), expected);
}

const READ_RAW: &str = "\
[READ], Total Operations, 3
[READ], Below is a summary of latency in microseconds:, -1
[READ], Average, 1.3333333333333333
[READ], Min, 1
[READ], Max, 2
[READ], p1, 1
[READ], p5, 1
[READ], p50, 1
[READ], p90, 2
[READ], p95, 2
[READ], p99, 2
[READ], p99.9, 2
[READ], p99.99, 2
";
const FAILED_RAW: &str = "\
[READ-FAILED], Total Operations, 2
[READ-FAILED], Below is a summary of latency in microseconds:, -1
[READ-FAILED], Average, 1.5
[READ-FAILED], Min, 1
[READ-FAILED], Max, 2
[READ-FAILED], p1, 1
[READ-FAILED], p5, 1
[READ-FAILED], p50, 2
[READ-FAILED], p90, 2
[READ-FAILED], p95, 2
[READ-FAILED], p99, 2
[READ-FAILED], p99.9, 2
[READ-FAILED], p99.99, 2
";

#[test]
fn single_latencies_are_listed_in_their_order() {
    let options = options_for(MeasurementType::Raw);
    assert_eq!(reads_as(&options), format!("{READ_RAW}{READ_RETURNS}{FAILED_RAW}"));
    let brief = OutputOptions { no_raw_summary: true, ..options.clone() };
    let expected = format!("[READ], Total Operations, 3\n{READ_RETURNS}[READ-FAILED], Total Operations, 2\n");
    assert_eq!(reads_as(&brief), expected);
    let list = |options: &OutputOptions| {
        SectionLatencies::from_operations(std::iter::once(operations()), options, Duration::MAX)
            .list(options, 1_500_000_000_000)
    };
    let expected = "\
READ latency raw data: op, timestamp(ms), latency(us)
READ,1500000000000,1
READ,1500000000400,1
READ,1500000001200,2
READ-FAILED latency raw data: op, timestamp(ms), latency(us)
READ-FAILED,1500000000600,1
READ-FAILED,1500000002400,2
";
    assert_eq!(list(&options), expected);
    let with_percentiles = options_for(MeasurementType::HdrHistogramAndRaw);
    assert_eq!(list(&with_percentiles), expected.replace("READ", "RawREAD"));
}

#[test]
fn read_modify_write_parts_count_by_kind() {
    let options = options_for(MeasurementType::Raw);
    let whole = |intended_us: i64, answer, read_end_us: Option<i64>| RawOperation {
        kind: OperationKind::ReadModifyWrite,
        intended_ns: intended_us * 1000,
        start_ns: 10_000,
        end_ns: 17_000,
        read_end_ns: read_end_us.map(|us| us * 1000),
        ..read(0, 0, answer)
    };
    let listed = |one: RawOperation, intervals| {
        let options = OutputOptions { intervals, ..options.clone() };
        let text = SectionLatencies::from_operations(std::iter::once(vec![one]), &options, Duration::MAX)
            .list(&options, 0);
        text.lines().filter(|line| !line.contains(' ')).map(str::to_owned).collect::<Vec<_>>()
    };
    let well = whole(10, RawAnswer::Found, Some(12));
    let parts = ["READ,0,2", "READ-MODIFY-WRITE,0,7", "UPDATE,0,5"];
    assert_eq!(listed(well, LatencyIntervals::Service), parts);
    assert_eq!(listed(well, LatencyIntervals::Intended), parts);
    assert_eq!(listed(well, LatencyIntervals::BothWhereTheyDiffer), parts);
    let late = whole(4, RawAnswer::Timeout, Some(12));
    assert_eq!(
        listed(late, LatencyIntervals::Intended),
        ["READ,0,8", "READ-MODIFY-WRITE,0,13", "UPDATE-FAILED,0,13"]
    );
    assert_eq!(listed(late, LatencyIntervals::BothWhereTheyDiffer).len(), 6);
    let missing = whole(10, RawAnswer::Missing, None);
    assert_eq!(listed(missing, LatencyIntervals::Service), ["READ-FAILED,0,7", "READ-MODIFY-WRITE,0,7"]);
    let unstarted = whole(10, RawAnswer::Unstarted, None);
    assert!(listed(unstarted, LatencyIntervals::Service).is_empty());
}

#[test]
fn intended_start_is_shown_as_asked() {
    let mut measured = reads().0;
    let update = OperationStats {
        count: 1,
        latency: RecordedLatency::new(histogram(&[2000])),
        service: RecordedLatency::new(histogram(&[1000])),
        ..OperationStats::default()
    };
    measured.by_operation = [("update".to_owned(), update)].into();
    let maxima = |measured: &MeasuredWindow, intervals| {
        let options = OutputOptions { intervals, ..OutputOptions::default() };
        shown(measured, RunFacts::default(), &options)
            .lines()
            .filter(|line| line.contains("MaxLatency") || line.contains("Return"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let service = ["[UPDATE], MaxLatency(us), 1", "[UPDATE], Return=OK, 1"];
    assert_eq!(maxima(&measured, LatencyIntervals::Service), service);
    assert_eq!(
        maxima(&measured, LatencyIntervals::Intended),
        ["[UPDATE], MaxLatency(us), 2", "[UPDATE], Return=OK, 1"]
    );
    let both = [service[0], service[1], "[Intended-UPDATE], MaxLatency(us), 2"];
    assert_eq!(maxima(&measured, LatencyIntervals::Both), both);
    assert_eq!(maxima(&measured, LatencyIntervals::BothWhereTheyDiffer), both);
    // A closed loop shows them once unless both are requested.
    measured.by_operation = [("update".to_owned(), stats(1, &[1000]))].into();
    assert_eq!(maxima(&measured, LatencyIntervals::BothWhereTheyDiffer), service);
    assert_eq!(maxima(&measured, LatencyIntervals::Both).len(), 3);
}

#[test]
fn checks_and_closed_connections_have_sections() {
    let (mut measured, mut particulars) = reads();
    measured.integrity = Some(IntegrityRecord { checked: 3, mismatches: 1, ..IntegrityRecord::default() });
    particulars.checks = histogram(&[1000, 1000, 2000]);
    particulars.closings = histogram(&[2000]);
    let options = OutputOptions { percentiles: Vec::new(), ..OutputOptions::default() };
    let text = shown(&measured, RunFacts { particulars: Some(&particulars), points: None }, &options);
    let expected = "\
[CLEANUP], Operations, 1
[CLEANUP], AverageLatency(us), 2.0
[CLEANUP], MinLatency(us), 2
[CLEANUP], MaxLatency(us), 2
[VERIFY], Operations, 3
[VERIFY], AverageLatency(us), 1.3333333333333333
[VERIFY], MinLatency(us), 1
[VERIFY], MaxLatency(us), 2
[VERIFY], Return=OK, 2
[VERIFY], Return=UNEXPECTED_STATE, 1
[VERIFY], Return=ERROR, 1
";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn json_has_the_figures_of_the_text() {
    let (measured, particulars) = reads();
    let options = options_for(MeasurementType::HdrHistogram);
    let entries = entries(&measured, RunFacts { particulars: Some(&particulars), points: None }, &options);
    let text = export(&entries, ExporterFormat::Text);
    let array: Vec<serde_json::Value> =
        serde_json::from_str(&export(&entries, ExporterFormat::JsonArray)).unwrap();
    let one_by_one = export(&entries, ExporterFormat::Json);
    let objects: Vec<serde_json::Value> =
        serde_json::Deserializer::from_str(&one_by_one).into_iter().collect::<Result<_, _>>().unwrap();
    assert_eq!(array, objects);
    assert_eq!(array.len(), text.lines().count());
    for (object, line) in array.iter().zip(text.lines()) {
        let parts: Vec<&str> = line.splitn(3, ", ").collect();
        assert_eq!(format!("[{}]", object["metric"].as_str().unwrap()), parts[0]);
        assert_eq!(object["measurement"], parts[1]);
        assert_eq!(object["value"].as_f64(), parts[2].parse().ok());
    }
}
