//! Copies of backing files and data trees, holes kept: a prepared data set is cloned for every cell.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, lchown};
use std::path::Path;

use rustix::fs::{SeekFrom, copy_file_range, ftruncate, seek};
use rustix::io::Errno;
use underlay_files::plain_file;

/// Copies a sparse file: only what is written in it, and by the kernel.
pub(super) fn clone_image(from: &Path, to: &Path) -> io::Result<()> {
    let source = File::open(from)?;
    let target = plain_file::for_writing().truncate(true).open(to)?;
    let length = source.metadata()?.len();
    ftruncate(&target, length)?;
    // A file system that shares extents makes the copy free.
    if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
        return Ok(());
    }
    let mut position = 0;
    while position < length {
        let start = match seek(&source, SeekFrom::Data(position)) {
            Ok(start) => start,
            // No data from here on: the rest is a hole, which `ftruncate` has made.
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = seek(&source, SeekFrom::Hole(start))?;
        copy_range(&source, &target, start, end)?;
        position = end;
    }
    Ok(())
}

/// Clones the images (`*.img`) of a folder into another one.
pub(super) fn clone_folder(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        if Path::new(&name).extension().is_some_and(|extension| extension == "img") {
            clone_image(&from.join(&name), &to.join(&name))?;
        }
    }
    Ok(())
}

fn copy_range(source: &File, target: &File, start: u64, end: u64) -> io::Result<()> {
    let (mut offset_in, mut offset_out) = (start, start);
    while offset_in < end {
        // The kernel copies less than 2 GiB in one call.
        let length = usize::try_from(end - offset_in).unwrap_or(usize::MAX).min(1 << 30);
        let copied = copy_file_range(source, Some(&mut offset_in), target, Some(&mut offset_out), length)?;
        if copied == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "an image became shorter while it was copied",
            ));
        }
    }
    Ok(())
}

/// Copies the files, folders and links below `from` into the existing folder `to` with their owners and modes, and syncs nothing.
pub(super) fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            fs::create_dir_all(&target)?;
            copy_tree(&entry.path(), &target)?;
            copy_owner(&entry.path(), &target)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), &target)?;
            copy_owner(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path())?, &target)?;
        }
    }
    Ok(())
}

/// Programs that run as other users refuse data of the wrong one.
fn copy_owner(from: &Path, to: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(from)?;
    let ours = fs::symlink_metadata(to)?;
    if (found.uid(), found.gid()) != (ours.uid(), ours.gid()) {
        lchown(to, Some(found.uid()), Some(found.gid()))?;
    }
    fs::set_permissions(to, found.permissions())
}

/// Bytes in the files below a folder.
pub(super) fn tree_bytes(path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            bytes += tree_bytes(&entry.path())?;
        } else if kind.is_file() {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn a_clone_has_the_same_bytes_and_the_same_holes() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from.img"), folder.path().join("to.img"));
        let source = File::create(&from).unwrap();
        source.set_len(64 << 20).unwrap();
        for (offset, byte) in [(0, 1), (5 << 20, 2), (63 << 20, 3)] {
            source.write_all_at(&[byte; 8192], offset).unwrap();
        }
        clone_image(&from, &to).unwrap();
        assert_eq!(fs::read(&from).unwrap(), fs::read(&to).unwrap());
        let used_bytes = fs::metadata(&to).unwrap().blocks() * 512;
        assert!(used_bytes < 4 << 20, "the holes were filled: {used_bytes} bytes are used");
    }

    #[test]
    fn a_copied_tree_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("inner")).unwrap();
        fs::create_dir_all(&to).unwrap();
        fs::write(from.join("one"), "1").unwrap();
        fs::write(from.join("inner/two"), "22").unwrap();
        copy_tree(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("inner/two")).unwrap(), "22");
        assert_eq!(tree_bytes(&to).unwrap(), tree_bytes(&from).unwrap());
        assert_eq!(tree_bytes(&to).unwrap(), 3);
    }
}
