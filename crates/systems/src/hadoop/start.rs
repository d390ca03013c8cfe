//! Starting a cluster, or connecting to an existing one.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use underlay_sync::Mutex;

use super::NAME;
use super::class_archive::ClassArchive;
use super::cluster::{HadoopCluster, HadoopServers};
use super::config::{HadoopConfig, SETTINGS, StoragePolicy};
use super::job_client::{ClusterPlace, JobClient, SOURCES};
use super::jobs::JOBS;
use super::profile::PROFILE;
use super::site::{HEARTBEAT_MS, HadoopSite};
use super::yarn::{Yarn, YarnPlan};
use crate::artifacts::{self, HADOOP};
use crate::hdfs::{DataDirectory, Hdfs, HdfsPlan, StorageType, planned_nodes, without_datanodes};
use crate::java::{ClassPath, Java};
use crate::java_server::{argument_file, hosts_option};
use crate::memory_plan::{ClientLoad, MemoryPlan};
use crate::network_namespace::NetworkNamespace;
use crate::nodes::PlannedNode;
use crate::parts::SystemPart;
use crate::pid_namespace::program_of;
use crate::profile::SystemProfile;
use crate::setting::about_memory;
use crate::system::{
    ElsewhereSetting, JobTakes, LoadProgress, RunningSystem, StoragePaths, System, SystemCapabilities,
    SystemError, SystemResources, SystemSettings, check_attached, check_roles, first_data_directory,
};

/// This limit only tells a stuck process from a slow one.
const START_LIMIT: Duration = Duration::from_secs(240);
/// Of NodeManagers, by default.
const HADOOPS_HEARTBEAT_MS: f64 = 1000.0;
/// Heartbeats so many times as frequent as by default are worth a word.
const BRISK: f64 = 20.0;

/// Roles with a separate storage.
const ROLES: &[(&str, &str)] = &[
    ("namenode", "the NameNode's image and edit log"),
    ("local", "the NodeManager's local directory: spills and map outputs"),
];
/// The file that every configuration has.
const CORE_SITE: &str = "core-site.xml";

/// The system `hadoop`. Its programs come from the cache.
#[derive(Clone, Copy, Debug)]
pub struct Hadoop;

/// The one that studies name.
pub static INSTALLED: Hadoop = Hadoop;

impl Hadoop {
    /// Like [`System::start`], but returns the concrete type.
    ///
    /// # Errors
    /// Like there.
    pub fn start_cluster(
        &self,
        paths: &StoragePaths,
        resources: &SystemResources,
        settings: &SystemSettings,
    ) -> Result<HadoopCluster, SystemError> {
        let config = HadoopConfig::resolve(&settings.values, Some(resources.budget_bytes))
            .map_err(|mistakes| SystemError::first_mistake(NAME, mistakes))?;
        let java = Java::find(NAME)?;
        let library = HADOOP.directory(&|_| {}).map_err(|error| error.into_system_error(NAME))?;
        let classes = SOURCES.classes(NAME, &ClassPath::new().with_jars(&library), &|_| {})?;
        let scratch = paths.scratch.join(NAME);
        let slow_motion = settings.slow_motion.max(1.0);
        let limit = START_LIMIT.mul_f64(slow_motion);
        let cluster = match &config.configuration {
            Some(configuration) => join(&config, configuration, &java, &library, &classes, &scratch)?,
            None => {
                let directories = HadoopDirectories::new(&config, paths, &scratch)?;
                let archive = archive(&java, &library, &classes, &|_| {})?;
                let namespace = NetworkNamespace::create(NAME)?;
                let plan = directories.plan(&config, slow_motion)?;
                // First: the job client and YARN read the configuration that HDFS writes.
                let hdfs = Hdfs::start(&plan, &namespace, resources)?;
                let configuration = hdfs.configuration_directory().to_owned();
                let java_options =
                    container_options(&scratch, &archive.options(&[&configuration, &classes]), resources)?;
                let site = HadoopSite {
                    config: &config,
                    local_directories: &directories.local,
                    log_directory: scratch.join("containers"),
                    state_directory: scratch.join("nodes"),
                    library: &library,
                    configuration: &configuration,
                    classes: &classes,
                    java_options,
                    slow_motion,
                };
                // Into the same directory, before anything of YARN reads it.
                site.write().map_err(|error| {
                    SystemError::starting(
                        NAME,
                        format!("can't write its configuration in {}: {error}", configuration.display()),
                    )
                })?;
                let plan = YarnPlan {
                    system: NAME,
                    configuration: &configuration,
                    class_path: ClassPath::new()
                        .with_classes(&configuration)
                        .with_jars(&library)
                        .with_classes(&classes),
                    scratch: &scratch,
                    directories: &paths.data,
                    heap_bytes: config.division().server_heap_bytes,
                    limit,
                };
                let place = ClusterPlace {
                    configuration: &configuration,
                    library: &library,
                    classes: &classes,
                    scratch: &scratch,
                    namespace: Some(Arc::clone(&namespace)),
                };
                let yarn = Yarn::start(&java, &plan, &namespace, resources)?;
                let client = JobClient::start(&java, &place, resources)?;
                let servers = HadoopServers {
                    yarn,
                    hdfs,
                    namespace,
                    local_directories: directories.local,
                    resources: resources.clone(),
                };
                HadoopCluster { config, client, servers: Some(servers), checksum: Mutex::default() }
            }
        };
        cluster.client.wait_until_ready(limit, &|| cluster.check("starting"))?;
        // HDFS takes a policy only once it serves.
        if cluster.config.storage_policy != StoragePolicy::Hot {
            cluster.set_storage_policy()?;
        }
        Ok(cluster)
    }
}

