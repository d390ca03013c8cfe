//! Starting the members of all shards, and the client that finds their masters.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use underlay_record::NodeRole;

use super::NAME;
use super::config::{JeHaConfig, ReadConsistency, SETTINGS};
use super::formed;
use super::members::{MemberPlan, lead, network_options, start_all};
use super::parts::parts;
use super::places::directories;
use super::profile::PROFILE;
use super::store::JeHaStore;
use super::topology::GroupMember;
use crate::credentials::random_password;
use crate::java::ClassPath;
use crate::je::engine;
use crate::jvm::{self, JvmChild, JvmSpec};
use crate::memory_plan::{ClientLoad, MemoryPlan};
use crate::network_namespace::NetworkNamespace;
use crate::nodes::{PlannedNode, share_by_whole_shards};
use crate::parts::SystemPart;
use crate::profile::SystemProfile;
use crate::setting::about_memory;
use crate::system::{
    LoadProgress, RunningSystem, StoragePaths, System, SystemCapabilities, SystemError, SystemResources,
    SystemSettings,
};

/// A client's timeout if the settings have none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Opening replays the log and closing writes a checkpoint, which may take long on a slow disk: this limit only tells a
/// stuck process from a slow one.
const MIN_LIMIT: Duration = Duration::from_secs(120);
/// In slow motion everything takes longer. The client's timeout is stretched already, so limits of this many timeouts
/// are as well.
const LIMIT_TIMEOUTS: u32 = 20;
/// The client process is not part of the system, so its memory does not count towards the budget.
const CLIENT_HEAP_BYTES: u64 = 192 << 20;

const TWO_MEMBERS: &str = "with replication = 2 a shard takes no writes once one of its two members is gone, since neither is a majority: \
                           use 3 to survive a failure, or 1";

/// The system `je-ha`. JE comes from the cache of artifacts.
#[derive(Clone, Copy, Debug)]
pub struct JeHa;

/// The one that studies use.
pub static INSTALLED: JeHa = JeHa;

impl JeHa {
    /// Like [`System::start`], with members that can be stopped and started one by one.
    ///
    /// # Errors
    /// Like there.
    pub fn start_store(
        &self,
        paths: &StoragePaths,
        resources: &SystemResources,
        settings: &SystemSettings,
    ) -> Result<JeHaStore, SystemError> {
        let config = JeHaConfig::resolve(&settings.values, Some(resources.budget_bytes))
            .map_err(|mistakes| SystemError::first_mistake(NAME, mistakes))?;
        let members = config.members();
        let homes = directories(paths, config.nodes, &members)?;
        let timeout = if settings.timeout.is_zero() { DEFAULT_TIMEOUT } else { settings.timeout };
        let limit = MIN_LIMIT.max(timeout.saturating_mul(LIMIT_TIMEOUTS));
        let scratch = paths.scratch.join(NAME);
        std::fs::create_dir_all(&scratch).map_err(|error| {
            SystemError::starting(NAME, format!("can't make the directory {}: {error}", scratch.display()))
        })?;
        let secret = random_password()
            .map_err(|error| SystemError::starting(NAME, format!("can't make a secret: {error}")))?;
        let plan = MemberPlan {
            class_path: engine::class_path(NAME, &|_| {})?,
            parameters: config.parameters(timeout, limit, settings.slow_motion),
            fields: settings.fields,
            secret,
            network: NetworkNamespace::create(NAME)?,
            network_options: network_options(&scratch)?,
            scratch,
            resources: resources.clone(),
            timeout,
            limit,
            config,
        };
        let places: Vec<(GroupMember, PathBuf)> = members.iter().cloned().zip(homes).collect();
        let started = start_all(&plan, &places)?;
        let started: Vec<_> = started.into_iter().map(Arc::new).collect();
        lead(&started, limit)?;
        formed::note(&places)?;
        let client = start_client(&plan, &members, &plan.class_path, &plan.scratch)?;
        Ok(JeHaStore::new(client, plan, started, paths))
    }
}

