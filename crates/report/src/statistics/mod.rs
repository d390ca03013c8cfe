//! Estimates with their uncertainty.
//!
//! Every interval is a 95 % confidence interval. Two things make a measured rate uncertain: the noise within a
//! repetition, whose neighbouring intervals resemble each other, and the spread between repetitions, where
//! placement, compaction and luck differ. Both are estimated, and the larger rules ([`IntervalEstimate::combine`]).

pub mod bracket;
pub mod multiple;
pub mod operation;
pub mod quantile;
pub mod ratio;
pub mod throughput;

pub use underlay_record::statistics::{CONFIDENCE, StandardError, distributions, series, settling, trend};

/// A range of values, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, schemars::JsonSchema)]
pub struct ConfidenceInterval {
    pub low: f64,
    pub high: f64,
}

impl ConfidenceInterval {
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// A value with its uncertainty, in the value's own unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IntervalEstimate {
    pub value: f64,
    /// Absent when the data can't tell: one repetition without a usable time series.
    pub standard_error: Option<f64>,
    /// Degrees of freedom of the standard error; infinite when it is known and not estimated.
    pub degrees_of_freedom: f64,
    pub interval: Option<ConfidenceInterval>,
}

impl IntervalEstimate {
    /// A value of unknown certainty.
    pub fn bare(value: f64) -> Self {
        IntervalEstimate { value, standard_error: None, degrees_of_freedom: 0.0, interval: None }
    }

    /// A value of known standard error, with the Student interval: symmetric, but no rate, time or size is negative, so
    /// it ends at 0.
    pub fn with_error(value: f64, error: StandardError) -> Self {
        let signed = IntervalEstimate::signed(value, error);
        let clipped = |one: ConfidenceInterval| ConfidenceInterval {
            low: if value < 0.0 { one.low } else { one.low.max(0.0) },
            ..one
        };
        IntervalEstimate { interval: signed.interval.map(clipped), ..signed }
    }

    /// The same of a figure that may be negative: the interval is symmetric.
    pub fn signed(value: f64, error: StandardError) -> Self {
        let half = error.half_width();
        IntervalEstimate {
            value,
            standard_error: Some(error.value),
            degrees_of_freedom: error.degrees_of_freedom,
            interval: Some(ConfidenceInterval { low: value - half, high: value + half }),
        }
    }

    /// A value whose error was estimated within repetitions, between them, or both: see [`StandardError::larger`].
    pub fn combine(value: f64, within_error: Option<StandardError>, between: Option<StandardError>) -> Self {
        match StandardError::larger(within_error, between) {
            Some(error) => IntervalEstimate::with_error(value, error),
            None => IntervalEstimate::bare(value),
        }
    }

    /// The same for a comparison of runs, whose unit is the repetition: with as many degrees of freedom as repetitions
    /// leave. The error is the larger of two, and by chance the smaller one can be the truth; few degrees of freedom
    /// make up for it.
    pub fn widen_for_repetitions(&self, repetitions: usize) -> IntervalEstimate {
        match self.standard_error {
            Some(value) if repetitions > 1 => {
                let degrees_of_freedom = (repetitions - 1) as f64;
                let error = StandardError { value, degrees_of_freedom };
                match self.interval.is_some_and(|one| one.low < 0.0) {
                    true => IntervalEstimate::signed(self.value, error),
                    false => IntervalEstimate::with_error(self.value, error),
                }
            }
            _ => *self,
        }
    }

    /// Half the interval's width over the value: `0.03` is shown as ±3 %. An interval that ends at 0 is as wide below
    /// as above: ±140 % is no smaller uncertainty than ±90 %.
    pub fn relative_half_width(&self) -> Option<f64> {
        let interval = self.interval?;
        let half = match interval.low > 0.0 {
            true => (interval.high - interval.low) / 2.0,
            false => interval.high - self.value,
        };
        (self.value != 0.0).then(|| half.max((interval.high - interval.low) / 2.0) / self.value.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A throughput was exported with an interval from -694, a mean latency from -2.2 s.
    #[test]
    fn nonnegative_interval_ends_at_zero_with_same_error() {
        let wide = StandardError { value: 100.0, degrees_of_freedom: 1.0 };
        let estimate = IntervalEstimate::with_error(300.0, wide);
        let interval = estimate.interval.unwrap();
        assert_eq!(interval.low, 0.0);
        assert!(interval.high > 1_500.0, "{interval:?}");
        let signed = IntervalEstimate::signed(300.0, wide);
        assert!(signed.interval.unwrap().low < -900.0);
        let [shown, whole] = [estimate, signed].map(|one| one.relative_half_width().unwrap());
        assert!((shown / whole - 1.0).abs() < 1e-9, "{shown}, {whole}");
        assert_eq!(estimate.widen_for_repetitions(2), estimate);
        assert_eq!(signed.widen_for_repetitions(2), signed);
        // A figure below zero is one that may be.
        assert!(IntervalEstimate::with_error(-300.0, wide).interval.unwrap().low < -1_500.0);
        let narrow =
            IntervalEstimate::with_error(300.0, StandardError { value: 1.0, degrees_of_freedom: 10.0 });
        assert!(narrow.interval.unwrap().low > 297.0);
    }
}
