//! Reports of a load from several hosts, or a worker, while it is up, for the console and its `/metrics`: on a socket
//! of this user's alone, which the registry lists. Nobody depends on it: where it can't be had, the load goes on
//! without.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use underlay_attach::registry::{OwnedResource, RegistryOwner};
use underlay_attach::{OwnFolder, RegistryNote, ResourceRegistry};
use underlay_files::control_socket::{Answer, Connection, ControlSocket};
use underlay_hosts::{ProgressReport, WorkerProgress};
use underlay_record::{LiveLoad, LiveService, LiveWorker, ServiceMoment};
use underlay_sync::UnsimulatedMutex;

const MAX_LINE_BYTES: u64 = 4096;
const PURPOSE: &str = "service";
const SOCKET: &str = "figures";
/// Between moments.
const INTERVAL: Duration = Duration::from_secs(1);
/// A quarter of an hour, of as many workers in all as 16 have in it.
const MAX_MOMENTS: usize = 900;
const MAX_PARTS: usize = 16 * MAX_MOMENTS;

/// A question: `{"command":"figures","since_ms":0}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum ServiceQuestion {
    /// With the moments after that one.
    Figures { since_ms: u64 },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub(crate) enum ServiceReply {
    Figures(LiveService),
    Failed { problem: String },
}

/// Tells until it is dropped.
pub(crate) struct ServiceReporter {
    service: Arc<UnsimulatedMutex<LiveService>>,
    added: UnsimulatedMutex<Option<Instant>>,
    socket: Option<ControlSocket>,
    folder: Option<OwnFolder>,
    registry: ResourceRegistry,
    note: Option<RegistryNote>,
}

impl ServiceReporter {
    /// `None` where there can be no socket.
    pub(crate) fn begin(
        kind: &str,
        description: String,
        state: &str,
        registry: &ResourceRegistry,
    ) -> Option<ServiceReporter> {
        let folder = OwnFolder::temporary(PURPOSE, registry).ok()?;
        let path = folder.path().join(SOCKET);
        let note = registry.note(OwnedResource::Service { control: path.clone() }).ok()?;
        let service = Arc::new(UnsimulatedMutex::new(LiveService {
            kind: kind.to_owned(),
            what: description,
            state: state.to_owned(),
            moments: Vec::new(),
        }));
        let asked = Arc::clone(&service);
        let answer = move |line: &[u8]| {
            Answer::from(match serde_json::from_slice(line) {
                Ok(ServiceQuestion::Figures { since_ms }) => {
                    ServiceReply::Figures(select_since(&asked.lock(), since_ms))
                }
                Err(error) => ServiceReply::Failed { problem: format!("not a question: {error}") },
            })
        };
        // Made first: any failure from here on removes folder and note.
        let mut reporter = ServiceReporter {
            service,
            added: UnsimulatedMutex::new(None),
            socket: None,
            folder: Some(folder),
            registry: registry.clone(),
            note: Some(note),
        };
        reporter.socket = Some(ControlSocket::listen(&path, MAX_LINE_BYTES, answer).ok()?);
        Some(reporter)
    }

    pub(crate) fn say(&self, state: &str) {
        let mut service = self.service.lock();
        if service.state != state {
            state.clone_into(&mut service.state);
        }
    }

    /// Adds what is so now, where the last moment is a second old or nothing follows.
    pub(crate) fn add(&self, whole: &ProgressReport, workers: &[WorkerProgress]) {
        {
            let mut added = self.added.lock();
            let is_due = added.is_none_or(|instant| instant.elapsed() >= INTERVAL);
            if !is_due && !whole.has_ended {
                return;
            }
            *added = Some(Instant::now());
        }
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut service = self.service.lock();
        // A client that asks for later moments gets this one even where the clock was set back.
        let last_ms = service.moments.last().map_or(0, |last| last.at_ms);
        let moment = ServiceMoment {
            at_ms: (since_epoch.as_millis() as u64).max(last_ms + 1),
            load: load_of(whole),
            operations: whole.operations,
            workers: workers.iter().map(worker_of).collect(),
        };
        let surplus = (service.moments.len() + 1).saturating_sub(max_moments(workers.len()));
        service.moments.drain(..surplus);
        service.moments.push(moment);
    }

    /// Does something while `report` is asked once a second for a worker's part of a run, if there is one.
    pub(crate) fn report_while<T>(
        reporter: Option<&ServiceReporter>,
        report: &(dyn Fn() -> (Option<ProgressReport>, bool) + Sync),
        act: impl FnOnce() -> T,
    ) -> T {
        let Some(reporter) = reporter else { return act() };
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let over = RaisedOnDrop(&is_over);
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let (part, has_coordinator) = report();
                    reporter.say(match (part.is_some(), has_coordinator) {
                        (true, _) => "runs its part of a load",
                        (false, true) => "has a coordinator",
                        (false, false) => "waits for a coordinator",
                    });
                    if let Some(report) = part {
                        reporter.add(&report, &[]);
                    }
                    // Ended soon after what it watches.
                    std::thread::sleep(INTERVAL / 10);
                }
            });
            let outcome = act();
            drop(over);
            outcome
        })
    }
}

impl Drop for ServiceReporter {
    fn drop(&mut self) {
        self.socket.take();
        self.folder.take();
        if let Some(note) = self.note.take() {
            self.registry.forget(note);
        }
    }
}

/// How many moments of so many workers are kept.
pub(crate) fn max_moments(workers: usize) -> usize {
    MAX_MOMENTS.min(MAX_PARTS / workers.max(1)).max(1)
}

