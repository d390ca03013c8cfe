//! The processes of members, and what they are asked.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underlay_sync::Mutex;

use super::NAME;
use super::config::JeHaConfig;
use super::formed;
use super::topology::GroupMember;
use super::totals::{IS_MASTER, LAST_ENTRY};
use crate::child::ChildState;
use crate::java::ClassPath;
use crate::java_server;
use crate::jvm::{self, JvmChild, JvmSpec};
use crate::network_namespace::NetworkNamespace;
use crate::nodes::NodeProcess;
use crate::private_file::write_private;
use crate::system::{SystemError, SystemResources};

const POLL: Duration = Duration::from_millis(20);

/// How to start a member, at first and after it was stopped.
pub(super) struct MemberPlan {
    pub config: JeHaConfig,
    pub class_path: ClassPath,
    /// JE's parameters that all have in common.
    pub parameters: BTreeMap<String, String>,
    pub fields: u32,
    /// Who does not know it is not served.
    pub secret: String,
    pub scratch: PathBuf,
    pub network: Arc<NetworkNamespace>,
    /// Options of a Java program in that network.
    pub network_options: Vec<String>,
    pub resources: SystemResources,
    pub timeout: Duration,
    /// How long starting or stopping may take.
    pub limit: Duration,
}

impl MemberPlan {
    /// Starts the process of a member of `group`, which `is_new` if it never was complete. The member has joined when
    /// this returns: so the others must start meanwhile.
    fn start(
        &self,
        member: &GroupMember,
        group: &[GroupMember],
        (home, is_new): (&str, bool),
        give_up: &AtomicBool,
        process_runs: &(dyn Fn() + Sync),
    ) -> Result<JvmChild, SystemError> {
        let division = self.config.division();
        let mut options = self.network_options.clone();
        options.push(division.java_option());
        options.extend(self.resources.java_option());
        // The first member of a new group has nobody to ask. It must not found another where the group is there and
        // only its own storage is new.
        let founds = member.leads && is_new;
        let helpers: Vec<String> = match founds {
            true => vec![member.replication_endpoint()],
            false => group.iter().map(GroupMember::replication_endpoint).collect(),
        };
        let mut properties = self.parameters.clone();
        let own = [
            ("home", home.to_owned()),
            ("fields", self.fields.to_string()),
            ("durability", self.config.durability()),
            ("service", member.service_endpoint()),
            ("secret", self.secret.clone()),
            ("je.rep.groupName", member.group()),
            ("je.rep.nodeName", member.name()),
            ("je.rep.nodeHostPort", member.replication_endpoint()),
            ("je.rep.helperHosts", helpers.join(",")),
            // Of members that have the same, the leader is elected.
            ("je.rep.node.priority", if member.leads { "2" } else { "1" }.to_owned()),
        ];
        properties.extend(own.map(|(name, value)| (name.to_owned(), value)));
        let spec = JvmSpec {
            system: NAME,
            part: Some(&member.name()),
            driver: jvm::JE_REPLICA_DRIVER,
            class_path: self.class_path.clone(),
            properties,
            options,
            scratch: &self.scratch,
            heap_bytes: division.heap_bytes,
            resources: &self.resources,
            namespace: Some(&self.network),
            timeout: self.timeout,
            start_limit: self.limit,
            give_up: Some(give_up),
        };
        JvmChild::start_and_tell(&spec, process_runs)
    }
}

/// Options of a Java program in a network without a name service.
pub(super) fn network_options(scratch: &std::path::Path) -> Result<Vec<String>, SystemError> {
    let hosts = scratch.join("hosts");
    write_private(&hosts, &java_server::hosts())
        .map_err(|error| SystemError::starting(NAME, format!("can't write {}: {error}", hosts.display())))?;
    Ok(vec![java_server::hosts_option(&hosts), "-Djava.net.preferIPv4Stack=true".to_owned()])
}

/// A member with its process.
pub(super) struct RunningMember {
    pub member: GroupMember,
    pub directory: PathBuf,
    pub child: JvmChild,
}

impl NodeProcess for RunningMember {
    fn state(&self) -> &Arc<ChildState> {
        self.child.state()
    }

    fn kill(&self) {
        self.child.kill();
    }
}

impl RunningMember {
    /// `None` while it can't answer, as when it is opened again after a change of masters.
    pub(super) fn gauges(&self) -> Option<BTreeMap<String, f64>> {
        self.child.gauges().ok()
    }

    pub(super) fn figures(&self) -> Option<BTreeMap<String, f64>> {
        self.child.driver_figures().ok()
    }

    pub(super) fn is_master(&self) -> bool {
        self.gauges().is_some_and(|gauges| gauges.get(IS_MASTER) == Some(&1.0))
    }

    fn is_replica(&self) -> bool {
        self.gauges().is_some_and(|gauges| gauges.get(IS_MASTER) == Some(&0.0))
    }

    fn last_entry(&self) -> Option<f64> {
        self.gauges()?.get(LAST_ENTRY).copied()
    }

    /// The last entry of a master.
    fn master_entry(&self) -> Option<f64> {
        let gauges = self.gauges().filter(|gauges| gauges.get(IS_MASTER) == Some(&1.0))?;
        gauges.get(LAST_ENTRY).copied()
    }

