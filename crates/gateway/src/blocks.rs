//! The cache: blocks of objects in memory and on flash. A block is known by whose bytes it has and its number, so
//! another version's is never taken for it. A reader that misses a block already on its way waits for that one.

mod admission;
mod arriving;

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use foyer::{
    BlockEngineConfig, Code, DeviceBuilder as _, FsDeviceBuilder, HybridCache, HybridCacheBuilder,
    HybridCacheProperties, Location, PsyncIoEngineConfig, S3FifoConfig,
};
use futures_util::StreamExt as _;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use underlay_sync::Mutex;

use crate::at_rest::{AtRest, SEAL_BYTES, SealPurpose};
use crate::bypass::CacheBypass;
use crate::config::region_bytes;
use crate::errors::{GatewayError, GatewayResult};
use crate::store::{StoreBackend, failed};
use crate::supervision::LoopSupervisor;
use admission::CacheAdmission;
pub(crate) use arriving::ArrivingBlock;
use arriving::{FirstReader, HandedOn, end_of};

/// Missing blocks that stand beside each other are fetched by one request of this size at most.
const MAX_FETCH_BYTES: u64 = 8 << 20;
/// Requests for blocks that are in flight at the same time: with [`MAX_FETCH_BYTES`] it bounds the memory.
const FETCHES: usize = 64;
/// An entry's memory besides its bytes.
const ENTRY_BYTES: usize = 96;

/// Whose bytes: 96 bits of a hash, with room for a block's number below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockOwner(u128);

impl BlockOwner {
    /// `parts` have to say it all: which gateway, which object, which version.
    pub(crate) fn new(parts: &[&[u8]]) -> BlockOwner {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        BlockOwner(u128::from_be_bytes(bytes) << 32)
    }

    fn block(self, number: u64) -> u128 {
        // 2^32 blocks of 64 KiB are more than S3's largest object.
        self.0 | u128::from(number as u32)
    }
}

/// An object of the store as it was when its ETag was learnt.
#[derive(Clone)]
pub(crate) struct BlockOrigin {
    pub(crate) backend: StoreBackend,
    pub(crate) key: String,
    pub(crate) etag: Option<String>,
    pub(crate) size_bytes: u64,
    pub(crate) whose: BlockOwner,
    pub(crate) counts: Arc<BlockCounts>,
    /// A block that was fetched for this very reader: it counts as a miss, also if it is here by the time that it is
    /// read.
    pub(crate) missed: Option<u64>,
}

/// Of the blocks that requests asked for.
#[derive(Debug, Default)]
pub(crate) struct BlockCounts {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    /// Misses that found the block on its way already.
    pub(crate) joined: AtomicU64,
    pub(crate) fetched_bytes: AtomicU64,
}

/// A block as the cache has it.
enum CachedBlock {
    /// With what it is sealed by on its way to flash.
    Open { bytes: Bytes, seal: Option<(Arc<AtRest>, u128)> },
    /// As it came from flash.
    Sealed(Bytes),
}

/// Before a block on flash stands its length, as foyer itself writes it; a sealed one has this bit in it.
const SEALED: u64 = 1 << 63;
/// No block is longer, and nothing that flash says makes us take more memory.
const MAX_BLOCK_BYTES: u64 = (16 << 20) + SEAL_BYTES as u64;

impl CachedBlock {
    fn len(&self) -> usize {
        match self {
            CachedBlock::Open { bytes, .. } | CachedBlock::Sealed(bytes) => bytes.len(),
        }
    }
}

impl Code for CachedBlock {
    fn encode(&self, writer: &mut impl std::io::Write) -> foyer::Result<()> {
        let mut sealed = Vec::new();
        let (kind, bytes) = match self {
            CachedBlock::Open { bytes, seal: None } => (0, &bytes[..]),
            CachedBlock::Open { bytes, seal: Some((seal, id)) } => {
                seal.seal(SealPurpose::Cache, &id.to_be_bytes(), 0, bytes, &mut sealed)
                    .map_err(|error| foyer::Error::io_error(std::io::Error::other(error)))?;
                (SEALED, &sealed[..])
            }
            CachedBlock::Sealed(bytes) => (SEALED, &bytes[..]),
        };
        let head = (bytes.len() as u64 | kind).to_le_bytes();
        writer.write_all(&head).and_then(|()| writer.write_all(bytes)).map_err(foyer::Error::io_error)
    }

