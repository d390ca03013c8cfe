//! The gateway's data model of buckets, objects and their bytes: plain data, as in the metadata store.
//!
//! An *object* is a name with headers and a list of *extents*; an extent is a range of a *content*. A content is a
//! sequence of bytes that never changes and has one place, in the journal or in a store's object. So a copy is a second
//! list of the same extents, and a rename moves no byte. A content counts how many extents use it, and is gone with the
//! last.

use serde::{Deserialize, Serialize};

/// Identifies a content for good: never given twice, not even after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContentId(pub u64);

/// `length_bytes` of a content from `offset_bytes` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentExtent {
    pub content: ContentId,
    pub offset_bytes: u64,
    pub length_bytes: u64,
}

/// Headers that S3 keeps with an object and returns with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ObjectHeaders {
    pub content_type: Option<String>,
    pub cache_control: Option<String>,
    pub content_disposition: Option<String>,
    pub content_encoding: Option<String>,
    pub content_language: Option<String>,
    /// As HTTP has it.
    pub expires: Option<String>,
    /// `x-amz-meta-` without the prefix, in order.
    pub user: Vec<(String, String)>,
}

/// How a checksum covers an object of several parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChecksumCoverage {
    /// All bytes.
    Full,
    /// The checksums of the parts.
    Composite,
}

/// Base64, as S3 writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectChecksums {
    pub crc32: Option<String>,
    pub crc32c: Option<String>,
    pub crc64nvme: Option<String>,
    pub sha1: Option<String>,
    pub sha256: Option<String>,
    pub coverage: Option<ChecksumCoverage>,
}

/// An object as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRecord {
    /// Changes with each write, so that work on an older version is noticed.
    pub version: u64,
    pub size_bytes: u64,
    /// Without quotes: the MD5 of the bytes, that of the parts' MD5s with a dash and their number, or the store's.
    pub etag: String,
    /// Since 1970.
    pub modified_ms: i64,
    pub extents: Vec<ContentExtent>,
    pub headers: ObjectHeaders,
    pub tags: Vec<(String, String)>,
    pub checksums: ObjectChecksums,
    /// Of a multipart upload.
    pub part_sizes_bytes: Vec<u64>,
    /// Of each part, in the algorithm of the object's own checksum; empty where a part has none.
    pub part_checksums: Vec<String>,
    /// Whether only a listing of the store told of it, which has neither headers nor checksums.
    pub only_listed: bool,
}

/// Where the bytes of a content are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContentPlace {
    /// In a segment of the journal.
    Local { segment: u64, offset_bytes: u64 },
    /// The whole object of this name in the store.
    Remote {
        bucket: String,
        key: String,
        /// The store's ETag, where it gives one.
        etag: Option<String>,
        /// Of the headers that it was stored with: the store's own copy takes those along.
        headers_hash: Option<u64>,
        /// Under whose number the cache has blocks of these bytes: that of the content they were copied from.
        cached_as: ContentId,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentRecord {
    pub size_bytes: u64,
    /// Extents of objects and of parts that use it.
    pub references: u64,
    pub place: ContentPlace,
    /// Of what this gateway has stored, and has looked that the store has it, or has found in a listing: since when, by
    /// the store's own clock (since 1970). Objects changed by others have none, nor have rows of an earlier version:
    /// the field is the last one, and such a row ends before it. Of bytes in the journal only what was fetched from the
    /// store has one.
    #[serde(deserialize_with = "or_none")]
    pub confirmed_ms: Option<i64>,
}

impl ContentRecord {
    /// Whether the journal has it although no client has written it there: it was fetched from the store, which had
    /// confirmed it before.
    pub fn was_fetched(&self) -> bool {
        matches!(self.place, ContentPlace::Local { .. }) && self.confirmed_ms.is_some()
    }
}

fn or_none<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    Ok(Option::deserialize(from).unwrap_or(None))
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketRecord {
    pub created_ms: i64,
    /// Where its objects are: a configuration that says otherwise would make these metadata wrong.
    pub store: String,
    /// Whether a client created it, and not the configuration.
    pub is_created: bool,
}

/// A name whose object in the store is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingRecord {
    /// Since 1970.
    pub since_ms: i64,
}

/// The use of an object of the store: the content that is at that name, if anything uses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRecord {
    pub content: Option<ContentId>,
}

/// A multipart upload in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadRecord {
    pub begun_ms: i64,
    pub headers: ObjectHeaders,
    pub tags: Vec<(String, String)>,
    /// As the client named it: `CRC32`, for example.
    pub checksum_algorithm: Option<String>,
    pub coverage: Option<ChecksumCoverage>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRecord {
    pub size_bytes: u64,
    /// The MD5 of its bytes, or for a part copied by reference a number that is as good for S3's purposes.
    pub etag: String,
    pub modified_ms: i64,
    pub extents: Vec<ContentExtent>,
    pub checksums: ObjectChecksums,
}

impl ObjectHeaders {
    /// For [`ContentPlace::Remote`].
    pub fn hash_code(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        // FNV-1a: the number is kept on disk, so it must be the same with every compiler.
        for byte in postcard::to_allocvec(self).unwrap_or_default() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        hash
    }
}

/// Milliseconds since 1970 by this machine's clock.
pub(crate) fn now_ms() -> i64 {
    let elapsed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_records_are_compatible_with_earlier_versions() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Earlier {
            size_bytes: u64,
            references: u64,
            place: ContentPlace,
        }
        let place = ContentPlace::Local { segment: 7, offset_bytes: 300 };
        let earlier = Earlier { size_bytes: 5, references: 1, place: place.clone() };
        let mut now = ContentRecord { size_bytes: 5, references: 1, place, confirmed_ms: None };
        let bytes = postcard::to_allocvec(&earlier).unwrap();
        assert_eq!(postcard::from_bytes::<ContentRecord>(&bytes), Ok(now.clone()));
        now.confirmed_ms = Some(1_700_000_000_000);
        let bytes = postcard::to_allocvec(&now).unwrap();
        assert_eq!(postcard::from_bytes::<ContentRecord>(&bytes), Ok(now));
        assert_eq!(postcard::from_bytes::<Earlier>(&bytes), Ok(earlier));
    }
}
