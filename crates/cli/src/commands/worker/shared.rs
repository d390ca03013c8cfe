//! Systems that several hosts reach: those that run elsewhere, and the one that does nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use underlay_attach::{OwnFolder, ResourceRegistry};
use underlay_hosts::{ConnectionOpener, JobConnector, RemoteJob};
use underlay_systems::connect_allowlist::MayConnect;
use underlay_systems::system::{RunningSystem, StoragePaths, SystemResources, SystemSettings};
use underlay_workload::client::{Client, ClientError};

const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
/// A system that would be started for one host is no system that others reach.
pub(super) fn check(system: &str, settings: &BTreeMap<String, String>) -> Result<(), String> {
    let is_reached = underlay_systems::find(system).is_some_and(|system| {
        let capabilities = system.capabilities();
        // Jobs are not divided among workers, and their driver would run here on a coordinator's word.
        capabilities.keeps_nothing || capabilities.jobs.is_empty() && capabilities.runs_elsewhere(settings)
    });
    if is_reached {
        return Ok(());
    }
    let ways = underlay_systems::all().filter_map(|system| {
        let capabilities = system.capabilities();
        let setting = capabilities.elsewhere.filter(|_| capabilities.jobs.is_empty())?;
        Some(format!("{} with --set {}=...", system.name(), setting.key))
    });
    let ways: Vec<String> = ways.collect();
    let null_systems = underlay_systems::all().filter(|system| system.capabilities().keeps_nothing);
    let null_systems: Vec<&str> = null_systems.map(|system| system.name()).collect();
    Err(format!(
        "workers need a system that is already running: expected {}, or {}",
        ways.join(", "),
        null_systems.join(", ")
    ))
}

/// State that is held while a worker asks a system. It goes with the last connection.
struct ReachedSystem {
    running: Box<dyn RunningSystem>,
    _scratch: OwnFolder,
}

/// How a worker reaches the system of its job, where it may.
pub(super) fn connector(registry: ResourceRegistry, may_connect: MayConnect) -> JobConnector {
    Box::new(move |job: &RemoteJob| -> Result<ConnectionOpener, String> {
        check(&job.system, &job.settings)?;
        let names = underlay_systems::names().join(", ");
        let system = underlay_systems::find(&job.system)
            .ok_or_else(|| format!("there is no system '{}': expected one of {names}", job.system))?;
        if let Some((key, expected)) = system.check_settings(&job.settings).into_iter().next() {
            return Err(format!("setting '{key}': {expected}"));
        }
        let workload = job.workload()?;
        let settings = SystemSettings {
            values: job.settings.clone(),
            fields: workload.field_count,
            field_bytes: workload.field_length.max_bytes(),
            timeout: CLIENT_TIMEOUT,
            may_connect: may_connect.clone(),
            ..SystemSettings::default()
        };
        let scratch = OwnFolder::temporary("worker", &registry).map_err(|error| error.to_string())?;
        let paths = StoragePaths { scratch: scratch.path().to_path_buf(), ..StoragePaths::default() };
        let running = system
            .start(&paths, &SystemResources::unlimited(), &settings)
            .map_err(|error| error.to_string())?;
        let reached = Arc::new(ReachedSystem { running, _scratch: scratch });
        Ok(Box::new(move |_thread| -> Result<Box<dyn Client>, ClientError> {
            reached.running.connect().map_err(|error| ClientError::Lost(error.to_string()))
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_systems_that_all_hosts_reach_are_asked() {
        let settings = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
        assert_eq!(check("null", &BTreeMap::new()), Ok(()));
        assert_eq!(check("cassandra", &settings("endpoints", "10.0.0.1:9042")), Ok(()));
        assert_eq!(check("accumulo", &settings("zookeepers", "10.0.0.1:2181")), Ok(()));
        let refused = [
            ("cassandra", settings("endpoints", " ")),
            ("rocksdb", settings("endpoints", "a:1")),
            ("spark", settings("master", "spark://10.0.0.1:7077")),
            ("hadoop", settings("configuration", "/etc/hadoop/conf")),
        ];
        for (system, settings) in refused {
            assert_eq!(
                check(system, &settings).unwrap_err(),
                "workers need a system that is already running: expected oracle-nosql with --set helpers=..., \
                 cassandra with --set endpoints=..., accumulo with --set zookeepers=..., or null"
            );
        }
    }
}
