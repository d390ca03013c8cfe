//! A folder of our own that goes when its owner does.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Note, Registry, Thing};
use crate::attachment::AttachError;

/// A folder that is removed with everything in it when this value is dropped. It is noted before it is made; what can't
/// be removed stays noted, for [`Registry::clean`].
#[derive(Debug)]
pub struct OwnFolder {
    path: PathBuf,
    registry: Registry,
    note: Option<Note>,
}

impl OwnFolder {
    /// Makes the folder, and those above it that are missing. It must not exist yet: what exists is not ours.
    pub fn make(path: &Path, registry: &Registry) -> Result<OwnFolder, AttachError> {
        let note = registry.note(Thing::Tree { path: path.to_path_buf() })?;
        let folder = OwnFolder { path: path.to_path_buf(), registry: registry.clone(), note: Some(note) };
        fs::create_dir_all(path).map_err(|error| AttachError::io("make", path, error))?;
        Ok(folder)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for OwnFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
        if fs::symlink_metadata(&self.path).is_err()
            && let Some(note) = self.note.take()
        {
            self.registry.forget(note);
        }
    }
}
