//! The files of a node: cassandra.yaml, the configuration of its logging, and the arguments of Java. They are in the
//! scratch directory and readable only by this user, since they contain the password of the management port.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::config::{CassandraConfig, CommitlogSync};
use super::memory::MIB;
use super::network::CassandraNetwork;
use crate::java_server::{self, argument_file, hosts_option};
use crate::private_file::write_private;
use crate::system::SystemResources;

/// The number of token ranges per node, Cassandra's default.
const TOKENS_PER_NODE: u64 = 16;
/// The bandwidth limit for compactions in KiB per second, Cassandra's default.
const COMPACTION_KIB_PER_S: f64 = 64.0 * 1024.0;
/// The internals of Java that nodes and `nodetool` access: what Cassandra's own start scripts allow on Java 17.
const EXPORTED: &[&str] = &[
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.management/com.sun.jmx.remote.security",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.management.agent/jdk.internal.agent",
    "jdk.unsupported/sun.misc",
];
const OPENED: &[&str] = &[
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.management/com.sun.management.internal",
];
const HOSTS_FILE: &str = "hosts";
/// The only user of the management port.
pub(super) const MANAGEMENT_USER: &str = "underlay";

/// The directories of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeDirectories {
    pub data: Vec<PathBuf>,
    pub commitlog: PathBuf,
    pub hints: PathBuf,
    pub saved_caches: PathBuf,
    /// For the files of this module and temporary files; not on the storage under test.
    pub scratch: PathBuf,
}

/// One node of a ring.
#[derive(Clone, Debug)]
pub(super) struct NodePlan<'a> {
    pub config: &'a CassandraConfig,
    /// Counted from 0.
    pub number: u64,
    pub network: CassandraNetwork,
    pub ip: String,
    pub seed: String,
    pub native_port: u16,
    pub storage_port: u16,
    pub management_port: u16,
    pub directories: NodeDirectories,
    /// The directory of Cassandra's jars.
    pub programs: PathBuf,
    pub resources: &'a SystemResources,
    pub slow_motion: f64,
}

