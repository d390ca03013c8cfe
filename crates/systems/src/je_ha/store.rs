//! A running store.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use underlay_record::{
    CopyRecord, NodeCondition, NodeRole, NodeShard, NodeState, ShardRecord, TopologyRecord,
};
use underlay_sync::Mutex;
use underlay_workload::client::Client;

use super::NAME;
use super::members::{MemberPlan, RunningMember, catch_up, for_all, start_one};
use super::topology::GroupMember;
use super::totals::{MemberAnswer, MemberTotals};
use crate::jvm::JvmChild;
use crate::nodes::{NodeProcess as _, Roster, SystemNodes, unknown};
use crate::process_memory::resident_bytes;
use crate::system::{RunningSystem, StoragePaths, SystemError};

/// How long the client process may take to end.
const CLIENT_STOP_LIMIT: Duration = Duration::from_secs(30);

/// The members of all shards with a client. The client process is dropped first, before the members.
pub struct JeHaStore {
    client: JvmChild,
    members: Roster<RunningMember>,
    all: Vec<(GroupMember, PathBuf)>,
    topology: TopologyRecord,
    totals: Mutex<MemberTotals>,
    plan: MemberPlan,
}

/// A member's present state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberState {
    /// Unique in the store: `shard1-node2`.
    pub name: String,
    pub shard: u64,
    pub node: u64,
    pub directory: PathBuf,
    pub condition: NodeCondition,
    /// `None` while it does not run.
    pub process: Option<u32>,
    pub is_master: bool,
}

impl JeHaStore {
    /// Members have their environments below `paths`.
    pub(super) fn new(
        client: JvmChild,
        plan: MemberPlan,
        started: Vec<Arc<RunningMember>>,
        paths: &StoragePaths,
    ) -> JeHaStore {
        let topology = topology_of(&started, paths);
        let all = started.iter().map(|one| (one.member.clone(), one.directory.clone())).collect();
        let members = Roster::new(NAME, started.into_iter().map(|one| (one.member.name(), one)));
        JeHaStore { client, members, all, topology, totals: Mutex::default(), plan }
    }

    /// All members, shard by shard, with those that do not run.
    pub fn members(&self) -> Vec<MemberState> {
        let places = self.all.iter().zip(self.members.all());
        let states = places.map(|((member, directory), (name, condition, own))| {
            let own = own.filter(|one| one.state().is_running());
            MemberState {
                name: name.to_owned(),
                shard: member.shard,
                node: member.node,
                directory: directory.clone(),
                condition,
                process: own.as_ref().map(|one| one.state().pid()),
                is_master: own.is_some_and(|one| one.is_master()),
            }
        });
        states.collect()
    }

    /// Shuts a member down as an operator would. The store is healthy without it.
    ///
    /// # Errors
    /// When there is no such member, it does not run, or it had to be killed.
    pub fn stop_member(&self, name: &str) -> Result<(), SystemError> {
        self.members.stop(name, "stopping a member", |member| member.child.stop(self.plan.limit))
    }

    /// Kills a member (SIGKILL), also one that is being started. The store is healthy without it.
    ///
    /// # Errors
    /// When there is no such member, or it does not run.
    pub fn kill_member(&self, name: &str) -> Result<(), SystemError> {
        self.members.kill(name, "killing a member")
    }

    /// Starts a member again that was stopped, killed or has ended by itself. When this returns it has all that its
    /// group had acknowledged when it joined: another one may fall then.
    ///
    /// # Errors
    /// When there is no such member, it runs, it does not come up, it does not get all from its master in time, or it
    /// is stopped or killed meanwhile.
    pub fn start_member(&self, name: &str) -> Result<(), SystemError> {
        SystemNodes::start(self, name, &|| {})
    }

    fn present(&self) -> Vec<Arc<RunningMember>> {
        self.members.present()
    }

    /// The cause of a client's error if a member has ended, otherwise the error itself.
    fn explained<T>(&self, during: &'static str, outcome: Result<T, SystemError>) -> Result<T, SystemError> {
        outcome.map_err(|error| self.members.check(during).err().unwrap_or(error))
    }

    fn collected(
        &self,
        figures_of: impl Fn(&RunningMember) -> Option<BTreeMap<String, f64>>,
    ) -> BTreeMap<String, f64> {
        // Held while members are asked: an answer that is counted after a newer one would look like a reset.
        let mut totals = self.totals.lock();
        let answer = |one: Arc<RunningMember>| {
            Some(MemberAnswer {
                member: one.member.clone(),
                process: one.state().pid(),
                figures: figures_of(&one)?,
            })
        };
        totals.together(&self.present().into_iter().filter_map(answer).collect::<Vec<_>>())
    }
}

