//! A running instance.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use underlay_record::{NodeRole, NodeState};
use underlay_sync::Mutex;
use underlay_workload::client::Client;

use super::NAME;
use super::config::AccumuloConfig;
use super::identity::{InstanceIdentity, InstanceStage};
use super::places::AccumuloDirectories;
use super::servers::{AccumuloServers, ProcessEnvironment};
use crate::child::ChildState;
use crate::figures::NodeTotals;
use crate::hdfs::Hdfs;
use crate::hdfs::configuration::NAMENODE_WEB;
use crate::jvm::JvmChild;
use crate::nodes::{SystemNodes, unknown};
use crate::process_memory::resident_bytes;
use crate::system::{RunningSystem, SystemError, SystemSettings, Visibility};
use crate::web::get_json;

/// How long the client process may take to end.
const CLIENT_STOP_LIMIT: Duration = Duration::from_secs(30);
/// Where the client process tells a total of one tablet server: `server.127.0.0.1:9997.lookups`.
const OF_A_SERVER: &str = "server.";
/// How long a tablet server may take to say how many tablets it has.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// The processes of an instance that was started here. The servers are dropped first, before HDFS.
pub(super) struct AccumuloCluster {
    pub servers: AccumuloServers,
    pub hdfs: Hdfs,
    pub environment: ProcessEnvironment,
    pub identity: InstanceIdentity,
    pub places: AccumuloDirectories,
    /// The part of the budget that HDFS takes.
    pub hdfs_bytes: u64,
}

impl AccumuloCluster {
    /// Fails if a process has ended.
    fn check(&self, during: &'static str) -> Result<(), SystemError> {
        self.servers.check(during)
    }

    /// The cause of a client's error if one of our processes has ended, otherwise the error itself.
    pub(super) fn explain(&self, during: &'static str, error: SystemError) -> SystemError {
        self.check(during).and_then(|()| self.hdfs.health()).err().unwrap_or(error)
    }

    fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        let mut figures = self.hdfs.figures()?;
        let (files, bytes) = match self.places.logs.as_slice() {
            [] => self.logs_in_hdfs().unwrap_or_default(),
            directories => directories
                .iter()
                .map(|directory| files_in(&directory.join("wal")))
                .fold((0.0, 0.0), |(files, bytes), (more_files, more_bytes)| {
                    (files + more_files, bytes + more_bytes)
                }),
        };
        figures.insert("current_wal_files".to_owned(), files);
        figures.insert("current_wal_bytes".to_owned(), bytes);
        let resident = |state: &Arc<ChildState>| resident_bytes(state.pid()).map(|bytes| bytes as f64);
        let of_all = self.servers.states().iter().filter_map(resident).sum();
        let tablet_servers = self.servers.tablet_servers.present();
        let of_tablet_servers = tablet_servers.iter().filter_map(|server| resident(server.state())).sum();
        figures.insert("current_resident_bytes".to_owned(), of_all);
        figures.insert("current_tablet_server_resident_bytes".to_owned(), of_tablet_servers);
        Ok(figures)
    }

    /// As seen by the NameNode, which counts only the finished blocks of a file that is being written.
    fn logs_in_hdfs(&self) -> Option<(f64, f64)> {
        let path = "/webhdfs/v1/accumulo/wal?op=GETCONTENTSUMMARY";
        let answer = get_json(&self.environment.namespace, NAMENODE_WEB, path).ok()?;
        let number = |name: &str| answer.get("ContentSummary")?.get(name).and_then(Value::as_f64);
        Some((number("fileCount")?, number("length")?))
    }

    fn stop(mut self) -> Result<(), SystemError> {
        self.servers.stop(&self.environment, self.hdfs.configuration_directory())?;
        self.identity.life = InstanceStage::Stopped;
        self.identity.write(&self.places.metadata).map_err(|error| {
            let problem = format!("can't write to {}: {error}", self.places.metadata.display());
            SystemError::failed(NAME, "stopping", problem)
        })?;
        self.hdfs.stop()
    }
}

/// The number of files below `directory`, and their bytes.
fn files_in(directory: &Path) -> (f64, f64) {
    let (mut files, mut bytes) = (0.0, 0.0);
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            let (more_files, more_bytes) = files_in(&entry.path());
            (files, bytes) = (files + more_files, bytes + more_bytes);
        } else {
            (files, bytes) = (files + 1.0, bytes + metadata.len() as f64);
        }
    }
    (files, bytes)
}

/// An instance with a client. The client process is dropped first, before the servers.
pub(super) struct RunningAccumulo {
    client: JvmChild,
    /// `None` for an existing instance.
    cluster: Option<AccumuloCluster>,
    config: AccumuloConfig,
    visibility: Option<Visibility>,
    connections: AtomicU64,
    totals: Mutex<NodeTotals>,
}