/// Connects to the cluster that `configuration` describes.
fn join(
    config: &HadoopConfig,
    configuration: &Path,
    java: &Java,
    library: &Path,
    classes: &Path,
    scratch: &Path,
) -> Result<HadoopCluster, SystemError> {
    if !configuration.join(CORE_SITE).is_file() {
        let problem = format!("there is no {CORE_SITE} in {}", configuration.display());
        return Err(SystemError::Setting { system: NAME, key: "configuration".to_owned(), problem });
    }
    let place = ClusterPlace { configuration, library, classes, scratch, namespace: None };
    let client = JobClient::start(java, &place, &SystemResources::unlimited())?;
    Ok(HadoopCluster { config: config.clone(), client, servers: None, checksum: Mutex::default() })
}

/// The class archive for containers.
fn archive(
    java: &Java,
    library: &Path,
    classes: &Path,
    progress: &dyn Fn(&LoadProgress),
) -> Result<ClassArchive, SystemError> {
    let java = Java { program: program_of(NAME, java)?, version: java.version.clone() };
    ClassArchive::find_or_create(&java, library, classes, progress)
}

/// The options of every Java process that the NodeManager starts: it stays small, starts quickly and resolves its own
/// name. The `further` options go into a file, since they are too long for a command line.
fn container_options(
    scratch: &Path,
    further: &[String],
    resources: &SystemResources,
) -> Result<Vec<String>, SystemError> {
    let folder = Yarn::node_folder(scratch);
    let file = folder.join("container.arguments");
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&file, argument_file(further)))
        .map_err(|error| SystemError::starting(NAME, format!("can't write {}: {error}", file.display())))?;
    let mut options = vec![
        "-XX:+UseSerialGC".to_owned(),
        "-XX:-UsePerfData".to_owned(),
        "-XX:ReservedCodeCacheSize=64m".to_owned(),
        "-Xss256k".to_owned(),
        "-Djava.net.preferIPv4Stack=true".to_owned(),
        hosts_option(&folder.join("hosts")),
    ];
    options.extend(resources.java_option());
    options.push(format!("@{}", file.display()));
    Ok(options)
}

