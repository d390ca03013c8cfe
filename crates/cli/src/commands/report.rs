//! `underlay report`

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use underlay_files::{Access, Folder};
use underlay_record::RunExplanation;
use underlay_report::ab::AbComparison;
use underlay_report::load::LoadedRun;

use super::load_run::load;
use super::predicting::explained;
use super::which_run::{newest_run, run_directory};
use crate::arguments::ReportArguments;
use crate::exit_codes::ExitFailure;
use crate::output;

pub(crate) fn report(arguments: &ReportArguments) -> Result<ExitCode, ExitFailure> {
    if let [a, b] = arguments.runs.as_slice() {
        return compare(arguments, &run_directory(a), &run_directory(b));
    }
    let directory = arguments.runs.first().map_or_else(newest_run, |run| Ok(run_directory(run)))?;
    let loaded = load(&directory)?;
    if arguments.csv {
        mention_doubts(&loaded);
        output::print(&underlay_report::export::csv(&loaded));
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.json {
        output::print(&underlay_report::export::json(&loaded));
        return Ok(ExitCode::SUCCESS);
    }
    let explained = explained(&loaded);
    let page = match &arguments.out {
        Some(page) => write(page, &underlay_report::html::render_explained(&loaded, &explained))?,
        None => write_page(&loaded, &explained, &directory)?,
    };
    print(&loaded, &explained);
    output::print(&format!("report   {}", page.display()));
    if arguments.open {
        open(&page)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn print(loaded: &LoadedRun, explained: &RunExplanation) {
    let (width, colour) = (output::width(), output::colour());
    output::print(&underlay_report::terminal::comparison_explained(loaded, explained, width, colour));
    if output::is_terminal() {
        output::print(&underlay_report::terminal::answer_again(loaded, width, colour));
    }
}

/// Two runs of the same cells.
fn compare(arguments: &ReportArguments, a: &Path, b: &Path) -> Result<ExitCode, ExitFailure> {
    let (loaded_a, loaded_b) = (load(a)?, load(b)?);
    let names = [a, b].map(|path| path.display().to_string());
    let compared = AbComparison::new((&names[0], &loaded_a), (&names[1], &loaded_b));
    if arguments.csv {
        [&loaded_a, &loaded_b].into_iter().for_each(mention_doubts);
        output::print(&underlay_report::export::ab_csv(&compared));
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.json {
        output::print(&underlay_report::export::ab_json(&compared));
        return Ok(ExitCode::SUCCESS);
    }
    let page = underlay_report::html::ab::render(&compared);
    let page = match &arguments.out {
        Some(place) => write(place, &page)?,
        None => write_into(b, "against.html", &page)?,
    };
    output::print(&underlay_report::terminal::ab::text(&compared, output::width(), output::colour()));
    output::print(&format!("report   {}", page.display()));
    if arguments.open {
        open(&page)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Doubts that a table of figures has no room for.
fn mention_doubts(loaded: &LoadedRun) {
    loaded.doubts().iter().for_each(output::say);
}

/// Writes the report of a run into its directory, and says where it is.
pub(crate) fn write_page(
    loaded: &LoadedRun,
    explained: &RunExplanation,
    run: &Path,
) -> Result<PathBuf, ExitFailure> {
    write_into(run, "report.html", &underlay_report::html::render_explained(loaded, explained))
}

/// Only into a directory of this user's: another one may hold links set as a trap.
fn write_into(run: &Path, name: &str, page: &str) -> Result<PathBuf, ExitFailure> {
    let written =
        Folder::open(run).and_then(|folder| folder.replace(name, Access::Readable, page.as_bytes()));
    let page = run.join(name);
    written.map(|()| page.clone()).map_err(|error| {
        let text = format!(
            "cannot write {}: {error}. --out FILE puts the report elsewhere, --json and --csv print it",
            page.display()
        );
        ExitFailure::from_place_error(text, &error)
    })
}

/// The beginning of each of our pages, in any case of letters.
const PAGE_BEGINS: &[u8] = b"<!doctype html";

/// Whether a file would be lost that is no report: a record, or a study.
fn is_no_page(path: &Path) -> bool {
    let mut begin = Vec::new();
    let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
    let read = |begin: &mut Vec<u8>| File::open(path)?.take(PAGE_BEGINS.len() as u64).read_to_end(begin);
    is_file && read(&mut begin).is_ok_and(|bytes| bytes > 0) && !begin.eq_ignore_ascii_case(PAGE_BEGINS)
}

pub(crate) fn write(path: &Path, page: &str) -> Result<PathBuf, ExitFailure> {
    if is_no_page(path) {
        return Err(ExitFailure::Mistake(format!(
            "{} exists and is not an HTML page: name another file, or remove it first",
            path.display()
        )));
    }
    match underlay_files::write(path, page.as_bytes()) {
        Ok(()) => Ok(path.to_path_buf()),
        // `--out /dev/stdout | head`: the reader has read enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(path.to_path_buf()),
        Err(error) => {
            Err(ExitFailure::from_place_error(format!("cannot write {}: {error}", path.display()), &error))
        }
    }
}

fn open(page: &Path) -> Result<(), ExitFailure> {
    let quiet = |program: &str| {
        Command::new(program)
            .arg(page)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
    };
    for program in ["xdg-open", "open", "sensible-browser"] {
        if quiet(program).is_ok_and(|status| status.success()) {
            return Ok(());
        }
    }
    Err(ExitFailure::Missing(format!(
        "no program here opens a browser (xdg-open comes with the package xdg-utils): open {} by hand",
        page.display()
    )))
}
