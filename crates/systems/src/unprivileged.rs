//! Programs of others that root starts and that must not have root's rights: they run as the user `nobody`, in a room of their own. The room
//! is their `/tmp`, they see no process but theirs, all of them end with the first, and what they made is taken by descriptor.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::{CWD, Dir, Gid, Mode, OFlags, Uid, openat};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change, mount_remount};
use rustix::thread::{
    UnshareFlags, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid, unshare_unsafe,
};
use underlay_files::fleeting;

use crate::child::Child;
use crate::mount_namespace::let_go_of_others;
use crate::system::SystemError;

pub const USER: &str = "nobody";
/// What it is on Linux where the table of users has none.
const NOBODY: u32 = 65534;
const SHARED: &str = fleeting::SHARED;
/// What a program of others may know of our environment: how to reach a network, and nothing that is secret. A proxy's address may hold a
/// password, and without it there is no network.
const VARIABLES: [&str; 15] = [
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
];
const OTHERS: u32 = 0o007;
const EXECUTE: u32 = 0o001;
const NAMESPACE_LIMIT: Duration = Duration::from_secs(20);

/// Where a program of others works.
#[derive(Debug)]
pub struct Room {
    /// As this process sees it.
    path: PathBuf,
    descriptor: OwnedFd,
    user: (Uid, Gid),
    /// Whether it has namespaces, in which it is `/tmp`.
    is_apart: bool,
    /// To be removed with the room.
    outer: Option<PathBuf>,
}

