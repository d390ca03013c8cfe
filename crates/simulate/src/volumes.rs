//! A pool and its volumes under test, used directly or from a host by NVMe/TCP.

mod administration;
mod finish;
mod host;
mod server;
mod unfinished;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use underlay_sync::UnsimulatedMutex;

use underlay_storage::device::BlockDevice;
use underlay_sync::simulation::SimulatedWorld;
use underlay_sync::thread;
use underlay_volume::VolumePool;
use underlay_volume::pool::MemberState;

use crate::disk::SimulatedDisk;
use crate::faults::{FaultInjector, power_lost};
use crate::model::VolumeModel;
use crate::network::SimulatedNetwork;
use crate::script::{ScriptStep, VolumesSetup};
use crate::slot::SharedSlot;
use crate::user::{DeviceUser, UserEvents, poll, wait_until};
use host::SimulatedHost;
use server::{SimulatedServer, VolumeLeases};
use unfinished::UnfinishedCommand;

const EXTENT_BYTES: u64 = 256 << 10;
/// What the label and the journal of a small pool take, with something to spare.
const RESERVED_EXTENTS: u64 = 5;
const BLOCK: u64 = 4096;
/// The host that uses the volumes.
const HOST: &str = "a";

/// Volumes by name, as the model has them.
type KnownVolumes = Arc<UnsimulatedMutex<BTreeMap<String, Arc<DeviceUser>>>>;

struct VolumesRig {
    world: SimulatedWorld,
    setup: VolumesSetup,
    events: Arc<UserEvents>,
    network: SimulatedNetwork,
    leases: VolumeLeases,
    disks: Vec<SimulatedDisk>,
    faults: FaultInjector,
    /// Of another pool with volumes of the same names.
    other_disks: Vec<SimulatedDisk>,
    folder: tempfile::TempDir,
    boot: u32,
    serves_other: bool,
    server: SimulatedServer,
    host: Option<SimulatedHost>,
    known: KnownVolumes,
    unfinished: Arc<UnsimulatedMutex<Vec<UnfinishedCommand>>>,
    snapshots: u32,
    /// The last one that went when everything was there twice.
    pulled_out: Option<usize>,
    /// What was acknowledged may be in the host's memory alone.
    is_at_risk: bool,
    /// A server of this run has lost what a host keeps: until that has written it again, a snapshot may lack it.
    has_lost: Arc<AtomicBool>,
}

fn name_of(number: usize) -> String {
    format!("volume-{number}")
}

/// Runs a script.
pub(crate) fn run(
    world: &SimulatedWorld,
    setup: &VolumesSetup,
    steps: &[ScriptStep],
    events: &Arc<UserEvents>,
) {
    let capacity_bytes = (u64::from(setup.extents) + RESERVED_EXTENTS) * EXTENT_BYTES;
    let new_disks = || -> Vec<SimulatedDisk> {
        (0..setup.members)
            .map(|_| SimulatedDisk::new(world, capacity_bytes, setup.forgets_failed_flush))
            .collect()
    };
    let (disks, other_disks) = (new_disks(), new_disks());
    let folder = tempfile::tempdir().expect("a folder can be had");
    let network = SimulatedNetwork::new(world);
    let leases = VolumeLeases::default();
    let server = SimulatedServer::start(world, setup, &disks, folder.path(), 0, &network, &leases, true);
    let users: BTreeMap<String, Arc<DeviceUser>> = (0..setup.volumes.len())
        .map(|number| {
            let name = name_of(number);
            let user = DeviceUser::new(&name, events, VolumeModel::new(setup.volumes[number].blocks));
            (name, user)
        })
        .collect();
    let mut rig = VolumesRig {
        world: world.clone(),
        setup: setup.clone(),
        events: Arc::clone(events),
        network,
        leases,
        // The journal is on the first two members.
        faults: FaultInjector::new(&disks, 0..disks.len().min(2)),
        disks,
        other_disks,
        folder,
        boot: 0,
        serves_other: false,
        server,
        host: None,
        known: Arc::new(UnsimulatedMutex::new(users)),
        unfinished: Arc::default(),
        snapshots: 0,
        pulled_out: None,
        is_at_risk: false,
        has_lost: Arc::default(),
    };
    rig.await_server().unwrap_or_else(|problem| panic!("a pool can't be made on new disks: {problem}"));
    rig.start_host();
    rig.await_host();
    for step in steps {
        rig.step(step);
    }
    rig.finish();
}

impl VolumesRig {
    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<DeviceUser>>> {
        self.known.lock()
    }

