//! The block devices that stand on what a device daemon exports, whatever attachment made them.

use std::path::{Path, PathBuf};

use crate::attachments::loop_device;
use crate::serving::daemon_process::EXPORT_DIRECTORY;
use crate::serving::ublk;

/// Those of the daemon with this session directory. It asks the kernel only, never the export itself, which may hang.
pub(crate) fn devices_of(session: &Path) -> Vec<PathBuf> {
    let mut devices = loop_device::below(session);
    devices.extend(ublk::nodes_of(&session.join(EXPORT_DIRECTORY)));
    devices
}
