//! The settings that a study may give. `docs.md` explains them.

mod cached;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use self::cached::OF_CACHE;
use super::committer::{COMMITTERS, OutputCommitter};
use super::endpoint::{self, StoreEndpoint};
use super::master::{self, ExternalMaster};
use super::memory::{
    CacheKind, MIB, MIN_HEAP_BYTES, ManagerKind, SparkMemoryDemand, SparkMemoryLayout, StoreKind,
};
use super::version::{SparkVersion, VERSIONS};
use crate::setting::{
    BOOLEAN, CustomSetting, IntegerSetting, OneOf, OptionalSetting, PathOf, SettingKind as _,
    SettingMistakes, TextSetting, settings, too_small,
};
use crate::tun_link::{LinkShape, MAX_IN_FLIGHT_BYTES};

settings! {
    /// Every setting with its value in force.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct SparkConfig {
        "store" => store: StoreKind = StoreKind::Hdfs, STORES,
            "the jobs' storage: hdfs (default), or s3a: Ceph through S3A, or the store at endpoint";
        "endpoint" => endpoint: Option<StoreEndpoint> = None,
            OptionalSetting(CustomSetting { read: StoreEndpoint::read, show: StoreEndpoint::show }),
            "an S3 store that is there already, such as https://s3.example.com: none, Ceph is started";
        "bucket" => bucket: Option<String> = None,
            OptionalSetting(TextSetting(endpoint::bucket)), "of the endpoint: it must exist";
        "region" => region: Option<String> = None,
            OptionalSetting(TextSetting(endpoint::region)), "of the endpoint: us-east-1";
        "path_style" => path_style: bool = true, BOOLEAN,
            "whether the endpoint's bucket is in the path of a request (true, default) or in the host's name";
        "signatures" => signs_v2: bool = false, OneOf(&[("v4", false), ("v2", true)]),
            "how requests to the endpoint are signed: v4 (default) or v2";
        "access_key_variable" => access_key_variable: Option<String> = None,
            OptionalSetting(TextSetting(endpoint::variable)),
            "the environment variable that has the access key of the endpoint";
        "secret_key_variable" => secret_key_variable: Option<String> = None,
            OptionalSetting(TextSetting(endpoint::variable)),
            "the environment variable that has the secret key of the endpoint";
        "session_token_variable" => session_token_variable: Option<String> = None,
            OptionalSetting(TextSetting(endpoint::variable)),
            "the environment variable that has the token of a session at the endpoint: none";
        "committer" => committer: OutputCommitter = OutputCommitter::FileV1, COMMITTERS,
            "how tasks' output becomes that of the job: file-v1 (default), file-v2, or iceberg, a table instead of files; with s3a also directory or magic";
        "version" => version: SparkVersion = SparkVersion::V3_5, VERSIONS, "of Spark: 3.5 (default) or 4.1";
        "manager" => manager: ManagerKind = ManagerKind::Standalone, MANAGERS,
            "what is started to start executors: standalone (default), Spark's own master and workers, or yarn";
        "shuffle_service" => shuffle_service: bool = false, BOOLEAN,
            "whether the worker serves what executors have shuffled, also of those that are gone, true or false: false";
        // Absent: a cluster is started.
        "master" => master: Option<ExternalMaster> = None,
            OptionalSetting(CustomSetting { read: ExternalMaster::read, show: ExternalMaster::show }),
            "of a cluster that runs already, such as spark://10.0.0.5:7077, yarn, or k8s://https://10.0.0.5:6443: none, one is started";
        "work_directory" => work_directory: Option<String> = None, OptionalSetting(TextSetting(master::work_directory)),
            "where jobs on such a cluster read and write, such as hdfs://10.0.0.5:8020/underlay";
        "configuration" => configuration: Option<PathBuf> = None, OptionalSetting(PathOf("a directory")),
            "directory of Hadoop's configuration for such a cluster: none";
        "driver_address" => driver_address: Option<String> = None, OptionalSetting(TextSetting(master::address)),
            "of this host, to which the executors of such a cluster connect: the one by which the master is reached";
        "secret_variable" => secret_variable: Option<String> = None, OptionalSetting(TextSetting(endpoint::variable)),
            "the environment variable that has the secret of applications of such a cluster: none";
        "without_secret" => without_secret: bool = false, BOOLEAN,
            "whether Spark's own master may have no secret, so anyone who reaches the driver may run code in it: false";
        "executor_python" => executor_python: String = "python3".to_owned(), TextSetting(master::plain_word),
            "the Python of such a cluster's executors: python3";
        "image" => image: Option<String> = None, OptionalSetting(TextSetting(master::plain_word)),
            "of executors' containers on Kubernetes";
        "kubernetes_namespace" => kubernetes_namespace: String = "default".to_owned(), TextSetting(master::plain_word),
            "of executors on Kubernetes: default";
        "workers" => workers: u64 = 1, IntegerSetting(1..=16), "Spark's worker processes: 1";
        "executors" => executors: u64 = 2, IntegerSetting(1..=64), "over all workers: 2";
        "executor_cores" => executor_cores: u64 = 1, IntegerSetting(1..=64), "tasks that an executor runs at once: 1";
        "executor_memory" => executor_bytes: Option<u64> = None,
            OptionalSetting(CustomSetting { read: heap_bytes, show: u64::to_string }),
            "the heap of an executor, such as 1 GiB: what the budget allows";
        "datanodes" => datanodes: u64 = 3, IntegerSetting(1..=20),
            "of HDFS, each with a directory on every data directory: 3";
        "osds" => osds: Option<u64> = None, OptionalSetting(IntegerSetting(1..=64)),
            "of Ceph, on the data directories in turn: one for each directory";
        "replication" => replication: Option<u64> = None, OptionalSetting(IntegerSetting(1..=16)),
            "copies of a block or an object: 3, or as many as there are DataNodes or OSDs";
        "block_size" => block_bytes: u64 = 128 * MIB, CustomSetting { read: block_bytes, show: u64::to_string },
            "of HDFS, and the part of a file that a task reads, such as 16 MiB: 128 MiB";
        "store_cache" => store_cache_bytes: Option<u64> = None,
            OptionalSetting(CustomSetting { read: cache_bytes, show: u64::to_string }),
            "of each OSD, which bypasses the page cache: what the budget allows";
        "link_bandwidth" => link_bits_per_s: Option<u64> = None,
            OptionalSetting(CustomSetting { read: bandwidth, show: bandwidth_text }),
            "between Spark and its store, which then have machines of their own, such as 10 Gbit/s: none, they share one";
        "link_latency" => link_latency: Duration = Duration::ZERO, CustomSetting { read: latency, show: latency_text },
            "of that link, one way, such as 50 us: none";
        "cache" => cache: Option<CacheKind> = None, CACHES,
            "what stands between jobs and Ceph, beside the jobs: none (default), gateway, which is Underlay's own, or alluxio";
        "cache_write" => cache_is_back: bool = true, WRITES,
            "of the cache: back (default), acknowledged before Ceph has it, or through";
        "cache_memory" => cache_bytes: Option<u64> = None,
            OptionalSetting(CustomSetting { read: cache_bytes, show: u64::to_string }),
            "the memory tier of the cache: what the budget allows";
        "cache_flash" => cache_flash_bytes: Option<u64> = None,
            OptionalSetting(CustomSetting { read: cache_bytes, show: u64::to_string }),
            "the flash tier of the cache, on cache_storage: none";
        "cache_journal" => cache_journal_bytes: Option<u64> = None,
            OptionalSetting(CustomSetting { read: cache_bytes, show: u64::to_string }),
            "most bytes that the gateway acknowledges before Ceph has them, on cache_storage: half of what is free there";
        "cache_flush_after" => cache_flush_after: Option<Duration> = None,
            OptionalSetting(CustomSetting { read: latency, show: latency_text }),
            "how long a write back may wait, of modelled time: 5 s, with alluxio 10 s";
        "cache_short_circuit" => cache_is_short: bool = true, BOOLEAN,
            "whether clients of Alluxio read its memory tier themselves (true, default) or ask its worker";
        "bluestore" => seeks: bool = true, OneOf(&[("hdd", true), ("ssd", false)]),
            "which kind of device an OSD is tuned for: hdd (default) or ssd";
    }
}

