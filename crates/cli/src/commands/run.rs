//! `underlay run`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use underlay_record::WallRecord;
use underlay_record::cell::SKIPPED_ON_COMMAND;
use underlay_report::quantity;
use underlay_study::run::{RunDirectory, RunOptions, RunOutcome};
use underlay_study::spec::{MAX_TIME, Study, StudyForm};

use super::console::{CompanionConsole, ConsoleStay};
use super::read_study::{read, read_study};
use super::which_run::{newest_run, run_directory};
use crate::arguments::RunArguments;
use crate::exit_codes::{ExitFailure, INCOMPLETE, INTERRUPTED, MISSING};
use crate::progress::TerminalProgress;
use crate::{output, signals};

const QUICKSTART: &str = "studies/quickstart.toml";

pub(crate) fn run(arguments: &RunArguments) -> Result<ExitCode, ExitFailure> {
    let signalled = signals::listen()?;
    let stay = ConsoleStay::parse(arguments.console_stays.as_deref())?;
    let mut console = None;
    let concluded = run_to_end(arguments, signalled.stop(), &mut console);
    let Some(console) = console else { return concluded.map(ExitCode::from) };
    // Before the console's stay: the user at the terminal sees at once what happened.
    let code = concluded.unwrap_or_else(|failure| {
        failure.say();
        failure.number()
    });
    console.stay(stay, &signalled, code);
    Ok(ExitCode::from(code))
}

/// Runs the study, prints its outcome, and returns the exit code.
fn run_to_end(
    arguments: &RunArguments,
    stop: &AtomicBool,
    console: &mut Option<CompanionConsole>,
) -> Result<u8, ExitFailure> {
    super::clean::mention_leftovers();
    let terminal = TerminalProgress::new(arguments.quiet);
    let outcome = if let Some(run) = &arguments.resume {
        let directory = run.as_deref().map_or_else(newest_run, |run| Ok(run_directory(run)))?;
        let recorded = underlay_study::run::study_of(&directory)?;
        if let Some(study) = &arguments.study {
            refuse_another_study(study, &recorded, &directory)?;
        }
        output::say(format_args!("resuming {}", directory.display()));
        *console = arguments.console.then(|| CompanionConsole::start(&directory));
        let options = RunOptions {
            directory,
            work: arguments.work.clone(),
            time: None,
            limit: arguments.selection.limit(),
        };
        underlay_study::run::resume(&options, &terminal, stop)
    } else {
        let file = arguments.study.as_deref().unwrap_or(Path::new(QUICKSTART));
        if arguments.study.is_none() && !file.exists() {
            return Err(ExitFailure::Mistake(
                "name a study, as in `underlay run my-disks.toml`; `underlay new my-disks` writes one to start from".into(),
            ));
        }
        let study =
            read_study(file, StudyForm { short: arguments.short, overrides: &arguments.selection.set })?;
        if !study.notes.is_empty() {
            output::say(&study.notes);
        }
        if arguments.short && !study.short {
            output::say(format_args!("note: {} has no [short] section: all of it is run", file.display()));
        }
        refuse_what_cannot_run(&study)?;
        let time = arguments.time.map(factor_of).transpose()?;
        let opened = match &arguments.out {
            Some(out) => RunDirectory::create(out)?,
            None => RunDirectory::create_beside_others(&named_by_time(&study.name))?,
        };
        let directory = arguments.out.clone().unwrap_or_else(|| below_here(opened.path()));
        *console = arguments.console.then(|| CompanionConsole::start(&directory));
        let options =
            RunOptions { directory, work: arguments.work.clone(), time, limit: arguments.selection.limit() };
        underlay_study::run::start_in(opened, &study, &options, &terminal, stop)
    };
    // Before anything is printed, an error too: live lines would be drawn over it.
    terminal.finish();
    conclude(&outcome?)
}

/// Where none of the systems can run, for want of what the user has to supply, there is nothing to measure and no
/// reason to begin.
fn refuse_what_cannot_run(study: &Study) -> Result<(), ExitFailure> {
    let mut missing = None;
    for system in &study.systems {
        match underlay_systems::find(&system.kind).and_then(|kind| kind.supplied()) {
            Some(Err(error)) => missing = Some(error),
            _ => return Ok(()),
        }
    }
    missing.map_or(Ok(()), |error| Err(error.into()))
}

/// A run goes on with the study that it holds: one that is named beside it must be the same.
fn refuse_another_study(path: &Path, recorded: &str, run: &Path) -> Result<(), ExitFailure> {
    if read(path)? == recorded {
        return Ok(());
    }
    Err(ExitFailure::Mistake(format!(
        "{} is not the study of {}: leave it out to resume that run, or leave out --resume to start a new one",
        path.display(),
        run.display()
    )))
}

fn conclude(outcome: &RunOutcome) -> Result<u8, ExitFailure> {
    let directory = outcome.directory.display();
    let lost = outcome.failed + outcome.unavailable + outcome.skipped;
    if outcome.completed + outcome.disturbed + lost > 0 {
        let loaded = super::load_run::load(&outcome.directory)?;
        let explained = super::predicting::explained(&loaded);
        super::report::print(&loaded, &explained);
        let page = super::report::write_page(&loaded, &explained, &outcome.directory)?;
        output::print(&format!("report   {}", page.display()));
        output::print(&format!("records  {directory}/cells"));
    }
    if outcome.left > 0 {
        let left = match outcome.left {
            1 => "1 cell remains".to_owned(),
            cells => format!("{cells} cells remain"),
        };
        output::say(format_args!("stopped; {left}: underlay run --resume {directory}"));
        return Ok(INTERRUPTED);
    }
    if let Some(wall) = &outcome.wall {
        output::say(told(wall, lost == 0));
    }
    if outcome.disturbed > 0 {
        let cells = quantity::plural(outcome.disturbed, "cell");
        let (verb, pronoun) = if outcome.disturbed == 1 { ("was", "it") } else { ("were", "them") };
        output::say(format_args!(
            "{cells} {verb} disturbed by hand; `underlay run --resume {directory}` measures {pronoun} again"
        ));
    }
    if lost > 0 {
        output::say(format_args!(
            "{}; `underlay run --resume {directory}` tries again",
            describe_losses(outcome)
        ));
        let nothing_ran = outcome.unavailable == lost && outcome.completed + outcome.disturbed == 0;
        return Ok(if nothing_ran { MISSING } else { INCOMPLETE });
    }
    Ok(if outcome.disturbed > 0 { INCOMPLETE } else { 0 })
}

