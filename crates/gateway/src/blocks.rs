//! The cache: blocks of objects in memory and on flash. A block is known by whose bytes it has and its number, so another
//! version's is never taken for it. Whoever misses a block that is already on its way waits for that one.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use foyer::{
    BlockEngineConfig, DeviceBuilder as _, FsDeviceBuilder, HybridCache, HybridCacheBuilder,
    PsyncIoEngineConfig, S3FifoConfig,
};
use futures_util::StreamExt as _;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Semaphore, watch};
use underlay_sync::Mutex;

use crate::errors::{Error, Result};
use crate::store::{Backend, failed};

/// Missing blocks that stand beside each other are fetched by one request of this size at most.
const MOST_FETCH_BYTES: u64 = 8 << 20;
/// Requests for blocks that are under way at the same time: with [`MOST_FETCH_BYTES`] it bounds the memory.
const FETCHES: usize = 64;
/// What an entry takes in memory besides its bytes.
const ENTRY_BYTES: usize = 96;

/// Whose bytes: 96 bits of a hash, with room for a block's number below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whose(u128);

impl Whose {
    /// `parts` have to say it all: which gateway, which object, which version.
    pub(crate) fn new(parts: &[&[u8]]) -> Whose {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        Whose(u128::from_be_bytes(bytes) << 32)
    }

    fn block(self, number: u64) -> u128 {
        // 2^32 blocks of 64 KiB are more than S3's largest object.
        self.0 | u128::from(number as u32)
    }
}

/// An object of the store as it was when its ETag was learnt.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) backend: Backend,
    pub(crate) key: String,
    pub(crate) etag: Option<String>,
    pub(crate) size_bytes: u64,
    pub(crate) whose: Whose,
    pub(crate) counts: Arc<Counts>,
}

/// Of the blocks that requests asked for.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    /// Misses that found the block on its way already.
    pub(crate) joined: AtomicU64,
    pub(crate) fetched_bytes: AtomicU64,
}

type Outcome = Option<Result<Bytes>>;

/// See the module.
pub(crate) struct Blocks {
    cache: HybridCache<u128, Bytes>,
    block_bytes: u64,
    under_way: Mutex<HashMap<u128, watch::Receiver<Outcome>>>,
    fetches: Arc<Semaphore>,
}

impl Blocks {
    /// `flash` names a directory and how much of it may be used.
    ///
    /// # Errors
    /// When the directory can't be used.
    pub(crate) async fn open(
        block_bytes: u64,
        memory_bytes: u64,
        flash: Option<(&Path, u64)>,
    ) -> std::result::Result<Blocks, String> {
        let builder = HybridCacheBuilder::new()
            .with_name("blocks")
            .memory(memory_bytes as usize)
            // Blocks that are read once leave before those that are read again: a scan flushes nothing.
            .with_eviction_config(S3FifoConfig::default())
            .with_weighter(|_: &u128, block: &Bytes| block.len() + ENTRY_BYTES)
            .storage();
        let built = match flash {
            None => builder.build().await,
            Some((directory, bytes)) => {
                let device = FsDeviceBuilder::new(directory)
                    .with_capacity(bytes as usize)
                    .build()
                    .map_err(|error| format!("the cache in {}: {error}", directory.display()))?;
                // An entry has to fit one of foyer's own blocks.
                let region = (block_bytes as usize * 4).max(16 << 20);
                builder
                    .with_io_engine_config(PsyncIoEngineConfig::new())
                    .with_engine_config(BlockEngineConfig::new(device).with_block_size(region))
                    .build()
                    .await
            }
        };
        let cache = built.map_err(|error| format!("the cache: {error}"))?;
        Ok(Blocks {
            cache,
            block_bytes,
            under_way: Mutex::new(HashMap::new()),
            fetches: Arc::new(Semaphore::new(FETCHES)),
        })
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.cache.memory().usage() as u64
    }

    /// Takes in a block that somebody has at hand.
    pub(crate) fn insert(&self, whose: Whose, number: u64, block: Bytes) {
        self.cache.insert(whose.block(number), block);
    }

    /// A range of an object, from the cache and where need be from the store.
    ///
    /// # Errors
    /// `PreconditionFailed` or `NoSuchKey` if the store has another version by now, or what the store said.
    pub(crate) async fn read(self: &Arc<Self>, origin: &Origin, range: Range<u64>) -> Result<Bytes> {
        Ok(joined(self.read_apart(origin, range).await?))
    }

