//! The Unix user that a program runs as, and what that user can reach.
//!
//! Storages are mounted in directories of ours that others can't enter. For a process of another user these are opened
//! in a mount namespace of its own: every closed directory above a storage becomes an empty one there, which holds
//! nothing but the storages, at the same paths.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Gid, Mode, OFlags, Uid, openat};
use rustix::mount::{MountFlags, mount, mount_bind};
use rustix::thread::UnshareFlags;

use super::NAME;
use crate::mount_namespace::enter_own_mounts;
use crate::system::SystemError;

const EXECUTE_BY_OTHERS: u32 = 0o001;
const EXECUTE_BY_OWNER: u32 = 0o100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnixUser {
    pub name: String,
    pub uid: Uid,
    pub gid: Gid,
}

impl UnixUser {
    /// The user of this name, where this process may become it; `None` where it is that already.
    pub(super) fn find(name: &str) -> Result<Option<UnixUser>, SystemError> {
        let table = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let Some((uid, gid)) = table.lines().find_map(|line| ids_of(line, name)) else {
            return Err(SystemError::Missing {
                system: NAME,
                missing: format!("the Unix user {name}"),
                remedy: "install the package that creates it, create it with adduser(8), or name another one as `user`"
                    .to_owned(),
            });
        };
        if rustix::process::geteuid().as_raw() == uid {
            return Ok(None);
        }
        if !rustix::process::geteuid().is_root() {
            return Err(SystemError::Missing {
                system: NAME,
                missing: format!("the right to run programs as the user {name}"),
                remedy: "run as root, or leave out `user`".to_owned(),
            });
        }
        Ok(Some(UnixUser { name: name.to_owned(), uid: Uid::from_raw(uid), gid: Gid::from_raw(gid) }))
    }

    /// Makes a directory or a file of ours this user's.
    pub(super) fn own(&self, path: &Path) -> io::Result<()> {
        std::os::unix::fs::lchown(path, Some(self.uid.as_raw()), Some(self.gid.as_raw()))
    }

    /// Whether this user can't pass through a directory.
    fn is_kept_out_of(&self, directory: &Path) -> bool {
        let Ok(found) = std::fs::metadata(directory) else { return false };
        let needed = if found.uid() == self.uid.as_raw() { EXECUTE_BY_OWNER } else { EXECUTE_BY_OTHERS };
        found.mode() & needed == 0
    }

    /// The topmost directory on the way to `place` that this user can't enter; the place itself does not count.
    fn closed_above(&self, place: &Path) -> Option<PathBuf> {
        let mut above: Vec<&Path> = place.ancestors().skip(1).collect();
        above.reverse();
        above.into_iter().find(|directory| self.is_kept_out_of(directory)).map(Path::to_owned)
    }

    /// Lets this user pass through a directory of ours that it was closed out of: names in it stay ours to tell.
    pub(super) fn let_through(&self, directory: &Path) -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        match self.is_kept_out_of(directory) {
            true => std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o711)),
            false => Ok(()),
        }
    }

    /// Opens these directories to this user, by their paths, in the mounts of the calling thread: [`set_apart`] has
    /// made them its own.
    fn open_way(&self, places: &[PathBuf]) -> io::Result<()> {
        let closed: Vec<(PathBuf, &PathBuf)> =
            places.iter().filter_map(|place| Some((self.closed_above(place)?, place))).collect();
        if closed.is_empty() {
            return Ok(());
        }
        // Held before they are covered.
        let mut opened: Vec<(&PathBuf, OwnedFd)> = Vec::new();
        for (_, place) in &closed {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            opened.push((place, openat(CWD, place.as_path(), flags, Mode::empty())?));
        }
        let mut covers: Vec<&PathBuf> = closed.iter().map(|(above, _)| above).collect();
        covers.sort();
        covers.dedup();
        for cover in covers {
            let options = c"mode=0711,size=1m";
            mount("tmpfs", cover, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, options)?;
        }
        for (place, descriptor) in opened {
            std::fs::DirBuilder::new().recursive(true).mode(0o711).create(place)?;
            mount_bind(format!("/proc/thread-self/fd/{}", descriptor.as_raw_fd()), place)?;
        }
        Ok(())
    }
}

/// Gives the calling thread mounts, System V IPC and shared memory of its own, which end with its last process: a
/// program that is killed leaves none behind. In these mounts `user` reaches `places`.
pub(super) fn set_apart(user: Option<&UnixUser>, places: &[PathBuf]) -> io::Result<()> {
    // Before the program is there: in mounts that it might have changed we do nothing.
    let own: Vec<&Path> = places.iter().map(PathBuf::as_path).collect();
    enter_own_mounts(&own, UnshareFlags::NEWIPC)?;
    let shared_memory = Path::new("/dev/shm");
    if shared_memory.is_dir() {
        mount("tmpfs", shared_memory, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=1777")?;
    }
    user.map_or(Ok(()), |user| user.open_way(places))
}

/// The ids in a line of /etc/passwd, where it is this user's.
fn ids_of(line: &str, name: &str) -> Option<(u32, u32)> {
    let mut fields = line.strip_prefix(name)?.strip_prefix(':')?.split(':').skip(1);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Creates a directory that nobody but the user of the program enters.
pub(super) fn make_private(path: &Path, user: Option<&UnixUser>) -> io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(path)?;
    user.map_or(Ok(()), |user| user.own(path))
}

/// Writes a file that the program runs or reads.
pub(super) fn write_file(path: &Path, text: &str, mode: u32, user: Option<&UnixUser>) -> io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(std::fs::Permissions::from_mode(mode))?;
    // By its descriptor: in its own directory the user may have put another file in its place.
    let owner = user.map(|user| (user.uid, user.gid));
    owner.map_or(Ok(()), |(uid, gid)| Ok(rustix::fs::fchown(&file, Some(uid), Some(gid))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_ids_are_read_by_whole_name() {
        let line = "postgres:x:107:115:PostgreSQL administrator,,,:/var/lib/postgresql:/bin/bash";
        assert_eq!(ids_of(line, "postgres"), Some((107, 115)));
        for other in ["postgre", "postgresx", ""] {
            assert_eq!(ids_of(line, other), None, "{other}");
        }
        assert_eq!(ids_of("postgres:x:many:115::/:/bin/sh", "postgres"), None);
    }

    #[test]
    fn unknown_user_is_reported() {
        let error = UnixUser::find("no-such-user-here").unwrap_err().to_string();
        assert!(error.contains("the Unix user no-such-user-here"), "{error}");
    }
}
