//! The head of the report: facts, warnings, a card for each storage, and the table of figures.

use maud::{Markup, html};
use underlay_record::Verdict;
use underlay_record::cell::SKIPPED_ON_COMMAND;

use super::{Page, prose, swatch};
use crate::cell::benchmark::BenchmarkFigures;
use crate::cell::cost::{StorageCost, devices_in_words};
use crate::cell::jobs::JobFigures;
use crate::comparison::{CellResult, Figures, Outcome, inputs, storage_records};
use crate::findings::warnings::{Severity, Warning};
use crate::quantity::{self, ABSENT};
use crate::statistics::Estimate;
use crate::statistics::ratio::{Difference, Ratio};

/// Cells that a warning names before it counts the rest.
const CELLS_NAMED: usize = 6;

pub(super) fn facts(page: &Page) -> Markup {
    let run = &page.loaded.run;
    let cells = page.comparison.cells().count();
    html! {
        ul.facts {
            li { (quantity::plural(cells, "cell")) ", " (quantity::plural(run.repetitions as usize, "repetition")) " each" }
            li { (in_words(&run.started_at)) }
            @if run.scale.time != 1.0 { li { "slow motion x" (quantity::number(run.scale.time, 1)) ", divided out" } }
            @if run.scale.data != 1.0 { li { "sizes 1 : " (quantity::number(run.scale.data, 1)) } }
            li { (quantity::plural(run.machine.cores as usize, "core")) ", " (quantity::memory(run.machine.memory_bytes as f64)) ", " (run.machine.distribution) }
        }
    }
}

/// `4 May 2026, 09:12 UTC` for an RFC 3339 time; any other text as it is.
fn in_words(time: &str) -> String {
    match time.parse::<jiff::Timestamp>() {
        Ok(time) => time.strftime("%-d %B %Y, %H:%M UTC").to_string(),
        Err(_) => time.to_owned(),
    }
}

pub(super) fn warnings_box(page: &Page) -> Markup {
    let (grave, notes): (Vec<_>, Vec<_>) =
        page.warnings.iter().partition(|warning| warning.severity == Severity::Doubtful);
    let (of_inputs, doubts): (Vec<_>, Vec<_>) =
        grave.into_iter().partition(|warning| warning.is_about_inputs());
    html! {
        @if !doubts.is_empty() {
            aside.box.doubt role="alert" {
                h2 { "⚠ Doubtful: don't rely on these figures before reading this" }
                (warning_list(&doubts))
            }
        }
        @if !of_inputs.is_empty() {
            aside.box {
                h2 { "⚠ Uncertain inputs: read these ratios as the models'" }
                p { "This is no fault of the measurement: what real devices do under such a load is published only in part, and how long \
                     programs compute between their requests not at all." }
                (warning_list(&of_inputs))
            }
        }
        @if !notes.is_empty() {
            aside.box { h2 { "Worth knowing" } (warning_list(&notes)) }
        }
    }
}

fn warning_list(warnings: &[&Warning]) -> Markup {
    html! {
        ul {
            @for warning in warnings {
                li {
                    @if !warning.cells.is_empty() {
                        strong { (quantity::list(&warning.cells, CELLS_NAMED)) } ": "
                    }
                    (prose(&warning.text)) "."
                    @if let Some(remedy) = &warning.remedy { span.muted { " Try: " (prose(remedy)) "." } }
                }
            }
        }
    }
}

