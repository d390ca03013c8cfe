//! The kernel's read-ahead on the devices of a storage configuration.
//!
//! A program's small reads become larger ones on the device, 128 KiB by default. People who compare storage set it,
//! most often to less. It is a property of the block device, `/sys/class/bdi/MAJOR:MINOR/read_ahead_kb`. A loop device
//! keeps it beyond its file, so it is restored before the device is released, and noted in the registry.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::attachments::dirty_limit::devices_below;
use crate::machine::error::AttachError;
use crate::machine::missing::MissingCapability;
use crate::undo::registry::{OwnedResource, RegistryNote, ResourceRegistry};

/// Where the kernel shows the devices behind the page cache, by device number.
const CLASS: &str = "/sys/class/bdi";
const FILE: &str = "read_ahead_kb";
/// The kernel reads whole pages.
pub const UNIT_BYTES: u64 = 4096;

/// The read-ahead of a storage's devices, until it is restored or dropped.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    class: PathBuf,
    registry: ResourceRegistry,
    devices: Vec<ReadAheadSetting>,
}

#[derive(Debug)]
struct ReadAheadSetting {
    /// `7:3`
    device: String,
    previous_kib: u64,
    note: Option<RegistryNote>,
}

impl ReadAhead {
    /// Sets it on every device below `paths`.
    ///
    /// # Errors
    /// `MissingCapability` where this host can't do it. Nothing is set in that case.
    pub(crate) fn set(
        paths: &[PathBuf],
        bytes: u64,
        registry: &ResourceRegistry,
    ) -> Result<ReadAhead, AttachError> {
        ReadAhead::set_in(Path::new(CLASS), &devices_below(paths)?, bytes, registry)
    }

    fn set_in(
        class: &Path,
        devices: &BTreeSet<String>,
        bytes: u64,
        registry: &ResourceRegistry,
    ) -> Result<ReadAhead, AttachError> {
        // Dropping this restores all former values.
        let mut all = ReadAhead { class: class.to_owned(), registry: registry.clone(), devices: Vec::new() };
        // A dead process's value on a device is not the device's original one.
        let left: BTreeMap<String, u64> = registry
            .leftovers()
            .into_iter()
            .filter_map(|left| match left.resource {
                OwnedResource::ReadAhead { device, previous_kib } => Some((device, previous_kib)),
                _ => None,
            })
            .rev()
            .collect();
        for device in devices {
            all.set_one(device, bytes / 1024, left.get(device).copied())?;
        }
        Ok(all)
    }

    fn set_one(&mut self, device: &str, kib: u64, left: Option<u64>) -> Result<(), AttachError> {
        let folder = self.class.join(device);
        let previous_kib = match left {
            Some(previous) => previous,
            None => read(&folder).map_err(|error| unavailable(&folder, error))?,
        };
        // Without a block device it disappears with the mount, and its number goes to the next one.
        let note = match device.starts_with("0:") {
            true => None,
            false => Some(
                self.registry.note(OwnedResource::ReadAhead { device: device.to_owned(), previous_kib })?,
            ),
        };
        // Before the value is applied: if that fails halfway, dropping this restores what was set.
        self.devices.push(ReadAheadSetting { device: device.to_owned(), previous_kib, note });
        write(&folder, kib).map_err(|error| unavailable(&folder, error))?;
        // Kernels round the given value, and FUSE has its own limit.
        match read(&folder) {
            Ok(now) if now == kib => Ok(()),
            Ok(now) => {
                let message =
                    format!("the kernel makes {now} KiB of a read-ahead of {kib} KiB ({})", folder.display());
                Err(AttachError::failed(message))
            }
            Err(error) => Err(unavailable(&folder, error)),
        }
    }

    /// Restores the devices' former values; a second call does nothing.
    pub(crate) fn restore(&mut self) -> Result<(), AttachError> {
        while let Some(set) = self.devices.last_mut() {
            restore_in(&self.class, &set.device, set.previous_kib)?;
            if let Some(note) = set.note.take() {
                self.registry.forget(note);
            }
            self.devices.pop();
        }
        Ok(())
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        // After a failure here the entry stays in the registry, where `underlay clean` finds it.
        let _ = self.restore();
    }
}

