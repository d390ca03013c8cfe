//! Bytes that are known by where they come from.

use bytes::Bytes;

/// Consecutive bytes that one seed makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ContentPiece {
    seed: u64,
    at: u64,
    size: u64,
}

/// An object's pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectContent(Vec<ContentPiece>);

fn word(seed: u64, index: u64) -> [u8; 8] {
    let mut mixed = seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)).to_le_bytes()
}

impl ObjectContent {
    /// Bytes that nothing else has.
    pub fn new(seed: u64, size: u64) -> ObjectContent {
        ObjectContent(vec![ContentPiece { seed, at: 0, size }])
    }

    pub fn size(&self) -> u64 {
        self.0.iter().map(|piece| piece.size).sum()
    }

    /// The existing part of a range.
    pub fn range(&self, offset: u64, size: u64) -> ObjectContent {
        let (mut skipped, mut left) = (offset, size);
        let mut pieces = Vec::new();
        for piece in &self.0 {
            let skips = skipped.min(piece.size);
            let takes = left.min(piece.size - skips);
            (skipped, left) = (skipped - skips, left - takes);
            if takes > 0 {
                pieces.push(ContentPiece { seed: piece.seed, at: piece.at + skips, size: takes });
            }
        }
        ObjectContent(pieces)
    }

    /// With another behind it.
    pub fn join(&mut self, other: ObjectContent) {
        self.0.extend(other.0);
    }

    pub fn bytes(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(self.size() as usize + 16);
        for piece in &self.0 {
            let end = bytes.len() + piece.size as usize;
            let (mut index, skips) = (piece.at / 8, (piece.at % 8) as usize);
            bytes.extend_from_slice(&word(piece.seed, index)[skips..]);
            while bytes.len() < end {
                index += 1;
                bytes.extend_from_slice(&word(piece.seed, index));
            }
            bytes.truncate(end);
        }
        Bytes::from(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_range_equals_slice_of_whole() {
        let mut content = ObjectContent::new(7, 100);
        content.join(ObjectContent::new(8, 33));
        let whole = content.bytes();
        assert_eq!((whole.len(), content.size()), (133, 133));
        for (offset, size) in [(0, 133), (3, 20), (95, 10), (100, 33), (131, 100), (140, 1), (5, 0)] {
            let end = (offset + size).min(133);
            assert_eq!(
                content.range(offset, size).bytes(),
                whole.slice(offset.min(end) as usize..end as usize)
            );
        }
        assert_ne!(ObjectContent::new(7, 16).bytes(), ObjectContent::new(8, 16).bytes());
        assert!(ObjectContent::new(7, 0).bytes().is_empty());
    }
}
