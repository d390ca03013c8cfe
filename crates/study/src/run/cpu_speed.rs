//! How fast this host's CPUs compute while a cell is measured. The system gets more CPU time in proportion as they are
//! slower.
//!
//! A modelled core does as much as a core of this host at its fastest. A core that a hypervisor shares between two
//! guests does less for each in the same CPU time. So does a core that another thread shares. A [fixed
//! computation](crate::machine::SpeedComputation), timed repeatedly, shows by how much, and the system's quota follows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use underlay_attach::{CpuConfinement, CpuQuota, Processors};
use underlay_sync::Mutex;

use crate::machine::{MAX_SLOWDOWN, SpeedComputation, usual_us};
use crate::ticker::SamplerTicker;

/// A thousandth of a CPU: the computation takes some 0.1 ms.
const EVERY: Duration = Duration::from_millis(100);
/// Samples of three hours; beyond that, the oldest are forgotten.
const MAX_SAMPLES: usize = 100_000;
/// Fewer samples than these say nothing.
const MIN_SAMPLES: usize = 5;
/// The quota follows the mean of this many samples, once it changes by more than samples usually differ.
const FOLLOWED: usize = 10;
const CHANGE: f64 = 0.03;

/// A moment's position in the samples, and the system's allowance until then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SampleMark {
    count: usize,
    at: Instant,
    /// The factor by which its CPU time was raised, times the seconds for which it applied.
    allowed_s: f64,
}

/// The allowance for a system with CPUs slower than the modelled cores.
pub(super) struct SpeedAllowance {
    pub quotas: Vec<CpuQuota>,
    /// One server's due CPU time on CPUs at their fastest.
    pub due_cpus: f64,
    pub reference_us: f64,
    /// The factor on its quota at the beginning.
    pub factor: f64,
}

#[derive(Debug)]
struct SpeedSamples {
    samples: Vec<Duration>,
    /// Samples that are no longer kept.
    forgotten: usize,
    factor: f64,
    since: Instant,
    allowed_s: f64,
}

impl SpeedSamples {
    fn allowed_s(&self, now: Instant) -> f64 {
        self.allowed_s + self.factor * now.saturating_duration_since(self.since).as_secs_f64()
    }

    fn add(&mut self, sample: Duration) {
        if self.samples.len() == MAX_SAMPLES {
            self.samples.drain(..MAX_SAMPLES / 2);
            self.forgotten += MAX_SAMPLES / 2;
        }
        self.samples.push(sample);
    }

    /// The factor that the latest samples call for, if it changed.
    fn wanted(&self, reference_us: f64) -> Option<f64> {
        let latest = self.samples.get(self.samples.len().checked_sub(FOLLOWED)?..)?;
        let factor =
            (usual_us(latest)? / reference_us.max(f64::MIN_POSITIVE)).clamp(1.0 / MAX_SLOWDOWN, MAX_SLOWDOWN);
        ((factor / self.factor - 1.0).abs() > CHANGE).then_some(factor)
    }

    fn change(&mut self, factor: f64, now: Instant) {
        self.allowed_s = self.allowed_s(now);
        self.since = now;
        self.factor = factor;
    }
}

/// A thread on the system's CPUs, outside the system's limits. It ends when this is dropped.
pub(super) struct SpeedProbe {
    seen: Arc<Mutex<SpeedSamples>>,
    ticker: SamplerTicker,
}

impl SpeedProbe {
    /// Where the thread can't be started or may not run there, nothing is counted and nothing is allowed.
    pub(super) fn start(cpus: &Processors, allowance: Option<SpeedAllowance>) -> SpeedProbe {
        let factor = allowance.as_ref().map_or(1.0, |allowance| allowance.factor);
        let seen =
            SpeedSamples { samples: Vec::new(), forgotten: 0, factor, since: Instant::now(), allowed_s: 0.0 };
        let seen = Arc::new(Mutex::new(seen));
        let (shared, cpus) = (Arc::clone(&seen), cpus.clone());
        let ticker = SamplerTicker::start("cpu-speed", EVERY, move || {
            let confined = CpuConfinement::confine_to(&cpus).ok()?;
            let mut computation = SpeedComputation::new();
            if let Some(SpeedAllowance { quotas, due_cpus, factor, .. }) = &allowance {
                // An earlier measurement on the same servers may have left a different quota.
                quotas.iter().for_each(|quota| drop(quota.change(due_cpus * factor)));
            }
            Some(move || {
                let _there = &confined;
                let elapsed = computation.run();
                let mut guard = shared.lock();
                guard.add(elapsed);
                if let Some(allowance) = &allowance
                    && let Some(factor) = guard.wanted(allowance.reference_us)
                    // If the kernel refuses a quota, it stays unchanged and is judged as such.
                    && allowance.quotas.iter().all(|quota| quota.change(allowance.due_cpus * factor).is_ok())
                {
                    guard.change(factor, Instant::now());
                }
                EVERY
            })
        });
        SpeedProbe { seen, ticker }
    }

