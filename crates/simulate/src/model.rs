//! What a volume may hold, by the contract of a block device alone.
//!
//! For each block the model keeps the writes that a read may still find. It knows when each write was submitted and
//! ended, and whether it was acknowledged, but nothing of how the stack works.

use std::collections::{BTreeMap, BTreeSet};

/// Counts events: what has a smaller one happened before.
pub type EventCount = u64;

/// A write or discard of one block.
#[derive(Clone, Copy, Debug)]
struct BlockVersion {
    tag: u64,
    submitted: EventCount,
    ended: Option<EventCount>,
    acknowledged: bool,
    /// When a flush that came after it was acknowledged, or it was written with FUA and acknowledged.
    durable_since: Option<EventCount>,
    /// Its acknowledgement promises nothing any more: the power was cut before a flush.
    may_be_lost: bool,
    /// The host that was told that it is written, and would write it again, has ended.
    is_orphaned: bool,
    /// It failed since the device was opened: until it is opened again, reads may find it or what was there before, in
    /// turn.
    is_ambiguous: bool,
    /// A read that began and ended then found it.
    observed: Option<(EventCount, EventCount)>,
}

impl BlockVersion {
    fn initial(tag: u64) -> BlockVersion {
        BlockVersion {
            tag,
            submitted: 0,
            ended: Some(0),
            acknowledged: true,
            durable_since: Some(0),
            may_be_lost: false,
            is_orphaned: false,
            is_ambiguous: false,
            observed: None,
        }
    }

    fn ended_before(&self, moment: EventCount) -> bool {
        self.ended.is_some_and(|ended| ended < moment)
    }

    fn is_durable(&self) -> bool {
        self.durable_since.is_some()
    }

    /// Whether a read that begins at `moment` can't find `older` any more because of this one.
    fn hides(&self, older: &BlockVersion, moment: EventCount) -> bool {
        // Writes that overlap in time may land in either order: one hides another only if it began after
        // the other had ended.
        let written = self.acknowledged
            && !self.may_be_lost
            && self.ended_before(moment)
            && older.ended_before(self.submitted);
        let may_flip = self.is_ambiguous || older.is_ambiguous;
        let seen = self.observed.is_some_and(|(began, ended)| ended < moment && older.ended_before(began));
        written || seen && !may_flip
    }
}

/// A change of blocks that is in progress or over.
#[derive(Clone, Debug)]
struct BlockChange {
    blocks: Vec<u32>,
    fua: bool,
}

/// The model of one volume.
#[derive(Clone, Debug, Default)]
pub struct VolumeModel {
    blocks: Vec<Vec<BlockVersion>>,
    under_way: BTreeMap<EventCount, BlockChange>,
    /// Reads in flight: what they may find is not forgotten.
    reads: BTreeSet<EventCount>,
    /// Snapshots that are being taken, likewise. They outlive the process that reads and writes.
    snapshots: BTreeSet<EventCount>,
}

impl VolumeModel {
    /// A new volume reads as zeros.
    pub fn new(blocks: u32) -> VolumeModel {
        VolumeModel {
            blocks: (0..blocks).map(|_| vec![BlockVersion::initial(0)]).collect(),
            under_way: BTreeMap::new(),
            reads: BTreeSet::new(),
            snapshots: BTreeSet::new(),
        }
    }

    fn oldest_read(&self) -> EventCount {
        self.reads.first().into_iter().chain(self.snapshots.first()).min().copied().unwrap_or(EventCount::MAX)
    }

    pub fn begin_read(&mut self, moment: EventCount) {
        self.reads.insert(moment);
    }

    pub fn end_read(&mut self, moment: EventCount) {
        self.reads.remove(&moment);
    }

    pub fn begin_snapshot(&mut self, moment: EventCount) {
        self.snapshots.insert(moment);
    }

    /// A snapshot that the server takes of what it has: where an earlier server `has_lost` something, the host may have
    /// yet to write that again.
    pub fn snapshot_at_server(&self, began: EventCount, ended: EventCount, has_lost: bool) -> VolumeModel {
        if !has_lost {
            return self.snapshot(began, ended);
        }
        let mut of_server = self.clone();
        of_server.lose_what_was_not_durable(began, ended);
        of_server.snapshot(began, ended)
    }

    pub fn end_snapshot(&mut self, moment: EventCount) {
        self.snapshots.remove(&moment);
    }

