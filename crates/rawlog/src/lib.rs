//! Every operation of a run in a Parquet file, for whoever wants to work out figures anew.
//!
//! One row an operation: `operation` and `answer` as words, `thread`, and three times in nanoseconds of modelled time
//! from the begin of the measured time, `intended_ns`, `start_ns` and `end_ns`. What was due, sent or answered within
//! that time is there; times before its begin are below zero.

mod reader;
mod schema;
mod writer;

use std::path::PathBuf;

pub use reader::read;
pub use writer::write;

/// Why a raw log was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum RawLogError {
    #[error("cannot write the raw log {}: {source}", .path.display())]
    Write { path: PathBuf, source: parquet::errors::ParquetError },
    #[error("cannot read the raw log {}: {source}", .path.display())]
    Read { path: PathBuf, source: parquet::errors::ParquetError },
    #[error("{} is a Parquet file and no raw log: {problem}", .path.display())]
    Content { path: PathBuf, problem: String },
}
