//! YCSB's printed results of a measurement: their values, order and names.

use underlay_record::{Histogram, IntegrityRecord, MeasuredWindow};

use super::exporter::{OutputEntry, OutputValue};
use super::number::ordinal;
use super::options::{LatencyIntervals, MeasurementType, OutputOptions};
use super::points::{INTENDED, SectionLatencies};
use super::sections::{OutputSection, sections};
use crate::mix::OperationKind;
use crate::run::ycsb_stats::YcsbStatistics;

/// Facts about a run besides its measurements.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunFacts<'a> {
    /// Failed operations, and the parts of others. Without them, operations that found nothing count among the others.
    pub particulars: Option<&'a YcsbStatistics>,
    /// Every single latency, for the measurement types that need them.
    pub points: Option<&'a SectionLatencies>,
}

/// Everything that is printed, in YCSB's order: first latencies from the actual start, then those from the intended
/// one.
///
/// Latencies are in microseconds. YCSB's own order of operations is that of a hash; here it is fixed.
pub fn entries(measured: &MeasuredWindow, facts: RunFacts<'_>, options: &OutputOptions) -> Vec<OutputEntry> {
    let mut sheet = OutputSheet { entries: Vec::new(), options, points: facts.points };
    sheet.whole("OVERALL", "RunTime(ms)", (measured.duration_s * 1e3).round() as u64);
    sheet.real("OVERALL", "Throughput(ops/sec)", measured.throughput_per_s);
    if measured.stopped {
        sheet.whole("OVERALL", "Stopped", 1);
    }
    // There is no garbage collector here: programs that look for its lines see that it never ran.
    sheet.whole("TOTAL_GCs", "Count", 0);
    sheet.whole("TOTAL_GC_TIME", "Time(ms)", 0);
    sheet.real("TOTAL_GC_TIME_%", "Time(%)", 0.0);
    let mut sections = sections(measured, facts.particulars, options);
    if let Some(integrity) = &measured.integrity {
        let section = verification(measured, integrity, facts.particulars);
        // A load checks nothing.
        if !section.returns.is_empty() {
            sections.push(section);
        }
    }
    for section in &sections {
        let shown = match options.intervals {
            LatencyIntervals::Intended => &section.latencies.intended,
            _ => &section.latencies.service,
        };
        sheet.section(&section.name, shown, &section.returns);
    }
    for section in &sections {
        let is_shown = match options.intervals {
            LatencyIntervals::Service | LatencyIntervals::Intended => false,
            // YCSB checks values without an intended start.
            LatencyIntervals::Both => section.name != VERIFY,
            LatencyIntervals::BothWhereTheyDiffer => section.latencies.intended != section.latencies.service,
        };
        if is_shown {
            let name = format!("{INTENDED}{}", section.name);
            sheet.section(&name, &section.latencies.intended, &[]);
        }
    }
    sheet.entries
}

const VERIFY: &str = "VERIFY";

/// The result of checking values. A missing record is an error, as in YCSB.
fn verification(
    measured: &MeasuredWindow,
    integrity: &IntegrityRecord,
    particulars: Option<&YcsbStatistics>,
) -> OutputSection {
    let kinds = [OperationKind::Read, OperationKind::ReadModifyWrite];
    let missing =
        kinds.iter().filter_map(|kind| measured.by_operation.get(kind.name())).map(|stats| stats.missing);
    let counts = [
        ("OK", integrity.checked.saturating_sub(integrity.mismatches)),
        ("UNEXPECTED_STATE", integrity.mismatches),
        ("ERROR", missing.sum()),
    ];
    let mut section = OutputSection {
        name: VERIFY.to_owned(),
        returns: counts.into_iter().filter(|&(_, count)| count > 0).collect(),
        ..OutputSection::default()
    };
    if let Some(particulars) = particulars {
        section.latencies.service = particulars.checks.clone();
        section.latencies.intended = particulars.checks.clone();
    }
    section
}

