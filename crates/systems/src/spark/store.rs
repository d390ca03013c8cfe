//! The jobs' store: an HDFS or a Ceph cluster that was started below Spark, an external S3 store, or an external
//! cluster's.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use underlay_record::NodeState;
use underlay_sync::Mutex;

use super::NAME;
use super::committer::OutputCommitter;
use super::config::SparkConfig;
use super::elsewhere::ExternalStore;
use super::master::is_s3a;
use super::memory::StoreKind;
use crate::ceph::{self, Ceph, CephBucket};
use crate::certificate::ServerCertificate;
use crate::hdfs::{Hdfs, HdfsPlan, StorageType, VolumeChoosing};
use crate::left_elsewhere::{LedgerEntry, RemoteLedger};
use crate::network_namespace::NetworkNamespace;
use crate::nodes::SystemNodes;
use crate::system::{StoragePaths, SystemError, SystemResources, check_attached, first_data_directory};

pub(super) const BUCKET: &str = "underlay";

/// A running store.
#[derive(Debug)]
pub(super) enum SparkStore {
    Hdfs(Box<Hdfs>),
    Ceph(Box<Ceph>),
    Elsewhere(Box<ExternalStore>),
    /// An external cluster's store.
    Given(GivenLocation),
}

/// A directory that a cluster which runs already reaches, by its URL. If it was used and nobody has said that it is
/// clear, its drop says so: it is on somebody else's storage.
#[derive(Debug)]
pub(super) struct GivenLocation {
    directory: String,
    is_used: AtomicBool,
    was_used: AtomicBool,
    entry: Mutex<LedgerEntry>,
}

impl GivenLocation {
    /// # Errors
    /// When the directory can't be written down.
    pub(super) fn new(directory: String, ledger: &RemoteLedger) -> Result<GivenLocation, SystemError> {
        let entry = ledger
            .enter(&format!("the jobs' files below {directory}, on an external cluster"))
            .map_err(|problem| SystemError::starting(NAME, problem))?;
        let [is_used, was_used] = [(); 2].map(|()| AtomicBool::new(false));
        Ok(GivenLocation { directory, is_used, was_used, entry: Mutex::new(entry) })
    }

    pub(super) fn directory(&self) -> &str {
        &self.directory
    }

    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Nothing is left there, or somebody has said what may be.
    pub(super) fn forget(&self) {
        self.is_used.store(false, Ordering::Relaxed);
    }

    /// Nothing is left there.
    pub(super) fn is_clear(&self) {
        self.entry.lock().strike_out();
    }

    fn url(&self, name: &str) -> String {
        self.is_used.store(true, Ordering::Relaxed);
        self.was_used.store(true, Ordering::Relaxed);
        format!("{}/{name}", self.directory)
    }
}

impl Drop for GivenLocation {
    fn drop(&mut self) {
        if !self.was_used.load(Ordering::Relaxed) {
            self.is_clear();
        }
        if self.is_used() {
            // The reader of standard error may be gone.
            let _ = writeln!(
                std::io::stderr(),
                "the jobs' files may still be at {}: delete them there",
                self.directory
            );
        }
    }
}

