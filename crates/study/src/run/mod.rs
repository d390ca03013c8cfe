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

/// How long a system may take to come to rest, with devices that take no modelled time: to compact what was loaded, or
/// to make copies anew since a node was away.
const SETTLE_LIMIT: Duration = Duration::from_secs(600);

/// Why a run did not go on at all. Failures inside a cell are in that cell's record instead.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The user's to mend.
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
    /// Where images and prepared data are kept while it runs; below the run's directory when absent.
    pub work: Option<PathBuf>,
    /// The factor of slow motion, instead of the study's and of the one that would be chosen.
    pub time: Option<f64>,
    /// The part of the study that is run; of a resumed run, now.
    pub limit: CellLimit,
}

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunOutcome {
    pub directory: PathBuf,
    pub completed: usize,
    /// Measured, and disturbed by hand: a resumed run measures them again.
    pub disturbed: usize,
    pub failed: usize,
    pub unavailable: usize,
    /// On command, by the user.
    pub skipped: usize,
    /// Cells that were not run because the user stopped it.
    pub left: usize,
    /// Its real and its expected time; `None` where there was nothing to run.
    pub wall: Option<WallRecord>,
}

/// A glance at the cell that runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveCell {
    /// `warming up`, `measuring`, `loading` ...; of a batch job `map`, `reduce`.
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
    /// 0 to 1, of this phase; absent where it is unknown.
    pub progress: Option<f64>,
}

/// Who watches a run: the command line, or a test.
pub trait RunObserver: Sync {
    /// Before the first cell: how many there are, how many are finished from before, and how long the rest takes.
    fn planned(&self, total: usize, finished: usize, expected: Duration);
    /// Work that belongs to no single cell, or to the one about to start: `loading 440,000 records`.
    fn preparing(&self, activity: &str);
    /// A notice that the user should still see later: that a record is damaged, say.
    fn notice(&self, message: &str) {
        self.preparing(message);
    }
    /// The factor of slow motion that this host has been found to need, why, and how long all of it takes then.
    fn slowed(&self, reason: &str, _expected: Duration) {
        self.notice(reason);
    }
    /// That a cell is measured once more: `remaining` is the estimate for all cells that are left, this one too.
    fn delayed(&self, _remaining: Duration) {}
    fn cell_started(&self, planned: &PlannedCell, number: usize);
    fn live(&self, live: &LiveCell);
    /// `remaining` is the estimate for all cells that are left.
    fn cell_ended(&self, planned: &PlannedCell, record: &RunRecord, remaining: Duration);
    /// Has `act` called once, and may ask `source` meanwhile, about once a second.
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
    /// Adds what it knows.
    fn fill(&self, sample: &mut LiveSample);
    /// Nodes that went away in this cell until now, in the order of their going.
    fn node_events(&self) -> Vec<NodeEventRecord>;
}

/// How a cell ended without figures.
#[derive(Debug)]
pub(crate) enum CellError {
    /// The user said stop: nothing is recorded, and `--resume` runs the cell again.
    Interrupted,
    Unavailable {
        missing: String,
        remedy: String,
    },
    Failed(String),
    /// No rate keeps to the latency that the study asks for: a finding about the storage, with every step that shows
    /// it.
    NoRate {
        reason: String,
        search: Box<SearchRecord>,
    },
}

impl CellError {
    /// With more to its reason, where it has one.
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
