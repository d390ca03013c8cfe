//! Putting and deleting objects.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;

use super::conditions::Conditions;
use super::elsewhere::{Answer, Question, confused};
use super::slots::Fence;
use super::{BucketState, Engine};
use crate::config::Write;
use crate::digests::{Algorithm, Digests, Sums, hex};
use crate::errors::{Error, Result};
use crate::journal::Written;
use crate::meta::{Change, Name};
use crate::model::{Checksums, ContentId, Extent, Headers, ObjectRecord, now_ms};
use crate::ownership::{Pass, Route};
use crate::store::{Kind, PATIENCE};

/// A body that brings nothing for so long gives up its room in the journal. The pace of clients is looked after where their bytes come in; here
/// they come in pieces, the slowest of which take minutes.
const SILENCE: Duration = Duration::from_secs(300);
/// One part in so many of the journal is for whole objects alone. They leave by being flushed; parts may never do, and
/// must not shut everybody else out.
const KEPT_FROM_PARTS: u64 = 8;
/// Deletions of one request where others write as well, which the store carries out one by one.
const DELETIONS_AT_ONCE: usize = 16;
/// S3's limit for one request.
const MOST_PUT_BYTES: u64 = 5 << 30;

/// A key that is to be deleted, and when.
type Deletion = (String, Conditions);

/// An object to be put, without its bytes.
#[derive(Clone, Debug, Default)]
pub struct PutRequest {
    pub size_bytes: u64,
    pub headers: Headers,
    pub tags: Vec<(String, String)>,
    pub conditions: Conditions,
    /// Computed, and kept with the object.
    pub algorithms: Vec<Algorithm>,
}

/// Looks at the MD5 and the checksums of what came before it counts.
pub type Verify = Box<dyn FnOnce(&[u8; 16], &Checksums) -> Result<()> + Send>;

/// What a client is told of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub etag: String,
    pub checksums: Checksums,
    pub modified_ms: i64,
}

/// What bytes in the journal are going to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    Object,
    Part,
}

impl Engine {
    /// Puts an object. Once this returns it is as safe as the rule of its prefix says, and visible.
    ///
    /// # Errors
    /// When `verify` says so, a condition does not hold, or it can't be kept. Then nothing of it is visible, unless it is written
    /// through and the store failed at the end: it will be stored later then, and the client knows that it may have been.
    pub async fn put(
        self: &Arc<Self>,
        bucket: &str,
        key: &str,
        request: PutRequest,
        body: BoxStream<'_, Result<Bytes>>,
        verify: Verify,
    ) -> Result<Stored> {
        let state = self.bucket(bucket)?;
        state.backend.path(key)?;
        request.headers.check()?;
        self.check_keepable(&state, &request.headers, &request.tags)?;
        let pass = self.to_write(bucket, &[key]).await?;
        let name = Name::new(bucket, key);
        if request.size_bytes > MOST_PUT_BYTES {
            return Err(Error::TooLarge("a PUT has at most 5 GiB: use a multipart upload".to_owned()));
        }
        if state.is_exclusive(key) {
            // It is checked again in the end; this spares the client sending it for nothing.
            request.conditions.check(self.metadata.view()?.object(&name)?.as_ref())?;
        }
        let (written, sums) = self.spool(request.size_bytes, &request.algorithms, body, For::Object).await?;
        verify(&sums.md5, &sums.checksums)?;
        if !state.is_exclusive(key) {
            return self.put_shared(state, name, request, written, sums, pass).await;
        }
        let record = self.record(written.as_ref(), request.size_bytes, sums, request.headers, request.tags);
        let stored = Stored {
            etag: record.etag.clone(),
            checksums: record.checksums.clone(),
            modified_ms: record.modified_ms,
        };
        let is_directory = state.backend.kind == Kind::Directory;
        let (conditions, at, fence) = (request.conditions, name.clone(), Fence::of(&pass));
        let content =
            written.as_ref().map(|written| (written.content(), written.size_bytes(), written.place()));
        let place = self.place_of(std::slice::from_ref(&name)).await?;
        self.committer
            .commit(written.into_iter().collect(), move |change| {
                fence.check(change)?;
                check_target(change, &at, &conditions, is_directory)?;
                if let Some((content, size_bytes, place)) = content {
                    change.add_content(content, size_bytes, place)?;
                }
                change.set_object(&at, Some(&record))?;
                change.mark_pending(&at)
            })
            .await?;
        drop(place);
        self.counters.accepted_objects.fetch_add(1, Ordering::Relaxed);
        self.settled(&state, &name).await?;
        pass.check()?;
        Ok(stored)
    }