impl System for JeHa {
    fn name(&self) -> &'static str {
        NAME
    }

    fn profile(&self) -> SystemProfile {
        PROFILE
    }

    fn capabilities(&self) -> SystemCapabilities {
        SystemCapabilities {
            caches_records: true,
            scan: true,
            delete: true,
            many_directories: true,
            many_nodes: true,
            settings: SETTINGS,
            spreads_data: true,
            ..SystemCapabilities::default()
        }
    }

    fn versions(&self) -> BTreeMap<String, String> {
        engine::versions(NAME)
    }

    fn loads_per_s(&self) -> f64 {
        3_000.0
    }

    fn start_and_stop(&self, _: &BTreeMap<String, String>) -> Duration {
        Duration::from_secs(20)
    }

    fn left_at_wall_time(&self, _: &BTreeMap<String, String>, slow_motion: f64) -> Vec<String> {
        if slow_motion < 4.0 {
            return Vec::new();
        }
        vec![
            "JE's members send heartbeats once a second by this host's clock, more often in modelled time"
                .to_owned(),
        ]
    }

    fn operations_to_compile(&self, settings: &BTreeMap<String, String>) -> u64 {
        let members = |config: JeHaConfig| config.shards() * config.replication();
        // Reads are divided among them.
        JeHaConfig::resolve(settings, None).map_or(0, members) * engine::OPERATIONS_TO_COMPILE
    }

    fn settings_for_loading(&self) -> &'static [(&'static str, &'static str)] {
        // Settling writes everything out.
        &[("durability", "NO_SYNC"), ("replica_durability", "NO_SYNC")]
    }

    fn check_settings(&self, settings: &BTreeMap<String, String>) -> Vec<(String, String)> {
        JeHaConfig::resolve(settings, None).err().unwrap_or_default()
    }

    fn planned_nodes(&self, settings: &BTreeMap<String, String>) -> Vec<PlannedNode> {
        let Ok(config) = JeHaConfig::resolve(settings, None) else { return Vec::new() };
        let members = config.members();
        let planned = |member: GroupMember| PlannedNode {
            name: member.name(),
            roles: &[NodeRole::Master, NodeRole::Replica],
            shards: u32::try_from(member.shard).into_iter().collect(),
        };
        // With a single member there is nobody to take over.
        if members.len() < 2 { Vec::new() } else { members.into_iter().map(planned).collect() }
    }

    fn parts(&self, paths: &StoragePaths, settings: &BTreeMap<String, String>) -> Vec<SystemPart> {
        let Ok(config) = JeHaConfig::resolve(settings, None) else { return Vec::new() };
        parts(paths, config.nodes, &config.members())
    }

    fn memory(
        &self,
        settings: &BTreeMap<String, String>,
        budget_bytes: u64,
        _load: ClientLoad,
    ) -> Option<Result<MemoryPlan, String>> {
        let config = match JeHaConfig::resolve(settings, Some(budget_bytes)) {
            Ok(config) => config,
            Err(mistakes) => return about_memory(mistakes).map(Err),
        };
        let members = config.shards() * config.replication();
        let member = config.division().process("member", members);
        Some(Ok(MemoryPlan { budget_bytes, processes: vec![member] }))
    }

    fn copies(&self, settings: &BTreeMap<String, String>) -> u64 {
        JeHaConfig::resolve(settings, None).map_or(1, |config| config.replication())
    }

    fn share_of_fullest_node(&self, settings: &BTreeMap<String, String>, nodes: u64) -> f64 {
        // Mistakes in it are reported: no second one follows from them.
        JeHaConfig::resolve(settings, None).map_or(1.0 / nodes as f64, |config| {
            share_by_whole_shards(config.shards(), config.replication(), nodes)
        })
    }

    fn without_nodes(
        &self,
        settings: &BTreeMap<String, String>,
        shard: Option<u32>,
        away: usize,
    ) -> Option<String> {
        JeHaConfig::resolve(settings, None).ok()?.without(shard, away as u64)
    }

    fn cautions(&self, settings: &BTreeMap<String, String>) -> Vec<String> {
        let Ok(config) = JeHaConfig::resolve(settings, None) else { return Vec::new() };
        let of_two = config.replication() == 2;
        of_two.then(|| TWO_MEMBERS.to_owned()).into_iter().collect()
    }

    fn prepare(&self, progress: &dyn Fn(&LoadProgress)) -> Result<(), SystemError> {
        engine::class_path(NAME, progress).map(drop)
    }

    fn start(
        &self,
        paths: &StoragePaths,
        resources: &SystemResources,
        settings: &SystemSettings,
    ) -> Result<Box<dyn RunningSystem>, SystemError> {
        Ok(Box::new(self.start_store(paths, resources, settings)?))
    }
}

/// The client process, in the network of the members and outside of the budget.
fn start_client(
    plan: &MemberPlan,
    members: &[GroupMember],
    class_path: &ClassPath,
    scratch: &Path,
) -> Result<JvmChild, SystemError> {
    // It is to say what went wrong before the load generator gives up.
    let timeout = plan.timeout.mul_f64(0.9);
    let reads = if plan.config.consistency == ReadConsistency::Absolute { "master" } else { "any" };
    let mut properties = BTreeMap::from(
        [
            ("shards", plan.config.shards().to_string()),
            ("secret", plan.secret.clone()),
            ("reads", reads.to_owned()),
            ("timeout-ms", timeout.as_millis().to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    for member in members {
        let endpoints: &mut String = properties.entry(format!("shard.{}", member.shard)).or_default();
        let comma = if endpoints.is_empty() { "" } else { "," };
        *endpoints += &format!("{comma}{}", member.service_endpoint());
    }
    JvmChild::start(&JvmSpec {
        system: NAME,
        part: None,
        driver: jvm::JE_GROUP_DRIVER,
        class_path: class_path.clone(),
        properties,
        options: plan.network_options.clone(),
        scratch,
        heap_bytes: CLIENT_HEAP_BYTES,
        resources: &plan.resources.for_tools(),
        namespace: Some(&plan.network),
        timeout: plan.timeout,
        start_limit: plan.limit,
        give_up: None,
    })
}
