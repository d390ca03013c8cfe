//! How fast this host's CPUs compute while a cell is measured.
//!
//! A core that a hypervisor shares between two guests does less for each in the same CPU time, and no counter of the kernel shows
//! it: nothing was stolen, nobody waited. A fixed computation, timed again and again, does.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use underlay_attach::{Confined, Processors};

use crate::machine::thread_time;
use crate::ticker::Ticker;

/// Less than a thousandth of a CPU: the computation takes some 50 µs.
const EVERY: Duration = Duration::from_millis(100);
const ROUNDS: u64 = 8_000;
/// Independent of each other, so that a core works on several at a time: what shares a core costs those the most.
const LANES: usize = 8;

/// How often the computation was done, and what CPU time it took in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Probed {
    count: u64,
    took: Duration,
}

impl Probed {
    /// The mean of what has been done since `before`; `None` where nothing has.
    pub(super) fn mean_since_us(self, before: Probed) -> Option<f64> {
        let count = self.count.checked_sub(before.count).filter(|count| *count > 0)?;
        Some(self.took.saturating_sub(before.took).as_secs_f64() * 1e6 / count as f64)
    }
}

/// A thread on the system's CPUs, outside of what these are held to. It ends when this is dropped.
pub(super) struct SpeedProbe {
    totals: Arc<Totals>,
    _ticker: Ticker,
}

#[derive(Default)]
struct Totals {
    count: AtomicU64,
    nanoseconds: AtomicU64,
}

impl SpeedProbe {
    /// Where no thread can be had, or none may run there, it counts nothing.
    pub(super) fn on(cpus: &Processors) -> SpeedProbe {
        let totals = Arc::new(Totals::default());
        let (kept, cpus) = (totals.clone(), cpus.clone());
        let ticker = Ticker::start("cpu-speed", EVERY, move || {
            let confined = Confined::to(&cpus).ok()?;
            Some(move || {
                let _there = &confined;
                let took = computed();
                // Whoever reads in between is one computation of a thousand off.
                kept.nanoseconds.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
                kept.count.fetch_add(1, Ordering::Relaxed);
                EVERY
            })
        });
        SpeedProbe { totals, _ticker: ticker }
    }

    pub(super) fn read(&self) -> Probed {
        Probed {
            count: self.totals.count.load(Ordering::Relaxed),
            took: Duration::from_nanos(self.totals.nanoseconds.load(Ordering::Relaxed)),
        }
    }
}

/// Does the computation, and says what CPU time this thread had for it: what others had in between is not its matter.
fn computed() -> Duration {
    let began = thread_time();
    let mut lanes: [u64; LANES] = std::array::from_fn(|lane| black_box(lane as u64));
    for round in 0..ROUNDS {
        for lane in &mut lanes {
            *lane = (*lane ^ round).wrapping_add(*lane << 7).rotate_left(13);
        }
    }
    black_box(lanes);
    thread_time().saturating_sub(began)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_of_what_was_done_in_between() {
        let at = |count, us| Probed { count, took: Duration::from_micros(us) };
        assert_eq!(at(7, 500).mean_since_us(at(3, 300)), Some(50.0));
        assert_eq!(at(3, 300).mean_since_us(at(3, 300)), None);
        assert_eq!(at(0, 0).mean_since_us(at(3, 300)), None);
    }

    #[test]
    fn a_probe_counts_until_it_is_dropped() {
        let probe = SpeedProbe::on(&Processors::available());
        let begun = std::time::Instant::now();
        while probe.read().count < 2 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it never computes");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(probe.read().mean_since_us(Probed::default()).is_some_and(|mean_us| mean_us > 0.0));
        let totals = Arc::downgrade(&probe.totals);
        drop(probe);
        assert!(totals.upgrade().is_none(), "its thread has ended");
    }
}
