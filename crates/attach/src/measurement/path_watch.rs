//! Observes the time of requests on their path to a daemon's volumes and back: counts it during a measurement, and
//! makes the daemon backdate requests by its present value.
//!
//! The path costs more next to other work, and less under a steady load, than when it was first measured. So it is
//! computed again twice a second from the kernel's counters, over enough requests. The daemon's backdating follows: up
//! in small steps, so that one bad moment does not make later requests come too early; down at once; and never beyond
//! [`MAX_PATH_US`].
//!
//! Means hide tails, and the kernel's counters end before a waiting program runs again: see
//! [`crate::measurement::path_probes`]. Without a file for probes (ublk), there are none.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use underlay_record::{DeviceId, PathRecord};
use underlay_storage::paced::PathCost;
use underlay_sync::Mutex;

use crate::machine::error::AttachError;
use crate::machine::processors::Processors;
use crate::measurement::block_counters::{BlockCounters, statistics_of};
use crate::measurement::path_probes::{PathProbes, ProbeTotals};
use crate::measurement::path_waits::{PathWaitDelta, WayCosts};
use crate::serving::daemon::control::{DaemonCommand, DaemonConnection, DaemonReply, MAX_PATH_US};
use crate::serving::daemon::request_meter::VolumeTimes;

const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);
/// Backdating grows by at most this much in each step.
const MAX_STEP_US: f64 = 25.0;
/// A device may be in the middle of a slow request.
const REPLY_LIMIT: Duration = Duration::from_secs(60);

/// An observed path.
pub(crate) struct WatchedPath {
    /// The daemon's socket.
    pub control: PathBuf,
    /// Names and block devices, in the daemon's order.
    pub volumes: Vec<(String, PathBuf)>,
    /// The file that is answered at once, if there is one.
    pub probe: Option<PathBuf>,
    /// Wall seconds per modelled second.
    pub dilation: f64,
    /// The backdating of requests, in wall time; `None` if there is none.
    pub path: Option<PathCost>,
}

/// A thread that observes. It must be [stopped](PathWatch::stop) before the export disappears.
pub(crate) struct PathWatch {
    shared: Arc<PathWatchShared>,
    /// Dropping it ends the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct PathWatchShared {
    watched: WatchedPath,
    statistics: Vec<PathBuf>,
    probes: Option<Mutex<PathProbes>>,
    state: Mutex<PathWatchState>,
}

struct PathWatchState {
    path: PathCost,
    /// In fast-forward nothing is backdated, and the path is more crowded than ever in modelled time.
    is_modelled: bool,
    /// The snapshot of the last adjustment of the backdating.
    followed: Option<PathSnapshot>,
    /// The snapshot at the beginning of the measurement; `None` while nothing is measured.
    began: Option<PathSnapshot>,
    found: Vec<PathRecord>,
}

/// All volumes at one moment.
type PathSnapshot = Vec<(BlockCounters, VolumeTimes)>;

impl PathWatch {
    pub(crate) fn start(watched: WatchedPath) -> Result<PathWatch, AttachError> {
        let devices = watched.volumes.iter();
        let statistics = devices.filter_map(|(_, device)| statistics_of(device)).collect();
        let state = PathWatchState {
            path: watched.path.unwrap_or_default(),
            is_modelled: true,
            followed: None,
            began: None,
            found: Vec::new(),
        };
        let dilation = watched.dilation;
        let probes = watched.probe.clone().map(|file| PathProbes::start(file, dilation)).transpose()?;
        let shared = Arc::new(PathWatchShared {
            watched,
            statistics,
            probes: probes.map(Mutex::new),
            state: Mutex::new(state),
        });
        let (end, ended) = mpsc::channel();
        let mut watch = PathWatch { shared: Arc::clone(&shared), end: Some(end), thread: None };
        if shared.watched.path.is_none() {
            // Nothing is backdated.
            return Ok(watch);
        }
        // A failure drops `watch`, and with it the probes.
        let thread = std::thread::Builder::new()
            .name("path-watch".into())
            .spawn(move || shared.follow_until(&ended))
            .map_err(|error| {
                AttachError::failed(format!("could not start the thread that watches the path: {error}"))
            })?;
        watch.thread = Some(thread);
        Ok(watch)
    }

    /// From now on, the waits are those of programs on these CPUs.
    pub(crate) fn stand_for_programs_on(&self, cpus: &Processors) {
        if let Some(probes) = &self.shared.probes {
            probes.lock().stand_for_programs_on(cpus);
        }
    }

    /// The pace has changed.
    pub(crate) fn set_modelled(&self, is_modelled: bool) {
        let mut state = self.shared.state.lock();
        state.is_modelled = is_modelled;
        state.followed = None;
        drop(state);
        if let Some(probes) = &self.shared.probes {
            probes.lock().set_hurried(!is_modelled);
        }
    }

