//! A system under load, both for a cell of a study and for `underlay ycsb`: servers in their memory budgets, on
//! directories that are not in the page cache, driven by the load generator, settled and shut down.

mod at_stop;
pub mod nodes;
mod servers;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use underlay_attach::{
    AttachError, CpuQuota, CpuUsage, GroupLimits, MissingCapability, OwnedResource, ResourceBudget,
    ResourceRegistry, page_cache,
};
use underlay_record::MeasuredWindow;
use underlay_systems::left_elsewhere::RemoteLedger;
use underlay_systems::system::{StoragePaths, System, SystemError, SystemResources, SystemSettings};
use underlay_workload::client::{Client, ClientError};
use underlay_workload::{AcknowledgedWrites, RawLog, RunError, RunHandle, RunSpec};

use crate::machine::ServerShare;
use at_stop::end_on_stop;
pub use servers::StartedServers;

/// One server's storage and budget.
pub struct ServerSite {
    pub paths: StoragePaths,
    /// The system's own memory and its page cache together.
    pub budget_bytes: u64,
    /// Its CPUs; when absent, those of this process.
    pub share: Option<ServerShare>,
}

/// How the servers are held to their budgets.
#[derive(Clone, Copy)]
pub enum BudgetEnforcement<'a> {
    /// Not at all: the system divides its own memory by the budget, and its page cache is the host's.
    None,
    /// The kernel does it, with a group for each server whose name begins with this one.
    Kernel { name: &'a str, registry: &'a ResourceRegistry },
    /// Not at all, but the servers are in such groups all the same, so that a stop ends all their children.
    Grouped { name: &'a str, registry: &'a ResourceRegistry },
}

