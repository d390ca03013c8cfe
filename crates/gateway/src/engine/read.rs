//! Reading objects: from the journal, from the cache, from the store.

mod reading;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;

use super::elsewhere::{PeerAnswer, PeerQuestion, confused};
use super::shared::record_of;
use super::{BucketState, GatewayEngine};
use crate::blocks::{ArrivingBlock, BlockOrigin, joined};
use crate::errors::{GatewayError, GatewayResult};
use crate::journal::ContentPins;
use crate::meta::{MetadataView, ObjectName};
use crate::model::{ContentExtent, ContentId, ContentPlace, ObjectHeaders, ObjectRecord};
use crate::ownership::KeyRoute;
use crate::store::{StoredInfo, bare};
use reading::ObjectReader;
pub(super) use reading::UNCOUNTED_BYTES;

/// The bytes of an answer.
pub type AnswerBody = BoxStream<'static, GatewayResult<Bytes>>;

/// A piece that is read at once, in blocks: small at first, so that the client soon has a byte.
const MAX_BLOCKS_PER_PIECE: u64 = 4;
/// The first bytes of an answer have left by then, and a disk takes as long to commit anyway.
const KEPT_AFTER: Duration = Duration::from_millis(3);
/// So often an object is looked up anew when its bytes have moved meanwhile.
const ATTEMPTS: usize = 4;

/// Where a run of an object's bytes is.
#[derive(Clone)]
pub(super) enum RunSource {
    Local {
        content: ContentId,
        size_bytes: u64,
        segment: u64,
        offset_bytes: u64,
    },
    /// An object can have thousands of these: where they all are in memory, they are small.
    Remote(Box<BlockOrigin>),
    /// Another gateway's object.
    Elsewhere(Box<PeerObject>),
}

/// Another gateway's object.
#[derive(Clone)]
pub(super) struct PeerObject {
    owner: String,
    bucket: String,
    key: String,
    etag: String,
}

/// A range of a source.
#[derive(Clone)]
pub(super) struct ByteRun {
    pub(super) source: RunSource,
    pub(super) range: Range<u64>,
}

/// An object and where its bytes are, which stay there while this lives.
pub struct ResolvedObject {
    pub record: ObjectRecord,
    pub(super) runs: Vec<ByteRun>,
    /// The block that its headers came with.
    pub(super) arriving: Option<ArrivingBlock>,
    _pins: Option<ContentPins>,
}

/// The knowledge of an object without asking for its headers.
enum LookedUp {
    Whole(ResolvedObject),
    /// Only a listing has told of it.
    Listed(Arc<BucketState>, ObjectName, ResolvedObject),
}

impl GatewayEngine {
    /// An object as it is now.
    ///
    /// # Errors
    /// `NoSuchKey`, or when the store has to be asked and does not answer.
    pub async fn resolve(&self, bucket: &str, key: &str) -> GatewayResult<ResolvedObject> {
        let pass = self.to_read(bucket, key)?;
        let resolved = self.resolve_here(bucket, key).await;
        pass.check()?;
        resolved
    }

