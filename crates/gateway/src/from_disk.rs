//! A file's bytes on the disk, not the kernel's cached ones.
//!
//! When a sync fails, the kernel takes the pages that it could not write for written, and goes on giving them to
//! readers. A process that opens the file again would find everything as it should be, and build on what the next power
//! cut takes away. So a file whose last user has not said that all its syncs had succeeded is read from the disk itself
//! before it is believed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Advice, Mode, OFlags, fadvise};
use rustix::io::Errno;
use underlay_sync::planted::{PlantedBug, is_planted};

/// Compared at once.
const STEP_BYTES: usize = 1 << 20;
/// The alignment of reads past the page cache: no disk has larger sectors.
const ALIGNMENT: usize = 4096;

/// A page that is being written, or that somebody else reads, is not forgotten at once. And what the user before has
/// begun to write may still come.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(50);

/// A file by both ways to read it.
pub(crate) trait TwoWays {
    /// Has everything written that is not yet.
    fn sync(&mut self) -> io::Result<()>;
    /// Has the kernel forget what it remembers of it.
    fn forget(&mut self) -> io::Result<()>;
    fn length(&self) -> io::Result<u64>;
    /// As everybody reads it. Returns how many bytes there were.
    fn read_remembered(&mut self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize>;
    /// From the disk; `Unsupported` where there is no such way.
    fn read_disk(&mut self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize>;
}

/// How a read past the cache went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskReadOutcome {
    /// Reads of the file now return what the disk has.
    Same,
    /// The file system has no way around the kernel's memory. The cached bytes are dropped, as far as it reports.
    Forgotten,
}

/// Makes sure that reads of the file return what the disk has from now on.
///
/// # Errors
/// When it can't be synced or read, or the kernel goes on remembering something else.
pub(crate) fn make_sure(file: &mut impl TwoWays) -> io::Result<DiskReadOutcome> {
    if is_planted(PlantedBug::CachedPagesBelieved) {
        return Ok(DiskReadOutcome::Same);
    }
    for _ in 1..ATTEMPTS {
        if let Some(seen) = compare(file)? {
            return Ok(seen);
        }
        std::thread::sleep(PAUSE);
    }
    compare(file)?.ok_or_else(|| {
        io::Error::other("a sync has failed, and the kernel still caches data that the disk lacks")
    })
}

/// `None` where the kernel remembers something else than the disk has.
fn compare(file: &mut impl TwoWays) -> io::Result<Option<DiskReadOutcome>> {
    // The kernel reports an unreported failure here, once; what is lost is found out below.
    if let Err(error) = file.sync() {
        tracing::warn!("not all of the last writes reached the disk: {error}");
        file.sync()?;
    }
    // Whether it has is seen below.
    if let Err(error) = file.forget() {
        tracing::debug!("cannot make the kernel forget a file: {error}");
    }
    let length = file.length()?;
    let (mut remembered, mut on_disk) = (vec![0; STEP_BYTES], vec![0; STEP_BYTES]);
    let mut offset = 0;
    while offset < length {
        let count = (length - offset).min(STEP_BYTES as u64) as usize;
        let first = match file.read_remembered(&mut remembered, offset) {
            Ok(read) => read.min(count),
            // Nobody can be misled by what can't be read.
            Err(_) => 0,
        };
        let is_same = match file.read_disk(&mut on_disk, offset) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                return Ok(Some(DiskReadOutcome::Forgotten));
            }
            // Less than is remembered can be read: the rest is nowhere else.
            Err(_) => first == 0,
            Ok(second) => first == 0 || (second >= first && remembered[..first] == on_disk[..first]),
        };
        if !is_same {
            return Ok(None);
        }
        offset += count as u64;
    }
    Ok(Some(DiskReadOutcome::Same))
}

/// A file of this machine.
pub(crate) struct OnDisk {
    file: File,
    direct: Option<File>,
    /// Longer than what is read, so that an aligned part of it is long enough.
    buffer: Vec<u8>,
}

impl OnDisk {
    /// # Errors
    /// When it can't be opened.
    pub(crate) fn open(path: &Path) -> io::Result<OnDisk> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let direct = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(direct) => Some(File::from(direct)),
            // As a file system in memory says.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(OnDisk { file, direct, buffer: vec![0; STEP_BYTES + ALIGNMENT] })
    }
}