/// The printed quantiles of the single latencies in rising order, with their shares.
const SHARES: [(&str, f64); 8] = [
    ("p1", 0.01),
    ("p5", 0.05),
    ("p50", 0.5),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
];

struct OutputSheet<'a> {
    entries: Vec<OutputEntry>,
    options: &'a OutputOptions,
    points: Option<&'a SectionLatencies>,
}

type ReturnCounts<'a> = &'a [(&'static str, u64)];

impl OutputSheet<'_> {
    fn add(&mut self, metric: &str, measurement: &str, value: OutputValue) {
        let (metric, measurement) = (metric.to_owned(), measurement.to_owned());
        self.entries.push(OutputEntry { metric, measurement, value });
    }

    fn whole(&mut self, metric: &str, measurement: &str, value: u64) {
        self.add(metric, measurement, OutputValue::Whole(value));
    }

    fn real(&mut self, metric: &str, measurement: &str, value: f64) {
        self.add(metric, measurement, OutputValue::Real(value));
    }

    /// One section, or two if two measurement types are requested.
    fn section(&mut self, name: &str, latencies: &Histogram, returns: ReturnCounts<'_>) {
        match self.options.measurement {
            MeasurementType::HdrHistogram => self.percentiles(name, latencies, returns),
            MeasurementType::Histogram => self.buckets(name, latencies, returns),
            MeasurementType::HdrHistogramAndHistogram => {
                self.percentiles(&format!("Hdr{name}"), latencies, returns);
                self.buckets(&format!("Bucket{name}"), latencies, &[]);
            }
            MeasurementType::HdrHistogramAndRaw => {
                self.percentiles(&format!("Hdr{name}"), latencies, returns);
                self.singles(name, &format!("Raw{name}"), latencies, &[]);
            }
            MeasurementType::TimeSeries => self.series(name, latencies, returns),
            MeasurementType::Raw => self.singles(name, name, latencies, returns),
        }
    }

    fn summary(&mut self, name: &str, latencies: &Histogram, variance: Option<f64>) {
        let us = latencies.summary_us();
        self.real(name, "AverageLatency(us)", us.mean);
        if let Some(variance) = variance {
            self.real(name, "LatencyVariance(us)", variance);
        }
        self.whole(name, "MinLatency(us)", us.min.round() as u64);
        self.whole(name, "MaxLatency(us)", us.max.round() as u64);
    }

    fn percentiles(&mut self, name: &str, latencies: &Histogram, returns: ReturnCounts<'_>) {
        self.whole(name, "Operations", latencies.count());
        self.summary(name, latencies, None);
        let options = self.options;
        for &percentile in &options.percentiles {
            let measurement = format!("{}PercentileLatency(us)", ordinal(percentile));
            self.whole(name, &measurement, latencies.quantile_us(percentile / 100.0).round() as u64);
        }
        self.returns(name, returns);
        if self.options.verbose {
            // Several of our buckets may lie in one microsecond.
            let mut counts: Vec<(u64, u64)> = Vec::new();
            for (ns, count) in latencies.values_ns() {
                match counts.last_mut() {
                    Some((us, sum)) if *us == ns / 1000 => *sum += count,
                    _ => counts.push((ns / 1000, count)),
                }
            }
            for (us, count) in counts {
                self.real(name, &us.to_string(), count as f64);
            }
        }
    }

    /// A histogram of one-millisecond buckets, whose lower edge is a percentile's value.
    fn buckets(&mut self, name: &str, latencies: &Histogram, returns: ReturnCounts<'_>) {
        let mut buckets = vec![0u64; self.options.buckets as usize];
        let (mut overflow, mut squares) = (0, 0.0);
        for (ns, count) in latencies.values_ns() {
            let us = ns as f64 / 1e3;
            squares += us * us * count as f64;
            match buckets.get_mut((ns / 1_000_000) as usize) {
                Some(bucket) => *bucket += count,
                None => overflow += count,
            }
        }
        let operations = latencies.count();
        self.whole(name, "Operations", operations);
        let mean = latencies.mean_us();
        self.summary(name, latencies, Some((squares / operations.max(1) as f64 - mean * mean).max(0.0)));
        for percentile in [95.0, 99.0] {
            let mut seen = 0;
            let reached = buckets.iter().position(|count| {
                seen += count;
                operations > 0 && seen as f64 / operations as f64 >= percentile / 100.0
            });
            // A value beyond the last bucket is unknown, and YCSB omits it.
            if let Some(bucket) = reached {
                let measurement = format!("{}PercentileLatency(us)", ordinal(percentile));
                self.whole(name, &measurement, bucket as u64 * 1000);
            }
        }
        self.returns(name, returns);
        if self.options.verbose {
            for (bucket, count) in buckets.iter().enumerate() {
                self.whole(name, &bucket.to_string(), *count);
            }
            self.whole(name, &format!(">{}", buckets.len()), overflow);
        }
    }

    /// Means over time. Sections without points, such as closed connections, have only their summary.
    fn series(&mut self, name: &str, latencies: &Histogram, returns: ReturnCounts<'_>) {
        let Some(trace) = self.points.and_then(|points| points.trace(name)) else {
            self.whole(name, "Operations", latencies.count());
            self.summary(name, latencies, None);
            return self.returns(name, returns);
        };
        self.whole(name, "Operations", trace.operations);
        self.real(name, "AverageLatency(us)", trace.mean_us());
        self.whole(name, "MinLatency(us)", trace.min_us);
        self.whole(name, "MaxLatency(us)", trace.max_us);
        self.returns(name, returns);
        for (begin_ms, mean_us) in trace.means_us() {
            self.real(name, &begin_ms.to_string(), mean_us);
        }
    }

    /// The summary of a list of single latencies. Sections without points, such as closed connections, are summarised
    /// by their histogram.
    fn singles(&mut self, name: &str, shown_as: &str, latencies: &Histogram, returns: ReturnCounts<'_>) {
        let sums = match self.points.and_then(|points| points.trace(name)) {
            Some(trace) => {
                let sorted = trace.sorted_us();
                // In bounds: every share is below 1, and a trace begins with its first operation.
                let quantile = |share: f64| sorted[(sorted.len() as f64 * share) as usize];
                let summary = (trace.mean_us(), trace.min_us, trace.max_us);
                (trace.operations, summary, SHARES.map(|(_, share)| quantile(share)))
            }
            None => {
                let us = latencies.summary_us();
                let count = us.count.max(1) as f64;
                let quantile = |share: f64| {
                    // The same position as in a sorted list, counted from 1.
                    latencies.quantile_us(((count * share).floor() + 1.0) / count).round() as u64
                };
                let summary = (us.mean, us.min.round() as u64, us.max.round() as u64);
                (us.count, summary, SHARES.map(|(_, share)| quantile(share)))
            }
        };
        let (operations, (mean_us, min_us, max_us), values_us) = sums;
        self.whole(shown_as, "Total Operations", operations);
        if operations > 0 && !self.options.no_raw_summary {
            // YCSB's exporter has only lines with a value, so its heading has this one.
            self.add(shown_as, "Below is a summary of latency in microseconds:", OutputValue::Signed(-1));
            self.real(shown_as, "Average", mean_us);
            self.whole(shown_as, "Min", min_us);
            self.whole(shown_as, "Max", max_us);
            for ((measurement, _), value_us) in SHARES.into_iter().zip(values_us) {
                self.whole(shown_as, measurement, value_us);
            }
        }
        self.returns(shown_as, returns);
    }

    /// The outcomes of the operations, under YCSB's names.
    fn returns(&mut self, name: &str, returns: ReturnCounts<'_>) {
        for (status, count) in returns {
            self.whole(name, &format!("Return={status}"), *count);
        }
    }
}
