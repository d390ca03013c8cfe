//! `underlay check`

use std::process::ExitCode;

use schemars::JsonSchema;
use serde::Serialize;
use underlay_config::{Diagnostic, Diagnostics, Severity};
use underlay_record::Cell;
use underlay_report::quantity;
use underlay_study::selection::Selection;
use underlay_study::spec::Form;
use underlay_study::{machine, plan};

use super::read_study::read_study;
use crate::arguments::CheckArguments;
use crate::exit_codes::Failure;
use crate::output;

pub(crate) fn check(arguments: &CheckArguments) -> Result<ExitCode, Failure> {
    let study = match read_study(
        &arguments.study,
        Form { short: arguments.short, overrides: &arguments.selection.set },
    ) {
        Err(failure) if arguments.json => {
            print_json(&Answer::Errors { errors: errors(&failure) });
            return Ok(failure.code());
        }
        other => other?,
    };
    let selection = match Selection::of(&study, &arguments.selection.limit()).map_err(Failure::Mistake) {
        Err(failure) if arguments.json => {
            print_json(&Answer::Errors { errors: errors(&failure) });
            return Ok(failure.code());
        }
        other => other?,
    };
    let cells = selection.cells(&study);
    if arguments.json {
        print_json(&Answer::Cells(cells));
        return Ok(ExitCode::SUCCESS);
    }
    if !study.notes.is_empty() {
        output::say(&study.notes);
    }
    let least = machine::least_factor(&study);
    if study.machine.is_some() && !study.leaves_time_open && least > study.scale.time {
        output::say(format_args!(
            "note: the cores of [machine] need slow motion x{least} on this host, and the study has x{}: its cells will be doubtful here",
            study.scale.time
        ));
    }
    let chosen_later = study.leaves_time_open.then_some(least);
    let study = chosen_later.map_or_else(|| study.clone(), |time| study.at(time));
    for sentence in machine::left_at_wall_time(&study) {
        output::say(format_args!("note: at slow motion x{}: {sentence}", study.scale.time));
    }
    let repetitions = selection.repetitions(&study) as usize;
    let jobs = cells.iter().filter(|cell| cell.is_job()).count();
    let runs = (cells.len() - jobs) * repetitions;
    // Cells of one study take about as long as each other.
    let share = cells.len() as f64 / plan::expand(&study).len().max(1) as f64;
    let wall_s = share * repetitions as f64 * plan::measuring_wall(&study).as_secs_f64();
    let searched = cells.iter().any(|cell| cell.rate_within().is_some());
    let measuring = match searched {
        true => "measuring and searching for rates on this machine",
        false => "measuring on this machine",
    };
    let measuring = match chosen_later {
        Some(time) => format!("{measuring} (slow motion is chosen when it runs, x{time} or more here)"),
        None => measuring.to_owned(),
    };
    let measuring = match (runs, jobs) {
        (0, _) => "duration depends on the jobs".to_owned(),
        (_, 0) => format!("at least {} of {measuring}", quantity::duration(wall_s)),
        _ => format!("at least {} of {measuring}, and jobs", quantity::duration(wall_s)),
    };
    output::print(&output::paragraph(&format!(
        "{}: {}, {} each, {measuring}",
        study.name,
        quantity::plural(cells.len(), "cell"),
        quantity::plural(repetitions, "repetition"),
    )));
    for cell in &cells {
        output::print(&format!("  {}", cell.id));
    }
    Ok(ExitCode::SUCCESS)
}

/// What scripts get: the cells of a sound study, or what is wrong.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Answer {
    Cells(Vec<Cell>),
    Errors { errors: Vec<Finding> },
}

/// What has no place in the file has no line either.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Finding {
    pub file: Option<String>,
    /// From 1 on, as is the column, which counts characters.
    pub line: Option<usize>,
    pub column: Option<usize>,
    /// `error` or `note`.
    pub severity: &'static str,
    pub message: String,
    /// What stands at the place.
    pub label: Option<String>,
    /// What to do next.
    pub help: Option<String>,
}

fn print_json(answer: &Answer) {
    output::print(&serde_json::to_string_pretty(answer).expect("an answer is plain data"));
}

fn errors(failure: &Failure) -> Vec<Finding> {
    match failure {
        Failure::Findings(findings) => findings.findings().iter().map(|one| finding(findings, one)).collect(),
        other => vec![Finding {
            file: None,
            line: None,
            column: None,
            severity: "error",
            message: other.to_string(),
            label: None,
            help: None,
        }],
    }
}

fn finding(findings: &Diagnostics, one: &Diagnostic) -> Finding {
    let (file, line, column) = findings.place(one.span.start);
    Finding {
        file: Some(file.to_owned()),
        line: Some(line),
        column: Some(column),
        severity: match one.severity {
            Severity::Error => "error",
            Severity::Note => "note",
        },
        message: one.message.clone(),
        label: (!one.label.is_empty()).then(|| one.label.clone()),
        help: one.help.clone(),
    }
}
