//! Estimates with their uncertainty.
//!
//! Every interval is a 95 % confidence interval. Two things make a measured rate uncertain: the noise within a
//! repetition, whose neighbouring intervals resemble each other, and the spread between repetitions, where
//! placement, compaction and luck differ. Both are estimated, and the larger rules ([`Estimate::combine`]).

pub mod bracket;
pub mod distributions;
pub mod multiple;
pub mod operation;
pub mod quantile;
pub mod ratio;
pub mod series;
pub mod settling;
pub mod throughput;
pub mod trend;

use distributions::student_t_quantile;

/// Probability that an interval covers the true value.
pub const CONFIDENCE: f64 = 0.95;

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

/// A standard error of an estimate and how well it is itself known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StandardError {
    pub value: f64,
    pub degrees_of_freedom: f64,
}

impl StandardError {
    /// Half the width of the 95 % Student interval.
    pub fn half_width(&self) -> f64 {
        student_t_quantile(0.5 + CONFIDENCE / 2.0, self.degrees_of_freedom) * self.value
    }

    /// The larger of two standard errors of one estimate.
    ///
    /// The spread between repetitions holds the noise within them, so `between` estimates the whole variance, from
    /// few repetitions, and `within` a part of it, from many intervals. Where `between` is the larger, the surplus
    /// `between² − within²` is the part known only from repetitions; the degrees of freedom of the sum of the two
    /// parts follow Satterthwaite, "An approximate distribution of estimates of variance components",
    /// Biometrics Bulletin 2 (1946): `(Σ vᵢ)² / Σ (vᵢ² / dᵢ)`.
    pub fn larger(within: Option<StandardError>, between: Option<StandardError>) -> Option<StandardError> {
        let (within, between) = match (within, between) {
            (Some(within), Some(between)) => (within, between),
            (one, other) => return one.or(other),
        };
        if between.value <= within.value {
            return Some(within);
        }
        let within_variance = within.value.powi(2);
        let surplus = between.value.powi(2) - within_variance;
        let total = within_variance + surplus;
        let degrees_of_freedom = total.powi(2)
            / (within_variance.powi(2) / within.degrees_of_freedom
                + surplus.powi(2) / between.degrees_of_freedom);
        Some(StandardError { value: between.value, degrees_of_freedom })
    }

    /// The standard error of the mean of independent values, one a repetition; none for fewer than two.
    pub fn between(values: &[f64]) -> Option<StandardError> {
        if values.len() < 2 {
            return None;
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        Some(StandardError { value: (variance / count).sqrt(), degrees_of_freedom: count - 1.0 })
    }
}
