//! The commands that all simulators have.

use std::panic::{UnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use underlay_sync::planted::PlantedBug;

use crate::campaign::{self, CampaignPlan, CampaignSummary};
use crate::output::{OutputFile, count, describe, describe_outcome, remark, say, to_text};
use crate::player::{PlayerOptions, ScriptPlayer};
use crate::problem::{CommandProblem, FAILED_SEED};
use crate::script::{PlayedScript, ScriptReport};
use crate::shrink::shrink;
use crate::signals;

/// Runs a program whose command returns whether nothing failed.
pub fn main<S: PlayedScript>(
    command: impl FnOnce() -> Result<bool, CommandProblem> + UnwindSafe,
) -> ExitCode {
    let outcome =
        catch_unwind(command).unwrap_or_else(|_| Err(CommandProblem::Bug("a panic, printed above".into())));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED_SEED),
        Err(problem) => {
            if !problem.is_quiet() {
                remark(format!("{}: {problem}", S::PROGRAM));
            }
            ExitCode::from(problem.code())
        }
    }
}

/// Reads `--minutes`. More than a year would be a mistake.
///
/// # Errors
/// What is expected.
pub fn parse_minutes(text: &str) -> Result<Duration, String> {
    const MAX: f64 = 366.0 * 24.0 * 60.0;
    let minutes = text.parse().ok().filter(|minutes| *minutes > 0.0 && *minutes <= MAX);
    let minutes: f64 = minutes.ok_or_else(|| format!("a number above 0 and up to {MAX} is expected"))?;
    Ok(Duration::from_secs_f64(minutes * 60.0))
}

/// The number of seeds to play from the first one on: as many as asked for, or all.
///
/// # Errors
/// When there are not so many.
pub fn count_seeds(first: u64, asked: Option<u64>) -> Result<u64, CommandProblem> {
    let most = (u64::MAX - first).saturating_add(1);
    match asked {
        None => Ok(most),
        Some(seeds) if seeds <= most => Ok(seeds),
        Some(seeds) => Err(CommandProblem::Mistake(format!(
            "--seeds {seeds} from --first-seed {first} on goes beyond the last seed, {}; use fewer",
            u64::MAX
        ))),
    }
}

fn quiet(bug: Option<PlantedBug>) -> PlayerOptions {
    PlayerOptions { bug: bug.map(PlantedBug::name), is_loud: false }
}

fn check_interrupt(was_interrupted: bool) -> Result<(), CommandProblem> {
    if was_interrupted { Err(CommandProblem::Interrupted) } else { Ok(()) }
}

/// `run`: returns whether all seeds passed. `generated_by` are the arguments by which `shrink` generates the same
/// script, each behind a blank.
///
/// # Errors
/// When it can't be carried out, or the user stops it.
pub fn run_seeds<S: PlayedScript>(
    plan: &CampaignPlan,
    bug: Option<PlantedBug>,
    generate: impl Fn(u64) -> S + Sync,
    generated_by: &str,
) -> Result<bool, CommandProblem> {
    signals::listen()?;
    let start = quiet(bug);
    let tell = |summary: &CampaignSummary<S>, script: &S, report: &ScriptReport| {
        // At once: nobody knows how the hours to come will end.
        if report.failure.is_some() {
            say(describe_outcome(script, report))?;
        }
        if summary.seeds.is_multiple_of(S::SEEDS_A_LINE) {
            say(describe(summary))?;
        }
        Ok(())
    };
    let summary = campaign::run(plan, || ScriptPlayer::start(&start), generate, tell)?;
    say(describe(&summary))?;
    if let Some((first, _)) = summary.failures.first() {
        let mut seeds: Vec<u64> = summary.failures.iter().map(|(script, _)| script.seed()).collect();
        seeds.sort_unstable();
        let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
        say(format!("{} of them failed: {}", seeds.len(), seeds.join(", ")))?;
        let bug = start.bug.as_ref().map_or(String::new(), |bug| format!(" --bug {bug}"));
        let (program, seed) = (S::PROGRAM, first.seed());
        say(format!("{program} shrink {seed}{generated_by}{bug} -o script.json makes it short"))?;
    }
    check_interrupt(summary.was_interrupted)?;
    Ok(summary.failures.is_empty())
}