    fn decode(reader: &mut impl std::io::Read) -> foyer::Result<CachedBlock> {
        let mut head = [0; 8];
        reader.read_exact(&mut head).map_err(foyer::Error::io_error)?;
        let head = u64::from_le_bytes(head);
        let length = head & !SEALED;
        if length > MAX_BLOCK_BYTES {
            return Err(foyer::Error::io_error(std::io::Error::other("no block is so long")));
        }
        let mut bytes = vec![0; length as usize];
        reader.read_exact(&mut bytes).map_err(foyer::Error::io_error)?;
        let bytes = Bytes::from(bytes);
        Ok(match head & SEALED {
            0 => CachedBlock::Open { bytes, seal: None },
            _ => CachedBlock::Sealed(bytes),
        })
    }

    fn estimated_size(&self) -> usize {
        8 + self.len() + if matches!(self, CachedBlock::Open { seal: Some(_), .. }) { SEAL_BYTES } else { 0 }
    }
}

/// For the fuzzer: any bytes as what flash may say.
pub(crate) fn read_any(data: &[u8]) {
    let mut rest = data;
    if let Ok(block) = CachedBlock::decode(&mut rest) {
        let mut again = Vec::new();
        assert!(block.encode(&mut again).is_ok() && again == data[..data.len() - rest.len()]);
    }
}

type FetchResult = Option<GatewayResult<Bytes>>;

/// A missing block that is on its way.
struct PendingBlock {
    number: u64,
    waiting: watch::Receiver<FetchResult>,
    /// Whether the request for it was in flight already.
    is_joined: bool,
}

impl PendingBlock {
    async fn outcome(mut self) -> GatewayResult<Bytes> {
        let outcome = self.waiting.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
        outcome.unwrap_or_else(|| Err(GatewayError::Store("the request for a block was given up".to_owned())))
    }
}

/// See the module.
pub(crate) struct BlockCache {
    cache: HybridCache<u128, CachedBlock>,
    has_flash: bool,
    /// Nothing where there is no flash.
    admission: Option<Mutex<CacheAdmission>>,
    at_rest: Option<Arc<AtRest>>,
    bypass: Mutex<CacheBypass>,
    /// Blocks that were not looked for on flash.
    passed_by: AtomicU64,
    block_bytes: u64,
    under_way: Mutex<HashMap<u128, watch::Receiver<FetchResult>>>,
    fetches: Arc<Semaphore>,
    supervisor: LoopSupervisor,
}

impl BlockCache {
    /// `flash` names a directory and how much of it may be used.
    ///
    /// # Errors
    /// When the directory can't be used.
    pub(crate) async fn open(
        block_bytes: u64,
        memory_bytes: u64,
        flash: Option<(&Path, u64)>,
        at_rest: Option<Arc<AtRest>>,
    ) -> std::result::Result<BlockCache, String> {
        let builder = HybridCacheBuilder::new()
            .with_name("blocks")
            .memory(memory_bytes as usize)
            // Blocks that are read once leave before those that are read again: a scan flushes nothing.
            .with_eviction_config(S3FifoConfig::default())
            .with_weighter(|_: &u128, block: &CachedBlock| block.len() + ENTRY_BYTES)
            .storage();
        let has_flash = flash.is_some();
        let region = region_bytes(block_bytes) as usize;
        let admission = flash.map(|(directory, bytes)| {
            Mutex::new(CacheAdmission::new(directory, bytes, region as u64, block_bytes))
        });
        let built = match flash {
            None => builder.build().await,
            Some((directory, bytes)) => {
                let device = FsDeviceBuilder::new(directory)
                    .with_capacity(bytes as usize)
                    .build()
                    .map_err(|error| format!("the cache in {}: {error}", directory.display()))?;
                builder
                    .with_io_engine_config(PsyncIoEngineConfig::new())
                    .with_engine_config(BlockEngineConfig::new(device).with_block_size(region))
                    .build()
                    .await
            }
        };
        let cache = built.map_err(|error| format!("the cache: {error}"))?;
        Ok(BlockCache {
            cache,
            has_flash,
            admission,
            at_rest,
            bypass: Mutex::default(),
            passed_by: AtomicU64::new(0),
            block_bytes,
            under_way: Mutex::new(HashMap::new()),
            fetches: Arc::new(Semaphore::new(FETCHES)),
            supervisor: LoopSupervisor::default(),
        })
    }

