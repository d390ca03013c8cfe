//! A job's writes to the NodeManager's local directories. Hadoop has no counter for that, so they are polled while it
//! runs.

use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use underlay_sync::Mutex;

/// Files that live for a shorter time may be missed. Spills and merged files live for longer.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Each map output comes with a small file that says where the part of each reduce starts.
const INDEX: &str = ".index";

/// The bytes written to one directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LocalUse {
    /// Spills, map outputs, merged files.
    pub files: u64,
    pub bytes: u64,
}

/// Watches the local directories of a NodeManager during one application.
#[derive(Debug)]
pub(super) struct LocalWatch {
    directories: Vec<PathBuf>,
    seen: Mutex<Vec<DirectoryFiles>>,
    over: AtomicBool,
}

/// The files of one directory.
#[derive(Debug, Default)]
struct DirectoryFiles {
    /// Existing files by inode.
    present: HashMap<u64, LocalFile>,
    gone: LocalUse,
}

#[derive(Clone, Debug)]
struct LocalFile {
    path: PathBuf,
    bytes: u64,
    look: u64,
}

impl LocalWatch {
    pub(super) fn new(directories: &[PathBuf]) -> LocalWatch {
        let seen = directories.iter().map(|_| DirectoryFiles::default()).collect();
        LocalWatch { directories: directories.to_vec(), seen: Mutex::new(seen), over: AtomicBool::new(false) }
    }

    /// Polls the files of `application` until [`end`](Self::end).
    pub(super) fn run(&self, application: &str) {
        let mut look = 0;
        while !self.over.load(Ordering::Acquire) {
            look += 1;
            self.look(application, look);
            std::thread::sleep(LOOK_EVERY);
        }
    }

    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    fn look(&self, application: &str, look: u64) {
        let mut seen = self.seen.lock();
        for (directory, seen) in self.directories.iter().zip(seen.iter_mut()) {
            // There is one user, whose name depends on the host.
            for user in children(&directory.join("usercache")) {
                walk(&user.join("appcache").join(application).join("output"), &mut |path, data| {
                    seen.note(path, data.ino(), data.len(), look);
                });
            }
            seen.forget_gone(look);
        }
    }

    /// The bytes written to each directory so far.
    pub(super) fn uses(&self) -> Vec<LocalUse> {
        let seen = self.seen.lock();
        seen.iter().map(DirectoryFiles::total).collect()
    }
}

impl DirectoryFiles {
    fn note(&mut self, path: &Path, inode: u64, bytes: u64, look: u64) {
        if let Some(file) = self.present.get_mut(&inode) {
            // A map with one spill renames it within its folder. A new file may reuse the inode of a deleted one.
            if file.path == path || (file.path.parent() == path.parent() && bytes >= file.bytes) {
                *file = LocalFile { path: path.to_owned(), bytes: bytes.max(file.bytes), look };
                return;
            }
            let old = file.clone();
            self.gone.add(&old);
        }
        self.present.insert(inode, LocalFile { path: path.to_owned(), bytes, look });
    }

    fn forget_gone(&mut self, look: u64) {
        let removed = &mut self.gone;
        self.present.retain(|_, file| {
            let is_there = file.look == look;
            if !is_there {
                removed.add(file);
            }
            is_there
        });
    }

    fn total(&self) -> LocalUse {
        let mut total = self.gone;
        self.present.values().for_each(|file| total.add(file));
        total
    }
}

impl LocalUse {
    fn add(&mut self, file: &LocalFile) {
        self.bytes += file.bytes;
        let is_index = file.path.to_string_lossy().ends_with(INDEX);
        self.files += u64::from(!is_index);
    }
}

/// The entries of a folder; none if it doesn't exist.
fn children(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Calls `each` with every regular file below `folder`, while files may come and go.
fn walk(folder: &Path, each: &mut dyn FnMut(&Path, &Metadata)) {
    for path in children(folder) {
        match std::fs::symlink_metadata(&path) {
            Ok(data) if data.is_dir() => walk(&path, each),
            Ok(data) if data.is_file() => each(&path, &data),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_renamed_and_removed_files_are_counted_once() {
        let folder = tempfile::TempDir::new().unwrap();
        let directories = ["a", "b"].map(|name| folder.path().join(name));
        let attempt = |index: usize| {
            let path = directories[index].join("usercache/root/appcache/application_1/output/attempt_1");
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        let (first, second) = (attempt(0), attempt(1));
        let other = directories[0].join("usercache/root/appcache/application_2/output");
        std::fs::create_dir_all(&other).unwrap();
        std::fs::write(other.join("file.out"), [0; 999]).unwrap();
        let watch = LocalWatch::new(&directories);
        let mut look = 0;
        let mut look = || {
            look += 1;
            watch.look("application_1", look);
        };
        look();
        assert_eq!(watch.uses(), [LocalUse::default(); 2]);
        std::fs::write(first.join("spill0.out"), [0; 10]).unwrap();
        look();
        std::fs::write(first.join("spill0.out"), [0; 30]).unwrap();
        std::fs::write(second.join("map_0.out"), [0; 5]).unwrap();
        look();
        std::fs::rename(first.join("spill0.out"), first.join("file.out")).unwrap();
        std::fs::write(first.join("file.out.index"), [0; 2]).unwrap();
        look();
        std::fs::remove_file(second.join("map_0.out")).unwrap();
        look();
        std::fs::write(second.join("map_1.out.merged"), [0; 3]).unwrap();
        look();
        let expected = [LocalUse { files: 1, bytes: 32 }, LocalUse { files: 2, bytes: 8 }];
        assert_eq!(watch.uses(), expected);
        std::fs::remove_dir_all(directories[0].join("usercache")).unwrap();
        look();
        assert_eq!(watch.uses(), expected);
    }

    #[test]
    fn reused_inode_number_is_another_file() {
        let mut seen = DirectoryFiles::default();
        seen.note(Path::new("/m1/spill0.out"), 7, 100, 1);
        seen.note(Path::new("/m2/spill0.out"), 7, 20, 2);
        seen.note(Path::new("/m2/spill1.out"), 7, 10, 3);
        assert_eq!(seen.total(), LocalUse { files: 3, bytes: 130 });
    }
}
