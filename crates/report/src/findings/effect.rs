//! How one storage stands against the baseline over several workloads, jobs or benchmarks.
//!
//! The report gives the envelope of its 95 % intervals. A range of point estimates looks like an interval and is none:
//! two that happen to be close look certain.

use crate::comparison::{ComparisonRow, RunComparison};
use crate::quantity;
use crate::statistics::ConfidenceInterval;
use crate::statistics::ratio::{EstimateRatio, RatioDifference};

/// The kind of things that ratios are about, where each of several has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RatioSubject {
    Workload,
    Job,
    Benchmark,
}

impl RatioSubject {
    fn noun(self) -> &'static str {
        match self {
            RatioSubject::Workload => "workload",
            RatioSubject::Job => "job",
            RatioSubject::Benchmark => "benchmark",
        }
    }

    fn preposition(self) -> &'static str {
        match self {
            RatioSubject::Workload => "under",
            RatioSubject::Job | RatioSubject::Benchmark => "in",
        }
    }
}

/// One storage against the baseline, over what was measured on both.
#[derive(Debug)]
pub(crate) struct StorageEffect<'a> {
    pub storage: &'a str,
    /// In [`RunComparison::storages`].
    pub index: usize,
    more: Vec<ConfidenceInterval>,
    less: Vec<ConfidenceInterval>,
    /// Ratios of unknown certainty.
    bare: Vec<f64>,
    no_difference: usize,
    highest: f64,
}

/// Ratios that say the same: that it is more, or less, or that nobody knows how certain it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EqualRatios {
    /// `5.25 to 5.53`, an interval; of ratios without one the values, `18 and 19`.
    pub times: [String; 2],
    pub has_interval: bool,
    pub count: usize,
}

impl EqualRatios {
    /// `5.25 to 5.53`
    pub(crate) fn describe(&self) -> String {
        self.joined(if self.has_interval || self.count > 2 { " to " } else { " and " })
    }

    /// `5.25–5.53x`, where there is little room.
    pub(crate) fn abbreviate(&self) -> String {
        format!("{}x", self.joined(if self.has_interval || self.count > 2 { "–" } else { ", " }))
    }

    fn joined(&self, between: &str) -> String {
        let [low, high] = &self.times;
        if low == high { low.clone() } else { format!("{low}{between}{high}") }
    }
}

impl<'a> StorageEffect<'a> {
    pub(crate) fn new(
        ratios: impl Iterator<Item = EstimateRatio>,
        storage: &'a str,
        index: usize,
    ) -> StorageEffect<'a> {
        let (more, less, bare) = (Vec::new(), Vec::new(), Vec::new());
        let mut effect = StorageEffect { storage, index, more, less, bare, no_difference: 0, highest: 1.0 };
        for ratio in ratios {
            match (ratio.difference(), ratio.interval) {
                (RatioDifference::NoneSeen, _) => {
                    effect.no_difference += 1;
                    continue;
                }
                (RatioDifference::More, Some(interval)) => effect.more.push(interval),
                (RatioDifference::Less, Some(interval)) => effect.less.push(interval),
                (_, _) => effect.bare.push(ratio.value),
            }
            effect.highest = effect.highest.max(ratio.value);
        }
        effect
    }

    /// Over everything that tells what a storage can give: unthrottled workloads, jobs, first figures of benchmarks.
    /// Work beside the storage tells nothing of it.
    pub(crate) fn from_comparison(comparison: &RunComparison<'a>, index: usize) -> StorageEffect<'a> {
        let is_used = |row: &&ComparisonRow| !row.is_beside_storage();
        let workloads = comparison.unthrottled().filter(is_used).filter_map(|row| row.figures(index)?.ratio);
        let jobs = comparison.jobs().filter(is_used).filter_map(|row| row.job(index)?.performance);
        let benchmarks = comparison
            .benchmarks()
            .filter(is_used)
            .filter_map(|row| row.benchmark(index)?.first()?.performance);
        StorageEffect::new(workloads.chain(jobs).chain(benchmarks), comparison.storages[index], index)
    }

    /// How many ratios there are.
    pub(crate) fn count(&self) -> usize {
        self.more.len() + self.less.len() + self.bare.len() + self.no_difference
    }

    /// Those whose interval holds 1.
    pub(crate) fn count_equal(&self) -> usize {
        self.no_difference
    }

    pub(crate) fn differs(&self) -> bool {
        self.count() > self.no_difference
    }

    pub(crate) fn has_intervals(&self) -> bool {
        !self.more.is_empty() || !self.less.is_empty()
    }

    /// The furthest above 1, or 1.
    pub(crate) fn highest(&self) -> f64 {
        self.highest
    }

    /// The differences, in at most three parts. More and less are never one range: it would hold 1, and read as no
    /// difference.
    pub(crate) fn parts(&self) -> Vec<EqualRatios> {
        let intervals = |all: &[ConfidenceInterval]| {
            Some(EqualRatios { times: quantity::times(envelope(all)?), has_interval: true, count: all.len() })
        };
        let bare = || {
            let low = self.bare.iter().copied().reduce(f64::min)?;
            let high = self.bare.iter().copied().reduce(f64::max)?;
            let times = [low, high].map(|value| quantity::number(value, 2));
            Some(EqualRatios { times, has_interval: false, count: self.bare.len() })
        };
        [intervals(&self.more), intervals(&self.less), bare()].into_iter().flatten().collect()
    }

    /// `nvme gives 11 to 24 times the throughput of hdd under 2 of 3 workloads and 0.91 to 0.95 times under 1`. Behind
    /// a first clause it is shorter: `first` has the verb and the figure, which need no repeating.
    pub(crate) fn clause(&self, subject: RatioSubject, first: Option<[&str; 2]>) -> String {
        let all = self.count();
        let parts: Vec<String> = self
            .parts()
            .into_iter()
            .enumerate()
            .map(|(position, part)| {
                let object = match (first, position) {
                    (Some([_, object]), 0) => format!(" {object}"),
                    _ => String::new(),
                };
                let scope = match (part.count == all, position) {
                    (true, _) => String::new(),
                    (false, 0) => {
                        let all = quantity::plural(all, subject.noun());
                        format!(" {} {} of {all}", subject.preposition(), part.count)
                    }
                    (false, _) => format!(" {} {}", subject.preposition(), part.count),
                };
                // Where no storage has an interval the sentence says so once.
                let bare =
                    if part.has_interval || !self.has_intervals() { "" } else { ", without an interval" };
                format!("{} times{object}{scope}{bare}", part.describe())
            })
            .collect();
        let verb = first.map_or(String::new(), |[verb, _]| format!("{verb} "));
        let mut text = format!("{} {verb}{}", self.storage, quantity::list(&parts, usize::MAX));
        if self.no_difference > 0 && self.differs() {
            text += &format!(" (no difference seen in {})", self.no_difference);
        }
        text
    }
}