    fn unfinished(&self) -> std::sync::MutexGuard<'_, Vec<UnfinishedCommand>> {
        self.unfinished.lock()
    }

    /// The volumes that a script uses, snapshots that are not exported left out.
    fn users(&self) -> Vec<Arc<DeviceUser>> {
        let is_used = |name: &str| !self.setup.is_remote || name.starts_with("volume-");
        self.known().iter().filter(|(name, _)| is_used(name)).map(|(_, user)| Arc::clone(user)).collect()
    }

    fn user(&self, number: u32) -> Option<Arc<DeviceUser>> {
        let users = self.users();
        users.get((number as usize).checked_rem(users.len())?).cloned()
    }

    fn pool(&mut self) -> Option<VolumePool> {
        match self.server.opened.get()? {
            Ok(pool) => {
                self.take_stock(&pool);
                Some(pool)
            }
            Err(_) => {
                // It could not be opened; somebody tries again.
                self.restart_server(false);
                None
            }
        }
    }

    fn await_server(&mut self) -> Result<VolumePool, String> {
        wait_until(&self.world, || "the pool opens".into(), || self.server.opened.is_full());
        let opened = self.server.opened.get().expect("it was just filled");
        if let Ok(pool) = &opened {
            self.take_stock(pool);
        }
        opened
    }

    /// A member is left out for what it did itself, and for nothing else.
    fn check_members(&self, pool: &VolumePool) {
        for (number, (disk, member)) in self.disks.iter().zip(pool.info().members).enumerate() {
            let is_unjust = member.state == MemberState::Out && !disk.was_at_fault();
            assert!(!is_unjust, "member {number} is left out, and has never failed anything");
        }
    }

    /// After a crash: which of the commands that nobody answered have happened.
    fn take_stock(&mut self, pool: &VolumePool) {
        if self.server.has_taken_stock || self.serves_other {
            return;
        }
        self.server.has_taken_stock = true;
        self.check_members(pool);
        let listed = pool.list();
        let now = self.events.next();
        let missed: Vec<UnfinishedCommand> = std::mem::take(&mut *self.server.missed.lock());
        let mut users = self.known();
        for one in missed {
            match one {
                UnfinishedCommand::Snapshot { name, source, began, model } => {
                    source.with_model(|model| model.end_snapshot(began));
                    if listed.iter().any(|volume| volume.name == name) {
                        let model =
                            model.unwrap_or_else(|| source.with_model(|model| model.snapshot(began, now)));
                        users.insert(name.clone(), DeviceUser::new(&name, &self.events, model));
                    }
                }
                UnfinishedCommand::Delete { name } => {
                    if listed.iter().all(|volume| volume.name != name) {
                        users.remove(&name);
                    }
                }
                UnfinishedCommand::Resize { name, blocks } => {
                    if let Some(user) = users.get(&name) {
                        let moment = self.events.next();
                        user.with_model(|model| model.may_be_zeroed(blocks, moment, moment));
                    }
                }
            }
        }
        if self.events.anything_goes.load(Ordering::Relaxed) {
            // A disk that lied has lost its power: nothing is promised, not even which volumes there are.
            users.retain(|name, _| listed.iter().any(|volume| volume.name == *name));
        }
        for (name, user) in users.iter() {
            let found = listed.iter().find(|volume| volume.name == *name);
            let Some(found) = found else {
                panic!("the volume {name} is gone after the pool was opened again");
            };
            user.with_model(|model| model.resize((found.capacity_bytes / BLOCK) as u32));
        }
        users.values().for_each(|user| user.with_model(VolumeModel::reopened));
        let is_void = self.events.anything_goes.load(Ordering::Relaxed);
        for volume in &listed {
            assert!(is_void || users.contains_key(&volume.name), "nobody made the volume {}", volume.name);
        }
    }

    fn start_host(&mut self) {
        if self.setup.is_remote {
            let names: Vec<String> = (0..self.setup.volumes.len()).map(name_of).collect();
            self.host = Some(SimulatedHost::start(&self.world, &self.network, HOST, &names));
        }
    }

    fn await_host(&mut self) {
        let Some(host) = &self.host else { return };
        wait_until(&self.world, || "the host connects".into(), || host.opened.is_full());
        if let Some(Err(problem)) = host.opened.get() {
            panic!("a host can't connect to a sound server: {problem}");
        }
    }

    /// The process that uses volumes, and a volume as it sees it.
    fn device(
        &mut self,
        user: &DeviceUser,
    ) -> Option<(Arc<dyn BlockDevice>, underlay_sync::simulation::TaskGroup)> {
        if !self.setup.is_remote {
            let pool = self.pool()?;
            let volume = pool.volume(&user.name).ok()?;
            return Some((Arc::new(volume), self.server.process));
        }
        let host = self.host.as_ref()?;
        match host.opened.get()? {
            Ok(devices) => {
                let device = devices.get(&user.name)?;
                Some((Arc::clone(device), host.process))
            }
            Err(_) => {
                self.kill_host();
                None
            }
        }
    }

    fn use_volume(&mut self, number: u32, act: impl FnOnce(&Arc<DeviceUser>, &dyn BlockDevice)) {
        let Some(user) = self.user(number) else { return };
        if let Some((device, process)) = self.device(&user) {
            self.world.enter(process, || act(&user, &*device));
        }
    }

    fn step(&mut self, step: &ScriptStep) {
        match *step {
            ScriptStep::Write { volume, block, count, fua } => {
                if !self.is_read_only(volume) {
                    self.use_volume(volume, |user, device| user.write(device, block, count, fua));
                }
            }
            ScriptStep::Read { volume, block, count } => {
                self.use_volume(volume, |user, device| user.read(device, block, count));
            }
            ScriptStep::Discard { volume, block, count } => {
                if !self.is_read_only(volume) {
                    self.use_volume(volume, |user, device| user.discard(device, block, count));
                }
            }
            ScriptStep::Flush { volume } => self.use_volume(volume, |user, device| user.flush(device)),
            ScriptStep::Snapshot { volume, writable } => self.snapshot(volume, writable),
            ScriptStep::Delete { volume } => self.delete(volume),
            ScriptStep::Resize { volume, blocks } => self.resize(volume, blocks),
            ScriptStep::Resync { member } => self.administer(move |pool, members| {
                let _ = pool.resync(member as usize % members);
            }),
            ScriptStep::PullOut { member } => self.pull_out(member),
            ScriptStep::LosePower { member } => self.lose_power(member),
            ScriptStep::Pause { us } => thread::sleep(Duration::from_micros(us)),
            ScriptStep::Settle => self.settle_for_a_while(),
            ScriptStep::Break { which: connection } => self.network.break_connections(Some(connection)),
            ScriptStep::BreakAll => self.network.break_connections(None),
            ScriptStep::Strand => self.network.strand_connections(),
            ScriptStep::Stall => self.network.set_stalled(true),
            ScriptStep::Release => self.network.set_stalled(false),
            ScriptStep::KillServer => self.restart_server(false),
            ScriptStep::CutPower => self.restart_server(true),
            ScriptStep::KillHost => self.kill_host(),
            ScriptStep::OtherServer => self.serve_other(),
            ScriptStep::Intrude { volume, block } => self.intrude(volume, block),
            _ => self.faults.strike(step, &self.events, !self.server.opened.is_full()),
        }
    }

    fn is_read_only(&self, number: u32) -> bool {
        self.user(number).is_some_and(|user| user.name.starts_with("frozen-"))
    }

    /// The server's process dies, or its host loses its power; another one begins.
    fn restart_server(&mut self, takes_power: bool) {
        self.stop_server(takes_power);
        self.serves_other = false;
        self.faults.prepare_opening();
        let (world, setup) = (self.world.clone(), self.setup.clone());
        self.server = SimulatedServer::start(
            &world,
            &setup,
            &self.disks,
            self.folder.path(),
            self.boot,
            &self.network,
            &self.leases,
            false,
        );
        let missed = std::mem::take(&mut *self.unfinished());
        self.server.missed.lock().extend(missed);
    }

    fn stop_server(&mut self, takes_power: bool) {
        let died = self.events.next();
        self.world.kill(self.server.process);
        self.network.stop_listening();
        // A host without power tells nobody; its connections are noticed by their silence.
        if !takes_power || self.world.with_random(|random| random.one_in(2)) {
            self.network.process_ended(self.server.process);
        }
        // What an earlier server left to be found out stays to be found out.
        let missed = std::mem::take(&mut *self.server.missed.lock());
        self.unfinished().extend(missed);
        if self.setup.is_remote {
            let has_lost = self.has_lost.load(Ordering::Relaxed);
            for one in self.unfinished().iter_mut() {
                one.stays_as_of(died, has_lost);
            }
        }
        if self.serves_other {
            self.other_disks.iter().for_each(|disk| disk.abandon(self.server.process));
            return;
        }
        for disk in &self.disks {
            if takes_power {
                disk.cut_power();
            } else {
                disk.abandon(self.server.process);
            }
        }
        if takes_power {
            self.boot += 1;
            power_lost(&self.events);
        }
        let loses = takes_power || !self.setup.has_host_memory;
        let users: Vec<Arc<DeviceUser>> = self.known().values().cloned().collect();
        if !self.setup.is_remote {
            for user in users {
                user.abandon();
                if loses {
                    user.with_model(|model| model.lose_unflushed(died));
                }
            }
        } else if loses {
            users.iter().for_each(|user| user.with_model(VolumeModel::lose_orphaned));
            self.is_at_risk = true;
            self.has_lost.store(true, Ordering::Relaxed);
        }
    }

    fn kill_host(&mut self) {
        let Some(host) = self.host.take() else { return };
        if self.serves_other {
            // A new host would find the other pool, and use it with good reason.
            self.restart_server(false);
        }
        self.world.kill(host.process);
        if self.world.with_random(|random| random.one_in(2)) {
            self.network.process_ended(host.process);
        }
        let died = self.events.next();
        let is_at_risk = std::mem::take(&mut self.is_at_risk);
        for user in self.users() {
            user.abandon();
            user.with_model(VolumeModel::orphan);
            if is_at_risk {
                user.with_model(|model| model.lose_unflushed(died));
            }
        }
        // Not dropped: a process that was killed shuts nothing down.
        std::mem::forget(host);
        self.start_host();
    }

    fn serve_other(&mut self) {
        if !self.setup.is_remote || self.serves_other {
            return;
        }
        // A host that is still connecting knows of no first pool, and would use the other one with good reason.
        let has_first = self.host.as_ref().is_some_and(|host| matches!(host.opened.get(), Some(Ok(_))));
        if !has_first {
            return;
        }
        self.stop_server(false);
        self.serves_other = true;
        // A host that still looks for the first pool will not find it: its memory of unflushed writes goes
        // with it.
        self.is_at_risk |= !self.setup.has_host_memory;
        let _ = std::fs::create_dir(self.other_folder());
        self.start_other_server();
        let missed = std::mem::take(&mut *self.unfinished());
        self.server.missed.lock().extend(missed);
    }

    /// Only there once the other pool was served.
    fn other_folder(&self) -> PathBuf {
        self.folder.path().join("other")
    }

    /// In the first one's place, which has been stopped.
    fn start_other_server(&mut self) {
        self.server = SimulatedServer::start(
            &self.world,
            &self.setup,
            &self.other_disks,
            &self.other_folder(),
            0,
            &self.network,
            &VolumeLeases::default(),
            true,
        );
    }

    /// A second host writes while the first one has the volume, or a second process of the same host does.
    fn intrude(&mut self, volume: u32, block: u32) {
        if !self.setup.is_remote || self.serves_other {
            return;
        }
        let Some(user) = self.user(volume) else { return };
        let Some(host) = &self.host else { return };
        let blocks = user.blocks();
        if blocks == 0 || !matches!(host.opened.get(), Some(Ok(_))) {
            return;
        }
        // The first host has the volume when it has just written to it.
        let has_written = SharedSlot::default();
        let answered = has_written.clone();
        self.use_volume(volume, |user, device| {
            user.write_and(device, 0, 1, move |outcome| answered.fill(outcome));
        });
        self.pause_until(Duration::from_secs(5), || has_written.is_full());
        if has_written.get() != Some(Ok(())) {
            return;
        }
        let refused = SharedSlot::default();
        let offset_bytes = u64::from(block % blocks) * BLOCK;
        let host = if block.is_multiple_of(2) { "intruder" } else { HOST };
        SimulatedHost::intrude(&self.world, &self.network, host, &user.name, offset_bytes, &refused);
        // Nothing else happens meanwhile that would give it the volume with good reason.
        self.pause_until(Duration::from_secs(20), || refused.is_full());
        refused.fill(());
    }

    fn pause_until(&self, at_most: Duration, is_so: impl Fn() -> bool) {
        // Callers that have to know check the condition themselves.
        let _ = poll(&self.world, at_most, Duration::from_millis(1), is_so);
    }

    /// Waits for answers, though not for those that need a fault to end.
    fn settle_for_a_while(&self) {
        self.pause_until(Duration::from_secs(20), || self.users().iter().all(|user| user.is_idle()));
    }

    fn settle(&self) {
        let unanswered =
            || self.users().iter().flat_map(|user| user.unanswered()).collect::<Vec<_>>().join(", ");
        wait_until(&self.world, unanswered, || self.users().iter().all(|user| user.is_idle()));
    }
}
