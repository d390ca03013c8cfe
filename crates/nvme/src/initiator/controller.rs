//! A controller and the thread that manages its connection: keep-alive, events, and reconnecting when it is lost.

pub(super) mod device;
mod resumption;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use underlay_sync::Instant;
use underlay_sync::thread::{self, JoinHandle};
use underlay_sync::{Condvar, Mutex, MutexGuard, RwLock};

use super::association::{HostAssociation, identify_page, succeed};
use super::error::InitiatorError;
use super::exchange::{CommandAnswer, CommandExchange, CommandPayload, LostAnswer};
use super::identity::NamespaceIdentity;
use super::options::ControllerOptions;
use super::queue::{QueueOwner, THREAD_PREFIX};
use super::record::WriteRecord;
use super::stats::{InitiatorMetrics, InitiatorStats};
use crate::command::{NvmeCommand, SglDescriptor, admin};
use crate::identify::{IdentifyCommand, NamespaceData, NamespaceDescriptors, cns, decode_namespace_list};
use crate::log_page::{AsyncEvent, CHANGED_NAMESPACES, GetLogPage};
use device::NamespaceInfo;
pub use device::RemoteDevice;

/// How often the way to the target is measured, where the keep-alive timeout does not ask for more.
const MAX_KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Pauses between attempts to find a lost connection.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// Before a command that the target could not carry out is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// For the answer to an admin command while all is well.
const ADMIN_LIMIT: Duration = Duration::from_secs(30);

/// A connected NVMe controller. A handle: the connections end with the last one, devices included.
#[derive(Clone)]
pub struct NvmeController {
    inner: Arc<ControllerInner>,
}

pub(super) struct ControllerInner {
    shared: Arc<ControllerShared>,
    manager: Mutex<Option<JoinHandle<()>>>,
}

pub(super) struct ControllerShared {
    options: ControllerOptions,
    /// Tells its associations from those of this host's other controllers.
    instance: u64,
    stats: Arc<InitiatorStats>,
    /// Absent while a lost connection is looked for, and at the end.
    association: RwLock<Option<Arc<HostAssociation>>>,
    state: Mutex<ConnectionState>,
    changed: Condvar,
    namespaces: Mutex<BTreeMap<u32, Weak<NamespaceInfo>>>,
    /// The last writer when this initiator came. As long as none of our writes was answered, finding it again
    /// is no change.
    first_writer: OnceLock<u64>,
}

struct ConnectionState {
    phase: ConnectionPhase,
    /// The last association.
    number: u64,
    /// The last one whose connection has ended, and why.
    ended: Option<(u64, String)>,
    /// Commands without a connection.
    orphans: Vec<CommandExchange>,
    /// Commands to send again at their time.
    retries: Vec<(Instant, CommandExchange)>,
    events: Vec<AsyncEvent>,
    /// A keep-alive that has no answer yet.
    keep_alive_sent: Option<Instant>,
    /// Why it was given up.
    gone_because: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionPhase {
    Connected,
    Reconnecting,
    /// It was not found in time, or is not what it was.
    Gone,
    Closed,
}

/// The manager's next work.
enum ManagerWork {
    Reconnect,
    Send(Vec<CommandExchange>),
    Look(AsyncEvent),
    KeepAlive,
    End,
}

impl NvmeController {
    /// Connects all queues.
    ///
    /// # Errors
    /// When the options make no sense, the target can't be reached, or it refuses this host.
    pub fn connect(options: ControllerOptions) -> Result<NvmeController, InitiatorError> {
        options.check()?;
        let shared = Arc::new(ControllerShared {
            options,
            instance: underlay_sync::random_u64(),
            stats: Arc::default(),
            association: RwLock::new(None),
            state: Mutex::new(ConnectionState {
                phase: ConnectionPhase::Connected,
                number: 1,
                ended: None,
                orphans: Vec::new(),
                retries: Vec::new(),
                events: Vec::new(),
                keep_alive_sent: None,
                gone_because: None,
            }),
            changed: Condvar::new(),
            namespaces: Mutex::default(),
            first_writer: OnceLock::new(),
        });
        let association = shared.establish(1)?;
        shared.install(association);
        let managed = Arc::clone(&shared);
        let manager = thread::ThreadBuilder::new()
            .name(format!("{THREAD_PREFIX}manager"))
            .spawn(move || managed.manage());
        let inner = ControllerInner { shared, manager: Mutex::new(None) };
        match manager {
            Ok(manager) => *inner.lock_manager() = Some(manager),
            Err(error) => return Err(InitiatorError::Thread(error)),
        }
        Ok(NvmeController { inner: Arc::new(inner) })
    }