    /// The same, whose panics are counted with those of the whole gateway.
    pub(crate) fn supervised_by(self, supervisor: &LoopSupervisor) -> BlockCache {
        BlockCache { supervisor: supervisor.clone(), ..self }
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.cache.memory().usage() as u64
    }

    /// Takes in a block that somebody has at hand.
    pub(crate) fn insert(&self, owner: BlockOwner, number: u64, block: Bytes) {
        self.keep(owner.block(number), block);
    }

    fn keep(&self, id: u128, block: Bytes) {
        let is_admitted = match &self.admission {
            // Blocks that are not read from flash need not be written there.
            Some(_) if self.bypass.lock().is_on() => false,
            Some(admission) => admission.lock().admits(id, block.len() as u64),
            None => false,
        };
        let location = if is_admitted { Location::Default } else { Location::InMem };
        self.keep_at(id, block, location);
    }

    fn keep_at(&self, id: u128, block: Bytes, location: Location) {
        let cached = CachedBlock::Open { bytes: block, seal: self.at_rest.clone().map(|seal| (seal, id)) };
        let properties = HybridCacheProperties::default().with_location(location);
        drop(self.cache.insert_with_properties(id, cached, properties));
    }

    /// A block in memory.
    fn find_in_memory(&self, id: u128) -> Option<Bytes> {
        let entry = self.cache.memory().get(&id)?;
        self.opened(id, entry.value())
    }

    fn opened(&self, id: u128, cached: &CachedBlock) -> Option<Bytes> {
        match cached {
            // Nobody has authenticated what came open from flash.
            CachedBlock::Open { seal: None, .. } if self.at_rest.is_some() => None,
            CachedBlock::Open { bytes, .. } => Some(bytes.clone()),
            CachedBlock::Sealed(sealed) => {
                // A block that can't be opened is a miss like any other.
                let bytes = self.at_rest.as_ref()?.open(SealPurpose::Cache, &id.to_be_bytes(), 0, sealed)?;
                let bytes = Bytes::from(bytes);
                // From now on it is open, as long as it is in memory; flash has it.
                self.keep_at(id, bytes.clone(), Location::InMem);
                Some(bytes)
            }
        }
    }

