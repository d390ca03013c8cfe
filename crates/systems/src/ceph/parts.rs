//! A cluster's parts. Monitor and manager keep nothing on the storage under test.

use std::path::PathBuf;

use super::cluster::name_of;
use crate::parts::SystemPart;

/// The gateway, which is what clients know, comes last.
pub(crate) fn parts(osds: &[PathBuf]) -> Vec<SystemPart> {
    let osd = |(number, directory): (usize, &PathBuf)| {
        SystemPart::new(name_of(number), "OSD").keeping("objects", directory)
    };
    let mut parts: Vec<SystemPart> = osds.iter().enumerate().map(osd).collect();
    let gateway = SystemPart::new("gateway", "S3 gateway").using(&parts);
    let others = [("monitor", "monitor"), ("manager", "manager")];
    parts.extend(others.map(|(name, kind)| SystemPart::new(name, kind).background()));
    parts.push(gateway);
    parts
}
