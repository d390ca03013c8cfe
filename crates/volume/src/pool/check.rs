//! Whether everything in a pool is owned once, or shared by as many as are counted.

use std::collections::HashMap;
use std::sync::Arc;

use underlay_storage::device::DeviceError;

use super::VolumeHandle;
use super::core::PoolCore;
use super::description::{CheckReport, PoolError};
use super::extent::{EXTENT_BYTES, ReleasedSpace, Unit, first_unit};

/// More problems are counted, and not told one by one.
const TOLD: usize = 100;

impl PoolCore {
    pub(super) fn check(self: &Arc<Self>) -> Result<CheckReport, PoolError> {
        let volumes = self.volumes();
        // Closed first, so that the maps stand still from the flush to the comparison.
        for volume in &volumes {
            volume.gate.close();
        }
        // What lies on a member that fails its flush stays out of the journal.
        let check_flushed = || match volumes.iter().find(|volume| volume.map.has_dirty()) {
            Some(volume) => Err(DeviceError::Io(format!("not all of '{}' can be flushed", volume.name()))),
            None => Ok(()),
        };
        let report = self.flush_and_wait().and_then(|()| check_flushed()).map(|()| self.compare());
        for volume in volumes {
            let waiting = volume.gate.open();
            let handle = VolumeHandle { core: Arc::clone(self), volume };
            for (request, done) in waiting {
                handle.enter(request, done);
            }
        }
        Ok(report?)
    }

    fn compare(&self) -> CheckReport {
        let mut report = CheckReport::default();
        let mut references: HashMap<Unit, (u32, ReleasedSpace)> = HashMap::new();
        let volumes = self.volumes();
        report.volumes = volumes.len();
        for volume in &volumes {
            let extents = volume.map.extents();
            let name = volume.name();
            report.extents += extents.len() as u64;
            let end = volume.capacity_bytes.load(std::sync::atomic::Ordering::Acquire).div_ceil(EXTENT_BYTES);
            for (index, extent) in &extents {
                if u64::from(*index) >= end {
                    report.problems.push(format!("'{name}' maps extent {index} past its end"));
                }
                let mut members = Vec::new();
                for piece in extent.pieces() {
                    let unit = match piece {
                        ReleasedSpace::Slab(slab) => first_unit(slab),
                        ReleasedSpace::Run { unit, .. } => unit,
                    };
                    // Maps share a piece as a whole. The same unit in a piece of another size is a mistake.
                    let entry = references.entry(unit).or_insert((0, piece));
                    entry.0 += 1;
                    if entry.1 != piece {
                        report.problems.push(format!("{piece:?} of '{name}' is {:?} elsewhere", entry.1));
                    }
                    members.push(self.members.index_of(unit));
                }
                // Of a packed extent these are the pieces of all chunks, and two may well be on one member.
                if matches!(extent, super::extent::MappedExtent::Plain(_))
                    && members.len() == 2
                    && members[0] == members[1]
                {
                    report
                        .problems
                        .push(format!("both copies of extent {index} of '{name}' are on one member"));
                }
            }
            // All was flushed before, so what a crash would leave is what answers reads.
            let same = self.log.with_tables(|tables| {
                tables.volumes.get(&volume.number).is_some_and(|table| table.extents == extents)
            });
            if !same {
                report.problems.push(format!("the journal has another map of '{name}'"));
            }
        }
        if self.log.with_tables(|tables| tables.volumes.len()) != volumes.len() {
            report.problems.push("the journal has other volumes".into());
        }
        report.problems.extend(self.space.differences(&references));
        let count = report.problems.len();
        if count > TOLD {
            report.problems.truncate(TOLD);
            report.problems.push(format!("and {} more", count - TOLD));
        }
        report
    }
}
