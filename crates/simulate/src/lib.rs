//! The volume stack in virtual time, under faults in any combination, held against the contract of a block device.
//!
//! A [`script::FaultScript`] says what is set up and what happens; a seed decides everything else. [`run`] plays it on
//! the real code: initiator, target, pool, layers, journal and the directory's core, as threads of one
//! [`underlay_sync::simulation::SimulatedWorld`]. [`campaign`] does that for as many seeds as there is time for, and
//! [`shrink`] makes a failing script short.

#![cfg_attr(not(test), warn(clippy::disallowed_types))]

pub mod campaign;
pub mod child;
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
pub mod problem;
mod run;
pub mod script;
pub mod shrink;
mod slot;
mod stop;
mod tree;
mod user;
mod volumes;

pub use run::{ScriptReport, run};
