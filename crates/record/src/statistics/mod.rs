//! The mean of a series of samples, with its error and steadiness, for reports and predictions.

pub mod distributions;
pub mod series;
pub mod settling;
pub mod trend;

use distributions::student_t_quantile;

/// Probability that an interval covers the true value.
pub const CONFIDENCE: f64 = 0.95;

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
    /// The spread between repetitions holds the noise within them, so `between` estimates the whole variance, from few
    /// repetitions, and `within_error` a part of it, from many intervals. Where `between` is the larger, the surplus
    /// `between² − within²` is the part known only from repetitions. The degrees of freedom of the two parts' sum are
    /// `(Σ vᵢ)² / Σ (vᵢ² / dᵢ)`: see Satterthwaite, "An approximate distribution of estimates of variance components",
    /// Biometrics Bulletin 2 (1946).
    pub fn larger(
        within_error: Option<StandardError>,
        between: Option<StandardError>,
    ) -> Option<StandardError> {
        let (within_error, between) = match (within_error, between) {
            (Some(within_error), Some(between)) => (within_error, between),
            (one, other) => return one.or(other),
        };
        if between.value <= within_error.value {
            return Some(within_error);
        }
        let within_variance = within_error.value.powi(2);
        let surplus = between.value.powi(2) - within_variance;
        let total = within_variance + surplus;
        let degrees_of_freedom = total.powi(2)
            / (within_variance.powi(2) / within_error.degrees_of_freedom
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
