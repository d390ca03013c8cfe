//! Probing real storage: direct I/O on a file, a device or a test file in a directory, timed request by request.

mod disk;
mod native_aio;
mod place;

pub use disk::ProbedDisk;
pub use place::{PlaceError, PlaceFacts, ProbePlace, ProbeSettings};
