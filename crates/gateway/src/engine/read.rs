//! Reading objects: from the journal, from the cache, from the store.

mod reading;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;

use super::elsewhere::{Answer, Question, confused};
use super::shared::record_of;
use super::{BucketState, Engine};
use crate::blocks::{Arriving, Origin, joined};
use crate::errors::{Error, Result};
use crate::journal::Pins;
use crate::meta::{Name, View};
use crate::model::{ContentId, Extent, Headers, ObjectRecord, Place};
use crate::ownership::Route;
use crate::store::{Found, bare};
use reading::Reading;
pub(super) use reading::UNCOUNTED_BYTES;

/// The bytes of an answer.
pub type Body = BoxStream<'static, Result<Bytes>>;

/// A piece that is read at once, in blocks: small at first, so that the client soon has a byte.
const MOST_BLOCKS_A_PIECE: u64 = 4;
/// The first bytes of an answer have left by then, and a disk takes as long to commit anyway.
const KEPT_AFTER: Duration = Duration::from_millis(3);
/// So often an object is looked up anew when its bytes have moved meanwhile.
const ATTEMPTS: usize = 4;

/// Where a run of an object's bytes is.
#[derive(Clone)]
pub(super) enum Source {
    Local {
        content: ContentId,
        size_bytes: u64,
        segment: u64,
        offset_bytes: u64,
    },
    /// An object can have thousands of these: where they all are in memory, they are small.
    Remote(Box<Origin>),
    /// Another gateway's object.
    Elsewhere(Box<Theirs>),
}

/// Another gateway's object.
#[derive(Clone)]
pub(super) struct Theirs {
    owner: String,
    bucket: String,
    key: String,
    etag: String,
}

/// A range of a source.
#[derive(Clone)]
pub(super) struct Run {
    pub(super) source: Source,
    pub(super) range: Range<u64>,
}

/// An object and where its bytes are, which stay there while this lives.
pub struct Resolved {
    pub record: ObjectRecord,
    pub(super) runs: Vec<Run>,
    /// The block that its headers came with.
    pub(super) arriving: Option<Arriving>,
    _pins: Option<Pins>,
}

/// What is known of an object without asking for its headers.
enum LookedUp {
    Whole(Resolved),
    /// Only a listing has told of it.
    Listed(Arc<BucketState>, Name, Resolved),
}

impl Engine {
    /// An object as it is now.
    ///
    /// # Errors
    /// `NoSuchKey`, or when the store has to be asked and does not answer.
    pub async fn resolve(&self, bucket: &str, key: &str) -> Result<Resolved> {
        let pass = self.to_read(bucket, key)?;
        let resolved = self.resolve_here(bucket, key).await;
        pass.check()?;
        resolved
    }

    /// As [`resolve`](Self::resolve), for a caller that reads its bytes next, from where `from` says for its size: where the store has to be
    /// asked for headers, they come with the first block.
    ///
    /// # Errors
    /// As there.
    pub async fn resolve_to_read(
        self: &Arc<Self>,
        bucket: &str,
        key: &str,
        from: impl Fn(u64) -> u64,
    ) -> Result<Resolved> {
        let pass = self.to_read(bucket, key)?;
        let (state, name, mut listed) = match self.look_up(bucket, key).await? {
            LookedUp::Whole(resolved) => return pass.check().map(|()| resolved),
            LookedUp::Listed(state, name, listed) => (state, name, listed),
        };
        let at = from(listed.record.size_bytes);
        let headers = match self.fetch_first(&mut listed, at).await? {
            Some(headers) => Some(headers),
            None => self.ask_headers(&state, &name, &listed.record).await?,
        };
        let resolved = match headers {
            None => self.resolve_here(bucket, key).await,
            Some(headers) => {
                listed.record.headers = headers.clone();
                listed.record.only_listed = false;
                let (engine, version) = (Arc::clone(self), listed.record.version);
                // Nobody waits for that: who asks before it is done asks the store.
                tokio::spawn(async move {
                    // Where cores are few, a commit would take the time of the bytes that this reader waits for.
                    tokio::time::sleep(KEPT_AFTER).await;
                    let keeping = engine.keep_headers(&name, version, headers);
                    if let Ok(Err(error)) =
                        engine.supervisor.shield("keeping of headers", &name, keeping).await
                    {
                        tracing::debug!("the headers of {name} are not kept: {error}");
                    }
                });
                Ok(listed)
            }
        };
        pass.check()?;
        resolved
    }

