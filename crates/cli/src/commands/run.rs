//! `underlay run`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use underlay_files::Folder;
use underlay_study::run::{RunOptions, RunOutcome};
use underlay_study::spec::Study;

use crate::arguments::RunArguments;
use crate::exit_codes::{Failure, INCOMPLETE, INTERRUPTED, MISSING};
use crate::progress::Terminal;
use crate::{output, signals};

const QUICKSTART: &str = "studies/quickstart.toml";

pub fn run(arguments: &RunArguments) -> Result<ExitCode, Failure> {
    let stop = signals::stop_flag()?;
    super::clean::mention_leftovers();
    let terminal = Terminal::new(arguments.quiet);
    let outcome = if let Some(run) = &arguments.resume {
        let directory = run.clone().map_or_else(newest_run, Ok)?;
        if let Some(study) = &arguments.study {
            refuse_another_study(study, &directory)?;
        }
        output::say(format_args!("going on with {}", directory.display()));
        let options = RunOptions { directory, work: arguments.work.clone() };
        underlay_study::run::resume(&options, &terminal, &stop)
    } else {
        let file = arguments.study.as_deref().unwrap_or(Path::new(QUICKSTART));
        let study = read_study(file, arguments.short)?;
        if !study.notes.is_empty() {
            output::say(&study.notes);
        }
        let directory = arguments.out.clone().unwrap_or_else(|| fresh_directory(&study.name));
        let options = RunOptions { directory, work: arguments.work.clone() };
        underlay_study::run::start(&study, &options, &terminal, &stop)
    };
    terminal.finish();
    let outcome = outcome?;
    conclude(&outcome)
}

/// Of a study, a pool's file, and what they name. The longest in the world have some thousand lines.
pub const MAX_FILE_BYTES: u64 = 4 << 20;

/// A run goes on with the study that it holds: one that is named beside it must be the same.
fn refuse_another_study(path: &Path, run: &Path) -> Result<(), Failure> {
    let text = read(path)?;
    let held = underlay_study::run::study_of(run)?;
    if text == held {
        return Ok(());
    }
    Err(Failure::Mistake(format!(
        "{} is not the study that {} holds: leave it out to go on with that one, or leave out --resume to run it anew",
        path.display(),
        run.display()
    )))
}

fn read(path: &Path) -> Result<String, Failure> {
    underlay_files::read_text(path, MAX_FILE_BYTES)
        .map_err(|error| Failure::Mistake(format!("cannot read the study {}: {error}", path.display())))
}

/// Reads a study, or says all its mistakes.
pub fn read_study(path: &Path, short: bool) -> Result<Study, Failure> {
    study_of_text(path, &read(path)?, short)
}

/// As [`read_study`], of what the file holds or shall hold.
pub fn study_of_text(path: &Path, text: &str, short: bool) -> Result<Study, Failure> {
    // A study names files as seen from its own directory.
    let beside = path.parent().unwrap_or(Path::new(""));
    let read_file = |name: &str| {
        let file = beside.join(name);
        underlay_files::read_text(&file, MAX_FILE_BYTES)
            .map_err(|error| format!("{}: {error}", file.display()))
    };
    Study::parse_with_media(&path.display().to_string(), text, short, &read_file)
        .map_err(|mistakes| Failure::Findings(Box::new(mistakes)))
}

fn conclude(outcome: &RunOutcome) -> Result<ExitCode, Failure> {
    let directory = outcome.directory.display();
    if outcome.completed + outcome.failed + outcome.unavailable > 0 {
        let loaded = super::report::load(&outcome.directory)?;
        output::print(&underlay_report::terminal::comparison(&loaded, output::width(), output::colour()));
        let page = super::report::write_page(&loaded, &outcome.directory)?;
        output::print(&format!("report   {}", page.display()));
        output::print(&format!("records  {directory}/cells"));
    }
    if outcome.left > 0 {
        let left = match outcome.left {
            1 => "1 cell is left".to_owned(),
            cells => format!("{cells} cells are left"),
        };
        output::say(format_args!("stopped; {left}: underlay run --resume {directory}"));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if outcome.failed + outcome.unavailable > 0 {
        output::say(format_args!(
            "{} cells failed and {} cannot run here; `underlay run --resume {directory}` tries them again",
            outcome.failed, outcome.unavailable
        ));
        let nothing_ran = outcome.completed + outcome.failed == 0;
        return Ok(ExitCode::from(if nothing_ran { MISSING } else { INCOMPLETE }));
    }
    Ok(ExitCode::SUCCESS)
}

fn fresh_directory(name: &str) -> PathBuf {
    let now = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
    PathBuf::from("runs").join(format!("{name}-{now}"))
}

/// The run of this user below `runs/` that was begun last. What another user put there is none.
pub fn newest_run() -> Result<PathBuf, Failure> {
    let entries = std::fs::read_dir("runs").map_err(|error| {
        Failure::Mistake(format!("there is no run below runs/ ({error}): name its directory"))
    })?;
    entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| Folder::open(path).is_ok())
        .filter_map(|path| Some((std::fs::metadata(path.join("run.json")).ok()?.modified().ok()?, path)))
        .max()
        .map(|(_, path)| path)
        .ok_or_else(|| Failure::Mistake("there is no run of yours below runs/: name its directory".into()))
}
