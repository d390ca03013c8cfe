//! Starting a ring of nodes or connecting to an existing one, and everything except clients' requests.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use underlay_sync::Mutex;
use underlay_workload::client::Client;

use super::NAME;
use super::client::CassandraClient;
use super::config::{CassandraCompression, CassandraConfig, CassandraSettle, SETTINGS};
use super::database::{CassandraSession, ClusterCredentials, ClusterTarget, DatabaseError, NodeMetrics};
use super::network::CassandraNetwork;
use super::node::CassandraNode;
use super::parts::parts;
use super::profile::PROFILE;
use super::ring::{self, CassandraRing, ROLES, TOOL_LIMIT};
use super::table::KEYSPACE;
use crate::artifacts::{self, CASSANDRA};
use crate::credentials;
use crate::figures::NodeTotals;
use crate::java::Java;
use crate::memory_plan::{ClientLoad, MemoryPlan};
use crate::nodes::{NodeProcess as _, PlannedNode, SystemNodes};
use crate::parts::SystemPart;
use crate::profile::SystemProfile;
use crate::setting::about_memory;
use crate::system::{
    ElsewhereSetting, LoadProgress, RunningSystem, StoragePaths, System, SystemCapabilities, SystemError,
    SystemResources, SystemSettings,
};

/// A client's timeout if the settings have none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Starting replays the commit log and draining flushes memtables, which may take long on a slow disk: these limits
/// only tell a stuck process from a slow one.
const MIN_START_LIMIT: Duration = Duration::from_secs(240);
const MIN_STOP_LIMIT: Duration = Duration::from_secs(120);
/// In slow motion everything takes longer. The client's timeout is stretched already, so limits of this many timeouts
/// are as well.
const LIMIT_TIMEOUTS: u32 = 20;
/// Silence after which a Cassandra node usually counts as down: `phi_convict_threshold` of 8 at a gossip a second.
const CONVICTED_AFTER_S: f64 = 18.0;
/// A pause of a garbage collection or a long flush may take as long.
const BRIEF_SILENCE_S: f64 = 1.0;
const SETTLE_POLL: Duration = Duration::from_millis(500);
/// The environment variables for user and password of an existing cluster.
const USERNAME: &str = "CASSANDRA_USERNAME";
const PASSWORD: &str = "CASSANDRA_PASSWORD";
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

    fn credentials(&self) -> Result<Option<ClusterCredentials>, SystemError> {
        let found = credentials::read(self.variable, [USERNAME, PASSWORD]).map_err(|missing| {
            credentials::missing(NAME, missing, format!("set both {USERNAME} and {PASSWORD}, or none"))
        })?;
        Ok(found.map(|(username, password)| ClusterCredentials { username, password }))
    }
}

