//! What all pages share: the runs, and the feeds that are followed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use underlay_record::{CellState, NodeState, Run};
use underlay_report::{LoadedRun, RunDirectory};
use underlay_sync::UnsimulatedMutex;

use crate::access::Secret;
use crate::feed::{CellView, Tail, Watched};
use crate::host::{Host, Running};
use crate::runs::{Runs, Summary};

/// Runs whose feeds are followed at once; the one that nobody has asked for longest goes.
const MAX_FOLLOWED: usize = 8;
/// Asking a system for its nodes costs it a little.
const NODES_FRESH: Duration = Duration::from_secs(3);
/// Runs whose records are kept; each may be large.
const MAX_LOADED: usize = 2;

pub(crate) struct Hub {
    pub runs: Runs,
    pub host: Arc<dyn Host>,
    /// Where studies are edited.
    pub studies: PathBuf,
    /// What every form of ours has.
    pub form_secret: Secret,
    followed: UnsimulatedMutex<Vec<Followed>>,
    loaded: UnsimulatedMutex<Vec<Loaded>>,
}

/// How many records a run has, and when one was last written.
type Stamp = (usize, Option<SystemTime>);

struct Loaded {
    name: String,
    stamp: Stamp,
    run: Arc<LoadedRun>,
}

struct Followed {
    name: String,
    asked: Instant,
    run: Arc<UnsimulatedMutex<FollowedRun>>,
}

/// A run with its feed.
pub(crate) struct FollowedRun {
    pub name: String,
    pub directory: PathBuf,
    pub run: Run,
    pub watched: Watched,
    /// The process that goes on with it now.
    pub process: Option<u32>,
    pub nodes: Vec<NodeState>,
    nodes_at: Option<Instant>,
    tail: Tail,
    /// The round whose records have been looked at.
    round: Option<u32>,
    /// What records say of cells that the feed does not tell of.
    recorded: HashMap<u32, CellView>,
}

impl FollowedRun {
    /// What is known of a cell.
    pub(crate) fn cell(&self, position: u32) -> CellView {
        let told = self.watched.cells.get(&position);
        let view = told.or_else(|| self.recorded.get(&position)).cloned().unwrap_or_default();
        // Its process is gone.
        match view.state {
            CellState::Running if self.process.is_none() => CellView::default(),
            _ => view,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.process.is_some()
    }
}

impl Hub {
    pub(crate) fn new(root: PathBuf, studies: PathBuf, host: Arc<dyn Host>, form_secret: Secret) -> Hub {
        Hub {
            runs: Runs::below(root),
            host,
            studies,
            form_secret,
            followed: UnsimulatedMutex::new(Vec::new()),
            loaded: UnsimulatedMutex::new(Vec::new()),
        }
    }

    pub(crate) fn list(&self) -> Vec<Summary> {
        let running: Vec<PathBuf> = self.host.running().into_iter().map(|one| one.directory).collect();
        self.runs.list(&running)
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
        if let Some(known) = self.followed.lock().iter_mut().find(|known| known.name == name) {
            known.asked = Instant::now();
            return Ok(Arc::clone(&known.run));
        }
        let run = Arc::new(UnsimulatedMutex::new(FollowedRun {
            name: name.to_owned(),
            run: self.runs.head(name)?,
            tail: Tail::new(&directory),
            directory,
            watched: Watched::default(),
            process: None,
            nodes: Vec::new(),
            nodes_at: None,
            round: None,
            recorded: HashMap::new(),
        }));
        let mut followed = self.followed.lock();
        if followed.len() >= MAX_FOLLOWED
            && let Some(oldest) = (0..followed.len()).min_by_key(|index| followed[*index].asked)
        {
            followed.swap_remove(oldest);
        }
        followed.push(Followed { name: name.to_owned(), asked: Instant::now(), run: Arc::clone(&run) });
        Ok(run)
    }

    /// All records of a run.
    ///
    /// # Errors
    /// When it can't be read.
    pub(crate) fn load(&self, name: &str) -> Result<Arc<LoadedRun>, String> {
        let directory = self.runs.directory(name).ok_or_else(|| format!("there is no run {name:?} here"))?;
        let stamp = stamp_of(&directory);
        let is_known = |one: &&Loaded| one.name == name && one.stamp == stamp;
        if let Some(known) = self.loaded.lock().iter().find(is_known) {
            return Ok(Arc::clone(&known.run));
        }
        let run = Arc::new(RunDirectory::load(&directory).map_err(|error| error.to_string())?);
        let mut loaded = self.loaded.lock();
        loaded.retain(|one| one.name != name);
        if loaded.len() >= MAX_LOADED {
            loaded.remove(0);
        }
        loaded.push(Loaded { name: name.to_owned(), stamp, run: Arc::clone(&run) });
        Ok(run)
    }
}

/// A record that is added or replaced changes it.
fn stamp_of(directory: &Path) -> Stamp {
    let cells = std::fs::read_dir(directory.join("cells")).into_iter().flatten().flatten();
    let changed: Vec<Option<SystemTime>> =
        cells.map(|entry| entry.metadata().ok().and_then(|found| found.modified().ok())).collect();
    let head = std::fs::metadata(directory.join("run.json")).ok().and_then(|found| found.modified().ok());
    (changed.len(), changed.into_iter().flatten().chain(head).max())
}

impl FollowedRun {
    fn refresh(&mut self, hub: &Hub) -> Result<(), String> {
        let watched = &mut self.watched;
        watched.planned = self.run.plan.len();
        let rounds = watched.rounds;
        self.tail
            .read(|line, bytes| watched.take(line, bytes))
            .map_err(|error| format!("{}: the feed can't be read: {error}", self.directory.display()))?;
        let is_first = self.round.is_none();
        if is_first || watched.rounds != rounds {
            // The factor of slow motion, or the plan.
            self.run = hub.runs.head(&self.name)?;
        }
        let real = self.directory.canonicalize().ok();
        let running = hub.host.running();
        let process = running.iter().find(|one: &&Running| Some(&one.directory) == real.as_ref());
        let process = process.map(|one| one.process);
        let has_ended = self.process.is_some() && process.is_none();
        self.process = process;
        if self.round != Some(self.watched.rounds) || has_ended {
            self.round = Some(self.watched.rounds);
            self.recorded = recorded(hub, &self.name).unwrap_or_default();
        }
        match process {
            Some(process) if self.watched.running.is_some() => {
                if self.nodes_at.is_none_or(|at| at.elapsed() >= NODES_FRESH) {
                    self.nodes = hub.host.nodes(process);
                    self.nodes_at = Some(Instant::now());
                    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                    self.watched.nodes_seen(since.as_secs_f64(), &self.nodes);
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

/// What the records of a run say of its cells.
fn recorded(hub: &Hub, name: &str) -> Result<HashMap<u32, CellView>, String> {
    let loaded = hub.load(name)?;
    let of = |position: usize| {
        let planned = &loaded.run.plan[position];
        let record = loaded.records.iter().find(|record| planned.is_recorded_by(record))?;
        let (state, reason) = record.state();
        let view = CellView { state, reason, wall_s: Some(record.wall_s), began_s: None };
        Some((u32::try_from(position).ok()?, view))
    };
    Ok((0..loaded.run.plan.len()).filter_map(of).collect())
}