    /// A block in memory or on flash.
    async fn look(&self, id: u128) -> Option<Bytes> {
        if let Some(block) = self.find_in_memory(id) {
            return Some(block);
        }
        if !self.has_flash {
            return None;
        }
        if !self.bypass.lock().asks_flash() {
            self.passed_by.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let begun = Instant::now();
        // A failed read of flash is a miss like any other.
        let entry = self.cache.get(&id).await.ok().flatten()?;
        let block = self.opened(id, entry.value())?;
        let has_changed = self.bypass.lock().took_from_flash(begun.elapsed());
        self.tell(has_changed);
        Some(block)
    }

    fn tell(&self, has_changed: bool) {
        if !has_changed {
            return;
        }
        let bypass = self.bypass.lock();
        let (flash, store) = bypass.seconds();
        let (flash, store) = (flash * 1e3, store * 1e3);
        match bypass.is_on() {
            true => tracing::warn!(
                "a block takes {flash:.1} ms from flash and {store:.1} ms from the store: flash is left alone"
            ),
            false => tracing::info!(
                "a block takes {flash:.1} ms from flash and {store:.1} ms from the store: flash is used again"
            ),
        }
    }

    /// Whether flash is left alone, how many blocks were not looked for there, and how long a block takes from it and
    /// from the store.
    pub(crate) fn bypass(&self) -> (bool, u64, f64, f64) {
        let bypass = self.bypass.lock();
        let (flash_s, store_s) = bypass.seconds();
        (bypass.is_on(), self.passed_by.load(Ordering::Relaxed), flash_s, store_s)
    }

    /// Fetches what is missing of a range, for nobody yet.
    pub(crate) async fn prefetch(self: &Arc<Self>, origin: &BlockOrigin, range: Range<u64>) {
        let range = range.start..range.end.min(origin.size_bytes);
        if range.is_empty() {
            return;
        }
        let numbers = range.start / self.block_bytes..(range.end - 1) / self.block_bytes + 1;
        let missing: Vec<u64> =
            numbers.filter(|number| !self.cache.contains(&origin.whose.block(*number))).collect();
        for claimed in self.claim(origin, &missing, None) {
            drop(claimed.outcome().await);
        }
    }

    /// Has the block come that this byte is in, and hands it on as soon as it begins to come. `None` if the block is
    /// here or on its way already.
    ///
    /// # Errors
    /// The store's error.
    pub(crate) async fn fetch_first(
        self: &Arc<Self>,
        origin: &BlockOrigin,
        offset: u64,
    ) -> GatewayResult<Option<ArrivingBlock>> {
        let number = offset / self.block_bytes;
        if offset >= origin.size_bytes || self.cache.contains(&origin.whose.block(number)) {
            return Ok(None);
        }
        let (found, receiver) = oneshot::channel();
        let (sender, pieces) = mpsc::unbounded_channel();
        self.claim(origin, &[number], Some(FirstReader { found, pieces: sender }));
        let found = receiver.await.ok().transpose()?;
        Ok(found.map(|found| ArrivingBlock { found, begins: number * self.block_bytes, pieces }))
    }

    /// Whether the block that this byte is in can be had without asking anybody.
    pub(crate) fn is_in_memory(&self, origin: &BlockOrigin, offset: u64) -> bool {
        self.cache.memory().contains(&origin.whose.block(offset / self.block_bytes))
    }

    /// A range of an object, from the cache and where need be from the store.
    ///
    /// # Errors
    /// `PreconditionFailed` or `NoSuchKey` if the store has another version by now, or what the store said.
    pub(crate) async fn read(
        self: &Arc<Self>,
        origin: &BlockOrigin,
        range: Range<u64>,
    ) -> GatewayResult<Bytes> {
        Ok(joined(self.read_apart(origin, range).await?))
    }

    /// As [`read`](Self::read), in as many pieces as there are blocks: no byte is copied.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn read_apart(
        self: &Arc<Self>,
        origin: &BlockOrigin,
        range: Range<u64>,
    ) -> GatewayResult<Vec<Bytes>> {
        let range = range.start..range.end.min(origin.size_bytes);
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let numbers = range.start / self.block_bytes..(range.end - 1) / self.block_bytes + 1;
        let first = numbers.start;
        let mut found: Vec<Option<Bytes>> = Vec::new();
        for number in numbers.clone() {
            found.push(self.look(origin.whose.block(number)).await);
        }
        let missing: Vec<u64> =
            numbers.clone().filter(|number| found[(number - first) as usize].is_none()).collect();
        let is_here = |number: &u64| numbers.contains(number) && !missing.contains(number);
        let misses = missing.len() as u64 + u64::from(origin.missed.as_ref().is_some_and(is_here));
        origin.counts.hits.fetch_add(found.len() as u64 - misses, Ordering::Relaxed);
        origin.counts.misses.fetch_add(misses, Ordering::Relaxed);
        let mut anew = Vec::new();
        for claimed in self.claim(origin, &missing, None) {
            let (number, is_joined) = (claimed.number, claimed.is_joined);
            match claimed.outcome().await {
                // That request began before this one: the store may have been well again by then.
                Err(GatewayError::Store(_) | GatewayError::StoreAway(_) | GatewayError::Busy(_))
                    if is_joined =>
                {
                    anew.push(number)
                }
                outcome => found[(number - first) as usize] = Some(outcome?),
            }
        }
        // Any request that is in flight by now began later than this one.
        for claimed in self.claim(origin, &anew, None) {
            let number = claimed.number;
            found[(number - first) as usize] = Some(claimed.outcome().await?);
        }
        let begin = first * self.block_bytes;
        let slice_of = |index: usize, block: &Bytes| {
            let block_begin = begin + index as u64 * self.block_bytes;
            let from = range.start.saturating_sub(block_begin) as usize;
            let to = (range.end - block_begin).min(block.len() as u64) as usize;
            block.slice(from.min(to)..to)
        };
        let answer: Vec<Bytes> =
            found.iter().flatten().enumerate().map(|(index, block)| slice_of(index, block)).collect();
        if answer.iter().map(|piece| piece.len() as u64).sum::<u64>() != range.end - range.start {
            return Err(wrong_length(origin, "shorter"));
        }
        Ok(answer)
    }

