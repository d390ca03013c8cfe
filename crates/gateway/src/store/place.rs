//! Whether a directory could take an object at a name. Some things keep one away for good, and its write must not be
//! acknowledged then: a link on the way, an object where a directory has to be, a directory where the object has to be.

use std::io::ErrorKind;

use object_store::path::Path;

use super::links::{self, PathEnd};
use super::names::{key_of, path_of};
use super::{BackendKind, StoreBackend, leftovers};
use crate::errors::{GatewayError, GatewayResult};

/// Entries of a directory that are looked at before its objects count as too many to be gone soon.
const MAX_ENTRIES: usize = 2000;

/// What is in an object's way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum PlaceFinding {
    /// Nothing, as far as the store can be looked at now: one that is away takes the object when it is back.
    #[default]
    Free,
    /// The object of this key, where a directory would have to be.
    ObjectAbove(String),
    /// A directory of the object's name.
    Folder(FolderContents),
}

/// What is in a directory, all the way down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FolderContents {
    pub(crate) keys: Vec<String>,
    /// Something that is no object, which nobody here will remove.
    pub(crate) has_others: bool,
    /// There is no file, only directories: they go when an object takes their place.
    pub(crate) is_empty: bool,
    /// It is changing: a file is on its way, or a directory has just gone. Or there is more than could be looked at.
    pub(crate) is_unsettled: bool,
}

impl StoreBackend {
    /// Looks whether something is in the way of an object at this key.
    ///
    /// # Errors
    /// `AccessDenied` for a path through a link, or through a directory that others can write to.
    pub(crate) async fn look_at_place(&self, key: &str) -> GatewayResult<PlaceFinding> {
        let path = self.path(key)?;
        let looked = self.check_root(move |root| root.check().and_then(|()| find(root.path(), &path)));
        match looked.await {
            // The flushers try again until it answers.
            Err(GatewayError::Store(_) | GatewayError::StoreAway(_) | GatewayError::Busy(_)) => {
                Ok(PlaceFinding::Free)
            }
            outcome => outcome,
        }
    }
}

fn find(root: &std::path::Path, path: &Path) -> GatewayResult<PlaceFinding> {
    Ok(match links::walk(root, path)? {
        PathEnd::Open => PlaceFinding::Free,
        PathEnd::FileAbove(segments) => {
            let above: Vec<&str> = path.as_ref().split('/').take(segments).collect();
            let above = Path::parse(above.join("/"));
            let above = above.map_err(|error| GatewayError::InvalidArgument(error.to_string()))?;
            PlaceFinding::ObjectAbove(key_of(&above))
        }
        PathEnd::Folder => {
            let mut contents = FolderContents::default();
            // What can't be looked at may be anything.
            match look_into(root, path, &mut contents) {
                Ok(has_files) => {
                    contents.is_empty = !has_files && !contents.has_others && !contents.is_unsettled;
                }
                Err(_) => contents.is_unsettled = true,
            }
            PlaceFinding::Folder(contents)
        }
    })
}

/// Whether there is a file. Follows no link, and has one directory open at a time however deep they are.
fn look_into(root: &std::path::Path, top: &Path, contents: &mut FolderContents) -> std::io::Result<bool> {
    let (mut folders, mut left, mut has_files) = (vec![top.clone()], MAX_ENTRIES, false);
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(root.join(folder.as_ref())) {
            Ok(entries) => entries,
            // It went with its last file.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                contents.is_unsettled = true;
                return Ok(has_files);
            }
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            if left == 0 {
                contents.is_unsettled = true;
            }
            if contents.has_others || contents.is_unsettled {
                return Ok(has_files);
            }
            left -= 1;
            let (name, kind) = (entry.file_name(), entry.file_type()?);
            has_files |= !kind.is_dir();
            let path = name.to_str().and_then(|name| Path::parse(format!("{folder}/{name}")).ok());
            match path {
                Some(path) if kind.is_dir() => folders.push(path),
                _ if kind.is_file() && leftovers::is_unfinished(name.as_encoded_bytes()) => {
                    contents.is_unsettled = true;
                }
                Some(path) if kind.is_file() && leads_back(&path) => contents.keys.push(key_of(&path)),
                _ => contents.has_others = true,
            }
        }
    }
    Ok(has_files)
}

/// Whether a key has this path.
fn leads_back(path: &Path) -> bool {
    path_of(&key_of(path), BackendKind::Directory).is_ok_and(|of_key| of_key == *path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(root: &std::path::Path, key: &str) -> GatewayResult<PlaceFinding> {
        find(root, &path_of(key, BackendKind::Directory).unwrap())
    }

    #[test]
    fn obstacles_of_objects_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for folder in ["full/deep", "empty/inner", "writing"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        for file in ["file", "full/a", "full/deep/b", "writing/a#1"] {
            std::fs::write(root.join(file), "x").unwrap();
        }
        for key in ["new", "file", "new/a", "full/new"] {
            assert_eq!(found(root, key), Ok(PlaceFinding::Free), "{key}");
        }
        assert_eq!(found(root, "file/a/b"), Ok(PlaceFinding::ObjectAbove("file".to_owned())));
        let Ok(PlaceFinding::Folder(mut full)) = found(root, "full") else { panic!("a folder is there") };
        full.keys.sort();
        let keys = vec!["full/a".to_owned(), "full/deep/b".to_owned()];
        assert_eq!(full, FolderContents { keys, ..FolderContents::default() });
        let unsettled = FolderContents { is_unsettled: true, ..FolderContents::default() };
        assert_eq!(found(root, "writing"), Ok(PlaceFinding::Folder(unsettled)));
        let empty = FolderContents { is_empty: true, ..FolderContents::default() };
        assert_eq!(found(root, "empty"), Ok(PlaceFinding::Folder(empty)));
        std::os::unix::fs::symlink(root, root.join("full/link")).unwrap();
        assert!(matches!(found(root, "full"), Ok(PlaceFinding::Folder(contents)) if contents.has_others));
        for key in ["full/link", "full/link/a"] {
            assert!(matches!(found(root, key), Err(GatewayError::AccessDenied(_))), "{key}");
        }
    }
}
