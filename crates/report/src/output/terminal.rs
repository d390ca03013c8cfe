//! The comparison as a table for a terminal.

pub mod ab;
mod attribution;
pub(crate) mod background;
pub(crate) mod background_load;
pub(crate) mod benchmarks;
pub(crate) mod caches;
mod cards;
pub(crate) mod changing;
pub(crate) mod jobs;
mod layout;
mod network;
mod node_events;
pub(crate) mod prices;
mod search;
mod steps;

use comfy_table::CellAlignment;
use layout::{CellStyle, TableLayout, TablePaint};
pub use layout::{fitted, wrap};
use underlay_record::cell::SKIPPED_ON_COMMAND;
use underlay_record::{CertificateVerdict, RENT_YEARS, ReferenceTable, RunExplanation};

use crate::cell::cost::{StorageCost, devices_in_words, roles_in_words};
use crate::comparison::{
    CellOutcome, CellResult, ComparisonRow, RowMetrics, RunComparison, group_by_mix, inputs, mix_title,
    storage_records,
};
use crate::findings::answer;
use crate::findings::claims::{self, JudgedClaim};
use crate::findings::reference::accuracy::ReferenceAccuracy;
use crate::findings::reference::{self, PublishedComparison};
use crate::findings::warnings::{self, ReportWarning, WarningSeverity};
use crate::load::LoadedRun;
use crate::quantity::{self, ABSENT};
use crate::statistics::IntervalEstimate;
use crate::statistics::ratio::RatioDifference;

/// The narrowest width that is laid out for; a narrower terminal wraps lines itself.
const MIN: usize = 40;
/// Cells that a warning names before it counts the rest.
const CELLS_NAMED: usize = 4;

/// The answer, a table for each workload, the cost and the warnings, in lines of at most `width` columns.
///
/// Colour is ANSI escapes, to be asked for only when the output is a terminal and `NO_COLOR` is unset. Nothing is
/// said by colour alone.
pub fn comparison(loaded: &LoadedRun, width: usize, colour: bool) -> String {
    comparison_explained(loaded, &RunExplanation::default(), width, colour)
}

/// The answer alone, for the end of a long report, whose first lines have left the screen by then.
pub fn answer_again(loaded: &LoadedRun, width: usize, colour: bool) -> String {
    let paint = TablePaint { colour };
    let label = "answer   ";
    let indent = " ".repeat(label.len());
    let answer = answer::summarize(loaded, &RunComparison::from_loaded(loaded));
    let lines = wrap(&answer, width.max(MIN) - label.len(), "");
    let lines = lines
        .iter()
        .enumerate()
        .map(|(number, line)| format!("{}{}\n", if number == 0 { label } else { &indent }, paint.bold(line)));
    lines.collect()
}

