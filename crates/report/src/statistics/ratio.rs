//! How many times one figure is another, and whether that is more than noise.

use super::distributions::student_t_both_tails;
use super::{ConfidenceInterval, IntervalEstimate, StandardError};
use crate::quantity;

/// The standard error of the logarithm of a ratio of positive values, by the delta method.
fn log_error(value: &IntervalEstimate, baseline: &IntervalEstimate) -> Option<StandardError> {
    let relative = |estimate: &IntervalEstimate| estimate.standard_error.map(|error| error / estimate.value);
    let (a2, b2) = (relative(value)?.powi(2), relative(baseline)?.powi(2));
    let spread = a2.powi(2) / value.degrees_of_freedom + b2.powi(2) / baseline.degrees_of_freedom;
    let degrees_of_freedom = if spread > 0.0 { (a2 + b2).powi(2) / spread } else { f64::INFINITY };
    Some(StandardError { value: (a2 + b2).sqrt(), degrees_of_freedom })
}

/// A ratio of two independent estimates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EstimateRatio {
    pub value: f64,
    /// Absent when one of the two has no known error.
    pub interval: Option<ConfidenceInterval>,
}

/// The verdict on a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RatioDifference {
    More,
    Less,
    /// The interval holds 1.
    NoneSeen,
    /// There is no interval to tell by.
    Unknown,
}

impl EstimateRatio {
    /// `value : baseline`, with an interval on the logarithm's scale.
    ///
    /// By the delta method the logarithm's variance is the sum of the squared relative standard errors; the degrees
    /// of freedom are those of B. L. Welch, "The generalization of 'Student's' problem when several different
    /// population variances are involved", Biometrika 34 (1947). None unless both values are positive.
    pub fn new(value: &IntervalEstimate, baseline: &IntervalEstimate) -> Option<EstimateRatio> {
        if !(value.value > 0.0 && baseline.value > 0.0) {
            return None;
        }
        let ratio = value.value / baseline.value;
        if !ratio.is_finite() {
            return None;
        }
        let interval = log_error(value, baseline).map(|error| {
            // Symmetric on the logarithm's scale, so the interval of `baseline : value` is this one inverted.
            let half = error.half_width();
            ConfidenceInterval { low: ratio * (-half).exp(), high: ratio * half.exp() }
        });
        Some(EstimateRatio { value: ratio, interval })
    }

    /// How likely a ratio as far from 1 as that of the two would be if they did not differ: Welch's test, two-sided, on
    /// the logarithm's scale. None unless both values are positive and have a known error.
    pub fn p_value(value: &IntervalEstimate, baseline: &IntervalEstimate) -> Option<f64> {
        let distance = (EstimateRatio::new(value, baseline)?.value).ln().abs();
        let error = log_error(value, baseline)?;
        // With an error of 0 the division below would be 0 / 0.
        if distance == 0.0 {
            return Some(1.0);
        }
        Some(student_t_both_tails(distance / error.value, error.degrees_of_freedom))
    }

    pub fn difference(&self) -> RatioDifference {
        match self.interval {
            None => RatioDifference::Unknown,
            Some(interval) if interval.low > 1.0 => RatioDifference::More,
            Some(interval) if interval.high < 1.0 => RatioDifference::Less,
            // An end that is no number shows no difference either.
            Some(_) => RatioDifference::NoneSeen,
        }
    }

    /// As [`EstimateRatio::verdict`] of a throughput that was `offered`: that all reach it is no finding, and latencies
    /// tell them apart.
    pub fn verdict_of(&self, offered: bool) -> String {
        match self.difference() {
            RatioDifference::NoneSeen if offered => "same rate".to_owned(),
            _ => self.verdict(),
        }
    }

    /// The ratio in words: `11.3x`, `0.50x`, `no difference seen`, `1.20x, certainty unknown`.
    pub fn verdict(&self) -> String {
        match self.difference() {
            RatioDifference::More | RatioDifference::Less => quantity::ratio(self.value),
            RatioDifference::NoneSeen => "no difference seen".to_owned(),
            RatioDifference::Unknown => format!("{}, certainty unknown", quantity::ratio(self.value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_interval_shows_no_difference() {
        for [low, high] in [[f64::NAN; 2], [f64::NAN, 3.0], [1.5, f64::NAN], [0.0, f64::INFINITY]] {
            let ratio = EstimateRatio { value: 2.0, interval: Some(ConfidenceInterval { low, high }) };
            let is_sure = low > 1.0;
            assert_eq!(ratio.difference() == RatioDifference::More, is_sure, "{low} to {high}");
            assert_ne!(ratio.difference(), RatioDifference::Less);
        }
        assert_eq!(
            EstimateRatio::new(&IntervalEstimate::bare(f64::MAX), &IntervalEstimate::bare(1e-300)),
            None
        );
        assert_eq!(EstimateRatio::new(&IntervalEstimate::bare(f64::NAN), &IntervalEstimate::bare(1.0)), None);
    }
}