impl RunningAccumulo {
    pub(super) fn new(
        config: AccumuloConfig,
        client: JvmChild,
        cluster: Option<AccumuloCluster>,
        settings: &SystemSettings,
    ) -> RunningAccumulo {
        let visibility = settings.visibility.clone();
        let (connections, totals) = (AtomicU64::new(0), Mutex::default());
        RunningAccumulo { client, cluster, config, visibility, connections, totals }
    }

    fn explained<T>(&self, during: &'static str, outcome: Result<T, SystemError>) -> Result<T, SystemError> {
        outcome.map_err(|error| match &self.cluster {
            Some(cluster) => cluster.explain(during, error),
            None => error,
        })
    }
}

impl RunningAccumulo {
    /// The cluster of the node with this name, and whether that is one of HDFS.
    fn cluster_of(&self, name: &str, during: &'static str) -> Result<(&AccumuloCluster, bool), SystemError> {
        let cluster = self.cluster.as_ref().ok_or_else(|| unknown(NAME, during, name, []))?;
        let of_hdfs = cluster.hdfs.list()?.iter().any(|node| node.name == name);
        Ok((cluster, of_hdfs))
    }
}

/// Tablet servers, and the DataNodes below them.
impl SystemNodes for RunningAccumulo {
    fn list(&self) -> Result<Vec<NodeState>, SystemError> {
        let Some(cluster) = &self.cluster else { return Ok(Vec::new()) };
        let tablet_servers = cluster.servers.tablet_servers.states(Some(NodeRole::TabletServer));
        let of_hdfs = if self.config.datanodes() > 1 { cluster.hdfs.list()? } else { Vec::new() };
        Ok(tablet_servers.into_iter().chain(of_hdfs).collect())
    }

    fn stop(&self, name: &str) -> Result<(), SystemError> {
        const DURING: &str = "stopping a tablet server";
        let (cluster, of_hdfs) = self.cluster_of(name, DURING)?;
        if of_hdfs {
            return SystemNodes::stop(&cluster.hdfs, name);
        }
        let configuration = cluster.hdfs.configuration_directory();
        cluster.servers.stop_tablet_server(&cluster.environment, configuration, name)
    }

    fn kill(&self, name: &str) -> Result<(), SystemError> {
        const DURING: &str = "killing a tablet server";
        let (cluster, of_hdfs) = self.cluster_of(name, DURING)?;
        if of_hdfs {
            return cluster.hdfs.kill(name);
        }
        cluster.servers.tablet_servers.kill(name, DURING)
    }

    fn start(&self, name: &str, process_back: &(dyn Fn() + Sync)) -> Result<(), SystemError> {
        const DURING: &str = "starting a tablet server";
        let (cluster, of_hdfs) = self.cluster_of(name, DURING)?;
        if of_hdfs {
            return SystemNodes::start(&cluster.hdfs, name, process_back);
        }
        // With fewer tablets than servers, one may never get any.
        let least = u32::from(self.config.tablets() >= self.config.nodes);
        let has_tablets = |address: &str| {
            let online = self.client.command(DURING, "tablets", address, ASK_LIMIT);
            online.is_ok_and(|online| online.parse::<u32>().is_ok_and(|online| online >= least))
        };
        cluster.servers.start_tablet_server(&cluster.environment, name, process_back, &has_tablets)
    }
}

impl RunningSystem for RunningAccumulo {
    fn connect(&self) -> Result<Box<dyn Client>, SystemError> {
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        let authorizations = match &self.visibility {
            Some(visibility) if !is_unauthorized(number, visibility.unauthorized_share) => {
                visibility.authorizations.join(",")
            }
            _ => String::new(),
        };
        let client = self.client.connect(&[("authorizations", &authorizations)]);
        Ok(Box::new(self.explained("connecting", client)?))
    }

    fn nodes(&self) -> Option<&dyn SystemNodes> {
        self.cluster.as_ref().filter(|_| self.config.nodes > 1)?;
        Some(self)
    }

    fn processes(&self) -> Vec<u32> {
        let Some(cluster) = &self.cluster else { return Vec::new() };
        let states = cluster.servers.states().into_iter();
        let own = states.filter(|state| state.is_running()).map(|state| state.pid());
        own.chain(cluster.hdfs.processes()).collect()
    }

    fn applied_settings(&self) -> BTreeMap<String, String> {
        let mut applied = self.config.applied(self.cluster.as_ref().map_or(0, |cluster| cluster.hdfs_bytes));
        if let Some(cluster) = &self.cluster {
            cluster.environment.resources.record_java_option(&mut applied);
        }
        applied
    }

    fn health(&self) -> Result<(), SystemError> {
        if let Some(cluster) = &self.cluster {
            cluster.check("running")?;
            cluster.hdfs.health()?;
        }
        self.client.health()
    }

    fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        // Held while servers are asked: an answer that is counted after a newer one would look like a reset.
        let mut totals = self.totals.lock();
        let client_figures = self.explained("reading its figures", self.client.figures())?;
        let servers = self.cluster.as_ref().map(|cluster| cluster.servers.serving());
        let mut figures = with_totals(client_figures, servers.as_ref(), &mut totals);
        drop(totals);
        if let Some(cluster) = &self.cluster {
            figures.extend(cluster.figures()?);
        }
        Ok(figures)
    }

    fn gauges(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        self.explained("reading its figures", self.client.gauges())
    }

    fn settle(&self, limit: Duration) -> Result<(), SystemError> {
        // Don't settle HDFS: Accumulo's own tables want five copies of their files, which it never reaches with few
        // DataNodes.
        self.explained("settling", self.client.settle(limit))
    }

    fn compact(&self, limit: Duration) -> Result<(), SystemError> {
        const DURING: &str = "starting a compaction";
        self.explained(DURING, self.client.command(DURING, "start-compaction", "", limit).map(drop))
    }

    fn abort(&self) {
        // All requests go through the client. The servers end when this is dropped.
        self.client.kill();
    }

    fn stop(self: Box<Self>) -> Result<(), SystemError> {
        let client = self.client.stop(CLIENT_STOP_LIMIT);
        let cluster = self.cluster.map_or(Ok(()), AccumuloCluster::stop);
        // If both failed, the cluster is the cause.
        cluster.and(client)
    }
}

/// The client's figures, with totals that go on when a tablet server is down: the client gives each total also for each
/// server. `serving` has the addresses and processes of the live servers; only their answers are new. The processes of
/// an external instance are unknown.
fn with_totals(
    client_figures: BTreeMap<String, f64>,
    serving: Option<&BTreeMap<String, u32>>,
    totals: &mut NodeTotals,
) -> BTreeMap<String, f64> {
    let mut figures = BTreeMap::new();
    let mut of_servers: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
    for (name, figure) in client_figures {
        match name.strip_prefix(OF_A_SERVER).and_then(|rest| rest.rsplit_once('.')) {
            Some((server, total)) => {
                of_servers.entry(server.to_owned()).or_default().insert(total.to_owned(), figure);
            }
            None => drop(figures.insert(name, figure)),
        }
    }
    for (server, server_figures) in of_servers {
        let process = serving.map_or(Some(0), |serving| serving.get(&server).copied());
        if let Some(process) = process {
            totals.count(&server, process, &server_figures, &|_| false);
        }
    }
    figures.extend(totals.totals());
    figures
}

/// Whether the client of this number has no authorisation. Among any consecutive clients, `share` of them have none.
fn is_unauthorized(number: u64, share: f64) -> bool {
    let before = (number as f64 * share).floor();
    ((number + 1) as f64 * share).floor() > before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_of_clients_has_no_authorisation() {
        for (share, clients, expected) in
            [(0.0, 100, 0), (1.0, 7, 7), (0.25, 64, 16), (0.5, 256, 128), (0.1, 10, 1)]
        {
            let unauthorized = (0..clients).filter(|&number| is_unauthorized(number, share)).count();
            assert_eq!(unauthorized, expected, "{share}");
        }
    }

    #[test]
    fn totals_continue_without_tablet_server_and_after_return() {
        let mut totals = NodeTotals::default();
        let mut lookups = |answers: &[(&str, f64)], serving: &[(&str, u32)]| {
            let named_figures = answers.iter().flat_map(|(server, lookups)| {
                [(format!("server.{server}.lookups"), *lookups), ("lookups".to_owned(), *lookups)]
            });
            let serving = serving.iter().map(|(server, process)| ((*server).to_owned(), *process)).collect();
            let figures = with_totals(named_figures.collect(), Some(&serving), &mut totals);
            assert!(figures.keys().all(|name| name == "lookups"), "{figures:?}");
            figures["lookups"]
        };
        let (one, two) = ("127.0.0.1:9997", "127.0.0.2:9997");
        assert_eq!(lookups(&[(one, 5.0), (two, 7.0)], &[(one, 1), (two, 2)]), 12.0);
        // It was killed, and the manager does not know that yet.
        assert_eq!(lookups(&[(one, 6.0), (two, 7.0)], &[(one, 1)]), 13.0);
        assert_eq!(lookups(&[(one, 6.0)], &[(one, 1)]), 13.0);
        assert_eq!(lookups(&[(one, 6.0), (two, 8.0)], &[(one, 1), (two, 3)]), 21.0);
    }

    #[test]
    fn files_are_counted_in_all_folders() {
        let folder = tempfile::TempDir::new().unwrap();
        std::fs::create_dir_all(folder.path().join("127.0.0.1+9997")).unwrap();
        std::fs::write(folder.path().join("127.0.0.1+9997/log"), [0; 30]).unwrap();
        std::fs::write(folder.path().join("version"), [0; 3]).unwrap();
        assert_eq!(files_in(folder.path()), (2.0, 33.0));
        assert_eq!(files_in(&folder.path().join("none")), (0.0, 0.0));
    }
}
