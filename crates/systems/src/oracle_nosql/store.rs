//! A running store.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use underlay_record::{
    CopyRecord, NodeCondition, NodeRole, NodeShard, NodeState, ShardRecord, TopologyRecord,
};
use underlay_sync::Mutex;
use underlay_workload::client::Client;

use super::NAME;
use super::admin::StoreAdmin;
use super::agent_log::LogPlace;
use super::config::NosqlConfig;
use super::figures::ReplicationStatistics;
use super::places::StorageNodePlace;
use super::reports::{
    ReplicaStatus, ReplicationNode, ReplicationShard, StoreStatus, StoreTopology, number_of, shard_of,
};
use super::storage_node::{StorageNode, StorageNodePlan, run_parallel};
use crate::figures::CURRENT;
use crate::jvm::JvmChild;
use crate::nodes::{NodeProcess as _, Roster, SystemNodes, unknown};
use crate::process_memory::resident_bytes;
use crate::system::{RunningSystem, SystemError};

/// How long the client process may take to end.
const CLIENT_STOP_LIMIT: Duration = Duration::from_secs(30);
/// Where the client process says which replication nodes are masters.
const MASTER: &str = "master.";
/// Cleaning and checkpoints come in waves: without any for so long there are none left.
const QUIET: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(500);

/// The storage nodes of a store that was started here.
pub(super) struct DeployedStore {
    nodes: Roster<StorageNode>,
    places: Vec<StorageNodePlace>,
    topology: StoreTopology,
    /// When it had just started.
    status: StoreStatus,
    statistics: Mutex<ReplicationStatistics>,
    admin: StoreAdmin,
    plan: StorageNodePlan,
    /// How long the log of each agent was when the store had just started.
    logged: Vec<LogPlace>,
    /// The services that had ended by themselves when a storage node was first sent away; empty before that.
    ended_before: OnceLock<Vec<String>>,
}

/// A store with a client. The client process is dropped first, before the storage nodes.
pub(super) struct RunningNosql {
    client: JvmChild,
    config: NosqlConfig,
    /// `None` for an existing store.
    deployed: Option<DeployedStore>,
}

impl DeployedStore {
    pub(super) fn new(
        plan: StorageNodePlan,
        admin: StoreAdmin,
        nodes: Vec<StorageNode>,
        (topology, status): (StoreTopology, StoreStatus),
        statistics: ReplicationStatistics,
    ) -> DeployedStore {
        let places: Vec<StorageNodePlace> = nodes.iter().map(|node| node.place.clone()).collect();
        let logged = places.iter().map(|place| LogPlace::end_of(&plan.log_of_agent(place))).collect();
        let nodes = Roster::new(NAME, nodes.into_iter().map(|node| (node.place.name(), Arc::new(node))));
        let (statistics, ended_before) = (Mutex::new(statistics), OnceLock::new());
        DeployedStore { nodes, places, topology, status, statistics, admin, plan, logged, ended_before }
    }

    fn running(&self) -> Vec<u64> {
        let present = self.nodes.present();
        present.iter().filter(|node| node.state().is_running()).map(|node| node.place.number).collect()
    }

    /// Where the store had its copies, and which of them were masters, when it had just started.
    fn topology(&self) -> TopologyRecord {
        let copy = |replica: &ReplicationNode| {
            let place = self.places.iter().find(|place| place.name() == replica.sn_id);
            let storage = place.and_then(|place| place.storage_of(&replica.resource_id));
            CopyRecord {
                name: replica.resource_id.clone(),
                node: replica.sn_id.clone(),
                role: self.role_at_start(&replica.resource_id),
                directory: storage.and_then(|storage| storage.volume),
                device: None,
            }
        };
        let shard = |shard: &ReplicationShard| {
            let mut copies: Vec<CopyRecord> = shard.rns.iter().map(copy).collect();
            copies.sort_by_key(|copy| copy.role != Some(NodeRole::Master));
            let number = number_of(&shard.resource_id).and_then(|number| u32::try_from(number).ok());
            ShardRecord { shard: number.unwrap_or(0), partitions: Some(shard.num_partitions), copies }
        };
        TopologyRecord {
            shards: self.topology.shards.iter().map(shard).collect(),
            findings: self.status.findings(),
        }
    }