const MANAGERS: OneOf<ManagerKind> =
    OneOf(&[("standalone", ManagerKind::Standalone), ("yarn", ManagerKind::Yarn)]);

const CACHES: OneOf<Option<CacheKind>> =
    OneOf(&[("none", None), ("gateway", Some(CacheKind::Gateway)), ("alluxio", Some(CacheKind::Alluxio))]);

pub(super) const WRITES: OneOf<bool> = OneOf(&[("back", true), ("through", false)]);
const STORES: OneOf<StoreKind> = OneOf(&[("hdfs", StoreKind::Hdfs), ("s3a", StoreKind::S3a)]);

impl SparkConfig {
    /// The configuration of `values` under a budget of everything together, for a storage of so many data directories;
    /// or every mistake. Unknown values are not judged yet.
    pub(crate) fn resolve(
        values: &BTreeMap<String, String>,
        budget_bytes: Option<u64>,
        directories: Option<usize>,
    ) -> Result<SparkConfig, SettingMistakes> {
        let (mut config, mut mistakes) = SparkConfig::read(values, budget_bytes.unwrap_or(u64::MAX));
        if let Some(directories) = directories {
            // Without a setting there is an OSD for each data directory.
            config.osds = config.osds.or(u64::try_from(directories).ok());
        }
        let master_settings = master::MasterSettings {
            master: config.master.as_ref(),
            work_directory: config.work_directory.as_deref(),
            configuration: config.configuration.is_some(),
            image: config.image.is_some(),
            secret: config.secret_variable.is_some(),
            without_secret: config.without_secret,
            commits_to_s3a: matches!(config.committer, OutputCommitter::Directory | OutputCommitter::Magic),
            writes_tables: config.committer == OutputCommitter::Iceberg,
        };
        mistakes.extend(master::mistakes(values, &master_settings));
        mistakes.extend(config.mistakes_of_a_version());
        if config.master.is_some() {
            // A cluster that runs already has memory of its own, so there is no budget to divide.
            config.executor_bytes = config.executor_bytes.or(Some(1024 * MIB));
            return if mistakes.is_empty() { Ok(config) } else { Err(mistakes) };
        }
        mistakes.extend(config.mistakes_of_a_manager(values));
        mistakes.extend(config.mistakes_of_a_cache(values));
        let mut mistake = |key: &str, problem: String| mistakes.push((key.to_owned(), problem));
        let kind = config.kind();
        // Of a store that Underlay does not start nobody here knows the nodes.
        let stored_on = match kind {
            StoreKind::Hdfs => Some(config.datanodes),
            StoreKind::S3a => config.osds,
            StoreKind::Elsewhere | StoreKind::Given => None,
        };
        for key in others(kind).iter().filter(|key| values.contains_key(**key)) {
            let store = match kind {
                StoreKind::Elsewhere => "at an endpoint".to_owned(),
                _ => STORES.show(&config.store),
            };
            mistake(key, format!("expected not to be set: the store is {store}"));
        }
        if config.endpoint.is_some() && config.store == StoreKind::Hdfs {
            mistake("endpoint", "expected not to be set without store = \"s3a\"".to_owned());
        }
        for key in OF_ENDPOINT {
            if !values.contains_key("endpoint") && values.contains_key(*key) {
                mistake(key, "expected not to be set without endpoint".to_owned());
            }
        }
        for key in ["bucket", "access_key_variable", "secret_key_variable"] {
            if kind == StoreKind::Elsewhere && !values.contains_key(key) {
                mistake(key, "expected to be set beside endpoint".to_owned());
            }
        }
        if config.store == StoreKind::Hdfs
            && matches!(config.committer, OutputCommitter::Directory | OutputCommitter::Magic)
        {
            mistake(
                "committer",
                format!(
                    "expected file-v1, file-v2 or iceberg: {} commits to S3A alone (store = \"s3a\")",
                    config.committer.name()
                ),
            );
        }
        if let (Some(copies), Some(nodes)) = (config.replication, stored_on)
            && copies > nodes
        {
            mistake("replication", format!("expected at most {nodes}: each copy is on a node of its own"));
        }
        if config.workers > config.executors {
            mistake("workers", format!("expected at most the number of executors, {}", config.executors));
        }
        let bytes_per_s = config.link_bits_per_s.unwrap_or(0) as f64 / 8.0;
        // The link's bytes on their way are held in memory, so they have a bound.
        let in_flight_bytes = LinkShape { bytes_per_s, latency: config.link_latency }.bytes_in_flight();
        if in_flight_bytes > MAX_IN_FLIGHT_BYTES as f64 {
            let problem = format!(
                "expected at most {} MiB on their way, bandwidth times latency, not {:.0} MiB",
                MAX_IN_FLIGHT_BYTES / MIB as usize,
                in_flight_bytes / MIB as f64
            );
            mistake("link_latency", problem);
        }
        if config.link_bits_per_s.is_none() && values.contains_key("link_latency") {
            mistake(
                "link_latency",
                "expected not to be set without link_bandwidth: there is no link".to_owned(),
            );
        }
        // Last, as it depends on all of the above.
        let min_bytes = config.demand().min_bytes();
        if config.budget_bytes < min_bytes {
            let small = too_small(config.budget_bytes, min_bytes);
            let plural = if config.executors == 1 { "" } else { "s" };
            let problem = format!("{small} for {} executor{plural} and the store below", config.executors);
            mistake("memory", problem);
        }
        if mistakes.is_empty() { Ok(config) } else { Err(mistakes) }
    }

