//! Starting an instance with everything below it, or connecting to an existing one.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use underlay_record::NodeRole;

use super::NAME;
use super::config::{AccumuloConfig, AccumuloSettle, ExistingAccumulo, SETTINGS};
use super::identity::{InstanceIdentity, InstanceStage};
use super::parts::parts;
use super::places::{AccumuloDirectories, ROLES};
use super::profile::PROFILE;
use super::running::{AccumuloCluster, RunningAccumulo};
use super::servers::{AccumuloPlan, AccumuloServers, INSTANCE, ProcessEnvironment, name_of, start_zookeeper};
use super::site::{AccumuloSite, LOGGING, LOGGING_FILE, LogVolume, ZOOKEEPER, session_timeout};
use super::splits::split_points;
use crate::artifacts::{self, ACCUMULO, HADOOP};
use crate::connect_allowlist::ConnectAllowlist;
use crate::credentials;
use crate::hdfs::{Hdfs, HdfsPlan, ServerHeaps, VolumeChoosing, planned_nodes, without_datanodes};
use crate::java::{ClassPath, Java};
use crate::java_server;
use crate::jvm::{self, JvmChild, JvmSpec};
use crate::memory_plan::{ClientLoad, MemoryPlan};
use crate::network_namespace::NetworkNamespace;
use crate::nodes::PlannedNode;
use crate::parts::SystemPart;
use crate::private_file::write_private;
use crate::profile::SystemProfile;
use crate::setting::about_memory;
use crate::system::{
    ElsewhereSetting, LoadProgress, RunningSystem, StoragePaths, System, SystemCapabilities, SystemError,
    SystemResources, SystemSettings,
};

/// A client's timeout if the settings have none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Starting replays logs and stopping flushes maps, which may take long on a slow disk: this limit only tells a stuck
/// process from a slow one.
const MIN_LIMIT: Duration = Duration::from_secs(240);
/// In slow motion everything takes longer. The client's timeout is stretched already, so limits of this many timeouts
/// are as well.
const LIMIT_TIMEOUTS: u32 = 20;
/// The client process is not part of the system, so its memory does not count towards the budget.
const CLIENT_HEAP_BYTES: u64 = 256 << 20;
/// The environment variables for user and password of an existing instance.
const USERNAME: &str = "ACCUMULO_USERNAME";
const PASSWORD: &str = "ACCUMULO_PASSWORD";
/// The user of an instance that was started here.
const ROOT: &str = "root";
const TABLE: &str = "usertable";

/// The system `accumulo`. Its programs come from the cache of artifacts.
#[derive(Clone, Copy, Debug)]
pub struct Accumulo {
    variable: fn(&str) -> Option<String>,
}

/// The instance that studies use.
pub static INSTALLED: Accumulo = Accumulo::with_variables(|name| std::env::var(name).ok());

impl Accumulo {
    /// Takes user and password of an existing instance from these variables instead of the environment.
    pub const fn with_variables(variable: fn(&str) -> Option<String>) -> Accumulo {
        Accumulo { variable }
    }

    fn credentials(&self) -> Result<(String, String), SystemError> {
        let found = credentials::read(self.variable, [USERNAME, PASSWORD]);
        found.and_then(|both| both.ok_or(USERNAME)).map_err(|missing| {
            let remedy = format!("set {USERNAME} and {PASSWORD} to a user of the instance at zookeepers");
            credentials::missing(NAME, missing, remedy)
        })
    }
}

/// The part of a budget that HDFS takes, without the page cache.
fn hdfs_bytes(budget_bytes: u64, datanodes: u64) -> u64 {
    heaps(budget_bytes).resident_bytes(datanodes)
}

/// HDFS gets less than it would on its own, because the tablet servers make better use of memory.
fn heaps(budget_bytes: u64) -> ServerHeaps {
    ServerHeaps::from_budget(budget_bytes / 2)
}

