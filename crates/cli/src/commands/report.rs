//! `underlay report`

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use underlay_report::load::{LoadedRun, RunDirectory};

use super::run::newest_run;
use crate::arguments::ReportArguments;
use crate::exit_codes::Failure;
use crate::output;

pub fn report(arguments: &ReportArguments) -> Result<ExitCode, Failure> {
    let directory = arguments.run.clone().map_or_else(newest_run, Ok)?;
    let loaded = load(&directory)?;
    if arguments.csv {
        output::print(&underlay_report::export::csv(&loaded));
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.json {
        output::print(&underlay_report::export::json(&loaded));
        return Ok(ExitCode::SUCCESS);
    }
    let page = arguments.out.clone().unwrap_or_else(|| directory.join("report.html"));
    write_page(&loaded, &page)?;
    output::print(&underlay_report::terminal::comparison(&loaded, output::width(), output::colour()));
    output::print(&format!("report   {}", page.display()));
    if arguments.open {
        open(&page)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn load(directory: &Path) -> Result<LoadedRun, Failure> {
    RunDirectory::load(directory).map_err(|error| Failure::Mistake(error.to_string()))
}

pub fn write_page(loaded: &LoadedRun, path: &Path) -> Result<(), Failure> {
    std::fs::write(path, underlay_report::html::render(loaded))
        .map_err(|error| Failure::Mistake(format!("cannot write {}: {error}", path.display())))
}

fn open(page: &Path) -> Result<(), Failure> {
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
    Err(Failure::Missing(format!(
        "no program here opens a browser (xdg-open comes with the package xdg-utils): open {} by hand",
        page.display()
    )))
}
