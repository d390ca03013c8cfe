//! Limits how much written data of programs may wait in memory for a storage's devices.
//!
//! The kernel holds writers back when too many pages are dirty, as a share of the whole machine's memory
//! (`vm.dirty_ratio`), not of a program's budget. A small program's writes would stay in the page cache and never reach
//! a modelled device. Since Linux 6.2 each device can have its own limit (`/sys/class/bdi/MAJOR:MINOR`).
//!
//! The kernel stores the limit as a share of the machine's own limit, which follows free memory. So it is set again
//! when a measurement begins, and reads back a little lower than requested. A loop device keeps it beyond its file: it
//! is lifted before the device is released, and noted in the registry.
//!
//! Below the limit, the kernel gives a device the share that it has earned by writing, which before Linux 6.13 is
//! almost nothing at first. So the limit is also set as the device's minimum share, which makes it constant from the
//! beginning.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::machine::error::AttachError;
use crate::machine::missing::MissingCapability;
use crate::undo::registry::{OwnedResource, PreviousLimits, RegistryNote, ResourceRegistry};

/// With less, a device gets requests that are too small for it: the kernel starts writing out at half of the limit.
pub const DEVICE_MIN_BYTES: u64 = 1 << 20;

/// Where the kernel shows the devices behind the page cache, by device number.
const CLASS: &str = "/sys/class/bdi";
/// Whether the device's own limit applies even while the machine is far below its own.
const STRICT: &str = "strict_limit";
const MAX_BYTES: &str = "max_bytes";
const MIN_BYTES: &str = "min_bytes";
/// The same limits in millionths of the machine's own, which is the kernel's internal unit.
const MAX_RATIO: &str = "max_ratio_fine";
const MIN_RATIO: &str = "min_ratio_fine";

/// The limits of a storage's devices, until they are lifted or dropped.
#[derive(Debug)]
pub(crate) struct DirtyLimits {
    class: PathBuf,
    registry: ResourceRegistry,
    device_bytes: u64,
    devices: Vec<LimitedDevice>,
}

#[derive(Debug)]
struct LimitedDevice {
    /// `7:3`
    device: String,
    previous: PreviousLimits,
    note: Option<RegistryNote>,
}

impl DirtyLimits {
    /// Limits the dirty pages of the devices below `paths` to `limit_bytes` in total, each device with an equal part.
    ///
    /// # Errors
    /// `MissingCapability` where this host can't do it. Nothing is set in that case.
    pub(crate) fn set(
        paths: &[PathBuf],
        limit_bytes: u64,
        registry: &ResourceRegistry,
    ) -> Result<DirtyLimits, AttachError> {
        DirtyLimits::set_in(Path::new(CLASS), &devices_below(paths)?, limit_bytes, registry)
    }

    fn set_in(
        class: &Path,
        devices: &BTreeSet<String>,
        limit_bytes: u64,
        registry: &ResourceRegistry,
    ) -> Result<DirtyLimits, AttachError> {
        let device_bytes = limit_bytes / (devices.len() as u64).max(1);
        if device_bytes < DEVICE_MIN_BYTES {
            return Err(AttachError::failed(format!(
                "{limit_bytes} bytes of dirty pages for {} devices are {device_bytes} each: {DEVICE_MIN_BYTES} is the \
                 least that works",
                devices.len()
            )));
        }
        // Dropping this lifts all limits that were set.
        let mut limits = DirtyLimits {
            class: class.to_owned(),
            registry: registry.clone(),
            device_bytes,
            devices: Vec::new(),
        };
        // A dead process's limits on a device are not the device's original ones.
        let left: BTreeMap<String, PreviousLimits> = registry
            .leftovers()
            .into_iter()
            .filter_map(|left| match left.resource {
                OwnedResource::DirtyLimit { device, previous } => Some((device, previous)),
                _ => None,
            })
            .rev()
            .collect();
        for device in devices {
            limits.limit(device, left.get(device).copied())?;
        }
        Ok(limits)
    }

    fn limit(&mut self, device: &str, left: Option<PreviousLimits>) -> Result<(), AttachError> {
        let folder = self.class.join(device);
        let previous = match left {
            Some(previous) => previous,
            None => read_limits(&folder).map_err(|error| unavailable(&folder, error))?,
        };
        // Without a block device the limit disappears with the mount, and its number goes to the next one.
        let note = match device.starts_with("0:") {
            true => None,
            false => {
                Some(self.registry.note(OwnedResource::DirtyLimit { device: device.to_owned(), previous })?)
            }
        };
        // Before the limit is applied: if that fails halfway, dropping this lifts what was set.
        self.devices.push(LimitedDevice { device: device.to_owned(), previous, note });
        apply(&folder, self.device_bytes).map_err(|error| unavailable(&folder, error))
    }

    pub(crate) fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    pub(crate) fn devices(&self) -> u32 {
        self.devices.len() as u32
    }

