//! How a content lies in a segment: chunks of 64 KiB, each followed by a checksum that also covers whose chunk it is. So a
//! chunk at the wrong place, or left there by an older content, is found out as surely as one with a wrong bit.

use crate::model::ContentId;

/// Bytes of a content between two checksums.
pub const CHUNK_BYTES: u64 = 64 << 10;
/// CRC-32C, little-endian.
pub const CHECKSUM_BYTES: u64 = 4;

/// Bytes that a content of this size takes in a segment.
pub fn stored_bytes(size_bytes: u64) -> u64 {
    size_bytes + size_bytes.div_ceil(CHUNK_BYTES) * CHECKSUM_BYTES
}

/// The checksum that follows chunk `index` of a content.
pub fn checksum(content: ContentId, index: u64, chunk: &[u8]) -> [u8; 4] {
    let mut whose = [0; 16];
    whose[..8].copy_from_slice(&content.0.to_le_bytes());
    whose[8..].copy_from_slice(&index.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&whose), chunk).to_le_bytes()
}

/// Where a range of a content lies: whole chunks with their checksums, counted from the content's first byte in the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub first_chunk: u64,
    pub offset_bytes: u64,
    pub length_bytes: u64,
    /// What to leave out at the beginning.
    pub skip_bytes: usize,
}

/// `None` for a range that is empty or not within the content.
pub fn span_of(size_bytes: u64, range: &std::ops::Range<u64>) -> Option<Span> {
    if range.start >= range.end || range.end > size_bytes {
        return None;
    }
    let first_chunk = range.start / CHUNK_BYTES;
    let last_chunk = (range.end - 1) / CHUNK_BYTES;
    let end = ((last_chunk + 1) * CHUNK_BYTES).min(size_bytes) + (last_chunk + 1) * CHECKSUM_BYTES;
    let offset_bytes = first_chunk * (CHUNK_BYTES + CHECKSUM_BYTES);
    Some(Span {
        first_chunk,
        offset_bytes,
        length_bytes: end - offset_bytes,
        skip_bytes: (range.start - first_chunk * CHUNK_BYTES) as usize,
    })
}

/// Takes the checksums out of what was read at `span`, after looking at each.
///
/// # Errors
/// The number of the first chunk that is not what was written.
pub fn unframe(content: ContentId, span: &Span, framed: &[u8]) -> Result<Vec<u8>, u64> {
    let mut plain = Vec::with_capacity(framed.len());
    let step = (CHUNK_BYTES + CHECKSUM_BYTES) as usize;
    for (at, piece) in framed.chunks(step).enumerate() {
        let index = span.first_chunk + at as u64;
        let Some((chunk, found)) = piece.split_last_chunk::<4>() else { return Err(index) };
        if chunk.is_empty() || checksum(content, index, chunk) != *found {
            return Err(index);
        }
        plain.extend_from_slice(chunk);
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(content: ContentId, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for (index, chunk) in bytes.chunks(CHUNK_BYTES as usize).enumerate() {
            out.extend_from_slice(chunk);
            out.extend_from_slice(&checksum(content, index as u64, chunk));
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_range_reads_back(size in 1..300_000_u64, a in any::<u64>(), b in any::<u64>()) {
            let bytes: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            let stored = framed(ContentId(7), &bytes);
            prop_assert_eq!(stored.len() as u64, stored_bytes(size));
            let (a, b) = (a % size, b % size);
            let range = a.min(b)..a.max(b) + 1;
            let span = span_of(size, &range).unwrap();
            let piece = &stored[span.offset_bytes as usize..(span.offset_bytes + span.length_bytes) as usize];
            let plain = unframe(ContentId(7), &span, piece).unwrap();
            let wanted = span.skip_bytes..span.skip_bytes + (range.end - range.start) as usize;
            prop_assert_eq!(&plain[wanted], &bytes[range.start as usize..range.end as usize]);
            // Another content's bytes are not taken for these.
            prop_assert!(unframe(ContentId(8), &span, piece).is_err());
        }

        #[test]
        fn a_wrong_bit_is_found(size in 1..200_000_usize, at in any::<usize>(), bit in 0..8_u8) {
            let mut stored = framed(ContentId(1), &vec![0x5a; size]);
            let at = at % stored.len();
            stored[at] ^= 1 << bit;
            let span = span_of(size as u64, &(0..size as u64)).unwrap();
            prop_assert!(unframe(ContentId(1), &span, &stored).is_err());
        }
    }

    #[test]
    fn a_range_outside_the_content_is_none() {
        assert_eq!(span_of(10, &(3..3)), None);
        assert_eq!(span_of(10, &(3..11)), None);
        assert_eq!(span_of(0, &(0..0)), None);
    }
}
