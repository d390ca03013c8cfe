//! `underlay check`

use std::collections::BTreeSet;
use std::process::ExitCode;

use schemars::JsonSchema;
use serde::Serialize;
use underlay_config::{Diagnostic, DiagnosticSeverity, Diagnostics};
use underlay_record::Cell;
use underlay_report::quantity;
use underlay_study::selection::CellSelection;
use underlay_study::spec::{Study, StudyForm, SystemSpec};
use underlay_study::{estimate, machine};
use underlay_systems::memory_plan::{MemoryPlan, ProcessMemory};

use super::read_study::read_study;
use crate::arguments::CheckArguments;
use crate::exit_codes::ExitFailure;
use crate::output;

pub(crate) fn check(arguments: &CheckArguments) -> Result<ExitCode, ExitFailure> {
    let study = match read_study(
        &arguments.study,
        StudyForm { short: arguments.short, overrides: &arguments.selection.set },
    ) {
        Err(failure) if arguments.json => {
            print_json(&CheckAnswer::Errors { errors: errors(&failure) });
            return Ok(failure.code());
        }
        other => other?,
    };
    let selection =
        match CellSelection::new(&study, &arguments.selection.limit()).map_err(ExitFailure::Mistake) {
            Err(failure) if arguments.json => {
                print_json(&CheckAnswer::Errors { errors: errors(&failure) });
                return Ok(failure.code());
            }
            other => other?,
        };
    let cells = selection.cells(&study);
    if arguments.json {
        print_json(&CheckAnswer::Cells(cells));
        return Ok(ExitCode::SUCCESS);
    }
    if !study.notes.is_empty() {
        output::say(&study.notes);
    }
    if arguments.short && !study.short {
        output::say(format_args!(
            "note: {} has no [short] section: all of it is checked",
            arguments.study.display()
        ));
    }
    for missing in not_supplied(&study) {
        output::say(format_args!("note: {missing}"));
    }
    let least = machine::least_factor(&study);
    let is_real = !study.is_modelled();
    if let Some(remark) = machine::too_many_cores_here(&study).filter(|_| is_real) {
        output::say(format_args!("note: {remark}"));
    } else if !is_real && study.machine.is_some() && !study.leaves_time_open && least > study.scale.time {
        output::say(format_args!(
            "note: the cores of [machine] need slow motion x{least} on this host, and the study has x{}: its cells will be doubtful here",
            study.scale.time
        ));
    }
    let chosen_later = study.leaves_time_open.then_some(least);
    let study = chosen_later.map_or_else(|| study.clone(), |time| study.with_slow_motion(time));
    for sentence in machine::left_at_wall_time(&study) {
        output::say(format_args!("note: at slow motion x{}: {sentence}", study.scale.time));
    }
    let repetitions = selection.repetitions(&study) as usize;
    let jobs = cells.iter().filter(|cell| cell.is_job()).count();
    let runs = (cells.len() - jobs) * repetitions;
    let estimate = estimate::wall(&study, &cells, repetitions as u32);
    let estimate = if chosen_later.is_some() { estimate::with_a_trial(estimate) } else { estimate };
    let wall_s = estimate.warmup_s + estimate.measure_s + estimate.search_s;
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
        (0, _) => "as long as the jobs take".to_owned(),
        (_, 0) => format!("at least {} of {measuring}", quantity::duration(wall_s)),
        _ => format!("at least {} of {measuring}, and jobs", quantity::duration(wall_s)),
    };
    output::print(&output::paragraph(&format!(
        "{}: {}, {} each, {measuring}",
        study.name,
        quantity::plural(cells.len(), "cell"),
        quantity::plural(repetitions, "repetition"),
    )));
    if !cells.is_empty() {
        let starting_s = estimate.start_s + estimate.fill_s + estimate.settle_s + estimate.restore_s;
        let parts = [
            (wall_s, "of measuring"),
            (estimate.job_s + estimate.around_jobs_s, "of jobs and what is around them"),
            (estimate.load_s, "of loading data"),
            (starting_s, "of starting and stopping systems and filling their caches"),
            (estimate.prepare_s, "before the first cell"),
        ];
        let parts = parts.iter().filter(|(part_s, _)| *part_s > 0.0);
        let parts: Vec<String> =
            parts.map(|(part_s, label)| format!("{} {label}", quantity::duration(*part_s))).collect();
        let total = quantity::duration(estimate.total_s());
        // A busy host takes slower motion, and each cell as many times longer.
        let about = if chosen_later.is_some() { "if nothing else runs here, about" } else { "about" };
        output::print(&output::paragraph(&format!("{about} {total} in all: {}", parts.join(", "))));
    }
    let plans = study.memory_here();
    for system in &study.systems {
        let text = match plans.iter().find(|(other, _)| other.name == system.name) {
            Some((_, plan)) => memory_words(system, plan),
            None if runs_commands(system) => memory_of_a_command(system, study.budget_here(system)),
            None => continue,
        };
        output::print(&output::paragraph(&text));
    }
    for cell in &cells {
        output::print(&format!("  {}", cell.id));
    }
    Ok(ExitCode::SUCCESS)
}

