//! Subsystems and their namespaces, which may come, go and change while the target runs.

pub(super) mod controller;
mod hosts;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use underlay_sync::Instant;
use underlay_sync::planted::{PlantedBug, is_planted};
use underlay_sync::{Mutex, MutexGuard, RwLock};

use underlay_storage::device::{BlockDevice, DeviceGeometry};

use super::counters::{NamespaceCounters, QueueSnapshot, TargetCounters};
use super::host_identity::HostIdentity;
use super::lease::{LeaseContext, WriteLease, WriterPolicy};
use crate::auth::ControllerSecrets;
use crate::fabrics::{ANY_CONTROLLER, DISCOVERY_NQN};
use crate::nqn::{self, NqnError};
use controller::TargetController;
use controller::queue::TargetQueue;
pub use hosts::AllowedHosts;
pub(super) use hosts::NoController;

/// Namespace IDs of a subsystem are at most this.
pub const MAX_NSID: u32 = 1024;
/// Controller IDs above this have other uses.
const MAX_CONTROLLER_ID: u16 = 0xffef;
/// How long a host waits for what it, or the one that wrote before it, had under way.
const LAST_COMMANDS_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a subsystem or a namespace can't be there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubsystemError {
    #[error("{0:?} is not a valid name of a subsystem: {1}")]
    InvalidName(String, NqnError),
    #[error("the subsystem {0} already exists")]
    SubsystemExists(String),
    #[error("there is no subsystem {0}")]
    NoSubsystem(String),
    #[error("the namespace ID {0} is not one of 1 to {MAX_NSID}")]
    InvalidNsid(u32),
    #[error("the namespace {0} already exists")]
    NamespaceExists(u32),
    #[error("there is no namespace {0}")]
    NoNamespace(u32),
    #[error(
        "a device with blocks of {0} bytes can't be a namespace: blocks must be a power of two of 512 bytes or more"
    )]
    BlockSize(u32),
    #[error("the block size of namespace {0} can't change while it exists: remove it and add it again")]
    BlockSizeChanged(u32),
}

/// A subsystem's configuration.
#[derive(Clone, Debug)]
pub struct SubsystemConfig {
    pub nqn: String,
    /// At most 20 characters.
    pub serial_number: String,
    pub hosts: AllowedHosts,
}

/// A namespace's configuration.
pub struct NamespaceConfig {
    /// 1 to [`MAX_NSID`].
    pub nsid: u32,
    /// By what hosts know it again, regardless of its ID.
    pub uuid: [u8; 16],
    pub device: Arc<dyn BlockDevice>,
}

/// A device as hosts see it.
pub struct TargetNamespace {
    pub(super) nsid: u32,
    pub(super) uuid: [u8; 16],
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) block_bytes: u32,
    pub(super) optimal_io_bytes: u32,
    pub(super) capacity_bytes: AtomicU64,
    pub(super) counting: TargetCounters,
    pub(super) lease: WriteLease,
}

impl TargetNamespace {
    /// The one host that writes to it, if there is one.
    pub fn writer(&self) -> Option<HostIdentity> {
        self.lease.holder()
    }

    /// Takes the lease from its holder: for one that is known not to come back.
    pub fn release(&self) {
        self.lease.release();
    }

    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }

    pub fn counters(&self) -> NamespaceCounters {
        self.counting.snapshot()
    }

    pub(super) fn blocks(&self) -> u64 {
        self.capacity_bytes() / u64::from(self.block_bytes)
    }
}

/// The generation of what discovery reports, and the hosts that want to hear of changes.
#[derive(Default)]
struct DiscoveryLog {
    generation: AtomicU64,
    controllers: Mutex<Vec<Weak<TargetController>>>,
}

impl DiscoveryLog {
    fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
        // Not under the lock: telling sends.
        let controllers: Vec<_> = self.controllers().iter().filter_map(Weak::upgrade).collect();
        controllers.iter().for_each(|controller| controller.discovery_changed());
    }

    fn controllers(&self) -> MutexGuard<'_, Vec<Weak<TargetController>>> {
        self.controllers.lock()
    }
}

