//! A run's results: statistics, comparison, cost and pictures, from records alone.
//!
//! A [`load::LoadedRun`] goes in; text, HTML, JSON and CSV come out. Nothing here measures, and nothing here
//! needs the machine that measured. Each directory uses only those before it:
//!
//! `statistics`, [`load`], `cell` (what the records of one cell have to show), [`comparison`] (cells beside one
//! another), `findings` (what that comes to in words), `output`.

#![cfg_attr(not(test), warn(clippy::disallowed_types))]

mod cell;
pub mod comparison;
mod findings;
pub mod load;
mod output;
pub mod quantity;
pub mod statistics;

pub use cell::directories;
pub use comparison::node_events::{node_event_in_words, node_event_so_far};
pub use comparison::{RunComparison, ab, background, prices, rates};
pub use findings::{answer, claims, reference};
pub use load::{LoadError, LoadedRun, RunDirectory};
pub use output::{export, html, terminal};
pub use underlay_record::steadiness;
