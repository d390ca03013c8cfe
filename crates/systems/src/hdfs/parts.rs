//! A file system's parts.

use std::path::Path;

use super::cluster::name_of;
use super::plan::DataDirectory;
use crate::parts::SystemPart;

/// The NameNode first, then each DataNode with its directories.
pub(crate) fn parts(name_directory: &Path, datanodes: &[Vec<DataDirectory>]) -> Vec<SystemPart> {
    let namenode = SystemPart::new("namenode", "NameNode").keeping("namespace", name_directory);
    let datanode = |(number, directories): (usize, &Vec<DataDirectory>)| {
        SystemPart::new(name_of(number), "DataNode")
            .keeping_in("blocks", directories.iter().map(|directory| &directory.path))
    };
    std::iter::once(namenode).chain(datanodes.iter().enumerate().map(datanode)).collect()
}
