//! Putting and deleting objects.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base16ct::lower::encode_string as hex;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;

use super::conditions::WriteConditions;
use super::elsewhere::{PeerAnswer, PeerQuestion, confused};
use super::slots::CommitFence;
use super::{BucketState, GatewayEngine};
use crate::config::WriteMode;
use crate::digests::{ChecksumKind, DigestResults, DigestSet};
use crate::errors::{GatewayError, GatewayResult};
use crate::journal::WrittenContent;
use crate::meta::{MetadataChange, ObjectName};
use crate::model::{ContentExtent, ContentId, ObjectChecksums, ObjectHeaders, ObjectRecord, now_ms};
use crate::ownership::{KeyRoute, WritePass};
use crate::store::{BackendKind, STORE_TIMEOUT};

/// A body that brings nothing for so long gives up its room in the journal. The pace of clients is looked after where
/// their bytes come in; here they come in pieces, the slowest of which take minutes.
const SILENCE: Duration = Duration::from_secs(300);
/// One part in so many of the journal is for whole objects alone. They leave by being flushed; parts may never do, and
/// must not shut everybody else out.
const KEPT_FROM_PARTS: u64 = 8;
/// Deletions of one request where others write as well, which the store carries out one by one.
const DELETIONS_AT_ONCE: usize = 16;
/// S3's limit for one request.
const MAX_PUT_BYTES: u64 = 5 << 30;

/// A key that is to be deleted, and when.
type KeyDeletion = (String, WriteConditions);

/// An object to be put, without its bytes.
#[derive(Clone, Debug, Default)]
pub struct PutRequest {
    pub size_bytes: u64,
    pub headers: ObjectHeaders,
    pub tags: Vec<(String, String)>,
    pub conditions: WriteConditions,
    /// Computed, and kept with the object.
    pub algorithms: Vec<ChecksumKind>,
}

/// Looks at the MD5 and the checksums of what came before it counts.
pub type VerifyBody = Box<dyn FnOnce(&[u8; 16], &ObjectChecksums) -> GatewayResult<()> + Send>;

/// The answer to a client's write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteReceipt {
    pub etag: String,
    pub checksums: ObjectChecksums,
    pub modified_ms: i64,
}

/// The use of bytes in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteTarget {
    Object,
    Part,
}

impl GatewayEngine {
    /// Puts an object. Once this returns it is as safe as the rule of its prefix says, and visible.
    ///
    /// # Errors
    /// When `verify` says so, a condition does not hold, or it can't be kept. Then nothing of it is visible, unless it
    /// is written through and the store failed at the end: it will be stored later then, and the client knows that it
    /// may have been.
    pub async fn put(
        self: &Arc<Self>,
        bucket: &str,
        key: &str,
        request: PutRequest,
        body: BoxStream<'_, GatewayResult<Bytes>>,
        verify: VerifyBody,
    ) -> GatewayResult<WriteReceipt> {
        let state = self.bucket(bucket)?;
        state.backend.path(key)?;
        request.headers.check()?;
        self.check_keepable(&state, &request.headers, &request.tags)?;
        let pass = self.to_write(bucket, &[key]).await?;
        let name = ObjectName::new(bucket, key);
        if request.size_bytes > MAX_PUT_BYTES {
            return Err(GatewayError::TooLarge("a PUT has at most 5 GiB: use a multipart upload".to_owned()));
        }
        if state.is_exclusive(key) {
            // It is checked again in the end; this spares the client sending it for nothing.
            request.conditions.check(self.metadata.view()?.object(&name)?.as_ref())?;
        }
        let (written, sums) =
            self.spool(request.size_bytes, &request.algorithms, body, WriteTarget::Object).await?;
        verify(&sums.md5, &sums.checksums)?;
        if !state.is_exclusive(key) {
            return self.put_shared(state, name, request, written, sums, pass).await;
        }
        let record = self.record(written.as_ref(), request.size_bytes, sums, request.headers, request.tags);
        let stored = WriteReceipt {
            etag: record.etag.clone(),
            checksums: record.checksums.clone(),
            modified_ms: record.modified_ms,
        };
        let is_directory = state.backend.kind == BackendKind::Directory;
        let (conditions, target, fence) = (request.conditions, name.clone(), CommitFence::from_pass(&pass));
        let claim = self.claim_place(&state, &name).await?;
        let content =
            written.as_ref().map(|written| (written.content(), written.size_bytes(), written.place()));
        let place = self.place_of(std::slice::from_ref(&name)).await?;
        self.committer
            .commit(written.into_iter().collect(), move |change| {
                fence.check(change)?;
                check_target(change, &target, &conditions, is_directory)?;
                if let Some((content, size_bytes, place)) = content {
                    change.add_content(content, size_bytes, place)?;
                }
                change.set_object(&target, Some(&record))?;
                change.mark_pending(&target)
            })
            .await?;
        drop((place, claim));
        self.counters.accepted_objects.fetch_add(1, Ordering::Relaxed);
        self.settled(&state, &name).await?;
        pass.check()?;
        Ok(stored)
    }

