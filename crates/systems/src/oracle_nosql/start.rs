//! Starting a store with its client, or connecting to an existing one.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use underlay_record::NodeRole;

use super::NAME;
use super::admin::{NosqlParameters, StoreAdmin};
use super::client::{ClientPlan, StoreLogin, class_path};
use super::config::{ExistingStore, NosqlConfig, SETTINGS};
use super::figures::ReplicationStatistics;
use super::formed;
use super::home::KvHome;
use super::parts::parts;
use super::places::{name, places};
use super::profile::PROFILE;
use super::reports::StoreTopology;
use super::storage_node::{STORE, StorageNode, StorageNodePlan, endpoint, run_parallel};
use super::store::{DeployedStore, RunningNosql};
use crate::java::Java;
use crate::memory_plan::{ClientLoad, MemoryPlan};
use crate::network_namespace::NetworkNamespace;
use crate::nodes::{PlannedNode, share_by_whole_shards};
use crate::parts::SystemPart;
use crate::pid_namespace::{NamespaceMounts, contained};
use crate::profile::SystemProfile;
use crate::setting::about_memory;
use crate::system::{
    ElsewhereSetting, LoadProgress, RunningSystem, StoragePaths, System, SystemCapabilities, SystemError,
    SystemResources, SystemSettings,
};

/// A client's timeout if the settings have none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Of each replication node. On two CPUs six of them do 35 operations a second of workload A at first, 400 after 3,000
/// on each, and 530 after 10,000; more would gain little and take minutes.
const OPERATIONS_TO_COMPILE: u64 = 10_000;
/// Deploying starts many processes one after the other, and starting replays logs: this limit only tells a stuck
/// process from a slow one.
const MIN_LIMIT: Duration = Duration::from_secs(240);
/// In slow motion everything takes longer. The client's timeout is stretched already, so limits of this many timeouts
/// are as well.
const LIMIT_TIMEOUTS: u32 = 20;
const DURING: &str = "starting";

/// The system `oracle-nosql`. Its programs are the user's.
#[derive(Clone, Copy, Debug)]
pub struct OracleNosql {
    variable: fn(&str) -> Option<String>,
}

/// The one that studies use.
pub static INSTALLED: OracleNosql = OracleNosql::with_variables(|name| std::env::var(name).ok());

impl OracleNosql {
    /// Takes the directory of the installation, and the login to an existing store, from these variables instead of the
    /// environment.
    pub const fn with_variables(variable: fn(&str) -> Option<String>) -> OracleNosql {
        OracleNosql { variable }
    }

    fn home(&self) -> Result<KvHome, SystemError> {
        KvHome::find(self.variable)
    }
}

