//! The settings that a study may give. `docs.md` explains them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::memory::{HadoopMemoryDemand, HadoopMemoryLayout, MIB};
use crate::hdfs::{StorageType, VolumeChoosing};
use crate::memory_plan::MemoryPlan;
use crate::setting::{
    BOOLEAN, CustomSetting, IntegerSetting, OneOf, OptionalSetting, PathOf, SettingKind, SettingMistakes,
    TextSetting, settings, too_small,
};

/// Each DataNode is a Java machine of some 180 MiB on this host.
const DATANODES: IntegerSetting = IntegerSetting(1..=20);
const GIB: u64 = 1 << 30;

settings! {
    /// Every setting with its value in force.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct HadoopConfig {
        "datanodes" => datanodes: u64 = 3, DATANODES,
            "DataNodes, each with a directory on every data directory: 3";
        "replication" => replication: u64 = 3, DATANODES,
            "copies of teragen's output and of wordcount's input: 3, or as many as there are DataNodes";
        "sorted_replication" => sorted_replication: u64 = 1, DATANODES, "copies of terasort's output: 1";
        "block_size" => block_bytes: u64 = 128 * MIB, CustomSetting { read: block_bytes, show: u64::to_string },
            "of files, such as 16 MiB: 128 MiB";
        "volume_policy" => available_space: bool = false,
            OneOf(&[("round-robin", false), ("available-space", true)]),
            "how a DataNode chooses the directory of a block: round-robin (default) or available-space";
        "balanced_space" => balanced_space_bytes: u64 = 10 * GIB, CustomSetting { read: size, show: u64::to_string },
            "with available-space: directories count as equal up to this difference of free space: 10 GiB";
        "storage_types" => storage_types: Vec<StorageType> = vec![StorageType::Disk], StorageTypes,
            "what each data directory is for HDFS, in order: disk, ssd or archive; one word for all: disk";
        "storage_policy" => storage_policy: StoragePolicy = StoragePolicy::Hot, STORAGE_POLICIES,
            "which of the storage types blocks go to: hot (default: disk), one-ssd (one copy on ssd), all-ssd, warm or cold";
        "sync_on_close" => sync_on_close: bool = false, BOOLEAN,
            "whether a block is written out to its device when it is complete, true or false: false";
        "containers" => containers: u64 = 2, IntegerSetting(1..=256), "tasks that run at once: 2";
        "slowstart" => slowstart: f64 = 0.05, CustomSetting { read: slowstart, show: f64::to_string },
            "the part of the maps that must be done before reduces start: 0.05";
        "sort_buffer" => sort_buffer_bytes: Option<u64> = None,
            OptionalSetting(CustomSetting { read: sort_buffer_bytes, show: u64::to_string }),
            "of a map task, such as 64 MiB: 40 % of its heap";
        "sort_factor" => sort_factor: u64 = 10, IntegerSetting(2..=1000), "files that are merged at once: 10";
        "parallel_copies" => parallel_copies: u64 = 5, IntegerSetting(1..=100),
            "map outputs that a reduce fetches at once: 5";
        "compression_codec" => compression_codec: HadoopCodec = HadoopCodec::Snappy, CODECS,
            "of shuffle-compressed: snappy (default) or deflate";
        "compiler" => full_compiler: bool = false, OneOf(&[("quick", false), ("full", true)]),
            "of tasks: quick (default: Java's first compiler alone) or full (the second one too)";
        "work_directory" => work_directory: String = "/underlay".to_owned(), TextSetting(work_directory),
            "of the jobs' files in the file system: /underlay";
        // Absent: a cluster is started.
        "configuration" => configuration: Option<PathBuf> = None, OptionalSetting(PathOf("a directory")),
            "directory of the configuration of a cluster that runs already, in place of one that is started: none";
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HadoopCodec {
    Snappy,
    Deflate,
}

impl HadoopCodec {
    /// The class that does it.
    pub(crate) fn class(self) -> &'static str {
        match self {
            HadoopCodec::Snappy => "org.apache.hadoop.io.compress.SnappyCodec",
            HadoopCodec::Deflate => "org.apache.hadoop.io.compress.DefaultCodec",
        }
    }
}

/// HDFS's own names, in lower case and with dashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoragePolicy {
    Hot,
    OneSsd,
    AllSsd,
    Warm,
    Cold,
}

impl StoragePolicy {
    /// As HDFS calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            StoragePolicy::Hot => "HOT",
            StoragePolicy::OneSsd => "ONE_SSD",
            StoragePolicy::AllSsd => "ALL_SSD",
            StoragePolicy::Warm => "WARM",
            StoragePolicy::Cold => "COLD",
        }
    }
}