impl System for Accumulo {
    fn name(&self) -> &'static str {
        NAME
    }

    fn profile(&self) -> SystemProfile {
        PROFILE
    }

    fn capabilities(&self) -> SystemCapabilities {
        SystemCapabilities {
            scan: true,
            delete: true,
            many_directories: true,
            many_nodes: true,
            roles: ROLES,
            settings: SETTINGS,
            elsewhere: Some(ElsewhereSetting { key: "zookeepers", example: "\"10.0.0.1:2181\"" }),
            spreads_data: true,
            cell_visibility: true,
            scan_filter: true,
            ..SystemCapabilities::default()
        }
    }

    fn versions(&self) -> BTreeMap<String, String> {
        artifacts::versions(
            NAME,
            &[
                (NAME, &ACCUMULO, "accumulo-core"),
                ("zookeeper", &ACCUMULO, "zookeeper"),
                ("hadoop", &HADOOP, "hadoop-hdfs"),
            ],
        )
    }

    fn loads_per_s(&self) -> f64 {
        12_000.0
    }

    fn start_and_stop(&self, _: &BTreeMap<String, String>) -> Duration {
        Duration::from_secs(50)
    }

    fn settings_for_loading(&self) -> &'static [(&'static str, &'static str)] {
        // One file per tablet: otherwise their number depends on chance. With batched writes, settling fails if a write
        // was rejected after it had been acknowledged.
        &[("settle", "major"), ("writes", "batched")]
    }

    fn check_settings(&self, settings: &BTreeMap<String, String>) -> Vec<(String, String)> {
        AccumuloConfig::resolve(settings, None, |_| 0).err().unwrap_or_default()
    }

    fn left_at_wall_time(&self, settings: &BTreeMap<String, String>, slow_motion: f64) -> Vec<String> {
        let Ok(config) = AccumuloConfig::resolve(settings, None, |_| 0) else { return Vec::new() };
        let wanted_s = config.session_timeout_s as f64 * slow_motion;
        let longest_s = session_timeout(&config, slow_motion).as_secs_f64();
        // To a millisecond: both were rounded.
        if wanted_s - longest_s < 0.001 {
            return Vec::new();
        }
        vec![format!(
            "Accumulo's sessions can't be stretched far enough: a silent tablet server counts as dead after {:.1} s of modelled time instead \
             of {} s",
            longest_s / slow_motion,
            config.session_timeout_s
        )]
    }

    fn planned_nodes(&self, settings: &BTreeMap<String, String>) -> Vec<PlannedNode> {
        let config = match AccumuloConfig::resolve(settings, None, |_| 0) {
            Ok(config) if config.nodes > 1 && config.existing().is_none() => config,
            _ => return Vec::new(),
        };
        let tablet_server = |number| PlannedNode {
            name: name_of(number),
            roles: &[NodeRole::TabletServer],
            shards: Vec::new(),
        };
        let datanodes = usize::try_from(config.datanodes()).unwrap_or_default();
        (0..config.nodes).map(tablet_server).chain(planned_nodes(datanodes)).collect()
    }

    fn parts(&self, paths: &StoragePaths, settings: &BTreeMap<String, String>) -> Vec<SystemPart> {
        match AccumuloConfig::resolve(settings, None, |_| 0) {
            Ok(config) if config.existing().is_none() => parts(paths, &config),
            _ => Vec::new(),
        }
    }

    fn copies(&self, settings: &BTreeMap<String, String>) -> u64 {
        AccumuloConfig::resolve(settings, None, |_| 0).map_or(1, |config| config.replication)
    }

    fn datanodes_with_own_storage(&self, settings: &BTreeMap<String, String>) -> Option<u64> {
        Some(AccumuloConfig::resolve(settings, None, |_| 0).ok()?.datanodes())
    }

    fn memory(
        &self,
        settings: &BTreeMap<String, String>,
        budget_bytes: u64,
        _load: ClientLoad,
    ) -> Option<Result<MemoryPlan, String>> {
        let config = match AccumuloConfig::resolve(settings, Some(budget_bytes), |datanodes| {
            hdfs_bytes(budget_bytes, datanodes)
        }) {
            Ok(config) => config,
            Err(mistakes) => return about_memory(mistakes).map(Err),
        };
        config.existing().is_none().then(|| Ok(config.memory(&heaps(budget_bytes))))
    }

    fn compresses(&self, settings: &BTreeMap<String, String>) -> bool {
        AccumuloConfig::resolve(settings, None, |_| 0).is_ok_and(|config| config.compression != "none")
    }

    fn without_nodes(
        &self,
        settings: &BTreeMap<String, String>,
        _: Option<u32>,
        away: usize,
    ) -> Option<String> {
        let config = AccumuloConfig::resolve(settings, None, |_| 0).ok()?;
        (away as u64 >= config.nodes)
            .then(|| "no tablet server is left: nothing can be read or written".to_owned())
            .or_else(|| {
                without_datanodes(away, config.replication)
                    .map(|message| format!("if these are DataNodes, {message}"))
            })
    }

    fn prepare(&self, progress: &dyn Fn(&LoadProgress)) -> Result<(), SystemError> {
        Java::find(NAME)?;
        HADOOP.directory(progress).map_err(|error| error.into_system_error(NAME))?;
        let library = ACCUMULO.directory(progress).map_err(|error| error.into_system_error(NAME))?;
        driver(&library, progress).map(drop)
    }

    fn start(
        &self,
        paths: &StoragePaths,
        resources: &SystemResources,
        settings: &SystemSettings,
    ) -> Result<Box<dyn RunningSystem>, SystemError> {
        let budget_bytes = resources.budget_bytes;
        let config = AccumuloConfig::resolve(&settings.values, Some(budget_bytes), |nodes| {
            hdfs_bytes(budget_bytes, nodes)
        })
        .map_err(|mistakes| SystemError::first_mistake(NAME, mistakes))?;
        let timeout = if settings.timeout.is_zero() { DEFAULT_TIMEOUT } else { settings.timeout };
        let limit = MIN_LIMIT.max(timeout.saturating_mul(LIMIT_TIMEOUTS));
        let existing = config.existing();
        // Checked before anything is fetched or connected to.
        let allowed = match &existing {
            None => None,
            Some(existing) => {
                let named = self.credentials().is_ok().then_some([USERNAME, PASSWORD]);
                settings.may_connect.check(NAME, ("zookeepers", &existing.zookeepers), named)?
            }
        };
        let allowed = allowed.map(|(allowed, _)| allowed);
        let library = ACCUMULO.directory(&|_| {}).map_err(|error| error.into_system_error(NAME))?;
        let client =
            ClientPlan { config: &config, settings, resources, timeout, limit, library: &library, allowed };
        match &existing {
            Some(existing) => {
                let (user, password) = self.credentials()?;
                let child = client.start(&paths.scratch, existing, (&user, &password), None)?;
                Ok(Box::new(RunningAccumulo::new(config, child, None, settings)))
            }
            None => {
                let java = Java::find(NAME)?;
                let scratch = paths.scratch.join(NAME);
                let namespace = NetworkNamespace::create(NAME)?;
                let environment = ProcessEnvironment {
                    java,
                    library: library.clone(),
                    scratch: scratch.clone(),
                    namespace: Arc::clone(&namespace),
                    resources: resources.clone(),
                    limit,
                };
                let (cluster, password) = start_cluster(&config, paths, settings, environment)?;
                let existing = ExistingAccumulo {
                    zookeepers: vec![ZOOKEEPER.to_owned()],
                    instance: INSTANCE.to_owned(),
                };
                let child = client
                    .start(&scratch, &existing, (ROOT, &password), Some(&namespace))
                    .map_err(|error| cluster.explain("starting", error))?;
                Ok(Box::new(RunningAccumulo::new(config, child, Some(cluster), settings)))
            }
        }
    }
}

