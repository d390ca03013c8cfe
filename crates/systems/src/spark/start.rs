//! Starting a cluster: the store first, then Spark, then the session that runs jobs.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use underlay_sync::Mutex;

use super::NAME;
use super::cache::{self, CacheStarter};
use super::cluster::{RemoteStore, SparkCluster, SparkState};
use super::committer::OutputCommitter;
use super::config::{SETTINGS, SparkConfig};
use super::defaults::SessionDefaults;
use super::driver::{SparkDriver, source_names, write_sources};
use super::elsewhere::ExternalStore;
use super::environment::environment;
use super::event_log::EventLog;
use super::jobs::{self, CommitMode, JOBS};
use super::joining::{self, ReachedMaster};
use super::manager::ClusterManager;
use super::memory::{CacheKind, ManagerKind, StoreKind};
use super::on_yarn;
use super::parts::parts;
use super::profile::PROFILE;
use super::servers::{ServerPlan, SparkServers, worker_name};
use super::store::{GivenLocation, SparkStore};
use super::version::{SparkVersion, VERSIONS};
use crate::artifacts::{self, ALLUXIO, HADOOP, ICEBERG, SPARK, SPARK_4_1};
use crate::ceph::{self, Ceph};
use crate::certificate::{ServerCertificate, trusted_by_java};
use crate::hdfs;
use crate::java::Java;
use crate::memory_plan::{ClientLoad, MemoryPlan};
use crate::network_namespace::NetworkNamespace;
use crate::nodes::PlannedNode;
use crate::parts::SystemPart;
use crate::private_file::write_private;
use crate::profile::SystemProfile;
use crate::setting::about_memory;
use crate::system::{
    ElsewhereSetting, JobTakes, LoadProgress, RunningSystem, StoragePaths, System, SystemCapabilities,
    SystemError, SystemResources, SystemSettings, check_roles, make_on,
};
use crate::tun_link::FAR;
use underlay_record::NodeRole;

/// This limit only tells a stuck process from a slow one.
const START_LIMIT: Duration = Duration::from_secs(240);

