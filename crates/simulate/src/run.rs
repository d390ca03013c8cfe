//! Playing a script.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use underlay_sync::simulation::{SimulatedWorld, WorldFailure};

use crate::script::{FaultScript, ScriptSetup, ScriptStep};
use crate::user::UserEvents;
use crate::{directory, journal, layers, volumes};

/// Far more than a sound run takes.
const MAX_TURNS: u64 = 20_000_000;

/// A script's outcome.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScriptReport {
    /// The failure, in words.
    pub failure: Option<String>,
    /// Why it can't be played at all: that is no failure of the stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfit: Option<String>,
    pub steps: u64,
    pub crashes: u64,
    /// Requests that were answered with success, and with an error.
    pub acknowledged: u64,
    pub refused: u64,
    pub turns: u64,
    pub virtual_s: f64,
    /// Two runs of one script have the same.
    pub trace: u64,
}

/// Plays a script. Its leftovers (threads that wait forever) end with the process.
pub fn run(script: &FaultScript) -> ScriptReport {
    let (setup, steps) = (script.setup.clone(), script.steps.clone());
    let events = Arc::<UserEvents>::default();
    // Shared: a run that fails returns nothing, and its counts are still reported.
    let of_run = Arc::clone(&events);
    let yield_every = match &setup {
        ScriptSetup::Volumes(volumes) => volumes.yield_every,
        ScriptSetup::Layers(layers) => layers.yield_every,
        ScriptSetup::Directory(directory) => directory.yield_every,
        ScriptSetup::Journal(journal) => journal.yield_every,
    };
    let world = SimulatedWorld::new(script.seed).with_most_turns(MAX_TURNS).with_yields(yield_every);
    let (outcome, statistics) = world.run(move |world| match &setup {
        ScriptSetup::Volumes(volumes) => volumes::run(world, volumes, &steps, &of_run),
        ScriptSetup::Layers(layers) => layers::run(world, layers, &steps, &of_run),
        ScriptSetup::Directory(directory) => directory::run(world, directory, &steps, &of_run),
        ScriptSetup::Journal(setup) => journal::run(world, setup, &steps, &of_run),
    });
    let failure = outcome.err().map(|failure| match failure {
        WorldFailure::Panic(words) => words,
        WorldFailure::Deadlock => "no thread can continue: each waits for another".into(),
        WorldFailure::Endless => format!("it did not end within {MAX_TURNS} turns"),
    });
    let is_crash = |step: &&ScriptStep| {
        matches!(
            step,
            ScriptStep::KillServer | ScriptStep::CutPower | ScriptStep::KillHost | ScriptStep::OtherServer
        )
    };
    ScriptReport {
        failure,
        unfit: events.unfit(),
        steps: script.steps.len() as u64,
        crashes: script.steps.iter().filter(is_crash).count() as u64,
        acknowledged: events.acknowledged.load(Ordering::Relaxed),
        refused: events.refused.load(Ordering::Relaxed),
        turns: statistics.turns,
        virtual_s: statistics.virtual_time.as_secs_f64(),
        trace: statistics.trace,
    }
}
