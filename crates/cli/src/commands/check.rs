//! `underlay check`

use std::process::ExitCode;

use underlay_report::quantity;
use underlay_study::diagnostics::{Diagnostic, Diagnostics, Severity};
use underlay_study::plan;

use super::run::read_study;
use crate::arguments::CheckArguments;
use crate::exit_codes::Failure;
use crate::output;

pub fn check(arguments: &CheckArguments) -> Result<ExitCode, Failure> {
    let study = match read_study(&arguments.study, arguments.short) {
        Err(failure) if arguments.json => {
            output::print(&in_json(&failure));
            return Ok(failure.code());
        }
        other => other?,
    };
    let cells = plan::expand(&study);
    if arguments.json {
        output::print(&serde_json::to_string_pretty(&cells).expect("cells are plain data"));
        return Ok(ExitCode::SUCCESS);
    }
    if !study.notes.is_empty() {
        output::say(&study.notes);
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

/// What is wrong, for scripts: an object where a sound study gives an array of cells. What has no place in the file has no
/// line either.
fn in_json(failure: &Failure) -> String {
    let errors = match failure {
        Failure::Findings(findings) => findings.findings().iter().map(|one| finding(findings, one)).collect(),
        other => vec![serde_json::json!({
            "file": null, "line": null, "column": null, "severity": "error",
            "message": other.to_string(), "label": null, "help": null,
        })],
    };
    serde_json::to_string_pretty(&serde_json::json!({ "errors": errors })).expect("findings are plain data")
}

fn finding(findings: &Diagnostics, one: &Diagnostic) -> serde_json::Value {
    let (line, column) = findings.line_column(one.span.start);
    serde_json::json!({
        "file": findings.file_name(),
        "line": line,
        "column": column,
        "severity": match one.severity {
            Severity::Error => "error",
            Severity::Note => "note",
        },
        "message": one.message,
        "label": (!one.label.is_empty()).then_some(&one.label),
        "help": one.help,
    })
}
