//! The directory of a cell's images while it runs, and the message about storage that other programs keep in use.

use std::path::{Path, PathBuf};

use underlay_attach::{ResourceRegistry, mounts};
use underlay_files::{Access, Folder};

use super::CellError;

/// The folder of one cell's images, removed together with the cell.
pub(super) struct CellFolder {
    path: PathBuf,
    registry: ResourceRegistry,
}

impl CellFolder {
    pub(super) fn make(path: &Path, registry: &ResourceRegistry) -> Result<Self, CellError> {
        // `make_new` refuses what an earlier cell may have left.
        if let Err(foreign) = remove(path, registry) {
            return Err(CellError::Failed(format!(
                "{} is mounted in {}, where cell images belong: unmount it, or choose another directory with --work",
                foreign.display(),
                path.display()
            )));
        }
        Folder::make_new(path, Access::Private)?;
        Ok(CellFolder { path: path.to_path_buf(), registry: registry.clone() })
    }
}

impl Drop for CellFolder {
    fn drop(&mut self) {
        // The next cell that needs this path reports what is left.
        let _ = remove(&self.path, &self.registry);
    }
}

/// Removes the folder. If a program still uses one of our file systems there, that is moved out first: the next cell
/// needs the path, and nothing in a mount is ours to remove. If another user has mounted something there, everything
/// stays, and this returns its path.
fn remove(folder: &Path, registry: &ResourceRegistry) -> Result<(), PathBuf> {
    let below: Vec<PathBuf> = mounts::all()
        .into_iter()
        .map(|mount| mount.mount_point)
        .filter(|mount_point| mount_point.starts_with(folder))
        .collect();
    if let Some(foreign) = below.iter().find(|mount_point| !registry.has_mounted(mount_point)) {
        return Err(foreign.clone());
    }
    // Later mounts may lie on earlier ones.
    for mount_point in below.into_iter().rev() {
        if mounts::detach_lazily(&mount_point).is_err() {
            return Err(mount_point);
        }
    }
    let _ = underlay_files::remove_tree(folder);
    Ok(())
}

/// The warning for a cell whose metrics stay valid.
pub(super) fn still_in_use(holder: &str) -> String {
    format!(
        "its storage could not be removed completely: {holder}. End what holds it, then run `underlay clean`; the figures remain valid"
    )
}

#[cfg(test)]
mod tests {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    use super::*;

    #[test]
    fn foreign_mount_in_cell_folder_stays_and_is_named() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let keep = tempfile::tempdir().unwrap();
        let registry = ResourceRegistry::open_at(&keep.path().join("run")).unwrap();
        let folder = keep.path().canonicalize().unwrap().join("cell");
        let cell = CellFolder::make(&folder, &registry).unwrap();
        let own = folder.join("own");
        std::fs::create_dir(&own).unwrap();
        mount("none", own.as_path(), "tmpfs", MountFlags::empty(), None).unwrap();
        std::fs::write(own.join("precious"), "x").unwrap();
        drop(cell);
        assert!(own.join("precious").exists());
        let Err(CellError::Failed(refused)) = CellFolder::make(&folder, &registry) else {
            panic!("the folder was taken");
        };
        assert!(refused.contains(&format!("{} is mounted in", own.display())), "{refused}");
        unmount(own.as_path(), UnmountFlags::empty()).unwrap();
        drop(CellFolder::make(&folder, &registry).unwrap());
        assert!(!folder.exists());
    }
}
