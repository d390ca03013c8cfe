//! Whether blocks are worth reading from flash. A disk that is worn, shared or throttled may be slower than the store
//! behind; then it is left alone, but for a look now and then, until it is faster again.

use std::time::Duration;

/// The weight of a new time among the former ones.
const WEIGHT: f64 = 0.1;
/// So many times of each have to be known before anything follows from them.
const MIN_TIMES: u32 = 16;
/// Flash is left alone when a block from it takes so many times as long as one from the store...
const WORSE: f64 = 1.5;
/// ...and is used again when it takes so much of that time. In between all stays as it is.
const BETTER: f64 = 0.75;
/// While it is left alone one block in so many is read from it all the same, to see how it does.
const LOOK_EVERY: u32 = 32;

/// The mean of late times.
#[derive(Clone, Copy, Debug, Default)]
struct RecentMean {
    seconds: f64,
    count: u32,
}

impl RecentMean {
    fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        // The first ones count alike, so that none of them decides for long.
        let weight = WEIGHT.max(1.0 / f64::from(self.count + 1));
        self.seconds += (seconds - self.seconds) * weight;
        self.count = self.count.saturating_add(1);
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct CacheBypass {
    flash: RecentMean,
    store: RecentMean,
    is_on: bool,
    left_out: u32,
}

impl CacheBypass {
    /// Whether the next block is to be looked for on flash.
    pub(crate) fn asks_flash(&mut self) -> bool {
        if !self.is_on {
            return true;
        }
        self.left_out += 1;
        if self.left_out < LOOK_EVERY {
            return false;
        }
        self.left_out = 0;
        true
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// A block came from flash. Returns whether that changed something.
    pub(crate) fn took_from_flash(&mut self, time: Duration) -> bool {
        self.flash.add(time);
        self.decide()
    }

    /// Blocks came from the store, each in this time.
    pub(crate) fn took_from_store(&mut self, time: Duration) -> bool {
        self.store.add(time);
        self.decide()
    }

    /// Seconds for a block, from flash and from the store.
    pub(crate) fn seconds(&self) -> (f64, f64) {
        (self.flash.seconds, self.store.seconds)
    }

    fn decide(&mut self) -> bool {
        if self.flash.count < MIN_TIMES || self.store.count < MIN_TIMES {
            return false;
        }
        let ratio = self.flash.seconds / self.store.seconds.max(1e-9);
        let is_on = if self.is_on { ratio > BETTER } else { ratio > WORSE };
        let has_changed = is_on != self.is_on;
        (self.is_on, self.left_out) = (is_on, if has_changed { 0 } else { self.left_out });
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Blocks from both, the disk as fast as it says; only those that are asked for cost anything.
    fn run(bypass: &mut CacheBypass, blocks: u32, flash: Duration, store: Duration) -> u32 {
        let mut asked = 0;
        for _ in 0..blocks {
            if bypass.asks_flash() {
                asked += 1;
                bypass.took_from_flash(flash);
            } else {
                bypass.took_from_store(store);
            }
            // Something is always missing.
            bypass.took_from_store(store);
        }
        asked
    }

    #[test]
    fn slow_disk_is_bypassed_until_fast_again() {
        let mut bypass = CacheBypass::default();
        assert_eq!(run(&mut bypass, 200, MS, 5 * MS), 200);
        assert!(!bypass.is_on());
        // Garbage collection, a neighbour, a throttle: now it takes four times as long as the store.
        run(&mut bypass, 40, 20 * MS, 5 * MS);
        assert!(bypass.is_on());
        let asked = run(&mut bypass, 3200, 20 * MS, 5 * MS);
        assert_eq!(asked, 100);
        assert!(bypass.is_on());
        run(&mut bypass, 3200, MS, 5 * MS);
        assert!(!bypass.is_on(), "{bypass:?}");
    }

    #[test]
    fn bypass_between_thresholds_keeps_its_state() {
        // As fast as each other, a little more, a little less: no flapping, whichever way it is.
        for start in [MS, 20 * MS] {
            let mut bypass = CacheBypass::default();
            run(&mut bypass, 100, start, 5 * MS);
            let was_on = bypass.is_on();
            assert_eq!(was_on, start > MS);
            let mut changes = 0;
            for round in 0..2000_u32 {
                let flash = if round % 2 == 0 { 4600 } else { 6000 };
                changes += u32::from(bypass.took_from_flash(Duration::from_micros(flash)));
                changes += u32::from(bypass.took_from_store(5 * MS));
            }
            assert!(changes <= u32::from(was_on), "{changes}");
        }
    }

    #[test]
    fn single_slow_block_changes_no_bypass() {
        let mut bypass = CacheBypass::default();
        run(&mut bypass, 100, MS, 5 * MS);
        bypass.took_from_flash(30 * MS);
        assert!(!bypass.is_on());
        assert_eq!(CacheBypass::default().seconds(), (0.0, 0.0));
    }
}