/// Which member has which shard, and where, when the store has just started.
fn topology_of(started: &[Arc<RunningMember>], paths: &StoragePaths) -> TopologyRecord {
    let mut shards: BTreeMap<u32, Vec<CopyRecord>> = BTreeMap::new();
    for one in started {
        let directory = paths.data_of_all().position(|storage| one.directory.starts_with(storage));
        let copy = CopyRecord {
            name: one.member.name(),
            node: format!("node{}", one.member.node),
            role: Some(if one.is_master() { NodeRole::Master } else { NodeRole::Replica }),
            directory: directory.and_then(|directory| u32::try_from(directory).ok()),
            device: None,
        };
        shards.entry(u32::try_from(one.member.shard).unwrap_or(u32::MAX)).or_default().push(copy);
    }
    let shard = |(shard, mut copies): (u32, Vec<CopyRecord>)| {
        copies.sort_by_key(|copy| copy.role != Some(NodeRole::Master));
        ShardRecord { shard, partitions: None, copies }
    };
    TopologyRecord { shards: shards.into_iter().map(shard).collect(), findings: Vec::new() }
}

impl SystemNodes for JeHaStore {
    fn list(&self) -> Result<Vec<NodeState>, SystemError> {
        let state = |(state, member): (NodeState, MemberState)| {
            let is_known = state.condition == NodeCondition::Serving && member.process.is_some();
            let role = if member.is_master { NodeRole::Master } else { NodeRole::Replica };
            let role = is_known.then_some(role);
            let shards = u32::try_from(member.shard).into_iter().map(|shard| NodeShard { shard, role });
            NodeState { role, shards: shards.collect(), ..state }
        };
        Ok(self.members.states(None).into_iter().zip(self.members()).map(state).collect())
    }

    fn stop(&self, name: &str) -> Result<(), SystemError> {
        self.stop_member(name)
    }

    fn kill(&self, name: &str) -> Result<(), SystemError> {
        self.kill_member(name)
    }

    fn start(&self, name: &str, process_back: &(dyn Fn() + Sync)) -> Result<(), SystemError> {
        const DURING: &str = "starting a member";
        let preparation = self.members.prepare(name, DURING)?;
        let began = Instant::now();
        let place = self.all.iter().find(|(member, _)| member.name() == name);
        let place = place.ok_or_else(|| unknown(NAME, DURING, name, []))?;
        let started = start_one(&self.plan, &self.all, place, preparation.given_up(), process_back);
        let started = Arc::new(started.map_err(|error| preparation.explained(error))?);
        let arrival = preparation.has(Arc::clone(&started))?;
        // JE lets it join as soon as it knows the master, and counts it as one of a majority at once.
        let left = self.plan.limit.saturating_sub(began.elapsed());
        let caught_up = catch_up(&[started], &|| self.present(), DURING, left);
        caught_up.map_err(|error| arrival.explained(error))?;
        arrival.serves()
    }
}

impl RunningSystem for JeHaStore {
    fn connect(&self) -> Result<Box<dyn Client>, SystemError> {
        Ok(Box::new(self.explained("connecting", self.client.connect(&[]))?))
    }

    fn nodes(&self) -> Option<&dyn SystemNodes> {
        Some(self)
    }

    fn topology(&self) -> Option<TopologyRecord> {
        Some(self.topology.clone())
    }

    fn processes(&self) -> Vec<u32> {
        let members = self.present();
        let states = members.iter().map(|one| one.state());
        states.filter(|state| state.is_running()).map(|state| state.pid()).collect()
    }

    fn applied_settings(&self) -> BTreeMap<String, String> {
        let mut applied = self.plan.config.applied();
        self.plan.resources.record_java_option(&mut applied);
        applied
    }

    fn health(&self) -> Result<(), SystemError> {
        const DURING: &str = "running";
        self.members.check(DURING)?;
        let outcome = for_all(&self.present(), |one| one.check_open(DURING, self.plan.limit));
        self.explained(DURING, outcome)?;
        self.client.health()
    }

    fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        let mut figures = self.collected(RunningMember::figures);
        figures.extend(self.explained("reading its figures", self.client.figures())?);
        let resident = self.processes().into_iter().filter_map(resident_bytes).sum::<u64>();
        figures.insert("current_resident_bytes".to_owned(), resident as f64);
        Ok(figures)
    }

    fn gauges(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        Ok(self.collected(RunningMember::gauges))
    }

    fn settle(&self, limit: Duration) -> Result<(), SystemError> {
        let (members, started) = (self.present(), Instant::now());
        catch_up(&members, &|| members.clone(), "settling", limit)?;
        for_all(&members, |one| one.child.settle(limit.saturating_sub(started.elapsed())))
    }

    fn abort(&self) {
        self.client.kill();
        // A thread in `settle` asks the members themselves.
        for member in self.present() {
            member.child.kill();
        }
    }

    fn stop(self: Box<Self>) -> Result<(), SystemError> {
        let client = self.client.stop(CLIENT_STOP_LIMIT);
        let outcome = self.members.check("stopping").and_then(|()| {
            // A master that goes first would be replaced by an election.
            let (masters, replicas): (Vec<_>, Vec<_>) =
                self.present().into_iter().partition(|one| one.is_master());
            let stop = |one: &RunningMember| one.child.stop(self.plan.limit);
            for_all(&replicas, stop).and(for_all(&masters, stop))
        });
        // If both failed, a member is the cause.
        outcome.and(client)
    }
}