/// A subsystem: a name under which hosts find namespaces.
pub struct NvmSubsystem {
    nqn: String,
    serial_number: String,
    hosts: RwLock<AllowedHosts>,
    namespaces: RwLock<BTreeMap<u32, Arc<TargetNamespace>>>,
    /// Changes with the set of namespaces, so that queues may remember the one that they use.
    generation: AtomicU64,
    controllers: Mutex<ControllerTable>,
    /// Queues that ended while a device may still have their commands.
    ended_queues: Mutex<Vec<EndedQueue>>,
    discovery: Arc<DiscoveryLog>,
}

struct EndedQueue {
    host: HostIdentity,
    queue: Weak<TargetQueue>,
}

impl EndedQueue {
    fn has_commands(&self) -> bool {
        self.queue.upgrade().is_some_and(|queue| queue.may_reach_device())
    }
}

#[derive(Default)]
struct ControllerTable {
    by_id: BTreeMap<u16, Arc<TargetController>>,
    last_id: u16,
    /// The subsystem was removed: no controller is added any more.
    is_closed: bool,
}

impl NvmSubsystem {
    fn new(config: SubsystemConfig, discovery: Arc<DiscoveryLog>) -> NvmSubsystem {
        NvmSubsystem {
            nqn: config.nqn,
            serial_number: config.serial_number,
            hosts: RwLock::new(config.hosts),
            namespaces: RwLock::default(),
            generation: AtomicU64::new(0),
            controllers: Mutex::default(),
            ended_queues: Mutex::default(),
            discovery,
        }
    }

    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    pub(super) fn serial_number(&self) -> &str {
        &self.serial_number
    }

    /// Adds a namespace that one host at a time may write to, and tells the hosts.
    ///
    /// # Errors
    /// When its ID is taken or none, or its device's blocks have a size that hosts can't use.
    pub fn add_namespace(&self, config: NamespaceConfig) -> Result<Arc<TargetNamespace>, SubsystemError> {
        self.add_namespace_for(config, WriterPolicy::One)
    }

    /// As [`NvmSubsystem::add_namespace`], and says who may write to it.
    ///
    /// # Errors
    /// As `add_namespace`.
    pub fn add_namespace_for(
        &self,
        config: NamespaceConfig,
        writers: WriterPolicy,
    ) -> Result<Arc<TargetNamespace>, SubsystemError> {
        let NamespaceConfig { nsid, uuid, device } = config;
        if !(1..=MAX_NSID).contains(&nsid) {
            return Err(SubsystemError::InvalidNsid(nsid));
        }
        let DeviceGeometry { capacity_bytes, block_bytes, optimal_io_bytes } = device.geometry();
        if !block_bytes.is_power_of_two() || block_bytes < 512 {
            return Err(SubsystemError::BlockSize(block_bytes));
        }
        let namespace = Arc::new(TargetNamespace {
            nsid,
            uuid,
            device,
            block_bytes,
            optimal_io_bytes,
            capacity_bytes: AtomicU64::new(capacity_bytes),
            counting: TargetCounters::default(),
            lease: WriteLease::new(writers),
        });
        {
            let mut namespaces = self.namespaces.write();
            if namespaces.contains_key(&nsid) {
                return Err(SubsystemError::NamespaceExists(nsid));
            }
            namespaces.insert(nsid, Arc::clone(&namespace));
        }
        self.changed(nsid);
        Ok(namespace)
    }

    /// Removes a namespace, and tells the hosts. Commands that its device has come to their end.
    ///
    /// # Errors
    /// When it isn't there.
    pub fn remove_namespace(&self, nsid: u32) -> Result<(), SubsystemError> {
        let removed = self.namespaces.write().remove(&nsid);
        if removed.is_none() {
            return Err(SubsystemError::NoNamespace(nsid));
        }
        self.changed(nsid);
        Ok(())
    }

    /// Looks at the capacity of a namespace's device again, and tells the hosts.
    ///
    /// # Errors
    /// When the namespace isn't there, or its device has blocks of another size now.
    pub fn resize_namespace(&self, nsid: u32) -> Result<(), SubsystemError> {
        let namespace = self.namespace(nsid).ok_or(SubsystemError::NoNamespace(nsid))?;
        let geometry = namespace.device.geometry();
        if geometry.block_bytes != namespace.block_bytes {
            return Err(SubsystemError::BlockSizeChanged(nsid));
        }
        namespace.capacity_bytes.store(geometry.capacity_bytes, Ordering::Relaxed);
        self.changed(nsid);
        Ok(())
    }

    pub fn namespace(&self, nsid: u32) -> Option<Arc<TargetNamespace>> {
        self.namespaces.read().get(&nsid).cloned()
    }

