//! The figures of a benchmark that is a command of the user's.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A benchmark, from the start of its command to its end, in modelled time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BenchmarkRecord {
    /// As the study names its workload.
    pub name: String,
    pub duration_s: f64,
    pub wall_s: f64,
    /// In the order of the study; the first is what storages are compared by at first sight.
    pub figures: Vec<BenchmarkFigure>,
    /// The end of what it printed.
    pub output_tail: String,
    /// Activity meanwhile, by the program's own account: checkpoints, compactions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<BenchmarkMark>,
    /// Figures that are left out, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A stretch of a benchmark's time, in modelled seconds from its beginning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BenchmarkMark {
    /// `checkpoint`, as the study names it.
    pub name: String,
    pub from_s: f64,
    /// Absent where it was not over at the end.
    pub to_s: Option<f64>,
}

/// One figure of a benchmark.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BenchmarkFigure {
    /// `throughput`, `latency p99`
    pub name: String,
    pub value: f64,
    /// `transactions/s`, `ms`
    pub unit: String,
    pub better: BetterDirection,
    pub slow_motion: MetricDilation,
    /// The figure as the benchmark printed it, before slow motion was divided out.
    pub wall_value: f64,
    /// Over time, where the benchmark prints its progress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<FigureSample>,
}

/// A figure at a moment of modelled time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FigureSample {
    pub t_s: f64,
    pub value: f64,
}

/// Which values of a figure are good ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BetterDirection {
    #[default]
    Higher,
    Lower,
}

/// The effect of slow motion on a figure, and so the way to divide it out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MetricDilation {
    /// A time, which became longer: it is divided by the factor.
    Time,
    /// A rate, which became smaller: it is multiplied by the factor.
    Rate,
    /// Neither: it is left as it is.
    #[default]
    None,
}

/// With the micro sign (U+00B5), as tables print it.
const MICROSECONDS: &str = "\u{b5}s";
/// With the Greek letter (U+03BC), which looks the same and is what many keyboards and programs write.
const MICROSECONDS_IN_GREEK: &str = "\u{3bc}s";

/// A unit in the spelling that tables print: both letters that look like a micro sign mean microseconds.
pub fn usual_unit(unit: &str) -> Cow<'_, str> {
    if unit.contains(MICROSECONDS_IN_GREEK) {
        Cow::Owned(unit.replace(MICROSECONDS_IN_GREEK, MICROSECONDS))
    } else {
        Cow::Borrowed(unit)
    }
}

/// Units that are times or rates by themselves.
const TIMES: [&str; 12] =
    ["s", "ms", "us", MICROSECONDS, "ns", "min", "h", "sec", "seconds", "msec", "usec", "nsec"];
const RATES: [&str; 6] = ["tps", "qps", "ops", "iops", "rps", "fps"];
/// Units that have nothing to do with time.
const PLAIN: [&str; 19] = [
    "%",
    "",
    "1",
    "B",
    "kB",
    "KB",
    "KiB",
    "MB",
    "MiB",
    "GB",
    "GiB",
    "TB",
    "TiB",
    "PB",
    "PiB",
    "count",
    "operations",
    "transactions",
    "x",
];

