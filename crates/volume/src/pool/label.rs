//! The first block of each member: which pool it belongs to, and where things are on it.
//!
//! | label | bytes |
//! | --- | --- |
//! | magic | 8 |
//! | identity of the pool | 8 |
//! | length of the journal's region | 8 |
//! | length that the map may have | 8 |
//! | first slab, slabs | 4, 4 |
//! | members, number of this one | 2, 2 |
//! | 1 once the pool is made | 4 |
//! | CRC-32 of the above | 4 |
//!
//! Numbers are little-endian. The journal's region follows on the first two members, the slabs from the next multiple
//! of 256 KiB on.

use underlay_storage::journal::Journal;

use super::description::PoolError;
use super::extent::{BLOCK_BYTES, EXTENT_BYTES, take_u32, take_u64};

const MAGIC: &[u8; 8] = b"UNDLYPL1";
const LABEL_BYTES: usize = 52;
/// How many members have the journal.
pub const JOURNAL_MEMBERS: usize = 2;
const MIN_MAP_BYTES: u64 = 64 << 10;
const MAP_BYTES_PER_EXTENT: u64 = 256;
/// Between two checkpoints at least this much may be journalled.
const LOG_BYTES: u64 = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberLabel {
    pub identity: u64,
    pub journal_bytes: u64,
    pub map_bytes: u64,
    pub first_slab: u32,
    pub slabs: u32,
    pub members: u16,
    pub index: u16,
    pub made: bool,
}

/// The first block of a member as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstBlock {
    Blank,
    Foreign,
    Label(MemberLabel),
}

impl MemberLabel {
    pub fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK_BYTES as usize);
        block.extend_from_slice(MAGIC);
        for number in [self.identity, self.journal_bytes, self.map_bytes] {
            block.extend(number.to_le_bytes());
        }
        block.extend(self.first_slab.to_le_bytes());
        block.extend(self.slabs.to_le_bytes());
        block.extend(self.members.to_le_bytes());
        block.extend(self.index.to_le_bytes());
        block.extend(u32::from(self.made).to_le_bytes());
        block.extend(crc32fast::hash(&block).to_le_bytes());
        debug_assert_eq!(block.len(), LABEL_BYTES);
        block.resize(BLOCK_BYTES as usize, 0);
        block
    }

    pub fn decode(block: &[u8]) -> FirstBlock {
        if block.iter().all(|byte| *byte == 0) {
            return FirstBlock::Blank;
        }
        MemberLabel::fields(block).map_or(FirstBlock::Foreign, FirstBlock::Label)
    }

    fn fields(block: &[u8]) -> Option<MemberLabel> {
        let (fields, mut crc) = block.get(..LABEL_BYTES)?.split_at(LABEL_BYTES - 4);
        if take_u32(&mut crc)? != crc32fast::hash(fields) {
            return None;
        }
        let mut rest = fields.strip_prefix(MAGIC)?;
        let (identity, journal_bytes, map_bytes) =
            (take_u64(&mut rest)?, take_u64(&mut rest)?, take_u64(&mut rest)?);
        let (first_slab, slabs) = (take_u32(&mut rest)?, take_u32(&mut rest)?);
        let (place, made) = (take_u32(&mut rest)?, take_u32(&mut rest)? == 1);
        let (members, index) = (place as u16, (place >> 16) as u16);
        Some(MemberLabel { identity, journal_bytes, map_bytes, first_slab, slabs, members, index, made })
    }

    /// Where the first slab is.
    pub fn data_start_bytes(&self) -> u64 {
        let journal_bytes = if usize::from(self.index) < JOURNAL_MEMBERS { self.journal_bytes } else { 0 };
        (BLOCK_BYTES + journal_bytes).next_multiple_of(EXTENT_BYTES)
    }
}

/// How long the journal itself must be for a map of this many bytes.
pub fn journal_range_bytes(map_bytes: u64) -> u64 {
    // The margin is for what the limit leaves out: entries that get longer when they are written over (a
    // sixteenth of it at most, see `packed`), intents, and the pool's own records.
    Journal::range_bytes(map_bytes + map_bytes / 8 + (64 << 10), LOG_BYTES)
}

/// Labels for a new pool.
///
/// # Errors
/// When a member is too small, or the pool too large.
pub fn lay_out(
    capacities: &[u64],
    map_bytes: Option<u64>,
    identity: u64,
) -> Result<Vec<MemberLabel>, PoolError> {
    let extents: u64 = capacities.iter().map(|bytes| bytes / EXTENT_BYTES).sum();
    let map_bytes = map_bytes.unwrap_or(extents * MAP_BYTES_PER_EXTENT).max(MIN_MAP_BYTES);
    let mut journal_bytes = journal_range_bytes(map_bytes);
    if capacities.len() > 1 {
        // What the mirror of the two journals keeps for itself.
        journal_bytes += ((64 << 10) + 256 * (journal_bytes >> 20).min(4096)).next_multiple_of(BLOCK_BYTES);
    }
    let mut labels: Vec<MemberLabel> = Vec::new();
    let mut first_slab = 0u32;
    for (index, &capacity_bytes) in capacities.iter().enumerate() {
        let mut label = MemberLabel {
            identity,
            journal_bytes,
            map_bytes,
            first_slab,
            slabs: 0,
            members: capacities.len() as u16,
            index: index as u16,
            made: false,
        };
        let start_bytes = label.data_start_bytes();
        let slabs = capacity_bytes.saturating_sub(start_bytes) / EXTENT_BYTES;
        if slabs == 0 {
            return Err(PoolError::TooSmall {
                index,
                capacity_bytes,
                needed_bytes: start_bytes + EXTENT_BYTES,
            });
        }
        label.slabs = u32::try_from(slabs).map_err(|_| PoolError::TooLarge)?;
        first_slab = first_slab.checked_add(label.slabs).ok_or(PoolError::TooLarge)?;
        labels.push(label);
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_rereads_as_written_and_changed_one_fails() {
        let label = lay_out(&[64 << 20, 1 << 30, 5 << 20], None, 77).unwrap()[2];
        assert_eq!(MemberLabel::decode(&label.encode()), FirstBlock::Label(label));
        assert_eq!(MemberLabel::decode(&[0; 4096]), FirstBlock::Blank);
        for position in 0..LABEL_BYTES {
            let mut block = label.encode();
            block[position] ^= 4;
            assert_eq!(MemberLabel::decode(&block), FirstBlock::Foreign, "byte {position}");
        }
    }

    #[test]
    fn slabs_are_numbered_without_gaps_and_small_members_refused() {
        let labels = lay_out(&[64 << 20, 64 << 20, 64 << 20], None, 1).unwrap();
        assert_eq!(labels[1].first_slab, labels[0].slabs);
        assert_eq!(labels[2].first_slab, 2 * labels[0].slabs);
        assert_eq!(labels[2].slabs, 255);
        let refused = lay_out(&[64 << 20, 1 << 20], None, 1).unwrap_err();
        assert!(matches!(refused, PoolError::TooSmall { index: 1, .. }), "{refused}");
    }
}