/// Why a session could not begin or continue.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("stopped")]
    Stopped,
    #[error(transparent)]
    System(#[from] SystemError),
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// Started servers and what holds them to their memory and CPUs. Dropping it ends them at once.
pub struct ServerSession {
    /// Dropped before their budgets: a group with processes can't be removed.
    servers: StartedServers,
    budgets: Vec<ResourceBudget>,
    /// Groups without limits for the servers' tools and clients. They end with the servers, and contain leftover
    /// processes of the user's client programs.
    client_groups: Vec<ResourceBudget>,
    unenforced: Option<MissingCapability>,
}

/// The system's settings, known after its shutdown.
pub struct FinishedSession {
    pub memory_enforced_by: Option<&'static str>,
    /// With several servers, that of the server that came closest to its budget.
    pub memory_peak_bytes: Option<u64>,
}

/// The outcome of a run of the load generator.
pub struct LoadOutcome {
    pub measured: Result<MeasuredWindow, RunError>,
    /// Why the file of single operations is incomplete.
    pub raw_problem: Option<String>,
}

impl ServerSession {
    /// Starts a server at each place, all at the same time. At `stop`, everything started is killed instead of waiting
    /// for the rest. Without control groups this is not possible, and the start continues to its end.
    ///
    /// # Errors
    /// At `stop`, when a server does not start, or when the kernel refuses a budget. If it has no budgets to give, the
    /// session goes on without them, and [`unenforced`](Self::unenforced) says why.
    pub fn start(
        system: &dyn System,
        places: Vec<ServerSite>,
        enforcement: BudgetEnforcement<'_>,
        settings: &SystemSettings,
        stop: &AtomicBool,
    ) -> Result<ServerSession, SessionError> {
        let (budgets, unenforced) = match enforcement {
            BudgetEnforcement::None => (Vec::new(), None),
            BudgetEnforcement::Kernel { name, registry } => budgets(&places, name, registry)?,
            BudgetEnforcement::Grouped { name, registry } => {
                match unlimited_groups(places.len(), name, registry) {
                    Err(AttachError::Missing(_)) => (Vec::new(), None),
                    groups => (groups?, None),
                }
            }
        };
        let ledger = match enforcement {
            BudgetEnforcement::None => RemoteLedger::default(),
            BudgetEnforcement::Kernel { registry, .. } | BudgetEnforcement::Grouped { registry, .. } => {
                ledger(registry)
            }
        };
        let client_groups = match (enforcement, budgets.is_empty()) {
            (
                BudgetEnforcement::Kernel { name, registry } | BudgetEnforcement::Grouped { name, registry },
                false,
            ) => unlimited_groups(places.len(), &format!("{name}-clients"), registry)?,
            _ => Vec::new(),
        };
        // Pages that this process read or wrote while it put data there are not charged to any budget: a server would
        // find them for free.
        page_cache::drop_file_caches(&places.iter().flat_map(directories).collect::<Vec<_>>())?;
        let grounds: Vec<(StoragePaths, SystemResources)> = places
            .into_iter()
            .enumerate()
            .map(|(server, ServerSite { paths, budget_bytes, share })| {
                let resources = SystemResources {
                    budget_bytes,
                    join_files: budgets.get(server).map(ResourceBudget::join_files).unwrap_or_default(),
                    processors: share.as_ref().map(|share| share.cpu.cpus.iter().collect()),
                    modelled_cores: share.map(|share| share.modelled_cores),
                    client_join_files: client_groups
                        .get(server)
                        .map(ResourceBudget::join_files)
                        .unwrap_or_default(),
                    ledger: ledger.clone(),
                };
                (paths, resources)
            })
            .collect();
        let groups: Vec<&ResourceBudget> = budgets.iter().chain(&client_groups).collect();
        let servers = killed_at(stop, &groups, || StartedServers::start(system, &grounds, settings));
        // A failure while everything is being stopped says nothing.
        if stop.load(Ordering::Relaxed) {
            return Err(SessionError::Stopped);
        }
        let servers = servers?;
        Ok(ServerSession { servers, budgets, client_groups, unenforced })
    }

    /// Why the servers are not fully held to their budgets, where the kernel should have done it.
    pub fn unenforced(&self) -> Option<&MissingCapability> {
        self.unenforced.as_ref()
    }

    pub fn servers(&self) -> &StartedServers {
        &self.servers
    }

    /// A connection for a client thread, which always uses the same server.
    ///
    /// # Errors
    /// When the server refuses it.
    pub fn connect(&self, thread: u32) -> Result<Box<dyn Client>, ClientError> {
        self.servers.connect(thread).map_err(|error| ClientError::Lost(error.to_string()))
    }

    /// Calls a function that waits for answers of the servers. At `stop` the wait ends, since it may take minutes in
    /// slow motion.
    pub fn aborted_at<T>(&self, stop: &AtomicBool, act: impl FnOnce() -> T) -> T {
        self.servers.aborted_at(stop, act)
    }

    /// Runs the load generator against the servers. Every measured operation is written to `raw`, and every write is
    /// noted in `writes`.
    pub fn run(
        &self,
        spec: &RunSpec,
        control: &RunHandle<'_>,
        raw: Option<&Path>,
        writes: Option<&Arc<AcknowledgedWrites>>,
    ) -> LoadOutcome {
        let operations = raw.map(|file| {
            let (log, operations) = RawLog::new();
            control.log_operations(log);
            (operations, file)
        });
        std::thread::scope(|scope| {
            let writer = operations
                .map(|(operations, file)| scope.spawn(move || underlay_rawlog::write(operations, file)));
            let connect = |thread| {
                let client = self.connect(thread)?;
                Ok(match writes {
                    Some(writes) => writes.noted(client),
                    None => client,
                })
            };
            let measured = underlay_workload::run(spec, &connect, control);
            // It ends by itself, since the generator has closed its end of the log.
            let written = writer.map(|writer| match writer.join() {
                Ok(written) => written.map(drop).map_err(|error| error.to_string()),
                Err(_) => Err("the raw log's writer panicked".to_owned()),
            });
            LoadOutcome { measured, raw_problem: written.and_then(Result::err) }
        })
    }

    /// Brings all servers to the state that measurements start from. This may take minutes; `stop` ends them at once.
    ///
    /// # Errors
    /// When a server fails or takes longer than `limit`, or at `stop`.
    pub fn settle(&self, limit: Duration, stop: &AtomicBool) -> Result<(), SessionError> {
        self.servers.settle(limit, stop)
    }

    /// Empties the page cache of the servers' files; each of `paths` has the directories of one server.
    ///
    /// # Errors
    /// When the kernel does not drop them.
    pub fn drop_caches<'p>(&self, paths: impl Iterator<Item = &'p [PathBuf]>) -> Result<(), SessionError> {
        for (budget, paths) in self.budgets.iter().zip(paths) {
            budget.drop_caches(paths, false)?;
        }
        Ok(())
    }

    /// From now on no server gets more CPU time than its share. Starting and filling caches should not wait for it.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn hold_cpu(&self) -> Result<(), SessionError> {
        Ok(self.budgets.iter().try_for_each(ResourceBudget::hold_cpu)?)
    }

    /// Lets the servers use all CPU time that there is.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn release_cpu(&self) -> Result<(), SessionError> {
        Ok(self.budgets.iter().try_for_each(ResourceBudget::release_cpu)?)
    }

    /// The servers' quotas of CPU time, where they have any.
    pub fn cpu_quotas(&self) -> Vec<CpuQuota> {
        self.budgets.iter().filter_map(ResourceBudget::cpu_quota).collect()
    }

    /// What holds all servers to their CPUs, if anything does.
    pub fn cpu_enforced_by(&self) -> Option<&'static str> {
        let first = self.budgets.first().and_then(ResourceBudget::cpu_enforced_by)?;
        self.budgets.iter().all(|budget| budget.cpu_enforced_by() == Some(first)).then_some(first)
    }

    /// The servers' CPU times so far, each separately and in order, as far as they can be read.
    pub fn cpu_usage(&self) -> Vec<Option<CpuUsage>> {
        self.budgets.iter().map(ResourceBudget::cpu_usage).collect()
    }

    /// What holds the servers to their budgets, if anything does.
    pub fn memory_enforced_by(&self) -> Option<&'static str> {
        self.budgets.first().map(ResourceBudget::enforced_by)
    }

    /// The memory that all servers use of their budgets now; nothing where it is not counted.
    pub fn memory_used_bytes(&self) -> Option<u64> {
        let used = self.budgets.iter().map(ResourceBudget::usage_bytes).collect::<Option<Vec<u64>>>()?;
        (!used.is_empty()).then(|| used.iter().sum())
    }

    /// The largest use of its budget by a server so far.
    pub fn memory_peak_bytes(&self) -> Option<u64> {
        self.budgets.iter().filter_map(ResourceBudget::peak_bytes).max()
    }

    /// How many processes the kernel has killed for lack of memory in the budgets.
    pub fn oom_kills(&self) -> u64 {
        kills_in(&self.budgets) + kills_in(&self.client_groups)
    }

    /// The control groups of the servers, their tools and their clients; empty where there are none.
    pub fn groups(&self) -> Vec<PathBuf> {
        let all = self.budgets.iter().chain(&self.client_groups);
        all.filter_map(|budget| budget.directories().first().map(|directory| directory.to_path_buf()))
            .collect()
    }

    /// Whether the kernel has killed a process for lack of memory since there were `earlier` of those.
    ///
    /// # Errors
    /// In words, that it has: the remaining processes are no measurement of the system.
    pub fn check_oom_kills(&self, earlier: u64, doing: &str) -> Result<(), String> {
        match self.oom_kills().saturating_sub(earlier) {
            0 => Ok(()),
            1 => Err(format!(
                "the kernel killed a process of the system {doing}, so its figures are meaningless"
            )),
            killed => Err(format!(
                "the kernel killed {killed} processes of the system {doing}, so its figures are meaningless"
            )),
        }
    }

    /// A failure, with what the servers and their budgets report about it.
    pub fn explain(&self, reason: String) -> String {
        let mut text = reason;
        if let Err(error) = self.servers.health() {
            text.push_str(&format!("\n{error}"));
        }
        if kills_in(&self.budgets) > 0 {
            text.push_str("\nthe kernel killed it because memory ran out: give the system more memory");
        }
        if kills_in(&self.client_groups) > 0 {
            text.push_str("\nthe kernel killed a client or a tool because this machine ran out of memory");
        }
        text
    }

    /// Shuts the servers down and removes their budgets, all of them, even if one fails.
    ///
    /// # Errors
    /// The first failure.
    pub fn finish(self) -> Result<FinishedSession, SessionError> {
        let ServerSession { servers, mut budgets, mut client_groups, .. } = self;
        let mut cleared = servers.stop().map_err(SessionError::from);
        // Before the groups are removed, since they hold the peaks.
        let finished = FinishedSession {
            memory_enforced_by: budgets.first().map(ResourceBudget::enforced_by),
            memory_peak_bytes: budgets.iter().filter_map(ResourceBudget::peak_bytes).max(),
        };
        for budget in budgets.iter_mut().chain(&mut client_groups) {
            cleared = cleared.and(budget.remove().map_err(SessionError::from));
        }
        cleared.map(|()| finished)
    }
}

