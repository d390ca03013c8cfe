//! What a running console keeps in the runtime directory: the Unix socket for this user's programs, and an address for a browser if there is
//! no terminal to print it to.

use std::fs::File;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, flock};
use underlay_files::{Access, Folder, plain_file};

const PREFIX: &str = "console-";
const SOCKET: &str = ".socket";
const ADDRESS: &str = ".address";
/// Held while a name is taken, so that two consoles that start together don't take each other's.
const LOCK: &str = "console.lock";

/// The Unix socket, which goes with this value.
pub(crate) struct OwnSocket {
    path: PathBuf,
    is_there: AtomicBool,
}

impl OwnSocket {
    /// Listens in `folder`, which must be for this user alone: at the name of the port, or where another console has that, at one with
    /// this process's number. A socket that a killed console left is replaced.
    ///
    /// # Errors
    /// When the socket can't be made.
    pub(super) fn listen(folder: &Path, port: u16) -> io::Result<(OwnSocket, UnixListener, AddressFile)> {
        let _held = lock(folder)?;
        let usual = format!("{PREFIX}{port}");
        let name = match UnixStream::connect(folder.join(format!("{usual}{SOCKET}"))) {
            Ok(_) => format!("{usual}-{}", std::process::id()),
            Err(_) => usual,
        };
        let path = folder.join(format!("{name}{SOCKET}"));
        let file = AddressFile::in_folder(folder, &name);
        for left in [&path, &file.path] {
            match std::fs::remove_file(left) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let listener = underlay_files::listen(&path)?;
        listener.set_nonblocking(true)?;
        Ok((OwnSocket { path, is_there: AtomicBool::new(true) }, listener, file))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Once: another console may have the name afterwards.
    pub(super) fn remove(&self) {
        if self.is_there.swap(false, Ordering::Relaxed) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        self.remove();
    }
}

fn lock(folder: &Path) -> io::Result<File> {
    let lock = plain_file::for_writing().open(folder.join(LOCK))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    Ok(lock)
}

/// The sockets of the consoles that listen now, by their names.
pub(super) fn sockets(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_socket = |name: &str| name.starts_with(PREFIX) && name.ends_with(SOCKET);
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_socket));
    let mut found: Vec<PathBuf> =
        named.map(|entry| entry.path()).filter(|path| UnixStream::connect(path).is_ok()).collect();
    found.sort();
    found
}

/// Where an address is written that nobody was there to read: for this user alone, and no longer than it opens anything.
pub(super) struct AddressFile {
    path: PathBuf,
}

impl AddressFile {
    pub(super) fn in_folder(folder: &Path, name: &str) -> AddressFile {
        AddressFile { path: folder.join(format!("{name}{ADDRESS}")) }
    }

    pub(super) fn write(&self, address: &str) -> io::Result<PathBuf> {
        let (folder, name) = self
            .path
            .parent()
            .zip(self.path.file_name().and_then(|name| name.to_str()))
            .ok_or(io::ErrorKind::InvalidInput)?;
        Folder::open(folder)?.replace(name, Access::Private, format!("{address}\n").as_bytes())?;
        Ok(self.path.clone())
    }

    pub(super) fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_second_console_of_a_port_takes_another_name_and_a_dead_one_s_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let (first, listener, file) = OwnSocket::listen(folder.path(), 7100).unwrap();
        assert_eq!(first.path(), folder.path().join("console-7100.socket"));
        assert_eq!(mode(first.path()), 0o600);
        let written = file.write("http://here/").unwrap();
        assert_eq!(
            (mode(&written), std::fs::read_to_string(&written).unwrap().as_str()),
            (0o600, "http://here/\n")
        );
        let (second, _listener, _file) = OwnSocket::listen(folder.path(), 7100).unwrap();
        assert_ne!(first.path(), second.path());
        assert_eq!(sockets(folder.path()), [second.path(), first.path()]);
        // As after SIGKILL: both files stay, and nobody listens.
        drop(listener);
        let path = first.path().to_owned();
        std::mem::forget((first, file));
        assert!(path.exists() && sockets(folder.path()) == [second.path()]);
        let (third, _listener, _file) = OwnSocket::listen(folder.path(), 7100).unwrap();
        assert!(third.path() == path && !written.exists());
        drop(third);
        assert!(!path.exists());
    }
}