/// [`comparison`] with the bottleneck of each cell, as far as somebody has worked it out.
pub fn comparison_explained(
    loaded: &LoadedRun,
    explained: &RunExplanation,
    width: usize,
    colour: bool,
) -> String {
    let comparison = RunComparison::from_loaded(loaded);
    let width = width.max(MIN);
    let paint = TablePaint { colour };
    let mut out = String::new();
    let title = loaded.run.title.as_deref().unwrap_or(&loaded.run.name);
    for line in wrap(title, width, "") {
        out += &format!("{}\n", paint.bold(&line));
    }
    let published = loaded.run.reference.as_ref().map(|table| reference::compare(table, &comparison));
    if let Some(accuracy) = published.as_deref().and_then(ReferenceAccuracy::from_figures) {
        for line in wrap(&accuracy.describe(), width, "") {
            out += &format!("{line}\n");
        }
    }
    out.push('\n');
    for line in wrap(&answer::summarize(loaded, &comparison), width, "") {
        out += &paint.bold(&line);
        out.push('\n');
    }

    out += &cards::text(&comparison, width, paint);

    // The widest layout that fits is taken for every table, so that they look alike.
    let details = [
        TableDetail::Everything,
        TableDetail::NoCost,
        TableDetail::NoIntervals,
        TableDetail::Narrow,
        TableDetail::Narrowest,
    ];
    let detail = details
        .into_iter()
        .find(|detail| {
            let by_mix = group_by_mix(comparison.operations());
            by_mix.iter().all(|(_, _, rows)| workload_table(&comparison, rows, *detail).width() <= width)
        })
        .unwrap_or(TableDetail::Narrowest);
    let mut waiting = Vec::new();
    for (system, mix, rows) in group_by_mix(comparison.operations()) {
        let heading = mix_title(mix);
        let heading = if comparison.systems.len() > 1 {
            format!("{}, {heading}", comparison.system_title(system))
        } else {
            heading
        };
        // A table of nothing but dashes tells less than its name.
        let mut cells = rows.iter().flat_map(|row| row.cells.iter().flatten());
        if cells.all(|result| matches!(result.outcome, CellOutcome::Pending)) {
            waiting.push(heading);
            continue;
        }
        out.push('\n');
        for line in wrap(&heading, width, "  ") {
            out += &format!("{}\n", paint.bold(&line));
        }
        out += &workload_table(&comparison, &rows, detail).render(width, paint);
        out += &measured_inputs(&rows, width, paint);
        for result in rows.iter().flat_map(|row| row.cells.iter().flatten()) {
            if let Some(reason) = reason_not_measured(result) {
                let text = format!("{}: {reason}", warnings::cell_name(&comparison, result));
                for line in wrap(&text, width - 2, "  ") {
                    out += &format!("  {line}\n");
                }
            }
        }
    }
    if !waiting.is_empty() {
        out.push('\n');
        for line in wrap(&format!("Not measured yet: {}", waiting.join("; ")), width, "  ") {
            out += &format!("{line}\n");
        }
    }
    out += &jobs::text(&comparison, width, paint);
    out += &benchmarks::text(&comparison, width, paint);
    out += &attribution::text(&comparison, explained, width, paint);
    out += &search::text(&comparison, width, paint);
    out += &steps::text(&comparison, width, paint);
    out += &changing::text(&comparison, width, paint);
    out += &node_events::text(&comparison, width, paint);
    out += &background_load::text(&comparison, width, paint);
    out += &background::text(&comparison, width, paint);
    out += &network::text(&comparison, width, paint);
    out += &cost_text(&comparison, detail, width, paint);
    out += &prices::text(&comparison, loaded.run.reference.as_ref(), width, paint);
    if let (Some(table), Some(published)) = (&loaded.run.reference, &published) {
        out += &reference_text(&comparison, published, table, width, paint);
        out += &claims_text(&claims::judge(table, &comparison), width, paint);
    }
    out += &warning_lines(&warnings::collect(loaded, &comparison), width, paint);
    out
}

/// How much of each storage's device time rests on measured figures, from the lowest to the highest of its workloads;
/// empty where nobody knows.
fn measured_inputs(rows: &[&ComparisonRow], width: usize, paint: TablePaint) -> String {
    let mut each: Vec<(&str, Vec<f64>)> = Vec::new();
    for result in rows.iter().flat_map(|row| row.cells.iter().flatten()) {
        let Some(certificate) = inputs::find_certificate(result) else { continue };
        match each.iter_mut().find(|(storage, _)| *storage == result.cell.storage) {
            Some((_, shares)) => shares.push(certificate.measured()),
            None => each.push((&result.cell.storage, vec![certificate.measured()])),
        }
    }
    let words: Vec<String> = each
        .iter()
        .filter_map(|(storage, shares)| {
            Some(format!("{storage} {}", quantity::range(shares, quantity::percent)?))
        })
        .collect();
    if words.is_empty() {
        return String::new();
    }
    let text = format!("Device time that rests on measured figures: {}", words.join(", "));
    let lines = wrap(&text, width - 2, "  ").into_iter().map(|line| format!("  {}\n", paint.dim(&line)));
    lines.collect()
}

/// The columns of a table, from all to those that fit a narrow terminal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TableDetail {
    Everything,
    /// Dollars go to a table of their own.
    NoCost,
    /// Ratios without their intervals; whether a difference is seen is said still.
    NoIntervals,
    /// Of the latencies mean and p99, and no intervals of ratios.
    Narrow,
    /// Of the latencies p99 alone.
    Narrowest,
}

fn reason_not_measured(result: &CellResult) -> Option<String> {
    match &result.outcome {
        CellOutcome::Measured(_) | CellOutcome::Job(_) | CellOutcome::Benchmark(_) => None,
        CellOutcome::Failed { reason } => Some(format!("failed: {reason}")),
        CellOutcome::Unavailable { missing, remedy } => Some(format!("can't run here: {missing}; {remedy}")),
        CellOutcome::Disturbed { reason } => Some(format!("disturbed by hand, and left out: {reason}")),
        CellOutcome::Skipped { failure: Some(message) } => {
            Some(format!("{SKIPPED_ON_COMMAND}, after it had failed: {message}"))
        }
        // The table says so.
        CellOutcome::Skipped { failure: None } | CellOutcome::Pending => None,
    }
}