impl NodePlan<'_> {
    /// `cassandra.yaml`: a line per key, with the values as JSON, which is valid YAML.
    pub(super) fn yaml(&self) -> String {
        let division = self.config.division();
        let mib = |bytes: u64| json!(format!("{}MiB", bytes / MIB));
        let stretched = |ms: f64| json!(format!("{:.0}ms", (ms * self.slow_motion).ceil()));
        let mut keys: Vec<(&str, Value)> = vec![
            ("cluster_name", json!("underlay")),
            ("num_tokens", json!(TOKENS_PER_NODE)),
            ("initial_token", json!(tokens(self.number, self.config.nodes))),
            ("auto_bootstrap", json!(false)),
            ("partitioner", json!("org.apache.cassandra.dht.Murmur3Partitioner")),
            ("endpoint_snitch", json!("SimpleSnitch")),
            (
                "seed_provider",
                json!([{
                    "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                    "parameters": [{ "seeds": self.seed }],
                }]),
            ),
            ("listen_address", json!(self.ip)),
            ("rpc_address", json!(self.ip)),
            ("storage_port", json!(self.storage_port)),
            ("native_transport_port", json!(self.native_port)),
            ("data_file_directories", json!(self.directories.data)),
            ("commitlog_directory", json!(self.directories.commitlog)),
            ("hints_directory", json!(self.directories.hints)),
            ("saved_caches_directory", json!(self.directories.saved_caches)),
            ("concurrent_reads", json!(self.config.concurrent_reads)),
            ("concurrent_writes", json!(self.config.concurrent_writes)),
            ("memtable_heap_space", mib(division.memtable_bytes)),
            ("memtable_offheap_space", mib(division.memtable_bytes)),
            ("file_cache_size", mib(division.file_buffer_bytes)),
            ("networking_cache_size", mib(division.network_cache_bytes)),
            ("commitlog_segment_size", mib(division.commitlog_segment_bytes)),
            ("commitlog_total_space", mib(division.commitlog_bytes)),
        ];
        keys.extend(match self.config.commitlog_sync {
            CommitlogSync::Periodic => {
                vec![
                    ("commitlog_sync", json!("periodic")),
                    ("commitlog_sync_period", stretched(10_000.0)),
                    ("periodic_commitlog_sync_lag_block", stretched(15_000.0)),
                ]
            }
            CommitlogSync::Batch => vec![("commitlog_sync", json!("batch"))],
            CommitlogSync::Group => {
                vec![("commitlog_sync", json!("group")), ("commitlog_sync_group_window", stretched(15.0))]
            }
        });
        keys.extend([
            ("compaction_throughput", json!(format!("{}KiB/s", self.compaction_kib_per_s()))),
            ("read_request_timeout", stretched(5_000.0)),
            ("range_request_timeout", stretched(10_000.0)),
            ("write_request_timeout", stretched(2_000.0)),
            ("counter_write_request_timeout", stretched(5_000.0)),
            ("cas_contention_timeout", stretched(1_000.0)),
            ("truncate_request_timeout", stretched(60_000.0)),
            ("request_timeout", stretched(10_000.0)),
            ("slow_query_log_timeout", stretched(500.0)),
            // Requests that have waited this long for a thread are rejected as overload.
            ("native_transport_timeout", stretched(12_000.0)),
            ("hints_flush_period", stretched(10_000.0)),
        ]);
        if !division.scans_read_ahead {
            keys.push(("compressed_read_ahead_buffer_size", json!("0KiB")));
        }
        let mut text = String::from("# Written by underlay for one run; changes are lost.\n");
        for (key, value) in keys {
            let _ = writeln!(text, "{key}: {value}");
        }
        text
    }

    /// In slow motion a second of wall time stands for less modelled time. 0 would mean no limit.
    fn compaction_kib_per_s(&self) -> f64 {
        (COMPACTION_KIB_PER_S / self.slow_motion).round().max(1.0)
    }

    /// The arguments of Java, as an argument file.
    pub(super) fn java_arguments(&self) -> String {
        let division = self.config.division();
        let mib = |bytes: u64| bytes / MIB;
        let scratch = self.directories.scratch.display();
        let collector = if division.concurrent_collector { "-XX:+UseG1GC" } else { "-XX:+UseSerialGC" };
        let mut lines = vec![
            format!("-Xms{}m", mib(division.heap_bytes)),
            format!("-Xmx{}m", mib(division.heap_bytes)),
            format!("-XX:MaxDirectMemorySize={}m", mib(division.direct_bytes)),
            collector.to_owned(),
            "-Xss256k".to_owned(),
            "-XX:ReservedCodeCacheSize=96m".to_owned(),
            // After an OutOfMemoryError a node would go on without the thread that got it, and answer half of its
            // requests.
            "-XX:+ExitOnOutOfMemoryError".to_owned(),
            // Java would map its performance counters to a file in /tmp, whose disk could stall it.
            "-XX:-UsePerfData".to_owned(),
            "-Djava.net.preferIPv4Stack=true".to_owned(),
            "-Djdk.attach.allowAttachSelf=true".to_owned(),
            "-Dcassandra-foreground=yes".to_owned(),
            format!("-Djava.io.tmpdir={scratch}/tmp"),
            format!("-Djna.tmpdir={scratch}/tmp"),
            format!("-Dcassandra.config=file://{scratch}/cassandra.yaml"),
            format!("-Dcassandra.logdir={scratch}"),
            format!("-Dcassandra.storagedir={}", self.directories.saved_caches.display()),
            format!("-Dlogback.configurationFile={scratch}/logback.xml"),
            // Nodes and tokens are fixed, so there is no need to wait for gossip or to move ranges one at a time.
            "-Dcassandra.skip_wait_for_gossip_to_settle=0".to_owned(),
            "-Dcassandra.consistent.rangemovement=false".to_owned(),
            format!("-Dcassandra.jmx.local.port={}", self.management_port),
            "-Dcom.sun.management.jmxremote.authenticate=true".to_owned(),
            format!("-Dcom.sun.management.jmxremote.password.file={scratch}/management.password"),
            format!("-Dcom.sun.management.jmxremote.access.file={scratch}/management.access"),
        ];
        lines.extend(self.resources.java_option());
        if !division.concurrent_collector {
            lines.push(format!("-Xmn{}m", mib(division.young_bytes)));
        }
        lines.extend(module_arguments());
        lines.push(names_argument(&self.directories.scratch));
        lines.extend([
            "-cp".to_owned(),
            format!("{scratch}:{}/*", self.programs.display()),
            "org.apache.cassandra.service.CassandraDaemon".to_owned(),
        ]);
        argument_file(&lines)
    }

    /// Creates the node's directories and writes its files.
    pub(super) fn write(&self, password: &str) -> std::io::Result<()> {
        let directories = &self.directories;
        let temporary = directories.scratch.join("tmp");
        let own = [&directories.commitlog, &directories.hints, &directories.saved_caches, &temporary];
        for directory in directories.data.iter().chain(own) {
            std::fs::create_dir_all(directory)?;
        }
        let scratch = &directories.scratch;
        write_private(&scratch.join(HOSTS_FILE), &java_server::hosts())?;
        write_private(&scratch.join("cassandra.yaml"), &self.yaml())?;
        write_private(&scratch.join("java.arguments"), &self.java_arguments())?;
        write_private(&scratch.join("logback.xml"), &logging("INFO"))?;
        write_private(&scratch.join("logback-tools.xml"), &logging("ERROR"))?;
        write_private(&scratch.join("management.access"), &format!("{MANAGEMENT_USER} readwrite\n"))?;
        // Two files, because Java may replace the password in its own by a hash.
        for file in ["management.password", "nodetool.password"] {
            write_private(&scratch.join(file), &format!("{MANAGEMENT_USER} {password}\n"))?;
        }
        Ok(())
    }
}

