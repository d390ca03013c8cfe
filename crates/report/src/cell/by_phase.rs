//! A benchmark's figure during an activity that the program reports, such as a checkpoint, and otherwise.

use underlay_record::{BenchmarkFigure, BenchmarkMark, BenchmarkRecord};

use crate::quantity;
use crate::statistics::{IntervalEstimate, StandardError};

/// Over all repetitions, of the first figure that has a course over time.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseComparison {
    /// `checkpoint`
    pub mark: String,
    pub figure: String,
    pub unit: String,
    /// How often it went on, in all repetitions together.
    pub times: usize,
    pub repetitions: usize,
    /// Of the time that the figure's course covers.
    pub share: f64,
    /// Absent where it never went on while the figure was printed, or always did.
    pub compared: Option<PhaseRatio>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PhaseRatio {
    pub during: f64,
    pub otherwise: f64,
    /// The one over the other, with the interval from the spread of repetitions.
    pub ratio: IntervalEstimate,
}

/// A figure's course in one repetition, split by whether a mark was on.
#[derive(Clone, Copy, Debug, Default)]
struct PhaseSplit {
    during_s: f64,
    otherwise_s: f64,
    /// Values, each by how long it held.
    during_sum: f64,
    otherwise_sum: f64,
}

impl PhaseComparison {
    /// One for each kind of mark, in the order of the repetitions.
    pub fn from_records(benchmarks: &[&BenchmarkRecord]) -> Vec<PhaseComparison> {
        let mut names: Vec<&str> = Vec::new();
        for mark in benchmarks.iter().flat_map(|one| &one.marks) {
            if !names.contains(&mark.name.as_str()) {
                names.push(&mark.name);
            }
        }
        names.into_iter().filter_map(|name| PhaseComparison::from_mark(name, benchmarks)).collect()
    }

    fn from_mark(name: &str, benchmarks: &[&BenchmarkRecord]) -> Option<PhaseComparison> {
        let figure =
            benchmarks.iter().flat_map(|one| &one.figures).find(|figure| !figure.series.is_empty())?;
        let of_one = |one: &&BenchmarkRecord| {
            let own = one.figures.iter().find(|own| own.name == figure.name)?;
            (!own.series.is_empty()).then(|| PhaseSplit::new(own, &spans(one, name)))
        };
        let splits: Vec<PhaseSplit> = benchmarks.iter().filter_map(of_one).collect();
        let sum = |pick: fn(&PhaseSplit) -> f64| splits.iter().map(pick).sum::<f64>();
        let (during_s, otherwise_s) = (sum(|one| one.during_s), sum(|one| one.otherwise_s));
        let ratios: Vec<f64> = splits.iter().filter_map(PhaseSplit::ratio).collect();
        let mean = ratios.iter().sum::<f64>() / ratios.len().max(1) as f64;
        let compared = (!ratios.is_empty()).then(|| PhaseRatio {
            during: sum(|one| one.during_sum) / during_s,
            otherwise: sum(|one| one.otherwise_sum) / otherwise_s,
            ratio: IntervalEstimate::combine(mean, None, StandardError::between(&ratios)),
        });
        Some(PhaseComparison {
            mark: name.to_owned(),
            figure: figure.name.clone(),
            unit: figure.unit.clone(),
            times: benchmarks.iter().flat_map(|one| &one.marks).filter(|mark| mark.name == name).count(),
            repetitions: benchmarks.len(),
            share: during_s / (during_s + otherwise_s).max(f64::MIN_POSITIVE),
            compared,
        })
    }

    /// `checkpoint 5 times in 3 runs, 41 % of the time: throughput 35 tps meanwhile and 118 tps otherwise, 0.30x
    /// (0.25–0.36)`
    pub fn describe(&self) -> String {
        let often = match self.times {
            1 => "once".to_owned(),
            2 => "twice".to_owned(),
            times => format!("{times} times"),
        };
        let runs = quantity::plural(self.repetitions, "run");
        let summary =
            format!("{} {often} in {runs}, {} of the time", self.mark, quantity::percent(self.share));
        let Some(PhaseRatio { during, otherwise: outside, ratio }) = &self.compared else { return summary };
        let write = |value: f64| quantity::format_with_unit(value, &self.unit);
        let interval = ratio
            .interval
            .map_or_else(String::new, |interval| format!(" ({})", quantity::ratio_interval(interval)));
        format!(
            "{summary}: {} {} meanwhile and {} otherwise, {}{interval}",
            self.figure,
            write(*during),
            write(*outside),
            quantity::ratio(ratio.value),
        )
    }
}