/// One of a cell's latencies.
type TerminalPick = fn(&RowMetrics) -> Option<IntervalEstimate>;

const LATENCIES: [(&str, TerminalPick); 4] = [
    ("mean", |figures| figures.mean_us),
    ("p50", |figures| figures.p50_us),
    ("p99", |figures| figures.p99_us),
    ("p99.9", |figures| figures.p999_us),
];

/// One mix of one system: a line for each workload and storage.
fn workload_table(comparison: &RunComparison, rows: &[&ComparisonRow], detail: TableDetail) -> TableLayout {
    let with_cost = detail == TableDetail::Everything;
    let several = rows.len() > 1;
    let against = format!("against {}", comparison.baseline);
    let mut header: Vec<String> = Vec::new();
    if several {
        header.push("workload".to_owned());
    }
    let latencies: Vec<(&str, TerminalPick)> = LATENCIES
        .into_iter()
        .filter(|(name, _)| match detail {
            TableDetail::Narrow => matches!(*name, "mean" | "p99"),
            TableDetail::Narrowest => *name == "p99",
            _ => true,
        })
        .collect();
    header.extend(["storage", "ops/s"].map(str::to_owned));
    header.extend(latencies.iter().map(|(name, _)| (*name).to_owned()));
    header.push(against);
    if with_cost {
        header.extend(["$/TB", "$/kop/s"].map(str::to_owned));
    }
    header.push("verdict".to_owned());
    let mut layout = TableLayout::new(&header);
    let mut line = 0;
    for row in rows {
        let mut is_first = true;
        for result in row.cells.iter().flatten() {
            let mut fields = Vec::new();
            if several {
                let name = match detail {
                    TableDetail::Narrow | TableDetail::Narrowest => shortened(row.name_in_mix()),
                    _ => row.name_in_mix().to_owned(),
                };
                fields.push(if is_first { name } else { String::new() });
            }
            is_first = false;
            fields.push(result.cell.storage.clone());
            match result.figures() {
                Some(figures) => {
                    let is_baseline = result.cell.storage == comparison.baseline;
                    let ratio = ratio_field(figures, is_baseline, result.cell.rate_per_s().is_some(), detail);
                    let is_certain = figures.ratio.is_none_or(|ratio| {
                        matches!(ratio.difference(), RatioDifference::More | RatioDifference::Less)
                    });
                    if !is_certain {
                        layout.paints.push((line, ratio.clone(), CellStyle::Dim));
                    }
                    let mark = certificate_mark(result);
                    // A conclusion that estimates can turn is as uncertain as a measurement that failed a check.
                    if result.is_doubtful() || result.can_turn {
                        layout.paints.push((line, mark.clone(), CellStyle::Alarm));
                    }
                    fields.push(quantity::rate_with_error(&figures.throughput_per_s));
                    fields.extend(latencies.iter().map(|(_, pick)| latency_field(pick(figures))));
                    fields.push(ratio);
                    if with_cost {
                        fields.extend(cost_fields(figures));
                    }
                    fields.push(mark);
                }
                None => {
                    let state = state_of(&result.outcome);
                    fields.push(state.to_owned());
                    layout.paints.push((line, state.to_owned(), CellStyle::Dim));
                    // The state stands where the first figure would, and the other columns are empty.
                    fields.resize(header.len(), ABSENT.to_owned());
                }
            }
            layout.table.add_row(fields);
            line += 1;
        }
    }
    let last = header.len() - 1;
    layout.finish(if several { &[0, 1] } else { &[0] });
    if let Some(column) = layout.table.column_mut(last) {
        column.set_cell_alignment(CellAlignment::Left);
    }
    layout
}

/// A long name without its middle: beginnings and ends tell workloads apart.
fn shortened(name: &str) -> String {
    const MAX: usize = 26;
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= MAX {
        return name.to_owned();
    }
    let half = (MAX - 1) / 2;
    let (first, last) = (&letters[..half + 1], &letters[letters.len() - half..]);
    format!("{}…{}", first.iter().collect::<String>(), last.iter().collect::<String>())
}

