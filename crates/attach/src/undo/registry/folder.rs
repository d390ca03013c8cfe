//! A directory of ours that is removed with its owner.

use std::fs;
use std::path::{Path, PathBuf};

use underlay_files::{Access, Folder};

use super::{OwnedResource, RegistryNote, ResourceRegistry};
use crate::machine::error::AttachError;
use crate::machine::mounts;

/// A directory that is removed with everything in it when this value is dropped. It is noted before it is created. If
/// it can't be removed, it stays noted for [`crate::cleanup::clean`].
#[derive(Debug)]
pub struct OwnFolder {
    path: PathBuf,
    registry: ResourceRegistry,
    note: Option<RegistryNote>,
    /// Parent directories that were created for it, from below. Those that are empty are removed too.
    made: Vec<PathBuf>,
}

impl OwnFolder {
    /// Makes a scratch directory next to this user's others. Its name begins with its purpose, such as `ycsb`.
    ///
    /// # Errors
    /// When it can't be made or noted.
    pub fn temporary(purpose: &str, registry: &ResourceRegistry) -> Result<OwnFolder, AttachError> {
        registry.fresh(purpose).map(|(path, note)| OwnFolder {
            path,
            registry: registry.clone(),
            note: Some(note),
            made: Vec::new(),
        })
    }

    /// Makes a directory in `above`, which others may write to if it has the sticky bit, like `/tmp`.
    ///
    /// # Errors
    /// When it can't be made or noted.
    pub fn make_in(
        above: &Path,
        purpose: &str,
        registry: &ResourceRegistry,
    ) -> Result<OwnFolder, AttachError> {
        OwnFolder::make(&above.join(underlay_files::unique_name(purpose)), registry)
    }

    /// Makes the directory, and missing ones above it, for this user only. It must not exist yet: an existing one is
    /// not ours. Nobody else may be able to replace it. If it can't be created, nothing is left of those above it.
    ///
    /// # Errors
    /// When it can't be made or noted.
    pub fn make(path: &Path, registry: &ResourceRegistry) -> Result<OwnFolder, AttachError> {
        let cannot = |error| AttachError::io("make", path, error);
        let (above, name) = path
            .parent()
            .zip(path.file_name())
            .ok_or_else(|| cannot(std::io::Error::from(std::io::ErrorKind::InvalidInput)))?;
        // The path without links, since removal follows none.
        let mut made = Vec::new();
        let above = match fs::canonicalize(above) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let absolute = std::path::absolute(above).map_err(cannot)?;
                let missing = absolute.ancestors().take_while(|path| path.symlink_metadata().is_err());
                made = missing.map(Path::to_path_buf).collect();
                let folder = Folder::make(above, Access::Private).map_err(|error| {
                    remove_empty(&made);
                    cannot(error)
                })?;
                folder.path().to_path_buf()
            }
            found => found.map_err(cannot)?,
        };
        let path = above.join(name);
        let noted = registry.note(OwnedResource::Tree { path: path.clone() });
        let note = noted.inspect_err(|_| remove_empty(&made))?;
        match Folder::make_new(&path, Access::Private) {
            Ok(_) => Ok(OwnFolder { path, registry: registry.clone(), note: Some(note), made }),
            Err(error) => {
                registry.forget(note);
                remove_empty(&made);
                Err(AttachError::io("make", &path, error))
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes a directory of ours that is in no registry any more. On most machines the registry is in memory and gone
    /// after a restart. Returns whether it is gone. One that is noted, or has a mount in it, stays for
    /// [`crate::cleanup::clean`]. So does anything that is not a directory: a link may point to other users' files.
    /// Only the holder of the lock on the directory's purpose may call this.
    ///
    /// # Errors
    /// When it can't be removed.
    pub fn remove_forgotten(path: &Path, registry: &ResourceRegistry) -> Result<bool, AttachError> {
        let cannot = |error| AttachError::io("remove", path, error);
        if !fs::symlink_metadata(path).map_err(cannot)?.is_dir() {
            return Ok(false);
        }
        // Owned by this user, and on a path that others can't change.
        let path = &Folder::open(path).map_err(cannot)?.path().to_path_buf();
        let is_in =
            |resource: &OwnedResource| resource.made_path().is_some_and(|made| made.starts_with(path));
        let is_noted = registry.living().iter().any(|(_, resource)| is_in(resource))
            || registry.leftovers().iter().any(|leftover| is_in(&leftover.resource));
        if is_noted || mounts::all().iter().any(|mount| mount.mount_point.starts_with(path)) {
            return Ok(false);
        }
        underlay_files::remove_tree(path).map_err(cannot)?;
        Ok(true)
    }
}

impl Drop for OwnFolder {
    fn drop(&mut self) {
        let _ = underlay_files::remove_tree(&self.path);
        if fs::symlink_metadata(&self.path).is_err()
            && let Some(note) = self.note.take()
        {
            self.registry.forget(note);
        }
        remove_empty(&self.made);
    }
}

/// Removes these directories, from below, as long as they are empty. When they were created, nobody else could exchange
/// them or anything above them.
fn remove_empty(made: &[PathBuf]) {
    // If creation stopped early, the lowest do not exist.
    for path in made.iter().filter(|path| path.symlink_metadata().is_ok()) {
        if fs::remove_dir(path).is_err() {
            break;
        }
    }
}