    fn role_at_start(&self, replication_node: &str) -> Option<NodeRole> {
        let own = |(_, replica): &(&str, &ReplicaStatus)| replica.resource_id == replication_node;
        self.status.replicas().find(own).and_then(|(_, replica)| replica.role())
    }

    /// The storage node of a replication node.
    fn node_of(&self, replication_node: &str) -> Option<u64> {
        let mut all = self.topology.shards.iter().flat_map(|shard| &shard.rns);
        number_of(&all.find(|replica| replica.resource_id == replication_node)?.sn_id)
    }

    fn statistics(&self, during: &'static str) -> Result<BTreeMap<String, f64>, SystemError> {
        self.statistics.lock().figures().map_err(|error| {
            SystemError::failed(
                NAME,
                during,
                format!("can't read the statistics of replication nodes: {error}"),
            )
        })
    }

    /// Waits until every replication node has what the master of its shard has now.
    fn catch_up(&self, during: &'static str, limit: Duration) -> Result<(), SystemError> {
        let check = || self.nodes.check(during);
        let (shards, copies) = (self.plan.config.shards(), self.plan.config.replication_nodes());
        let nodes = || self.running();
        let healthy = self
            .admin
            .wait(&self.plan, (during, limit), &nodes, &check, &|status| status.is_healthy(shards, copies))?;
        let goals: BTreeMap<String, u64> = healthy
            .replicas()
            .map(|(_, replica)| shard_of(&replica.resource_id).to_owned())
            .filter_map(|shard| Some((shard.clone(), healthy.last_of(&shard)?)))
            .collect();
        self.admin
            .wait(&self.plan, (during, limit), &nodes, &check, &|status| has_reached(status, &goals, None))?;
        Ok(())
    }

