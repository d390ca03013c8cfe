//! The disk of each simulated gateway: what the kernel remembers of its files, and what the disk itself has.
//!
//! The files are real ones in a scratch directory, and have what the kernel remembers: a kill leaves them as they are.
//! Of each page that was written since its last sync, this module keeps what the disk has instead. A power cut gives
//! back that, or half of it, or nothing, as the seed will have it. A sync that fails has the kernel take the pages for
//! written all the same, as Linux does: they are read until they are forgotten.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;

use crate::world::SimulatedWorld;

const PAGE_BYTES: usize = 4096;
/// The unit at which a power cut may tear a page.
const SECTOR_BYTES: usize = 512;

type DiskPage = Box<[u8; PAGE_BYTES]>;
type SyscallResult = Result<(), c_int>;

/// A page whose bytes on the disk differ from the kernel's.
struct DifferingPage {
    on_disk: DiskPage,
    /// The kernel knows, and the next sync writes it. If not, it takes the page for written.
    is_dirty: bool,
}

#[derive(Default)]
struct FileState {
    differing: BTreeMap<u64, DifferingPage>,
    /// How long the file is on the disk.
    durable_bytes: u64,
    allocated: BTreeSet<u64>,
}

struct SimulatedDisk {
    root: PathBuf,
    /// Links to what the names on the disk lead to, as long as they do.
    stash: PathBuf,
    capacity_bytes: u64,
    /// The bytes of it that somebody else has taken.
    taken_bytes: u64,
    files: BTreeMap<u64, FileState>,
    /// Names in directories as the disk has them.
    names: BTreeMap<PathBuf, BTreeMap<OsString, u64>>,
    /// Not while it does: the process is dead, or as good as, and nothing that it still does has an effect.
    lives: Arc<AtomicBool>,
    /// So many more changes until it is.
    dies_in: Option<u64>,
    failing_syncs: u64,
    /// So many still succeed before that.
    sound_syncs: u64,
}

/// The target of a descriptor.
#[derive(Clone, Copy)]
enum OpenDescriptor {
    File { disk: usize, inode: u64 },
    Directory { disk: usize },
    Elsewhere,
}

/// Those of all gateways.
pub(crate) struct SimulatedDisks {
    world: SimulatedWorld,
    disks: RefCell<Vec<SimulatedDisk>>,
    open: RefCell<BTreeMap<c_int, OpenDescriptor>>,
}

fn round_up(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES as u64)
}

fn stat_of(file: c_int) -> Option<libc::stat64> {
    // SAFETY: plain numbers, for which zero is a value; libc writes one.
    unsafe {
        let mut found: libc::stat64 = std::mem::zeroed();
        (libc::fstat64(file, &raw mut found) == 0).then_some(found)
    }
}

fn path_of(file: c_int) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{file}")).ok()
}

/// A descriptor by which the file of another one can be read and written.
struct ReopenedFile(c_int);

impl ReopenedFile {
    fn open(path: &Path) -> Option<ReopenedFile> {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: a C string.
        let file = unsafe {
            libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC, 0)
        };
        (file >= 0).then_some(ReopenedFile(file as c_int))
    }

    fn open_descriptor(file: c_int) -> Option<ReopenedFile> {
        ReopenedFile::open(Path::new(&format!("/proc/self/fd/{file}")))
    }

    /// As long as a page, with zeros behind the end.
    fn page(&self, number: u64) -> DiskPage {
        let mut page = Box::new([0; PAGE_BYTES]);
        // SAFETY: the buffer is as long as is said.
        unsafe {
            libc::syscall(
                libc::SYS_pread64,
                self.0,
                page.as_mut_ptr(),
                PAGE_BYTES,
                number * PAGE_BYTES as u64,
            )
        };
        page
    }

    /// Bytes behind the end are left out.
    fn put(&self, number: u64, page: &DiskPage, length_bytes: u64) {
        let begin = number * PAGE_BYTES as u64;
        let count = length_bytes.saturating_sub(begin).min(PAGE_BYTES as u64) as usize;
        // SAFETY: the buffer is at least as long as is said.
        unsafe { libc::syscall(libc::SYS_pwrite64, self.0, page.as_ptr(), count, begin) };
    }

    fn length(&self) -> u64 {
        stat_of(self.0).map_or(0, |found| found.st_size as u64)
    }

    fn set_length(&self, bytes: u64) {
        // SAFETY: numbers are all it takes.
        unsafe { libc::syscall(libc::SYS_ftruncate, self.0, bytes) };
    }
}