impl System for OracleNosql {
    fn name(&self) -> &'static str {
        NAME
    }

    fn profile(&self) -> SystemProfile {
        PROFILE
    }

    fn capabilities(&self) -> SystemCapabilities {
        SystemCapabilities {
            caches_records: true,
            delete: true,
            many_directories: true,
            many_nodes: true,
            settings: SETTINGS,
            elsewhere: Some(ElsewhereSetting { key: "helpers", example: "[\"10.0.0.1:5000\"]" }),
            spreads_data: true,
            ..SystemCapabilities::default()
        }
    }

    fn versions(&self) -> BTreeMap<String, String> {
        let home = self.home().ok().map(|home| (NAME.to_owned(), home.version().to_owned()));
        let java = Java::find(NAME).ok().map(|java| ("java".to_owned(), java.version));
        home.into_iter().chain(java).collect()
    }

    fn loads_per_s(&self) -> f64 {
        2_000.0
    }

    fn start_and_stop(&self, _: &BTreeMap<String, String>) -> Duration {
        Duration::from_secs(110)
    }

    fn operations_to_compile(&self, settings: &BTreeMap<String, String>) -> u64 {
        match NosqlConfig::resolve(settings, None) {
            Ok(config) if config.existing().is_none() => config.replication_nodes() * OPERATIONS_TO_COMPILE,
            _ => 0,
        }
    }

    fn settings_for_loading(&self) -> &'static [(&'static str, &'static str)] {
        // Stopping writes everything out.
        &[("durability", "NO_SYNC"), ("replica_durability", "NO_SYNC")]
    }

    fn keeps_timeouts(&self) -> bool {
        true
    }

    fn check_settings(&self, settings: &BTreeMap<String, String>) -> Vec<(String, String)> {
        NosqlConfig::resolve(settings, None).err().unwrap_or_default()
    }

    fn left_at_wall_time(&self, settings: &BTreeMap<String, String>, slow_motion: f64) -> Vec<String> {
        match NosqlConfig::resolve(settings, None) {
            Ok(config) if config.existing().is_none() && slow_motion >= 4.0 => vec![
                "Oracle NoSQL Database's agents and administration look after their processes by this machine's clock, as do JE's \
                 daemons that write and wake up by time"
                    .to_owned(),
            ],
            _ => Vec::new(),
        }
    }

    fn planned_nodes(&self, settings: &BTreeMap<String, String>) -> Vec<PlannedNode> {
        let Ok(config) = NosqlConfig::resolve(settings, None) else { return Vec::new() };
        // With a single copy there is nobody to take over.
        if config.existing().is_some() || config.replication() < 2 {
            return Vec::new();
        }
        let planned = |number: u64| PlannedNode {
            name: name(number),
            roles: &[NodeRole::Master, NodeRole::Replica],
            // Which of them is the store's own choice.
            shards: (1..=config.shards()).filter_map(|shard| u32::try_from(shard).ok()).collect(),
        };
        (1..=config.nodes).map(planned).collect()
    }

    fn parts(&self, paths: &StoragePaths, settings: &BTreeMap<String, String>) -> Vec<SystemPart> {
        NosqlConfig::resolve(settings, None).map_or_else(|_| Vec::new(), |config| parts(paths, &config))
    }

    fn copies(&self, settings: &BTreeMap<String, String>) -> u64 {
        NosqlConfig::resolve(settings, None).map_or(1, |config| config.replication())
    }

    fn share_of_fullest_node(&self, settings: &BTreeMap<String, String>, nodes: u64) -> f64 {
        // Mistakes in it are reported: no second one follows from them.
        NosqlConfig::resolve(settings, None).map_or(1.0 / nodes as f64, |config| {
            share_by_whole_shards(config.shards(), config.replication(), nodes)
        })
    }

    fn memory(
        &self,
        settings: &BTreeMap<String, String>,
        budget_bytes: u64,
        _load: ClientLoad,
    ) -> Option<Result<MemoryPlan, String>> {
        let config = match NosqlConfig::resolve(settings, Some(budget_bytes)) {
            Ok(config) => config,
            Err(mistakes) => return about_memory(mistakes).map(Err),
        };
        // Of a store that runs already nothing is known.
        config.existing().is_none().then(|| Ok(config.memory()))
    }

    fn without_nodes(
        &self,
        settings: &BTreeMap<String, String>,
        _shard: Option<u32>,
        away: usize,
    ) -> Option<String> {
        NosqlConfig::resolve(settings, None).ok()?.without(away as u64)
    }

    fn supplied(&self) -> Option<Result<String, SystemError>> {
        Some(self.home().map(|home| home.describe()))
    }

    fn prepare(&self, progress: &dyn Fn(&LoadProgress)) -> Result<(), SystemError> {
        class_path(&self.home()?, progress).map(drop)
    }

    fn start(
        &self,
        paths: &StoragePaths,
        resources: &SystemResources,
        settings: &SystemSettings,
    ) -> Result<Box<dyn RunningSystem>, SystemError> {
        let config = NosqlConfig::resolve(&settings.values, Some(resources.budget_bytes))
            .map_err(|mistakes| SystemError::first_mistake(NAME, mistakes))?;
        let timeout = if settings.timeout.is_zero() { DEFAULT_TIMEOUT } else { settings.timeout };
        let limit = MIN_LIMIT.max(timeout.saturating_mul(LIMIT_TIMEOUTS));
        let scratch = paths.scratch.join(NAME);
        if let Some(existing) = config.existing() {
            // Checked before anything is connected to.
            let login = StoreLogin::read(self.variable)?;
            let helpers = ("helpers", existing.helpers.as_slice());
            let allowed = settings.may_connect.check(NAME, helpers, login.named())?;
            let home = self.home()?;
            let plan = ClientPlan {
                config: &config,
                home: &home,
                resources,
                fields: settings.fields,
                timeout,
                limit,
                scratch: &scratch,
            };
            let client = plan.start(&existing, &login, None, allowed.as_ref().map(|(allowed, _)| allowed))?;
            return Ok(Box::new(RunningNosql::new(client, config, None)));
        }
        // An unusable directory is reported before a missing installation, which costs a download.
        let places = places(paths, &config)?;
        check_host_space(&paths.scratch)?;
        let former = formed::read(&config, &places)?;
        let of_replication_nodes = config.node_parameters(timeout, settings.slow_motion);
        let plan = self.plan(config, resources, &scratch, limit)?;
        let parameters =
            NosqlParameters { replication_nodes: of_replication_nodes, storage_nodes: plan.parameters() };
        for place in &places {
            plan.make_folder(place)?;
        }
        if former.is_none() {
            run_parallel(&places, |place| plan.configure(place))?;
        }
        let mut nodes: Vec<StorageNode> = Vec::new();
        for place in &places {
            nodes.push(plan.start(place)?);
        }
        for node in &nodes {
            node.wait_for_agent(limit)?;
        }
        let admin = StoreAdmin::new();
        let check = || nodes.iter().try_for_each(|node| node.process.check(DURING));
        let explained = |error: SystemError| check().err().unwrap_or(error);
        let wait = || {
            let all = || (1..=plan.config.nodes).collect();
            let (shards, copies) = (plan.config.shards(), plan.config.replication_nodes());
            admin.wait(&plan, (DURING, limit), &all, &check, &|status| status.is_healthy(shards, copies))
        };
        let in_force = match former {
            // Uncertain settings of a deployment are set anew.
            None if !admin.deploy(&plan, &parameters, &check).map_err(explained)? => BTreeMap::new(),
            None => parameters.all(),
            Some(former) => former.parameters,
        };
        wait()?;
        if in_force != parameters.all() {
            // Until all have them, none are known to be in force: a start after a crash sets them again.
            formed::note(&plan.config, &places, &BTreeMap::new())?;
            admin.change(&plan, &in_force, &parameters).map_err(explained)?;
            wait()?;
        }
        let topology: StoreTopology = admin.topology(&plan, DURING, &check).map_err(explained)?;
        let status = admin.verify(&plan, DURING, &check).map_err(explained)?;
        formed::note(&plan.config, &places, &parameters.all())?;
        let own = ExistingStore {
            helpers: (1..=plan.config.nodes).map(|number| endpoint(number).to_string()).collect(),
            store: STORE.to_owned(),
        };
        let client = ClientPlan {
            config: &plan.config,
            home: &plan.home,
            resources,
            fields: settings.fields,
            timeout,
            limit,
            scratch: &plan.scratch,
        };
        let client =
            client.start(&own, &StoreLogin::default(), Some(&plan.network), None).map_err(explained)?;
        let statistics = ReplicationStatistics::new(places.iter().map(|place| plan.logs(place)).collect());
        let config = plan.config.clone();
        let deployed = DeployedStore::new(plan, admin, nodes, (topology, status), statistics);
        Ok(Box::new(RunningNosql::new(client, config, Some(deployed))))
    }
}