    /// Waits until every replication node has written statistics down, without which none would look busy.
    fn wait_for_statistics(&self, during: &'static str, limit: Duration) -> Result<(), SystemError> {
        let (began, expected) = (Instant::now(), self.plan.config.replication_nodes());
        loop {
            self.statistics(during)?;
            let found = self.statistics.lock().tables();
            if found >= expected {
                return Ok(());
            }
            self.nodes.check(during)?;
            if began.elapsed() > limit {
                let problem = format!(
                    "{found} of {expected} replication nodes have written statistics to {} after {:.0} s",
                    self.plan.scratch.display(),
                    limit.as_secs_f64()
                );
                return Err(SystemError::failed(NAME, during, problem));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Waits until nothing has been cleaned, and no checkpoint made, for a while.
    fn wait_for_quiet(&self, during: &'static str, limit: Duration) -> Result<(), SystemError> {
        let began = Instant::now();
        self.wait_for_statistics(during, limit)?;
        let busy =
            |figures: &BTreeMap<String, f64>| ["cleaned_files", "checkpoints"].map(|name| figures[name]);
        let (mut last, mut quiet_since) = (busy(&self.statistics(during)?), Instant::now());
        while quiet_since.elapsed() < QUIET {
            std::thread::sleep(POLL);
            self.nodes.check(during)?;
            let now = busy(&self.statistics(during)?);
            if now != last {
                (last, quiet_since) = (now, Instant::now());
            }
            if began.elapsed() > limit {
                let problem =
                    format!("replication nodes still clean their logs after {:.0} s", limit.as_secs_f64());
                return Err(SystemError::failed(NAME, during, problem));
            }
        }
        Ok(())
    }

    /// The agents' log of services that ended by themselves since the store had started. Their agents have started them
    /// again.
    fn ended_services(&self) -> Vec<String> {
        let endings = self.logged.iter().map(|place| match place.unclean_ends() {
            Ok(ends) => ends,
            // Nobody knows what it told.
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                vec![format!("its agent's log is incomplete: {error}")]
            }
            // A log that can't be read is missed when its storage node is stopped.
            Err(_) => Vec::new(),
        });
        endings.flatten().collect()
    }

    /// A storage node is about to go: what ends from now on may have had to begin anew for that.
    fn somebody_goes(&self) {
        self.ended_before.get_or_init(|| self.ended_services());
    }

    /// That no service has ended by itself, so that a replication node was away for a while. Since a storage node has
    /// gone, others may have had to begin anew.
    fn check_services(&self, during: &'static str) -> Result<(), SystemError> {
        let before = self.ended_before.get().cloned();
        match before.unwrap_or_else(|| self.ended_services()).first() {
            None => Ok(()),
            Some(line) => {
                let problem = format!(
                    "a service ended by itself and was started again by its agent (code 137: it was killed, for want of memory as a rule): {line}"
                );
                Err(SystemError::failed(NAME, during, problem))
            }
        }
    }

    fn processes(&self) -> Vec<u32> {
        self.nodes.present().iter().flat_map(|node| node.processes()).collect()
    }
}

/// Sets what each shard has to reach, by what its master has: where none was known before that, and where a new one has
/// less than the last, whose end nobody has any more. Whether all shards that `of_node` has a copy of have had a master
/// by now.
fn follow_masters(
    topology: &StoreTopology,
    goals: &mut BTreeMap<String, u64>,
    status: &StoreStatus,
    of_node: Option<&str>,
) -> bool {
    let is_own = |shard: &&ReplicationShard| {
        of_node.is_none_or(|wanted| shard.rns.iter().any(|replica| replica.sn_id == wanted))
    };
    topology.shards.iter().filter(is_own).fold(true, |are_known, shard| {
        if let Some(last) = status.last_of(&shard.resource_id) {
            let goal = goals.entry(shard.resource_id.clone()).or_insert(last);
            *goal = last.min(*goal);
        }
        are_known && goals.contains_key(&shard.resource_id)
    })
}

/// Whether these replication nodes, or those of one storage node, serve and have all that was written up to these
/// changes.
fn has_reached(status: &StoreStatus, goals: &BTreeMap<String, u64>, of_node: Option<&str>) -> bool {
    let mut own =
        status.replicas().filter(|(node, _)| of_node.is_none_or(|wanted| wanted == *node)).peekable();
    own.peek().is_some()
        && own.all(|(_, replica)| {
            let goal = goals.get(shard_of(&replica.resource_id)).copied().unwrap_or(0);
            replica.serves() && replica.sequence_number.is_some_and(|last| last >= goal)
        })
}

/// The copies that a storage node has, with the role of each where the master of its shard is known.
fn copies_of(
    place: &StorageNodePlace,
    topology: &StoreTopology,
    masters: &BTreeMap<u64, u64>,
) -> Vec<NodeShard> {
    let is_here = |shard: &&ReplicationShard| shard.rns.iter().any(|replica| replica.sn_id == place.name());
    let copy = |shard: &ReplicationShard| {
        let number = number_of(&shard.resource_id)?;
        let role = masters
            .get(&number)
            .map(|&master| if master == place.number { NodeRole::Master } else { NodeRole::Replica });
        Some(NodeShard { shard: u32::try_from(number).ok()?, role })
    };
    topology.shards.iter().filter(is_here).filter_map(copy).collect()
}

impl RunningNosql {
    pub(super) fn new(
        client: JvmChild,
        config: NosqlConfig,
        deployed: Option<DeployedStore>,
    ) -> RunningNosql {
        RunningNosql { client, config, deployed }
    }

    /// The cause of a client's error if a storage node has ended, otherwise the error itself.
    fn explained<T>(&self, during: &'static str, outcome: Result<T, SystemError>) -> Result<T, SystemError> {
        outcome.map_err(|error| match &self.deployed {
            Some(deployed) => deployed.nodes.check(during).err().unwrap_or(error),
            None => error,
        })
    }

    /// The client's figures, with the storage node of each shard's master in place of those of each replication node.
    fn client_figures(&self, mut figures: BTreeMap<String, f64>) -> BTreeMap<String, f64> {
        let masters: Vec<String> = figures
            .iter()
            .filter_map(|(name, &is_one)| {
                (is_one > 0.0).then(|| name.strip_prefix(MASTER))?.map(str::to_owned)
            })
            .collect();
        figures.retain(|name, _| !name.starts_with(MASTER));
        for master in masters {
            let number = number_of(shard_of(&master));
            let node = match &self.deployed {
                Some(deployed) => deployed.node_of(&master),
                // The number in `rn2`, which is all that is known of an existing store.
                None => master.split("-rn").nth(1).and_then(|number| number.parse().ok()),
            };
            if let (Some(number), Some(node)) = (number, node) {
                figures.insert(format!("{CURRENT}master_of_shard_{number}"), node as f64);
            }
        }
        figures
    }

    /// The masters that the client knows: the number of the storage node of each, by its shard.
    fn masters(&self) -> BTreeMap<u64, u64> {
        let gauges = self.client.gauges().unwrap_or_default();
        let of_shard = |(name, node): (String, f64)| {
            let shard = name.strip_prefix(CURRENT)?.strip_prefix("master_of_shard_")?.parse().ok()?;
            Some((shard, node as u64))
        };
        self.client_figures(gauges).into_iter().filter_map(of_shard).collect()
    }
}

impl RunningSystem for RunningNosql {
    fn connect(&self) -> Result<Box<dyn Client>, SystemError> {
        Ok(Box::new(self.explained("connecting", self.client.connect(&[]))?))
    }

    fn nodes(&self) -> Option<&dyn SystemNodes> {
        let is_one_of_several = self.deployed.is_some() && self.config.replication() > 1;
        is_one_of_several.then_some(self as &dyn SystemNodes)
    }

    fn processes(&self) -> Vec<u32> {
        self.deployed.as_ref().map(DeployedStore::processes).unwrap_or_default()
    }

    fn applied_settings(&self) -> BTreeMap<String, String> {
        let mut applied = self.config.applied();
        if let Some(deployed) = &self.deployed {
            deployed.plan.resources.record_java_option(&mut applied);
        }
        applied
    }

    fn topology(&self) -> Option<TopologyRecord> {
        self.deployed.as_ref().map(DeployedStore::topology)
    }

    fn health(&self) -> Result<(), SystemError> {
        if let Some(deployed) = &self.deployed {
            deployed.nodes.check("running")?;
            deployed.check_services("running")?;
        }
        self.client.health()
    }

    fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        const DURING: &str = "reading its figures";
        let mut figures = self.client_figures(self.explained(DURING, self.client.figures())?);
        if let Some(deployed) = &self.deployed {
            figures.extend(deployed.statistics(DURING)?);
            figures.insert("ended_services".to_owned(), deployed.ended_services().len() as f64);
            let resident = deployed.processes().into_iter().filter_map(resident_bytes).sum::<u64>();
            figures.insert("current_resident_bytes".to_owned(), resident as f64);
        }
        Ok(figures)
    }

    fn gauges(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        const DURING: &str = "reading its figures";
        let mut gauges = self.client_figures(self.explained(DURING, self.client.gauges())?);
        if let Some(deployed) = &self.deployed {
            let figures = deployed.statistics(DURING)?;
            gauges.extend(figures.into_iter().filter(|(name, _)| name.starts_with(CURRENT)));
        }
        Ok(gauges)
    }

    fn settle(&self, limit: Duration) -> Result<(), SystemError> {
        const DURING: &str = "settling";
        let Some(deployed) = &self.deployed else { return Ok(()) };
        let began = Instant::now();
        deployed.catch_up(DURING, limit)?;
        deployed.wait_for_quiet(DURING, limit.saturating_sub(began.elapsed()))
    }

    fn abort(&self) {
        self.client.kill();
        // A thread in `settle` looks at them, and does not go on without one.
        if let Some(deployed) = &self.deployed {
            deployed.nodes.present().iter().for_each(|node| node.kill());
        }
    }

    fn stop(self: Box<Self>) -> Result<(), SystemError> {
        let client = self.client.stop(CLIENT_STOP_LIMIT);
        let Some(deployed) = &self.deployed else { return client };
        let outcome = deployed
            .nodes
            .check("stopping")
            .and_then(|()| run_parallel(&deployed.nodes.present(), |node| deployed.plan.stop(node)));
        // If both failed, a storage node is the cause.
        outcome.and(client)
    }
}

impl SystemNodes for RunningNosql {
    fn list(&self) -> Result<Vec<NodeState>, SystemError> {
        let Some(deployed) = &self.deployed else { return Ok(Vec::new()) };
        let masters = self.masters();
        let state = |(state, place): (NodeState, &StorageNodePlace)| {
            let shards = match state.condition {
                NodeCondition::Serving => copies_of(place, &deployed.topology, &masters),
                _ => copies_of(place, &deployed.topology, &BTreeMap::new()),
            };
            // A master of any shard is one of the store's.
            let find_role = |role| shards.iter().any(|copy| copy.role == Some(role)).then_some(role);
            NodeState { role: find_role(NodeRole::Master).or(find_role(NodeRole::Replica)), shards, ..state }
        };
        Ok(deployed.nodes.states(None).into_iter().zip(&deployed.places).map(state).collect())
    }

