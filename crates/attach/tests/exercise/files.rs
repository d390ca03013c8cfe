//! Random operations on the files of a directory, each compared with a copy in memory: in the manner of fsx.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Advice, FallocateFlags};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

use crate::aligned::Aligned;
use crate::fixture::Random;

const FILES: u64 = 4;
const MAX_BYTES: u64 = 384 << 10;
const MAX_OPERATION_BYTES: u64 = 64 << 10;
const BLOCK_BYTES: u64 = 4096;
/// Reads every byte of every file anew from below the page cache.
const CHECK_INTERVAL: u64 = 2_000;
/// What a report of a difference shows of the past.
const LOGGED_OPERATIONS: usize = 40;

#[derive(Clone, Copy, Debug)]
enum Operation {
    Read {
        offset: u64,
        length: u64,
    },
    Write {
        offset: u64,
        length: u64,
    },
    /// Past the page cache.
    DirectRead {
        offset: u64,
        length: u64,
    },
    DirectWrite {
        offset: u64,
        length: u64,
    },
    MappedRead {
        offset: u64,
        length: u64,
    },
    MappedWrite {
        offset: u64,
        length: u64,
        is_synced: bool,
    },
    Truncate {
        length: u64,
    },
    Allocate {
        offset: u64,
        length: u64,
    },
    PunchHole {
        offset: u64,
        length: u64,
    },
    ZeroRange {
        offset: u64,
        length: u64,
    },
    Sync,
    /// Written out and dropped from the page cache, so that what follows reads the device.
    Forget,
    Reopen,
    /// Over another file, which is gone then.
    Rename {
        onto: usize,
    },
    Remove,
}

/// A file and what must be in it.
struct Twin {
    path: PathBuf,
    file: File,
    content: Vec<u8>,
}

pub(crate) struct Files {
    random: Random,
    seed: u64,
    twins: Vec<Twin>,
    /// Not every filesystem can all.
    can_allocate: bool,
    can_punch_holes: bool,
    can_zero_ranges: bool,
    is_direct: bool,
    done: u64,
    log: VecDeque<(u64, usize, Operation)>,
}

