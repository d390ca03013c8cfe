//! Small reads that a daemon answers at once, some 50 a second during a measurement. They show the distribution of the
//! path cost next to other work, and the time until a program runs again after its request.
//!
//! The kernel's counters of a block device leave the latter out: 10 to 50 µs where a CPU sleeps, more where another
//! program has it. The daemon writes the departure time into its answer, and the reader compares. The answer's path
//! through FUSE, some microseconds, is part of both.
//!
//! A probe stands for the programs that use the volume. Where these are unknown, it is a thread like any other. For a
//! system under test, it reads on that system's CPUs, whose sleep counts. It has priority over everything else there,
//! if the kernel permits that. The system's waits for a CPU come from its own load, or from another program, for which
//! there is a separate check.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use underlay_record::Histogram;
use underlay_sync::{Mutex, slices};

use crate::machine::error::AttachError;
use crate::machine::processors::{CpuConfinement, Processors};
use crate::measurement::aligned_buffer::AlignedBuffer;
use crate::serving::daemon::request_meter::{PROBE_BYTES, monotonic_ns};

/// On average: few compared with a device's requests, enough for a percentile within a minute.
const INTERVAL: Duration = Duration::from_millis(20);
/// While nothing is measured, just enough to know by how much to backdate.
const IDLE_INTERVAL: Duration = Duration::from_millis(100);
/// The number of last probes that represent the present.
const RECENT: usize = 25;

/// The probes' results since [`PathProbes::begin`].
#[derive(Clone, Debug, Default)]
pub(crate) struct ProbeTotals {
    /// The round trip, in modelled time.
    pub took: Histogram,
    woken_us: f64,
    woken: u32,
}

impl ProbeTotals {
    /// The mean time until programs ran again, in wall time.
    pub(crate) fn woken_mean_us(&self) -> Option<f64> {
        (self.woken > 0).then(|| self.woken_us / f64::from(self.woken))
    }
}

/// A thread that probes. It must be [stopped](PathProbes::stop) before the file disappears.
pub(crate) struct PathProbes {
    shared: Arc<Mutex<PathProbeState>>,
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct PathProbeState {
    is_measuring: bool,
    /// In fast-forward the path is more crowded than ever in modelled time.
    is_hurried: bool,
    /// Set once: the CPUs of the system under test.
    system: Option<Processors>,
    probed: ProbeTotals,
    recent_woken_us: VecDeque<f64>,
}

impl PathProbes {
    /// Probes `file`. `dilation` is the number of wall seconds per modelled second.
    pub(crate) fn start(file: PathBuf, dilation: f64) -> Result<PathProbes, AttachError> {
        let shared = Arc::<Mutex<PathProbeState>>::default();
        let (wake, woken) = mpsc::channel();
        let probing = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("path-probe".into())
            .spawn(move || probe(&file, dilation, &probing, &woken))
            .map_err(|error| {
                AttachError::failed(format!("could not start the thread that probes the path: {error}"))
            })?;
        Ok(PathProbes { shared, wake: Some(wake), thread: Some(thread) })
    }

    pub(crate) fn set_hurried(&self, is_hurried: bool) {
        let mut state = self.shared.lock();
        state.is_hurried = is_hurried;
        state.recent_woken_us.clear();
    }

    /// From now on probes like one of the programs that run on these CPUs.
    pub(crate) fn stand_for_programs_on(&self, cpus: &Processors) {
        self.shared.lock().system = Some(cpus.clone());
        self.rouse();
    }

    pub(crate) fn begin(&self) {
        let mut state = self.shared.lock();
        state.is_measuring = true;
        state.probed = ProbeTotals::default();
        drop(state);
        self.rouse();
    }

    pub(crate) fn end(&self) -> ProbeTotals {
        let mut state = self.shared.lock();
        state.is_measuring = false;
        std::mem::take(&mut state.probed)
    }

    /// How long a program currently takes to run again after its request, in wall time. This is the median of the last
    /// probes, since a brief disturbance must not affect the backdating.
    pub(crate) fn woken_now_us(&self) -> f64 {
        self.shared.lock().woken_now_us()
    }

    fn rouse(&self) {
        if let Some(wake) = &self.wake {
            // It fails when the thread has ended, and then there are no probes.
            let _ = wake.send(());
        }
    }

    /// Ends it; when this returns it has no open files. The daemon must answer or be dead.
    pub(crate) fn stop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has ended as well.
            let _ = thread.join();
        }
    }
}

impl Drop for PathProbes {
    fn drop(&mut self) {
        self.stop();
    }
}

