//! A script and its report.

use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A simulator's script: the same one does the same each time.
pub trait PlayedScript: Clone + PartialEq + Serialize + DeserializeOwned + Send + 'static {
    /// The simulator's program.
    const PROGRAM: &'static str;
    /// Of CPU time, and of standing still: a run that takes longer never ends. A busy host may need more time for it.
    const TIMEOUT: Duration;
    /// What [`ScriptReport::acknowledged`] counts, in one word.
    const ACKNOWLEDGED: &'static str;
    /// A campaign prints its counts after this many seeds.
    const SEEDS_A_LINE: u64;
    /// With fewer steps a seed decides differently. So many seeds are tried when a few steps are left out, and when
    /// many are.
    const SHRINK_SEEDS: [u64; 2];
    /// Changes to a plainer set-up.
    const SIMPLER: &'static [fn(&mut Self)];

    /// Plays it in this process. Only with `keeps_notes` has the report notes.
    fn play(&self, keeps_notes: bool) -> ScriptReport;

    fn seed(&self) -> u64;

    fn set_seed(&mut self, seed: u64);

    fn step_count(&self) -> usize;

    fn remove_steps(&mut self, steps: Range<usize>);

    /// What a failure is about, without the numbers that differ from run to run.
    fn failure_kind(failure: &str) -> String;

    /// Where players have their folders.
    fn folders_parent() -> PathBuf {
        std::env::temp_dir()
    }

    /// Changes what a player's process begins with.
    fn prepare(command: &mut Command) {
        let _ = command;
    }
}

/// What came of a script.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScriptReport {
    /// What is wrong, in words.
    pub failure: Option<String>,
    /// Why it can't be played at all: no failure of the code under test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfit: Option<String>,
    pub steps: u64,
    pub crashes: u64,
    /// Answered with success, and with an error.
    pub acknowledged: u64,
    pub refused: u64,
    /// Turns of simulated threads; 0 if nothing counts them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub turns: u64,
    pub virtual_s: f64,
    /// Two runs of one script have the same.
    pub trace: u64,
    /// Events, on request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