    /// The namespaces that the controller has now.
    ///
    /// # Errors
    /// When the controller does not answer.
    pub fn namespaces(&self) -> Result<Vec<u32>, InitiatorError> {
        self.inner.shared.namespace_list(&*self.inner.shared.connected()?)
    }

    /// A namespace as a block device.
    ///
    /// # Errors
    /// When there is none of this number, or the controller does not answer.
    pub fn namespace(&self, nsid: u32) -> Result<RemoteDevice, InitiatorError> {
        let shared = &self.inner.shared;
        let association = shared.connected()?;
        let existing = shared.lock_namespaces().get(&nsid).and_then(Weak::upgrade);
        let namespace = match existing {
            Some(namespace) => namespace,
            None => {
                let (data, identity) = shared.identify_namespace(&association, nsid)?;
                let limits = &association.limits;
                let record =
                    WriteRecord::new(limits.identify.has_volatile_write_cache(), shared.options.unflushed);
                let namespace =
                    NamespaceInfo::new(nsid, &data, identity, limits, record, Arc::downgrade(shared));
                let namespace = Arc::new(namespace);
                // Two that ask at once get the same: what one of them keeps must be repeated.
                let mut namespaces = shared.lock_namespaces();
                match namespaces.get(&nsid).and_then(Weak::upgrade) {
                    Some(existing) => existing,
                    None => {
                        namespaces.insert(nsid, Arc::downgrade(&namespace));
                        namespace
                    }
                }
            }
        };
        Ok(RemoteDevice::new(namespace, Arc::clone(&self.inner)))
    }

    /// How many I/O queues there are at the moment.
    pub fn io_queues(&self) -> usize {
        self.inner.shared.current().map_or(0, |association| association.io_queues())
    }

    pub fn figures(&self) -> InitiatorMetrics {
        self.inner.shared.stats.figures()
    }

    /// Latencies count from now on; the counts go on.
    pub fn reset_latencies(&self) {
        self.inner.shared.stats.reset_latencies();
    }
}

impl ControllerInner {
    pub(super) fn shared(&self) -> &Arc<ControllerShared> {
        &self.shared
    }

    fn lock_manager(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.manager.lock()
    }
}

impl Drop for ControllerInner {
    fn drop(&mut self) {
        self.shared.lock().phase = ConnectionPhase::Closed;
        self.shared.changed.notify_all();
        let manager = self.lock_manager().take();
        // A thread that gives answers, and with one drops the last handle, can't wait for threads that wait for it.
        let may_wait = !thread::current().name().is_some_and(|name| name.starts_with(THREAD_PREFIX));
        if let (true, Some(manager)) = (may_wait, manager) {
            let _ = manager.join();
        }
        if let Some(association) = self.shared.take_association() {
            if may_wait {
                association.shut_down();
            }
            association.close();
            if may_wait {
                association.join();
            }
        }
        self.shared.abandon();
    }
}

impl ControllerShared {
    pub(super) fn stats(&self) -> &InitiatorStats {
        &self.stats
    }

    /// Sends a command by the best queue, or keeps it until there is one.
    pub(super) fn submit(&self, exchange: CommandExchange) {
        let refused = match self.current() {
            Some(association) => match association.pick().submit(exchange) {
                Ok(()) => return,
                Err(exchange) => *exchange,
            },
            None => exchange,
        };
        let mut state = self.lock();
        // Under the lock that guards the phase: `abandon` runs after the phase has changed, and so finds
        // what is pushed here.
        if state.phase == ConnectionPhase::Gone || state.phase == ConnectionPhase::Closed {
            drop(state);
            return (refused.done)(Err(LostAnswer::Gone));
        }
        state.orphans.push(refused);
        drop(state);
        self.changed.notify_all();
    }

    fn current(&self) -> Option<Arc<HostAssociation>> {
        self.association.read().clone()
    }

