//! The configuration of a session, in the file that Spark reads it from.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::config::SparkConfig;
use super::memory::{DRIVER_HEAP_BYTES, MIB};
use super::servers::MASTER_URL;
use super::shuffle_service::ShuffleService;
use crate::java_server::hosts_option;
use crate::system::SystemResources;

/// As long as a device in slow motion may keep somebody waiting.
const NETWORK_TIMEOUT_S: f64 = 120.0;

/// The inputs of a session's configuration.
pub(super) struct SessionDefaults<'a> {
    pub config: &'a SparkConfig,
    pub resources: &'a SystemResources,
    /// The jars of Maven's list.
    pub library: &'a Path,
    /// Those of Iceberg, and where its tables go, if the study writes any.
    pub iceberg: Option<(&'a Path, String)>,
    /// Those of the client of a cache in between.
    pub cache: Option<&'a Path>,
    pub python: &'a Path,
    /// The folder of the jobs' sources, which executors import too.
    pub jobs: &'a Path,
    pub events: &'a Path,
    /// The only names that are known in the network of the run's own; `None` in that of the host.
    pub hosts: Option<&'a Path>,
    /// Where everything temporary goes that is not an executor's own data. It must exist.
    pub temporary: &'a Path,
    /// Where S3A keeps what is not uploaded yet.
    pub buffers: &'a [std::path::PathBuf],
    pub slow_motion: f64,
    /// The store's own settings, keys included.
    pub store: BTreeMap<String, String>,
    /// Whom Java trusts besides the authorities that it knows: a file of its own format.
    pub trusted: Option<std::path::PathBuf>,
    /// Settings for another manager than Spark's own.
    pub manager: BTreeMap<String, String>,
    /// Settings of these that it does not want.
    pub without: &'a [&'a str],
}

