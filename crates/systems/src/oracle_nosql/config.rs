//! The settings that a study may give. `docs.md` explains them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::memory::{DEFAULT_CACHE_SHARE, DEFAULT_HEAP_SHARE, MIB, NosqlMemoryLayout, min_bytes};
use crate::je::engine::{
    CACHE_SHARE, CHECKPOINTER_BYTES_MIB, CLEANER_MIN_UTILIZATION, CLEANER_THREADS, HEAP_SHARE, LOG_FILE_MIB,
    SYNC_POLICIES, duration,
};
use crate::memory_plan::MemoryPlan;
use crate::setting::{
    IntegerSetting, OneOf, OptionalSetting, SettingMistakes, TextListSetting, TextSetting, settings,
    too_small,
};

/// Nodes beyond this are more than one host runs.
const NODES: IntegerSetting = IntegerSetting(1..=32);
const CAPACITY: IntegerSetting = IntegerSetting(1..=16);
const USUAL_REPLICATION: u64 = 3;
const PARTITIONS_PER_SHARD: u64 = 20;

/// Limits of JE's, which slow motion stretches.
const REPLICA_ACK_TIMEOUT: Duration = Duration::from_secs(5);
const INSUFFICIENT_REPLICAS_TIMEOUT: Duration = Duration::from_secs(10);
const FEEDER_TIMEOUT: Duration = Duration::from_secs(30);
const ELECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// JE accepts no longer one for a message of an election.
const MAX_ELECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// Not stretched: a master commits nothing until its replicas have told it by one that it is theirs, and members that
/// start, hand over or stop wait for the next one. It costs next to nothing.
const HEARTBEAT: Duration = Duration::from_secs(1);
const FSYNC_TIMEOUT: Duration = Duration::from_millis(500);
const LATCH_TIMEOUT: Duration = Duration::from_secs(300);

/// How often the servers write down what JE counts.
pub(super) const STATISTICS_INTERVAL: Duration = Duration::from_secs(1);

settings! {
    /// Every setting with its value in force.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct NosqlConfig {
        "nodes" => nodes: u64 = 1, NODES, "storage nodes, machines with an agent each: 1";
        "capacity" => capacity: u64 = 1, CAPACITY, "replication nodes that a storage node has room for: 1";
        "replication" => given_replication: Option<u64> = None, OptionalSetting(IntegerSetting(1..=7)),
            "replication factor, the copies of each shard: 3, or as many as there are nodes";
        "partitions" => given_partitions: Option<u64> = None, OptionalSetting(IntegerSetting(1..=20_000)),
            "that the records are divided among by their major keys: 20 for each shard";
        "fields" => fields: FieldKeys = FieldKeys::Value,
            OneOf(&[("value", FieldKeys::Value), ("minor", FieldKeys::Minor)]),
            "value (default: a record is one value under its major key) or minor (each field has a minor key of its own)";
        "durability" => durability: &'static str = "SYNC", SYNC_POLICIES,
            "what the master does to its log before it answers: SYNC (default: on the device), WRITE_NO_SYNC or NO_SYNC";
        "replica_durability" => replica_durability: &'static str = "SYNC", SYNC_POLICIES,
            "what a replica does to its log before it acknowledges: SYNC (default), WRITE_NO_SYNC or NO_SYNC";
        "acks" => acks: &'static str = "SIMPLE_MAJORITY",
            OneOf(&[("SIMPLE_MAJORITY", "SIMPLE_MAJORITY"), ("ALL", "ALL"), ("NONE", "NONE")]),
            "whose acknowledgements a write waits for: SIMPLE_MAJORITY (default), ALL or NONE";
        "consistency" => consistency: &'static str = "absolute",
            OneOf(&[("absolute", "absolute"), ("none", "none")]),
            "of reads: absolute (default: by the master) or none (by any replica, however far behind it is)";
        "heap_share" => heap_share: f64 = DEFAULT_HEAP_SHARE, HEAP_SHARE,
            "part of a replication node's memory that is left beside Java for its heap: 0.6";
        "cache_share" => cache_share: f64 = DEFAULT_CACHE_SHARE, CACHE_SHARE,
            "part of the heap for JE's cache: 0.7";
        "log_file_mib" => log_file_mib: u64 = 10, LOG_FILE_MIB, "size of a JE log file in MiB, 1 to 1024: 10";
        "cleaner_min_utilization" => cleaner_min_utilization: u64 = 40, CLEANER_MIN_UTILIZATION,
            "percentage of the log that is kept in use by cleaning, 0 to 90: 40";
        "cleaner_threads" => cleaner_threads: u64 = 2, CLEANER_THREADS,
            "files that a replication node cleans at once: 2";
        "checkpointer_bytes_mib" => checkpointer_bytes_mib: u64 = 20, CHECKPOINTER_BYTES_MIB,
            "MiB written to the log between two checkpoints: 20";
        "reserved_mib" => reserved_mib: u64 = 256, IntegerSetting(0..=1 << 20),
            "MiB of cleaned log files that a replication node keeps for others that were away; 0: as much as there is room for: 256";
        "helpers" => helpers: Vec<String> = Vec::new(), TextListSetting(check_helper),
            "HOST:PORT, ... of storage nodes of a store that runs already, in place of one that is started: none";
        "store" => store: Option<String> = None, OptionalSetting(TextSetting(store_name)),
            "name of the store at helpers: none";
    }
}

