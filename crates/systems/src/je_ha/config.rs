//! The settings that a study may give. `docs.md` explains them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::topology::{GroupMember, members};
use crate::je::engine::{
    CACHE_SHARE, CHECKPOINTER_BYTES_MIB, CLEANER_MIN_UTILIZATION, CLEANER_THREADS, HEAP_SHARE, JeEnvironment,
    KEYS_PER_NODE, LOG_FILE_MIB, SYNC_POLICIES, duration,
};
use crate::je::memory::{DEFAULT_CACHE_SHARE, DEFAULT_HEAP_SHARE, JeMemoryLayout, MIB, MIN_BYTES};
use crate::setting::{IntegerSetting, OneOf, OptionalSetting, SettingMistakes, settings, too_small};

/// Nodes beyond this are more than one host runs.
const NODES: IntegerSetting = IntegerSetting(1..=32);
const SHARDS: IntegerSetting = IntegerSetting(1..=64);
const USUAL_REPLICATION: u64 = 3;

/// JE's own limits, which slow motion stretches.
const REPLICA_ACK_TIMEOUT: Duration = Duration::from_secs(5);
const INSUFFICIENT_REPLICAS_TIMEOUT: Duration = Duration::from_secs(10);
const FEEDER_TIMEOUT: Duration = Duration::from_secs(30);
const CONSISTENCY_TIMEOUT: Duration = Duration::from_secs(300);
const ELECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// JE accepts no longer one for a message of an election.
const MAX_ELECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a member that joins may be silent before its first heartbeat.
const PRE_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(60);
/// Not stretched: members that start, hand over or stop wait for the next one, and it costs next to nothing.
const HEARTBEAT: Duration = Duration::from_secs(1);

settings! {
    /// Every setting with its value in force.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct JeHaConfig {
        "nodes" => nodes: u64 = 1, NODES, "machines that the members of all shards are spread over: 1";
        "replication" => given_replication: Option<u64> = None, OptionalSetting(IntegerSetting(1..=7)),
            "members of each shard, a Java process each on a node of its own: 3, or as many as there are nodes";
        "shards" => given_shards: Option<u64> = None, OptionalSetting(SHARDS),
            "replication groups that the records are divided among by their keys: nodes / replication";
        "durability" => durability: &'static str = "SYNC", SYNC_POLICIES,
            "what the master does to its log before it answers: SYNC (default: on the device), WRITE_NO_SYNC or NO_SYNC";
        "replica_durability" => replica_durability: &'static str = "SYNC", SYNC_POLICIES,
            "what a replica does to its log before it acknowledges: SYNC (default), WRITE_NO_SYNC or NO_SYNC";
        "acks" => acks: &'static str = "SIMPLE_MAJORITY",
            OneOf(&[("SIMPLE_MAJORITY", "SIMPLE_MAJORITY"), ("ALL", "ALL"), ("NONE", "NONE")]),
            "whose acknowledgements a write waits for: SIMPLE_MAJORITY (default), ALL or NONE";
        "consistency" => consistency: ReadConsistency = ReadConsistency::Absolute,
            OneOf(&[("absolute", ReadConsistency::Absolute), ("none", ReadConsistency::None)]),
            "of reads: absolute (default: by the master) or none (by any member, however far behind it is)";
        "reserved_mib" => reserved_mib: u64 = 256, IntegerSetting(0..=1 << 20),
            "MiB of cleaned log files that a member keeps for others that were away; 0: as much as there is room for: 256";
        "heap_share" => heap_share: f64 = DEFAULT_HEAP_SHARE, HEAP_SHARE,
            "part of a member's memory that is left beside Java for its heap: 0.6";
        "cache_share" => cache_share: f64 = DEFAULT_CACHE_SHARE, CACHE_SHARE,
            "part of the heap for JE's cache: 0.6";
        "log_file_mib" => log_file_mib: u64 = 10, LOG_FILE_MIB, "size of a log file in MiB, 1 to 1024: 10";
        "cleaner_min_utilization" => cleaner_min_utilization: u64 = 50, CLEANER_MIN_UTILIZATION,
            "percentage of the log that is kept in use by cleaning, 0 to 90: 50";
        "cleaner_threads" => cleaner_threads: u64 = 1, CLEANER_THREADS, "files that a member cleans at once: 1";
        "checkpointer_bytes_mib" => checkpointer_bytes_mib: u64 = 20, CHECKPOINTER_BYTES_MIB,
            "MiB written to the log between two checkpoints: 20";
        "keys_per_node" => keys_per_node: u64 = 128, KEYS_PER_NODE,
            "most keys in a node of the tree, 4 to 32767: 128";
    }
}

