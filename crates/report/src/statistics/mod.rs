//! Estimates with their uncertainty.
//!
//! Every interval is a 95 % confidence interval. Two things make a measured rate uncertain: the noise within a
//! repetition, whose neighbouring intervals resemble each other, and the spread between repetitions, where
//! placement, compaction and luck differ. Both are estimated, and the larger rules ([`Estimate::combine`]).

pub mod bracket;
pub mod multiple;
pub mod operation;
pub mod quantile;
pub mod ratio;
pub mod throughput;

pub use underlay_record::statistics::{CONFIDENCE, StandardError, distributions, series, settling, trend};

/// A range of values, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, schemars::JsonSchema)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

impl Interval {
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// A value with its uncertainty, in the value's own unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub value: f64,
    /// Absent when the data can't tell: one repetition without a usable time series.
    pub standard_error: Option<f64>,
    /// Degrees of freedom of the standard error; infinite when it is known and not estimated.
    pub degrees_of_freedom: f64,
    pub interval: Option<Interval>,
}

impl Estimate {
    /// A value of which nothing tells how sure it is.
    pub fn bare(value: f64) -> Self {
        Estimate { value, standard_error: None, degrees_of_freedom: 0.0, interval: None }
    }

    /// A value of known standard error, with the symmetric Student interval.
    pub fn with_error(value: f64, error: StandardError) -> Self {
        let half = error.half_width();
        Estimate {
            value,
            standard_error: Some(error.value),
            degrees_of_freedom: error.degrees_of_freedom,
            interval: Some(Interval { low: value - half, high: value + half }),
        }
    }

    /// A value whose error was estimated within repetitions, between them, or both: see [`StandardError::larger`].
    pub fn combine(value: f64, within: Option<StandardError>, between: Option<StandardError>) -> Self {
        match StandardError::larger(within, between) {
            Some(error) => Estimate::with_error(value, error),
            None => Estimate::bare(value),
        }
    }

    /// The same for a comparison of runs, whose unit is the repetition: with as many degrees of freedom as repetitions leave. The
    /// error is the larger of two, and by chance the smaller one can be the truth; few degrees of freedom make up for it.
    pub fn by_repetitions(&self, repetitions: usize) -> Estimate {
        match self.standard_error {
            Some(value) if repetitions > 1 => {
                let degrees_of_freedom = (repetitions - 1) as f64;
                Estimate::with_error(self.value, StandardError { value, degrees_of_freedom })
            }
            _ => *self,
        }
    }

    /// Half the interval's width over the value: `0.03` is shown as ±3 %.
    pub fn relative_half_width(&self) -> Option<f64> {
        let interval = self.interval?;
        (self.value != 0.0).then(|| (interval.high - interval.low) / 2.0 / self.value.abs())
    }
}
