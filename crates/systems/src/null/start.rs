//! Starting and stopping nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use underlay_workload::NullClient;
use underlay_workload::client::Client;

use super::config;
use crate::system::{Capabilities, Memory, Running, Settings, StoragePaths, System, SystemError};

/// The system `null`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Null;

impl System for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { scan: true, delete: true, many_directories: true, ..Capabilities::default() }
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
        _memory: &Memory,
        settings: &Settings,
    ) -> Result<Box<dyn Running>, SystemError> {
        match config::check(&settings.values).into_iter().next() {
            Some((key, problem)) => Err(SystemError::Setting { system: self.name(), key, problem }),
            None => Ok(Box::new(Started)),
        }
    }
}

struct Started;

impl Running for Started {
    fn connect(&self) -> Result<Box<dyn Client>, SystemError> {
        Ok(Box::new(NullClient))
    }

    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }

    fn applied_settings(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
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
