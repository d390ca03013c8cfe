//! The next operation, its record and its value: drawn, never measured.

pub(crate) mod decimal;
pub mod distribution;
pub(crate) mod draws;
pub(crate) mod insert_sequence;
pub mod integrity;
pub mod keys;
pub(crate) mod length_histogram;
pub(crate) mod operations;
pub mod values;
pub(crate) mod written_values;
