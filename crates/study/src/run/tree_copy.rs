//! Copies data trees: the data set of a storage configuration of the user's directories. Both trees may belong to the
//! program's own Unix user, who could replace a file by a link meanwhile. So everything is opened by descriptor, and no
//! link is followed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, fstat, mkdirat, openat,
    readlinkat, statat, symlinkat,
};
use rustix::io::Errno;

use super::images::copy_contents;

/// No system nests its directories deeper; each level holds descriptors.
const MAX_DEPTH: usize = 64;
const PERMISSIONS: u32 = 0o7777;

/// Copies the files, directories and links below `from` into the existing directory `to` with their owners, modes and
/// holes, and syncs nothing. Other kinds of files, such as sockets, are left out.
pub(super) fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    copy_entries(open_directory(CWD, from)?.as_fd(), open_directory(CWD, to)?.as_fd(), MAX_DEPTH)
}

fn open_directory<P: rustix::path::Arg>(parent: BorrowedFd<'_>, name: P) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

/// Opens a regular file: anything else with that name is an error. Opening a pipe does not wait for its other end.
fn open_file(parent: BorrowedFd<'_>, name: &std::ffi::CStr, flags: OFlags) -> io::Result<(File, Stat)> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?;
    let found = fstat(&file)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok((File::from(file), found)),
        _ => Err(io::Error::other(format!("{} was replaced while it was copied", name.to_string_lossy()))),
    }
}

fn copy_entries(from: BorrowedFd<'_>, to: BorrowedFd<'_>, depth: usize) -> io::Result<()> {
    if depth == 0 {
        return Err(io::Error::other(format!("directories are nested more than {MAX_DEPTH} deep")));
    }
    for entry in Dir::read_from(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let found = statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => {
                let source = open_directory(from, name)?;
                match mkdirat(to, name, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                let target = open_directory(to, name)?;
                copy_entries(source.as_fd(), target.as_fd(), depth - 1)?;
                give(target.as_fd(), &fstat(&source)?)?;
            }
            FileType::RegularFile => {
                let (source, found) = open_file(from, name, OFlags::RDONLY)?;
                let (target, _) = open_file(to, name, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
                copy_contents(&source, &target)?;
                give(target.as_fd(), &found)?;
            }
            FileType::Symlink => symlinkat(readlinkat(from, name, Vec::new())?, to, name)?,
            _ => {}
        }
    }
    Ok(())
}

/// Programs that run as other users refuse data with the wrong owner. The owner is that of the file that was read, not
/// of the one that has its name now.
fn give(target: BorrowedFd<'_>, found: &Stat) -> io::Result<()> {
    let ours = fstat(target)?;
    if (found.st_uid, found.st_gid) != (ours.st_uid, ours.st_gid) {
        fchown(target, Some(Uid::from_raw(found.st_uid)), Some(Gid::from_raw(found.st_gid)))?;
    }
    // After the owner, since changing it clears the set-user-ID and set-group-ID bits.
    Ok(fchmod(target, Mode::from_raw_mode(found.st_mode & PERMISSIONS))?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};

    use super::super::images::tree_bytes;
    use super::*;

    #[test]
    fn copied_tree_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("inner")).unwrap();
        fs::create_dir_all(&to).unwrap();
        fs::write(from.join("one"), "1").unwrap();
        fs::write(from.join("inner/two"), "22").unwrap();
        fs::set_permissions(from.join("inner"), fs::Permissions::from_mode(0o750)).unwrap();
        let sparse = File::create(from.join("sparse")).unwrap();
        sparse.set_len(32 << 20).unwrap();
        sparse.write_all_at(&[1; 4096], 16 << 20).unwrap();
        copy_tree(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("inner/two")).unwrap(), "22");
        assert_eq!(fs::metadata(to.join("inner")).unwrap().mode() & 0o777, 0o750);
        assert_eq!(tree_bytes(&to).unwrap(), tree_bytes(&from).unwrap());
        assert_eq!(fs::read(to.join("sparse")).unwrap(), fs::read(from.join("sparse")).unwrap());
        assert!(fs::metadata(to.join("sparse")).unwrap().blocks() * 512 < 4 << 20, "the holes were filled");
    }

    /// The kernel can't copy between all kinds of file systems, and a data set goes from this machine's to a modelled
    /// disk's.
    #[test]
    fn tree_is_copied_between_file_systems() {
        let Ok(memory) = tempfile::tempdir_in("/dev/shm") else { return };
        let disk = tempfile::tempdir().unwrap();
        fs::write(memory.path().join("file"), vec![7; 3 << 20]).unwrap();
        copy_tree(memory.path(), disk.path()).unwrap();
        assert_eq!(fs::read(disk.path().join("file")).unwrap(), vec![7; 3 << 20]);
    }

    #[test]
    fn copy_follows_no_link_and_never_waits() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to, secret) =
            (folder.path().join("from"), folder.path().join("to"), folder.path().join("secret"));
        fs::create_dir_all(&from).unwrap();
        fs::create_dir_all(&to).unwrap();
        fs::write(&secret, "ours").unwrap();
        symlink(&secret, from.join("link")).unwrap();
        rustix::fs::mknodat(CWD, from.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        copy_tree(&from, &to).unwrap();
        assert_eq!(fs::read_link(to.join("link")).unwrap(), secret, "a link is copied as one");
        assert!(!to.join("pipe").exists());
        // If a link stands at the target, the file is not written through it.
        fs::remove_file(from.join("link")).unwrap();
        fs::write(from.join("link"), "theirs").unwrap();
        assert!(copy_tree(&from, &to).is_err());
        assert_eq!(fs::read_to_string(&secret).unwrap(), "ours");
        let linked = folder.path().join("linked");
        symlink(&from, &linked).unwrap();
        assert!(copy_tree(&linked, &to).is_err());
    }
}
