//! The daemon of volumes that are themselves block devices.

use std::sync::Arc;

use underlay_storage::device::DeviceRequest;
use underlay_storage::stack::{PacingMode, Stack, VolumeSpec};

use super::export::ExportFiles;
use super::request_meter::RequestMeters;
use super::{DaemonConfig, obey};
use crate::machine::error::AttachError;
use crate::machine::mounts;
use crate::serving::ublk::UblkDisks;

/// Serves them until shutdown, or until all are stopped.
pub(super) fn serve(config: &DaemonConfig, stack: &Arc<Stack>) -> Result<(), AttachError> {
    let names: Vec<&str> = config.stack.volumes.iter().map(|volume| volume.name.as_str()).collect();
    let doors = RequestMeters::new(stack);
    let volumes = ExportFiles::new(names.iter().copied().zip(doors.volumes())).infos();
    let turning: Vec<bool> = config.stack.volumes.iter().map(VolumeSpec::is_rotational).collect();
    let devices = names.into_iter().zip(doors.volumes()).zip(turning);
    let serving =
        UblkDisks::start(&config.export, devices.map(|((name, device), turns)| (name, device, turns)))?;

    // The file system on the device notices a power cut by the device's errors.
    obey(config, stack, doors, volumes, || {}, || serving.is_over())?;
    // A fault ends with its storage. Devices without power stay as they are: nothing more will be written.
    stack.clear_all_faults();
    let is_dark = stack.faults().iter().any(|device| !device.powered);
    stack.set_pace(PacingMode::Immediate);
    let nodes = serving.nodes();
    // Under a file system they stay, dead once this process has ended, so that `underlay clean` finds both.
    let in_use = mounts::all().into_iter().find(|mount| nodes.contains(&mount.source));
    match in_use {
        Some(mount) => tracing::warn!("left: {} is still mounted", mount.mount_point.display()),
        // This writes a device's dirty pages.
        None => serving.stop()?,
    }
    for volume in stack.volumes() {
        let flushed = volume.execute(DeviceRequest::Flush);
        if !is_dark {
            flushed.map_err(|error| AttachError::failed(format!("the last flush failed: {error}")))?;
        }
    }
    let _ = std::fs::remove_file(&config.control);
    Ok(())
}
