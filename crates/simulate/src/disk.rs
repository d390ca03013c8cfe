//! A disk of a simulated world: it has a volatile cache, and fails as it is told.
//!
//! It outlives the processes that use it. Each of them has a [`DiskHandle`]: what a process that was killed had asked
//! for still happens, in part or whole, before anybody else sees the disk; its answers reach nobody.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use underlay_sync::UnsimulatedMutex;

use underlay_storage::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};
use underlay_storage::failed_sync::BelievableSync;
use underlay_sync::simulation::{SimulatedWorld, SimulationRng, TaskGroup};

use crate::content::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;

type BlockContent = Arc<[u8]>;

#[derive(Clone)]
pub struct SimulatedDisk {
    shared: Arc<DiskShared>,
}

struct DiskShared {
    world: SimulatedWorld,
    hardware: TaskGroup,
    capacity_bytes: u64,
    /// A flush that fails has lost what it was to write, as the page cache of Linux does: the next one succeeds.
    forgets_failed_flush: bool,
    state: UnsimulatedMutex<SimulatedDiskState>,
}

/// A part of a request's life that may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailurePoint {
    Read,
    Write,
    Flush,
}

#[derive(Default)]
struct SimulatedDiskState {
    durable: BTreeMap<u64, BlockContent>,
    /// By block: what was written since it was durable, oldest first, with the number of the write. Nothing for zeros.
    cached: BTreeMap<u64, Vec<(u64, Option<BlockContent>)>>,
    writes: u64,
    requests: BTreeMap<u64, PendingDiskRequest>,
    next_request: u64,
    failing: BTreeMap<FailurePoint, u32>,
    slow: u32,
    lies: bool,
    /// It answers before `submit` returns, as a disk in fast-forward does.
    at_once: bool,
    is_gone: bool,
    /// It has failed a request, or was gone.
    was_at_fault: bool,
    /// It has lost what a failed flush was to write, and keeps it to itself.
    has_forgotten: bool,
}

struct PendingDiskRequest {
    request: DeviceRequest,
    /// Writes that had completed when it was submitted: what a flush covers.
    covers: u64,
    user: TaskGroup,
    done: CompletionCallback,
}

/// A disk as a process sees it.
pub struct DiskHandle {
    disk: SimulatedDisk,
    user: TaskGroup,
}

impl SimulatedDisk {
    pub fn new(world: &SimulatedWorld, capacity_bytes: u64, forgets_failed_flush: bool) -> SimulatedDisk {
        let state = SimulatedDiskState { slow: 1, ..SimulatedDiskState::default() };
        SimulatedDisk {
            shared: Arc::new(DiskShared {
                world: world.clone(),
                hardware: world.own_group(),
                capacity_bytes,
                forgets_failed_flush,
                state: UnsimulatedMutex::new(state),
            }),
        }
    }

    /// As a process opens it. One behind a page cache forgets what a failed flush was to write, so that is remembered.
    pub fn device(&self, user: TaskGroup) -> Arc<dyn BlockDevice> {
        match self.shared.forgets_failed_flush {
            true => Arc::new(BelievableSync::new(self.handle(user))),
            false => Arc::new(self.handle(user)),
        }
    }

    fn handle(&self, user: TaskGroup) -> DiskHandle {
        DiskHandle { disk: self.clone(), user }
    }

