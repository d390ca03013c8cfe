//! State that all pages share: the runs, and the feeds that are followed.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use underlay_record::{NodeState, PlannedCell, RunHeader};
use underlay_report::{LoadedRun, RunDirectory};
use underlay_sync::UnsimulatedMutex;

use crate::access::AccessSecret;
use crate::feed::{CellView, FeedTail, HistoryEvent, SampleMoment, WatchedFeed};
use crate::host::{ConsoleHost, RunningRun};
use crate::recorded::{RecordedRun, StateTally};
use crate::runs::{RunCatalog, RunSummary};

/// Runs whose feeds are followed at once; the one that nobody has asked for longest goes.
const MAX_FOLLOWED: usize = 8;
/// Asking a system for its nodes costs it a little.
const NODES_FRESH: Duration = Duration::from_secs(3);
/// Runs whose records are kept; each may be large.
const MAX_LOADED: usize = 2;
/// A sample that is older is none of now: there is one a second.
const CURRENT_S: f64 = 6.0;

pub(crate) struct ConsoleHub {
    pub runs: RunCatalog,
    pub host: Arc<dyn ConsoleHost>,
    /// The run that this console was started for.
    opens_on: Option<String>,
    /// Where studies are edited.
    pub studies: PathBuf,
    /// The secret in each of our forms.
    pub form_secret: AccessSecret,
    followed: UnsimulatedMutex<Vec<CachedFollow>>,
    loaded: UnsimulatedMutex<Vec<CachedRun>>,
}

/// How many records a run has, when one was last written, and the number of its head's file.
type RecordsStamp = (usize, Option<SystemTime>, u64);

struct CachedRun {
    name: String,
    stamp: RecordsStamp,
    run: Arc<LoadedRun>,
}

struct CachedFollow {
    name: String,
    asked: Instant,
    run: Arc<UnsimulatedMutex<FollowedRun>>,
}

/// A run with its feed.
pub(crate) struct FollowedRun {
    pub name: String,
    pub directory: PathBuf,
    pub run: RunHeader,
    pub watched: WatchedFeed,
    /// The process that goes on with it now.
    pub process: Option<u32>,
    pub nodes: Vec<NodeState>,
    nodes_at: Option<Instant>,
    tail: FeedTail,
    identity: RunIdentity,
    /// The round whose records have been looked at.
    round: Option<u32>,
    records: RecordedRun,
    /// The cells' states from records.
    recorded: HashMap<u32, CellView>,
}

/// The identity that tells a run's directory from another one of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RunIdentity {
    /// Device, number and birth of the directory: numbers are given again.
    directory: (u64, u64, Option<SystemTime>),
    /// Number and change of `run.json`, which each process replaces.
    head: (u64, i64, i64),
}

impl RunIdentity {
    fn from_directory(directory: &Path) -> Result<RunIdentity, String> {
        let describe = |error: std::io::Error| format!("{}: {error}", directory.display());
        let found = std::fs::symlink_metadata(directory).map_err(describe)?;
        let head = std::fs::metadata(directory.join("run.json")).map_err(describe)?;
        Ok(RunIdentity {
            directory: (found.dev(), found.ino(), found.created().ok()),
            head: (head.ino(), head.ctime(), head.ctime_nsec()),
        })
    }
}

impl FollowedRun {
    fn begin(hub: &ConsoleHub, name: &str, directory: &Path) -> Result<FollowedRun, String> {
        Ok(FollowedRun {
            name: name.to_owned(),
            // Before its text: a later replacement is noticed.
            identity: RunIdentity::from_directory(directory)?,
            run: hub.runs.head(name)?,
            tail: FeedTail::new(directory),
            directory: directory.to_owned(),
            watched: WatchedFeed::default(),
            process: None,
            nodes: Vec::new(),
            nodes_at: None,
            round: None,
            records: RecordedRun::default(),
            recorded: HashMap::new(),
        })
    }

    /// A cell's state: from the feed first while its run goes on, since that has more, and afterwards from the records
    /// alone.
    pub(crate) fn cell(&self, position: u32) -> CellView {
        let watched_view = self.watched.cells.get(&position).filter(|_| self.is_running());
        let mut view = watched_view.or_else(|| self.recorded.get(&position)).cloned().unwrap_or_default();
        view.skip_asked =
            self.is_running() && !view.state.has_ended() && self.watched.skips.contains(&position);
        view
    }

    /// How many cells are in each state.
    pub(crate) fn tally(&self) -> StateTally {
        StateTally::from_states((0..self.run.plan.len()).map(|position| self.cell(position as u32).state))
    }

    pub(crate) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// The cell that an event is about.
    pub(crate) fn planned_of(&self, event: &HistoryEvent) -> Option<&PlannedCell> {
        self.run.plan.get(event.position? as usize)
    }

    /// The latest sample, if it is of now and of what runs now.
    pub(crate) fn current(&self, now_s: f64) -> Option<&SampleMoment> {
        let latest = self.watched.history.latest().filter(|_| self.is_running())?;
        let is_of_now = latest.sample.position == self.watched.running && now_s - latest.at_s <= CURRENT_S;
        is_of_now.then_some(latest)
    }
}

impl ConsoleHub {
    pub(crate) fn new(
        root: PathBuf,
        opens_on: Option<String>,
        studies: PathBuf,
        host: Arc<dyn ConsoleHost>,
        form_secret: AccessSecret,
    ) -> ConsoleHub {
        ConsoleHub {
            runs: RunCatalog::below(root),
            host,
            opens_on,
            studies,
            form_secret,
            followed: UnsimulatedMutex::new(Vec::new()),
            loaded: UnsimulatedMutex::new(Vec::new()),
        }
    }

