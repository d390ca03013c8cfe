//! What a cluster consists of. Monitor and manager keep nothing on the storage under test.

use std::path::PathBuf;

use super::cluster::name_of;
use crate::parts::Part;

/// The gateway, which is what clients know, comes last.
pub(crate) fn parts(osds: &[PathBuf]) -> Vec<Part> {
    let osd = |(number, directory): (usize, &PathBuf)| {
        Part::new(name_of(number), "OSD").keeping("objects", directory)
    };
    let mut parts: Vec<Part> = osds.iter().enumerate().map(osd).collect();
    let gateway = Part::new("gateway", "S3 gateway").using(&parts);
    let others = [("monitor", "monitor"), ("manager", "manager")];
    parts.extend(others.map(|(name, what)| Part::new(name, what).background()));
    parts.push(gateway);
    parts
}
