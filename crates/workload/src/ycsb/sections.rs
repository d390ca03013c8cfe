//! Which operations YCSB combines in a section of its output, and under which name.

use std::collections::BTreeMap;

use underlay_record::{Histogram, MeasuredWindow, OperationStats};

use super::options::{FailureNames, OutputOptions};
use crate::mix::OperationKind;
use crate::run::raw::RawAnswer;
use crate::run::ycsb_stats::{BothLatencies, YcsbStatistics};

/// One section: its name, its latencies, and the outcomes of its operations.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct OutputSection {
    pub name: String,
    pub latencies: BothLatencies,
    /// YCSB's statuses.
    pub returns: Vec<(&'static str, u64)>,
}

/// YCSB's word for how an operation ended.
pub(super) fn status(answer: RawAnswer) -> &'static str {
    match answer {
        RawAnswer::Found => "OK",
        RawAnswer::Missing => "NOT_FOUND",
        RawAnswer::Throttled => "SERVICE_UNAVAILABLE",
        RawAnswer::Error | RawAnswer::Timeout | RawAnswer::Unstarted => "ERROR",
    }
}

/// The order in which they are printed.
const STATUSES: [&str; 4] = ["OK", "NOT_FOUND", "SERVICE_UNAVAILABLE", "ERROR"];

/// The section name for an operation with this outcome. YCSB times a read-modify-write whatever its outcome; its
/// failures are in the sections of its read and its update.
pub(super) fn section_name(kind: OperationKind, answer: RawAnswer, failures: &FailureNames) -> String {
    let name = kind.name().to_uppercase();
    if answer == RawAnswer::Found || kind == OperationKind::ReadModifyWrite {
        return name;
    }
    let status = status(answer);
    let is_apart = match failures {
        FailureNames::Together => false,
        FailureNames::ByStatus => true,
        FailureNames::ByStatusOf(statuses) => statuses.iter().any(|one| one == status),
    };
    if is_apart { format!("{name}-{status}") } else { format!("{name}-FAILED") }
}

/// The sections of a measurement. Without details, operations that found nothing are among the others, as in the
/// record, and the parts of read-modify-writes are unknown.
pub(super) fn sections(
    measured: &MeasuredWindow,
    particulars: Option<&YcsbStatistics>,
    options: &OutputOptions,
) -> Vec<OutputSection> {
    let mut sections = Vec::new();
    for kind in OperationKind::ALL {
        let stats = measured.by_operation.get(kind.name());
        sections.extend(kind_sections(kind, stats, particulars, &options.failures));
    }
    if let Some(particulars) = particulars {
        let new_section = |name: &str, latencies: &Histogram| {
            let latencies = BothLatencies { intended: latencies.clone(), service: latencies.clone() };
            OutputSection { name: name.to_owned(), latencies, returns: Vec::new() }
        };
        if particulars.closings.count() > 0 {
            sections.push(new_section("CLEANUP", &particulars.closings));
        }
    }
    sections
}

fn merge(target: &mut BothLatencies, other: &BothLatencies) {
    target.intended.merge(&other.intended);
    target.service.merge(&other.service);
}

fn kind_sections(
    kind: OperationKind,
    stats: Option<&OperationStats>,
    particulars: Option<&YcsbStatistics>,
    failures: &FailureNames,
) -> Vec<OutputSection> {
    let (failed, parts) = match particulars {
        None => (Vec::new(), Vec::new()),
        Some(particulars) => {
            (latencies_of_kind(&particulars.failed, kind), latencies_of_kind(&particulars.parts, kind))
        }
    };
    if stats.is_none() && parts.is_empty() {
        return Vec::new();
    }
    let mut well = stats.map_or_else(BothLatencies::default, |stats| BothLatencies {
        intended: stats.latency.histogram.clone(),
        service: stats.service.histogram.clone(),
    });
    // YCSB has no window: operations sent within it count, by either kind of start, and by outcome. The record counts
    // latencies by when they were due, and operations by when they were answered.
    if let Some(edges) = particulars.and_then(|particulars| particulars.edges.get(&kind)) {
        well.intended.subtract(&edges.unsent);
        well.intended.merge(&edges.overdue);
    }
    let mut badly: BTreeMap<String, BothLatencies> = BTreeMap::new();
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    if let Some(stats) = stats.filter(|_| particulars.is_none()) {
        counts.extend([
            ("OK", well.service.count().saturating_sub(stats.missing)),
            ("NOT_FOUND", stats.missing),
            ("SERVICE_UNAVAILABLE", stats.throttled),
            ("ERROR", stats.errors),
        ]);
    }
    for &(answer, both) in &failed {
        *counts.entry(status(answer)).or_default() += both.service.count();
        if kind == OperationKind::ReadModifyWrite {
            if !answer.is_timed() {
                merge(&mut well, both);
            }
            continue;
        }
        if answer.is_timed() {
            // In the record they are among all others.
            well.intended.subtract(&both.intended);
            well.service.subtract(&both.service);
        }
        merge(badly.entry(section_name(kind, answer, failures)).or_default(), both);
    }
    for &(answer, both) in &parts {
        if answer == RawAnswer::Found {
            merge(&mut well, both);
            continue;
        }
        *counts.entry(status(answer)).or_default() += both.service.count();
        merge(badly.entry(section_name(kind, answer, failures)).or_default(), both);
    }
    if particulars.is_some() && well.service.count() > 0 {
        counts.insert("OK", well.service.count());
    }
    let mut returns = Vec::new();
    // The statuses of a read-modify-write are those of its parts.
    if kind != OperationKind::ReadModifyWrite || particulars.is_none() {
        let counted = STATUSES.into_iter().map(|status| (status, counts.get(status).copied().unwrap_or(0)));
        returns.extend(counted.filter(|&(_, count)| count > 0));
    }
    let mut sections = vec![OutputSection { name: kind.name().to_uppercase(), latencies: well, returns }];
    for (name, latencies) in badly {
        sections.push(OutputSection { name, latencies, returns: Vec::new() });
    }
    sections
}