    /// As [`resolve`](Self::resolve), for a caller that reads its bytes next, from where `from` says for its size:
    /// where the store has to be asked for headers, they come with the first block.
    ///
    /// # Errors
    /// As there.
    pub async fn resolve_to_read(
        self: &Arc<Self>,
        bucket: &str,
        key: &str,
        from: impl Fn(u64) -> u64,
    ) -> GatewayResult<ResolvedObject> {
        let pass = self.to_read(bucket, key)?;
        let (state, name, mut listed) = match self.look_up(bucket, key).await? {
            LookedUp::Whole(resolved) => return pass.check().map(|()| resolved),
            LookedUp::Listed(state, name, listed) => (state, name, listed),
        };
        let offset = from(listed.record.size_bytes);
        let headers = match self.fetch_first(&mut listed, offset).await? {
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

    /// Has the block come that this byte is in, and the object's headers with it. `None` where they don't: the block is
    /// here or on its way already, or the store has another object by now.
    async fn fetch_first(
        &self,
        resolved: &mut ResolvedObject,
        from: u64,
    ) -> GatewayResult<Option<ObjectHeaders>> {
        let [ByteRun { source: RunSource::Remote(origin), range }] = resolved.runs.as_mut_slice() else {
            return Ok(None);
        };
        let offset = range.start.saturating_add(from);
        let arriving = match self.blocks.fetch_first(origin, offset).await {
            Err(GatewayError::PreconditionFailed | GatewayError::NoSuchKey) => None,
            outcome => outcome?,
        };
        origin.missed = arriving.is_some().then_some(offset / self.blocks.block_bytes());
        let arriving = arriving.filter(|arriving| is_as_listed(&arriving.found, &resolved.record));
        let headers = arriving.as_ref().map(|arriving| arriving.found.headers.clone());
        resolved.arriving = arriving;
        // An answer without any is asked for again.
        Ok(headers.filter(|headers| *headers != ObjectHeaders::default()))
    }

    async fn resolve_here(&self, bucket: &str, key: &str) -> GatewayResult<ResolvedObject> {
        let (state, name, listed) = match self.look_up(bucket, key).await? {
            LookedUp::Whole(resolved) => return Ok(resolved),
            LookedUp::Listed(state, name, listed) => (state, name, listed),
        };
        if let Some(headers) = self.ask_headers(&state, &name, &listed.record).await? {
            self.keep_headers(&name, listed.record.version, headers).await?;
        }
        self.resolve_ours(&state, &name)?.ok_or(GatewayError::NoSuchKey)
    }

    async fn look_up(&self, bucket: &str, key: &str) -> GatewayResult<LookedUp> {
        let state = self.bucket(bucket)?;
        if state.backend.path(key).is_err() {
            return Err(GatewayError::NoSuchKey);
        }
        if !state.is_exclusive(key) {
            let found = self.head_shared(&state, key).await?;
            let origin = self.shared_origin(&state, key, &found);
            let runs =
                vec![ByteRun { range: 0..found.size_bytes, source: RunSource::Remote(Box::new(origin)) }];
            return Ok(LookedUp::Whole(ResolvedObject::elsewhere(record_of(&found), runs)));
        }
        let name = ObjectName::new(bucket, key);
        let resolved = self.resolve_ours(&state, &name)?.ok_or(GatewayError::NoSuchKey)?;
        Ok(match resolved.record.only_listed {
            false => LookedUp::Whole(resolved),
            true => LookedUp::Listed(state, name, resolved),
        })
    }

    pub(super) fn resolve_ours(
        &self,
        state: &BucketState,
        name: &ObjectName,
    ) -> GatewayResult<Option<ResolvedObject>> {
        let (pins, found) = self.journal.pin(|| {
            let view = self.metadata.view()?;
            let Some(record) = view.object(name)? else { return Ok((Vec::new(), None)) };
            let runs = self.runs_of(&view, state, &record.extents)?;
            let contents = record.extents.iter().map(|extent| extent.content).collect();
            Ok((contents, Some((record, runs))))
        })?;
        Ok(found.map(|(record, runs)| ResolvedObject { record, runs, arriving: None, _pins: Some(pins) }))
    }

    /// An object that is to be copied, wherever it is.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub async fn resolve_source(&self, bucket: &str, key: &str) -> GatewayResult<ResolvedObject> {
        let owner = match self.route(bucket, key) {
            KeyRoute::Here => return self.resolve(bucket, key).await,
            KeyRoute::There { owner, .. } => owner,
            KeyRoute::Nowhere(reason) => {
                return Err(GatewayError::Busy(format!("{reason}: try again later")));
            }
        };
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let question = PeerQuestion::Look { bucket: bucket.clone(), key: key.clone() };
        let PeerAnswer::Object(record) = self.ask(&owner, &question).await? else { return Err(confused()) };
        let (etag, range) = (record.etag.clone(), 0..record.size_bytes);
        let source = RunSource::Elsewhere(Box::new(PeerObject { owner, bucket, key, etag }));
        Ok(ResolvedObject::elsewhere(*record, vec![ByteRun { source, range }]))
    }

    pub(super) async fn read_elsewhere(
        &self,
        owner: &str,
        (bucket, key, etag): (&str, &str, &str),
        range: Range<u64>,
    ) -> GatewayResult<Bytes> {
        let length = range.end - range.start;
        let question = PeerQuestion::Read {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            etag: etag.to_owned(),
            range,
        };
        match self.ask(owner, &question).await? {
            PeerAnswer::Bytes(bytes) if bytes.len() as u64 == length => Ok(bytes),
            _ => Err(confused()),
        }
    }

    /// Where extents lie.
    pub(super) fn runs_of(
        &self,
        view: &MetadataView,
        state: &BucketState,
        extents: &[ContentExtent],
    ) -> GatewayResult<Vec<ByteRun>> {
        let mut runs = Vec::with_capacity(extents.len());
        for extent in extents {
            let content = view.content(extent.content)?.ok_or_else(|| {
                GatewayError::Local(format!(
                    "content {} is missing: run `underlay-gateway check`",
                    extent.content.0
                ))
            })?;
            let range = extent.offset_bytes..extent.offset_bytes + extent.length_bytes;
            let source = match content.place {
                ContentPlace::Local { segment, offset_bytes } => RunSource::Local {
                    content: extent.content,
                    size_bytes: content.size_bytes,
                    segment,
                    offset_bytes,
                },
                ContentPlace::Remote { bucket, key, etag, cached_as, .. } => {
                    let owner = self.any_bucket(&bucket)?;
                    RunSource::Remote(Box::new(BlockOrigin {
                        backend: owner.backend.clone(),
                        counts: state.rule(&key).counts.clone(),
                        key,
                        etag,
                        size_bytes: content.size_bytes,
                        whose: self.content_owner(cached_as),
                        missed: None,
                    }))
                }
            };
            runs.push(ByteRun { source, range });
        }
        Ok(runs)
    }

    /// A listing told of the object only: asks the store for its headers. `None` if it has another one by now, which is
    /// taken.
    async fn ask_headers(
        &self,
        state: &BucketState,
        name: &ObjectName,
        record: &ObjectRecord,
    ) -> GatewayResult<Option<ObjectHeaders>> {
        let headers = self.ask_headers_once(state, name, record).await?;
        match headers == Some(ObjectHeaders::default()) {
            // S3 gives every object a content type: one answer without any header is not kept for good.
            true => self.ask_headers_once(state, name, record).await,
            false => Ok(headers),
        }
    }

    async fn ask_headers_once(
        &self,
        state: &BucketState,
        name: &ObjectName,
        record: &ObjectRecord,
    ) -> GatewayResult<Option<ObjectHeaders>> {
        let found = match state.backend.head(&name.key).await {
            Err(GatewayError::NoSuchKey) => {
                return self.refresh(state, name, record.version).await.map(|()| None);
            }
            outcome => outcome?,
        };
        if !is_as_listed(&found, record) {
            return self.refresh(state, name, record.version).await.map(|()| None);
        }
        Ok(Some(found.headers))
    }

    /// Known headers, from a write here or an earlier request, are not replaced.
    async fn keep_headers(
        &self,
        name: &ObjectName,
        version: u64,
        headers: ObjectHeaders,
    ) -> GatewayResult<()> {
        let target = name.clone();
        self.committer
            .commit(Vec::new(), move |change| {
                let stored = change.object(&target)?;
                let Some(mut record) =
                    stored.filter(|stored| stored.version == version && stored.only_listed)
                else {
                    return Ok(());
                };
                record.headers = headers;
                record.only_listed = false;
                // From now on the store's own copy is known to have the same headers.
                if let [extent] = record.extents.as_slice()
                    && let Some(content) = change.content(extent.content)?
                    && let ContentPlace::Remote { bucket, key, etag, cached_as, .. } = content.place
                {
                    let headers_hash = Some(record.headers.hash_code());
                    let place = ContentPlace::Remote { bucket, key, etag, headers_hash, cached_as };
                    change.set_place(extent.content, place)?;
                }
                change.set_object(&target, Some(&record))
            })
            .await
    }

    /// The bytes of a range, beginning before all of them are here. It follows bytes that move meanwhile.
    pub fn body(
        self: &Arc<Self>,
        bucket: &str,
        key: &str,
        mut resolved: ResolvedObject,
        range: Range<u64>,
    ) -> AnswerBody {
        // It is read with the other blocks: its bytes must not wait here until all is over.
        resolved.arriving = None;
        self.read_ahead(bucket, key, &resolved, &range);
        resolved.forget_parts();
        ObjectReader::new(Arc::clone(self), ObjectName::new(bucket, key), resolved, range).boxed()
    }

    /// Whether a range is better read at once than in pieces.
    pub fn is_short(&self, range: &Range<u64>) -> bool {
        range.end - range.start <= self.blocks.block_bytes()
    }

    pub(super) async fn piece(
        &self,
        name: &ObjectName,
        resolved: &ResolvedObject,
        range: Range<u64>,
    ) -> GatewayResult<Bytes> {
        Ok(joined(self.piece_apart(name, resolved, range).await?))
    }

    async fn piece_apart(
        &self,
        name: &ObjectName,
        resolved: &ResolvedObject,
        range: Range<u64>,
    ) -> GatewayResult<Vec<Bytes>> {
        match self.runs_apart(&resolved.runs, range.clone()).await {
            Err(GatewayError::PreconditionFailed | GatewayError::NoSuchKey) => {}
            outcome => return outcome,
        }
        // The bytes are elsewhere by now: a flush has put them there, or somebody else has been at the store.
        let state = self.bucket(&name.bucket)?;
        let changed = || GatewayError::Store(format!("{name} was replaced while it was read"));
        if resolved.runs.iter().any(|run| matches!(run.source, RunSource::Elsewhere(_))) {
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
                Err(GatewayError::PreconditionFailed | GatewayError::NoSuchKey) => {
                    tokio::time::sleep(Duration::from_millis(20 << attempt)).await;
                }
                outcome => return outcome,
            }
        }
        self.refresh(&state, name, resolved.record.version).await?;
        Err(changed())
    }

