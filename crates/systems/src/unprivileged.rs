//! Third-party programs that root starts without giving them root's rights. They run as the user `nobody`, in their own
//! room, which is their `/tmp`. They see only their own processes, and all of them end with the first. Their results
//! are read through a descriptor of the room.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, Dir, Gid, Mode, OFlags, Uid, openat};
use rustix::mount::{MountFlags, mount, mount_bind, mount_remount};
use rustix::thread::{
    UnshareFlags, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use underlay_files::{Folder, scratch_dir};

use crate::child::ChildProcess;
use crate::mount_namespace::enter_own_mounts;
use crate::system::SystemError;

pub(crate) const USER: &str = "nobody";
/// Its usual id on Linux, for hosts without an entry in /etc/passwd.
const NOBODY: u32 = 65534;
const SHARED: &str = scratch_dir::SHARED;
/// The part of our environment that such a program gets: what it needs to reach a network, and no secrets. A proxy's
/// address may hold a password, but without it there is no network.
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

/// Where a third-party program works.
#[derive(Debug)]
pub(crate) struct UnprivilegedSandbox {
    /// Its path as seen by this process.
    path: PathBuf,
    descriptor: OwnedFd,
    user: (Uid, Gid),
    /// Whether the program runs in its own namespaces, in which the room is `/tmp`.
    is_apart: bool,
    /// A directory to remove with the room.
    outer: Option<Folder>,
}

/// Whether this process has rights that third-party programs must not get.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl UnprivilegedSandbox {
    /// Creates one in the folder `work` if that can become the program's `/tmp`. On hosts without namespaces it is
    /// created in the host's `/tmp` instead, which that user can reach.
    pub(crate) fn make(work: &Path) -> io::Result<UnprivilegedSandbox> {
        let user = user();
        let path = work.join("room");
        make_private(&path)?;
        let is_apart = can_be_apart(&path, user)?;
        let (path, outer) = match is_apart {
            true => (path, None),
            false => {
                // Inside a folder of ours, so that nobody else can replace it.
                let outer = scratch_dir::make_shared()?;
                std::fs::set_permissions(outer.path(), std::fs::Permissions::from_mode(0o711))?;
                let path = outer.path().join("room");
                make_private(&path)?;
                (path, Some(outer))
            }
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = openat(CWD, &path, flags, Mode::empty())?;
        Ok(UnprivilegedSandbox { path, descriptor, user, is_apart, outer })
    }

    /// The path of `name` for this process.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The path of `name` for the program.
    pub(crate) fn inside(&self, name: &str) -> PathBuf {
        self.folder_inside().join(name)
    }

    /// The path of the room for the program.
    pub(crate) fn folder_inside(&self) -> &Path {
        if self.is_apart { Path::new(SHARED) } else { &self.path }
    }

    /// How the program runs, as a phrase for progress messages.
    pub(crate) fn describe(&self) -> &'static str {
        if self.is_apart {
            "as nobody"
        } else {
            "as nobody, without namespaces, which this host does not allow"
        }
    }

    /// Creates a folder for the program. Must not be called once the program runs.
    pub(crate) fn make_folder(&self, name: &str) -> io::Result<()> {
        make_private(&self.path(name))?;
        self.give(name)
    }

    /// Creates a file that only the program can read. Must not be called once the program runs.
    pub(crate) fn make_file(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut file = underlay_files::plain_file::for_writing().create_new(true).open(self.path(name))?;
        io::Write::write_all(&mut file, content)?;
        self.give(name)
    }

    fn give(&self, name: &str) -> io::Result<()> {
        lchown(self.path(name), Some(self.user.0.as_raw()), Some(self.user.1.as_raw()))
    }

    /// Starts the program, whose environment has been set, and hands the room over to it.
    pub(crate) fn spawn(
        &self,
        system: &'static str,
        mut command: Command,
        log: &Path,
    ) -> Result<ChildProcess, SystemError> {
        let failed = |error: io::Error| {
            SystemError::starting(system, format!("can't hand its working directory over: {error}"))
        };
        self.give("").map_err(failed)?;
        for name in VARIABLES {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.current_dir(self.folder_inside());
        let (user, is_apart, room) = (self.user, self.is_apart, self.path.clone());
        // SAFETY: between fork and exec the closure makes system calls on data that it owns. It takes no lock, and rustix doesn't
        // allocate for paths as short as these.
        unsafe {
            command.pre_exec(move || {
                // Detach from our terminal: the program could inject input into it (TIOCSTI), which root's shell would
                // execute.
                rustix::process::setsid()?;
                if is_apart {
                    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
                    // Some containers forbid this. Then it sees other processes, but still can't signal them.
                    let _ = mount("proc", "/proc", "proc", flags, None);
                }
                set_no_new_privs(true)?;
                become_user(user)
            });
        }
        ChildProcess::spawn_apart(system, command, log, move || match is_apart {
            true => enter_namespaces(&room),
            false => Ok(()),
        })
    }

    /// Copies the `wanted` files (name and size) that the program left in `folder` to `target`, once nothing writes to
    /// them any more. Only regular files are copied, through descriptors, and at most as many bytes as wanted. Since
    /// the copies are ours, the caller can verify exactly what is used later. Missing files are skipped.
    ///
    /// # Errors
    /// When there is anything else in the folder: says what.
    pub(crate) fn collect<'a>(
        &self,
        folder: &str,
        wanted: impl IntoIterator<Item = (&'a str, u64)> + Clone,
        target: &Path,
    ) -> Result<(), String> {
        // The program may have left links and pipes: none is followed, and none makes this wait.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let unreadable = |item: &str, error: io::Error| format!("{item} can't be read: {error}");
        let folder = openat(&self.descriptor, folder, flags | OFlags::DIRECTORY, Mode::empty())
            .map_err(|error| unreadable(folder, error.into()))?;
        let listing = Dir::read_from(&folder).map_err(|error| unreadable("the folder", error.into()))?;
        // All names before the first copy: one that is not wanted means that none is used.
        for entry in listing {
            let entry = entry.map_err(|error| unreadable("the folder", error.into()))?;
            let name = entry.file_name().to_string_lossy();
            if name != "."
                && name != ".."
                && wanted.clone().into_iter().all(|(wanted_name, _)| name != wanted_name)
            {
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
            // A hard link to a file of somebody else has another owner.
            if !found.is_file() || found.uid() != self.user.0.as_raw() {
                return Err(format!("{name} is not a regular file of the user {USER}"));
            }
            // One byte more than wanted shows that a file is too long, without copying all of it.
            let written = File::create_new(target.join(name));
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

impl Drop for UnprivilegedSandbox {
    fn drop(&mut self) {
        if let Some(outer) = &self.outer {
            // If this fails, what is left is in /tmp and harmless.
            let _ = std::fs::remove_dir_all(outer.path());
        }
    }
}

fn make_private(path: &Path) -> io::Result<()> {
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(path)
}

/// The ids of the user in /etc/passwd.
fn user() -> (Uid, Gid) {
    let table = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let numbers = table.lines().find_map(|line| {
        let mut fields = line.strip_prefix(USER)?.strip_prefix(':')?.split(':').skip(1);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    let (user, group) = numbers.filter(|&(user, group)| user != 0 && group != 0).unwrap_or((NOBODY, NOBODY));
    (Uid::from_raw(user), Gid::from_raw(group))
}

/// Permanently gives up all rights of the calling thread.
fn become_user((user, group): (Uid, Gid)) -> io::Result<()> {
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    Ok(set_thread_res_uid(user, user, user)?)
}

/// Gives the calling thread its own mounts, in which `/tmp` is this room, and its children a new PID namespace.
fn enter_namespaces(room: &Path) -> io::Result<()> {
    // Before the room covers `/tmp`: a mount of another run there could not be reached any more.
    enter_own_mounts(&[room], UnshareFlags::NEWPID | UnshareFlags::NEWIPC)?;
    let wanted = std::fs::metadata(room)?;
    mount_bind(room, SHARED)?;
    mount_remount(SHARED, MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV, "")?;
    let found = std::fs::metadata(SHARED)?;
    match (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()) {
        true => Ok(()),
        false => Err(io::Error::other("the mount did not take place")),
    }
}

/// Whether namespaces are available, tried on a short-lived thread. Fails if that thread can't even become the user.
fn can_be_apart(room: &Path, user: (Uid, Gid)) -> io::Result<bool> {
    std::thread::scope(|scope| {
        let tried = scope.spawn(|| {
            let is_apart = enter_namespaces(room).is_ok();
            become_user(user).map(|()| is_apart)
        });
        tried.join().unwrap_or_else(|_| Err(io::Error::other("a thread ended early")))
    })
}

/// Finds a `program` in the folders of `path` that the user can run, or says why the user can't. `None` if there is
/// none.
pub(crate) fn program(path: &OsStr, program: &str) -> Option<Result<PathBuf, String>> {
    let mut closed = None;
    for folder in std::env::split_paths(path).filter(|folder| folder.is_absolute()) {
        let found = folder.join(program);
        if !found.is_file() {
            continue;
        }
        match closed_to_others(&found) {
            None => return Some(Ok(found)),
            Some(reason) => {
                closed =
                    closed.or(Some(format!("{} can't be run by the user {USER}: {reason}", found.display())))
            }
        }
    }
    closed.map(Err)
}

/// Why the user can't run the program at this path.
pub(crate) fn closed_to_others(program: &Path) -> Option<String> {
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
    fn only_programs_that_others_can_run_are_found() {
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
        let reason = find(&[&closed]).unwrap().unwrap_err();
        assert!(reason.contains(&format!("{} is not open to others", closed.display())), "{reason}");
        assert_eq!(find(&[folder.path(), Path::new("relative")]), None);
        std::fs::set_permissions(open.join("mvn"), std::fs::Permissions::from_mode(0o744)).unwrap();
        assert!(find(&[&open]).unwrap().is_err());
    }
}