impl SessionDefaults<'_> {
    /// The text of `spark-defaults.conf`. It holds the store's keys: others must not read it.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in self.properties() {
            // Writing to a string can't fail.
            let _ = writeln!(text, "{name} {value}");
        }
        text
    }

    /// Of the driver, of every executor, and of what else is started for them.
    pub(super) fn java_options(&self) -> String {
        let mut java = "-XX:+UseSerialGC -XX:-UsePerfData -Xss512k".to_owned();
        if let Some(hosts) = self.hosts {
            java = format!("{java} {}", hosts_option(hosts));
        }
        // Java does not look at TMPDIR.
        java = format!("{java} -Djava.io.tmpdir={}", self.temporary.display());
        if let Some(file) = &self.trusted {
            let trust = "-Djavax.net.ssl.trustStore";
            java = format!("{java} {trust}={} {trust}Type=JKS", file.display());
        }
        if let Some(cores) = self.resources.java_option() {
            java = format!("{java} {cores}");
        }
        java
    }

    fn properties(&self) -> BTreeMap<String, String> {
        let config = self.config;
        let mut jars = format!("{}/*", self.library.display());
        if let Some((iceberg, _)) = &self.iceberg {
            jars = format!("{jars}:{}/*", iceberg.display());
        }
        if let Some(cache) = self.cache {
            jars = format!("{jars}:{}/*", cache.display());
        }
        let mebibytes = |bytes: u64| format!("{}m", bytes / MIB);
        let temporary = self.temporary.display();
        let java = self.java_options();
        let timeout_s = (NETWORK_TIMEOUT_S * self.slow_motion.max(1.0)).ceil().min(86_400.0);
        let own = [
            ("spark.master", MASTER_URL.to_owned()),
            ("spark.driver.host", "127.0.0.1".to_owned()),
            ("spark.driver.bindAddress", "127.0.0.1".to_owned()),
            ("spark.driver.memory", mebibytes(DRIVER_HEAP_BYTES)),
            ("spark.driver.extraClassPath", jars.clone()),
            ("spark.driver.extraJavaOptions", java.clone()),
            ("spark.executor.memory", mebibytes(config.division().executor_heap_bytes)),
            ("spark.executor.cores", config.executor_cores.to_string()),
            ("spark.cores.max", config.slots().to_string()),
            ("spark.executor.extraClassPath", jars),
            ("spark.executor.extraJavaOptions", java),
            ("spark.executorEnv.PYTHONPATH", self.jobs.display().to_string()),
            ("spark.executorEnv.TMPDIR", temporary.to_string()),
            ("spark.hadoop.hadoop.tmp.dir", format!("{temporary}/hadoop")),
            ("spark.pyspark.python", self.python.display().to_string()),
            ("spark.network.timeout", format!("{timeout_s}s")),
            ("spark.ui.enabled", "false".to_owned()),
            // The bar would fill the log that errors end with.
            ("spark.ui.showConsoleProgress", "false".to_owned()),
            ("spark.eventLog.enabled", "true".to_owned()),
            ("spark.eventLog.dir", format!("file://{}", self.events.display())),
            // One file of lines, as Spark 3.5 writes it by itself.
            ("spark.eventLog.rolling.enabled", "false".to_owned()),
            ("spark.eventLog.compress", "false".to_owned()),
            ("spark.sql.files.maxPartitionBytes", config.block_bytes.to_string()),
            // Where every executor is on the same machine, waiting for a better one only costs time.
            ("spark.locality.wait", "0s".to_owned()),
            ("spark.sql.shuffle.partitions", (2 * config.slots()).to_string()),
            // Jobs wait for all of their executors, so that each has the same ones.
            ("spark.scheduler.minRegisteredResourcesRatio", "1.0".to_owned()),
        ];
        let mut properties: BTreeMap<String, String> =
            own.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        properties.extend(self.store.clone());
        if let Some((_, warehouse)) = &self.iceberg {
            let catalog = [
                ("", "org.apache.iceberg.spark.SparkCatalog"),
                (".catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog"),
                // In the driver's memory: its commit is a change of a row, where a catalog of files would rename one.
                (".uri", "jdbc:h2:mem:iceberg;DB_CLOSE_DELAY=-1;DATABASE_TO_UPPER=false"),
                (".jdbc.schema-version", "V1"),
                (".warehouse", warehouse.as_str()),
                (".cache-enabled", "false"),
            ];
            properties.extend(
                catalog.map(|(name, value)| (format!("spark.sql.catalog.iceberg{name}"), value.to_owned())),
            );
        }
        if config.shuffle_service {
            properties.extend(ShuffleService::settings().map(|(name, value)| (name.to_owned(), value)));
        }
        if config.is_s3a() {
            const CLOUD: &str = "org.apache.spark.internal.io.cloud";
            let buffers: Vec<String> = self.buffers.iter().map(|path| path.display().to_string()).collect();
            let staging = self.buffers.first().map(|path| path.join("staging")).unwrap_or_default();
            let s3a = [
                ("spark.sql.sources.commitProtocolClass", format!("{CLOUD}.PathOutputCommitProtocol")),
                (
                    "spark.sql.parquet.output.committer.class",
                    format!("{CLOUD}.BindingParquetOutputCommitter"),
                ),
                ("spark.hadoop.fs.s3a.committer.magic.enabled", "true".to_owned()),
                ("spark.hadoop.fs.s3a.committer.staging.conflict-mode", "replace".to_owned()),
                ("spark.hadoop.fs.s3a.committer.staging.tmp.path", format!("file://{}", staging.display())),
                ("spark.hadoop.fs.s3a.buffer.dir", buffers.join(",")),
            ];
            properties.extend(s3a.map(|(name, value)| (name.to_owned(), value)));
        }
        properties.retain(|name, _| !self.without.contains(&name.as_str()));
        properties.extend(self.manager.clone());
        properties
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_has_settings_of_study() {
        let values: BTreeMap<String, String> =
            [("store", "s3a"), ("executors", "3"), ("executor_memory", "1 GiB"), ("committer", "magic")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
        let config = SparkConfig::resolve(&values, Some(16 << 30), Some(1)).unwrap();
        let session = SessionDefaults {
            config: &config,
            resources: &SystemResources { modelled_cores: Some(16), ..SystemResources::unlimited() },
            library: Path::new("/cache/spark"),
            iceberg: Some((Path::new("/cache/iceberg"), "s3a://b/tables".to_owned())),
            cache: Some(Path::new("/cache/alluxio-client")),
            python: Path::new("/cache/python/bin/python"),
            jobs: Path::new("/scratch/jobs"),
            events: Path::new("/scratch/events"),
            hosts: Some(Path::new("/scratch/hosts")),
            temporary: Path::new("/scratch/tmp"),
            buffers: &["/fast/spark-local".into()],
            slow_motion: 8.0,
            store: [("spark.hadoop.fs.s3a.endpoint".to_owned(), "http://127.0.0.1:7480".to_owned())].into(),
            trusted: Some("/scratch/gateway.jks".into()),
            manager: [("spark.master".to_owned(), "yarn".to_owned())].into(),
            without: &["spark.locality.wait"],
        };
        let text = session.text();
        for expected in [
            "spark.executor.memory 1024m\n",
            "spark.cores.max 3\n",
            // Spark's 120 s, in motion that is eight times slower.
            "spark.network.timeout 960s\n",
            "-Djava.io.tmpdir=/scratch/tmp -Djavax.net.ssl.trustStore=/scratch/gateway.jks -Djavax.net.ssl.trustStoreType=JKS \
             -XX:ActiveProcessorCount=16\n",
            "spark.master yarn\n",
            "spark.hadoop.hadoop.tmp.dir /scratch/tmp/hadoop\n",
            "spark.hadoop.fs.s3a.buffer.dir /fast/spark-local\n",
            "spark.hadoop.fs.s3a.committer.staging.tmp.path file:///fast/spark-local/staging\n",
            "spark.hadoop.fs.s3a.endpoint http://127.0.0.1:7480\n",
            "PathOutputCommitProtocol\n",
            "spark.executor.extraClassPath /cache/spark/*:/cache/iceberg/*:/cache/alluxio-client/*\n",
            "spark.sql.catalog.iceberg.warehouse s3a://b/tables\n",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
        assert!(!text.contains("spark.locality.wait"), "{text}");
    }
}