    fn mistakes_of_a_version(&self) -> SettingMistakes {
        let mut mistakes = SettingMistakes::new();
        if self.version != SparkVersion::V3_5 {
            let version = self.version.name();
            if self.committer == OutputCommitter::Iceberg {
                let problem = format!("expected another one: Iceberg 1.9 has no runtime for Spark {version}");
                mistakes.push(("committer".to_owned(), problem));
            }
            if self.signs_v2 {
                let problem = format!("expected v4, which is all that S3A of Spark {version} knows");
                mistakes.push(("signatures".to_owned(), problem));
            }
        }
        mistakes
    }

    fn mistakes_of_a_manager(&self, values: &BTreeMap<String, String>) -> SettingMistakes {
        let mut mistakes = SettingMistakes::new();
        let mut mistake = |key: &str, problem: &str| mistakes.push((key.to_owned(), problem.to_owned()));
        if self.manager == ManagerKind::Yarn {
            if self.endpoint.is_some() {
                // Its client writes a session's settings into a file that the NodeManager unpacks on the storage under
                // test.
                mistake(
                    "endpoint",
                    "expected manager = \"standalone\": on YARN its keys would be in files on the study's storage",
                );
            }
            if values.contains_key("workers") {
                mistake("workers", "expected not to be set: YARN has one NodeManager");
            }
            if self.shuffle_service {
                mistake(
                    "shuffle_service",
                    "expected manager = \"standalone\": it is a part of Spark's own worker",
                );
            }
        } else if self.shuffle_service && self.workers > 1 {
            mistake(
                "shuffle_service",
                "expected a single worker, since all of them would serve at the same port",
            );
        }
        mistakes
    }

