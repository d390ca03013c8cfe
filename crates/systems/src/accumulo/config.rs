//! The settings that a study may give. What they mean is in `docs.md`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;

use super::memory::{Division, Shares, least_bytes};
use crate::setting::{expected_one_of, name_of, one_of, share, too_small, within};

/// More than one host runs.
const SERVERS_MAX: u64 = 32;
const TABLETS_MAX: u64 = 4096;
const TABLETS_PER_SERVER: u64 = 4;
/// What a read of a data block takes beside it: to whole checksums before, and the rest of the last entry.
const BLOCK_EDGES_BYTES: u64 = 4096;
const SHARES: std::ops::RangeInclusive<f64> = 0.0..=0.6;

/// What a study may set, as [`crate::system::Capabilities`] gives it.
pub const SETTINGS: &[(&str, &str)] = &[
    ("nodes", "tablet servers, each with its part of the memory: 1"),
    ("datanodes", "DataNodes of the HDFS below: the larger of nodes and replication"),
    ("replication", "copies of each block of HDFS: 1"),
    ("block_mib", "block size of HDFS in MiB, 1 to 1024: 128"),
    (
        "short_circuit_reads",
        "true or false (default): tablet servers read the files of HDFS's blocks themselves, past the DataNodes",
    ),
    (
        "data_block_kib",
        "size of a data block of a file in KiB, which a read takes as a whole, 1 to 16384: 100",
    ),
    ("tablets", "that the table is made with: 4 for each tablet server"),
    ("split_mib", "size of a tablet in MiB that splits it: 1024"),
    ("durability", "what is done to the log before a write is answered: sync (default), flush, log or none"),
    ("compression", "of files: gz (default), snappy or none"),
    ("map_share", "part of the memory that is left for data, for new writes: 0.2"),
    ("data_cache_share", "part of it for the cache of data blocks: 0.25"),
    ("index_cache_share", "part of it for the cache of index blocks: 0.05"),
    (
        "native_maps",
        "path of Accumulo's native library (libaccumulo.so), for writes outside of the Java heap: none",
    ),
    ("scan_threads", "reads at once in a tablet server: 16"),
    ("compaction_threads", "major compactions at once in a tablet server, for each of three sizes: 1"),
    ("session_timeout_s", "silence after which a tablet server counts as dead, in seconds: 30"),
    (
        "writes",
        "flushed (default: answered when they are in the log) or batched (when the client has taken them)",
    ),
    (
        "settle",
        "pending (default: write out, then wait for compactions) or major (compact the table to the end)",
    ),
    ("zookeepers", "HOST:PORT, ... of an instance that runs already, in place of one that is started: none"),
    ("instance", "name of the instance at zookeepers: none"),
];

/// What has a meaning for an instance that runs already.
const OF_RUNNING: &[&str] = &[
    "zookeepers",
    "instance",
    "data_block_kib",
    "tablets",
    "split_mib",
    "durability",
    "compression",
    "writes",
    "settle",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    Pending,
    Major,
}

/// An instance that somebody else started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Existing {
    pub zookeepers: Vec<String>,
    pub instance: String,
}

/// Every setting with its value in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub budget_bytes: u64,
    pub nodes: u64,
    pub given_datanodes: Option<u64>,
    pub replication: u64,
    pub block_mib: u64,
    pub short_circuit_reads: bool,
    pub data_block_kib: u64,
    pub given_tablets: Option<u64>,
    pub split_mib: u64,
    pub durability: &'static str,
    pub compression: &'static str,
    /// When the client answers.
    pub writes: &'static str,
    pub shares: Shares,
    pub native_maps: Option<PathBuf>,
    pub scan_threads: u64,
    pub compaction_threads: u64,
    pub session_timeout_s: u64,
    pub settle: Settle,
    /// `None`: an instance is started.
    pub existing: Option<Existing>,
}

const DURABILITIES: &[(&str, &str)] =
    &[("sync", "sync"), ("flush", "flush"), ("log", "log"), ("none", "none")];
const COMPRESSIONS: &[(&str, &str)] = &[("gz", "gz"), ("snappy", "snappy"), ("none", "none")];
const BOOLEANS: &[(&str, bool)] = &[("true", true), ("false", false)];
const WRITES: &[(&str, &str)] = &[("flushed", "flushed"), ("batched", "batched")];
const SETTLES: &[(&str, Settle)] = &[("pending", Settle::Pending), ("major", Settle::Major)];

