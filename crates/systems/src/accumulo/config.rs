//! The settings that a study may give. `docs.md` explains them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::memory::{AccumuloMemoryLayout, DataShares, helpers, min_bytes};
use crate::hdfs::ServerHeaps;
use crate::memory_plan::MemoryPlan;
use crate::setting::{
    BOOLEAN, FractionSetting, IntegerSetting, OneOf, OptionalSetting, SettingKind, SettingMistakes,
    TextListSetting, TextSetting, settings, too_small,
};

/// Servers beyond this are more than one host runs.
const SERVERS: IntegerSetting = IntegerSetting(1..=32);
const TABLETS_PER_SERVER: u64 = 4;
/// The extra bytes of a read of a data block: to whole checksums before, and the rest of the last entry.
const BLOCK_EDGES_BYTES: u64 = 4096;
const DATA_SHARE: FractionSetting = FractionSetting(0.0..=0.6);

settings! {
    /// Every setting with its value in force.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct AccumuloConfig {
        "nodes" => nodes: u64 = 1, SERVERS, "tablet servers, each with its part of the memory: 1";
        "datanodes" => given_datanodes: Option<u64> = None, OptionalSetting(SERVERS),
            "DataNodes of the HDFS below: the larger of nodes and replication";
        "replication" => replication: u64 = 1, SERVERS, "copies of each block of HDFS: 1";
        "block_mib" => block_mib: u64 = 128, IntegerSetting(1..=1024), "block size of HDFS in MiB, 1 to 1024: 128";
        "short_circuit_reads" => short_circuit_reads: bool = false, BOOLEAN,
            "true or false (default): tablet servers read the files of HDFS's blocks themselves, past the DataNodes";
        "data_block_kib" => data_block_kib: u64 = 100, IntegerSetting(1..=16_384),
            "size of a data block of a file in KiB, which a read takes as a whole, 1 to 16384: 100";
        "tablets" => given_tablets: Option<u64> = None, OptionalSetting(IntegerSetting(1..=4096)),
            "that the table is made with: 4 for each tablet server";
        "split_mib" => split_mib: u64 = 1024, IntegerSetting(1..=1 << 20),
            "size of a tablet in MiB that splits it: 1024";
        "durability" => durability: &'static str = "sync",
            OneOf(&[("sync", "sync"), ("flush", "flush"), ("log", "log"), ("none", "none")]),
            "what is done to the log before a write is answered: sync (default), flush, log or none";
        "compression" => compression: &'static str = "gz",
            OneOf(&[("gz", "gz"), ("snappy", "snappy"), ("none", "none")]),
            "of files: gz (default), snappy or none";
        "map_share" => map_share: f64 = 0.2, DATA_SHARE,
            "part of the memory that is left for data, for new writes: 0.2";
        "data_cache_share" => data_cache_share: f64 = 0.25, DATA_SHARE,
            "part of it for the cache of data blocks: 0.25";
        "index_cache_share" => index_cache_share: f64 = 0.05, DATA_SHARE,
            "part of it for the cache of index blocks: 0.05";
        "native_maps" => native_maps: Option<PathBuf> = None, NativeMaps,
            "path of Accumulo's native library (libaccumulo.so), for writes outside of the Java heap: none";
        "scan_threads" => scan_threads: u64 = 16, IntegerSetting(1..=1024), "reads at once in a tablet server: 16";
        "compaction_threads" => compaction_threads: u64 = 1, IntegerSetting(1..=64),
            "major compactions at once in a tablet server, for each of three sizes: 1";
        "session_timeout_s" => session_timeout_s: u64 = 30, IntegerSetting(4..=300),
            "silence after which a tablet server counts as dead, in seconds: 30";
        // When the client answers.
        "writes" => writes: &'static str = "flushed", OneOf(&[("flushed", "flushed"), ("batched", "batched")]),
            "flushed (default: answered when they are in the log) or batched (when the client has taken them)";
        "settle" => settle: AccumuloSettle = AccumuloSettle::Pending,
            OneOf(&[("pending", AccumuloSettle::Pending), ("major", AccumuloSettle::Major)]),
            "pending (default: write out, then wait for compactions) or major (compact the table to the end)";
        "zookeepers" => zookeepers: Vec<String> = Vec::new(), TextListSetting(check_zookeeper),
            "HOST:PORT, ... of an instance that runs already, in place of one that is started: none";
        "instance" => instance: Option<String> = None, OptionalSetting(TextSetting(instance)),
            "name of the instance at zookeepers: none";
    }
}