impl OracleNosql {
    fn plan(
        &self,
        config: NosqlConfig,
        resources: &SystemResources,
        scratch: &Path,
        limit: Duration,
    ) -> Result<StorageNodePlan, SystemError> {
        let home = self.home()?;
        let java = Java::find(NAME)?;
        std::fs::create_dir_all(scratch).map_err(|error| {
            SystemError::starting(NAME, format!("can't make the directory {}: {error}", scratch.display()))
        })?;
        // Servers run in directories of their own.
        let scratch = std::path::absolute(scratch).map_err(|error| {
            SystemError::starting(NAME, format!("can't find the directory {}: {error}", scratch.display()))
        })?;
        Ok(StorageNodePlan {
            // An agent lets its processes go on when it is killed, and starts them again when they are.
            contained: contained(NAME, &java, &scratch, NamespaceMounts::Shared)?,
            network: NetworkNamespace::create(NAME)?,
            java,
            home,
            config,
            resources: resources.clone(),
            scratch,
            limit,
        })
    }
}

/// The size of logs and statistics until a cell ends.
const LOGS_BYTES: u64 = 512 << 20;

fn check_host_space(scratch: &Path) -> Result<(), SystemError> {
    let free_bytes = underlay_files::free_bytes(scratch).ok_or_else(|| {
        SystemError::starting(NAME, format!("can't tell the free space of {}", scratch.display()))
    })?;
    enough_space(scratch, free_bytes)
}

fn enough_space(scratch: &Path, free_bytes: u64) -> Result<(), SystemError> {
    if free_bytes >= LOGS_BYTES {
        return Ok(());
    }
    let problem = format!(
        "its logs need {} MiB free on the disk of this host that holds {}, which has {} MiB: free some, or move the run's \
         work with `--work`",
        LOGS_BYTES >> 20,
        scratch.display(),
        free_bytes >> 20
    );
    Err(SystemError::starting(NAME, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_full_host_is_reported_before_start() {
        let scratch = Path::new("/runs/one/work");
        assert!(enough_space(scratch, 1 << 30).is_ok());
        let refused = enough_space(scratch, 256 << 20).unwrap_err().to_string();
        assert!(refused.contains("512 MiB free") && refused.contains("/runs/one/work"), "{refused}");
        // A directory that is yet to be made is on the disk of the one above it.
        let message =
            check_host_space(&std::env::temp_dir().join("none/at/all")).err().map(|error| error.to_string());
        assert!(message.as_ref().is_none_or(|message| message.contains("MiB free")), "{message:?}");
    }
}
