//! The rates offered to a system in one cell: one rate, several in a row, or as much as it can handle.

use std::ops::RangeInclusive;
use std::time::Duration;

use underlay_record::RatePart;

/// Faster than any generator: a higher rate is a mistake.
pub(in crate::spec) const RATES_PER_S: RangeInclusive<f64> = 0.001..=1e9;
/// The same range, for error messages.
pub(in crate::spec) const EXPECTED_RATE: &str = "a number of operations per second from 0.001 to 1e9";

/// The offered rates of a cell, in operations per second of the modelled machine.
#[derive(Clone, Debug, PartialEq)]
pub enum StudyRate {
    /// `"max"`: a closed loop without any limit.
    Max,
    Steady(f64),
    Changing(ChangingRate),
}

/// A rate that changes during the measurement. The warm-up has the first rate, and the last rate continues to the end.
/// Lengths are wall time, like the measured time itself.
#[derive(Clone, Debug, PartialEq)]
pub enum ChangingRate {
    /// Evenly from one rate to another, over the whole measured time when `over` is absent.
    Ramp { from_per_s: f64, to_per_s: f64, over: Option<Duration> },
    /// One after the other, over equal parts of the measured time when `each` is absent. At least two.
    Steps { rates_per_s: Vec<f64>, each: Option<Duration> },
}

impl StudyRate {
    /// The offered rate, if it is only one.
    pub fn steady_per_s(&self) -> Option<f64> {
        match self {
            StudyRate::Steady(per_s) => Some(*per_s),
            StudyRate::Max | StudyRate::Changing(_) => None,
        }
    }
}

impl ChangingRate {
    /// Multiplies the given lengths by this factor.
    pub(super) fn stretch(&mut self, factor: f64) {
        match self {
            ChangingRate::Ramp { over: length, .. } | ChangingRate::Steps { each: length, .. } => {
                *length = length.map(|length| length.mul_f64(factor));
            }
        }
    }

    /// The total length of its parts, in a measured time of `duration`.
    pub fn length(&self, duration: Duration) -> Duration {
        match self {
            ChangingRate::Ramp { over, .. } => over.unwrap_or(duration),
            ChangingRate::Steps { rates_per_s, each } => {
                each.map_or(duration, |each| each * u32::try_from(rates_per_s.len()).unwrap_or(u32::MAX))
            }
        }
    }

    /// Its parts in modelled time: `time` seconds here are one modelled second.
    pub fn parts(&self, duration: Duration, time: f64) -> Vec<RatePart> {
        let length_s = rounded(self.length(duration).as_secs_f64() / time);
        match self {
            ChangingRate::Ramp { from_per_s, to_per_s, .. } => {
                vec![RatePart { from_per_s: *from_per_s, to_per_s: *to_per_s, length_s }]
            }
            ChangingRate::Steps { rates_per_s, .. } => {
                let length_s = rounded(length_s / rates_per_s.len().max(1) as f64);
                let part = |&per_s: &f64| RatePart { from_per_s: per_s, to_per_s: per_s, length_s };
                rates_per_s.iter().map(part).collect()
            }
        }
    }

    /// The mean rate over a measured time of `duration`.
    pub fn mean_per_s(&self, duration: Duration) -> f64 {
        let duration_s = duration.as_secs_f64();
        let (mut offered, mut begin_s, mut last_per_s) = (0.0, 0.0, 0.0);
        // Wall time is fine here: slow motion stretches every part alike, so the mean is the same.
        for part in self.parts(duration, 1.0) {
            let length_s = part.length_s.min(duration_s - begin_s).max(0.0);
            let reached = part.from_per_s + (part.to_per_s - part.from_per_s) * length_s / part.length_s;
            offered += (part.from_per_s + reached) / 2.0 * length_s;
            (begin_s, last_per_s) = (begin_s + length_s, part.to_per_s);
        }
        rounded((offered + last_per_s * (duration_s - begin_s).max(0.0)) / duration_s)
    }
}

/// To a millionth: a plan that is written and read again must be the same to the last digit.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn ramp(over: Option<Duration>) -> ChangingRate {
        ChangingRate::Ramp { from_per_s: 1_000.0, to_per_s: 5_000.0, over }
    }

    fn steps(each: Option<Duration>) -> ChangingRate {
        ChangingRate::Steps { rates_per_s: vec![100.0, 400.0, 100.0], each }
    }

    #[test]
    fn parts_are_in_modelled_time() {
        let part = |from_per_s, to_per_s, length_s| RatePart { from_per_s, to_per_s, length_s };
        assert_eq!(ramp(None).parts(MINUTE, 4.0), [part(1_000.0, 5_000.0, 15.0)]);
        assert_eq!(ramp(Some(MINUTE / 2)).parts(MINUTE, 1.0), [part(1_000.0, 5_000.0, 30.0)]);
        let each = [part(100.0, 100.0, 20.0), part(400.0, 400.0, 20.0), part(100.0, 100.0, 20.0)];
        assert_eq!(steps(None).parts(MINUTE, 1.0), each);
        assert_eq!(steps(Some(MINUTE)).length(MINUTE), 3 * MINUTE);
    }

    #[test]
    fn mean_rate_covers_measured_window() {
        assert_eq!(ramp(None).mean_per_s(MINUTE), 3_000.0);
        // The last rate applies for half of the time.
        assert_eq!(ramp(Some(MINUTE / 2)).mean_per_s(MINUTE), 4_000.0);
        // The second half of the ramp is not reached.
        assert_eq!(ramp(Some(2 * MINUTE)).mean_per_s(MINUTE), 2_000.0);
        assert_eq!(steps(None).mean_per_s(MINUTE), 200.0);
        assert_eq!(steps(Some(MINUTE / 2)).mean_per_s(MINUTE), 250.0);
    }
}
