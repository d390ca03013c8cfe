//! A worker's load generator: the function that connects to the systems of jobs, and a clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use underlay_record::StoppedProcess;
use underlay_sync::Mutex;
use underlay_workload::client::{Client, ClientError};
use underlay_workload::{RunHandle, RunWindow};

use crate::job::RemoteJob;

/// Opens a job's connections. It is called once per thread, by all of them at the same time.
pub type ConnectionOpener = Box<dyn Fn(u32) -> Result<Box<dyn Client>, ClientError> + Send + Sync>;
/// Returns the function that connects to a job's system.
pub type JobConnector = Box<dyn Fn(&RemoteJob) -> Result<ConnectionOpener, String> + Send + Sync>;

/// Returns which other processes of a worker were stopped in a window of its run, as clients are that run in a process
/// of their own.
pub type StoppedIn = Box<dyn Fn(&RunWindow) -> Vec<StoppedProcess> + Send + Sync>;
/// Begins to watch them for one run.
pub type WatchStarter = Box<dyn Fn() -> StoppedIn + Send + Sync>;

/// Connects to the systems of jobs, and has the clock that coordinators ask for.
pub(crate) struct LoadGenerator {
    connector: JobConnector,
    watch: Option<WatchStarter>,
    /// The start of its clock.
    origin: Instant,
    /// The current run, for this worker's progress reports.
    running: Mutex<Option<Arc<RunHandle<'static>>>>,
}

impl LoadGenerator {
    pub(crate) fn new(connector: JobConnector) -> Self {
        LoadGenerator { connector, watch: None, origin: Instant::now(), running: Mutex::new(None) }
    }

    pub(crate) fn watched_by(self, watch: WatchStarter) -> Self {
        LoadGenerator { watch: Some(watch), ..self }
    }

    /// Begins to watch the processes of a run, where somebody can.
    pub(crate) fn watch(&self) -> Option<StoppedIn> {
        self.watch.as_ref().map(|watch| watch())
    }

    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Converts a time of [`now_ns`](Self::now_ns) to an instant.
    pub(crate) fn instant(&self, now_ns: u64) -> Instant {
        self.origin + Duration::from_nanos(now_ns)
    }

    pub(crate) fn set_running(&self, control: Option<Arc<RunHandle<'static>>>) {
        *self.running.lock() = control;
    }

    pub(crate) fn running(&self) -> Option<Arc<RunHandle<'static>>> {
        self.running.lock().clone()
    }

    pub(crate) fn connect(&self, job: &RemoteJob) -> Result<ConnectionOpener, String> {
        (self.connector)(job)
    }
}
