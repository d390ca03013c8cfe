//! What the simulators share: their scripts are played in processes of their own, for as many seeds as time permits,
//! and failing ones are made short. What a script says and does is the simulator's ([`PlayedScript`]).

pub mod campaign;
pub mod commands;
pub mod output;
pub mod player;
pub mod problem;
mod script;
pub mod shrink;
mod signals;

pub use script::{PlayedScript, ScriptReport};
