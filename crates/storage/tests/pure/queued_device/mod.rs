//! A device for tests: its requests happen one by one, in the order that the test picks, and its power may be
//! cut at any moment.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use underlay_storage::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};

pub(crate) const SECTOR: usize = 512;

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

#[derive(Clone)]
pub(crate) struct QueuedDevice {
    shared: Arc<Shared>,
}

struct Shared {
    capacity_bytes: u64,
    fails: Mutex<Option<Like>>,
    state: Mutex<State>,
}

/// Which requests something is said of.
type Like = Box<dyn FnMut(&DeviceRequest) -> bool + Send>;

struct State {
    durable: Vec<u8>,
    /// What each sector was written with since it was durable: (number of the write, content).
    versions: BTreeMap<usize, Vec<(u64, Vec<u8>)>>,
    writes: u64,
    queue: Vec<Queued>,
    /// Requests happen before `submit` returns.
    at_once: bool,
    gone: bool,
    /// A request was answered with `Gone`.
    noticed: bool,
}

struct Queued {
    request: DeviceRequest,
    /// How many writes had completed when it was submitted.
    writes: u64,
    done: CompletionCallback,
}

impl QueuedDevice {
    pub(crate) fn new(image: Vec<u8>) -> QueuedDevice {
        let capacity_bytes = image.len() as u64;
        let state = State {
            durable: image,
            versions: BTreeMap::new(),
            writes: 0,
            queue: Vec::new(),
            at_once: true,
            gone: false,
            noticed: false,
        };
        QueuedDevice {
            shared: Arc::new(Shared { capacity_bytes, fails: Mutex::new(None), state: Mutex::new(state) }),
        }
    }

    pub(crate) fn as_device(&self) -> Arc<dyn BlockDevice> {
        Arc::new(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }

    pub(crate) fn set_at_once(&self, at_once: bool) {
        self.lock().at_once = at_once;
    }

    /// Requests like that fail without any effect, until something else is said.
    pub(crate) fn fail_when(&self, fails: impl FnMut(&DeviceRequest) -> bool + Send + 'static) {
        *self.shared.fails.lock().unwrap() = Some(Box::new(fails));
    }

    pub(crate) fn waiting(&self) -> usize {
        self.lock().queue.len()
    }

    /// Everything fails with `Gone` until it returns.
    pub(crate) fn set_gone(&self, is_gone: bool) {
        let queue = {
            let mut state = self.lock();
            state.gone = is_gone;
            state.noticed = is_gone && !state.queue.is_empty();
            if is_gone { std::mem::take(&mut state.queue) } else { Vec::new() }
        };
        for queued in queue {
            (queued.done)(Err(DeviceError::Gone));
        }
    }

    /// It is there again. If anyone has noticed that it was gone, it has lost some of what was not durable.
    pub(crate) fn come_back(&self, pick: &mut Pick) {
        let mut state = self.lock();
        if std::mem::take(&mut state.noticed) {
            state.lose(pick);
        }
        state.gone = false;
    }

    /// Carries out one of the waiting requests; false when there is none.
    pub(crate) fn step(&self, pick: &mut Pick) -> bool {
        let Some(Queued { request, writes, done }) = self.take(pick) else { return false };
        let completion = self.lock().perform(request, writes);
        done(completion);
        true
    }

    /// Fails one of the waiting requests; a write has then reached some of its sectors.
    pub(crate) fn fail(&self, pick: &mut Pick) -> bool {
        let Some(Queued { request, done, .. }) = self.take(pick) else { return false };
        self.lock().perform_partly(&request, pick);
        done(Err(DeviceError::Io("a test says so".into())));
        true
    }

    fn take(&self, pick: &mut Pick) -> Option<Queued> {
        let mut state = self.lock();
        let waiting = state.queue.len();
        (waiting > 0).then(|| state.queue.remove(pick.below(waiting)))
    }

    /// What is on the medium after the power failed now: of the sectors not flushed any version, of the
    /// requests in flight any part.
    pub(crate) fn cut(&self, pick: &mut Pick) -> Vec<u8> {
        let mut state = self.lock();
        let queue = std::mem::take(&mut state.queue);
        for queued in &queue {
            state.perform_partly(&queued.request, pick);
        }
        state.lose(pick);
        state.gone = true;
        let image = state.durable.clone();
        drop(state);
        // Nobody is left to hear of it.
        for queued in queue {
            std::mem::forget(queued.done);
        }
        image
    }

    /// What a clean end leaves.
    pub(crate) fn image(&self) -> Vec<u8> {
        let mut image = vec![0; self.shared.capacity_bytes as usize];
        self.lock().read(0, &mut image);
        image
    }
}

impl State {
    /// Of each sector that was not flushed any version remains.
    fn lose(&mut self, pick: &mut Pick) {
        let versions = std::mem::take(&mut self.versions);
        for (sector, versions) in versions {
            let survivor = pick.below(versions.len() + 1);
            if survivor > 0 {
                let content = versions[survivor - 1].1.clone();
                self.durable[sector * SECTOR..][..SECTOR].copy_from_slice(&content);
            }
        }
    }

    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) {
        for (index, target) in buffer.chunks_mut(SECTOR).enumerate() {
            let sector = offset_bytes as usize / SECTOR + index;
            match self.versions.get(&sector).and_then(|versions| versions.last()) {
                Some((_, content)) => target.copy_from_slice(content),
                None => target.copy_from_slice(&self.durable[sector * SECTOR..][..SECTOR]),
            }
        }
    }