impl Files {
    /// Makes its files in a directory, which must be empty.
    pub(crate) fn new(directory: &Path, seed: u64) -> Files {
        fs::create_dir_all(directory).unwrap();
        let probe = directory.join("probe");
        let file = File::create(&probe).unwrap();
        let supports_mode = |flags| rustix::fs::fallocate(&file, flags, 0, BLOCK_BYTES).is_ok();
        let can_allocate = supports_mode(FallocateFlags::empty());
        let can_punch_holes = supports_mode(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE);
        let can_zero_ranges = supports_mode(FallocateFlags::ZERO_RANGE);
        let is_direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&probe).is_ok();
        fs::remove_file(&probe).unwrap();
        let twins = (0..FILES).map(|number| Twin::new(directory.join(format!("file-{number}")))).collect();
        let log = VecDeque::with_capacity(LOGGED_OPERATIONS);
        let random = Random(seed);
        Files { random, seed, twins, can_allocate, can_punch_holes, can_zero_ranges, is_direct, done: 0, log }
    }

    /// What this filesystem can't do, for the report; the rest is exercised.
    pub(crate) fn left_out(&self) -> String {
        let all = [
            ("allocate", self.can_allocate),
            ("punch holes", self.can_punch_holes),
            ("zero ranges", self.can_zero_ranges),
            ("direct I/O", self.is_direct),
        ];
        let left_out: Vec<&str> =
            all.into_iter().filter(|(_, is_supported)| !is_supported).map(|(name, _)| name).collect();
        if left_out.is_empty() { String::new() } else { format!(", without {}", left_out.join(", ")) }
    }

    /// Does the next `count` operations.
    ///
    /// # Panics
    /// On the first difference, with the operations that led to it.
    pub(crate) fn run(&mut self, count: u64) {
        for _ in 0..count {
            let index = self.random.below(FILES) as usize;
            let operation = self.next_operation(index);
            if self.log.len() == LOGGED_OPERATIONS {
                self.log.pop_front();
            }
            self.log.push_back((self.done, index, operation));
            self.done += 1;
            let outcome = self.perform(index, operation);
            self.expect(index, outcome);
            if self.done.is_multiple_of(CHECK_INTERVAL) {
                self.check();
            }
        }
        self.check();
    }

    /// Compares every file whole, as the device has it.
    pub(crate) fn check(&self) {
        for index in 0..self.twins.len() {
            let twin = &self.twins[index];
            let outcome = twin.forget().and_then(|()| {
                twin.compare(0, twin.content.len() as u64, |file, found| file.read_exact_at(found, 0))
            });
            self.expect(index, outcome);
        }
    }

    /// The same files on a storage that was attached anew.
    pub(crate) fn reopen_at(&mut self, directory: &Path) {
        for (number, twin) in self.twins.iter_mut().enumerate() {
            twin.path = directory.join(format!("file-{number}"));
            twin.file = open(&twin.path).unwrap();
        }
    }

    /// Lets go of the files, so that their filesystem can be unmounted.
    pub(crate) fn close(&mut self) {
        for twin in &mut self.twins {
            twin.file = File::open("/dev/null").unwrap();
        }
    }

    fn expect(&self, index: usize, outcome: Result<(), String>) {
        if let Err(difference) = outcome {
            let past: Vec<String> = self
                .log
                .iter()
                .map(|(number, file, operation)| format!("  {number}: file-{file} {operation:?}"))
                .collect();
            panic!(
                "{}: {difference}\nseed {}, after {} operations, the last of which were\n{}",
                self.twins[index].path.display(),
                self.seed,
                self.done,
                past.join("\n")
            );
        }
    }

    fn next_operation(&mut self, index: usize) -> Operation {
        let size = self.twins[index].content.len() as u64;
        let random = &mut self.random;
        // Small ones as often as large ones.
        let magnitude = 1 + random.below(16);
        let length = 1 + random.below(1 << magnitude).min(MAX_OPERATION_BYTES - 1);
        let anywhere = random.below(MAX_BYTES - length + 1);
        // Inside the file, to its end at most.
        let inside = random.below(size.max(1));
        let length_inside = length.min(size - inside.min(size));
        let aligned = |value: u64| value - value % BLOCK_BYTES;
        let (block, blocks_bytes) = (aligned(anywhere), aligned(length + BLOCK_BYTES - 1));
        match random.below(100) {
            0..15 => Operation::Read { offset: inside, length: length_inside },
            15..40 => Operation::Write { offset: anywhere, length },
            40..48 if self.is_direct => {
                Operation::DirectRead { offset: aligned(inside), length: blocks_bytes }
            }
            48..60 if self.is_direct && block + blocks_bytes <= MAX_BYTES => {
                Operation::DirectWrite { offset: block, length: blocks_bytes }
            }
            60..66 => Operation::MappedRead { offset: inside, length: length_inside },
            66..76 => {
                let is_synced = random.below(2) == 0;
                Operation::MappedWrite { offset: inside, length: length_inside, is_synced }
            }
            76..81 => Operation::Truncate { length: random.below(MAX_BYTES) },
            81..84 if self.can_allocate => Operation::Allocate { offset: anywhere, length },
            84..89 if self.can_punch_holes => Operation::PunchHole { offset: anywhere, length },
            89..92 if self.can_zero_ranges => Operation::ZeroRange { offset: anywhere, length },
            92..94 => Operation::Sync,
            94..96 => Operation::Forget,
            96..98 => Operation::Reopen,
            98 => Operation::Rename { onto: random.below(FILES) as usize },
            99 => Operation::Remove,
            _ => Operation::Read { offset: inside, length: length_inside },
        }
    }

    fn perform(&mut self, index: usize, operation: Operation) -> Result<(), String> {
        let fill = self.random.below(u64::MAX);
        if let Operation::Rename { onto: target } = operation {
            return self.rename(index, target);
        }
        let twin = &mut self.twins[index];
        twin.perform(operation, fill)?;
        let size = twin.file.metadata().map_err(said("stat"))?.len();
        if size != twin.content.len() as u64 {
            return Err(format!("it has {size} bytes and should have {}", twin.content.len()));
        }
        Ok(())
    }

    fn rename(&mut self, index: usize, target: usize) -> Result<(), String> {
        if target == index {
            return Ok(());
        }
        let (from, to) = (self.twins[index].path.clone(), self.twins[target].path.clone());
        fs::rename(&from, &to).map_err(said("rename"))?;
        self.twins[target].content = std::mem::take(&mut self.twins[index].content);
        self.twins[target].file = open(&to).map_err(said("open"))?;
        self.twins[index] = Twin::new(from);
        Ok(())
    }
}