fn latency_field(estimate: Option<IntervalEstimate>) -> String {
    estimate.map_or(ABSENT.to_owned(), |estimate| quantity::latency(estimate.value))
}

fn ratio_field(figures: &RowMetrics, is_baseline: bool, is_offered: bool, detail: TableDetail) -> String {
    match (&figures.ratio, is_baseline) {
        (_, true) => "baseline".to_owned(),
        (None, _) => ABSENT.to_owned(),
        (Some(ratio), _) => match (ratio.difference(), ratio.interval) {
            (RatioDifference::NoneSeen, _)
                if !is_offered && matches!(detail, TableDetail::Narrow | TableDetail::Narrowest) =>
            {
                "none seen".to_owned()
            }
            (RatioDifference::NoneSeen, _) => ratio.verdict_of(is_offered),
            (_, Some(interval)) if matches!(detail, TableDetail::Everything | TableDetail::NoCost) => {
                format!("{} ({})", ratio.verdict(), quantity::ratio_interval(interval))
            }
            _ => ratio.verdict(),
        },
    }
}

/// In the place of a cell's figures, which it has none of.
fn state_of(outcome: &CellOutcome) -> &'static str {
    match outcome {
        CellOutcome::Failed { .. } => "failed",
        CellOutcome::Unavailable { .. } => "unavailable",
        CellOutcome::Disturbed { .. } => "disturbed",
        CellOutcome::Skipped { .. } => "skipped",
        _ => "not yet",
    }
}

/// Faithful to the model, and whether what is not known of the media can turn what is concluded.
fn certificate_mark(result: &CellResult) -> String {
    let timing = match result.verdict() {
        Some(CertificateVerdict::Disturbed) if result.is_doubtful() => "disturbed, ! DOUBTFUL",
        Some(CertificateVerdict::Disturbed) => "disturbed",
        Some(CertificateVerdict::Faithful) => "faithful",
        Some(CertificateVerdict::Doubtful) => "! DOUBTFUL",
        Some(CertificateVerdict::RealStorage) => "real storage",
        None => "none",
    };
    if result.can_turn { format!("{timing}, ! INPUTS") } else { timing.to_owned() }
}

fn cost_fields(figures: &RowMetrics) -> [String; 2] {
    let cost = figures.cost.as_ref();
    let per_tb = cost.and_then(StorageCost::usd_per_tb);
    let per_kops = cost.and_then(|cost| cost.usd_per_kops(figures.throughput_per_s.value));
    [per_tb, per_kops].map(|usd| dollars_for(cost, usd))
}

/// Dollars for a terabyte or for operations, called a rent where the price is one.
fn dollars_for(cost: Option<&StorageCost>, usd: Option<f64>) -> String {
    let priced = cost.zip(usd).map(|(cost, usd)| quantity::price_for(usd, &cost.price));
    priced.unwrap_or_else(|| ABSENT.to_owned())
}

/// Each storage's description and price; with $ per 1,000 ops/s where the other tables had no room for it.
fn cost_text(comparison: &RunComparison, detail: TableDetail, width: usize, paint: TablePaint) -> String {
    let has_operations = comparison.operations().next().is_some();
    let widest = match detail {
        _ if !has_operations => PerKops::None,
        TableDetail::Everything => PerKops::None,
        _ => PerKops::Each,
    };
    // From what says most to what says least: the first that fits.
    let layout = [widest, PerKops::Range]
        .into_iter()
        .map(|per_kops| cost_table(comparison, per_kops))
        .find(|layout| layout.width() <= width)
        .unwrap_or_else(|| cost_table(comparison, PerKops::None));
    if layout.table.row_count() == 0 {
        return String::new();
    }
    let mut out = String::from("\n");
    let mut heading = "Cost: list price of the devices alone".to_owned();
    if has_operations {
        heading += "; $/kop/s is dollars for each 1,000 ops/s";
    }
    let mut costs = storage_records(comparison).into_values().filter_map(StorageCost::from_storage);
    if costs.any(|cost| cost.price.rent_usd > 0.0) {
        heading += &format!("; rent is for {RENT_YEARS} years");
    }
    for line in wrap(&heading, width, "") {
        out += &paint.bold(&line);
        out.push('\n');
    }
    out += &layout.render(width, paint);
    let mut roles: Vec<String> =
        storage_records(comparison).values().filter_map(|storage| roles_in_words(storage)).collect();
    roles.sort();
    roles.dedup();
    if !roles.is_empty() {
        let text = format!("Not counted, since it is the same with every storage: {}", roles.join("; "));
        for line in wrap(&text, width - 2, "") {
            out += &format!("  {}\n", paint.dim(&line));
        }
    }
    out
}

