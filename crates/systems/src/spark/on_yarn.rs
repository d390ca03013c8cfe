//! YARN below Spark: the ResourceManager and the NodeManager of the system `hadoop`, whose containers are Spark's
//! executors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::NAME;
use super::config::SparkConfig;
use super::memory::{
    APPLICATION_MASTER_BYTES, APPLICATION_MASTER_HEAP_BYTES, EXECUTOR_OWN_BYTES, MIB, YARN_HEAP_BYTES,
};
use super::servers::ServerPlan;
use crate::artifacts::HADOOP;
use crate::hadoop::{Yarn, YarnPlan, YarnSite};
use crate::hdfs::configuration::properties_file;
use crate::java::ClassPath;
use crate::network_namespace::NetworkNamespace;
use crate::system::SystemError;

/// The memory of all containers: the application's master, and the executors, to the last byte.
fn containers_bytes(config: &SparkConfig) -> u64 {
    APPLICATION_MASTER_BYTES + config.executors * (config.division().executor_heap_bytes + EXECUTOR_OWN_BYTES)
}

/// Starts both servers in `namespace`. Their configuration goes beside that of the store, if it has one of Hadoop's;
/// the directory is returned.
pub(super) fn start(
    plan: &ServerPlan,
    namespace: &std::sync::Arc<NetworkNamespace>,
    of_store: Option<&Path>,
    storages: &[PathBuf],
    slow_motion: f64,
) -> Result<(Yarn, PathBuf), SystemError> {
    let library = HADOOP.directory(&|_| {}).map_err(|error| error.into_system_error(NAME))?;
    let scratch = plan.scratch.join("yarn");
    let configuration = of_store.map_or_else(|| scratch.join("configuration"), Path::to_owned);
    let site = YarnSite {
        local_directories: &plan.local_directories,
        log_directory: &scratch.join("containers"),
        state_directory: &scratch.join("nodes"),
        // Spark brings its own.
        class_path: configuration.display().to_string(),
        containers_bytes: containers_bytes(&plan.config),
        cores: plan.config.slots() + 1,
        services: "",
        slow_motion,
    };
    let written = std::fs::create_dir_all(&configuration)
        .and_then(|()| std::fs::create_dir_all(staging(&plan.scratch)))
        .and_then(|()| match of_store {
            Some(_) => Ok(()),
            None => {
                let temporary = scratch.join("tmp").display().to_string();
                let core = [("fs.defaultFS", "file:///"), ("hadoop.tmp.dir", temporary.as_str())];
                std::fs::write(configuration.join("core-site.xml"), properties_file(&core))
            }
        })
        .and_then(|()| site.write(&configuration));
    written.map_err(|error| {
        SystemError::starting(NAME, format!("can't write to {}: {error}", configuration.display()))
    })?;
    let yarn = YarnPlan {
        system: NAME,
        configuration: &configuration,
        class_path: ClassPath::new().with_classes(&configuration).with_jars(&library),
        scratch: &scratch,
        directories: storages,
        heap_bytes: YARN_HEAP_BYTES,
        limit: plan.limit,
    };
    let yarn = Yarn::start(&plan.java, &yarn, namespace, &plan.resources)?;
    Ok((yarn, configuration))
}

/// Where the application's files wait for its containers. Everything is on one machine, so the store need not have
/// them.
fn staging(scratch: &Path) -> PathBuf {
    scratch.join("yarn").join("staging")
}

/// A session's settings. `java` are the options of every Java program.
pub(super) fn settings(plan: &ServerPlan, java: &str) -> BTreeMap<String, String> {
    let mib = |bytes: u64| format!("{}m", bytes / MIB);
    [
        ("spark.master", "yarn".to_owned()),
        ("spark.executor.instances", plan.config.executors.to_string()),
        ("spark.executor.memoryOverhead", mib(EXECUTOR_OWN_BYTES)),
        ("spark.executorEnv.SPARK_LOCAL_IP", "127.0.0.1".to_owned()),
        ("spark.yarn.am.memory", mib(APPLICATION_MASTER_HEAP_BYTES)),
        ("spark.yarn.am.memoryOverhead", mib(APPLICATION_MASTER_BYTES - APPLICATION_MASTER_HEAP_BYTES)),
        ("spark.yarn.am.extraJavaOptions", java.to_owned()),
        // A second attempt of the application would start from nothing.
        ("spark.yarn.maxAppAttempts", "1".to_owned()),
        ("spark.yarn.jars", format!("local:{}/jars/*", plan.environment.spark_home.display())),
        ("spark.yarn.stagingDir", format!("file://{}", staging(&plan.scratch).display())),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_have_room_for_the_executors_alone() {
        let values = [("manager", "yarn"), ("executors", "3"), ("executor_memory", "1 GiB")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let config = SparkConfig::resolve(&values, Some(16 << 30), Some(1)).unwrap();
        assert_eq!(containers_bytes(&config) / MIB, 256 + 128 + 3 * (1024 + 256));
        // Another executor does not fit, with any other requests of Spark.
        const { assert!(APPLICATION_MASTER_BYTES < EXECUTOR_OWN_BYTES + 512 * MIB) };
    }
}
