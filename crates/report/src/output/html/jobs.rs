//! Batch jobs: durations, performance against the baseline, phases, what was shuffled.

use maud::{Markup, html};

use super::caches::caches;
use super::charts::{ChartMark, GroupChart, MarkGroup};
use super::drawing::AltText;
use super::gauges::gauges;
use super::stages::stages;
use super::summary::{inputs_badge, not_measured, ratio_field, verdict_badge};
use super::throughput::{GROUPS_ACROSS, description};
use super::{ReportPage, figure, swatch};
use crate::cell::jobs::{JobFigures, phases};
use crate::comparison::{CellResult, ComparisonRow, mix_title};
use crate::output::terminal::jobs::words_on_repetitions;
use crate::quantity::{self, ABSENT};
use crate::statistics::{ConfidenceInterval, IntervalEstimate};

/// Longest over shortest from which dots on a logarithmic axis take the place of bars.
const LOG_FROM: f64 = 30.0;

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    let rows: Vec<&ComparisonRow> = page.comparison.jobs().collect();
    rows.first()?;
    let scale = page.loaded.run.scale;
    Some(html! {
        p.lead {
            "From a job's submission to its success. Performance is the duration on " (page.comparison.baseline) " over the one here: "
            "how many times as fast. " (words_on_repetitions(&rows))
            @if scale.data != 1.0 {
                " The jobs' data are 1 : " (quantity::number(scale.data, 1)) " of what the study names, and so are these durations; look at their ratios."
            }
        }
        @for system in &page.comparison.systems {
            @let of_system: Vec<&ComparisonRow> = rows.iter().copied().filter(|row| row.system == *system).collect();
            @if !of_system.is_empty() {
                @if page.comparison.systems.len() > 1 { h3 { (page.comparison.system_title(system)) } }
                (page.legend())
                (performance_pictures(page, &of_system))
                (duration_pictures(page, &of_system))
                (table(page, &of_system))
                (gauges(page, &of_system))
            }
        }
    })
}

/// A job's value and its interval.
type JobPick<'a> = &'a dyn Fn(&JobFigures) -> Option<(f64, Option<ConfidenceInterval>)>;

fn groups(rows: &[&ComparisonRow], pick: JobPick) -> Vec<MarkGroup> {
    rows.iter()
        .map(|row| MarkGroup {
            label: row.label().to_owned(),
            marks: ChartMark::from_row(row, |result| pick(result.job()?)),
        })
        .filter(|group| !group.marks.is_empty())
        .collect()
}

fn duration_pictures(page: &ReportPage, rows: &[&ComparisonRow]) -> Markup {
    let groups = groups(rows, &|job| Some((job.duration_s.value, job.duration_s.interval)));
    html! {
        @for groups in groups.chunks(GROUPS_ACROSS) {
            @let values = || groups.iter().flat_map(|group| &group.marks).map(|mark| mark.value);
            @let is_log = values().fold(0.0, f64::max) > LOG_FROM * values().fold(f64::INFINITY, f64::min);
            (figure("Duration: less is better", GroupChart {
                words: AltText {
                    title: "Duration of each job", description: &description(page, groups, &quantity::duration) },
                y_title: if is_log { "duration, logarithmic scale" } else { "duration" },
                groups,
                is_log,
                width: 1060,
                height: 320,
                label: &quantity::short_duration,
            }.draw()))
        }
    }
}

fn performance_pictures(page: &ReportPage, rows: &[&ComparisonRow]) -> Markup {
    let groups = groups(rows, &|job| job.performance.map(|ratio| (ratio.value, ratio.interval)));
    let title = format!("Performance against {}: more is better", page.comparison.baseline);
    html! {
        @for groups in groups.chunks(GROUPS_ACROSS) {
            (figure(&title, GroupChart {
                words: AltText { title: &title, description: &description(page, groups, &quantity::ratio) },
                y_title: "times as fast",
                groups,
                is_log: false,
                width: 1060,
                height: 320,
                label: &|times| format!("{}x", quantity::number(times, 2)),
            }.draw()))
        }
    }
}