    /// Takes a body into the journal; nothing refers to it yet. An empty one needs no room.
    pub(super) async fn spool(
        &self,
        size_bytes: u64,
        algorithms: &[ChecksumKind],
        mut body: BoxStream<'_, GatewayResult<Bytes>>,
        purpose: WriteTarget,
    ) -> GatewayResult<(Option<WrittenContent>, DigestResults)> {
        let capacity = self.journal.capacity_bytes();
        let most_bytes = match purpose {
            WriteTarget::Object => capacity,
            WriteTarget::Part => capacity - capacity / KEPT_FROM_PARTS,
        };
        let mut digests = DigestSet::new(algorithms)?;
        let mut writer = match size_bytes {
            0 => None,
            _ => {
                let content = ContentId(self.number());
                Some(self.make_room(content, size_bytes, most_bytes, purpose).await?)
            }
        };
        loop {
            let piece = match tokio::time::timeout(SILENCE, body.next()).await {
                Ok(Some(piece)) => piece?,
                Ok(None) => break,
                Err(_) => {
                    let text = format!("no byte of the body came for {} s", SILENCE.as_secs());
                    return Err(GatewayError::IncompleteBody(text));
                }
            };
            digests.update(&piece)?;
            match &mut writer {
                Some(writer) => writer.write(piece).await?,
                // An empty body has no writer to count its bytes.
                None if piece.is_empty() => {}
                None => {
                    return Err(GatewayError::IncompleteBody(
                        "the body is longer than its Content-Length".to_owned(),
                    ));
                }
            }
        }
        let written = match writer {
            Some(writer) => Some(writer.finish().await?),
            None => None,
        };
        // Only what came as a whole counts: `finish` refuses a body that is too short.
        if let Some(written) = &written {
            self.counters.accepted_bytes.fetch_add(written.size_bytes(), Ordering::Relaxed);
        }
        Ok((written, digests.finish()?))
    }

    fn record(
        &self,
        written: Option<&WrittenContent>,
        size_bytes: u64,
        sums: DigestResults,
        headers: ObjectHeaders,
        tags: Vec<(String, String)>,
    ) -> ObjectRecord {
        ObjectRecord {
            version: self.number(),
            size_bytes,
            etag: hex(&sums.md5),
            modified_ms: now_ms(),
            extents: whole(written),
            headers,
            tags,
            checksums: sums.checksums,
            part_sizes_bytes: Vec::new(),
            part_checksums: Vec::new(),
            only_listed: false,
        }
    }

    /// Follows a commit that made `name` pending: where the rule says so, it waits for the store.
    pub(super) async fn settled(&self, state: &BucketState, name: &ObjectName) -> GatewayResult<()> {
        match state.rule(&name.key).rule.write {
            WriteMode::Back { .. } => Ok(()),
            WriteMode::Through => {
                let answer = self.queue.hasten(name);
                match tokio::time::timeout(self.setup.patience.max(Duration::from_secs(1)), answer).await {
                    Ok(Ok(outcome)) => outcome.map_err(|error| match error {
                        GatewayError::Store(_) | GatewayError::StoreAway(_) => error,
                        // A client takes a refusal of its own for one after which nothing is there. This object is.
                        GatewayError::Refused { text, .. } => GatewayError::Store(text),
                        other => GatewayError::Store(other.to_string()),
                    }),
                    _ => Err(GatewayError::Busy(
                        "the store behind did not take the object in time; the gateway goes on trying"
                            .to_owned(),
                    )),
                }
            }
        }
    }

