//! Device models, layers and the catalogue in virtual time: one program, so that the crate is linked once.

mod catalogue;
mod demerit;
mod device_faults;
mod device_power_cuts;
mod devices;
mod fit;
mod flash;
mod flash_families;
mod inputs;
mod journal;
mod kinds;
mod late_requests;
mod lateness;
mod layered_stacks;
mod layers;
mod layouts;
mod mistakes;
mod models;
mod queued_device;
mod queues;
mod sharing;
mod volume_sizes;