impl Drop for ReopenedFile {
    fn drop(&mut self) {
        // SAFETY: it is this one's own.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// Files in a directory with their inodes.
fn files_in(directory: &Path) -> BTreeMap<OsString, u64> {
    use std::os::unix::fs::DirEntryExt as _;
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            found.insert(entry.file_name(), entry.ino());
        }
    }
    found
}

fn directories_below(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    let mut next = 0;
    while let Some(directory) = found.get(next).cloned() {
        let mut inner: Vec<PathBuf> = std::fs::read_dir(&directory)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect();
        inner.sort();
        found.extend(inner);
        next += 1;
    }
    found
}

/// A second name for a file.
fn link(from: &Path, to: &Path) {
    let _ = std::fs::hard_link(from, to);
}

/// Without what the interposed functions make of it.
fn remove(path: &Path) {
    if let Ok(path) = CString::new(path.as_os_str().as_bytes()) {
        // SAFETY: a C string.
        unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0) };
    }
}

impl SimulatedDisk {
    fn used_bytes(&self) -> u64 {
        let pages: usize = self.files.values().map(|file| file.allocated.len()).sum();
        pages as u64 * PAGE_BYTES as u64
    }

    fn free_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.taken_bytes).saturating_sub(self.used_bytes())
    }

    /// Before a change: whether the process lives to make it.
    fn lives(&mut self) -> SyscallResult {
        if let Some(left) = &mut self.dies_in {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => {
                    self.lives.store(false, Ordering::Relaxed);
                    self.dies_in = None;
                }
            }
        }
        if self.lives.load(Ordering::Relaxed) { Ok(()) } else { Err(libc::EIO) }
    }

    /// Notes what the disk has of pages that are about to change.
    fn will_change(&mut self, inode: u64, file: c_int, pages: std::ops::Range<u64>) {
        let state = self.files.entry(inode).or_default();
        let mut reopened = None;
        for number in pages {
            if let Some(page) = state.differing.get_mut(&number) {
                page.is_dirty = true;
                continue;
            }
            if reopened.is_none() {
                reopened = ReopenedFile::open_descriptor(file);
            }
            let on_disk = match &reopened {
                Some(reopened) => reopened.page(number),
                None => Box::new([0; PAGE_BYTES]),
            };
            state.differing.insert(number, DifferingPage { on_disk, is_dirty: true });
        }
    }

    /// Takes room for pages. Returns how many of them there is room for.
    fn take_room(&mut self, inode: u64, pages: std::ops::Range<u64>) -> u64 {
        let mut free = self.free_bytes() / PAGE_BYTES as u64;
        let state = self.files.entry(inode).or_default();
        for (count, number) in pages.clone().enumerate() {
            if state.allocated.contains(&number) {
                continue;
            }
            if free == 0 {
                return count as u64;
            }
            free -= 1;
            state.allocated.insert(number);
        }
        pages.end.saturating_sub(pages.start)
    }

    fn forget_file(&mut self, inode: u64) {
        if let Some(state) = self.files.get_mut(&inode) {
            state.allocated.clear();
        }
    }

    /// Makes this directory's entries durable.
    fn sync_directory(&mut self, directory: &Path) {
        let now = files_in(directory);
        for (name, inode) in &now {
            let stashed = self.stash.join(inode.to_string());
            if !stashed.exists() {
                link(&directory.join(name), &stashed);
            }
        }
        let former = self.names.insert(directory.to_owned(), now);
        let named: BTreeSet<u64> = self.names.values().flat_map(|names| names.values().copied()).collect();
        for inode in former.into_iter().flat_map(BTreeMap::into_values).filter(|inode| !named.contains(inode))
        {
            remove(&self.stash.join(inode.to_string()));
            self.files.remove(&inode);
        }
    }

    /// The names and the bytes that the disk has, with as much of what was not synced as the seed will have.
    fn cut_power(&mut self, world: &SimulatedWorld) {
        let is_lost = |times| world.with_random(|random| random.is_one_of_thousand(times));
        for directory in directories_below(&self.root) {
            let (now, durable) =
                (files_in(&directory), self.names.get(&directory).cloned().unwrap_or_default());
            let names: BTreeSet<&OsString> = now.keys().chain(durable.keys()).collect();
            for name in names {
                let (found, wanted) = (now.get(name), durable.get(name));
                if found == wanted || is_lost(500) {
                    continue;
                }
                world.note(format_args!("name {} is as it was", name.display()));
                remove(&directory.join(name));
                if let Some(inode) = wanted {
                    link(&self.stash.join(inode.to_string()), &directory.join(name));
                }
            }
        }
        let mut paths = BTreeMap::new();
        for directory in directories_below(&self.root) {
            paths.extend(files_in(&directory).into_iter().map(|(name, inode)| (inode, directory.join(name))));
        }
        self.files.retain(|inode, _| paths.contains_key(inode));
        // In the order of their names, which is the same in each run.
        let mut by_path: Vec<(&PathBuf, u64)> = paths.iter().map(|(inode, path)| (path, *inode)).collect();
        by_path.sort();
        for (path, inode) in by_path {
            let Some(state) = self.files.get_mut(&inode) else { continue };
            let Some(file) = ReopenedFile::open(path) else { continue };
            state.lose_what_is_not_durable(&file, world);
        }
        for directory in directories_below(&self.root) {
            self.sync_directory(&directory);
        }
    }
}

