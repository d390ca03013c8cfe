//! A controller: what one host and one subsystem have between them, from the Connect of its admin queue until that
//! connection ends.

pub(in crate::target) mod queue;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use underlay_sync::Instant;
use underlay_sync::{Mutex, MutexGuard};

use underlay_storage::device::DeviceRequest;

use crate::fabrics::{
    CC_ENABLE, CC_SHUTDOWN, CSTS_READY, CSTS_SHUTDOWN_COMPLETE, CSTS_SHUTDOWN_OCCURRING, property,
};
use crate::features;
use crate::log_page::{AsyncEvent, ErrorEntry};
use crate::status::NvmeStatus;
use crate::target::host_identity::HostIdentity;
use crate::target::subsystems::NvmSubsystem;
use queue::{CommandReply, TargetQueue};

/// The version of the base specification that controllers say they keep to: 2.0.
pub(in crate::target) const VERSION: u32 = 0x0002_0000;
/// Entries of a queue, less one, at most.
pub(in crate::target) const MAX_QUEUE: u16 = 255;
/// Asynchronous event requests that wait at once.
pub(in crate::target) const EVENT_REQUESTS: usize = 4;
/// Entries that the error log keeps.
pub(in crate::target) const ERROR_ENTRIES: usize = 64;

/// The granularity of a keep-alive timeout, in units of 100 ms (Identify Controller, KAS).
pub(in crate::target) const KEEP_ALIVE_GRANULARITY: u16 = 1;
/// The timeout of a host that only asks for the list of subsystems and names none.
const DISCOVERY_KATO_MS: u32 = 120_000;
/// How long the timers of controller and host may disagree.
const KEEP_ALIVE_GRACE: Duration = Duration::from_millis(100);

/// To what a host is connected.
pub(in crate::target) enum ServedSubsystem {
    Discovery,
    Subsystem(Arc<NvmSubsystem>),
}

pub(in crate::target) struct TargetController {
    pub id: u16,
    pub served: ServedSubsystem,
    pub host_nqn: String,
    pub host_id: [u8; 16],
    pub max_io_queues: u16,
    began: Instant,
    kato_ms: AtomicU32,
    /// When the host was last heard, in milliseconds since `began`.
    heard_ms: AtomicU64,
    /// CSTS.RDY once more, since every command asks for it.
    is_ready: AtomicBool,
    /// Which of its host's controllers it is, if the host says so: an instance of the host's and a number in it.
    instance: OnceLock<(u64, u64)>,
    state: Mutex<TargetControllerState>,
}

#[derive(Default)]
struct TargetControllerState {
    is_over: bool,
    configuration: u32,
    status: u32,
    queues: BTreeMap<u16, Arc<TargetQueue>>,
    queue_count: Option<u16>,
    event_configuration: u32,
    event_requests: VecDeque<CommandReply>,
    /// Told, and not told again until the host has read the log page.
    told: Vec<AsyncEvent>,
    /// Events for the next request to report.
    untold: Vec<AsyncEvent>,
    changed_namespaces: BTreeSet<u32>,
    errors: VecDeque<ErrorEntry>,
    error_count: u64,
}

/// Why a queue can't be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) enum QueueRefused {
    NotEnabled,
    InUse,
    Over,
}

