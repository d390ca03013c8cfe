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
    let repetitions = study.run.repetitions as usize;
    let jobs = cells.iter().filter(|cell| cell.is_job()).count();
    let runs = (cells.len() - jobs) * repetitions;
    let wall_s = runs as f64 * (study.run.warmup + study.run.duration).as_secs_f64();
    let measuring = match (runs, jobs) {
        (0, _) => "jobs that take as long as they take".to_owned(),
        (_, 0) => format!("at least {} of measuring on this machine", quantity::duration(wall_s)),
        _ => format!("at least {} of measuring on this machine, and jobs", quantity::duration(wall_s)),
    };
    output::print(&format!(
        "{}: {}, {} each, {measuring}",
        study.name,
        quantity::plural(cells.len(), "cell"),
        quantity::plural(repetitions, "repetition"),
    ));
    for cell in &cells {
        output::print(&format!("  {}", cell.id));
    }
    Ok(ExitCode::SUCCESS)
}
