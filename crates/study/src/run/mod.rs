//! Running a study: cell by cell, each recorded as it ends.

mod attached;
mod benchmark;
mod cell;
mod cell_folder;
mod cell_plan;
pub mod certificate;
pub mod control_requests;
mod cpu;
mod cpu_speed;
mod cpu_waits;
mod dataset;
mod directory;
mod drive;
mod events;
mod faults;
mod feed;
mod host;
mod images;
mod interruptible;
mod jobs;
mod kept_logs;
mod machine;
mod parts;
mod preflight;
mod prepared;
mod program_memory;
mod rate_search;
mod round;
mod schedule;
mod slow_motion;
mod space;
mod stopwatch;
pub mod storage;
mod traffic;
mod tree_copy;
mod volume_server;
mod window;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::session::SessionError;
use underlay_attach::{AttachError, MissingCapability};
use underlay_record::{
    CellLimit, FeedEntry, LiveFigure, LiveSample, NodeEventRecord, PlannedCell, RunRecord, SearchRecord,
    WallRecord,
};
use underlay_systems::system::SystemError;

pub use directory::RunDirectory;
pub use machine::{describe as describe_machine, versions};
pub use schedule::{resume, start, start_in, study_of};

/// The time limit for a system to settle, with devices that take no modelled time: to compact what was loaded, or to
/// restore copies after a node was down.
const SETTLE_LIMIT: Duration = Duration::from_secs(600);

/// Why a run did not continue at all. Failures inside a cell are in that cell's record instead.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A mistake that the user can mend.
    #[error("{0}")]
    Mistake(String),
    /// This host lacks something that every cell needs.
    #[error(transparent)]
    Missing(#[from] MissingCapability),
    /// The outside world failed: a full disk, a system that did not start.
    #[error("{0}")]
    Failed(String),
    /// The user stopped it before there was anything to keep.
    #[error("stopped before the first cell")]
    Stopped,
}

/// The cells to run, and the directory of the records.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The run's directory.
    pub directory: PathBuf,
    /// The directory for images and prepared data while it runs; below the run's directory when absent.
    pub work: Option<PathBuf>,
    /// The slow-motion factor, in place of the study's and of the one that would be chosen.
    pub time: Option<f64>,
    /// The part of the study to run; for a resumed run, the part to run now.
    pub limit: CellLimit,
}

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunOutcome {
    pub directory: PathBuf,
    pub completed: usize,
    /// Measured, but disturbed by hand: a resumed run measures them again.
    pub disturbed: usize,
    pub failed: usize,
    pub unavailable: usize,
    /// Skipped on the user's command.
    pub skipped: usize,
    /// Cells that did not run because the user stopped the run.
    pub left: usize,
    /// The actual and the expected time; `None` where there was nothing to run.
    pub wall: Option<WallRecord>,
}

/// A snapshot of the running cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveCell {
    /// `warming up`, `measuring`, `loading` ...; for a batch job `map`, `reduce`.
    pub phase: Cow<'static, str>,
    /// See [`LiveSample::preparing`].
    pub preparing: bool,
    /// The progress that a benchmark command printed last.
    pub figure: Option<LiveFigure>,
    /// Modelled operations per second over the last second.
    pub throughput_per_s: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub errors: u64,
    /// The progress of this phase, 0 to 1; absent where it is unknown.
    pub progress: Option<f64>,
}

/// The observer of a run: the command line, or a test.
pub trait RunObserver: Sync {
    /// Called before the first cell: how many cells there are, how many are already finished, and how long the rest
    /// takes.
    fn planned(&self, total: usize, finished: usize, expected: Duration);
    /// Reports work that belongs to no single cell, or to the one about to start: `loading 440,000 records`.
    fn preparing(&self, activity: &str);
    /// A notice that the user should still see later, for example that a record is damaged.
    fn notice(&self, message: &str) {
        self.preparing(message);
    }
    /// The slow-motion factor that this host turned out to need, the reason, and the expected total time at it.
    fn slowed(&self, reason: &str, _expected: Duration) {
        self.notice(reason);
    }
    /// A cell is measured once more. `remaining` is the estimate for all cells that are left, including this one.
    fn delayed(&self, _remaining: Duration) {}
    fn cell_started(&self, planned: &PlannedCell, number: usize);
    fn live(&self, live: &LiveCell);
    /// `remaining` is the estimate for all cells that are left.
    fn cell_ended(&self, planned: &PlannedCell, record: &RunRecord, remaining: Duration);
    /// Must call `act` once; may query `source` meanwhile, about once a second.
    fn run_sampled(&self, _source: &dyn LiveSource, act: &mut dyn FnMut()) {
        act();
    }
}

/// The observable state of a cell while it runs.
pub trait LiveSource: Sync {
    /// The things below the cell ([`FeedEntry::Ground`]).
    fn ground(&self) -> Option<FeedEntry> {
        None
    }
    /// Adds what it knows to the sample.
    fn fill(&self, sample: &mut LiveSample);
    /// The nodes that have gone down in this cell so far, in that order.
    fn node_events(&self) -> Vec<NodeEventRecord>;
}

/// Why a cell ended without metrics.
#[derive(Debug)]
pub(crate) enum CellError {
    /// The user stopped the run: nothing is recorded, and `--resume` runs the cell again.
    Interrupted,
    Unavailable {
        missing: String,
        remedy: String,
    },
    Failed(String),
    /// No rate meets the latency that the study requires. This is a finding about the storage configuration, with every
    /// step that shows it.
    NoRate {
        reason: String,
        search: Box<SearchRecord>,
    },
}

impl CellError {
    /// Adds a note to the reason, if there is one.
    fn with(self, note: &str) -> Self {
        match self {
            CellError::Failed(reason) => CellError::Failed(reason + note),
            CellError::NoRate { reason, search } => CellError::NoRate { reason: reason + note, search },
            other => other,
        }
    }
}

impl From<SessionError> for CellError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Stopped => CellError::Interrupted,
            SessionError::System(error) => error.into(),
            SessionError::Attach(error) => error.into(),
        }
    }
}

impl From<AttachError> for CellError {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::Missing(MissingCapability { what: capability, remedy }) => {
                CellError::Unavailable { missing: capability, remedy }
            }
            other => CellError::Failed(other.to_string()),
        }
    }
}

impl From<SystemError> for CellError {
    fn from(error: SystemError) -> Self {
        match error {
            SystemError::Missing { missing, remedy, .. } => CellError::Unavailable { missing, remedy },
            other => CellError::Failed(other.to_string()),
        }
    }
}

impl From<std::io::Error> for CellError {
    fn from(error: std::io::Error) -> Self {
        CellError::Failed(error.to_string())
    }
}

pub(crate) fn check_stop(stop: &AtomicBool) -> Result<(), CellError> {
    if stop.load(std::sync::atomic::Ordering::Relaxed) { Err(CellError::Interrupted) } else { Ok(()) }
}