impl System for Cassandra {
    fn name(&self) -> &'static str {
        NAME
    }

    fn profile(&self) -> SystemProfile {
        PROFILE
    }

    fn capabilities(&self) -> SystemCapabilities {
        SystemCapabilities {
            scan: true,
            scans_by_hash: true,
            delete: true,
            many_directories: true,
            many_nodes: true,
            roles: ROLES,
            settings: SETTINGS,
            elsewhere: Some(ElsewhereSetting { key: "endpoints", example: "[\"10.0.0.1:9042\"]" }),
            ..SystemCapabilities::default()
        }
    }

    fn versions(&self) -> BTreeMap<String, String> {
        let mut versions = artifacts::versions(NAME, &[(NAME, &CASSANDRA, "cassandra-all")]);
        versions.insert("rust-scylla".to_owned(), env!("UNDERLAY_RUST_SCYLLA_VERSION").to_owned());
        versions
    }

    fn loads_per_s(&self) -> f64 {
        7_000.0
    }

    fn start_and_stop(&self, settings: &BTreeMap<String, String>) -> Duration {
        // Nodes of a ring join it one after the other.
        let nodes = CassandraConfig::resolve(settings, None).map_or(1, |config| config.nodes);
        Duration::from_secs(7 + 18 * nodes)
    }

    fn settings_for_loading(&self) -> &'static [(&'static str, &'static str)] {
        // One file per node: otherwise their number depends on chance, and reads have to look into each of them.
        &[("settle", "major")]
    }

    fn check_settings(&self, settings: &BTreeMap<String, String>) -> Vec<(String, String)> {
        CassandraConfig::resolve(settings, None).err().unwrap_or_default()
    }

    fn left_at_wall_time(&self, settings: &BTreeMap<String, String>, slow_motion: f64) -> Vec<String> {
        let is_ring = CassandraConfig::resolve(settings, None).is_ok_and(|config| config.nodes > 1);
        let silence_s = CONVICTED_AFTER_S / slow_motion;
        if !is_ring || silence_s > BRIEF_SILENCE_S {
            return Vec::new();
        }
        vec![format!(
            "Cassandra's nodes gossip once per second by this host's clock: a node that is silent for {silence_s:.1} s of modelled time \
             counts as down"
        )]
    }

    fn planned_nodes(&self, settings: &BTreeMap<String, String>) -> Vec<PlannedNode> {
        match CassandraConfig::resolve(settings, None) {
            Ok(config) if config.nodes > 1 && config.endpoints.is_empty() => ring::planned(config.nodes),
            _ => Vec::new(),
        }
    }

    fn parts(&self, paths: &StoragePaths, settings: &BTreeMap<String, String>) -> Vec<SystemPart> {
        CassandraConfig::resolve(settings, None).map_or_else(|_| Vec::new(), |config| parts(paths, &config))
    }

    fn copies(&self, settings: &BTreeMap<String, String>) -> u64 {
        CassandraConfig::resolve(settings, None).map_or(1, |config| config.replication_factor)
    }

    fn memory(
        &self,
        settings: &BTreeMap<String, String>,
        budget_bytes: u64,
        load: ClientLoad,
    ) -> Option<Result<MemoryPlan, String>> {
        let config = match CassandraConfig::resolve(settings, Some(budget_bytes)) {
            Ok(config) => config,
            Err(mistakes) => return about_memory(mistakes).map(Err),
        };
        // Of a cluster that runs already nothing is known.
        config.endpoints.is_empty().then(|| config.memory(load))
    }

    fn compacts_everything(&self, _: &BTreeMap<String, String>) -> bool {
        // It is brought to its defined state by a compaction of everything.
        true
    }

    fn compresses(&self, settings: &BTreeMap<String, String>) -> bool {
        CassandraConfig::resolve(settings, None)
            .is_ok_and(|config| config.compression != CassandraCompression::None)
    }

    fn without_nodes(
        &self,
        settings: &BTreeMap<String, String>,
        _: Option<u32>,
        away: usize,
    ) -> Option<String> {
        CassandraConfig::resolve(settings, None).ok()?.without(away as u64)
    }

    fn prepare(&self, progress: &dyn Fn(&LoadProgress)) -> Result<(), SystemError> {
        Java::find(NAME)?;
        CASSANDRA.directory(progress).map(drop).map_err(|error| error.into_system_error(NAME))
    }

    fn start(
        &self,
        paths: &StoragePaths,
        resources: &SystemResources,
        settings: &SystemSettings,
    ) -> Result<Box<dyn RunningSystem>, SystemError> {
        let config = CassandraConfig::resolve(&settings.values, Some(resources.budget_bytes))
            .map_err(|mistakes| SystemError::first_mistake(NAME, mistakes))?;
        // By its processors Java sizes pools of threads, whose buffers a small heap has no room for.
        let resources = &resources.with_cores_up_to(config.division().most_processors());
        let timeout = if settings.timeout.is_zero() { DEFAULT_TIMEOUT } else { settings.timeout };
        // An existing cluster is on the host's network.
        let network =
            if config.endpoints.is_empty() { CassandraNetwork::create()? } else { CassandraNetwork::Host };
        let ring = match config.endpoints.is_empty() {
            true => {
                let limit = MIN_START_LIMIT.max(timeout.saturating_mul(LIMIT_TIMEOUTS));
                Some(Arc::new(CassandraRing::start(&config, paths, resources, settings, limit, &network)?))
            }
            false => None,
        };
        let endpoints = match &ring {
            Some(ring) => ring.addresses().all_native().iter().map(ToString::to_string).collect(),
            None => config.endpoints.clone(),
        };
        let ours = ring.is_some();
        // Clusters that are started here don't ask for credentials.
        let credentials = if ours { None } else { self.credentials()? };
        let named = credentials.is_some().then_some([USERNAME, PASSWORD]);
        let allowed = match ours {
            true => None,
            false => settings.may_connect.check(NAME, ("endpoints", &endpoints), named)?,
        };
        let target = ClusterTarget {
            endpoints,
            config: &config,
            fields: settings.fields,
            timeout,
            ours,
            credentials,
            allowed,
        };
        // Threads inherit the network of their creator, so all later connections are made in it as well.
        let opened = network.within(|| CassandraSession::open(&target)).map_err(DatabaseError::Threads);
        let nodes = ring.as_ref().map_or_else(Vec::new, |ring| ring.present());
        let database = opened.flatten().map_err(|error| explain("starting", &error, &nodes))?;
        let database = Arc::new(database);
        let resources = resources.clone();
        let totals = Mutex::default();
        Ok(Box::new(RunningCassandra { config, resources, ring, database, timeout, network, totals }))
    }
}

