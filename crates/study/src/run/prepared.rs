//! The initial contents of a cell's storage.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::CellError;
use super::cell_plan::CellPlan;
use super::tree_copy::copy_tree;
use crate::spec::StorageSource;

/// A data set in the form in which a cell's storage begins with it.
#[derive(Clone, Debug)]
pub(super) struct PreparedDataset {
    pub data: InitialData,
    /// The directory of backing files for each role that holds a part of it.
    pub roles: BTreeMap<String, PathBuf>,
}

/// The initial contents of the compared storage configuration.
#[derive(Clone, Debug)]
pub(super) enum InitialData {
    /// A folder of backing files, or of a pool, to be cloned.
    Images(PathBuf),
    /// The trees to copy into the directories of a real storage, in order.
    Trees(Vec<PathBuf>),
}

impl PreparedDataset {
    pub(super) fn new(data: InitialData) -> Self {
        PreparedDataset { data, roles: BTreeMap::new() }
    }
}

/// Puts a data set on real storage, where nothing can be cloned.
pub(super) fn copy_onto_paths(
    plan: &CellPlan<'_>,
    trees: &[PathBuf],
    paths: &[PathBuf],
) -> Result<(), CellError> {
    debug_assert!(matches!(plan.storage.source, StorageSource::Paths(_)));
    for (tree, path) in trees.iter().zip(paths) {
        copy_tree(tree, path).map_err(|error| {
            CellError::Failed(format!("copying the data set to {}: {error}", path.display()))
        })?;
    }
    // Otherwise the cell would measure the writing of the copy.
    rustix::fs::sync();
    Ok(())
}