/// Roles with a separate storage.
const ROLES: &[(&str, &str)] = &[
    ("shuffle", "executors' local directories: shuffle files, spills, and pending uploads of S3A"),
    ("namenode", "the image and the edit log of HDFS's NameNode"),
    (
        "cache_storage",
        "the journal, the metadata and the flash tier of a cache between jobs and Ceph; by default with shuffle files",
    ),
];
/// The library by which each version reaches S3, in the record.
const AWS_OF_3_5: &str = "hadoop-aws of spark 3.5";
const AWS_OF_4_1: &str = "hadoop-aws of spark 4.1";
/// The folder of executors on a storage.
const LOCAL: &str = "spark-local";
/// Whom the session trusts.
const TRUSTED: &str = "trusted.jks";
/// The name by which Spark looks for it.
const SETTINGS_FILE: &str = "spark-defaults.conf";

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
    fn check_programs(&self, config: &SparkConfig) -> Result<(), SystemError> {
        if config.cache == Some(CacheKind::Gateway) {
            cache::program(self.variable)?;
        }
        match config.kind() {
            StoreKind::Hdfs | StoreKind::Elsewhere | StoreKind::Given => Ok(()),
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
        resources: &SystemResources,
        settings: &SystemSettings,
    ) -> Result<SparkCluster, SystemError> {
        let config =
            SparkConfig::resolve(&settings.values, Some(resources.budget_bytes), Some(paths.data.len()))
                .map_err(|mistakes| SystemError::first_mistake(NAME, mistakes))?;
        if !paths.further_nodes.is_empty() {
            return Err(SystemError::starting(
                NAME,
                "it runs as one machine and can't use the storage of several",
            ));
        }
        check_roles(NAME, ROLES, paths.roles.keys())?;
        self.check_programs(&config)?;
        let reached = config.master.as_ref();
        let reached =
            reached.map(|master| joining::reach((&config, master), settings, self.variable)).transpose()?;
        let java = Java::find(NAME)?;
        let environment = environment(config.version, &|_| {})?;
        let library =
            config.version.jars().directory(&|_| {}).map_err(|error| error.into_system_error(NAME))?;
        let iceberg = match config.committer {
            OutputCommitter::Iceberg => {
                Some(ICEBERG.directory(&|_| {}).map_err(|error| error.into_system_error(NAME))?)
            }
            _ => None,
        };
        let scratch = paths.scratch.join(NAME);
        check_path(&scratch)?;
        let slow_motion = settings.slow_motion.max(1.0);
        let caches = CacheStarter::new(&config, paths, &scratch, self.variable, slow_motion)?;
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
        if let Some(reached) = reached {
            let plan = ServerPlan {
                java,
                environment,
                config,
                // The driver's alone, which has next to nothing to keep there.
                local_directories: vec![temporary.clone()],
                scratch,
                namespace: None,
                resources: resources.clone(),
                limit,
            };
            return join(plan, &reached, &library, caches, (&jobs, &events, &configuration, &temporary));
        }
        let local_directories = local_directories(paths)?;
        let namespace = NetworkNamespace::create(NAME)?;
        let remote = config
            .link_bits_per_s
            .map(|bits_per_s| RemoteStore::new(&config, bits_per_s as f64 / 8.0, &namespace, slow_motion));
        let remote = remote.transpose()?;
        let (of_store, address) = match &remote {
            Some(remote) => (&remote.namespace, FAR),
            None => (&namespace, Ipv4Addr::LOCALHOST),
        };
        let store = match &config.endpoint {
            Some(endpoint) => {
                let of_jobs = (environment.python.as_path(), jobs.as_path());
                let reached = ExternalStore::reach(
                    (&config, endpoint),
                    settings,
                    self.variable,
                    &namespace,
                    of_jobs,
                    &resources.ledger,
                )?;
                SparkStore::Elsewhere(Box::new(reached))
            }
            None => SparkStore::start(&config, paths, &scratch, (of_store, address), resources, slow_motion)?,
        };
        caches.furnish(&config, &namespace, paths)?;
        let plan = ServerPlan {
            java,
            environment,
            config: config.clone(),
            local_directories: local_directories.clone(),
            scratch: scratch.clone(),
            namespace: Some(std::sync::Arc::clone(&namespace)),
            resources: resources.clone(),
            limit,
        };
        plan.prepare()?;
        let mut hadoop = store.hadoop_configuration().map(std::path::Path::to_owned);
        let manager = match config.manager {
            ManagerKind::Standalone => {
                ClusterManager::Standalone(Box::new(SparkServers::start(plan.clone())?))
            }
            ManagerKind::Yarn => {
                let storages: Vec<PathBuf> = paths.data.iter().chain(paths.roles.values()).cloned().collect();
                let (yarn, configuration) =
                    on_yarn::start(&plan, &namespace, hadoop.as_deref(), &storages, slow_motion)?;
                hadoop = Some(configuration);
                ClusterManager::Yarn(Box::new(yarn))
            }
        };
        let of_cache = caches.library().map(Path::to_owned);
        let servers: Vec<&ServerCertificate> =
            store.certificate().into_iter().chain(caches.certificate()).collect();
        let trusted = scratch.join(TRUSTED);
        let trusted = trusted_by_java(&trusted, &servers).map_err(|error| failed(&trusted, error))?;
        let mut session = SessionDefaults {
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
            hosts: Some(&plan.hosts()),
            temporary: &temporary,
            buffers: &local_directories,
            slow_motion,
            cache: of_cache.as_deref(),
            store: match config.takes_a_cache() {
                true => store.settings(address).into_iter().chain(caches.settings()).collect(),
                false => store.settings(address),
            },
            trusted,
            manager: BTreeMap::new(),
            without: &[],
        };
        if config.manager == ManagerKind::Yarn {
            session.manager = on_yarn::settings(&plan, &session.java_options());
        }
        let file = configuration.join(SETTINGS_FILE);
        write_private(&file, &session.text()).map_err(|error| failed(&file, error))?;
        let driver = SparkDriver::start(&plan, &jobs, &configuration, hadoop.as_deref())?;
        let requests = match &store {
            SparkStore::Ceph(ceph) => Some(ceph.request_log()),
            // Only the store itself could count them.
            SparkStore::Hdfs(_) | SparkStore::Elsewhere(_) | SparkStore::Given(_) => None,
        };
        let is_ours = !matches!(store, SparkStore::Elsewhere(_));
        let state = SparkState::new(config.committer, EventLog::new(&events), requests);
        let mut cluster = SparkCluster {
            driver,
            manager,
            cache: None,
            caches,
            store,
            namespace: Some(namespace),
            remote,
            last_carried: Mutex::default(),
            tools: tools(&plan, &library),
            slow_motion,
            resources: resources.clone(),
            state: Mutex::new(state),
            config: config.clone(),
        };
        let healthy = || cluster.check("starting");
        cluster.driver.wait_until_ready("starting", config.executors, limit, &healthy)?;
        if !is_ours {
            // The session has read them. The keys of a store that others use need not lie there for the rest of the
            // run.
            session.store.clear();
            write_private(&file, &session.text()).map_err(|error| failed(&file, error))?;
        }
        cluster.make_bucket(limit)?;
        cluster.start_cache(resources, limit)?;
        Ok(cluster)
    }
}