fn table(page: &ReportPage, rows: &[&ComparisonRow]) -> Markup {
    let all = rows.iter().flat_map(|row| row.cells.iter().flatten()).filter_map(|result| result.job());
    let phases = phases(all);
    html! {
        div.scroll { table {
            thead { tr {
                th.l { "Storage" } th { "duration" } th { "against " (page.comparison.baseline) }
                @for phase in &phases { th { (phase) } }
                th { "shuffled" } th { "a device's read" } th { "a device's write" } th.l { "Certificate" }
            } }
            tbody {
                @for row in rows {
                    tr.group { th colspan=(7 + phases.len()) { (heading(row)) } }
                    @for (index, result) in row.cells.iter().enumerate() {
                        @if let Some(result) = result {
                            tr {
                                th.l scope="row" { (swatch(index)) (result.cell.storage) }
                                (fields(page, result, &phases))
                            }
                        }
                    }
                }
            }
        } }
        p.muted.small {
            "Phases run from the first task that entered one to the last that left it, and overlap. Bytes are those on this machine; a device's read and write are "
            "the mean sizes of the requests that reached it."
        }
        (caches(rows))
        (stages(rows))
        (tasks(rows))
    }
}

fn heading(row: &ComparisonRow) -> String {
    let title = mix_title(row.cell.mix_or_job());
    if row.label() == row.cell.mix_or_job() { title } else { format!("{title} ({})", row.label()) }
}

fn fields(page: &ReportPage, result: &CellResult, phases: &[&str]) -> Markup {
    let Some(job) = result.job() else {
        return not_measured(&result.outcome, 6 + phases.len());
    };
    let io = |one: Option<IntervalEstimate>| one.map_or(ABSENT.to_owned(), |one| quantity::memory(one.value));
    let is_baseline = page.comparison.baseline == result.cell.storage;
    html! {
        td {
            span.strong { (quantity::duration(job.duration_s.value)) }
            @match job.duration_s.relative_half_width() {
                Some(share) => small { "±" (quantity::percent(share)) },
                None => small { "one run" },
            }
        }
        td {
            @match job.performance {
                _ if is_baseline => span.dim { "baseline" },
                Some(ratio) if ratio.interval.is_none() => { span.strong { (quantity::ratio(ratio.value)) } small { "one run" } },
                ratio => (ratio_field(ratio)),
            }
        }
        @for phase in phases {
            td { (job.phases_s.get(*phase).map_or(ABSENT.to_owned(), |one| quantity::duration(one.value))) }
        }
        td { (quantity::bytes(job.shuffled_bytes)) }
        td { (io(job.read_io_bytes)) }
        td { (io(job.write_io_bytes)) }
        td.l { (verdict_badge(result)) (inputs_badge(result)) }
    }
}

/// The jobs' tasks, for readers who want to know more.
fn tasks(rows: &[&ComparisonRow]) -> Markup {
    html! {
        details {
            summary { "Tasks, bytes and the system's counters" }
            p.muted.small { "Of one run, on average. Lost tasks, which failed or were killed and were run again, are counted over all runs." }
            div.scroll { table {
                thead { tr {
                    th.l { "Storage" } th.l { "tasks" } th { "lost" } th { "read" } th { "written" } th.l { "counters" }
                } }
                tbody {
                    @for row in rows {
                        tr.group { th colspan="6" { (heading(row)) } }
                        @for (index, result) in row.cells.iter().enumerate() {
                            @if let Some((result, job)) = result.as_ref().and_then(|result| Some((result, result.job()?))) {
                                tr {
                                    th.l scope="row" { (swatch(index)) (result.cell.storage) }
                                    td.l { (counts(job)) }
                                    td { (job.lost_tasks) }
                                    td { (quantity::bytes(job.input_bytes)) }
                                    td { (quantity::bytes(job.output_bytes)) }
                                    td.w {
                                        @for (index, (name, value)) in job.counters.iter().enumerate() {
                                            @if index > 0 { ", " } code { (name) } " " (quantity::number(*value, 3))
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            } }
        }
    }
}

fn counts(job: &JobFigures) -> String {
    let each =
        job.tasks.iter().filter(|(_, count)| **count > 0).map(|(kind, count)| format!("{count} {kind}"));
    each.collect::<Vec<_>>().join(", ")
}