/// Who answers reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadConsistency {
    Absolute,
    None,
}

impl JeHaConfig {
    /// The configuration of `values` under a budget of all members together, or every mistake. Without a budget it is
    /// too early to judge that, and how many nodes there are if `values` doesn't say so.
    pub(crate) fn resolve(
        values: &BTreeMap<String, String>,
        budget_bytes: Option<u64>,
    ) -> Result<JeHaConfig, SettingMistakes> {
        let nodes_known = budget_bytes.is_some() || values.contains_key("nodes");
        let (config, mut mistakes) = JeHaConfig::read(values, budget_bytes.unwrap_or(u64::MAX));
        let mut mistake = |key: &str, problem: String| mistakes.push((key.to_owned(), problem));
        if nodes_known && config.replication() > config.nodes {
            mistake(
                "replication",
                format!(
                    "expected at most the number of nodes, {}: each member of a shard is on a node of its own",
                    config.nodes
                ),
            );
        } else if config.budget_bytes < config.min_bytes() {
            let small = too_small(config.budget_bytes, config.min_bytes());
            let shards = match config.shards() {
                1 => "1 shard".to_owned(),
                shards => format!("{shards} shards"),
            };
            mistake("memory", format!("{small} for {shards} with a replication of {}", config.replication()));
        }
        if mistakes.is_empty() { Ok(config) } else { Err(mistakes) }
    }

    pub(crate) fn replication(&self) -> u64 {
        self.given_replication.unwrap_or(self.nodes.min(USUAL_REPLICATION))
    }

    pub(crate) fn shards(&self) -> u64 {
        self.given_shards.unwrap_or((self.nodes / self.replication()).max(1))
    }

    fn min_bytes(&self) -> u64 {
        self.shards() * self.replication() * MIN_BYTES
    }

    /// The effect on clients while so many members are down, of this shard or, at the worst, of one.
    pub(super) fn without(&self, shard: Option<u32>, away: u64) -> Option<String> {
        let replication = self.replication();
        let shard = shard.map_or("a shard".to_owned(), |shard| format!("shard {shard}"));
        let left = replication.saturating_sub(away);
        if left == 0 {
            return Some(format!("{shard} has no member left: it can be neither read nor written"));
        }
        if left <= replication / 2 {
            let reads = match self.consistency {
                ReadConsistency::Absolute => "reads fail too, unless its master is the one that is left",
                ReadConsistency::None => "it can still be read",
            };
            return Some(format!(
                "{left} of {replication} members are no majority: {shard} takes no writes; {reads}"
            ));
        }
        (self.acks == "ALL").then(|| {
            format!(
                "with acks = \"ALL\" {shard} takes no writes while one of its {replication} members is away"
            )
        })
    }

    pub(super) fn members(&self) -> Vec<GroupMember> {
        members(self.nodes, self.shards(), self.replication())
    }

    /// The sizes of one member.
    pub(super) fn division(&self) -> JeMemoryLayout {
        let members = self.shards() * self.replication();
        JeMemoryLayout::new(self.budget_bytes / members, self.heap_share, self.cache_share)
    }

