//! Starting and stopping nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use underlay_workload::client::Client;
use underlay_workload::{KeysOnlyClient, NullClient};

use super::config::{self, NullValues};
use super::profile::PROFILE;
use crate::profile::SystemProfile;
use crate::system::{
    RunningSystem, StoragePaths, System, SystemCapabilities, SystemError, SystemResources, SystemSettings,
};

/// The system `null`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Null;

pub static INSTALLED: Null = Null;

impl System for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn profile(&self) -> SystemProfile {
        PROFILE
    }

    fn capabilities(&self) -> SystemCapabilities {
        SystemCapabilities {
            keeps_nothing: true,
            scan: true,
            delete: true,
            many_directories: true,
            ..SystemCapabilities::default()
        }
    }

    fn versions(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn check_settings(&self, settings: &BTreeMap<String, String>) -> Vec<(String, String)> {
        config::check(settings)
    }

    fn start(
        &self,
        _paths: &StoragePaths,
        _resources: &SystemResources,
        settings: &SystemSettings,
    ) -> Result<Box<dyn RunningSystem>, SystemError> {
        match config::check(&settings.values).into_iter().next() {
            Some((key, problem)) => Err(SystemError::Setting { system: self.name(), key, problem }),
            None => Ok(Box::new(RunningNull { values: config::values(&settings.values) })),
        }
    }
}

struct RunningNull {
    values: NullValues,
}

impl RunningSystem for RunningNull {
    fn connect(&self) -> Result<Box<dyn Client>, SystemError> {
        let client: Box<dyn Client> = match self.values {
            NullValues::Made => Box::new(NullClient),
            NullValues::LeftOut => Box::new(KeysOnlyClient),
        };
        Ok(client)
    }

    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }

    fn applied_settings(&self) -> BTreeMap<String, String> {
        config::applied(self.values)
    }

    fn health(&self) -> Result<(), SystemError> {
        Ok(())
    }

    fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        Ok(BTreeMap::new())
    }

    fn settle(&self, _limit: Duration) -> Result<(), SystemError> {
        Ok(())
    }

    fn abort(&self) {}

    fn stop(self: Box<Self>) -> Result<(), SystemError> {
        Ok(())
    }
}
