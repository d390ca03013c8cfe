//! The clock that the threads of a run share: cheap to read, and precise to wait for.
//!
//! Every operation is framed by readings, so their cost is the generator's cost. The kernel's clock takes some 25 ns
//! through a library call; the processor's counter behind it takes a third of that. Where the kernel itself trusts the
//! counter, it is read directly, and compared with the kernel's clock when the run ends ([`MonotonicClock::drift`]).
//!
//! This is the kernel's clock that no time server adjusts (`CLOCK_MONOTONIC_RAW`). A time server may speed up or slow
//! down the other one by far more than any counter's error, until the time of day is correct.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A thread's view of time, in nanoseconds since an origin that all threads of a run share.
pub(crate) trait RunClock {
    fn now_ns(&self) -> u64;

    /// Waits for `instant_ns`, or until `stop` is set; returns at once if it has passed. Returns the time at the end.
    fn wait_until_ns(&self, instant_ns: u64, stop: &AtomicBool) -> u64;
}

/// A sleep may wake up this late on an idle machine: the remainder is spent spinning.
const SPIN_NS: u64 = 60_000;
/// No single sleep is longer, so that a stop is noticed.
const MAX_SLEEP_NS: u64 = 50_000_000;
/// How long the counter is compared with the kernel's clock, twice, before it is used. A pair of readings is some 50 ns
/// apart, so the rate is known to 5 parts in a million.
const COMPARISON: Duration = Duration::from_millis(10);
/// How much two comparisons may differ.
const TOLERATED_DIFFERENCE: f64 = 100e-6;
/// How much a run's clock may differ from the kernel's at the end: the precision of measured seconds.
pub(crate) const TOLERATED_DRIFT: f64 = 200e-6;
/// Over less time than this, drift can't be told from the noise of the readings.
const MIN_CHECK_NS: u64 = 100_000_000;

/// The machine's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MonotonicClock {
    source: ClockSource,
    spins: bool,
}

#[derive(Clone, Copy, Debug)]
enum ClockSource {
    Counter(TimestampCounter),
    Kernel { origin: Instant },
}

/// The processor's time stamp counter, from an origin on.
#[derive(Clone, Copy, Debug)]
struct TimestampCounter {
    origin_ticks: u64,
    /// The kernel's time at that moment.
    origin_kernel_ns: u64,
    /// Nanoseconds per tick, times 2^32.
    scale: u64,
}

impl TimestampCounter {
    #[inline]
    fn ns_at(self, ticks: u64) -> u64 {
        // The origin may have been read on a core that is a few ticks ahead.
        let passed = ticks.saturating_sub(self.origin_ticks);
        ((u128::from(passed) * u128::from(self.scale)) >> 32) as u64
    }
}

impl MonotonicClock {
    /// Counts from now on. `spins` burns the last 60 us of every wait: this is more precise, but costs a core.
    pub(crate) fn start(spins: bool) -> Self {
        let counter = counter_scale().zip(paired_reading()).map(|(scale, (kernel_ns, ticks))| {
            TimestampCounter { origin_ticks: ticks, origin_kernel_ns: kernel_ns, scale }
        });
        match counter {
            Some(counter) => MonotonicClock { source: ClockSource::Counter(counter), spins },
            None => MonotonicClock::from_kernel(spins),
        }
    }

    /// The same, using only the kernel's clock.
    pub(crate) fn from_kernel(spins: bool) -> Self {
        MonotonicClock { source: ClockSource::Kernel { origin: Instant::now() }, spins }
    }

    /// The clock's reading.
    #[cfg(test)]
    fn name(&self) -> &'static str {
        match self.source {
            ClockSource::Counter(_) => "tsc",
            ClockSource::Kernel { .. } => "kernel",
        }
    }

    /// How much faster this clock has run than the kernel's since its origin: 1e-6 is a microsecond per second. Zero
    /// while too little time has passed to determine it.
    pub(crate) fn drift(&self) -> f64 {
        let ClockSource::Counter(counter) = self.source else { return 0.0 };
        let Some((kernel_ns, ticks)) = paired_reading() else { return 0.0 };
        let passed_ns = kernel_ns.saturating_sub(counter.origin_kernel_ns);
        if passed_ns < MIN_CHECK_NS {
            return 0.0;
        }
        counter.ns_at(ticks) as f64 / passed_ns as f64 - 1.0
    }
}

