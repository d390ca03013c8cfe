//! The media models: each a `MediumModel` in virtual time.

pub mod cloud;
pub mod draw;
pub mod flash;
pub mod hdd;
pub mod link;
pub mod measured;
pub mod network;
pub mod pmem;
pub mod tail;

/// Milliseconds of a catalogue file in the models' nanoseconds.
pub(crate) fn ms_to_ns(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}

/// Microseconds of a catalogue file in the models' nanoseconds.
pub(crate) fn us_to_ns(us: f64) -> u64 {
    (us * 1e3).round() as u64
}

/// How long `bytes` take at `mb_s` million bytes a second, in nanoseconds.
pub(crate) fn transfer_ns(bytes: u64, mb_s: f64) -> u64 {
    // bytes / (MB/s * 1e6 B/MB) * 1e9 ns/s
    (bytes as f64 * 1e3 / mb_s).round() as u64
}

/// A buffer's size on a device scaled down to `scale` of its medium. See `CatalogueMedium::model`.
pub(crate) fn scaled_buffer_bytes(bytes: f64, scale: f64) -> u64 {
    const MIN_BYTES: f64 = 1048576.0;
    (bytes * scale).max(bytes.min(MIN_BYTES)) as u64
}