/// The latencies of one kind.
fn latencies_of_kind(
    latencies: &BTreeMap<(OperationKind, RawAnswer), BothLatencies>,
    kind: OperationKind,
) -> Vec<(RawAnswer, &BothLatencies)> {
    let of_kind = latencies.iter().filter(|((one, _), _)| *one == kind);
    of_kind.map(|((_, answer), both)| (*answer, both)).collect()
}

#[cfg(test)]
mod tests {
    use underlay_record::RecordedLatency;

    use super::*;

    fn histogram(values_us: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        values_us.iter().for_each(|&us| histogram.record_ns(us * 1000));
        histogram
    }

    fn both(values_us: &[u64]) -> BothLatencies {
        BothLatencies { intended: histogram(values_us), service: histogram(values_us) }
    }

    fn stats(count: u64, values_us: &[u64]) -> OperationStats {
        let latency = RecordedLatency::new(histogram(values_us));
        OperationStats { count, service: latency.clone(), latency, ..OperationStats::default() }
    }

    fn shown(sections: &[OutputSection]) -> Vec<(String, Vec<u64>, String)> {
        let one = |section: &OutputSection| {
            let values = section.latencies.service.values_ns();
            let values = values.flat_map(|(ns, count)| vec![ns / 1000; count as usize]).collect();
            let returns: Vec<String> =
                section.returns.iter().map(|(status, count)| format!("{status}={count}")).collect();
            (section.name.clone(), values, returns.join(" "))
        };
        sections.iter().map(one).collect()
    }

    /// Workload F computed by hand: two reads, one of which found nothing, and three read-modify-writes: one failed as
    /// it read, one as it wrote.
    #[test]
    fn parts_and_failures_go_where_ycsb_puts_them() {
        use OperationKind::{Read, ReadModifyWrite, Update};
        let mut measured = MeasuredWindow::default();
        measured.by_operation.insert("read".to_owned(), OperationStats { missing: 1, ..stats(2, &[10, 20]) });
        let modified = OperationStats { errors: 2, ..stats(1, &[90]) };
        measured.by_operation.insert("read-modify-write".to_owned(), modified);
        let mut particulars = YcsbStatistics { closings: histogram(&[5, 6]), ..YcsbStatistics::default() };
        particulars.failed.insert((Read, RawAnswer::Missing), both(&[20]));
        particulars.failed.insert((ReadModifyWrite, RawAnswer::Error), both(&[33, 70]));
        particulars.parts.insert((Read, RawAnswer::Found), both(&[40, 50]));
        particulars.parts.insert((Read, RawAnswer::Error), both(&[33]));
        particulars.parts.insert((Update, RawAnswer::Found), both(&[50]));
        particulars.parts.insert((Update, RawAnswer::Error), both(&[20]));
        let expected = |rows: &[(&str, &[u64], &str)]| {
            let row = |(name, values, returns): &(&str, &[u64], &str)| {
                ((*name).to_owned(), values.to_vec(), (*returns).to_owned())
            };
            rows.iter().map(row).collect::<Vec<_>>()
        };
        let options = OutputOptions::default();
        let together: [(&str, &[u64], &str); 6] = [
            ("READ", &[10, 40, 50], "OK=3 NOT_FOUND=1 ERROR=1"),
            ("READ-FAILED", &[20, 33], ""),
            ("UPDATE", &[50], "OK=1 ERROR=1"),
            ("UPDATE-FAILED", &[20], ""),
            ("READ-MODIFY-WRITE", &[33, 70, 90], ""),
            ("CLEANUP", &[5, 6], ""),
        ];
        assert_eq!(shown(&sections(&measured, Some(&particulars), &options)), expected(&together));
        let names = |failures| {
            let options = OutputOptions { failures, ..OutputOptions::default() };
            let sections = sections(&measured, Some(&particulars), &options);
            sections
                .into_iter()
                .map(|section| section.name)
                .filter(|name| name.starts_with("READ-"))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(FailureNames::ByStatus), ["READ-ERROR", "READ-NOT_FOUND", "READ-MODIFY-WRITE"]);
        let some = FailureNames::ByStatusOf(vec!["ERROR".to_owned()]);
        assert_eq!(names(some), ["READ-ERROR", "READ-FAILED", "READ-MODIFY-WRITE"]);
        // Without details, only the record's values exist.
        let alone: [(&str, &[u64], &str); 2] =
            [("READ", &[10, 20], "OK=1 NOT_FOUND=1"), ("READ-MODIFY-WRITE", &[90], "OK=1 ERROR=2")];
        assert_eq!(shown(&sections(&measured, None, &options)), expected(&alone));
    }
}
