//! YCSB's output format, for scripts that read it.

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

pub use exporter::{OutputEntry, OutputValue, export};
pub use options::{ExporterFormat, FailureNames, LatencyIntervals, MeasurementType, OutputOptions};
pub use output::{RunFacts, entries};
pub use points::SectionLatencies;
pub use status::{StatusLine, summary};