/// Reads until the end of `buffer` or of the file.
fn read_all(file: &File, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset_bytes + read as u64) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        // Behind a part of a sector there is nothing, and asking for it would be refused.
        if !read.is_multiple_of(ALIGNMENT) {
            break;
        }
    }
    Ok(read)
}

impl TwoWays for OnDisk {
    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn forget(&mut self) -> io::Result<()> {
        Ok(fadvise(&self.file, 0, None, Advice::DontNeed)?)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_remembered(&mut self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        read_all(&self.file, buffer, offset_bytes)
    }

    fn read_disk(&mut self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        let Some(direct) = &self.direct else { return Err(io::ErrorKind::Unsupported.into()) };
        let begin = self.buffer.as_ptr().align_offset(ALIGNMENT);
        let length = buffer.len().min(STEP_BYTES);
        let Some(aligned) = self.buffer.get_mut(begin..begin + length) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        match read_all(direct, aligned, offset_bytes) {
            Ok(read) => {
                buffer[..read].copy_from_slice(&aligned[..read]);
                Ok(read)
            }
            // It wants another alignment than any disk has.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                Err(io::ErrorKind::Unsupported.into())
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;
    use std::process::Command;

    use super::*;

    const PAGE_BYTES: usize = 4096;

    /// A disk behind a memory, as a kernel has it: pages that could not be written are taken for written.
    #[derive(Debug, Default)]
    pub(crate) struct Cached {
        pub(crate) remembered: Vec<u8>,
        pub(crate) on_disk: Vec<u8>,
        dirty: BTreeSet<usize>,
        pub(crate) fails_syncs: usize,
        never_forgets: bool,
        has_one_way: bool,
    }

    impl Cached {
        fn with(bytes: Vec<u8>) -> Cached {
            let mut file = Cached::default();
            file.resize(bytes.len());
            file.write(0, &bytes);
            file
        }

        /// How long it is, the disk knows at once.
        pub(crate) fn resize(&mut self, length: usize) {
            self.remembered.resize(length, 0);
            self.on_disk.resize(length, 0);
            self.dirty.retain(|page| page * PAGE_BYTES < length);
        }

        pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
            if offset + bytes.len() > self.remembered.len() {
                self.resize(offset + bytes.len());
            }
            self.remembered[offset..offset + bytes.len()].copy_from_slice(bytes);
            self.dirty.extend(offset / PAGE_BYTES..(offset + bytes.len()).div_ceil(PAGE_BYTES));
        }

        /// Unsynced writes are gone.
        pub(crate) fn lose_power(&mut self) {
            self.dirty.clear();
            self.remembered.clone_from(&self.on_disk);
        }
    }

    fn read(from: &[u8], buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        let rest = from.get(offset_bytes as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    impl TwoWays for Cached {
        fn sync(&mut self) -> io::Result<()> {
            let dirty = std::mem::take(&mut self.dirty);
            for page in dirty.into_iter().filter(|_| self.fails_syncs == 0) {
                let range = page * PAGE_BYTES..((page + 1) * PAGE_BYTES).min(self.remembered.len());
                self.on_disk[range.clone()].copy_from_slice(&self.remembered[range]);
            }
            match self.fails_syncs.checked_sub(1) {
                None => Ok(()),
                Some(left) => {
                    self.fails_syncs = left;
                    Err(Errno::IO.into())
                }
            }
        }

        fn forget(&mut self) -> io::Result<()> {
            if !self.never_forgets && self.dirty.is_empty() {
                self.remembered.clone_from(&self.on_disk);
            }
            Ok(())
        }

        fn length(&self) -> io::Result<u64> {
            Ok(self.remembered.len() as u64)
        }

        fn read_remembered(&mut self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
            read(&self.remembered, buffer, offset_bytes)
        }

        fn read_disk(&mut self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
            match self.has_one_way {
                true => Err(io::ErrorKind::Unsupported.into()),
                false => read(&self.on_disk, buffer, offset_bytes),
            }
        }
    }

    const LENGTH: usize = STEP_BYTES + 10_000;

    fn written_in_vain() -> Cached {
        let mut file = Cached::with(vec![1; LENGTH]);
        file.sync().unwrap();
        file.write(LENGTH - 1, &[2]);
        file.fails_syncs = 1;
        assert!(file.sync().is_err());
        // From here on every sync succeeds, and says nothing.
        file.sync().unwrap();
        file
    }

    #[test]
    fn data_lost_by_failed_sync_is_not_read() {
        let mut file = written_in_vain();
        assert_eq!(file.remembered[LENGTH - 1], 2);
        assert_eq!(make_sure(&mut file).unwrap(), DiskReadOutcome::Same);
        assert_eq!(file.remembered[LENGTH - 1], 1);
    }

    #[test]
    fn stale_cache_that_stays_is_an_error() {
        let mut file = Cached { never_forgets: true, ..written_in_vain() };
        let error = make_sure(&mut file).unwrap_err();
        assert!(error.to_string().contains("a sync has failed"), "{error}");
        // With nothing that differs there is nothing to be misled by.
        file.on_disk = file.remembered.clone();
        assert_eq!(make_sure(&mut file).unwrap(), DiskReadOutcome::Same);
        // Also where the disk has less.
        file.on_disk.truncate(LENGTH - 1);
        assert!(make_sure(&mut file).is_err());
    }

    #[test]
    fn unsynced_data_is_written_despite_former_sync_error() {
        let mut file = Cached::with(vec![3; 5000]);
        assert_eq!(make_sure(&mut file).unwrap(), DiskReadOutcome::Same);
        assert_eq!(file.on_disk, [3; 5000]);
        // A process was killed before it could hear of it.
        file.write(0, &[4]);
        file.fails_syncs = 1;
        assert_eq!(make_sure(&mut file).unwrap(), DiskReadOutcome::Same);
        assert_eq!((file.remembered[0], file.on_disk[0]), (3, 3));
        file.fails_syncs = 2;
        assert!(make_sure(&mut file).is_err());
        let mut file = Cached { has_one_way: true, ..written_in_vain() };
        assert_eq!(make_sure(&mut file).unwrap(), DiskReadOutcome::Forgotten);
        assert_eq!(file.remembered[LENGTH - 1], 1);
    }

    #[test]
    fn file_is_equal_from_cache_and_disk() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for length in [0, 1, 4096, STEP_BYTES, STEP_BYTES + 4097] {
            let bytes: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            make_sure(&mut OnDisk::open(&path).unwrap()).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
        }
    }

    /// Unmounts it with the test.
    struct Mounted(std::path::PathBuf);

    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
        }
    }

    /// On a disk of the test's own, in which a block changes behind the kernel's back, where such a disk can be had.
    #[test]
    fn read_returns_disk_bytes_instead_of_cached_ones() {
        let succeeds = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        let directory = tempfile::tempdir().unwrap();
        let (image, place) = (directory.path().join("image"), directory.path().join("disk"));
        std::fs::create_dir(&place).unwrap();
        std::fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
        let is_mounted = rustix::process::geteuid().is_root()
            && succeeds(Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096"]).arg(&image))
            && succeeds(Command::new("mount").args(["-o", "loop"]).args([&image, &place]));
        if !is_mounted {
            return;
        }
        let _mounted = Mounted(place.clone());
        let path = place.join("file");
        std::fs::write(&path, vec![1; 3 * PAGE_BYTES]).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        // Of the first extent: `0:        0..       2:      33793..     33795: ...`.
        let Ok(output) = Command::new("filefrag").args(["-b4096", "-v"]).arg(&path).output() else { return };
        let text = String::from_utf8(output.stdout).unwrap();
        let extent = text.lines().find_map(|line| line.trim().strip_prefix("0:")).unwrap();
        let physical = extent.split(':').nth(1).unwrap().split("..").next().unwrap();
        let block: u64 = physical.trim().parse().unwrap();
        let disk = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
        disk.write_all_at(&[9; PAGE_BYTES], (block + 1) * PAGE_BYTES as u64).unwrap();

        let second_page = || std::fs::read(&path).unwrap()[PAGE_BYTES];
        assert_eq!(second_page(), 1, "the kernel has forgotten it by itself");
        assert_eq!(make_sure(&mut OnDisk::open(&path).unwrap()).unwrap(), DiskReadOutcome::Same);
        assert_eq!(second_page(), 9);
    }
}