impl Twin {
    fn new(path: PathBuf) -> Twin {
        let _ = fs::remove_file(&path);
        File::create_new(&path).unwrap();
        Twin { file: open(&path).unwrap(), content: Vec::new(), path }
    }

    fn perform(&mut self, operation: Operation, fill: u64) -> Result<(), String> {
        match operation {
            Operation::Read { offset, length } => {
                self.compare(offset, length, |file, found| file.read_exact_at(found, offset))
            }
            Operation::Write { offset, length } => {
                let data = noise(fill, length);
                self.file.write_all_at(&data, offset).map_err(said("write"))?;
                self.put(offset, &data);
                Ok(())
            }
            Operation::DirectRead { offset, length } => self.direct_read(offset, length),
            Operation::DirectWrite { offset, length } => {
                let data = noise(fill, length);
                let mut aligned = Aligned::new(length as usize);
                aligned.bytes().copy_from_slice(&data);
                let file = open_direct(&self.path).map_err(said("open for direct I/O"))?;
                file.write_all_at(aligned.bytes(), offset).map_err(said("direct write"))?;
                self.put(offset, &data);
                Ok(())
            }
            Operation::MappedRead { length: 0, .. } | Operation::MappedWrite { length: 0, .. } => Ok(()),
            Operation::MappedRead { offset, length } => self.compare(offset, length, |file, found| {
                let mapping = Mapping::new(file, offset, length)?;
                found.copy_from_slice(mapping.bytes());
                Ok(())
            }),
            Operation::MappedWrite { offset, length, is_synced } => {
                let data = noise(fill, length);
                let mut mapping = Mapping::new(&self.file, offset, length).map_err(said("map"))?;
                mapping.bytes_mut().copy_from_slice(&data);
                if is_synced {
                    mapping.sync().map_err(said("msync"))?;
                }
                drop(mapping);
                self.put(offset, &data);
                Ok(())
            }
            Operation::Truncate { length } => {
                self.file.set_len(length).map_err(said("truncate"))?;
                self.content.resize(length as usize, 0);
                Ok(())
            }
            Operation::Allocate { offset, length } => {
                self.allocate(FallocateFlags::empty(), offset, length)?;
                self.grow(offset + length);
                Ok(())
            }
            Operation::PunchHole { offset, length } => {
                self.allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length)?;
                self.zero(offset, length);
                Ok(())
            }
            Operation::ZeroRange { offset, length } => {
                self.allocate(FallocateFlags::ZERO_RANGE, offset, length)?;
                self.grow(offset + length);
                self.zero(offset, length);
                Ok(())
            }
            Operation::Sync => self.file.sync_all().map_err(said("fsync")),
            Operation::Forget => self.forget(),
            Operation::Reopen => {
                self.file = open(&self.path).map_err(said("open"))?;
                Ok(())
            }
            Operation::Remove => {
                fs::remove_file(&self.path).map_err(said("remove"))?;
                *self = Twin::new(self.path.clone());
                Ok(())
            }
            Operation::Rename { .. } => unreachable!("concerns two files"),
        }
    }

    fn direct_read(&mut self, offset: u64, length: u64) -> Result<(), String> {
        let file = open_direct(&self.path).map_err(said("open for direct I/O"))?;
        let mut aligned = Aligned::new(length as usize);
        let count = match file.read_at(aligned.bytes(), offset) {
            Err(error) if error.raw_os_error() == Some(libc::EIO) && self.has_delayed_allocation()? => {
                let inside = length.min((self.content.len() as u64).saturating_sub(offset));
                self.forget()?;
                return self.compare(offset, inside, |file, found| file.read_exact_at(found, offset));
            }
            outcome => outcome.map_err(said("direct read"))?,
        };
        let expected = length.min((self.content.len() as u64).saturating_sub(offset));
        if count as u64 != expected {
            return Err(format!(
                "a direct read of {length} bytes at {offset} gave {count} and should give {expected}"
            ));
        }
        self.differs(offset, &aligned.bytes()[..count])
    }

    /// Whether space is still only promised after an fsync: Linux 6.18's XFS can leave such an extent behind a zero
    /// range that reaches over the end of a file, on any disk. It refuses to read that directly ("Direct I/O collision
    /// with buffered writes"), without asking the device.
    fn has_delayed_allocation(&self) -> Result<bool, String> {
        self.file.sync_all().map_err(said("fsync"))?;
        let output = Command::new("filefrag").arg("-v").arg(&self.path).output().map_err(said("filefrag"))?;
        Ok(String::from_utf8_lossy(&output.stdout).contains("delalloc"))
    }

    fn allocate(&self, flags: FallocateFlags, offset: u64, length: u64) -> Result<(), String> {
        rustix::fs::fallocate(&self.file, flags, offset, length)
            .map_err(|errno| format!("fallocate: {errno}"))
    }

    fn compare(
        &self,
        offset: u64,
        length: u64,
        read: impl FnOnce(&File, &mut [u8]) -> std::io::Result<()>,
    ) -> Result<(), String> {
        let mut found = vec![0xEE; length as usize];
        read(&self.file, &mut found).map_err(said("read"))?;
        self.differs(offset, &found)
    }

    fn differs(&self, offset: u64, found: &[u8]) -> Result<(), String> {
        crate::aligned::compare(offset, &self.content[offset as usize..][..found.len()], found)
    }

    fn forget(&self) -> Result<(), String> {
        self.file.sync_all().map_err(said("fsync"))?;
        rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed)
            .map_err(|errno| format!("fadvise: {errno}"))
    }

    fn grow(&mut self, end: u64) {
        if end > self.content.len() as u64 {
            self.content.resize(end as usize, 0);
        }
    }

    fn put(&mut self, offset: u64, data: &[u8]) {
        self.grow(offset + data.len() as u64);
        self.content[offset as usize..][..data.len()].copy_from_slice(data);
    }

    fn zero(&mut self, offset: u64, length: u64) {
        let size = self.content.len() as u64;
        let (start, end) = (offset.min(size) as usize, (offset + length).min(size) as usize);
        self.content[start..end].fill(0);
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn open_direct(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path)
}