fn kills_in(groups: &[ResourceBudget]) -> u64 {
    groups.iter().map(ResourceBudget::oom_kills).sum()
}

/// Calls a function that starts programs. At `stop`, all present and later processes in these groups are killed.
fn killed_at<T>(stop: &AtomicBool, groups: &[&ResourceBudget], act: impl FnOnce() -> T) -> T {
    if groups.is_empty() {
        return act();
    }
    let kill = || {
        groups.iter().for_each(|group| group.end_processes());
        ControlFlow::Continue(())
    };
    end_on_stop(stop, kill, act)
}

/// A budget for each place. A host that can't limit CPUs gives budgets of memory alone, and a host that can't limit
/// memory either gives none, with the reason.
fn budgets(
    places: &[ServerSite],
    name: &str,
    registry: &ResourceRegistry,
) -> Result<(Vec<ResourceBudget>, Option<MissingCapability>), AttachError> {
    let mut budgets = Vec::new();
    let mut unenforced = None;
    for (server, place) in places.iter().enumerate() {
        let name = format!("{name}-{server}");
        let create = |cpu| {
            ResourceBudget::create(&name, &GroupLimits { memory_bytes: place.budget_bytes, cpu }, registry)
        };
        let cpu = place.share.as_ref().map(|share| share.cpu.clone());
        let created = match create(cpu) {
            Err(AttachError::Missing(missing)) if place.share.is_some() => {
                unenforced = Some(missing);
                create(None)
            }
            created => created,
        };
        match created {
            Ok(budget) => budgets.push(budget),
            Err(AttachError::Missing(missing)) => return Ok((Vec::new(), Some(missing))),
            Err(other) => return Err(other),
        }
    }
    Ok((budgets, unenforced))
}