impl TargetController {
    pub(in crate::target) fn new(
        id: u16,
        served: ServedSubsystem,
        host_nqn: String,
        host_id: [u8; 16],
        kato_ms: u32,
        max_io_queues: u16,
    ) -> TargetController {
        TargetController {
            id,
            served,
            host_nqn,
            host_id,
            max_io_queues,
            began: Instant::now(),
            kato_ms: AtomicU32::new(rounded_up(kato_ms)),
            heard_ms: AtomicU64::new(0),
            is_ready: AtomicBool::new(false),
            instance: OnceLock::new(),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, TargetControllerState> {
        self.state.lock()
    }

    pub(in crate::target) fn subsystem_nqn(&self) -> &str {
        match &self.served {
            ServedSubsystem::Discovery => crate::fabrics::DISCOVERY_NQN,
            ServedSubsystem::Subsystem(subsystem) => subsystem.nqn(),
        }
    }

    pub(in crate::target) fn is_discovery(&self) -> bool {
        matches!(self.served, ServedSubsystem::Discovery)
    }

    pub(in crate::target) fn subsystem(&self) -> Option<&Arc<NvmSubsystem>> {
        match &self.served {
            ServedSubsystem::Discovery => None,
            ServedSubsystem::Subsystem(subsystem) => Some(subsystem),
        }
    }

    pub(in crate::target) fn is_of(&self, host_nqn: &str, host_id: &[u8; 16]) -> bool {
        self.host_nqn == host_nqn && self.host_id == *host_id
    }

    pub(in crate::target) fn host(&self) -> HostIdentity {
        HostIdentity { nqn: self.host_nqn.clone(), id: self.host_id, instance: self.instance() }
    }

    /// Said once: later words change nothing.
    pub(in crate::target) fn set_instance(&self, instance: u64, number: u64) {
        let _ = self.instance.set((instance, number));
    }

    pub(in crate::target) fn instance(&self) -> Option<u64> {
        self.instance.get().map(|(instance, _)| *instance)
    }

    /// Its number among those of this instance of its host's, if it is one.
    pub(in crate::target) fn number_of(&self, instance: u64) -> Option<u64> {
        self.instance.get().filter(|(own, _)| *own == instance).map(|(_, number)| *number)
    }

    /// The host has shut it down.
    pub(in crate::target) fn has_taken_leave(&self) -> bool {
        self.state().configuration & CC_SHUTDOWN != 0
    }

    pub(in crate::target) fn has_commands_at_device(&self) -> bool {
        self.state().queues.values().any(|queue| queue.commands_at_device() > 0)
    }

    // Keep-alive: any command on any queue counts (base 3.9.3).

    pub(in crate::target) fn heard(&self) {
        self.heard_ms.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    pub(in crate::target) fn began(&self) -> Instant {
        self.began
    }

    pub(in crate::target) fn last_heard(&self) -> Instant {
        self.began + Duration::from_millis(self.heard_ms.load(Ordering::Relaxed))
    }

    pub(in crate::target) fn kato_ms(&self) -> u32 {
        self.kato_ms.load(Ordering::Relaxed)
    }

    pub(in crate::target) fn set_kato_ms(&self, kato_ms: u32) {
        self.kato_ms.store(rounded_up(kato_ms), Ordering::Relaxed);
    }

    pub(in crate::target) fn is_silent(&self) -> bool {
        let kato_ms = match self.kato_ms() {
            0 if self.is_discovery() => DISCOVERY_KATO_MS,
            0 => return false,
            kato_ms => kato_ms,
        };
        let heard = Duration::from_millis(self.heard_ms.load(Ordering::Relaxed));
        let silence = self.began.elapsed().saturating_sub(heard);
        silence > Duration::from_millis(u64::from(kato_ms)) + KEEP_ALIVE_GRACE
    }

    // Queues.

    pub(in crate::target) fn add_queue(
        &self,
        queue_id: u16,
        queue: &Arc<TargetQueue>,
    ) -> Result<(), QueueRefused> {
        let mut state = self.state();
        if state.is_over {
            return Err(QueueRefused::Over);
        }
        if queue_id != 0 && state.status & CSTS_READY == 0 {
            return Err(QueueRefused::NotEnabled);
        }
        if state.queues.contains_key(&queue_id) {
            return Err(QueueRefused::InUse);
        }
        state.queues.insert(queue_id, Arc::clone(queue));
        Ok(())
    }

    pub(in crate::target) fn remove_queue(&self, queue_id: u16, queue: &Arc<TargetQueue>) {
        let is_there = {
            let mut state = self.state();
            // Another connection may have this number by now.
            let is_there = state.queues.get(&queue_id).is_some_and(|found| Arc::ptr_eq(found, queue));
            if is_there {
                self.remember(queue);
                state.queues.remove(&queue_id);
            }
            is_there
        };
        if is_there {
            queue.kill();
        }
    }

    /// Remembers an ended queue's commands at devices, for when its host comes back. Before the queue is taken out of
    /// here, so that at no moment it is in neither place.
    fn remember(&self, queue: &Arc<TargetQueue>) {
        if let ServedSubsystem::Subsystem(subsystem) = &self.served {
            subsystem.remember_ended(self.host(), queue);
        }
    }

    /// Ends the queues whose connections the host has ended, though they may not have noticed yet.
    pub(in crate::target) fn end_hung_up(&self) {
        let hung_up: Vec<(u16, Arc<TargetQueue>)> = {
            let state = self.state();
            let of_queue = |(queue_id, queue): (&u16, &Arc<TargetQueue>)| (*queue_id, Arc::clone(queue));
            state
                .queues
                .iter()
                .map(of_queue)
                .filter(|(_, queue)| queue.is_killed() || queue.stream.is_hung_up())
                .collect()
        };
        for (queue_id, queue) in hung_up {
            match queue_id {
                // Without its admin queue it is none.
                0 => self.end(),
                queue_id => self.remove_queue(queue_id, &queue),
            }
        }
    }

    pub(in crate::target) fn queue_ids(&self) -> Vec<u16> {
        self.state().queues.keys().copied().collect()
    }

    /// All its connections end.
    pub(in crate::target) fn end(&self) {
        let (queues, requests) = {
            let mut state = self.state();
            state.is_over = true;
            state.queues.values().for_each(|queue| self.remember(queue));
            (std::mem::take(&mut state.queues), std::mem::take(&mut state.event_requests))
        };
        queues.values().for_each(|queue| queue.kill());
        // Without the lock and after the queues: a dropped reply answers, which reaches nobody by now.
        drop(requests);
    }

    // Properties (base 3.1.3).

    pub(in crate::target) fn property(&self, offset: u32, is_wide: bool) -> Option<u64> {
        match (offset, is_wide) {
            (property::CAP, true) => Some(capabilities()),
            (property::VS, false) => Some(u64::from(VERSION)),
            (property::CC, false) => Some(u64::from(self.state().configuration)),
            (property::CSTS, false) => Some(u64::from(self.state().status)),
            _ => None,
        }
    }

    pub(in crate::target) fn set_property(
        self: &Arc<Self>,
        offset: u32,
        is_wide: bool,
        value: u64,
    ) -> Result<(), NvmeStatus> {
        if offset != property::CC || is_wide {
            return Err(NvmeStatus::INVALID_FIELD.do_not_retry());
        }
        let value = value as u32;
        let mut state = self.state();
        let before = std::mem::replace(&mut state.configuration, value);
        let is_enabled = value & CC_ENABLE != 0;
        if is_enabled && before & CC_ENABLE == 0 {
            // The entry sizes, the page size and the command set are those that there are, or nothing goes.
            if !is_supported(value) {
                state.configuration = before;
                return Err(NvmeStatus::INVALID_FIELD.do_not_retry());
            }
            state.status = CSTS_READY;
        }
        let mut ended: Vec<Arc<TargetQueue>> = Vec::new();
        let mut dropped = VecDeque::new();
        if !is_enabled && before & CC_ENABLE != 0 {
            // A reset (base 3.7.2): what the host had set is forgotten, and I/O queues are gone.
            let admin = state.queues.remove(&0);
            ended = std::mem::take(&mut state.queues).into_values().collect();
            ended.iter().for_each(|queue| self.remember(queue));
            state.queues.extend(admin.map(|admin| (0, admin)));
            dropped = std::mem::take(&mut state.event_requests);
            state.status &= !CSTS_READY;
            state.queue_count = None;
            state.event_configuration = 0;
            state.told.clear();
            state.untold.clear();
        }
        self.is_ready.store(state.status & CSTS_READY != 0, Ordering::SeqCst);
        let shuts_down = value & CC_SHUTDOWN != 0 && before & CC_SHUTDOWN == 0;
        if shuts_down {
            state.status |= CSTS_SHUTDOWN_OCCURRING;
        } else if value & CC_SHUTDOWN == 0 {
            state.status &= !(CSTS_SHUTDOWN_OCCURRING | CSTS_SHUTDOWN_COMPLETE);
        }
        drop(state);
        ended.iter().for_each(|queue| queue.kill());
        for request in dropped {
            request.status(NvmeStatus::ABORT_REQUESTED);
        }
        if shuts_down {
            if let Some(subsystem) = self.subsystem() {
                subsystem.controller_left(self, true);
            }
            self.shut_down();
        }
        Ok(())
    }

    /// Writes out volatile caches; the host sees in the status when that is done (base 3.6).
    fn shut_down(self: &Arc<Self>) {
        let namespaces = self.subsystem().map(|subsystem| subsystem.namespaces()).unwrap_or_default();
        // One more, for this function: a device that answers at once must not complete the shutdown before
        // every flush is submitted.
        let left = Arc::new(AtomicUsize::new(namespaces.len() + 1));
        let flushed = {
            let controller = Arc::clone(self);
            move || {
                if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                    let mut state = controller.state();
                    if state.status & CSTS_SHUTDOWN_OCCURRING != 0 {
                        state.status &= !CSTS_SHUTDOWN_OCCURRING;
                        state.status |= CSTS_SHUTDOWN_COMPLETE;
                    }
                }
            }
        };
        for namespace in namespaces {
            let flushed = flushed.clone();
            namespace.device.submit(DeviceRequest::Flush, Box::new(move |_| flushed()));
        }
        flushed();
    }

    /// Whether commands other than of the fabric may be given.
    pub(in crate::target) fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::SeqCst)
    }

