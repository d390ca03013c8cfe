//! Making a failing script short.

use crate::child::PlayerProcess;
use crate::problem::ScriptProblem;
use crate::run::ScriptReport;
use crate::script::{FaultScript, ScriptSetup};

/// With fewer steps the same seed decides otherwise: this many seeds are tried.
const SEEDS: u64 = 6;

/// A failure's kind, without the numbers that differ from run to run.
pub fn kind(failure: &str) -> String {
    failure.chars().filter(|letter| !letter.is_ascii_digit()).take(24).collect()
}

/// The shortest script that was found to fail in the same way, and its report.
#[derive(Clone)]
pub struct ShrunkScript {
    pub script: FaultScript,
    pub report: ScriptReport,
    /// The user had enough: there may be a shorter one.
    pub was_interrupted: bool,
}

/// # Errors
/// When no process can be had to play it.
pub fn shrink(
    script: &FaultScript,
    report: &ScriptReport,
    mut player: impl FnMut() -> Result<PlayerProcess, ScriptProblem>,
    progress: impl FnMut(&FaultScript),
) -> Result<ShrunkScript, ScriptProblem> {
    let mut best = ShrunkScript { script: script.clone(), report: report.clone(), was_interrupted: false };
    let Some(wanted) = report.failure.as_deref().map(kind) else { return Ok(best) };
    let mut fails = |candidate: &FaultScript,
                     seeds: u64|
     -> Result<Option<(FaultScript, ScriptReport)>, ScriptProblem> {
        for step in 0..seeds {
            let tried = FaultScript { seed: candidate.seed.wrapping_add(step * 7919), ..candidate.clone() };
            let report = player()?.play(&tried)?;
            if report.failure.as_deref().map(kind).as_deref() == Some(&wanted) {
                return Ok(Some((tried, report)));
            }
        }
        Ok(None)
    };
    match search(&mut best, &mut fails, progress) {
        Err(ScriptProblem::Interrupted) => best.was_interrupted = true,
        outcome => outcome?,
    }
    Ok(best)
}

/// Leaves the best in `best` whenever it ends.
fn search(
    best: &mut ShrunkScript,
    fails: &mut impl FnMut(&FaultScript, u64) -> Result<Option<(FaultScript, ScriptReport)>, ScriptProblem>,
    mut progress: impl FnMut(&FaultScript),
) -> Result<(), ScriptProblem> {
    let mut length = best.script.steps.len().div_ceil(2);
    while length > 0 {
        let mut start = 0;
        let mut has_shrunk = false;
        while start < best.script.steps.len() {
            let mut candidate = best.script.clone();
            let end = (start + length).min(candidate.steps.len());
            candidate.steps.drain(start..end);
            match fails(&candidate, if length > 8 { 2 } else { SEEDS })? {
                Some(found) => {
                    (best.script, best.report) = found;
                    has_shrunk = true;
                    progress(&best.script);
                }
                None => start += length,
            }
        }
        // Single steps are tried again for as long as one goes: another may only have been needed because
        // of it.
        if !has_shrunk || length > 1 {
            length /= 2;
        }
    }
    for candidate in simpler(&best.script) {
        if let Some(found) = fails(&candidate, SEEDS)? {
            (best.script, best.report) = found;
        }
    }
    Ok(())
}

/// The same with a plainer set-up.
fn simpler(script: &FaultScript) -> Vec<FaultScript> {
    let ScriptSetup::Volumes(volumes) = &script.setup else { return Vec::new() };
    let simplified = |change: &dyn Fn(&mut crate::script::VolumesSetup)| {
        let mut volumes = volumes.clone();
        change(&mut volumes);
        FaultScript { setup: ScriptSetup::Volumes(volumes), ..script.clone() }
    };
    vec![
        simplified(&|volumes| volumes.yield_every = 0),
        simplified(&|volumes| volumes.volumes.truncate(1)),
        simplified(&|volumes| volumes.volumes.iter_mut().for_each(|volume| volume.compress = false)),
        simplified(&|volumes| volumes.has_host_memory = false),
    ]
}
