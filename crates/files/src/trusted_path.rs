//! The way to a folder: others who can write to a folder on it can put another one in its place.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;

/// As many as the kernel follows.
const MAX_LINKS: usize = 40;
/// The caller of `sudo` may become root anyway.
const SUDO_USER: &str = "SUDO_UID";

/// Flags to open a folder that is only passed through: `PATH` needs no permission to read it.
pub(crate) const PASSING: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Refuses the folder `path`, which is there, when somebody else could replace something on the way to it.
/// For root the rules are stricter: every folder belongs to root, or to the caller of `sudo`, and nobody else
/// can write to it, unless it has the sticky bit. For everyone, a link in a folder that others can write to
/// must be the user's own or root's.
///
/// # Errors
/// When that is so, or the path can't be walked.
pub fn check_trusted_path(path: &Path) -> io::Result<()> {
    let user = User::current();
    let descriptor = open_trusted_path(path, &user)?;
    let folder = fstat(&descriptor)?;
    user.exchange(&descriptor, &folder).map_or(Ok(()), |reason| Err(refused(path, path, &reason)))
}

/// As [`check_trusted_path`], of the way to `path` alone: that folder itself may be anybody's, as one that is mounted
/// over.
///
/// # Errors
/// As `check_trusted_path`.
pub fn check_trusted_path_to(path: &Path) -> io::Result<()> {
    open_trusted_path(path, &User::current()).map(drop)
}

/// The folder `path`, to be mounted on by its descriptor: found as [`check_trusted_path_to`] lets it pass, and without
/// a link on the way, as a path that was resolved before. Its later replacement does not matter.
///
/// # Errors
/// As `check_trusted_path_to`, and when a link leads elsewhere.
pub fn open_mount_point(path: &Path) -> io::Result<OwnedFd> {
    let folder = open_trusted_path(path, &User::current())?;
    let place = place_of(&folder)?;
    if place != path {
        let problem = format!("a link leads to {} now", place.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    }
    Ok(folder)
}

/// As [`check_trusted_path`], of a file that is to be run, and of the way to it. For root the file itself has to belong
/// to root, or to the caller of `sudo`, and nobody else may write to it. Links to it are followed.
///
/// # Errors
/// As `check_trusted_path`, and when the file can't be found.
pub fn check_trusted_file(path: &Path) -> io::Result<()> {
    let user = User::current();
    let absolute = std::path::absolute(path)?;
    // Both ways count: the one to a link, which others could replace, and the one to what it leads to.
    let resolved = std::fs::canonicalize(&absolute)?;
    for file in [&absolute, &resolved] {
        let (Some(folder), Some(_)) = (file.parent(), file.file_name()) else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        check_trusted_path(folder)?;
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(rustix::fs::CWD, &resolved, flags, Mode::empty())?;
    let mistrust = user.mistrust(&file, &fstat(&file)?).filter(|_| user.number == 0);
    mistrust.map_or(Ok(()), |reason| {
        let path = absolute.display();
        let problem = format!(
            "{path} {reason}, so it could be exchanged before root runs it: give it to root, and take write permission from all others"
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
    })
}

/// Who this process works for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub number: u32,
    /// The caller of `sudo`.
    behind: Option<u32>,
}

impl User {
    pub(crate) fn current() -> User {
        let number = rustix::process::geteuid().as_raw();
        let caller = || std::env::var(SUDO_USER).ok()?.parse().ok();
        User { number, behind: if number == 0 { caller() } else { None } }
    }

    pub(crate) fn owns(&self, found: &Stat) -> bool {
        found.st_uid == self.number || Some(found.st_uid) == self.behind
    }

    pub(crate) fn trusts(&self, found: &Stat) -> bool {
        found.st_uid == 0 || self.owns(found)
    }

    /// Why others could put something into this folder, or take something out of it: nothing where they can't.
    pub(crate) fn mistrust(&self, descriptor: impl AsFd, folder: &Stat) -> Option<String> {
        if !self.trusts(folder) {
            return Some(format!("belongs to user {}", folder.st_uid));
        }
        let mode = Mode::from_raw_mode(folder.st_mode);
        if mode.contains(Mode::WOTH) {
            return Some("can be written to by everybody".to_owned());
        }
        // A group of the owner's number is the owner's alone, as most distributions make users. Other groups were
        // chosen by those who are in them, but not for root to be at their mercy.
        if !mode.contains(Mode::WGRP) || self.number != 0 {
            return None;
        }
        // With an access control list the group's bits are its mask: the most that anyone whom it names can
        // have.
        if has_access_list(descriptor) {
            return Some("can be written to by those on its access control list".to_owned());
        }
        let is_private = folder.st_gid == folder.st_uid;
        (!is_private).then(|| format!("can be written to by group {}", folder.st_gid))
    }

    /// Why others could exchange what is ours in this folder, where that is root's.
    pub(crate) fn exchange(&self, descriptor: impl AsFd, folder: &Stat) -> Option<String> {
        self.mistrust(descriptor, folder).filter(|_| self.may_lose_from(folder))
    }

    /// Whether what others could put into a folder is enough to refuse it: for root, unless only their own entries are
    /// theirs.
    fn may_lose_from(&self, folder: &Stat) -> bool {
        let is_sticky = Mode::from_raw_mode(folder.st_mode).contains(Mode::SVTX) && self.trusts(folder);
        self.number == 0 && !is_sticky
    }
}

/// The folder at the end of a way that [`check_trusted_path`] lets pass.
pub(crate) fn open_trusted_path(path: &Path, user: &User) -> io::Result<OwnedFd> {
    let absolute = std::path::absolute(path)?;
    let mut left: VecDeque<OsString> = parts(&absolute);
    let root = || openat(rustix::fs::CWD, "/", PASSING, Mode::empty());
    let (mut directory, mut so_far, mut links) = (root()?, PathBuf::from("/"), 0);
    while let Some(name) = left.pop_front() {
        let folder = fstat(&directory)?;
        let is_sticky = Mode::from_raw_mode(folder.st_mode).contains(Mode::SVTX);
        let mistrust = user.mistrust(&directory, &folder);
        if let Some(reason) = mistrust.as_ref().filter(|_| user.may_lose_from(&folder)) {
            return Err(refused(path, &so_far, reason));
        }
        let found = statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::LOOP.into());
            }
            if mistrust.is_some() && !user.trusts(&found) {
                let link = so_far.join(&name);
                return Err(refused(path, &link, &format!("is a link of user {}", found.st_uid)));
            }
            let target = OsString::from_vec(readlinkat(&directory, &name, Vec::new())?.into_bytes());
            if Path::new(&target).is_absolute() {
                (directory, so_far) = (root()?, PathBuf::from("/"));
            }
            for part in parts(Path::new(&target)).into_iter().rev() {
                left.push_front(part);
            }
            continue;
        }
        directory = openat(&directory, &name, PASSING, Mode::empty())?;
        if name.as_os_str() == ".." {
            so_far.pop();
        } else {
            so_far.push(&name);
        }
        // In a sticky folder an entry stays where it is only as its owner wants.
        if is_sticky && mistrust.is_some() && !user.trusts(&fstat(&directory)?) {
            return Err(refused(path, &so_far, &format!("belongs to user {}", found.st_uid)));
        }
    }
    Ok(directory)
}

