//! The user of a block device, which checks every answer against the model.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use underlay_sync::UnsimulatedMutex;

use underlay_storage::device::{BlockDevice, DeviceError, DeviceRequest};
use underlay_sync::simulation::{SimulatedWorld, TaskGroup};
use underlay_sync::thread;

use crate::content::{BLOCK_BYTES, block, tag_of};
use crate::model::{EventCount, VolumeModel};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Requests that one user has in flight at once.
const MAX_UNDER_WAY: usize = 64;
/// In virtual time, after which a request will never be answered.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1800);
const MAX_STEP: Duration = Duration::from_millis(100);

/// What all users of a run share.
#[derive(Default)]
pub(crate) struct UserEvents {
    moment: AtomicU64,
    tag: AtomicU64,
    /// A flush means nothing: a disk has lied.
    pub flushes_are_void: AtomicBool,
    /// A disk lied and then lost its power: nobody promises anything.
    pub anything_goes: AtomicBool,
    pub acknowledged: AtomicU64,
    pub refused: AtomicU64,
    unfit: UnsimulatedMutex<Option<String>>,
}

impl UserEvents {
    pub(crate) fn next(&self) -> EventCount {
        self.moment.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn next_tag(&self) -> u64 {
        self.tag.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The set-up can't be played, which is nobody's failure.
    pub(crate) fn refuse_setup(&self, reason: String) {
        *self.unfit.lock() = Some(reason);
    }

    pub(crate) fn unfit(&self) -> Option<String> {
        self.unfit.lock().clone()
    }
}

/// A device under test and what is known of it.
pub(crate) struct DeviceUser {
    pub name: String,
    pub events: Arc<UserEvents>,
    state: UnsimulatedMutex<UserState>,
}

struct UserState {
    model: VolumeModel,
    /// What was asked and is not answered, in words.
    under_way: BTreeMap<EventCount, String>,
}

impl DeviceUser {
    pub(crate) fn new(name: &str, events: &Arc<UserEvents>, model: VolumeModel) -> Arc<DeviceUser> {
        let state = UserState { model, under_way: BTreeMap::new() };
        Arc::new(DeviceUser {
            name: name.to_owned(),
            events: Arc::clone(events),
            state: UnsimulatedMutex::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, UserState> {
        self.state.lock()
    }

    pub(crate) fn with_model<T>(&self, act: impl FnOnce(&mut VolumeModel) -> T) -> T {
        act(&mut self.lock().model)
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.lock().model.blocks()
    }

    /// The process that asked has ended: nothing will be answered.
    pub(crate) fn abandon(&self) {
        let now = self.events.next();
        let mut state = self.lock();
        state.under_way.clear();
        state.model.end_all(now);
    }

    fn begin(&self, description: String) -> Option<EventCount> {
        let mut state = self.lock();
        if state.under_way.len() >= MAX_UNDER_WAY {
            return None;
        }
        let moment = self.events.next();
        state.under_way.insert(moment, description);
        Some(moment)
    }

    /// False if nobody waits for it any more.
    fn end(&self, moment: EventCount) -> bool {
        self.lock().under_way.remove(&moment).is_some()
    }

    /// Where a request of a script falls: nothing on a volume of no blocks.
    fn clamp(&self, first: u32, count: u32) -> Option<(u32, u32)> {
        let blocks = self.blocks();
        let first = first.checked_rem(blocks)?;
        Some((first, count.clamp(1, blocks - first)))
    }

    pub(crate) fn write(self: &Arc<DeviceUser>, device: &dyn BlockDevice, first: u32, count: u32, fua: bool) {
        self.write_with(device, first, count, fua, |_| {});
    }

    /// As [`DeviceUser::write`], and says what came of it.
    pub(crate) fn write_and(
        self: &Arc<DeviceUser>,
        device: &dyn BlockDevice,
        first: u32,
        count: u32,
        then: impl FnOnce(Result<(), DeviceError>) + Send + 'static,
    ) {
        self.write_with(device, first, count, false, then);
    }

    fn write_with(
        self: &Arc<DeviceUser>,
        device: &dyn BlockDevice,
        first: u32,
        count: u32,
        fua: bool,
        then: impl FnOnce(Result<(), DeviceError>) + Send + 'static,
    ) {
        let Some((first, count)) = self.clamp(first, count) else { return };
        let tags: Vec<u64> = (0..count).map(|_| self.events.next_tag()).collect();
        let data = tags.iter().map(|tag| block(*tag)).collect::<Vec<_>>().concat();
        let request = DeviceRequest::Write { offset_bytes: u64::from(first) * BLOCK, data, fua };
        self.change(device, request, first, &tags, fua, then);
    }

    pub(crate) fn discard(self: &Arc<DeviceUser>, device: &dyn BlockDevice, first: u32, count: u32) {
        let Some((first, count)) = self.clamp(first, count) else { return };
        let (offset_bytes, length_bytes) = (u64::from(first) * BLOCK, u64::from(count) * BLOCK);
        let request = DeviceRequest::Discard { offset_bytes, length_bytes };
        self.change(device, request, first, &vec![0; count as usize], false, |_| {});
    }

    fn change(
        self: &Arc<DeviceUser>,
        device: &dyn BlockDevice,
        request: DeviceRequest,
        first: u32,
        tags: &[u64],
        fua: bool,
        then: impl FnOnce(Result<(), DeviceError>) + Send + 'static,
    ) {
        let description = format!("a change of {} blocks at {first} of {}", tags.len(), self.name);
        let Some(moment) = self.begin(description) else { return };
        self.with_model(|model| model.submit(moment, first, tags, fua));
        let user = Arc::clone(self);
        let answered = move |completion: Result<Vec<u8>, DeviceError>| {
            if !user.end(moment) {
                return;
            }
            let now = user.events.next();
            let is_durable = !user.events.flushes_are_void.load(Ordering::Relaxed);
            user.count(completion.is_ok());
            user.with_model(|model| model.end(moment, now, completion.is_ok(), is_durable));
            then(completion.map(drop));
        };
        device.submit(request, Box::new(answered));
    }

    fn count(&self, is_acknowledged: bool) {
        let counter = if is_acknowledged { &self.events.acknowledged } else { &self.events.refused };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(self: &Arc<DeviceUser>, device: &dyn BlockDevice, first: u32, count: u32) {
        self.read_and(device, first, count, |_| {});
    }

    /// Reads, checks what was read, and then says whether it could be read.
    pub(crate) fn read_and(
        self: &Arc<DeviceUser>,
        device: &dyn BlockDevice,
        first: u32,
        count: u32,
        then: impl FnOnce(Result<(), DeviceError>) + Send + 'static,
    ) {
        let Some((first, count)) = self.clamp(first, count) else { return then(Ok(())) };
        let Some(moment) = self.begin(format!("a read of {count} blocks at {first} of {}", self.name)) else {
            return then(Ok(()));
        };
        self.with_model(|model| model.begin_read(moment));
        let user = Arc::clone(self);
        let answered = move |completion: Result<Vec<u8>, DeviceError>| {
            if !user.end(moment) {
                return;
            }
            user.count(completion.is_ok());
            if let Ok(bytes) = &completion {
                user.check(first, bytes, moment);
            }
            user.with_model(|model| model.end_read(moment));
            then(completion.map(drop));
        };
        let buffer = vec![0; count as usize * BLOCK_BYTES];
        device.submit(
            DeviceRequest::Read { offset_bytes: u64::from(first) * BLOCK, buffer },
            Box::new(answered),
        );
    }

    fn check(&self, first: u32, bytes: &[u8], began: EventCount) {
        if self.events.anything_goes.load(Ordering::Relaxed) {
            return;
        }
        let tags: Result<Vec<u64>, String> = bytes.chunks_exact(BLOCK_BYTES).map(tag_of).collect();
        let now = self.events.next();
        let outcome =
            tags.and_then(|tags| self.with_model(|model| model.check_read(first, &tags, began, now)));
        if let Err(problem) = outcome {
            panic!("wrong data in {} (read {began} to {now}): {problem}", self.name);
        }
    }

    pub(crate) fn flush(self: &Arc<DeviceUser>, device: &dyn BlockDevice) {
        self.flush_and(device, |_| {});
    }

    pub(crate) fn flush_and(
        self: &Arc<DeviceUser>,
        device: &dyn BlockDevice,
        then: impl FnOnce(Result<(), DeviceError>) + Send + 'static,
    ) {
        let Some(moment) = self.begin(format!("a flush of {}", self.name)) else { return then(Ok(())) };
        let was_void = self.events.flushes_are_void.load(Ordering::Relaxed);
        let user = Arc::clone(self);
        let answered = move |completion: Result<Vec<u8>, DeviceError>| {
            if !user.end(moment) {
                return;
            }
            user.count(completion.is_ok());
            // A disk that lied when the flush began or when it ended may have lied to it.
            let is_void = was_void || user.events.flushes_are_void.load(Ordering::Relaxed);
            if completion.is_ok() && !is_void {
                let now = user.events.next();
                user.with_model(|model| model.flushed(moment, now));
            }
            then(completion.map(drop));
        };
        device.submit(DeviceRequest::Flush, Box::new(answered));
    }

    /// Reads everything, once all faults are over.
    ///
    /// # Panics
    /// When something can't be read, or is wrong.
    pub(crate) fn must_read_all(
        self: &Arc<DeviceUser>,
        world: &SimulatedWorld,
        process: TaskGroup,
        device: &dyn BlockDevice,
    ) {
        const PIECE_BLOCKS: u32 = 64;
        for first in (0..self.blocks()).step_by(PIECE_BLOCKS as usize) {
            let read = await_answer(world, "a last read", |then| {
                world.enter(process, || self.read_and(device, first, PIECE_BLOCKS, then));
            });
            assert_eq!(read, Ok(()), "everything can be read once all faults are over: {}", self.name);
        }
    }

    /// Flushes, once all faults are over.
    ///
    /// # Panics
    /// When that fails.
    pub(crate) fn must_flush(
        self: &Arc<DeviceUser>,
        world: &SimulatedWorld,
        process: TaskGroup,
        device: &dyn BlockDevice,
    ) {
        let flushed = await_answer(world, "a last flush", |then| {
            world.enter(process, || self.flush_and(device, then));
        });
        assert_eq!(flushed, Ok(()), "a flush succeeds once all faults are over: {}", self.name);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.lock().under_way.is_empty()
    }

    /// What is not answered, in words.
    pub(crate) fn unanswered(&self) -> Vec<String> {
        self.lock().under_way.values().cloned().collect()
    }
}

/// Waits until a condition holds, in steps of virtual time.
///
/// # Panics
/// When it never does: the message has `description`.
pub(crate) fn wait_until(world: &SimulatedWorld, description: impl Fn() -> String, is_so: impl Fn() -> bool) {
    poll(world, REQUEST_TIMEOUT, Duration::from_millis(2), is_so)
        .unwrap_or_else(|_| panic!("it never ends: {}", description()));
}

/// Looks until a condition holds: often at first, and after a while less so, because each look is a turn.
///
/// # Errors
/// When it does not hold after `at_most`.
pub(crate) fn poll(
    world: &SimulatedWorld,
    at_most: Duration,
    step: Duration,
    is_so: impl Fn() -> bool,
) -> Result<(), Duration> {
    let began = world.now();
    while !is_so() {
        let waited = world.now() - began;
        if waited >= at_most {
            return Err(waited);
        }
        thread::sleep(step.max(waited / 20).min(MAX_STEP));
    }
    Ok(())
}

/// Does something that answers later, and waits for the answer.
pub(crate) fn await_answer<T: Send + 'static>(
    world: &SimulatedWorld,
    description: &str,
    ask: impl FnOnce(Box<dyn FnOnce(T) + Send>),
) -> T {
    let slot = Arc::new(UnsimulatedMutex::new(None));
    let filled = Arc::clone(&slot);
    ask(Box::new(move |answer| *filled.lock() = Some(answer)));
    wait_until(world, || description.to_owned(), || slot.lock().is_some());
    let answer = slot.lock().take();
    answer.expect("it was just there")
}
