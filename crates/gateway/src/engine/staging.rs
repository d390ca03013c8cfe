//! Contents that a store keeps under a [name](crate::staged) that no client knows. Some are parts that the journal has
//! no room for. Others are bytes that copies need, of an object that will be replaced and doesn't fit on the local disk.
//! Objects that consist of them are flushed from there like others. Once none does, they are deleted.
//!
//! The name is pending from before the first byte is sent until the content counts there. So the next start deletes all
//! leftovers of a crash.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use underlay_sync::Mutex;

use super::read::ByteRun;
use super::slots::CommitFence;
use super::{BucketState, GatewayEngine};
use crate::errors::{GatewayError, GatewayResult};
use crate::meta::{FORMAT_OF_PARTS, MetadataChange, ObjectName};
use crate::model::{ContentId, ContentPlace, ContentRecord, ObjectHeaders, StoredRecord};
use crate::staged::{name_of, placing_key};
use crate::store::{BackendKind, EtagFingerprint, RequestEffect, SendPermit, StoreCondition, StoredInfo};

/// A name for what belongs to this one.
pub(super) fn staged_name(name: &ObjectName) -> GatewayResult<ObjectName> {
    let mut number = [0; 16];
    getrandom::fill(&mut number).map_err(|error| GatewayError::local("no random numbers", error))?;
    let key = name_of(u128::from_be_bytes(number), placing_key(&name.key));
    Ok(ObjectName::new(&name.bucket, key))
}

impl GatewayEngine {
    /// From now on the store may have a content of this name, as with objects, if it `is_needed` still. Returns
    /// whether it is.
    pub(super) async fn announce_staged(
        &self,
        staged: &ObjectName,
        fence: CommitFence,
        is_needed: impl FnOnce(&MetadataChange<'_>) -> GatewayResult<bool> + Send + 'static,
    ) -> GatewayResult<bool> {
        let at = staged.clone();
        let announced = self.committer.commit(Vec::new(), move |change| {
            fence.check(change)?;
            if !is_needed(change)? {
                return Ok(false);
            }
            // An earlier gateway would know nothing of such names.
            change.need_format(FORMAT_OF_PARTS)?;
            change.set_stored(&at, Some(&StoredRecord { content: None }))?;
            change.mark_pending(&at)?;
            Ok(true)
        });
        let is_announced = announced.await?;
        self.check_flush(staged)?;
        Ok(is_announced)
    }

    /// Writes a content, which these make, to the store, and looks whether it is there.
    pub(super) async fn send_staged(
        &self,
        state: &BucketState,
        staged: &ObjectName,
        content: ContentId,
        size_bytes: u64,
        runs: &[ByteRun],
    ) -> GatewayResult<StoredInfo> {
        // Nobody else writes to this name, and a deletion has to wait until nothing can land there any more.
        let effect =
            RequestEffect::put(&format!("content {}", content.0), size_bytes, &ObjectHeaders::default());
        let following = state.backend.follow_within(&staged.key, effect, Duration::ZERO).await?;
        let (object, pass_on) = ((staged, &ObjectHeaders::default(), size_bytes), |_, _: &Bytes| {});
        self.send_runs(state, object, runs, Some(following), pass_on).await
    }

    /// Writes what these runs make to the store, and looks whether it is there. `pass_on` gets each block and its
    /// number.
    pub(super) async fn send_runs(
        &self,
        state: &BucketState,
        (name, headers, size_bytes): (&ObjectName, &ObjectHeaders, u64),
        runs: &[ByteRun],
        following: Option<SendPermit>,
        pass_on: impl Fn(u64, &Bytes) + Send + Sync,
    ) -> GatewayResult<StoredInfo> {
        let step = self.blocks.block_bytes();
        // A directory's ETags say nothing of bytes.
        let sums = match state.backend.kind {
            BackendKind::S3 => Some(Mutex::new(EtagFingerprint::new(size_bytes)?)),
            BackendKind::Directory => None,
        };
        let (passing, pass_on) = (sums.as_ref(), &pass_on);
        let body = futures_util::stream::iter(0..size_bytes.div_ceil(step))
            .then(move |number| async move {
                self.check_flush(name)?;
                let range = number * step..((number + 1) * step).min(size_bytes);
                let block = self.read_runs(runs, range).await?;
                passing.map_or(Ok(()), |sums| sums.lock().update(&block))?;
                pass_on(number, &block);
                Ok(block)
            })
            .boxed();
        let may_go_on = || self.check_flush(name);
        let put =
            state.backend.put(&name.key, headers, size_bytes, &StoreCondition::Always, body, &may_go_on);
        let answered = match following {
            Some(following) => following.watch(put).await?,
            None => put.await?,
        };
        let made = sums.map(|sums| sums.into_inner().etag()).transpose()?;
        state.backend.confirm(&name.key, size_bytes, answered, made.as_deref()).await
    }

    /// The content is there from now on, unless it has been given up or moved from its former place meanwhile.
    /// Returns whether it is.
    pub(super) async fn enter_staged(
        &self,
        staged: ObjectName,
        (content, former): (ContentId, ContentPlace),
        found: StoredInfo,
        fence: CommitFence,
    ) -> GatewayResult<bool> {
        let place = ContentPlace::Remote {
            bucket: staged.bucket.clone(),
            key: staged.key.clone(),
            etag: found.etag,
            // An object with headers needs a request of its own.
            headers_hash: None,
            cached_as: content,
        };
        self.committer
            .commit(Vec::new(), move |change| {
                fence.check(change)?;
                if change.content(content)?.is_none_or(|now| now.place != former) {
                    return Ok(false);
                }
                change.move_content(content, place)?;
                change.confirm_content(content, found.modified_ms)?;
                change.set_stored(&staged, Some(&StoredRecord { content: Some(content) }))?;
                change.clear_pending(&staged)?;
                Ok(true)
            })
            .await
    }

    /// Has the store keep a content under another name, since its object is to be replaced: byte by byte, as the
    /// client of the store may not copy, and what is long can't be copied at all.
    pub(super) async fn rescue_in_store(
        &self,
        content: ContentId,
        record: ContentRecord,
        runs: &[ByteRun],
    ) -> GatewayResult<()> {
        let ContentPlace::Remote { bucket, key, .. } = &record.place else { return Ok(()) };
        let (name, state) = (ObjectName::new(bucket, key), self.any_bucket(bucket)?);
        let (staged, fence) = (staged_name(&name)?, self.fence_of(&name)?);
        tracing::info!(
            "{name} is to be replaced, and its {} bytes find no room here: the store keeps them under another name",
            record.size_bytes
        );
        // It goes when the outcome has been committed, or has failed: then the flushers delete what is there.
        let _under_way = self.spills.begin(staged.clone());
        let former = record.place.clone();
        let is_there = move |change: &MetadataChange<'_>| {
            Ok(change.content(content)?.is_some_and(|now| now.place == former))
        };
        if !self.announce_staged(&staged, fence.clone(), is_there).await? {
            return Ok(());
        }
        let found = self.send_staged(&state, &staged, content, record.size_bytes, runs).await?;
        self.enter_staged(staged, (content, record.place), found, fence).await.map(drop)
    }
}
