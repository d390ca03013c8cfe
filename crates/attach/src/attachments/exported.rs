//! The block devices above a device daemon's exports, made by any attachment.

use std::io;
use std::path::{Path, PathBuf};

use crate::attachments::loop_device;
use crate::serving::daemon::DaemonTransport;
use crate::serving::daemon_process::EXPORT_DIRECTORY;
use crate::serving::ublk;

/// The devices of the daemon with this session directory. This queries only the kernel, never the export itself, which
/// may hang.
pub(crate) fn devices_of(session: &Path) -> Vec<PathBuf> {
    let mut devices = loop_device::below(session);
    devices.extend(ublk::nodes_of(&session.join(EXPORT_DIRECTORY)));
    devices
}

/// Like [`devices_of`], for a daemon with this transport. It is for decisions that must not mistake an unreadable list
/// for an empty one.
///
/// # Errors
/// When the kernel can't be asked for its devices.
pub(crate) fn try_devices_of(session: &Path, transport: DaemonTransport) -> io::Result<Vec<PathBuf>> {
    match transport {
        DaemonTransport::Ublk => ublk::try_nodes_of(&session.join(EXPORT_DIRECTORY)),
        DaemonTransport::DevFuse | DaemonTransport::Uring => loop_device::try_below(session),
    }
}