/// Whether this process has rights that programs of others shall not have.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Room {
    /// Makes one, in the folder `work` if that can be made `/tmp` for the program. Where there are no namespaces to be had, it is made in the host's
    /// `/tmp`, which the user can reach.
    pub fn make(work: &Path) -> io::Result<Room> {
        let user = user();
        let path = work.join("room");
        make_private(&path)?;
        let is_apart = can_be_apart(&path, user)?;
        let (path, outer) = match is_apart {
            true => (path, None),
            false => {
                // Nobody else can exchange the room, since it is in a folder of ours.
                let outer = fleeting::make_shared()?.path().to_path_buf();
                std::fs::set_permissions(&outer, std::fs::Permissions::from_mode(0o711))?;
                let path = outer.join("room");
                make_private(&path)?;
                (path, Some(outer))
            }
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = openat(CWD, &path, flags, Mode::empty())?;
        Ok(Room { path, descriptor, user, is_apart, outer })
    }

    /// Where this process finds what is called `name` there.
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Where the program finds it.
    pub fn inside(&self, name: &str) -> PathBuf {
        self.folder_inside().join(name)
    }

    /// The room itself, where the program finds it.
    pub fn folder_inside(&self) -> &Path {
        if self.is_apart { Path::new(SHARED) } else { &self.path }
    }

    /// In words, for who watches.
    pub fn describe(&self) -> &'static str {
        if self.is_apart {
            "as nobody"
        } else {
            "as nobody, without namespaces, which this host does not give"
        }
    }

    /// Makes a folder for the program. Only before the program runs.
    pub fn make_folder(&self, name: &str) -> io::Result<()> {
        make_private(&self.path(name))?;
        self.give(name)
    }

    /// Makes a file for the program, which nobody else can read. Only before the program runs.
    pub fn make_file(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut file = underlay_files::plain_file::for_writing().create_new(true).open(self.path(name))?;
        io::Write::write_all(&mut file, content)?;
        self.give(name)
    }

    fn give(&self, name: &str) -> io::Result<()> {
        lchown(self.path(name), Some(self.user.0.as_raw()), Some(self.user.1.as_raw()))
    }

    /// Starts the program, whose own environment has been set, and gives it the room.
    pub fn spawn(
        &self,
        system: &'static str,
        mut command: Command,
        log: &Path,
    ) -> Result<Child, SystemError> {
        let failed = |error: io::Error| SystemError::starting(system, format!("no room for it: {error}"));
        self.give("").map_err(failed)?;
        for name in VARIABLES {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.current_dir(self.folder_inside());
        let (user, is_apart, room) = (self.user, self.is_apart, self.path.clone());
        // SAFETY: between fork and exec the closure makes system calls on data that it owns; it takes no lock, and paths as short as these
        // are not allocated.
        unsafe {
            command.pre_exec(move || {
                // Away from our terminal: what is written to that as input would be a command of root's.
                rustix::process::setsid()?;
                if is_apart {
                    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
                    // Some containers don't let it; then others' processes are seen, and still not reached.
                    let _ = mount("proc", "/proc", "proc", flags, None);
                }
                set_no_new_privs(true)?;
                become_user(user)
            });
        }
        let own = room.clone();
        let child = Child::spawn_apart(system, command, log, move || match is_apart {
            true => enter_namespaces(&room),
            false => Ok(()),
        })?;
        if is_apart {
            // One that has ended by now holds nothing.
            let _ = let_go_of_others(child.state().pid(), &[&own], NAMESPACE_LIMIT);
        }
        Ok(child)
    }

    /// Copies files that the program left in `folder`, and that nobody writes to any more, into the folder `into` of this user: regular ones alone,
    /// by descriptor, of each no more than its bytes. Whoever compares the copies knows what is used. Files that are missing are left out.
    ///
    /// # Errors
    /// When something else lies there: says what.
    pub fn collect<'a>(
        &self,
        folder: &str,
        wanted: impl IntoIterator<Item = (&'a str, u64)> + Clone,
        into: &Path,
    ) -> Result<(), String> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let unreadable = |what: &str, error: io::Error| format!("{what} can't be read: {error}");
        let folder = openat(&self.descriptor, folder, flags | OFlags::DIRECTORY, Mode::empty())
            .map_err(|error| unreadable(folder, error.into()))?;
        let listing = Dir::read_from(&folder).map_err(|error| unreadable("the folder", error.into()))?;
        for entry in listing {
            let entry = entry.map_err(|error| unreadable("the folder", error.into()))?;
            let name = entry.file_name().to_string_lossy();
            if name != "." && name != ".." && wanted.clone().into_iter().all(|(known, _)| name != known) {
                return Err(format!("{name:?} is not on the list"));
            }
        }
        for (name, bytes) in wanted {
            let file = match openat(&folder, name, flags, Mode::empty()) {
                Ok(file) => File::from(file),
                Err(rustix::io::Errno::NOENT) => continue,
                Err(rustix::io::Errno::LOOP) => return Err(format!("{name} is a link")),
                Err(error) => return Err(unreadable(name, error.into())),
            };
            let found = file.metadata().map_err(|error| unreadable(name, error))?;
            if !found.is_file() || found.uid() != self.user.0.as_raw() {
                return Err(format!("{name} is no regular file of the user {USER}"));
            }
            let written = File::create_new(into.join(name));
            let copied =
                written.and_then(|mut copy| io::copy(&mut file.take(bytes.saturating_add(1)), &mut copy));
            let copied = copied.map_err(|error| format!("{name} can't be copied: {error}"))?;
            if copied > bytes {
                return Err(format!("{name} has more than {bytes} bytes"));
            }
        }
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(outer) = &self.outer {
            // What can't be removed is in /tmp, and of no use to anybody.
            let _ = std::fs::remove_dir_all(outer);
        }
    }
}

fn make_private(path: &Path) -> io::Result<()> {
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(path)
}

