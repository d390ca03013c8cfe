//! Bringing the store up to date. One name at a time: what the metadata say of it now is what the store gets, however
//! often it changed meanwhile, so what was overwritten, renamed away or deleted in time never leaves this machine.
//!
//! A name's object in the store may be where the bytes of *other* objects lie: those that were copied from it. It is
//! not touched before they have bytes of their own, which comes by itself when they are flushed. Where they wait for
//! each other (two objects that swapped names), the bytes are fetched into the journal first.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use underlay_sync::planted::{PlantedBug, is_planted};

use super::failing::{FailedAttempt, FailureCause};
use super::queue::{AttemptOutcome, FlushTurn};
use super::read::{ByteRun, ResolvedObject};
use super::slots::CommitFence;
use super::{BucketState, GatewayEngine};
use crate::errors::{GatewayError, GatewayResult};
use crate::meta::ObjectName;
use crate::model::{
    ContentExtent, ContentId, ContentPlace, ContentRecord, ObjectRecord, StoredRecord, now_ms,
};
use crate::store::{BackendKind, RequestEffect, StoredInfo, UnfinishedFiles};

/// A reader of what is about to be overwritten or deleted in the store holds up one flusher for so long, and a client
/// that writes through.
const OVERWRITTEN_READERS_GET: Duration = Duration::from_secs(5);
const READERS_PAUSE: Duration = Duration::from_millis(5);
const FLUSHER: &str = "flusher";

/// The work for a name.
enum FlushTask {
    /// The store has it already.
    Nothing,
    Blocked(ContentId),
    Delete,
    /// The store copies it itself, from this key.
    Copy {
        record: ObjectRecord,
        from: String,
        cached_as: ContentId,
        /// The content there, and its place.
        source: (ContentId, ContentPlace),
    },
    Upload(ObjectRecord),
    /// Only the headers of what the store has are new. It takes them with the bytes, which have to be here first: once
    /// the object is replaced, the store's has another ETag, and would no longer be taken for what the metadata speak
    /// of.
    Fetch(ContentId),
}

impl FlushTask {
    /// Its effect on the name in the store; `None` if it leaves that alone.
    fn effect(&self) -> Option<RequestEffect> {
        match self {
            FlushTask::Nothing | FlushTask::Blocked(_) | FlushTask::Fetch(_) => None,
            FlushTask::Delete => Some(RequestEffect::Delete),
            FlushTask::Copy { .. } => Some(RequestEffect::Copy),
            FlushTask::Upload(record) => {
                Some(RequestEffect::put(&record.etag, record.size_bytes, &record.headers))
            }
        }
    }
}

impl GatewayEngine {
    /// Starts the flushers, with what was left pending.
    pub(super) fn start_flushing(self: &Arc<Self>) -> GatewayResult<()> {
        let now = tokio::time::Instant::now();
        self.metadata.view()?.each_pending(|name, record| {
            if self.is_kept_back(&name) {
                return;
            }
            let age = Duration::from_millis(u64::try_from(now_ms() - record.since_ms).unwrap_or(0));
            let due = now + self.served.delay_of(&name).saturating_sub(age);
            self.queue.load(name, record.since_ms, due);
        })?;
        for _ in 0..self.setup.flushes {
            let (engine, queue) = (Arc::downgrade(self), Arc::clone(&self.queue));
            self.supervisor.run(FLUSHER, move || {
                let (engine, queue) = (engine.clone(), Arc::clone(&queue));
                async move {
                    while let Some(turn) = queue.next().await {
                        // An engine that is gone flushes at its next start.
                        let Some(engine) = engine.upgrade() else { return };
                        let attempt = engine.flush_in_any_case(&turn).await;
                        if let AttemptOutcome::Failed(failure) = &attempt {
                            engine.counters.flush_failures.fetch_add(1, Ordering::Relaxed);
                            tracing::warn!("{} is not in the store yet: {}", turn.name, failure.error);
                        }
                        queue.finish(&turn.name, attempt);
                    }
                }
            });
        }
        Ok(())
    }

    /// A panic is a failure of this name, which is tried again much later, so that others have their turns.
    async fn flush_in_any_case(&self, turn: &FlushTurn) -> AttemptOutcome {
        if is_planted(PlantedBug::HeaderPanicsFlusher) {
            return self.flush_ours(turn).await;
        }
        let flushed = self.supervisor.attempt(FLUSHER, &turn.name, self.flush_ours(turn)).await;
        flushed.unwrap_or_else(|panicked| {
            let error = GatewayError::Store(panicked.to_string());
            AttemptOutcome::Failed(FailedAttempt { cause: FailureCause::Panicked, error })
        })
    }

