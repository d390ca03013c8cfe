//! Where the images of one cell lie while it runs, and what is said of a storage that others keep in use.

use std::path::{Path, PathBuf};

use underlay_attach::mounts;
use underlay_files::{Access, Folder};

use super::CellError;

/// The folder of one cell's images, gone when the cell is.
pub(super) struct CellFolder(PathBuf);

impl CellFolder {
    pub(super) fn make(path: &Path) -> Result<Self, CellError> {
        // `make_new` refuses what an earlier cell may have left.
        remove(path);
        Folder::make_new(path, Access::Private)?;
        Ok(CellFolder(path.to_path_buf()))
    }
}

impl Drop for CellFolder {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Removes the folder. A file system that a program still uses there leaves it first: the next cell needs the place, and nothing in a mount is
/// ours to remove.
fn remove(folder: &Path) {
    let below = mounts::all().into_iter().filter(|mount| mount.mount_point.starts_with(folder));
    // Later ones may lie on earlier ones.
    for mount in below.collect::<Vec<_>>().into_iter().rev() {
        if mounts::detach_lazily(&mount.mount_point).is_err() {
            return;
        }
    }
    let _ = underlay_files::remove_tree(folder);
}

/// The warning of a cell whose figures stay true.
pub(super) fn still_in_use(who: &str) -> String {
    format!(
        "its storage could not be cleared away in full, which `underlay clean` does once nobody uses it: {who}"
    )
}
