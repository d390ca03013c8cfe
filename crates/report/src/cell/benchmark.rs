//! Benchmarks of the user's: the figures that a study names, on each storage.
//!
//! The study names their metrics, so [`BenchmarkFigures`] holds no throughput and no latency by itself.

use underlay_record::{
    BenchmarkFigure, BenchmarkRecord, BetterDirection, CertificateVerdict, MetricDilation, RunRecord,
};

use crate::cell::by_phase::PhaseComparison;
use crate::cell::completed::{benchmark_of, worst_verdict};
use crate::cell::cost::StorageCost;
use crate::quantity;
use crate::statistics::ratio::EstimateRatio;
use crate::statistics::{IntervalEstimate, StandardError};

/// The figures of a benchmark on one storage, over all completed repetitions, in modelled time.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchmarkFigures {
    /// Completed repetitions.
    pub repetitions: usize,
    /// Of the command, from its start to its end.
    pub duration_s: IntervalEstimate,
    /// In the order of the study; the first is what storages are compared by at first sight. Never empty.
    pub figures: Vec<NamedFigure>,
    /// Activity meanwhile, if the program reports it.
    pub meanwhile: Vec<PhaseComparison>,
    /// The worst of the repetitions; absent when none carries a certificate.
    pub verdict: Option<CertificateVerdict>,
    pub cost: Option<StorageCost>,
}

/// One figure over all repetitions.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedFigure {
    pub name: String,
    pub unit: String,
    pub better: BetterDirection,
    pub slow_motion: MetricDilation,
    /// The mean, with the interval from the spread of repetitions; without one where the benchmark ran once.
    pub value: IntervalEstimate,
    /// How many times as good as the baseline's: above 1 is better, whichever direction that is. Absent on the baseline
    /// itself.
    pub performance: Option<EstimateRatio>,
}

impl BenchmarkFigures {
    /// None unless a repetition completed with a figure.
    pub fn from_records(records: &[&RunRecord]) -> Option<BenchmarkFigures> {
        let completed: Vec<&RunRecord> =
            records.iter().copied().filter(|record| benchmark_of(record).is_some()).collect();
        let benchmarks: Vec<&BenchmarkRecord> =
            completed.iter().filter_map(|record| benchmark_of(record)).collect();
        let durations: Vec<f64> = benchmarks.iter().map(|one| one.duration_s).collect();
        Some(BenchmarkFigures {
            repetitions: benchmarks.len(),
            duration_s: mean_of(&durations)?,
            // All repetitions have the same ones but for percentiles that a program prints as it likes.
            figures: benchmarks
                .first()?
                .figures
                .iter()
                .filter_map(|first| over(first, &benchmarks))
                .collect(),
            meanwhile: PhaseComparison::from_records(&benchmarks),
            verdict: worst_verdict(records),
            cost: completed.first().and_then(|record| StorageCost::from_storage(&record.storage)),
        })
    }

    /// The figure that storages are compared by first.
    pub fn first(&self) -> Option<&NamedFigure> {
        self.figures.first()
    }

    pub fn named(&self, name: &str) -> Option<&NamedFigure> {
        self.figures.iter().find(|one| one.name == name)
    }

    /// Sets how each figure stands against the baseline's of the same name.
    pub(crate) fn compare_with(&mut self, baseline: &BenchmarkFigures) {
        for figure in &mut self.figures {
            figure.performance = baseline.named(&figure.name).and_then(|base| figure.against(base));
        }
    }
}

impl NamedFigure {
    /// Its name for a reader: the 100th percentile is the maximum.
    pub fn title(&self) -> String {
        match self.name.strip_suffix("p100") {
            Some(before) if before.is_empty() || before.ends_with(' ') => format!("{before}maximum"),
            _ => self.name.clone(),
        }
    }

    /// How many times as good this is as `base`.
    pub fn against(&self, base: &NamedFigure) -> Option<EstimateRatio> {
        match self.better {
            BetterDirection::Higher => EstimateRatio::new(&self.value, &base.value),
            BetterDirection::Lower => EstimateRatio::new(&base.value, &self.value),
        }
    }

    /// `2,310 tps ±3 %`
    pub fn describe(&self) -> String {
        let value = quantity::format_with_unit(self.value.value, &self.unit);
        match self.value.relative_half_width() {
            Some(share) if share > 0.0 => format!("{value} ±{}", quantity::percent(share)),
            _ => value,
        }
    }
}

fn over(first: &BenchmarkFigure, benchmarks: &[&BenchmarkRecord]) -> Option<NamedFigure> {
    let values: Vec<f64> = benchmarks
        .iter()
        .filter_map(|one| one.figures.iter().find(|figure| figure.name == first.name))
        .map(|figure| figure.value)
        .collect();
    Some(NamedFigure {
        name: first.name.clone(),
        unit: first.unit.clone(),
        better: first.better,
        slow_motion: first.slow_motion,
        value: mean_of(&values)?,
        performance: None,
    })
}

fn mean_of(values: &[f64]) -> Option<IntervalEstimate> {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    // A command prints one value: only the spread of repetitions tells how sure it is.
    (!values.is_empty()).then(|| match StandardError::between(values) {
        // Of a figure that is negative at times, zero is no bound.
        Some(error) if values.iter().any(|value| *value < 0.0) => IntervalEstimate::signed(mean, error),
        between => IntervalEstimate::combine(mean, None, between),
    })
}