    pub(super) fn read(&self) -> SampleMark {
        self.ticker.check();
        let (seen, instant) = (self.seen.lock(), Instant::now());
        SampleMark {
            count: seen.forgotten + seen.samples.len(),
            at: instant,
            allowed_s: seen.allowed_s(instant),
        }
    }

    /// The computation's time between two readings; `None` if it hardly ran.
    pub(super) fn between_us(&self, began: SampleMark, ended: SampleMark) -> Option<f64> {
        let seen = self.seen.lock();
        let place = |count: usize| count.saturating_sub(seen.forgotten).min(seen.samples.len());
        let samples = seen.samples.get(place(began.count)..place(ended.count))?;
        (samples.len() >= MIN_SAMPLES).then(|| usual_us(samples)).flatten()
    }
}

impl SampleMark {
    /// The mean factor by which the system's CPU time was raised since `began`.
    pub(super) fn allowed_since(self, began: SampleMark) -> Option<f64> {
        let elapsed_s = self.at.saturating_duration_since(began.at).as_secs_f64();
        (elapsed_s > 0.0).then(|| (self.allowed_s - began.allowed_s) / elapsed_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(samples: &[u64]) -> SpeedSamples {
        let samples = samples.iter().copied().map(Duration::from_micros).collect();
        SpeedSamples { samples, forgotten: 0, factor: 1.0, since: Instant::now(), allowed_s: 0.0 }
    }

    #[test]
    fn quota_follows_lasting_speed() {
        assert_eq!(seen(&[80; 9]).wanted(50.0), None, "too few");
        assert_eq!(seen(&[51; 20]).wanted(50.0), None, "as fast as before");
        assert_eq!(seen(&[64; 20]).wanted(50.0), Some(1.28));
        let mut interrupted = [50; 10];
        interrupted[3] = 9000;
        assert_eq!(seen(&interrupted).wanted(50.0), None);
        assert_eq!(seen(&[60_000; 10]).wanted(50.0), Some(MAX_SLOWDOWN), "a broken measurement");
        assert_eq!(seen(&[40; 10]).wanted(50.0), Some(0.8), "faster than was ever seen");
    }

    #[test]
    fn allowance_is_mean_over_time() {
        let mut seen = seen(&[]);
        let begin = seen.since;
        let time_at = |seconds: u64| begin + Duration::from_secs(seconds);
        let read = |seen: &SpeedSamples, seconds| SampleMark {
            count: 0,
            at: time_at(seconds),
            allowed_s: seen.allowed_s(time_at(seconds)),
        };
        let began = read(&seen, 2);
        seen.change(1.5, time_at(4));
        let ended = read(&seen, 10);
        // Two seconds of 1, six of 1.5.
        assert!((ended.allowed_since(began).unwrap() - 1.375).abs() < 1e-9);
        assert_eq!(began.allowed_since(began), None);
    }

    #[test]
    fn kept_samples_are_bounded_and_counted() {
        let mut seen = seen(&[]);
        (0..MAX_SAMPLES + 1).for_each(|_| seen.add(Duration::from_micros(50)));
        assert_eq!(seen.forgotten + seen.samples.len(), MAX_SAMPLES + 1);
        assert!(seen.samples.len() <= MAX_SAMPLES);
    }

    #[test]
    fn probe_counts_until_dropped() {
        let probe = SpeedProbe::start(&Processors::available(), None);
        let began = probe.read();
        let deadline = Instant::now() + Duration::from_secs(60);
        let took_us = loop {
            if let Some(took_us) = probe.between_us(began, probe.read()) {
                break took_us;
            }
            assert!(Instant::now() < deadline, "it never computes");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(took_us > 0.0);
        let seen = Arc::downgrade(&probe.seen);
        drop(probe);
        assert!(seen.upgrade().is_none(), "its thread has ended");
    }
}