impl Config {
    /// The configuration of `values` under a budget of all processes together, or every mistake: (setting, what was
    /// expected). Without a budget it is too early to judge that. `hdfs_bytes` is what the HDFS of so many DataNodes takes.
    pub fn resolve(
        values: &BTreeMap<String, String>,
        budget_bytes: Option<u64>,
        hdfs_bytes: impl Fn(u64) -> u64,
    ) -> Result<Config, Vec<(String, String)>> {
        let mut config = Config { budget_bytes: budget_bytes.unwrap_or(u64::MAX), ..Config::default() };
        let mut mistakes = Vec::new();
        for (key, text) in values {
            if let Err(problem) = config.set(key, text.trim()) {
                mistakes.push((key.clone(), problem));
            }
        }
        let mut mistake = |key: &str, problem: String| mistakes.push((key.to_owned(), problem));
        match &config.existing {
            Some(existing) => {
                for (key, missing) in [
                    ("zookeepers", existing.zookeepers.is_empty()),
                    ("instance", existing.instance.is_empty()),
                ] {
                    if missing && !values.contains_key(key) {
                        mistake(
                            key,
                            "expected together with zookeepers and instance, or none of them".to_owned(),
                        );
                    }
                }
                let known = |key: &str| SETTINGS.iter().any(|&(name, _)| name == key);
                for key in values.keys().filter(|key| known(key) && !OF_RUNNING.contains(&key.as_str())) {
                    mistake(key, "expected not to be set: the instance at zookeepers has its own".to_owned());
                }
            }
            None => {
                if config.replication > config.datanodes() {
                    let most = config.datanodes();
                    mistake("replication", format!("expected at most the number of datanodes, {most}"));
                }
                if config.shares.map + config.shares.data_cache + config.shares.index_cache > 0.9 {
                    mistake(
                        "map_share",
                        "expected no more than 0.9 for map_share, data_cache_share and index_cache_share together"
                            .to_owned(),
                    );
                }
                let least = least_bytes(config.nodes, hdfs_bytes(config.datanodes()));
                if config.budget_bytes < least {
                    let small = too_small(config.budget_bytes, least);
                    let datanodes = config.datanodes();
                    mistake(
                        "memory",
                        format!("{small} for {} tablet servers and {datanodes} DataNodes", config.nodes),
                    );
                }
            }
        }
        if mistakes.is_empty() { Ok(config) } else { Err(mistakes) }
    }

    fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        match key {
            "nodes" => self.nodes = within(text, 1, SERVERS_MAX)?,
            "datanodes" => self.given_datanodes = Some(within(text, 1, SERVERS_MAX)?),
            "replication" => self.replication = within(text, 1, SERVERS_MAX)?,
            "block_mib" => self.block_mib = within(text, 1, 1024)?,
            "short_circuit_reads" => self.short_circuit_reads = one_of(text, BOOLEANS)?,
            "data_block_kib" => self.data_block_kib = within(text, 1, 16_384)?,
            "tablets" => self.given_tablets = Some(within(text, 1, TABLETS_MAX)?),
            "split_mib" => self.split_mib = within(text, 1, 1 << 20)?,
            "durability" => self.durability = one_of(text, DURABILITIES)?,
            "compression" => self.compression = one_of(text, COMPRESSIONS)?,
            "map_share" => self.shares.map = share(text, &SHARES, "0.25 or 25 %")?,
            "data_cache_share" => self.shares.data_cache = share(text, &SHARES, "0.25 or 25 %")?,
            "index_cache_share" => self.shares.index_cache = share(text, &SHARES, "0.25 or 25 %")?,
            "native_maps" => self.native_maps = native_maps(text)?,
            "scan_threads" => self.scan_threads = within(text, 1, 1024)?,
            "compaction_threads" => self.compaction_threads = within(text, 1, 64)?,
            "session_timeout_s" => self.session_timeout_s = within(text, 4, 300)?,
            "writes" => self.writes = one_of(text, WRITES)?,
            "settle" => self.settle = one_of(text, SETTLES)?,
            "zookeepers" => self.existing.get_or_insert_default().zookeepers = zookeepers(text)?,
            "instance" => self.existing.get_or_insert_default().instance = instance(text)?,
            _ => return Err(expected_one_of(SETTINGS)),
        }
        Ok(())
    }

    pub fn datanodes(&self) -> u64 {
        self.given_datanodes.unwrap_or(self.nodes.max(self.replication))
    }

    pub fn tablets(&self) -> u64 {
        self.given_tablets.unwrap_or(self.nodes * TABLETS_PER_SERVER)
    }

    /// How much of a file of HDFS is read at once where tablet servers read it themselves: a data block. It begins anywhere, and
    /// ends behind the entry that fills it.
    pub fn short_circuit_bytes(&self) -> Option<u64> {
        self.short_circuit_reads.then_some((self.data_block_kib << 10) + BLOCK_EDGES_BYTES)
    }

    /// How the budget is divided over an HDFS that takes `hdfs_bytes`.
    pub fn division(&self, hdfs_bytes: u64) -> Division {
        Division::of(self.budget_bytes, self.nodes, hdfs_bytes, self.shares, self.native_maps.is_some())
    }

    /// What the table shall have, by Accumulo's names.
    pub fn table_properties(&self) -> BTreeMap<String, String> {
        [
            ("table.durability", self.durability.to_owned()),
            ("table.file.compress.type", self.compression.to_owned()),
            ("table.file.compress.blocksize", format!("{}K", self.data_block_kib)),
            ("table.split.threshold", format!("{}M", self.split_mib)),
            ("table.cache.block.enable", (self.shares.data_cache > 0.0).to_string()),
            ("table.cache.index.enable", "true".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// For the record: the settings, and the sizes that follow from them.
    pub fn applied(&self, hdfs_bytes: u64) -> BTreeMap<String, String> {
        let text = |value: &dyn Display| value.to_string();
        let existing = self.existing.clone().unwrap_or_default();
        let or_none = |value: String| if value.is_empty() { "none".to_owned() } else { value };
        let mut applied = vec![
            ("data_block_kib", text(&self.data_block_kib)),
            ("tablets", text(&self.tablets())),
            ("split_mib", text(&self.split_mib)),
            ("durability", text(&self.durability)),
            ("compression", text(&self.compression)),
            ("writes", text(&self.writes)),
            ("settle", name_of(self.settle, SETTLES)),
            ("zookeepers", or_none(existing.zookeepers.join(", "))),
            ("instance", or_none(existing.instance)),
        ];
        if self.existing.is_none() {
            let division = self.division(hdfs_bytes);
            let native = self.native_maps.as_ref().map(|path| path.display().to_string());
            applied.extend([
                ("nodes", text(&self.nodes)),
                ("datanodes", text(&self.datanodes())),
                ("replication", text(&self.replication)),
                ("block_mib", text(&self.block_mib)),
                ("short_circuit_reads", text(&self.short_circuit_reads)),
                ("map_share", text(&self.shares.map)),
                ("data_cache_share", text(&self.shares.data_cache)),
                ("index_cache_share", text(&self.shares.index_cache)),
                ("native_maps", or_none(native.unwrap_or_default())),
                ("scan_threads", text(&self.scan_threads)),
                ("compaction_threads", text(&self.compaction_threads)),
                ("session_timeout_s", text(&self.session_timeout_s)),
                ("heap_bytes", text(&division.heap_bytes)),
                ("map_bytes", text(&division.map_bytes)),
                ("data_cache_bytes", text(&division.data_cache_bytes)),
                ("index_cache_bytes", text(&division.index_cache_bytes)),
                ("page_cache_bytes", text(&division.page_cache_bytes)),
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
            given_datanodes: None,
            replication: 1,
            block_mib: 128,
            short_circuit_reads: false,
            data_block_kib: 100,
            given_tablets: None,
            split_mib: 1024,
            durability: "sync",
            compression: "gz",
            writes: "flushed",
            shares: Shares::default(),
            native_maps: None,
            scan_threads: 16,
            compaction_threads: 1,
            session_timeout_s: 30,
            settle: Settle::Pending,
            existing: None,
        }
    }
}

fn native_maps(text: &str) -> Result<Option<PathBuf>, String> {
    match text {
        "none" => Ok(None),
        _ if text.starts_with('/') && !text.contains(':') => Ok(Some(PathBuf::from(text))),
        _ => {
            Err("expected none, or the full path of the library or of its directory, without a colon"
                .to_owned())
        }
    }
}

/// `HOST:PORT`, one or several with commas.
fn zookeepers(text: &str) -> Result<Vec<String>, String> {
    let is_server = |word: &str| {
        word.rsplit_once(':').is_some_and(|(host, port)| {
            let letters = |letter: char| letter.is_ascii_alphanumeric() || ".-_[]:".contains(letter);
            !host.is_empty() && host.chars().all(letters) && port.parse::<u16>().is_ok_and(|port| port != 0)
        })
    };
    let words: Vec<String> = text.split(',').map(|word| word.trim().to_owned()).collect();
    match words.iter().find(|word| !is_server(word)) {
        Some(wrong) => Err(format!("'{wrong}' is no server: expected HOST:PORT, such as 10.0.0.1:2181")),
        None => Ok(words),
    }
}

fn instance(text: &str) -> Result<String, String> {
    match !text.is_empty() && !text.contains(|letter: char| letter == '/' || letter.is_control()) {
        true => Ok(text.to_owned()),
        false => Err("expected the name of an instance".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::MIB;
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn resolve(pairs: &[(&str, &str)], budget_bytes: Option<u64>) -> Result<Config, Vec<(String, String)>> {
        Config::resolve(&values(pairs), budget_bytes, hdfs_bytes)
    }

    fn hdfs_bytes(datanodes: u64) -> u64 {
        (1 + datanodes) * 130 * MIB
    }

    const STARTED: &[(&str, &str)] = &[
        ("nodes", "2"),
        ("datanodes", "3"),
        ("replication", "3"),
        ("block_mib", "8"),
        ("short_circuit_reads", "true"),
        ("data_block_kib", "32"),
        ("tablets", "24"),
        ("split_mib", "64"),
        ("durability", "flush"),
        ("compression", "snappy"),
        ("map_share", "0.3"),
        ("data_cache_share", "20 %"),
        ("index_cache_share", "0.1"),
        ("native_maps", "/opt/accumulo/lib/native"),
        ("scan_threads", "1_000"),
        ("compaction_threads", "2"),
        ("session_timeout_s", "10"),
        ("writes", "batched"),
        ("settle", "major"),
    ];
    const RUNNING: &[(&str, &str)] =
        &[("zookeepers", "10.0.0.1:2181, zk-2.example:2181"), ("instance", "prod")];

    #[test]
    fn every_setting_has_a_value_that_is_taken_and_recorded() {
        assert_eq!(STARTED.len() + RUNNING.len(), SETTINGS.len());
        for pairs in [STARTED, RUNNING] {
            let applied = resolve(pairs, Some(4 << 30)).unwrap().applied(hdfs_bytes(3));
            for (name, value) in pairs {
                assert_eq!(applied[*name], value.replace("20 %", "0.2").replace("1_000", "1000"));
            }
        }
        let applied = resolve(&[], Some(2 << 30)).unwrap().applied(hdfs_bytes(1));
        for (name, _) in SETTINGS {
            assert!(applied.contains_key(*name), "{name}");
        }
    }

    #[test]
    fn every_mistake_is_listed_with_what_was_expected() {
        let given = values(&[
            ("nodes", "0"),
            ("datanodes", "x"),
            ("replication", "2"),
            ("block_mib", "0"),
            ("short_circuit_reads", "yes"),
            ("data_block_kib", "0"),
            ("tablets", "0"),
            ("split_mib", "-1"),
            ("durability", "fsync"),
            ("compression", "lz5"),
            ("map_share", "0.7"),
            ("data_cache_share", "NaN"),
            ("index_cache_share", ""),
            ("native_maps", "lib/native"),
            ("scan_threads", "0"),
            ("compaction_threads", "65"),
            ("session_timeout_s", "1"),
            ("writes", "later"),
            ("settle", "now"),
            ("servers", "3"),
        ]);
        let mistakes = Config::resolve(&given, Some(MIB), hdfs_bytes).unwrap_err();
        let mut named: Vec<&str> = mistakes.iter().map(|(key, _)| key.as_str()).collect();
        named.sort_unstable();
        let mut expected: Vec<&str> =
            given.keys().map(String::as_str).filter(|key| *key != "replication").chain(["memory"]).collect();
        expected.sort_unstable();
        assert_eq!(named, expected);
        for (key, problem) in &mistakes {
            assert!(problem.contains("expected"), "{key}: {problem}");
        }
        for (pairs, key) in [
            (&[("replication", "2"), ("datanodes", "1")][..], "replication"),
            (&[("map_share", "0.5"), ("data_cache_share", "0.45")], "map_share"),
            (&[("zookeepers", "10.0.0.1:2181")], "instance"),
            (&[("instance", "prod")], "zookeepers"),
            (&[("zookeepers", "10.0.0.1"), ("instance", "prod")], "zookeepers"),
            (&[("zookeepers", "a:1"), ("instance", "a/b")], "instance"),
            (&[("zookeepers", "a:1"), ("instance", "prod"), ("nodes", "2")], "nodes"),
        ] {
            let mistakes = resolve(pairs, None).unwrap_err();
            let named: Vec<&str> = mistakes.iter().map(|(key, _)| key.as_str()).collect();
            assert_eq!(named, [key], "{pairs:?}");
        }
    }

    #[test]
    fn what_follows_from_other_settings() {
        let config = resolve(&[("nodes", "2"), ("replication", "3")], None).unwrap();
        assert_eq!((config.datanodes(), config.tablets()), (3, 8));
        let properties = resolve(&[("data_cache_share", "0")], None).unwrap().table_properties();
        assert_eq!(properties["table.cache.block.enable"], "false");
        assert_eq!(properties["table.durability"], "sync");
        assert_eq!(properties["table.file.compress.blocksize"], "100K");
        assert_eq!(config.short_circuit_bytes(), None, "as HDFS is shipped");
        let short = resolve(&[("short_circuit_reads", "true"), ("data_block_kib", "32")], None).unwrap();
        assert_eq!(short.short_circuit_bytes(), Some(36 << 10));
    }
}
