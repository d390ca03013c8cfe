//! A folder of our own that goes when its owner does.

use std::fs;
use std::path::{Path, PathBuf};

use underlay_files::{Access, Folder};

use super::{OwnedResource, RegistryNote, ResourceRegistry};
use crate::machine::error::AttachError;
use crate::machine::mounts;

/// A folder that is removed with everything in it when this value is dropped. It is noted before it is made; what can't
/// be removed stays noted, for [`crate::cleanup::clean`].
#[derive(Debug)]
pub struct OwnFolder {
    path: PathBuf,
    registry: ResourceRegistry,
    note: Option<RegistryNote>,
    /// Folders above it that were made for it, from below. They go too, those that are empty then.
    made: Vec<PathBuf>,
}

impl OwnFolder {
    /// Makes a folder for a while, where this user's other folders for a while are: Its purpose, such as `ycsb`, begins
    /// its name.
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

    /// Makes a folder in `above`, which others may write to if it has the sticky bit, as `/tmp` has.
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

    /// Makes the folder, and those above it that are missing, for this user alone. It must not exist yet: what exists
    /// is not ours. Nobody else may be able to put another one in its place. Where it can't be made, nothing is left of
    /// those above it.
    ///
    /// # Errors
    /// When it can't be made or noted.
    pub fn make(path: &Path, registry: &ResourceRegistry) -> Result<OwnFolder, AttachError> {
        let cannot = |error| AttachError::io("make", path, error);
        let (above, name) = path
            .parent()
            .zip(path.file_name())
            .ok_or_else(|| cannot(std::io::Error::from(std::io::ErrorKind::InvalidInput)))?;
        // The path without links: removal follows none.
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

    /// Removes a folder of ours that no registry knows any more: the registry is in memory on most machines,
    /// and gone after a restart. Returns whether it is gone. One that is noted, or that something is mounted
    /// in, stays for [`crate::cleanup::clean`], and so does what is no folder: a link leads to somebody
    /// else's. Only the holder of the lock on what the folder is for may ask.
    ///
    /// # Errors
    /// When it can't be removed.
    pub fn remove_forgotten(path: &Path, registry: &ResourceRegistry) -> Result<bool, AttachError> {
        let cannot = |error| AttachError::io("remove", path, error);
        if !fs::symlink_metadata(path).map_err(cannot)?.is_dir() {
            return Ok(false);
        }
        // Of this user, and on no way that others can change.
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

/// Removes these folders, from below, as long as they are empty. When they were made nobody else could exchange them or
/// anything above them.
fn remove_empty(made: &[PathBuf]) {
    // Where the making ended early, the lowest are not there.
    for path in made.iter().filter(|path| path.symlink_metadata().is_ok()) {
        if fs::remove_dir(path).is_err() {
            break;
        }
    }
}
