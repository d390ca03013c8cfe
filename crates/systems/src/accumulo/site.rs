//! The configuration of the processes: the site's properties, ZooKeeper's configuration, logging. The files are in the
//! scratch directory and readable only by this user, since they contain the secret of the instance.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use super::config::AccumuloConfig;
use super::memory::{AccumuloMemoryLayout, MIB};

/// Where ZooKeeper listens in the network namespace.
pub(super) const ZOOKEEPER: &str = "127.0.0.1:2181";
pub(super) const SITE_FILE: &str = "accumulo.properties";
pub(super) const LOGGING_FILE: &str = "log4j2.properties";
pub(super) const ZOOKEEPER_FILE: &str = "zoo.cfg";

/// The property for the volume of a tablet server's logs.
pub(super) const PREFERRED_LOG: &str = "general.custom.volume.preferred.logger";
/// Accumulo's default, stretched in slow motion.
const RPC_TIMEOUT: Duration = Duration::from_secs(120);
/// A tablet server that can't make room for writes terminates itself after this time; Accumulo's default.
const HOLD_TIME: Duration = Duration::from_secs(300);
/// How long a scan or a session of writes may be idle; Accumulo's default.
const IDLE_SESSION: Duration = Duration::from_secs(60);
/// Accumulo refuses to start with a longer one.
const MAX_SESSION_TIMEOUT: Duration = Duration::from_secs(300);
/// The default is 5 minutes, in which a small storage would fill up with files that compactions have replaced.
const GC_CYCLE: Duration = Duration::from_secs(60);
/// Accumulo starts with 20 and adds two per second, so that many clients that connect at once would wait for most of a
/// minute.
const REQUEST_THREADS: u32 = 300;
const MIN_LOG_BYTES: u64 = 16 * MIB;
const MAX_LOG_BYTES: u64 = 1024 * MIB;

/// A directory on this host for write-ahead logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogVolume {
    pub directory: PathBuf,
    /// The path of the same directory when the instance last ran.
    pub before: Option<PathBuf>,
}

impl LogVolume {
    /// Its URI as a volume of Accumulo. `None` for paths with characters that have a meaning in lists of volumes.
    pub(super) fn uri(directory: &Path) -> Option<String> {
        let path = directory.to_str()?;
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-".contains(letter);
        (path.starts_with('/') && path.chars().all(plain)).then(|| format!("file:{path}"))
    }
}

/// The values that the site's properties are made from.
#[derive(Clone, Debug)]
pub(super) struct AccumuloSite<'a> {
    pub config: &'a AccumuloConfig,
    pub division: AccumuloMemoryLayout,
    /// `hdfs://127.0.0.1:8020`
    pub hdfs: &'a str,
    /// Empty: logs are in HDFS.
    pub logs: &'a [LogVolume],
    pub secret: &'a str,
    pub slow_motion: f64,
    /// For scans that don't fit into memory.
    pub temporary: &'a Path,
}

