//! Short reads: as their bytes come from the store, where it has to be asked for them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::mpsc;

use super::GatewayEngine;
use super::read::{AnswerBody, ByteRun, ResolvedObject, RunSource, UNCOUNTED_BYTES};
use crate::blocks::ArrivingBlock;
use crate::errors::{GatewayError, GatewayResult};
use crate::memory::MemoryHold;
use crate::meta::ObjectName;

/// The bytes of a short range.
pub enum ShortRange {
    Whole(Bytes),
    Coming(AnswerBody),
}

impl GatewayEngine {
    /// The bytes of a short range: as they come from the store where it lies in a block that is on its way for this
    /// reader, and at once where not.
    ///
    /// # Errors
    /// When they can't be had, or have been replaced meanwhile.
    pub async fn read(
        self: &Arc<Self>,
        bucket: &str,
        key: &str,
        mut resolved: ResolvedObject,
        range: Range<u64>,
    ) -> GatewayResult<ShortRange> {
        resolved.forget_parts();
        let hold = match range.end - range.start {
            length if length <= UNCOUNTED_BYTES => None,
            length => match self.reading.try_hold(length) {
                // Many read slowly: this one gets it bit by bit.
                None => return Ok(ShortRange::Coming(self.body(bucket, key, resolved, range))),
                hold => hold,
            },
        };
        self.read_ahead(bucket, key, &resolved, &range);
        let name = ObjectName::new(bucket, key);
        if let Some(mut arriving) = self.arriving(&mut resolved, &range).await?
            // With no byte of it, a status can still tell how it went.
            && let Some(first) = arriving.pieces.recv().await
        {
            return Ok(ShortRange::Coming(self.coming(name, resolved, (arriving, first), range, hold)));
        }
        let bytes = self.piece(&name, &resolved, range).await?;
        Ok(ShortRange::Whole(match hold {
            Some(hold) => hold.wrap(bytes),
            None => bytes,
        }))
    }

    /// The block that the range lies in, if it is on its way for this reader or has to be fetched for it.
    async fn arriving(
        &self,
        resolved: &mut ResolvedObject,
        range: &Range<u64>,
    ) -> GatewayResult<Option<ArrivingBlock>> {
        let [ByteRun { source: RunSource::Remote(origin), range: run }] = resolved.runs.as_mut_slice() else {
            return Ok(None);
        };
        let (first, end) = (run.start + range.start, run.start + range.end);
        let block_bytes = self.blocks.block_bytes();
        if range.is_empty() || first / block_bytes != (end - 1) / block_bytes {
            return Ok(None);
        }
        let begins = first / block_bytes * block_bytes;
        let arriving = match resolved.arriving.take().filter(|arriving| arriving.begins == begins) {
            None if self.blocks.is_in_memory(origin, first) => None,
            None => match self.blocks.fetch_first(origin, first).await {
                // The bytes may be elsewhere by now, where any other read finds them.
                Err(GatewayError::PreconditionFailed | GatewayError::NoSuchKey) => None,
                outcome => outcome?,
            },
            arriving => arriving,
        };
        if arriving.is_some() {
            origin.missed = None;
            origin.counts.misses.fetch_add(1, Ordering::Relaxed);
        }
        Ok(arriving)
    }

    /// A range of a block while that comes. Should it not come whole, the rest is read as any other bytes are.
    fn coming(
        self: &Arc<Self>,
        name: ObjectName,
        resolved: ResolvedObject,
        (arriving, first): (ArrivingBlock, Bytes),
        range: Range<u64>,
        hold: Option<MemoryHold>,
    ) -> AnswerBody {
        let begins = resolved.runs.first().map_or(0, |run| run.range.start);
        let coming = StreamingBlock {
            engine: Arc::clone(self),
            name,
            left: begins + range.start..begins + range.end,
            begins,
            at: arriving.begins,
            first: Some(first),
            pieces: arriving.pieces,
            resolved,
            _hold: hold,
        };
        futures_util::stream::try_unfold(coming, StreamingBlock::next).boxed()
    }
}

/// A reader of a block that is on its way.
struct StreamingBlock {
    engine: Arc<GatewayEngine>,
    name: ObjectName,
    resolved: ResolvedObject,
    /// Where the object begins in what the store has under its key, by which all else here counts.
    begins: u64,
    first: Option<Bytes>,
    pieces: mpsc::UnboundedReceiver<Bytes>,
    /// Where the next piece begins.
    at: u64,
    /// The bytes that have not been handed on yet.
    left: Range<u64>,
    _hold: Option<MemoryHold>,
}

impl StreamingBlock {
    fn has_etag(&self) -> bool {
        let is_known =
            |run: &ByteRun| matches!(&run.source, RunSource::Remote(origin) if origin.etag.is_some());
        self.resolved.runs.iter().all(is_known)
    }

    /// Fetches the bytes that have not come.
    async fn rest(&self) -> GatewayResult<Bytes> {
        let rest = || self.left.start - self.begins..self.left.end - self.begins;
        match self.engine.piece(&self.name, &self.resolved, rest()).await {
            // The request that was to bring it may have failed so, and it is too late for a status that tells the
            // client.
            Err(
                GatewayError::Store(reason) | GatewayError::StoreAway(reason) | GatewayError::Busy(reason),
            ) => {
                tracing::debug!("the rest of {} is asked for again: {reason}", self.name);
                self.engine.piece(&self.name, &self.resolved, rest()).await
            }
            outcome => outcome,
        }
    }

    async fn next(mut self) -> GatewayResult<Option<(Bytes, StreamingBlock)>> {
        while !self.left.is_empty() {
            let piece = match self.first.take() {
                None => self.pieces.recv().await,
                first => first,
            };
            let Some(piece) = piece else {
                // Nobody would know whether the rest is of the same bytes.
                if !self.has_etag() {
                    return Err(GatewayError::Store(format!(
                        "{} broke off on its way from the store",
                        self.name
                    )));
                }
                let bytes = self.rest().await?;
                self.left.start = self.left.end;
                return Ok(Some((bytes, self)));
            };
            let (from, to) = (self.at, self.at + piece.len() as u64);
            self.at = to;
            let wanted = self.left.start.max(from)..self.left.end.min(to);
            if wanted.is_empty() {
                continue;
            }
            self.left.start = wanted.end;
            let bytes = piece.slice((wanted.start - from) as usize..(wanted.end - from) as usize);
            return Ok(Some((bytes, self)));
        }
        Ok(None)
    }
}