    /// Names that are not ours now are left alone. The name stays in flight until the store has answered, or has been
    /// given up: a request that has been sent goes on without us.
    async fn flush_ours(&self, turn: &FlushTurn) -> AttemptOutcome {
        // A part that is on its way to the store is pending, in case that nothing comes of it.
        if !self.may_flush(&turn.name) || self.spills.is_under_way(&turn.name) {
            return AttemptOutcome::NotOurs;
        }
        match self.flush(turn).await {
            Ok(attempt) => attempt,
            Err(_) if !self.may_flush(&turn.name) => AttemptOutcome::NotOurs,
            Err(GatewayError::NoSuchKey | GatewayError::PreconditionFailed) => {
                let reason = "the store lacks bytes that it consists of, or has something else there";
                AttemptOutcome::Failed(GatewayError::Store(reason.to_owned()).into())
            }
            Err(error) => AttemptOutcome::Failed(error.into()),
        }
    }

    async fn flush(&self, turn: &FlushTurn) -> GatewayResult<AttemptOutcome> {
        let name = &turn.name;
        let state = self.any_bucket(&name.bucket)?;
        self.check_whose(&state).await?;
        let fence = self.fence_of(name)?;
        let (resolved, task) = self.task_of(&state, turn)?;
        let following = match task.effect() {
            None => None,
            Some(effect) => match state.backend.follow(&name.key, effect) {
                Ok(following) => Some(following),
                Err(waits) => {
                    tracing::info!(
                        "{name} waits: the store has not answered an earlier request for it, and may still carry it out"
                    );
                    return Ok(AttemptOutcome::Waits(waits.until));
                }
            },
        };
        let is_storing = matches!(task, FlushTask::Copy { .. } | FlushTask::Upload(_));
        let work = async {
            if is_storing {
                state.backend.make_way(&name.key).await?;
            }
            self.carry_out((&state, name), (resolved, task), turn.is_stuck, fence).await
        };
        let outcome = match &following {
            Some(following) => following.watch(work).await,
            None => work.await,
        };
        if let (Some(following), Err(_)) = (&following, &outcome) {
            // A write that was given up may go on in the file that it has begun.
            let unfinished = match following.may_land() {
                true => UnfinishedFiles::Kept,
                false => UnfinishedFiles::Removed,
            };
            let kept_folders = state.folders_of_others(&name.key);
            // The next failure, or the next deletion, does it again.
            if let Err(error) = state.backend.clear_place(&name.key, kept_folders, unfinished).await {
                tracing::debug!("what was written of {name} stays in the store: {error}");
            }
        }
        outcome
    }

    async fn carry_out(
        &self,
        (state, name): (&BucketState, &ObjectName),
        (resolved, task): (Option<ResolvedObject>, FlushTask),
        is_stuck: bool,
        fence: CommitFence,
    ) -> GatewayResult<AttemptOutcome> {
        match task {
            FlushTask::Nothing => {
                self.clear(name, resolved.map(|resolved| resolved.record.version), fence).await?
            }
            FlushTask::Blocked(_) if !is_stuck => return Ok(AttemptOutcome::Blocked),
            FlushTask::Blocked(content) => {
                // Its own pins are no reader's.
                drop(resolved);
                self.rescue(content).await?;
                return Ok(AttemptOutcome::Blocked);
            }
            // It is still pending, so the next turn uploads it.
            FlushTask::Fetch(content) => {
                drop(resolved);
                self.rescue(content).await?;
            }
            FlushTask::Delete => {
                self.wait_for_readers(name).await;
                self.delete_stored(state, name, fence).await?;
            }
            FlushTask::Copy { record, from, cached_as, source } => {
                self.wait_for_readers(name).await;
                self.copy_stored(state, name, record, (&from, cached_as), source, fence).await?
            }
            FlushTask::Upload(record) => {
                self.wait_for_readers(name).await;
                let runs = resolved.as_ref().map(|resolved| resolved.runs().to_vec()).unwrap_or_default();
                self.upload_object(state, name, record, &runs, fence).await?;
            }
        }
        Ok(AttemptOutcome::Done)
    }

    /// Waits for those who are reading what the store has at this name. Nobody begins to any more: the metadata say
    /// that it is no object's.
    async fn wait_for_readers(&self, name: &ObjectName) {
        let formers = self.queue.take_formers(name);
        let start = tokio::time::Instant::now();
        while formers.iter().any(|content| self.journal.pin_count(*content) > 0)
            && start.elapsed() < OVERWRITTEN_READERS_GET
        {
            tokio::time::sleep(READERS_PAUSE).await;
        }
    }

