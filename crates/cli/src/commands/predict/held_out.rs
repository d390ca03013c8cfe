//! `underlay predict --held-out`: how wrong predictions from these runs are.

use std::path::PathBuf;
use std::process::ExitCode;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use schemars::JsonSchema;
use serde::Serialize;
use underlay_predict::validation::{self, ComparedMetric, HeldOut};
use underlay_report::quantity;

use super::{RefusedCell, print_left_out};
use crate::commands::predicting;
use crate::exit_codes::{ExitFailure, INCOMPLETE};
use crate::output;

/// The output for scripts.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct HeldOutAnswer {
    /// Names of the runs' studies.
    from: Vec<String>,
    measured_cells: usize,
    /// Measured cells that nothing can be learnt from.
    left_out: Vec<RefusedCell>,
    summaries: Vec<HeldOutSummary>,
    cells: Vec<HeldOut>,
}

/// All cells with one kind left out.
#[derive(Debug, Serialize, JsonSchema)]
struct HeldOutSummary {
    without: &'static str,
    cells: usize,
    refused: usize,
    throughput: AbsoluteErrors,
    mean_latency: AbsoluteErrors,
    p50_latency: AbsoluteErrors,
    p99_latency: AbsoluteErrors,
    /// Median errors of throughput of what people do today, of the same cells.
    nearest: Option<f64>,
    by_iops: Option<f64>,
}

/// Errors without their signs.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
struct AbsoluteErrors {
    median: Option<f64>,
    worst: Option<f64>,
    /// The share of measured figures that are within their intervals.
    covered: Option<f64>,
}

pub(super) fn held_out(directories: &[PathBuf], json: bool) -> Result<ExitCode, ExitFailure> {
    let sources = predicting::read(directories)?;
    let cells = validation::held_out(&sources.calibration());
    let code = if cells.is_empty() { ExitCode::from(INCOMPLETE) } else { ExitCode::SUCCESS };
    let answer = HeldOutAnswer {
        from: sources.runs.iter().map(|run| run.study.name.clone()).collect(),
        measured_cells: sources.cells.len(),
        left_out: RefusedCell::left_out(&sources),
        summaries: summaries(&cells),
        cells,
    };
    match json {
        true => output::print(&serde_json::to_string_pretty(&answer).expect("an answer is plain data")),
        false => print(&answer),
    }
    Ok(code)
}

fn summaries(cells: &[HeldOut]) -> Vec<HeldOutSummary> {
    let mut kinds: Vec<&'static str> = Vec::new();
    for cell in cells {
        if !kinds.contains(&cell.without) {
            kinds.push(cell.without);
        }
    }
    kinds
        .into_iter()
        .map(|kind| summary(kind, cells.iter().filter(|cell| cell.without == kind).collect()))
        .collect()
}

fn summary(left_out: &'static str, cells: Vec<&HeldOut>) -> HeldOutSummary {
    let errors = |metric_of: fn(&HeldOut) -> &ComparedMetric| {
        let all: Vec<&ComparedMetric> = cells.iter().map(|cell| metric_of(cell)).collect();
        let mut sizes: Vec<f64> = all.iter().filter_map(|one| one.error).map(f64::abs).collect();
        let covered = all.iter().filter_map(|one| one.is_covered);
        let covered_count = covered.clone().filter(|&is_covered| is_covered).count();
        AbsoluteErrors {
            covered: (covered.clone().count() > 0).then(|| covered_count as f64 / covered.count() as f64),
            worst: sizes.iter().copied().reduce(f64::max),
            median: median(&mut sizes),
        }
    };
    let baseline = |value_of: fn(&HeldOut) -> Option<f64>| {
        let mut sizes: Vec<f64> = cells
            .iter()
            .filter(|cell| cell.refused.is_none())
            .filter_map(|cell| Some((value_of(cell)? / cell.throughput_per_s.measured - 1.0).abs()))
            .collect();
        median(&mut sizes)
    };
    HeldOutSummary {
        without: left_out,
        refused: cells.iter().filter(|cell| cell.refused.is_some()).count(),
        throughput: errors(|cell| &cell.throughput_per_s),
        mean_latency: errors(|cell| &cell.mean_us),
        p50_latency: errors(|cell| &cell.p50_us),
        p99_latency: errors(|cell| &cell.p99_us),
        nearest: baseline(|cell| cell.nearest_per_s),
        by_iops: baseline(|cell| cell.by_iops_per_s),
        cells: cells.len(),
    }
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    match count {
        0 => None,
        _ if count % 2 == 1 => Some(values[count / 2]),
        _ => Some((values[count / 2 - 1] + values[count / 2]) / 2.0),
    }
}

fn print(answer: &HeldOutAnswer) {
    if answer.cells.is_empty() {
        output::print("No cell can be left out: the others are too few to predict it.");
    } else {
        print_errors(answer);
    }
    print_left_out(&answer.left_out);
}

fn print_errors(answer: &HeldOutAnswer) {
    let mut table = new_table(&[
        "left out",
        "cell",
        "ops/s",
        "predicted",
        "",
        "mean",
        "p50",
        "p99",
        "nearest",
        "by IOPS",
    ]);
    let error = |error: Option<f64>| error.map_or(quantity::ABSENT.to_owned(), signed);
    for cell in &answer.cells {
        let throughput = &cell.throughput_per_s;
        let against = |value: Option<f64>| error(value.map(|value| value / throughput.measured - 1.0));
        let predicted = match throughput.predicted {
            Some(estimate) => format!(
                "{} ({} to {}){}",
                quantity::rate(estimate.value),
                quantity::rate(estimate.low),
                quantity::rate(estimate.high),
                if throughput.is_covered == Some(false) { " !" } else { "" }
            ),
            None => "refused".to_owned(),
        };
        table.add_row([
            cell.without.to_owned(),
            cell.cell.clone(),
            quantity::rate(throughput.measured),
            predicted,
            error(throughput.error),
            error(cell.mean_us.error),
            error(cell.p50_us.error),
            error(cell.p99_us.error),
            against(cell.nearest_per_s),
            against(cell.by_iops_per_s),
        ]);
    }
    align(&mut table, 2);
    output::print(&(output::table(&table) + "\n"));
    let mut table = new_table(&[
        "left out",
        "cells",
        "refused",
        "throughput, median",
        "worst",
        "within",
        "mean latency",
        "within",
        "p50",
        "p99",
        "within",
        "nearest storage",
        "IOPS / reads",
    ]);
    for one in &answer.summaries {
        let share = |share: Option<f64>| share.map_or(quantity::ABSENT.to_owned(), quantity::percent);
        table.add_row([
            one.without.to_owned(),
            one.cells.to_string(),
            one.refused.to_string(),
            share(one.throughput.median),
            share(one.throughput.worst),
            share(one.throughput.covered),
            share(one.mean_latency.median),
            share(one.mean_latency.covered),
            share(one.p50_latency.median),
            share(one.p99_latency.median),
            share(one.p99_latency.covered),
            share(one.nearest),
            share(one.by_iops),
        ]);
    }
    align(&mut table, 1);
    output::print(&(output::table(&table) + "\n"));
    output::print(&output::paragraph(
        "Errors are of the predicted over the measured figure; ! marks an interval that misses. \"Nearest\" takes the nearest measured cell \
         for the answer, \"by IOPS\" the devices' small reads a second over the reads of an operation.",
    ));
}

fn signed(error: f64) -> String {
    format!("{:+.1} %", 100.0 * error)
}

fn new_table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(head.to_vec());
    table
}

fn align(table: &mut Table, left: usize) {
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index >= left {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}
