//! What a worker generates load with: a way to connect to the systems of jobs, and a clock to begin by.

use std::time::{Duration, Instant};

use underlay_workload::client::{Client, ClientError};

use crate::job::Job;

/// Makes a job's connections: called once a thread, at the same time.
pub type Connect = Box<dyn Fn(u32) -> Result<Box<dyn Client>, ClientError> + Send + Sync>;
/// Finds out how a job's system is reached.
pub type Connector = Box<dyn Fn(&Job) -> Result<Connect, String> + Send + Sync>;

/// Connects for jobs, and knows the time that coordinators ask for.
pub(crate) struct Generator {
    connector: Connector,
    /// Its clock counts from here.
    origin: Instant,
}

impl Generator {
    pub(crate) fn new(connector: Connector) -> Self {
        Generator { connector, origin: Instant::now() }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The instant of which [`now_ns`](Self::now_ns) told.
    pub(crate) fn instant(&self, now_ns: u64) -> Instant {
        self.origin + Duration::from_nanos(now_ns)
    }

    pub(crate) fn connect(&self, job: &Job) -> Result<Connect, String> {
        (self.connector)(job)
    }
}