/// A session on the cluster of the master that was reached.
fn join(
    plan: ServerPlan,
    reached: &ReachedMaster,
    library: &Path,
    caches: CacheStarter,
    (jobs, events, configuration, temporary): (&Path, &Path, &Path, &Path),
) -> Result<SparkCluster, SystemError> {
    plan.prepare()?;
    let config = &plan.config;
    let buffers = [temporary.to_owned()];
    let mut session = SessionDefaults {
        config,
        resources: &plan.resources,
        library,
        iceberg: None,
        python: &plan.environment.python,
        jobs,
        events,
        hosts: None,
        temporary,
        buffers: &buffers,
        slow_motion: 1.0,
        cache: None,
        store: BTreeMap::new(),
        trusted: None,
        manager: reached.settings(config, &source_names(), jobs),
        without: ReachedMaster::without(),
    };
    let file = configuration.join(SETTINGS_FILE);
    let write = |session: &SessionDefaults<'_>| {
        write_private(&file, &session.text()).map_err(|error| {
            SystemError::starting(NAME, format!("can't write to {}: {error}", file.display()))
        })
    };
    write(&session)?;
    let driver = SparkDriver::start(&plan, jobs, configuration, config.configuration.as_deref())?;
    let cluster = SparkCluster {
        driver,
        manager: ClusterManager::Elsewhere,
        cache: None,
        caches,
        store: SparkStore::Given(GivenLocation::new(reached.directory.clone(), &plan.resources.ledger)?),
        namespace: None,
        remote: None,
        last_carried: Mutex::default(),
        tools: [("is_elsewhere", true.into())].into_iter().chain(tools(&plan, library)).collect(),
        slow_motion: 1.0,
        resources: plan.resources.clone(),
        state: Mutex::new(SparkState::new(config.committer, EventLog::new(events), None)),
        config: config.clone(),
    };
    let healthy = || cluster.check("starting");
    cluster.driver.wait_until_ready("starting", config.executors, plan.limit, &healthy)?;
    // The session has read its secret.
    session.manager.retain(|name, _| name != joining::SECRET);
    write(&session)?;
    Ok(cluster)
}