    // Features.

    /// How many I/O queues the host gets: as many as it asked for, unless there are fewer.
    pub(in crate::target) fn set_queue_count(&self, requested: u32) -> Result<u16, NvmeStatus> {
        let mut state = self.state();
        // Once I/O queues are there the number can't be changed (base 5.27.1.5).
        if state.queues.keys().any(|queue_id| *queue_id != 0) {
            return Err(NvmeStatus::COMMAND_SEQUENCE_ERROR.do_not_retry());
        }
        let granted = requested.min(u32::from(self.max_io_queues)) as u16;
        state.queue_count = Some(granted);
        Ok(granted)
    }

    pub(in crate::target) fn queue_count(&self) -> u16 {
        self.state().queue_count.unwrap_or(self.max_io_queues)
    }

    pub(in crate::target) fn event_configuration(&self) -> u32 {
        self.state().event_configuration
    }

    pub(in crate::target) fn set_event_configuration(&self, value: u32) {
        self.state().event_configuration = value;
    }

    // Asynchronous events (base 5.2).

    pub(in crate::target) fn request_event(&self, reply: CommandReply) {
        let mut state = self.state();
        if state.event_requests.len() >= EVENT_REQUESTS {
            drop(state);
            return reply.status(NvmeStatus::EVENT_REQUEST_LIMIT_EXCEEDED.do_not_retry());
        }
        match state.untold.pop() {
            Some(event) => {
                state.told.push(event);
                drop(state);
                reply.result(NvmeStatus::SUCCESS, event.to_result());
            }
            None => state.event_requests.push_back(reply),
        }
    }

