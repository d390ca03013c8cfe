//! A gate lets requests through at a rate, and faster as long as it has credits.

/// One rate of a volume, or of the machine that it is attached to.
#[derive(Clone, Debug)]
pub struct RateGate {
    /// Units a nanosecond.
    baseline: f64,
    burst: Option<BurstBucket>,
    /// When the next may pass.
    free_ns: f64,
}

#[derive(Clone, Debug)]
struct BurstBucket {
    rate: f64,
    /// The bucket's size, in units that may pass.
    limit: f64,
    /// Its initial contents.
    initial: f64,
    credits: f64,
    /// For when `credits` is right.
    at_ns: f64,
}

impl RateGate {
    /// `baseline` and the burst's rate in units a second. A bucket is `limit` units, `share` of it full.
    pub fn new(baseline: f64, burst: Option<(f64, f64)>, share: f64) -> RateGate {
        let burst = burst.map(|(rate, limit)| BurstBucket {
            rate: rate.max(baseline) / 1e9,
            limit,
            initial: limit * share,
            credits: limit * share,
            at_ns: 0.0,
        });
        RateGate { baseline: baseline / 1e9, burst, free_ns: 0.0 }
    }

    /// Nothing more passes before.
    pub fn free_ns(&self) -> f64 {
        self.free_ns
    }

    /// The bucket is as full as at first: earlier credits and debts are gone.
    pub fn restart(&mut self, now_ns: f64) {
        if let Some(burst) = &mut self.burst {
            burst.credits = burst.initial;
            burst.at_ns = now_ns.max(burst.at_ns);
        }
    }

    /// When a request of this many units passes. `now_ns`, when it comes, may go back: it stands in line.
    /// `factor` is what is left of the rates just then.
    pub fn pass_ns(&mut self, units: f64, now_ns: f64, factor: f64) -> f64 {
        let mut at_ns = now_ns.max(self.free_ns);
        let baseline = self.baseline * factor;
        let rate = match &mut self.burst {
            None => baseline,
            Some(burst) => {
                burst.credits = (burst.credits + baseline * (at_ns - burst.at_ns).max(0.0)).min(burst.limit);
                burst.at_ns = at_ns.max(burst.at_ns);
                // One that costs more than the bucket holds goes when that is full, and leaves a debt.
                let needed = units.min(burst.limit);
                if burst.credits < needed {
                    at_ns += (needed - burst.credits) / baseline;
                    burst.credits = needed;
                    burst.at_ns = at_ns;
                }
                burst.credits -= units;
                burst.rate * factor
            }
        };
        self.free_ns = at_ns + units / rate;
        at_ns
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn credits_last_as_long_as_they_should() {
        // gp2 of 100 GiB: 300 a second, a burst of 3,000, 5.4 million credits, 2,000 s (AWS).
        let mut gate = RateGate::new(300.0, Some((3000.0, 5.4e6)), 1.0);
        let (mut passed, mut at_ns) = (0u64, 0.0);
        let mut ended_s = None;
        while at_ns < 4000e9 {
            let before_ns = at_ns;
            at_ns = gate.pass_ns(1.0, at_ns, 1.0);
            passed += 1;
            if ended_s.is_none() && at_ns - before_ns > 2e6 {
                ended_s = Some(before_ns / 1e9);
            }
        }
        let ended_s = ended_s.unwrap();
        assert!((ended_s - 2000.0).abs() < 1.0, "{ended_s}");
        let expected = 3000.0 * 2000.0 + 300.0 * 2000.0;
        assert!((passed as f64 / expected - 1.0).abs() < 1e-3, "{passed}");
    }

    /// A gp2 of 50 GiB had 757 reads/s for 2 s, since its system took 8 s to start.
    #[test]
    fn bucket_level_survives_restart() {
        // In 2 s: what the bucket holds, and what comes in.
        let passed_in_2_s = |gate: &mut RateGate, from_ns: f64| {
            let (mut passed, mut now_ns) = (0, from_ns);
            while now_ns < from_ns + 2e9 {
                now_ns = gate.pass_ns(1.0, now_ns, 1.0);
                passed += 1;
            }
            passed
        };
        for began_ns in [0.0, 8e9, 3600e9] {
            let mut empty = RateGate::new(150.0, Some((3000.0, 5.4e6)), 0.0);
            // The system reads a little while it starts.
            empty.pass_ns(1.0, began_ns / 2.0, 1.0);
            empty.restart(began_ns);
            let passed = passed_in_2_s(&mut empty, began_ns);
            assert!((299..=302).contains(&passed), "{passed} after {began_ns} ns");
            // Idle fills no bucket beyond its limit.
            let mut full = RateGate::new(150.0, Some((3000.0, 1000.0)), 1.0);
            full.pass_ns(500.0, began_ns / 2.0, 1.0);
            full.restart(began_ns.max(1e9));
            let passed = passed_in_2_s(&mut full, began_ns.max(1e9));
            assert!((1299..=1302).contains(&passed), "{passed} after {began_ns} ns");
        }
        // One without a burst has nothing to fill.
        let mut plain = RateGate::new(150.0, None, 0.0);
        plain.restart(8e9);
        assert!((299..=302).contains(&passed_in_2_s(&mut plain, 8e9)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

        /// In any span no more passes than the baseline and the bucket allow, and in order.
        #[test]
        fn never_lets_more_through_than_it_may(
            baseline in 1.0..1e5f64,
            burst in prop::option::of((1.0..10.0f64, 0.0..1e4f64)),
            share in 0.0..=1.0f64,
            requests in prop::collection::vec((0.0..1e7f64, 0.0..50.0f64), 1..100),
        ) {
            let mut gate = RateGate::new(baseline, burst.map(|(times, limit)| (times * baseline, limit)), share);
            let (mut now_ns, mut passed) = (0.0, Vec::new());
            for (pause_ns, units) in requests {
                now_ns += pause_ns;
                let at_ns = gate.pass_ns(units, now_ns, 1.0);
                prop_assert!(at_ns >= now_ns);
                prop_assert!(passed.last().is_none_or(|&(before_ns, _)| at_ns >= before_ns));
                passed.push((at_ns, units));
            }
            let bucket = burst.map_or(0.0, |(_, limit)| limit);
            for first in 0..passed.len() {
                // The first may have been paid for long ago, and the last is paid for afterwards.
                let mut units = 0.0;
                for last in first + 1..passed.len() {
                    let span_ns = passed[last].0 - passed[first].0;
                    let allowed = baseline * span_ns / 1e9 + bucket;
                    prop_assert!(units <= allowed * (1.0 + 1e-9) + 1e-6, "{units} in {span_ns} ns");
                    units += passed[last].1;
                }
            }
        }
    }
}