/// Where programs and texts are that requests need.
fn tools(plan: &ServerPlan, library: &Path) -> BTreeMap<&'static str, serde_json::Value> {
    let bin = plan.environment.python.parent().unwrap_or(Path::new("/"));
    [
        ("tpcgen", bin.join("tpcgen-cli")),
        ("queries", library.join(plan.config.version.queries())),
        ("local", plan.scratch.join("tpcds")),
    ]
    .map(|(name, path)| (name, serde_json::Value::from(path.display().to_string())))
    .into()
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

    fn profile(&self) -> SystemProfile {
        PROFILE
    }

    fn capabilities(&self) -> SystemCapabilities {
        SystemCapabilities {
            many_directories: true,
            spreads_data: true,
            roles: ROLES,
            settings: SETTINGS,
            elsewhere: Some(ElsewhereSetting { key: "master", example: "\"spark://10.0.0.1:7077\"" }),
            jobs: JOBS,
            ..SystemCapabilities::default()
        }
    }

    fn versions(&self) -> BTreeMap<String, String> {
        let programs = [
            (AWS_OF_3_5, &SPARK, "hadoop-aws"),
            (AWS_OF_4_1, &SPARK_4_1, "hadoop-aws"),
            ("hadoop", &HADOOP, "hadoop-common"),
            ("iceberg", &ICEBERG, "iceberg-spark-runtime-3.5_2.12"),
            ("alluxio", &ALLUXIO, "alluxio-core-server-master"),
        ];
        let mut versions = artifacts::versions(NAME, &programs);
        // The settings say which of them a cell has.
        let all = VERSIONS.0.iter().filter_map(|(_, version)| version.full());
        versions.insert(NAME.to_owned(), all.collect::<Vec<_>>().join(" or "));
        versions.extend(Ceph::version().map(|version| ("ceph".to_owned(), version)));
        versions
    }

    fn versions_with(&self, settings: &[BTreeMap<String, String>]) -> BTreeMap<String, String> {
        let configs: Vec<SparkConfig> =
            settings.iter().filter_map(|settings| SparkConfig::resolve(settings, None, None).ok()).collect();
        let any = |is_so: &dyn Fn(&SparkConfig) -> bool| configs.iter().any(is_so);
        let mut versions = self.versions();
        versions.retain(|name, _| match name.as_str() {
            AWS_OF_3_5 => any(&|config| config.is_s3a() && config.version == SparkVersion::V3_5),
            AWS_OF_4_1 => any(&|config| config.is_s3a() && config.version == SparkVersion::V4_1),
            "hadoop" => any(&|config| {
                config.kind() == StoreKind::Hdfs
                    || (config.master.is_none() && config.manager == ManagerKind::Yarn)
            }),
            "iceberg" => any(&|config| config.committer == OutputCommitter::Iceberg),
            "alluxio" => any(&|config| config.cache == Some(CacheKind::Alluxio)),
            "ceph" => any(&|config| config.kind() == StoreKind::S3a),
            _ => true,
        });
        let run = VERSIONS.0.iter().filter(|(_, version)| any(&|config| config.version == *version));
        let run: Vec<&str> = run.filter_map(|(_, version)| version.full()).collect();
        if !run.is_empty() {
            versions.insert(NAME.to_owned(), run.join(" and "));
        }
        versions
    }

    fn memory(
        &self,
        settings: &BTreeMap<String, String>,
        budget_bytes: u64,
        _load: ClientLoad,
    ) -> Option<Result<MemoryPlan, String>> {
        let config = match SparkConfig::resolve(settings, Some(budget_bytes), None) {
            Ok(config) => config,
            Err(mistakes) => return about_memory(mistakes).map(Err),
        };
        match config.kind() {
            // A cluster that runs already has its own.
            StoreKind::Given => None,
            // Without the setting, the storage decides how many OSDs there are, and they how much is left for pages.
            StoreKind::S3a if config.osds.is_none() => None,
            StoreKind::Hdfs | StoreKind::S3a | StoreKind::Elsewhere => Some(Ok(config.demand().plan())),
        }
    }

    fn start_and_stop(&self, settings: &BTreeMap<String, String>) -> Duration {
        let Ok(config) = SparkConfig::resolve(settings, None, None) else { return Duration::from_secs(28) };
        let store_s = if config.kind() == StoreKind::S3a { 44 } else { 28 };
        let cache_s = if config.cache == Some(CacheKind::Alluxio) { 85 } else { 0 };
        Duration::from_secs(store_s + cache_s)
    }

    fn job_takes(&self, job: &str, data_bytes: u64, settings: &BTreeMap<String, String>) -> Option<JobTakes> {
        let commit =
            SparkConfig::resolve(settings, None, None).map_or(CommitMode::Renamed, |config| {
                match (config.kind(), config.cache.is_some() && config.cache_is_back) {
                    (_, true) => CommitMode::StoredLater,
                    (StoreKind::S3a | StoreKind::Elsewhere, false) => CommitMode::Copied,
                    _ => CommitMode::Renamed,
                }
            });
        jobs::takes(job, data_bytes, commit)
    }

    fn check_settings(&self, settings: &BTreeMap<String, String>) -> Vec<(String, String)> {
        SparkConfig::resolve(settings, None, None).err().unwrap_or_default()
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
        let Ok(config) = SparkConfig::resolve(settings, None, None) else { return Vec::new() };
        let count = |number: u64| usize::try_from(number).unwrap_or_default();
        let workers = match (&config.master, config.manager) {
            (None, ManagerKind::Standalone) => count(config.workers),
            _ => 0,
        };
        let workers = (0..workers).map(|number| PlannedNode {
            name: worker_name(number),
            roles: &[NodeRole::Worker],
            shards: Vec::new(),
        });
        let store = match config.kind() {
            StoreKind::Elsewhere | StoreKind::Given => Vec::new(),
            StoreKind::Hdfs => hdfs::planned_nodes(count(config.datanodes)),
            // Without the setting it depends on the storage.
            StoreKind::S3a => config.osds.map(|osds| ceph::planned_nodes(count(osds))).unwrap_or_default(),
        };
        workers.chain(store).collect()
    }

    fn datanodes_with_own_storage(&self, _: &BTreeMap<String, String>) -> Option<u64> {
        // Each DataNode has directories of its own on all devices.
        Some(0)
    }

    fn parts(&self, paths: &StoragePaths, settings: &BTreeMap<String, String>) -> Vec<SystemPart> {
        SparkConfig::resolve(settings, None, Some(paths.data.len()))
            .map_or_else(|_| Vec::new(), |config| parts(paths, &config))
    }

    fn without_nodes(
        &self,
        settings: &BTreeMap<String, String>,
        _: Option<u32>,
        away: usize,
    ) -> Option<String> {
        let config = SparkConfig::resolve(settings, None, None).ok()?;
        let is_ours = config.endpoint.is_none() && config.master.is_none();
        (is_ours && away as u64 >= config.copies()).then(|| {
            format!(
                "objects and blocks have {} copies: jobs wait for the data on {away} nodes of the store while these are down",
                config.copies()
            )
        })
    }

    fn cautions(&self, settings: &BTreeMap<String, String>) -> Vec<String> {
        let Ok(config) = SparkConfig::resolve(settings, None, None) else { return Vec::new() };
        let place = match (&config.master, &config.endpoint) {
            (Some(master), _) => format!("the cluster of {}", master.show()),
            (None, Some(endpoint)) => format!("the store at {}", endpoint.show()),
            (None, None) => return Vec::new(),
        };
        vec![format!("{place} goes its own pace: a run needs `time = 1` in [scale]")]
    }

    fn prepare(&self, progress: &dyn Fn(&LoadProgress)) -> Result<(), SystemError> {
        Java::find(NAME)?;
        // Which version, store and committer a study has is not known here. Rare requirements are fetched when such a
        // study starts.
        environment(SparkVersion::V3_5, progress)?;
        SPARK.directory(progress).map_err(|error| error.into_system_error(NAME))?;
        ICEBERG.directory(progress).map_err(|error| error.into_system_error(NAME))?;
        HADOOP.directory(progress).map_err(|error| error.into_system_error(NAME)).map(drop)
    }

    fn start(
        &self,
        paths: &StoragePaths,
        resources: &SystemResources,
        settings: &SystemSettings,
    ) -> Result<Box<dyn RunningSystem>, SystemError> {
        Ok(Box::new(self.start_cluster(paths, resources, settings)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executor_folders_are_on_directories_or_role_storage() {
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
    fn versions_cover_parts_used_by_cells() {
        let record_of = |pairs: &[(&str, &str)]| {
            let settings = pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
            INSTALLED.versions_with(&[settings])
        };
        let plain = record_of(&[]);
        assert!(plain[NAME].starts_with("3.5.") && plain.contains_key("hadoop"), "{plain:?}");
        let others = ["alluxio", "ceph", "iceberg", AWS_OF_3_5, AWS_OF_4_1];
        assert!(others.iter().all(|name| !plain.contains_key(*name)), "{plain:?}");
        let on_ceph = record_of(&[("store", "s3a"), ("version", "4.1"), ("committer", "magic")]);
        assert!(on_ceph[NAME].starts_with("4.1.") && on_ceph.contains_key(AWS_OF_4_1), "{on_ceph:?}");
        assert!(!on_ceph.contains_key("hadoop"), "{on_ceph:?}");
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
        // YARN's executors are no nodes of ours.
        assert_eq!(names(&[("manager", "yarn"), ("datanodes", "2")]), ["datanode1", "datanode2"]);
        let external =
            [("master", "spark://a"), ("work_directory", "hdfs://a/x"), ("without_secret", "true")];
        assert!(names(&external).is_empty());
        let cautions =
            INSTALLED.cautions(&external.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        assert!(cautions[0].contains("spark://a:7077 goes its own pace"), "{cautions:?}");
    }
}