    fn stop(&self, name: &str) -> Result<(), SystemError> {
        const DURING: &str = "stopping a storage node";
        let deployed = self.roster(name, DURING)?;
        deployed.somebody_goes();
        deployed.nodes.stop(name, DURING, |node| deployed.plan.stop(node))
    }

    fn kill(&self, name: &str) -> Result<(), SystemError> {
        const DURING: &str = "killing a storage node";
        let deployed = self.roster(name, DURING)?;
        deployed.somebody_goes();
        deployed.nodes.kill(name, DURING)
    }

    fn start(&self, name: &str, process_back: &(dyn Fn() + Sync)) -> Result<(), SystemError> {
        const DURING: &str = "starting a storage node";
        let deployed = self.roster(name, DURING)?;
        let limit = deployed.plan.limit;
        let preparation = deployed.nodes.prepare(name, DURING)?;
        let place = deployed.places.iter().find(|place| place.name() == name);
        let place = place.ok_or_else(|| unknown(NAME, DURING, name, []))?;
        let goals = RefCell::new(deployed.goals(DURING, preparation.given_up()));
        let node = deployed.plan.start(place).map_err(|error| preparation.explained(error))?;
        let arrival = preparation.has(Arc::new(node))?;
        process_back();
        let nodes = || deployed.running();
        let check = || match deployed.nodes.all().into_iter().find(|(own, ..)| *own == name) {
            Some((_, _, Some(node))) => node.process.check(DURING),
            _ => Err(SystemError::failed(NAME, DURING, format!("{name} is away"))),
        };
        let is_back = |status: &StoreStatus| deployed.is_back(status, &mut goals.borrow_mut(), name);
        let back = deployed.admin.wait(&deployed.plan, (DURING, limit), &nodes, &check, &is_back);
        back.map_err(|error| arrival.explained(error))?;
        arrival.serves()
    }
}

impl RunningNosql {
    fn roster(&self, name: &str, during: &'static str) -> Result<&DeployedStore, SystemError> {
        self.deployed.as_ref().ok_or_else(|| unknown(NAME, during, name, []))
    }
}

impl DeployedStore {
    /// The last change of each shard, as far as a master is known. Not waited for by who has given up.
    fn goals(&self, during: &'static str, given_up: &AtomicBool) -> BTreeMap<String, u64> {
        let unwanted = || given_up.load(Ordering::Relaxed);
        let mut goals = BTreeMap::new();
        if let Ok(Ok(status)) = self.admin.ping(&self.plan, during, &self.running(), &unwanted) {
            follow_masters(&self.topology, &mut goals, &status, None);
        }
        goals
    }