    /// By ID, ascending.
    pub fn namespaces(&self) -> Vec<Arc<TargetNamespace>> {
        self.namespaces.read().values().cloned().collect()
    }

    /// Changes which hosts may connect. Those that may no longer lose their connections.
    pub fn set_hosts(&self, hosts: AllowedHosts) {
        let refused: Vec<Arc<TargetController>> = {
            let mut allowed_hosts = self.hosts.write();
            *allowed_hosts = hosts;
            self.controllers()
                .by_id
                .values()
                .filter(|one| allowed_hosts.admit(&one.host_nqn).is_none())
                .cloned()
                .collect()
        };
        refused.iter().for_each(|controller| controller.end());
        // Discovery shows each host the subsystems that it may connect to.
        self.discovery.changed();
    }

    /// The queues that hosts have connected.
    pub fn queues(&self) -> Vec<QueueSnapshot> {
        let controllers: Vec<_> = self.controllers().by_id.values().cloned().collect();
        let snapshots_of = |controller: Arc<TargetController>| {
            controller.queue_ids().into_iter().map(move |queue_id| QueueSnapshot {
                subsystem_nqn: controller.subsystem_nqn().to_owned(),
                host_nqn: controller.host_nqn.clone(),
                controller_id: controller.id,
                queue_id,
            })
        };
        controllers.into_iter().flat_map(snapshots_of).collect()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether a host may connect, and what it has to prove.
    pub(super) fn admit(&self, host_nqn: &str) -> Option<Option<ControllerSecrets>> {
        let hosts = self.hosts.read();
        hosts.admit(host_nqn).map(Option::<&ControllerSecrets>::cloned)
    }

    fn changed(&self, nsid: u32) {
        // After the set has changed: a thread that sees the new number (Acquire in `generation`) looks up the namespace
        // again.
        self.generation.fetch_add(1, Ordering::Release);
        // Not under the lock: telling sends.
        let controllers: Vec<_> = self.controllers().by_id.values().cloned().collect();
        controllers.iter().for_each(|controller| controller.namespace_changed(nsid));
    }

    fn controllers(&self) -> MutexGuard<'_, ControllerTable> {
        self.controllers.lock()
    }

    pub(super) fn controller(&self, id: u16) -> Option<Arc<TargetController>> {
        self.controllers().by_id.get(&id).cloned()
    }

    pub(super) fn controller_ids(&self) -> Vec<u16> {
        self.controllers().by_id.keys().copied().collect()
    }

    /// A controller whose ID is free.
    pub(super) fn add_controller(
        &self,
        make: impl FnOnce(u16) -> TargetController,
    ) -> Result<Arc<TargetController>, NoController> {
        // Held until the controller can be found: `set_hosts` either has taken its host off the list before, or ends
        // it.
        let hosts = self.hosts.read();
        let mut controllers = self.controllers();
        if controllers.is_closed {
            return Err(NoController::NoneLeft);
        }
        // The one after the last, so that an ID doesn't come again while a host still holds on to it.
        let last = controllers.last_id;
        let free = |id: &u16| !controllers.by_id.contains_key(id);
        let id = (last + 1..=MAX_CONTROLLER_ID).chain(1..=last).find(free).ok_or(NoController::NoneLeft)?;
        let controller = Arc::new(make(id));
        if hosts.admit(&controller.host_nqn).is_none() {
            return Err(NoController::NotListed);
        }
        controllers.by_id.insert(id, Arc::clone(&controller));
        controllers.last_id = id;
        drop((controllers, hosts));
        let host = controller.host();
        self.namespaces().iter().for_each(|namespace| namespace.lease.controller_came(&host));
        Ok(controller)
    }

