//! Questions to other gateways. Requests for one key go to its owner as they are; here is what takes several: listings,
//! deletions of many keys, and copies from another's objects.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::conditions::WriteConditions;
use super::pages::{ListEntry, ListRequest, UploadSummary};
use super::{BucketState, GatewayEngine};
use crate::disk_room::DiskNeed;
use crate::errors::{GatewayError, GatewayResult};
use crate::model::{ObjectHeaders, ObjectRecord};
use crate::ownership::{KeyRoute, OwnerShare, SlotOwnership, WritePass};
use crate::store::BackendKind;

/// How this gateway and others divide the keys among themselves.
#[derive(Clone)]
pub struct KeySharing {
    pub ownership: Arc<SlotOwnership>,
    pub others: Arc<dyn PeerQueries>,
}

/// Asks another gateway.
#[async_trait]
pub trait PeerQueries: Send + Sync {
    /// # Errors
    /// The other's answer, or `Busy` when it does not answer.
    async fn ask(&self, owner: &str, question: &PeerQuestion) -> GatewayResult<PeerAnswer>;
}

/// A gateway's question to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PeerQuestion {
    /// The objects in these slots, which the other has at these epochs.
    List {
        bucket: String,
        request: ListRequest,
        slots: Vec<(u16, u64)>,
    },
    ListUploads {
        bucket: String,
        prefix: String,
        after: Option<(String, Option<String>)>,
        most: u64,
        slots: Vec<(u16, u64)>,
    },
    Delete {
        bucket: String,
        keys: Vec<(String, WriteConditions)>,
    },
    Look {
        bucket: String,
        key: String,
    },
    Read {
        bucket: String,
        key: String,
        etag: String,
        range: Range<u64>,
    },
    /// Whether it answers at all.
    Ping,
}

impl PeerQuestion {
    /// Whether it changes nothing, however often it is asked.
    pub(crate) fn only_reads(&self) -> bool {
        !matches!(self, PeerQuestion::Delete { .. })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PeerAnswer {
    Entries(Vec<ListEntry>),
    Uploads(Vec<UploadSummary>, bool),
    Deleted(Vec<GatewayResult<()>>),
    /// Without where its bytes are.
    Object(Box<ObjectRecord>),
    Bytes(#[serde(with = "raw")] Bytes),
    Pong,
}

/// Bytes as one piece: without this every one would be an element of a list.
mod raw {
    use std::fmt;

    use bytes::Bytes;
    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    struct RawBytes;

    impl Visitor<'_> for RawBytes {
        type Value = Bytes;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
            Ok(Bytes::copy_from_slice(bytes))
        }

        fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
            Ok(Bytes::from(bytes))
        }
    }

    pub(super) fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        from.deserialize_byte_buf(RawBytes)
    }
}

pub(super) fn confused() -> GatewayError {
    GatewayError::Busy(
        "the other gateway answered something else than was asked: are both of one version?".to_owned(),
    )
}

impl GatewayEngine {
    pub(super) fn to_read(&self, bucket: &str, key: &str) -> GatewayResult<WritePass> {
        match &self.setup.sharing {
            None => Ok(WritePass::empty()),
            Some(sharing) => sharing.ownership.read(bucket, key),
        }
    }

    /// # Errors
    /// `Busy` where the local disk has no room for a change, or the keys are another gateway's.
    pub(super) async fn to_write(&self, bucket: &str, keys: &[&str]) -> GatewayResult<WritePass> {
        self.to_write_with(DiskNeed::Change, bucket, keys).await
    }

    /// The same for what makes room in the end.
    ///
    /// # Errors
    /// As there.
    pub(super) async fn to_delete(&self, bucket: &str, keys: &[&str]) -> GatewayResult<WritePass> {
        self.to_write_with(DiskNeed::Deletion, bucket, keys).await
    }

    async fn to_write_with(&self, need: DiskNeed, bucket: &str, keys: &[&str]) -> GatewayResult<WritePass> {
        self.disk.check(need)?;
        match &self.setup.sharing {
            None => Ok(WritePass::empty()),
            Some(sharing) => sharing.ownership.write(bucket, keys).await,
        }
    }

    pub(super) fn to_read_slots(&self, slots: &[(u16, u64)]) -> GatewayResult<WritePass> {
        match &self.setup.sharing {
            None => Ok(WritePass::empty()),
            Some(sharing) => sharing.ownership.read_slots(slots.to_vec()),
        }
    }

    /// Who has the keys with this prefix; `None` if nobody else has any.
    pub(super) fn shares(&self, bucket: &str, prefix: &str) -> GatewayResult<Option<Vec<OwnerShare>>> {
        match &self.setup.sharing {
            None => Ok(None),
            Some(sharing) => sharing.ownership.shares(bucket, prefix).map(Some),
        }
    }

    pub(super) fn route(&self, bucket: &str, key: &str) -> KeyRoute {
        match &self.setup.sharing {
            None => KeyRoute::Here,
            Some(sharing) => sharing.ownership.route(bucket, key),
        }
    }

    /// Whether one may refer to the other's bytes: what is handed to another gateway must not be needed here.
    pub(super) fn are_together(&self, one: (&str, &str), other: (&str, &str)) -> bool {
        match &self.setup.sharing {
            None => true,
            Some(sharing) => {
                sharing.ownership.slot_of(one.0, one.1) == sharing.ownership.slot_of(other.0, other.1)
            }
        }
    }

    /// Data that the store can't keep would be lost with the next owner, so it is not taken.
    pub(super) fn check_keepable(
        &self,
        state: &BucketState,
        headers: &ObjectHeaders,
        tags: &[(String, String)],
    ) -> GatewayResult<()> {
        match &self.setup.sharing {
            None => Ok(()),
            Some(_) => check_shareable(state.backend.kind, headers, tags),
        }
    }

    pub(super) async fn ask(&self, owner: &str, question: &PeerQuestion) -> GatewayResult<PeerAnswer> {
        match &self.setup.sharing {
            None => Err(GatewayError::Busy("there is no other gateway".to_owned())),
            Some(sharing) => sharing.others.ask(owner, question).await,
        }
    }
}

/// The same where several gateways share a store of this kind.
pub(super) fn check_shareable(
    kind: BackendKind,
    headers: &ObjectHeaders,
    tags: &[(String, String)],
) -> GatewayResult<()> {
    let refused = |what: &str| {
        Err(GatewayError::NotImplemented(format!(
            "{what} have no place where several gateways share a store that can't keep them"
        )))
    };
    if !tags.is_empty() {
        return refused("tags");
    }
    if kind == BackendKind::S3 {
        return Ok(());
    }
    match headers {
        _ if headers.expires.is_some() => refused("Expires headers"),
        _ if !headers.user.is_empty() => refused("user metadata"),
        _ => Ok(()),
    }
}