    /// Has the block come that this byte is in, and the object's headers with it. `None` where they don't: the block is here or on its way
    /// already, or the store has another object by now.
    async fn fetch_first(&self, resolved: &mut Resolved, from: u64) -> Result<Option<Headers>> {
        let [Run { source: Source::Remote(origin), range }] = resolved.runs.as_mut_slice() else {
            return Ok(None);
        };
        let at = range.start.saturating_add(from);
        let arriving = match self.blocks.fetch_first(origin, at).await {
            Err(Error::PreconditionFailed | Error::NoSuchKey) => None,
            outcome => outcome?,
        };
        origin.missed = arriving.is_some().then_some(at / self.blocks.block_bytes());
        let arriving = arriving.filter(|arriving| is_as_listed(&arriving.found, &resolved.record));
        let headers = arriving.as_ref().map(|arriving| arriving.found.headers.clone());
        resolved.arriving = arriving;
        // An answer without any is asked for again.
        Ok(headers.filter(|headers| *headers != Headers::default()))
    }

    async fn resolve_here(&self, bucket: &str, key: &str) -> Result<Resolved> {
        let (state, name, listed) = match self.look_up(bucket, key).await? {
            LookedUp::Whole(resolved) => return Ok(resolved),
            LookedUp::Listed(state, name, listed) => (state, name, listed),
        };
        if let Some(headers) = self.ask_headers(&state, &name, &listed.record).await? {
            self.keep_headers(&name, listed.record.version, headers).await?;
        }
        self.resolve_ours(&state, &name)?.ok_or(Error::NoSuchKey)
    }

    async fn look_up(&self, bucket: &str, key: &str) -> Result<LookedUp> {
        let state = self.bucket(bucket)?;
        if state.backend.path(key).is_err() {
            return Err(Error::NoSuchKey);
        }
        if !state.is_exclusive(key) {
            let found = self.head_shared(&state, key).await?;
            let origin = self.shared_origin(&state, key, &found);
            let runs = vec![Run { range: 0..found.size_bytes, source: Source::Remote(Box::new(origin)) }];
            return Ok(LookedUp::Whole(Resolved::elsewhere(record_of(&found), runs)));
        }
        let name = Name::new(bucket, key);
        let resolved = self.resolve_ours(&state, &name)?.ok_or(Error::NoSuchKey)?;
        Ok(match resolved.record.only_listed {
            false => LookedUp::Whole(resolved),
            true => LookedUp::Listed(state, name, resolved),
        })
    }

    pub(super) fn resolve_ours(&self, state: &BucketState, name: &Name) -> Result<Option<Resolved>> {
        let (pins, found) = self.journal.pin(|| {
            let view = self.metadata.view()?;
            let Some(record) = view.object(name)? else { return Ok((Vec::new(), None)) };
            let runs = self.runs_of(&view, state, &record.extents)?;
            let contents = record.extents.iter().map(|extent| extent.content).collect();
            Ok((contents, Some((record, runs))))
        })?;
        Ok(found.map(|(record, runs)| Resolved { record, runs, arriving: None, _pins: Some(pins) }))
    }