impl FileState {
    fn lose_what_is_not_durable(&mut self, file: &ReopenedFile, world: &SimulatedWorld) {
        if file.length() != self.durable_bytes && world.with_random(|random| random.is_one_of_thousand(500)) {
            file.set_length(self.durable_bytes);
        }
        let length = file.length();
        let (all, dirty) =
            (self.differing.len(), self.differing.values().filter(|page| page.is_dirty).count());
        if all > 0 {
            world.note(format_args!("{dirty} pages may be lost, and {} are", all - dirty));
        }
        for (number, page) in std::mem::take(&mut self.differing) {
            let chosen = if page.is_dirty { world.with_random(|random| random.below(3)) } else { 0 };
            match chosen {
                0 => file.put(number, &page.on_disk, length),
                1 => {}
                _ => {
                    let mut torn = file.page(number);
                    for sector in 0..PAGE_BYTES / SECTOR_BYTES {
                        if world.with_random(|random| random.is_one_of_thousand(500)) {
                            let bytes = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                            torn[bytes.clone()].copy_from_slice(&page.on_disk[bytes]);
                        }
                    }
                    file.put(number, &torn, length);
                }
            }
        }
        self.durable_bytes = length;
        let pages = round_up(length);
        self.allocated.retain(|number| *number < pages);
    }
}

impl SimulatedDisks {
    pub(crate) fn new(world: SimulatedWorld) -> SimulatedDisks {
        SimulatedDisks { world, disks: RefCell::default(), open: RefCell::default() }
    }

    /// A new disk whose files are below `root`. Returns its number.
    pub(crate) fn add(&self, root: PathBuf, stash: PathBuf, capacity_bytes: u64) -> usize {
        let mut disks = self.disks.borrow_mut();
        disks.push(SimulatedDisk {
            root,
            stash,
            capacity_bytes,
            taken_bytes: 0,
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            lives: Arc::default(),
            dies_in: None,
            failing_syncs: 0,
            sound_syncs: 0,
        });
        disks.len() - 1
    }

