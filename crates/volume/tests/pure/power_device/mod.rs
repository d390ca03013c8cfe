//! Devices for tests that share a power supply: it may fail at any request, and takes what was not flushed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use underlay_storage::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};

pub(crate) const BLOCK: usize = 4096;

/// Small, repeatable, and good enough to pick by (xorshift64*: Vigna 2016).
pub(crate) struct Pick(u64);

impl Pick {
    pub(crate) fn new(seed: u64) -> Pick {
        Pick(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize) % bound
    }
}

/// What the devices of a test have in common.
pub(crate) struct Supply {
    /// This many requests happen before the power fails.
    left: AtomicI64,
    queued: AtomicBool,
    queue: Mutex<Vec<Queued>>,
    pick: Mutex<Pick>,
    pub requests: AtomicU64,
}

/// With how many writes had completed when it was submitted.
type Queued = (Arc<Shared>, DeviceRequest, u64, CompletionCallback);

#[derive(Clone)]
pub(crate) struct PowerDevice {
    shared: Arc<Shared>,
}

struct Shared {
    supply: Arc<Supply>,
    capacity_bytes: u64,
    gone: AtomicBool,
    fails_writes: AtomicBool,
    fails: Mutex<Option<Like>>,
    holds: Mutex<Option<Like>>,
    held: Mutex<Vec<(DeviceRequest, u64, CompletionCallback)>>,
    state: Mutex<State>,
}

/// Which requests something is said of.
type Like = Box<dyn FnMut(&DeviceRequest) -> bool + Send>;

struct State {
    durable: Vec<u8>,
    /// What each block was written with since it was durable: (number of the write, content).
    versions: BTreeMap<usize, Vec<(u64, Vec<u8>)>>,
    writes: u64,
}

impl Supply {
    pub(crate) fn new(seed: u64) -> Arc<Supply> {
        Arc::new(Supply {
            left: AtomicI64::new(i64::MAX),
            queued: AtomicBool::new(false),
            queue: Mutex::default(),
            pick: Mutex::new(Pick::new(seed)),
            requests: AtomicU64::new(0),
        })
    }

    pub(crate) fn device(self: &Arc<Self>, image: Vec<u8>) -> PowerDevice {
        let capacity_bytes = image.len() as u64;
        let state = State { durable: image, versions: BTreeMap::new(), writes: 0 };
        PowerDevice {
            shared: Arc::new(Shared {
                supply: Arc::clone(self),
                capacity_bytes,
                gone: AtomicBool::new(false),
                fails_writes: AtomicBool::new(false),
                fails: Mutex::new(None),
                holds: Mutex::new(None),
                held: Mutex::default(),
                state: Mutex::new(state),
            }),
        }
    }

    /// The power fails in the middle of a request to come.
    pub(crate) fn fail_after(&self, requests: i64) {
        self.left.store(requests, Ordering::SeqCst);
    }

    pub(crate) fn is_off(&self) -> bool {
        self.left.load(Ordering::SeqCst) <= 0
    }

    /// Requests wait to be picked, or happen before `submit` returns.
    pub(crate) fn set_queued(&self, queued: bool) {
        self.queued.store(queued, Ordering::SeqCst);
        while !queued && self.step() {}
    }

    /// Carries out one of the waiting requests; false when there is none.
    pub(crate) fn step(&self) -> bool {
        let (shared, request, writes, done) = {
            let mut queue = self.queue.lock().unwrap();
            if queue.is_empty() {
                return false;
            }
            let index = self.pick.lock().unwrap().below(queue.len());
            queue.remove(index)
        };
        shared.answer(request, writes, done);
        true
    }

    /// The power fails now: of the requests in flight any part happens.
    pub(crate) fn cut(&self) {
        self.left.store(0, Ordering::SeqCst);
        for (shared, request, _, done) in std::mem::take(&mut *self.queue.lock().unwrap()) {
            shared.lock().perform_partly(&request, &mut self.pick.lock().unwrap());
            // Nobody is left to hear of it.
            std::mem::forget(done);
        }
    }
}

impl PowerDevice {
    pub(crate) fn as_device(&self) -> Arc<dyn BlockDevice> {
        Arc::new(self.clone())
    }

    /// Everything fails until it returns.
    pub(crate) fn set_gone(&self, is_gone: bool) {
        self.shared.gone.store(is_gone, Ordering::SeqCst);
    }

    pub(crate) fn set_fails_writes(&self, fails: bool) {
        self.shared.fails_writes.store(fails, Ordering::SeqCst);
    }

    /// Requests like that fail, until something else is said. A write has then reached some of its blocks.
    pub(crate) fn fail_when(&self, fails: impl FnMut(&DeviceRequest) -> bool + Send + 'static) {
        *self.shared.fails.lock().unwrap() = Some(Box::new(fails));
    }

    /// Requests like that wait until [`PowerDevice::let_go`].
    pub(crate) fn hold_when(&self, predicate: impl FnMut(&DeviceRequest) -> bool + Send + 'static) {
        *self.shared.holds.lock().unwrap() = Some(Box::new(predicate));
    }

    pub(crate) fn held(&self) -> usize {
        self.shared.held.lock().unwrap().len()
    }

    /// Carries out what waits now.
    pub(crate) fn let_go(&self) {
        let requests = std::mem::take(&mut *self.shared.held.lock().unwrap());
        for (request, writes, done) in requests {
            self.shared.answer(request, writes, done);
        }
    }

