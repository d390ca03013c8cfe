//! Starting a ring of nodes or connecting to an existing one, and everything except clients' requests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use underlay_workload::client::Client;

use super::NAME;
use super::addresses::{Addresses, free_port};
use super::client::CassandraClient;
use super::config::{Config, SETTINGS, Settle};
use super::database::{Credentials, Database, DatabaseError, Figures, Target};
use super::network::Network;
use super::node::Node;
use super::node_files::{NodeDirectories, NodePlan};
use super::nodetool::nodes_up;
use super::table::KEYSPACE;
use crate::artifacts::{self, CASSANDRA};
use crate::credentials;
use crate::java::Java;
use crate::system::{
    Capabilities, NodePaths, Progress, Resources, Running, Settings, StoragePaths, System, SystemError,
    check_roles, first_data_directory, make_on,
};

/// A client's timeout if the settings have none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Starting replays the commit log and draining flushes memtables, which may take long on a slow disk: these limits only tell a
/// stuck process from a slow one.
const MIN_START_LIMIT: Duration = Duration::from_secs(240);
const MIN_STOP_LIMIT: Duration = Duration::from_secs(120);
/// In slow motion everything takes longer. The client's timeout is stretched already, so limits of this many timeouts are as well.
const LIMIT_TIMEOUTS: u32 = 20;
/// `nodetool` is a Java program of its own, which takes seconds to start.
const TOOL_LIMIT: Duration = Duration::from_secs(60);
/// Silence after which a Cassandra node usually counts as down: `phi_convict_threshold` of 8 at a gossip a second.
const CONVICTED_AFTER_S: f64 = 18.0;
/// A pause of a garbage collection or a long flush may take as long.
const BRIEF_SILENCE_S: f64 = 1.0;
const SETTLE_POLL: Duration = Duration::from_millis(500);
/// The environment variables for user and password of an existing cluster.
const USERNAME: &str = "CASSANDRA_USERNAME";
const PASSWORD: &str = "CASSANDRA_PASSWORD";
/// What a node can keep on a separate storage.
const ROLES: &[(&str, &str)] = &[
    ("commitlog", "the log that every write goes to first"),
    ("hints", "writes for nodes that are down"),
    ("saved_caches", "the keys in the key cache, every four hours, for the next start"),
];
/// A file in the first node's data with the addresses of the ring, by which its nodes know each other.
const RING_FILE: &str = "ring-addresses";

/// The system `cassandra`. Its programs come from the cache of artifacts.
#[derive(Clone, Copy, Debug)]
pub struct Cassandra {
    variable: fn(&str) -> Option<String>,
}

/// The instance that studies use.
pub static INSTALLED: Cassandra = Cassandra::with_variables(|name| std::env::var(name).ok());

impl Cassandra {
    /// Takes user and password of an existing cluster from these variables instead of the environment.
    pub const fn with_variables(variable: fn(&str) -> Option<String>) -> Cassandra {
        Cassandra { variable }
    }

    fn credentials(&self) -> Result<Option<Credentials>, SystemError> {
        let found = credentials::read(self.variable, [USERNAME, PASSWORD]).map_err(|missing| {
            credentials::missing(NAME, missing, format!("set both {USERNAME} and {PASSWORD}, or none"))
        })?;
        Ok(found.map(|(username, password)| Credentials { username, password }))
    }
}

