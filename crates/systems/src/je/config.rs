//! The settings that a study may give. `docs.md` explains them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::engine::{
    CACHE_SHARE, CHECKPOINTER_BYTES_MIB, CLEANER_MIN_UTILIZATION, CLEANER_THREADS, HEAP_SHARE, JeEnvironment,
    KEYS_PER_NODE, LOG_FILE_MIB, SYNC_POLICIES,
};
use super::memory::{DEFAULT_CACHE_SHARE, DEFAULT_HEAP_SHARE, JeMemoryLayout, MIN_BYTES};
use crate::setting::{SettingMistakes, settings, too_small};

settings! {
    /// Every setting with its value in force.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct JeConfig {
        "heap_share" => heap_share: f64 = DEFAULT_HEAP_SHARE, HEAP_SHARE,
            "part of the memory that is left beside Java for its heap: 0.6";
        "cache_share" => cache_share: f64 = DEFAULT_CACHE_SHARE, CACHE_SHARE,
            "part of the heap for JE's cache: 0.6";
        "durability" => durability: &'static str = "SYNC", SYNC_POLICIES,
            "what is done to the log before a write is answered: SYNC (default: on the device), WRITE_NO_SYNC or NO_SYNC";
        "log_file_mib" => log_file_mib: u64 = 10, LOG_FILE_MIB, "size of a log file in MiB, 1 to 1024: 10";
        "cleaner_min_utilization" => cleaner_min_utilization: u64 = 50, CLEANER_MIN_UTILIZATION,
            "percentage of the log that is kept in use by cleaning, 0 to 90: 50";
        "cleaner_threads" => cleaner_threads: u64 = 1, CLEANER_THREADS, "files cleaned at once: 1";
        "checkpointer_bytes_mib" => checkpointer_bytes_mib: u64 = 20, CHECKPOINTER_BYTES_MIB,
            "MiB written to the log between two checkpoints: 20";
        "keys_per_node" => keys_per_node: u64 = 128, KEYS_PER_NODE,
            "most keys in a node of the tree, 4 to 32767: 128";
    }
}

impl JeConfig {
    /// The configuration of `values` under a budget, or every mistake. Without a budget it is too early to judge that.
    pub(crate) fn resolve(
        values: &BTreeMap<String, String>,
        budget_bytes: Option<u64>,
    ) -> Result<JeConfig, SettingMistakes> {
        let (config, mut mistakes) = JeConfig::read(values, budget_bytes.unwrap_or(u64::MAX));
        if config.budget_bytes < MIN_BYTES {
            mistakes.insert(0, ("memory".to_owned(), too_small(config.budget_bytes, MIN_BYTES)));
        }
        if mistakes.is_empty() { Ok(config) } else { Err(mistakes) }
    }

    pub(crate) fn division(&self) -> JeMemoryLayout {
        JeMemoryLayout::new(self.budget_bytes, self.heap_share, self.cache_share)
    }

    pub(super) fn engine(&self, lock_timeout: Duration, slow_motion: f64) -> JeEnvironment {
        JeEnvironment {
            division: self.division(),
            log_file_mib: self.log_file_mib,
            cleaner_min_utilization: self.cleaner_min_utilization,
            cleaner_threads: self.cleaner_threads,
            checkpointer_bytes_mib: self.checkpointer_bytes_mib,
            keys_per_node: self.keys_per_node,
            lock_timeout,
            slow_motion,
        }
    }

    /// For the record: the settings, and the sizes that follow from them.
    pub(super) fn applied(&self) -> BTreeMap<String, String> {
        let mut applied = self.recorded();
        applied.extend(self.division().applied());
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
            ("heap_share", "50 %"),
            ("cache_share", "0.7"),
            ("durability", "no_sync"),
            ("log_file_mib", "1_024"),
            ("cleaner_min_utilization", "40"),
            ("cleaner_threads", "2"),
            ("checkpointer_bytes_mib", "500"),
            ("keys_per_node", "256"),
        ]);
        assert_eq!(settings.len(), SETTINGS.len());
        let applied = JeConfig::resolve(&settings, Some(1 << 30)).unwrap().applied();
        for (name, value) in &settings {
            let expected =
                value.replace("50 %", "0.5").replace("1_024", "1024").replace("no_sync", "NO_SYNC");
            assert_eq!(applied[name], expected, "{name}");
        }
        assert_eq!(applied["heap_bytes"], (464_u64 << 20).to_string());
    }

    #[test]
    fn mistakes_are_listed_with_expected_values() {
        let settings = values(&[
            ("heap_share", "1"),
            ("cache_share", "NaN"),
            ("durability", "fsync"),
            ("log_file_mib", "0"),
            ("cleaner_min_utilization", "91"),
            ("cleaner_threads", "-1"),
            ("checkpointer_bytes_mib", "20 MB"),
            ("keys_per_node", "3"),
            ("replication", "3"),
        ]);
        let mistakes = JeConfig::resolve(&settings, Some(1 << 20)).unwrap_err();
        assert_eq!(mistakes.len(), settings.len() + 1);
        for (key, problem) in &mistakes {
            assert!(problem.contains("expected"), "{key}: {problem}");
        }
    }
}
