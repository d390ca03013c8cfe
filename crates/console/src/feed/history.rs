//! Samples of a run within a bound: what is older is kept more coarsely.

use underlay_record::LiveSample;

/// A sample, and when it was taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moment {
    /// Seconds since 1970.
    pub at_s: f64,
    pub sample: LiveSample,
    bytes: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct History {
    moments: Vec<Moment>,
    bytes: usize,
}

const MAX_MOMENTS: usize = 2_400;
const MAX_BYTES: usize = 16 << 20;

impl History {
    /// `bytes` is about what the sample takes.
    pub(crate) fn add(&mut self, at_s: f64, sample: LiveSample, bytes: usize) {
        // A clock that was set back must not turn lines around.
        let at_s = self.moments.last().map_or(at_s, |last| at_s.max(last.at_s));
        self.moments.push(Moment { at_s, sample, bytes });
        self.bytes += bytes;
        while self.moments.len() > MAX_MOMENTS || (self.bytes > MAX_BYTES && self.moments.len() > 2) {
            self.thin();
        }
    }

    /// Drops every second one of the older half.
    fn thin(&mut self) {
        let half = (self.moments.len() / 2).max(2);
        let mut index = 0;
        self.moments.retain(|_| {
            index += 1;
            index > half || index % 2 == 1
        });
        self.bytes = self.moments.iter().map(|moment| moment.bytes).sum();
    }

    pub(crate) fn moments(&self) -> &[Moment] {
        &self.moments
    }

    pub(crate) fn latest(&self) -> Option<&Moment> {
        self.moments.last()
    }

    /// Those from a moment on.
    pub(crate) fn since(&self, from_s: f64) -> &[Moment] {
        &self.moments[self.moments.partition_point(|moment| moment.at_s < from_s)..]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_stays_within_its_bounds_and_in_order(steps in proptest::collection::vec((-5.0..50.0f64, 1usize..200_000), 1..4000)) {
            let mut history = History::default();
            let mut now = 1e9;
            for (step, bytes) in &steps {
                now += step;
                history.add(now, LiveSample::default(), *bytes);
                prop_assert!(history.moments().len() <= MAX_MOMENTS && history.bytes <= MAX_BYTES + 200_000);
            }
            let times: Vec<f64> = history.moments().iter().map(|moment| moment.at_s).collect();
            prop_assert!(times.is_sorted());
            prop_assert_eq!(times.first(), Some(&(1e9 + steps[0].0)));
            prop_assert_eq!(history.since(0.0).len(), times.len());
            prop_assert!(history.since(f64::MAX).is_empty());
        }
    }
}
