//! `underlay predict`

pub(super) mod held_out;

use std::process::ExitCode;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use schemars::JsonSchema;
use serde::Serialize;
use underlay_predict::{CellPrediction, EstimatedValue, PredictionRefusal};
use underlay_report::quantity;
use underlay_study::selection::CellSelection;
use underlay_study::spec::StudyForm;

use super::predicting::{self, MeasuredSources};
use super::read_study::read_study;
use crate::arguments::PredictArguments;
use crate::exit_codes::{ExitFailure, INCOMPLETE};
use crate::output;

/// The output for scripts.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PredictAnswers {
    study: String,
    /// Those that answers come from.
    measured_cells: usize,
    /// Measured cells that nothing can be learnt from.
    left_out: Vec<RefusedCell>,
    cells: Vec<PredictAnswer>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct RefusedCell {
    cell: String,
    why: String,
    #[serde(flatten)]
    refusal: PredictionRefusal,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PredictAnswer {
    cell: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    prediction: Option<CellPrediction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<RefusedCell>,
}

impl RefusedCell {
    fn new(cell: &str, refusal: &PredictionRefusal) -> RefusedCell {
        RefusedCell { cell: cell.to_owned(), why: refusal.to_string(), refusal: refusal.clone() }
    }

    /// Measured cells that nothing can be learnt from.
    pub(in crate::commands) fn left_out(sources: &MeasuredSources) -> Vec<RefusedCell> {
        sources.left_out.iter().map(|(cell, refusal)| RefusedCell::new(cell, refusal)).collect()
    }
}

/// Measured cells that nothing can be learnt from, each with its reason.
pub(in crate::commands) fn print_left_out(left_out: &[RefusedCell]) {
    if !left_out.is_empty() {
        let cells = quantity::plural(left_out.len(), "measured cell");
        output::print(&format!("\n{cells} can't be learnt from:"));
        print_refused(left_out);
    }
}

/// A line for each reason, with the cells that it holds for.
fn print_refused<'a>(refused: impl IntoIterator<Item = &'a RefusedCell>) {
    let mut groups: Vec<(&str, Vec<String>)> = Vec::new();
    for one in refused {
        match groups.iter_mut().find(|(reason, _)| *reason == one.why) {
            Some((_, cells)) => cells.push(one.cell.clone()),
            None => groups.push((&one.why, vec![one.cell.clone()])),
        }
    }
    for (reason, cells) in groups {
        output::print(&output::wrap_after_head(
            "  ",
            2,
            &format!("{}: {reason}", quantity::list(&cells, usize::MAX)),
        ));
    }
}

pub(crate) fn predict(arguments: &PredictArguments) -> Result<ExitCode, ExitFailure> {
    let Some(study) = &arguments.study else {
        return held_out::held_out(&arguments.from, arguments.json);
    };
    let form = StudyForm { short: arguments.short, overrides: &arguments.selection.set };
    let study = read_study(study, form)?;
    let selection = CellSelection::new(&study, &arguments.selection.limit()).map_err(ExitFailure::Mistake)?;
    let sources = predicting::read(&arguments.from)?;
    // A script gets the reasons cell by cell.
    if sources.cells.is_empty() && !arguments.json {
        return Err(sources.missing_sources_error());
    }
    let calibration = sources.calibration();
    let cells: Vec<PredictAnswer> = predicting::questions(&study)
        .into_iter()
        .filter(|(cell, _)| selection.has(cell))
        .map(|(cell, point)| answer(cell.id, point.and_then(|point| calibration.predict(&point))))
        .collect();
    let code = if cells.iter().any(|cell| cell.refused.is_some()) {
        ExitCode::from(INCOMPLETE)
    } else {
        ExitCode::SUCCESS
    };
    let answers = PredictAnswers {
        study: study.name.clone(),
        measured_cells: sources.cells.len(),
        left_out: RefusedCell::left_out(&sources),
        cells,
    };
    match arguments.json {
        true => output::print(&serde_json::to_string_pretty(&answers).expect("an answer is plain data")),
        false => print(&answers, &sources),
    }
    Ok(code)
}

fn answer(cell: String, predicted: Result<CellPrediction, PredictionRefusal>) -> PredictAnswer {
    match predicted {
        Ok(prediction) => PredictAnswer { cell, prediction: Some(prediction), refused: None },
        Err(refusal) => {
            let refused = RefusedCell::new(&cell, &refusal);
            PredictAnswer { cell, prediction: None, refused: Some(refused) }
        }
    }
}

fn print(answers: &PredictAnswers, sources: &MeasuredSources) {
    let mut table = Table::new();
    table.load_style(NOTHING);
    let has_cache = answers
        .cells
        .iter()
        .any(|cell| cell.prediction.as_ref().is_some_and(|prediction| prediction.cached_share.is_some()));
    let mut head = vec!["cell", "ops/s", "mean", "p50", "p99", "device", "CPU"];
    if has_cache {
        head.push("cache answers");
    }
    table.set_header(head);
    let mut assumptions: Vec<&String> = Vec::new();
    for cell in &answers.cells {
        let Some(prediction) = &cell.prediction else { continue };
        let rate = |estimate: EstimatedValue| {
            format!(
                "{} ({} to {})",
                quantity::rate(estimate.value),
                quantity::rate(estimate.low),
                quantity::rate(estimate.high)
            )
        };
        let overloaded = || "grows".to_owned();
        let time = |estimate: EstimatedValue| match prediction.is_saturated {
            true => overloaded(),
            false => format!(
                "{} ({} to {})",
                quantity::latency(estimate.value),
                quantity::latency(estimate.low),
                quantity::latency(estimate.high)
            ),
        };
        let mut row = vec![
            cell.cell.clone(),
            rate(prediction.throughput_per_s),
            time(prediction.mean_us),
            time(prediction.p50_us),
            time(prediction.p99_us),
            quantity::percent(prediction.device_busy.value),
            prediction.cpu_busy.map_or("-".to_owned(), quantity::percent),
        ];
        if has_cache {
            let now = prediction.cached_share.map_or("-".to_owned(), quantity::percent);
            row.push(match prediction.cached_share_later {
                Some(later) => format!("{now}, later {}", quantity::percent(later)),
                None => now,
            });
        }
        table.add_row(row);
        for assumption in &prediction.assumptions {
            // Cells mostly share theirs, and each is to be said once.
            if !assumptions.contains(&assumption) {
                assumptions.push(assumption);
            }
        }
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    if table.row_count() > 0 {
        output::print(&(output::table(&table) + "\n"));
    }
    let refused: Vec<&RefusedCell> = answers.cells.iter().filter_map(|cell| cell.refused.as_ref()).collect();
    let predicted = answers.cells.len() - refused.len();
    output::print(&output::paragraph(&format!(
        "{} predicted from {}; in brackets, what each figure is within with a probability of 95 %.",
        quantity::plural(predicted, "cell"),
        quantity::plural(sources.cells.len(), "measured cell"),
    )));
    for assumption in assumptions {
        output::print(&output::wrap_after_head("note: ", 6, assumption));
    }
    if !refused.is_empty() {
        output::print(&format!("\n{} refused:", quantity::plural(refused.len(), "cell")));
        print_refused(refused);
    }
    print_left_out(&answers.left_out);
}
