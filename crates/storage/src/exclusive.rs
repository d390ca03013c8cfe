//! Who else uses a file or block device that is about to be used as a device.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// `struct loop_info64` of <linux/loop.h>, in words of 8 bytes.
const LOOP_INFO_WORDS: usize = 29;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;

/// Locks the file for as long as it is open, and refuses one that a loop device of this host serves: the kernel takes
/// no lock for it. A block device has to be opened with `O_EXCL` as well, which refuses what is mounted or part of
/// another device.
///
/// # Errors
/// `ResourceBusy` when somebody else uses it as a device.
pub fn claim(file: &File) -> io::Result<()> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::AGAIN) => return Err(busy("another process uses it as a device; stop it first".into())),
        // File systems without locks: go on without this protection.
        Err(Errno::NOTSUP | Errno::NOLCK | Errno::INVAL) => {}
        Err(errno) => return Err(errno.into()),
    }
    match loop_device_of(file)? {
        Some(device) => Err(busy(format!(
            "it is attached to the loop device {}: unmount that and detach it (`losetup --detach {0}`) first",
            device.display()
        ))),
        None => Ok(()),
    }
}

fn busy(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, problem)
}

/// The loop device, `/dev/loop3`, whose backing file this is.
fn loop_device_of(file: &File) -> io::Result<Option<PathBuf>> {
    let own = file.metadata()?;
    if own.file_type().is_block_device() {
        // The loop device holds it, so that `O_EXCL` tells.
        return Ok(None);
    }
    let Ok(devices) = std::fs::read_dir("/sys/block") else { return Ok(None) };
    for device in devices.flatten() {
        let backing = device.path().join("loop/backing_file");
        let Ok(backing) = std::fs::read_to_string(&backing) else { continue };
        let node = Path::new("/dev").join(device.file_name());
        let is_it = match File::open(&node).ok().and_then(|node| backing_inode(&node)) {
            Some(found) => found == (own.dev(), own.ino()),
            // Users other than root may not ask the device. Its path is not looked at any closer: what serves it may
            // hang.
            None => {
                let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
                path.is_ok_and(|path| path == Path::new(backing.trim_end_matches('\n')))
            }
        };
        if is_it {
            return Ok(Some(node));
        }
    }
    Ok(None)
}

/// Device and inode number of what a loop device serves.
fn backing_inode(node: &File) -> Option<(u64, u64)> {
    let mut info = [0u64; LOOP_INFO_WORDS];
    // SAFETY: the kernel writes a `loop_info64`, which is as long as the buffer.
    let result = unsafe { libc::ioctl(node.as_raw_fd(), LOOP_GET_STATUS64, info.as_mut_ptr()) };
    // `lo_device` and `lo_inode` are its first two fields.
    (result == 0).then_some((info[0], info[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_file_refuses_second_process() {
        let file = tempfile::NamedTempFile::new().unwrap();
        claim(file.as_file()).unwrap();
        let again = File::open(file.path()).unwrap();
        assert_eq!(claim(&again).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        drop(file);
    }
}
