//! The file system of the directory attachment under test: files of numbered blocks under a few names.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;
use underlay_attach::directory::core::{DirectoryCore, InodeKind, NewNode, ROOT, RenameMode, WriteOptions};
use underlay_storage::device::{BlockDevice, CompletionCallback, DeviceError, DeviceGeometry, DeviceRequest};
use underlay_sync::simulation::{SimulatedWorld, TaskGroup};
use underlay_sync::{UnsimulatedMutex, thread};

use crate::content::BLOCK_BYTES;
use crate::disk::SimulatedDisk;
use crate::faults::FaultInjector;
use crate::model::{EventCount, VolumeModel};
use crate::script::{DirectorySetup, ScriptStep};
use crate::slot::SharedSlot;
use crate::user::{DeviceUser, UserEvents, wait_until};

const DISK_BYTES: u64 = 8 << 20;
const FILE_BLOCKS: u32 = 48;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// A file as a device of blocks: what lies behind its end is zeros.
struct FileDevice {
    core: Arc<DirectoryCore>,
    inode: u64,
}

fn as_device(error: Errno) -> DeviceError {
    if error == Errno::NOSPC { DeviceError::NoSpace } else { DeviceError::Io(error.to_string()) }
}

impl BlockDevice for FileDevice {
    fn geometry(&self) -> DeviceGeometry {
        let block_bytes = BLOCK as u32;
        DeviceGeometry {
            capacity_bytes: u64::from(FILE_BLOCKS) * BLOCK,
            block_bytes,
            optimal_io_bytes: block_bytes,
        }
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        let empty = |done: CompletionCallback| -> Box<dyn FnOnce(Result<(), Errno>) + Send> {
            Box::new(move |outcome| done(outcome.map(|()| Vec::new()).map_err(as_device)))
        };
        match request {
            DeviceRequest::Read { offset_bytes, buffer } => {
                let length = buffer.len();
                let padded = move |outcome: Result<Vec<u8>, Errno>| {
                    done(outcome.map_err(as_device).map(|mut bytes| {
                        bytes.resize(length, 0);
                        bytes
                    }));
                };
                self.core.read(self.inode, offset_bytes, length as u32, Box::new(padded));
            }
            DeviceRequest::Write { offset_bytes, data, .. } => {
                let options = WriteOptions::default();
                self.core.write(self.inode, offset_bytes, data, options, empty(done));
            }
            DeviceRequest::Flush => self.core.sync(self.inode, false, empty(done)),
            // To the file's end, always.
            DeviceRequest::Discard { offset_bytes, .. } => {
                self.core.set_size(self.inode, offset_bytes, empty(done));
            }
        }
    }
}

/// What a name stood for, from some moment on.
#[derive(Clone)]
struct NameBinding {
    since: EventCount,
    file: Option<Arc<DeviceUser>>,
}

/// The bindings that a name may have after a crash: the last durable one, and all later ones.
type BindingHistory = Vec<NameBinding>;

struct DirectoryRig {
    world: SimulatedWorld,
    setup: DirectorySetup,
    events: Arc<UserEvents>,
    disks: Vec<SimulatedDisk>,
    faults: FaultInjector,
    process: TaskGroup,
    opened: SharedSlot<Result<Arc<DirectoryCore>, String>>,
    /// In this life of the file system. Each is open while it has a name: a failed flush is not forgotten then.
    inodes: BTreeMap<String, u64>,
    names: Arc<UnsimulatedMutex<Vec<BindingHistory>>>,
    has_taken_stock: bool,
    files: u32,
}

/// Runs a script.
pub(crate) fn run(
    world: &SimulatedWorld,
    setup: &DirectorySetup,
    steps: &[ScriptStep],
    events: &Arc<UserEvents>,
) {
    let new_disk = |_| SimulatedDisk::new(world, DISK_BYTES, setup.forgets_failed_flush);
    let disks: Vec<SimulatedDisk> = (0..setup.tree.disks()).map(new_disk).collect();
    let unbound = || vec![NameBinding { since: 0, file: None }];
    let mut rig = DirectoryRig {
        world: world.clone(),
        setup: setup.clone(),
        events: Arc::clone(events),
        faults: FaultInjector::new(&disks, 0..disks.len()),
        disks,
        process: world.new_group(),
        opened: SharedSlot::default(),
        inodes: BTreeMap::new(),
        names: Arc::new(UnsimulatedMutex::new((0..setup.files).map(|_| unbound()).collect())),
        has_taken_stock: true,
        files: 0,
    };
    rig.open(true);
    if let Err(problem) = rig.await_opened() {
        panic!("a file system can't be made on new disks: {problem}");
    }
    for step in steps {
        rig.step(step);
    }
    rig.finish();
}

