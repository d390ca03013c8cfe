//! Starting a cluster: the store first, then Spark, then the session that runs jobs.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use underlay_sync::Mutex;

use super::NAME;
use super::cache::{self, Caches};
use super::cluster::{Cluster, Remote, State};
use super::config::{Committer, Config, SETTINGS};
use super::defaults::Session;
use super::driver::{Driver, write_sources};
use super::elsewhere::Elsewhere;
use super::environment::{self, environment};
use super::event_log::EventLog;
use super::jobs::JOBS;
use super::memory::{CacheKind, StoreKind};
use super::parts::parts;
use super::servers::{ServerPlan, Servers, worker_name};
use super::store::Store;
use crate::artifacts::{self, ALLUXIO, HADOOP, ICEBERG, SPARK};
use crate::ceph::{self, Ceph};
use crate::hdfs;
use crate::java::Java;
use crate::network_link::FAR;
use crate::network_namespace::NetworkNamespace;
use crate::nodes::PlannedNode;
use crate::parts::Part;
use crate::private_file::write_private;
use crate::system::{
    Capabilities, Progress, Resources, Running, Settings, StoragePaths, System, SystemError, check_roles,
    make_on,
};
use underlay_record::NodeRole;

/// This limit only tells a stuck process from a slow one.
const START_LIMIT: Duration = Duration::from_secs(240);

/// What can be kept on a separate storage.
const ROLES: &[(&str, &str)] = &[
    ("shuffle", "executors' local directories: shuffle files, spills, and what S3A has not uploaded yet"),
    ("namenode", "the image and the edit log of HDFS's NameNode"),
    (
        "cache_storage",
        "the journal, the metadata and the flash tier of a cache between jobs and Ceph; by default with what is shuffled",
    ),
];
/// The folder of executors on a storage.
const LOCAL: &str = "spark-local";
/// The jar with the texts of queries, of the list of artifacts.
const QUERIES: &str = "spark-sql_2.12-3.5.7-tests.jar";

/// The system `spark`. Its programs come from the cache, and Ceph's from the distribution.
#[derive(Clone, Copy, Debug)]
pub struct Spark {
    variable: fn(&str) -> Option<String>,
}

/// The one that studies name.
pub static INSTALLED: Spark = Spark::with_variables(|name| std::env::var(name).ok());

impl Spark {
    /// Takes the keys of a store elsewhere, and the gateway's program, from these variables instead of the environment.
    pub const fn with_variables(variable: fn(&str) -> Option<String>) -> Spark {
        Spark { variable }
    }

    /// Checks what can't be fetched, before anything is.
    fn check_programs(&self, config: &Config) -> Result<(), SystemError> {
        if config.cache == Some(CacheKind::Gateway) {
            cache::program(self.variable)?;
        }
        match config.kind() {
            StoreKind::Hdfs | StoreKind::Elsewhere => Ok(()),
            StoreKind::S3a => Ceph::check_installed(NAME),
        }
    }

