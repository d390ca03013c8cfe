//! Devices: media models in virtual time, the block stack, and the one place that waits.

#![cfg_attr(not(test), warn(clippy::disallowed_types, clippy::disallowed_methods))]

pub mod activity;
pub mod backing;
pub mod catalogue;
pub mod clock;
pub mod contents;
pub mod device;
pub mod exclusive;
pub mod failed_sync;
pub mod faults;
pub mod fit;
pub mod inputs;
pub mod journal;
pub mod layers;
pub mod media;
pub mod medium;
pub mod paced;
pub mod pacer;
pub mod predict;
pub mod stack;
pub mod time;
pub mod times;
mod waker;
