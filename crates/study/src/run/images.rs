//! Copies backing files and keeps their holes: a prepared data set is cloned for every cell.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{SeekFrom, copy_file_range, ftruncate, seek};
use rustix::io::Errno;
use underlay_files::plain_file;

/// Copies a sparse file inside the kernel, and only its written parts.
pub(super) fn clone_image(from: &Path, to: &Path) -> io::Result<()> {
    let source = File::open(from)?;
    let target = plain_file::for_writing().truncate(true).open(to)?;
    let length = source.metadata()?.len();
    ftruncate(&target, length)?;
    // A file system that shares extents makes the copy free.
    if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
        return Ok(());
    }
    copy_data(&source, &target, length)
}

/// Copies a file into an empty one, and keeps its holes.
pub(super) fn copy_contents(source: &File, target: &File) -> io::Result<()> {
    let length = source.metadata()?.len();
    ftruncate(target, length)?;
    copy_data(source, target, length)
}

/// Copies everything but holes.
fn copy_data(source: &File, target: &File, length: u64) -> io::Result<()> {
    let mut position = 0;
    while position < length {
        let start = match seek(source, SeekFrom::Data(position)) {
            Ok(start) => start,
            // No data from here on: the rest is a hole, which `ftruncate` has made.
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = seek(source, SeekFrom::Hole(start))?;
        copy_range(source, target, start, end)?;
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
        let copied =
            match copy_file_range(source, Some(&mut offset_in), target, Some(&mut offset_out), length) {
                Err(Errno::INTR) => continue,
                // The kernel copies between file systems of one kind only.
                Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    return copy_by_hand(source, target, offset_in, end);
                }
                copied => copied?,
            };
        if copied == 0 {
            return Err(became_shorter());
        }
    }
    Ok(())
}

fn copy_by_hand(source: &File, target: &File, start: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut offset = start;
    while offset < end {
        let length = usize::try_from(end - offset).unwrap_or(usize::MAX).min(buffer.len());
        let read = source.read_at(&mut buffer[..length], offset)?;
        if read == 0 {
            return Err(became_shorter());
        }
        target.write_all_at(&buffer[..read], offset)?;
        offset += read as u64;
    }
    Ok(())
}

fn became_shorter() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "a file became shorter while it was copied")
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
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn clone_has_same_bytes_and_holes() {
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
}