/// The stretches of a mark in one repetition, without overlaps and in order.
pub(crate) fn spans(one: &BenchmarkRecord, name: &str) -> Vec<(f64, f64)> {
    let end = |mark: &BenchmarkMark| mark.to_s.unwrap_or(one.duration_s).max(mark.from_s);
    let mut all: Vec<(f64, f64)> =
        one.marks.iter().filter(|mark| mark.name == name).map(|mark| (mark.from_s, end(mark))).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut spans: Vec<(f64, f64)> = Vec::new();
    for (from, to) in all {
        match spans.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => spans.push((from, to)),
        }
    }
    spans
}

impl PhaseSplit {
    /// A sample tells of the time since the one before it.
    fn new(figure: &BenchmarkFigure, spans: &[(f64, f64)]) -> PhaseSplit {
        let mut split = PhaseSplit::default();
        let mut before_s = 0.0;
        for sample in &figure.series {
            let length_s = sample.t_s - before_s;
            if length_s <= 0.0 {
                continue;
            }
            let covered = |(from, to): &(f64, f64)| (to.min(sample.t_s) - from.max(before_s)).max(0.0);
            let during_s = spans.iter().map(covered).sum::<f64>().min(length_s);
            split.during_s += during_s;
            split.during_sum += sample.value * during_s;
            split.otherwise_s += length_s - during_s;
            split.otherwise_sum += sample.value * (length_s - during_s);
            before_s = sample.t_s;
        }
        split
    }

    fn ratio(&self) -> Option<f64> {
        let is_split = self.during_s > 0.0 && self.otherwise_s > 0.0 && self.otherwise_sum > 0.0;
        is_split.then(|| self.during_sum / self.during_s / (self.otherwise_sum / self.otherwise_s))
    }
}

#[cfg(test)]
mod tests {
    use underlay_record::FigureSample;

    use super::*;

    /// A second each.
    fn run(values: &[f64], marks: &[(f64, Option<f64>)]) -> BenchmarkRecord {
        let sample = |(index, &value): (usize, &f64)| FigureSample { t_s: index as f64 + 1.0, value };
        let figure = BenchmarkFigure {
            name: "throughput".into(),
            unit: "tps".into(),
            series: values.iter().enumerate().map(sample).collect(),
            ..BenchmarkFigure::default()
        };
        let mark =
            |&(from_s, to_s): &(f64, Option<f64>)| BenchmarkMark { name: "checkpoint".into(), from_s, to_s };
        BenchmarkRecord {
            duration_s: values.len() as f64,
            figures: vec![figure],
            marks: marks.iter().map(mark).collect(),
            ..BenchmarkRecord::default()
        }
    }

    #[test]
    fn figure_is_split_by_marks() {
        let one = run(&[100.0, 100.0, 20.0, 20.0, 100.0], &[(2.0, Some(4.0))]);
        let found = PhaseComparison::from_records(&[&one]);
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].describe(),
            "checkpoint once in 1 run, 40 % of the time: throughput 20.0 tps meanwhile and 100 tps otherwise, 0.200x"
        );
        let two = run(&[100.0, 100.0, 100.0, 40.0, 40.0], &[(3.0, None)]);
        let both = &PhaseComparison::from_records(&[&one, &two])[0];
        let compared = both.compared.as_ref().unwrap();
        assert_eq!((both.times, both.repetitions), (2, 2));
        assert!(
            (compared.ratio.value - 0.3).abs() < 1e-9 && compared.ratio.interval.is_some(),
            "{compared:?}"
        );
    }

    #[test]
    fn partly_marked_second_counts_for_both_phases() {
        let one = run(&[100.0, 50.0], &[(1.5, Some(2.0)), (1.25, Some(1.75))]);
        assert_eq!(spans(&one, "checkpoint"), [(1.25, 2.0)]);
        let compared = PhaseComparison::from_records(&[&one])[0].compared.clone().unwrap();
        assert_eq!((compared.during, compared.otherwise), (50.0, 90.0));
    }

    #[test]
    fn mark_without_begin_or_end_is_not_compared() {
        assert!(PhaseComparison::from_records(&[&run(&[1.0], &[])]).is_empty());
        let always = PhaseComparison::from_records(&[&run(&[5.0, 5.0], &[(0.0, None)])]);
        assert_eq!(always[0].describe(), "checkpoint once in 1 run, 100 % of the time");
        assert!(PhaseComparison::from_records(&[&run(&[], &[(0.0, None)])]).is_empty());
        // Behind the end of what was printed.
        let late = PhaseComparison::from_records(&[&run(&[5.0], &[(3.0, Some(4.0))])]);
        assert_eq!((late[0].share, late[0].compared.is_none()), (0.0, true));
    }
}
