//! Bytes that are known by where they come from.

use bytes::Bytes;

/// Consecutive bytes that one seed makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    seed: u64,
    at: u64,
    size: u64,
}

/// What an object is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content(Vec<Piece>);

fn word(seed: u64, at: u64) -> [u8; 8] {
    let mut mixed = seed.wrapping_add(at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)).to_le_bytes()
}

impl Content {
    /// Bytes that nothing else has.
    pub fn new(seed: u64, size: u64) -> Content {
        Content(vec![Piece { seed, at: 0, size }])
    }

    pub fn size(&self) -> u64 {
        self.0.iter().map(|piece| piece.size).sum()
    }

    /// What of a range is there.
    pub fn range(&self, at: u64, size: u64) -> Content {
        let (mut skipped, mut left) = (at, size);
        let mut pieces = Vec::new();
        for piece in &self.0 {
            let skips = skipped.min(piece.size);
            let takes = left.min(piece.size - skips);
            (skipped, left) = (skipped - skips, left - takes);
            if takes > 0 {
                pieces.push(Piece { seed: piece.seed, at: piece.at + skips, size: takes });
            }
        }
        Content(pieces)
    }

    /// With another behind it.
    pub fn join(&mut self, other: Content) {
        self.0.extend(other.0);
    }

    pub fn bytes(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(self.size() as usize + 16);
        for piece in &self.0 {
            let end = bytes.len() + piece.size as usize;
            let (mut at, skips) = (piece.at / 8, (piece.at % 8) as usize);
            bytes.extend_from_slice(&word(piece.seed, at)[skips..]);
            while bytes.len() < end {
                at += 1;
                bytes.extend_from_slice(&word(piece.seed, at));
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
    fn a_range_has_the_bytes_of_the_whole() {
        let mut content = Content::new(7, 100);
        content.join(Content::new(8, 33));
        let whole = content.bytes();
        assert_eq!((whole.len(), content.size()), (133, 133));
        for (at, size) in [(0, 133), (3, 20), (95, 10), (100, 33), (131, 100), (140, 1), (5, 0)] {
            let end = (at + size).min(133);
            assert_eq!(content.range(at, size).bytes(), whole.slice(at.min(end) as usize..end as usize));
        }
        assert_ne!(Content::new(7, 16).bytes(), Content::new(8, 16).bytes());
        assert!(Content::new(7, 0).bytes().is_empty());
    }
}