/// How the cost table gives the dollars for each 1,000 operations per second.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PerKops {
    /// A column for each workload.
    Each,
    /// From the lowest to the highest of the workloads.
    Range,
    None,
}

fn cost_table(comparison: &RunComparison, per_kops: PerKops) -> TableLayout {
    let mut header: Vec<String> = ["storage", "devices", "price", "$/TB"].map(str::to_owned).to_vec();
    match per_kops {
        PerKops::Each => {
            header.extend(comparison.unthrottled().map(|row| format!("$/kop/s, {}", row.label())));
        }
        PerKops::Range => header.push("$/kop/s by workload".to_owned()),
        PerKops::None => {}
    }
    let mut layout = TableLayout::new(&header);
    let records = storage_records(comparison);
    for (index, name) in comparison.storages.iter().enumerate() {
        let Some(storage) = records.get(name) else { continue };
        let cost = StorageCost::from_storage(storage);
        let mut fields = vec![(*name).to_owned(), devices_in_words(storage)];
        fields.push(cost.as_ref().map_or("unknown".to_owned(), |cost| quantity::price(&cost.price)));
        let dollars = |usd: Option<f64>| dollars_for(cost.as_ref(), usd);
        fields.push(dollars(cost.as_ref().and_then(StorageCost::usd_per_tb)));
        let each: Vec<Option<f64>> = comparison
            .unthrottled()
            .map(|row| cost.as_ref()?.usd_per_kops(row.figures(index)?.throughput_per_s.value))
            .collect();
        match per_kops {
            PerKops::Each => fields.extend(each.into_iter().map(dollars)),
            PerKops::Range => {
                let values = || each.iter().flatten().copied();
                let (low, high) = (dollars(values().reduce(f64::min)), dollars(values().reduce(f64::max)));
                let low_alone = low.strip_suffix(" rent").unwrap_or(&low);
                fields.push(if low == high { low } else { format!("{low_alone}–{high}") });
            }
            PerKops::None => {}
        }
        layout.table.add_row(fields);
    }
    layout.finish(&[0, 1]);
    layout
}

fn reference_text(
    comparison: &RunComparison,
    figures: &[PublishedComparison],
    table: &ReferenceTable,
    width: usize,
    paint: TablePaint,
) -> String {
    // Published figures without a storage in the study can't be compared.
    let is_ours = |one: &&PublishedComparison| comparison.storages.contains(&one.figure.storage.as_str());
    let compared: Vec<&PublishedComparison> =
        figures.iter().filter(is_ours).filter(|one| one.published_ratio.is_some()).collect();
    if compared.is_empty() {
        return String::new();
    }
    let mut layout = reference_table(comparison, &compared, true);
    if layout.width() > width {
        layout = reference_table(comparison, &compared, false);
    }
    let mut out = String::from("\n");
    let measure =
        only_metric(&compared).map_or("as published".to_owned(), |metric| format!("{metric} as published"));
    for line in wrap(&format!("Against {}, {measure}: {}", comparison.baseline, table.title), width, "") {
        out += &paint.bold(&line);
        out.push('\n');
    }
    out += &layout.render(width, paint);
    if let Some(note) = reference::data::note(table, compared.iter().copied()) {
        for line in wrap(&format!("* {note}"), width - 2, "  ") {
            out += &format!("  {}\n", paint.dim(&line));
        }
    }
    out
}

/// The paper's claims in words, each with its finding.
fn claims_text(judged: &[JudgedClaim], width: usize, paint: TablePaint) -> String {
    if judged.is_empty() {
        return String::new();
    }
    let mut out = String::from("\n");
    for line in wrap("What the paper says, and what is found of it", width, "") {
        out += &format!("{}\n", paint.bold(&line));
    }
    for one in judged {
        let text = format!("{}: {}", one.claim.what, one.claim.value);
        let contradicted =
            one.contradictions.iter().map(|words| format!("its own figures say otherwise: {words}"));
        let details: Vec<String> = one.findings.iter().cloned().chain(contradicted).collect();
        for line in wrap(&text, width - 2, "  ") {
            out += &format!("  {line}\n");
        }
        for line in wrap(one.verdict.describe(), width - 4, "  ") {
            out += &format!("    {line}\n");
        }
        for line in details.iter().flat_map(|detail| wrap(detail, width - 4, "  ")) {
            out += &format!("    {}\n", paint.dim(&line));
        }
    }
    out
}

