//! This program's services for the console: runs, nodes, devices and studies of this user on this host.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use underlay_attach::{ResourceRegistry, ServedStorage};
use underlay_console::host::{
    ConsoleHost, FaultAction, LiveServiceInfo, NodeAction, RunAction, RunningRun, ServedStorageInfo,
    StorageDevice, StudyCheck, StudyMistake,
};
use underlay_files::control_socket::Connection;
use underlay_record::{NodeChoice, NodeState, RunExplanation};
use underlay_report::LoadedRun;
use underlay_storage::faults::{DeviceFault, PowerCut};
use underlay_study::plan;
use underlay_study::run::control_requests::{self, RunCommand, RunReply};
use underlay_study::session::nodes::{NodeCommand, NodeReply, controls};
use underlay_study::spec::StudyForm;
use underlay_sync::UnsimulatedMutex;

use super::kept::CachedAnswer;
use super::pools;
use super::services::{self, ServiceTable};
use super::started::{self, RunRequest};
use crate::commands::check::finding;
use crate::commands::predicting;
use crate::commands::read_study::study_of_text;
use crate::exit_codes::ExitFailure;
use crate::output;

/// A run answers at once.
const RUN_LIMIT: Duration = Duration::from_secs(10);
/// A node that starts replays its log and gets what it missed.
const NODE_LIMIT: Duration = Duration::from_secs(3600);
/// A process that is only looked at has to answer within this time.
const SHOWN_LIMIT: Duration = Duration::from_secs(2);
/// Asking a system for its nodes costs it a little.
const NODES_FRESH: Duration = Duration::from_secs(3);
const MAX_PROCESSES: usize = 64;
/// A reading of the registry is valid for so long: many pages ask at once.
const FRESH: Duration = Duration::from_millis(500);

pub(super) struct ThisHost {
    registry: ResourceRegistry,
    running: UnsimulatedMutex<Option<(Instant, Vec<RunningRun>)>>,
    storages: CachedAnswer<Vec<ServedStorageInfo>>,
    services: CachedAnswer<Vec<LiveServiceInfo>>,
    known: ServiceTable,
    starter: UnsimulatedMutex<Sender<RunRequest>>,
    /// By process.
    nodes: UnsimulatedMutex<HashMap<u32, Arc<CachedAnswer<Vec<NodeState>>>>>,
}

impl ThisHost {
    /// # Errors
    /// When there is no thread to start runs by.
    pub(super) fn new(registry: ResourceRegistry) -> Result<ThisHost, ExitFailure> {
        let starter = started::starter()
            .map_err(|error| ExitFailure::Failed(format!("there is no thread to start runs by: {error}")))?;
        Ok(ThisHost {
            starter: UnsimulatedMutex::new(starter),
            registry,
            running: UnsimulatedMutex::new(None),
            storages: CachedAnswer::new(),
            services: CachedAnswer::new(),
            known: ServiceTable::default(),
            nodes: UnsimulatedMutex::new(HashMap::new()),
        })
    }

    fn node_control(&self, process: u32) -> Option<PathBuf> {
        let found = controls(&self.registry).into_iter().find(|(owner, _)| owner.process.pid == process);
        found.map(|(_, control)| control)
    }

    /// The processes of runs that go on.
    fn runs(&self) -> Vec<u32> {
        self.running().into_iter().map(|run| run.process).collect()
    }

    fn served(&self, id: &str) -> Result<ServedStorage, String> {
        ServedStorage::all(&self.registry)
            .into_iter()
            .find(|served| served.control().display().to_string() == id)
            .ok_or_else(|| "that storage is not there any more".to_owned())
    }
}

impl ConsoleHost for ThisHost {
    fn running(&self) -> Vec<RunningRun> {
        let mut cached = self.running.lock();
        if let Some((instant, running)) = &*cached
            && instant.elapsed() < FRESH
        {
            return running.clone();
        }
        let found = control_requests::controls(&self.registry).into_iter();
        let running: Vec<RunningRun> =
            found.map(|(owner, _, directory)| RunningRun { directory, process: owner.process.pid }).collect();
        *cached = Some((Instant::now(), running.clone()));
        running
    }