    /// All runs. Counting the cells of those that nobody has asked for yet takes its time: where there is less, some
    /// have no counts.
    pub(crate) fn list(&self, limit: Option<Duration>) -> Vec<RunSummary> {
        let running: Vec<PathBuf> = self.host.running().into_iter().map(|one| one.directory).collect();
        self.runs.list(&running, limit)
    }

    /// The names of the runs that go on now.
    pub(crate) fn running_below(&self) -> Vec<String> {
        let Ok(root) = self.runs.root().canonicalize() else { return Vec::new() };
        let running = self.host.running().into_iter().map(|one| one.directory);
        let below = running.filter(|directory| directory.parent() == Some(&root));
        below.filter_map(|directory| directory.file_name()?.to_str().map(str::to_owned)).collect()
    }

    /// Whether that is the run that this console was started for, before it has written anything.
    pub(crate) fn is_about_to_begin(&self, name: &str) -> bool {
        self.opens_on.as_deref() == Some(name) && self.runs.directory(name).is_none()
    }

    /// Does something with a run as it is now.
    ///
    /// # Errors
    /// When there is no such run, or it can't be read.
    pub(crate) fn with<T>(&self, name: &str, act: impl FnOnce(&FollowedRun) -> T) -> Result<T, String> {
        let followed = self.follow(name)?;
        let mut run = followed.lock();
        run.refresh(self)?;
        Ok(act(&run))
    }

    fn follow(&self, name: &str) -> Result<Arc<UnsimulatedMutex<FollowedRun>>, String> {
        let directory = self.runs.directory(name).ok_or_else(|| format!("there is no run {name:?} here"))?;
        if let Some(entry) = self.followed.lock().iter_mut().find(|entry| entry.name == name) {
            entry.asked = Instant::now();
            return Ok(Arc::clone(&entry.run));
        }
        let run = Arc::new(UnsimulatedMutex::new(FollowedRun::begin(self, name, &directory)?));
        let mut followed = self.followed.lock();
        if followed.len() >= MAX_FOLLOWED
            && let Some(oldest) = (0..followed.len()).min_by_key(|index| followed[*index].asked)
        {
            followed.swap_remove(oldest);
        }
        followed.push(CachedFollow { name: name.to_owned(), asked: Instant::now(), run: Arc::clone(&run) });
        Ok(run)
    }

    /// All records of a run.
    ///
    /// # Errors
    /// When it can't be read.
    pub(crate) fn load(&self, name: &str) -> Result<Arc<LoadedRun>, String> {
        let directory = self.runs.directory(name).ok_or_else(|| format!("there is no run {name:?} here"))?;
        let stamp = stamp_of(&directory);
        let is_known = |one: &&CachedRun| one.name == name && one.stamp == stamp;
        if let Some(entry) = self.loaded.lock().iter().find(is_known) {
            return Ok(Arc::clone(&entry.run));
        }
        let run = Arc::new(RunDirectory::load(&directory).map_err(|error| error.to_string())?);
        let mut loaded = self.loaded.lock();
        loaded.retain(|one| one.name != name);
        if loaded.len() >= MAX_LOADED {
            loaded.remove(0);
        }
        loaded.push(CachedRun { name: name.to_owned(), stamp, run: Arc::clone(&run) });
        Ok(run)
    }
}

/// A record that is added or replaced changes it.
fn stamp_of(directory: &Path) -> RecordsStamp {
    let cells = std::fs::read_dir(directory.join("cells")).into_iter().flatten().flatten();
    let changed: Vec<Option<SystemTime>> =
        cells.map(|entry| entry.metadata().ok().and_then(|found| found.modified().ok())).collect();
    let head = std::fs::metadata(directory.join("run.json")).ok();
    let number = head.as_ref().map_or(0, |found| found.ino());
    let head = head.and_then(|found| found.modified().ok());
    (changed.len(), changed.into_iter().flatten().chain(head).max(), number)
}

impl FollowedRun {
    fn refresh(&mut self, hub: &ConsoleHub) -> Result<(), String> {
        let identity = RunIdentity::from_directory(&self.directory)?;
        if identity != self.identity {
            // The factor of slow motion, or the plan; or another run has this name now.
            let run = hub.runs.head(&self.name)?;
            if identity.directory != self.identity.directory || run.started_at != self.run.started_at {
                *self = FollowedRun::begin(hub, &self.name, &self.directory)?;
            } else {
                (self.run, self.identity) = (run, identity);
            }
        }
        let watched = &mut self.watched;
        watched.planned = self.run.plan.len();
        self.tail
            .read(|line, bytes| watched.take(line, bytes))
            .map_err(|error| format!("{}: the feed can't be read: {error}", self.directory.display()))?;
        let real = self.directory.canonicalize().ok();
        let running = hub.host.running();
        let process = running.iter().find(|one: &&RunningRun| Some(&one.directory) == real.as_ref());
        let process = process.map(|one| one.process);
        self.process = process;
        if self.round != Some(self.watched.rounds) || process.is_none() {
            self.round = Some(self.watched.rounds);
            self.recorded = self.records.read(&self.directory, &self.run);
        }
        match process {
            Some(process) if self.watched.running.is_some() => {
                if self.nodes_at.is_none_or(|instant| instant.elapsed() >= NODES_FRESH) {
                    self.nodes = hub.host.nodes(process);
                    self.nodes_at = Some(Instant::now());
                    let since_epoch =
                        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                    self.watched.nodes_seen(since_epoch.as_secs_f64(), &self.nodes);
                }
            }
            _ => {
                self.nodes.clear();
                self.nodes_at = None;
            }
        }
        Ok(())
    }
}
