//! The times in which a volume is not what it was sold as.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Episodes and the time between them, both of exponentially distributed length.
#[derive(Clone, Debug)]
pub struct EpisodeProcess {
    mean_ns: f64,
    mean_between_ns: f64,
    factor: f64,
    random: Pcg64Mcg,
    /// The next episode, or the present one.
    start_ns: f64,
    end_ns: f64,
}

/// Nobody steps through more episodes than these that passed while nothing was asked.
const SKIPPED_CYCLES: f64 = 256.0;

impl EpisodeProcess {
    /// For `share` of the time, with `factor` left of the rates; `None` when that is never.
    pub fn new(share: f64, mean_s: f64, factor: f64, seed: u64) -> Option<EpisodeProcess> {
        if share <= 0.0 {
            return None;
        }
        let mean_ns = mean_s * 1e9;
        let mean_between_ns = mean_ns * (1.0 - share) / share;
        let random = Pcg64Mcg::seed_from_u64(seed);
        let mut episodes =
            EpisodeProcess { mean_ns, mean_between_ns, factor, random, start_ns: 0.0, end_ns: 0.0 };
        episodes.next();
        Some(episodes)
    }

    fn exponential_ns(&mut self, mean_ns: f64) -> f64 {
        // A draw of nothing must not stop time.
        // By inversion: -mean ln(1 - u).
        (-mean_ns * (-self.random.random::<f64>()).ln_1p()).max(1.0)
    }

    fn next(&mut self) {
        self.start_ns = self.end_ns + self.exponential_ns(self.mean_between_ns);
        self.end_ns = self.start_ns + self.exponential_ns(self.mean_ns);
    }

    /// As it is at a time long after any that was looked at: neither state remembers how long it has lasted.
    fn begin_anew(&mut self, now_ns: f64) {
        let share = self.mean_ns / (self.mean_ns + self.mean_between_ns);
        self.start_ns = now_ns;
        if self.random.random::<f64>() >= share {
            self.start_ns += self.exponential_ns(self.mean_between_ns);
        }
        self.end_ns = self.start_ns + self.exponential_ns(self.mean_ns);
    }

    /// The share of the rates that is left at `now_ns`, which never goes back.
    pub fn factor(&mut self, now_ns: u64) -> f64 {
        let ahead_ns = now_ns as f64 - self.end_ns;
        if ahead_ns > SKIPPED_CYCLES * (self.mean_ns + self.mean_between_ns) {
            self.begin_anew(now_ns as f64);
        }
        while now_ns as f64 >= self.end_ns {
            self.next();
        }
        if now_ns as f64 >= self.start_ns { self.factor } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_their_share_of_the_time() {
        let mut episodes = EpisodeProcess::new(0.01, 30.0, 0.5, 7).unwrap();
        let (mut degraded, mut begun, mut before) = (0, 0, 1.0);
        let seconds = 20_000_000u64;
        for second in 0..seconds {
            let factor = episodes.factor(second * 1_000_000_000);
            assert!(factor == 1.0 || factor == 0.5);
            degraded += u64::from(factor < 1.0);
            begun += u64::from(factor < before);
            before = factor;
        }
        let share = degraded as f64 / seconds as f64;
        assert!((share / 0.01 - 1.0).abs() < 0.05, "{share}");
        // Episodes of less than a second may fall between two looks.
        let mean_s = degraded as f64 / begun as f64;
        assert!((mean_s / 30.0 - 1.0).abs() < 0.1, "{mean_s}");
    }

    #[test]
    fn take_their_share_of_rare_looks() {
        // A million episodes lie between two looks.
        let mut episodes = EpisodeProcess::new(0.1, 0.001, 0.5, 7).unwrap();
        let looks = 20_000u64;
        let degraded = (1..=looks).filter(|look| episodes.factor(look * 10_000_000_000_000) < 1.0).count();
        let share = degraded as f64 / looks as f64;
        assert!((share / 0.1 - 1.0).abs() < 0.06, "{share}");
    }

    #[test]
    fn zero_share_episode_never_happens() {
        assert!(EpisodeProcess::new(0.0, 30.0, 0.5, 7).is_none());
    }
}
