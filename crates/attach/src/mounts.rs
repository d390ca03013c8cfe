//! Mounting, unmounting, and reading what is mounted.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::error::AttachError;
use crate::processes;
use crate::programs::find_program;
use crate::registry::{Note, Registry};

/// One line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub mount_point: PathBuf,
    /// `xfs`, `fuse`
    pub filesystem: String,
    /// The device, or the name that a FUSE daemon gave.
    pub source: PathBuf,
    /// Device number as `stat` reports it for files on this mount.
    pub major: u32,
    pub minor: u32,
}

/// Everything mounted in this process's namespace, the topmost mounts last.
pub fn all() -> Vec<Mount> {
    fs::read("/proc/self/mountinfo").map(|text| parse_mountinfo(&text)).unwrap_or_default()
}

/// The topmost mount exactly at `path`.
pub fn at(path: &Path) -> Option<Mount> {
    all().into_iter().rfind(|mount| mount.mount_point == path)
}

/// Reads mountinfo; lines that make no sense are left out.
pub fn parse_mountinfo(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(parse_mount).collect()
}

fn parse_mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (major, minor) = std::str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
    let mount_point = unescape(fields.nth(1)?);
    // A variable number of optional fields ends with a hyphen.
    fields.find(|field| *field == b"-")?;
    let filesystem = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?);
    Some(Mount { mount_point, filesystem, source, major: major.parse().ok()?, minor: minor.parse().ok()? })
}

