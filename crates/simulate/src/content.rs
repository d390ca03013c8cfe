//! What blocks are filled with: each write's is unlike any other's, and tells which write it was.

pub const BLOCK_BYTES: usize = 4096;

/// A block of the write `tag`; zeros for 0. Some compress well, some not at all.
pub fn block(tag: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    if tag == 0 {
        return bytes;
    }
    let noisy = match tag % 4 {
        0 => BLOCK_BYTES,
        1 => BLOCK_BYTES / 2,
        _ => 64,
    };
    let mut state = tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for word in bytes[..noisy].chunks_exact_mut(8) {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    bytes[..8].copy_from_slice(&tag.to_le_bytes());
    bytes
}

/// Which write a block is of.
///
/// # Errors
/// When it is no write's, but a mixture or something else.
pub fn tag_of(bytes: &[u8]) -> Result<u64, String> {
    let tag = bytes.first_chunk::<8>().map_or(0, |first| u64::from_le_bytes(*first));
    if tag >> 40 != 0 || *bytes != block(tag) {
        return Err(format!("it begins as write {tag} and is not that write's block"));
    }
    Ok(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_names_its_write_and_torn_block_none() {
        for tag in 0..2000 {
            assert_eq!(tag_of(&block(tag)), Ok(tag));
        }
        let torn = [&block(8)[..2048], &block(12)[2048..]].concat();
        assert!(tag_of(&torn).is_err());
    }
}
