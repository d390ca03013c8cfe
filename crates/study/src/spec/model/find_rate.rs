//! The highest rate under a latency: the goal of the search, and its steps.

use std::time::Duration;

use underlay_workload::search::{LatencyBound, SearchSpec, StepTimes};

use super::rate::RATES_PER_S;

/// The first rate to try when the study names none, unless steps are too short for it.
const DEFAULT_FROM_PER_S: f64 = 100.0;
/// The highest one, as a multiple of the first.
const DEFAULT_TO: f64 = 10_000.0;
/// A step without a length in the study takes this part of its duration, and no less.
const STEPS_OF_A_DURATION: u32 = 4;
const MIN_STEP: Duration = Duration::from_secs(1);

/// A search for a rate.
#[derive(Clone, Debug, PartialEq)]
pub struct FindRate {
    /// In modelled time; all of them must hold.
    pub bounds: Vec<LatencyBound>,
    /// Operations per second of the modelled machine: the first and the highest rate to try.
    pub from_per_s: Option<f64>,
    pub to_per_s: Option<f64>,
    /// The precision of the rate: 0.05 for 5 %.
    pub within: f64,
    /// Wall time of each step; a fourth of the study's `duration` when absent.
    pub step: Option<Duration>,
}

impl FindRate {
    /// `p99 within 10 ms`.
    pub fn label(&self) -> String {
        self.bounds.iter().map(LatencyBound::to_string).collect::<Vec<_>>().join(" and ")
    }

    /// The wall time of each step, in a study that measures cells for `duration`.
    pub fn step(&self, duration: Duration) -> Duration {
        self.step.unwrap_or_else(|| (duration / STEPS_OF_A_DURATION).max(MIN_STEP))
    }

    /// The minimum wall time of the search.
    pub fn shortest(&self, duration: Duration, time: f64) -> Duration {
        let step = self.step(duration);
        StepTimes::from_measure(step).whole() * self.search(step, time).fewest_steps()
    }

    /// The search with such steps.
    pub fn search(&self, step: Duration, time: f64) -> SearchSpec {
        let step_s = step.as_secs_f64() / time;
        let from_per_s = self.from_per_s.unwrap_or_else(|| {
            // One step is enough to show that it holds.
            let fewest = self.bounds.iter().map(LatencyBound::fewest_operations).max().unwrap_or(0);
            let least = DEFAULT_FROM_PER_S.max((fewest as f64 / step_s).ceil());
            least.min(self.to_per_s.unwrap_or(*RATES_PER_S.end()))
        });
        let search = SearchSpec {
            most_per_s: self.to_per_s.unwrap_or((from_per_s * DEFAULT_TO).min(*RATES_PER_S.end())),
            within: self.within,
            ..SearchSpec::new(self.bounds.clone(), from_per_s)
        };
        search.with_steps_of(step_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_rate_can_be_judged_by_a_step() {
        let wanted = |quantile, from_per_s, to_per_s| FindRate {
            bounds: vec![LatencyBound { quantile, limit_ns: 1_000_000 }],
            from_per_s,
            to_per_s,
            within: 0.05,
            step: None,
        };
        let ends = |wanted: FindRate, duration_s: u64, time: f64| {
            let step = wanted.step(Duration::from_secs(duration_s));
            let search = wanted.search(step, time);
            assert_eq!(search.problems(), Vec::<String>::new());
            (step.as_secs(), search.from_per_s, search.most_per_s)
        };
        assert_eq!(ends(wanted(0.99, None, None), 60, 1.0), (15, 100.0, 1e6));
        // 2,703 operations are enough for p99.9.
        assert_eq!(ends(wanted(0.999, None, None), 60, 1.0), (15, 181.0, 1.81e6));
        assert_eq!(ends(wanted(0.999, None, None), 1, 8.0), (1, 21_624.0, 216_240_000.0));
        assert_eq!(ends(wanted(0.999, Some(10.0), Some(500.0)), 60, 8.0), (15, 10.0, 500.0));
        assert_eq!(ends(wanted(0.999, None, Some(500.0)), 60, 8.0), (15, 500.0, 500.0));
    }
}
