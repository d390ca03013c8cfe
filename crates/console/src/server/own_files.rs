//! A running console's files in the runtime directory: the Unix socket for this user's programs, and an address for a
//! browser if there is no terminal to print it to.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use underlay_files::{Access, Folder, plain_file};
use underlay_sync::UnsimulatedMutex;

const PREFIX: &str = "console-";
const SOCKET: &str = ".socket";
const ADDRESS: &str = ".address";
/// Held while a name is taken, so that two consoles that start together don't take each other's.
const LOCK: &str = "console.lock";
/// Another console has its names after a moment.
const LOCK_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// A file of ours by device and inode: at the same path there may be another console's by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(u64, u64);

impl FileId {
    fn from_path(path: &Path) -> io::Result<FileId> {
        let found = std::fs::symlink_metadata(path)?;
        Ok(FileId(found.dev(), found.ino()))
    }

    fn remove(self, path: &Path) {
        if FileId::from_path(path).is_ok_and(|found| found == self) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The Unix socket, which goes with this value.
pub(crate) struct OwnSocket {
    path: PathBuf,
    /// Until it is removed.
    id: UnsimulatedMutex<Option<FileId>>,
}

impl OwnSocket {
    /// Listens in `folder`, which must be for this user alone: at the name of the port, or where another console has
    /// that, at one with this process's number. Removes the leftovers of killed consoles.
    ///
    /// # Errors
    /// When the socket can't be made.
    pub(super) fn listen(folder: &Path, port: u16) -> io::Result<(OwnSocket, UnixListener, AddressFile)> {
        let _held = lock(folder)?;
        // Files that can't be removed are in nobody's way, unless they have the needed name.
        let _ = remove_dead(folder);
        let usual = format!("{PREFIX}{port}");
        let name = match is_listened_on(&folder.join(format!("{usual}{SOCKET}")))? {
            true => format!("{usual}-{}", std::process::id()),
            false => usual,
        };
        let path = folder.join(format!("{name}{SOCKET}"));
        // One with this number may be of another PID namespace.
        if is_listened_on(&path)? {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let file = AddressFile::new(folder, &name);
        for left in [&path, &file.path] {
            remove_if_there(left)?;
        }
        let listener = underlay_files::listen(&path)?;
        let id = UnsimulatedMutex::new(Some(FileId::from_path(&path)?));
        listener.set_nonblocking(true)?;
        Ok((OwnSocket { path, id }, listener, file))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Once: another console may have the name afterwards.
    pub(super) fn remove(&self) {
        if let Some(id) = self.id.lock().take() {
            id.remove(&self.path);
        }
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        self.remove();
    }
}

/// # Errors
/// When somebody holds it for long.
fn lock(folder: &Path) -> io::Result<File> {
    let path = folder.join(LOCK);
    let lock = plain_file::for_writing().open(&path)?;
    let begun = Instant::now();
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::WOULDBLOCK | Errno::INTR) if begun.elapsed() < LOCK_LIMIT => {
                std::thread::sleep(POLL);
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("another console has held {} for {} s", path.display(), LOCK_LIMIT.as_secs()),
                ));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Whether a console is there.
///
/// # Errors
/// When that can't be found out, as with too many open files: then nothing is taken over.
fn is_listened_on(socket: &Path) -> io::Result<bool> {
    match UnixStream::connect(socket) {
        Ok(_) => Ok(true),
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Ok(false),
            _ => Err(error),
        },
    }
}

fn remove_if_there(path: &Path) -> io::Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The names of all consoles that have a file here, without what follows them.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<String> = entries
        .filter_map(|entry| {
            let file = entry.file_name().into_string().ok()?;
            let name = file.strip_suffix(SOCKET).or_else(|| file.strip_suffix(ADDRESS))?;
            name.starts_with(PREFIX).then(|| name.to_owned())
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// The sockets of the consoles that listen now, by their names.
pub(super) fn sockets(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        names(folder).iter().map(|name| folder.join(format!("{name}{SOCKET}"))).collect();
    found.retain(|path| UnixStream::connect(path).is_ok());
    found.sort();
    found
}

/// Removes what killed consoles left, and says what that was.
///
/// # Errors
/// When a console is starting for long, or something can't be removed.
pub(super) fn remove_leftovers(folder: &Path) -> io::Result<Vec<PathBuf>> {
    if names(folder).is_empty() {
        return Ok(Vec::new());
    }
    let _held = lock(folder)?;
    remove_dead(folder)
}

/// The lock is held: no console is between making its socket and listening on it.
fn remove_dead(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut removed = Vec::new();
    for name in names(folder) {
        // A socket that can't be checked is left alone.
        if !matches!(is_listened_on(&folder.join(format!("{name}{SOCKET}"))), Ok(false)) {
            continue;
        }
        for ending in [SOCKET, ADDRESS] {
            let path = folder.join(format!("{name}{ending}"));
            if remove_if_there(&path)? {
                removed.push(path);
            }
        }
    }
    Ok(removed)
}

/// Where an address is written that nobody was there to read: for this user alone, and no longer than it opens
/// anything.
pub(super) struct AddressFile {
    path: PathBuf,
    /// Of what was written and not removed yet.
    id: Option<FileId>,
}

impl AddressFile {
    pub(super) fn new(folder: &Path, name: &str) -> AddressFile {
        AddressFile { path: folder.join(format!("{name}{ADDRESS}")), id: None }
    }

    pub(super) fn write(&mut self, address: &str) -> io::Result<PathBuf> {
        let (folder, name) = self
            .path
            .parent()
            .zip(self.path.file_name().and_then(|name| name.to_str()))
            .ok_or(io::ErrorKind::InvalidInput)?;
        Folder::open(folder)?.replace(name, Access::Private, format!("{address}\n").as_bytes())?;
        self.id = Some(FileId::from_path(&self.path)?);
        Ok(self.path.clone())
    }

    /// Once: another console may have the name afterwards.
    pub(super) fn remove(&mut self) {
        if let Some(id) = self.id.take() {
            id.remove(&self.path);
        }
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
    fn second_console_takes_other_name_and_replaces_dead_one() {
        let folder = tempfile::tempdir().unwrap();
        let (first, listener, mut file) = OwnSocket::listen(folder.path(), 7100).unwrap();
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

    #[test]
    fn killed_console_files_at_other_ports_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let killed = |port: u16| {
            let (socket, listener, mut file) = OwnSocket::listen(folder.path(), port).unwrap();
            let left = [file.write("http://here/").unwrap(), socket.path().to_owned()];
            drop(listener);
            std::mem::forget((socket, file));
            left
        };
        let (living, _listener, _file) = OwnSocket::listen(folder.path(), 7100).unwrap();
        let left = killed(40_001);
        let (next, _next_listener, _next_file) = OwnSocket::listen(folder.path(), 40_002).unwrap();
        assert!(left.iter().all(|path| !path.exists()), "{left:?}");
        drop(next);
        let mut left = killed(40_003).to_vec();
        left.sort();
        let mut removed = remove_leftovers(folder.path()).unwrap();
        removed.sort();
        assert_eq!(removed, left);
        assert!(living.path().exists() && remove_leftovers(folder.path()).unwrap().is_empty());
    }

    #[test]
    fn ending_console_keeps_files_of_successor() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, _listener, mut file) = OwnSocket::listen(folder.path(), 7100).unwrap();
        let (path, written) = (socket.path().to_owned(), file.write("http://here/").unwrap());
        for replaced in [&path, &written] {
            // Beside it first, so that it has another number.
            let other = folder.path().join("other");
            std::fs::write(&other, "another console's").unwrap();
            std::fs::rename(&other, replaced).unwrap();
        }
        drop((socket, file));
        assert!(path.exists() && written.exists());
    }
}
