//! The volume stack in virtual time, under faults in any combination, held against the contract of a block device.
//!
//! A [`script::FaultScript`] says what is set up and what happens; a seed decides everything else. [`run`] plays it on
//! the real code: initiator, target, pool, layers, journal and the directory's core, as threads of one
//! [`underlay_sync::simulation::SimulatedWorld`]. [`underlay_campaign`] does that for as many seeds as there is time
//! for, and makes a failing script short.

pub mod cli;
pub mod content;
mod directory;
pub mod disk;
mod faults;
mod journal;
mod layers;
pub mod limits;
pub mod model;
mod network;
mod run;
pub mod script;
mod slot;
mod tree;
mod user;
mod volumes;

pub use run::run;