/// Settings with a meaning for an external store.
const OF_RUNNING: &[&str] =
    &["helpers", "store", "fields", "durability", "replica_durability", "acks", "consistency"];

/// How a record's fields are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldKeys {
    /// All fields are one value.
    Value,
    /// Each field is a value under a minor key.
    Minor,
}

impl FieldKeys {
    /// As studies write it, and the client process reads it.
    pub(super) fn word(self) -> &'static str {
        match self {
            FieldKeys::Value => "value",
            FieldKeys::Minor => "minor",
        }
    }
}

/// How a store that runs already is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExistingStore {
    pub helpers: Vec<String>,
    pub store: String,
}

impl NosqlConfig {
    /// The configuration of `values` under a budget of all processes together, or every mistake. Without a budget it is
    /// too early to judge that.
    pub(crate) fn resolve(
        values: &BTreeMap<String, String>,
        budget_bytes: Option<u64>,
    ) -> Result<NosqlConfig, SettingMistakes> {
        let (config, mut mistakes) = NosqlConfig::read(values, budget_bytes.unwrap_or(u64::MAX));
        let mut mistake = |key: &str, problem: String| mistakes.push((key.to_owned(), problem));
        let place = ["helpers", "store"];
        if place.iter().any(|&key| values.contains_key(key)) {
            for key in place.into_iter().filter(|&key| !values.contains_key(key)) {
                mistake(key, "expected together with helpers and store, or none of them".to_owned());
            }
            let is_setting = |key: &str| SETTINGS.iter().any(|&(name, _)| name == key);
            for key in values.keys().filter(|key| is_setting(key) && !OF_RUNNING.contains(&key.as_str())) {
                mistake(key, "expected not to be set: the store at helpers has its own".to_owned());
            }
        } else if config.replication() > config.nodes {
            // Shards follow from both, so nothing below can be judged then.
            mistake(
                "replication",
                format!(
                    "expected at most the number of nodes, {}: each copy of a shard is on a storage node of its own",
                    config.nodes
                ),
            );
        } else {
            if config.partitions() < config.shards() {
                let shards = config.shards();
                mistake("partitions", format!("expected at least one for each of the {shards} shards"));
            }
            let least = min_bytes(config.nodes, config.replication_nodes());
            if config.budget_bytes < least {
                let small = too_small(config.budget_bytes, least);
                mistake(
                    "memory",
                    format!(
                        "{small} for the agents of {} storage nodes, an administration and {} replication nodes ({} x {} copies)",
                        config.nodes,
                        config.replication_nodes(),
                        config.shards(),
                        config.replication()
                    ),
                );
            }
        }
        if mistakes.is_empty() { Ok(config) } else { Err(mistakes) }
    }