/// A card for each storage: what it is, what it gives, what it costs.
pub(super) fn cards(page: &Page) -> Markup {
    let comparison = &page.comparison;
    let records = storage_records(comparison);
    html! {
        div.cards {
            @for (index, name) in comparison.storages.iter().enumerate() {
                @let figures: Vec<&Figures> = comparison.unthrottled().filter_map(|row| row.figures(index)).collect();
                @let jobs: Vec<&JobFigures> = comparison.jobs().filter_map(|row| row.job(index)).collect();
                @let benchmarks: Vec<&BenchmarkFigures> = comparison.benchmarks().filter_map(|row| row.benchmark(index)).collect();
                @let ratios: Vec<f64> = figures
                    .iter()
                    .filter_map(|one| one.ratio)
                    .chain(jobs.iter().filter_map(|one| one.performance))
                    .chain(benchmarks.iter().filter_map(|one| one.first()?.performance))
                    .map(|one| one.value)
                    .collect();
                div class={ "card c" (index % super::drawing::SERIES.len()) } {
                    h3 { (swatch(index)) (name) }
                    div.small.muted { (records.get(name).map_or(String::new(), |storage| devices_in_words(storage))) }
                    @if *name == comparison.baseline {
                        div.big { "baseline" }
                    } @else if let Some(range) = range(&ratios, |value| quantity::number(value, 2)) {
                        div.big { (range) "x" }
                    } @else {
                        div.big.dim { (ABSENT) }
                    }
                    div.small.muted {
                        @if *name == comparison.baseline { "what the others are compared with" }
                        @else if figures.is_empty() && !jobs.is_empty() { "as fast as " (comparison.baseline) }
                        @else if figures.is_empty() && !benchmarks.is_empty() { "as good as " (comparison.baseline) }
                        @else { "the throughput of " (comparison.baseline) }
                    }
                    @let doubtful = comparison.cells().filter(|one| one.cell.storage == *name && one.is_doubtful()).count();
                    @if doubtful > 0 {
                        div { span.badge.doubtful { "⚠ " (quantity::plural(doubtful, "cell")) " doubtful" } }
                    }
                    @let disturbed = comparison.cells().filter(|one| one.cell.storage == *name && one.disturbed_by().is_some()).count();
                    @if disturbed > 0 {
                        div { span.badge.doubtful { "⚡ " (quantity::plural(disturbed, "cell")) " disturbed" } }
                    }
                    dl {
                        @if !jobs.is_empty() {
                            dt { "a job takes" }
                            dd { (range_of(&jobs, |one| Some(one.duration_s.value), quantity::short_duration)) }
                        }
                        @if (jobs.is_empty() && benchmarks.is_empty()) || !figures.is_empty() {
                            dt { "ops/s" }
                            dd { (range_of(&figures, |one| Some(one.throughput_per_s.value), quantity::rate)) }
                            dt { "mean latency" }
                            dd { (range_of(&figures, |one| one.mean_us.map(|mean| mean.value), quantity::latency)) }
                            dt { "p99 latency" }
                            dd { (range_of(&figures, |one| one.p99_us.map(|p99| p99.value), quantity::latency)) }
                        }
                        @for (name, low_to_high) in benchmark_ranges(&benchmarks) {
                            dt { (name) }
                            dd { (low_to_high) }
                        }
                        @let cost = records.get(name).and_then(|storage| StorageCost::of(storage));
                        dt { "list price" }
                        dd { (cost.as_ref().map_or("unknown".to_owned(), |cost| quantity::dollars(cost.price_usd))) }
                        @if (jobs.is_empty() && benchmarks.is_empty()) || !figures.is_empty() {
                            dt { "per 1,000 ops/s" }
                            dd {
                                (range_of(
                                    &figures,
                                    |one| cost.as_ref().and_then(|cost| cost.usd_per_kops(one.throughput_per_s.value)),
                                    quantity::dollars,
                                ))
                            }
                        }
                    }
                }
            }
        }
    }
}

/// `low – high` over the workloads, or one of them when they read the same.
fn range(values: &[f64], write: impl Fn(f64) -> String) -> Option<String> {
    let low = values.iter().copied().reduce(f64::min)?;
    let high = values.iter().copied().reduce(f64::max)?;
    let (low, high) = (write(low), write(high));
    if low == high {
        return Some(low);
    }
    // One unit is enough for both, and a browser may break the line behind the dash.
    let short = match (low.split_once(' '), high.split_once(' ')) {
        (Some((number, unit)), Some((_, same))) if unit == same => number.to_owned(),
        _ => low,
    };
    Some(format!("{short}–{high}"))
}

fn range_of<T>(figures: &[&T], pick: impl Fn(&T) -> Option<f64>, write: fn(f64) -> String) -> String {
    let values: Vec<f64> = figures.iter().filter_map(|one| pick(one)).collect();
    range(&values, write).unwrap_or_else(|| ABSENT.to_owned())
}

/// The first figure of each benchmark, over all that have one of its name and unit.
fn benchmark_ranges(benchmarks: &[&BenchmarkFigures]) -> Vec<(String, String)> {
    let mut ranges: Vec<(String, String)> = Vec::new();
    for first in benchmarks.iter().filter_map(|one| one.first()) {
        if ranges.iter().any(|(name, _)| *name == first.name) {
            continue;
        }
        let same = benchmarks.iter().filter_map(|one| one.first());
        let values: Vec<f64> = same
            .filter(|one| one.name == first.name && one.unit == first.unit)
            .map(|one| one.value.value)
            .collect();
        let range = range(&values, |value| quantity::of_unit(value, &first.unit));
        ranges.push((first.name.clone(), range.unwrap_or_else(|| ABSENT.to_owned())));
    }
    ranges
}

/// All figures of all cells.
pub(super) fn table(page: &Page) -> Option<Markup> {
    let comparison = &page.comparison;
    comparison.operations().next()?;
    Some(html! {
        p.lead {
            "Each figure is over all repetitions, with its 95 % interval below. A ratio is that of the throughputs, and one whose interval "
            "holds 1 is no difference; where a rate is offered and reached, latencies tell storages apart. "
            "$/TB is of the capacity as sold; prices are list prices of the devices alone."
        }
        (page.for_each_mix(|rows| html! {
            div.scroll { table {
                thead { tr {
                    @if rows.len() > 1 { th.l { "Workload" } }
                    th.l { "Storage" } th { "ops/s" } th { "mean" } th { "p50" } th { "p99" } th { "p99.9" }
                    th { "against " (comparison.baseline) } th { "$/TB" } th { "$ per" br; "1,000 ops/s" } th.l { "Certificate" }
                } }
                tbody {
                    @for row in rows {
                        @for (position, result) in row.cells.iter().flatten().enumerate() {
                            tr {
                                @if rows.len() > 1 { td.l { @if position == 0 { (row.name_in_mix()) } } }
                                (cell_fields(page, result))
                            }
                        }
                    }
                }
            } }
        }))
    })
}