impl System for Cassandra {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            scan: true,
            scans_by_hash: true,
            delete: true,
            many_directories: true,
            many_nodes: true,
            roles: ROLES,
            settings: SETTINGS,
            elsewhere: Some("endpoints"),
            ..Capabilities::default()
        }
    }

    fn versions(&self) -> BTreeMap<String, String> {
        let mut versions = artifacts::versions(NAME, &[(NAME, &CASSANDRA, "cassandra-all")]);
        versions.insert("rust-scylla".to_owned(), env!("UNDERLAY_RUST_SCYLLA_VERSION").to_owned());
        versions
    }

    fn start_and_stop(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn settings_for_loading(&self) -> &'static [(&'static str, &'static str)] {
        // One file per node: otherwise their number depends on chance, and reads have to look into each of them.
        &[("settle", "major")]
    }

    fn check_settings(&self, settings: &BTreeMap<String, String>) -> Vec<(String, String)> {
        Config::resolve(settings, None).err().unwrap_or_default()
    }

    fn left_at_wall_time(&self, settings: &BTreeMap<String, String>, slow_motion: f64) -> Vec<String> {
        let is_ring = Config::resolve(settings, None).is_ok_and(|config| config.nodes > 1);
        let silence_s = CONVICTED_AFTER_S / slow_motion;
        if !is_ring || silence_s > BRIEF_SILENCE_S {
            return Vec::new();
        }
        vec![format!(
            "Cassandra's nodes gossip once per second by this host's clock: a node that is silent for {silence_s:.1} s of modelled time \
             counts as down"
        )]
    }

    fn prepare(&self, progress: &dyn Fn(&Progress)) -> Result<(), SystemError> {
        Java::find(NAME)?;
        CASSANDRA.directory(progress).map(drop).map_err(|error| error.of_system(NAME))
    }

    fn start(
        &self,
        paths: &StoragePaths,
        resources: &Resources,
        settings: &Settings,
    ) -> Result<Box<dyn Running>, SystemError> {
        let config = Config::resolve(&settings.values, Some(resources.budget_bytes))
            .map_err(|mistakes| SystemError::first_mistake(NAME, mistakes))?;
        // By its processors Java sizes pools of threads, whose buffers a small heap has no room for.
        let resources = &resources.with_cores_up_to(config.division().most_processors());
        let timeout = if settings.timeout.is_zero() { DEFAULT_TIMEOUT } else { settings.timeout };
        // An existing cluster is on the host's network.
        let network = if config.endpoints.is_empty() { Network::create()? } else { Network::Host };
        let (addresses, nodes) = match config.endpoints.is_empty() {
            true => {
                let (addresses, nodes) = start_ring(&config, paths, resources, settings, timeout, &network)?;
                (Some(addresses), nodes)
            }
            false => (None, Vec::new()),
        };
        let endpoints = match &addresses {
            Some(addresses) => addresses.all_native().iter().map(ToString::to_string).collect(),
            None => config.endpoints.clone(),
        };
        let ours = addresses.is_some();
        // Clusters that are started here don't ask for credentials.
        let credentials = if ours { None } else { self.credentials()? };
        let named = credentials.is_some().then_some([USERNAME, PASSWORD]);
        let allowed = match ours {
            true => None,
            false => settings.may_connect.check(NAME, ("endpoints", &endpoints), named)?,
        };
        let target = Target {
            endpoints,
            config: &config,
            fields: settings.fields,
            timeout,
            ours,
            credentials,
            allowed,
        };
        // Threads inherit the network of their creator, so all later connections are made in it as well.
        let opened = network.within(|| Database::open(&target)).map_err(DatabaseError::Threads);
        let database = opened.flatten().map_err(|error| explain("starting", &error, &nodes))?;
        let states = nodes.iter().map(|node| Arc::clone(node.state())).collect();
        let database = Arc::new(database);
        let resources = resources.clone();
        Ok(Box::new(Started { config, resources, nodes, states, database, timeout, addresses, network }))
    }
}

/// The error of a cluster that can't be used, with the end of a node's log if one has ended.
fn explain(during: &'static str, error: &DatabaseError, nodes: &[Node]) -> SystemError {
    if let DatabaseError::NoCredentials = error {
        let missing = "a user and a password of the cluster".to_owned();
        let remedy = format!("set {USERNAME} and {PASSWORD} in the environment");
        return SystemError::Missing { system: NAME, missing, remedy };
    }
    let key = match error {
        DatabaseError::Different { setting, .. } => Some(*setting),
        DatabaseError::Authorities { .. } => Some("tls_ca"),
        DatabaseError::NotListed(_) => Some("endpoints"),
        _ => None,
    };
    if let Some(key) = key {
        return SystemError::Setting { system: NAME, key: key.to_owned(), problem: error.to_string() };
    }
    match nodes.iter().find(|node| !node.state().is_running()) {
        Some(node) => node.state().failed(during, format!("{error}; {}", node.state().describe())),
        None => SystemError::failed(NAME, during, error.to_string()),
    }
}