/// The error of a cluster that can't be used, with the end of a node's log if one has ended.
fn explain(during: &'static str, error: &DatabaseError, nodes: &[Arc<CassandraNode>]) -> SystemError {
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

/// A running cluster.
struct RunningCassandra {
    config: CassandraConfig,
    resources: SystemResources,
    /// `None` for an existing cluster.
    ring: Option<Arc<CassandraRing>>,
    database: Arc<CassandraSession>,
    timeout: Duration,
    network: CassandraNetwork,
    totals: Mutex<NodeTotals>,
}

impl RunningCassandra {
    /// The nodes that were started here and not sent away.
    fn present(&self) -> Vec<Arc<CassandraNode>> {
        self.ring.as_ref().map_or_else(Vec::new, |ring| ring.present())
    }

    /// The addresses of nodes that can't be asked now, since they were sent away.
    fn absent(&self) -> Vec<IpAddr> {
        self.ring.as_ref().map_or_else(Vec::new, |ring| ring.absent())
    }

    /// Runs `each` for all nodes in parallel. Returns the first error.
    fn on_all<T: Send>(
        &self,
        each: impl Fn(&CassandraNode) -> Result<T, SystemError> + Sync,
    ) -> Result<Vec<T>, SystemError> {
        let nodes = self.present();
        std::thread::scope(|scope| {
            let each = &each;
            let threads: Vec<_> = nodes.iter().map(|node| scope.spawn(move || each(node))).collect();
            let ended = threads.into_iter().map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(SystemError::starting(NAME, "a thread of underlay panicked")))
            });
            ended.collect()
        })
    }

    /// The combined figures of the nodes.
    fn cluster_figures(&self, during: &'static str) -> Result<NodeMetrics, SystemError> {
        // Held while nodes are asked: an answer that is counted after a newer one would look like a reset.
        let mut totals = self.totals.lock();
        let answers = self.database.node_figures(&self.absent());
        let answers = answers.map_err(|error| explain(during, &error, &self.present()))?;
        let present = self.present();
        for (address, figures) in &answers {
            let process = present.iter().find(|node| node.address() == *address);
            let process = process.map_or(0, |node| node.state().pid());
            totals.count(&address.to_string(), process, figures, &is_stored);
        }
        let figures: Vec<NodeMetrics> = answers.into_iter().map(|(_, figures)| figures).collect();
        let mut all = together(&figures);
        all.extend(totals.totals());
        Ok(all)
    }

    fn not_settled(&self, during: &'static str, limit: Duration, tasks: u64) -> SystemError {
        let work = self
            .database
            .compactions_under_way(&self.absent())
            .unwrap_or_else(|error| vec![error.to_string()]);
        let work = if work.is_empty() { "none has started".to_owned() } else { work.join(", ") };
        let problem = format!("{tasks} compaction tasks are left after {:.0} s: {work}", limit.as_secs_f64());
        SystemError::failed(NAME, during, problem)
    }
}