/// Blanks, tabs, newlines and backslashes stand there as `\` and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let code = (byte == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .filter(|digits| digits.iter().all(|digit| (b'0'..=b'7').contains(digit)))
            .map(|digits| digits.iter().fold(0_u32, |code, digit| code * 8 + u32::from(digit - b'0')));
        match code.and_then(|code| u8::try_from(code).ok()) {
            Some(decoded) => {
                bytes.push(decoded);
                rest = &tail[3..];
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Why an unmount did not happen.
#[derive(Debug)]
pub enum UnmountError {
    /// Someone uses it.
    Busy,
    /// It did not come back in time: the device below hangs, or is slow.
    TimedOut,
    Failed(Errno),
}

/// How long a busy filesystem is asked again: a program that has just ended may still be letting go.
const BUSY_LIMIT: Duration = Duration::from_secs(3);

/// Unmounts what is at `mount_point`. Nothing mounted there counts as success. It waits no longer than
/// `limit` for the device to take what is still to be written.
pub fn try_unmount(mount_point: &Path, limit: Duration) -> Result<(), UnmountError> {
    let deadline = Instant::now() + BUSY_LIMIT;
    let mut pause = Duration::from_millis(5);
    loop {
        // umount(2) can't be interrupted while it writes out, so it gets a thread that may be left alone.
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

/// Takes a mount away from under its users: they keep a dead filesystem. For FUSE exports whose daemon is gone.
pub fn detach_lazily(mount_point: &Path) -> Result<(), Errno> {
    match unmount(mount_point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// As root by the system call; others may unmount their own FUSE mounts, by its helper.
fn unmount(mount_point: &Path, flags: UnmountFlags) -> Result<(), Errno> {
    match rustix::mount::unmount(mount_point, flags) {
        Err(Errno::PERM) => unmount_as_user(mount_point, flags.contains(UnmountFlags::DETACH)),
        outcome => outcome,
    }
}

fn unmount_as_user(mount_point: &Path, lazily: bool) -> Result<(), Errno> {
    if at(mount_point).is_none() {
        return Ok(());
    }
    let helper = find_program("fusermount3").ok_or(Errno::PERM)?;
    let mut command = std::process::Command::new(helper);
    command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(mount_point);
    let output = command.env("LC_ALL", "C").stdin(std::process::Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        // It tells why in words only.
        Ok(output) if String::from_utf8_lossy(&output.stderr).contains("busy") => Err(Errno::BUSY),
        Ok(_) if at(mount_point).is_none() => Ok(()),
        _ => Err(Errno::PERM),
    }
}

/// An empty directory to mount on, made when it is not there, with what was made; its path without links, as the
/// kernel will show it.
pub(crate) fn empty_directory(
    wanted: &Path,
    registry: &Registry,
) -> Result<(PathBuf, Vec<(PathBuf, Note)>), AttachError> {
    let absolute = std::path::absolute(wanted).map_err(|error| AttachError::io("find", wanted, error))?;
    let mut made = registry.make_directories(&absolute)?;
    let find = || {
        let path = absolute.canonicalize().map_err(|error| AttachError::io("find", &absolute, error))?;
        let mut entries = fs::read_dir(&path).map_err(|error| AttachError::io("mount on", &path, error))?;
        if entries.next().is_some() {
            return Err(AttachError::failed(format!(
                "{} is not empty, and mounting there would hide what is in it: name an empty or new directory",
                path.display()
            )));
        }
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

/// What to tell a person about a mount that would not go.
pub fn explain(mount_point: &Path, error: UnmountError) -> AttachError {
    let place = mount_point.display();
    match error {
        UnmountError::Busy => {
            let holders = processes::holders(mount_point);
            let who = match holders.as_slice() {
                [] => {
                    "no process that this one may see; another mount or loop device may sit on it".to_owned()
                }
                some => some.iter().take(8).map(|holder| holder.to_string()).collect::<Vec<_>>().join("; "),
            };
            AttachError::failed(format!(
                "{place} is in use and can't be unmounted: {who}. End it and try again"
            ))
        }
        UnmountError::TimedOut => {
            AttachError::failed(format!("unmounting {place} did not end: its device is not answering"))
        }
        UnmountError::Failed(errno) => AttachError::failed(format!("could not unmount {place}: {errno}")),
    }
}

/// Drops what the kernel keeps of a block device in memory, which outlives a mount where someone has the device open.
pub fn drop_device_cache(device: &Path) -> std::io::Result<()> {
    const BLKFLSBUF: libc::Ioctl = 0x1261;
    let file = File::open(device)?;
    // SAFETY: this request takes no argument and touches no memory of ours.
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKFLSBUF, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Writes out everything that the filesystem at `path` holds in memory, and reports what could not be.
pub fn write_out(path: &Path) -> std::io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(path)?)?)
}

/// As [`write_out`], but gives up after `limit` (`ErrorKind::TimedOut`): a device that hangs would keep it for
/// ever. The thread that waits then ends with the device.
pub fn write_out_within(path: &Path, limit: Duration) -> std::io::Result<()> {
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
    fn mountinfo_with_and_without_optional_fields_and_escapes() {
        let text = b"36 35 98:0 / /mnt/with\\040blank rw,noatime master:1 shared:7 - xfs /dev/loop0 rw\n\
                     37 35 0:52 / /run/a\\134b rw - fuse underlay:session-1-1 rw,user_id=0\n\
                     torn line\n38 35 0:x / /y rw - tmpfs tmpfs rw";
        let mounts = parse_mountinfo(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].mount_point, Path::new("/mnt/with blank"));
        assert_eq!((mounts[0].major, mounts[0].filesystem.as_str()), (98, "xfs"));
        assert_eq!(mounts[1].mount_point, Path::new("/run/a\\b"));
        assert_eq!(mounts[1].source, Path::new("underlay:session-1-1"));
    }

    #[test]
    fn an_unfinished_escape_stays_as_it_is() {
        assert_eq!(unescape(b"a\\04"), Path::new("a\\04"));
        assert_eq!(unescape(b"a\\999"), Path::new("a\\999"));
        assert_eq!(unescape(b"a\\777"), Path::new("a\\777"));
    }

    #[test]
    fn what_is_not_mounted_is_unmounted() {
        let directory = tempfile::tempdir().unwrap();
        assert!(try_unmount(directory.path(), Duration::from_secs(5)).is_ok());
        assert!(detach_lazily(directory.path()).is_ok());
    }
}
