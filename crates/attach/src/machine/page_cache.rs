//! The page cache of files: dropped, so that the next read comes from the device.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, Dir, FileType, Mode, OFlags};

use crate::machine::error::AttachError;
use crate::machine::mounts;

/// No system nests its directories deeper; each level holds two descriptors.
const MAX_DEPTH: usize = 64;

/// Drops the page cache of `paths` and of all files below them, no matter which process read them, after writing out
/// dirty pages on their file systems. The next read comes from the device. It needs no budget and no privileges. Other
/// file systems mounted below are not touched; files that can't be opened, and pages that are mapped, keep theirs.
///
/// # Errors
/// When a file can't be opened, or the kernel does not drop its pages.
pub fn drop_file_caches(paths: &[PathBuf]) -> Result<(), AttachError> {
    for path in paths {
        // Written out first: DONTNEED drops clean pages only (posix_fadvise(2)).
        mounts::write_out(path).map_err(|error| AttachError::io("write out", path, error))?;
        forget_pages_below(path);
    }
    Ok(())
}

/// Drops every clean page of this machine, after writing dirty pages out.
pub(crate) fn drop_all() -> Result<(), AttachError> {
    rustix::fs::sync();
    let path = Path::new("/proc/sys/vm/drop_caches");
    fs::write(path, "1").map_err(|error| AttachError::io("write", path, error))
}

/// Advises the kernel to forget every page of a file, or of every file below a directory, without crossing into
/// other filesystems.
fn forget_pages_below(path: &Path) {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let Ok(root) = fs::metadata(path) else { return };
    if root.file_type().is_block_device() {
        // A bare device has its own pages, which no file system would have written out.
        let _ = mounts::write_out_device(path);
        forget_pages_of(path);
        return;
    }
    if root.is_file() {
        forget_pages_of(path);
        return;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Ok(directory) = rustix::fs::open(path, flags, Mode::empty()) {
        forget_pages_in(&directory, root.dev(), MAX_DEPTH);
    }
}

/// By descriptors: the program that owns these files may be running, and could replace one with a link, a pipe or a
/// device.
fn forget_pages_in(directory: &OwnedFd, device: u64, depth: usize) {
    use std::os::fd::AsRawFd as _;
    let Ok(entries) = Dir::read_from(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        // Opened without side effects.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(found) = rustix::fs::openat(directory, name, flags, Mode::empty()) else { continue };
        let Ok(status) = rustix::fs::fstat(&found) else { continue };
        let same = format!("/proc/thread-self/fd/{}", found.as_raw_fd());
        match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => forget_pages_of(Path::new(&same)),
            FileType::Directory if status.st_dev == device && depth > 0 => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                if let Ok(below) = rustix::fs::openat(&found, ".", flags, Mode::empty()) {
                    forget_pages_in(&below, device, depth - 1);
                }
            }
            _ => {}
        }
    }
}

fn forget_pages_of(path: &Path) {
    if let Ok(file) = File::open(path) {
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On this machine itself: `mincore` shows the contents of the page cache.
    #[test]
    fn file_caches_are_dropped_without_a_budget() {
        let program = std::env::current_exe().unwrap();
        let keep = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let below = keep.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        let alone = tempfile::NamedTempFile::new_in(program.parent().unwrap()).unwrap();
        let files = [below.join("data"), alone.path().to_owned()];
        for file in &files {
            // Dirty pages can't be dropped, so these have to be written out first.
            fs::write(file, vec![1_u8; 2 << 20]).unwrap();
            assert!(cached_pages(file) > 0, "{} lies on a memory filesystem", file.display());
        }
        drop_file_caches(&[keep.path().to_owned(), alone.path().to_owned()]).unwrap();
        for file in &files {
            assert_eq!(cached_pages(file), 0, "{}", file.display());
            assert_eq!(fs::read(file).unwrap(), vec![1_u8; 2 << 20]);
        }
        let missing = drop_file_caches(&[keep.path().join("missing")]).unwrap_err();
        assert!(missing.to_string().contains("missing"));
    }

    fn cached_pages(path: &Path) -> usize {
        use std::os::fd::AsRawFd;
        let file = File::open(path).unwrap();
        let length = file.metadata().unwrap().len() as usize;
        let mut resident = vec![0_u8; length.div_ceil(4096)];
        // SAFETY: the mapping is only looked at by mincore, which writes one byte a page into `resident`.
        unsafe {
            let place = libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            assert_ne!(place, libc::MAP_FAILED);
            assert_eq!(libc::mincore(place, length, resident.as_mut_ptr()), 0);
            libc::munmap(place, length);
        }
        resident.iter().filter(|page| **page & 1 == 1).count()
    }
}