    /// An object that is to be copied, wherever it is.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub async fn resolve_source(&self, bucket: &str, key: &str) -> Result<Resolved> {
        let owner = match self.route(bucket, key) {
            Route::Here => return self.resolve(bucket, key).await,
            Route::There { owner, .. } => owner,
            Route::Nowhere(why) => return Err(Error::Busy(format!("{why}: try again later"))),
        };
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let question = Question::Look { bucket: bucket.clone(), key: key.clone() };
        let Answer::Object(record) = self.ask(&owner, &question).await? else { return Err(confused()) };
        let (etag, range) = (record.etag.clone(), 0..record.size_bytes);
        let source = Source::Elsewhere(Box::new(Theirs { owner, bucket, key, etag }));
        Ok(Resolved::elsewhere(*record, vec![Run { source, range }]))
    }

    pub(super) async fn read_elsewhere(
        &self,
        owner: &str,
        (bucket, key, etag): (&str, &str, &str),
        range: Range<u64>,
    ) -> Result<Bytes> {
        let length = range.end - range.start;
        let question =
            Question::Read { bucket: bucket.to_owned(), key: key.to_owned(), etag: etag.to_owned(), range };
        match self.ask(owner, &question).await? {
            Answer::Bytes(bytes) if bytes.len() as u64 == length => Ok(bytes),
            _ => Err(confused()),
        }
    }

    /// Where extents lie.
    pub(super) fn runs_of(&self, view: &View, state: &BucketState, extents: &[Extent]) -> Result<Vec<Run>> {
        let mut runs = Vec::with_capacity(extents.len());
        for extent in extents {
            let content = view.content(extent.content)?.ok_or_else(|| {
                Error::Local(format!("content {} is missing: run `underlay-gateway check`", extent.content.0))
            })?;
            let range = extent.offset_bytes..extent.offset_bytes + extent.length_bytes;
            let source = match content.place {
                Place::Local { segment, offset_bytes } => Source::Local {
                    content: extent.content,
                    size_bytes: content.size_bytes,
                    segment,
                    offset_bytes,
                },
                Place::Remote { bucket, key, etag, cached_as, .. } => {
                    let owner = self.any_bucket(&bucket)?;
                    Source::Remote(Box::new(Origin {
                        backend: owner.backend.clone(),
                        counts: state.rule(&key).counts.clone(),
                        key,
                        etag,
                        size_bytes: content.size_bytes,
                        whose: self.whose_content(cached_as),
                        missed: None,
                    }))
                }
            };
            runs.push(Run { source, range });
        }
        Ok(runs)
    }

    /// A listing told of the object only: asks the store for its headers. `None` if it has another one by now, which is taken.
    async fn ask_headers(
        &self,
        state: &BucketState,
        name: &Name,
        record: &ObjectRecord,
    ) -> Result<Option<Headers>> {
        let headers = self.ask_headers_once(state, name, record).await?;
        match headers == Some(Headers::default()) {
            // S3 gives every object a content type: one answer without any header is not kept for good.
            true => self.ask_headers_once(state, name, record).await,
            false => Ok(headers),
        }
    }

    async fn ask_headers_once(
        &self,
        state: &BucketState,
        name: &Name,
        record: &ObjectRecord,
    ) -> Result<Option<Headers>> {
        let found = match state.backend.head(&name.key).await {
            Err(Error::NoSuchKey) => {
                return self.refresh(state, name, record.version).await.map(|()| None);
            }
            outcome => outcome?,
        };
        if !is_as_listed(&found, record) {
            return self.refresh(state, name, record.version).await.map(|()| None);
        }
        Ok(Some(found.headers))
    }

    /// What is known already, since it was written here or asked for before, is not replaced.
    async fn keep_headers(&self, name: &Name, version: u64, headers: Headers) -> Result<()> {
        let at = name.clone();
        self.committer
            .commit(Vec::new(), move |change| {
                let known = change.object(&at)?;
                let Some(mut record) = known.filter(|known| known.version == version && known.only_listed)
                else {
                    return Ok(());
                };
                record.headers = headers;
                record.only_listed = false;
                // From now on the store's own copy is known to have the same headers.
                if let [extent] = record.extents.as_slice()
                    && let Some(content) = change.content(extent.content)?
                    && let Place::Remote { bucket, key, etag, cached_as, .. } = content.place
                {
                    let headers_hash = Some(record.headers.hash_code());
                    let place = Place::Remote { bucket, key, etag, headers_hash, cached_as };
                    change.set_place(extent.content, place)?;
                }
                change.set_object(&at, Some(&record))
            })
            .await
    }

    /// The bytes of a range, beginning before all of them are here. What moves meanwhile is followed.
    pub fn body(
        self: &Arc<Self>,
        bucket: &str,
        key: &str,
        mut resolved: Resolved,
        range: Range<u64>,
    ) -> Body {
        // It is read with the other blocks: its bytes must not wait here until all is over.
        resolved.arriving = None;
        self.read_ahead(bucket, key, &resolved, &range);
        resolved.forget_parts();
        Reading::new(Arc::clone(self), Name::new(bucket, key), resolved, range).boxed()
    }

    /// Whether a range is better read at once than in pieces.
    pub fn is_short(&self, range: &Range<u64>) -> bool {
        range.end - range.start <= self.blocks.block_bytes()
    }

    pub(super) async fn piece(&self, name: &Name, resolved: &Resolved, range: Range<u64>) -> Result<Bytes> {
        Ok(joined(self.piece_apart(name, resolved, range).await?))
    }

    async fn piece_apart(&self, name: &Name, resolved: &Resolved, range: Range<u64>) -> Result<Vec<Bytes>> {
        match self.runs_apart(&resolved.runs, range.clone()).await {
            Err(Error::PreconditionFailed | Error::NoSuchKey) => {}
            outcome => return outcome,
        }
        // The bytes are elsewhere by now: a flush has put them there, or somebody else has been at the store.
        let state = self.bucket(&name.bucket)?;
        let changed = || Error::Store(format!("{name} was replaced while it was read"));
        if resolved.runs.iter().any(|run| matches!(run.source, Source::Elsewhere(_))) {
            // Another gateway's versions say nothing beside ours.
            return Err(changed());
        }
        if !state.is_exclusive(&name.key) {
            self.forget_found(&state, &name.key);
            return Err(changed());
        }
        for attempt in 0..ATTEMPTS {
            let again = self.resolve_ours(&state, name)?.ok_or_else(changed)?;
            if !has_same_bytes(&again.record, &resolved.record) {
                return Err(changed());
            }
            match self.runs_apart(&again.runs, range.clone()).await {
                Err(Error::PreconditionFailed | Error::NoSuchKey) => {
                    tokio::time::sleep(Duration::from_millis(20 << attempt)).await;
                }
                outcome => return outcome,
            }
        }
        self.refresh(&state, name, resolved.record.version).await?;
        Err(changed())
    }

    /// Bytes of an object that consists of these runs.
    pub(super) async fn read_runs(&self, runs: &[Run], range: Range<u64>) -> Result<Bytes> {
        Ok(joined(self.runs_apart(runs, range).await?))
    }

    /// In pieces that no byte had to be copied for.
    async fn runs_apart(&self, runs: &[Run], range: Range<u64>) -> Result<Vec<Bytes>> {
        let mut parts: Vec<Bytes> = Vec::new();
        let mut begin = 0;
        for run in runs {
            let length = run.range.end - run.range.start;
            let from = range.start.max(begin);
            let to = range.end.min(begin + length);
            if from < to {
                let within = run.range.start + (from - begin)..run.range.start + (to - begin);
                match &run.source {
                    Source::Remote(origin) => parts.extend(self.blocks.read_apart(origin, within).await?),
                    other => parts.push(self.read_source(other, within).await?),
                }
            }
            begin += length;
            if begin >= range.end {
                break;
            }
        }
        Ok(parts)
    }

    async fn read_source(&self, source: &Source, range: Range<u64>) -> Result<Bytes> {
        match source {
            Source::Remote(origin) => self.blocks.read(origin, range).await,
            Source::Elsewhere(theirs) => {
                let Theirs { owner, bucket, key, etag } = &**theirs;
                self.read_elsewhere(owner, (bucket, key, etag), range).await
            }
            Source::Local { content, size_bytes, segment, offset_bytes } => {
                let (content, size_bytes, place) = (*content, *size_bytes, (*segment, *offset_bytes));
                if range.end - range.start <= 64 << 10 {
                    // It was written a moment ago: most likely the page cache has it.
                    return self.journal.read(content, size_bytes, place, range);
                }
                let journal = Arc::clone(&self.journal);
                crate::blocking::spawn_blocking(move || journal.read(content, size_bytes, place, range))
                    .await
                    .unwrap_or_else(|error| Err(Error::local("cannot read the journal", error)))
            }
        }
    }
}