    /// Bytes of an object that consists of these runs.
    pub(super) async fn read_runs(&self, runs: &[ByteRun], range: Range<u64>) -> GatewayResult<Bytes> {
        Ok(joined(self.runs_apart(runs, range).await?))
    }

    /// In pieces that no byte had to be copied for.
    async fn runs_apart(&self, runs: &[ByteRun], range: Range<u64>) -> GatewayResult<Vec<Bytes>> {
        let mut parts: Vec<Bytes> = Vec::new();
        let mut begin = 0;
        for run in runs {
            let length = run.range.end - run.range.start;
            let from = range.start.max(begin);
            let to = range.end.min(begin + length);
            if from < to {
                let source_range = run.range.start + (from - begin)..run.range.start + (to - begin);
                match &run.source {
                    RunSource::Remote(origin) => {
                        parts.extend(self.blocks.read_apart(origin, source_range).await?)
                    }
                    other => parts.push(self.read_source(other, source_range).await?),
                }
            }
            begin += length;
            if begin >= range.end {
                break;
            }
        }
        Ok(parts)
    }

    async fn read_source(&self, source: &RunSource, range: Range<u64>) -> GatewayResult<Bytes> {
        match source {
            RunSource::Remote(origin) => self.blocks.read(origin, range).await,
            RunSource::Elsewhere(theirs) => {
                let PeerObject { owner, bucket, key, etag } = &**theirs;
                self.read_elsewhere(owner, (bucket, key, etag), range).await
            }
            RunSource::Local { content, size_bytes, segment, offset_bytes } => {
                let (content, size_bytes, place) = (*content, *size_bytes, (*segment, *offset_bytes));
                if range.end - range.start <= 64 << 10 {
                    // It was written a moment ago: most likely the page cache has it.
                    return self.journal.read(content, size_bytes, place, range);
                }
                let journal = Arc::clone(&self.journal);
                crate::blocking::spawn_blocking(move || journal.read(content, size_bytes, place, range))
                    .await
                    .unwrap_or_else(|error| Err(GatewayError::local("cannot read the journal", error)))
            }
        }
    }
}