    pub(crate) fn set_capacity(&self, disk: usize, capacity_bytes: u64) {
        self.disks.borrow_mut()[disk].capacity_bytes = capacity_bytes;
    }

    pub(crate) fn free_bytes(&self, disk: usize) -> u64 {
        self.disks.borrow()[disk].free_bytes()
    }

    /// Somebody else takes all but so much.
    pub(crate) fn fill(&self, disk: usize, left_bytes: u64) {
        let disk = &mut self.disks.borrow_mut()[disk];
        disk.taken_bytes = 0;
        disk.taken_bytes = disk.free_bytes().saturating_sub(left_bytes);
    }

    pub(crate) fn make_room(&self, disk: usize) {
        self.disks.borrow_mut()[disk].taken_bytes = 0;
    }

    /// So many syncs fail, after some that do not: of one commit it may be the first or the last.
    pub(crate) fn fail_syncs(&self, disk: usize, sound: u64, count: u64) {
        let disk = &mut self.disks.borrow_mut()[disk];
        (disk.sound_syncs, disk.failing_syncs) = (sound, count);
    }

    /// The process dies in the middle of what it does, after so many changes of its disk.
    pub(crate) fn die_in(&self, disk: usize, changes: u64) {
        self.disks.borrow_mut()[disk].dies_in = Some(changes);
    }

    /// A process begins that has the disk for as long as what is returned says so.
    pub(crate) fn begin(&self, disk: usize) -> Arc<AtomicBool> {
        let disk = &mut self.disks.borrow_mut()[disk];
        disk.dies_in = None;
        disk.lives = Arc::new(AtomicBool::new(true));
        Arc::clone(&disk.lives)
    }

    /// Descriptors that a process has left open behind its end are the kernel's to close.
    pub(crate) fn close_left(&self, disk: usize) -> usize {
        let root = self.disks.borrow()[disk].root.clone();
        let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let open: Vec<c_int> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        let left: Vec<c_int> = open
            .into_iter()
            .filter(|file| path_of(*file).is_some_and(|path| path.starts_with(&root)))
            .collect();
        for file in &left {
            self.close(*file);
            // A stale holder of the number may still close it, and must not close another file. So `/dev/null` takes
            // the number.
            // SAFETY: C strings and numbers.
            unsafe {
                let descriptor = libc::syscall(
                    libc::SYS_openat,
                    libc::AT_FDCWD,
                    c"/dev/null".as_ptr(),
                    libc::O_RDWR | libc::O_CLOEXEC,
                    0,
                );
                libc::syscall(libc::SYS_dup3, descriptor, *file, libc::O_CLOEXEC);
                libc::syscall(libc::SYS_close, descriptor);
            }
        }
        left.len()
    }

    /// Unsynced writes are lost, all or in part.
    pub(crate) fn cut_power(&self, disk: usize) {
        self.disks.borrow_mut()[disk].cut_power(&self.world);
    }

    /// The kernel forgets what it remembers of all files, as it may at any time.
    pub(crate) fn forget_all(&self, disk: usize) {
        let disk = &mut self.disks.borrow_mut()[disk];
        for directory in directories_below(&disk.root) {
            for (name, inode) in files_in(&directory) {
                let Some(state) = disk.files.get_mut(&inode) else { continue };
                if let Some(file) = ReopenedFile::open(&directory.join(name)) {
                    state.forget(&file);
                }
            }
        }
    }

    fn open_of(&self, file: c_int) -> OpenDescriptor {
        if let Some(found) = self.open.borrow().get(&file) {
            return *found;
        }
        let found = self.look(file);
        self.open.borrow_mut().insert(file, found);
        found
    }

    fn look(&self, file: c_int) -> OpenDescriptor {
        let (Some(path), Some(found)) = (path_of(file), stat_of(file)) else {
            return OpenDescriptor::Elsewhere;
        };
        let Some(disk) = self.disk_of(&path) else { return OpenDescriptor::Elsewhere };
        match found.st_mode & libc::S_IFMT {
            libc::S_IFREG => OpenDescriptor::File { disk, inode: found.st_ino },
            libc::S_IFDIR => OpenDescriptor::Directory { disk },
            _ => OpenDescriptor::Elsewhere,
        }
    }