fn probe(file: &Path, dilation: f64, shared: &Mutex<PathProbeState>, woken: &Receiver<()>) {
    // The creating thread may have short slices, which programs in general don't have.
    let _ = slices::restore();
    let mut on_system: Option<Option<CpuConfinement>> = None;
    let mut prober = None;
    let mut turn = 0_u32;
    loop {
        turn = turn.wrapping_add(1);
        let interval = if shared.lock().is_measuring { INTERVAL } else { IDLE_INTERVAL };
        match woken.recv_timeout(irregular(interval, turn)) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                if shared.lock().is_hurried {
                    continue;
                }
                prober = prober.or_else(|| PathProber::open(file));
                let Some(answered) = prober.as_mut().and_then(PathProber::read) else {
                    prober = None;
                    continue;
                };
                shared.lock().add(&answered, dilation);
            }
        }
        // The lock must be released before it is taken again below.
        let system = if on_system.is_none() { shared.lock().system.clone() } else { None };
        if let Some(system) = system {
            // If either is refused it continues unchanged, on other CPUs: on the system's CPUs it would wait for the
            // system's own threads, which is not part of the path.
            on_system =
                Some(CpuConfinement::confine_to(&system).ok().filter(|_| slices::run_at_once().is_ok()));
        }
    }
}

impl PathProbeState {
    fn woken_now_us(&self) -> f64 {
        median(self.recent_woken_us.iter().copied().collect())
    }

    fn add(&mut self, answered: &ProbeAnswer, dilation: f64) {
        let woken_us = answered.woken.as_secs_f64() * 1e6;
        if self.recent_woken_us.len() == RECENT {
            self.recent_woken_us.pop_front();
        }
        self.recent_woken_us.push_back(woken_us);
        if self.is_measuring {
            self.probed.took.record_ns((answered.took.as_secs_f64() / dilation * 1e9) as u64);
            self.probed.woken_us += woken_us;
            self.probed.woken += 1;
        }
    }
}

/// 0 for an empty list.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Pauses between half and one and a half of the interval, so that probes don't synchronise with anything.
fn irregular(interval: Duration, turn: u32) -> Duration {
    const GOLDEN_RATIO: f64 = 0.618_033_988_75;
    interval.mul_f64(0.5 + (f64::from(turn) * GOLDEN_RATIO).fract())
}

/// A probe's result.
struct ProbeAnswer {
    took: Duration,
    /// From the daemon's answer until the reader ran again.
    woken: Duration,
}

/// Sends reads that are answered at once.
struct PathProber {
    file: File,
    buffer: AlignedBuffer,
}

impl PathProber {
    fn open(path: &Path) -> Option<PathProber> {
        let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path).ok()?;
        Some(PathProber { file, buffer: AlignedBuffer::new(PROBE_BYTES as usize) })
    }

    fn read(&mut self) -> Option<ProbeAnswer> {
        let begun = Instant::now();
        self.file.read_exact_at(self.buffer.bytes(), 0).ok()?;
        let elapsed = begun.elapsed();
        let left_ns = u64::from_le_bytes(*self.buffer.bytes().first_chunk()?);
        let woken = Duration::from_nanos(monotonic_ns().saturating_sub(left_ns)).min(elapsed);
        Some(ProbeAnswer { took: elapsed, woken })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_some_fifty_a_second_in_no_step() {
        let pauses: Vec<Duration> = (0..1000).map(|turn| irregular(INTERVAL, turn)).collect();
        let whole_s: f64 = pauses.iter().map(Duration::as_secs_f64).sum();
        assert!((whole_s - 20.0).abs() < 0.1, "{whole_s}");
        assert!(pauses.iter().all(|pause| (10..=30).contains(&pause.as_millis())));
    }

    #[test]
    fn backdate_follows_recent_probes_without_outliers() {
        let mut state = PathProbeState::default();
        let answered = |woken_us| ProbeAnswer {
            took: Duration::from_micros(2 * woken_us),
            woken: Duration::from_micros(woken_us),
        };
        assert_eq!(state.woken_now_us(), 0.0);
        for _ in 0..RECENT {
            state.add(&answered(40), 2.0);
        }
        state.add(&answered(9000), 2.0);
        assert_eq!((state.woken_now_us(), state.recent_woken_us.len()), (40.0, RECENT));
        // Nothing was measured at that time.
        assert_eq!((state.probed.took.count(), state.probed.woken_mean_us()), (0, None));

        state.is_measuring = true;
        for woken_us in [10, 10, 40] {
            state.add(&answered(woken_us), 2.0);
        }
        assert_eq!(state.probed.woken_mean_us(), Some(20.0));
        assert_eq!(state.probed.took.count(), 3);
        assert!((state.probed.took.mean_us() - 20.0).abs() < 0.5);
    }
}
