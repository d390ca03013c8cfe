//! Watches what requests wait on their way to a daemon's volumes and back: counts it while something is measured, and has the
//! daemon date requests back by what it is now.
//!
//! The way costs more beside other work and less under a steady load than it did when it was measured first. So every second
//! it is found anew from the kernel's accounting, over as many requests as tell something, and what the daemon takes off
//! follows: up in small steps, so that one bad moment does not make requests come too early later, down at once, and
//! never beyond what [`MAX_PATH_US`] allows.
//!
//! Means hide tails. So while something is measured, some 50 small reads a second go to a file of the export that the daemon
//! answers at once, in irregular intervals. Where there is no such file (ublk), there are none.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use underlay_record::{DeviceId, Histogram, PathRecord};
use underlay_storage::paced::PathCost;
use underlay_sync::{Mutex, MutexGuard};

use crate::machine::error::AttachError;
use crate::measurement::aligned_buffer::AlignedBuffer;
use crate::measurement::block_counters::{BlockCounters, statistics_of};
use crate::measurement::path_waits::{Between, WayCosts};
use crate::serving::daemon::control::{Command, MAX_PATH_US, Reply};
use crate::serving::daemon::door::{PROBE_BYTES, VolumeTimes};
use crate::serving::daemon_process::Connection;

const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// What is dated back grows by so much at most in each.
const MAX_STEP_US: f64 = 10.0;
/// On average: few beside a device's requests, enough for a percentile within a minute.
const PROBE_INTERVAL: Duration = Duration::from_millis(20);
/// A device may be in the middle of a slow request.
const REPLY_LIMIT: Duration = Duration::from_secs(60);

/// What is watched.
pub(crate) struct Watched {
    /// The daemon's socket.
    pub control: PathBuf,
    /// Names and block devices, in the daemon's order.
    pub volumes: Vec<(String, PathBuf)>,
    /// The file that is answered at once, where there is one.
    pub probe: Option<PathBuf>,
    /// Wall seconds of a modelled one.
    pub dilation: f64,
    /// What requests are dated back by, by this machine's clock; `None` where none is.
    pub path: Option<PathCost>,
}

/// A thread that watches. It must be [stopped](PathWatch::stop) before the export goes away.
pub(crate) struct PathWatch {
    shared: Arc<Shared>,
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    watched: Watched,
    statistics: Vec<PathBuf>,
    state: Mutex<State>,
}

struct State {
    path: PathCost,
    /// In fast-forward nothing is dated back, and the way is crowded as never in modelled time.
    is_modelled: bool,
    /// What was seen when what is dated back was last looked at.
    followed: Option<Seen>,
    /// As the measurement began; `None` while nothing is measured.
    began: Option<Seen>,
    /// In modelled time.
    probes: Histogram,
    found: Vec<PathRecord>,
}

/// All volumes at one moment.
type Seen = Vec<(BlockCounters, VolumeTimes)>;

impl PathWatch {
    pub(crate) fn start(watched: Watched) -> Result<PathWatch, AttachError> {
        let devices = watched.volumes.iter();
        let statistics = devices.filter_map(|(_, device)| statistics_of(device)).collect();
        let state = State {
            path: watched.path.unwrap_or_default(),
            is_modelled: true,
            followed: None,
            began: None,
            probes: Histogram::default(),
            found: Vec::new(),
        };
        let shared = Arc::new(Shared { watched, statistics, state: Mutex::new(state) });
        let (wake, woken) = mpsc::channel();
        let watching = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("path-watch".into())
            .spawn(move || watching.watch(&woken))
            .map_err(|error| {
                AttachError::failed(format!("could not start the thread that watches the path: {error}"))
            })?;
        Ok(PathWatch { shared, wake: Some(wake), thread: Some(thread) })
    }

    /// The pace has changed.
    pub(crate) fn set_modelled(&self, is_modelled: bool) {
        let mut state = self.shared.state.lock();
        state.is_modelled = is_modelled;
        state.followed = None;
    }

