//! Whether a disk's backing files have room to grow: they take space as the disk is written, and a write that finds
//! none fails on the mounted file system.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use underlay_attach::MissingCapability;
use underlay_config::units;
use underlay_files::free_bytes;
use underlay_storage::stack::{BackingSpec, DeviceSpec};

use crate::exit_codes::ExitFailure;
use crate::output;

/// A file system's own structures and its log; without as much there is nothing to be mounted.
const MIN_BYTES: u64 = 128 << 20;

/// Refuses a disk that not even a file system fits on, and says of one that can outgrow what is free.
pub(super) fn check(devices: &[&DeviceSpec], folder: &Path) -> Result<(), ExitFailure> {
    let Some(free_bytes) = free_bytes(folder) else { return Ok(()) };
    match judge(growth_bytes(devices), free_bytes) {
        SpaceVerdict::Fits => {}
        SpaceVerdict::MayNotFit { growth_bytes } => output::say(format_args!(
            "note: the disk may grow by {}, and {} are free at {}: writes that find no room there fail on the mounted disk; \
             --keep DIR keeps it elsewhere",
            units::rounded_bytes(growth_bytes),
            units::rounded_bytes(free_bytes),
            folder.display()
        )),
        SpaceVerdict::CannotFit { least_bytes } => {
            return Err(ExitFailure::from(MissingCapability::new(
                format!(
                    "room for the disk's backing files: {} at least, and {} are free at {}",
                    units::rounded_bytes(least_bytes),
                    units::rounded_bytes(free_bytes),
                    folder.display()
                ),
                "free some, or keep the disk on a larger file system with --keep DIR",
            )));
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum SpaceVerdict {
    Fits,
    MayNotFit { growth_bytes: u64 },
    CannotFit { least_bytes: u64 },
}

fn judge(growth_bytes: u64, free_bytes: u64) -> SpaceVerdict {
    let least_bytes = growth_bytes.min(MIN_BYTES);
    match free_bytes {
        free if free < least_bytes => SpaceVerdict::CannotFit { least_bytes },
        free if free < growth_bytes => SpaceVerdict::MayNotFit { growth_bytes },
        _ => SpaceVerdict::Fits,
    }
}

/// The bytes by which the backing files may still grow.
fn growth_bytes(devices: &[&DeviceSpec]) -> u64 {
    // The unit of st_blocks, independent of the file system's block size (stat(2)).
    const BLOCK_BYTES: u64 = 512;
    let growth = |device: &&DeviceSpec| match &device.backing {
        BackingSpec::File(path) => {
            let taken_bytes = std::fs::metadata(path).map_or(0, |found| found.blocks() * BLOCK_BYTES);
            device.capacity_bytes.saturating_sub(taken_bytes)
        }
        _ => 0,
    };
    devices.iter().map(growth).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_space_covers_filesystem_and_warns_beyond() {
        let gib = 1 << 30;
        assert_eq!(judge(8 * gib, 9 * gib), SpaceVerdict::Fits);
        assert_eq!(judge(8 * gib, 7 * gib), SpaceVerdict::MayNotFit { growth_bytes: 8 * gib });
        assert_eq!(judge(8 * gib, 1 << 20), SpaceVerdict::CannotFit { least_bytes: MIN_BYTES });
        // A small disk needs no more than it is, and one that has been filled nothing.
        assert_eq!(judge(1 << 20, 1 << 20), SpaceVerdict::Fits);
        assert_eq!(judge(0, 0), SpaceVerdict::Fits);
    }
}