    fn lock(&self) -> MutexGuard<'_, SimulatedDiskState> {
        self.shared.state.lock()
    }

    /// The next `count` requests of this kind fail.
    pub fn fail(&self, point: FailurePoint, count: u32) {
        *self.lock().failing.entry(point).or_default() += count;
    }

    /// Slower by this factor from now on.
    pub fn set_slow(&self, factor: u32) {
        self.lock().slow = factor.max(1);
    }

    /// Requests happen before `submit` returns, in the caller's thread.
    pub fn set_at_once(&self, at_once: bool) {
        self.lock().at_once = at_once;
    }

    /// Flushes are answered and do nothing.
    pub fn set_lies(&self, lies: bool) {
        self.lock().lies = lies;
    }

    pub fn lies(&self) -> bool {
        self.lock().lies
    }

    /// Whether it is gone, or fails what it is asked next.
    pub fn is_unusable(&self) -> bool {
        let state = self.lock();
        state.is_gone || state.failing.values().any(|left| *left > 0)
    }

    pub fn make_usable(&self) {
        let mut state = self.lock();
        state.is_gone = false;
        state.failing.clear();
    }

    /// Whether anybody had a reason to leave it out.
    pub fn was_at_fault(&self) -> bool {
        self.lock().was_at_fault
    }

    /// Whether a later flush would succeed over what an earlier one has lost.
    pub fn has_forgotten(&self) -> bool {
        self.lock().has_forgotten
    }

    /// The cable is pulled: everything is answered with `Gone`.
    pub fn vanish(&self) {
        let requests = {
            let mut state = self.lock();
            state.is_gone = true;
            state.was_at_fault = true;
            std::mem::take(&mut state.requests)
        };
        for (_, under_way) in requests {
            self.shared.world.with_random(|random| self.lock().perform_partly(&under_way, random));
            self.answer(under_way.user, under_way.done, Err(DeviceError::Gone));
        }
    }

    /// If it is gone: it loses what it did not flush, or a part of it.
    pub fn lose_power(&self) {
        self.shared.world.with_random(|random| {
            let mut state = self.lock();
            if state.is_gone {
                state.lose_cache(random);
            }
        });
    }

    /// It is there again, with all that it had acknowledged and did not lose with its power.
    pub fn come_back(&self) {
        self.lock().is_gone = false;
    }

    /// What fails, is slow or lies does so no longer.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.is_gone = false;
        state.failing.clear();
        state.slow = 1;
        state.lies = false;
    }

    /// A process is over: what it had asked for happens now, or partly, or not.
    pub fn abandon(&self, user: TaskGroup) {
        self.shared.world.with_random(|random| {
            let mut state = self.lock();
            let numbers: Vec<u64> = state
                .requests
                .iter()
                .filter(|(_, one)| one.user == user)
                .map(|(number, _)| *number)
                .collect();
            for number in numbers {
                let Some(under_way) = state.requests.remove(&number) else { continue };
                state.perform_partly(&under_way, random);
                // What the answer holds belongs to the dead.
                std::mem::forget(under_way.done);
            }
        });
    }

    /// The power is cut, for all of its users: the disk keeps what was flushed, and any part of the rest.
    pub fn cut_power(&self) {
        self.shared.world.with_random(|random| {
            let mut state = self.lock();
            for (_, under_way) in std::mem::take(&mut state.requests) {
                state.perform_partly(&under_way, random);
                std::mem::forget(under_way.done);
            }
            state.lose_cache(random);
            state.has_forgotten = false;
        });
    }

    fn answer(&self, user: TaskGroup, done: CompletionCallback, completion: DeviceCompletion) {
        // Forgotten, not dropped: what it holds belongs to a dead process, and dropping it would act for
        // that process.
        if self.shared.world.is_killed(user) {
            std::mem::forget(done);
            return;
        }
        self.shared.world.enter(user, || done(completion));
    }

    fn submit(&self, user: TaskGroup, request: DeviceRequest, done: CompletionCallback) {
        let world = &self.shared.world;
        let geometry = DeviceGeometry {
            capacity_bytes: self.shared.capacity_bytes,
            block_bytes: BLOCK as u32,
            optimal_io_bytes: BLOCK as u32,
        };
        if world.is_killed(user) {
            std::mem::forget(done);
            return;
        }
        if let Err(error) = request.check(&geometry) {
            return done(Err(error));
        }
        let (base_us, spread_us) = match &request {
            DeviceRequest::Flush => (50, 2000),
            _ => (20, 200),
        };
        let wait_us = base_us + world.with_random(|random| random.below(spread_us));
        let (number, wait_us) = {
            let mut state = self.lock();
            if state.is_gone {
                drop(state);
                return done(Err(DeviceError::Gone));
            }
            let number = state.next_request;
            state.next_request += 1;
            let covers = state.writes;
            state.requests.insert(number, PendingDiskRequest { request, covers, user, done });
            (number, wait_us * u64::from(state.slow))
        };
        if self.lock().at_once {
            // Without the lock: the answer's receiver may submit the next request at once.
            return self.carry_out(number);
        }
        let disk = self.clone();
        world
            .call_after(Duration::from_micros(wait_us), self.shared.hardware, move || disk.carry_out(number));
    }

    fn carry_out(&self, number: u64) {
        let (user, done, completion) = {
            let mut state = self.lock();
            // It was taken away by a cut.
            let Some(under_way) = state.requests.remove(&number) else { return };
            let point = match &under_way.request {
                DeviceRequest::Read { .. } => FailurePoint::Read,
                DeviceRequest::Write { .. } | DeviceRequest::Discard { .. } => FailurePoint::Write,
                DeviceRequest::Flush => FailurePoint::Flush,
            };
            let fails = state.failing.get_mut(&point).is_some_and(|left| {
                let fails = *left > 0;
                *left -= u32::from(fails);
                fails
            });
            if fails {
                state.was_at_fault = true;
                if point == FailurePoint::Flush && self.shared.forgets_failed_flush {
                    state.forget_dirty();
                }
                self.shared.world.with_random(|random| state.perform_partly(&under_way, random));
                let error = DeviceError::Io(format!("the simulated disk fails a {point:?}").to_lowercase());
                (under_way.user, under_way.done, Err(error))
            } else {
                let PendingDiskRequest { request, covers, user, done } = under_way;
                (user, done, Ok(state.perform(request, covers)))
            }
        };
        self.answer(user, done, completion);
    }
}

