//! Benchmarks of the user's: every figure, how each storage stands against the baseline, and what was printed over
//! time.

use maud::{Markup, html};
use underlay_record::MetricDilation;

use super::charts::{ChartLine, ChartMark, ChartStrip, GroupChart, LineChart, MarkGroup, thinned};
use super::drawing::{AltText, ChartAxis};
use super::summary::{inputs_badge, not_measured, ratio_field, verdict_badge};
use super::throughput::{GROUPS_ACROSS, description};
use super::time_series::are_far_apart;
use super::{OPEN_ROWS, ReportPage, figure, swatch};
use crate::cell::benchmark::NamedFigure;
use crate::cell::by_phase::spans;
use crate::comparison::{CellResult, ComparisonRow, group_by_mix};
use crate::output::terminal::benchmarks::{
    baseline_value, direction, figures_of, without_ratio, words_on_repetitions,
};
use crate::quantity::{self, ABSENT};

/// Highest over lowest value from which dots on a logarithmic axis take the place of bars.
const LOG_FROM: f64 = 30.0;

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    let rows: Vec<&ComparisonRow> = page.comparison.benchmarks().collect();
    rows.first()?;
    let scale = page.loaded.run.scale;
    Some(html! {
        p.lead {
            "Figures as each benchmark prints them"
            @if scale.time != 1.0 { ", with slow motion divided out of times and rates" }
            ". " (words_on_repetitions(&rows, page.comparison.baseline))
        }
        (page.legend())
        (performance_pictures(page, &rows))
        (page.for_each_mix_of(group_by_mix(rows.iter().copied()), |rows| html! {
            @for row in rows {
                (first_figure(page, row))
                (over_time(page, row))
                (meanwhile(row))
                (table(page, row))
            }
        }))
    })
}

/// The first figure of each benchmark against the baseline's.
fn performance_pictures(page: &ReportPage, rows: &[&ComparisonRow]) -> Markup {
    let groups: Vec<MarkGroup> = rows
        .iter()
        .map(|row| MarkGroup {
            label: page.row_label(row),
            marks: ChartMark::from_row(row, |result| {
                let ratio = result.benchmark()?.first()?.performance?;
                Some((ratio.value, ratio.interval))
            }),
        })
        .filter(|group| !group.marks.is_empty())
        .collect();
    let title =
        format!("First figure of each benchmark against {}: more is better", page.comparison.baseline);
    html! {
        @for groups in groups.chunks(GROUPS_ACROSS) {
            (figure(&title, GroupChart {
                words: AltText { title: &title, description: &description(page, groups, &quantity::ratio) },
                y_title: "times as good",
                groups,
                is_log: is_far_apart(groups),
                width: 1060,
                height: 320,
                label: &|times| format!("{}x", quantity::number(times, 2)),
            }.draw()))
        }
    }
}

fn is_far_apart(groups: &[MarkGroup]) -> bool {
    let values = || groups.iter().flat_map(|group| &group.marks).map(|mark| mark.value);
    values().fold(0.0, f64::max) > LOG_FROM * values().fold(f64::INFINITY, f64::min)
}

/// The figure that storages are compared by first, in its own unit.
fn first_figure(page: &ReportPage, row: &ComparisonRow) -> Markup {
    let all = figures_of(row);
    let Some(first) = all.first() else { return html! {} };
    let marks = ChartMark::from_row(row, |result| {
        let value = result.benchmark()?.named(&first.name)?.value;
        Some((value.value, value.interval))
    });
    let groups = [MarkGroup { label: row.label().to_owned(), marks }];
    let is_log = is_far_apart(&groups);
    let title = direction(first);
    let write = |value: f64| quantity::on_axis_of(value, &first.unit);
    html! {
        (figure(&title, GroupChart {
            words: AltText { title: &title, description: &description(page, &groups, &write) },
            y_title: if is_log { "logarithmic scale" } else { &first.unit },
            groups: &groups,
            is_log,
            width: 520,
            height: 260,
            label: &write,
        }.draw()))
    }
}

/// The progress that was printed, where the study says how to read it.
fn over_time(page: &ReportPage, row: &ComparisonRow) -> Markup {
    let with_series: Vec<&NamedFigure> = figures_of(row)
        .into_iter()
        .filter(|named| row.cells.iter().flatten().any(|result| !series(result, &named.name).is_empty()))
        .collect();
    html! { div.charts { @for named in with_series { (lines(page, row, named)) } } }
}

/// A figure's progress in the first repetition that completed.
fn series(result: &CellResult, name: &str) -> Vec<(f64, f64)> {
    let first = result.completed().next();
    let figure = first
        .and_then(|record| record.benchmark.as_ref())
        .and_then(|benchmark| benchmark.figures.iter().find(|figure| figure.name == name));
    figure.map(|one| one.series.iter().map(|sample| (sample.t_s, sample.value)).collect()).unwrap_or_default()
}

/// The activity in the drawn repetition, by storage: the program's own account.
fn marks(row: &ComparisonRow) -> Vec<ChartStrip> {
    let mut strips = Vec::new();
    for (series, result) in row.cells.iter().enumerate() {
        let first = result.as_ref().and_then(|result| result.completed().next()?.benchmark.as_ref());
        let Some(benchmark) = first else { continue };
        let mut names: Vec<&str> = benchmark.marks.iter().map(|mark| mark.name.as_str()).collect();
        names.dedup();
        let spans = names.iter().flat_map(|name| spans(benchmark, name));
        strips.extend(spans.map(|(from, to)| ChartStrip { series, from, to }));
    }
    strips
}