impl ResolvedObject {
    pub(super) fn elsewhere(record: ObjectRecord, runs: Vec<ByteRun>) -> ResolvedObject {
        ResolvedObject { record, runs, arriving: None, _pins: None }
    }

    /// A reader of its bytes no longer needs the list of its parts, and may take long.
    pub(super) fn forget_parts(&mut self) {
        self.record.part_sizes_bytes = Vec::new();
        self.record.part_checksums = Vec::new();
    }

    pub(super) fn runs(&self) -> &[ByteRun] {
        &self.runs
    }
}

/// Whether the store still has what a listing told of.
fn is_as_listed(found: &StoredInfo, record: &ObjectRecord) -> bool {
    found.size_bytes == record.size_bytes && found.etag.as_deref().map_or("", bare) == record.etag
}

/// Whether both consist of the same bytes, as clients tell by the ETag. New headers make a new version of old bytes.
fn has_same_bytes(one: &ObjectRecord, other: &ObjectRecord) -> bool {
    one.version == other.version || (one.etag == other.etag && one.size_bytes == other.size_bytes)
}

/// Cuts a range where blocks end, into pieces that grow. A long object has millions, so they are cut as they are
/// needed.
pub(super) struct RangePieces {
    range: Range<u64>,
    block_bytes: u64,
    blocks: u64,
}

impl RangePieces {
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

impl Iterator for RangePieces {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        let piece = self.peek()?;
        self.range.start = piece.end;
        self.blocks = (self.blocks * 2).min(MAX_BLOCKS_PER_PIECE);
        Some(piece)
    }
}

pub(super) fn pieces(range: &Range<u64>, block_bytes: u64) -> RangePieces {
    RangePieces { range: range.clone(), block_bytes, blocks: 1 }
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
        fn pieces_of_longest_object_take_no_memory(at in 0..(5_u64 << 40)) {
            let mut pieces = pieces(&(at..5 << 40), 64 << 10);
            prop_assert_eq!(pieces.next().map(|piece| piece.start), Some(at));
        }
    }
}
