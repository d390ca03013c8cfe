//! How scripts are played by [`underlay_campaign`]: in processes that are alike to the last address.

use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use underlay_campaign::{PlayedScript, ScriptReport};

use crate::run;
use crate::script::{ScriptStep, SimulationScript, StoreFaults};

impl PlayedScript for SimulationScript {
    const PROGRAM: &'static str = "underlay-gateway-simulate";
    const TIMEOUT: Duration = Duration::from_secs(600);
    const ACKNOWLEDGED: &'static str = "change";
    const SEEDS_A_LINE: u64 = 100;
    const SHRINK_SEEDS: [u64; 2] = [4, 1];
    const SIMPLER: &'static [fn(&mut SimulationScript)] = &[
        |script| script.setup.gateways = 1,
        |script| script.setup.settings.is_encrypted = false,
        |script| script.setup.settings.rules.clear(),
        |script| script.setup.store.before.clear(),
        |script| script.setup.store.has_etags_of_its_own = false,
        |script| {
            for step in &mut script.steps {
                if let ScriptStep::Store(faults) = step {
                    *faults = StoreFaults { stalling: 0, stall_ms: 0, ..faults.clone() };
                }
            }
        },
    ];

    fn play(&self, keeps_notes: bool) -> ScriptReport {
        run::play(self, keeps_notes)
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
        let message = failure.split_once(" s: ").map_or(failure, |(_, message)| message);
        message.chars().filter(|letter| !letter.is_ascii_digit()).take(20).collect()
    }

    /// In memory, where there is such a file system, unless another is asked for.
    fn folders_parent() -> PathBuf {
        let memory = Path::new("/dev/shm");
        let is_asked_for = std::env::var_os("TMPDIR").is_some();
        if memory.is_dir() && !is_asked_for { memory.to_owned() } else { std::env::temp_dir() }
    }

    /// Some maps take their order from where they lie in memory. A player whose parent was killed is of no use.
    fn prepare(command: &mut Command) {
        // SAFETY: the calls change the child alone, between fork and exec, and need no memory.
        unsafe {
            command.pre_exec(|| {
                libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                Ok(())
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_one_kind_differ_in_numbers_only() {
        assert_eq!(
            SimulationScript::failure_kind("at 1.5 s: GET \"a\": found 16"),
            SimulationScript::failure_kind("at 22.25 s: GET \"a\": found 170")
        );
        assert_ne!(
            SimulationScript::failure_kind("at 1.5 s: GET \"a\": found"),
            SimulationScript::failure_kind("at 1.5 s: LIST \"a\": found")
        );
    }
}