/// The folder of the driver's classes.
fn driver(library: &Path, progress: &dyn Fn(&LoadProgress)) -> Result<PathBuf, SystemError> {
    let child = JvmChild::prepare(NAME, progress)?;
    jvm::ACCUMULO.classes(NAME, &ClassPath::new().with_classes(child).with_jars(library), progress)
}

/// Starts ZooKeeper and HDFS in parallel, then everything that needs them. Returns the cluster and the password of its
/// root user.
fn start_cluster(
    config: &AccumuloConfig,
    paths: &StoragePaths,
    settings: &SystemSettings,
    environment: ProcessEnvironment,
) -> Result<(AccumuloCluster, String), SystemError> {
    let slow_motion = settings.slow_motion.max(1.0);
    let places = AccumuloDirectories::create(paths, config)?;
    let mut identity = identity(&places.metadata)?;
    let before = identity.logs.clone();
    if identity.life != InstanceStage::Making && before.len() != places.logs.len() {
        let problem =
            "its logs were on other storages when it last ran: give the role 'wal' the same storages again";
        return Err(SystemError::starting(NAME, problem.to_owned()));
    }
    let zookeeper = start_zookeeper(&environment, &places.zookeeper, session_timeout(config, slow_motion))?;
    let plan = HdfsPlan {
        system: NAME,
        name_directory: places.namenode.clone(),
        datanodes: places.datanodes.clone(),
        replication: u32::try_from(config.replication).unwrap_or(u32::MAX),
        block_bytes: config.block_mib << 20,
        volume_choosing: VolumeChoosing::RoundRobin,
        // Accumulo requires this: a file that replaces others must be on its device before they are deleted.
        sync_on_close: true,
        short_circuit_bytes: config.short_circuit_bytes(),
        address: Ipv4Addr::LOCALHOST,
        scratch: environment.scratch.join("hdfs"),
        heaps: heaps(config.budget_bytes),
        slow_motion,
    };
    let hdfs = Hdfs::start(&plan, &environment.namespace, &environment.resources)?;
    let logs: Vec<LogVolume> = places
        .logs
        .iter()
        .enumerate()
        .map(|(number, directory)| LogVolume {
            directory: directory.clone(),
            before: before.get(number).cloned(),
        })
        .collect();
    let hdfs_bytes = plan.heaps.resident_bytes(config.datanodes());
    let plan = AccumuloPlan {
        site: AccumuloSite {
            config,
            division: config.division(hdfs_bytes),
            hdfs: &hdfs.uri(),
            logs: &logs,
            secret: &identity.secret.clone(),
            slow_motion,
            temporary: &environment.scratch,
        },
        hdfs_configuration: hdfs.configuration_directory().to_owned(),
        metadata: &places.metadata,
    };
    let servers = AccumuloServers::start(&environment, &plan, zookeeper, &mut identity)?;
    let password = identity.password.clone();
    Ok((AccumuloCluster { servers, hdfs, environment, identity, places, hdfs_bytes }, password))
}