/// Starts the nodes and returns when all accept clients and know each other. The others start after the first, which is their seed.
fn start_ring(
    config: &Config,
    paths: &StoragePaths,
    resources: &Resources,
    settings: &Settings,
    timeout: Duration,
    network: &Network,
) -> Result<(Addresses, Vec<Node>), SystemError> {
    let storages = storage_of_nodes(config, paths)?;
    let java = Java::find(NAME)?;
    let programs = CASSANDRA.directory(&|_| {}).map_err(|error| error.of_system(NAME))?;
    let count = u8::try_from(config.nodes)
        .map_err(|_| SystemError::starting(NAME, format!("{} are too many nodes", config.nodes)))?;
    let addresses = network.within(|| claim_addresses(&storages, count)).map_err(cannot_enter)??;
    let folder = paths.scratch.join(format!("{NAME}-{}", addresses.name().replace(' ', "-")));
    let limit = MIN_START_LIMIT.max(timeout.saturating_mul(LIMIT_TIMEOUTS));
    let mut nodes: Vec<Node> = Vec::new();
    for (node, storage) in (0..count).zip(storages) {
        let plan = NodePlan {
            config,
            number: u64::from(node),
            network: network.clone(),
            ip: addresses.ip(node).to_string(),
            seed: addresses.storage(0).to_string(),
            native_port: addresses.native(node).port(),
            storage_port: addresses.storage(node).port(),
            management_port: network
                .within(free_port)
                .and_then(|port| port)
                .map_err(|error| SystemError::starting(NAME, format!("no port is free: {error}")))?,
            directories: NodeDirectories { scratch: folder.join(format!("node{}", node + 1)), ..storage },
            programs: programs.clone(),
            resources,
            slow_motion: settings.slow_motion.max(1.0),
        };
        nodes.push(Node::start(&plan, &java)?);
        if node == 0 {
            nodes[0].wait_until_ready(limit)?;
        }
    }
    nodes.iter().try_for_each(|node| node.wait_until_ready(limit))?;
    let started = Instant::now();
    for node in nodes.iter().filter(|_| count > 1) {
        while nodes_up(&node.tool(&["status"], "starting", TOOL_LIMIT)?) < usize::from(count) {
            if started.elapsed() > limit {
                return Err(node.state().failed("starting", "its nodes did not find each other".to_owned()));
            }
            std::thread::sleep(SETTLE_POLL);
        }
    }
    Ok((addresses, nodes))
}

fn cannot_enter(error: std::io::Error) -> SystemError {
    SystemError::starting(NAME, format!("can't enter its network namespace: {error}"))
}

