//! The settings that a study may give. What they mean is in `docs.md`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::memory::{Division, MIB};
use crate::hdfs::{StorageType, VolumeChoosing};
use crate::setting::{expected_one_of, name_of, one_of, too_small, within};

const DATANODES_MAX: u64 = 20;
const CONTAINERS_MAX: u64 = 256;
const GIB: u64 = 1 << 30;
/// As shipped.
const BALANCED_SPACE_BYTES: u64 = 10 * GIB;

/// What a study may set, as [`crate::system::Capabilities`] gives it.
pub const SETTINGS: &[(&str, &str)] = &[
    ("datanodes", "DataNodes, each with a directory on every data directory: 3"),
    (
        "replication",
        "copies of what teragen writes and of what wordcount reads: 3, or as many as there are DataNodes",
    ),
    ("sorted_replication", "copies of what terasort writes: 1"),
    ("block_size", "of files, such as 16 MiB: 128 MiB"),
    (
        "volume_policy",
        "how a DataNode chooses the directory of a block: round-robin (default) or available-space",
    ),
    (
        "balanced_space",
        "with available-space: directories count as equal up to this difference of free space: 10 GiB",
    ),
    (
        "storage_types",
        "what each data directory is for HDFS, in order: disk, ssd or archive; one word for all: disk",
    ),
    (
        "storage_policy",
        "which of the storage types blocks go to: hot (default: disk), one-ssd (one copy on ssd), all-ssd, warm or cold",
    ),
    (
        "sync_on_close",
        "whether a block is written out to its device when it is complete, true or false: false",
    ),
    ("containers", "tasks that run at once: 2"),
    ("slowstart", "the part of the maps that must be done before reduces start: 0.05"),
    ("sort_buffer", "of a map task, such as 64 MiB: 40 % of its heap"),
    ("sort_factor", "files that are merged at once: 10"),
    ("parallel_copies", "map outputs that a reduce fetches at once: 5"),
    ("compression_codec", "of shuffle-compressed: snappy (default) or deflate"),
    ("compiler", "of tasks: quick (default: Java's first compiler alone) or full (the second one too)"),
    ("work_directory", "in the file system, of what jobs read and write: /underlay"),
    (
        "configuration",
        "directory of the configuration of a cluster that runs already, in place of one that is started: none",
    ),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    Snappy,
    Deflate,
}

impl Codec {
    /// The class that does it.
    pub fn class(self) -> &'static str {
        match self {
            Codec::Snappy => "org.apache.hadoop.io.compress.SnappyCodec",
            Codec::Deflate => "org.apache.hadoop.io.compress.DefaultCodec",
        }
    }
}

/// HDFS's own names, in lower case and with dashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoragePolicy {
    Hot,
    OneSsd,
    AllSsd,
    Warm,
    Cold,
}

impl StoragePolicy {
    /// As HDFS calls it.
    pub fn name(self) -> &'static str {
        match self {
            StoragePolicy::Hot => "HOT",
            StoragePolicy::OneSsd => "ONE_SSD",
            StoragePolicy::AllSsd => "ALL_SSD",
            StoragePolicy::Warm => "WARM",
            StoragePolicy::Cold => "COLD",
        }
    }
}

/// Every setting with its value in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub budget_bytes: u64,
    pub datanodes: u64,
    pub replication: u64,
    pub sorted_replication: u64,
    pub block_bytes: u64,
    pub available_space: bool,
    pub balanced_space_bytes: u64,
    pub storage_types: Vec<StorageType>,
    pub storage_policy: StoragePolicy,
    pub sync_on_close: bool,
    pub containers: u64,
    pub slowstart: f64,
    pub sort_buffer_bytes: Option<u64>,
    pub sort_factor: u64,
    pub parallel_copies: u64,
    pub compression_codec: Codec,
    pub full_compiler: bool,
    pub work_directory: String,
    /// Absent: a cluster is started.
    pub configuration: Option<PathBuf>,
}

const POLICIES: &[(&str, bool)] = &[("round-robin", false), ("available-space", true)];
const TYPES: &[(&str, StorageType)] =
    &[("disk", StorageType::Disk), ("ssd", StorageType::Ssd), ("archive", StorageType::Archive)];
