//! Pools in memory, with power cuts and faults: one program, so that the crate is linked once.

mod pool_cases;
mod pool_crashes;
mod pool_discards;
mod pool_doubt;
mod pool_faults;
mod pool_model;
mod pool_two_faults;
mod pools;
mod power_device;