    /// Of a write, as JE writes it.
    pub(super) fn durability(&self) -> String {
        format!("{},{},{}", self.durability, self.replica_durability, self.acks)
    }

    /// JE's parameters for every member, by its names. A client waits for an answer for `timeout`, and starting may
    /// take `limit`.
    pub(super) fn parameters(
        &self,
        timeout: Duration,
        limit: Duration,
        slow_motion: f64,
    ) -> BTreeMap<String, String> {
        let engine = JeEnvironment {
            division: self.division(),
            log_file_mib: self.log_file_mib,
            cleaner_min_utilization: self.cleaner_min_utilization,
            cleaner_threads: self.cleaner_threads,
            checkpointer_bytes_mib: self.checkpointer_bytes_mib,
            keys_per_node: self.keys_per_node,
            lock_timeout: timeout,
            slow_motion,
        };
        let stretched = |time: Duration| time.mul_f64(slow_motion.max(1.0));
        let election = duration(stretched(ELECTION_TIMEOUT).min(MAX_ELECTION_TIMEOUT));
        let mut parameters = engine.parameters();
        let own = [
            ("je.reservedDisk", (self.reserved_mib * MIB).to_string()),
            ("je.rep.replicaAckTimeout", duration(stretched(REPLICA_ACK_TIMEOUT))),
            // The client is to learn why a write fails, and not to give up first.
            (
                "je.rep.insufficientReplicasTimeout",
                duration(stretched(INSUFFICIENT_REPLICAS_TIMEOUT).min(timeout / 2)),
            ),
            ("je.rep.feederTimeout", duration(stretched(FEEDER_TIMEOUT))),
            ("je.rep.replicaTimeout", duration(stretched(FEEDER_TIMEOUT))),
            ("je.rep.envConsistencyTimeout", duration(stretched(CONSISTENCY_TIMEOUT))),
            ("je.rep.electionsOpenTimeout", election.clone()),
            ("je.rep.electionsReadTimeout", election),
            ("je.rep.preHeartbeatTimeoutMs", duration(stretched(PRE_HEARTBEAT_TIMEOUT))),
            ("je.rep.heartbeatInterval", HEARTBEAT.as_millis().to_string()),
            ("je.rep.envSetupTimeout", duration(limit)),
            // A former master's own writes are rolled back without asking anybody.
            ("je.rep.txnRollbackLimit", i32::MAX.to_string()),
        ];
        parameters.extend(own.map(|(name, value)| (name.to_owned(), value)));
        parameters
    }

