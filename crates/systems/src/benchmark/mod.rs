//! Benchmarks that are commands of the user's: what a study says of one, and how its figures are taken from what it
//! prints.

pub mod fio;
mod number;
mod path;
mod reading;
pub mod shell_text;

use std::time::Duration;

use underlay_record::{BetterDirection, MetricDilation};

pub use reading::{BenchmarkTexts, LatestValue, check, check_mark, figures_of, marks_of};

/// A study's plan of a benchmark.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchmarkPlan {
    /// For the shell, with placeholders.
    pub run: String,
    /// The text of the file that `{job}` stands for.
    pub job: Option<String>,
    /// It belongs to the system's budget, as a program that opens the data itself, or is a client beside it. If the
    /// study does not say, it is a client where a program runs that it could be one of.
    pub in_budget: Option<bool>,
    /// One that takes longer has failed. By this machine's clock.
    pub limit: Duration,
    pub figures: MetricSource,
    pub marks: Vec<MarkPlan>,
}

/// Where the figures of a benchmark come from.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricSource {
    /// As the study says. Never empty.
    Planned(Vec<FigurePlan>),
    /// `job` is one of fio's, and its figures are what fio printed.
    OfFio,
}

impl MetricSource {
    /// Those that the study says; none of a job of fio's.
    pub(crate) fn planned(&self) -> &[FigurePlan] {
        match self {
            MetricSource::Planned(plans) => plans,
            MetricSource::OfFio => &[],
        }
    }
}

/// An activity while a benchmark runs, and the program's report of it.
#[derive(Clone, Debug, PartialEq)]
pub struct MarkPlan {
    /// `checkpoint`
    pub name: String,
    /// A file with placeholders; what the command prints when absent.
    pub file: Option<String>,
    /// A regular expression: a group `from`, and `to` unless it was still going on, in seconds since the benchmark
    /// began.
    pub pattern: String,
}

/// Where a figure is found, and what it means.
#[derive(Clone, Debug, PartialEq)]
pub struct FigurePlan {
    pub name: String,
    pub unit: String,
    pub better: BetterDirection,
    pub slow_motion: MetricDilation,
    /// A file with placeholders; what the command prints when absent.
    pub file: Option<String>,
    pub reading: MetricReading,
    /// A regular expression for its progress: groups `value`, and `t` in seconds if the command tells them.
    pub progress: Option<String>,
    pub take: ValueChoice,
}

impl FigurePlan {
    /// Whether each percentile is a figure, with a name of its own.
    pub fn has_several(&self) -> bool {
        matches!(self.reading, MetricReading::Percentiles(_) | MetricReading::Hdr)
    }
}

/// How a figure is taken from a text.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricReading {
    /// A regular expression: its group `value`, or its first one.
    Pattern(String),
    /// `jobs[0].read.iops`, of the JSON in the text.
    Json(String),
    /// A column of CSV, by the name in its first line.
    Csv(String),
    /// A regular expression that matches a line for each percentile: groups `percentile` and `value`. Each is a figure.
    Percentiles(String),
    /// An HdrHistogram log, all of its intervals together; its values are in the figure's unit.
    Hdr,
    /// The mean of what `progress` gives.
    Progress,
}

/// Which of several values counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueChoice {
    #[default]
    Last,
    First,
    Mean,
    Sum,
    Min,
    Max,
}

impl ValueChoice {
    /// All, with the words that studies use.
    pub const NAMES: [(&'static str, ValueChoice); 6] = [
        ("last", ValueChoice::Last),
        ("first", ValueChoice::First),
        ("mean", ValueChoice::Mean),
        ("sum", ValueChoice::Sum),
        ("min", ValueChoice::Min),
        ("max", ValueChoice::Max),
    ];

    /// None of no values.
    fn choose(self, values: &[f64]) -> Option<f64> {
        let (first, last) = (values.first()?, values.last()?);
        let sum = || values.iter().sum::<f64>();
        Some(match self {
            ValueChoice::Last => *last,
            ValueChoice::First => *first,
            ValueChoice::Mean => sum() / values.len() as f64,
            ValueChoice::Sum => sum(),
            ValueChoice::Min => values.iter().copied().fold(f64::INFINITY, f64::min),
            ValueChoice::Max => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }
}