    /// Looks what has to be done. The object stays readable while the [`ResolvedObject`] lives.
    fn task_of(
        &self,
        state: &BucketState,
        turn: &FlushTurn,
    ) -> GatewayResult<(Option<ResolvedObject>, FlushTask)> {
        let name = &turn.name;
        let resolved = self.resolve_ours(state, name)?;
        let view = self.metadata.view()?;
        if view.pending(name)?.is_none() {
            return Ok((resolved, FlushTask::Nothing));
        }
        let stored = view.stored(name)?;
        let at_store = match stored.as_ref().and_then(|stored| stored.content) {
            Some(content) => view.content(content)?.map(|record| (content, record)),
            None => None,
        };
        let Some(object) = resolved.as_ref().map(|resolved| resolved.record.clone()) else {
            let task = match (at_store, stored) {
                // No name owns it any more, so references to it are other objects'.
                (Some((content, _)), _) => FlushTask::Blocked(content),
                (None, Some(_)) => FlushTask::Delete,
                (None, None) => FlushTask::Nothing,
            };
            return Ok((None, task));
        };
        if let Some((content, record)) = &at_store {
            if is_whole(&object, *content, record) {
                let task = match &record.place {
                    ContentPlace::Remote { headers_hash, .. }
                        if keeps_headers(state, &object, *headers_hash) =>
                    {
                        FlushTask::Nothing
                    }
                    _ => FlushTask::Fetch(*content),
                };
                return Ok((resolved, task));
            }
            return Ok((resolved, FlushTask::Blocked(*content)));
        }
        let can_copy = !turn.wants_bytes && state.backend.can_copy(object.size_bytes);
        if let Some(extent) = object.extents.first().filter(|_| can_copy)
            && let Some(content) = view.content(extent.content)?
            && is_whole(&object, extent.content, &content)
            && let ContentPlace::Remote { bucket, key, headers_hash, cached_as, .. } = &content.place
            && *bucket == name.bucket
            // Onto itself it would take the store's present object.
            && *key != name.key
            && keeps_headers(state, &object, *headers_hash)
        {
            let (from, cached_as) = (key.clone(), *cached_as);
            let source = (extent.content, content.place);
            return Ok((resolved, FlushTask::Copy { record: object, from, cached_as, source }));
        }
        Ok((resolved, FlushTask::Upload(object)))
    }

    /// Nothing has to be done for this version, or for there being no object.
    async fn clear(&self, name: &ObjectName, version: Option<u64>, fence: CommitFence) -> GatewayResult<()> {
        let target = name.clone();
        self.committer
            .commit(Vec::new(), move |change| {
                fence.check(change)?;
                let now = change.object(&target)?.map(|record| record.version);
                if now == version && (version.is_some() || change.stored(&target)?.is_none()) {
                    change.clear_pending(&target)?;
                }
                Ok(())
            })
            .await
    }

    async fn delete_stored(
        &self,
        state: &BucketState,
        name: &ObjectName,
        fence: CommitFence,
    ) -> GatewayResult<()> {
        state.delete_durably(&name.key, &|| self.check_flush(name)).await?;
        // Objects left there would come back once somebody lists the store.
        state.backend.confirm_gone(&name.key).await?;
        self.counters.deleted_in_store.fetch_add(1, Ordering::Relaxed);
        let target = name.clone();
        let committed = self
            .committer
            .commit(Vec::new(), move |change| {
                fence.check(change)?;
                change.set_stored(&target, None)?;
                match change.object(&target)? {
                    None => change.clear_pending(&target),
                    // It is there again, and not in the store.
                    Some(_) => change.mark_pending(&target),
                }
            })
            .await;
        if state.backend.kind == BackendKind::Directory {
            self.queue.hasten_around(name);
        }
        committed
    }

    /// From now on the store may have an object of this name: should it be deleted while it is being stored, and the
    /// power fail, the next start deletes it.
    async fn announce(&self, name: &ObjectName, fence: CommitFence) -> GatewayResult<()> {
        let target = name.clone();
        self.committer
            .commit(Vec::new(), move |change| {
                fence.check(change)?;
                match change.stored(&target)? {
                    Some(_) => Ok(()),
                    None => {
                        change.set_stored(&target, Some(&StoredRecord { content: None }))?;
                        change.mark_pending(&target)
                    }
                }
            })
            .await?;
        self.check_flush(name)
    }