    fn command_run(&self, directory: &Path, command: RunAction) -> Result<(), String> {
        let real = directory.canonicalize().map_err(|error| format!("{}: {error}", directory.display()))?;
        let found =
            control_requests::controls(&self.registry).into_iter().find(|(_, _, other)| *other == real);
        let Some((_, control, _)) = found else { return Err("the run has ended".to_owned()) };
        let command = match command {
            RunAction::Skip(position) => RunCommand::Skip { position },
            RunAction::Stop => RunCommand::Stop,
        };
        let asked = Connection::<RunCommand, RunReply>::open(&control, RUN_LIMIT);
        match asked.and_then(|mut connection| connection.ask(&command)) {
            Ok(RunReply::Done) => Ok(()),
            Ok(RunReply::Failed { problem }) => Err(problem),
            Err(error) => Err(unreachable_run(&error)),
        }
    }

    fn nodes(&self, process: u32) -> Vec<NodeState> {
        let Some(control) = self.node_control(process) else {
            // The nodes of this cell are not those of the next one.
            self.nodes.lock().remove(&process);
            return Vec::new();
        };
        let cached = {
            let mut nodes = self.nodes.lock();
            // A process that runs now is one of few.
            if nodes.len() > MAX_PROCESSES {
                nodes.clear();
            }
            Arc::clone(nodes.entry(process).or_insert_with(|| Arc::new(CachedAnswer::new())))
        };
        cached.get(NODES_FRESH, move || {
            let asked = Connection::<NodeCommand, NodeReply>::open(&control, SHOWN_LIMIT);
            match asked.and_then(|mut connection| connection.ask(&NodeCommand::List)) {
                Ok(NodeReply::Nodes { nodes }) => nodes,
                _ => Vec::new(),
            }
        })
    }

    fn command_node(&self, process: u32, node: &str, command: NodeAction) -> Result<String, String> {
        NodeChoice::parse(node).map_err(|problem| format!("{node}: {problem}"))?;
        let control = self.node_control(process).ok_or("no system of several nodes is measured now")?;
        let node = node.to_owned();
        let command = match command {
            NodeAction::Stop => NodeCommand::Stop { node },
            NodeAction::Kill => NodeCommand::Kill { node },
            NodeAction::Start => NodeCommand::Start { node },
        };
        let asked = Connection::<NodeCommand, NodeReply>::open(&control, NODE_LIMIT);
        match asked.and_then(|mut connection| connection.ask(&command)) {
            Ok(NodeReply::Done { node }) => Ok(node),
            Ok(NodeReply::Failed { problem }) => Err(problem),
            Ok(NodeReply::Nodes { .. }) => Err("the run gave an unexpected answer".to_owned()),
            Err(error) => Err(unreachable_run(&error)),
        }
    }

    fn storages(&self) -> Vec<ServedStorageInfo> {
        let registry = self.registry.clone();
        let runs = self.runs();
        // One that is just being taken away can't be reached.
        self.storages.get(FRESH, move || {
            let served = ServedStorage::all(&registry);
            served.iter().filter_map(storage).chain(pools::storages(&runs)).collect()
        })
    }

