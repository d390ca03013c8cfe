//! Sockets that this user alone may connect to.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::fchmod;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen as wait, socket_with,
};

use crate::Access;

/// As many as std has.
const BACKLOG: i32 = 4096;

/// Listens on a new socket at `path`, 0600 from its first moment regardless of the umask.
///
/// # Errors
/// When something is there already, or it can't be made.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Linux gives the file the mode that the socket has when it is bound.
    fchmod(&socket, Access::Private.file_mode())?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    wait(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}