    /// The store that runs already; `None` where one is to be started.
    pub(crate) fn existing(&self) -> Option<ExistingStore> {
        let store = self.store.clone()?;
        Some(ExistingStore { helpers: self.helpers.clone(), store })
    }

    pub(crate) fn replication(&self) -> u64 {
        self.given_replication.unwrap_or(self.nodes.min(USUAL_REPLICATION))
    }

    /// As many as Oracle NoSQL Database makes of this room.
    pub(crate) fn shards(&self) -> u64 {
        (self.capacity * self.nodes / self.replication()).max(1)
    }

    pub(crate) fn replication_nodes(&self) -> u64 {
        self.shards() * self.replication()
    }

    pub(crate) fn partitions(&self) -> u64 {
        self.given_partitions.unwrap_or(self.shards() * PARTITIONS_PER_SHARD)
    }

    pub(super) fn division(&self) -> NosqlMemoryLayout {
        let shares = (self.heap_share, self.cache_share);
        NosqlMemoryLayout::new(self.budget_bytes, self.nodes, self.replication_nodes(), shares)
    }

    /// How the budget is used.
    pub(super) fn memory(&self) -> MemoryPlan {
        let processes = self.division().processes(self.nodes, self.replication_nodes());
        MemoryPlan { budget_bytes: self.budget_bytes, processes }
    }

    /// Of a write, as the client reads it.
    pub(super) fn write_durability(&self) -> String {
        format!("{},{},{}", self.durability, self.replica_durability, self.acks)
    }

    /// JE's parameters for every replication node, as `configProperties` takes them. A client waits for an answer for
    /// `timeout`.
    fn je_parameters(&self, timeout: Duration, slow_motion: f64) -> String {
        let stretched = |time: Duration| time.mul_f64(slow_motion.max(1.0));
        let election = duration(stretched(ELECTION_TIMEOUT).min(MAX_ELECTION_TIMEOUT));
        let insufficient = stretched(INSUFFICIENT_REPLICAS_TIMEOUT).min(timeout / 2);
        let parameters = [
            ("je.log.fileMax", (self.log_file_mib * MIB).to_string()),
            ("je.cleaner.minUtilization", self.cleaner_min_utilization.to_string()),
            ("je.cleaner.threads", self.cleaner_threads.to_string()),
            ("je.checkpointer.bytesInterval", (self.checkpointer_bytes_mib * MIB).to_string()),
            ("je.reservedDisk", (self.reserved_mib * MIB).to_string()),
            // JE would keep 5 GB free, which is more than many modelled devices have.
            ("je.freeDisk", "0".to_owned()),
            ("je.stats.collect.interval", format!("{} s", STATISTICS_INTERVAL.as_secs())),
            ("je.stats.file.row.count", i32::MAX.to_string()),
            ("je.log.fsyncTimeout", duration(stretched(FSYNC_TIMEOUT))),
            ("je.env.latchTimeout", duration(stretched(LATCH_TIMEOUT))),
            ("je.rep.replicaAckTimeout", duration(stretched(REPLICA_ACK_TIMEOUT))),
            ("je.rep.insufficientReplicasTimeout", duration(insufficient)),
            ("je.rep.feederTimeout", duration(stretched(FEEDER_TIMEOUT))),
            ("je.rep.replicaTimeout", duration(stretched(FEEDER_TIMEOUT))),
            ("je.rep.electionsOpenTimeout", election.clone()),
            ("je.rep.electionsReadTimeout", election),
            ("je.rep.heartbeatInterval", HEARTBEAT.as_millis().to_string()),
        ];
        parameters.map(|(name, value)| format!("{name}={value}")).join(";")
    }