fn cell_fields(page: &Page, result: &CellResult) -> Markup {
    let storage = &result.cell.storage;
    let index = page.comparison.storages.iter().position(|name| name == storage).unwrap_or(0);
    let name = html! { th.l scope="row" { (swatch(index)) (storage) } };
    match result.figures() {
        Some(figures) => {
            let is_offered = result.cell.rate_per_s().is_some();
            html! { (name) (figure_fields(result, figures, page.comparison.baseline == storage, is_offered)) }
        }
        None => html! { (name) (not_measured(&result.outcome, 9)) },
    }
}

fn earlier_failure(told: Option<&str>) -> String {
    told.map_or_else(String::new, |told| format!("It had failed before: {told}"))
}

/// What stands in the place of figures that there are none of.
pub(super) fn not_measured(outcome: &Outcome, columns: usize) -> Markup {
    let (state, reason) = match outcome {
        Outcome::Failed { reason } => ("failed", reason.clone()),
        Outcome::Unavailable { missing, remedy } => ("can't run here", format!("{missing}; {remedy}")),
        Outcome::Disturbed { reason } => ("disturbed by hand", reason.clone()),
        Outcome::Skipped { failure } => (SKIPPED_ON_COMMAND, earlier_failure(failure.as_deref())),
        Outcome::Pending | Outcome::Measured(_) | Outcome::Job(_) | Outcome::Benchmark(_) => {
            ("not measured yet", String::new())
        }
    };
    html! { td.w colspan=(columns) { span.badge.plain { (state) } " " (prose(&reason)) } }
}

fn figure_fields(result: &CellResult, figures: &Figures, is_baseline: bool, is_offered: bool) -> Markup {
    let cost = figures.cost.as_ref();
    let dollars = |usd: Option<f64>| usd.map_or(ABSENT.to_owned(), quantity::dollars);
    html! {
        td {
            span.strong { (quantity::rate(figures.throughput_per_s.value)) }
            @if let Some(share) = figures.throughput_per_s.relative_half_width() { small { "±" (quantity::percent(share)) } }
        }
        @for estimate in [figures.mean_us, figures.p50_us, figures.p99_us, figures.p999_us] { td { (latency(estimate)) } }
        td { (ratio(figures, is_baseline, is_offered)) }
        td { (dollars(cost.and_then(StorageCost::usd_per_tb))) }
        td { (dollars(cost.and_then(|cost| cost.usd_per_kops(figures.throughput_per_s.value)))) }
        td.l { (verdict_badge(result)) (inputs_badge(result)) }
    }
}

fn latency(estimate: Option<Estimate>) -> Markup {
    html! {
        @if let Some(estimate) = estimate {
            (quantity::latency(estimate.value))
            @if let Some(interval) = estimate.interval { small { (quantity::latency_interval(interval)) } }
        } @else { span title="too few operations to tell" { (ABSENT) } }
    }
}

fn ratio(figures: &Figures, is_baseline: bool, is_offered: bool) -> Markup {
    html! { @if is_baseline { span.dim { "baseline" } } @else { (ratio_in_words(figures.ratio, is_offered)) } }
}

/// A ratio with its interval, dim where it is no certain difference.
pub(super) fn ratio_field(ratio: Option<Ratio>) -> Markup {
    ratio_in_words(ratio, false)
}

fn ratio_in_words(ratio: Option<Ratio>, is_offered: bool) -> Markup {
    html! {
        @match ratio {
            None => (ABSENT),
            Some(ratio) => {
                @let is_certain = matches!(ratio.difference(), Difference::More | Difference::Less);
                span.strong[is_certain].dim[!is_certain] { (ratio.verdict_of(is_offered)) }
                @if let Some(interval) = ratio.interval { small { (quantity::ratio_interval(interval)) } }
            },
        }
    }
}

/// Where less is known of the media than it takes.
pub(super) fn inputs_badge(result: &CellResult) -> Markup {
    html! {
        @if let Some(known) = inputs::of(result).filter(|_| inputs::is_uncertain(result)) {
            " " span.badge.doubtful title=(inputs::in_words(known)) { "⚠ inputs" }
        }
    }
}

pub(super) fn verdict_badge(result: &CellResult) -> Markup {
    match result.verdict() {
        Some(Verdict::Disturbed) => {
            let by = result.disturbed_by().map_or("", |by| by.in_words());
            html! {
                span.badge.doubtful { "⚡ disturbed " (by) }
                @if result.is_doubtful() { " " span.badge.doubtful { "⚠ doubtful" } }
            }
        }
        Some(Verdict::Faithful) => html! { span.badge.faithful { "✓ faithful" } },
        Some(Verdict::Doubtful) => html! { span.badge.doubtful { "⚠ doubtful" } },
        Some(Verdict::RealStorage) => html! { span.badge.plain { "real storage" } },
        None => html! { span.badge.plain { "no certificate" } },
    }
}
