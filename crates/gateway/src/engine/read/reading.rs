//! One answer on its way: pieces of an object, some of them ahead of the client while there is memory for that. Without
//! memory, the answer goes on in short pieces, so that clients that read slowly keep nobody from reading.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{BoxStream, FuturesOrdered};

use super::{RangePieces, ResolvedObject, pieces};
use crate::engine::GatewayEngine;
use crate::errors::GatewayResult;
use crate::meta::ObjectName;

/// Pieces of one answer that are fetched ahead of the client.
const AHEAD: usize = 4;
/// So much of an answer is not counted: every request may have it in memory.
pub(in crate::engine) const UNCOUNTED_BYTES: u64 = 64 << 10;

/// See the module.
pub(super) struct ObjectReader {
    engine: Arc<GatewayEngine>,
    name: ObjectName,
    resolved: Arc<ResolvedObject>,
    pieces: RangePieces,
    ahead: FuturesOrdered<BoxFuture<'static, GatewayResult<Vec<Bytes>>>>,
    ready: VecDeque<Bytes>,
}

impl ObjectReader {
    pub(super) fn new(
        engine: Arc<GatewayEngine>,
        name: ObjectName,
        resolved: ResolvedObject,
        range: Range<u64>,
    ) -> ObjectReader {
        let pieces = pieces(&range, engine.blocks.block_bytes());
        let (ahead, ready) = (FuturesOrdered::new(), VecDeque::new());
        ObjectReader { engine, name, resolved: Arc::new(resolved), pieces, ahead, ready }
    }

    pub(super) fn boxed(self) -> BoxStream<'static, GatewayResult<Bytes>> {
        let next =
            |mut reading: ObjectReader| async move { reading.next().await.map(|item| (item, reading)) };
        futures_util::stream::unfold(self, next).boxed()
    }

    async fn next(&mut self) -> Option<GatewayResult<Bytes>> {
        loop {
            self.read_ahead();
            if let Some(bytes) = self.ready.pop_front() {
                return Some(Ok(bytes));
            }
            match self.ahead.next().await? {
                Ok(blocks) => self.ready.extend(blocks),
                Err(error) => {
                    // Bytes behind it would be worth nothing.
                    (self.pieces, self.ahead) = (pieces(&(0..0), 1), FuturesOrdered::new());
                    return Some(Err(error));
                }
            }
        }
    }

    fn read_ahead(&mut self) {
        while self.ahead.len() < AHEAD {
            let Some(piece) = self.pieces.peek() else { return };
            let is_next = self.ahead.is_empty() && self.ready.is_empty();
            // Bytes that a client waits for go before read-ahead.
            if !is_next && !self.engine.reading.is_ample() {
                return;
            }
            if let Some(hold) = self.engine.reading.try_hold(piece.end - piece.start) {
                self.pieces.next();
                let read = self.read(piece);
                self.ahead.push_back(
                    async move { Ok(read.await?.into_iter().map(|block| hold.wrap(block)).collect()) }
                        .boxed(),
                );
                continue;
            }
            if is_next && let Some(piece) = self.pieces.take_short(UNCOUNTED_BYTES) {
                let read = self.read(piece);
                // Copied, since a part of a block keeps all of it in memory.
                self.ahead.push_back(async move { Ok(vec![Bytes::from(read.await?.concat())]) }.boxed());
            }
            return;
        }
    }

    fn read(&self, piece: Range<u64>) -> impl Future<Output = GatewayResult<Vec<Bytes>>> + Send + 'static {
        let (engine, name) = (Arc::clone(&self.engine), self.name.clone());
        let resolved = Arc::clone(&self.resolved);
        async move { engine.piece_apart(&name, &resolved, piece).await }
    }
}