    async fn copy_stored(
        &self,
        state: &BucketState,
        name: &ObjectName,
        record: ObjectRecord,
        (from, cached_as): (&str, ContentId),
        source: (ContentId, ContentPlace),
        fence: CommitFence,
    ) -> GatewayResult<()> {
        self.announce(name, fence.clone()).await?;
        let etag = match &source.1 {
            ContentPlace::Remote { etag, .. } => etag.clone(),
            ContentPlace::Local { .. } => None,
        };
        let (expected, may_go_on) = ((record.size_bytes, record.etag.as_str()), || self.check_flush(name));
        let copy = state.backend.copy_confirmed((from, etag.as_deref()), &name.key, expected, &may_go_on);
        let found = copy.await?;
        self.counters.copied_in_store.fetch_add(1, Ordering::Relaxed);
        let copied_as = (ContentId(self.number()), cached_as);
        self.enter_stored(name, record, found, copied_as, (Some(source), fence)).await
    }

    async fn upload_object(
        &self,
        state: &BucketState,
        name: &ObjectName,
        record: ObjectRecord,
        runs: &[ByteRun],
        fence: CommitFence,
    ) -> GatewayResult<()> {
        self.announce(name, fence.clone()).await?;
        let (content, size) = (ContentId(self.number()), record.size_bytes);
        let owner = self.content_owner(content);
        // What was written lately is likely to be read: the cache has it before the journal lets it go.
        let keep = |number, block: &Bytes| self.blocks.insert(owner, number, block.clone());
        let found = self.send_runs(state, (name, &record.headers, size), runs, None, keep).await?;
        self.counters.flushed_objects.fetch_add(1, Ordering::Relaxed);
        self.counters.flushed_bytes.fetch_add(size, Ordering::Relaxed);
        self.enter_stored(name, record, found, (content, content), (None, fence)).await
    }

    /// The store has this version now, as it has `found`: the object's bytes are there, and the journal's are free. If
    /// they were copied in the store, then from a `source` that must still be where it was: what was moved away
    /// meanwhile may have been overwritten before the store read it.
    async fn enter_stored(
        &self,
        name: &ObjectName,
        record: ObjectRecord,
        found: StoredInfo,
        (content, cached_as): (ContentId, ContentId),
        (source, fence): (Option<(ContentId, ContentPlace)>, CommitFence),
    ) -> GatewayResult<()> {
        let target = name.clone();
        self.committer
            .commit(Vec::new(), move |change| {
                fence.check(change)?;
                let now = change.object(&target)?.filter(|now| now.version == record.version);
                let is_what_was_copied = match &source {
                    Some((content, place)) => {
                        change.content(*content)?.is_some_and(|now| now.place == *place)
                    }
                    None => true,
                };
                let Some(mut now) = now.filter(|_| is_what_was_copied) else {
                    // Something else is to be there: the next turn sees to it.
                    change.set_stored(&target, Some(&StoredRecord { content: None }))?;
                    return change.mark_pending(&target);
                };
                if now.size_bytes == 0 {
                    change.set_stored(&target, Some(&StoredRecord { content: None }))?;
                    return change.clear_pending(&target);
                }
                let place = ContentPlace::Remote {
                    bucket: target.bucket.clone(),
                    key: target.key.clone(),
                    etag: found.etag,
                    headers_hash: Some(now.headers.hash_code()),
                    cached_as,
                };
                change.add_content(content, now.size_bytes, place)?;
                change.confirm_content(content, found.modified_ms)?;
                now.extents = vec![ContentExtent { content, offset_bytes: 0, length_bytes: now.size_bytes }];
                change.set_object(&target, Some(&now))?;
                change.set_stored(&target, Some(&StoredRecord { content: Some(content) }))?;
                change.clear_pending(&target)
            })
            .await
    }
}

/// Whether what the store has, stored with headers of this hash, has the object's. A directory has none at all.
fn keeps_headers(state: &BucketState, object: &ObjectRecord, headers_hash: Option<u64>) -> bool {
    state.backend.kind == BackendKind::Directory || headers_hash == Some(object.headers.hash_code())
}

/// Whether the object is this content, from its first byte to its last.
fn is_whole(object: &ObjectRecord, content: ContentId, record: &ContentRecord) -> bool {
    let whole = ContentExtent { content, offset_bytes: 0, length_bytes: record.size_bytes };
    object.extents.as_slice() == [whole]
}