impl SparkStore {
    /// Starts the store of `config`, which is not one elsewhere, on the storage of `paths`, whose own directories must
    /// exist, where clients find it at `address`.
    pub(super) fn start(
        config: &SparkConfig,
        paths: &StoragePaths,
        scratch: &Path,
        (namespace, address): (&std::sync::Arc<NetworkNamespace>, Ipv4Addr),
        resources: &SystemResources,
        slow_motion: f64,
    ) -> Result<SparkStore, SystemError> {
        let first = first_data_directory(NAME, &paths.data)?;
        paths.data.iter().chain(paths.roles.values()).try_for_each(|path| check_attached(NAME, path))?;
        let division = config.division();
        match config.kind() {
            StoreKind::Elsewhere | StoreKind::Given => {
                Err(SystemError::starting(NAME, "a store elsewhere can't be started"))
            }
            StoreKind::Hdfs => {
                let data: Vec<_> = paths.data.iter().cloned().map(|path| (path, StorageType::Disk)).collect();
                let datanodes = u32::try_from(config.datanodes).unwrap_or(u32::MAX);
                let plan = HdfsPlan {
                    system: NAME,
                    name_directory: paths
                        .roles
                        .get("namenode")
                        .unwrap_or(first)
                        .join("hdfs")
                        .join("namenode"),
                    datanodes: HdfsPlan::on_each(NAME, &data, datanodes)?,
                    replication: u32::try_from(config.copies()).unwrap_or(u32::MAX),
                    block_bytes: config.block_bytes,
                    volume_choosing: VolumeChoosing::RoundRobin,
                    sync_on_close: false,
                    short_circuit_bytes: None,
                    address,
                    scratch: scratch.join("hdfs"),
                    heaps: division.hdfs,
                    slow_motion,
                };
                Hdfs::start(&plan, namespace, resources).map(|hdfs| SparkStore::Hdfs(Box::new(hdfs)))
            }
            StoreKind::S3a => {
                let osds = usize::try_from(config.nodes_of_store()).unwrap_or(1);
                let plan = ceph::CephPlan {
                    system: NAME,
                    osds: ceph::CephPlan::on_each(NAME, &paths.data, osds)?,
                    replication: u32::try_from(config.copies()).unwrap_or(u32::MAX),
                    rotational: config.seeks,
                    memory: division.ceph,
                    // Executors keep their files beside the OSDs', unless these have a storage of their own.
                    space_share: match paths.roles.contains_key("shuffle") {
                        true => ceph::WHOLE_SHARE,
                        // So does a cache.
                        false => ceph::SHARED_SHARE,
                    },
                    tls: config.version.needs_tls().then_some(address),
                    scratch: scratch.join("ceph"),
                    slow_motion,
                };
                Ceph::start(&plan, namespace, resources).map(|ceph| SparkStore::Ceph(Box::new(ceph)))
            }
        }
    }

    /// The URL of what jobs call `name`.
    pub(super) fn url(&self, name: &str) -> String {
        match self {
            SparkStore::Hdfs(hdfs) => format!("{}/underlay/{name}", hdfs.uri()),
            SparkStore::Ceph(_) => format!("s3a://{BUCKET}/{name}"),
            SparkStore::Elsewhere(store) => store.url(name),
            SparkStore::Given(location) => location.url(name),
        }
    }

    /// The bucket as a cache reaches it, where the store is at `address`; `None` without one that was made here.
    pub(super) fn bucket(&self, address: Ipv4Addr) -> Option<CephBucket> {
        let SparkStore::Ceph(ceph) = self else { return None };
        let authority = ceph.certificate().map(ServerCertificate::chain);
        Some(CephBucket {
            name: BUCKET.to_owned(),
            endpoint: endpoint_of(ceph, address),
            authority,
            keys: ceph.keys().clone(),
        })
    }

    /// A session's settings for reaching it.
    pub(super) fn settings(&self, address: Ipv4Addr) -> BTreeMap<String, String> {
        let ceph = match self {
            SparkStore::Hdfs(_) | SparkStore::Given(_) => return BTreeMap::new(),
            SparkStore::Elsewhere(store) => return store.settings(),
            SparkStore::Ceph(ceph) => ceph,
        };
        let keys = ceph.keys();
        let is_secured = ceph.certificate().is_some();
        let way = match is_secured {
            true => ("endpoint.region", "us-east-1"),
            // By the other one, S3A signs empty objects part by part over plain HTTP, which this version of Ceph
            // rejects.
            false => ("signing-algorithm", "S3SignerType"),
        };
        [
            ("endpoint", endpoint_of(ceph, address)),
            ("path.style.access", "true".to_owned()),
            ("connection.ssl.enabled", is_secured.to_string()),
            (way.0, way.1.to_owned()),
            ("access.key", keys.access.clone()),
            ("secret.key", keys.secret.clone()),
        ]
        .map(|(name, value)| (format!("spark.hadoop.fs.s3a.{name}"), value))
        .into()
    }

    /// The certificate that its clients must trust besides the known authorities.
    pub(super) fn certificate(&self) -> Option<&ServerCertificate> {
        match self {
            SparkStore::Ceph(ceph) => ceph.certificate(),
            SparkStore::Hdfs(_) | SparkStore::Elsewhere(_) | SparkStore::Given(_) => None,
        }
    }