/// The identity of the instance in `metadata`, or that of a new instance.
fn identity(metadata: &Path) -> Result<InstanceIdentity, SystemError> {
    let file = |error: std::io::Error| {
        SystemError::starting(
            NAME,
            format!("can't use the identity of its instance in {}: {error}", metadata.display()),
        )
    };
    match InstanceIdentity::read(metadata).map_err(file)? {
        Some(identity) if identity.life == InstanceStage::Making => Err(SystemError::starting(
            NAME,
            format!(
                "its first start on this storage was interrupted ({}): empty the storage and start again",
                metadata.display()
            ),
        )),
        Some(identity) => Ok(identity),
        None => {
            let identity = InstanceIdentity::generate().map_err(file)?;
            identity.write(metadata).map_err(file)?;
            Ok(identity)
        }
    }
}

/// How to start the client process.
struct ClientPlan<'a> {
    config: &'a AccumuloConfig,
    settings: &'a SystemSettings,
    /// Those of the cluster.
    resources: &'a SystemResources,
    timeout: Duration,
    limit: Duration,
    library: &'a Path,
    /// The addresses that the process may connect to; `None`: any.
    allowed: Option<ConnectAllowlist>,
}

impl ClientPlan<'_> {
    fn start(
        &self,
        scratch: &Path,
        instance: &ExistingAccumulo,
        (user, password): (&str, &str),
        namespace: Option<&NetworkNamespace>,
    ) -> Result<JvmChild, SystemError> {
        std::fs::create_dir_all(scratch).map_err(|error| {
            SystemError::starting(NAME, format!("can't make the directory {}: {error}", scratch.display()))
        })?;
        let logging = scratch.join(LOGGING_FILE);
        write_private(&logging, LOGGING).map_err(|error| {
            SystemError::starting(NAME, format!("can't write {}: {error}", logging.display()))
        })?;
        let mut options = vec![format!("-Dlog4j2.configurationFile={}", logging.display())];
        if namespace.is_some() {
            // There is no name service in the namespace.
            let hosts = scratch.join("client-hosts");
            write_private(&hosts, &java_server::hosts()).map_err(|error| {
                SystemError::starting(NAME, format!("can't write {}: {error}", hosts.display()))
            })?;
            options.push(java_server::hosts_option(&hosts));
        }
        JvmChild::start(&JvmSpec {
            system: NAME,
            part: None,
            driver: jvm::ACCUMULO_DRIVER,
            class_path: ClassPath::new().with_classes(driver(self.library, &|_| {})?).with_jars(self.library),
            properties: self.properties(instance, user, password, namespace.is_some()),
            options,
            scratch,
            heap_bytes: CLIENT_HEAP_BYTES,
            resources: &self.resources.for_tools(),
            namespace,
            timeout: self.timeout,
            start_limit: self.limit,
            give_up: None,
        })
    }

    fn properties(
        &self,
        instance: &ExistingAccumulo,
        user: &str,
        password: &str,
        ours: bool,
    ) -> BTreeMap<String, String> {
        let (config, settings) = (self.config, self.settings);
        let slow_motion = settings.slow_motion.max(1.0);
        let ms = |time: Duration| time.as_millis().to_string();
        let mut properties = config.table_properties();
        let own = [
            ("instance.zookeepers", instance.zookeepers.join(",")),
            ("instance.name", instance.instance.clone()),
            ("instance.zookeepers.timeout", ms(session_timeout(config, slow_motion)) + "ms"),
            ("auth.type", "password".to_owned()),
            ("auth.principal", user.to_owned()),
            ("auth.token", password.to_owned()),
            ("table", TABLE.to_owned()),
            ("fields", settings.fields.to_string()),
            // In an existing instance, a table that exists is used as it is.
            ("create", if ours { "true" } else { "missing" }.to_owned()),
            ("splits", split_points(config.tablets()).join(",")),
            ("writes", config.writes.to_owned()),
            ("timeout-ms", ms(self.timeout)),
            ("settle", if config.settle == AccumuloSettle::Major { "compact" } else { "flush" }.to_owned()),
        ];
        properties.extend(own.map(|(name, value)| (name.to_owned(), value)));
        if let Some(allowed) = &self.allowed {
            properties.insert(jvm::MAY_CONNECT.to_owned(), allowed.to_words());
        }
        if let Some(visibility) = &settings.visibility {
            properties.insert("visibility".to_owned(), visibility.expression.clone());
            properties.insert("grant".to_owned(), visibility.authorizations.join(","));
        }
        if let Some(filter) = &settings.scan_filter {
            properties.insert("scan-filter".to_owned(), filter.clone());
        }
        properties
    }
}
