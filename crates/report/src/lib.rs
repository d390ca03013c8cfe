//! What a run has shown: statistics, comparison, cost and pictures, from records alone.
//!
//! A [`load::LoadedRun`] goes in; text, HTML, JSON and CSV come out. Nothing here measures, and nothing here
//! needs the machine that measured.

pub mod ab;
pub mod activity;
pub mod answer;
pub mod background;
pub mod changing;
pub mod claims;
pub mod comparison;
mod completed;
pub mod cost;
pub mod directories;
pub mod export;
pub mod html;
pub mod jobs;
pub mod load;
pub mod network;
mod outside;
pub mod prices;
pub mod quantity;
pub mod rates;
pub mod reference;
pub mod search;
pub mod statistics;
pub mod steadiness;
pub mod terminal;
pub mod warnings;

pub use comparison::Comparison;
pub use load::{LoadError, LoadedRun, RunDirectory};