const STORAGE_POLICIES: &[(&str, StoragePolicy)] = &[
    ("hot", StoragePolicy::Hot),
    ("one-ssd", StoragePolicy::OneSsd),
    ("all-ssd", StoragePolicy::AllSsd),
    ("warm", StoragePolicy::Warm),
    ("cold", StoragePolicy::Cold),
];
const CODECS: &[(&str, Codec)] = &[("snappy", Codec::Snappy), ("deflate", Codec::Deflate)];
const COMPILERS: &[(&str, bool)] = &[("quick", false), ("full", true)];
const BOOLEANS: &[(&str, bool)] = &[("true", true), ("false", false)];
/// With a cluster that runs already these say what its jobs do; all others are that cluster's own affair.
const OF_JOBS: &[&str] =
    &["replication", "sorted_replication", "compression_codec", "work_directory", "configuration"];

impl Default for Config {
    fn default() -> Self {
        Config {
            budget_bytes: 0,
            datanodes: 3,
            replication: 3,
            sorted_replication: 1,
            block_bytes: 128 * MIB,
            available_space: false,
            balanced_space_bytes: BALANCED_SPACE_BYTES,
            storage_types: vec![StorageType::Disk],
            storage_policy: StoragePolicy::Hot,
            sync_on_close: false,
            containers: 2,
            slowstart: 0.05,
            sort_buffer_bytes: None,
            sort_factor: 10,
            parallel_copies: 5,
            compression_codec: Codec::Snappy,
            full_compiler: false,
            work_directory: "/underlay".to_owned(),
            configuration: None,
        }
    }
}

impl Config {
    /// The configuration of `values` under a budget of everything together, or every mistake: (setting, what was expected).
    /// Without a budget it is too early to judge that.
    pub fn resolve(
        values: &BTreeMap<String, String>,
        budget_bytes: Option<u64>,
    ) -> Result<Config, Vec<(String, String)>> {
        let mut config = Config { budget_bytes: budget_bytes.unwrap_or(u64::MAX), ..Config::default() };
        let mut mistakes = Vec::new();
        for (key, text) in values {
            if let Err(problem) = config.set(key, text.trim()) {
                mistakes.push((key.clone(), problem));
            }
        }
        if !values.contains_key("replication") {
            config.replication = config.replication.min(config.datanodes);
        }
        let mut mistake = |key: &str, problem: String| mistakes.push((key.to_owned(), problem));
        if config.configuration.is_some() {
            for key in values.keys().filter(|key| SETTINGS.iter().any(|(name, _)| name == key)) {
                if !OF_JOBS.contains(&key.as_str()) {
                    let problem =
                        "expected not to be set: the cluster of 'configuration' has its own".to_owned();
                    mistake(key, problem);
                }
            }
        } else {
            for (key, copies) in
                [("replication", config.replication), ("sorted_replication", config.sorted_replication)]
            {
                if copies > config.datanodes {
                    mistake(key, format!("expected at most the number of DataNodes, {}", config.datanodes));
                }
            }
            let least = Division::least_bytes(&config);
            if config.budget_bytes < least {
                let small = too_small(config.budget_bytes, least);
                mistake(
                    "memory",
                    format!(
                        "{small} for {} DataNodes and {} tasks at once",
                        config.datanodes, config.containers
                    ),
                );
            } else {
                let division = Division::of(&config);
                let most = division.task_heap_bytes / 2;
                // Larger than half of the heap, a task would have no memory for anything else and die.
                if division.sort_buffer_bytes > most {
                    let mib = |bytes: u64| bytes as f64 / MIB as f64;
                    let (most, heap) = (mib(most), mib(division.task_heap_bytes));
                    mistake(
                        "sort_buffer",
                        format!("expected at most {most:.0} MiB, half of a task's heap of {heap:.0} MiB"),
                    );
                }
            }
        }
        if mistakes.is_empty() { Ok(config) } else { Err(mistakes) }
    }

    fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        match key {
            "datanodes" => self.datanodes = within(text, 1, DATANODES_MAX)?,
            "replication" => self.replication = within(text, 1, DATANODES_MAX)?,
            "sorted_replication" => self.sorted_replication = within(text, 1, DATANODES_MAX)?,
            "block_size" => {
                self.block_bytes = size(text)?;
                if self.block_bytes < MIB || !self.block_bytes.is_multiple_of(512) {
                    return Err("expected a multiple of 512 bytes, 1 MiB at least".to_owned());
                }
            }
            "volume_policy" => self.available_space = one_of(text, POLICIES)?,
            "balanced_space" => self.balanced_space_bytes = size(text)?,
            "storage_types" => {
                let words = text.split(',').map(|word| one_of(word.trim(), TYPES));
                self.storage_types = words.collect::<Result<_, _>>()?;
            }
            "storage_policy" => self.storage_policy = one_of(text, STORAGE_POLICIES)?,
            "sync_on_close" => self.sync_on_close = one_of(text, BOOLEANS)?,
            "containers" => self.containers = within(text, 1, CONTAINERS_MAX)?,
            "slowstart" => {
                let part = text.parse::<f64>().ok().filter(|part| (0.0..=1.0).contains(part));
                self.slowstart = part.ok_or("expected a part from 0 to 1")?;
            }
            "sort_buffer" => {
                let bytes = size(text)?;
                if !(MIB..2 * GIB).contains(&bytes) {
                    return Err("expected 1 MiB or more, and less than 2 GiB".to_owned());
                }
                self.sort_buffer_bytes = Some(bytes / MIB * MIB);
            }
            "sort_factor" => self.sort_factor = within(text, 2, 1000)?,
            "parallel_copies" => self.parallel_copies = within(text, 1, 100)?,
            "compression_codec" => self.compression_codec = one_of(text, CODECS)?,
            "compiler" => self.full_compiler = one_of(text, COMPILERS)?,
            "work_directory" => self.work_directory = work_directory(text)?,
            "configuration" if text.is_empty() => return Err("expected the path of a directory".to_owned()),
            "configuration" => self.configuration = Some(PathBuf::from(text)),
            _ => return Err(expected_one_of(SETTINGS)),
        }
        Ok(())
    }

    pub fn volume_choosing(&self) -> VolumeChoosing {
        match self.available_space {
            false => VolumeChoosing::RoundRobin,
            true => VolumeChoosing::AvailableSpace { threshold_bytes: self.balanced_space_bytes },
        }
    }

    /// For the record: the settings, and the sizes that follow from them.
    pub fn applied(&self) -> BTreeMap<String, String> {
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
        let types: Vec<String> = self.storage_types.iter().map(|&kind| name_of(kind, TYPES)).collect();
        let division = Division::of(self);
        let mut applied = vec![
            ("datanodes", self.datanodes.to_string()),
            ("replication", self.replication.to_string()),
            ("sorted_replication", self.sorted_replication.to_string()),
            ("block_size", self.block_bytes.to_string()),
            ("volume_policy", name_of(self.available_space, POLICIES)),
            ("balanced_space", self.balanced_space_bytes.to_string()),
            ("storage_types", types.join(", ")),
            ("storage_policy", name_of(self.storage_policy, STORAGE_POLICIES)),
            ("sync_on_close", self.sync_on_close.to_string()),
            ("containers", self.containers.to_string()),
            ("slowstart", self.slowstart.to_string()),
            ("sort_buffer", division.sort_buffer_bytes.to_string()),
            ("sort_factor", self.sort_factor.to_string()),
            ("parallel_copies", self.parallel_copies.to_string()),
            ("compression_codec", name_of(self.compression_codec, CODECS)),
            ("compiler", name_of(self.full_compiler, COMPILERS)),
            ("work_directory", self.work_directory.clone()),
            ("configuration", or_none(self.configuration.as_ref().map(|path| path.display().to_string()))),
        ];
        if self.configuration.is_some() {
            applied.retain(|(name, _)| OF_JOBS.contains(name));
        } else {
            applied.extend([
                ("namenode_heap_bytes", division.hdfs.namenode_bytes.to_string()),
                ("datanode_heap_bytes", division.hdfs.datanode_bytes.to_string()),
                ("yarn_heap_bytes", division.server_heap_bytes.to_string()),
                ("master_heap_bytes", division.master_heap_bytes.to_string()),
                ("task_heap_bytes", division.task_heap_bytes.to_string()),
            ]);
        }
        applied.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// `16 MiB`, `64 MB`, or bytes.
fn size(text: &str) -> Result<u64, String> {
    const UNITS: &[(&str, u64)] = &[
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let (number, unit) =
        UNITS.iter().find_map(|&(name, bytes)| Some((text.strip_suffix(name)?, bytes))).unwrap_or((text, 1));
    let number = number.trim().replace('_', "").parse::<u64>().ok();
    let bytes = number.and_then(|number| number.checked_mul(unit)).filter(|&bytes| bytes < 1 << 60);
    bytes.ok_or_else(|| "expected a size, such as 16 MiB".to_owned())
}

/// An absolute path of letters that mean nothing to a URI.
fn work_directory(text: &str) -> Result<String, String> {
    let letters = |letter: char| letter.is_ascii_alphanumeric() || "/-_.".contains(letter);
    let path = text.trim_end_matches('/');
    let parts_are_plain = path.split('/').skip(1).all(|part| !part.is_empty() && part != "." && part != "..");
    match path.starts_with('/') && path.chars().all(letters) && parts_are_plain {
        true => Ok(path.to_owned()),
        false => Err("expected a path such as /user/me/underlay, of letters, digits, -, _ and .".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    const STARTED: &[(&str, &str)] = &[
        ("datanodes", "4"),
        ("replication", "2"),
        ("sorted_replication", "3"),
        ("block_size", "16 MiB"),
        ("volume_policy", "available-space"),
        ("balanced_space", "1 GB"),
        ("storage_types", "disk, ssd"),
        ("storage_policy", "one-ssd"),
        ("sync_on_close", "true"),
        ("containers", "1"),
        ("slowstart", "0.8"),
        ("sort_buffer", "32 MiB"),
        ("sort_factor", "1_00"),
        ("parallel_copies", "7"),
        ("compression_codec", "deflate"),
        ("compiler", "full"),
        ("work_directory", "/user/me/"),
    ];

    #[test]
    fn every_setting_has_a_value_that_is_taken_and_recorded() {
        assert_eq!(STARTED.len() + 1, SETTINGS.len());
        let applied = Config::resolve(&values(STARTED), Some(3 << 30)).unwrap().applied();
        for (name, value) in STARTED {
            let expected = match *name {
                "block_size" => "16777216",
                "balanced_space" => "1000000000",
                "sort_buffer" => "33554432",
                "sort_factor" => "100",
                "work_directory" => "/user/me",
                _ => value,
            };
            assert_eq!(applied[*name], expected, "{name}");
        }
        let applied = Config::resolve(&BTreeMap::new(), Some(3 << 30)).unwrap().applied();
        for (name, _) in SETTINGS {
            assert!(applied.contains_key(*name), "{name}");
        }
    }

    #[test]
    fn every_mistake_is_listed_with_what_was_expected() {
        let given = values(&[
            ("datanodes", "0"),
            ("replication", "4"),
            ("sorted_replication", "4"),
            ("block_size", "1000"),
            ("volume_policy", "random"),
            ("balanced_space", "-1"),
            ("storage_types", "disk, tape"),
            ("storage_policy", "lazy"),
            ("sync_on_close", "yes"),
            ("containers", "0"),
            ("slowstart", "NaN"),
            ("sort_buffer", "2 GiB"),
            ("sort_factor", "1"),
            ("parallel_copies", "0"),
            ("compression_codec", "zstd"),
            ("compiler", "slow"),
            ("work_directory", "/a/../b"),
            ("configuration", ""),
            ("nodes", "1"),
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
    fn the_smallest_memory_is_told_and_works() {
        let error = Config::resolve(&BTreeMap::new(), Some(MIB)).unwrap_err();
        let least = Division::least_bytes(&Config::default());
        assert!(error[0].1.contains(&format!("{} MiB", least / MIB)), "{error:?}");
        assert!(Config::resolve(&BTreeMap::new(), Some(least)).is_ok());
        assert!(Config::resolve(&BTreeMap::new(), Some(least - 1)).is_err());
    }

    #[test]
    fn a_sort_buffer_must_fit_into_its_task() {
        let given = values(&[("sort_buffer", "1 GiB")]);
        assert_eq!(Config::resolve(&given, Some(3 << 30)).unwrap_err()[0].0, "sort_buffer");
        assert!(Config::resolve(&given, Some(16 << 30)).is_ok());
    }

    #[test]
    fn one_datanode_keeps_one_copy() {
        let config = Config::resolve(&values(&[("datanodes", "1")]), Some(2 << 30)).unwrap();
        assert_eq!(config.replication, 1);
        let both = values(&[("datanodes", "1"), ("replication", "3")]);
        assert_eq!(Config::resolve(&both, Some(2 << 30)).unwrap_err()[0].0, "replication");
    }

    #[test]
    fn a_cluster_that_runs_already_has_its_own_settings() {
        let given =
            values(&[("configuration", "/etc/hadoop/conf"), ("replication", "5"), ("containers", "1")]);
        let mistakes = Config::resolve(&given, Some(0)).unwrap_err();
        assert_eq!(mistakes.len(), 1);
        assert_eq!(mistakes[0].0, "containers");
        let given = values(&[("configuration", "/etc/hadoop/conf"), ("replication", "5")]);
        let applied = Config::resolve(&given, Some(0)).unwrap().applied();
        assert_eq!(applied["configuration"], "/etc/hadoop/conf");
        assert!(!applied.contains_key("containers"));
    }
}