    /// The store that is started for jobs to read and write, if any.
    pub(super) fn kind(&self) -> StoreKind {
        if self.master.is_some() {
            return StoreKind::Given;
        }
        match (self.store, &self.endpoint) {
            (StoreKind::S3a, Some(_)) => StoreKind::Elsewhere,
            (store, _) => store,
        }
    }

    /// Whether jobs write through S3A, which has committers of its own.
    pub(super) fn is_s3a(&self) -> bool {
        match self.kind() {
            StoreKind::Hdfs => false,
            StoreKind::S3a | StoreKind::Elsewhere => true,
            StoreKind::Given => self.work_directory.as_deref().is_some_and(master::is_s3a),
        }
    }

    /// DataNodes or OSDs.
    pub(super) fn nodes_of_store(&self) -> u64 {
        match self.kind() {
            StoreKind::Elsewhere | StoreKind::Given => 0,
            StoreKind::Hdfs => self.datanodes,
            StoreKind::S3a => self.osds.unwrap_or(1),
        }
    }

    pub(super) fn copies(&self) -> u64 {
        self.replication.unwrap_or(3).min(self.nodes_of_store())
    }

    /// Tasks that run at once.
    pub(super) fn slots(&self) -> u64 {
        self.executors * self.executor_cores
    }