    /// The parameters of every replication node, by Oracle NoSQL Database's names.
    pub(super) fn node_parameters(&self, timeout: Duration, slow_motion: f64) -> BTreeMap<String, String> {
        let division = self.division();
        [
            ("cacheSize", division.cache_bytes.to_string()),
            ("configProperties", self.je_parameters(timeout, slow_motion)),
            ("javaRnParamsOverride", division.java_options()),
            // The default makes regions of 32 MiB, which are too few in a small heap, and threads that compete for the
            // cores.
            ("rnG1GCParams", "-XX:+UseSerialGC".to_owned()),
            // Scans that count records and bytes would be part of what is measured.
            ("rnStatisticsEnabled", "false".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// The effect on clients while the storage nodes of so many copies are down.
    pub(super) fn without(&self, away: u64) -> Option<String> {
        let replication = self.replication();
        let left = replication.saturating_sub(away);
        if left == 0 {
            return Some("a shard has no copy left: it can be neither read nor written".to_owned());
        }
        if left <= replication / 2 {
            let reads = match self.consistency {
                "none" => "it can still be read",
                _ => "reads fail too, since they need its master",
            };
            return Some(format!(
                "{left} of {replication} copies are no majority: a shard takes no writes; {reads}"
            ));
        }
        (self.acks == "ALL").then(|| {
            format!(
                "with acks = \"ALL\" a shard takes no writes while one of its {replication} copies is away"
            )
        })
    }

    /// For the record: the settings, and the sizes that follow from them.
    pub(super) fn applied(&self) -> BTreeMap<String, String> {
        let mut applied = self.recorded();
        if self.existing().is_some() {
            applied.retain(|name, _| OF_RUNNING.contains(&name.as_str()));
            return applied;
        }
        let numbers = [
            ("replication", self.replication()),
            ("shards", self.shards()),
            ("partitions", self.partitions()),
        ];
        applied.extend(numbers.map(|(name, number)| (name.to_owned(), number.to_string())));
        applied.extend(self.division().applied());
        applied
    }
}

/// `HOST:PORT`
fn check_helper(word: &str) -> Result<(), String> {
    let is_helper = word.rsplit_once(':').is_some_and(|(host, port)| {
        let letters = |letter: char| letter.is_ascii_alphanumeric() || ".-_[]:".contains(letter);
        !host.is_empty() && host.chars().all(letters) && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    match is_helper {
        true => Ok(()),
        false => Err(format!("'{word}' is not a storage node: expected HOST:PORT, such as 10.0.0.1:5000")),
    }
}

fn store_name(text: &str) -> Result<String, String> {
    let letters = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    match !text.is_empty() && text.chars().all(letters) {
        true => Ok(text.to_owned()),
        false => Err("expected the name of a store: letters, digits, -, _ and .".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn mistakes(pairs: &[(&str, &str)], budget_bytes: Option<u64>) -> SettingMistakes {
        NosqlConfig::resolve(&values(pairs), budget_bytes).unwrap_err()
    }

    const STARTED: &[(&str, &str)] = &[
        ("nodes", "3"),
        ("capacity", "2"),
        ("replication", "2"),
        ("partitions", "60"),
        ("fields", "minor"),
        ("durability", "NO_SYNC"),
        ("replica_durability", "WRITE_NO_SYNC"),
        ("acks", "ALL"),
        ("consistency", "none"),
        ("heap_share", "0.5"),
        ("cache_share", "0.6"),
        ("log_file_mib", "64"),
        ("cleaner_min_utilization", "50"),
        ("cleaner_threads", "1"),
        ("checkpointer_bytes_mib", "500"),
        ("reserved_mib", "0"),
    ];
    const RUNNING: &[(&str, &str)] = &[("helpers", "10.0.0.1:5000, db.example:5000"), ("store", "prod")];

    #[test]
    fn settings_are_accepted_and_recorded() {
        assert_eq!(STARTED.len() + RUNNING.len(), SETTINGS.len());
        let config = NosqlConfig::resolve(&values(STARTED), Some(8 << 30)).unwrap();
        let applied = config.applied();
        for (name, value) in STARTED {
            assert_eq!(applied[*name], *value, "{name}");
        }
        assert_eq!((config.shards(), config.replication_nodes()), (3, 6));
        assert_eq!(config.write_durability(), "NO_SYNC,WRITE_NO_SYNC,ALL");
        let running = NosqlConfig::resolve(&values(RUNNING), Some(0)).unwrap();
        assert_eq!(running.existing().unwrap().helpers, ["10.0.0.1:5000", "db.example:5000"]);
        assert!(!running.applied().contains_key("heap_bytes"));
        let usual =
            NosqlConfig::resolve(&values(&[("nodes", "3"), ("capacity", "2")]), Some(8 << 30)).unwrap();
        assert_eq!((usual.replication(), usual.shards(), usual.partitions()), (3, 2, 40));
        let alone = NosqlConfig::resolve(&values(&[]), Some(1 << 30)).unwrap();
        assert_eq!((alone.replication(), alone.shards()), (1, 1));
    }

    #[test]
    fn impossible_topology_is_refused() {
        let five = [("nodes", "3"), ("capacity", "1"), ("replication", "5")];
        for budget_bytes in [None, Some(8 << 30)] {
            let found = mistakes(&five, budget_bytes);
            assert_eq!(found[0].0, "replication");
            assert!(found[0].1.contains("number of nodes, 3"), "{found:?}");
        }
        assert!(mistakes(&[("replication", "2")], None)[0].1.contains("number of nodes, 1"));
        let few = mistakes(&[("nodes", "3"), ("capacity", "3"), ("partitions", "2")], None);
        assert_eq!(few[0].0, "partitions");
        let small = mistakes(&[("nodes", "3")], Some(900 * MIB));
        assert_eq!(small[0].0, "memory");
        assert!(
            small[0].1.contains("expected at least 974 MiB for the agents of 3 storage nodes"),
            "{small:?}"
        );
    }

    #[test]
    fn mistakes_are_listed_with_expected_values() {
        let wrong = [
            ("nodes", "0"),
            ("capacity", "0"),
            ("partitions", "none"),
            ("fields", "columns"),
            ("durability", "fsync"),
            ("acks", "QUORUM"),
            ("consistency", "eventual"),
            ("heap_share", "1"),
            ("log_file_mib", "2048"),
            ("shards", "2"),
        ];
        let found = mistakes(&wrong, None);
        assert_eq!(found.len(), wrong.len(), "{found:#?}");
        assert!(found.iter().all(|(_, problem)| problem.contains("expected")), "{found:#?}");
        for (pairs, key) in [
            (&[("helpers", "a:1")][..], "store"),
            (&[("store", "prod")], "helpers"),
            (&[("helpers", "a"), ("store", "prod")], "helpers"),
            (&[("helpers", "a:1"), ("store", "a b")], "store"),
            (&[("helpers", "a:1"), ("store", "prod"), ("capacity", "2")], "capacity"),
        ] {
            let found = mistakes(pairs, None);
            assert_eq!(found.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), [key], "{pairs:?}");
        }
    }

    #[test]
    fn parameters_have_oracle_names_and_follow_slow_motion() {
        let config = NosqlConfig::resolve(&values(&[("nodes", "3")]), Some(2 << 30)).unwrap();
        let parameters = config.node_parameters(Duration::from_secs(30), 10.0);
        let je = &parameters["configProperties"];
        for expected in [
            "je.log.fileMax=10485760;",
            "je.freeDisk=0;",
            "je.rep.replicaAckTimeout=50000 ms;",
            "je.rep.feederTimeout=300000 ms;",
            "je.rep.electionsReadTimeout=60000 ms;",
            "je.rep.heartbeatInterval=1000",
        ] {
            assert!(je.contains(expected), "{expected}: {je}");
        }
        assert!(parameters["javaRnParamsOverride"].contains("-Xmx"));
    }
}