/// Restores a device's former value. Returns whether it had a different one: a device that is gone has none.
pub(crate) fn restore(device: &str, previous_kib: u64) -> Result<bool, AttachError> {
    restore_in(Path::new(CLASS), device, previous_kib)
}

fn restore_in(class: &Path, device: &str, previous_kib: u64) -> Result<bool, AttachError> {
    let folder = class.join(device);
    let failed = |error: io::Error| AttachError::io("restore the read-ahead in", &folder, error);
    match read(&folder) {
        Ok(now) if now == previous_kib => return Ok(false),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed(error)),
    }
    write(&folder, previous_kib).map_err(failed)?;
    Ok(true)
}

fn read(folder: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(folder.join(FILE))?;
    text.trim().parse().map_err(|_| io::Error::from(ErrorKind::InvalidData))
}

/// Only to an existing file: the kernel creates them, not we.
fn write(folder: &Path, kib: u64) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).truncate(true).open(folder.join(FILE))?;
    io::Write::write_all(&mut file, kib.to_string().as_bytes())
}

fn unavailable(folder: &Path, error: io::Error) -> AttachError {
    let missing = format!("a read-ahead of a device's own ({}: {error})", folder.display());
    let remedy = match error.kind() {
        ErrorKind::NotFound => {
            "use an attachment with block devices (`underlay doctor` lists what this host has)"
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "run as root, and in a container pass --privileged; or leave `read_ahead` out"
        }
        _ => return AttachError::io("set the read-ahead in", folder, error),
    };
    MissingCapability::new(missing, remedy).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(class: &Path, name: &str) -> PathBuf {
        let folder = class.join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(FILE), "128\n").unwrap();
        folder
    }

    fn names(devices: &[&str]) -> BTreeSet<String> {
        devices.iter().map(|&device| device.to_owned()).collect()
    }

    fn noted(registry: &ResourceRegistry) -> usize {
        let is_ours = |resource: &OwnedResource| matches!(resource, OwnedResource::ReadAhead { .. });
        registry.living().into_iter().filter(|(_, resource)| is_ours(resource)).count()
    }

    #[test]
    fn devices_have_it_until_it_is_restored() {
        let keep = tempfile::tempdir().unwrap();
        let registry = ResourceRegistry::open_at(&keep.path().join("run")).unwrap();
        let class = keep.path().join("bdi");
        let (one, other) = (device(&class, "7:1"), device(&class, "0:42"));
        fs::write(other.join(FILE), "512").unwrap();
        let mut set = ReadAhead::set_in(&class, &names(&["7:1", "0:42"]), 16 << 10, &registry).unwrap();
        assert_eq!([read(&one).unwrap(), read(&other).unwrap()], [16, 16]);
        assert_eq!(noted(&registry), 1, "a mount's own goes with it");
        set.restore().unwrap();
        assert_eq!([read(&one).unwrap(), read(&other).unwrap()], [128, 512]);
        assert_eq!(noted(&registry), 0);
        // Later settings belong to another program.
        fs::write(one.join(FILE), "64").unwrap();
        drop(set);
        assert_eq!(read(&one).unwrap(), 64);
    }

    #[test]
    fn read_ahead_without_host_support_fails_and_changes_nothing() {
        let keep = tempfile::tempdir().unwrap();
        let registry = ResourceRegistry::open_at(&keep.path().join("run")).unwrap();
        let class = keep.path().join("bdi");
        let one = device(&class, "7:1");
        let error = ReadAhead::set_in(&class, &names(&["7:1", "7:2"]), 0, &registry).unwrap_err();
        assert!(matches!(&error, AttachError::Missing(missing) if missing.what.contains("7:2")), "{error}");
        assert_eq!((read(&one).unwrap(), noted(&registry)), (128, 0));
        assert!(!restore_in(&class, "7:9", 128).unwrap(), "a device that is gone needs nothing");
    }
}
