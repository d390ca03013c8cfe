//! Where the images of one cell lie while it runs.

use std::path::{Path, PathBuf};

use underlay_files::{Access, Folder};

use super::CellError;

/// The folder of one cell's images, gone when the cell is.
pub(super) struct CellFolder(PathBuf);

impl CellFolder {
    pub(super) fn make(path: &Path) -> Result<Self, CellError> {
        // `make_new` refuses what an earlier cell may have left.
        let _ = underlay_files::remove_tree(path);
        Folder::make_new(path, Access::Private)?;
        Ok(CellFolder(path.to_path_buf()))
    }
}

impl Drop for CellFolder {
    fn drop(&mut self) {
        let _ = underlay_files::remove_tree(&self.0);
    }
}