    /// Whether a storage node that was started again has what its shards had, those among them that had no master at
    /// that moment, too.
    fn is_back(&self, status: &StoreStatus, goals: &mut BTreeMap<String, u64>, name: &str) -> bool {
        follow_masters(&self.topology, goals, status, Some(name)) && has_reached(status, goals, Some(name))
    }
}

#[cfg(test)]
mod tests {
    use super::super::places::name;
    use super::super::reports::parse;
    use super::*;

    /// Two shards of two copies; one of them has no master, or another one than before.
    #[test]
    fn storage_node_is_judged_by_its_own_shards() {
        let shard = |number: u64, nodes: [u64; 2]| {
            let copies =
                nodes.map(|node| format!(r#"{{ "resourceId": "rg{number}-rn{node}", "snId": "sn{node}" }}"#));
            format!(r#"{{ "resourceId": "rg{number}", "numPartitions": 5, "rns": [{}] }}"#, copies.join(","))
        };
        let text =
            format!(r#"{{ "returnValue": {{ "shards": [{}, {}] }} }}"#, shard(1, [1, 2]), shard(2, [3, 4]));
        let topology: StoreTopology = parse(&text).unwrap();
        let status_of = |last: u64| -> StoreStatus {
            parse(&format!(
                r#"{{ "returnValue": {{ "shardStatus": {{ "healthy": 1, "total": 2 }}, "snStatus": [{{ "resourceId": "sn2", "rnStatus": [{{ "resourceId": "rg1-rn2",
                    "status": "RUNNING", "state": "MASTER", "sequenceNumber": {last} }}] }}] }} }}"#
            ))
            .unwrap()
        };
        let mut goals = BTreeMap::new();
        assert!(!follow_masters(&topology, &mut goals, &status_of(90), None), "rg2 has no master");
        assert!(follow_masters(&topology, &mut goals, &status_of(95), Some("sn1")));
        assert!(!follow_masters(&topology, &mut goals, &status_of(95), Some("sn3")));
        assert_eq!(goals, BTreeMap::from([("rg1".to_owned(), 90)]));
        // A new master without the end of the old one's log: nobody has that any more.
        follow_masters(&topology, &mut goals, &status_of(88), Some("sn1"));
        assert_eq!(goals["rg1"], 88);
    }

    #[test]
    fn storage_node_is_back_once_copies_caught_up() {
        let status_of = |last: u64, second: &str| -> StoreStatus {
            let own = |number: u64, state: &str, last: u64| {
                format!(
                    r#"{{ "resourceId": "sn{number}", "rnStatus": [{{ "resourceId": "rg1-rn{number}", "status": "RUNNING",
                        "state": "{state}", "sequenceNumber": {last} }}] }}"#
                )
            };
            let nodes = [own(1, "MASTER", 90), own(2, second, last)].join(",");
            parse(&format!(
                r#"{{ "returnValue": {{ "shardStatus": {{ "healthy": 1, "total": 1 }}, "snStatus": [{nodes}] }} }}"#
            ))
            .unwrap()
        };
        let goals = BTreeMap::from([("rg1".to_owned(), 90)]);
        assert!(has_reached(&status_of(90, "REPLICA"), &goals, Some("sn2")));
        assert!(!has_reached(&status_of(89, "REPLICA"), &goals, Some("sn2")));
        assert!(has_reached(&status_of(89, "REPLICA"), &goals, Some("sn1")));
        assert!(!has_reached(&status_of(89, "REPLICA"), &goals, None));
        assert!(!has_reached(&status_of(90, "UNKNOWN"), &goals, Some("sn2")));
        assert!(!has_reached(&status_of(90, "REPLICA"), &goals, Some("sn3")), "it does not answer yet");
        assert_eq!((name(3).as_str(), number_of(&name(3))), ("sn3", Some(3)));
    }
}
