//! The settings that a study may give. `docs.md` explains them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use scylla::statement::Consistency;

use super::memory::{CassandraMemoryLayout, DEFAULT_HEAP_SHARE, JAVA_OWN_BYTES, MIN_NODE_BYTES};
use crate::memory_plan::{ClientLoad, MemoryPlan, ProcessMemory};
use crate::setting::{
    CustomSetting, FractionSetting, IntegerSetting, OneOf, OptionalSetting, PathOf, SettingKind as _,
    SettingMistakes, TextListSetting, TextSetting, settings, too_small,
};

/// Each node has an address in one block of 254 loopback addresses.
const NODES: IntegerSetting = IntegerSetting(1..=200);
/// Numbers of threads in a node. More than this would only compete for the cores of the host.
const CONCURRENCY: IntegerSetting = IntegerSetting(2..=1024);
const CHUNK_KIB: IntegerSetting = IntegerSetting(4..=1024);

settings! {
    /// Every setting with its value in force.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct CassandraConfig {
        "nodes" => nodes: u64 = 1, NODES,
            "nodes of one ring, each with its part of the memory budget: 1";
        "replication_factor" => replication_factor: u64 = 1, NODES, "copies of each record: 1";
        "consistency" => consistency: Consistency = Consistency::One, CONSISTENCIES,
            "of reads and writes: ONE (default), LOCAL_ONE, TWO, THREE, QUORUM, LOCAL_QUORUM or ALL";
        "compression" => compression: CassandraCompression = CassandraCompression::Lz4, COMPRESSIONS,
            "of tables: lz4 (default), zstd, snappy or none";
        "chunk_kib" => chunk_kib: u64 = 16, CustomSetting { read: chunk_kib, show: u64::to_string },
            "KiB that are compressed at once, a power of two from 4 to 1024: 16";
        "compaction" => compaction: CassandraCompaction = CassandraCompaction::Stcs, COMPACTIONS,
            "strategy: STCS (default), LCS, UCS or TWCS";
        // From 0.8 on nothing is left for anything else.
        "heap_share" => heap_share: f64 = DEFAULT_HEAP_SHARE, FractionSetting(0.05..=0.8),
            "part of a node's memory for the Java heap: 0.25";
        "commitlog_sync" => commitlog_sync: CommitlogSync = CommitlogSync::Periodic, COMMITLOG_SYNCS,
            "periodic (default: flushed every 10 s), batch or group (flushed before each answer)";
        "concurrent_reads" => concurrent_reads: u64 = 32, CONCURRENCY, "reads at once in a node: 32";
        "concurrent_writes" => concurrent_writes: u64 = 32, CONCURRENCY, "writes at once in a node: 32";
        "table_layout" => table_layout: TableLayout = TableLayout::Fields, TABLE_LAYOUTS,
            "fields (default: binary columns) or ycsb-usertable (the table of YCSB's own binding)";
        "settle" => settle: CassandraSettle = CassandraSettle::Pending, SETTLES,
            "pending (default: write out, then wait for compactions) or major (compact each table to the end)";
        // Empty: a cluster is started.
        "endpoints" => endpoints: Vec<String> = Vec::new(), TextListSetting(check_endpoint),
            "ADDRESS:PORT, ... of a cluster that runs already, in place of one that is started: none";
        "datacenter" => datacenter: Option<String> = None, OptionalSetting(TextSetting(datacenter)),
            "of the endpoints, for LOCAL_ consistency and placing copies: none";
        "tls_ca" => tls_ca: Option<PathBuf> = None, OptionalSetting(PathOf("a file")),
            "file with the certificate authorities that the endpoints' certificates come from, in PEM: none";
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CassandraCompression {
    Lz4,
    Zstd,
    Snappy,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CassandraCompaction {
    Stcs,
    Lcs,
    Ucs,
    Twcs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitlogSync {
    Periodic,
    Batch,
    Group,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableLayout {
    Fields,
    YcsbUsertable,
}

/// To which state [`RunningSystem::settle`](crate::system::RunningSystem::settle) brings the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CassandraSettle {
    Pending,
    Major,
}

const CONSISTENCIES: OneOf<Consistency> = OneOf(&[
    ("ONE", Consistency::One),
    ("LOCAL_ONE", Consistency::LocalOne),
    ("TWO", Consistency::Two),
    ("THREE", Consistency::Three),
    ("QUORUM", Consistency::Quorum),
    ("LOCAL_QUORUM", Consistency::LocalQuorum),
    ("ALL", Consistency::All),
]);
const COMPRESSIONS: OneOf<CassandraCompression> = OneOf(&[
    ("lz4", CassandraCompression::Lz4),
    ("zstd", CassandraCompression::Zstd),
    ("snappy", CassandraCompression::Snappy),
    ("none", CassandraCompression::None),
]);
const COMPACTIONS: OneOf<CassandraCompaction> = OneOf(&[
    ("STCS", CassandraCompaction::Stcs),
    ("LCS", CassandraCompaction::Lcs),
    ("UCS", CassandraCompaction::Ucs),
    ("TWCS", CassandraCompaction::Twcs),
]);
const COMMITLOG_SYNCS: OneOf<CommitlogSync> = OneOf(&[
    ("periodic", CommitlogSync::Periodic),
    ("batch", CommitlogSync::Batch),
    ("group", CommitlogSync::Group),
]);
const TABLE_LAYOUTS: OneOf<TableLayout> =
    OneOf(&[("fields", TableLayout::Fields), ("ycsb-usertable", TableLayout::YcsbUsertable)]);
const SETTLES: OneOf<CassandraSettle> =
    OneOf(&[("pending", CassandraSettle::Pending), ("major", CassandraSettle::Major)]);

impl CassandraConfig {
    /// The configuration of `values` under a budget of all nodes together, or every mistake. Without a budget it is too
    /// early to judge that, and how many nodes there are if `values` doesn't say so.
    pub(crate) fn resolve(
        values: &BTreeMap<String, String>,
        budget_bytes: Option<u64>,
    ) -> Result<CassandraConfig, SettingMistakes> {
        let nodes_known = budget_bytes.is_some() || values.contains_key("nodes");
        let (config, mut mistakes) = CassandraConfig::read(values, budget_bytes.unwrap_or(u64::MAX));
        let mut mistake = |key: &str, problem: String| mistakes.push((key.to_owned(), problem));
        if config.endpoints.is_empty() {
            let needed_bytes = MIN_NODE_BYTES * config.nodes;
            if config.budget_bytes < needed_bytes {
                mistake("memory", too_small(config.budget_bytes, needed_bytes));
            }
            if nodes_known && config.replication_factor > config.nodes {
                mistake(
                    "replication_factor",
                    format!("expected at most the number of nodes, {}", config.nodes),
                );
            }
            for (key, is_given) in
                [("datacenter", config.datacenter.is_some()), ("tls_ca", config.tls_ca.is_some())]
            {
                if is_given {
                    mistake(key, "expected with endpoints only".to_owned());
                }
            }
        } else if config.nodes != 1 {
            mistake(
                "nodes",
                "expected not to be set: the endpoints' cluster has the nodes that it has".to_owned(),
            );
        }
        let needed = config.answers_needed();
        if config.replication_factor < needed {
            mistake("consistency", format!("expected a replication_factor of {needed} or more for it"));
        }
        if mistakes.is_empty() { Ok(config) } else { Err(mistakes) }
    }

    /// The worst effect on clients while so many nodes are down.
    pub(super) fn without(&self, away: u64) -> Option<String> {
        let needed = self.answers_needed();
        let left = self.replication_factor.saturating_sub(away);
        (left < needed).then(|| {
            format!(
                "some records have {left} of their {} copies left and consistency {} needs {needed}: reads and writes of them fail",
                self.replication_factor, self.recorded()["consistency"]
            )
        })
    }

    /// How many nodes must answer a request.
    fn answers_needed(&self) -> u64 {
        match self.consistency {
            Consistency::Two => 2,
            Consistency::Three => 3,
            Consistency::Quorum | Consistency::LocalQuorum | Consistency::EachQuorum => {
                self.replication_factor / 2 + 1
            }
            Consistency::All => self.replication_factor,
            _ => 1,
        }
    }

    /// How each node's part of the budget is divided.
    pub(crate) fn division(&self) -> CassandraMemoryLayout {
        CassandraMemoryLayout::new(self.budget_bytes / self.nodes, self.heap_share)
    }

    /// How the budget is used.
    ///
    /// # Errors
    /// When the requests of so many clients don't fit into a node's heap.
    pub(super) fn memory(&self, load: ClientLoad) -> Result<MemoryPlan, String> {
        let division = self.division();
        let (wanted, room) = (division.request_bytes(load), division.room_for_requests());
        if wanted > room {
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            return Err(format!(
                "{} clients with records of {} bytes may have {} MiB of requests in flight, and a node's heap of {} MiB has room for {} MiB: \
                 expected more memory, fewer threads or smaller records",
                load.threads,
                load.record_bytes,
                mib(wanted),
                mib(division.heap_bytes),
                room >> 20
            ));
        }
        let node = ProcessMemory {
            what: "node",
            count: self.nodes,
            heap_bytes: division.heap_bytes,
            direct_bytes: division.direct_bytes,
            own_bytes: JAVA_OWN_BYTES,
            // It has no row cache and no chunk cache by default: pages of files are its cache.
            cache_bytes: 0,
        };
        Ok(MemoryPlan { budget_bytes: self.budget_bytes, processes: vec![node] })
    }

    /// For the record: the settings, and the sizes that follow from them.
    pub(crate) fn applied(&self) -> BTreeMap<String, String> {
        let mut applied = self.recorded();
        if self.endpoints.is_empty() {
            let division = self.division();
            let sizes = [
                ("heap_bytes", division.heap_bytes),
                ("direct_bytes", division.direct_bytes),
                ("file_buffer_bytes", division.file_buffer_bytes),
                ("memtable_bytes", division.memtable_bytes),
                ("commitlog_segment_bytes", division.commitlog_segment_bytes),
            ];
            applied.extend(sizes.map(|(name, bytes)| (name.to_owned(), bytes.to_string())));
        }
        applied
    }
}

/// Cassandra finds a chunk by shifting the position, so that its size must be a power of two.
fn chunk_kib(text: &str) -> Result<u64, String> {
    let kib = CHUNK_KIB.read(text)?;
    if kib.is_power_of_two() { Ok(kib) } else { Err(format!("expected a power of two, not '{text}'")) }
}

/// `ADDRESS:PORT`, by number or by name.
fn check_endpoint(word: &str) -> Result<(), String> {
    let is_named = word.rsplit_once(':').is_some_and(|(host, port)| {
        let letters = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
        !host.is_empty() && host.chars().all(letters) && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    match is_named || word.parse::<SocketAddr>().is_ok() {
        true => Ok(()),
        false => Err(format!("'{word}' is not an endpoint: expected ADDRESS:PORT, such as 10.0.0.1:9042")),
    }
}

/// Becomes part of a CQL statement.
fn datacenter(text: &str) -> Result<String, String> {
    let letters = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    match !text.is_empty() && text.chars().all(letters) {
        true => Ok(text.to_owned()),
        false => Err("expected letters, digits, -, _ and .".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::MIB;
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    const STARTED: &[(&str, &str)] = &[
        ("nodes", "3"),
        ("replication_factor", "2"),
        ("consistency", "LOCAL_QUORUM"),
        ("compression", "zstd"),
        ("chunk_kib", "64"),
        ("compaction", "LCS"),
        ("heap_share", "30 %"),
        ("commitlog_sync", "group"),
        ("concurrent_reads", "64"),
        ("concurrent_writes", "1_024"),
        ("table_layout", "ycsb-usertable"),
        ("settle", "major"),
    ];
    const RUNNING: &[(&str, &str)] =
        &[("endpoints", "10.0.0.1:9042, db-2.example:9142"), ("datacenter", "dc1"), ("tls_ca", "ca.pem")];

    #[test]
    fn settings_are_accepted_and_recorded() {
        assert_eq!(STARTED.len() + RUNNING.len(), SETTINGS.len());
        for pairs in [STARTED, RUNNING] {
            let applied = CassandraConfig::resolve(&values(pairs), Some(3 << 30)).unwrap().applied();
            for (name, value) in pairs {
                assert_eq!(applied[*name], value.replace("30 %", "0.3").replace("1_024", "1024"));
            }
        }
        let applied = CassandraConfig::resolve(&BTreeMap::new(), Some(1 << 30)).unwrap().applied();
        for (name, _) in SETTINGS {
            assert!(applied.contains_key(*name), "{name}");
        }
    }

    #[test]
    fn mistakes_are_listed_with_expected_values() {
        let settings = values(&[
            ("nodes", "0"),
            ("replication_factor", "2"),
            ("consistency", "THREE"),
            ("compression", "gzip"),
            ("chunk_kib", "24"),
            ("compaction", "level"),
            ("heap_share", "NaN"),
            ("commitlog_sync", "never"),
            ("concurrent_reads", "1"),
            ("concurrent_writes", "-1"),
            ("table_layout", "wide"),
            ("settle", ""),
            ("endpoints", "10.0.0.1"),
            ("datacenter", "'; DROP"),
            ("tls_ca", ""),
            ("node", "1"),
        ]);
        let mistakes = CassandraConfig::resolve(&settings, Some(MIB)).unwrap_err();
        let mut named: Vec<&str> = mistakes.iter().map(|(key, _)| key.as_str()).collect();
        named.sort_unstable();
        let mut expected: Vec<&str> = settings.keys().map(String::as_str).chain(["memory"]).collect();
        expected.sort_unstable();
        assert_eq!(named, expected);
        for (key, problem) in &mistakes {
            assert!(problem.contains("expected"), "{key}: {problem}");
        }
    }

    #[test]
    fn endpoint_settings_are_refused_without_endpoints() {
        let mistakes =
            CassandraConfig::resolve(&values(&[("tls_ca", "x"), ("datacenter", "y")]), Some(1 << 30))
                .unwrap_err();
        assert_eq!(mistakes.len(), 2);
        let both = values(&[("endpoints", "[::1]:9042"), ("nodes", "2")]);
        assert_eq!(CassandraConfig::resolve(&both, Some(0)).unwrap_err()[0].0, "nodes");
    }

    #[test]
    fn copies_are_judged_once_the_nodes_are_known() {
        let twice = values(&[("replication_factor", "2")]);
        assert!(CassandraConfig::resolve(&twice, None).is_ok());
        assert!(CassandraConfig::resolve(&twice, Some(1 << 30)).is_err());
        let alone = values(&[("replication_factor", "2"), ("nodes", "1")]);
        assert!(CassandraConfig::resolve(&alone, None).is_err());
    }
}