    /// Deletes objects; it is no error when one is not there. Returns the outcome of each.
    ///
    /// # Errors
    /// When the bucket is not there, or nothing can be deleted at all.
    pub async fn delete(
        self: &Arc<Self>,
        bucket: &str,
        keys: Vec<(String, WriteConditions)>,
    ) -> GatewayResult<Vec<GatewayResult<()>>> {
        self.bucket(bucket)?;
        let mut outcomes: Vec<GatewayResult<()>> = vec![Ok(()); keys.len()];
        let mut groups: HashMap<Option<String>, Vec<(usize, KeyDeletion)>> = HashMap::new();
        for (index, (key, conditions)) in keys.into_iter().enumerate() {
            match self.route(bucket, &key) {
                KeyRoute::Here => groups.entry(None).or_default().push((index, (key, conditions))),
                KeyRoute::There { owner, .. } => {
                    groups.entry(Some(owner)).or_default().push((index, (key, conditions)))
                }
                KeyRoute::Nowhere(reason) => {
                    outcomes[index] = Err(GatewayError::Busy(format!("{reason}: try again later")))
                }
            }
        }
        for (owner, group) in groups {
            let (places, keys): (Vec<usize>, Vec<(String, WriteConditions)>) = group.into_iter().unzip();
            let done = match owner {
                None => self.delete_here(bucket, keys).await,
                Some(owner) => {
                    let question = PeerQuestion::Delete { bucket: bucket.to_owned(), keys };
                    match self.ask(&owner, &question).await {
                        Ok(PeerAnswer::Deleted(done)) if done.len() == places.len() => Ok(done),
                        Ok(_) => Err(confused()),
                        Err(error) => Err(error),
                    }
                }
            };
            // Failures of some keys don't affect the others.
            match done {
                Ok(done) => {
                    places.into_iter().zip(done).for_each(|(index, outcome)| outcomes[index] = outcome)
                }
                Err(error @ GatewayError::Busy(_)) => {
                    places.into_iter().for_each(|index| outcomes[index] = Err(error.clone()))
                }
                Err(error) => return Err(error),
            }
        }
        Ok(outcomes)
    }

    /// The same of keys that are this gateway's.
    pub(super) async fn delete_here(
        self: &Arc<Self>,
        bucket: &str,
        keys: Vec<(String, WriteConditions)>,
    ) -> GatewayResult<Vec<GatewayResult<()>>> {
        let state = self.bucket(bucket)?;
        let names: Vec<&str> = keys.iter().map(|(key, _)| key.as_str()).collect();
        let pass = Arc::new(self.to_delete(bucket, &names).await?);
        let mut outcomes: Vec<GatewayResult<()>> = vec![Ok(()); keys.len()];
        let (mut ours, mut shared) = (Vec::new(), Vec::new());
        for (index, (key, conditions)) in keys.iter().enumerate() {
            if let Err(error) = state.backend.path(key) {
                // A key that can't be stored is not there, unless it is no key at all.
                if key.is_empty() || key.contains('\0') {
                    outcomes[index] = Err(error);
                }
                continue;
            }
            match state.is_exclusive(key) {
                true => ours.push((index, ObjectName::new(bucket, key), conditions.clone())),
                false => shared.push((index, key, conditions)),
            }
        }
        for (at, outcome) in self.delete_all_shared(&state, shared, &pass).await {
            outcomes[at] = outcome;
        }
        let (of_change, fence) = (ours.clone(), CommitFence::from_pass(&pass));
        let names: Vec<ObjectName> = ours.iter().map(|(_, name, _)| name.clone()).collect();
        let places = self.place_of(&names).await?;
        let committed = self
            .committer
            .commit(Vec::new(), move |change| {
                fence.check(change)?;
                let mut outcomes = Vec::new();
                for (_, name, conditions) in &of_change {
                    outcomes.push(delete_one(change, name, conditions)?);
                }
                Ok(outcomes)
            })
            .await?;
        drop(places);
        // All at once: if the store is down, the request must not wait for each key in turn.
        let settling = ours.into_iter().zip(committed).map(|((index, name, _), outcome)| {
            let state = &state;
            async move {
                let settled = match outcome {
                    Ok(true) => self.settled(state, &name).await,
                    Ok(false) => Ok(()),
                    Err(error) => Err(error),
                };
                (index, settled)
            }
        });
        for (index, outcome) in futures_util::future::join_all(settling).await {
            outcomes[index] = outcome;
        }
        pass.check()?;
        Ok(outcomes)
    }