    /// Takes a body into the journal; nothing refers to it yet. An empty one needs no room.
    pub(super) async fn spool(
        &self,
        size_bytes: u64,
        algorithms: &[Algorithm],
        mut body: BoxStream<'_, Result<Bytes>>,
        purpose: For,
    ) -> Result<(Option<Written>, Sums)> {
        let capacity = self.journal.capacity_bytes();
        let most_bytes = match purpose {
            For::Object => capacity,
            For::Part => capacity - capacity / KEPT_FROM_PARTS,
        };
        let mut digests = Digests::new(algorithms)?;
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
                    let text = format!("nothing came of the body for {} s", SILENCE.as_secs());
                    return Err(Error::IncompleteBody(text));
                }
            };
            digests.update(&piece)?;
            match &mut writer {
                Some(writer) => writer.write(piece).await?,
                None if piece.is_empty() => {}
                None => {
                    return Err(Error::IncompleteBody(
                        "the body is longer than its Content-Length".to_owned(),
                    ));
                }
            }
        }
        let written = match writer {
            Some(writer) => Some(writer.finish().await?),
            None => None,
        };
        if let Some(written) = &written {
            self.counters.accepted_bytes.fetch_add(written.size_bytes(), Ordering::Relaxed);
        }
        Ok((written, digests.finish()?))
    }

    fn record(
        &self,
        written: Option<&Written>,
        size_bytes: u64,
        sums: Sums,
        headers: Headers,
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

    /// What follows a commit that made `name` pending: where the rule says so, the store is waited for.
    pub(super) async fn settled(&self, state: &BucketState, name: &Name) -> Result<()> {
        match state.rule(&name.key).rule.write {
            Write::Back { .. } => Ok(()),
            Write::Through => {
                let answer = self.queue.hasten(name);
                match tokio::time::timeout(self.setup.patience.max(Duration::from_secs(1)), answer).await {
                    Ok(Ok(outcome)) => outcome.map_err(|error| match error {
                        Error::Store(_) | Error::StoreAway(_) | Error::Refused { .. } => error,
                        other => Error::Store(other.to_string()),
                    }),
                    _ => Err(Error::Busy(
                        "the store behind did not take the object in time; the gateway goes on trying"
                            .to_owned(),
                    )),
                }
            }
        }
    }

    /// Deletes objects; it is no error when one is not there. Returns for each what became of it.
    ///
    /// # Errors
    /// When the bucket is not there, or nothing can be deleted at all.
    pub async fn delete(
        self: &Arc<Self>,
        bucket: &str,
        keys: Vec<(String, Conditions)>,
    ) -> Result<Vec<Result<()>>> {
        self.bucket(bucket)?;
        let mut outcomes: Vec<Result<()>> = vec![Ok(()); keys.len()];
        let mut groups: HashMap<Option<String>, Vec<(usize, Deletion)>> = HashMap::new();
        for (at, (key, conditions)) in keys.into_iter().enumerate() {
            match self.route(bucket, &key) {
                Route::Here => groups.entry(None).or_default().push((at, (key, conditions))),
                Route::There { owner, .. } => {
                    groups.entry(Some(owner)).or_default().push((at, (key, conditions)))
                }
                Route::Nowhere(why) => outcomes[at] = Err(Error::Busy(format!("{why}: try again later"))),
            }
        }
        for (owner, group) in groups {
            let (places, keys): (Vec<usize>, Vec<(String, Conditions)>) = group.into_iter().unzip();
            let done = match owner {
                None => self.delete_here(bucket, keys).await,
                Some(owner) => {
                    let question = Question::Delete { bucket: bucket.to_owned(), keys };
                    match self.ask(&owner, &question).await {
                        Ok(Answer::Deleted(done)) if done.len() == places.len() => Ok(done),
                        Ok(_) => Err(confused()),
                        Err(error) => Err(error),
                    }
                }
            };
            // What went wrong with some keys says nothing of the others.
            match done {
                Ok(done) => places.into_iter().zip(done).for_each(|(at, outcome)| outcomes[at] = outcome),
                Err(error @ Error::Busy(_)) => {
                    places.into_iter().for_each(|at| outcomes[at] = Err(error.clone()))
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
        keys: Vec<(String, Conditions)>,
    ) -> Result<Vec<Result<()>>> {
        let state = self.bucket(bucket)?;
        let names: Vec<&str> = keys.iter().map(|(key, _)| key.as_str()).collect();
        let pass = Arc::new(self.to_delete(bucket, &names).await?);
        let mut outcomes: Vec<Result<()>> = vec![Ok(()); keys.len()];
        let (mut ours, mut shared) = (Vec::new(), Vec::new());
        for (at, (key, conditions)) in keys.iter().enumerate() {
            if let Err(error) = state.backend.path(key) {
                // A key that can't be stored is not there, unless it is no key at all.
                if key.is_empty() || key.contains('\0') {
                    outcomes[at] = Err(error);
                }
                continue;
            }
            match state.is_exclusive(key) {
                true => ours.push((at, Name::new(bucket, key), conditions.clone())),
                false => shared.push((at, key, conditions)),
            }
        }
        for (at, outcome) in self.delete_all_shared(&state, shared, &pass).await {
            outcomes[at] = outcome;
        }
        let (of_change, fence) = (ours.clone(), Fence::of(&pass));
        let names: Vec<Name> = ours.iter().map(|(_, name, _)| name.clone()).collect();
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
        let settling = ours.into_iter().zip(committed).map(|((at, name, _), outcome)| {
            let state = &state;
            async move {
                let settled = match outcome {
                    Ok(true) => self.settled(state, &name).await,
                    Ok(false) => Ok(()),
                    Err(error) => Err(error),
                };
                (at, settled)
            }
        });
        for (at, outcome) in futures_util::future::join_all(settling).await {
            outcomes[at] = outcome;
        }
        pass.check()?;
        Ok(outcomes)
    }

    /// Deletes where others write as well: several at once, and all in the time that the store has for one. What is
    /// not begun by then, is not.
    async fn delete_all_shared(
        self: &Arc<Self>,
        state: &Arc<BucketState>,
        keys: Vec<(usize, &String, &Conditions)>,
        pass: &Arc<Pass>,
    ) -> Vec<(usize, Result<()>)> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let deleting = keys.into_iter().map(|(at, key, conditions)| async move {
            let late = || {
                let text = "the store did not delete the objects of the request in time: try again later";
                Err(Error::Busy(text.to_owned()))
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
    pub async fn set_tags(&self, bucket: &str, key: &str, tags: Vec<(String, String)>) -> Result<()> {
        let state = self.bucket(bucket)?;
        if !state.is_exclusive(key) {
            return Err(Error::NotImplemented(
                "tags need a prefix with consistency = \"exclusive\"".to_owned(),
            ));
        }
        self.check_keepable(&state, &Headers::default(), &tags)?;
        let pass = self.to_write(bucket, &[key]).await?;
        let (name, fence) = (Name::new(bucket, key), Fence::of(&pass));
        let set = self.committer.commit(Vec::new(), move |change| {
            fence.check(change)?;
            let mut record = change.object(&name)?.ok_or(Error::NoSuchKey)?;
            record.tags = tags;
            change.set_object(&name, Some(&record))
        });
        set.await?;
        pass.check()
    }
}

/// One extent over all that was written.
pub(super) fn whole(written: Option<&Written>) -> Vec<Extent> {
    written
        .map(|written| Extent {
            content: written.content(),
            offset_bytes: 0,
            length_bytes: written.size_bytes(),
        })
        .into_iter()
        .collect()
}

/// Whether the name may be written to: its bucket is there, the conditions hold, and a directory can have it.
pub(super) fn check_target(
    change: &Change<'_>,
    name: &Name,
    conditions: &Conditions,
    is_directory: bool,
) -> Result<()> {
    if change.bucket(&name.bucket)?.is_none() {
        return Err(Error::NoSuchBucket);
    }
    let former = change.object(name)?;
    conditions.check(former.as_ref())?;
    if !is_directory || former.is_some() {
        return Ok(());
    }
    for (end, _) in name.key.match_indices('/') {
        let above = Name::new(&name.bucket, &name.key[..end]);
        // The marker of a directory has a name of its own in it.
        if !above.key.is_empty() && change.object(&above)?.is_some() {
            return Err(taken(&above.key, &name.key));
        }
    }
    let inside = Name::new(&name.bucket, format!("{}/", name.key));
    match change.first_key_from(&inside)? {
        Some(key) if key.starts_with(&inside.key) => Err(taken(&name.key, &key)),
        _ => Ok(()),
    }
}

fn taken(file: &str, inside: &str) -> Error {
    Error::NameTaken(format!(
        "the store behind is a directory, which can't have both `{}` and `{}`: one would be a file and a directory",
        file.escape_debug(),
        inside.escape_debug()
    ))
}

/// Whether there was one, or why it may not be deleted.
fn delete_one(change: &mut Change<'_>, name: &Name, conditions: &Conditions) -> Result<Result<bool>> {
    let former = change.object(name)?;
    // What is not there meets every condition: it is gone, as the client wants it.
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