/// The options for modules, one argument each.
pub(super) fn module_arguments() -> impl Iterator<Item = String> {
    let exported = EXPORTED.iter().map(|module| format!("--add-exports={module}=ALL-UNNAMED"));
    exported.chain(OPENED.iter().map(|module| format!("--add-opens={module}=ALL-UNNAMED")))
}

/// For nodes and `nodetool`, which look up the host's name when they start.
pub(super) fn names_argument(scratch: &Path) -> String {
    hosts_option(&scratch.join(HOSTS_FILE))
}

/// The tokens of a node. All ranges have the same size and the nodes alternate, so that each has an equal part of the
/// data.
fn tokens(node: u64, nodes: u64) -> String {
    let all = u128::from(nodes * TOKENS_PER_NODE);
    let token = |index: u64| {
        let place = u128::from(index * nodes + node);
        i128::from(i64::MIN) + ((place << 64) / all) as i128 + 1
    };
    (0..TOKENS_PER_NODE).map(|index| token(index).to_string()).collect::<Vec<_>>().join(",")
}

fn logging(level: &str) -> String {
    format!(
        "<configuration>\n  <appender name=\"out\" class=\"ch.qos.logback.core.ConsoleAppender\">\n    \
         <encoder><pattern>%-5level %date{{ISO8601}} %logger{{0}} %msg%n</pattern></encoder>\n  </appender>\n  \
         <root level=\"{level}\"><appender-ref ref=\"out\"/></root>\n</configuration>\n"
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn tokens_divide_the_ring_into_equal_ranges() {
        for nodes in [1, 2, 3, 7, 200] {
            let mut all = BTreeSet::new();
            for node in 0..nodes {
                let own = tokens(node, nodes);
                let own: Vec<i64> = own.split(',').map(|token| token.parse().unwrap()).collect();
                assert_eq!(own.len() as u64, TOKENS_PER_NODE);
                all.extend(own);
            }
            assert_eq!(all.len() as u64, nodes * TOKENS_PER_NODE);
            let all: Vec<i64> = all.into_iter().collect();
            let ranges: BTreeSet<i128> =
                all.windows(2).map(|pair| i128::from(pair[1]) - i128::from(pair[0])).collect();
            assert!(ranges.last().unwrap() - ranges.first().unwrap() <= 1, "{ranges:?}");
            assert!(all[0] > i64::MIN, "the least token is the partitioner's own");
        }
    }

    fn plan<'a>(
        config: &'a CassandraConfig,
        resources: &'a SystemResources,
        slow_motion: f64,
    ) -> NodePlan<'a> {
        let directories = NodeDirectories {
            data: vec!["/mnt/a/cassandra/data".into(), "/mnt/b/cassandra/data".into()],
            commitlog: "/mnt/log/cassandra/commitlog".into(),
            hints: "/mnt/a/cassandra/hints".into(),
            saved_caches: "/mnt/a/cassandra/saved_caches".into(),
            scratch: "/run/cell 1/node1".into(),
        };
        NodePlan {
            config,
            number: config.nodes - 1,
            network: CassandraNetwork::Host,
            ip: "127.0.3.2".to_owned(),
            seed: "127.0.3.1:7000".to_owned(),
            native_port: 9042,
            storage_port: 7000,
            management_port: 40_001,
            directories,
            programs: "/cache/cassandra".into(),
            resources,
            slow_motion,
        }
    }

    #[test]
    fn small_node_undilated() {
        let config = CassandraConfig { budget_bytes: 1 << 30, nodes: 2, ..CassandraConfig::default() };
        let resources = SystemResources::unlimited();
        let plan = plan(&config, &resources, 1.0);
        insta::assert_snapshot!("small-yaml", plan.yaml());
        insta::assert_snapshot!("small-java", plan.java_arguments());
    }

    #[test]
    fn large_node_in_slow_motion() {
        let config = CassandraConfig {
            budget_bytes: 64 << 30,
            commitlog_sync: CommitlogSync::Group,
            concurrent_reads: 128,
            ..CassandraConfig::default()
        };
        let resources = SystemResources::unlimited();
        let plan = plan(&config, &resources, 8.0);
        insta::assert_snapshot!("large-yaml", plan.yaml());
        insta::assert_snapshot!("large-java", plan.java_arguments());
    }

    #[test]
    fn node_counts_cores_of_modelled_machine() {
        let config = CassandraConfig { budget_bytes: 1 << 30, ..CassandraConfig::default() };
        let resources = SystemResources { modelled_cores: Some(16), ..SystemResources::unlimited() };
        let arguments = plan(&config, &resources, 1.0).java_arguments();
        assert!(arguments.lines().any(|line| line == "\"-XX:ActiveProcessorCount=16\""), "{arguments}");
    }

    #[test]
    fn files_with_passwords_are_for_the_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::TempDir::new().unwrap();
        let config = CassandraConfig::default();
        let resources = SystemResources::unlimited();
        let mut plan = plan(&config, &resources, 1.0);
        let place = |name: &str| directory.path().join(name);
        plan.directories = NodeDirectories {
            data: vec![place("data")],
            commitlog: place("commitlog"),
            hints: place("hints"),
            saved_caches: place("saved_caches"),
            scratch: place("scratch"),
        };
        std::fs::create_dir(place("scratch")).unwrap();
        // Twice: what a killed run left is written anew.
        for password in ["first", "second"] {
            plan.write(password).unwrap();
            let file = place("scratch").join("management.password");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("underlay {password}\n"));
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o077, 0);
        }
        assert!(place("commitlog").is_dir());
    }
}
