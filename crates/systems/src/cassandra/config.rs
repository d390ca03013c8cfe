//! The settings that a study may give. What they mean is in `docs.md`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;

use scylla::statement::Consistency;

use super::memory::{Division, MIN_NODE_BYTES};
use crate::setting::{expected_one_of, name_of, one_of, share, too_small, within};

/// More than one host runs; a block of addresses has 254.
const NODES_MAX: u64 = 200;
/// From here on a share of the heap leaves nothing for anything else.
const HEAP_SHARES: std::ops::RangeInclusive<f64> = 0.05..=0.8;
const KIB: u64 = 1 << 10;

/// What a study may set, as [`crate::system::Capabilities`] gives it.
pub const SETTINGS: &[(&str, &str)] = &[
    ("nodes", "nodes of one ring, each with its part of the memory budget: 1"),
    ("replication_factor", "copies of each record: 1"),
    ("consistency", "of reads and writes: ONE (default), LOCAL_ONE, TWO, THREE, QUORUM, LOCAL_QUORUM or ALL"),
    ("compression", "of tables: lz4 (default), zstd, snappy or none"),
    ("chunk_kib", "what is compressed at once, a power of two from 4 to 1024: 16"),
    ("compaction", "strategy: STCS (default), LCS, UCS or TWCS"),
    ("heap_share", "part of a node's memory for the Java heap: 0.25"),
    ("commitlog_sync", "periodic (default: flushed every 10 s), batch or group (flushed before each answer)"),
    ("concurrent_reads", "reads at once in a node: 32"),
    ("concurrent_writes", "writes at once in a node: 32"),
    ("table_layout", "fields (default: binary columns) or ycsb-usertable (the table of YCSB's own binding)"),
    (
        "settle",
        "pending (default: write out, then wait for compactions) or major (compact each table to the end)",
    ),
    ("endpoints", "ADDRESS:PORT, ... of a cluster that runs already, in place of one that is started: none"),
    ("datacenter", "of the endpoints, for LOCAL_ consistency and placing copies: none"),
    (
        "tls_ca",
        "file with the certificate authorities that the endpoints' certificates come from, in PEM: none",
    ),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    Lz4,
    Zstd,
    Snappy,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compaction {
    Stcs,
    Lcs,
    Ucs,
    Twcs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitlogSync {
    Periodic,
    Batch,
    Group,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableLayout {
    Fields,
    YcsbUsertable,
}

/// To which state [`Running::settle`](crate::system::Running::settle) brings the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    Pending,
    Major,
}

/// Every setting with its value in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub budget_bytes: u64,
    pub nodes: u64,
    pub replication_factor: u64,
    pub consistency: Consistency,
    pub compression: Compression,
    pub chunk_kib: u64,
    pub compaction: Compaction,
    pub heap_share: f64,
    pub commitlog_sync: CommitlogSync,
    pub concurrent_reads: u64,
    pub concurrent_writes: u64,
    pub table_layout: TableLayout,
    pub settle: Settle,
    /// Empty: a cluster is started.
    pub endpoints: Vec<String>,
    pub datacenter: Option<String>,
    pub tls_ca: Option<PathBuf>,
}

const CONSISTENCIES: &[(&str, Consistency)] = &[
    ("ONE", Consistency::One),
    ("LOCAL_ONE", Consistency::LocalOne),
    ("TWO", Consistency::Two),
    ("THREE", Consistency::Three),
    ("QUORUM", Consistency::Quorum),
    ("LOCAL_QUORUM", Consistency::LocalQuorum),
    ("ALL", Consistency::All),
];
const COMPRESSIONS: &[(&str, Compression)] = &[
    ("lz4", Compression::Lz4),
    ("zstd", Compression::Zstd),
    ("snappy", Compression::Snappy),
    ("none", Compression::None),
];
const COMPACTIONS: &[(&str, Compaction)] = &[
    ("STCS", Compaction::Stcs),
    ("LCS", Compaction::Lcs),
    ("UCS", Compaction::Ucs),
    ("TWCS", Compaction::Twcs),
];
const COMMITLOG_SYNCS: &[(&str, CommitlogSync)] = &[
    ("periodic", CommitlogSync::Periodic),
    ("batch", CommitlogSync::Batch),
    ("group", CommitlogSync::Group),
];
const TABLE_LAYOUTS: &[(&str, TableLayout)] =
    &[("fields", TableLayout::Fields), ("ycsb-usertable", TableLayout::YcsbUsertable)];
const SETTLES: &[(&str, Settle)] = &[("pending", Settle::Pending), ("major", Settle::Major)];

impl Config {
    /// The configuration of `values` under a budget of all nodes together, or every mistake: (setting, what was expected).
    /// Without a budget it is too early to judge that, and how many nodes there are if `values` doesn't say so.
    pub fn resolve(
        values: &BTreeMap<String, String>,
        budget_bytes: Option<u64>,
    ) -> Result<Config, Vec<(String, String)>> {
        let nodes_known = budget_bytes.is_some() || values.contains_key("nodes");
        let budget_bytes = budget_bytes.unwrap_or(u64::MAX);
        let mut config = Config { budget_bytes, ..Config::default() };
        let mut mistakes = Vec::new();
        for (key, text) in values {
            if let Err(problem) = config.set(key, text.trim()) {
                mistakes.push((key.clone(), problem));
            }
        }
        let mut mistake = |key: &str, problem: String| mistakes.push((key.to_owned(), problem));
        if config.endpoints.is_empty() {
            let needed_bytes = MIN_NODE_BYTES * config.nodes;
            if budget_bytes < needed_bytes {
                mistake("memory", too_small(budget_bytes, needed_bytes));
            }
            if nodes_known && config.replication_factor > config.nodes {
                mistake(
                    "replication_factor",
                    format!("expected at most the number of nodes, {}", config.nodes),
                );
            }
            for (key, given) in
                [("datacenter", config.datacenter.is_some()), ("tls_ca", config.tls_ca.is_some())]
            {
                if given {
                    mistake(key, "expected with endpoints only".to_owned());
                }
            }
        } else if config.nodes != 1 {
            mistake(
                "nodes",
                "expected not to be set: the endpoints' cluster has the nodes that it has".to_owned(),
            );
        }
        let needed = match config.consistency {
            Consistency::Two => 2,
            Consistency::Three => 3,
            _ => 1,
        };
        if config.replication_factor < needed {
            mistake("consistency", format!("expected a replication_factor of {needed} or more for it"));
        }
        if mistakes.is_empty() { Ok(config) } else { Err(mistakes) }
    }

    fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        match key {
            "nodes" => self.nodes = within(text, 1, NODES_MAX)?,
            "replication_factor" => self.replication_factor = within(text, 1, NODES_MAX)?,
            "consistency" => self.consistency = one_of(text, CONSISTENCIES)?,
            "compression" => self.compression = one_of(text, COMPRESSIONS)?,
            "chunk_kib" => {
                self.chunk_kib = within(text, 4, KIB)?;
                if !self.chunk_kib.is_power_of_two() {
                    return Err("expected a power of two".to_owned());
                }
            }
            "compaction" => self.compaction = one_of(text, COMPACTIONS)?,
            "heap_share" => self.heap_share = share(text, &HEAP_SHARES, "0.25 or 25 %")?,
            "commitlog_sync" => self.commitlog_sync = one_of(text, COMMITLOG_SYNCS)?,
            "concurrent_reads" => self.concurrent_reads = within(text, 2, KIB)?,
            "concurrent_writes" => self.concurrent_writes = within(text, 2, KIB)?,
            "table_layout" => self.table_layout = one_of(text, TABLE_LAYOUTS)?,
            "settle" => self.settle = one_of(text, SETTLES)?,
            "endpoints" => self.endpoints = endpoints(text)?,
            "datacenter" => self.datacenter = Some(datacenter(text)?),
            "tls_ca" if text.is_empty() => return Err("expected the path of a file".to_owned()),
            "tls_ca" => self.tls_ca = Some(PathBuf::from(text)),
            _ => return Err(expected_one_of(SETTINGS)),
        }
        Ok(())
    }

    /// How each node's part of the budget is divided.
    pub fn division(&self) -> Division {
        Division::of(self.budget_bytes / self.nodes, self.heap_share)
    }

    /// For the record: the settings, and the sizes that follow from them.
    pub fn applied(&self) -> BTreeMap<String, String> {
        let text = |value: &dyn Display| value.to_string();
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
        let mut applied = vec![
            ("nodes", text(&self.nodes)),
            ("replication_factor", text(&self.replication_factor)),
            ("consistency", name_of(self.consistency, CONSISTENCIES)),
            ("compression", name_of(self.compression, COMPRESSIONS)),
            ("chunk_kib", text(&self.chunk_kib)),
            ("compaction", name_of(self.compaction, COMPACTIONS)),
            ("heap_share", text(&self.heap_share)),
            ("commitlog_sync", name_of(self.commitlog_sync, COMMITLOG_SYNCS)),
            ("concurrent_reads", text(&self.concurrent_reads)),
            ("concurrent_writes", text(&self.concurrent_writes)),
            ("table_layout", name_of(self.table_layout, TABLE_LAYOUTS)),
            ("settle", name_of(self.settle, SETTLES)),
            ("endpoints", or_none((!self.endpoints.is_empty()).then(|| self.endpoints.join(", ")))),
            ("datacenter", or_none(self.datacenter.clone())),
            ("tls_ca", or_none(self.tls_ca.as_ref().map(|path| path.display().to_string()))),
        ];
        if self.endpoints.is_empty() {
            let division = self.division();
            applied.extend([
                ("heap_bytes", text(&division.heap_bytes)),
                ("direct_bytes", text(&division.direct_bytes)),
                ("file_buffer_bytes", text(&division.file_buffer_bytes)),
                ("memtable_bytes", text(&division.memtable_bytes)),
                ("commitlog_segment_bytes", text(&division.commitlog_segment_bytes)),
            ]);
        }
        applied.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            budget_bytes: 0,
            nodes: 1,
            replication_factor: 1,
            consistency: Consistency::One,
            compression: Compression::Lz4,
            chunk_kib: 16,
            compaction: Compaction::Stcs,
            heap_share: 0.25,
            commitlog_sync: CommitlogSync::Periodic,
            concurrent_reads: 32,
            concurrent_writes: 32,
            table_layout: TableLayout::Fields,
            settle: Settle::Pending,
            endpoints: Vec::new(),
            datacenter: None,
            tls_ca: None,
        }
    }
}

