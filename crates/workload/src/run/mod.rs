//! Operations sent by threads, timed, counted and merged.

pub(crate) mod acknowledged;
pub(crate) mod beside;
pub(crate) mod ceiling;
pub(crate) mod clock;
pub(crate) mod control;
pub(crate) mod latency_counts;
pub(crate) mod live;
pub mod machine_use;
pub(crate) mod memory_client;
pub(crate) mod null_client;
pub(crate) mod pacing;
pub(crate) mod pauses;
pub(crate) mod rate_profile;
pub(crate) mod raw;
pub(crate) mod recorder;
pub mod runner;
pub(crate) mod series;
pub(crate) mod simd_kernels;
#[cfg(test)]
pub(crate) mod simulation;
pub(crate) mod spec;
#[cfg(test)]
pub(crate) mod waiting_tests;
pub(crate) mod worker;
#[cfg(test)]
pub(crate) mod worker_tests;
pub(crate) mod ycsb_stats;
