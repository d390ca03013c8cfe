//! How a chunk is made shorter.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Codec {
    /// The block format of LZ4.
    Lz4,
    /// Zstandard, by its level: 1 to 19.
    Zstd(i32),
}

impl Codec {
    /// What is wrong with it.
    pub fn problem(self) -> Option<String> {
        match self {
            Codec::Zstd(level) if !(1..=19).contains(&level) => {
                Some(format!("zstd has levels 1 to 19, not {level}"))
            }
            _ => None,
        }
    }

    /// `None` when the result would not be shorter than `limit_bytes`.
    pub fn compress(self, chunk: &[u8], limit_bytes: usize) -> Option<Vec<u8>> {
        let compressed = match self {
            Codec::Lz4 => lz4_flex::block::compress(chunk),
            Codec::Zstd(level) => zstd::bulk::compress(chunk, level).ok()?,
        };
        (compressed.len() < limit_bytes).then_some(compressed)
    }

    /// # Errors
    /// When `compressed` is not what this codec made of `length` bytes.
    pub fn decompress(self, compressed: &[u8], length: usize) -> Result<Vec<u8>, String> {
        let chunk = match self {
            Codec::Lz4 => {
                lz4_flex::block::decompress(compressed, length).map_err(|error| error.to_string())?
            }
            Codec::Zstd(_) => {
                zstd::bulk::decompress(compressed, length).map_err(|error| error.to_string())?
            }
        };
        if chunk.len() == length {
            Ok(chunk)
        } else {
            Err(format!("{} bytes instead of {length}", chunk.len()))
        }
    }
}