    /// Counts from now on.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub(crate) fn begin(&self) -> Result<(), AttachError> {
        let seen = self.shared.look()?;
        let mut state = self.shared.state.lock();
        state.began = seen;
        state.probes = Histogram::default();
        drop(state);
        if let Some(wake) = &self.wake {
            // It fails when the thread is gone, and then there are no probes.
            let _ = wake.send(());
        }
        Ok(())
    }

    /// What was counted since [`PathWatch::begin`]; nothing where the kernel has no accounting.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub(crate) fn end(&self) -> Result<(), AttachError> {
        let seen = self.shared.look()?;
        let mut state = self.shared.state.lock();
        let began = state.began.take();
        state.found =
            began.zip(seen).map_or_else(Vec::new, |(began, seen)| self.shared.records(&began, &seen, &state));
        Ok(())
    }

    /// What the last measurement has found, one for each volume.
    pub(crate) fn found(&self) -> Vec<PathRecord> {
        self.shared.state.lock().found.clone()
    }

    /// Ends it; when this returns it has nothing open. The daemon must answer or be dead.
    pub(crate) fn stop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            // One that panicked is over as well.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// `None` where the kernel has no accounting.
    fn look(&self) -> Result<Option<Seen>, AttachError> {
        if self.statistics.len() != self.watched.volumes.len() {
            return Ok(None);
        }
        let unreachable = |error| AttachError::io("reach the device daemon at", &self.watched.control, error);
        let mut connection = Connection::open(&self.watched.control, REPLY_LIMIT).map_err(unreachable)?;
        let reply = connection.ask(&Command::PathTimes).map_err(unreachable)?;
        let counters: Option<Vec<BlockCounters>> =
            self.statistics.iter().map(|statistics| BlockCounters::read(statistics)).collect();
        match reply {
            Reply::PathTimes { volumes } => Ok(counters
                .filter(|counters| counters.len() == volumes.len())
                .map(|counters| counters.into_iter().zip(volumes).collect())),
            _ => Err(AttachError::failed("the device daemon did not answer with what requests took")),
        }
    }

    fn records(&self, began: &Seen, ended: &Seen, state: &State) -> Vec<PathRecord> {
        let probes = (state.probes.count() > 0).then(|| state.probes.clone());
        let of = |(((name, device), now), then): (((&String, &PathBuf), _), _)| {
            let between = between(now, then);
            let [reads, writes, flushes] = between.waits(state.path.mib_us, self.watched.dilation);
            PathRecord {
                id: DeviceId::new(name),
                block_device: device.display().to_string(),
                is_direct: between.daemon.devices.is_some(),
                reads,
                writes,
                flushes,
                probes: probes.clone(),
            }
        };
        let volumes = self.watched.volumes.iter().map(|(name, device)| (name, device));
        volumes.zip(ended).zip(began).map(of).collect()
    }

    fn watch(&self, woken: &Receiver<()>) {
        let mut prober = None;
        let mut followed = Instant::now();
        let mut turn = 0_u32;
        loop {
            let is_measuring = self.lock().began.is_some();
            if !is_measuring {
                prober = None;
            } else if prober.is_none() {
                prober = self.watched.probe.as_deref().and_then(Prober::open);
            }
            turn = turn.wrapping_add(1);
            let pause = match (&prober, self.watched.path) {
                (Some(_), _) => irregular(turn),
                (None, Some(_)) => FOLLOW_INTERVAL,
                // Until the next measurement begins.
                (None, None) => Duration::MAX,
            };
            match woken.recv_timeout(pause) {
                Ok(()) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(wall) = prober.as_mut().and_then(Prober::read) {
                let modelled = wall.as_secs_f64() / self.watched.dilation;
                self.lock().probes.record_ns((modelled * 1e9) as u64);
            }
            if self.watched.path.is_some() && followed.elapsed() >= FOLLOW_INTERVAL {
                followed = Instant::now();
                self.follow();
            }
        }
    }

    /// Has the daemon date requests back by what the way costs now. A daemon that is gone says so to those who ask for it.
    fn follow(&self) {
        if !self.lock().is_modelled {
            return;
        }
        let Ok(Some(seen)) = self.look() else { return };
        let mut state = self.lock();
        if !state.is_modelled {
            return;
        }
        let Some(followed) = &state.followed else {
            state.followed = Some(seen);
            return;
        };
        let between: Vec<Between> = seen
            .iter()
            .zip(followed)
            .filter(|((_, times), _)| times.devices.is_some())
            .map(|(now, then)| between(now, then))
            .collect();
        // Too few so far: those to come are added.
        let Some(fixed_us) = WayCosts::fixed_us(&between, &state.path) else { return };
        let path = PathCost { fixed_us: stepped(state.path.fixed_us, fixed_us), ..state.path };
        state.path = path;
        state.followed = Some(seen);
        drop(state);
        let _ = Connection::open(&self.watched.control, REPLY_LIMIT)
            .and_then(|mut connection| connection.ask(&Command::SetPath { path }));
    }
}

fn between(now: &(BlockCounters, VolumeTimes), then: &(BlockCounters, VolumeTimes)) -> Between {
    Between { kernel: now.0.since(&then.0), daemon: now.1.since(&then.1) }
}

/// From what is dated back towards what should be.
fn stepped(from_us: f64, to_us: f64) -> f64 {
    to_us.min(from_us + MAX_STEP_US).clamp(0.0, MAX_PATH_US)
}

/// Pauses between half and one and a half of the interval, so that probes keep step with nothing.
fn irregular(turn: u32) -> Duration {
    const GOLDEN_RATIO: f64 = 0.618_033_988_75;
    PROBE_INTERVAL.mul_f64(0.5 + (f64::from(turn) * GOLDEN_RATIO).fract())
}

/// Reads what is answered at once.
struct Prober {
    file: File,
    buffer: AlignedBuffer,
}

impl Prober {
    fn open(path: &Path) -> Option<Prober> {
        let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path).ok()?;
        Some(Prober { file, buffer: AlignedBuffer::new(PROBE_BYTES as usize) })
    }

    /// How long it took.
    fn read(&mut self) -> Option<Duration> {
        let begun = Instant::now();
        self.file.read_exact_at(self.buffer.bytes(), 0).ok()?;
        Some(begun.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dated_back_rises_slowly_and_falls_at_once() {
        assert_eq!(stepped(20.0, 24.0), 24.0);
        assert_eq!(stepped(20.0, 80.0), 30.0);
        assert_eq!(stepped(80.0, 20.0), 20.0);
        assert_eq!(stepped(95.0, 4000.0), MAX_PATH_US);
        assert_eq!(stepped(5.0, -3.0), 0.0);
    }

    #[test]
    fn probes_are_some_fifty_a_second_in_no_step() {
        let pauses: Vec<Duration> = (0..1000).map(irregular).collect();
        let whole_s: f64 = pauses.iter().map(Duration::as_secs_f64).sum();
        assert!((whole_s - 20.0).abs() < 0.1, "{whole_s}");
        assert!(pauses.iter().all(|pause| (10..=30).contains(&pause.as_millis())));
    }
}