    fn disk_of(&self, path: &Path) -> Option<usize> {
        self.disks.borrow().iter().position(|disk| path.starts_with(&disk.root))
    }

    pub(crate) fn close(&self, file: c_int) {
        if let Ok(mut open) = self.open.try_borrow_mut() {
            open.remove(&file);
        }
    }

    /// How many of these bytes may be written now; `None` for a file that is on no simulated disk.
    pub(crate) fn write(&self, file: c_int, length: usize, offset: i64) -> Option<Result<usize, c_int>> {
        let OpenDescriptor::File { disk, inode } = self.open_of(file) else { return None };
        let disk = &mut self.disks.borrow_mut()[disk];
        if let Err(errno) = disk.lives() {
            return Some(Err(errno));
        }
        let (begin, end) = (offset as u64, offset as u64 + length as u64);
        let pages = begin / PAGE_BYTES as u64..round_up(end);
        let fitting = disk.take_room(inode, pages.clone());
        let end = end.min((pages.start + fitting) * PAGE_BYTES as u64);
        if end <= begin && length > 0 {
            return Some(Err(libc::ENOSPC));
        }
        disk.will_change(inode, file, pages.start..round_up(end));
        self.world.note_written(end - begin);
        Some(Ok((end - begin) as usize))
    }

    /// The same for a write at the place where the descriptor is.
    pub(crate) fn write_here(&self, file: c_int, length: usize) -> Option<Result<usize, c_int>> {
        let OpenDescriptor::File { .. } = self.open_of(file) else { return None };
        // SAFETY: numbers are all it takes.
        let offset = unsafe { libc::lseek64(file, 0, libc::SEEK_CUR) };
        self.write(file, length, offset.max(0))
    }

    pub(crate) fn sync(&self, file: c_int) -> Option<SyscallResult> {
        let (disk, inode) = match self.open_of(file) {
            OpenDescriptor::File { disk, inode } => (disk, Some(inode)),
            OpenDescriptor::Directory { disk } => (disk, None),
            OpenDescriptor::Elsewhere => return None,
        };
        let path = path_of(file);
        let disk = &mut self.disks.borrow_mut()[disk];
        if let Err(errno) = disk.lives() {
            return Some(Err(errno));
        }
        let Some(inode) = inode else {
            path.inspect(|path| disk.sync_directory(path));
            return Some(Ok(()));
        };
        let fails = disk.failing_syncs > 0 && disk.sound_syncs == 0;
        if fails {
            disk.failing_syncs -= 1;
        }
        disk.sound_syncs = disk.sound_syncs.saturating_sub(1);
        let length = stat_of(file).map_or(0, |found| found.st_size as u64);
        let state = disk.files.entry(inode).or_default();
        if !fails {
            state.differing.retain(|_, page| !page.is_dirty);
            state.durable_bytes = length;
            return Some(Ok(()));
        }
        let world = &self.world;
        // Some reach the disk all the same; the kernel takes all of them for written.
        state
            .differing
            .retain(|_, page| !page.is_dirty || world.with_random(|random| random.is_one_of_thousand(700)));
        state.differing.values_mut().for_each(|page| page.is_dirty = false);
        world.note(format_args!("a sync fails: {} pages are not on the disk", state.differing.len()));
        Some(Err(libc::EIO))
    }

    pub(crate) fn set_length(&self, file: c_int, length: i64) -> Option<SyscallResult> {
        let OpenDescriptor::File { disk, inode } = self.open_of(file) else { return None };
        let disk = &mut self.disks.borrow_mut()[disk];
        if let Err(errno) = disk.lives() {
            return Some(Err(errno));
        }
        let former = stat_of(file).map_or(0, |found| found.st_size as u64);
        let (first, last) = (length.max(0) as u64 / PAGE_BYTES as u64, round_up(former));
        if (length as u64) < former {
            disk.will_change(inode, file, first..last);
            let state = disk.files.entry(inode).or_default();
            let whole = round_up(length as u64);
            state.allocated.retain(|number| *number < whole);
        }
        Some(Ok(()))
    }