/// The names of what went on: `checkpoint`.
fn marked(row: &ComparisonRow) -> String {
    let benchmarks =
        row.cells.iter().flatten().filter_map(|result| result.completed().next()?.benchmark.as_ref());
    let mut names: Vec<String> =
        benchmarks.flat_map(|one| &one.marks).map(|mark| mark.name.clone()).collect();
    names.sort();
    names.dedup();
    names.join(", ")
}

/// The figures during the activity, and otherwise.
fn meanwhile(row: &ComparisonRow) -> Markup {
    let describe_marks = |result: &CellResult| {
        let all = result.benchmark().map_or(&[][..], |one| &one.meanwhile);
        all.iter().map(|one| format!("{}: {}", result.cell.storage, one.describe())).collect::<Vec<_>>()
    };
    let sentences: Vec<String> = row.cells.iter().flatten().flat_map(describe_marks).collect();
    html! {
        @if !sentences.is_empty() {
            p.lead { "The bars above a picture show when there was a " (marked(row)) ", as the program reports it." }
            ul { @for one in sentences { li { (one) } } }
        }
    }
}

fn lines(page: &ReportPage, row: &ComparisonRow, named: &NamedFigure) -> Markup {
    let most_points = if page.comparison.rows.len() > OPEN_ROWS { 60 } else { 150 };
    let drawn: Vec<ChartLine> = row
        .cells
        .iter()
        .enumerate()
        .filter_map(|(index, result)| {
            let points = series(result.as_ref()?, &named.name);
            let name = Some(page.comparison.storages[index].to_owned());
            (!points.is_empty()).then(|| ChartLine {
                series: index,
                name,
                points: thinned(&points, most_points),
            })
        })
        .collect();
    let last = drawn.iter().flat_map(|line| &line.points).map(|point| point.0).fold(0.0, f64::max);
    if last <= 0.0 {
        return html! {};
    }
    // A second in which nothing was done lies on the ground of either scale.
    let is_log = are_far_apart(&drawn);
    let caption = format!("{} over time", named.title());
    // Beyond the last line there is no picture.
    let clip =
        |strip: ChartStrip| (strip.from < last).then(|| ChartStrip { to: strip.to.min(last), ..strip });
    let strips: Vec<ChartStrip> = marks(row).into_iter().filter_map(clip).collect();
    let svg = LineChart {
        words: AltText {
            title: &caption,
            description: "One line a storage, as the benchmark printed its progress.",
        },
        y_title: &if is_log { format!("{}, logarithmic", named.unit) } else { named.unit.clone() },
        x_title: "seconds",
        lines: &drawn,
        x: ChartAxis { low: 0.0, high: last, is_log: false },
        x_ticks: Vec::new(),
        is_log,
        y_high: None,
        width: 520,
        height: 220,
        label: &|value| quantity::on_axis_of(value, &named.unit),
    }
    .draw_with(&[], &strips, &marked(row));
    html! { div { (figure(&caption, svg)) } }
}

fn table(page: &ReportPage, row: &ComparisonRow) -> Markup {
    let all = figures_of(row);
    html! {
        div.scroll { table {
            thead { tr {
                th.l { "Figure" } th.l { "Storage" } th { "value" } th { "against " (page.comparison.baseline) } th.l { "Certificate" }
            } }
            tbody {
                @for named in &all {
                    @let rows_of: Vec<(usize, &CellResult)> =
                        row.cells.iter().enumerate().filter_map(|(index, result)| Some((index, result.as_ref()?))).collect();
                    @for (position, (index, result)) in rows_of.iter().enumerate() {
                        tr {
                            @if position == 0 {
                                th.l scope="rowgroup" rowspan=(rows_of.len()) { (direction(named)) small.below { (dilation(page, named)) } }
                            }
                            th.l scope="row" { (swatch(*index)) (result.cell.storage) }
                            (fields(page, row, result, &named.name))
                        }
                    }
                }
                @if all.is_empty() {
                    @for (index, result) in row.cells.iter().enumerate() {
                        @if let Some(result) = result {
                            tr { td.l { (ABSENT) } th.l scope="row" { (swatch(index)) (result.cell.storage) } (not_measured(&result.outcome, 3)) }
                        }
                    }
                }
            }
        } }
    }
}

fn dilation(page: &ReportPage, named: &NamedFigure) -> &'static str {
    match (page.loaded.run.scale.time == 1.0, named.slow_motion) {
        (true, _) | (_, MetricDilation::None) => "",
        (false, MetricDilation::Time | MetricDilation::Rate) => "slow motion divided out",
    }
}

fn fields(page: &ReportPage, row: &ComparisonRow, result: &CellResult, name: &str) -> Markup {
    let Some(benchmark) = result.benchmark() else {
        return not_measured(&result.outcome, 3);
    };
    let Some(named) = benchmark.named(name) else {
        return html! { td { (ABSENT) } td { (ABSENT) } td.l { (verdict_badge(result)) } };
    };
    let is_baseline = page.comparison.baseline == result.cell.storage;
    let base = baseline_value(&page.comparison, row, name).filter(|_| !is_baseline);
    let in_words = base.and_then(|base| without_ratio(named, base));
    html! {
        td {
            span.strong { (quantity::format_with_unit(named.value.value, &named.unit)) }
            @match named.value.relative_half_width() {
                Some(0.0) => "",
                Some(share) => small { "±" (quantity::percent(share)) },
                None => small { "one run" },
            }
        }
        td {
            @match named.performance {
                _ if is_baseline => span.dim { "baseline" },
                _ if in_words.is_some() => span.dim { (in_words.unwrap_or_default()) },
                Some(ratio) if ratio.interval.is_none() => { span.strong { (quantity::ratio(ratio.value)) } small { "one run" } },
                ratio => (ratio_field(ratio)),
            }
        }
        td.l { (verdict_badge(result)) (inputs_badge(result)) }
    }
}