    /// Sets the limits again, based on the present free memory.
    pub(crate) fn renew(&self) {
        // The kernel stores a share, not bytes: as free memory changes, the same share is a different number of bytes.
        for limited in &self.devices {
            // If the machine's own limit has dropped below it, that one applies.
            let _ = apply(&self.class.join(&limited.device), self.device_bytes);
        }
    }

    /// Restores the devices' former limits; a second call does nothing.
    pub(crate) fn lift(&mut self) -> Result<(), AttachError> {
        while let Some(limited) = self.devices.last_mut() {
            restore_in(&self.class, &limited.device, limited.previous)?;
            if let Some(note) = limited.note.take() {
                self.registry.forget(note);
            }
            self.devices.pop();
        }
        Ok(())
    }
}

impl Drop for DirtyLimits {
    fn drop(&mut self) {
        // After a failure here the entry stays in the registry, where `underlay clean` finds it.
        let _ = self.lift();
    }
}

/// The present limits of this folder's device.
fn read_limits(folder: &Path) -> io::Result<PreviousLimits> {
    let number = |file: &str| {
        let text = fs::read_to_string(folder.join(file))?;
        text.trim().parse().map_err(|_| io::Error::from(ErrorKind::InvalidData))
    };
    Ok(PreviousLimits {
        strict_limit: number(STRICT)?,
        max_ratio_fine: number(MAX_RATIO)?,
        min_ratio_fine: number(MIN_RATIO)?,
    })
}

fn apply(folder: &Path, limit_bytes: u64) -> io::Result<()> {
    // The minimum must never be above the maximum.
    write(folder, MIN_RATIO, 0)?;
    write(folder, MAX_BYTES, limit_bytes)?;
    // The kernel refuses it if the minimum shares of all devices together would be everything. Without it, a device has
    // to earn its share.
    let _ = write(folder, MIN_BYTES, limit_bytes);
    write(folder, STRICT, 1)
}

/// Restores a device's former limit. Returns whether there was one to restore: a device that is gone has none, and a
/// limit that another program has reset stays.
pub(crate) fn restore(device: &str, previous: PreviousLimits) -> Result<bool, AttachError> {
    restore_in(Path::new(CLASS), device, previous)
}

fn restore_in(class: &Path, device: &str, previous: PreviousLimits) -> Result<bool, AttachError> {
    let folder = class.join(device);
    let failed = |error: io::Error| AttachError::io("restore the limit of dirty pages in", &folder, error);
    match read_limits(&folder) {
        Ok(now) if now == previous => return Ok(false),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed(error)),
    }
    // The minimum must never be above the maximum.
    write(&folder, MIN_RATIO, 0)
        .and_then(|()| write(&folder, MAX_RATIO, u64::from(previous.max_ratio_fine)))
        .and_then(|()| write(&folder, MIN_RATIO, u64::from(previous.min_ratio_fine)))
        .and_then(|()| write(&folder, STRICT, u64::from(previous.strict_limit)))
        .map_err(failed)?;
    Ok(true)
}

/// The numbers of the devices, each once.
pub(super) fn devices_below(paths: &[PathBuf]) -> Result<BTreeSet<String>, AttachError> {
    let device = |path: &PathBuf| {
        let metadata = fs::metadata(path).map_err(|error| AttachError::io("read", path, error))?;
        // A bare device is its own node; a file system is on the device that it reports.
        let number = if metadata.file_type().is_block_device() { metadata.rdev() } else { metadata.dev() };
        Ok(format!("{}:{}", libc::major(number), libc::minor(number)))
    };
    paths.iter().map(device).collect()
}

/// Only to an existing file: the kernel creates them, not we.
fn write(folder: &Path, file: &str, value: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).truncate(true).open(folder.join(file))?;
    file.write_all(value.to_string().as_bytes())
}