fn reference_table(
    comparison: &RunComparison,
    compared: &[&PublishedComparison],
    with_intervals: bool,
) -> TableLayout {
    // A metric that all share is named above the table.
    let with_metric = only_metric(compared).is_none();
    let mut header = ["workload", "storage", "published", "ours", "reading"].map(str::to_owned).to_vec();
    if with_metric {
        header.insert(2, "figure".to_owned());
    }
    let mut layout = TableLayout::new(&header);
    for one in compared {
        let row = one.row.map(|index| &comparison.rows[index]);
        let ours = match one.our_ratio {
            None => ABSENT.to_owned(),
            Some(ratio) => {
                let mark = if one.less_data.is_some() { "*" } else { "" };
                let value = format!("{}{mark}", quantity::ratio(ratio.value));
                match ratio.interval.filter(|_| with_intervals) {
                    Some(interval) => format!("{value} ({})", quantity::ratio_interval(interval)),
                    None => value,
                }
            }
        };
        let mut fields = vec![
            row.map_or_else(|| figure_label(one), |row| row.label().to_owned()),
            one.figure.storage.clone(),
            one.published_ratio.map_or(ABSENT.to_owned(), |ratio| published_ratio(one, ratio)),
            ours,
            one.reading.describe().to_owned(),
        ];
        if with_metric {
            fields.insert(2, metric_name(one));
        }
        layout.table.add_row(fields);
    }
    layout.finish(if with_metric { &[0, 1, 2, 5] } else { &[0, 1, 4] });
    layout
}

/// `1.70x`, or `up to 1.70x` where the paper gives the most that was seen.
pub(crate) fn published_ratio(one: &PublishedComparison, ratio: f64) -> String {
    let bound = if one.figure.up_to { "up to " } else { "" };
    format!("{bound}{}", quantity::ratio(ratio))
}

/// A figure's metric without its unit, which a ratio does not have.
fn metric_name(one: &PublishedComparison) -> String {
    one.figure.metric.describe().split(',').next().unwrap_or_default().to_owned()
}

/// The metric of all figures, when it is one.
fn only_metric(figures: &[&PublishedComparison]) -> Option<String> {
    let first = figures.first()?;
    figures.iter().all(|one| one.figure.metric == first.figure.metric).then(|| metric_name(first))
}

/// A published figure's conditions: `a, uniform, 256 GB`; beside rows of ours that it fits, `mean of all mixes, 64
/// threads`.
pub(crate) fn figure_label(one: &PublishedComparison) -> String {
    let figure = one.figure;
    let threads = figure.threads.map(|threads| quantity::plural(threads as usize, "thread"));
    let mix = if figure.mix == reference::ALL_MIXES { "mean of all mixes" } else { &figure.mix };
    let fits = one.ours.is_some();
    let of_paper = [&figure.distribution, &figure.data].map(|one| one.clone().filter(|_| !fits));
    [Some(mix.to_owned())]
        .into_iter()
        .chain(of_paper)
        .chain([threads])
        .flatten()
        .collect::<Vec<_>>()
        .join(", ")
}

fn warning_lines(warnings: &[ReportWarning], width: usize, paint: TablePaint) -> String {
    let warnings: Vec<&ReportWarning> = warnings.iter().filter(|warning| !warning.is_reason).collect();
    if warnings.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", paint.bold("Warnings"));
    for warning in warnings {
        let (mark, is_grave) = match warning.severity {
            WarningSeverity::Doubtful | WarningSeverity::Turns => ("!", true),
            WarningSeverity::Note => ("-", false),
        };
        let mut text = warning.text.clone();
        if !warning.cells.is_empty() {
            text = format!("{}: {text}", warnings::cells_in_words(&warning.cells, CELLS_NAMED));
        }
        if let Some(remedy) = &warning.remedy {
            text += &format!(". Try: {remedy}");
        }
        for (index, line) in wrap(&text, width - 3, "").into_iter().enumerate() {
            let mark = if index > 0 { " " } else { mark };
            let mark = if is_grave { paint.alarm(mark) } else { mark.to_owned() };
            out += &format!(" {mark} {line}\n");
        }
    }
    out
}
