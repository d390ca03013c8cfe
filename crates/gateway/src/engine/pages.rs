//! Requests for listings, and their pages.

use serde::{Deserialize, Serialize};

use crate::model::{ChecksumCoverage, ObjectRecord};

/// A request for a listing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ListRequest {
    pub prefix: String,
    /// Keys that have it behind the prefix are told of by what is before it.
    pub delimiter: Option<String>,
    /// Only what comes behind this: a key, or a common prefix with everything that has it.
    pub after: Option<String>,
    pub most: usize,
}

/// An object, or what several keys begin with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ListEntry {
    Object(String, Box<ObjectRecord>),
    Prefix(String),
}

impl ListEntry {
    pub fn name(&self) -> &str {
        match self {
            ListEntry::Object(name, _) | ListEntry::Prefix(name) => name,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListPage {
    pub entries: Vec<ListEntry>,
    pub is_truncated: bool,
}

/// An upload that is in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadSummary {
    pub key: String,
    pub upload: String,
    pub begun_ms: i64,
    pub checksum_algorithm: Option<String>,
    pub coverage: Option<ChecksumCoverage>,
}

/// Which uploads to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadsRequest {
    pub prefix: String,
    /// Keys that have it behind the prefix are told of by what is before it.
    pub delimiter: Option<String>,
    /// Only what comes behind all uploads of this key, or behind a common prefix with everything that has it.
    pub after: Option<String>,
    /// Together with the key: only what comes behind this one of its uploads.
    pub after_upload: Option<String>,
    pub most: usize,
}

/// An upload, or what the keys of several begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UploadEntry {
    Upload(UploadSummary),
    Prefix(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadListing {
    pub entries: Vec<UploadEntry>,
    pub is_truncated: bool,
}

impl UploadsRequest {
    /// The common prefix that a key has, with the delimiter.
    pub(super) fn group_of<'k>(&self, key: &'k str) -> Option<&'k str> {
        let delimiter = self.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty())?;
        let begin = self.prefix.len();
        let end = key.get(begin..)?.find(delimiter)? + begin + delimiter.len();
        Some(&key[..end])
    }
}
