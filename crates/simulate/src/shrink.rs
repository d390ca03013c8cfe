//! Making a failing script short.

use crate::child::Player;
use crate::run::Report;
use crate::script::{Script, Setup};

/// With fewer steps the same seed decides otherwise: so many others are tried.
const SEEDS: u64 = 6;

/// What a failure is about, without the numbers that differ from run to run.
pub fn kind(failure: &str) -> String {
    failure.chars().filter(|letter| !letter.is_ascii_digit()).take(24).collect()
}

/// The shortest script that was found to fail in the same way, and its report.
///
/// # Errors
/// When no process can be had to play it.
pub fn shrink(
    script: &Script,
    report: &Report,
    mut player: impl FnMut() -> anyhow::Result<Player>,
    mut progress: impl FnMut(&Script),
) -> anyhow::Result<(Script, Report)> {
    let Some(wanted) = report.failure.as_deref().map(kind) else {
        return Ok((script.clone(), report.clone()));
    };
    let mut best = (script.clone(), report.clone());
    let mut fails = |candidate: &Script, seeds: u64| -> anyhow::Result<Option<(Script, Report)>> {
        for step in 0..seeds {
            let tried = Script { seed: candidate.seed + step * 7919, ..candidate.clone() };
            let report = player()?.play(&tried);
            if report.failure.as_deref().map(kind).as_deref() == Some(&wanted) {
                return Ok(Some((tried, report)));
            }
        }
        Ok(None)
    };
    let mut length = best.0.steps.len().div_ceil(2);
    while length > 0 {
        let mut at = 0;
        let mut has_shrunk = false;
        while at < best.0.steps.len() {
            let mut candidate = best.0.clone();
            let end = (at + length).min(candidate.steps.len());
            candidate.steps.drain(at..end);
            match fails(&candidate, if length > 8 { 2 } else { SEEDS })? {
                Some(found) => {
                    best = found;
                    has_shrunk = true;
                    progress(&best.0);
                }
                None => at += length,
            }
        }
        if !has_shrunk || length > 1 {
            length /= 2;
        }
    }
    for candidate in simpler(&best.0) {
        if let Some(found) = fails(&candidate, SEEDS)? {
            best = found;
        }
    }
    Ok(best)
}

/// The same with a plainer set-up.
fn simpler(script: &Script) -> Vec<Script> {
    let Setup::Volumes(volumes) = &script.setup else { return Vec::new() };
    let with = |change: &dyn Fn(&mut crate::script::Volumes)| {
        let mut volumes = volumes.clone();
        change(&mut volumes);
        Script { setup: Setup::Volumes(volumes), ..script.clone() }
    };
    vec![
        with(&|volumes| volumes.yield_every = 0),
        with(&|volumes| volumes.volumes.truncate(1)),
        with(&|volumes| volumes.volumes.iter_mut().for_each(|volume| volume.compress = false)),
        with(&|volumes| volumes.has_host_memory = false),
    ]
}
