//! The tables and their keys. A key begins with its bucket and a zero byte, so the keys of a bucket are neighbours in
//! the order that S3 lists them in.

use redb::TableDefinition;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::errors::{GatewayError, GatewayResult};

pub(crate) type MetadataTable = TableDefinition<'static, &'static [u8], &'static [u8]>;

/// Numbers of the gateway's own.
pub(crate) const STATE: MetadataTable = TableDefinition::new("state");
/// Bucket: [`BucketRecord`](crate::model::BucketRecord).
pub(crate) const BUCKETS: MetadataTable = TableDefinition::new("buckets");
/// [`ObjectName`]: [`ObjectRecord`](crate::model::ObjectRecord).
pub(crate) const OBJECTS: MetadataTable = TableDefinition::new("objects");
/// [`ContentId`](crate::model::ContentId): [`ContentRecord`](crate::model::ContentRecord).
pub(crate) const CONTENTS: MetadataTable = TableDefinition::new("contents");
/// [`ObjectName`]: [`PendingRecord`](crate::model::PendingRecord).
pub(crate) const PENDING: MetadataTable = TableDefinition::new("pending");
/// [`ObjectName`]: [`StoredRecord`](crate::model::StoredRecord), for every name at which the store may have an object.
pub(crate) const STORED: MetadataTable = TableDefinition::new("stored");
/// [`upload_key`]: [`UploadRecord`](crate::model::UploadRecord).
pub(crate) const UPLOADS: MetadataTable = TableDefinition::new("uploads");
/// [`part_key`]: [`PartRecord`](crate::model::PartRecord).
pub(crate) const PARTS: MetadataTable = TableDefinition::new("parts");
/// Of earlier versions, [`ObjectName`] of a prefix whose objects have been taken over from the store: nothing.
pub(crate) const IMPORTED: MetadataTable = TableDefinition::new("imported");

/// A bucket and a key, or the beginning of one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectName {
    pub(crate) bucket: String,
    pub(crate) key: String,
}

impl ObjectName {
    pub(crate) fn new(bucket: impl Into<String>, key: impl Into<String>) -> ObjectName {
        ObjectName { bucket: bucket.into(), key: key.into() }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bucket.len() + 1 + self.key.len());
        bytes.extend_from_slice(self.bucket.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(self.key.as_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<ObjectName> {
        let end = bytes.iter().position(|byte| *byte == 0)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        Some(ObjectName { bucket: text(&bytes[..end])?, key: text(&bytes[end + 1..])? })
    }
}

impl std::fmt::Display for ObjectName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.bucket, self.key.escape_debug())
    }
}

/// Uploads of one key are neighbours, in the order of their numbers. Keys have no zero bytes.
pub(crate) fn upload_key(name: &ObjectName, upload: &str) -> Vec<u8> {
    let mut bytes = name.to_bytes();
    bytes.push(0);
    bytes.extend_from_slice(upload.as_bytes());
    bytes
}

pub(crate) fn split_upload_key(bytes: &[u8]) -> Option<(ObjectName, String)> {
    let end = bytes.iter().rposition(|byte| *byte == 0)?;
    Some((ObjectName::from_bytes(&bytes[..end])?, String::from_utf8(bytes[end + 1..].to_vec()).ok()?))
}

pub(crate) fn part_key(upload: &str, number: u16) -> Vec<u8> {
    let mut bytes = upload.as_bytes().to_vec();
    bytes.push(0);
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes
}

pub(crate) fn split_part_key(bytes: &[u8]) -> Option<(&str, u16)> {
    let (rest, number) = bytes.split_at_checked(bytes.len().checked_sub(2)?)?;
    let upload = std::str::from_utf8(rest.strip_suffix(&[0])?).ok()?;
    Some((upload, u16::from_be_bytes(number.try_into().ok()?)))
}

/// Of a row in [`STATE`]: the upload that has made an object, and the version which that is.
pub(super) fn made_by_key(name: &ObjectName) -> Vec<u8> {
    [b"made by ", name.to_bytes().as_slice()].concat()
}

pub(crate) fn encode<V: Serialize>(value: &V) -> GatewayResult<Vec<u8>> {
    postcard::to_allocvec(value).map_err(|error| GatewayError::local("cannot write metadata", error))
}

/// # Errors
/// When the bytes are not what [`encode`] wrote.
pub(crate) fn decode<V: DeserializeOwned>(bytes: &[u8]) -> GatewayResult<V> {
    postcard::from_bytes(bytes)
        .map_err(|error| GatewayError::local("a record of the metadata is damaged", error))
}