impl AccumuloSite<'_> {
    pub(super) fn session_timeout(&self) -> Duration {
        session_timeout(self.config, self.slow_motion)
    }

    fn stretched(&self, time: Duration) -> String {
        milliseconds(time.mul_f64(self.slow_motion))
    }

    /// Every property, by Accumulo's names.
    pub(super) fn properties(&self) -> BTreeMap<String, String> {
        let (config, division) = (self.config, &self.division);
        let bytes = |bytes: u64| bytes.to_string();
        let hdfs = format!("{}/accumulo", self.hdfs);
        let logs: Vec<(&LogVolume, String)> =
            self.logs.iter().filter_map(|log| Some((log, LogVolume::uri(&log.directory)?))).collect();
        let mut volumes = vec![hdfs.clone()];
        volumes.extend(logs.iter().map(|(_, uri)| uri.clone()));
        let log_bytes = (2 * division.map_bytes).clamp(MIN_LOG_BYTES, MAX_LOG_BYTES);
        let executor = |name: &str, most: Option<u64>| {
            let mut executor =
                json!({ "name": name, "type": "internal", "numThreads": config.compaction_threads });
            if let Some(most) = most {
                executor["maxSize"] = json!(format!("{}M", (most / MIB).max(1)));
            }
            executor
        };
        // The defaults are 32 MiB and 128 MiB: a tenth and four tenths of Accumulo's default map. Kept in proportion
        // here.
        let executors = json!([
            executor("small", Some(division.map_bytes / 10)),
            executor("medium", Some(division.map_bytes * 4 / 10)),
            executor("large", None),
        ]);
        let mut properties: BTreeMap<String, String> = [
            ("instance.volumes", volumes.join(",")),
            ("instance.zookeeper.host", ZOOKEEPER.to_owned()),
            ("instance.zookeeper.timeout", milliseconds(self.session_timeout())),
            ("instance.secret", self.secret.to_owned()),
            ("general.rpc.timeout", self.stretched(RPC_TIMEOUT)),
            // Wait for all of them, or all tablets would be assigned to the first.
            ("manager.startup.tserver.avail.min.count", config.nodes.to_string()),
            // The manager checks ten times within this.
            ("manager.startup.tserver.avail.max.wait", "10s".to_owned()),
            ("manager.recovery.delay", "2s".to_owned()),
            ("manager.lease.recovery.interval", "1s".to_owned()),
            // While it caches the state of a log, it doesn't notice that the log has been sorted, and has it sorted
            // again.
            ("manager.recovery.wal.cache.time", "1s".to_owned()),
            ("tserver.memory.maps.native.enabled", config.native_maps.is_some().to_string()),
            ("tserver.memory.maps.max", bytes(division.map_bytes)),
            ("tserver.cache.data.size", bytes(division.data_cache_bytes)),
            ("tserver.cache.index.size", bytes(division.index_cache_bytes)),
            // 0 would mean no limit.
            ("tserver.cache.summary.size", bytes(MIB)),
            ("tserver.total.mutation.queue.max", bytes(division.queue_bytes)),
            ("tserver.wal.sort.buffer.size", bytes(division.sort_bytes)),
            ("tserver.wal.max.size", bytes(log_bytes)),
            ("tserver.scan.executors.default.threads", config.scan_threads.to_string()),
            ("tserver.compaction.major.service.default.planner.opts.executors", executors.to_string()),
            ("tserver.server.threads.minimum", REQUEST_THREADS.to_string()),
            ("tserver.hold.time.max", self.stretched(HOLD_TIME)),
            ("tserver.session.idle.max", self.stretched(IDLE_SESSION)),
            ("tserver.session.update.idle.max", self.stretched(IDLE_SESSION)),
            ("tserver.dir.memdump", self.temporary.display().to_string()),
            ("gc.cycle.start", milliseconds(GC_CYCLE / 2)),
            ("gc.cycle.delay", milliseconds(GC_CYCLE)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        if let Some((_, first)) = logs.first() {
            let chooser = "org.apache.accumulo.core.spi.fs.PreferredVolumeChooser";
            properties.insert("general.volume.chooser".to_owned(), chooser.to_owned());
            properties.insert("general.custom.volume.preferred.default".to_owned(), hdfs.clone());
            properties.insert("general.custom.volume.preferred.init".to_owned(), hdfs);
            properties.insert(PREFERRED_LOG.to_owned(), first.clone());
        }
        for (_, uri) in &logs {
            // Hadoop's default local file system keeps checksums in separate files and then ignores requests to flush:
            // acknowledged writes would be lost with the process.
            let raw = "org.apache.hadoop.fs.RawLocalFileSystem";
            properties.insert(format!("instance.volume.config.{uri}.fs.file.impl"), raw.to_owned());
            properties
                .insert(format!("instance.volume.config.{uri}.fs.file.impl.disable.cache"), true.to_string());
        }
        let moved = logs.iter().filter_map(|(log, uri)| {
            let before = LogVolume::uri(log.before.as_ref()?)?;
            (before != *uri).then(|| format!("{before} {uri}"))
        });
        let moved: Vec<String> = moved.collect();
        if !moved.is_empty() {
            properties.insert("instance.volumes.replacements".to_owned(), moved.join(","));
        }
        properties
    }
}

/// How long a tablet server may be silent before it counts as dead.
pub(super) fn session_timeout(config: &AccumuloConfig, slow_motion: f64) -> Duration {
    Duration::from_secs(config.session_timeout_s).mul_f64(slow_motion).min(MAX_SESSION_TIMEOUT)
}

fn milliseconds(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

/// ZooKeeper's configuration, its data in `directory`.
pub(super) fn zookeeper(directory: &Path, session_timeout: Duration) -> String {
    let (host, port) = ZOOKEEPER.split_once(':').unwrap_or_default();
    // ZooKeeper allows sessions of at most 20 ticks and checks them once per tick.
    let tick_ms = (session_timeout.as_millis() / 15).max(100);
    format!(
        "tickTime={tick_ms}\nmaxSessionTimeout={}\ndataDir={}\nclientPortAddress={host}\nclientPort={port}\nmaxClientCnxns=0\nadmin.enableServer=false\n",
        session_timeout.as_millis() * 2,
        directory.display(),
    )
}

/// The logging configuration of all processes, which log to their output.
pub(super) const LOGGING: &str = "\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss,SSS} %p %c{1}: %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
logger.zookeeper.name = org.apache.zookeeper
logger.zookeeper.level = warn
logger.hadoop.name = org.apache.hadoop
logger.hadoop.level = warn
logger.audit.name = org.apache.accumulo.audit
logger.audit.level = off
";

/// A file of properties as Accumulo reads it, where commas do not separate values.
pub(super) fn text(properties: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    for (name, value) in properties {
        let escaped = |letter: char| if "\\ :=".contains(letter) { vec!['\\', letter] } else { vec![letter] };
        text.extend(name.chars().flat_map(escaped));
        text.push('=');
        text.push_str(&value.replace('\\', "\\\\"));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site_text(config: &AccumuloConfig, logs: &[LogVolume], slow_motion: f64) -> String {
        let hdfs_bytes = 300 * MIB;
        let site = AccumuloSite {
            config,
            division: config.division(hdfs_bytes),
            hdfs: "hdfs://127.0.0.1:8020",
            logs,
            secret: "5ec2e7",
            slow_motion,
            temporary: Path::new("/scratch/tmp"),
        };
        text(&site.properties())
    }

    #[test]
    fn site_with_logs_in_hdfs() {
        let config = AccumuloConfig { budget_bytes: 2 << 30, ..AccumuloConfig::default() };
        insta::assert_snapshot!("hdfs", site_text(&config, &[], 1.0));
    }

    #[test]
    fn site_with_logs_on_own_moved_storage() {
        let config = AccumuloConfig {
            budget_bytes: 8 << 30,
            native_maps: Some("/opt/native".into()),
            ..AccumuloConfig::default()
        };
        let log = LogVolume { directory: "/mnt/b/wal".into(), before: Some("/mnt/a/wal".into()) };
        insta::assert_snapshot!("log", site_text(&config, &[log], 8.0));
    }

    #[test]
    fn session_outlives_many_ticks() {
        let text = zookeeper(Path::new("/data/zookeeper"), Duration::from_secs(30));
        assert!(text.contains("tickTime=2000\nmaxSessionTimeout=60000\ndataDir=/data/zookeeper\n"), "{text}");
    }

    #[test]
    fn session_stays_within_accumulo_limit_in_slow_motion() {
        let config = AccumuloConfig { budget_bytes: 2 << 30, ..AccumuloConfig::default() };
        for (slow_motion, expected) in
            [(1.0, "30000ms"), (8.0, "240000ms"), (16.0, "300000ms"), (1000.0, "300000ms")]
        {
            let text = site_text(&config, &[], slow_motion);
            assert!(text.contains(&format!("instance.zookeeper.timeout={expected}\n")), "{text}");
        }
    }

    #[test]
    fn only_plain_paths_are_volumes() {
        assert_eq!(LogVolume::uri(Path::new("/mnt/a-1/x_y.z")).as_deref(), Some("file:/mnt/a-1/x_y.z"));
        for wrong in ["mnt", "/mnt/a,b", "/mnt/a b", "/mnt/a:b", "/mnt/ä"] {
            assert_eq!(LogVolume::uri(Path::new(wrong)), None, "{wrong}");
        }
    }
}
