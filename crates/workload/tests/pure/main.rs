//! Load generators and what they draw: one program, so that the crate is linked once.

mod beside;
mod checked_values;
mod distributions;
mod load_runs;
mod memory_client;
mod properties;
mod reading;
mod values;
mod waiting;
