//! A sparse file.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use super::Backing;
use crate::device::DeviceError;
use crate::exclusive;
use crate::failed_sync::SyncLatch;

/// The effect of a flush of a file backing on *this* machine.
///
/// The modelled device's promise, that flushed data outlives its own power cut, is kept by both: a completed write's
/// bytes in the file outlive the process, even if that is killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushDurability {
    /// Nothing more: the data rests in the host's page cache. It survives a killed daemon but not a crash of
    /// the host, and a flush costs no time of the host's own disk, which would disturb the modelled one.
    #[default]
    PageCache,
    /// `fdatasync`: the data survives the host's power cut too.
    Disk,
}

/// Keeps a device's bytes in a sparse file, which it locks against a second user for as long as it lives.
#[derive(Debug)]
pub struct FileBacking {
    file: File,
    durability: FlushDurability,
    latch: SyncLatch,
}

impl FileBacking {
    /// Opens the file, or makes it, and extends it to `capacity_bytes` without taking space for it.
    ///
    /// # Errors
    /// When it can't be opened, made or extended, or another process uses it as a device.
    pub fn open(path: &Path, capacity_bytes: u64, durability: FlushDurability) -> io::Result<FileBacking> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        // Other users could read a file system's private files here, and a link in its place would be written through.
        options.mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let file = options.open(path)?;
        exclusive::claim(&file)?;
        let found = file.metadata()?;
        if found.is_file() && found.mode() & 0o077 != 0 && found.uid() == rustix::process::geteuid().as_raw()
        {
            file.set_permissions(Permissions::from_mode(0o600))?;
        }
        if found.len() < capacity_bytes {
            file.set_len(capacity_bytes)?;
        }
        Ok(FileBacking { file, durability, latch: SyncLatch::default() })
    }

    fn write_zeros(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        let zeros = vec![0; length_bytes.min(1 << 20) as usize];
        let mut done = 0;
        while done < length_bytes {
            let part = (length_bytes - done).min(zeros.len() as u64);
            self.write(offset_bytes + done, &zeros[..part as usize])?;
            done += part;
        }
        Ok(())
    }
}

fn device_error(error: io::Error) -> DeviceError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            DeviceError::NoSpace
        }
        _ => DeviceError::Io(error.to_string()),
    }
}

impl Backing for FileBacking {
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.file.read_at(&mut buffer[filled..], offset_bytes + filled as u64) {
                // Someone cut the file short behind our back: the missing end was never written, so zeros.
                Ok(0) => {
                    buffer[filled..].fill(0);
                    break;
                }
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(device_error(error)),
            }
        }
        Ok(())
    }

    fn write(&self, offset_bytes: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.file.write_all_at(data, offset_bytes).map_err(device_error)
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        if length_bytes == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        loop {
            match fallocate(&self.file, flags, offset_bytes, length_bytes) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return self.write_zeros(offset_bytes, length_bytes),
                Err(errno) => return Err(device_error(errno.into())),
            }
        }
    }

    fn holds(&self, offset_bytes: u64, length_bytes: u64) -> Result<bool, DeviceError> {
        match seek(&self.file, SeekFrom::Hole(offset_bytes)) {
            Ok(hole) => Ok(hole >= offset_bytes + length_bytes),
            // Behind the file's end, or a filesystem that knows no holes.
            Err(Errno::NXIO) => Ok(length_bytes == 0),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(true),
            Err(errno) => Err(device_error(errno.into())),
        }
    }

    fn sync(&self) -> Result<(), DeviceError> {
        match self.durability {
            FlushDurability::PageCache => Ok(()),
            FlushDurability::Disk => self.latch.run(|| self.file.sync_data().map_err(device_error)),
        }
    }
}