fn unavailable(folder: &Path, error: io::Error) -> AttachError {
    let place = folder.display();
    let missing = format!("a limit of dirty pages of a device's own ({place}: {error})");
    let remedy = match error.kind() {
        ErrorKind::NotFound => "use a kernel from 6.2 on",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "run as root, and in a container pass --privileged"
        }
        ErrorKind::InvalidInput => {
            "this machine's own limit is lower (vm.dirty_ratio, and what memory is free): raise it, or let the data \
             scale make less of it"
        }
        _ => return AttachError::io("limit dirty pages in", folder, error),
    };
    MissingCapability::new(missing, remedy).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory like the kernel's, except that writing to one file changes no other.
    fn device(class: &Path, name: &str) -> PathBuf {
        let folder = class.join(name);
        fs::create_dir_all(&folder).unwrap();
        for (file, number) in [
            (STRICT, 0),
            (MAX_BYTES, 4_918_919_168_u64),
            (MAX_RATIO, 1_000_000),
            (MIN_BYTES, 0),
            (MIN_RATIO, 0),
        ] {
            fs::write(folder.join(file), format!("{number}\n")).unwrap();
        }
        folder
    }

    fn read(folder: &Path, file: &str) -> String {
        fs::read_to_string(folder.join(file)).unwrap().trim().to_owned()
    }

    fn names(devices: &[&str]) -> BTreeSet<String> {
        devices.iter().map(|&device| device.to_owned()).collect()
    }

    fn noted(registry: &ResourceRegistry) -> usize {
        registry
            .living()
            .into_iter()
            .filter(|(_, resource)| matches!(resource, OwnedResource::DirtyLimit { .. }))
            .count()
    }

    #[test]
    fn dirty_limit_splits_equally_and_restores() {
        let keep = tempfile::tempdir().unwrap();
        let registry = ResourceRegistry::open_at(&keep.path().join("run")).unwrap();
        let class = keep.path().join("bdi");
        let (one, other) = (device(&class, "7:1"), device(&class, "7:2"));
        fs::write(other.join(MAX_RATIO), "500000\n").unwrap();
        fs::write(other.join(MIN_RATIO), "7\n").unwrap();
        let mut limits = DirtyLimits::set_in(&class, &names(&["7:1", "7:2"]), 16 << 20, &registry).unwrap();
        assert_eq!((limits.devices(), limits.device_bytes()), (2, 8 << 20));
        for folder in [&one, &other] {
            assert_eq!((read(folder, STRICT), read(folder, MAX_BYTES)), ("1".into(), (8 << 20).to_string()));
        }
        assert_eq!(noted(&registry), 2);
        fs::write(one.join(MAX_BYTES), "1").unwrap();
        limits.renew();
        assert_eq!(read(&one, MAX_BYTES), (8 << 20).to_string());
        limits.lift().unwrap();
        assert_eq!((read(&one, STRICT), read(&one, MAX_RATIO)), ("0".into(), "1000000".into()));
        assert_eq!(
            [STRICT, MAX_RATIO, MIN_RATIO].map(|file| read(&other, file)),
            ["0", "500000", "7"].map(str::to_owned)
        );
        assert_eq!(noted(&registry), 0);
        // Later settings belong to another program.
        fs::write(one.join(STRICT), "1").unwrap();
        limits.lift().unwrap();
        drop(limits);
        assert_eq!(read(&one, STRICT), "1");
    }

    #[test]
    fn dirty_limit_without_kernel_support_fails_and_changes_nothing() {
        let keep = tempfile::tempdir().unwrap();
        let registry = ResourceRegistry::open_at(&keep.path().join("run")).unwrap();
        let class = keep.path().join("bdi");
        let (new, old) = (device(&class, "7:1"), device(&class, "7:2"));
        fs::remove_file(old.join(STRICT)).unwrap();
        let error = DirtyLimits::set_in(&class, &names(&["7:1", "7:2"]), 16 << 20, &registry).unwrap_err();
        assert!(matches!(&error, AttachError::Missing(missing) if missing.remedy.contains("6.2")), "{error}");
        assert_eq!(read(&new, STRICT), "0");
        assert_eq!(noted(&registry), 0);
    }

    #[test]
    fn too_small_a_part_is_refused() {
        let keep = tempfile::tempdir().unwrap();
        let registry = ResourceRegistry::open_at(&keep.path().join("run")).unwrap();
        let class = keep.path().join("bdi");
        let folder = device(&class, "7:1");
        device(&class, "7:2");
        let limit_bytes = 2 * DEVICE_MIN_BYTES - 1;
        let error = DirtyLimits::set_in(&class, &names(&["7:1", "7:2"]), limit_bytes, &registry).unwrap_err();
        assert!(error.to_string().contains("least that works"), "{error}");
        assert_eq!(read(&folder, STRICT), "0");
        assert!(DirtyLimits::set_in(&class, &names(&["7:1"]), limit_bytes, &registry).is_ok());
    }

    #[test]
    fn dirty_limit_removed_device_needs_no_restore() {
        let keep = tempfile::tempdir().unwrap();
        let previous = PreviousLimits { strict_limit: 0, max_ratio_fine: 1_000_000, min_ratio_fine: 0 };
        assert!(!restore_in(keep.path(), "7:1", previous).unwrap());
        let folder = device(keep.path(), "7:1");
        assert!(!restore_in(keep.path(), "7:1", previous).unwrap());
        fs::write(folder.join(STRICT), "1").unwrap();
        fs::write(folder.join(MAX_RATIO), "1700").unwrap();
        assert!(restore_in(keep.path(), "7:1", previous).unwrap());
        assert_eq!(read_limits(&folder).unwrap(), previous);
    }

    #[test]
    fn devices_are_counted_once() {
        let keep = tempfile::tempdir().unwrap();
        let paths = [keep.path().join("dir-0"), keep.path().join("dir-1")];
        paths.iter().for_each(|path| fs::create_dir(path).unwrap());
        assert_eq!(devices_below(&paths).unwrap().len(), 1);
    }
}