    fn take_association(&self) -> Option<Arc<HostAssociation>> {
        self.association.write().take()
    }

    fn connected(&self) -> Result<Arc<HostAssociation>, InitiatorError> {
        self.current().ok_or_else(|| {
            let given_up = self.lock().gone_because.clone();
            let reason = given_up.unwrap_or_else(|| "it has not been found again yet".to_owned());
            InitiatorError::Lost { what: "an admin command", reason }
        })
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock()
    }

    fn lock_namespaces(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<NamespaceInfo>>> {
        self.namespaces.lock()
    }

    fn establish(self: &Arc<ControllerShared>, number: u64) -> Result<HostAssociation, InitiatorError> {
        let owner = Arc::new(ControllerKeeper(Arc::downgrade(self)));
        HostAssociation::establish(&self.options, (self.instance, number), &self.stats, true, owner)
    }

    fn first_found_writer(&self) -> u64 {
        self.first_writer.get().copied().unwrap_or_default()
    }

    fn install(self: &Arc<ControllerShared>, association: HostAssociation) {
        let _ = self.first_writer.set(association.last_writer);
        let association = Arc::new(association);
        self.listen_for_event(&association);
        *self.association.write() = Some(association);
    }

    fn namespace_list(&self, association: &HostAssociation) -> Result<Vec<u32>, InitiatorError> {
        let identify = IdentifyCommand::new(cns::ACTIVE_NAMESPACES, 0);
        let page = identify_page(association.admin(), ADMIN_LIMIT, identify, "listing the namespaces")?;
        Ok(decode_namespace_list(&page))
    }

    fn identify_namespace(
        &self,
        association: &HostAssociation,
        nsid: u32,
    ) -> Result<(NamespaceData, NamespaceIdentity), InitiatorError> {
        let identify = IdentifyCommand::new(cns::NAMESPACE, nsid);
        let page = identify_page(association.admin(), ADMIN_LIMIT, identify, "identifying a namespace");
        let found = match page {
            Ok(page) => NamespaceData::decode(&page).filter(|data| data.size_blocks > 0),
            Err(InitiatorError::Command { .. }) => None,
            Err(error) => return Err(error),
        };
        match found {
            Some(data) => {
                let descriptors = self.namespace_descriptors(association, nsid)?;
                let identity = NamespaceIdentity::new(&association.limits.identify, &data, &descriptors);
                Ok((data, identity))
            }
            None => Err(InitiatorError::NoNamespace { nsid, there: self.namespace_list(association)? }),
        }
    }

    fn namespace_descriptors(
        &self,
        association: &HostAssociation,
        nsid: u32,
    ) -> Result<NamespaceDescriptors, InitiatorError> {
        let identify = IdentifyCommand::new(cns::NAMESPACE_DESCRIPTORS, nsid);
        match identify_page(association.admin(), ADMIN_LIMIT, identify, "reading a namespace's identifiers") {
            Ok(page) => Ok(NamespaceDescriptors::decode(&page)),
            // Controllers of older versions don't know the page.
            Err(InitiatorError::Command { .. }) => Ok(NamespaceDescriptors::default()),
            Err(error) => Err(error),
        }
    }

    fn listen_for_event(self: &Arc<ControllerShared>, association: &HostAssociation) {
        let weak = Arc::downgrade(self);
        let done = move |outcome: Result<CommandAnswer, LostAnswer>| {
            let Ok(answer) = outcome else { return };
            // A controller that takes no such request, or is being reset, has nothing to tell.
            if let (true, Some(shared)) = (answer.completion.status.is_success(), weak.upgrade()) {
                shared.lock().events.push(AsyncEvent::from_result(answer.completion.result));
                shared.changed.notify_all();
            }
        };
        let command = NvmeCommand::new(admin::ASYNC_EVENT_REQUEST, 0, 0, SglDescriptor::empty());
        let exchange = CommandExchange::new(command, CommandPayload::None, false, Box::new(done));
        // A connection that has ended is made again, and then asks for events again.
        let _ = association.admin().submit(exchange);
    }

    pub(super) fn keep_alive_interval(&self) -> Option<Duration> {
        let timeout = self.options.keep_alive_timeout;
        (!timeout.is_zero()).then(|| (timeout / 3).min(MAX_KEEP_ALIVE_INTERVAL))
    }

    fn manage(self: &Arc<ControllerShared>) {
        let interval = self.keep_alive_interval();
        let mut keep_alive_at = interval.map(|interval| Instant::now() + interval);
        loop {
            match self.next_work(keep_alive_at) {
                // Also exchanges that came back after the closing thread had answered all others.
                ManagerWork::End => return self.abandon(),
                ManagerWork::Reconnect => self.reconnect(),
                ManagerWork::Send(exchanges) => {
                    exchanges.into_iter().for_each(|exchange| self.submit(exchange))
                }
                ManagerWork::Look(event) => self.look(event),
                ManagerWork::KeepAlive => {
                    self.keep_alive();
                    keep_alive_at = interval.map(|interval| Instant::now() + interval);
                }
            }
        }
    }

    fn next_work(&self, keep_alive_at: Option<Instant>) -> ManagerWork {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            match state.phase {
                ConnectionPhase::Closed => return ManagerWork::End,
                ConnectionPhase::Gone => {
                    state = self.changed.wait(state);
                    continue;
                }
                ConnectionPhase::Connected | ConnectionPhase::Reconnecting => {}
            }
            if state.ended.as_ref().is_some_and(|(number, _)| *number == state.number) {
                state.phase = ConnectionPhase::Reconnecting;
                return ManagerWork::Reconnect;
            }
            let (due, later): (Vec<_>, Vec<_>) =
                std::mem::take(&mut state.retries).into_iter().partition(|(instant, _)| *instant <= now);
            state.retries = later;
            let mut sendable = std::mem::take(&mut state.orphans);
            sendable.extend(due.into_iter().map(|(_, exchange)| exchange));
            if !sendable.is_empty() {
                return ManagerWork::Send(sendable);
            }
            if let Some(event) = state.events.pop() {
                return ManagerWork::Look(event);
            }
            if keep_alive_at.is_some_and(|instant| instant <= now) {
                return ManagerWork::KeepAlive;
            }
            let next = state.retries.iter().map(|(instant, _)| *instant).chain(keep_alive_at).min();
            state = match next {
                Some(instant) => self.changed.wait_timeout(state, instant.saturating_duration_since(now)),
                None => self.changed.wait(state),
            };
        }
    }

