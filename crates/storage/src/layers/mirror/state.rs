//! The contents of a mirror's journals.

use std::collections::BTreeSet;

/// The whole state: every record of the journal is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MirrorSnapshot {
    /// Counts changes of who is in and who is out; 0 for a mirror that was never opened.
    pub epoch: u64,
    /// Regions that may differ between members, because writes to them were in flight.
    pub marked: BTreeSet<u32>,
    /// By member: whether it is left out.
    pub out: Vec<bool>,
    /// By member: the regions written since it was left out.
    pub missed: Vec<BTreeSet<u32>>,
}

impl MirrorSnapshot {
    pub(super) fn new(members: usize) -> MirrorSnapshot {
        MirrorSnapshot {
            epoch: 0,
            marked: BTreeSet::new(),
            out: vec![false; members],
            missed: vec![BTreeSet::new(); members],
        }
    }

    /// The length of the longest encoding.
    pub(super) fn encoded_bytes(members: usize, regions: u64) -> u64 {
        let sets = members as u64 + 1;
        8 + members as u64 + sets * (4 + 4 * regions)
    }

    pub(super) fn miss_all(&mut self, member: usize, regions: u32) {
        self.out[member] = true;
        self.missed[member].extend(0..regions);
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.epoch.to_le_bytes().to_vec();
        bytes.extend(self.out.iter().map(|out| u8::from(*out)));
        for set in std::iter::once(&self.marked).chain(&self.missed) {
            bytes.extend((set.len() as u32).to_le_bytes());
            set.iter().for_each(|region| bytes.extend(region.to_le_bytes()));
        }
        bytes
    }

    /// `None` for anything that `encode` doesn't write for this many members and regions.
    pub(super) fn decode(bytes: &[u8], members: usize, regions: usize) -> Option<MirrorSnapshot> {
        let (epoch, rest) = bytes.split_first_chunk::<8>()?;
        let (out, mut rest) = rest.split_at_checked(members)?;
        let mut sets = Vec::new();
        for _ in 0..=members {
            let (count, after) = rest.split_first_chunk::<4>()?;
            let (set, after) =
                after.split_at_checked((u32::from_le_bytes(*count) as usize).checked_mul(4)?)?;
            let set: BTreeSet<u32> =
                set.as_chunks::<4>().0.iter().map(|region| u32::from_le_bytes(*region)).collect();
            if set.last().is_some_and(|last| *last as usize >= regions) {
                return None;
            }
            sets.push(set);
            rest = after;
        }
        let marked = sets.remove(0);
        let out = out.iter().map(|out| *out != 0).collect();
        rest.is_empty().then(|| MirrorSnapshot {
            epoch: u64::from_le_bytes(*epoch),
            marked,
            out,
            missed: sets,
        })
    }
}