    fn fault(&self, storage: &str, device: Option<&str>, action: &FaultAction) -> Result<String, String> {
        // The next view has to show the result.
        let _forgotten = CacheInvalidator(&self.storages);
        if pools::is_pool(storage) {
            return pools::fault(storage, device, action);
        }
        let served = self.served(storage)?;
        let devices = served.faults().map_err(|error| error.to_string())?;
        let is_meant = |name: &str| device.is_none_or(|device| device == name);
        let meant: Vec<_> = devices.iter().filter(|one| is_meant(&one.device)).collect();
        if meant.is_empty() {
            return Err(format!("there is no device {}", device.unwrap_or("in this storage")));
        }
        let names: Vec<String> = meant.iter().map(|one| one.device.clone()).collect();
        let describe = |error: underlay_attach::AttachError| error.to_string();
        let inject = |fault: DeviceFault, for_s: Option<f64>| -> Result<(), String> {
            fault.check().map_err(|error| error.to_string())?;
            names
                .iter()
                .try_for_each(|name| served.inject(name, fault.clone(), for_s).map(drop).map_err(describe))
        };
        let description = match *action {
            FaultAction::Slow { factor, for_s } => {
                inject(DeviceFault::Slow { factor }, for_s)?;
                format!("{factor} times as slow")
            }
            FaultAction::Vanish => {
                inject(DeviceFault::Vanish, None)?;
                "unplugged".to_owned()
            }
            FaultAction::PowerCut => {
                let cut = PowerCut { seed: 1, torn: false, reordered: false };
                let survival = served.cut_power(&names, cut).map_err(describe)?;
                format!("no power; {} unflushed writes are lost", survival.lost)
            }
            FaultAction::Return => {
                let mut returned: Vec<&str> = Vec::new();
                // First: file systems are mounted on what is there.
                for one in &meant {
                    if one.faults.iter().any(|active| active.fault == DeviceFault::Vanish) {
                        served.bring_back(&one.device).map_err(describe)?;
                        returned.push(&one.device);
                    }
                }
                // An earlier return may have left file systems to be mounted.
                let is_unfinished = served.has_unmounted();
                if is_unfinished || meant.iter().any(|one| !one.powered) {
                    served.restore_power().map_err(describe)?;
                    // It comes back to all that lost it.
                    returned.extend(devices.iter().filter(|one| !one.powered).map(|one| one.device.as_str()));
                }
                returned.sort_unstable();
                returned.dedup();
                return match (returned.is_empty(), is_unfinished) {
                    (true, false) => Err(format!(
                        "{} is there already: it has its power and is plugged in",
                        names.join(", ")
                    )),
                    (true, true) => Ok("its file systems are mounted again".to_owned()),
                    (false, _) => Ok(format!("{}: there again", returned.join(", "))),
                };
            }
            FaultAction::Clear => {
                names.iter().try_for_each(|name| served.clear(Some(name))).map_err(describe)?;
                "without faults".to_owned()
            }
        };
        Ok(format!("{}: {description}", names.join(", ")))
    }

    fn services(&self) -> Vec<LiveServiceInfo> {
        let (registry, table, runs) = (self.registry.clone(), self.known.clone(), self.runs());
        self.services.get(FRESH, move || table.look(&registry, &runs))
    }