    /// Like [`System::start`], but returns the concrete type.
    ///
    /// # Errors
    /// Like there.
    pub fn start_cluster(
        &self,
        paths: &StoragePaths,
        resources: &Resources,
        settings: &Settings,
    ) -> Result<Cluster, SystemError> {
        let config = Config::resolve(&settings.values, Some(resources.budget_bytes), Some(paths.data.len()))
            .map_err(|mistakes| SystemError::first_mistake(NAME, mistakes))?;
        if !paths.further_nodes.is_empty() {
            return Err(SystemError::starting(
                NAME,
                "it runs as one machine and can't use the storage of several",
            ));
        }
        check_roles(NAME, ROLES, paths.roles.keys())?;
        self.check_programs(&config)?;
        let java = Java::find(NAME)?;
        let environment = environment(&|_| {})?;
        let library = SPARK.directory(&|_| {}).map_err(|error| error.of_system(NAME))?;
        let iceberg = match config.committer {
            Committer::Iceberg => Some(ICEBERG.directory(&|_| {}).map_err(|error| error.of_system(NAME))?),
            _ => None,
        };
        let scratch = paths.scratch.join(NAME);
        check_path(&scratch)?;
        let slow_motion = settings.slow_motion.max(1.0);
        let caches = Caches::of(&config, paths, &scratch, self.variable, slow_motion)?;
        let limit = START_LIMIT.mul_f64(slow_motion);
        let failed = |path: &std::path::Path, error: std::io::Error| {
            SystemError::starting(NAME, format!("can't write to {}: {error}", path.display()))
        };
        let (jobs, events, configuration, temporary) = (
            scratch.join("jobs"),
            scratch.join("events"),
            scratch.join("configuration"),
            scratch.join("tmp"),
        );
        write_sources(&jobs).map_err(|error| failed(&jobs, error))?;
        for folder in [&events, &configuration, &temporary] {
            std::fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
        }
        let local_directories = local_directories(paths)?;
        let namespace = NetworkNamespace::create(NAME)?;
        let remote = config
            .link_bits_per_s
            .map(|bits_per_s| Remote::new(&config, bits_per_s as f64 / 8.0, &namespace, slow_motion));
        let remote = remote.transpose()?;
        let (of_store, address) = match &remote {
            Some(remote) => (&remote.namespace, FAR),
            None => (&namespace, Ipv4Addr::LOCALHOST),
        };
        let store = match &config.endpoint {
            Some(endpoint) => {
                let of_jobs = (environment.python.as_path(), jobs.as_path());
                let reached =
                    Elsewhere::reach((&config, endpoint), settings, self.variable, &namespace, of_jobs)?;
                Store::Elsewhere(Box::new(reached))
            }
            None => Store::start(&config, paths, &scratch, (of_store, address), resources, slow_motion)?,
        };
        caches.furnish(&config, &namespace, paths)?;
        let servers = Servers::start(ServerPlan {
            java,
            environment,
            config: config.clone(),
            local_directories: local_directories.clone(),
            scratch: scratch.clone(),
            namespace: std::sync::Arc::clone(&namespace),
            resources: resources.clone(),
            limit,
        })?;
        let plan = servers.plan();
        let cluster_environment = plan.environment.clone();
        let session = Session {
            config: &config,
            resources,
            library: &library,
            iceberg: iceberg.as_deref().map(|jars| {
                let tables = config.cache.map(|kind| cache::url(kind, "tables"));
                (jars, tables.unwrap_or_else(|| store.url("tables")))
            }),
            python: &plan.environment.python,
            jobs: &jobs,
            events: &events,
            hosts: &plan.hosts(),
            temporary: &temporary,
            buffers: &local_directories,
            slow_motion,
            cache: caches.library(),
            store: match &store {
                Store::Ceph(_) => store.settings(address).into_iter().chain(caches.settings()).collect(),
                Store::Hdfs(_) | Store::Elsewhere(_) => store.settings(address),
            },
        };
        let file = configuration.join("spark-defaults.conf");
        write_private(&file, &session.text()).map_err(|error| failed(&file, error))?;
        let driver = Driver::start(plan, &jobs, &configuration, store.hadoop_configuration())?;
        let requests = match &store {
            Store::Ceph(ceph) => Some(ceph.request_log()),
            // Only the store itself could count them.
            Store::Hdfs(_) | Store::Elsewhere(_) => None,
        };
        let bin = cluster_environment.python.parent().unwrap_or(std::path::Path::new("/"));
        let tools = [
            ("tpcgen", bin.join("tpcgen-cli")),
            ("queries", library.join(QUERIES)),
            ("local", scratch.join("tpcds")),
        ]
        .map(|(name, path)| (name, serde_json::Value::from(path.display().to_string())))
        .into();
        let state = State::new(config.committer, EventLog::new(&events), requests);
        let mut cluster = Cluster {
            driver,
            servers,
            cache: None,
            caches,
            store,
            namespace,
            remote,
            last_carried: Mutex::default(),
            tools,
            resources: resources.clone(),
            state: Mutex::new(state),
            config,
        };
        let executors = cluster.config.executors;
        cluster.driver.wait_until_ready(executors, limit, &|| cluster.check("starting"))?;
        cluster.make_bucket(limit)?;
        cluster.start_cache(resources, limit)?;
        Ok(cluster)
    }
}

/// Where executors keep what is theirs: on each data directory, or on the storage of the role.
fn local_directories(paths: &StoragePaths) -> Result<Vec<PathBuf>, SystemError> {
    let storages = match paths.roles.get("shuffle") {
        Some(directory) => std::slice::from_ref(directory),
        None => &paths.data,
    };
    let made: Result<Vec<PathBuf>, SystemError> =
        storages.iter().map(|storage| make_on(NAME, storage, LOCAL.as_ref())).collect();
    made.and_then(|made| made.iter().try_for_each(|path| check_path(path)).map(|()| made))
}

/// Spark separates directories by commas, and takes options apart at spaces.
fn check_path(path: &std::path::Path) -> Result<(), SystemError> {
    let plain = |letter: char| letter.is_alphanumeric() || "/-_.+@=:".contains(letter);
    match path.to_str() {
        Some(text) if path.is_absolute() && text.chars().all(plain) => Ok(()),
        _ => Err(SystemError::starting(
            NAME,
            format!(
                "'{}' can't be used as a directory of Spark's: the path must be absolute, without spaces, commas and quotes",
                path.display().to_string().escape_debug()
            ),
        )),
    }
}

