//! The devices of a pool that is being opened, and what has to be true of them and of its directory before.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use underlay_storage::contents;
use underlay_storage::device::BlockDevice;
use underlay_storage::stack::{BackingSpec, PacingMode, Stack, StackNode, StackSpec, VolumeSpec};

use super::error::ServerError;
use super::real_device::RealDevice;
use crate::pool_file::{PoolDevices, PoolFile};

/// What a server leaves in the directory of a pool that was in use.
const NOTES: [&str; 4] = ["unflushed.0", "unflushed.2", "doubtful", "writers.json"];

const SEED: u64 = 1;

/// Of a pool's directory that can't be made or opened.
pub(super) fn directory_error(directory: &Path, error: std::io::Error) -> ServerError {
    match error.kind() {
        ErrorKind::PermissionDenied => ServerError::Mistake(format!(
            "the pool's directory {} can't be used: {error}",
            directory.display()
        )),
        _ => ServerError::io("use the pool's directory", directory, error),
    }
}

/// Where the pool's own notes are and its devices' files are not, they got lost, or are not mounted: new ones in their
/// place would look like an empty pool.
pub(super) fn check_devices_are_there(file: &PoolFile) -> Result<(), ServerError> {
    if is_blank(file) && has_notes(file) {
        return Err(ServerError::Mistake(format!(
            "{} belongs to a pool, but has none of its devices' files: put them back, or remove the directory \
                 to create the pool again without its data",
            file.directory.display()
        )));
    }
    Ok(())
}

/// The same of real devices: names change, and then a file names other disks, which may be empty.
pub(super) fn check_holds_something(
    file: &PoolFile,
    devices: &[Arc<dyn BlockDevice>],
) -> Result<(), ServerError> {
    for device in devices {
        // A device that can't be read is reported when it is opened.
        if !matches!(contents::inspect_device(&**device), Ok(None)) {
            return Ok(());
        }
    }
    Err(ServerError::Mistake(format!(
        "{} belongs to a pool, but its devices are empty: check `paths`, since device names can change. \
             --format creates the pool again on them, without its data",
        file.directory.display()
    )))
}

pub(super) fn has_notes(file: &PoolFile) -> bool {
    NOTES.iter().any(|name| file.directory.join(name).exists())
}

/// Whether none of the modelled devices has a file yet.
pub(super) fn is_blank(file: &PoolFile) -> bool {
    let devices = match &file.devices {
        PoolDevices::Modelled { .. } => file.modelled(),
        PoolDevices::Paths(_) => return false,
    };
    devices.iter().all(|device| match &device.backing {
        BackingSpec::File(path) => !path.exists(),
        _ => false,
    })
}

pub(super) type OpenedMembers = (Option<Stack>, Vec<String>, Vec<Arc<dyn BlockDevice>>);

/// Each device is a volume of the stack, in fast-forward until the pool is open.
pub(super) fn open_modelled(file: &PoolFile) -> Result<OpenedMembers, ServerError> {
    let devices = file.modelled();
    let names: Vec<String> = devices.iter().map(|device| device.name.clone()).collect();
    for device in &devices {
        let BackingSpec::File(path) = &device.backing else { continue };
        // Opening would make a shorter file longer, and pass over the end of a longer one.
        if let Ok(found) = std::fs::metadata(path)
            && found.len() != device.capacity_bytes
        {
            let (name, capacity_bytes) = (device.name.clone(), device.capacity_bytes);
            let problem = format!(
                "{} has {} bytes, but the pool's file says {capacity_bytes}: state the capacity that the pool \
                     was created with",
                path.display(),
                found.len()
            );
            return Err(ServerError::Mistake(format!("the device {name}: {problem}")));
        }
    }
    let volumes =
        devices.into_iter().map(|device| VolumeSpec::new(device.name.clone(), StackNode::Device(device)));
    let spec = StackSpec { volumes: volumes.collect(), dilation: file.dilation, seed: SEED };
    let stack = Stack::open(&spec).map_err(|error| {
        ServerError::Failed(format!("the devices of '{}' can't be opened: {error}", file.name))
    })?;
    stack.set_pace(PacingMode::Immediate);
    let members = stack.volumes().to_vec();
    Ok((Some(stack), names, members))
}

pub(super) fn open_real(path: &Path) -> Result<Arc<dyn BlockDevice>, ServerError> {
    match RealDevice::open(path) {
        Ok(device) => Ok(Arc::new(device)),
        Err(error) => {
            Err(ServerError::Device { name: path.display().to_string(), problem: error.to_string() })
        }
    }
}

/// Of a device that a pool was to be made on.
pub(super) fn not_blank(name: &str, device: &dyn BlockDevice) -> ServerError {
    let description = match contents::inspect_device(device) {
        Ok(Some(found)) => found.describe(),
        Ok(None) | Err(_) => "data".to_owned(),
    };
    ServerError::Mistake(format!(
        "the device {name} holds {description}, and is not a member of a pool: check its name. If nothing on it is \
             needed, `underlay volume serve --format` creates the pool on it anyway"
    ))
}