    fn write(&mut self, offset_bytes: u64, data: &[u8], fua: bool) {
        self.writes += 1;
        for (index, content) in data.chunks(SECTOR).enumerate() {
            let sector = offset_bytes as usize / SECTOR + index;
            if fua {
                self.versions.remove(&sector);
                self.durable[sector * SECTOR..][..SECTOR].copy_from_slice(content);
            } else {
                self.versions.entry(sector).or_default().push((self.writes, content.to_vec()));
            }
        }
    }

    /// Makes durable what had been written when the flush was submitted, and no more.
    fn flush(&mut self, through: u64) {
        let durable = &mut self.durable;
        self.versions.retain(|&sector, versions| {
            let covered = versions.iter().take_while(|(number, _)| *number <= through).count();
            if covered > 0 {
                durable[sector * SECTOR..][..SECTOR].copy_from_slice(&versions[covered - 1].1);
                versions.drain(..covered);
            }
            !versions.is_empty()
        });
    }

    fn perform(&mut self, request: DeviceRequest, writes: u64) -> DeviceCompletion {
        match request {
            DeviceRequest::Read { offset_bytes, mut buffer } => {
                self.read(offset_bytes, &mut buffer);
                return Ok(buffer);
            }
            DeviceRequest::Write { offset_bytes, data, fua } => self.write(offset_bytes, &data, fua),
            DeviceRequest::Flush => self.flush(writes),
            DeviceRequest::Discard { offset_bytes, length_bytes } => {
                self.write(offset_bytes, &vec![0; length_bytes as usize], false);
            }
        }
        Ok(Vec::new())
    }

    fn perform_partly(&mut self, request: &DeviceRequest, pick: &mut Pick) {
        let (offset_bytes, length_bytes) = request.extent();
        let zeros;
        let data = match request {
            DeviceRequest::Read { .. } | DeviceRequest::Flush => return,
            DeviceRequest::Write { data, .. } => data,
            DeviceRequest::Discard { .. } => {
                zeros = vec![0; length_bytes as usize];
                &zeros
            }
        };
        for (index, content) in data.chunks(SECTOR).enumerate() {
            if pick.below(2) == 0 {
                self.write(offset_bytes + (index * SECTOR) as u64, content, false);
            }
        }
    }
}

impl BlockDevice for QueuedDevice {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            capacity_bytes: self.shared.capacity_bytes,
            block_bytes: 4096,
            optimal_io_bytes: 4096,
        }
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        if let Err(error) = request.check(&self.geometry()) {
            return done(Err(error));
        }
        if self.shared.fails.lock().unwrap().as_mut().is_some_and(|fails| fails(&request)) {
            return done(Err(DeviceError::Io("a test says so".into())));
        }
        let mut state = self.lock();
        if state.gone {
            state.noticed = true;
            drop(state);
            return done(Err(DeviceError::Gone));
        }
        let writes = state.writes;
        if state.at_once {
            let completion = state.perform(request, writes);
            drop(state);
            return done(completion);
        }
        state.queue.push(Queued { request, writes, done });
    }
}