/// Settings with a meaning for an external instance.
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
pub(crate) enum AccumuloSettle {
    Pending,
    Major,
}

/// How an instance is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExistingAccumulo {
    pub zookeepers: Vec<String>,
    pub instance: String,
}

impl AccumuloConfig {
    /// The configuration of `values` under a budget of all processes together, or every mistake. Without a budget it is
    /// too early to judge that. `hdfs_bytes` is what the HDFS of so many DataNodes takes.
    pub(crate) fn resolve(
        values: &BTreeMap<String, String>,
        budget_bytes: Option<u64>,
        hdfs_bytes: impl Fn(u64) -> u64,
    ) -> Result<AccumuloConfig, SettingMistakes> {
        let (config, mut mistakes) = AccumuloConfig::read(values, budget_bytes.unwrap_or(u64::MAX));
        let mut mistake = |key: &str, problem: String| mistakes.push((key.to_owned(), problem));
        // A wrong value of either has its own mistake already, and still means an instance that runs.
        let place = ["zookeepers", "instance"];
        if place.iter().any(|&key| values.contains_key(key)) {
            for key in place.into_iter().filter(|&key| !values.contains_key(key)) {
                mistake(key, "expected together with zookeepers and instance, or none of them".to_owned());
            }
            let is_setting = |key: &str| SETTINGS.iter().any(|&(name, _)| name == key);
            for key in values.keys().filter(|key| is_setting(key) && !OF_RUNNING.contains(&key.as_str())) {
                mistake(key, "expected not to be set: the instance at zookeepers has its own".to_owned());
            }
        } else {
            let datanodes = config.datanodes();
            if config.replication > datanodes {
                mistake("replication", format!("expected at most the number of datanodes, {datanodes}"));
            }
            if config.map_share + config.data_cache_share + config.index_cache_share > 0.9 {
                mistake(
                    "map_share",
                    "expected no more than 0.9 for map_share, data_cache_share and index_cache_share together"
                        .to_owned(),
                );
            }
            let min_bytes = min_bytes(config.nodes, hdfs_bytes(datanodes));
            if config.budget_bytes < min_bytes {
                let small = too_small(config.budget_bytes, min_bytes);
                mistake(
                    "memory",
                    format!("{small} for {} tablet servers and {datanodes} DataNodes", config.nodes),
                );
            }
        }
        if mistakes.is_empty() { Ok(config) } else { Err(mistakes) }
    }

    /// The instance that runs already; `None` where one is to be started.
    pub(crate) fn existing(&self) -> Option<ExistingAccumulo> {
        let instance = self.instance.clone()?;
        Some(ExistingAccumulo { zookeepers: self.zookeepers.clone(), instance })
    }

    pub(crate) fn datanodes(&self) -> u64 {
        self.given_datanodes.unwrap_or(self.nodes.max(self.replication))
    }

    pub(crate) fn tablets(&self) -> u64 {
        self.given_tablets.unwrap_or(self.nodes * TABLETS_PER_SERVER)
    }

    /// How much of a file of HDFS is read at once where tablet servers read it themselves: a data block. It begins
    /// anywhere, and ends behind the entry that fills it.
    pub(crate) fn short_circuit_bytes(&self) -> Option<u64> {
        self.short_circuit_reads.then_some((self.data_block_kib << 10) + BLOCK_EDGES_BYTES)
    }

    /// How the budget is divided over an HDFS that takes `hdfs_bytes`.
    pub(crate) fn division(&self, hdfs_bytes: u64) -> AccumuloMemoryLayout {
        let shares = DataShares {
            map: self.map_share,
            data_cache: self.data_cache_share,
            index_cache: self.index_cache_share,
        };
        AccumuloMemoryLayout::new(
            self.budget_bytes,
            self.nodes,
            hdfs_bytes,
            shares,
            self.native_maps.is_some(),
        )
    }

