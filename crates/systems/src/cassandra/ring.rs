//! The ring of nodes that was started here: where each stores, how each is started, and which of them are there.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use underlay_record::{NodeCondition, NodeRole, NodeState};

use super::NAME;
use super::addresses::{LoopbackAddresses, free_port};
use super::config::CassandraConfig;
use super::network::CassandraNetwork;
use super::node::CassandraNode;
use super::node_files::{NodeDirectories, NodePlan};
use super::nodetool::{is_up, nodes_up};
use crate::artifacts::CASSANDRA;
use crate::child::OBITUARY_WAIT;
use crate::java::Java;
use crate::nodes::{NodeProcess as _, PlannedNode, Roster, SystemNodes};
use crate::system::{
    NodePaths, StoragePaths, SystemError, SystemResources, SystemSettings, check_roles, first_data_directory,
    make_on,
};

/// A node's roles with a separate storage.
pub(super) const ROLES: &[(&str, &str)] = &[
    ("commitlog", "the log that every write goes to first"),
    ("hints", "writes for nodes that are down"),
    ("saved_caches", "the keys in the key cache, every four hours, for the next start"),
];
/// `nodetool` is a Java program of its own, which takes seconds to start.
pub(super) const TOOL_LIMIT: Duration = Duration::from_secs(60);
const STATUS_POLL: Duration = Duration::from_millis(500);
/// A file in the first node's data with the addresses of the ring, by which its nodes know each other.
const RING_FILE: &str = "ring-addresses";

/// The nodes that a ring of so many will have.
pub(super) fn planned(nodes: u64) -> Vec<PlannedNode> {
    let planned =
        |number| PlannedNode { name: name_of(number), roles: &[NodeRole::Peer], shards: Vec::new() };
    (0..nodes).map(planned).collect()
}

pub(super) fn name_of(number: u64) -> String {
    format!("node{}", number + 1)
}

/// The nodes of a ring. They are dropped first, before their addresses are released.
pub(super) struct CassandraRing {
    nodes: Roster<CassandraNode>,
    plan: RingPlan,
}

/// How to start each of them, at first and again.
struct RingPlan {
    config: CassandraConfig,
    resources: SystemResources,
    storages: Vec<NodeDirectories>,
    java: Java,
    programs: PathBuf,
    network: CassandraNetwork,
    slow_motion: f64,
    /// How long starting or stopping may take.
    limit: Duration,
    addresses: LoopbackAddresses,
}

impl RingPlan {
    fn start(&self, number: u8) -> Result<CassandraNode, SystemError> {
        let management_port = self
            .network
            .within(free_port)
            .and_then(|port| port)
            .map_err(|error| SystemError::starting(NAME, format!("no port is free: {error}")))?;
        let plan = NodePlan {
            config: &self.config,
            number: u64::from(number),
            network: self.network.clone(),
            ip: self.addresses.ip(number).to_string(),
            seed: self.addresses.storage(0).to_string(),
            native_port: self.addresses.native(number).port(),
            storage_port: self.addresses.storage(number).port(),
            management_port,
            directories: self.storages[usize::from(number)].clone(),
            programs: self.programs.clone(),
            resources: &self.resources,
            slow_motion: self.slow_motion,
        };
        CassandraNode::start(&plan, &self.java)
    }
}

