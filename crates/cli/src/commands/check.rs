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
    let wall_s = repetitions as f64 * plan::measuring_wall(&study).as_secs_f64();
    let searched = cells.iter().any(|cell| cell.find_rate.is_some());
    let measuring = match searched {
        true => "measuring and searching for rates on this machine",
        false => "measuring on this machine",
    };
    let measuring = match (runs, jobs) {
        (0, _) => "jobs that take as long as they take".to_owned(),
        (_, 0) => format!("at least {} of {measuring}", quantity::duration(wall_s)),
        _ => format!("at least {} of {measuring}, and jobs", quantity::duration(wall_s)),
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