    pub(super) fn demand(&self) -> SparkMemoryDemand {
        SparkMemoryDemand {
            budget_bytes: self.budget_bytes,
            manager: self.manager,
            workers: self.workers,
            executors: self.executors,
            executor_bytes: self.executor_bytes,
            store: self.kind(),
            store_nodes: self.nodes_of_store(),
            store_cache_bytes: self.store_cache_bytes,
            cache: self.cache,
            cache_bytes: self.cache_bytes,
        }
    }

    /// How the budget is divided.
    pub(super) fn division(&self) -> SparkMemoryLayout {
        SparkMemoryLayout::from_demand(self.demand())
    }

    /// For the record: the settings, and the sizes that follow from them.
    pub(super) fn applied(&self) -> BTreeMap<String, String> {
        let mut applied = self.recorded();
        if let Some(full) = self.version.full() {
            applied.insert("version".to_owned(), full.to_owned());
        }
        if self.master.is_some() {
            applied.retain(|name, _| master::applies(name));
            return applied;
        }
        applied.retain(|name, _| !master::applies_there_alone(name));
        if self.manager == ManagerKind::Yarn {
            applied.remove("workers");
        }
        let division = self.division();
        applied.insert("executor_memory".to_owned(), division.executor_heap_bytes.to_string());
        applied.insert("replication".to_owned(), self.copies().to_string());
        let kind = self.kind();
        if kind == StoreKind::S3a {
            applied.insert("store_cache".to_owned(), division.ceph.cache_bytes.to_string());
        }
        if self.cache.is_some() {
            applied.insert("cache_memory".to_owned(), division.cache_bytes.to_string());
        }
        if let Some(after) = self.flush_after() {
            applied.insert("cache_flush_after".to_owned(), latency_text(&after));
        }
        let is_elsewhere = kind == StoreKind::Elsewhere;
        let is_of_cache = |name: &str| {
            let cache_setting = OF_CACHE.iter().find(|(key, _)| *key == name);
            cache_setting.is_none_or(|(_, caches)| self.cache.is_some_and(|cache| caches.contains(&cache)))
        };
        applied.retain(|name, _| is_of_cache(name));
        applied.retain(|name, _| {
            let name = name.as_str();
            !others(kind).contains(&name)
                && (is_elsewhere || name != "endpoint" && !OF_ENDPOINT.contains(&name))
        });
        applied
    }
}

/// Settings that go with an endpoint alone.
const OF_ENDPOINT: &[&str] = &[
    "bucket",
    "region",
    "path_style",
    "signatures",
    "access_key_variable",
    "secret_key_variable",
    "session_token_variable",
];

/// Settings that go with other stores.
fn others(kind: StoreKind) -> &'static [&'static str] {
    match kind {
        StoreKind::Hdfs => &["osds", "store_cache", "bluestore"],
        StoreKind::S3a => &["datanodes"],
        StoreKind::Given => &[],
        StoreKind::Elsewhere => &[
            "datanodes",
            "osds",
            "store_cache",
            "bluestore",
            "replication",
            "link_bandwidth",
            "link_latency",
        ],
    }
}

fn size(text: &str) -> Result<u64, String> {
    underlay_config::units::parse_bytes(text).map_err(|error| error.to_string())
}

/// HDFS divides a block into checksums of 512 bytes.
fn block_bytes(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    match (MIB..=2048 * MIB).contains(&bytes) && bytes.is_multiple_of(512) {
        true => Ok(bytes),
        false => Err("expected a multiple of 512 bytes, from 1 MiB to 2 GiB".to_owned()),
    }
}

/// In bits per second.
fn bandwidth(text: &str) -> Result<u64, String> {
    let bits_per_s = underlay_config::units::parse_bandwidth(text).map_err(|error| error.to_string())?;
    if bits_per_s >= 8 { Ok(bits_per_s) } else { Err("expected more than nothing".to_owned()) }
}

fn bandwidth_text(bits_per_s: &u64) -> String {
    format!("{} Mbit/s", *bits_per_s as f64 / 1e6)
}

