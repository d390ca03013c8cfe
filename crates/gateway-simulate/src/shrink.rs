//! Shortens a failing script.

use crate::child::ScriptPlayer;
use crate::problem::CommandProblem;
use crate::run::ScriptReport;
use crate::script::{SimulationScript, StoreFaults};

/// With fewer steps a seed decides differently, therefore this many seeds are tried.
const SEEDS: u64 = 4;

/// The kind of a failure, without numbers that differ from run to run.
pub fn kind(failure: &str) -> String {
    let message = failure.split_once(" s: ").map_or(failure, |(_, message)| message);
    message.chars().filter(|letter| !letter.is_ascii_digit()).take(20).collect()
}

/// The shortest script found that fails in the same way, and its report.
#[derive(Clone)]
pub struct ShrunkScript {
    pub script: SimulationScript,
    pub report: ScriptReport,
    /// The user stopped the search: there may be a shorter script.
    pub was_interrupted: bool,
}

/// # Errors
/// When no process can be started to play it.
pub fn shrink(
    script: &SimulationScript,
    report: &ScriptReport,
    mut player: impl FnMut() -> Result<ScriptPlayer, CommandProblem>,
    progress: impl FnMut(&SimulationScript),
) -> Result<ShrunkScript, CommandProblem> {
    let mut best = ShrunkScript { script: script.clone(), report: report.clone(), was_interrupted: false };
    let Some(wanted) = report.failure.as_deref().map(kind) else { return Ok(best) };
    let mut fails = |candidate: &SimulationScript,
                     seeds: u64|
     -> Result<Option<(SimulationScript, ScriptReport)>, CommandProblem> {
        for step in 0..seeds {
            let tried =
                SimulationScript { seed: candidate.seed.wrapping_add(step * 7919), ..candidate.clone() };
            let report = player()?.play(&tried)?;
            if report.failure.as_deref().map(kind).as_deref() == Some(&wanted) {
                return Ok(Some((tried, report)));
            }
        }
        Ok(None)
    };
    match search(&mut best, &mut fails, progress) {
        Err(CommandProblem::Interrupted) => best.was_interrupted = true,
        outcome => outcome?,
    }
    Ok(best)
}

/// Keeps the shortest script in `best`, also if it is interrupted.
fn search(
    best: &mut ShrunkScript,
    fails: &mut impl FnMut(
        &SimulationScript,
        u64,
    ) -> Result<Option<(SimulationScript, ScriptReport)>, CommandProblem>,
    mut progress: impl FnMut(&SimulationScript),
) -> Result<(), CommandProblem> {
    let mut length = best.script.steps.len().div_ceil(2);
    while length > 0 {
        let mut begin = 0;
        let mut has_shrunk = false;
        while begin < best.script.steps.len() {
            let mut candidate = best.script.clone();
            let end = (begin + length).min(candidate.steps.len());
            candidate.steps.drain(begin..end);
            match fails(&candidate, if length > 8 { 1 } else { SEEDS })? {
                Some(found) => {
                    (best.script, best.report) = found;
                    has_shrunk = true;
                    progress(&best.script);
                }
                None => begin += length,
            }
        }
        // Single steps are tried again as long as one can be removed: others may have depended on it.
        if !has_shrunk || length > 1 {
            length /= 2;
        }
    }
    for change in SIMPLER {
        let mut candidate = best.script.clone();
        change(&mut candidate);
        if candidate != best.script
            && let Some(found) = fails(&candidate, SEEDS)?
        {
            (best.script, best.report) = found;
        }
    }
    Ok(())
}

/// Changes to a plainer set-up.
const SIMPLER: [fn(&mut SimulationScript); 6] = [
    |script| script.setup.gateways = 1,
    |script| script.setup.settings.is_encrypted = false,
    |script| script.setup.settings.rules.clear(),
    |script| script.setup.store.before.clear(),
    |script| script.setup.store.has_etags_of_its_own = false,
    |script| {
        for step in &mut script.steps {
            if let crate::script::ScriptStep::Store(faults) = step {
                *faults = StoreFaults { stalling: 0, stall_ms: 0, ..faults.clone() };
            }
        }
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_one_kind_differ_in_numbers_only() {
        assert_eq!(kind("at 1.5 s: GET \"a\": found 16"), kind("at 22.25 s: GET \"a\": found 170"));
        assert_ne!(kind("at 1.5 s: GET \"a\": found"), kind("at 1.5 s: LIST \"a\": found"));
    }
}
