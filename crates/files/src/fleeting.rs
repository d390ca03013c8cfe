//! Folders in a temporary directory that are gone soon, and of which no journal is kept. A process that is killed in that
//! moment leaves one behind, whose name says which process made it.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::trusted_path::User;
use crate::{Access, Folder, unique_name};

const PURPOSE: &str = "underlay-fleeting";

/// What every user of the host reaches, whatever `TMPDIR` says.
pub const SHARED: &str = "/tmp";

/// One that nobody else can look into or has put anything into. The caller removes it.
///
/// # Errors
/// When it can't be made.
pub fn make() -> io::Result<Folder> {
    make_in(&std::env::temp_dir())
}

/// The same in [`SHARED`].
///
/// # Errors
/// When it can't be made.
pub fn make_shared() -> io::Result<Folder> {
    make_in(Path::new(SHARED))
}

fn make_in(directory: &Path) -> io::Result<Folder> {
    Folder::make_new(&directory.join(unique_name(PURPOSE)), Access::Private)
}

/// Those of this user whose process is gone.
pub fn left_behind() -> Vec<PathBuf> {
    // Without links, as they are removed, and each once.
    let places = [std::env::temp_dir(), PathBuf::from(SHARED)];
    let places: BTreeSet<PathBuf> =
        places.iter().filter_map(|place| std::fs::canonicalize(place).ok()).collect();
    places.iter().flat_map(|place| left_behind_in(place)).collect()
}

fn left_behind_in(directory: &Path) -> Vec<PathBuf> {
    let user = User::of_this_process();
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_left = |path: &PathBuf| {
        let process = path.file_name().and_then(|name| process_of(name.to_str()?));
        let is_gone = process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists());
        is_gone
            && rustix::fs::lstat(path).is_ok_and(|found| {
                rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::Directory
                    && user.owns(&found)
            })
    };
    entries.map(|entry| entry.path()).filter(is_left).collect()
}

/// Of `PURPOSE-PROCESS-NUMBER`.
fn process_of(name: &str) -> Option<u32> {
    let (process, number) = name.strip_prefix(PURPOSE)?.strip_prefix('-')?.split_once('-')?;
    let is_number = number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_number { process.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_of_its_process() {
        assert_eq!(process_of(&unique_name(PURPOSE)), Some(std::process::id()));
        for other in ["underlay-fleeting-7", "underlay-fleeting-7-abc", "underlay-7-0123456789abcdef", ""] {
            assert_eq!(process_of(other), None, "{other}");
        }
    }

    #[test]
    fn what_a_killed_process_left_is_found_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let named = |process: u32| place.path().join(format!("{PURPOSE}-{process}-0123456789abcdef"));
        // No process has so high a number.
        let (gone, alive, link) = (named(u32::MAX), named(std::process::id()), named(u32::MAX - 1));
        std::fs::create_dir(&gone).unwrap();
        std::fs::create_dir(&alive).unwrap();
        std::fs::create_dir(place.path().join("other")).unwrap();
        std::os::unix::fs::symlink(&alive, &link).unwrap();
        std::fs::write(named(u32::MAX - 2), "a file").unwrap();
        assert_eq!(left_behind_in(place.path()), [gone]);
    }
}
