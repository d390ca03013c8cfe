//! Benchmarks of the user's in the export.

use schemars::JsonSchema;
use serde::Serialize;
use underlay_record::{BetterDirection, MetricDilation};

use crate::cell::benchmark::BenchmarkFigures;
use crate::statistics::ConfidenceInterval;

/// A benchmark of the user's over its repetitions, in modelled time.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BenchmarkExport {
    pub duration_s: f64,
    /// In the order of the study.
    pub figures: Vec<BenchmarkFigureExport>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct BenchmarkFigureExport {
    pub name: String,
    pub unit: String,
    pub better: BetterDirection,
    /// The effect of slow motion on it, which is divided out of the value.
    pub slow_motion: MetricDilation,
    pub value: f64,
    /// Null where it ran once.
    pub interval: Option<ConfidenceInterval>,
    /// How many times as good as the baseline's: above 1 is better, whichever direction that is.
    pub performance: Option<f64>,
    pub performance_interval: Option<ConfidenceInterval>,
}

pub(super) fn benchmark(figures: &BenchmarkFigures) -> BenchmarkExport {
    let each = figures.figures.iter().map(|figure| BenchmarkFigureExport {
        name: figure.name.clone(),
        unit: figure.unit.clone(),
        better: figure.better,
        slow_motion: figure.slow_motion,
        value: figure.value.value,
        interval: figure.value.interval,
        performance: figure.performance.map(|ratio| ratio.value),
        performance_interval: figure.performance.and_then(|ratio| ratio.interval),
    });
    BenchmarkExport { duration_s: figures.duration_s.value, figures: each.collect() }
}