impl Resolved {
    pub(super) fn elsewhere(record: ObjectRecord, runs: Vec<Run>) -> Resolved {
        Resolved { record, runs, arriving: None, _pins: None }
    }

    /// A reader of its bytes no longer needs the list of its parts, and may take long.
    pub(super) fn forget_parts(&mut self) {
        self.record.part_sizes_bytes = Vec::new();
        self.record.part_checksums = Vec::new();
    }

    pub(super) fn runs(&self) -> &[Run] {
        &self.runs
    }
}

/// Whether the store still has what a listing told of.
fn is_as_listed(found: &Found, record: &ObjectRecord) -> bool {
    found.size_bytes == record.size_bytes && found.etag.as_deref().map_or("", bare) == record.etag
}

/// Whether both consist of the same bytes, as clients tell by the ETag. New headers make a new version of old bytes.
fn has_same_bytes(one: &ObjectRecord, other: &ObjectRecord) -> bool {
    one.version == other.version || (one.etag == other.etag && one.size_bytes == other.size_bytes)
}

/// Cuts a range where blocks end, into pieces that grow. A long object has millions, so they are cut as they are needed.
pub(super) struct Pieces {
    range: Range<u64>,
    block_bytes: u64,
    blocks: u64,
}

impl Pieces {
    /// The next piece.
    fn peek(&self) -> Option<Range<u64>> {
        let Range { start, end } = self.range;
        let whole = (start / self.block_bytes).saturating_add(self.blocks).saturating_mul(self.block_bytes);
        (start < end).then(|| start..whole.min(end))
    }