    /// Finds the controller again, or gives up.
    fn reconnect(self: &Arc<ControllerShared>) {
        if let Some(association) = self.take_association() {
            association.close();
            // Every answer that came is dealt with, and every command without one is here.
            association.join();
        }
        let deadline = Instant::now() + self.options.loss_timeout;
        let mut pause = FIRST_PAUSE;
        loop {
            let number = {
                let mut state = self.lock();
                if state.phase == ConnectionPhase::Closed {
                    return;
                }
                state.number += 1;
                // Of the former connection: left set, it would have the new one closed.
                state.keep_alive_sent = None;
                state.number
            };
            let is_looked_for = !self.options.loss_timeout.is_zero();
            let failure = match is_looked_for.then(|| self.resume(number)) {
                Some(Ok(())) => return,
                Some(Err(error)) => Some(error),
                None => None,
            };
            let may_try_again = failure.as_ref().is_some_and(InitiatorError::is_passing);
            if !may_try_again || Instant::now() >= deadline {
                let reason = failure.map_or("its connection was lost".into(), |error| error.to_string());
                return self.give_up(reason);
            }
            self.pause(pause);
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// For good: from now on everything is answered with an error.
    fn give_up(&self, reason: String) {
        let mut state = self.lock();
        if state.phase != ConnectionPhase::Closed {
            let (subsystem, address) = (&self.options.subsystem_nqn, &self.options.address);
            tracing::error!(subsystem, %address, reason, "a volume is given up");
            state.phase = ConnectionPhase::Gone;
            state.gone_because = Some(reason);
        }
        drop(state);
        if let Some(association) = self.take_association() {
            association.close();
            association.join();
        }
        self.abandon();
    }

    /// Waits, unless nobody needs the controller any more.
    fn pause(&self, pause: Duration) {
        let deadline = Instant::now() + pause;
        let mut state = self.lock();
        while state.phase != ConnectionPhase::Closed {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left);
        }
    }

    fn keep_alive(self: &Arc<ControllerShared>) {
        let Some(association) = self.current() else { return };
        let now = Instant::now();
        let sent = {
            let mut state = self.lock();
            let sent = state.keep_alive_sent;
            state.keep_alive_sent.get_or_insert(now);
            sent
        };
        match sent {
            None => {}
            // One is in flight. If it stays so the connection is dead, even if TCP has not noticed.
            Some(sent) if sent.elapsed() > self.options.keep_alive_timeout => return association.close(),
            Some(_) => return,
        }
        let (weak, number) = (Arc::downgrade(self), association.number);
        let done = move |outcome: Result<CommandAnswer, LostAnswer>| {
            let (Ok(_), Some(shared)) = (outcome, weak.upgrade()) else { return };
            shared.stats.record_network(now.elapsed());
            let mut state = shared.lock();
            // An answer from a former association must not stop the clock of the present one.
            if state.number == number {
                state.keep_alive_sent = None;
            }
        };
        let _ = association.admin().submit(CommandExchange::keep_alive(Box::new(done)));
    }

    fn look(self: &Arc<ControllerShared>, event: AsyncEvent) {
        let Some(association) = self.current() else { return };
        if event == AsyncEvent::NamespacesChanged {
            // Reading the page is what lets the controller tell of the next change.
            let page = GetLogPage::new(CHANGED_NAMESPACES, 0, 4096);
            let place = CommandPayload::Receive(vec![0; 4096]);
            let operation = "reading the list of changes";
            let _ = succeed(association.admin(), page.to_command(0), place, ADMIN_LIMIT, operation);
            let namespaces: Vec<Arc<NamespaceInfo>> =
                self.lock_namespaces().values().filter_map(Weak::upgrade).collect();
            for namespace in namespaces {
                // One that is gone answers its requests with errors.
                let Ok((data, identity)) = self.identify_namespace(&association, namespace.nsid) else {
                    continue;
                };
                if let Err(error) = namespace.renew(&data, &identity) {
                    return self.give_up(error.to_string());
                }
            }
        }
        self.listen_for_event(&association);
    }

    /// Answers everything that waits: there will be no connection any more.
    fn abandon(&self) {
        let (orphans, retries) = {
            let mut state = self.lock();
            (std::mem::take(&mut state.orphans), std::mem::take(&mut state.retries))
        };
        for exchange in orphans.into_iter().chain(retries.into_iter().map(|(_, exchange)| exchange)) {
            (exchange.done)(Err(LostAnswer::Gone));
        }
    }
}

/// The queues' way to their controller, which may be gone before they are.
struct ControllerKeeper(Weak<ControllerShared>);

impl QueueOwner for ControllerKeeper {
    fn ended(&self, association: u64, reason: String, exchanges: Vec<CommandExchange>) {
        let mut unanswered = Vec::new();
        if let Some(shared) = self.0.upgrade() {
            let mut state = shared.lock();
            let is_wanted = matches!(state.phase, ConnectionPhase::Connected | ConnectionPhase::Reconnecting);
            for exchange in exchanges {
                match exchange.resend && is_wanted {
                    true => state.orphans.push(exchange),
                    false => unanswered.push(exchange),
                }
            }
            if state.ended.as_ref().is_none_or(|(number, _)| *number < association) {
                state.ended = Some((association, reason.clone()));
            }
            drop(state);
            shared.changed.notify_all();
        } else {
            unanswered = exchanges;
        }
        for exchange in unanswered {
            let lost =
                if exchange.resend { LostAnswer::Gone } else { LostAnswer::Connection(reason.clone()) };
            (exchange.done)(Err(lost));
        }
    }

    fn retry(&self, exchange: CommandExchange) {
        let shared = self.0.upgrade();
        let shared = shared.filter(|shared| exchange.began.elapsed() < shared.options.loss_timeout);
        let Some(shared) = shared else { return (exchange.done)(Err(LostAnswer::Gone)) };
        let mut state = shared.lock();
        if matches!(state.phase, ConnectionPhase::Gone | ConnectionPhase::Closed) {
            drop(state);
            return (exchange.done)(Err(LostAnswer::Gone));
        }
        state.retries.push((Instant::now() + RETRY_PAUSE, exchange));
        drop(state);
        shared.changed.notify_all();
    }
}