impl CassandraRing {
    /// Starts the nodes and returns when all accept clients and know each other. The others start after the first,
    /// which is their seed.
    pub(super) fn start(
        config: &CassandraConfig,
        paths: &StoragePaths,
        resources: &SystemResources,
        settings: &SystemSettings,
        limit: Duration,
        network: &CassandraNetwork,
    ) -> Result<CassandraRing, SystemError> {
        let storages = storage_of_nodes(config, paths)?;
        let java = Java::find(NAME)?;
        let programs = CASSANDRA.directory(&|_| {}).map_err(|error| error.into_system_error(NAME))?;
        let count = u8::try_from(config.nodes)
            .map_err(|_| SystemError::starting(NAME, format!("{} are too many nodes", config.nodes)))?;
        let addresses = network.within(|| claim_addresses(&storages, count)).map_err(cannot_enter)??;
        let folder = paths.scratch.join(format!("{NAME}-{}", addresses.name().replace(' ', "-")));
        let in_folder = |(node, storage): (u8, NodeDirectories)| NodeDirectories {
            scratch: folder.join(name_of(node.into())),
            ..storage
        };
        let plan = RingPlan {
            config: config.clone(),
            resources: resources.clone(),
            storages: (0..count).zip(storages).map(in_folder).collect(),
            java,
            programs,
            network: network.clone(),
            slow_motion: settings.slow_motion.max(1.0),
            limit,
            addresses,
        };
        let mut nodes: Vec<Arc<CassandraNode>> = Vec::new();
        for number in 0..count {
            let node = plan.start(number)?;
            // The others ask this one for the ring as they start.
            if number == 0 {
                node.wait_until_ready(limit)?;
            }
            nodes.push(Arc::new(node));
        }
        nodes.iter().try_for_each(|node| node.wait_until_ready(limit))?;
        let started = Instant::now();
        // Each node is asked: one may know all others before they know it.
        for node in nodes.iter().filter(|_| count > 1) {
            while nodes_up(&node.tool(&["status"], "starting", TOOL_LIMIT)?) < usize::from(count) {
                if started.elapsed() > limit {
                    return Err(node
                        .state()
                        .failed("starting", "its nodes did not find each other".to_owned()));
                }
                std::thread::sleep(STATUS_POLL);
            }
        }
        let named = (0..).zip(nodes).map(|(number, node)| (name_of(number), node));
        Ok(CassandraRing { nodes: Roster::new(NAME, named), plan })
    }

    pub(super) fn addresses(&self) -> &LoopbackAddresses {
        &self.plan.addresses
    }

    /// Those that were not sent away.
    pub(super) fn present(&self) -> Vec<Arc<CassandraNode>> {
        self.nodes.present()
    }

    /// The addresses of those that were, or that do not accept clients yet.
    pub(super) fn absent(&self) -> Vec<IpAddr> {
        let all = (0..).zip(self.nodes.all());
        let absent = all.filter(|(_, (_, condition, _))| {
            matches!(condition, NodeCondition::Away | NodeCondition::Stopping | NodeCondition::Starting)
        });
        absent.map(|(number, _)| self.plan.addresses.ip(number).into()).collect()
    }

    /// Fails if a node has ended by itself, or does not accept clients though it should.
    pub(super) fn health(&self) -> Result<(), SystemError> {
        self.nodes.check("running")?;
        let all = self.nodes.all().into_iter();
        let serving = all.filter(|(_, condition, _)| *condition == NodeCondition::Serving);
        serving.filter_map(|(_, _, node)| node).try_for_each(|node| node.health())
    }

    /// How the last node ended, where all have; `None` where one may still answer, or will be back.
    pub(super) fn loss(&self) -> Option<String> {
        let all = self.nodes.all();
        let nodes: Vec<Arc<CassandraNode>> = all.iter().filter_map(|(_, _, node)| node.clone()).collect();
        let (last, others) = nodes.split_last()?;
        if nodes.len() < all.len() || others.iter().any(|node| node.state().is_running()) {
            return None;
        }
        // The kernel closes the sockets of a killed process a moment before it can be reaped.
        last.state().wait(OBITUARY_WAIT).then(|| last.state().describe())
    }

    /// Waits until it and every other node that serves see each other as up and normal: either may be asked to
    /// coordinate a request that needs both.
    fn wait_until_seen(&self, node: &CassandraNode, began: Instant) -> Result<(), SystemError> {
        const DURING: &str = "starting a node";
        node.wait_until_ready(self.plan.limit)?;
        let sees = |seer: &CassandraNode, seen: &CassandraNode| {
            let status = seer.tool(&["status"], DURING, TOOL_LIMIT);
            status.is_ok_and(|status| is_up(&status, &seen.address().to_string()))
        };
        loop {
            // One that is killed meanwhile can't be asked any more, and need not be seen.
            let all = self.nodes.all().into_iter();
            let serving = all.filter(|(_, condition, _)| *condition == NodeCondition::Serving);
            let mut others = serving
                .filter_map(|(_, _, other)| other)
                .filter(|other| other.state().is_running())
                .peekable();
            let is_alone = others.peek().is_none();
            if others.all(|other| sees(&other, node) && sees(node, &other)) && (!is_alone || sees(node, node))
            {
                return Ok(());
            }
            let state = node.state();
            if !state.is_running() {
                return Err(state.failed(DURING, state.describe()));
            }
            if began.elapsed() > self.plan.limit {
                return Err(
                    state.failed(DURING, "it and the others do not take each other for up".to_owned())
                );
            }
            std::thread::sleep(STATUS_POLL);
        }
    }
}

