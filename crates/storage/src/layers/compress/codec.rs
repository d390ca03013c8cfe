//! How a chunk is made shorter, and stored in whole units.

use serde::{Deserialize, Serialize};

use crate::device::DeviceError;

/// A chunk ready to be stored.
pub struct PackedChunk {
    /// Whole units.
    pub bytes: Vec<u8>,
    /// How many of them count: those of the chunk where it is stored as it is.
    pub stored_bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CompressionCodec {
    /// The block format of LZ4.
    Lz4,
    /// Zstandard, by its level: 1 to 19.
    Zstd(i32),
}

impl CompressionCodec {
    /// What is wrong with it.
    pub fn problem(self) -> Option<String> {
        match self {
            CompressionCodec::Zstd(level) if !(1..=19).contains(&level) => {
                Some(format!("zstd has levels 1 to 19, not {level}"))
            }
            _ => None,
        }
    }

    /// `None` when the result would not be shorter than `limit_bytes`.
    pub fn compress(self, chunk: &[u8], limit_bytes: usize) -> Option<Vec<u8>> {
        let compressed = match self {
            CompressionCodec::Lz4 => lz4_flex::block::compress(chunk),
            CompressionCodec::Zstd(level) => zstd::bulk::compress(chunk, level).ok()?,
        };
        (compressed.len() < limit_bytes).then_some(compressed)
    }

    /// # Errors
    /// When `compressed` is not what this codec made of `length` bytes.
    pub fn decompress(self, compressed: &[u8], length: usize) -> Result<Vec<u8>, String> {
        let chunk = match self {
            CompressionCodec::Lz4 => {
                lz4_flex::block::decompress(compressed, length).map_err(|error| error.to_string())?
            }
            CompressionCodec::Zstd(_) => {
                zstd::bulk::decompress(compressed, length).map_err(|error| error.to_string())?
            }
        };
        if chunk.len() == length {
            Ok(chunk)
        } else {
            Err(format!("{} bytes instead of {length}", chunk.len()))
        }
    }

    /// A chunk as it is stored in units of `unit_bytes`; `None` for zeros.
    pub fn pack(self, mut chunk: Vec<u8>, unit_bytes: usize) -> Option<PackedChunk> {
        if chunk.iter().all(|byte| *byte == 0) {
            return None;
        }
        let mut stored_bytes = chunk.len() as u32;
        // Compression that saves no unit is not worth the work of unpacking.
        if let Some(compressed) = self.compress(&chunk, chunk.len() - unit_bytes + 1) {
            stored_bytes = compressed.len() as u32;
            chunk = compressed;
            chunk.resize(chunk.len().next_multiple_of(unit_bytes), 0);
        }
        Some(PackedChunk { bytes: chunk, stored_bytes })
    }

    /// The chunk that `stored` was made from.
    ///
    /// # Errors
    /// When `stored` is not what this codec made of `chunk_bytes` bytes.
    pub fn unpack(
        self,
        stored: Vec<u8>,
        stored_bytes: u32,
        chunk_bytes: usize,
    ) -> Result<Vec<u8>, DeviceError> {
        if stored_bytes as usize == chunk_bytes {
            return Ok(stored);
        }
        self.decompress(&stored, chunk_bytes)
            .map_err(|problem| DeviceError::Io(format!("a chunk can't be decompressed: {problem}")))
    }
}