    /// A beginning of it, which ends no later than so many bytes on.
    fn take_short(&mut self, most_bytes: u64) -> Option<Range<u64>> {
        let Range { start, end } = self.peek()?;
        let end = end.min(start.saturating_add(most_bytes));
        self.range.start = end;
        Some(start..end)
    }
}

impl Iterator for Pieces {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        let piece = self.peek()?;
        self.range.start = piece.end;
        self.blocks = (self.blocks * 2).min(MOST_BLOCKS_A_PIECE);
        Some(piece)
    }
}

pub(super) fn pieces(range: &Range<u64>, block_bytes: u64) -> Pieces {
    Pieces { range: range.clone(), block_bytes, blocks: 1 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_cover_the_range(start in 0..1_000_u64, length in 0..5_000_u64, block in 1..64_u64) {
            let pieces = pieces(&(start..start + length), block);
            let mut at = start;
            for piece in pieces {
                prop_assert_eq!(piece.start, at);
                prop_assert!(piece.end > piece.start && (piece.end % block == 0 || piece.end == start + length));
                at = piece.end;
            }
            prop_assert_eq!(at, start + length);
        }

        #[test]
        fn short_pieces_between_others_cover_the_range_as_well(
            start in 0..1_000_u64,
            length in 0..5_000_u64,
            block in 1..64_u64,
            short in prop::collection::vec(prop::option::of(1..50_u64), 0..300),
        ) {
            let mut pieces = pieces(&(start..start + length), block);
            let (mut at, mut short) = (start, short.into_iter());
            loop {
                let piece = match short.next().flatten() {
                    Some(most) => pieces.take_short(most),
                    None => pieces.next(),
                };
                let Some(piece) = piece else { break };
                prop_assert!(piece.start == at && piece.end > at);
                at = piece.end;
            }
            prop_assert_eq!(at, start + length);
        }

        #[test]
        fn the_pieces_of_the_longest_object_take_no_memory(at in 0..(5_u64 << 40)) {
            let mut pieces = pieces(&(at..5 << 40), 64 << 10);
            prop_assert_eq!(pieces.next().map(|piece| piece.start), Some(at));
        }
    }
}