impl DirectoryRig {
    fn names(&self) -> std::sync::MutexGuard<'_, Vec<BindingHistory>> {
        self.names.lock()
    }

    fn open(&mut self, is_new: bool) {
        self.faults.prepare_opening();
        self.process = self.world.new_group();
        self.opened = SharedSlot::default();
        // As whatever writes through a page cache does.
        let as_device = |disk: &SimulatedDisk| -> Arc<dyn BlockDevice> { disk.device(self.process) };
        let handles: Vec<_> = self.disks.iter().map(as_device).collect();
        let (tree, slot) = (self.setup.tree.clone(), self.opened.clone());
        let begin = move || {
            let opened = tree.open(&mut handles.into_iter()).and_then(|device| {
                let core =
                    if is_new { DirectoryCore::format(device, (0, 0)) } else { DirectoryCore::open(device) };
                core.map_err(|error| error.to_string())
            });
            slot.fill(opened);
        };
        self.world.spawn(self.process, begin).expect("a thread can be had");
    }

    fn await_opened(&mut self) -> Result<Arc<DirectoryCore>, String> {
        wait_until(&self.world, || "the file system opens".into(), || self.opened.is_full());
        let opened = self.opened.get().expect("it was just filled");
        if let Ok(core) = &opened {
            self.take_stock(core);
        }
        opened
    }

    fn core(&mut self) -> Option<Arc<DirectoryCore>> {
        match self.opened.get()? {
            Ok(core) => {
                self.take_stock(&core);
                Some(core)
            }
            Err(_) => {
                self.crash(false);
                None
            }
        }
    }

    fn crash(&mut self, takes_power: bool) {
        self.world.kill(self.process);
        let now = self.events.next();
        self.faults.crash(self.process, takes_power, &self.events);
        for user in self.users() {
            user.abandon();
            user.with_model(|model| {
                model.lose_unflushed(now);
                model.reopened();
            });
        }
        self.inodes.clear();
        self.has_taken_stock = false;
        self.open(false);
    }

    /// Every file that some name stands for, or may stand for after a crash.
    fn users(&self) -> Vec<Arc<DeviceUser>> {
        let names = self.names();
        let mut users: BTreeMap<String, Arc<DeviceUser>> = BTreeMap::new();
        for user in names.iter().flatten().filter_map(|binding| binding.file.as_ref()) {
            users.insert(user.name.clone(), Arc::clone(user));
        }
        users.into_values().collect()
    }

    /// Which file each name stands for after a crash.
    fn take_stock(&mut self, core: &Arc<DirectoryCore>) {
        if self.has_taken_stock {
            return;
        }
        self.has_taken_stock = true;
        if self.events.anything_goes.load(Ordering::Relaxed) {
            return;
        }
        let mut found = Vec::new();
        for number in 0..self.setup.files {
            let stat = core.lookup(ROOT, name_of(number).as_bytes()).ok();
            found.push(stat.map(|stat| (stat.inode, stat.attributes.uid)));
        }
        let mut names = self.names().clone();
        for (number, (found, bindings)) in found.into_iter().zip(&mut names).enumerate() {
            // Its owner says which file it is.
            let name = found.map(|(_, owner)| file_name(owner));
            let is_it =
                |binding: &&NameBinding| binding.file.as_ref().map(|file| &file.name) == name.as_ref();
            let bound = bindings.iter().rfind(is_it).cloned();
            let Some(mut bound) = bound else {
                let possible: Vec<&str> = bindings
                    .iter()
                    .map(|binding| binding.file.as_ref().map_or("nothing", |file| file.name.as_str()))
                    .collect();
                let found_name = name.unwrap_or_else(|| "nothing".into());
                panic!(
                    "after a crash {} is {found_name}; it may be {}",
                    name_of(number as u32),
                    possible.join(", ")
                );
            };
            if let (Some(file), Some((inode, _))) = (&bound.file, found) {
                core.opened(inode);
                self.inodes.insert(file.name.clone(), inode);
            }
            bound.since = self.events.next();
            *bindings = vec![bound];
        }
        *self.names() = names;
    }

    fn current(&self, number: u32) -> Option<Arc<DeviceUser>> {
        self.names()[number as usize].last().and_then(|binding| binding.file.clone())
    }

    fn bind(&self, number: u32, file: Option<Arc<DeviceUser>>) {
        let moment = self.events.next();
        self.names()[number as usize].push(NameBinding { since: moment, file });
    }

    /// The file has lost its name.
    fn close(&self, core: &Arc<DirectoryCore>, number: u32) {
        let file = self.current(number);
        if let Some(inode) = file.and_then(|file| self.inodes.get(&file.name)) {
            self.world.enter(self.process, || core.released(*inode));
        }
    }

    /// The file of a name, which is made where there is none.
    fn file(&mut self, number: u32) -> Option<(Arc<DeviceUser>, FileDevice)> {
        let core = self.core()?;
        let number = number % self.setup.files;
        if let Some(user) = self.current(number) {
            let inode = *self.inodes.get(&user.name)?;
            return Some((user, FileDevice { core, inode }));
        }
        // By its owner a file is recognised after a crash: see `take_stock`.
        let uid = self.files + 1;
        let node =
            NewNode { kind: InodeKind::File, mode: 0o600, uid, gid: 0, device_number: 0, target: Vec::new() };
        let made =
            self.world.enter(self.process, || core.make(ROOT, name_of(number).as_bytes(), node)).ok()?;
        self.files = uid;
        core.opened(made.inode);
        let user = DeviceUser::new(&file_name(uid), &self.events, VolumeModel::new(FILE_BLOCKS));
        self.inodes.insert(user.name.clone(), made.inode);
        self.bind(number, Some(Arc::clone(&user)));
        Some((user, FileDevice { core, inode: made.inode }))
    }

    fn sync(&mut self, number: u32) {
        let number = number % self.setup.files;
        let Some((user, device)) = self.file(number) else { return };
        // A program that syncs a file has it open, even if its name goes meanwhile.
        let (core, inode) = (Arc::clone(&device.core), device.inode);
        core.opened(inode);
        let began = self.events.next();
        let (names, synced) = (Arc::clone(&self.names), Arc::clone(&user));
        let is_void = self.events.flushes_are_void.load(Ordering::Relaxed);
        let then = move |outcome: Result<(), DeviceError>| {
            core.released(inode);
            if outcome.is_err() || is_void {
                return;
            }
            // The name that it had then, and what came later: older ones are over.
            for bindings in names.lock().iter_mut() {
                let durable = bindings.iter().rposition(|binding| {
                    binding.since < began
                        && binding.file.as_ref().is_some_and(|file| Arc::ptr_eq(file, &synced))
                });
                if let Some(index) = durable
                    && bindings.get(index + 1).is_none_or(|next| next.since > began)
                {
                    bindings.drain(..index);
                }
            }
        };
        self.world.enter(self.process, || user.flush_and(&device, then));
    }

    fn replace(&mut self, number: u32, replacement: u32) {
        let (number, replacement) = (number % self.setup.files, replacement % self.setup.files);
        let Some(core) = self.core().filter(|_| number != replacement) else { return };
        let Some(user) = self.current(replacement) else { return };
        let (from, to) = (name_of(replacement), name_of(number));
        let mode = RenameMode::Replace;
        let renamed = self
            .world
            .enter(self.process, || core.rename((ROOT, from.as_bytes()), (ROOT, to.as_bytes()), mode));
        if renamed.is_ok() {
            self.close(&core, number);
            self.bind(replacement, None);
            self.bind(number, Some(user));
        }
    }

    fn step(&mut self, step: &ScriptStep) {
        match *step {
            ScriptStep::WriteFile { file, block, count } => {
                if let Some((user, device)) = self.file(file) {
                    self.world.enter(self.process, || user.write(&device, block, count, false));
                }
            }
            ScriptStep::Read { volume, block, count } => {
                if let Some((user, device)) = self.file(volume) {
                    self.world.enter(self.process, || user.read(&device, block % FILE_BLOCKS, count));
                }
            }
            ScriptStep::TruncateFile { file, blocks } => {
                if let Some((user, device)) = self.file(file) {
                    let from = blocks % FILE_BLOCKS;
                    self.world.enter(self.process, || user.discard(&device, from, FILE_BLOCKS - from));
                }
            }
            ScriptStep::SyncFile { file } | ScriptStep::Flush { volume: file } => self.sync(file),
            ScriptStep::ReplaceFile { file, by: replacement } => self.replace(file, replacement),
            ScriptStep::RemoveFile { file } => {
                let number = file % self.setup.files;
                let Some(core) = self.core() else { return };
                let name = name_of(number);
                if self.world.enter(self.process, || core.unlink(ROOT, name.as_bytes())).is_ok() {
                    self.close(&core, number);
                    self.bind(number, None);
                }
            }
            ScriptStep::Pause { us } => thread::sleep(Duration::from_micros(us)),
            ScriptStep::Settle => self.settle(),
            ScriptStep::KillServer => self.crash(false),
            ScriptStep::CutPower => self.crash(true),
            _ => self.faults.strike(step, &self.events, !self.opened.is_full()),
        }
    }

    fn settle(&self) {
        let users = self.users();
        let unanswered = || users.iter().flat_map(|user| user.unanswered()).collect::<Vec<_>>().join(", ");
        wait_until(&self.world, unanswered, || users.iter().all(|user| user.is_idle()));
    }

    /// All faults are over: what was synced must be there, now and after another power cut.
    fn finish(&mut self) {
        self.faults.heal();
        self.settle();
        for last in [false, true] {
            self.crash(last);
            let opened = self.await_opened();
            if self.events.anything_goes.load(Ordering::Relaxed) {
                return;
            }
            opened.unwrap_or_else(|problem| panic!("sound disks can't be opened: {problem}"));
            for number in 0..self.setup.files {
                if self.current(number).is_none() {
                    continue;
                }
                let Some((user, device)) = self.file(number) else { continue };
                user.must_read_all(&self.world, self.process, &device);
                user.must_flush(&self.world, self.process, &device);
            }
        }
    }
}

fn name_of(number: u32) -> String {
    format!("name-{number}")
}

fn file_name(owner: u32) -> String {
    format!("file-{owner}")
}