impl SystemNodes for CassandraRing {
    fn list(&self) -> Result<Vec<NodeState>, SystemError> {
        Ok(self.nodes.states(Some(NodeRole::Peer)))
    }

    fn stop(&self, name: &str) -> Result<(), SystemError> {
        const DURING: &str = "stopping a node";
        self.nodes.stop(name, DURING, |node| {
            // One that has not come up has nothing to write out.
            let drained = node.tool(&["drain"], DURING, self.plan.limit);
            node.state().terminate();
            node.end(self.plan.limit).and(drained.map(drop))
        })
    }

    fn kill(&self, name: &str) -> Result<(), SystemError> {
        self.nodes.kill(name, "killing a node")
    }

    fn start(&self, name: &str, process_back: &(dyn Fn() + Sync)) -> Result<(), SystemError> {
        const DURING: &str = "starting a node";
        let preparation = self.nodes.prepare(name, DURING)?;
        let began = Instant::now();
        let number = self.nodes.all().iter().position(|(own, _, _)| *own == name);
        let number = number.and_then(|number| u8::try_from(number).ok()).unwrap_or_default();
        let node = Arc::new(self.plan.start(number).map_err(|error| preparation.explained(error))?);
        let arrival = preparation.has(Arc::clone(&node))?;
        process_back();
        self.wait_until_seen(&node, began).map_err(|error| arrival.explained(error))?;
        arrival.serves()
    }
}

fn cannot_enter(error: std::io::Error) -> SystemError {
    SystemError::starting(NAME, format!("can't enter its network namespace: {error}"))
}

/// The directories of each node, except its scratch directory.
fn storage_of_nodes(
    config: &CassandraConfig,
    paths: &StoragePaths,
) -> Result<Vec<NodeDirectories>, SystemError> {
    let first = NodePaths { data: paths.data.clone(), roles: paths.roles.clone() };
    let shared = paths.further_nodes.is_empty();
    if !shared && paths.further_nodes.len() as u64 + 1 != config.nodes {
        let storage_count = paths.further_nodes.len() + 1;
        return Err(SystemError::starting(
            NAME,
            format!("{} nodes can't use the storage of {storage_count}", config.nodes),
        ));
    }
    let storage = |node: u64| match usize::try_from(node) {
        Ok(index) if !shared && index > 0 => &paths.further_nodes[index - 1],
        _ => &first,
    };
    (0..config.nodes).map(|node| node_directories(storage(node), node, config.nodes)).collect()
}

fn node_directories(storage: &NodePaths, node: u64, nodes: u64) -> Result<NodeDirectories, SystemError> {
    let own = |directory: &Path| -> Result<PathBuf, SystemError> {
        let mut folder = PathBuf::from(NAME);
        if nodes > 1 {
            folder.push(format!("node{}", node + 1));
        }
        make_on(NAME, directory, &folder)
    };
    let folders = storage.data.iter().map(|directory| own(directory)).collect::<Result<Vec<_>, _>>()?;
    let first = first_data_directory(NAME, &folders)?;
    check_roles(NAME, ROLES, storage.roles.keys())?;
    let role = |name: &str| match storage.roles.get(name) {
        Some(directory) => own(directory).map(|folder| folder.join(name)),
        None => Ok(first.join(name)),
    };
    Ok(NodeDirectories {
        data: folders.iter().map(|folder| folder.join("data")).collect(),
        commitlog: role("commitlog")?,
        hints: role("hints")?,
        saved_caches: role("saved_caches")?,
        scratch: PathBuf::new(),
    })
}