    /// Finds a request for each missing block: one that is in flight, or one of ours. The first of ours passes the
    /// store's headers to `teller`, and the first block's bytes as they come.
    fn claim(
        self: &Arc<Self>,
        origin: &BlockOrigin,
        missing: &[u64],
        mut teller: Option<FirstReader>,
    ) -> Vec<PendingBlock> {
        let mut claimed = Vec::new();
        let one = |number: u64, waiting, is_joined| PendingBlock { number, waiting, is_joined };
        let mut ours: Vec<(u64, watch::Sender<FetchResult>)> = Vec::new();
        {
            let mut under_way = self.under_way.lock();
            for number in missing {
                let block = origin.whose.block(*number);
                // One whose task has ended without a word, by a panic, is nobody's any more.
                let is_alive = |receiver: &&watch::Receiver<FetchResult>| {
                    receiver.borrow().is_some() || receiver.has_changed().is_ok()
                };
                let joined = under_way.get(&block).filter(is_alive).cloned();
                if let Some(receiver) = joined {
                    origin.counts.joined.fetch_add(1, Ordering::Relaxed);
                    claimed.push(one(*number, receiver, true));
                    continue;
                }
                // It may have come in since we looked.
                let (sender, receiver) = match self.find_in_memory(block) {
                    Some(found) => {
                        claimed.push(one(*number, watch::channel(Some(Ok(found))).1, false));
                        continue;
                    }
                    None => watch::channel(None),
                };
                under_way.insert(block, receiver.clone());
                claimed.push(one(*number, receiver, false));
                ours.push((*number, sender));
            }
        }
        let run_length = (MAX_FETCH_BYTES / self.block_bytes).max(1);
        let mut run: Vec<(u64, watch::Sender<FetchResult>)> = Vec::new();
        for (number, sender) in ours {
            let goes_on =
                run.last().is_none_or(|(last, _)| last + 1 == number) && (run.len() as u64) < run_length;
            if !goes_on {
                self.start_fetch(origin, std::mem::take(&mut run), teller.take());
            }
            run.push((number, sender));
        }
        if !run.is_empty() {
            self.start_fetch(origin, run, teller);
        }
        claimed
    }

    /// In a task of its own: others may wait for the blocks when the one who asked first has gone.
    fn start_fetch(
        self: &Arc<Self>,
        origin: &BlockOrigin,
        run: Vec<(u64, watch::Sender<FetchResult>)>,
        mut teller: Option<FirstReader>,
    ) {
        let (blocks, origin) = (Arc::clone(self), origin.clone());
        tokio::spawn(async move {
            let mut left = run.into_iter().collect::<std::collections::VecDeque<_>>();
            // Readers wait for these blocks, and later readers would too.
            let fetching = blocks.fetch(&origin, &mut left, &mut teller);
            let outcome = blocks.supervisor.shield("fetch of blocks", &origin.key, fetching).await;
            let outcome = outcome.unwrap_or_else(|panicked| Err(GatewayError::Store(panicked.to_string())));
            let error = outcome.err().unwrap_or_else(|| wrong_length(&origin, "shorter"));
            if let Some(teller) = teller {
                let _ = teller.found.send(Err(error.clone()));
            }
            let mut under_way = blocks.under_way.lock();
            for (number, sender) in left {
                under_way.remove(&origin.whose.block(number));
                sender.send_replace(Some(Err(error.clone())));
            }
        });
    }