/// `play`: returns whether the script passed.
///
/// # Errors
/// When it can't be played, or the user stops it.
pub fn play(script: &impl PlayedScript, bug: Option<PlantedBug>) -> Result<bool, CommandProblem> {
    signals::listen()?;
    // In a separate process: what it leaves behind, its parent removes.
    let options = PlayerOptions { is_loud: true, ..quiet(bug) };
    let report = ScriptPlayer::start(&options)?.play(script)?;
    report.notes.iter().for_each(remark);
    say(to_text(&ScriptReport { notes: Vec::new(), ..report.clone() })?)?;
    Ok(report.failure.is_none())
}

/// `shrink`: returns whether the script passed.
///
/// # Errors
/// When it can't be carried out, or the user stops it.
pub fn shrink_script<S: PlayedScript>(
    script: &S,
    bug: Option<PlantedBug>,
    output: Option<&Path>,
) -> Result<bool, CommandProblem> {
    // Before hours are spent on what could then not be written.
    let output = output.map(|path| OutputFile::prepare(S::PROGRAM, path)).transpose()?;
    signals::listen()?;
    let options = quiet(bug);
    let report = ScriptPlayer::start(&options)?.play(script)?;
    remark(describe_outcome(script, &report));
    if report.failure.is_none() {
        return Ok(true);
    }
    let progress = |script: &S| remark(count(script.step_count() as u64, "step"));
    let short = shrink(script, &report, || ScriptPlayer::start(&options), progress)?;
    remark(describe_outcome(&short.script, &short.report));
    let text = to_text(&short.script)?;
    match output {
        None => say(text)?,
        Some(output) => {
            let name = output.path.display();
            if let Err(error) = output.write(&text) {
                remark(format!("{}: {name} can't be written ({error}); the script is:", S::PROGRAM));
                say(text)?;
                return Err(CommandProblem::Output(error));
            }
        }
    }
    check_interrupt(short.was_interrupted)?;
    Ok(false)
}

/// `prove`: plants each bug in turn, and says after how many seeds it was found. The seed has to pass without the bug.
/// Returns whether that was so of all.
///
/// # Errors
/// When it can't be carried out, or the user stops it.
pub fn prove<S: PlayedScript>(
    bugs: &[PlantedBug],
    (seeds, jobs): (u64, usize),
    generate: impl Fn(PlantedBug, u64) -> S + Sync,
) -> Result<bool, CommandProblem> {
    signals::listen()?;
    let mut all_found = true;
    for &bug in bugs {
        let plan = CampaignPlan { first_seed: 1, seeds, time: Duration::MAX, jobs, stop_at_failure: true };
        let start = quiet(Some(bug));
        let generate = |seed| generate(bug, seed);
        let summary = campaign::run(&plan, || ScriptPlayer::start(&start), generate, |_, _, _| Ok(()))?;
        let (name, played) = (bug.name(), count(summary.seeds, "seed"));
        match summary.failures.first() {
            Some((script, report)) => {
                // A script that fails without the bug proves nothing.
                let sound = ScriptPlayer::start(&quiet(None))?.play(script)?;
                let is_proven = sound.failure.is_none();
                all_found &= is_proven;
                let failure = sound.failure.or_else(|| report.failure.clone()).unwrap_or_default();
                let failure: String = failure.chars().take(120).collect();
                let doubt = if is_proven { "" } else { " fails without the bug too" };
                let took_s = summary.duration.as_secs_f64();
                say(format!("{name}: {played}, {took_s:.0} s, seed {}{doubt}: {failure}", script.seed()))?;
            }
            None if summary.was_interrupted => say(format!("{name}: stopped after {played}"))?,
            None => {
                all_found = false;
                say(format!("{name}: NOT FOUND in {played}"))?;
            }
        }
        check_interrupt(summary.was_interrupted)?;
    }
    Ok(all_found)
}

/// `--bug`: one of these, by its name.
///
/// # Errors
/// When there is none of this name: all names.
pub fn find_bug(
    name: &str,
    mut bugs: impl Iterator<Item = PlantedBug> + Clone,
) -> Result<PlantedBug, String> {
    let all = bugs.clone();
    bugs.find(|bug| bug.name() == name)
        .ok_or_else(|| format!("there is no such bug; there are {}", join_names(all)))
}

/// The names of bugs in a row.
pub fn join_names(bugs: impl Iterator<Item = PlantedBug>) -> String {
    bugs.map(PlantedBug::name).collect::<Vec<_>>().join(", ")
}
