//! Removing what we made, by its path: where a link has appeared on the way since, it is somebody else's.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, statat, unlinkat};

use crate::trusted_path::{User, open_straight, proc_path};

/// Removes the folder with everything in it. Its path has no links; none in it is followed.
///
/// # Errors
/// When it is not there, is another user's, a link is on the way, or something in it can't be removed.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let (above, name) = above(path)?;
    check_ours(&above, name)?;
    // By descriptor from here on; `std` uses descriptors below this folder as well.
    std::fs::remove_dir_all(proc_path(&above).join(name))
}

/// Removes a file or socket of this user.
///
/// # Errors
/// As [`remove_tree`].
pub fn remove_file(path: &Path) -> io::Result<()> {
    let (above, name) = above(path)?;
    check_ours(&above, name)?;
    Ok(unlinkat(&above, name, AtFlags::empty())?)
}

fn above(path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let Some((above, name)) = path.parent().zip(path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let above = open_straight(above).map_err(|error| match error.kind() {
        io::ErrorKind::NotADirectory => io::Error::new(
            error.kind(),
            "part of its path is no longer a directory, so it is not what was created: find out where it is, \
                 and remove it by hand",
        ),
        _ => error,
    })?;
    Ok((above, name))
}

fn check_ours(above: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let found = statat(above, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let user = User::current();
    if !user.owns(&found) || FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
        let problem = format!("it now belongs to user {}, so it is not what was created", found.st_uid);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    }
    Ok(())
}