    /// For the record: the settings, the sizes of one member, and which nodes have which shard, its first master first.
    pub(super) fn applied(&self) -> BTreeMap<String, String> {
        let mut applied = self.recorded();
        applied.insert("replication".to_owned(), self.replication().to_string());
        applied.insert("shards".to_owned(), self.shards().to_string());
        applied.extend(self.division().applied());
        for member in self.members() {
            let nodes = applied.entry(format!("members_of_shard_{}", member.shard)).or_default();
            let comma = if nodes.is_empty() { "" } else { ", " };
            *nodes += &format!("{comma}node {}", member.node);
        }
        applied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn settings_are_accepted_and_recorded() {
        let settings = values(&[
            ("nodes", "6"),
            ("replication", "2"),
            ("shards", "4"),
            ("durability", "NO_SYNC"),
            ("replica_durability", "WRITE_NO_SYNC"),
            ("acks", "ALL"),
            ("consistency", "none"),
            ("reserved_mib", "0"),
            ("heap_share", "0.5"),
            ("cache_share", "0.7"),
            ("log_file_mib", "1024"),
            ("cleaner_min_utilization", "40"),
            ("cleaner_threads", "2"),
            ("checkpointer_bytes_mib", "500"),
            ("keys_per_node", "256"),
        ]);
        assert_eq!(settings.len(), SETTINGS.len());
        let config = JeHaConfig::resolve(&settings, Some(4 << 30)).unwrap();
        let applied = config.applied();
        for (name, value) in &settings {
            assert_eq!(applied[name], *value, "{name}");
        }
        assert_eq!(config.durability(), "NO_SYNC,WRITE_NO_SYNC,ALL");
        assert_eq!(applied["members_of_shard_4"], "node 2, node 1", "the first nodes lead others already");
        let alone = JeHaConfig::resolve(&values(&[]), Some(1 << 30)).unwrap();
        assert_eq!((alone.replication(), alone.shards()), (1, 1));
        let usual = JeHaConfig::resolve(&values(&[("nodes", "6")]), Some(4 << 30)).unwrap();
        assert_eq!((usual.replication(), usual.shards(), usual.members().len()), (3, 2, 6));
    }

    #[test]
    fn mistakes_are_listed_with_expected_values() {
        let settings = values(&[
            ("nodes", "0"),
            ("replication", "8"),
            ("shards", "0"),
            ("durability", "fsync"),
            ("replica_durability", ""),
            ("acks", "QUORUM"),
            ("consistency", "eventual"),
            ("reserved_mib", "-1"),
            ("heap_share", "1"),
            ("cache_share", "0.9"),
            ("log_file_mib", "2048"),
            ("cleaner_min_utilization", "91"),
            ("cleaner_threads", "0"),
            ("checkpointer_bytes_mib", "0"),
            ("keys_per_node", "2"),
            ("capacity", "2"),
        ]);
        let mistakes = JeHaConfig::resolve(&settings, Some(1 << 20)).unwrap_err();
        assert_eq!(mistakes.len(), settings.len() + 1, "{mistakes:#?}");
        for (key, problem) in &mistakes {
            assert!(problem.contains("expected"), "{key}: {problem}");
        }
        let too_many = values(&[("nodes", "3"), ("replication", "5")]);
        for budget_bytes in [None, Some(4 << 30)] {
            assert_eq!(JeHaConfig::resolve(&too_many, budget_bytes).unwrap_err()[0].0, "replication");
        }
        // The number of nodes is checked later.
        assert!(JeHaConfig::resolve(&values(&[("replication", "5")]), None).is_ok());
        let small = JeHaConfig::resolve(&values(&[("nodes", "3")]), Some(400 << 20)).unwrap_err();
        assert!(small[0].1.contains("528 MiB for 1 shard with a replication of 3"), "{small:?}");
    }

    #[test]
    fn loss_of_too_many_members_is_explained() {
        let problem_without = |pairs: &[(&str, &str)], away| {
            JeHaConfig::resolve(&values(pairs), None).unwrap().without(None, away)
        };
        assert_eq!(problem_without(&[("nodes", "3")], 1), None);
        assert!(problem_without(&[("nodes", "3")], 2).unwrap().contains("1 of 3 members are no majority"));
        assert!(problem_without(&[("nodes", "3")], 3).unwrap().contains("neither read nor written"));
        assert!(problem_without(&[("nodes", "2")], 1).unwrap().contains("no majority"));
        assert!(problem_without(&[("nodes", "3"), ("acks", "ALL")], 1).unwrap().contains("acks"));
        assert!(
            problem_without(&[("nodes", "3"), ("consistency", "none")], 2).unwrap().contains("still be read")
        );
    }

    #[test]
    fn slow_motion_stretches_what_members_wait_for_each_other() {
        let config = JeHaConfig::default();
        let parameters = config.parameters(Duration::from_secs(30), Duration::from_secs(240), 10.0);
        assert_eq!(parameters["je.rep.replicaAckTimeout"], "50000 ms");
        assert_eq!(parameters["je.rep.feederTimeout"], "300000 ms");
        assert_eq!(parameters["je.rep.electionsReadTimeout"], "60000 ms");
        assert_eq!(parameters["je.rep.insufficientReplicasTimeout"], "15000 ms");
        assert_eq!(parameters["je.rep.heartbeatInterval"], "1000");
    }
}