/// More memory than any host has.
const UNLIMITED_BYTES: u64 = 1 << 50;

/// Resources on other machines are registered like local ones, so that `underlay clean` can name them.
fn ledger(registry: &ResourceRegistry) -> RemoteLedger {
    let registry = registry.clone();
    RemoteLedger::new(move |place| {
        let resource = OwnedResource::ElsewhereContent { place: place.to_owned() };
        let note = registry.note(resource).map_err(|error| error.to_string())?;
        let registry = registry.clone();
        Ok(Box::new(move || registry.forget(note)))
    })
}

fn unlimited_groups(
    count: usize,
    name: &str,
    registry: &ResourceRegistry,
) -> Result<Vec<ResourceBudget>, AttachError> {
    let limits = GroupLimits { memory_bytes: UNLIMITED_BYTES, cpu: None };
    (0..count).map(|server| ResourceBudget::create(&format!("{name}-{server}"), &limits, registry)).collect()
}

/// All directories that a server stores data in.
fn directories(place: &ServerSite) -> impl Iterator<Item = PathBuf> {
    let StoragePaths { data, roles, further_nodes, .. } = &place.paths;
    let further = further_nodes.iter().flat_map(|node| node.data.iter().chain(node.roles.values()));
    data.iter().chain(roles.values()).chain(further).cloned()
}
