//! Others may have put links below a directory store: they would make the gateway read and write elsewhere, with its
//! own rights. `object_store` follows links.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use object_store::path::Path;
use underlay_sync::planted::{PlantedBug, is_planted};

use super::StoreBackend;
use super::leftovers::is_own_file;
use crate::errors::{GatewayError, GatewayResult};

const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
/// Unfinished files of one name that are looked for.
const MAX_UNFINISHED: u32 = 1000;
/// So many numbers in a row without a file are the end of them: a later one is there where an earlier one was finished.
const MAX_MISSING: u32 = 4;
/// Empty directories that are looked through in an object's place.
const MAX_EMPTY_FOLDERS: usize = 2000;

/// What a path leads to, as far as it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathEnd {
    /// A missing name, or an object.
    Open,
    /// A file after so many segments, where a directory would have to be.
    FileAbove(usize),
    Folder,
}

/// Refuses a path that leads through a link, or through a directory in which others could put one at any moment. The
/// gateway itself makes missing directories.
pub(super) fn check(root: &std::path::Path, path: &Path) -> GatewayResult<()> {
    // The operation itself says what it thinks of a file on the way.
    walk(root, path).map(drop)
}

/// The same, and what is at the end. Looks at each segment once.
pub(super) fn walk(root: &std::path::Path, path: &Path) -> GatewayResult<PathEnd> {
    let mut current = PathBuf::from(root);
    let (parts, mut end) = (path.as_ref().split('/').count(), PathEnd::Open);
    for (index, part) in path.as_ref().split('/').enumerate() {
        current.push(part);
        let found = match std::fs::symlink_metadata(&current) {
            Ok(found) => found,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(PathEnd::Open);
            }
            Err(error) => return Err(GatewayError::Store(format!("{}: {error}", current.display()))),
        };
        let refused = |reason: &str| {
            let text = format!("{} {reason}", current.display());
            tracing::warn!("refused: {text}");
            // Where the store is, is not for clients.
            Err(GatewayError::AccessDenied(format!("the store's `{}` {reason}", part.escape_debug())))
        };
        if found.is_symlink() {
            return refused("is a link, and the gateway follows none");
        }
        if found.is_dir() && !is_written_by_us_alone(&found) {
            return refused("can be written to by other users (`chmod go-w`), who could put a link there");
        }
        match (index + 1 == parts, found.is_dir()) {
            (false, false) => return Ok(PathEnd::FileAbove(index + 1)),
            (true, true) => end = PathEnd::Folder,
            _ => {}
        }
    }
    Ok(end)
}

fn is_written_by_us_alone(folder: &Metadata) -> bool {
    let is_ours = folder.uid() == rustix::process::geteuid().as_raw() || folder.uid() == 0;
    // Our own group is the user's alone on most systems, and umask 002 usual there.
    let is_shared = folder.mode() & OTHERS_WRITE != 0
        || (folder.mode() & GROUP_WRITES != 0 && folder.gid() != rustix::process::getegid().as_raw());
    is_ours && !is_shared
}

/// Removes the directories above a path that are empty, as `object_store` does behind a file that it removes, but not
/// the outermost `kept_folders` ones. A writer who is about to use one makes it again.
pub(super) fn remove_empty_above(root: &std::path::Path, path: &Path, kept_folders: usize) {
    let whole = root.join(path.as_ref());
    let depth = path.as_ref().split('/').count() - 1;
    for folder in whole.ancestors().skip(1).take(depth.saturating_sub(kept_folders)) {
        match std::fs::remove_dir(folder) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(_) => return,
        }
    }
}

/// Removes what interrupted writes to a path have left beside it: `object_store` writes a file `k` under the name `k#1`
/// first, or another number. It would keep the directory from being empty, and another object from having its name.
/// What is not a gateway's own file by its owner and mode stays.
pub(super) fn remove_unfinished(root: &std::path::Path, path: &Path) {
    let mut missing = 0;
    for number in 0..MAX_UNFINISHED {
        let file = root.join(format!("{path}#{number}"));
        match rustix::fs::lstat(&file) {
            Ok(found) => {
                missing = 0;
                if is_own_file(&found) {
                    // One that can't be removed is found again by the next deletion.
                    let _ = std::fs::remove_file(&file);
                }
            }
            Err(_) => missing += 1,
        }
        if missing == MAX_MISSING {
            return;
        }
    }
}

/// Removes the empty directories at a path, where an object is to be: a deletion may have left them for others.
pub(super) fn remove_empty_below(folder: &std::path::Path) {
    let mut folders = vec![folder.to_owned()];
    let mut found = 0;
    while let Some(next) = folders.get(found).cloned() {
        found += 1;
        // Others could put a link in the place of an inner one.
        if !std::fs::symlink_metadata(&next)
            .is_ok_and(|found| found.is_dir() && is_written_by_us_alone(&found))
        {
            return;
        }
        for entry in std::fs::read_dir(&next).into_iter().flatten().flatten() {
            // Where there is a file, nothing is empty in the end.
            if folders.len() == MAX_EMPTY_FOLDERS || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                return;
            }
            folders.push(entry.path());
        }
    }
    // Inner ones come behind outer ones.
    for folder in folders.iter().rev() {
        let _ = std::fs::remove_dir(folder);
    }
}

impl StoreBackend {
    /// In a directory a copy is a link, which `object_store` makes beside its name and renames. A rename of one link to
    /// another link of the same file does nothing and succeeds, and the first one stays. So a copy that is there
    /// already is not made again.
    pub(super) async fn is_linked(&self, from: &Path, to: &Path) -> object_store::Result<bool> {
        let Some((root, _)) = self.root().filter(|_| !is_planted(PlantedBug::LinkLeftBehind)) else {
            return Ok(false);
        };
        let (from, to) = (root.join(from.as_ref()), root.join(to.as_ref()));
        let looked = crate::blocking::spawn_blocking(move || are_one_file(&from, &to)).await;
        looked
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|error| object_store::Error::Generic { store: "directory", source: Box::new(error) })
    }
}

/// Whether `to` is another name of the file `from`. If so, the name is durable when this returns: the process that made
/// it may not have got that far.
///
/// # Errors
/// When it can't be found out, or can't be made durable.
fn are_one_file(from: &std::path::Path, to: &std::path::Path) -> std::io::Result<bool> {
    let identity_of = |path: &std::path::Path| match std::fs::symlink_metadata(path) {
        Ok(found) => Ok(found.is_file().then(|| (found.dev(), found.ino()))),
        // The copy itself says what it thinks of a file on the way.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    };
    let (source, target) = (identity_of(from)?, identity_of(to)?);
    if source.is_none() || source != target {
        return Ok(false);
    }
    if let Some(folder) = to.parent() {
        std::fs::File::open(folder)?.sync_all()?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_links_are_same_file_and_equal_copies_differ() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("a"), "x").unwrap();
        std::fs::write(path("b"), "x").unwrap();
        std::fs::hard_link(path("a"), path("c")).unwrap();
        std::os::unix::fs::symlink(path("a"), path("d")).unwrap();
        for (to, is_one) in [("b", false), ("c", true), ("d", false), ("none", false), ("a/below", false)] {
            assert_eq!(are_one_file(&path("a"), &path(to)).unwrap(), is_one, "{to}");
        }
        assert!(!are_one_file(&path("none"), &path("none")).unwrap());
    }
}