impl RunningSystem for RunningCassandra {
    fn connect(&self) -> Result<Box<dyn Client>, SystemError> {
        let ring = self.ring.as_ref().map(Arc::downgrade);
        Ok(Box::new(CassandraClient::new(Arc::clone(&self.database), ring)))
    }

    fn nodes(&self) -> Option<&dyn SystemNodes> {
        let ring = self.ring.as_deref().filter(|_| self.config.nodes > 1)?;
        Some(ring)
    }

    fn processes(&self) -> Vec<u32> {
        let present = self.present();
        let states = present.iter().map(|node| node.state());
        states.filter(|state| state.is_running()).map(|state| state.pid()).collect()
    }

    fn applied_settings(&self) -> BTreeMap<String, String> {
        let mut applied = self.config.applied();
        if let Some(ring) = &self.ring {
            let native = ring.addresses().all_native().iter().map(ToString::to_string).collect::<Vec<_>>();
            applied.insert("addresses".to_owned(), native.join(", "));
            applied.insert("network".to_owned(), self.network.description().to_owned());
            self.resources.record_java_option(&mut applied);
        }
        applied
    }

    fn health(&self) -> Result<(), SystemError> {
        match &self.ring {
            None => self.cluster_figures("running").map(drop),
            Some(ring) => ring.health(),
        }
    }

    fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        let mut figures = self.cluster_figures("reading its figures")?;
        let table = self.database.table().name;
        let outside: Vec<NodeMetrics> =
            self.present().iter().map(|node| node.outside_figures(table)).collect();
        figures.extend(together(&outside));
        Ok(figures)
    }

    fn gauges(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        let gauges = self.database.gauges(&self.absent());
        gauges.map_err(|error| explain("reading its figures", &error, &self.present()))
    }

    fn settle(&self, limit: Duration) -> Result<(), SystemError> {
        const DURING: &str = "settling";
        let deadline = Instant::now().checked_add(limit);
        let left = || deadline.map_or(limit, |deadline| deadline.saturating_duration_since(Instant::now()));
        let table = self.database.table().name;
        self.on_all(|node| {
            node.tool(&["flush", KEYSPACE, table], DURING, left().max(TOOL_LIMIT))?;
            match self.config.settle {
                CassandraSettle::Pending => Ok(()),
                CassandraSettle::Major => {
                    node.tool(&["compact", KEYSPACE, table], DURING, left().max(TOOL_LIMIT)).map(drop)
                }
            }
        })?;
        // When a task ends, it may submit another. One reading may fall between the two, so that none is seen; two
        // readings can't.
        let mut quiet = 0;
        loop {
            let tasks = self.database.compaction_tasks(&self.absent());
            let tasks = tasks.map_err(|error| explain(DURING, &error, &self.present()))?;
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
        self.present().iter().for_each(|node| node.kill());
    }

    fn stop(self: Box<Self>) -> Result<(), SystemError> {
        let limit = MIN_STOP_LIMIT.max(self.timeout.saturating_mul(LIMIT_TIMEOUTS));
        // One after another, since a node that drains may still have to reach the others.
        let nodes = self.present();
        for node in &nodes {
            node.tool(&["drain"], "stopping", limit)?;
        }
        nodes.iter().for_each(|node| node.state().terminate());
        nodes.iter().try_for_each(|node| node.end(limit))
    }
}

/// Totals that a node reads from a table of its own, which survives it.
fn is_stored(name: &str) -> bool {
    name.starts_with("compaction")
}

/// Combines the figures of several nodes: sums, or means where a sum would be meaningless.
fn together(nodes: &[NodeMetrics]) -> NodeMetrics {
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
            NodeMetrics::from([
                ("reads".to_owned(), reads),
                ("current_read_latency_ms".to_owned(), latency_ms),
            ])
        };
        let all = together(&[node(10.0, 1.0), node(30.0, 2.0)]);
        assert_eq!(all["reads"], 40.0);
        assert_eq!(all["current_read_latency_ms"], 1.5);
        assert!(together(&[]).is_empty());
    }
}
