//! The console's questions to its program, since it knows neither systems nor storage.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use underlay_record::{Cell, DeviceGlance, LiveService, NodeState, RunExplanation};
use underlay_report::LoadedRun;

/// All errors are sentences for people.
pub trait ConsoleHost: Send + Sync {
    /// The runs of this user that go on now.
    fn running(&self) -> Vec<RunningRun>;

    /// # Errors
    /// When the run in that directory takes no commands: it has ended, or is another user's.
    fn command_run(&self, directory: &Path, command: RunAction) -> Result<(), String>;

    /// The nodes of the system that this process has under load; none where it has no such system now.
    fn nodes(&self, process: u32) -> Vec<NodeState>;

    /// Sends a node away or brings it back, and says which one it was. A node that starts may take minutes.
    ///
    /// # Errors
    /// When it can't be done, or nothing is under load now.
    fn command_node(&self, process: u32, node: &str, command: NodeAction) -> Result<String, String>;

    /// Storages that this user serves on this host now.
    fn storages(&self) -> Vec<ServedStorageInfo>;

    /// Does something to a device, or to all of a storage; says what was done.
    ///
    /// # Errors
    /// When it can't be done.
    fn fault(&self, storage: &str, device: Option<&str>, action: &FaultAction) -> Result<String, String>;

    /// Other services of ours on this host: volume servers, loads, workers, gateways. Those of runs belong to them.
    fn services(&self) -> Vec<LiveServiceInfo>;

    /// Tells a service to end in order, as SIGTERM does.
    ///
    /// # Errors
    /// When it is none of those, any more.
    fn stop_service(&self, process: u32) -> Result<String, String>;

    /// Where the time of a run's operations went.
    fn explain(&self, loaded: &LoadedRun) -> RunExplanation;

    /// Checks a study's text, which would be in this file.
    fn check(&self, file: &Path, text: &str) -> StudyCheck;

    /// A study's title.
    fn study_title(&self, text: &str) -> Option<String>;

    /// Starts a run of a study as a process of its own, which goes on without the console; says where it is kept.
    ///
    /// # Errors
    /// When it can't be started.
    fn start(&self, study: &Path, below: &Path, short: bool) -> Result<PathBuf, String>;
}

/// A run that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningRun {
    /// Without links.
    pub directory: PathBuf,
    pub process: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunAction {
    /// The cell at this place of the plan, from 0.
    Skip(u32),
    /// As Ctrl-C does.
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeAction {
    Stop,
    Kill,
    Start,
}

#[derive(Clone, Debug, PartialEq)]
pub enum FaultAction {
    /// Everything takes so many times as long.
    Slow {
        factor: f64,
        /// In modelled seconds; until it is cleared where absent.
        for_s: Option<f64>,
    },
    /// The device is gone.
    Vanish,
    /// The power of all of the storage fails; of a pool that of one device.
    PowerCut,
    /// A vanished device is back, and power; other faults stay.
    Return,
    /// All faults are over.
    Clear,
}

/// A storage that is being served.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServedStorageInfo {
    /// Names it in [`ConsoleHost::fault`].
    pub id: String,
    /// The name of the pool whose devices these are, of a volume server.
    pub pool: Option<String>,
    pub directories: Vec<PathBuf>,
    /// Who made it; of a run's pool, the run.
    pub process: Option<u32>,
    pub command: String,
    /// Its maker is gone.
    pub is_orphaned: bool,
    pub devices: Vec<StorageDevice>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StorageDevice {
    pub name: String,
    pub capacity_bytes: u64,
    pub powered: bool,
    pub power_can_be_cut: bool,
    /// It can be given faults. A volume can't: the devices of its pool can.
    pub can_fail: bool,
    /// Its injected faults.
    pub faults: Vec<String>,
    /// Its state in the pool while it is not in normal use: `out of use`.
    pub state: Option<String>,
    pub glance: Option<DeviceGlance>,
}

impl StorageDevice {
    /// All that is not as it should be.
    pub(crate) fn wrong(&self) -> Vec<String> {
        let dark = (!self.powered).then(|| "no power".to_owned());
        dark.into_iter().chain(self.faults.iter().cloned()).chain(self.state.clone()).collect()
    }
}

/// Something of ours that is up.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveServiceInfo {
    /// `volume server`, `load`, `worker`, `gateway`, `mount`.
    pub kind: String,
    pub process: u32,
    pub what: String,
    /// Of a volume server: its devices and its volumes.
    pub parts: Vec<ServicePart>,
    /// Of a load or a worker: what it tells of itself.
    pub live: Option<LiveService>,
    /// Of a gateway: its status, by name.
    pub figures: BTreeMap<String, f64>,
}

/// How old the last moment of a load may be, in seconds, to say what it does now: there is one a second.
const CURRENT_S: f64 = 10.0;

impl LiveServiceInfo {
    /// Whether the last moment that it told is of now: not where the load is over, or the process hangs.
    pub(crate) fn is_current(&self, now_s: f64) -> bool {
        let latest = self.live.as_ref().and_then(|live| live.moments.last());
        latest.is_some_and(|latest| now_s - latest.at_ms as f64 / 1e3 < CURRENT_S)
    }
}

/// A device or a volume of a volume server.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServicePart {
    /// `device`, `volume`.
    pub kind: String,
    pub name: String,
    /// `in use`, `mirror, degraded`.
    pub state: String,
    pub is_bad: bool,
    pub used_bytes: u64,
    pub size_bytes: u64,
}

/// The result of checking a study.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StudyCheck {
    pub mistakes: Vec<StudyMistake>,
    /// The cells of a sound study.
    pub cells: Vec<Cell>,
    pub repetitions: u32,
    /// Wall seconds that measuring takes at least.
    pub measuring_s: f64,
    /// It has a short form.
    pub has_short: bool,
}

impl StudyCheck {
    pub fn is_sound(&self) -> bool {
        self.mistakes.iter().all(|mistake| mistake.is_note)
    }
}

/// A mistake, or a note, at its place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StudyMistake {
    /// That of the study, or of a medium that it names.
    pub file: Option<String>,
    /// From 1, as the column; absent where it has no place in the text.
    pub line: Option<usize>,
    pub column: Option<usize>,
    pub is_note: bool,
    pub message: String,
    pub label: Option<String>,
    pub help: Option<String>,
}