    /// As [`read`](Self::read), in as many pieces as there are blocks: no byte is copied.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn read_apart(
        self: &Arc<Self>,
        origin: &Origin,
        range: Range<u64>,
    ) -> Result<Vec<Bytes>> {
        let range = range.start..range.end.min(origin.size_bytes);
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let numbers = range.start / self.block_bytes..(range.end - 1) / self.block_bytes + 1;
        let first = numbers.start;
        let mut found: Vec<Option<Bytes>> = Vec::new();
        for number in numbers.clone() {
            // What the flash can't give is a miss like any other.
            let entry = self.cache.get(&origin.whose.block(number)).await.ok().flatten();
            found.push(entry.map(|entry| entry.value().clone()));
        }
        let missing: Vec<u64> =
            numbers.clone().filter(|number| found[(number - first) as usize].is_none()).collect();
        origin.counts.hits.fetch_add(found.len() as u64 - missing.len() as u64, Ordering::Relaxed);
        origin.counts.misses.fetch_add(missing.len() as u64, Ordering::Relaxed);
        for (number, mut waiting) in self.claim(origin, &missing) {
            let outcome = match waiting.wait_for(Option::is_some).await {
                Ok(outcome) => outcome.clone(),
                Err(_) => None,
            };
            let block = outcome
                .unwrap_or_else(|| Err(Error::Store("the request for a block was given up".to_owned())))?;
            found[(number - first) as usize] = Some(block);
        }
        let begin = first * self.block_bytes;
        let slice_of = |at: usize, block: &Bytes| {
            let block_begin = begin + at as u64 * self.block_bytes;
            let from = range.start.saturating_sub(block_begin) as usize;
            let to = (range.end - block_begin).min(block.len() as u64) as usize;
            block.slice(from.min(to)..to)
        };
        let answer: Vec<Bytes> =
            found.iter().flatten().enumerate().map(|(at, block)| slice_of(at, block)).collect();
        if answer.iter().map(|piece| piece.len() as u64).sum::<u64>() != range.end - range.start {
            return Err(Error::Store(format!(
                "{} is shorter than the store said",
                origin.key.escape_debug()
            )));
        }
        Ok(answer)
    }

    /// For each missing block somebody who will have it: a request that is under way, or one of ours.
    fn claim(self: &Arc<Self>, origin: &Origin, missing: &[u64]) -> Vec<(u64, watch::Receiver<Outcome>)> {
        let mut receivers = Vec::new();
        let mut ours: Vec<(u64, watch::Sender<Outcome>)> = Vec::new();
        {
            let mut under_way = self.under_way.lock();
            for number in missing {
                let block = origin.whose.block(*number);
                // One whose task has ended without a word, by a panic, is nobody's any more.
                let is_alive = |receiver: &&watch::Receiver<Outcome>| {
                    receiver.borrow().is_some() || receiver.has_changed().is_ok()
                };
                let joined = under_way.get(&block).filter(is_alive).cloned();
                if let Some(receiver) = joined {
                    origin.counts.joined.fetch_add(1, Ordering::Relaxed);
                    receivers.push((*number, receiver));
                    continue;
                }
                // It may have come in since we looked.
                let (sender, receiver) = match self.cache.memory().get(&block) {
                    Some(entry) => {
                        receivers.push((*number, watch::channel(Some(Ok(entry.value().clone()))).1));
                        continue;
                    }
                    None => watch::channel(None),
                };
                under_way.insert(block, receiver.clone());
                receivers.push((*number, receiver));
                ours.push((*number, sender));
            }
        }
        let run_length = (MOST_FETCH_BYTES / self.block_bytes).max(1);
        let mut run: Vec<(u64, watch::Sender<Outcome>)> = Vec::new();
        for (number, sender) in ours {
            let goes_on =
                run.last().is_none_or(|(last, _)| last + 1 == number) && (run.len() as u64) < run_length;
            if !goes_on {
                self.start_fetch(origin, std::mem::take(&mut run));
            }
            run.push((number, sender));
        }
        if !run.is_empty() {
            self.start_fetch(origin, run);
        }
        receivers
    }

    /// In a task of its own: others may wait for the blocks when the one who asked first has gone.
    fn start_fetch(self: &Arc<Self>, origin: &Origin, run: Vec<(u64, watch::Sender<Outcome>)>) {
        let (blocks, origin) = (Arc::clone(self), origin.clone());
        tokio::spawn(async move {
            let mut left = run.into_iter().collect::<std::collections::VecDeque<_>>();
            let outcome = blocks.fetch(&origin, &mut left).await;
            let error = outcome.err().unwrap_or_else(|| {
                Error::Store(format!("{} is shorter than the store said", origin.key.escape_debug()))
            });
            let mut under_way = blocks.under_way.lock();
            for (number, sender) in left {
                under_way.remove(&origin.whose.block(number));
                sender.send_replace(Some(Err(error.clone())));
            }
        });
    }

    async fn fetch(
        &self,
        origin: &Origin,
        left: &mut std::collections::VecDeque<(u64, watch::Sender<Outcome>)>,
    ) -> Result<()> {
        let (Some((first, _)), Some((last, _))) = (left.front(), left.back()) else { return Ok(()) };
        let begin = first * self.block_bytes;
        let end = ((last + 1) * self.block_bytes).min(origin.size_bytes);
        let permit = self.fetches.acquire().await;
        let mut body = origin.backend.get(&origin.key, origin.etag.as_deref(), begin..end).await?;
        let mut gathered = BytesMut::with_capacity(self.block_bytes as usize);
        let mut at = begin;
        while let Some(piece) = body.next().await {
            let mut piece = piece.map_err(|error| failed("GET", error))?;
            origin.counts.fetched_bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
            while !piece.is_empty() {
                let wanted = (self.block_bytes.min(end - at)) as usize - gathered.len();
                let taken = piece.split_to(wanted.min(piece.len()));
                gathered.extend_from_slice(&taken);
                if taken.len() < wanted {
                    break;
                }
                let block = gathered.split().freeze();
                at += block.len() as u64;
                let Some((number, sender)) = left.pop_front() else { return Ok(()) };
                let key = origin.whose.block(number);
                self.cache.insert(key, block.clone());
                self.under_way.lock().remove(&key);
                sender.send_replace(Some(Ok(block)));
                if left.is_empty() {
                    return Ok(());
                }
            }
        }
        drop(permit);
        Ok(())
    }

    /// Writes what is only in memory to flash, where there is flash.
    pub(crate) async fn close(&self) {
        if let Err(error) = self.cache.close().await {
            tracing::warn!("the cache was not closed: {error}");
        }
    }
}

/// Several pieces as one, which copies them unless it is one already.
pub(crate) fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    match pieces.len() {
        1 => pieces.swap_remove(0),
        _ => Bytes::from(pieces.concat()),
    }
}