/// A cluster's parts: YARN, whose one NodeManager runs the tasks, above HDFS.
fn parts(directories: &HadoopDirectories, config: &HadoopConfig) -> Vec<SystemPart> {
    let Ok(datanodes) = directories.datanodes(config) else { return Vec::new() };
    let of_hdfs = crate::hdfs::parts(&directories.name, &datanodes);
    let node_manager = SystemPart::new("nodemanager", "NodeManager")
        .keeping_in("intermediate data", &directories.local)
        .using(&of_hdfs);
    let resource_manager = SystemPart::new("resourcemanager", "ResourceManager").using([&node_manager]);
    [resource_manager, node_manager].into_iter().chain(of_hdfs).collect()
}

/// Where everything is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HadoopDirectories {
    pub name: PathBuf,
    data: Vec<(PathBuf, StorageType)>,
    pub local: Vec<PathBuf>,
    scratch: PathBuf,
}

impl HadoopDirectories {
    /// The directories for `config` on the storage of `paths`. The storage's own directories must exist: created here,
    /// a missing one would be on the file system below the missing mount.
    fn new(
        config: &HadoopConfig,
        paths: &StoragePaths,
        scratch: &Path,
    ) -> Result<HadoopDirectories, SystemError> {
        if !paths.further_nodes.is_empty() {
            return Err(SystemError::starting(
                NAME,
                "it runs as one machine and can't use the storage of several",
            ));
        }
        check_roles(NAME, ROLES, paths.roles.keys())?;
        let first = first_data_directory(NAME, &paths.data)?;
        for directory in paths.data.iter().chain(paths.roles.values()) {
            check_attached(NAME, directory)?;
        }
        let types = &config.storage_types;
        if types.len() != 1 && types.len() != paths.data.len() {
            let problem = format!("expected one word, or {}: one for each data directory", paths.data.len());
            return Err(SystemError::Setting { system: NAME, key: "storage_types".to_owned(), problem });
        }
        let directories = HadoopDirectories::planned(config, paths, first, scratch);
        for directory in directories.local.iter().chain([&directories.scratch]) {
            check_path(directory)?;
            std::fs::create_dir_all(directory).map_err(|error| {
                SystemError::starting(NAME, format!("can't make {}: {error}", directory.display()))
            })?;
        }
        Ok(directories)
    }

    /// None of them is looked at.
    fn planned(
        config: &HadoopConfig,
        paths: &StoragePaths,
        first: &Path,
        scratch: &Path,
    ) -> HadoopDirectories {
        let locals = match paths.roles.get("local") {
            Some(directory) => std::slice::from_ref(directory),
            None => &paths.data,
        };
        let kinds = config.storage_types.iter().cycle();
        HadoopDirectories {
            name: paths.roles.get("namenode").map_or(first, PathBuf::as_path).join("hdfs").join("namenode"),
            data: paths.data.iter().cloned().zip(kinds.copied()).collect(),
            local: locals.iter().map(|directory| directory.join("yarn-local")).collect(),
            scratch: scratch.to_owned(),
        }
    }

    /// The directories of each DataNode.
    pub(super) fn datanodes(&self, config: &HadoopConfig) -> Result<Vec<Vec<DataDirectory>>, SystemError> {
        HdfsPlan::on_each(NAME, &self.data, u32::try_from(config.datanodes).unwrap_or(u32::MAX))
    }

    fn plan(&self, config: &HadoopConfig, slow_motion: f64) -> Result<HdfsPlan, SystemError> {
        Ok(HdfsPlan {
            system: NAME,
            name_directory: self.name.clone(),
            datanodes: self.datanodes(config)?,
            replication: u32::try_from(config.replication).unwrap_or(u32::MAX),
            block_bytes: config.block_bytes,
            volume_choosing: config.volume_choosing(),
            sync_on_close: config.sync_on_close,
            short_circuit_bytes: None,
            address: Ipv4Addr::LOCALHOST,
            scratch: self.scratch.clone(),
            heaps: config.division().hdfs,
            slow_motion,
        })
    }
}