/// `ADDRESS:PORT`, one or several with commas, by number or by name.
fn endpoints(text: &str) -> Result<Vec<String>, String> {
    let is_endpoint = |word: &str| {
        let named = word.rsplit_once(':').is_some_and(|(host, port)| {
            let letters = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
            !host.is_empty() && host.chars().all(letters) && port.parse::<u16>().is_ok_and(|port| port != 0)
        });
        named || word.parse::<SocketAddr>().is_ok()
    };
    let words: Vec<String> = text.split(',').map(|word| word.trim().to_owned()).collect();
    match words.iter().find(|word| !is_endpoint(word)) {
        Some(wrong) => Err(format!("'{wrong}' is no endpoint: expected ADDRESS:PORT, such as 10.0.0.1:9042")),
        None => Ok(words),
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
    fn every_setting_has_a_value_that_is_taken_and_recorded() {
        assert_eq!(STARTED.len() + RUNNING.len(), SETTINGS.len());
        for pairs in [STARTED, RUNNING] {
            let applied = Config::resolve(&values(pairs), Some(3 << 30)).unwrap().applied();
            for (name, value) in pairs {
                assert_eq!(applied[*name], value.replace("30 %", "0.3").replace("1_024", "1024"));
            }
        }
        let applied = Config::resolve(&BTreeMap::new(), Some(1 << 30)).unwrap().applied();
        for (name, _) in SETTINGS {
            assert!(applied.contains_key(*name), "{name}");
        }
    }

    #[test]
    fn every_mistake_is_listed_with_what_was_expected() {
        let given = values(&[
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
        let mistakes = Config::resolve(&given, Some(MIB)).unwrap_err();
        let mut named: Vec<&str> = mistakes.iter().map(|(key, _)| key.as_str()).collect();
        named.sort_unstable();
        let mut expected: Vec<&str> = given.keys().map(String::as_str).chain(["memory"]).collect();
        expected.sort_unstable();
        assert_eq!(named, expected);
        for (key, problem) in &mistakes {
            assert!(problem.contains("expected"), "{key}: {problem}");
        }
    }

    #[test]
    fn what_goes_with_endpoints_only_is_refused_without() {
        let mistakes =
            Config::resolve(&values(&[("tls_ca", "x"), ("datacenter", "y")]), Some(1 << 30)).unwrap_err();
        assert_eq!(mistakes.len(), 2);
        let both = values(&[("endpoints", "[::1]:9042"), ("nodes", "2")]);
        assert_eq!(Config::resolve(&both, Some(0)).unwrap_err()[0].0, "nodes");
    }

    #[test]
    fn copies_are_judged_once_the_nodes_are_known() {
        let twice = values(&[("replication_factor", "2")]);
        assert!(Config::resolve(&twice, None).is_ok());
        assert!(Config::resolve(&twice, Some(1 << 30)).is_err());
        let alone = values(&[("replication_factor", "2"), ("nodes", "1")]);
        assert!(Config::resolve(&alone, None).is_err());
    }
}