/// Clauses with what their ranges are: `nvme gives 17 to 19 times ... (95 % intervals, by workload)`; nothing is added
/// where there is no interval.
pub(crate) fn with_what_ranges_are(
    clauses: String,
    effects: &[&StorageEffect],
    subject: RatioSubject,
) -> String {
    let ranges = explain_ranges(effects, subject);
    match clauses.strip_suffix(')') {
        _ if ranges.is_empty() => clauses,
        Some(before) => format!("{before}; {ranges})"),
        None => format!("{clauses} ({ranges})"),
    }
}

fn explain_ranges(effects: &[&StorageEffect], subject: RatioSubject) -> String {
    let has_intervals = effects.iter().any(|effect| effect.has_intervals());
    let is_several = effects.iter().any(|effect| effect.count() > 1);
    match (has_intervals, is_several, effects.len()) {
        (false, ..) => String::new(),
        (true, true, _) => format!("95 % intervals, by {}", subject.noun()),
        (true, false, 1) => "95 % interval".to_owned(),
        (true, false, _) => "95 % intervals".to_owned(),
    }
}

/// From the lowest end of all intervals to the highest.
pub(crate) fn envelope(intervals: &[ConfidenceInterval]) -> Option<ConfidenceInterval> {
    let low = intervals.iter().map(|one| one.low).reduce(f64::min)?;
    let high = intervals.iter().map(|one| one.high).reduce(f64::max)?;
    Some(ConfidenceInterval { low, high })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(value: f64, low: f64, high: f64) -> EstimateRatio {
        EstimateRatio { value, interval: Some(ConfidenceInterval { low, high }) }
    }

    fn bare(value: f64) -> EstimateRatio {
        EstimateRatio { value, interval: None }
    }

    fn clause(ratios: &[EstimateRatio]) -> String {
        let effect = StorageEffect::new(ratios.iter().copied(), "nvme", 1);
        effect.clause(RatioSubject::Workload, Some(["gives", "the throughput of hdd"]))
    }

    #[test]
    fn two_close_ratios_keep_their_intervals() {
        let ratios = [ratio(168.0, 123.0, 230.0), ratio(169.0, 114.0, 252.0)];
        assert_eq!(clause(&ratios), "nvme gives 110 to 250 times the throughput of hdd");
        let effect = StorageEffect::new(ratios.into_iter(), "nvme", 1);
        assert_eq!(effect.parts()[0].abbreviate(), "110–250x");
        let words =
            with_what_ranges_are("nvme 110 to 250 times".to_owned(), &[&effect], RatioSubject::Workload);
        assert_eq!(words, "nvme 110 to 250 times (95 % intervals, by workload)");
    }

    #[test]
    fn more_and_less_are_never_one_range() {
        let ratios = [ratio(1.2, 1.1, 1.3), ratio(1.21, 1.15, 1.28), ratio(0.93, 0.91, 0.95)];
        let words = "nvme gives 1.10 to 1.30 times the throughput of hdd under 2 of 3 workloads and 0.91 to 0.95 times under 1";
        assert_eq!(clause(&ratios), words);
    }

    #[test]
    fn workload_without_difference_is_counted_outside_range() {
        let ratios = [ratio(8.8, 8.0, 9.6), ratio(0.8, 0.5, 1.2)];
        let words = "nvme gives 8.0 to 9.6 times the throughput of hdd under 1 of 2 workloads (no difference seen in 1)";
        assert_eq!(clause(&ratios), words);
        let effect = StorageEffect::new(ratios.into_iter(), "nvme", 1);
        let whole = with_what_ranges_are(words.to_owned(), &[&effect], RatioSubject::Workload);
        assert!(whole.ends_with(" (no difference seen in 1; 95 % intervals, by workload)"), "{whole}");
    }

    #[test]
    fn ratio_without_interval_gets_none() {
        let words = "nvme gives 5.25 to 5.53 times the throughput of hdd under 1 of 2 workloads and 18 times under 1, without an interval";
        assert_eq!(clause(&[ratio(5.4, 5.25, 5.53), bare(18.0)]), words);
        assert_eq!(clause(&[bare(18.0), bare(19.0)]), "nvme gives 18 and 19 times the throughput of hdd");
        let single = StorageEffect::new([bare(18.0)].into_iter(), "nvme", 1);
        assert_eq!(with_what_ranges_are("nvme".to_owned(), &[&single], RatioSubject::Workload), "nvme");
    }
}