/// YARN passes directories to a shell, in lists separated by commas.
fn check_path(path: &Path) -> Result<(), SystemError> {
    let plain = |letter: char| letter.is_alphanumeric() || "/-_.+@=:".contains(letter);
    match path.to_str() {
        Some(text) if path.is_absolute() && text.chars().all(plain) => Ok(()),
        _ => {
            let path = path.display().to_string();
            Err(SystemError::starting(
                NAME,
                format!(
                    "'{}' can't be used as a directory of YARN's: the path must be absolute, without spaces, commas and quotes",
                    path.escape_debug()
                ),
            ))
        }
    }
}

/// Roughly what a job takes on disks, from runs in slow motion x8 on 16 cores over 40 to 250 MB.
fn modelled_s(job: &str, data_bytes: u64) -> Option<f64> {
    let of_100_mb = match job {
        "teragen" => 1.2,
        "terasort" => 2.2,
        "teravalidate" => 0.3,
        "hdfs-write" => 0.4,
        "wordcount" => 1.5,
        "shuffle" => 1.2,
        "shuffle-compressed" => 0.6,
        _ => return None,
    };
    Some(0.8 + of_100_mb * data_bytes as f64 / 1e8)
}

impl System for Hadoop {
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
            elsewhere: Some(ElsewhereSetting { key: "configuration", example: "\"/etc/hadoop/conf\"" }),
            jobs: JOBS,
            ..SystemCapabilities::default()
        }
    }

    fn versions(&self) -> BTreeMap<String, String> {
        artifacts::versions(NAME, &[(NAME, &HADOOP, "hadoop-common")])
    }

    fn start_and_stop(&self, _: &BTreeMap<String, String>) -> Duration {
        Duration::from_secs(24)
    }

    fn job_takes(&self, job: &str, data_bytes: u64, _: &BTreeMap<String, String>) -> Option<JobTakes> {
        let modelled_s = modelled_s(job, data_bytes)?;
        // Java starts for the job, for its master and for each task, at this machine's own pace.
        let around = Duration::from_secs(6);
        let modelled = Duration::try_from_secs_f64(modelled_s).ok()?;
        Some(JobTakes { modelled, around, storing: Duration::ZERO })
    }

    fn check_settings(&self, settings: &BTreeMap<String, String>) -> Vec<(String, String)> {
        HadoopConfig::resolve(settings, None).err().unwrap_or_default()
    }

    fn left_at_wall_time(&self, _: &BTreeMap<String, String>, slow_motion: f64) -> Vec<String> {
        let heartbeat_ms = HEARTBEAT_MS as f64 / slow_motion;
        if heartbeat_ms * BRISK > HADOOPS_HEARTBEAT_MS {
            return Vec::new();
        }
        vec![format!(
            "NodeManagers and masters send a heartbeat every {HEARTBEAT_MS} ms by this host's clock, which is {heartbeat_ms:.1} ms of modelled \
             time: tasks start sooner than on the modelled machine, where it is {HADOOPS_HEARTBEAT_MS} ms"
        )]
    }

    fn planned_nodes(&self, settings: &BTreeMap<String, String>) -> Vec<PlannedNode> {
        match HadoopConfig::resolve(settings, None) {
            Ok(config) if config.configuration.is_none() => {
                planned_nodes(usize::try_from(config.datanodes).unwrap_or_default())
            }
            _ => Vec::new(),
        }
    }

    fn datanodes_with_own_storage(&self, _: &BTreeMap<String, String>) -> Option<u64> {
        // Each DataNode has directories of its own on all devices.
        Some(0)
    }

    fn parts(&self, paths: &StoragePaths, settings: &BTreeMap<String, String>) -> Vec<SystemPart> {
        match (HadoopConfig::resolve(settings, None), paths.data.first()) {
            (Ok(config), Some(first)) if config.configuration.is_none() => {
                parts(&HadoopDirectories::planned(&config, paths, first, &paths.scratch), &config)
            }
            _ => Vec::new(),
        }
    }

    fn memory(
        &self,
        settings: &BTreeMap<String, String>,
        budget_bytes: u64,
        _load: ClientLoad,
    ) -> Option<Result<MemoryPlan, String>> {
        match HadoopConfig::resolve(settings, Some(budget_bytes)) {
            // A cluster that runs already has its own.
            Ok(config) => config.configuration.is_none().then(|| Ok(config.memory())),
            Err(mistakes) => about_memory(mistakes).map(Err),
        }
    }

    fn without_nodes(
        &self,
        settings: &BTreeMap<String, String>,
        _: Option<u32>,
        away: usize,
    ) -> Option<String> {
        let config = HadoopConfig::resolve(settings, None).ok()?;
        without_datanodes(away, config.replication.min(config.sorted_replication))
    }

    fn prepare(&self, progress: &dyn Fn(&LoadProgress)) -> Result<(), SystemError> {
        let java = Java::find(NAME)?;
        let library = HADOOP.directory(progress).map_err(|error| error.into_system_error(NAME))?;
        let classes = SOURCES.classes(NAME, &ClassPath::new().with_jars(&library), progress)?;
        archive(&java, &library, &classes, progress).map(drop)
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
    fn containers_count_the_cores_of_the_modelled_machine() {
        let scratch = tempfile::TempDir::new().unwrap();
        let options = |resources: &SystemResources| {
            container_options(scratch.path(), &["-cp".to_owned()], resources).unwrap().join(" ")
        };
        let resources = SystemResources { modelled_cores: Some(16), ..SystemResources::unlimited() };
        assert!(options(&resources).contains("-XX:ActiveProcessorCount=16 @"));
        assert!(!options(&SystemResources::unlimited()).contains("ActiveProcessorCount"));
    }

    #[test]
    fn parts_have_own_directories() {
        let folder = tempfile::TempDir::new().unwrap();
        let [a, b, meta, fast] = ["a", "b", "meta", "fast"].map(|name| folder.path().join(name));
        [&a, &b, &meta, &fast].into_iter().for_each(|path| std::fs::create_dir(path).unwrap());
        let scratch = folder.path().join("scratch");
        let mut paths = StoragePaths { data: vec![a.clone(), b.clone()], ..StoragePaths::default() };
        let config = HadoopConfig {
            storage_types: vec![StorageType::Disk, StorageType::Ssd],
            ..HadoopConfig::default()
        };
        let directories = HadoopDirectories::new(&config, &paths, &scratch).unwrap();
        assert_eq!(directories.local, [a.join("yarn-local"), b.join("yarn-local")]);
        assert_eq!(directories.name, a.join("hdfs/namenode"));
        let plan = directories.plan(&config, 2.0).unwrap();
        assert_eq!(plan.datanodes.len(), 3);
        assert_eq!(plan.datanodes[2][1].path, b.join("hdfs/datanode-3"));
        assert_eq!(plan.datanodes[0][1].storage_type, StorageType::Ssd);

        paths.roles =
            BTreeMap::from([("namenode".to_owned(), meta.clone()), ("local".to_owned(), fast.clone())]);
        let directories = HadoopDirectories::new(&config, &paths, &scratch).unwrap();
        assert_eq!(
            (directories.local, directories.name),
            (vec![fast.join("yarn-local")], meta.join("hdfs/namenode"))
        );

        let refused = |paths: &StoragePaths, config: &HadoopConfig, scratch: &Path| {
            HadoopDirectories::new(config, paths, scratch).unwrap_err().to_string()
        };
        let three = HadoopConfig { storage_types: vec![StorageType::Disk; 3], ..HadoopConfig::default() };
        assert!(refused(&paths, &three, &scratch).contains("one word, or 2"));
        assert!(refused(&paths, &config, Path::new("/run/cell 1")).contains("without spaces"));
        paths.roles = BTreeMap::from([("commitlog".to_owned(), meta)]);
        assert!(refused(&paths, &config, &scratch).contains("'commitlog'"));
        assert!(refused(&StoragePaths::default(), &config, &scratch).contains("no data directory"));
        std::fs::remove_dir_all(&b).unwrap();
        paths.roles.clear();
        assert!(refused(&paths, &config, &scratch).contains("/b is missing"));
    }
}