    /// Deletes where others write as well: several at once, and all in the time that the store has for one. Deletions
    /// that have not begun by then don't begin.
    async fn delete_all_shared(
        self: &Arc<Self>,
        state: &Arc<BucketState>,
        keys: Vec<(usize, &String, &WriteConditions)>,
        pass: &Arc<WritePass>,
    ) -> Vec<(usize, GatewayResult<()>)> {
        let deadline = tokio::time::Instant::now() + STORE_TIMEOUT;
        let deleting = keys.into_iter().map(|(at, key, conditions)| async move {
            let late = || {
                let text = "the store did not delete the objects of the request in time: try again later";
                Err(GatewayError::Busy(text.to_owned()))
            };
            if tokio::time::Instant::now() >= deadline {
                return (at, late());
            }
            let deleting = self.delete_shared(state, key, conditions, pass);
            (at, tokio::time::timeout_at(deadline, deleting).await.unwrap_or_else(|_| late()))
        });
        let deleting: Vec<_> = deleting.collect();
        futures_util::stream::iter(deleting).buffer_unordered(DELETIONS_AT_ONCE).collect().await
    }

    /// Replaces the tags of an object.
    ///
    /// # Errors
    /// When it is not there, or its prefix is not ours alone.
    pub async fn set_tags(&self, bucket: &str, key: &str, tags: Vec<(String, String)>) -> GatewayResult<()> {
        let state = self.bucket(bucket)?;
        if !state.is_exclusive(key) {
            return Err(GatewayError::NotImplemented(
                "tags need a prefix with consistency = \"exclusive\"".to_owned(),
            ));
        }
        self.check_keepable(&state, &ObjectHeaders::default(), &tags)?;
        let pass = self.to_write(bucket, &[key]).await?;
        let (name, fence) = (ObjectName::new(bucket, key), CommitFence::from_pass(&pass));
        let set = self.committer.commit(Vec::new(), move |change| {
            fence.check(change)?;
            let mut record = change.object(&name)?.ok_or(GatewayError::NoSuchKey)?;
            record.tags = tags;
            change.set_object(&name, Some(&record))
        });
        set.await?;
        pass.check()
    }
}

/// One extent over all that was written.
pub(super) fn whole(written: Option<&WrittenContent>) -> Vec<ContentExtent> {
    written
        .map(|written| ContentExtent {
            content: written.content(),
            offset_bytes: 0,
            length_bytes: written.size_bytes(),
        })
        .into_iter()
        .collect()
}

/// Whether the name may be written to: its bucket is there, the conditions hold, and a directory can have it.
pub(super) fn check_target(
    change: &MetadataChange<'_>,
    name: &ObjectName,
    conditions: &WriteConditions,
    is_directory: bool,
) -> GatewayResult<()> {
    if change.bucket(&name.bucket)?.is_none() {
        return Err(GatewayError::NoSuchBucket);
    }
    let former = change.object(name)?;
    conditions.check(former.as_ref())?;
    if !is_directory || former.is_some() {
        return Ok(());
    }
    for (end, _) in name.key.match_indices('/') {
        let above = ObjectName::new(&name.bucket, &name.key[..end]);
        // The marker of a directory has a name of its own in it.
        if !above.key.is_empty() && change.object(&above)?.is_some() {
            return Err(taken(&above.key, &name.key));
        }
    }
    let inside = ObjectName::new(&name.bucket, format!("{}/", name.key));
    match change.first_key_from(&inside)? {
        Some(key) if key.starts_with(&inside.key) => Err(taken(&name.key, &key)),
        _ => Ok(()),
    }
}

pub(super) fn taken(file: &str, inside: &str) -> GatewayError {
    GatewayError::NameTaken(format!(
        "the store behind is a directory, which can't have both `{}` and `{}`: one would be a file and a directory",
        file.escape_debug(),
        inside.escape_debug()
    ))
}

/// Whether there was one, or why it may not be deleted.
fn delete_one(
    change: &mut MetadataChange<'_>,
    name: &ObjectName,
    conditions: &WriteConditions,
) -> GatewayResult<GatewayResult<bool>> {
    let former = change.object(name)?;
    // A missing object meets every condition: it is gone, as the client wants it.
    let Some(former) = former else { return Ok(Ok(false)) };
    if let Err(error) = conditions.check(Some(&former)) {
        return Ok(Err(error));
    }
    change.set_object(name, None)?;
    if change.stored(name)?.is_some() {
        change.mark_pending(name)?;
    } else {
        // The store never had it.
        change.clear_pending(name)?;
    }
    Ok(Ok(true))
}
