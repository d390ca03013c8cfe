//! Every operation of a run in a Parquet file, for computing other figures from it.
//!
//! It has one row per operation: `operation` and `answer` as words, `thread`, and `intended_ns`, `start_ns` and
//! `end_ns` in nanoseconds of modelled time since the start of the measured time. It contains every operation that was
//! due, sent or answered in that time; times before its start are negative.

#![cfg_attr(not(test), warn(clippy::disallowed_types))]

mod reader;
mod schema;
mod writer;

use std::path::PathBuf;

pub use reader::read;
pub use writer::write;

/// Why a raw log could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RawLogError {
    #[error("cannot write the raw log {}: {source}", .path.display())]
    Write { path: PathBuf, source: parquet::errors::ParquetError },
    #[error("cannot read the raw log {}: {source}", .path.display())]
    Read { path: PathBuf, source: parquet::errors::ParquetError },
    #[error("{} is a Parquet file but not a raw log: {problem}", .path.display())]
    Content { path: PathBuf, problem: String },
}