/// Programs that the user has yet to supply for systems of this study: their cells can't run here before that.
fn not_supplied(study: &Study) -> Vec<String> {
    let kinds: BTreeSet<&str> = study.systems.iter().map(|system| system.kind.as_str()).collect();
    let missing = |kind| Some(underlay_systems::find(kind)?.supplied()?.err()?.to_string());
    kinds.into_iter().filter_map(missing).collect()
}

/// Whether it is a program of the user's, of which only the commands are known.
fn runs_commands(system: &SystemSpec) -> bool {
    underlay_systems::find(&system.kind).is_some_and(|kind| kind.capabilities().by_command)
}

fn memory_of_a_command(system: &SystemSpec, budget_bytes: u64) -> String {
    format!(
        "memory of [system.{}] here, {} a server: all of it is for its program and for pages of files",
        system.name,
        quantity::memory(budget_bytes as f64)
    )
}

/// `memory of [system.ring] here: 3 x node (heap 160 MiB, direct 64 MiB, Java itself 192 MiB), 288 MiB for pages of
/// files`
fn memory_words(system: &SystemSpec, plan: &MemoryPlan) -> String {
    let bytes = |bytes: u64| quantity::memory(bytes as f64);
    let process = |one: &ProcessMemory| {
        let named =
            [("heap", one.heap_bytes), ("direct", one.direct_bytes), ("the process itself", one.own_bytes)];
        let parts: Vec<String> = named
            .iter()
            .filter(|(_, part)| *part > 0)
            .map(|(name, part)| format!("{name} {}", bytes(*part)))
            .collect();
        let count = if one.count == 1 { String::new() } else { format!("{} x ", one.count) };
        format!("{count}{} ({})", one.what, parts.join(", "))
    };
    let processes: Vec<String> = plan.processes.iter().map(process).collect();
    format!(
        "memory of [system.{}] here, {} a server: {}; {} left for pages of files",
        system.name,
        bytes(plan.budget_bytes),
        processes.join(", "),
        bytes(plan.page_cache_bytes()),
    )
}

/// The output for scripts: the cells of a sound study, or its mistakes.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum CheckAnswer {
    Cells(Vec<Cell>),
    Errors { errors: Vec<CheckFinding> },
}

/// A mistake without a place in the file has no line either.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CheckFinding {
    pub file: Option<String>,
    /// From 1 on, as is the column, which counts characters.
    pub line: Option<usize>,
    pub column: Option<usize>,
    /// `error` or `note`.
    pub severity: &'static str,
    pub message: String,
    /// The text beside the place.
    pub label: Option<String>,
    /// The next step.
    pub help: Option<String>,
}

fn print_json(answer: &CheckAnswer) {
    output::print(&serde_json::to_string_pretty(answer).expect("an answer is plain data"));
}

fn errors(failure: &ExitFailure) -> Vec<CheckFinding> {
    match failure {
        ExitFailure::Findings(findings) => {
            findings.findings().iter().map(|one| finding(findings, one)).collect()
        }
        other => vec![CheckFinding {
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

pub(super) fn finding(findings: &Diagnostics, one: &Diagnostic) -> CheckFinding {
    let (file, line, column) = findings.place(one.span.start);
    CheckFinding {
        file: Some(file.to_owned()),
        line: Some(line),
        column: Some(column),
        severity: match one.severity {
            DiagnosticSeverity::Error => "error",
            DiagnosticSeverity::Note => "note",
        },
        message: one.message.clone(),
        label: (!one.label.is_empty()).then(|| one.label.clone()),
        help: one.help.clone(),
    }
}
