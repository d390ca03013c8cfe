//! Mounting, unmounting, and reading the table of mounts.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use underlay_files::mountinfo;
pub use underlay_files::mountinfo::Mount;

use crate::machine::error::AttachError;
use crate::machine::processes;
use crate::machine::programs::find_program;
use crate::undo::registry::{RegistryNote, ResourceRegistry};

/// Everything mounted in this process's namespace, the topmost mounts last. Empty where the kernel's table can't be
/// read.
pub fn all() -> Vec<Mount> {
    try_all().unwrap_or_default()
}

/// As [`all`], for decisions that must not mistake an unreadable table for an empty one.
///
/// # Errors
/// When the kernel's table can't be read.
pub fn try_all() -> std::io::Result<Vec<Mount>> {
    fs::read("/proc/self/mountinfo").map(|text| mountinfo::parse(&text))
}

/// The topmost mount exactly at `path`.
pub fn find(path: &Path) -> Option<Mount> {
    all().into_iter().rfind(|mount| mount.mount_point == path)
}

/// Why an unmount failed.
#[derive(Debug)]
pub enum UnmountError {
    /// It is in use.
    Busy,
    /// It did not return in time: the device below hangs, or is slow.
    TimedOut,
    Failed(Errno),
}

/// How long a busy file system is retried: a program that has just ended may not have released it yet.
const BUSY_LIMIT: Duration = Duration::from_secs(3);

/// Unmounts the file system at `mount_point`. Nothing mounted there counts as success. It waits at most `limit` for the
/// device to complete the remaining writes.
///
/// # Errors
/// When it is in use, takes longer than the limit, or is refused.
pub fn try_unmount(mount_point: &Path, limit: Duration) -> Result<(), UnmountError> {
    let deadline = Instant::now() + BUSY_LIMIT;
    let mut pause = Duration::from_millis(5);
    loop {
        // umount(2) can't be interrupted while it writes out, so it gets a thread that may be abandoned.
        let (sender, receiver) = mpsc::channel();
        let target = mount_point.to_owned();
        std::thread::spawn(move || {
            let _ = sender.send(unmount(&target, UnmountFlags::NOFOLLOW));
        });
        match receiver.recv_timeout(limit) {
            Ok(Ok(()) | Err(Errno::INVAL | Errno::NOENT)) => return Ok(()),
            Ok(Err(Errno::BUSY)) if Instant::now() < deadline => std::thread::sleep(pause),
            Ok(Err(Errno::BUSY)) => return Err(UnmountError::Busy),
            Ok(Err(errno)) => return Err(UnmountError::Failed(errno)),
            Err(_) => return Err(UnmountError::TimedOut),
        }
        pause = (pause * 2).min(Duration::from_millis(300));
    }
}

/// Removes a mount from under its users, who keep a dead file system. For FUSE exports whose daemon is gone.
///
/// # Errors
/// When the kernel refuses.
pub fn detach_lazily(mount_point: &Path) -> Result<(), Errno> {
    // NOFOLLOW: a link in its place must not lead to another mount.
    match unmount(mount_point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// As root by the system call; other users may unmount their own FUSE mounts, by its helper.
fn unmount(mount_point: &Path, flags: UnmountFlags) -> Result<(), Errno> {
    match rustix::mount::unmount(mount_point, flags) {
        Err(Errno::PERM) => unmount_as_user(mount_point, flags.contains(UnmountFlags::DETACH)),
        outcome => outcome,
    }
}

fn unmount_as_user(mount_point: &Path, lazily: bool) -> Result<(), Errno> {
    if find(mount_point).is_none() {
        return Ok(());
    }
    let helper = find_program("fusermount3").ok_or(Errno::PERM)?;
    let mut command = std::process::Command::new(helper);
    command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(mount_point);
    // Untranslated, since its message is checked below.
    let output = command.env("LC_ALL", "C").stdin(std::process::Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        // It reports the reason only as text.
        Ok(output) if String::from_utf8_lossy(&output.stderr).contains("busy") => Err(Errno::BUSY),
        Ok(_) if find(mount_point).is_none() => Ok(()),
        _ => Err(Errno::PERM),
    }
}

/// An empty directory to mount on, created if it is missing. Returns what was created, and its path without links, as
/// the kernel will show it.
pub(crate) fn empty_directory(
    wanted: &Path,
    registry: &ResourceRegistry,
) -> Result<(PathBuf, Vec<(PathBuf, RegistryNote)>), AttachError> {
    let absolute = std::path::absolute(wanted).map_err(|error| AttachError::io("find", wanted, error))?;
    let mut made = registry.make_directories(&absolute)?;
    let find = || {
        let path = absolute.canonicalize().map_err(|error| AttachError::io("find", &absolute, error))?;
        check_empty(&path)?;
        Ok(path)
    };
    match find() {
        Ok(path) => Ok((path, made)),
        Err(error) => {
            registry.remove_directories(&mut made);
            Err(error)
        }
    }
}

/// Refuses a directory with contents, which a mount would hide. A missing directory counts as empty.
///
/// # Errors
/// When it is not empty, or can't be read.
pub fn check_empty(path: &Path) -> Result<(), AttachError> {
    let mut entries = match fs::read_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| AttachError::io("mount on", path, error))?,
    };
    if entries.next().is_none() {
        return Ok(());
    }
    Err(AttachError::failed(format!(
        "{} is not empty, and mounting there would hide what is in it: name an empty or new directory",
        path.display()
    )))
}