/// `2 cells failed, 1 was skipped on command and 3 cannot run here`.
fn describe_losses(outcome: &RunOutcome) -> String {
    let verb = if outcome.skipped == 1 { "was" } else { "were" };
    let parts = [
        (outcome.failed, "failed".to_owned()),
        (outcome.skipped, format!("{verb} {SKIPPED_ON_COMMAND}")),
        (outcome.unavailable, "cannot run here".to_owned()),
    ];
    let mut summary = String::new();
    let parts: Vec<_> = parts.into_iter().filter(|(count, _)| *count > 0).collect();
    for (place, (count, phrase)) in parts.iter().enumerate() {
        summary += &match place {
            0 => quantity::plural(*count, "cell"),
            _ if place + 1 == parts.len() => format!(" and {count}"),
            _ => format!(", {count}"),
        };
        summary += &format!(" {phrase}");
    }
    summary
}

/// An estimate that is further off than this was no help.
const GOOD_ESTIMATE: f64 = 1.5;
/// On a quiet host that takes some seconds.
const WORTH_TELLING_S: f64 = 5.0;

/// `took 10 min 38 s, estimated 11 min 46 s`, with what is to blame where every cell was measured and the two are far
/// from each other.
fn told(wall: &WallRecord, is_complete: bool) -> String {
    let words = quantity::duration;
    let (took_s, estimated_s) = (wall.took.total_s(), wall.estimated.total_s());
    let mut line = format!("took {}, estimated {}", words(took_s), words(estimated_s));
    let before = [
        // What is a moment is not worth a word.
        (wall.measuring_host_s >= WORTH_TELLING_S, wall.measuring_host_s, "of measuring this host"),
        (wall.given_up_s > 0.0, wall.given_up_s, "in slow motion that was too fast"),
    ];
    let before = before.into_iter().filter(|(is_told, ..)| *is_told);
    let before: Vec<_> = before.map(|(_, seconds, phase)| format!("{} {phase}", words(seconds))).collect();
    if !before.is_empty() {
        line.push_str(&format!(", after {}", before.join(" and ")));
    }
    if is_complete && took_s.max(estimated_s) > GOOD_ESTIMATE * took_s.min(estimated_s) {
        let (part, took_s, estimated_s) = wall.furthest_off();
        line.push_str(&format!(": {part} took {}, estimated {}", words(took_s), words(estimated_s)));
    }
    line
}

fn factor_of(time: f64) -> Result<f64, ExitFailure> {
    if (1.0..=MAX_TIME).contains(&time) {
        return Ok(time);
    }
    let time = crate::arguments::as_typed(time);
    Err(ExitFailure::Mistake(format!("--time is {time}: expected a factor from 1 to {MAX_TIME}")))
}

/// A path as a user reads and types it: relative to the working directory where it is below that.
fn below_here(path: &Path) -> PathBuf {
    let here = std::env::current_dir().ok();
    let below = here.as_deref().and_then(|here| path.strip_prefix(here).ok());
    below.unwrap_or(path).to_owned()
}

fn named_by_time(name: &str) -> PathBuf {
    let now = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
    PathBuf::from("runs").join(format!("{name}-{now}"))
}

#[cfg(test)]
mod tests {
    use underlay_record::WallParts;

    use super::*;

    #[test]
    fn lost_cells_are_counted_once_by_kind() {
        let loss_text = |failed, skipped, unavailable| {
            describe_losses(&RunOutcome { failed, skipped, unavailable, ..RunOutcome::default() })
        };
        assert_eq!(loss_text(0, 1, 0), "1 cell was skipped on command");
        assert_eq!(loss_text(2, 3, 0), "2 cells failed and 3 were skipped on command");
        assert_eq!(loss_text(1, 1, 4), "1 cell failed, 1 was skipped on command and 4 cannot run here");
    }

    #[test]
    fn run_time_names_unexpected_part() {
        let estimated = WallParts { load_s: 100.0, measure_s: 300.0, ..WallParts::default() };
        let mut wall = WallRecord { estimated, took: estimated, ..WallRecord::default() };
        assert_eq!(told(&wall, true), "took 6 min 40 s, estimated 6 min 40 s");
        wall.took.load_s = 400.0;
        wall.given_up_s = 60.0;
        assert!(
            told(&wall, false).ends_with(", after 1 min in slow motion that was too fast"),
            "{}",
            told(&wall, false)
        );
        wall.measuring_host_s = 51.0;
        let both = told(&wall, false);
        assert!(
            both.ends_with(", after 51 s of measuring this host and 1 min in slow motion that was too fast"),
            "{both}"
        );
        wall.measuring_host_s = 0.0;
        assert_eq!(
            told(&wall, true),
            "took 11 min 40 s, estimated 6 min 40 s, after 1 min in slow motion that was too fast: loading data took 6 min 40 s, estimated \
             1 min 40 s"
        );
    }
}
