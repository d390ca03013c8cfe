//! Devices for the tests: one answers at once, one on command, and one loses its power.

use std::collections::BTreeMap;
use std::sync::Arc;
use underlay_sync::Mutex;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use underlay_storage::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};

const BLOCK: usize = 4096;
type Block = Box<[u8]>;

#[derive(Clone, Default)]
pub(super) struct Blocks {
    blocks: BTreeMap<u64, Block>,
}

impl Blocks {
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) {
        for (block, part) in (offset_bytes / BLOCK as u64..).zip(buffer.chunks_mut(BLOCK)) {
            match self.blocks.get(&block) {
                Some(bytes) => part.copy_from_slice(bytes),
                None => part.fill(0),
            }
        }
    }

    fn put(&mut self, block: u64, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.blocks.insert(block, bytes.into()),
            None => self.blocks.remove(&block),
        };
    }
}

/// Writes of single blocks (`None` for a discard), in their order.
type Changes = Vec<(u64, Option<Block>)>;

fn changes(request: &DeviceRequest) -> Changes {
    match request {
        DeviceRequest::Write { offset_bytes, data, .. } => (offset_bytes / BLOCK as u64..)
            .zip(data.chunks(BLOCK))
            .map(|(block, bytes)| (block, Some(bytes.into())))
            .collect(),
        DeviceRequest::Discard { offset_bytes, length_bytes } => {
            let first = offset_bytes / BLOCK as u64;
            (first..first + length_bytes / BLOCK as u64).map(|block| (block, None)).collect()
        }
        _ => Vec::new(),
    }
}

struct Volatile {
    /// The reader's view.
    now: Blocks,
    /// Writes that survive any power cut.
    durable: Blocks,
    unflushed: Changes,
}

/// In memory; with a write cache whose content a power cut loses in part.
pub(super) struct Memory {
    capacity_bytes: u64,
    state: Mutex<Volatile>,
}

pub(super) fn memory(capacity_bytes: u64) -> Arc<Memory> {
    let state = Volatile { now: Blocks::default(), durable: Blocks::default(), unflushed: Vec::new() };
    Arc::new(Memory { capacity_bytes, state: Mutex::new(state) })
}

impl Memory {
    /// The device after a power cut at this moment: any part of the unflushed writes may have survived.
    pub(super) fn after_power_cut(&self, seed: u64) -> Arc<Memory> {
        let state = self.state.lock();
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut left = state.durable.clone();
        // A device may also have written all of it, or nothing.
        let survive_percent = [0, 10, 50, 90, 100][random.next_u32() as usize % 5];
        for (block, bytes) in &state.unflushed {
            if random.next_u32() % 100 < survive_percent {
                left.put(*block, bytes.as_deref());
            }
        }
        let state = Volatile { now: left.clone(), durable: left, unflushed: Vec::new() };
        Arc::new(Memory { capacity_bytes: self.capacity_bytes, state: Mutex::new(state) })
    }

    fn answer(&self, mut request: DeviceRequest) -> DeviceCompletion {
        request.check(&self.geometry())?;
        let mut state = self.state.lock();
        let changes = changes(&request);
        for (block, bytes) in &changes {
            state.now.put(*block, bytes.as_deref());
        }
        match &mut request {
            DeviceRequest::Read { offset_bytes, buffer } => {
                state.now.read(*offset_bytes, buffer);
                return Ok(std::mem::take(buffer));
            }
            DeviceRequest::Flush => {
                let flushed = std::mem::take(&mut state.unflushed);
                flushed.iter().for_each(|(block, bytes)| state.durable.put(*block, bytes.as_deref()));
            }
            DeviceRequest::Write { fua: true, .. } => {
                // It is durable, and earlier content of these blocks can't overwrite it again.
                for (block, bytes) in &changes {
                    state.unflushed.retain(|(other, _)| other != block);
                    state.durable.put(*block, bytes.as_deref());
                }
            }
            _ => state.unflushed.extend(changes),
        }
        Ok(Vec::new())
    }
}

impl BlockDevice for Memory {
    fn geometry(&self) -> DeviceGeometry {
        let block_bytes = BLOCK as u32;
        DeviceGeometry { capacity_bytes: self.capacity_bytes, block_bytes, optimal_io_bytes: block_bytes }
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        done(self.answer(request));
    }
}

/// Holds requests until the test lets it answer.
pub(super) struct Delayed {
    memory: Arc<Memory>,
    held: Mutex<Option<Vec<(DeviceRequest, CompletionCallback)>>>,
}

impl Delayed {
    pub(super) fn new(capacity_bytes: u64) -> Delayed {
        Delayed { memory: memory(capacity_bytes), held: Mutex::new(None) }
    }

    pub(super) fn hold(&self) {
        *self.held.lock() = Some(Vec::new());
    }

    pub(super) fn release(&self) {
        *self.held.lock() = None;
    }

    /// Answers held requests and those that follow from them, until none is held.
    pub(super) fn answer_in_any_order(&self, seed: u64) {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        loop {
            let next = {
                let mut requests = self.held.lock();
                let Some(requests) = requests.as_mut().filter(|requests| !requests.is_empty()) else {
                    return;
                };
                let index = random.next_u64() as usize % requests.len();
                requests.swap_remove(index)
            };
            let (request, done) = next;
            done(self.memory.answer(request));
        }
    }
}

impl BlockDevice for Delayed {
    fn geometry(&self) -> DeviceGeometry {
        self.memory.geometry()
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        let mut requests = self.held.lock();
        if let Some(requests) = requests.as_mut() {
            return requests.push((request, done));
        }
        drop(requests);
        let answer: Result<Vec<u8>, DeviceError> = self.memory.answer(request);
        done(answer);
    }
}

/// Fails as many flushes, or forced writes, as the test requests. As behind the page cache of Linux, a failed flush has
/// lost its data, and the next one succeeds.
pub(super) struct Failing {
    memory: Arc<Memory>,
    pub flushes: Mutex<u32>,
    pub forced_writes: Mutex<u32>,
}

impl Failing {
    pub(super) fn new(capacity_bytes: u64) -> Arc<Failing> {
        Arc::new(Failing {
            memory: memory(capacity_bytes),
            flushes: Mutex::new(0),
            forced_writes: Mutex::new(0),
        })
    }

    pub(super) fn after_power_cut(&self) -> Arc<Memory> {
        self.memory.after_power_cut(1)
    }
}

impl BlockDevice for Failing {
    fn geometry(&self) -> DeviceGeometry {
        self.memory.geometry()
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        let left = match request {
            DeviceRequest::Flush => Some(&self.flushes),
            DeviceRequest::Write { fua: true, .. } => Some(&self.forced_writes),
            _ => None,
        };
        let fails = left.is_some_and(|left| {
            let mut left = left.lock();
            let fails = *left > 0;
            *left = left.saturating_sub(1);
            fails
        });
        if fails && matches!(request, DeviceRequest::Flush) {
            self.memory.state.lock().unflushed.clear();
        }
        done(if fails { Err(DeviceError::Io("as told".into())) } else { self.memory.answer(request) });
    }
}