/// The message about a mount that could not be unmounted.
pub fn explain(mount_point: &Path, error: UnmountError) -> AttachError {
    let place = mount_point.display();
    match error {
        UnmountError::Busy => {
            let holders = processes::holders(mount_point);
            let holder_names = match holders.as_slice() {
                [] => {
                    "no process that this one may see; another mount or loop device may sit on it".to_owned()
                }
                some => some.iter().take(8).map(|holder| holder.to_string()).collect::<Vec<_>>().join("; "),
            };
            AttachError::InUse(format!(
                "{place} is in use and can't be unmounted: {holder_names}. End it and try again"
            ))
        }
        UnmountError::TimedOut => {
            AttachError::failed(format!("unmounting {place} did not end: its device is not answering"))
        }
        UnmountError::Failed(errno) => AttachError::failed(format!("could not unmount {place}: {errno}")),
    }
}

/// Waits until no file system uses a block device. A mount namespace that has just lost its last process takes a moment
/// to disappear. A device still in use there can't be mounted anew: the old mount would come back.
///
/// # Errors
/// When it is still in use after `limit`.
pub(crate) fn wait_until_free(device: &Path, limit: Duration) -> std::io::Result<()> {
    const POLL: Duration = Duration::from_millis(10);
    let begun = std::time::Instant::now();
    loop {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::EXCL | rustix::fs::OFlags::CLOEXEC;
        match rustix::fs::open(device, flags, rustix::fs::Mode::empty()) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::BUSY) if begun.elapsed() < limit => std::thread::sleep(POLL),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes out the kernel's cached pages of a block device, for one that is used without a file system.
///
/// # Errors
/// When the device can't be opened, or not everything can be written.
pub(crate) fn write_out_device(device: &Path) -> std::io::Result<()> {
    File::open(device)?.sync_all()
}

/// Drops the kernel's cached pages of a block device. They outlive a mount while the device is open.
///
/// # Errors
/// When the device can't be opened, or the kernel refuses.
pub(crate) fn drop_device_cache(device: &Path) -> std::io::Result<()> {
    const BLKFLSBUF: libc::Ioctl = 0x1261;
    let file = File::open(device)?;
    // SAFETY: this request takes no argument and touches no memory of ours.
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKFLSBUF, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Writes out everything that the file system at `path` holds in memory, and reports failures.
///
/// # Errors
/// When the file system can't write everything.
pub fn write_out(path: &Path) -> std::io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(path)?)?)
}

/// Like [`write_out`], but fails after `limit` (`ErrorKind::TimedOut`), since a device that hangs would block it
/// forever. The waiting thread then ends with the device.
///
/// # Errors
/// When the file system can't write everything, or not in time.
pub(crate) fn write_out_within(path: &Path, limit: Duration) -> std::io::Result<()> {
    let (sender, receiver) = mpsc::channel();
    let target = path.to_owned();
    std::thread::spawn(move || {
        let _ = sender.send(write_out(&target));
    });
    let too_late = || std::io::Error::new(std::io::ErrorKind::TimedOut, "its device is not answering");
    receiver.recv_timeout(limit).unwrap_or_else(|_| Err(too_late()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmount_of_unmounted_path_succeeds() {
        let directory = tempfile::tempdir().unwrap();
        assert!(try_unmount(directory.path(), Duration::from_secs(5)).is_ok());
        assert!(detach_lazily(directory.path()).is_ok());
    }
}