    /// Starts counting.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub(crate) fn begin(&self) -> Result<(), AttachError> {
        let seen = self.shared.look()?;
        self.shared.state.lock().began = seen;
        if let Some(probes) = &self.shared.probes {
            probes.lock().begin();
        }
        Ok(())
    }

    /// The counts since [`PathWatch::begin`]; nothing where the kernel has no counters.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub(crate) fn end(&self) -> Result<(), AttachError> {
        let seen = self.shared.look()?;
        let probed = self.shared.probes.as_ref().map(|probes| probes.lock().end()).unwrap_or_default();
        let mut state = self.shared.state.lock();
        let began = state.began.take();
        let mib_us = state.path.mib_us;
        state.found = began
            .zip(seen)
            .map_or_else(Vec::new, |(began, seen)| self.shared.records(&began, &seen, &probed, mib_us));
        Ok(())
    }

    /// The last measurement's records, one for each volume.
    pub(crate) fn found(&self) -> Vec<PathRecord> {
        self.shared.state.lock().found.clone()
    }

    /// Ends it; when this returns it has no open files. The daemon must answer or be dead.
    pub(crate) fn stop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has ended as well.
            let _ = thread.join();
        }
        if let Some(probes) = &self.shared.probes {
            probes.lock().stop();
        }
    }
}

impl PathWatchShared {
    /// `None` where the kernel has no counters.
    fn look(&self) -> Result<Option<PathSnapshot>, AttachError> {
        if self.statistics.len() != self.watched.volumes.len() {
            return Ok(None);
        }
        let unreachable = |error| AttachError::io("reach the device daemon at", &self.watched.control, error);
        let mut connection =
            DaemonConnection::open(&self.watched.control, REPLY_LIMIT).map_err(unreachable)?;
        let reply = connection.ask(&DaemonCommand::PathTimes).map_err(unreachable)?;
        let counters: Option<Vec<BlockCounters>> =
            self.statistics.iter().map(|statistics| BlockCounters::read(statistics)).collect();
        match reply {
            DaemonReply::PathTimes { volumes } => Ok(counters
                .filter(|counters| counters.len() == volumes.len())
                .map(|counters| counters.into_iter().zip(volumes).collect())),
            _ => Err(AttachError::failed("the device daemon did not answer with the requests' times")),
        }
    }

    fn records(
        &self,
        began: &PathSnapshot,
        ended: &PathSnapshot,
        probed: &ProbeTotals,
        mib_us: f64,
    ) -> Vec<PathRecord> {
        let probes = (probed.took.count() > 0).then(|| probed.took.clone());
        let woken_us = probed.woken_mean_us();
        let dilation = self.watched.dilation;
        let path_record = |(((name, device), now), then): (((&String, &PathBuf), _), _)| {
            let between = between(now, then);
            let [reads, writes, flushes] = between.waits(mib_us, woken_us.unwrap_or_default(), dilation);
            PathRecord {
                id: DeviceId::new(name),
                block_device: device.display().to_string(),
                is_direct: between.daemon.devices.is_some(),
                reads,
                writes,
                flushes,
                probes: probes.clone(),
                woken_mean_us: woken_us.map(|us| us / dilation),
            }
        };
        let volumes = self.watched.volumes.iter().map(|(name, device)| (name, device));
        volumes.zip(ended).zip(began).map(path_record).collect()
    }

    fn follow_until(&self, ended: &Receiver<()>) {
        while ended.recv_timeout(FOLLOW_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            self.follow();
        }
    }

    /// Makes the daemon backdate requests by the present path cost. If the daemon has ended, callers learn that
    /// elsewhere.
    fn follow(&self) {
        if !self.state.lock().is_modelled {
            return;
        }
        let Ok(Some(seen)) = self.look() else { return };
        let woken_us = self.probes.as_ref().map_or(0.0, |probes| probes.lock().woken_now_us());
        let mut state = self.state.lock();
        if !state.is_modelled {
            return;
        }
        let Some(followed) = &state.followed else {
            state.followed = Some(seen);
            return;
        };
        let between: Vec<PathWaitDelta> = seen
            .iter()
            .zip(followed)
            .filter(|((_, times), _)| times.devices.is_some())
            .map(|(now, then)| between(now, then))
            .collect();
        // Too few so far: later ones are added.
        let Some(fixed_us) = WayCosts::fixed_us(&between, &state.path, woken_us) else { return };
        let path = PathCost { fixed_us: stepped(state.path.fixed_us, fixed_us), ..state.path };
        state.path = path;
        state.followed = Some(seen);
        drop(state);
        let _ = DaemonConnection::open(&self.watched.control, REPLY_LIMIT)
            .and_then(|mut connection| connection.ask(&DaemonCommand::SetPath { path }));
    }
}

fn between(now: &(BlockCounters, VolumeTimes), then: &(BlockCounters, VolumeTimes)) -> PathWaitDelta {
    PathWaitDelta { kernel: now.0.delta_since(&then.0), daemon: now.1.delta_since(&then.1) }
}

/// One step from the present backdating towards the target.
fn stepped(from_us: f64, to_us: f64) -> f64 {
    to_us.min(from_us + MAX_STEP_US).clamp(0.0, MAX_PATH_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backdate_rises_slowly_and_falls_immediately() {
        assert_eq!(stepped(20.0, 24.0), 24.0);
        assert_eq!(stepped(20.0, 80.0), 45.0);
        assert_eq!(stepped(80.0, 20.0), 20.0);
        assert_eq!(stepped(240.0, 4000.0), MAX_PATH_US);
        assert_eq!(stepped(5.0, -3.0), 0.0);
    }
}
