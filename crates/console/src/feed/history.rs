//! Samples of a run within a bound: what is older is kept more coarsely.

use underlay_record::LiveSample;

/// A sample, and when it was taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct SampleMoment {
    /// Seconds since 1970.
    pub at_s: f64,
    pub sample: LiveSample,
    /// Nothing joins it with the one before: another cell or another phase began, or nothing was known for a while.
    pub begins: bool,
    bytes: usize,
}

/// Samples further apart than this have a gap between them: there is one a second.
pub(crate) const MAX_STEP_S: f64 = 3.0;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct RunHistory {
    moments: Vec<SampleMoment>,
    bytes: usize,
}

const MAX_MOMENTS: usize = 2_400;
const MAX_BYTES: usize = 16 << 20;

impl RunHistory {
    /// `bytes` is about what the sample takes.
    pub(crate) fn add(&mut self, at_s: f64, sample: LiveSample, bytes: usize) {
        // A clock that was set back must not turn lines around.
        let at_s = self.moments.last().map_or(at_s, |last| at_s.max(last.at_s));
        let is_joined = self.moments.last().is_some_and(|last| {
            at_s - last.at_s <= MAX_STEP_S
                && last.sample.position == sample.position
                && last.sample.phase == sample.phase
                && last.sample.preparing == sample.preparing
        });
        self.moments.push(SampleMoment { at_s, sample, begins: !is_joined, bytes });
        self.bytes += bytes;
        while self.moments.len() > MAX_MOMENTS || (self.bytes > MAX_BYTES && self.moments.len() > 2) {
            self.thin();
        }
    }

    /// Drops every second one of the older half.
    fn thin(&mut self) {
        let half = (self.moments.len() / 2).max(2);
        let mut index = 0;
        let mut has_lost_beginning = false;
        self.moments.retain_mut(|moment| {
            index += 1;
            let stays = index > half || index % 2 == 1;
            // A stretch that began with a dropped sample begins with the next one.
            moment.begins |= has_lost_beginning;
            has_lost_beginning = moment.begins && !stays;
            stays
        });
        self.bytes = self.moments.iter().map(|moment| moment.bytes).sum();
    }

    pub(crate) fn moments(&self) -> &[SampleMoment] {
        &self.moments
    }

    pub(crate) fn latest(&self) -> Option<&SampleMoment> {
        self.moments.last()
    }

    /// Those from a moment on.
    pub(crate) fn moments_since(&self, from_s: f64) -> &[SampleMoment] {
        &self.moments[self.moments.partition_point(|moment| moment.at_s < from_s)..]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(position: u32, phase: &str) -> LiveSample {
        LiveSample { position: Some(position), phase: phase.to_owned(), ..LiveSample::default() }
    }

    #[test]
    fn history_restarts_lines_at_cells_phases_and_gaps() {
        let mut history = RunHistory::default();
        let samples = [
            (1.0, sample(0, "filling caches"), true),
            (2.0, sample(0, "filling caches"), false),
            (3.0, sample(0, "measuring"), true),
            (4.0, sample(0, "measuring"), false),
            (60.0, sample(0, "measuring"), true),
            (61.0, sample(1, "measuring"), true),
            (62.0, sample(1, "measuring"), false),
            (63.0, sample(1, "measuring"), false),
        ];
        samples.iter().for_each(|(at_s, sample, _)| history.add(*at_s, sample.clone(), 1));
        let begins = |history: &RunHistory| -> Vec<(f64, bool)> {
            history.moments().iter().map(|moment| (moment.at_s, moment.begins)).collect()
        };
        assert_eq!(begins(&history), samples.map(|(at_s, _, begins)| (at_s, begins)));
        history.thin();
        history.thin();
        let moments = begins(&history);
        assert!(moments.iter().any(|(at_s, begins)| *at_s >= 60.0 && *begins), "{moments:?}");
        for pair in moments.windows(2) {
            let is_gap = pair[1].0 - pair[0].0 > 50.0;
            assert!(!is_gap || pair[1].1, "{moments:?}");
        }
    }

    proptest! {
        #[test]
        fn history_stays_bounded_and_ordered(steps in proptest::collection::vec((-5.0..50.0f64, 1usize..200_000), 1..4000)) {
            let mut history = RunHistory::default();
            let mut now = 1e9;
            for (step, bytes) in &steps {
                now += step;
                history.add(now, LiveSample::default(), *bytes);
                prop_assert!(history.moments().len() <= MAX_MOMENTS && history.bytes <= MAX_BYTES + 200_000);
            }
            let times: Vec<f64> = history.moments().iter().map(|moment| moment.at_s).collect();
            prop_assert!(times.is_sorted());
            prop_assert_eq!(times.first(), Some(&(1e9 + steps[0].0)));
            prop_assert_eq!(history.moments_since(0.0).len(), times.len());
            prop_assert!(history.moments_since(f64::MAX).is_empty());
        }
    }
}