    /// Takes back a request that waits, if there is one with that identifier.
    pub(in crate::target) fn abort_event_request(&self, cid: u16) -> Option<CommandReply> {
        let mut state = self.state();
        let index = state.event_requests.iter().position(|request| request.cid() == cid)?;
        state.event_requests.remove(index)
    }

    pub(in crate::target) fn namespace_changed(&self, nsid: u32) {
        let mut state = self.state();
        state.changed_namespaces.insert(nsid);
        let wanted = state.event_configuration & features::EVENT_NAMESPACE_CHANGED != 0;
        tell(state, AsyncEvent::NamespacesChanged, wanted);
    }

    pub(in crate::target) fn discovery_changed(&self) {
        let state = self.state();
        let wanted = state.event_configuration & features::EVENT_DISCOVERY_CHANGED != 0;
        tell(state, AsyncEvent::DiscoveryChanged, wanted);
    }

    /// The host has read the page that an event named: the event may be sent again.
    pub(in crate::target) fn page_was_read(&self, event: AsyncEvent) {
        self.state().told.retain(|reported| *reported != event);
    }

    pub(in crate::target) fn take_changed_namespaces(&self, keep: bool) -> Vec<u32> {
        let mut state = self.state();
        let changed = state.changed_namespaces.iter().copied().collect();
        if !keep {
            state.changed_namespaces.clear();
        }
        changed
    }