struct RaisedOnDrop<'a>(&'a AtomicBool);

impl Drop for RaisedOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn select_since(service: &LiveService, since_ms: u64) -> LiveService {
    let later = service.moments.iter().filter(|moment| moment.at_ms > since_ms);
    LiveService { moments: later.cloned().collect(), ..without_moments(service) }
}

fn without_moments(service: &LiveService) -> LiveService {
    let LiveService { kind, what: description, state, .. } = service;
    LiveService { kind: kind.clone(), what: description.clone(), state: state.clone(), moments: Vec::new() }
}

fn load_of(report: &ProgressReport) -> LiveLoad {
    LiveLoad {
        throughput_per_s: report.throughput_per_s,
        mean_us: report.mean_us,
        p50_us: report.p50_us,
        p99_us: report.p99_us,
        errors: report.errors,
    }
}

fn worker_of(worker: &WorkerProgress) -> LiveWorker {
    let state = match (worker.is_lost, worker.has_failed, worker.report.has_ended) {
        (true, ..) => "lost",
        (_, true, _) => "failed",
        (.., true) => "done",
        _ => "running",
    };
    LiveWorker {
        name: worker.worker.clone(),
        state: state.to_owned(),
        load: load_of(&worker.now()),
        operations: worker.report.operations,
    }
}

/// The loads and workers of this user that tell of themselves: owner and socket, oldest first.
pub(crate) fn controls(registry: &ResourceRegistry) -> Vec<(RegistryOwner, PathBuf)> {
    registry.service_controls().into_iter().filter(|(_, control)| control.exists()).collect()
}

/// The reports of one of them after a moment; `None` where it does not answer.
pub(crate) fn ask(control: &std::path::Path, since_ms: u64, limit: Duration) -> Option<LiveService> {
    let mut connection = Connection::<ServiceQuestion, ServiceReply>::open(control, limit).ok()?;
    match connection.ask(&ServiceQuestion::Figures { since_ms }).ok()? {
        ServiceReply::Figures(service) => Some(service),
        ServiceReply::Failed { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_served_until_end() {
        let folder = tempfile::tempdir().unwrap();
        let registry = ResourceRegistry::open_at(&folder.path().join("registry")).unwrap();
        let reporter =
            ServiceReporter::begin("load", "run of null".to_owned(), "connects", &registry).unwrap();
        let [(owner, control)] = controls(&registry).try_into().unwrap();
        assert_eq!(owner.process.pid, std::process::id());
        let limit = Duration::from_secs(20);
        assert_eq!(ask(&control, 0, limit).unwrap().moments, []);
        reporter.say("running");
        let report = ProgressReport {
            operations: 7,
            throughput_per_s: 5.0,
            mean_us: 3.0,
            ..ProgressReport::default()
        };
        let worker =
            |name: &str| WorkerProgress { worker: name.to_owned(), report, ..WorkerProgress::default() };
        let workers = [
            worker("a:1"),
            WorkerProgress { is_lost: true, ..worker("b:1") },
            WorkerProgress { has_failed: true, ..worker("c:1") },
            WorkerProgress { report: ProgressReport { has_ended: true, ..report }, ..worker("d:1") },
        ];
        reporter.add(&report, &workers);
        // Within the same second, nothing new.
        reporter.add(&report, &[]);
        let service = ask(&control, 0, limit).unwrap();
        assert_eq!((service.state.as_str(), service.moments.len()), ("running", 1));
        let workers = &service.moments[0].workers;
        let seen: Vec<(&str, f64, u64)> = workers
            .iter()
            .map(|one| (one.state.as_str(), one.load.throughput_per_s, one.operations))
            .collect();
        assert_eq!(seen, [("running", 5.0, 7), ("lost", 0.0, 7), ("failed", 0.0, 7), ("done", 0.0, 7)]);
        assert_eq!(ask(&control, service.moments[0].at_ms, limit).unwrap().moments, []);
        // The reporter passes the end on at any time.
        reporter.add(&ProgressReport { has_ended: true, ..report }, &[]);
        assert_eq!(reporter.service.lock().moments.len(), 2);
        drop(reporter);
        assert!(controls(&registry).is_empty() && ask(&control, 0, limit).is_none());
    }

    #[test]
    fn clock_set_back_keeps_moments() {
        let folder = tempfile::tempdir().unwrap();
        let registry = ResourceRegistry::open_at(&folder.path().join("registry")).unwrap();
        let reporter = ServiceReporter::begin("load", String::new(), "running", &registry).unwrap();
        let ended = ProgressReport { has_ended: true, ..ProgressReport::default() };
        reporter.add(&ended, &[]);
        // As if it had been an hour later.
        let late_ms = {
            let mut service = reporter.service.lock();
            service.moments[0].at_ms += 3_600_000;
            service.moments[0].at_ms
        };
        reporter.add(&ended, &[]);
        assert_eq!(select_since(&reporter.service.lock(), late_ms).moments.len(), 1);
    }

    #[test]
    fn long_load_of_many_workers_stays_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let registry = ResourceRegistry::open_at(&folder.path().join("registry")).unwrap();
        let reporter = ServiceReporter::begin("load", String::new(), "running", &registry).unwrap();
        let ended = ProgressReport { has_ended: true, ..ProgressReport::default() };
        let workers = vec![WorkerProgress::default(); 160];
        (0..2 * MAX_MOMENTS).for_each(|_| reporter.add(&ended, &workers));
        assert_eq!(reporter.service.lock().moments.len(), MAX_PARTS / 160);
    }
}