impl SimulatedDiskState {
    fn content(&self, block: u64) -> Option<BlockContent> {
        match self.cached.get(&block).and_then(|versions| versions.last()) {
            Some((_, content)) => content.clone(),
            None => self.durable.get(&block).cloned(),
        }
    }

    fn settle(&mut self, block: u64, content: Option<BlockContent>) {
        match content {
            Some(content) => self.durable.insert(block, content),
            None => self.durable.remove(&block),
        };
    }

    fn put(&mut self, block: u64, content: Option<BlockContent>, fua: bool) {
        self.writes += 1;
        if fua {
            self.cached.remove(&block);
            self.settle(block, content);
        } else {
            self.cached.entry(block).or_default().push((self.writes, content));
        }
    }

    fn perform(&mut self, request: DeviceRequest, covers: u64) -> Vec<u8> {
        match request {
            DeviceRequest::Read { offset_bytes, mut buffer } => {
                for (block, target) in (offset_bytes / BLOCK..).zip(buffer.chunks_exact_mut(BLOCK_BYTES)) {
                    match self.content(block) {
                        Some(content) => target.copy_from_slice(&content),
                        None => target.fill(0),
                    }
                }
                return buffer;
            }
            DeviceRequest::Write { offset_bytes, data, fua } => {
                for (block, bytes) in (offset_bytes / BLOCK..).zip(data.chunks_exact(BLOCK_BYTES)) {
                    self.put(block, content_of(bytes), fua);
                }
            }
            DeviceRequest::Discard { offset_bytes, length_bytes } => {
                let blocks = offset_bytes / BLOCK..(offset_bytes + length_bytes) / BLOCK;
                blocks.for_each(|block| self.put(block, None, false));
            }
            DeviceRequest::Flush if self.lies => {}
            DeviceRequest::Flush => {
                for (block, mut versions) in std::mem::take(&mut self.cached) {
                    let covered = versions.iter().rposition(|(number, _)| *number <= covers);
                    let newer = versions.split_off(covered.map_or(0, |index| index + 1));
                    if covered.is_some()
                        && let Some((_, content)) = versions.pop()
                    {
                        self.settle(block, content);
                    }
                    if !newer.is_empty() {
                        self.cached.insert(block, newer);
                    }
                }
            }
        }
        Vec::new()
    }

    /// Some of its blocks are written, the others are not.
    fn perform_partly(&mut self, under_way: &PendingDiskRequest, random: &mut SimulationRng) {
        match &under_way.request {
            DeviceRequest::Write { offset_bytes, data, .. } => {
                let all = random.one_in(3);
                for (block, bytes) in (offset_bytes / BLOCK..).zip(data.chunks_exact(BLOCK_BYTES)) {
                    if all || random.one_in(2) {
                        // Never durable, FUA or not: it was not acknowledged.
                        self.put(block, content_of(bytes), false);
                    }
                }
            }
            DeviceRequest::Discard { offset_bytes, length_bytes } => {
                for block in offset_bytes / BLOCK..(offset_bytes + length_bytes) / BLOCK {
                    if random.one_in(2) {
                        self.put(block, None, false);
                    }
                }
            }
            DeviceRequest::Read { .. } | DeviceRequest::Flush => {}
        }
    }

    /// Any version of a block that was written since it was durable, or the durable one.
    fn lose_cache(&mut self, random: &mut SimulationRng) {
        for (block, mut versions) in std::mem::take(&mut self.cached) {
            // Each block by itself: a drive writes its cache in any order.
            let survivor = random.below(versions.len() as u64 + 1) as usize;
            if survivor < versions.len() {
                let (_, content) = versions.swap_remove(survivor);
                self.settle(block, content);
            }
        }
    }

    /// What is dirty is read as before, and never gets durable by itself.
    fn forget_dirty(&mut self) {
        self.has_forgotten |= !self.cached.is_empty();
        for versions in self.cached.values_mut() {
            if let Some(last) = versions.pop() {
                // No flush covers this number, since `covers` only counts writes that happened.
                *versions = vec![(u64::MAX, last.1)];
            }
        }
    }
}

fn content_of(bytes: &[u8]) -> Option<BlockContent> {
    (bytes.iter().any(|byte| *byte != 0)).then(|| Arc::from(bytes))
}

impl BlockDevice for DiskHandle {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            capacity_bytes: self.disk.shared.capacity_bytes,
            block_bytes: BLOCK as u32,
            optimal_io_bytes: BLOCK as u32,
        }
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        self.disk.submit(self.user, request, done);
    }
}
