//! How a content lies in a segment: chunks of 64 KiB, each followed by a checksum that also covers whose chunk it is.
//! So a chunk at the wrong place, or left there by an older content, is found out as surely as one with a wrong bit.
//! Where the journal is encrypted, each chunk is sealed instead, which says as much.

use std::sync::Arc;

use crc_fast::{CrcAlgorithm, Digest};

use crate::at_rest::{AtRest, SEAL_BYTES, SealPurpose};
use crate::errors::GatewayResult;
use crate::model::ContentId;

/// Bytes of a content between two checksums.
pub const CHUNK_BYTES: u64 = 64 << 10;
/// CRC-32C, little-endian.
pub const CHECKSUM_BYTES: u64 = 4;

/// See the module.
#[derive(Clone, Default)]
pub struct ContentFraming {
    seal: Option<Arc<AtRest>>,
}

/// The checksum that follows chunk `index` of a content.
fn checksum(content: ContentId, index: u64, chunk: &[u8]) -> [u8; 4] {
    let mut location = [0; 16];
    location[..8].copy_from_slice(&content.0.to_le_bytes());
    location[8..].copy_from_slice(&index.to_le_bytes());
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&location);
    digest.update(chunk);
    (digest.finalize() as u32).to_le_bytes()
}

/// Where a range of a content lies: whole chunks with their checksums, counted from the content's first byte in the
/// segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameSpan {
    pub first_chunk: u64,
    pub offset_bytes: u64,
    pub length_bytes: u64,
    /// Bytes to leave out at the beginning.
    pub skip_bytes: usize,
}

impl ContentFraming {
    /// With checksums, or sealed by this key.
    pub fn new(seal: Option<Arc<AtRest>>) -> ContentFraming {
        ContentFraming { seal }
    }

    /// The bytes stored besides each chunk.
    fn added_bytes(&self) -> u64 {
        if self.seal.is_some() { SEAL_BYTES as u64 } else { CHECKSUM_BYTES }
    }

    /// Bytes that a whole chunk takes in a segment.
    pub fn step_bytes(&self) -> usize {
        (CHUNK_BYTES + self.added_bytes()) as usize
    }

    /// Bytes that a content of this size takes in a segment.
    pub fn stored_bytes(&self, size_bytes: u64) -> u64 {
        size_bytes + size_bytes.div_ceil(CHUNK_BYTES) * self.added_bytes()
    }

    /// `None` for a range that is empty or not within the content.
    pub fn span_of(&self, size_bytes: u64, range: &std::ops::Range<u64>) -> Option<FrameSpan> {
        if range.start >= range.end || range.end > size_bytes {
            return None;
        }
        let added = self.added_bytes();
        let first_chunk = range.start / CHUNK_BYTES;
        let last_chunk = (range.end - 1) / CHUNK_BYTES;
        let end = ((last_chunk + 1) * CHUNK_BYTES).min(size_bytes) + (last_chunk + 1) * added;
        let offset_bytes = first_chunk * (CHUNK_BYTES + added);
        Some(FrameSpan {
            first_chunk,
            offset_bytes,
            length_bytes: end - offset_bytes,
            skip_bytes: (range.start - first_chunk * CHUNK_BYTES) as usize,
        })
    }

    /// Makes of the plain chunk that `buffer` has from `begin` on what is stored of it.
    ///
    /// # Errors
    /// When it can't be encrypted.
    pub fn close(
        &self,
        content: ContentId,
        index: u64,
        buffer: &mut Vec<u8>,
        begin: usize,
    ) -> GatewayResult<()> {
        match &self.seal {
            None => {
                let checksum = checksum(content, index, &buffer[begin..]);
                buffer.extend_from_slice(&checksum);
                Ok(())
            }
            Some(seal) => {
                let plain = buffer.split_off(begin);
                seal.seal(SealPurpose::Journal, &content.0.to_le_bytes(), index, &plain, buffer)
            }
        }
    }

    /// The bytes of what was read at `span`, after looking at each chunk.
    ///
    /// # Errors
    /// The number of the first chunk that is not what was written.
    pub fn unframe(
        &self,
        content: ContentId,
        span: &FrameSpan,
        framed: &[u8],
    ) -> std::result::Result<Vec<u8>, u64> {
        let mut plain = Vec::with_capacity(framed.len());
        for (number, piece) in framed.chunks(self.step_bytes()).enumerate() {
            let index = span.first_chunk + number as u64;
            match &self.seal {
                None => {
                    let Some((chunk, found)) = piece.split_last_chunk::<4>() else { return Err(index) };
                    if chunk.is_empty() || checksum(content, index, chunk) != *found {
                        return Err(index);
                    }
                    plain.extend_from_slice(chunk);
                }
                Some(seal) => {
                    let owner = content.0.to_le_bytes();
                    let chunk = seal
                        .open(SealPurpose::Journal, &owner, index, piece)
                        .filter(|chunk| !chunk.is_empty());
                    plain.extend_from_slice(&chunk.ok_or(index)?);
                }
            }
        }
        Ok(plain)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framings() -> [ContentFraming; 2] {
        [
            ContentFraming::default(),
            ContentFraming::new(Some(Arc::new(AtRest::parse(&"7".repeat(64)).unwrap()))),
        ]
    }

    fn framed(framing: &ContentFraming, content: ContentId, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for (index, chunk) in bytes.chunks(CHUNK_BYTES as usize).enumerate() {
            let begin = out.len();
            out.extend_from_slice(chunk);
            framing.close(content, index as u64, &mut out, begin).unwrap();
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_range_reads_back(size in 1..300_000_u64, a in any::<u64>(), b in any::<u64>()) {
            let bytes: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            for framing in framings() {
                let stored = framed(&framing, ContentId(7), &bytes);
                prop_assert_eq!(stored.len() as u64, framing.stored_bytes(size));
                let (a, b) = (a % size, b % size);
                let range = a.min(b)..a.max(b) + 1;
                let span = framing.span_of(size, &range).unwrap();
                let piece = &stored[span.offset_bytes as usize..(span.offset_bytes + span.length_bytes) as usize];
                let plain = framing.unframe(ContentId(7), &span, piece).unwrap();
                let wanted = span.skip_bytes..span.skip_bytes + (range.end - range.start) as usize;
                prop_assert_eq!(&plain[wanted], &bytes[range.start as usize..range.end as usize]);
                // Another content's bytes are not taken for these.
                prop_assert!(framing.unframe(ContentId(8), &span, piece).is_err());
            }
        }

        #[test]
        fn flipped_bit_is_detected(size in 1..200_000_usize, at in any::<usize>(), bit in 0..8_u8) {
            for framing in framings() {
                let mut stored = framed(&framing, ContentId(1), &vec![0x5a; size]);
                let at = at % stored.len();
                stored[at] ^= 1 << bit;
                let span = framing.span_of(size as u64, &(0..size as u64)).unwrap();
                prop_assert!(framing.unframe(ContentId(1), &span, &stored).is_err());
            }
        }
    }

    /// Disks have such bytes.
    #[test]
    fn checksum_of_chunk_stays() {
        assert_eq!(checksum(ContentId(7), 1, b"bytes"), 0x48a3_c3d0_u32.to_le_bytes());
    }

    #[test]
    fn range_outside_content_is_none() {
        for framing in framings() {
            assert_eq!(framing.span_of(10, &(3..3)), None);
            assert_eq!(framing.span_of(10, &(3..11)), None);
            assert_eq!(framing.span_of(0, &(0..0)), None);
        }
    }
}