    fn stop_service(&self, process: u32) -> Result<String, String> {
        // By the process alone: a service that does not answer can be stopped, too.
        let missing = || format!("process {process} serves nothing of yours any more");
        let pid = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or_else(missing)?;
        // The pidfd names one process throughout: its number may be reused between the look and the signal.
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| match error {
            Errno::SRCH => missing(),
            // A host may forbid that: then no signal is sent, which is no reason to call the process gone.
            other => format!("process {process}: {other}"),
        })?;
        let found = services::found(&Path::new("/proc").join(process.to_string())).ok_or_else(missing)?;
        if found.parent.is_some_and(|parent| self.runs().contains(&parent)) {
            return Err(format!("process {process} serves a run: stop the run instead"));
        }
        pidfd_send_signal(&pidfd, Signal::TERM).map_err(|error| format!("process {process}: {error}"))?;
        Ok(format!("the {} of process {process} ends", found.service.kind))
    }

    fn explain(&self, loaded: &LoadedRun) -> RunExplanation {
        predicting::explained(loaded)
    }

    fn check(&self, file: &Path, text: &str) -> StudyCheck {
        // A text that is typed is never so long, and nothing is read again and again for one.
        match study_of_text(file, text, StudyForm::default()) {
            Ok(study) => {
                let cells = plan::expand(&study);
                let notes = study.notes.findings().iter().map(|one| mistake(finding(&study.notes, one)));
                StudyCheck {
                    mistakes: notes.collect(),
                    cells,
                    repetitions: study.run.repetitions,
                    measuring_s: f64::from(study.run.repetitions)
                        * plan::measuring_wall(&study).as_secs_f64(),
                    has_short: document_of(text).is_some_and(|found| found.contains_key(SHORT)),
                }
            }
            Err(ExitFailure::Findings(findings)) => StudyCheck {
                mistakes: findings.findings().iter().map(|one| mistake(finding(&findings, one))).collect(),
                has_short: document_of(text).is_some_and(|found| found.contains_key(SHORT)),
                ..StudyCheck::default()
            },
            Err(other) => StudyCheck {
                mistakes: vec![StudyMistake { message: other.to_string(), ..StudyMistake::default() }],
                ..StudyCheck::default()
            },
        }
    }

    fn study_title(&self, text: &str) -> Option<String> {
        let document = document_of(text)?;
        let title = document.get("title").or_else(|| document.get("name"))?;
        title.as_str().map(str::to_owned)
    }

    fn start(&self, study: &Path, below: &Path, short: bool) -> Result<PathBuf, String> {
        if !control_requests::controls(&self.registry).is_empty() {
            return Err("another run of yours goes on, and both would be measured beside each other: stop it, or wait".to_owned());
        }
        let (answer, answered) = mpsc::channel();
        let wanted = RunRequest { study: study.to_owned(), below: below.to_owned(), short, answer };
        let ended = || "the thread that starts runs has ended".to_owned();
        self.starter.lock().send(wanted).map_err(|_| ended())?;
        answered.recv().map_err(|_| ended())?
    }
}

/// The section of a study's short form.
const SHORT: &str = "short";

/// Nothing of what is no TOML.
fn document_of(text: &str) -> Option<toml_edit::DocumentMut> {
    text.parse().ok()
}

/// Has an answer that was kept forgotten when this is dropped.
struct CacheInvalidator<'a>(&'a CachedAnswer<Vec<ServedStorageInfo>>);

impl Drop for CacheInvalidator<'_> {
    fn drop(&mut self) {
        self.0.forget();
    }
}

fn unreachable_run(error: &io::Error) -> String {
    use io::ErrorKind::{ConnectionRefused, NotFound, UnexpectedEof};
    match error.kind() {
        NotFound | ConnectionRefused | UnexpectedEof => "it has just ended".to_owned(),
        _ => format!("the run can't be reached: {}", output::without_error_numbers(&error.to_string())),
    }
}

fn mistake(found: crate::commands::check::CheckFinding) -> StudyMistake {
    StudyMistake {
        file: found.file,
        line: found.line,
        column: found.column,
        is_note: found.severity == "note",
        message: found.message,
        label: found.label,
        help: found.help,
    }
}

fn storage(served: &ServedStorage) -> Option<ServedStorageInfo> {
    let (faults, glances) = served.look(SHOWN_LIMIT).ok()?;
    let devices = faults.into_iter().map(|device| StorageDevice {
        glance: glances.iter().find(|glance| glance.id.name == device.device).cloned(),
        name: device.device,
        capacity_bytes: device.capacity_bytes,
        powered: device.powered,
        power_can_be_cut: device.power_cut_armed,
        can_fail: !device.is_remote,
        faults: device.faults.iter().map(|active| active.fault.to_string()).collect(),
        state: None,
    });
    Some(ServedStorageInfo {
        id: served.control().display().to_string(),
        pool: None,
        directories: served.directories(),
        process: served.owner().map(|owner| owner.process.pid),
        command: served.owner().map_or_else(String::new, |owner| owner.command.clone()),
        is_orphaned: served.is_orphaned(),
        devices: devices.collect(),
    })
}