    pub(super) fn hadoop_configuration(&self) -> Option<&Path> {
        match self {
            SparkStore::Hdfs(hdfs) => Some(hdfs.configuration_directory()),
            SparkStore::Ceph(_) | SparkStore::Elsewhere(_) | SparkStore::Given(_) => None,
        }
    }

    /// The committer for what jobs only read later on: the quickest that is safe.
    pub(super) fn committer_of_inputs(&self) -> OutputCommitter {
        match self {
            SparkStore::Given(location) if !is_s3a(&location.directory) => OutputCommitter::FileV1,
            SparkStore::Hdfs(_) => OutputCommitter::FileV1,
            SparkStore::Ceph(_) | SparkStore::Elsewhere(_) | SparkStore::Given(_) => OutputCommitter::Magic,
        }
    }

    /// `None` where nothing was started.
    pub(super) fn nodes(&self) -> Option<&dyn SystemNodes> {
        match self {
            SparkStore::Hdfs(hdfs) => Some(&**hdfs),
            SparkStore::Ceph(ceph) => Some(&**ceph),
            SparkStore::Elsewhere(_) | SparkStore::Given(_) => None,
        }
    }

    /// The nodes that `name` is one of.
    pub(super) fn nodes_with(&self, name: &str) -> Option<&dyn SystemNodes> {
        let nodes = self.nodes()?;
        let states: Vec<NodeState> = nodes.list().unwrap_or_default();
        states.iter().any(|node| node.name == name).then_some(nodes)
    }

    pub(super) fn health(&self) -> Result<(), SystemError> {
        match self {
            SparkStore::Hdfs(hdfs) => hdfs.health(),
            SparkStore::Ceph(ceph) => ceph.health(),
            SparkStore::Elsewhere(store) => store.health(),
            SparkStore::Given(_) => Ok(()),
        }
    }

    /// The trouble that may have kept a job waiting. Asking takes seconds.
    pub(super) fn trouble(&self) -> Option<String> {
        match self {
            SparkStore::Elsewhere(store) => store.trouble(),
            SparkStore::Hdfs(_) | SparkStore::Ceph(_) | SparkStore::Given(_) => None,
        }
    }

    pub(super) fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        match self {
            SparkStore::Hdfs(hdfs) => hdfs.figures(),
            SparkStore::Ceph(ceph) => Ok(ceph.figures()),
            SparkStore::Elsewhere(store) => Ok(store.figures()),
            SparkStore::Given(_) => Ok(BTreeMap::new()),
        }
    }

    /// The ids of its running processes.
    pub(super) fn processes(&self) -> Vec<u32> {
        match self {
            SparkStore::Hdfs(hdfs) => hdfs.processes(),
            SparkStore::Ceph(ceph) => ceph.processes(),
            SparkStore::Elsewhere(_) | SparkStore::Given(_) => Vec::new(),
        }
    }

    pub(super) fn settle(&self, limit: Duration) -> Result<(), SystemError> {
        match self {
            SparkStore::Hdfs(hdfs) => hdfs.settle(limit),
            SparkStore::Ceph(ceph) => ceph.settle(limit),
            SparkStore::Elsewhere(_) | SparkStore::Given(_) => Ok(()),
        }
    }

    pub(super) fn abort(&self) {
        match self {
            SparkStore::Hdfs(hdfs) => hdfs.kill_namenode(),
            SparkStore::Ceph(ceph) => ceph.abort(),
            // Ours is nothing there but the connections, which go with the driver.
            SparkStore::Elsewhere(_) | SparkStore::Given(_) => {}
        }
    }

    pub(super) fn stop(self) -> Result<(), SystemError> {
        match self {
            SparkStore::Hdfs(hdfs) => hdfs.stop(),
            SparkStore::Ceph(ceph) => ceph.stop(),
            SparkStore::Elsewhere(store) => store.stop(),
            // The session has deleted what is ours.
            SparkStore::Given(_) => Ok(()),
        }
    }
}

/// How clients reach it there.
fn endpoint_of(ceph: &Ceph, address: Ipv4Addr) -> String {
    let scheme = if ceph.certificate().is_some() { "https" } else { "http" };
    format!("{scheme}://{address}:{}", ceph.gateway_port())
}