const TYPES: OneOf<StorageType> =
    OneOf(&[("disk", StorageType::Disk), ("ssd", StorageType::Ssd), ("archive", StorageType::Archive)]);
const STORAGE_POLICIES: OneOf<StoragePolicy> = OneOf(&[
    ("hot", StoragePolicy::Hot),
    ("one-ssd", StoragePolicy::OneSsd),
    ("all-ssd", StoragePolicy::AllSsd),
    ("warm", StoragePolicy::Warm),
    ("cold", StoragePolicy::Cold),
]);
const CODECS: OneOf<HadoopCodec> =
    OneOf(&[("snappy", HadoopCodec::Snappy), ("deflate", HadoopCodec::Deflate)]);
/// With a cluster that runs already these say what its jobs do; all others are that cluster's own affair.
const OF_JOBS: &[&str] =
    &["replication", "sorted_replication", "compression_codec", "work_directory", "configuration"];

impl HadoopConfig {
    /// The configuration of `values` under a budget of everything together, or every mistake. Without a budget it is
    /// too early to judge that.
    pub(crate) fn resolve(
        values: &BTreeMap<String, String>,
        budget_bytes: Option<u64>,
    ) -> Result<HadoopConfig, SettingMistakes> {
        let (mut config, mut mistakes) = HadoopConfig::read(values, budget_bytes.unwrap_or(u64::MAX));
        if !values.contains_key("replication") {
            config.replication = config.replication.min(config.datanodes);
        }
        if config.configuration.is_some() {
            let is_own = |key: &str| SETTINGS.iter().any(|&(name, _)| name == key) && !OF_JOBS.contains(&key);
            for key in values.keys().filter(|key| is_own(key)) {
                let problem = "expected not to be set: the cluster of 'configuration' has its own".to_owned();
                mistakes.push((key.clone(), problem));
            }
        } else {
            mistakes.extend(config.mistakes_of_a_cluster());
        }
        if mistakes.is_empty() { Ok(config) } else { Err(mistakes) }
    }

    /// Contradictions in the settings of a cluster that is to be started.
    fn mistakes_of_a_cluster(&self) -> SettingMistakes {
        let mut mistakes = SettingMistakes::new();
        let mut mistake = |key: &str, problem: String| mistakes.push((key.to_owned(), problem));
        for (key, copies) in
            [("replication", self.replication), ("sorted_replication", self.sorted_replication)]
        {
            if copies > self.datanodes {
                mistake(key, format!("expected at most the number of DataNodes, {}", self.datanodes));
            }
        }
        let min_bytes = self.demand().min_bytes();
        if self.budget_bytes < min_bytes {
            let small = too_small(self.budget_bytes, min_bytes);
            let problem =
                format!("{small} for {} DataNodes and {} tasks at once", self.datanodes, self.containers);
            mistake("memory", problem);
            return mistakes;
        }
        let division = self.division();
        // With more than half of its heap in the buffer, a task would have no memory for anything else and die.
        let max_bytes = division.task_heap_bytes / 2;
        if division.sort_buffer_bytes > max_bytes {
            let mib = |bytes: u64| bytes as f64 / MIB as f64;
            let (max, heap) = (mib(max_bytes), mib(division.task_heap_bytes));
            let problem = format!("expected at most {max:.0} MiB, half of a task's heap of {heap:.0} MiB");
            mistake("sort_buffer", problem);
        }
        mistakes
    }

    pub(crate) fn volume_choosing(&self) -> VolumeChoosing {
        match self.available_space {
            false => VolumeChoosing::RoundRobin,
            true => VolumeChoosing::AvailableSpace { threshold_bytes: self.balanced_space_bytes },
        }
    }

    fn demand(&self) -> HadoopMemoryDemand {
        HadoopMemoryDemand {
            budget_bytes: self.budget_bytes,
            datanodes: self.datanodes,
            containers: self.containers,
            sort_buffer_bytes: self.sort_buffer_bytes,
        }
    }

    /// How the budget is divided.
    pub(crate) fn division(&self) -> HadoopMemoryLayout {
        HadoopMemoryLayout::from_demand(self.demand())
    }

    /// How the budget is used: all tasks at once, which is the most that a job does.
    pub(super) fn memory(&self) -> MemoryPlan {
        MemoryPlan { budget_bytes: self.budget_bytes, processes: self.division().processes() }
    }