    pub(crate) fn allocate(
        &self,
        file: c_int,
        mode: c_int,
        offset: i64,
        length: i64,
    ) -> Option<SyscallResult> {
        let OpenDescriptor::File { disk, inode } = self.open_of(file) else { return None };
        let disk = &mut self.disks.borrow_mut()[disk];
        if let Err(errno) = disk.lives() {
            return Some(Err(errno));
        }
        if offset < 0 || length <= 0 || offset.checked_add(length).is_none_or(|end| end > 1 << 40) {
            return Some(Err(libc::EFBIG));
        }
        let (begin, end) = (offset as u64, (offset + length) as u64);
        if mode & libc::FALLOC_FL_PUNCH_HOLE != 0 {
            // At once on the disk: so it shows when something still needs the bytes.
            let whole = round_up(begin)..end / PAGE_BYTES as u64;
            let state = disk.files.entry(inode).or_default();
            state.allocated.retain(|number| !whole.contains(number));
            state.differing.retain(|number, _| !whole.contains(number));
            return Some(Ok(()));
        }
        let pages = begin / PAGE_BYTES as u64..round_up(end);
        let wanted = pages.end - pages.start;
        let got = disk.take_room(inode, pages);
        if got == wanted {
            return Some(Ok(()));
        }
        // As ext4 does: what there was is taken, and stays so.
        if got > 0 {
            // SAFETY: numbers are all it takes.
            unsafe { libc::syscall(libc::SYS_fallocate, file, mode, offset, got * PAGE_BYTES as u64) };
        }
        Some(Err(libc::ENOSPC))
    }

    /// The kernel forgets what it remembers of a file, except for what it has yet to write.
    pub(crate) fn forget(&self, file: c_int) {
        let OpenDescriptor::File { disk, inode } = self.open_of(file) else { return };
        let disk = &mut self.disks.borrow_mut()[disk];
        if let (Some(state), Some(file)) = (disk.files.get_mut(&inode), ReopenedFile::open_descriptor(file)) {
            state.forget(&file);
        }
    }

    /// Free and all bytes of the disk that this path is on.
    pub(crate) fn room(&self, path: &[u8]) -> Option<(u64, u64)> {
        let path = PathBuf::from(OsString::from_vec(path.to_vec()));
        let disk = self.disk_of(&path)?;
        let disk = &self.disks.borrow()[disk];
        Some((disk.free_bytes(), disk.capacity_bytes))
    }

    /// A name is made, replaced or removed.
    pub(crate) fn change_names(&self, directory: c_int, path: &[u8], removes: bool) -> Option<SyscallResult> {
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let path = if path.is_absolute() { path.to_owned() } else { path_of(directory)?.join(path) };
        let disk = self.disk_of(&path)?;
        let disk = &mut self.disks.borrow_mut()[disk];
        if let Err(errno) = disk.lives() {
            return Some(Err(errno));
        }
        if removes && let Ok(found) = std::fs::symlink_metadata(&path) {
            use std::os::unix::fs::MetadataExt as _;
            disk.forget_file(found.ino());
        }
        Some(Ok(()))
    }
}