    /// How the budget is used on an HDFS of these heaps.
    pub(super) fn memory(&self, heaps: &ServerHeaps) -> MemoryPlan {
        let datanodes = self.datanodes();
        let division = self.division(heaps.resident_bytes(datanodes));
        let mut processes = vec![division.tablet_server(self.nodes, self.native_maps.is_some())];
        processes.extend(helpers());
        processes.extend(heaps.processes(datanodes));
        MemoryPlan { budget_bytes: self.budget_bytes, processes }
    }

    /// The table's properties, by Accumulo's names.
    pub(crate) fn table_properties(&self) -> BTreeMap<String, String> {
        [
            ("table.durability", self.durability.to_owned()),
            ("table.file.compress.type", self.compression.to_owned()),
            ("table.file.compress.blocksize", format!("{}K", self.data_block_kib)),
            ("table.split.threshold", format!("{}M", self.split_mib)),
            ("table.cache.block.enable", (self.data_cache_share > 0.0).to_string()),
            ("table.cache.index.enable", "true".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// For the record: the settings, and the sizes that follow from them.
    pub(crate) fn applied(&self, hdfs_bytes: u64) -> BTreeMap<String, String> {
        let mut applied = self.recorded();
        let number = |(name, number): (&str, u64)| (name.to_owned(), number.to_string());
        applied.extend([("tablets", self.tablets())].map(number));
        if self.existing().is_some() {
            applied.retain(|name, _| OF_RUNNING.contains(&name.as_str()));
            return applied;
        }
        let division = self.division(hdfs_bytes);
        let numbers = [
            ("datanodes", self.datanodes()),
            ("heap_bytes", division.heap_bytes),
            ("map_bytes", division.map_bytes),
            ("data_cache_bytes", division.data_cache_bytes),
            ("index_cache_bytes", division.index_cache_bytes),
            ("page_cache_bytes", division.page_cache_bytes),
        ];
        applied.extend(numbers.map(number));
        applied
    }
}

/// The path of Accumulo's native library, or `none`. Java separates such paths by colons.
struct NativeMaps;

impl SettingKind for NativeMaps {
    type Value = Option<PathBuf>;

    fn read(&self, text: &str) -> Result<Option<PathBuf>, String> {
        match text {
            "none" => Ok(None),
            _ if text.starts_with('/') && !text.contains(':') => Ok(Some(PathBuf::from(text))),
            _ => Err("expected none, or the full path of the library or of its directory, without a colon"
                .to_owned()),
        }
    }

    fn show(&self, value: &Option<PathBuf>) -> String {
        value.as_ref().map_or_else(|| "none".to_owned(), |path| path.display().to_string())
    }
}

/// `HOST:PORT`
fn check_zookeeper(word: &str) -> Result<(), String> {
    let is_server = word.rsplit_once(':').is_some_and(|(host, port)| {
        let letters = |letter: char| letter.is_ascii_alphanumeric() || ".-_[]:".contains(letter);
        !host.is_empty() && host.chars().all(letters) && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    match is_server {
        true => Ok(()),
        false => Err(format!("'{word}' is not a server: expected HOST:PORT, such as 10.0.0.1:2181")),
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

    fn resolve(
        pairs: &[(&str, &str)],
        budget_bytes: Option<u64>,
    ) -> Result<AccumuloConfig, Vec<(String, String)>> {
        AccumuloConfig::resolve(&values(pairs), budget_bytes, hdfs_bytes)
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
    fn settings_are_accepted_and_recorded() {
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
    fn mistakes_are_listed_with_expected_values() {
        let settings = values(&[
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
        let mistakes = AccumuloConfig::resolve(&settings, Some(MIB), hdfs_bytes).unwrap_err();
        let mut named: Vec<&str> = mistakes.iter().map(|(key, _)| key.as_str()).collect();
        named.sort_unstable();
        let mut expected: Vec<&str> = settings
            .keys()
            .map(String::as_str)
            // It can't be compared with `datanodes`, which is no number here.
            .filter(|key| *key != "replication")
            .chain(["memory"])
            .collect();
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
    fn derived_settings_follow_others() {
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
