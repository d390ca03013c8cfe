//! What a cluster consists of: YARN, whose one NodeManager runs the tasks, above HDFS.

use super::config::Config;
use super::start::Directories;
use crate::hdfs;
use crate::parts::Part;

pub(super) fn parts(directories: &Directories, config: &Config) -> Vec<Part> {
    let Ok(datanodes) = directories.datanodes(config) else { return Vec::new() };
    let of_hdfs = hdfs::parts(&directories.name, &datanodes);
    let node_manager = Part::new("nodemanager", "NodeManager")
        .keeping_in("intermediate data", &directories.local)
        .using(&of_hdfs);
    let resource_manager = Part::new("resourcemanager", "ResourceManager").using([&node_manager]);
    [resource_manager, node_manager].into_iter().chain(of_hdfs).collect()
}