    pub fn blocks(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// A write (or, with tag 0, a discard) begins. `submitted` names it from now on.
    pub fn submit(&mut self, submitted: EventCount, first: u32, tags: &[u64], fua: bool) {
        let blocks: Vec<u32> = (first..first + tags.len() as u32).collect();
        for (block, tag) in blocks.iter().zip(tags) {
            let version = BlockVersion {
                tag: *tag,
                submitted,
                ended: None,
                acknowledged: false,
                durable_since: None,
                may_be_lost: false,
                is_orphaned: false,
                is_ambiguous: false,
                observed: None,
            };
            self.blocks[*block as usize].push(version);
        }
        self.under_way.insert(submitted, BlockChange { blocks, fua });
    }

    /// It was answered, or its host is gone (`acknowledged` is false then).
    pub fn end(
        &mut self,
        submitted: EventCount,
        now: EventCount,
        acknowledged: bool,
        counts_as_durable: bool,
    ) {
        let Some(change) = self.under_way.remove(&submitted) else { return };
        let oldest_read = self.oldest_read();
        for block in change.blocks {
            let Some(versions) = self.blocks.get_mut(block as usize) else { continue };
            if let Some(version) = versions.iter_mut().find(|version| version.submitted == submitted) {
                version.ended = Some(now);
                version.acknowledged = acknowledged;
                version.is_ambiguous = !acknowledged;
                let is_durable = acknowledged && change.fua && counts_as_durable;
                version.durable_since = is_durable.then_some(now);
            }
            forget(versions, oldest_read);
        }
    }

    /// Everything in flight ends without an answer.
    pub fn end_all(&mut self, now: EventCount) {
        let submitted: Vec<EventCount> = self.under_way.keys().copied().collect();
        submitted.into_iter().for_each(|submitted| self.end(submitted, now, false, false));
        self.reads.clear();
    }

    /// A flush that began at `submitted` was acknowledged.
    pub fn flushed(&mut self, submitted: EventCount, now: EventCount) {
        let oldest_read = self.oldest_read();
        for versions in &mut self.blocks {
            let mut changed = false;
            for version in versions.iter_mut() {
                // A flush covers what was acknowledged before it began, not what ended while it ran.
                if version.acknowledged && !version.may_be_lost && version.ended_before(submitted) {
                    changed |= !version.is_durable();
                    version.durable_since.get_or_insert(now);
                }
            }
            if changed {
                forget(versions, oldest_read);
            }
        }
    }

    /// The power is cut: what no flush has covered may be there or not.
    pub fn lose_unflushed(&mut self, now: EventCount) {
        self.lose_what_was_not_durable(now, now);
    }

    /// What no flush had covered at `moment` may be there or not.
    ///
    /// This is what a server has that lost its power before `moment` and whose host is still writing again what it
    /// keeps: a flush acknowledged since promises what the server has now, and nothing about then.
    pub fn lose_what_was_not_durable(&mut self, moment: EventCount, now: EventCount) {
        self.end_all(now);
        for version in self.blocks.iter_mut().flatten() {
            version.observed = None;
            version.may_be_lost |= version.durable_since.is_none_or(|durable_since| durable_since > moment);
        }
    }

    /// The host that wrote has ended. What it was told is there, but nobody would write it again.
    pub fn orphan(&mut self) {
        for version in self.blocks.iter_mut().flatten() {
            version.is_orphaned |= !version.is_durable();
        }
    }

    /// The server has lost what no flush has covered, and the host that uses it writes again what it was told is
    /// written.
    pub fn lose_orphaned(&mut self) {
        for version in self.blocks.iter_mut().flatten().filter(|version| !version.is_durable()) {
            version.may_be_lost |= version.is_orphaned;
            // What was seen and nobody was told of is not written again.
            if version.is_orphaned || !version.acknowledged {
                version.observed = None;
            }
        }
    }

    /// Checks what a read found that began at `began`.
    ///
    /// # Errors
    /// What it may not find.
    pub fn check_read(
        &mut self,
        first: u32,
        tags: &[u64],
        began: EventCount,
        now: EventCount,
    ) -> Result<(), String> {
        for (block, tag) in (first..).zip(tags) {
            let Some(versions) = self.blocks.get_mut(block as usize) else { continue };
            let is_possible = |version: &BlockVersion| {
                let others = versions.iter().filter(|other| other.submitted != version.submitted);
                version.tag == *tag && others.into_iter().all(|other| !other.hides(version, began))
            };
            let Some(index) = versions.iter().position(is_possible) else {
                return Err(format!("block {block} reads as write {tag}; it was {}", describe(versions)));
            };
            // Of two that look the same (zeros) nobody knows which was seen.
            if versions.iter().filter(|version| version.tag == *tag).count() == 1 {
                versions[index].observed = Some((began, now));
            }
        }
        Ok(())
    }

    /// A copy as a snapshot that was taken between the two moments may hold it.
    #[must_use]
    pub fn snapshot(&self, began: EventCount, ended: EventCount) -> VolumeModel {
        let freeze = |versions: &Vec<BlockVersion>| {
            let is_possible = |version: &&BlockVersion| {
                let mut others = versions.iter().filter(|other| other.submitted != version.submitted);
                version.submitted < ended && others.all(|other| !other.hides(version, began))
            };
            let frozen = versions.iter().filter(is_possible).map(|version| BlockVersion {
                submitted: 0,
                ended: Some(ended),
                acknowledged: false,
                durable_since: Some(0),
                may_be_lost: false,
                is_orphaned: false,
                is_ambiguous: false,
                observed: None,
                ..*version
            });
            // Moments tell versions apart: these lie before everything that happens to the snapshot.
            frozen
                .enumerate()
                .map(|(number, version)| BlockVersion { submitted: number as u64, ..version })
                .collect()
        };
        VolumeModel { blocks: self.blocks.iter().map(freeze).collect(), ..VolumeModel::default() }
    }

    /// The device was opened again: what a read finds now stays.
    pub fn reopened(&mut self) {
        for version in self.blocks.iter_mut().flatten() {
            version.is_ambiguous = false;
            version.observed = None;
        }
    }

    /// The volume has this many blocks now; new ones read as zeros.
    pub fn resize(&mut self, blocks: u32) {
        self.blocks.resize(blocks as usize, vec![BlockVersion::initial(0)]);
    }

    /// Blocks from `first` on may become zeros, until this ends as a write does.
    pub fn begin_zeroing(&mut self, first: u32, submitted: EventCount) {
        let count = self.blocks().saturating_sub(first) as usize;
        self.submit(submitted, first, &vec![0; count], false);
    }

    /// Blocks from `first` on may have become zeros, by a change that nobody answered.
    pub fn may_be_zeroed(&mut self, first: u32, submitted: EventCount, now: EventCount) {
        self.begin_zeroing(first, submitted);
        self.end(submitted, now, false, false);
    }
}

/// Drops what no read can find any more, whatever happens.
fn forget(versions: &mut Vec<BlockVersion>, oldest_read: EventCount) {
    let sure: Vec<(EventCount, EventCount)> = versions
        .iter()
        .filter(|version| version.acknowledged && version.ended_before(oldest_read))
        // What became durable while a snapshot was taken says nothing about what the snapshot holds.
        .filter(|version| version.durable_since.is_some_and(|durable_since| durable_since < oldest_read))
        .filter_map(|version| Some((version.submitted, version.ended?)))
        .collect();
    versions.retain(|version| {
        !sure.iter().any(|(submitted, _)| version.submitted != *submitted && version.ended_before(*submitted))
    });
}

fn describe(versions: &[BlockVersion]) -> String {
    let one = |version: &BlockVersion| {
        let state = match version.ended {
            None => "in flight".to_owned(),
            Some(ended) if !version.acknowledged => format!("ended {ended} unacknowledged"),
            Some(ended) => format!("acknowledged {ended}"),
        };
        let more = [
            version.is_durable().then_some(", durable"),
            version.may_be_lost.then_some(", may be lost"),
            version.observed.map(|_| ", was read"),
        ];
        let more: String = more.into_iter().flatten().collect();
        format!("write {} (submitted {}, {state}{more})", version.tag, version.submitted)
    };
    versions.iter().map(one).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledged_write_hides_earlier_ended_writes() {
        let mut model = VolumeModel::new(1);
        model.submit(1, 0, &[5], false);
        assert!(model.check_read(0, &[0], 2, 3).is_ok() && model.check_read(0, &[5], 2, 3).is_ok());
        model.end(1, 4, true, true);
        assert!(model.clone().check_read(0, &[0], 5, 6).is_err());
        // One that overlaps another hides nothing of it.
        model.submit(7, 0, &[6], false);
        model.submit(8, 0, &[7], false);
        model.end(7, 9, true, true);
        model.end(8, 10, true, true);
        assert!(model.clone().check_read(0, &[6], 11, 12).is_ok());
        assert!(model.clone().check_read(0, &[7], 11, 12).is_ok());
        assert!(model.clone().check_read(0, &[5], 11, 12).is_err());
    }

    #[test]
    fn power_cut_loses_only_unflushed_writes() {
        let mut model = VolumeModel::new(2);
        model.submit(1, 0, &[5, 6], false);
        model.end(1, 2, true, true);
        model.flushed(3, 3);
        model.submit(4, 0, &[7], false);
        model.end(4, 5, true, true);
        model.lose_unflushed(6);
        for tag in [5, 7] {
            assert!(model.clone().check_read(0, &[tag], 7, 8).is_ok());
        }
        assert!(model.clone().check_read(0, &[0], 7, 8).is_err());
        assert!(model.clone().check_read(1, &[0], 7, 8).is_err());
        // What was seen stays.
        model.check_read(0, &[5], 7, 8).unwrap();
        assert!(model.check_read(0, &[7], 9, 10).is_err());
    }

    #[test]
    fn flush_skips_later_acknowledged_writes() {
        let mut model = VolumeModel::new(1);
        model.submit(1, 0, &[5], false);
        model.end(1, 3, true, true);
        model.flushed(2, 2);
        model.lose_unflushed(4);
        assert!(model.check_read(0, &[0], 5, 6).is_ok());
    }

    #[test]
    fn snapshot_may_hold_blocks_flushed_meanwhile() {
        let mut model = VolumeModel::new(1);
        model.begin_snapshot(1);
        model.submit(2, 0, &[5], false);
        model.end(2, 3, true, true);
        model.flushed(4, 4);
        model.end_all(5);
        let snapshot = model.snapshot(1, 6);
        assert!(snapshot.clone().check_read(0, &[0], 7, 8).is_ok());
        assert!(snapshot.clone().check_read(0, &[5], 7, 8).is_ok());
        assert!(model.check_read(0, &[0], 7, 8).is_err());
    }

    #[test]
    fn snapshot_may_lack_later_flushed_host_writes() {
        let mut model = VolumeModel::new(2);
        model.submit(1, 0, &[5, 6], false);
        model.end(1, 2, true, true);
        model.submit(3, 1, &[7], true);
        model.end(3, 4, true, true);
        model.begin_snapshot(5);
        model.flushed(6, 7);
        model.submit(8, 0, &[8], true);
        model.end(8, 9, true, true);
        let mut at_the_server = model.clone();
        at_the_server.lose_what_was_not_durable(5, 10);
        let snapshot = at_the_server.snapshot(5, 10);
        for tag in [0, 5, 8] {
            assert!(snapshot.clone().check_read(0, &[tag], 11, 12).is_ok(), "{tag}");
        }
        for tag in [0, 6] {
            assert!(
                snapshot.clone().check_read(1, &[tag], 11, 12).is_err(),
                "what was written with FUA is there"
            );
        }
        assert!(model.check_read(0, &[5], 11, 12).is_err(), "the volume itself has what was flushed");
    }

    #[test]
    fn orphaned_writes_are_lost_with_server_power() {
        let mut model = VolumeModel::new(2);
        model.submit(1, 0, &[5, 6], false);
        model.end(1, 2, true, true);
        model.orphan();
        assert!(model.clone().check_read(0, &[0], 3, 4).is_err(), "the server is well");
        model.submit(3, 1, &[7], false);
        model.end(3, 4, true, true);
        model.lose_orphaned();
        assert!(model.clone().check_read(0, &[0], 5, 6).is_ok());
        assert!(model.clone().check_read(1, &[6], 5, 6).is_err());
        // A flush of the other host before that covers it.
        let mut model = VolumeModel::new(1);
        model.submit(1, 0, &[5], false);
        model.end(1, 2, true, true);
        model.orphan();
        model.flushed(3, 3);
        model.lose_orphaned();
        assert!(model.check_read(0, &[0], 5, 6).is_err());
    }

    #[test]
    fn failed_write_may_have_happened() {
        let mut model = VolumeModel::new(1);
        model.submit(1, 0, &[5], false);
        model.end(1, 2, false, true);
        for tag in [0, 5, 0] {
            assert!(model.check_read(0, &[tag], 3, 4).is_ok());
        }
        // Once the device was opened again it is one of the two.
        model.reopened();
        model.check_read(0, &[5], 3, 4).unwrap();
        assert!(model.check_read(0, &[0], 5, 6).is_err());
    }
}
