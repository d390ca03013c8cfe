//! Shortens a failing script.

use crate::player::ScriptPlayer;
use crate::problem::CommandProblem;
use crate::script::{PlayedScript, ScriptReport};

/// More steps than these are many.
const FEW_STEPS: usize = 8;

/// The shortest script found that fails in the same way, and its report.
#[derive(Clone)]
pub struct ShrunkScript<S> {
    pub script: S,
    pub report: ScriptReport,
    /// The user stopped the search: there may be a shorter script.
    pub was_interrupted: bool,
}

/// # Errors
/// When no process can be started to play it.
pub fn shrink<S: PlayedScript>(
    script: &S,
    report: &ScriptReport,
    mut player: impl FnMut() -> Result<ScriptPlayer<S>, CommandProblem>,
    progress: impl FnMut(&S),
) -> Result<ShrunkScript<S>, CommandProblem> {
    let mut best = ShrunkScript { script: script.clone(), report: report.clone(), was_interrupted: false };
    let Some(wanted) = report.failure.as_deref().map(S::failure_kind) else { return Ok(best) };
    let mut fails = |candidate: &S, seeds: u64| -> Result<Option<(S, ScriptReport)>, CommandProblem> {
        for number in 0..seeds {
            let mut tried = candidate.clone();
            tried.set_seed(candidate.seed().wrapping_add(number * 7919));
            let report = player()?.play(&tried)?;
            if report.failure.as_deref().map(S::failure_kind).as_deref() == Some(&wanted) {
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
fn search<S: PlayedScript>(
    best: &mut ShrunkScript<S>,
    fails: &mut impl FnMut(&S, u64) -> Result<Option<(S, ScriptReport)>, CommandProblem>,
    mut progress: impl FnMut(&S),
) -> Result<(), CommandProblem> {
    let [seeds_of_few, seeds_of_many] = S::SHRINK_SEEDS;
    let mut length = best.script.step_count().div_ceil(2);
    while length > 0 {
        let mut start = 0;
        let mut has_shrunk = false;
        while start < best.script.step_count() {
            let mut candidate = best.script.clone();
            candidate.remove_steps(start..(start + length).min(candidate.step_count()));
            match fails(&candidate, if length > FEW_STEPS { seeds_of_many } else { seeds_of_few })? {
                Some(found) => {
                    (best.script, best.report) = found;
                    has_shrunk = true;
                    progress(&best.script);
                }
                None => start += length,
            }
        }
        // Single steps are tried again as long as one can be removed: others may have depended on it.
        if !has_shrunk || length > 1 {
            length /= 2;
        }
    }
    for change in S::SIMPLER {
        let mut candidate = best.script.clone();
        change(&mut candidate);
        if candidate != best.script
            && let Some(found) = fails(&candidate, seeds_of_few)?
        {
            (best.script, best.report) = found;
        }
    }
    Ok(())
}
