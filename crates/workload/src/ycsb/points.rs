//! Every single latency, for two of YCSB's outputs: lists of single latencies, and means over time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::options::{LatencyIntervals, MeasurementType, OutputOptions};
use super::sections::section_name;
use crate::mix::OperationKind;
use crate::run::raw::{RawAnswer, RawOperation};

/// The name prefix of latencies from the intended start.
pub(super) const INTENDED: &str = "Intended-";

/// The latencies of a run under the names of YCSB's sections.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SectionLatencies {
    traces: BTreeMap<String, LatencyTrace>,
}

/// The latencies of one section, in whole microseconds as in YCSB.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LatencyTrace {
    pub operations: u64,
    pub sum_us: u64,
    pub min_us: u64,
    pub max_us: u64,
    /// By the start of each unit of time in milliseconds: sum and count.
    units: BTreeMap<u64, (u64, u64)>,
    /// When each operation ended, in nanoseconds from the start of the measured time, and its latency.
    singles: Vec<(i64, u64)>,
}

impl SectionLatencies {
    /// Takes the operations of a run in order, up to its end: those that were sent within the `measured` time.
    pub fn from_operations(
        operations: impl Iterator<Item = Vec<RawOperation>>,
        options: &OutputOptions,
        measured: Duration,
    ) -> SectionLatencies {
        let mut points = SectionLatencies::default();
        let mut is_open_loop = false;
        let end_ns = i64::try_from(measured.as_nanos()).unwrap_or(i64::MAX);
        for operation in operations.flatten().filter(|one| (0..end_ns).contains(&one.start_ns)) {
            is_open_loop |= operation.intended_ns != operation.start_ns;
            points.add(&operation, options);
        }
        if options.intervals == LatencyIntervals::BothWhereTheyDiffer && !is_open_loop {
            points.traces.retain(|name, _| !name.starts_with(INTENDED));
        }
        for trace in points.traces.values_mut() {
            trace.singles.sort_by_key(|&(end_ns, _)| end_ns);
        }
        points
    }

    fn add(&mut self, operation: &RawOperation, options: &OutputOptions) {
        let RawOperation { kind, intended_ns, start_ns, end_ns, read_end_ns, answer, .. } = *operation;
        if answer == RawAnswer::Unstarted {
            // YCSB does not know operations that were never sent.
            return;
        }
        self.add_one(kind, answer, [intended_ns, start_ns, end_ns], options);
        if kind == OperationKind::ReadModifyWrite {
            let (read_answer, read_end_ns) = match read_end_ns {
                Some(sent_ns) => {
                    // In a closed loop the update is due when it is sent.
                    let due_ns = if intended_ns == start_ns { sent_ns } else { intended_ns };
                    self.add_one(OperationKind::Update, answer, [due_ns, sent_ns, end_ns], options);
                    (RawAnswer::Found, sent_ns)
                }
                None => (answer, end_ns),
            };
            self.add_one(OperationKind::Read, read_answer, [intended_ns, start_ns, read_end_ns], options);
        }
    }

    fn add_one(
        &mut self,
        kind: OperationKind,
        answer: RawAnswer,
        [intended_ns, start_ns, end_ns]: [i64; 3],
        options: &OutputOptions,
    ) {
        let name = section_name(kind, answer, &options.failures);
        let us = |from_ns: i64| u64::try_from(end_ns - from_ns).unwrap_or(0) / 1000;
        match options.intervals {
            LatencyIntervals::Service => self.add_point(name, end_ns, us(start_ns), options),
            LatencyIntervals::Intended => self.add_point(name, end_ns, us(intended_ns), options),
            LatencyIntervals::Both | LatencyIntervals::BothWhereTheyDiffer => {
                self.add_point(format!("{INTENDED}{name}"), end_ns, us(intended_ns), options);
                self.add_point(name, end_ns, us(start_ns), options);
            }
        }
    }

    fn add_point(&mut self, name: String, end_ns: i64, us: u64, options: &OutputOptions) {
        let trace = self.traces.entry(name).or_default();
        trace.min_us = if trace.operations == 0 { us } else { trace.min_us.min(us) };
        trace.max_us = trace.max_us.max(us);
        trace.operations += 1;
        trace.sum_us += us;
        if options.measurement.is_raw() {
            trace.singles.push((end_ns, us));
        } else {
            let width_ms = u64::try_from(options.granularity.as_millis()).unwrap_or(u64::MAX).max(1);
            // Operations that ended before the measured time began belong to its first unit.
            let end_ms = u64::try_from(end_ns).unwrap_or(0) / 1_000_000;
            let (sum, count) = trace.units.entry(end_ms / width_ms * width_ms).or_default();
            *sum += us;
            *count += 1;
        }
    }

    /// The latencies of a section; none if it has no name here.
    pub(super) fn trace(&self, name: &str) -> Option<&LatencyTrace> {
        self.traces.get(name)
    }

    /// All single latencies as YCSB lists them, section by section, with the time of day of each. The measured time
    /// began `began_ms` after 1970.
    pub fn list(&self, options: &OutputOptions, began_ms: i64) -> String {
        let prefix = if options.measurement == MeasurementType::HdrHistogramAndRaw { "Raw" } else { "" };
        let mut text = String::new();
        for (name, trace) in &self.traces {
            let head = "latency raw data: op, timestamp(ms), latency(us)";
            writeln!(text, "{prefix}{name} {head}").expect("memory can be written to");
            for (end_ns, us) in &trace.singles {
                let time_ms = began_ms + end_ns.div_euclid(1_000_000);
                writeln!(text, "{prefix}{name},{time_ms},{us}").expect("memory can be written to");
            }
        }
        text
    }
}

impl LatencyTrace {
    pub(super) fn mean_us(&self) -> f64 {
        self.sum_us as f64 / self.operations.max(1) as f64
    }

    /// The start of each unit of time in milliseconds, and its mean.
    pub(super) fn means_us(&self) -> impl Iterator<Item = (u64, f64)> {
        self.units.iter().map(|(&begin_ms, &(sum, count))| (begin_ms, sum as f64 / count as f64))
    }

    /// The single latencies in rising order.
    pub(super) fn sorted_us(&self) -> Vec<u64> {
        let mut sorted: Vec<u64> = self.singles.iter().map(|&(_, us)| us).collect();
        sorted.sort_unstable();
        sorted
    }
}