    // The error log.

    pub(in crate::target) fn log_error(&self, sq_id: u16, cid: u16, status: NvmeStatus, lba: u64, nsid: u32) {
        let mut state = self.state();
        state.error_count += 1;
        let number = state.error_count;
        state.errors.push_front(ErrorEntry { number, sq_id, cid, status, lba, nsid });
        state.errors.truncate(ERROR_ENTRIES);
    }

    /// The latest first.
    pub(in crate::target) fn errors(&self) -> Vec<ErrorEntry> {
        self.state().errors.iter().copied().collect()
    }

    pub(in crate::target) fn error_count(&self) -> u64 {
        self.state().error_count
    }

    pub(in crate::target) fn age(&self) -> Duration {
        self.began.elapsed()
    }
}

fn tell(mut state: MutexGuard<'_, TargetControllerState>, event: AsyncEvent, wanted: bool) {
    if !wanted || state.told.contains(&event) || state.untold.contains(&event) {
        return;
    }
    match state.event_requests.pop_front() {
        Some(request) => {
            state.told.push(event);
            drop(state);
            // Without the lock: answering sends.
            request.result(NvmeStatus::SUCCESS, event.to_result());
        }
        None => state.untold.push(event),
    }
}

/// CAP (base 3.1.3.1): the largest queue, contiguous queues, five seconds to get ready, the NVM command set, pages of 4
/// KiB.
fn capabilities() -> u64 {
    const CONTIGUOUS: u64 = 1 << 16;
    const TIMEOUT: u64 = 10 << 24;
    const NVM_COMMANDS: u64 = 1 << 37;
    u64::from(MAX_QUEUE) | CONTIGUOUS | TIMEOUT | NVM_COMMANDS
}

fn is_supported(configuration: u32) -> bool {
    let command_set = configuration >> 4 & 7;
    let page_size = configuration >> 7 & 15;
    let arbitration = configuration >> 11 & 7;
    let (sq_entry, cq_entry) = (configuration >> 16 & 15, configuration >> 20 & 15);
    command_set == 0
        && page_size == 0
        && arbitration == 0
        && matches!(sq_entry, 0 | 6)
        && matches!(cq_entry, 0 | 4)
}

/// A keep-alive timeout as this controller keeps it: rounded up to the granularity (base, Keep Alive Timer), and 0 is
/// none. The largest stay below what they would be rounded to, which no 32 bits hold.
fn rounded_up(kato_ms: u32) -> u32 {
    const UNIT_MS: u32 = KEEP_ALIVE_GRANULARITY as u32 * 100;
    kato_ms.checked_next_multiple_of(UNIT_MS).unwrap_or(u32::MAX / UNIT_MS * UNIT_MS)
}