impl FileState {
    fn forget(&mut self, file: &ReopenedFile) {
        let length = file.length();
        self.differing.retain(|number, page| {
            if !page.is_dirty {
                file.put(*number, &page.on_disk, length);
            }
            page.is_dirty
        });
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;
    use std::rc::Rc;

    use rustix::fs::{FallocateFlags, fallocate, statvfs};

    use super::*;
    use crate::machine::OnThread;

    const PAGES: usize = 64;
    const CAPACITY_BYTES: u64 = 1 << 20;

    /// On a thread that is a simulated machine, with a disk.
    fn on_disk(test: impl FnOnce(&SimulatedDisks, &Path) + Send + 'static) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let thread = std::thread::spawn(move || {
            let (root, stash) = (path.join("local"), path.join("stash"));
            std::fs::create_dir(&root).unwrap();
            std::fs::create_dir(&stash).unwrap();
            let disks = Rc::new(SimulatedDisks::new(SimulatedWorld::new(1, false)));
            disks.add(root.clone(), stash, CAPACITY_BYTES);
            disks.begin(0);
            let _on_thread = OnThread::begin(1, Rc::clone(&disks));
            test(&disks, &root);
        });
        thread.join().unwrap();
    }

    /// The beginning of each page of a file.
    fn pages_of(path: &Path) -> Vec<u8> {
        std::fs::read(path).unwrap().chunks(PAGE_BYTES).map(|page| page[0]).collect()
    }

    #[test]
    fn data_lost_by_failed_sync_is_readable_until_evicted() {
        on_disk(|disks, root| {
            let (path, file) = (root.join("file"), File::create_new(root.join("file")).unwrap());
            file.write_all_at(&[1; PAGES * PAGE_BYTES], 0).unwrap();
            file.sync_all().unwrap();
            file.write_all_at(&[2; PAGES * PAGE_BYTES], 0).unwrap();
            disks.fail_syncs(0, 0, 1);
            assert!(file.sync_data().is_err());
            // From here on every sync succeeds, and says nothing.
            file.sync_data().unwrap();
            assert_eq!(pages_of(&path), [2; PAGES]);
            disks.forget_all(0);
            let found = pages_of(&path);
            assert!(found.contains(&1) && found.contains(&2), "{found:?}");
        });
    }

    #[test]
    fn power_cut_loses_only_unsynced_data() {
        on_disk(|disks, root| {
            let (path, file) = (root.join("file"), File::create_new(root.join("file")).unwrap());
            file.write_all_at(&[1; PAGES * PAGE_BYTES], 0).unwrap();
            file.sync_all().unwrap();
            File::open(root).unwrap().sync_all().unwrap();
            file.write_all_at(&[2; PAGES / 2 * PAGE_BYTES], 0).unwrap();
            for number in 0..20 {
                File::create_new(root.join(format!("new {number}"))).unwrap();
            }
            disks.cut_power(0);
            let found = std::fs::read(&path).unwrap();
            let (changed, unchanged) = found.split_at(PAGES / 2 * PAGE_BYTES);
            assert!(unchanged.iter().all(|byte| *byte == 1));
            assert!(changed.contains(&1) && changed.contains(&2));
            let is_torn = |page: &[u8]| page.contains(&1) && page.contains(&2);
            assert!(changed.chunks(PAGE_BYTES).any(is_torn));
            assert!((2..21).contains(&std::fs::read_dir(root).unwrap().count()));
        });
    }

    #[test]
    fn failed_allocation_keeps_its_partial_space() {
        on_disk(|_, root| {
            let file = File::create_new(root.join("file")).unwrap();
            let free = || statvfs(root).unwrap().f_bavail;
            assert!(free() > 0);
            assert!(fallocate(&file, FallocateFlags::empty(), 0, 2 * CAPACITY_BYTES).is_err());
            assert_eq!(free(), 0);
            assert!(file.write_all_at(&[1], CAPACITY_BYTES).is_err());
            file.set_len(0).unwrap();
            assert_eq!(free() * PAGE_BYTES as u64, CAPACITY_BYTES);
        });
    }

    #[test]
    fn dead_process_has_no_effect() {
        on_disk(|disks, root| {
            let file = File::create_new(root.join("file")).unwrap();
            disks.die_in(0, 1);
            file.write_all_at(&[1; 10], 0).unwrap();
            assert!(file.write_all_at(&[2; 10], 0).is_err());
            assert!(file.sync_all().is_err() && File::create_new(root.join("other")).is_err());
            assert!(std::fs::remove_file(root.join("file")).is_err());
            assert_eq!(std::fs::read(root.join("file")).unwrap(), [1; 10]);
        });
    }
}