    /// For the record: the settings, and the sizes that follow from them.
    pub(crate) fn applied(&self) -> BTreeMap<String, String> {
        let mut applied = self.recorded();
        if self.configuration.is_some() {
            applied.retain(|name, _| OF_JOBS.contains(&name.as_str()));
            return applied;
        }
        let division = self.division();
        let sizes = [
            ("sort_buffer", division.sort_buffer_bytes),
            ("namenode_heap_bytes", division.hdfs.namenode_bytes),
            ("datanode_heap_bytes", division.hdfs.datanode_bytes),
            ("yarn_heap_bytes", division.server_heap_bytes),
            ("master_heap_bytes", division.master_heap_bytes),
            ("task_heap_bytes", division.task_heap_bytes),
        ];
        applied.extend(sizes.map(|(name, bytes)| (name.to_owned(), bytes.to_string())));
        applied
    }
}

/// A storage type for each data directory, with commas between them.
struct StorageTypes;

impl SettingKind for StorageTypes {
    type Value = Vec<StorageType>;

    fn read(&self, text: &str) -> Result<Vec<StorageType>, String> {
        text.split(',').map(|word| TYPES.read(word.trim())).collect()
    }

    fn show(&self, value: &Vec<StorageType>) -> String {
        value.iter().map(|kind| TYPES.show(kind)).collect::<Vec<_>>().join(", ")
    }
}

/// HDFS divides a block into checksums of 512 bytes, and its NameNode refuses blocks below 1 MiB as it is shipped.
fn block_bytes(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    match bytes >= MIB && bytes.is_multiple_of(512) {
        true => Ok(bytes),
        false => Err("expected a multiple of 512 bytes, 1 MiB at least".to_owned()),
    }
}

fn slowstart(text: &str) -> Result<f64, String> {
    let part = text.parse::<f64>().ok().filter(|part| (0.0..=1.0).contains(part));
    part.ok_or_else(|| "expected a part from 0 to 1".to_owned())
}

/// Hadoop counts it in MiB, and takes 2047 at most: the buffer is one array of Java's.
fn sort_buffer_bytes(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    match (MIB..2 * GIB).contains(&bytes) {
        true => Ok(bytes / MIB * MIB),
        false => Err("expected 1 MiB or more, and less than 2 GiB".to_owned()),
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
    fn settings_are_accepted_and_recorded() {
        assert_eq!(STARTED.len() + 1, SETTINGS.len());
        let applied = HadoopConfig::resolve(&values(STARTED), Some(3 << 30)).unwrap().applied();
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
        let applied = HadoopConfig::resolve(&BTreeMap::new(), Some(3 << 30)).unwrap().applied();
        for (name, _) in SETTINGS {
            assert!(applied.contains_key(*name), "{name}");
        }
    }

    #[test]
    fn mistakes_are_listed_with_expected_values() {
        let settings = values(&[
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
        let mistakes = HadoopConfig::resolve(&settings, Some(MIB)).unwrap_err();
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
    fn minimum_memory_is_reported_and_works() {
        let error = HadoopConfig::resolve(&BTreeMap::new(), Some(MIB)).unwrap_err();
        let least = HadoopConfig::default().demand().min_bytes();
        assert!(error[0].1.contains(&format!("{} MiB", least / MIB)), "{error:?}");
        assert!(HadoopConfig::resolve(&BTreeMap::new(), Some(least)).is_ok());
        assert!(HadoopConfig::resolve(&BTreeMap::new(), Some(least - 1)).is_err());
    }

    #[test]
    fn sort_buffer_must_fit_its_task() {
        let settings = values(&[("sort_buffer", "1 GiB")]);
        assert_eq!(HadoopConfig::resolve(&settings, Some(3 << 30)).unwrap_err()[0].0, "sort_buffer");
        assert!(HadoopConfig::resolve(&settings, Some(16 << 30)).is_ok());
    }

    #[test]
    fn single_datanode_keeps_one_copy() {
        let config = HadoopConfig::resolve(&values(&[("datanodes", "1")]), Some(2 << 30)).unwrap();
        assert_eq!(config.replication, 1);
        let both = values(&[("datanodes", "1"), ("replication", "3")]);
        assert_eq!(HadoopConfig::resolve(&both, Some(2 << 30)).unwrap_err()[0].0, "replication");
    }

    #[test]
    fn running_cluster_keeps_own_settings() {
        let settings =
            values(&[("configuration", "/etc/hadoop/conf"), ("replication", "5"), ("containers", "1")]);
        let mistakes = HadoopConfig::resolve(&settings, Some(0)).unwrap_err();
        assert_eq!(mistakes.len(), 1);
        assert_eq!(mistakes[0].0, "containers");
        let settings = values(&[("configuration", "/etc/hadoop/conf"), ("replication", "5")]);
        let applied = HadoopConfig::resolve(&settings, Some(0)).unwrap().applied();
        assert_eq!(applied["configuration"], "/etc/hadoop/conf");
        assert!(!applied.contains_key("containers"));
    }
}