    fn ended_queues(&self) -> MutexGuard<'_, Vec<EndedQueue>> {
        self.ended_queues.lock()
    }

    /// For as long as a device may have commands of this queue, which ends.
    pub(super) fn remember_ended(&self, host: HostIdentity, queue: &Arc<TargetQueue>) {
        let mut queues = self.ended_queues();
        queues.retain(EndedQueue::has_commands);
        queues.push(EndedQueue { host, queue: Arc::downgrade(queue) });
    }

    /// Waits until devices have nothing more of a host's connections that are gone, and says whether that is so now.
    pub(super) fn await_former(&self, host_nqn: &str, host_id: &[u8; 16]) -> bool {
        let is_of_host = |controller: &TargetController| controller.is_of(host_nqn, host_id);
        // Commands that such a connection has received and not handled may not reach a device any more.
        self.controllers_that(is_of_host).iter().for_each(|controller| controller.end_hung_up());
        let is_of_host = |one: &EndedQueue| one.host.nqn == host_nqn && one.host.id == *host_id;
        let is_free = || !self.ended_queues().iter().any(|one| is_of_host(one) && one.has_commands());
        is_planted(PlantedBug::LateWriteLands) || wait_for(is_free)
    }

    fn controllers_that(&self, are_it: impl Fn(&TargetController) -> bool) -> Vec<Arc<TargetController>> {
        let controllers = self.controllers();
        controllers.by_id.values().filter(|one| are_it(one)).cloned().collect()
    }

    /// Of this very initiator.
    fn controllers_of(&self, host: &HostIdentity) -> Vec<Arc<TargetController>> {
        let is_of_host = |one: &TargetController| one.is_of(&host.nqn, &host.id);
        self.controllers_that(|one| is_of_host(one) && one.instance() == host.instance)
    }

    /// Ends the controllers that a host has replaced by this one, which is its `number`th, and waits for what devices
    /// have of them. Their connections may seem to be alive here: what is on its way on them comes too late.
    pub(super) fn replace_former(
        &self,
        controller: &Arc<TargetController>,
        instance: u64,
        number: u64,
    ) -> Result<(), ReplaceRefusal> {
        let (nqn, id) = (&controller.host_nqn, &controller.host_id);
        let (older, has_newer) = {
            // Of two at the same time one sees the other.
            let controllers = self.controllers();
            controller.set_instance(instance, number);
            let others = controllers.by_id.values().filter(|one| one.is_of(nqn, id));
            let numbered = others.filter_map(|one| Some((one, one.number_of(instance)?)));
            let (older, newer): (Vec<_>, Vec<_>) =
                numbered.filter(|(_, other)| *other != number).partition(|(_, other)| *other < number);
            let older: Vec<_> = older.into_iter().map(|(one, _)| Arc::clone(one)).collect();
            (older, !newer.is_empty())
        };
        if has_newer {
            return Err(ReplaceRefusal::ByNewer);
        }
        // At Connect its instance was not known yet.
        let host = controller.host();
        self.namespaces().iter().for_each(|namespace| namespace.lease.controller_came(&host));
        if !is_planted(PlantedBug::LateWriteLands) {
            older.iter().for_each(|one| one.end());
        }
        if self.await_former(nqn, id) { Ok(()) } else { Err(ReplaceRefusal::NotYet) }
    }

    /// A number for the last writer to the namespaces, the same after a restart of the target; 0 if there was
    /// no other.
    pub(super) fn last_writer_but(&self, host: &HostIdentity) -> u64 {
        let number = |namespace: &Arc<TargetNamespace>| {
            let writer = namespace.lease.last_writer_but(host)?;
            // Never 0, and in a sum of several neither.
            Some(u64::from(writer.fingerprint(namespace.nsid())) | 1)
        };
        self.namespaces().iter().filter_map(number).sum()
    }

    /// A controller takes leave of the subsystem, though its connections may last a little longer.
    pub(super) fn controller_left(&self, controller: &TargetController, took_leave: bool) {
        let host = controller.host();
        for namespace in self.namespaces() {
            namespace.lease.controller_left(&host, took_leave, self);
        }
    }

    pub(super) fn remove_controller(&self, controller: &Arc<TargetController>) {
        let was_there = {
            let mut controllers = self.controllers();
            let is_it =
                controllers.by_id.get(&controller.id).is_some_and(|found| Arc::ptr_eq(found, controller));
            if is_it {
                controllers.by_id.remove(&controller.id);
            }
            is_it
        };
        if was_there {
            self.controller_left(controller, controller.has_taken_leave());
        }
    }

    /// For good: no new one is let in.
    pub(super) fn end_controllers(&self) {
        let controllers: Vec<_> = {
            let mut controllers = self.controllers();
            controllers.is_closed = true;
            controllers.by_id.values().cloned().collect()
        };
        controllers.iter().for_each(|controller| controller.end());
    }
}

/// Why a controller can't take the place of former ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplaceRefusal {
    /// It has been replaced itself.
    ByNewer,
    /// Devices still have commands of a former one.
    NotYet,
}