/// As the table of users has it.
fn user() -> (Uid, Gid) {
    let table = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let numbers = table.lines().find_map(|line| {
        let mut fields = line.strip_prefix(USER)?.strip_prefix(':')?.split(':').skip(1);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    let (user, group) = numbers.filter(|&(user, group)| user != 0 && group != 0).unwrap_or((NOBODY, NOBODY));
    (Uid::from_raw(user), Gid::from_raw(group))
}

/// Gives up every right of the calling thread, for good.
fn become_user((user, group): (Uid, Gid)) -> io::Result<()> {
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    Ok(set_thread_res_uid(user, user, user)?)
}

/// Gives the calling thread mounts of its own, in which `/tmp` is this room, and a new table of processes to those that it forks.
fn enter_namespaces(room: &Path) -> io::Result<()> {
    let flags = UnshareFlags::FS | UnshareFlags::NEWNS | UnshareFlags::NEWPID | UnshareFlags::NEWIPC;
    // SAFETY: these flags change what the calling thread sees, and no file descriptor of anyone.
    unsafe { unshare_unsafe(flags) }?;
    // What others unmount goes here, too, and nothing of ours goes out.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    let wanted = std::fs::metadata(room)?;
    mount_bind(room, SHARED)?;
    mount_remount(SHARED, MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV, "")?;
    let found = std::fs::metadata(SHARED)?;
    match (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()) {
        true => Ok(()),
        false => Err(io::Error::other("the mount did not take place")),
    }
}

/// Whether there are namespaces to be had, tried on a thread that ends at once. An error when not even the user is.
fn can_be_apart(room: &Path, user: (Uid, Gid)) -> io::Result<bool> {
    std::thread::scope(|scope| {
        let tried = scope.spawn(|| {
            let is_apart = enter_namespaces(room).is_ok();
            become_user(user).map(|()| is_apart)
        });
        tried.join().unwrap_or_else(|_| Err(io::Error::other("a thread ended early")))
    })
}

/// Finds `program` in the folders of `path`, where the user can run it, or says why that can't be.
pub fn program(path: &OsStr, program: &str) -> Option<Result<PathBuf, String>> {
    let mut closed = None;
    for folder in std::env::split_paths(path).filter(|folder| folder.is_absolute()) {
        let found = folder.join(program);
        if !found.is_file() {
            continue;
        }
        match closed_to_others(&found) {
            None => return Some(Ok(found)),
            Some(why) => {
                closed =
                    closed.or(Some(format!("{} can't be run by the user {USER}: {why}", found.display())))
            }
        }
    }
    closed.map(Err)
}

/// Why the user can't run the program at this path.
pub fn closed_to_others(program: &Path) -> Option<String> {
    let path = match std::fs::canonicalize(program) {
        Ok(path) => path,
        Err(error) => return Some(error.to_string()),
    };
    if path.starts_with(SHARED) {
        return Some(format!("it lies in {SHARED}, and that user gets another {SHARED}"));
    }
    path.ancestors().find_map(|part| {
        let mode = std::fs::metadata(part).ok()?.permissions().mode() & OTHERS;
        (mode & EXECUTE == 0).then(|| format!("{} is not open to others", part.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_behind_a_closed_door_is_none() {
        let folder = tempfile::Builder::new().prefix("underlay-test-").tempdir_in("/var/tmp").unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let (closed, open) = (folder.path().join("closed"), folder.path().join("open"));
        for place in [&closed, &open] {
            std::fs::create_dir(place).unwrap();
            std::fs::write(place.join("mvn"), "").unwrap();
            std::fs::set_permissions(place.join("mvn"), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
        let find = |folders: &[&Path]| program(&std::env::join_paths(folders).unwrap(), "mvn");
        assert_eq!(find(&[&closed, &open]), Some(Ok(open.join("mvn"))));
        let why = find(&[&closed]).unwrap().unwrap_err();
        assert!(why.contains(&format!("{} is not open to others", closed.display())), "{why}");
        assert_eq!(find(&[folder.path(), Path::new("relative")]), None);
        std::fs::set_permissions(open.join("mvn"), std::fs::Permissions::from_mode(0o744)).unwrap();
        assert!(find(&[&open]).unwrap().is_err());
    }
}
