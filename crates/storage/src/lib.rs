//! What a device does: media models in virtual time, the block stack, and the one place that waits.

pub mod clock;
pub mod device;
pub mod medium;
pub mod time;