fn said(action: &str) -> impl Fn(std::io::Error) -> String {
    move |error| format!("{action}: {error}")
}

/// Bytes that differ from write to write. Half of them compress, so that layers which do have both.
pub(crate) fn noise(fill: u64, length: u64) -> Vec<u8> {
    let mut random = Random(fill);
    let is_plain = random.below(2) == 0;
    let mut bytes: Vec<u8> = Vec::with_capacity(length as usize + 8);
    while bytes.len() < length as usize {
        let word = if is_plain { fill } else { random.below(u64::MAX) };
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(length as usize);
    bytes
}

/// A range of a file, mapped.
struct Mapping {
    start: *mut libc::c_void,
    mapped: usize,
    skip: usize,
    length: usize,
}

impl Mapping {
    fn new(file: &File, offset: u64, length: u64) -> std::io::Result<Mapping> {
        let skip = (offset % BLOCK_BYTES) as usize;
        let mapped = skip + length as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which nothing else knows.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                mapped,
                protection,
                MapFlags::SHARED,
                file,
                offset - skip as u64,
            )
        }?;
        Ok(Mapping { start, mapped, skip, length: length as usize })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies inside the file, which nobody shortens while it is mapped.
        unsafe { std::slice::from_raw_parts(self.start.cast::<u8>().add(self.skip), self.length) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast::<u8>().add(self.skip), self.length) }
    }

    fn sync(&self) -> std::io::Result<()> {
        // SAFETY: the whole mapping.
        unsafe { rustix::mm::msync(self.start, self.mapped, MsyncFlags::SYNC) }?;
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; the borrows of its bytes are over.
        let _ = unsafe { rustix::mm::munmap(self.start, self.mapped) };
    }
}
