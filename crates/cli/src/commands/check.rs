//! `underlay check`

use std::process::ExitCode;

use underlay_report::quantity;
use underlay_study::plan;

use super::run::read_study;
use crate::arguments::CheckArguments;
use crate::exit_codes::Failure;
use crate::output;

pub fn check(arguments: &CheckArguments) -> Result<ExitCode, Failure> {
    let study = read_study(&arguments.study, arguments.short)?;
    let cells = plan::expand(&study);
    if arguments.json {
        output::print(&serde_json::to_string_pretty(&cells).expect("cells are plain data"));
        return Ok(ExitCode::SUCCESS);
    }
    if !study.notes.is_empty() {
        eprintln!("{}", study.notes);
    }
    let runs = cells.len() * study.run.repetitions as usize;
    let wall_s = runs as f64 * (study.run.warmup + study.run.duration).as_secs_f64();
    output::print(&format!(
        "{}: {} cells, {} each, at least {} of measuring on this machine",
        study.name,
        cells.len(),
        quantity::plural(study.run.repetitions as usize, "repetition"),
        quantity::duration(wall_s)
    ));
    for cell in &cells {
        output::print(&format!("  {}", cell.id));
    }
    Ok(ExitCode::SUCCESS)
}