impl RunClock for MonotonicClock {
    #[inline]
    fn now_ns(&self) -> u64 {
        match self.source {
            ClockSource::Counter(counter) => counter.ns_at(ticks()),
            ClockSource::Kernel { origin } => origin.elapsed().as_nanos() as u64,
        }
    }

    fn wait_until_ns(&self, instant_ns: u64, stop: &AtomicBool) -> u64 {
        let margin_ns = if self.spins { SPIN_NS } else { 0 };
        loop {
            let now_ns = self.now_ns();
            if now_ns >= instant_ns || stop.load(Ordering::Relaxed) {
                return now_ns;
            }
            let remaining_ns = instant_ns - now_ns;
            if remaining_ns > margin_ns {
                std::thread::sleep(Duration::from_nanos((remaining_ns - margin_ns).min(MAX_SLEEP_NS)));
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, it has no operands, and touches no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Never called: there is no scale for a counter that isn't there.
#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

/// Nanoseconds per tick, times 2^32; `None` where the counter is not reliable. Determined once per process.
fn counter_scale() -> Option<u64> {
    static SCALE: OnceLock<Option<u64>> = OnceLock::new();
    *SCALE.get_or_init(|| if is_trusted() { measured_scale() } else { None })
}

/// Whether the kernel keeps its own time by the counter, so that it is the same for all cores and never stops. In a
/// virtual machine this may happen through the host's clock: then the processor must report that the counter is steady.
fn is_trusted() -> bool {
    if !cfg!(target_arch = "x86_64") {
        return false;
    }
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.unwrap_or_default();
    let cpuinfo = || std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    is_trusted_as(source.trim(), cpuinfo)
}

fn is_trusted_as(source: &str, cpuinfo: impl FnOnce() -> String) -> bool {
    match source {
        "tsc" => true,
        "kvm-clock" | "hyperv_clocksource_tsc_page" => {
            let text = cpuinfo();
            let flags = text.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
            ["constant_tsc", "nonstop_tsc"]
                .iter()
                .all(|flag| flags.split_whitespace().any(|word| word == *flag))
        }
        _ => false,
    }
}

/// The kernel's clock that no time server adjusts; `None` where there is none.
#[cfg(target_os = "linux")]
fn kernel_ns() -> Option<u64> {
    // SAFETY: an all-zero timespec is valid, and clock_gettime only writes into the one it is given.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        if libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &mut time) != 0 {
            return None;
        }
        time
    };
    Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(not(target_os = "linux"))]
fn kernel_ns() -> Option<u64> {
    None
}

/// The kernel's nanoseconds and the counter's ticks at nearly the same time: the closest of a few attempts.
fn paired_reading() -> Option<(u64, u64)> {
    let mut closest = None;
    for _ in 0..16 {
        let before = ticks();
        let kernel_ns = kernel_ns()?;
        // An interrupted attempt has readings that are far apart.
        let apart = ticks().saturating_sub(before);
        if closest.is_none_or(|(least, _, _)| apart < least) {
            closest = Some((apart, kernel_ns, before.wrapping_add(apart / 2)));
        }
    }
    closest.map(|(_, kernel_ns, ticks)| (kernel_ns, ticks))
}

fn measured_scale() -> Option<u64> {
    let mut readings = [paired_reading()?; 3];
    for reading in &mut readings[1..] {
        std::thread::sleep(COMPARISON);
        *reading = paired_reading()?;
    }
    scale_of(&readings)
}

/// The scale of a counter from three readings (kernel's nanoseconds, ticks); `None` when it did not keep its rate.
fn scale_of(readings: &[(u64, u64); 3]) -> Option<u64> {
    let rate = |from: (u64, u64), to: (u64, u64)| {
        let ticks = to.1.checked_sub(from.1).filter(|&ticks| ticks > 0)?;
        Some(to.0.checked_sub(from.0)? as f64 / ticks as f64)
    };
    let [first, second, third] = *readings;
    let (earlier, later) = (rate(first, second)?, rate(second, third)?);
    let difference = (later / earlier - 1.0).abs();
    if difference.is_nan() || difference > TOLERATED_DIFFERENCE {
        return None;
    }
    // Over both intervals together, the error of a reading weighs half as much.
    let scale = rate(first, third)? * 4_294_967_296.0;
    // From 10 GHz down to 10 MHz: anything else is no counter of this kind.
    (4.2e8..4.3e11).contains(&scale).then_some(scale as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_gigahertz_counter_reads_in_nanoseconds() {
        let scale = scale_of(&[(0, 77), (10_000_000, 30_000_077), (20_000_000, 60_000_077)]).unwrap();
        let counter = TimestampCounter { origin_ticks: 77, origin_kernel_ns: 0, scale };
        for (seconds, ticks) in [(1u64, 3_000_000_000u64), (86_400, 259_200_000_000_000)] {
            let found_ns = counter.ns_at(ticks + 77);
            assert!(found_ns.abs_diff(seconds * 1_000_000_000) <= 1 + seconds, "{found_ns}");
        }
        assert_eq!((counter.ns_at(77), counter.ns_at(70)), (0, 0));
    }

    #[test]
    fn unsteady_or_stopped_counter_is_not_used() {
        assert_eq!(scale_of(&[(0, 0), (10_000_000, 30_000_000), (20_000_000, 50_000_000)]), None);
        assert_eq!(scale_of(&[(0, 5), (10_000_000, 5), (20_000_000, 5)]), None);
        assert_eq!(scale_of(&[(0, 500), (10_000_000, 400), (20_000_000, 300)]), None);
        // A hundred ticks a second can't be such a counter.
        assert_eq!(scale_of(&[(0, 0), (1_000_000_000, 100), (2_000_000_000, 200)]), None);
    }

    #[test]
    fn kernel_decides_whether_counter_is_used() {
        let flags = |text: &'static str| move || format!("processor\t: 0\nflags\t\t: fpu {text} sse\n");
        assert!(is_trusted_as("tsc", || unreachable!("the kernel's word is enough")));
        assert!(is_trusted_as("kvm-clock", flags("constant_tsc tsc nonstop_tsc")));
        assert!(!is_trusted_as("kvm-clock", flags("tsc constant_tsc")));
        assert!(!is_trusted_as("kvm-clock", String::new));
        assert!(!is_trusted_as("hpet", flags("constant_tsc nonstop_tsc")));
        assert!(!is_trusted_as("", flags("constant_tsc nonstop_tsc")));
    }

    #[test]
    fn time_never_goes_back_and_waits_end_punctually() {
        let stop = AtomicBool::new(false);
        for clock in
            [MonotonicClock::start(false), MonotonicClock::start(true), MonotonicClock::from_kernel(false)]
        {
            let mut last_ns = 0;
            for _ in 0..10_000 {
                let now_ns = clock.now_ns();
                assert!(now_ns >= last_ns, "{} after {last_ns}", now_ns);
                last_ns = now_ns;
            }
            let due_ns = clock.now_ns() + 2_000_000;
            assert!(clock.wait_until_ns(due_ns, &stop) >= due_ns);
            assert!(clock.wait_until_ns(0, &stop) >= due_ns);
        }
        stop.store(true, Ordering::Relaxed);
        let clock = MonotonicClock::start(false);
        assert!(clock.wait_until_ns(u64::MAX, &stop) < u64::MAX);
    }

    #[test]
    fn clock_keeps_kernel_time() {
        let clock = MonotonicClock::start(false);
        assert_eq!(clock.drift(), 0.0, "too early to tell");
        std::thread::sleep(Duration::from_millis(150));
        assert!(clock.drift().abs() < TOLERATED_DRIFT, "{} of {}", clock.drift(), clock.name());
        assert_eq!(MonotonicClock::from_kernel(false).drift(), 0.0);
    }

    #[test]
    fn counter_running_past_kernel_clock_shows_drift() {
        let clock = MonotonicClock::start(false);
        let ClockSource::Counter(mut counter) = clock.source else { return };
        // The kernel misses one of eleven tenths of a second.
        let ticks = (1_100_000_000u128 << 32) / u128::from(counter.scale);
        counter.origin_ticks = counter.origin_ticks.saturating_sub(ticks as u64);
        counter.origin_kernel_ns = counter.origin_kernel_ns.saturating_sub(1_000_000_000);
        let drift = MonotonicClock { source: ClockSource::Counter(counter), ..clock }.drift();
        assert!((drift - 0.1).abs() < 0.01, "{drift}");
    }
}
