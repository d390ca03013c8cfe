//! YCSB's way of showing a measurement, for scripts that read its output.

#[cfg(test)]
mod count_tests;
mod exporter;
mod number;
mod options;
mod output;
#[cfg(test)]
mod output_tests;
mod points;
pub mod properties;
mod property_names;
mod sections;
mod status;

pub use exporter::{Entry, Value, export};
pub use options::{Exporter, Failures, Intervals, MeasurementType, OutputOptions};
pub use output::{RunFacts, entries};
pub use points::Points;
pub use status::{Status, summary};