    /// It loses everything that was not flushed, as if its power had failed for a moment.
    pub(crate) fn forget(&self) {
        self.shared.lock().versions.clear();
    }

    /// What is on the medium after a power cut: of what was not flushed any version of each block.
    pub(crate) fn image_after_cut(&self) -> Vec<u8> {
        let mut state = self.shared.lock();
        let mut pick = self.shared.supply.pick.lock().unwrap();
        for (block, versions) in std::mem::take(&mut state.versions) {
            let survivor = pick.below(versions.len() + 1);
            if survivor > 0 {
                state.durable[block * BLOCK..][..BLOCK].copy_from_slice(&versions[survivor - 1].1);
            }
        }
        state.durable.clone()
    }

    /// What a clean end leaves, or a killed process on devices that go on.
    pub(crate) fn image(&self) -> Vec<u8> {
        let state = self.shared.lock();
        let mut image = vec![0; self.shared.capacity_bytes as usize];
        state.read(0, &mut image);
        image
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn answer(&self, request: DeviceRequest, writes: u64, done: CompletionCallback) {
        let left = self.supply.left.fetch_sub(1, Ordering::SeqCst);
        if left <= 1 {
            if left == 1 {
                self.lock().perform_partly(&request, &mut self.supply.pick.lock().unwrap());
            }
            return done(Err(DeviceError::Gone));
        }
        if self.gone.load(Ordering::SeqCst) {
            return done(Err(DeviceError::Gone));
        }
        let fails = self.fails.lock().unwrap().as_mut().is_some_and(|fails| fails(&request));
        if fails || self.fails_writes.load(Ordering::SeqCst) && matches!(request, DeviceRequest::Write { .. })
        {
            self.lock().perform_partly(&request, &mut self.supply.pick.lock().unwrap());
            return done(Err(DeviceError::Io("a test says so".into())));
        }
        let completion = self.lock().perform(request, writes);
        done(completion);
    }
}

impl State {
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) {
        for (index, target) in buffer.chunks_mut(BLOCK).enumerate() {
            let block = offset_bytes as usize / BLOCK + index;
            match self.versions.get(&block).and_then(|versions| versions.last()) {
                Some((_, content)) => target.copy_from_slice(content),
                None => target.copy_from_slice(&self.durable[block * BLOCK..][..BLOCK]),
            }
        }
    }

    fn write(&mut self, block: usize, content: &[u8], fua: bool) {
        if fua {
            self.versions.remove(&block);
            self.durable[block * BLOCK..][..BLOCK].copy_from_slice(content);
        } else {
            self.versions.entry(block).or_default().push((self.writes, content.to_vec()));
        }
    }

    fn perform(&mut self, request: DeviceRequest, writes: u64) -> DeviceCompletion {
        match request {
            DeviceRequest::Read { offset_bytes, mut buffer } => {
                self.read(offset_bytes, &mut buffer);
                return Ok(buffer);
            }
            DeviceRequest::Write { offset_bytes, data, fua } => {
                self.writes += 1;
                for (index, content) in data.chunks(BLOCK).enumerate() {
                    self.write(offset_bytes as usize / BLOCK + index, content, fua);
                }
            }
            DeviceRequest::Discard { offset_bytes, length_bytes } => {
                self.writes += 1;
                for block in 0..length_bytes as usize / BLOCK {
                    self.write(offset_bytes as usize / BLOCK + block, &[0; BLOCK], false);
                }
            }
            DeviceRequest::Flush => {
                // What had been written when it was submitted, and no more.
                let durable = &mut self.durable;
                self.versions.retain(|&block, versions| {
                    let covered = versions.iter().take_while(|(number, _)| *number <= writes).count();
                    if covered > 0 {
                        durable[block * BLOCK..][..BLOCK].copy_from_slice(&versions[covered - 1].1);
                        versions.drain(..covered);
                    }
                    !versions.is_empty()
                });
            }
        }
        Ok(Vec::new())
    }

    fn perform_partly(&mut self, request: &DeviceRequest, pick: &mut Pick) {
        self.writes += 1;
        let (offset_bytes, length_bytes) = request.extent();
        for index in 0..length_bytes as usize / BLOCK {
            let block = offset_bytes as usize / BLOCK + index;
            match request {
                DeviceRequest::Write { data, .. } if pick.below(2) == 0 => {
                    self.write(block, &data[index * BLOCK..][..BLOCK], false);
                }
                DeviceRequest::Discard { .. } if pick.below(2) == 0 => self.write(block, &[0; BLOCK], false),
                _ => {}
            }
        }
    }
}

impl BlockDevice for PowerDevice {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            capacity_bytes: self.shared.capacity_bytes,
            block_bytes: BLOCK as u32,
            optimal_io_bytes: BLOCK as u32,
        }
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        if let Err(error) = request.check(&self.geometry()) {
            return done(Err(error));
        }
        let supply = &self.shared.supply;
        supply.requests.fetch_add(1, Ordering::SeqCst);
        let writes = self.shared.lock().writes;
        if self.shared.holds.lock().unwrap().as_mut().is_some_and(|predicate| predicate(&request)) {
            self.shared.held.lock().unwrap().push((request, writes, done));
            return;
        }
        if supply.queued.load(Ordering::SeqCst) {
            supply.queue.lock().unwrap().push((Arc::clone(&self.shared), request, writes, done));
            return;
        }
        self.shared.answer(request, writes, done);
    }
}