    /// Asks until `found` has something, as long as it runs. `problem` is that it has nothing.
    fn wait_for<T>(
        &self,
        found: impl Fn() -> Option<T>,
        during: &'static str,
        problem: &str,
        (began, limit): (Instant, Duration),
    ) -> Result<T, SystemError> {
        loop {
            if let Some(found) = found() {
                return Ok(found);
            }
            let state = self.state();
            if !state.is_running() {
                return Err(state.failed(during, state.describe()));
            }
            if began.elapsed() > limit {
                let name = self.member.name();
                let problem = format!("{name}: {problem} after {:.0} s", limit.as_secs_f64());
                return Err(state.failed(during, problem));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Fails if it has had no open environment for longer than `limit`.
    pub(super) fn check_open(&self, during: &'static str, limit: Duration) -> Result<(), SystemError> {
        let limit_ms = limit.as_millis().to_string();
        self.child.command(during, "check-open", &limit_ms, Duration::ZERO).map(drop)
    }
}

/// Starts all members at once, since none is ready before most of its group are there.
pub(super) fn start_all(
    plan: &MemberPlan,
    all: &[(GroupMember, PathBuf)],
) -> Result<Vec<RunningMember>, SystemError> {
    // Without those that fail, the others might wait for a majority as long as they may.
    let (give_up, first) = (AtomicBool::new(false), Mutex::new(None));
    let noted = |place: &(GroupMember, PathBuf)| {
        let outcome = start_one(plan, all, place, &give_up, &|| {});
        outcome.map_err(|error| {
            give_up.store(true, Ordering::Relaxed);
            first.lock().get_or_insert(error);
        })
    };
    let outcomes: Vec<Result<RunningMember, ()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|one| scope.spawn(|| noted(one))).collect();
        let outcomes = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        outcomes.collect()
    });
    match first.into_inner() {
        Some(error) => Err(error),
        None => Ok(outcomes.into_iter().flatten().collect()),
    }
}

/// Starts one of `all` members, which has joined its group when this returns.
pub(super) fn start_one(
    plan: &MemberPlan,
    all: &[(GroupMember, PathBuf)],
    (member, directory): &(GroupMember, PathBuf),
    give_up: &AtomicBool,
    process_runs: &(dyn Fn() + Sync),
) -> Result<RunningMember, SystemError> {
    let home = directory.to_str().ok_or_else(|| {
        let problem = format!("the path {} is not in UTF-8, which Java needs", directory.display());
        SystemError::starting(NAME, problem)
    })?;
    let of_shard = || all.iter().filter(|(other, _)| other.shard == member.shard);
    let is_new = !of_shard().any(|(_, directory)| formed::is_in(directory));
    let group: Vec<GroupMember> = of_shard().map(|(other, _)| other.clone()).collect();
    let child = plan.start(member, &group, (home, is_new), give_up, process_runs)?;
    Ok(RunningMember { member: member.clone(), directory: directory.clone(), child })
}

/// Runs `work` for each of these members at once and returns the first error.
pub(super) fn for_all(
    members: &[Arc<RunningMember>],
    work: impl Fn(&RunningMember) -> Result<(), SystemError> + Sync,
) -> Result<(), SystemError> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = members.iter().map(|member| scope.spawn(move || work(member))).collect();
        let outcomes = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        let outcomes: Vec<_> = outcomes.collect();
        outcomes.into_iter().collect()
    })
}

/// Makes the leader of each shard its master, so that every run begins with the same ones.
pub(super) fn lead(members: &[Arc<RunningMember>], limit: Duration) -> Result<(), SystemError> {
    const DURING: &str = "starting";
    let deadline = Instant::now() + limit;
    for leader in members.iter().filter(|started| started.member.leads) {
        let name = leader.member.name();
        let others = || {
            let of_shard = |other: &&Arc<RunningMember>| other.member.shard == leader.member.shard;
            members.iter().filter(of_shard).filter(|other| !other.member.leads)
        };
        // A former master believes it still is one for a moment, and may have to open its environment again.
        while !(leader.is_master() && others().all(|other| other.is_replica())) {
            if !leader.is_master()
                && let Some(master) = others().find(|other| other.is_master())
            {
                // It fails where the leader is not connected yet, or is the master by now.
                let left = deadline.saturating_duration_since(Instant::now());
                let _ = master.child.command(DURING, "transfer-master", &name, left);
            }
            // Without one of them it would never be.
            if let Some(ended) = members.iter().find(|one| !one.state().is_running()) {
                return Err(ended.state().failed(DURING, ended.state().describe()));
            }
            if Instant::now() > deadline {
                let problem = format!("{name} is not yet the master after {:.0} s", limit.as_secs_f64());
                return Err(leader.state().failed(DURING, problem));
            }
            std::thread::sleep(POLL);
        }
    }
    Ok(())
}

/// Waits until these members have caught up with their shards' masters. Each shard must have one `among` all members.
pub(super) fn catch_up(
    members: &[Arc<RunningMember>],
    among: &dyn Fn() -> Vec<Arc<RunningMember>>,
    during: &'static str,
    limit: Duration,
) -> Result<(), SystemError> {
    let began = Instant::now();
    let mut goals: BTreeMap<u64, f64> = BTreeMap::new();
    for started in members {
        let shard = started.member.shard;
        let only_master = || {
            let of_shard = among().into_iter().filter(|other| other.member.shard == shard);
            match of_shard.filter_map(|other| other.master_entry()).collect::<Vec<_>>()[..] {
                [last] => Some(last),
                // None yet, or a former one that still believes it is one.
                _ => None,
            }
        };
        let goal = match goals.get(&shard) {
            Some(&goal) => goal,
            None => started.wait_for(only_master, during, "its shard has no master", (began, limit))?,
        };
        goals.insert(shard, goal);
        let caught_up = || started.last_entry().filter(|&last| last >= goal);
        started.wait_for(caught_up, during, "it has not yet got all from its master", (began, limit))?;
    }
    Ok(())
}
