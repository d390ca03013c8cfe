//! Playing a script.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use underlay_campaign::{PlayedScript, ScriptReport};
use underlay_sync::simulation::{SimulatedWorld, WorldFailure};

use crate::script::{FaultScript, ScriptSetup, ScriptStep, VolumesSetup};
use crate::user::UserEvents;
use crate::{directory, journal, layers, volumes};

/// Far more than a sound run takes.
const MAX_TURNS: u64 = 20_000_000;

impl PlayedScript for FaultScript {
    const PROGRAM: &'static str = "underlay-simulate";
    const TIMEOUT: Duration = Duration::from_secs(240);
    const ACKNOWLEDGED: &'static str = "request";
    const SEEDS_A_LINE: u64 = 500;
    const SHRINK_SEEDS: [u64; 2] = [6, 2];
    const SIMPLER: &'static [fn(&mut FaultScript)] = &[
        |script| change_volumes(script, |volumes| volumes.yield_every = 0),
        |script| change_volumes(script, |volumes| volumes.volumes.truncate(1)),
        |script| {
            change_volumes(script, |volumes| {
                volumes.volumes.iter_mut().for_each(|volume| volume.compress = false);
            });
        },
        |script| change_volumes(script, |volumes| volumes.has_host_memory = false),
    ];

    fn play(&self, _: bool) -> ScriptReport {
        run(self)
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    fn step_count(&self) -> usize {
        self.steps.len()
    }

    fn remove_steps(&mut self, steps: Range<usize>) {
        self.steps.drain(steps);
    }

    fn failure_kind(failure: &str) -> String {
        failure.chars().filter(|letter| !letter.is_ascii_digit()).take(24).collect()
    }
}

fn change_volumes(script: &mut FaultScript, change: impl FnOnce(&mut VolumesSetup)) {
    if let ScriptSetup::Volumes(volumes) = &mut script.setup {
        change(volumes);
    }
}

/// Plays a script. What it leaves behind (threads that wait for ever) ends with the process.
pub fn run(script: &FaultScript) -> ScriptReport {
    let (setup, steps) = (script.setup.clone(), script.steps.clone());
    let events = Arc::<UserEvents>::default();
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
        notes: Vec::new(),
    }
}
