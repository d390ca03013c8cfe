//! Numbers and texts at places of a byte array: little-endian, as everything in NVMe is.
//!
//! Callers pass places that lie inside; what comes from outside is measured before.

#[inline]
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from(u32_at(bytes, offset)) | u64::from(u32_at(bytes, offset + 4)) << 32
}

pub(crate) fn u128_at(bytes: &[u8], offset: usize) -> u128 {
    u128::from(u64_at(bytes, offset)) | u128::from(u64_at(bytes, offset + 8)) << 64
}

pub(crate) fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[offset..offset + N]);
    array
}

pub(crate) fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    bytes[offset..offset + value.len()].copy_from_slice(value);
}

/// A text padded with spaces; what is too long is cut.
pub(crate) fn put_padded(bytes: &mut [u8], offset: usize, length: usize, text: &str) {
    let text = &text.as_bytes()[..text.len().min(length)];
    bytes[offset..offset + length].fill(b' ');
    put(bytes, offset, text);
}

/// A text that ends with a zero byte; what is too long is cut so that the zero has its place.
pub(crate) fn put_terminated(bytes: &mut [u8], offset: usize, length: usize, text: &str) {
    bytes[offset..offset + length].fill(0);
    put(bytes, offset, &text.as_bytes()[..text.len().min(length - 1)]);
}

/// A text up to its first zero byte or its padding. Bytes that are no UTF-8, or would move a terminal's cursor, are
/// replaced.
pub(crate) fn text_at(bytes: &[u8], offset: usize, length: usize) -> String {
    name_at(bytes, offset, length).trim_end_matches(' ').to_string()
}

/// The same of a text that ends with a zero byte, whose blanks are its own: nothing else is its end. Without one it has
/// every byte of the field, which is longer than any name may be.
pub(crate) fn name_at(bytes: &[u8], offset: usize, length: usize) -> String {
    let field = &bytes[offset..offset + length];
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(length);
    let text = String::from_utf8_lossy(&field[..end]);
    text.chars()
        .map(|letter| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter })
        .collect()
}