impl BetterDirection {
    /// Both, with the words that studies use.
    pub const NAMES: [(&'static str, BetterDirection); 2] =
        [("higher", BetterDirection::Higher), ("lower", BetterDirection::Lower)];

    /// `higher` or `lower`.
    pub fn name(self) -> &'static str {
        match self {
            BetterDirection::Higher => "higher",
            BetterDirection::Lower => "lower",
        }
    }
}

impl MetricDilation {
    /// All, with the words that studies use.
    pub const NAMES: [(&'static str, MetricDilation); 3] =
        [("time", MetricDilation::Time), ("rate", MetricDilation::Rate), ("none", MetricDilation::None)];

    /// The effect that a unit implies; `None` where it implies none.
    pub fn from_unit(unit: &str) -> Option<MetricDilation> {
        let unit: &str = &usual_unit(unit);
        let is_one_of = |units: &[&str]| units.contains(&unit);
        if is_one_of(&TIMES) {
            Some(MetricDilation::Time)
        } else if RATES.iter().any(|one| unit.eq_ignore_ascii_case(one)) || is_rate(unit) {
            Some(MetricDilation::Rate)
        } else if is_one_of(&PLAIN) {
            Some(MetricDilation::None)
        } else {
            None
        }
    }

    /// A value as it would have been without slow motion by this factor.
    pub fn undone(self, value: f64, factor: f64) -> f64 {
        match self {
            MetricDilation::Time => value / factor,
            MetricDilation::Rate => value * factor,
            MetricDilation::None => value,
        }
    }

    /// The conversion of a figure, in words.
    pub fn describe(self) -> &'static str {
        match self {
            MetricDilation::Time => "divided by slow motion",
            MetricDilation::Rate => "multiplied by slow motion",
            MetricDilation::None => "not affected by slow motion",
        }
    }
}

/// `MB/s`, `transactions/min`
fn is_rate(unit: &str) -> bool {
    unit.rsplit_once('/').is_some_and(|(_, per)| TIMES.contains(&per.trim()))
}

impl BenchmarkRecord {
    /// A value measured on this machine's clock, with slow motion by this factor divided out.
    #[must_use]
    pub fn without_slow_motion(mut self, factor: f64) -> BenchmarkRecord {
        self.wall_s = self.duration_s;
        self.duration_s /= factor;
        for figure in &mut self.figures {
            figure.wall_value = figure.value;
            figure.value = figure.slow_motion.undone(figure.value, factor);
            for sample in &mut figure.series {
                sample.t_s /= factor;
                sample.value = figure.slow_motion.undone(sample.value, factor);
            }
        }
        for mark in &mut self.marks {
            mark.from_s /= factor;
            mark.to_s = mark.to_s.map(|to_s| to_s / factor);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_determines_slow_motion_effect() {
        for unit in ["ms", "s", "µs", "min"] {
            assert_eq!(MetricDilation::from_unit(unit), Some(MetricDilation::Time), "{unit}");
        }
        for unit in ["tps", "IOPS", "MB/s", "transactions/min", "new orders / min"] {
            assert_eq!(MetricDilation::from_unit(unit), Some(MetricDilation::Rate), "{unit}");
        }
        for unit in ["%", "count", "MiB"] {
            assert_eq!(MetricDilation::from_unit(unit), Some(MetricDilation::None), "{unit}");
        }
        // The Greek letter and the micro sign look alike.
        for unit in ["\u{b5}s", "\u{3bc}s"] {
            assert_eq!(MetricDilation::from_unit(unit), Some(MetricDilation::Time), "{unit}");
            assert_eq!(
                MetricDilation::from_unit(&format!("pages/{unit}")),
                Some(MetricDilation::Rate),
                "{unit}"
            );
            assert_eq!(usual_unit(unit), "\u{b5}s");
        }
        // Sizes as tables print them.
        for unit in ["TB", "PiB"] {
            assert_eq!(MetricDilation::from_unit(unit), Some(MetricDilation::None), "{unit}");
        }
        for unit in ["bogo", "MB/core", "frames"] {
            assert_eq!(MetricDilation::from_unit(unit), None, "{unit}");
        }
    }

    #[test]
    fn slow_motion_is_removed_by_kind_of_figure() {
        let figure = |value, slow_motion, series: &[(f64, f64)]| BenchmarkFigure {
            value,
            slow_motion,
            series: series.iter().map(|&(t_s, value)| FigureSample { t_s, value }).collect(),
            ..BenchmarkFigure::default()
        };
        let figures = vec![
            figure(100.0, MetricDilation::Rate, &[(4.0, 50.0)]),
            figure(100.0, MetricDilation::Time, &[]),
            figure(100.0, MetricDilation::None, &[(4.0, 50.0)]),
        ];
        let benchmark = BenchmarkRecord { duration_s: 20.0, figures, ..BenchmarkRecord::default() };
        let modelled = benchmark.without_slow_motion(4.0);
        assert_eq!((modelled.duration_s, modelled.wall_s), (5.0, 20.0));
        let values: Vec<f64> = modelled.figures.iter().map(|one| one.value).collect();
        assert_eq!(values, [400.0, 25.0, 100.0]);
        assert!(modelled.figures.iter().all(|one| one.wall_value == 100.0));
        assert_eq!(modelled.figures[0].series, [FigureSample { t_s: 1.0, value: 200.0 }]);
        assert_eq!(modelled.figures[2].series, [FigureSample { t_s: 1.0, value: 50.0 }]);
    }
}
