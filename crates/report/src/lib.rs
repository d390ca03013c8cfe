//! What a run has shown: statistics, comparison, cost and pictures, from records alone.
//!
//! A [`load::LoadedRun`] goes in; text, HTML, JSON and CSV come out. Nothing here measures, and nothing here
//! needs the machine that measured.

pub mod ab;
mod activity;
pub mod answer;
pub mod background;
mod changing;
pub mod claims;
pub mod comparison;
mod completed;
mod cost;
pub mod directories;
pub mod export;
pub mod html;
mod jobs;
pub mod load;
mod network;
mod outside;
pub mod prices;
pub mod quantity;
pub mod rates;
pub mod reference;
mod search;
pub mod statistics;
pub mod steadiness;
pub mod terminal;
mod warnings;

pub use comparison::Comparison;
pub use load::{LoadError, LoadedRun, RunDirectory};