/// The directories of each node, except its scratch directory.
fn storage_of_nodes(config: &Config, paths: &StoragePaths) -> Result<Vec<NodeDirectories>, SystemError> {
    let first = NodePaths { data: paths.data.clone(), roles: paths.roles.clone() };
    let shared = paths.further_nodes.is_empty();
    if !shared && paths.further_nodes.len() as u64 + 1 != config.nodes {
        let given = paths.further_nodes.len() + 1;
        return Err(SystemError::starting(
            NAME,
            format!("{} nodes can't use the storage of {given}", config.nodes),
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
fn claim_addresses(storages: &[NodeDirectories], nodes: u8) -> Result<Addresses, SystemError> {
    let unavailable = |error: std::io::Error| {
        SystemError::starting(NAME, format!("can't reserve loopback addresses: {error}"))
    };
    let folder = storages.first().and_then(|storage| storage.data.first()?.parent());
    let Some(file) = folder.map(|folder| folder.join(RING_FILE)).filter(|_| nodes > 1) else {
        return Addresses::claim(nodes).map_err(unavailable);
    };
    match std::fs::read_to_string(&file) {
        Ok(name) => Addresses::claim_again(&name, nodes).map_err(|error| {
            let problem = format!(
                "its data belongs to a ring on addresses that are in use ({}: {error}): end the run that uses them",
                file.display()
            );
            SystemError::starting(NAME, problem)
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let addresses = Addresses::claim(nodes).map_err(unavailable)?;
            std::fs::write(&file, addresses.name())
                .map_err(|error| SystemError::starting(NAME, format!("can't write {}: {error}", file.display())))?;
            Ok(addresses)
        }
        Err(error) => Err(SystemError::starting(NAME, format!("can't read {}: {error}", file.display()))),
    }
}

/// A running cluster. The nodes are dropped first, before their addresses are released.
struct Started {
    config: Config,
    resources: Resources,
    /// Empty for an existing cluster.
    nodes: Vec<Node>,
    states: Arc<[Arc<crate::child::ChildState>]>,
    database: Arc<Database>,
    timeout: Duration,
    addresses: Option<Addresses>,
    network: Network,
}

impl Started {
    /// Runs `each` for all nodes in parallel. Returns the first error.
    fn on_all<T: Send>(
        &self,
        each: impl Fn(&Node) -> Result<T, SystemError> + Sync,
    ) -> Result<Vec<T>, SystemError> {
        std::thread::scope(|scope| {
            let each = &each;
            let threads: Vec<_> = self.nodes.iter().map(|node| scope.spawn(move || each(node))).collect();
            let ended = threads.into_iter().map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(SystemError::starting(NAME, "a thread of underlay panicked")))
            });
            ended.collect()
        })
    }

    /// The combined figures of the nodes.
    fn cluster_figures(&self, during: &'static str) -> Result<Figures, SystemError> {
        let nodes = self.database.node_figures().map_err(|error| explain(during, &error, &self.nodes))?;
        Ok(together(&nodes))
    }

    fn not_settled(&self, during: &'static str, limit: Duration, tasks: u64) -> SystemError {
        let work = self.database.compactions_under_way().unwrap_or_else(|error| vec![error.to_string()]);
        let work = if work.is_empty() { "none has started".to_owned() } else { work.join(", ") };
        let problem = format!("{tasks} compaction tasks are left after {:.0} s: {work}", limit.as_secs_f64());
        SystemError::failed(NAME, during, problem)
    }
}

impl Running for Started {
    fn connect(&self) -> Result<Box<dyn Client>, SystemError> {
        Ok(Box::new(CassandraClient::new(Arc::clone(&self.database), Arc::clone(&self.states))))
    }

    fn processes(&self) -> Vec<u32> {
        self.states.iter().filter(|state| state.is_running()).map(|state| state.pid()).collect()
    }

    fn applied_settings(&self) -> BTreeMap<String, String> {
        let mut applied = self.config.applied();
        if let Some(addresses) = &self.addresses {
            let native = addresses.all_native().iter().map(ToString::to_string).collect::<Vec<_>>();
            applied.insert("addresses".to_owned(), native.join(", "));
            applied.insert("network".to_owned(), self.network.description().to_owned());
            self.resources.record_java_option(&mut applied);
        }
        applied
    }

    fn health(&self) -> Result<(), SystemError> {
        if self.nodes.is_empty() {
            return self.cluster_figures("running").map(drop);
        }
        self.nodes.iter().try_for_each(Node::health)
    }

    fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        let mut figures = self.cluster_figures("reading its figures")?;
        let table = self.database.table().name;
        let outside: Vec<Figures> = self.nodes.iter().map(|node| node.outside_figures(table)).collect();
        figures.extend(together(&outside));
        Ok(figures)
    }

    fn gauges(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        self.database.gauges().map_err(|error| explain("reading its figures", &error, &self.nodes))
    }

    fn settle(&self, limit: Duration) -> Result<(), SystemError> {
        const DURING: &str = "settling";
        let deadline = Instant::now().checked_add(limit);
        let left = || deadline.map_or(limit, |deadline| deadline.saturating_duration_since(Instant::now()));
        let table = self.database.table().name;
        self.on_all(|node| {
            node.tool(&["flush", KEYSPACE, table], DURING, left().max(TOOL_LIMIT))?;
            match self.config.settle {
                Settle::Pending => Ok(()),
                Settle::Major => {
                    node.tool(&["compact", KEYSPACE, table], DURING, left().max(TOOL_LIMIT)).map(drop)
                }
            }
        })?;
        // When a task ends, it may submit another. One reading may fall between the two, so that none is seen; two readings can't.
        let mut quiet = 0;
        loop {
            let tasks =
                self.database.compaction_tasks().map_err(|error| explain(DURING, &error, &self.nodes))?;
            quiet = if tasks == 0 { quiet + 1 } else { 0 };
            if quiet == 2 {
                return Ok(());
            }
            if tasks > 0 && left().is_zero() {
                return Err(self.not_settled(DURING, limit, tasks));
            }
            std::thread::sleep(SETTLE_POLL);
        }
    }

    fn abort(&self) {
        self.nodes.iter().for_each(Node::kill);
    }

    fn stop(self: Box<Self>) -> Result<(), SystemError> {
        let limit = MIN_STOP_LIMIT.max(self.timeout.saturating_mul(LIMIT_TIMEOUTS));
        // One after another, since a node that drains may still have to reach the others.
        for node in &self.nodes {
            node.tool(&["drain"], "stopping", limit)?;
        }
        self.states.iter().for_each(|state| state.terminate());
        self.nodes.iter().try_for_each(|node| node.end(limit))
    }
}

/// Combines the figures of several nodes: sums, or means where a sum would be meaningless.
fn together(nodes: &[Figures]) -> Figures {
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for (name, &figure) in nodes.iter().flatten() {
        let (sum, count) = sums.entry(name.clone()).or_insert((0.0, 0.0));
        *sum += figure;
        *count += 1.0;
    }
    let is_mean = |name: &str| name.ends_with("_ms") || name.ends_with("_ratio");
    let figure = |(name, (sum, count)): (String, (f64, f64))| {
        let figure = if is_mean(&name) { sum / count } else { sum };
        (name, figure)
    };
    sums.into_iter().map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_nodes_are_summed_and_latencies_averaged() {
        let node = |reads: f64, latency_ms: f64| {
            Figures::from([("reads".to_owned(), reads), ("current_read_latency_ms".to_owned(), latency_ms)])
        };
        let all = together(&[node(10.0, 1.0), node(30.0, 2.0)]);
        assert_eq!(all["reads"], 40.0);
        assert_eq!(all["current_read_latency_ms"], 1.5);
        assert!(together(&[]).is_empty());
    }

    #[test]
    fn each_node_and_role_has_its_place() {
        let directory = tempfile::TempDir::new().unwrap();
        let [a, b, log] = ["a", "b", "log"].map(|name| directory.path().join(name));
        [&a, &b, &log].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
        let paths = StoragePaths {
            data: vec![a.clone(), b.clone()],
            roles: BTreeMap::from([("commitlog".to_owned(), log.clone())]),
            ..StoragePaths::default()
        };
        let one = Config::default();
        let [only] = storage_of_nodes(&one, &paths).unwrap().try_into().unwrap();
        assert_eq!(only.data, [a.join("cassandra/data"), b.join("cassandra/data")]);
        assert_eq!(only.commitlog, log.join("cassandra/commitlog"));
        assert_eq!(only.hints, a.join("cassandra/hints"));
        let two = Config { nodes: 2, ..Config::default() };
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
    fn a_ring_keeps_its_addresses() {
        let directory = tempfile::TempDir::new().unwrap();
        let paths = StoragePaths { data: vec![directory.path().into()], ..StoragePaths::default() };
        let config = Config { nodes: 2, ..Config::default() };
        let storages = storage_of_nodes(&config, &paths).unwrap();
        let first = claim_addresses(&storages, 2).unwrap();
        let error = claim_addresses(&storages, 2).unwrap_err().to_string();
        assert!(error.contains(RING_FILE), "{error}");
        let ip = first.ip(0);
        drop(first);
        let _other = Addresses::claim(2).unwrap();
        // The same addresses again, or an error if another run has them now; never other addresses.
        match claim_addresses(&storages, 2) {
            Ok(again) => assert_eq!(again.ip(0), ip),
            Err(error) => assert!(error.to_string().contains("belongs to a ring")),
        }
    }
}
