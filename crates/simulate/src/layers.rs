//! A stack of layers under test: opened, used, crashed and opened again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use underlay_storage::device::BlockDevice;
use underlay_sync::simulation::{SimulatedWorld, TaskGroup};
use underlay_sync::thread;

use crate::disk::SimulatedDisk;
use crate::faults::FaultInjector;
use crate::model::VolumeModel;
use crate::script::{LayersSetup, ScriptStep};
use crate::slot::SharedSlot;
use crate::user::{DeviceUser, UserEvents, wait_until};

type OpenedLayers = Result<Arc<dyn BlockDevice>, String>;

struct LayersRig {
    world: SimulatedWorld,
    setup: LayersSetup,
    disks: Vec<SimulatedDisk>,
    faults: FaultInjector,
    user: Arc<DeviceUser>,
    process: TaskGroup,
    opened: SharedSlot<OpenedLayers>,
}

/// Runs a script.
pub(crate) fn run(
    world: &SimulatedWorld,
    setup: &LayersSetup,
    steps: &[ScriptStep],
    events: &Arc<UserEvents>,
) {
    let new_disk = |_| SimulatedDisk::new(world, setup.disk_kib << 10, false);
    let disks: Vec<SimulatedDisk> = (0..setup.tree.disks()).map(new_disk).collect();
    let user = DeviceUser::new("the stack", events, VolumeModel::new(setup.blocks));
    let mut rig = LayersRig {
        world: world.clone(),
        setup: setup.clone(),
        faults: FaultInjector::new(&disks, 0..disks.len()),
        disks,
        user,
        process: world.new_group(),
        opened: SharedSlot::default(),
    };
    rig.open();
    let device = rig.await_opened().unwrap_or_else(|problem| panic!("new disks can't be opened: {problem}"));
    let capacity_bytes = device.geometry().capacity_bytes;
    let least_bytes = u64::from(setup.blocks) << 12;
    if capacity_bytes < least_bytes {
        let reason = format!(
            "setup.blocks takes {least_bytes} bytes, and the tree has {capacity_bytes}; raise setup.disk_kib"
        );
        return events.refuse_setup(reason);
    }
    for step in steps {
        rig.step(step);
    }
    rig.finish();
}

impl LayersRig {
    fn open(&mut self) {
        self.faults.prepare_opening();
        self.process = self.world.new_group();
        self.opened = SharedSlot::default();
        let as_device = |disk: &SimulatedDisk| disk.device(self.process);
        let handles: Vec<_> = self.disks.iter().map(as_device).collect();
        let (tree, slot) = (self.setup.tree.clone(), self.opened.clone());
        let task = self.world.spawn(self.process, move || slot.fill(tree.open(&mut handles.into_iter())));
        task.expect("a thread can be had");
    }

    fn await_opened(&self) -> OpenedLayers {
        wait_until(&self.world, || "the stack opens".into(), || self.opened.is_full());
        self.opened.get().expect("it was just filled")
    }

    /// The device, if it is open; a stack that could not be opened is tried again.
    fn device(&mut self) -> Option<Arc<dyn BlockDevice>> {
        match self.opened.get()? {
            Ok(device) => Some(device),
            Err(_) => {
                self.crash(false);
                None
            }
        }
    }

    /// Ends the process, with the disks' power or without. What it had not flushed may be lost either way.
    fn crash(&mut self, takes_power: bool) {
        self.world.kill(self.process);
        let now = self.user.events.next();
        self.user.abandon();
        self.faults.crash(self.process, takes_power, &self.user.events);
        self.user.with_model(|model| {
            model.lose_unflushed(now);
            model.reopened();
        });
        self.open();
    }

    fn step(&mut self, step: &ScriptStep) {
        match *step {
            ScriptStep::Write { block, count, fua, .. } => {
                if let Some(device) = self.device() {
                    self.enter(|user| user.write(&*device, block, count, fua));
                }
            }
            ScriptStep::Read { block, count, .. } => {
                if let Some(device) = self.device() {
                    self.enter(|user| user.read(&*device, block, count));
                }
            }
            ScriptStep::Discard { block, count, .. } => {
                if let Some(device) = self.device() {
                    self.enter(|user| user.discard(&*device, block, count));
                }
            }
            ScriptStep::Flush { .. } => {
                if let Some(device) = self.device() {
                    self.enter(|user| user.flush(&*device));
                }
            }
            ScriptStep::Pause { us } => thread::sleep(Duration::from_micros(us)),
            ScriptStep::Settle => self.settle(),
            ScriptStep::KillServer => self.crash(false),
            ScriptStep::CutPower => self.crash(true),
            _ => self.faults.strike(step, &self.user.events, !self.opened.is_full()),
        }
    }

    /// As the process that uses the stack.
    fn enter(&self, act: impl FnOnce(&Arc<DeviceUser>)) {
        self.world.enter(self.process, || act(&self.user));
    }

    fn settle(&self) {
        let user = &self.user;
        wait_until(&self.world, || user.unanswered().join(", "), || user.is_idle());
    }

    /// All faults are over: what was acknowledged must be there, now and after another power cut.
    fn finish(&mut self) {
        self.faults.heal();
        self.settle();
        for last in [false, true] {
            // A new beginning: what failed to open may be opened now.
            self.crash(last);
            let opened = self.await_opened();
            if self.user.events.anything_goes.load(Ordering::Relaxed) {
                return;
            }
            let device = opened.unwrap_or_else(|problem| panic!("sound disks can't be opened: {problem}"));
            self.user.must_read_all(&self.world, self.process, &*device);
            self.enter(|user| user.write(&*device, 0, 8, false));
            self.settle();
            self.user.must_flush(&self.world, self.process, &*device);
        }
        self.crash(true);
        let device = self.await_opened().unwrap_or_else(|problem| panic!("it can't be opened: {problem}"));
        self.user.must_read_all(&self.world, self.process, &*device);
    }
}
