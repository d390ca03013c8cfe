//! The head of the report: facts, warnings, a card for each storage, and the table of figures.

use maud::{Markup, html};
use underlay_record::cell::SKIPPED_ON_COMMAND;
use underlay_record::{CertificateVerdict, PriceSum};

use super::{ReportPage, prose, swatch};
use crate::cell::benchmark::BenchmarkFigures;
use crate::cell::cost::{StorageCost, devices_in_words};
use crate::cell::jobs::JobFigures;
use crate::comparison::{CellOutcome, CellResult, RowMetrics, inputs, storage_records};
use crate::findings::effect::StorageEffect;
use crate::findings::warnings::{ReportWarning, WarningSeverity, cells_in_words};
use crate::quantity::{self, ABSENT};
use crate::statistics::IntervalEstimate;
use crate::statistics::ratio::{EstimateRatio, RatioDifference};

/// Cells that a warning names before it counts the rest.
const CELLS_NAMED: usize = 6;

pub(super) fn facts(page: &ReportPage) -> Markup {
    let run = &page.loaded.run;
    let cells = page.comparison.cells().count();
    html! {
        ul.facts {
            li { (quantity::plural(cells, "cell")) ", " (quantity::plural(run.repetitions as usize, "repetition")) " each" }
            li { (format_time(&run.started_at)) }
            @if run.scale.time != 1.0 { li { "slow motion x" (quantity::number(run.scale.time, 1)) ", divided out" } }
            @if run.scale.data != 1.0 { li { "sizes 1 : " (quantity::number(run.scale.data, 1)) } }
            li { (quantity::plural(run.machine.cores as usize, "core")) ", " (quantity::memory(run.machine.memory_bytes as f64)) ", " (run.machine.distribution) }
        }
    }
}

/// `4 May 2026, 09:12 UTC` for an RFC 3339 time; any other text as it is.
fn format_time(time: &str) -> String {
    match time.parse::<jiff::Timestamp>() {
        Ok(time) => time.strftime("%-d %B %Y, %H:%M UTC").to_string(),
        Err(_) => time.to_owned(),
    }
}

/// The warnings about the figures, below the answer and the cards.
pub(super) fn warnings_box(page: &ReportPage) -> Markup {
    let with_severity = |severity: WarningSeverity| -> Vec<&ReportWarning> {
        page.warnings.iter().filter(|warning| warning.severity == severity).collect()
    };
    let (doubts, turns, notes) = (
        with_severity(WarningSeverity::Doubtful),
        with_severity(WarningSeverity::Turns),
        with_severity(WarningSeverity::Note),
    );
    html! {
        @if !doubts.is_empty() {
            section.box.doubt aria-labelledby="doubtful" {
                h2 id="doubtful" { "⚠ Doubtful: don't rely on these figures before reading this" }
                (warning_list(&doubts))
            }
        }
        @if !turns.is_empty() {
            section.box.doubt aria-labelledby="uncertain" {
                h2 id="uncertain" { "⚠ Conclusions that rest on estimates" }
                p { "Sources cover real devices under such a load only in part. If the estimated values were half or double, these could come "
                     "out the other way." }
                (warning_list(&turns))
            }
        }
        @if !notes.is_empty() {
            section.box aria-labelledby="notes" {
                details open[notes.len() <= NOTES_OPEN] {
                    summary { h2 id="notes" { "Worth knowing (" (notes.len()) ")" } }
                    (warning_list(&notes))
                }
            }
        }
    }
}

/// Notes up to which they are shown at once.
const NOTES_OPEN: usize = 4;

fn warning_list(warnings: &[&ReportWarning]) -> Markup {
    html! {
        ul {
            @for warning in warnings {
                li {
                    @if !warning.cells.is_empty() {
                        strong { (cells_in_words(&warning.cells, CELLS_NAMED)) } ": "
                    }
                    (prose(&warning.text)) "."
                    @if let Some(remedy) = &warning.remedy { span.muted { " Try: " (prose(remedy)) "." } }
                }
            }
        }
    }
}

