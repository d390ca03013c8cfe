//! The settings of a cache between jobs and Ceph.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::committer::OutputCommitter;
use super::super::master::NO_CACHE;
use super::super::memory::{CacheKind, ManagerKind, StoreKind};
use super::SparkConfig;
use crate::setting::SettingMistakes;

/// Settings that go with a cache, and with which.
pub(super) const OF_CACHE: &[(&str, &[CacheKind])] = &[
    ("cache_write", &[CacheKind::Gateway, CacheKind::Alluxio]),
    ("cache_memory", &[CacheKind::Gateway, CacheKind::Alluxio]),
    ("cache_flash", &[CacheKind::Gateway, CacheKind::Alluxio]),
    ("cache_flush_after", &[CacheKind::Gateway, CacheKind::Alluxio]),
    ("cache_journal", &[CacheKind::Gateway]),
    ("cache_short_circuit", &[CacheKind::Alluxio]),
];

impl SparkConfig {
    /// Contradictions with a cache, or without one, where a cluster is started.
    pub(super) fn mistakes_of_a_cache(&self, values: &BTreeMap<String, String>) -> SettingMistakes {
        let mut mistakes: SettingMistakes = self.misplaced_cache().into_iter().collect();
        let mut mistake = |key: &str, problem: String| mistakes.push((key.to_owned(), problem));
        if self.cache == Some(CacheKind::Alluxio)
            && matches!(self.committer, OutputCommitter::Directory | OutputCommitter::Magic)
        {
            mistake(
                "committer",
                format!(
                    "expected file-v1, file-v2 or iceberg: {} needs S3A, and jobs do not write through S3A with cache = \"alluxio\"",
                    self.committer.name()
                ),
            );
        }
        for (key, goes_with) in OF_CACHE {
            if values.contains_key(*key) && !self.cache.is_some_and(|cache| goes_with.contains(&cache)) {
                let names: Vec<&str> = goes_with.iter().map(|cache| cache.name()).collect();
                mistake(
                    key,
                    format!("expected not to be set without cache = \"{}\"", names.join("\" or \"")),
                );
            }
        }
        if values.contains_key("cache_flush_after") && !self.cache_is_back {
            mistake("cache_flush_after", "expected not to be set with cache_write = \"through\"".to_owned());
        }
        mistakes
    }

    /// Whether jobs may have a cache before their store: the gateway, if any.
    pub(in super::super) fn takes_a_cache(&self) -> bool {
        self.reject_cache(CacheKind::Gateway).is_none()
    }

    fn misplaced_cache(&self) -> Option<(String, String)> {
        self.cache.and_then(|kind| self.reject_cache(kind)).map(|problem| ("cache".to_owned(), problem))
    }

    fn reject_cache(&self, kind: CacheKind) -> Option<String> {
        let problem = match self.kind() {
            StoreKind::Given => NO_CACHE.to_owned(),
            StoreKind::Hdfs | StoreKind::Elsewhere => {
                "expected not to be set without store = \"s3a\" on Ceph".to_owned()
            }
            // Containers see the mounts of the storage alone, so that Alluxio's memory is hidden from them, and have no
            // room for its client.
            StoreKind::S3a if self.manager == ManagerKind::Yarn => {
                "expected not to be set beside manager = \"yarn\": a cache goes with Spark's own workers alone".to_owned()
            }
            // Its copy of Amazon's first SDK could be set to trust a certificate; nobody has tried, nor its client with
            // that version.
            StoreKind::S3a if kind == CacheKind::Alluxio && self.version.needs_tls() => format!(
                "expected none or gateway: Ceph speaks TLS alone with Spark {}, and Alluxio is set up for plain HTTP here; it goes with version = \"3.5\"",
                self.version.name()
            ),
            StoreKind::S3a => return None,
        };
        Some(problem)
    }

    /// Takes these settings of a cache, and the defaults of those that are left out, in place of the former ones.
    pub(in super::super) fn set_cache(
        &mut self,
        values: &BTreeMap<String, String>,
    ) -> Result<(), SettingMistakes> {
        let (other, mut mistakes) = SparkConfig::read(values, self.budget_bytes);
        let changed = SparkConfig {
            cache: other.cache,
            cache_is_back: other.cache_is_back,
            cache_bytes: other.cache_bytes,
            cache_flash_bytes: other.cache_flash_bytes,
            cache_journal_bytes: other.cache_journal_bytes,
            cache_flush_after: other.cache_flush_after,
            cache_is_short: other.cache_is_short,
            ..self.clone()
        };
        mistakes.extend(changed.misplaced_cache());
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        *self = changed;
        Ok(())
    }

    /// How long a write may wait before it is stored, in modelled time; `None` where it is written through.
    pub(in super::super) fn flush_after(&self) -> Option<Duration> {
        let usual = match self.cache? {
            CacheKind::Gateway => Duration::from_secs(5),
            // A file that a committer renames while it is being stored is stored for nothing.
            CacheKind::Alluxio => Duration::from_secs(10),
        };
        self.cache_is_back.then(|| self.cache_flush_after.unwrap_or(usual))
    }
}
