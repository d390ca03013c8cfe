//! Starting the process that embeds JE, and everything except clients' requests.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use underlay_workload::client::Client;

use super::config::{JeConfig, SETTINGS};
use super::profile::PROFILE;
use super::{NAME, engine};
use crate::jvm::{self, JvmChild, JvmSpec};
use crate::memory_plan::{ClientLoad, MemoryPlan};
use crate::process_memory::resident_bytes;
use crate::profile::SystemProfile;
use crate::setting::about_memory;
use crate::system::{
    LoadProgress, RunningSystem, StoragePaths, System, SystemCapabilities, SystemError, SystemResources,
    SystemSettings, make_on,
};

/// A client's timeout if the settings have none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Opening replays the log and closing writes a checkpoint, which may take long on a slow disk: this limit only tells a
/// stuck process from a slow one.
const MIN_LIMIT: Duration = Duration::from_secs(120);
/// In slow motion everything takes longer. The client's timeout is stretched already, so limits of this many timeouts
/// are as well.
const LIMIT_TIMEOUTS: u32 = 20;

/// The system `je`. JE comes from the cache of artifacts.
#[derive(Clone, Copy, Debug)]
pub struct Je;

/// The one that studies use.
pub static INSTALLED: Je = Je;

impl System for Je {
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
            caches_records: true,
            settings: SETTINGS,
            ..SystemCapabilities::default()
        }
    }

    fn versions(&self) -> BTreeMap<String, String> {
        engine::versions(NAME)
    }

    fn loads_per_s(&self) -> f64 {
        20_000.0
    }

    fn start_and_stop(&self, _: &BTreeMap<String, String>) -> Duration {
        Duration::from_secs(5)
    }

    fn operations_to_compile(&self, _settings: &BTreeMap<String, String>) -> u64 {
        engine::OPERATIONS_TO_COMPILE
    }

    fn settings_for_loading(&self) -> &'static [(&'static str, &'static str)] {
        // Settling writes everything out, and what is loaded does not depend on when the log was flushed.
        &[("durability", "NO_SYNC")]
    }

    fn check_settings(&self, settings: &BTreeMap<String, String>) -> Vec<(String, String)> {
        JeConfig::resolve(settings, None).err().unwrap_or_default()
    }

    fn prepare(&self, progress: &dyn Fn(&LoadProgress)) -> Result<(), SystemError> {
        engine::class_path(NAME, progress).map(drop)
    }

    fn memory(
        &self,
        settings: &BTreeMap<String, String>,
        budget_bytes: u64,
        _load: ClientLoad,
    ) -> Option<Result<MemoryPlan, String>> {
        let config = match JeConfig::resolve(settings, Some(budget_bytes)) {
            Ok(config) => config,
            Err(mistakes) => return about_memory(mistakes).map(Err),
        };
        Some(Ok(MemoryPlan { budget_bytes, processes: vec![config.division().process("engine", 1)] }))
    }

    fn start(
        &self,
        paths: &StoragePaths,
        resources: &SystemResources,
        settings: &SystemSettings,
    ) -> Result<Box<dyn RunningSystem>, SystemError> {
        let config = JeConfig::resolve(&settings.values, Some(resources.budget_bytes))
            .map_err(|mistakes| SystemError::first_mistake(NAME, mistakes))?;
        let [data] = paths.data.as_slice() else {
            let problem = format!(
                "it keeps its data in one directory, not {}: combine the devices with layout = \"stripe\"",
                paths.data.len()
            );
            return Err(SystemError::starting(NAME, problem));
        };
        let home = make_on(NAME, data, NAME.as_ref())?;
        let timeout = if settings.timeout.is_zero() { DEFAULT_TIMEOUT } else { settings.timeout };
        let limit = MIN_LIMIT.max(timeout.saturating_mul(LIMIT_TIMEOUTS));
        let division = config.division();
        let mut options = vec![division.java_option()];
        options.extend(resources.java_option());
        let child = JvmChild::start(&JvmSpec {
            system: NAME,
            part: Some(NAME),
            driver: jvm::JE_EMBEDDED_DRIVER,
            class_path: engine::class_path(NAME, &|_| {})?,
            properties: properties(&config, &home, settings, timeout)?,
            options,
            scratch: &paths.scratch,
            heap_bytes: division.heap_bytes,
            resources,
            namespace: None,
            timeout,
            start_limit: limit,
            give_up: None,
        })?;
        Ok(Box::new(RunningJe { child, config, resources: resources.clone(), limit }))
    }
}

/// Those of the driver.
fn properties(
    config: &JeConfig,
    home: &Path,
    settings: &SystemSettings,
    timeout: Duration,
) -> Result<BTreeMap<String, String>, SystemError> {
    let home = home.to_str().ok_or_else(|| {
        let problem = format!("the path {} is not in UTF-8, which Java needs", home.display());
        SystemError::starting(NAME, problem)
    })?;
    let mut properties = config.engine(timeout, settings.slow_motion).parameters();
    let own = [
        ("home", home.to_owned()),
        ("fields", settings.fields.to_string()),
        ("durability", format!("{0},{0},NONE", config.durability)),
    ];
    properties.extend(own.map(|(name, value)| (name.to_owned(), value)));
    Ok(properties)
}

/// A running engine.
struct RunningJe {
    child: JvmChild,
    config: JeConfig,
    resources: SystemResources,
    /// How long stopping may take.
    limit: Duration,
}

impl RunningSystem for RunningJe {
    fn connect(&self) -> Result<Box<dyn Client>, SystemError> {
        Ok(Box::new(self.child.connect(&[])?))
    }

    fn processes(&self) -> Vec<u32> {
        let state = self.child.state();
        if state.is_running() { vec![state.pid()] } else { Vec::new() }
    }

    fn applied_settings(&self) -> BTreeMap<String, String> {
        let mut applied = self.config.applied();
        self.resources.record_java_option(&mut applied);
        applied
    }

    fn health(&self) -> Result<(), SystemError> {
        self.child.health()
    }

    fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        let mut figures = self.child.figures()?;
        let resident = resident_bytes(self.child.state().pid());
        figures.extend(resident.map(|bytes| ("current_resident_bytes".to_owned(), bytes as f64)));
        Ok(figures)
    }

    fn gauges(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        self.child.gauges()
    }

    fn settle(&self, limit: Duration) -> Result<(), SystemError> {
        self.child.settle(limit)
    }

    fn abort(&self) {
        self.child.kill();
    }

    fn stop(self: Box<Self>) -> Result<(), SystemError> {
        self.child.stop(self.limit)
    }
}