impl System for Spark {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            many_directories: true,
            spreads_data: true,
            roles: ROLES,
            settings: SETTINGS,
            jobs: JOBS,
            ..Capabilities::default()
        }
    }

    fn versions(&self) -> BTreeMap<String, String> {
        let programs = [
            ("hadoop-aws", &SPARK, "hadoop-aws"),
            ("hadoop", &HADOOP, "hadoop-common"),
            ("iceberg", &ICEBERG, "iceberg-spark-runtime-3.5_2.12"),
            ("alluxio", &ALLUXIO, "alluxio-core-server-master"),
        ];
        let mut versions = artifacts::versions(NAME, &programs);
        versions.extend(environment::version().map(|version| (NAME.to_owned(), version.to_owned())));
        versions.extend(Ceph::version().map(|version| ("ceph".to_owned(), version)));
        versions
    }

    fn start_and_stop(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn check_settings(&self, settings: &BTreeMap<String, String>) -> Vec<(String, String)> {
        Config::resolve(settings, None, None).err().unwrap_or_default()
    }

    fn left_at_wall_time(&self, _: &BTreeMap<String, String>, slow_motion: f64) -> Vec<String> {
        if slow_motion < 4.0 {
            return Vec::new();
        }
        vec![
            "S3A and HDFS's client retry after times by this host's clock, and executors send heartbeats by it: both are shorter in modelled time"
                .to_owned(),
        ]
    }

    fn planned_nodes(&self, settings: &BTreeMap<String, String>) -> Vec<PlannedNode> {
        let Ok(config) = Config::resolve(settings, None, None) else { return Vec::new() };
        let count = |number: u64| usize::try_from(number).unwrap_or_default();
        let workers = (0..count(config.workers)).map(|number| PlannedNode {
            name: worker_name(number),
            roles: &[NodeRole::Worker],
            shard: None,
        });
        let store = match config.kind() {
            StoreKind::Elsewhere => Vec::new(),
            StoreKind::Hdfs => hdfs::planned_nodes(count(config.datanodes)),
            // Without the setting it depends on the storage.
            StoreKind::S3a => config.osds.map(|osds| ceph::planned_nodes(count(osds))).unwrap_or_default(),
        };
        workers.chain(store).collect()
    }

    fn parts(&self, paths: &StoragePaths, settings: &BTreeMap<String, String>) -> Vec<Part> {
        Config::resolve(settings, None, Some(paths.data.len()))
            .map_or_else(|_| Vec::new(), |config| parts(paths, &config))
    }

    fn without_nodes(
        &self,
        settings: &BTreeMap<String, String>,
        _: Option<u32>,
        away: usize,
    ) -> Option<String> {
        let config = Config::resolve(settings, None, None).ok()?;
        (config.endpoint.is_none() && away as u64 >= config.copies()).then(|| {
            format!(
                "objects and blocks have {} copies: jobs wait for what is on {away} nodes of the store while these are away",
                config.copies()
            )
        })
    }

    fn prepare(&self, progress: &dyn Fn(&Progress)) -> Result<(), SystemError> {
        Java::find(NAME)?;
        environment(progress)?;
        SPARK.directory(progress).map_err(|error| error.of_system(NAME))?;
        // Which store and which committer a study needs is not known here; HDFS's programs and Iceberg are the smaller part.
        ICEBERG.directory(progress).map_err(|error| error.of_system(NAME))?;
        HADOOP.directory(progress).map_err(|error| error.of_system(NAME)).map(drop)
    }

    fn start(
        &self,
        paths: &StoragePaths,
        resources: &Resources,
        settings: &Settings,
    ) -> Result<Box<dyn Running>, SystemError> {
        Ok(Box::new(self.start_cluster(paths, resources, settings)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executors_have_a_folder_on_each_directory_or_on_the_storage_of_their_role() {
        let folder = tempfile::TempDir::new().unwrap();
        let [a, b, fast] = ["a", "b", "fast"].map(|name| folder.path().join(name));
        [&a, &b, &fast].into_iter().for_each(|path| std::fs::create_dir(path).unwrap());
        let mut paths = StoragePaths { data: vec![a.clone(), b.clone()], ..StoragePaths::default() };
        assert_eq!(local_directories(&paths).unwrap(), [a.join(LOCAL), b.join(LOCAL)]);
        paths.roles = [("shuffle".to_owned(), fast.clone())].into();
        assert_eq!(local_directories(&paths).unwrap(), [fast.join(LOCAL)]);
        std::fs::remove_dir_all(&fast).unwrap();
        let error = local_directories(&paths).unwrap_err().to_string();
        assert!(error.contains("is the storage attached?"), "{error}");
    }

    #[test]
    fn nodes_are_workers_and_those_of_the_store() {
        let names = |pairs: &[(&str, &str)]| {
            let values = pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
            INSTALLED.planned_nodes(&values).into_iter().map(|node| node.name).collect::<Vec<_>>()
        };
        assert_eq!(
            names(&[("workers", "2"), ("datanodes", "2")]),
            ["worker1", "worker2", "datanode1", "datanode2"]
        );
        assert_eq!(names(&[("store", "s3a"), ("osds", "2")]), ["worker1", "osd0", "osd1"]);
    }
}