fn latency(text: &str) -> Result<Duration, String> {
    underlay_config::units::parse_duration(text).map_err(|error| error.to_string())
}

fn latency_text(latency: &Duration) -> String {
    underlay_config::units::format_duration(*latency)
}

/// More than any host has, and little enough for sums over all that are started.
const MAX_MEMORY_BYTES: u64 = 64 << 40;

fn memory_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes > MAX_MEMORY_BYTES => Err("expected at most 64 TiB".to_owned()),
        bytes => Ok(bytes / MIB * MIB),
    }
}

fn heap_bytes(text: &str) -> Result<u64, String> {
    let bytes = memory_size(text)?;
    match bytes >= MIN_HEAP_BYTES {
        true => Ok(bytes),
        false => Err(format!("expected at least {} MiB, which Spark starts with", MIN_HEAP_BYTES / MIB)),
    }
}

fn cache_bytes(text: &str) -> Result<u64, String> {
    let bytes = memory_size(text)?;
    match bytes >= 64 * MIB {
        true => Ok(bytes),
        false => Err("expected at least 64 MiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn conflicting_settings_are_reported() {
        let mistakes = |pairs: &[(&str, &str)], budget| {
            // Two data directories, so Ceph has two OSDs unless a case says otherwise.
            let found = SparkConfig::resolve(&values(pairs), budget, Some(2)).unwrap_err();
            found.into_iter().map(|(key, problem)| format!("{key}: {problem}")).collect::<Vec<_>>().join("\n")
        };
        for (pairs, expected) in [
            (&[("committer", "magic")][..], "committer: expected file-v1, file-v2 or iceberg"),
            (&[("osds", "2")], "osds: expected not to be set: the store is hdfs"),
            (&[("store", "s3a"), ("datanodes", "2")], "datanodes: expected not to be set"),
            (&[("store", "s3a"), ("replication", "3")], "replication: expected at most 2"),
            (&[("link_latency", "50 us")], "link_latency: expected not to be set without link_bandwidth"),
            (
                &[("link_bandwidth", "100 Gbit/s"), ("link_latency", "1 s")],
                "link_latency: expected at most 64 MiB on their way",
            ),
            (&[("workers", "3")], "workers: expected at most the number of executors, 2"),
            (&[("executor_memory", "100 MiB")], "executor_memory: expected at least 512 MiB"),
            (
                &[("executors", "16"), ("executor_memory", "1024 PiB")],
                "executor_memory: expected at most 64 TiB",
            ),
            (&[("store", "s3a"), ("store_cache", "65 TiB")], "store_cache: expected at most 64 TiB"),
            (&[("store", "disk")], "expected one of hdfs, s3a"),
            (&[("endpoint", "https://a.example")], "endpoint: expected not to be set without store"),
            (&[("store", "s3a"), ("bucket", "abc")], "bucket: expected not to be set without endpoint"),
            (&[("store", "s3a"), ("endpoint", "https://a.example")], "bucket: expected to be set"),
            (&[("cache", "gateway")], "cache: expected not to be set without store = \"s3a\" on Ceph"),
            (
                &[("store", "s3a"), ("cache_write", "back")],
                "cache_write: expected not to be set without cache",
            ),
            (
                &[("store", "s3a"), ("cache", "alluxio"), ("cache_journal", "1 GiB")],
                "cache_journal: expected not to be set without cache = \"gateway\"",
            ),
            (
                &[("store", "s3a"), ("cache", "alluxio"), ("committer", "magic")],
                "committer: expected file-v1, file-v2 or iceberg: magic needs S3A, and",
            ),
            (
                &[
                    ("store", "s3a"),
                    ("cache", "gateway"),
                    ("cache_write", "through"),
                    ("cache_flush_after", "1 s"),
                ],
                "cache_flush_after: expected not to be set with cache_write",
            ),
            (
                &[("store", "s3a"), ("endpoint", "https://a.example"), ("osds", "2")],
                "osds: expected not to be set: the store is at an endpoint",
            ),
            (&[("version", "4.1"), ("committer", "iceberg")], "committer: expected another one: Iceberg"),
            (&[("version", "4.1"), ("signatures", "v2")], "signatures: expected v4"),
            (&[("version", "2.4")], "version: expected one of 3.5, 4.1"),
            (&[("manager", "yarn"), ("workers", "1")], "workers: expected not to be set: YARN"),
            (&[("manager", "yarn"), ("shuffle_service", "true")], "shuffle_service: expected manager"),
            (&[("workers", "2"), ("shuffle_service", "true")], "shuffle_service: expected a single worker"),
            (
                &[("store", "s3a"), ("cache", "alluxio"), ("version", "4.1")],
                "cache: expected none or gateway: Ceph speaks TLS alone with Spark 4.1, and Alluxio is set up",
            ),
            (
                &[("store", "s3a"), ("cache", "alluxio"), ("manager", "yarn")],
                "cache: expected not to be set beside manager = \"yarn\"",
            ),
            (
                &[
                    ("store", "s3a"),
                    ("cache", "gateway"),
                    ("endpoint", "https://a.example"),
                    ("bucket", "abc"),
                    ("access_key_variable", "A"),
                    ("secret_key_variable", "B"),
                ],
                "cache: expected not to be set without store = \"s3a\" on Ceph",
            ),
            (
                &[("master", "spark://a"), ("work_directory", "file:///x"), ("cache", "gateway")],
                "cache: expected not to be set beside master: a cache stands",
            ),
            (&[("image", "a")], "image: expected not to be set without master"),
            (
                &[("manager", "yarn"), ("store", "s3a"), ("endpoint", "https://a.example")],
                "endpoint: expected manager = \"standalone\"",
            ),
            (
                &[("master", "spark://a"), ("work_directory", "hdfs://a/x")],
                "secret_variable: expected to be set: without the secret",
            ),
            (&[("master", "spark://a")], "work_directory: expected to be set beside master"),
            (
                &[("master", "spark://a"), ("work_directory", "file:///x"), ("osds", "2")],
                "osds: expected not to be set: the cluster of 'master' has its own",
            ),
            (
                &[("master", "yarn"), ("work_directory", "hdfs://a/x")],
                "configuration: expected to be set beside master = \"yarn\"",
            ),
            (
                &[
                    ("master", "k8s://https://a"),
                    ("work_directory", "hdfs://a/x"),
                    ("secret_variable", "A_B"),
                ],
                "image: expected to be set beside a master of Kubernetes",
            ),
        ] {
            let message = mistakes(pairs, None);
            assert!(message.contains(expected), "{message}");
        }
        let small = mistakes(&[("store", "s3a")], Some(1 << 30));
        assert!(small.contains("memory: 1024.0 MiB is too small"), "{small}");
    }

    #[test]
    fn copies_are_as_many_as_there_are_nodes() {
        let resolve = |pairs: &[(&str, &str)], directories| {
            SparkConfig::resolve(&values(pairs), Some(8 << 30), Some(directories)).unwrap()
        };
        assert_eq!(resolve(&[], 1).copies(), 3);
        assert_eq!(resolve(&[("datanodes", "2")], 1).copies(), 2);
        let ceph = resolve(&[("store", "s3a"), ("committer", "magic")], 2);
        assert_eq!((ceph.copies(), ceph.nodes_of_store(), ceph.slots()), (2, 2, 2));
        let applied = ceph.applied();
        assert_eq!((&*applied["committer"], &*applied["osds"]), ("magic", "2"));
        assert!(!applied.contains_key("datanodes") && !applied.contains_key("cache_write"));
        assert!(ceph.takes_a_cache());
        // Alluxio can't be put in between later either.
        let mut newer = resolve(&[("store", "s3a"), ("version", "4.1")], 2);
        let refused = newer.set_cache(&values(&[("cache", "alluxio")])).unwrap_err();
        assert!(refused[0].1.contains("TLS") && newer.set_cache(&values(&[("cache", "gateway")])).is_ok());
        let cached = resolve(&[("store", "s3a"), ("cache", "gateway")], 2).applied();
        assert_eq!(
            (&*cached["cache"], &*cached["cache_write"], &*cached["cache_flush_after"]),
            ("gateway", "back", "5 s")
        );
        assert!(!cached.contains_key("cache_short_circuit") && cached["cache_memory"].parse::<u64>().is_ok());
    }
}