/// A card for each storage: what it is, what it gives, what it costs.
pub(super) fn cards(page: &ReportPage) -> Markup {
    let comparison = &page.comparison;
    html! { div.cards { @for (index, name) in comparison.storages.iter().enumerate() { (card(page, index, name)) } } }
}

fn card(page: &ReportPage, index: usize, name: &str) -> Markup {
    let comparison = &page.comparison;
    let records = storage_records(comparison);
    let figures: Vec<&RowMetrics> = comparison.unthrottled().filter_map(|row| row.figures(index)).collect();
    let jobs: Vec<&JobFigures> = comparison.jobs().filter_map(|row| row.job(index)).collect();
    let benchmarks: Vec<&BenchmarkFigures> =
        comparison.benchmarks().filter_map(|row| row.benchmark(index)).collect();
    let doubtful = comparison.cells().filter(|one| one.cell.storage == *name && one.is_doubtful()).count();
    let disturbed =
        comparison.cells().filter(|one| one.cell.storage == *name && one.disturbed_by().is_some()).count();
    let cost = records.get(name).and_then(|storage| StorageCost::from_storage(storage));
    // A storage of which nothing was measured has these lines, too, and they say so.
    let has_operations = (jobs.is_empty() && benchmarks.is_empty()) || !figures.is_empty();
    let is_several = figures.len().max(jobs.len()).max(benchmarks.len()) > 1;
    html! {
        div class={ "card c" (index % super::drawing::SERIES.len()) } {
            h3 { (swatch(index)) (name) }
            div.small.muted { (records.get(name).map_or(String::new(), |storage| devices_in_words(storage))) }
            @if name == comparison.baseline {
                div.big { "baseline" }
                div.small.muted { "what the others are compared with" }
            } @else {
                (against_baseline(page, index, figures.is_empty(), !jobs.is_empty()))
            }
            @if doubtful > 0 {
                div { span.badge.doubtful { "⚠ " (quantity::plural(doubtful, "cell")) " doubtful" } }
            }
            @if disturbed > 0 {
                div { span.badge.doubtful { "⚡ " (quantity::plural(disturbed, "cell")) " disturbed" } }
            }
            dl {
                @if is_several { dt { "lowest to highest of" } dd { (subject_of(&figures, &jobs)) } }
                @if !jobs.is_empty() {
                    dt { "a job takes" }
                    dd { (range_of(&jobs, |one| Some(one.duration_s.value), quantity::short_duration)) }
                }
                @if has_operations {
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
                dt { "list price" }
                dd { (cost.as_ref().map_or("unknown".to_owned(), |cost| quantity::price(&cost.price))) }
                @if has_operations {
                    dt { "per 1,000 ops/s" }
                    dd {
                        (range_of(
                            &figures,
                            |one| cost.as_ref().and_then(|cost| cost.usd_per_kops(one.throughput_per_s.value)),
                            quantity::dollars,
                        ))
                        @if let Some(remark) = cost.as_ref().and_then(|cost| cost.price.remark_on_part()) { " (" (remark) ")" }
                    }
                }
            }
        }
    }
}

fn subject_of(figures: &[&RowMetrics], jobs: &[&JobFigures]) -> String {
    match (figures.len(), jobs.len()) {
        (0, 0) => "all benchmarks".to_owned(),
        (0, jobs) => quantity::plural(jobs, "job"),
        (workloads, _) => quantity::plural(workloads, "workload"),
    }
}

/// How many times the baseline's performance, as the headline says it.
fn against_baseline(page: &ReportPage, index: usize, is_without_operations: bool, has_jobs: bool) -> Markup {
    let comparison = &page.comparison;
    let effect = StorageEffect::from_comparison(comparison, index);
    let parts = effect.parts();
    let of_what = match (is_without_operations, has_jobs) {
        (true, true) => "as fast as",
        (true, false) if comparison.benchmarks().next().is_some() => "as good as",
        _ => "the throughput of",
    };
    let is_alone = parts.len() == 1 && parts[0].count == effect.count();
    html! {
        @for part in &parts {
            div.big {
                (part.abbreviate())
                @if !is_alone { span.of-all { " in " (part.count) " of " (effect.count()) } }
            }
        }
        @if parts.is_empty() && effect.count() > 0 { div.big.dim.words { "no difference seen" } }
        @if effect.count() == 0 { div.big.dim { (ABSENT) } }
        div.small.muted {
            (of_what) " " (comparison.baseline)
            @if effect.has_intervals() { ", 95 % intervals" }
            @if parts.iter().any(|part| !part.has_interval) { ", single runs without an interval" }
            @if !parts.is_empty() && effect.count_equal() > 0 {
                "; no difference seen in " (effect.count_equal()) " of " (effect.count())
            }
        }
    }
}

/// Dollars in a table, called a rent where they are one.
pub(super) fn priced(usd: Option<f64>, price: Option<&PriceSum>) -> Markup {
    let remark = price.filter(|_| usd.is_some()).and_then(|price| match usd == Some(price.usd) {
        true => price.remark(quantity::dollars),
        false => price.remark_on_part(),
    });
    let unknown = if price.is_none() { "unknown" } else { ABSENT };
    html! { td { (usd.map_or(unknown.to_owned(), quantity::dollars)) @if let Some(remark) = remark { small { (remark) } } } }
}

fn range_of<T>(figures: &[&T], pick: impl Fn(&T) -> Option<f64>, write: fn(f64) -> String) -> String {
    let values: Vec<f64> = figures.iter().filter_map(|one| pick(one)).collect();
    quantity::range(&values, write).unwrap_or_else(|| ABSENT.to_owned())
}

/// The first figure of each benchmark, over all that have one of its name and unit.
fn benchmark_ranges(benchmarks: &[&BenchmarkFigures]) -> Vec<(String, String)> {
    let mut ranges: Vec<(String, String)> = Vec::new();
    for first in benchmarks.iter().filter_map(|one| one.first()) {
        if ranges.iter().any(|(name, _)| *name == first.title()) {
            continue;
        }
        let same = benchmarks.iter().filter_map(|one| one.first());
        let values: Vec<f64> = same
            .filter(|one| one.name == first.name && one.unit == first.unit)
            .map(|one| one.value.value)
            .collect();
        let range = quantity::range(&values, |value| quantity::format_with_unit(value, &first.unit));
        ranges.push((first.title(), range.unwrap_or_else(|| ABSENT.to_owned())));
    }
    ranges
}

/// All figures of all cells.
pub(super) fn table(page: &ReportPage) -> Option<Markup> {
    let comparison = &page.comparison;
    comparison.operations().next()?;
    Some(html! {
        p.lead {
            "Each figure is over all repetitions, with its 95 % interval below. A ratio is that of the throughputs, and one whose interval "
            "holds 1 is no difference; where a rate is offered and reached, latencies tell storages apart. "
            "$/TB is of the capacity as sold; prices are list prices of the devices alone. "
            @if comparison.cells().any(|result| inputs::find_certificate(result).is_some()) {
                "Measured inputs: the share of device time that rests on figures that the media's sources measured."
            }
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

fn cell_fields(page: &ReportPage, result: &CellResult) -> Markup {
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

fn earlier_failure(message: Option<&str>) -> String {
    message.map_or_else(String::new, |message| format!("It had failed before: {message}"))
}

/// The text in place of missing figures.
pub(super) fn not_measured(outcome: &CellOutcome, columns: usize) -> Markup {
    let (state, reason) = match outcome {
        CellOutcome::Failed { reason } => ("failed", reason.clone()),
        CellOutcome::Unavailable { missing, remedy } => ("can't run here", format!("{missing}; {remedy}")),
        CellOutcome::Disturbed { reason } => ("disturbed by hand", reason.clone()),
        CellOutcome::Skipped { failure } => (SKIPPED_ON_COMMAND, earlier_failure(failure.as_deref())),
        CellOutcome::Pending | CellOutcome::Measured(_) | CellOutcome::Job(_) | CellOutcome::Benchmark(_) => {
            ("not measured yet", String::new())
        }
    };
    html! { td.w colspan=(columns) { span.badge.plain { (state) } " " (prose(&reason)) } }
}

fn figure_fields(result: &CellResult, figures: &RowMetrics, is_baseline: bool, is_offered: bool) -> Markup {
    let cost = figures.cost.as_ref();
    let price = cost.map(|cost| &cost.price);
    html! {
        td {
            span.strong { (quantity::rate(figures.throughput_per_s.value)) }
            @if let Some(share) = figures.throughput_per_s.relative_half_width() { small { "±" (quantity::percent(share)) } }
        }
        @for estimate in [figures.mean_us, figures.p50_us, figures.p99_us, figures.p999_us] { td { (latency(estimate)) } }
        td { (ratio(figures, is_baseline, is_offered)) }
        (priced(cost.and_then(StorageCost::usd_per_tb), price))
        (priced(cost.and_then(|cost| cost.usd_per_kops(figures.throughput_per_s.value)), price))
        td.l { (verdict_badge(result)) (inputs_badge(result)) }
    }
}

fn latency(estimate: Option<IntervalEstimate>) -> Markup {
    html! {
        @if let Some(estimate) = estimate {
            (quantity::latency(estimate.value))
            @if let Some(interval) = estimate.interval { small { (quantity::latency_interval(interval)) } }
        } @else { span title="too few operations to tell" { (ABSENT) } }
    }
}

fn ratio(figures: &RowMetrics, is_baseline: bool, is_offered: bool) -> Markup {
    html! { @if is_baseline { span.dim { "baseline" } } @else { (ratio_in_words(figures.ratio, is_offered)) } }
}

/// A ratio with its interval, dim where it is no certain difference.
pub(super) fn ratio_field(ratio: Option<EstimateRatio>) -> Markup {
    ratio_in_words(ratio, false)
}

fn ratio_in_words(ratio: Option<EstimateRatio>, is_offered: bool) -> Markup {
    html! {
        @match ratio {
            None => (ABSENT),
            Some(ratio) => {
                @let is_certain = matches!(ratio.difference(), RatioDifference::More | RatioDifference::Less);
                span.strong[is_certain].dim[!is_certain] { (ratio.verdict_of(is_offered)) }
                @if let Some(interval) = ratio.interval { small { (quantity::ratio_interval(interval)) } }
            },
        }
    }
}

/// How much of it rests on measured figures, and whether what does not can turn what is concluded from it.
pub(super) fn inputs_badge(result: &CellResult) -> Markup {
    html! {
        @if let Some(certificate) = inputs::find_certificate(result) {
            @if result.can_turn { " " span.badge.doubtful { "⚠ inputs" } }
            small title=(inputs::describe(certificate)) { (quantity::percent(certificate.measured())) " measured inputs" }
        }
    }
}

pub(super) fn verdict_badge(result: &CellResult) -> Markup {
    match result.verdict() {
        Some(CertificateVerdict::Disturbed) => {
            let cause = result.disturbed_by().map_or("", |cause| cause.describe());
            html! {
                span.badge.doubtful { "⚡ disturbed " (cause) }
                @if result.is_doubtful() { " " span.badge.doubtful { "⚠ doubtful" } }
            }
        }
        Some(CertificateVerdict::Faithful) => html! { span.badge.faithful { "✓ faithful" } },
        Some(CertificateVerdict::Doubtful) => html! { span.badge.doubtful { "⚠ doubtful" } },
        Some(CertificateVerdict::RealStorage) => html! { span.badge.plain { "real storage" } },
        None => html! { span.badge.plain { "no certificate" } },
    }
}
