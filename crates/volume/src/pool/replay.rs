//! Making again, at opening, the changes that were answered and that the journal does not know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::core::PoolCore;
use super::extent::{MappedExtent, ReleasedSpace};
use super::record::PoolRecord;

/// What was noted last about each extent and member.
pub(super) struct LeftOver {
    /// By volume and extent.
    extents: BTreeMap<(u32, u32), Option<MappedExtent>>,
    /// Whether it is out.
    members: BTreeMap<u8, bool>,
}

impl LeftOver {
    /// Of notes in the order in which they were made.
    pub(super) fn new(noted: Vec<PoolRecord>) -> LeftOver {
        let mut left = LeftOver { extents: BTreeMap::new(), members: BTreeMap::new() };
        for record in noted {
            match record {
                PoolRecord::Extent { volume, index, extent } => {
                    left.extents.insert((volume, index), extent);
                }
                PoolRecord::Member { member, out } => {
                    left.members.insert(member, out);
                }
                // Nothing else is noted.
                _ => {}
            }
        }
        left
    }

    /// The members that are out, given those that the journal knows of.
    pub(super) fn out(&self, journal: &BTreeSet<u8>) -> BTreeSet<u8> {
        let mut out = journal.clone();
        for (member, is_out) in &self.members {
            if *is_out {
                out.insert(*member)
            } else {
                out.remove(member)
            };
        }
        out
    }
}

impl PoolCore {
    /// Changes the maps, which are as the journal has them, as they were changed before: the next flush takes it along.
    /// Notes may be older than what the journal knows of a volume that was deleted or made shorter since.
    ///
    /// # Errors
    /// When two maps would point to the same place, which only damaged notes can say.
    pub(super) fn make_again(self: &Arc<Self>, left: LeftOver) -> Result<(), String> {
        let volumes = self.volumes();
        for ((number, index), new) in left.extents {
            let Some(volume) = volumes.iter().find(|volume| volume.number == number) else { continue };
            let end = volume.header.read().extents();
            let old = volume.map.get(index);
            if index >= end || old == new {
                continue;
            }
            let is_packed = |extent: &MappedExtent| matches!(extent, MappedExtent::Packed(_));
            if new.as_ref().is_some_and(|new| is_packed(new) != volume.compress.is_some()) {
                return Err(format!(
                    "extent {index} of volume {number} is recorded in another way than it is stored"
                ));
            }
            let pieces =
                |extent: &Option<MappedExtent>| extent.as_ref().map(MappedExtent::pieces).unwrap_or_default();
            let (before, after): (Vec<ReleasedSpace>, Vec<ReleasedSpace>) = (pieces(&old), pieces(&new));
            for piece in after.iter().filter(|piece| !before.contains(piece)) {
                // It was free in the journal's eyes when it was given out, and is until the journal hears of it.
                if self.space.is_held(*piece) || !self.space.claim(*piece) {
                    return Err(format!(
                        "extent {index} of volume {number} is recorded at {piece:?}, which is not available"
                    ));
                }
            }
            let released = before.into_iter().filter(|piece| !after.contains(piece)).collect();
            volume.map.change(index, |_| Some((new, released))).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}