/// Addresses for the nodes. The data of a ring contains the addresses of its nodes, so they must not change.
fn claim_addresses(storages: &[NodeDirectories], nodes: u8) -> Result<LoopbackAddresses, SystemError> {
    let unavailable = |error: std::io::Error| {
        SystemError::starting(NAME, format!("can't reserve loopback addresses: {error}"))
    };
    let folder = storages.first().and_then(|storage| storage.data.first()?.parent());
    let Some(file) = folder.map(|folder| folder.join(RING_FILE)).filter(|_| nodes > 1) else {
        return LoopbackAddresses::claim(nodes).map_err(unavailable);
    };
    match std::fs::read_to_string(&file) {
        Ok(name) => LoopbackAddresses::claim_again(&name, nodes).map_err(|error| {
            let problem = format!(
                "its data belongs to a ring on addresses that are in use ({}: {error}): end the run that uses them",
                file.display()
            );
            SystemError::starting(NAME, problem)
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let addresses = LoopbackAddresses::claim(nodes).map_err(unavailable)?;
            std::fs::write(&file, addresses.name())
                .map_err(|error| SystemError::starting(NAME, format!("can't write {}: {error}", file.display())))?;
            Ok(addresses)
        }
        Err(error) => Err(SystemError::starting(NAME, format!("can't read {}: {error}", file.display()))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn nodes_and_roles_have_own_directories() {
        let directory = tempfile::TempDir::new().unwrap();
        let [a, b, log] = ["a", "b", "log"].map(|name| directory.path().join(name));
        [&a, &b, &log].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
        let paths = StoragePaths {
            data: vec![a.clone(), b.clone()],
            roles: BTreeMap::from([("commitlog".to_owned(), log.clone())]),
            ..StoragePaths::default()
        };
        let one = CassandraConfig::default();
        let [only] = storage_of_nodes(&one, &paths).unwrap().try_into().unwrap();
        assert_eq!(only.data, [a.join("cassandra/data"), b.join("cassandra/data")]);
        assert_eq!(only.commitlog, log.join("cassandra/commitlog"));
        assert_eq!(only.hints, a.join("cassandra/hints"));
        let two = CassandraConfig { nodes: 2, ..CassandraConfig::default() };
        let [_, second] = storage_of_nodes(&two, &paths).unwrap().try_into().unwrap();
        assert_eq!(second.data[1], b.join("cassandra/node2/data"));
        assert_eq!(second.commitlog, log.join("cassandra/node2/commitlog"));
        let apart = StoragePaths {
            data: vec![a],
            further_nodes: vec![NodePaths { data: vec![b.clone()], ..NodePaths::default() }],
            ..StoragePaths::default()
        };
        let [_, second] = storage_of_nodes(&two, &apart).unwrap().try_into().unwrap();
        assert_eq!(second.data, [b.join("cassandra/node2/data")]);
        assert!(storage_of_nodes(&one, &apart).is_err());
        let missing = StoragePaths { data: vec![directory.path().join("no")], ..StoragePaths::default() };
        assert!(storage_of_nodes(&one, &missing).unwrap_err().to_string().contains("no is missing"));
    }

    #[test]
    fn ring_keeps_its_addresses() {
        let directory = tempfile::TempDir::new().unwrap();
        let paths = StoragePaths { data: vec![directory.path().into()], ..StoragePaths::default() };
        let config = CassandraConfig { nodes: 2, ..CassandraConfig::default() };
        let storages = storage_of_nodes(&config, &paths).unwrap();
        let first = claim_addresses(&storages, 2).unwrap();
        let error = claim_addresses(&storages, 2).unwrap_err().to_string();
        assert!(error.contains(RING_FILE), "{error}");
        let ip = first.ip(0);
        drop(first);
        let _other = LoopbackAddresses::claim(2).unwrap();
        // The same addresses again, or an error if another run has them now; never other addresses.
        match claim_addresses(&storages, 2) {
            Ok(again) => assert_eq!(again.ip(0), ip),
            Err(error) => assert!(error.to_string().contains("belongs to a ring")),
        }
    }
}