fn wait_for(is_so: impl Fn() -> bool) -> bool {
    const INTERVAL: Duration = Duration::from_millis(1);
    let deadline = Instant::now() + LAST_COMMANDS_TIMEOUT;
    loop {
        let is_so = is_so();
        if is_so || Instant::now() >= deadline {
            return is_so;
        }
        underlay_sync::thread::sleep(INTERVAL);
    }
}

impl LeaseContext for NvmSubsystem {
    fn is_connected(&self, host: &HostIdentity) -> bool {
        self.controllers_of(host).iter().any(|controller| !controller.has_taken_leave())
    }

    fn was_heard_since(&self, host: &HostIdentity, newcomer: &HostIdentity) -> bool {
        let came = self.controllers_of(newcomer).iter().map(|controller| controller.began()).min();
        let heard = self.controllers_of(host).iter().map(|controller| controller.last_heard()).max();
        came.zip(heard).is_some_and(|(came, heard)| heard > came)
    }

    fn await_last_commands(&self, previous_writer: Option<&HostIdentity>) -> bool {
        let left = previous_writer.map_or_else(Vec::new, |host| self.controllers_of(host));
        wait_for(|| {
            !self.ended_queues().iter().any(EndedQueue::has_commands)
                && !left.iter().any(|controller| controller.has_commands_at_device())
        })
    }
}

/// The subsystems of a target, beside the discovery subsystem that every target has.
#[derive(Default)]
pub struct SubsystemTable {
    by_nqn: RwLock<BTreeMap<String, Arc<NvmSubsystem>>>,
    discovery: Arc<DiscoveryLog>,
    discovery_ids: AtomicU64,
}

impl SubsystemTable {
    /// Adds a subsystem without namespaces.
    ///
    /// # Errors
    /// When its name is none or is taken.
    pub fn add(&self, config: SubsystemConfig) -> Result<Arc<NvmSubsystem>, SubsystemError> {
        if let Err(problem) = nqn::check(&config.nqn) {
            return Err(SubsystemError::InvalidName(config.nqn, problem));
        }
        let mut by_nqn = self.by_nqn.write();
        if config.nqn == DISCOVERY_NQN || by_nqn.contains_key(&config.nqn) {
            return Err(SubsystemError::SubsystemExists(config.nqn));
        }
        let subsystem = Arc::new(NvmSubsystem::new(config, Arc::clone(&self.discovery)));
        by_nqn.insert(subsystem.nqn.clone(), Arc::clone(&subsystem));
        drop(by_nqn);
        self.discovery.changed();
        Ok(subsystem)
    }

    /// Removes a subsystem and ends its hosts' connections.
    ///
    /// # Errors
    /// When it isn't there.
    pub fn remove(&self, nqn: &str) -> Result<(), SubsystemError> {
        let removed = self.by_nqn.write().remove(nqn);
        removed.ok_or_else(|| SubsystemError::NoSubsystem(nqn.to_owned()))?.end_controllers();
        self.discovery.changed();
        Ok(())
    }

    pub fn get(&self, nqn: &str) -> Option<Arc<NvmSubsystem>> {
        self.by_nqn.read().get(nqn).cloned()
    }

    /// By name.
    pub fn list(&self) -> Vec<Arc<NvmSubsystem>> {
        self.by_nqn.read().values().cloned().collect()
    }

    pub(super) fn generation(&self) -> u64 {
        self.discovery.generation.load(Ordering::Acquire)
    }

    pub(super) fn add_discovery_controller(
        &self,
        make: impl FnOnce(u16) -> TargetController,
    ) -> Arc<TargetController> {
        // They have no I/O queues that would find them by it, so an ID may come again.
        let turn = self.discovery_ids.fetch_add(1, Ordering::Relaxed);
        let controller = Arc::new(make((turn % u64::from(MAX_CONTROLLER_ID)) as u16 + 1));
        debug_assert_ne!(controller.id, ANY_CONTROLLER);
        let mut controllers = self.discovery.controllers();
        controllers.retain(|one| one.strong_count() > 0);
        controllers.push(Arc::downgrade(&controller));
        controller
    }

    pub(super) fn end_controllers(&self) {
        self.list().iter().for_each(|subsystem| subsystem.end_controllers());
        let controllers: Vec<_> = self.discovery.controllers().iter().filter_map(Weak::upgrade).collect();
        controllers.iter().for_each(|controller| controller.end());
    }
}