    async fn fetch(
        &self,
        origin: &BlockOrigin,
        left: &mut std::collections::VecDeque<(u64, watch::Sender<FetchResult>)>,
        teller: &mut Option<FirstReader>,
    ) -> GatewayResult<()> {
        let (Some((first, _)), Some((last, _))) = (left.front(), left.back()) else { return Ok(()) };
        let (first, last) = (*first, *last);
        let begin = first * self.block_bytes;
        let end = ((last + 1) * self.block_bytes).min(origin.size_bytes);
        let permit = self.fetches.acquire().await;
        let mut begun = Instant::now();
        let asked = begin..end;
        let (found, mut body) =
            origin.backend.get(&origin.key, origin.etag.as_deref(), origin.size_bytes, asked).await?;
        // Who asked may have gone.
        let mut first_block = teller.take().map(|teller| {
            let _ = teller.found.send(Ok(found));
            HandedOn::new(teller.pieces)
        });
        // As long as the block will be: the cache counts bytes, and of a small object it must not keep a large one's
        // room. Copied as they come, since a part keeps all that was received with it.
        let room_at = |offset: u64| Vec::<u8>::with_capacity(self.block_bytes.min(end - offset) as usize);
        let (mut offset, mut gathered) = (begin, room_at(begin));
        let mut publish = |block: Bytes| {
            let Some((number, sender)) = left.pop_front() else { return };
            let key = origin.whose.block(number);
            self.keep(key, block.clone());
            if self.has_flash {
                let has_changed = self.bypass.lock().took_from_store(begun.elapsed());
                self.tell(has_changed);
                begun = Instant::now();
            }
            self.under_way.lock().remove(&key);
            sender.send_replace(Some(Ok(block)));
        };
        // The last block is nobody's before the body has ended where it should: one that goes on is not what was asked
        // for.
        let mut is_longer = false;
        while let Some(piece) = body.next().await {
            let mut piece = piece.map_err(|error| failed("GET", error))?;
            origin.counts.fetched_bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
            while !piece.is_empty() {
                let wanted = (self.block_bytes.min(end - offset)) as usize - gathered.len();
                if wanted == 0 {
                    is_longer = true;
                    break;
                }
                let part = piece.split_to(wanted.min(piece.len()));
                gathered.extend_from_slice(&part);
                if let Some(handed_on) = &mut first_block {
                    handed_on.next(part);
                }
                if gathered.len() as u64 == self.block_bytes && offset + self.block_bytes < end {
                    offset += self.block_bytes;
                    end_of(first_block.take()).await;
                    publish(Bytes::from(std::mem::replace(&mut gathered, room_at(offset))));
                }
            }
            if is_longer {
                break;
            }
        }
        if is_longer || offset + (gathered.len() as u64) < end {
            // Nobody knows where bytes are missing, or too many.
            (first..offset / self.block_bytes)
                .for_each(|number| self.cache.remove(&origin.whose.block(number)));
            return Err(wrong_length(origin, if is_longer { "longer" } else { "shorter" }));
        }
        end_of(first_block.take()).await;
        publish(Bytes::from(gathered));
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

fn wrong_length(origin: &BlockOrigin, difference: &str) -> GatewayError {
    GatewayError::Store(format!("{} is {difference} than the store said", origin.key.escape_debug()))
}

/// Several pieces as one, which copies them unless it is one already.
pub(crate) fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    match pieces.len() {
        1 => pieces.swap_remove(0),
        _ => Bytes::from(pieces.concat()),
    }
}

#[cfg(test)]
mod tests;
