//! How many times one figure is another, and whether that is more than noise.

use super::{Estimate, Interval, StandardError};
use crate::quantity;

/// A ratio of two independent estimates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub value: f64,
    /// Absent when one of the two has no known error.
    pub interval: Option<Interval>,
}

/// What may be said of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    More,
    Less,
    /// The interval holds 1.
    NoneSeen,
    /// There is no interval to tell by.
    Unknown,
}

impl Ratio {
    /// `value : baseline`, with an interval on the logarithm's scale.
    ///
    /// By the delta method the logarithm's variance is the sum of the squared relative standard errors; the degrees
    /// of freedom are those of B. L. Welch, "The generalization of 'Student's' problem when several different
    /// population variances are involved", Biometrika 34 (1947). None unless both values are positive.
    pub fn of(value: &Estimate, baseline: &Estimate) -> Option<Ratio> {
        if !(value.value > 0.0 && baseline.value > 0.0) {
            return None;
        }
        let ratio = value.value / baseline.value;
        let relative = |estimate: &Estimate| {
            estimate.standard_error.map(|error| StandardError {
                value: error / estimate.value,
                degrees_of_freedom: estimate.degrees_of_freedom,
            })
        };
        let interval = match (relative(value), relative(baseline)) {
            (Some(a), Some(b)) => {
                let (a2, b2) = (a.value.powi(2), b.value.powi(2));
                let spread = a2.powi(2) / a.degrees_of_freedom + b2.powi(2) / b.degrees_of_freedom;
                let degrees_of_freedom =
                    if spread > 0.0 { (a2 + b2).powi(2) / spread } else { f64::INFINITY };
                let half = StandardError { value: (a2 + b2).sqrt(), degrees_of_freedom }.half_width();
                Some(Interval { low: ratio * (-half).exp(), high: ratio * half.exp() })
            }
            _ => None,
        };
        Some(Ratio { value: ratio, interval })
    }

    pub fn difference(&self) -> Difference {
        match self.interval {
            None => Difference::Unknown,
            Some(interval) if interval.contains(1.0) => Difference::NoneSeen,
            Some(_) if self.value > 1.0 => Difference::More,
            Some(_) => Difference::Less,
        }
    }

    /// The ratio in words: `11.3x`, `0.50x`, `no difference seen`, `1.20x, certainty unknown`.
    pub fn verdict(&self) -> String {
        match self.difference() {
            Difference::More | Difference::Less => quantity::ratio(self.value),
            Difference::NoneSeen => "no difference seen".to_owned(),
            Difference::Unknown => format!("{}, certainty unknown", quantity::ratio(self.value)),
        }
    }
}