/// The folder `path`, which no link is on the way to: as it was when the path was found out.
pub(crate) fn open_straight(path: &Path) -> io::Result<OwnedFd> {
    let mut directory = openat(rustix::fs::CWD, "/", PASSING, Mode::empty())?;
    for name in parts(&std::path::absolute(path)?) {
        directory = openat(&directory, &name, PASSING, Mode::empty())?;
    }
    Ok(directory)
}

/// POSIX access control lists (acl(5)); a file system that has none says so.
pub(crate) fn has_access_list(folder: impl AsFd) -> bool {
    // Through /proc, since `fgetxattr` refuses a descriptor that was opened with `O_PATH`.
    match rustix::fs::getxattr_query(proc_path(folder), "system.posix_acl_access") {
        Ok(length) => length > 0,
        Err(Errno::NODATA | Errno::NOTSUP) => false,
        // Unknown counts as open to others.
        Err(_) => true,
    }
}

/// The list as the kernel gives it, up to what any file system keeps.
pub(crate) fn access_list(file: impl AsFd) -> Result<Vec<u8>, Errno> {
    let mut list = vec![0; 64 << 10];
    let length = rustix::fs::getxattr(proc_path(file), "system.posix_acl_access", &mut list[..])?;
    list.truncate(length);
    Ok(list)
}

/// Where a folder is, without links.
pub(crate) fn place_of(folder: impl AsFd) -> io::Result<PathBuf> {
    std::fs::read_link(proc_path(&folder))
}

/// A path to what is open here, for calls that take paths only.
pub(crate) fn proc_path(folder: impl AsFd) -> PathBuf {
    use std::os::fd::AsRawFd as _;
    PathBuf::from(format!("/proc/self/fd/{}", folder.as_fd().as_raw_fd()))
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let is_step = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(is_step).map(|part| part.as_os_str().to_owned()).collect()
}

pub(crate) fn refused(path: &Path, location: &Path, reason: &str) -> io::Error {
    let (path, location) = (path.display(), location.display());
    let problem = if path.to_string() == location.to_string() {
        format!("it {reason}")
    } else {
        format!("{location} {reason}")
    };
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "{problem}, so what is in it could be exchanged: name a directory that only you and root can write to"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_point_replaced_by_link_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let above = folder.path().canonicalize().unwrap();
        let (place, target) = (above.join("place"), above.join("elsewhere"));
        std::fs::create_dir(&place).unwrap();
        std::fs::create_dir(&target).unwrap();
        assert_eq!(place_of(open_mount_point(&place).unwrap()).unwrap(), place);
        std::fs::remove_dir(&place).unwrap();
        std::os::unix::fs::symlink(&target, &place).unwrap();
        let refused = open_mount_point(&place).unwrap_err().to_string();
        assert!(refused.contains(target.to_str().unwrap()), "{refused}");
    }
}
