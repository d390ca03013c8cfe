//! Which regions of a mirrored volume may have copies that differ, because they are being written over.
//!
//! A power cut in the middle of an overwrite leaves the two copies different. So the journal knows of a region before
//! anything in it is written over, and opening the pool makes its copies alike again.

use std::sync::Arc;

use underlay_storage::device::DeviceError;
use underlay_sync::planted::{PlantedBug, is_planted};

use super::core::{PoolCore, VolumeCore};
use super::record::PoolRecord;

/// Extents in a region: 16 MiB.
pub(super) const REGION_EXTENTS: u32 = 64;
/// A region that was not written over for this many flushes counts as quiet.
const QUIET_FLUSHES: u64 = 16;

impl PoolCore {
    /// Of all volumes.
    pub(super) fn clear_quiet(&self, epoch: u64) {
        for volume in self.volumes().iter().filter(|volume| volume.mirror && volume.compress.is_none()) {
            volume.clear_quiet_regions(self, epoch);
        }
    }
}

impl VolumeCore {
    /// Before an extent is written over on two members. Each beginning that succeeds has its end.
    pub(super) fn begin_overwrite(
        self: &Arc<Self>,
        core: &Arc<PoolCore>,
        extent: u32,
        start: impl FnOnce(Result<(), DeviceError>) + Send + 'static,
    ) {
        let region = extent / REGION_EXTENTS;
        let mut regions = self.intents.lock();
        let state = regions.entry(region).or_default();
        state.under_way += 1;
        if state.set || is_planted(PlantedBug::IntentSkipped) {
            drop(regions);
            return start(Ok(()));
        }
        state.waiting.push(Box::new(start));
        // The commit that the first one began answers for all that wait.
        if state.waiting.len() > 1 {
            return;
        }
        core.log.append([PoolRecord::Intent { volume: self.number, region, set: true }]);
        drop(regions);
        let volume = Arc::clone(self);
        core.log.commit(Box::new(move |result| {
            let waiting = {
                let mut regions = volume.intents.lock();
                let state = regions.entry(region).or_default();
                let waiting = std::mem::take(&mut state.waiting);
                state.set = result.is_ok();
                if result.is_err() {
                    // Their writes never begin, so that nobody ends them.
                    state.under_way -= waiting.len() as u32;
                }
                waiting
            };
            waiting.into_iter().for_each(|start| start(result.clone()));
        }));
    }

    pub(super) fn end_overwrite(&self, extent: u32, epoch: u64, succeeded: bool) {
        if let Some(state) = self.intents.lock().get_mut(&(extent / REGION_EXTENTS)) {
            state.under_way -= 1;
            state.last_epoch = epoch;
            state.has_failed |= !succeeded;
        }
    }

    /// Appends the clearing of regions that are quiet. What was written to them is durable on both members.
    fn clear_quiet_regions(&self, core: &PoolCore, epoch: u64) {
        let mut regions = self.intents.lock();
        regions.retain(|region, state| {
            let quiet = state.set
                && !state.has_failed
                && state.under_way == 0
                && state.last_epoch + QUIET_FLUSHES < epoch;
            if quiet {
                // Under the lock, or it might overtake the next setting.
                core.log.append([PoolRecord::Intent { volume: self.number, region: *region, set: false }]);
            }
            !quiet
        });
    }
}
