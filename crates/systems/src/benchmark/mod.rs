//! Benchmarks that are commands of the user's: what a study says of one, and how its figures are taken from what it prints.

pub mod fio;
mod number;
mod path;
mod reading;
pub mod shell_text;

use std::time::Duration;

use underlay_record::{Better, Dilation};

pub use reading::{LatestValue, Texts, check, check_mark, figures_of, marks_of};

/// What a study says of a benchmark.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchmarkPlan {
    /// For the shell, with placeholders.
    pub run: String,
    /// The text of the file that `{job}` stands for.
    pub job: Option<String>,
    /// It belongs to the system's budget, as a program that opens the data itself, or is a client beside it. If the study does not say, it is a
    /// client where a program runs that it could be one of.
    pub in_budget: Option<bool>,
    /// One that takes longer has failed. By this machine's clock.
    pub limit: Duration,
    pub figures: Figures,
    pub marks: Vec<MarkPlan>,
}

/// Where the figures of a benchmark come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Figures {
    /// As the study says. Never empty.
    Planned(Vec<FigurePlan>),
    /// `job` is one of fio's, and its figures are what fio printed.
    OfFio,
}

impl Figures {
    /// Those that the study says; none of a job of fio's.
    pub(crate) fn planned(&self) -> &[FigurePlan] {
        match self {
            Figures::Planned(plans) => plans,
            Figures::OfFio => &[],
        }
    }
}

/// What goes on while a benchmark runs, and where the program tells of it.
#[derive(Clone, Debug, PartialEq)]
pub struct MarkPlan {
    /// `checkpoint`
    pub name: String,
    /// A file with placeholders; what the command prints when absent.
    pub file: Option<String>,
    /// A regular expression: a group `from`, and `to` unless it was still going on, in seconds since the benchmark began.
    pub pattern: String,
}

/// Where a figure is found, and what it means.
#[derive(Clone, Debug, PartialEq)]
pub struct FigurePlan {
    pub name: String,
    pub unit: String,
    pub better: Better,
    pub slow_motion: Dilation,
    /// A file with placeholders; what the command prints when absent.
    pub file: Option<String>,
    pub reading: Reading,
    /// A regular expression for its progress: groups `value`, and `t` in seconds if the command tells them.
    pub progress: Option<String>,
    pub take: Take,
}

impl FigurePlan {
    /// Whether each percentile is a figure, with a name of its own.
    pub fn has_several(&self) -> bool {
        matches!(self.reading, Reading::Percentiles(_) | Reading::Hdr)
    }
}

/// How a figure is taken from a text.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
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
pub enum Take {
    #[default]
    Last,
    First,
    Mean,
    Sum,
    Min,
    Max,
}

impl Take {
    /// All, with the words that studies use.
    pub const NAMES: [(&'static str, Take); 6] = [
        ("last", Take::Last),
        ("first", Take::First),
        ("mean", Take::Mean),
        ("sum", Take::Sum),
        ("min", Take::Min),
        ("max", Take::Max),
    ];

    /// None of no values.
    fn of(self, values: &[f64]) -> Option<f64> {
        let (first, last) = (values.first()?, values.last()?);
        let sum = || values.iter().sum::<f64>();
        Some(match self {
            Take::Last => *last,
            Take::First => *first,
            Take::Mean => sum() / values.len() as f64,
            Take::Sum => sum(),
            Take::Min => values.iter().copied().fold(f64::INFINITY, f64::min),
            Take::Max => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }
}
