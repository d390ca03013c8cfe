//! A cache between a system and the object store below it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A job's requests to the cache, and the cache's to the store. Counted from the job's beginning to when the store had
/// everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CacheUse {
    /// `gateway`, `alluxio`
    pub kind: String,
    /// `back` where a write is acknowledged before the store has it, else `through`.
    pub write: String,
    /// The bytes that the job read through it.
    pub read_bytes: u64,
    /// The bytes that it fetched from the store for that.
    pub fetched_bytes: u64,
    /// Blocks that it had, and had not; absent where it does not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hits: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misses: Option<u64>,
    /// The bytes that the job wrote into it.
    pub written_bytes: u64,
    /// The bytes of those that it sent to the store.
    pub stored_bytes: u64,
    /// Acknowledged bytes that the store lacked when the job ended.
    pub dirty_bytes: u64,
    pub dirty_objects: u64,
    /// Objects that never had to be uploaded, because they were renamed, replaced or deleted first; absent where it
    /// does not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avoided_uploads: Option<u64>,
    /// From the job's end until the store had everything, at the pace of the modelled devices. No part of the job's
    /// duration.
    pub drain_s: f64,
}

impl CacheUse {
    /// The part of what was read that the cache had.
    pub fn hit_share(&self) -> Option<f64> {
        match (self.hits, self.misses) {
            (Some(hits), Some(misses)) if hits + misses > 0 => Some(hits as f64 / (hits + misses) as f64),
            (Some(_), Some(_)) => None,
            // It may fetch more than was asked for.
            _ if self.read_bytes > 0 => {
                Some((1.0 - self.fetched_bytes as f64 / self.read_bytes as f64).max(0.0))
            }
            _ => None,
        }
    }
}

/// The S3 gateway's status: at `/status` of its admin port, since its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GatewayStatus {
    pub journal_bytes: u64,
    pub journal_capacity_bytes: u64,
    /// Names whose object in the store is not what it should be.
    pub pending_objects: u64,
    pub oldest_pending_s: f64,
    /// The name of what could not be stored last, and why.
    pub last_failure: Option<(String, String)>,
    pub cached_bytes: u64,
    /// Whether flash is slower than the store, and left alone.
    pub passes_flash_by: bool,
    pub passed_by_blocks: u64,
    pub flash_block_s: f64,
    pub store_block_s: f64,
    /// Fetched before anybody asked for it.
    pub ahead_bytes: u64,
    /// Objects that clients made: by a PUT, a copy, or the end of an upload.
    pub accepted_objects: u64,
    /// Bytes that came into the journal.
    pub accepted_bytes: u64,
    pub flushed_objects: u64,
    pub flushed_bytes: u64,
    pub copied_in_store: u64,
    pub deleted_in_store: u64,
    pub flush_failures: u64,
    pub rescued_bytes: u64,
    pub expired_uploads: u64,
    /// Uploads in parts that were begun and neither completed nor aborted.
    #[serde(default)]
    pub unfinished_uploads: u64,
    /// Of their parts, what is in the journal.
    #[serde(default)]
    pub unfinished_upload_bytes: u64,
    #[serde(default)]
    pub oldest_upload_s: f64,
    /// Parts that went from the journal to a store before their upload was over, and their bytes.
    #[serde(default)]
    pub spilled_parts: u64,
    #[serde(default)]
    pub spilled_bytes: u64,
    /// Keys to which a request may still land that the store has not answered.
    #[serde(default)]
    pub unanswered_keys: u64,
    pub changed_by_others: u64,
    /// Reads of what the gateway has stored and the store does not give.
    pub withheld_by_store: u64,
    /// Buckets whose directory is not there, or is another one than was opened.
    #[serde(default)]
    pub away_stores: Vec<String>,
    /// Of the file system of the local directory, for this user; `None` where it does not say.
    #[serde(default)]
    pub local_free_bytes: Option<u64>,
    /// Writes that were refused for want of room, by what there was none in.
    #[serde(default)]
    pub refused_for_room: Vec<(String, u64)>,
    /// Names whose last attempt to be stored failed, by cause.
    #[serde(default)]
    pub failing_objects: BTreeMap<String, u64>,
    /// Those that have failed for over a minute, the first ones that did.
    #[serde(default)]
    pub failing_long: Vec<GatewayFailing>,
    /// How often each loop of the gateway has panicked.
    #[serde(default)]
    pub panics: BTreeMap<String, u64>,
    pub sent_bytes: u64,
    pub requests: u64,
    pub failed_requests: u64,
    pub prefixes: Vec<GatewayPrefix>,
    pub cluster: Option<GatewayClusterStatus>,
}

/// A name that can't be stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GatewayFailing {
    pub bucket: String,
    pub key: String,
    pub failing_s: f64,
    /// A word for its kind.
    pub cause: String,
    /// The store's last message.
    pub why: String,
}

/// The same where several gateways share a store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GatewayClusterStatus {
    pub served_slots: u64,
    /// Of those, the ones that may have what the store does not have.
    pub dirty_slots: u64,
    /// Whose keys nobody can read now.
    pub nowhere_slots: u64,
    pub lease_left_s: f64,
    pub forwarded: u64,
}

/// The same of a prefix: what its reads found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GatewayPrefix {
    pub bucket: String,
    pub prefix: String,
    pub hits: u64,
    pub misses: u64,
    /// Misses that waited for a request that was under way.
    pub joined: u64,
    pub fetched_bytes: u64,
}

impl GatewayStatus {
    /// Of all prefixes together.
    pub fn sum(&self, pick: fn(&GatewayPrefix) -> u64) -> u64 {
        self.prefixes.iter().map(pick).sum()
    }

    /// Objects that were acknowledged and never had to be uploaded, once nothing is pending.
    pub fn avoided_uploads(&self) -> u64 {
        self.accepted_objects.saturating_sub(self.flushed_objects + self.copied_in_store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_of_blocks_where_blocks_are_counted() {
        let share_of = |hits, misses, read_bytes, fetched_bytes| {
            CacheUse { hits, misses, read_bytes, fetched_bytes, ..CacheUse::default() }.hit_share()
        };
        assert_eq!(share_of(Some(3), Some(1), 100, 100), Some(0.75));
        assert_eq!(share_of(Some(0), Some(0), 100, 0), None);
        assert_eq!(share_of(None, None, 100, 25), Some(0.75));
        assert_eq!(share_of(None, None, 100, 400), Some(0.0), "it fetched ahead");
        assert_eq!(share_of(None, None, 0, 0), None);
    }

    #[test]
    fn blocks_never_uploaded_count_as_avoided() {
        let status = GatewayStatus {
            accepted_objects: 10,
            flushed_objects: 4,
            copied_in_store: 1,
            ..GatewayStatus::default()
        };
        assert_eq!(status.avoided_uploads(), 5);
        // The rest of an earlier start.
        assert_eq!(GatewayStatus { flushed_objects: 20, ..status }.avoided_uploads(), 0);
    }
}
