//! Mounts a FUSE directory: by the system call where that is allowed, otherwise by `fusermount3`.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::machine::error::AttachError;
use crate::machine::mounts;
use crate::machine::privileges::probe_privileges;
use crate::machine::programs::find_program;

/// The name after `fuse.` in the table of mounts.
const SUBTYPE: &str = "underlay";
pub(super) const HELPER: &str = "fusermount3";
/// The variable that tells the helper where to send the connection (fuse(8)).
const HELPER_SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Mounts an empty FUSE and returns the connection to the kernel, on which the session is to be served.
pub(super) fn mount(mount_point: &Path, source: &str) -> Result<OwnedFd, AttachError> {
    if probe_privileges().is_err() {
        return mount_as_user(mount_point, source);
    }
    let connection = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .map_err(|error| AttachError::io("open", Path::new("/dev/fuse"), error))?;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let options = format!(
        "fd={},rootmode=40000,user_id={user},group_id={group},default_permissions,allow_other",
        connection.as_raw_fd()
    );
    let options = CString::new(options).map_err(|error| AttachError::failed(error.to_string()))?;
    let flags = MountFlags::NOATIME | MountFlags::NODEV | MountFlags::NOSUID;
    rustix::mount::mount(source, mount_point, format!("fuse.{SUBTYPE}"), flags, options.as_c_str())
        .map_err(|errno| AttachError::io("mount the directory on", mount_point, errno))?;
    behave_like_a_disk(mount_point);
    Ok(connection.into())
}

/// The kernel trusts a FUSE file system less than a disk and allows it few dirty pages; this one is a disk.
fn behave_like_a_disk(mount_point: &Path) {
    let Some(mount) = mounts::find(mount_point) else { return };
    let settings = format!("/sys/class/bdi/{}:{}", mount.major, mount.minor);
    for (setting, value) in [("strict_limit", "0"), ("max_ratio", "100")] {
        // An older kernel has no such setting, and writes out sooner.
        let _ = std::fs::write(format!("{settings}/{setting}"), value);
    }
}

/// The helper runs as root, opens the connection, mounts it and sends it back over a socket.
fn mount_as_user(mount_point: &Path, source: &str) -> Result<OwnedFd, AttachError> {
    let cannot = |action: &str, error: io::Error| AttachError::failed(format!("could not {action}: {error}"));
    let (ours, theirs) = UnixStream::pair().map_err(|error| cannot("make a socket pair", error))?;
    let helper = find_program(HELPER).unwrap_or_else(|| HELPER.into());
    let mut command = Command::new(helper);
    command
        .arg("-o")
        .arg(format!("fsname={source},subtype={SUBTYPE},default_permissions,noatime"))
        .arg("--")
        .arg(mount_point)
        .env(HELPER_SOCKET_VARIABLE, theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let inherited = theirs.try_clone().map_err(|error| cannot("hand a socket on", error))?;
    let number = theirs.as_raw_fd();
    // SAFETY: fcntl is async-signal-safe; the descriptor is open until the child has started.
    unsafe {
        command.pre_exec(move || {
            let _keep = &inherited;
            let theirs = std::os::fd::BorrowedFd::borrow_raw(number);
            // Only in the child: cleared in this process, the socket would leak into any program started
            // meanwhile.
            fcntl_setfd(theirs, FdFlags::empty())?;
            Ok(())
        });
    }
    let child = command.spawn().map_err(|error| cannot(&format!("start {HELPER}"), error))?;
    // Close all our copies of its end, so that `receive_descriptor` sees the end of the socket if the helper dies.
    drop((theirs, command));
    let connection = receive_descriptor(&ours);
    let output = child.wait_with_output().map_err(|error| cannot(&format!("wait for {HELPER}"), error))?;
    match connection {
        Some(connection) if output.status.success() => Ok(connection),
        _ => Err(AttachError::Failed {
            what: format!("{HELPER} could not mount {} ({})", mount_point.display(), output.status),
            output: Some(String::from_utf8_lossy(&output.stderr).into_owned()),
        }),
    }
}

fn receive_descriptor(socket: &UnixStream) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            outcome => break outcome.ok()?,
        }
    };
    if received.bytes == 0 {
        return None;
    }
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}
