//! Published figures beside ours.

use maud::{Markup, html};
use underlay_record::PublishedMetric;

use super::charts::{ChartMark, GroupChart, MarkGroup};
use super::drawing::AltText;
use super::throughput::GROUPS_ACROSS;
use super::{ReportPage, figure, swatch};
use crate::findings::claims::{self, ClaimVerdict, JudgedClaim};
use crate::findings::reference::accuracy::ReferenceAccuracy;
use crate::findings::reference::{self, PublishedComparison, ReferenceReading};
use crate::output::terminal::{figure_label, published_ratio};
use crate::quantity::{self, ABSENT};

/// How close all ratios come to the published ones.
pub(super) fn accuracy(page: &ReportPage) -> Option<ReferenceAccuracy> {
    let table = page.loaded.run.reference.as_ref()?;
    ReferenceAccuracy::from_figures(&reference::compare(table, &page.comparison))
}

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    let table = page.loaded.run.reference.as_ref()?;
    let figures = reference::compare(table, &page.comparison);
    let ratios: Vec<&PublishedComparison> =
        figures.iter().filter(|one| one.published_ratio.is_some()).collect();
    let compared = ratios.iter().filter(|one| one.reading != ReferenceReading::NotCompared).count();
    let agreeing = ratios.iter().filter(|one| one.reading == ReferenceReading::Agrees).count();
    let same_way = ratios
        .iter()
        .filter(|one| {
            matches!(
                one.reading,
                ReferenceReading::SameDirectionSmaller | ReferenceReading::SameDirectionLarger
            )
        })
        .count();
    Some(html! {
        p.lead { (table.title) ". " (table.source) "." }
        @if compared > 0 {
            p {
                strong {
                    "Of " (quantity::plural(compared, "published ratio")) ", " (agreeing) " agree with ours and "
                    (same_way) " point the same way. "
                }
                "A published ratio agrees with ours when it is in our interval, or when ours comes within a quarter of it. Ratios carry over from one machine to another; absolute figures seldom do."
            }
        }
        @if !table.departures.is_empty() {
            h3 { "Where this study departs from the paper" }
            ul { @for departure in &table.departures { li { (departure) } } }
        }
        @if let Some(note) = reference::data::note(table, &figures) { p { strong { (note) "." } } }
        (claims_list(page, table))
        @if !ratios.is_empty() {
            h3 { "Ratio to " (page.comparison.baseline) }
            (ratio_pictures(page, &ratios))
            div.scroll { table {
                thead { tr {
                    th.l { "Workload" } th.l { "Storage" } th.l { "Figure" } th { "Published" } th { "Ours" } th.l { "Reading" }
                } }
                tbody { @for one in &ratios { (ratio_row(page, one)) } }
            } }
        }
        @let absolute: Vec<&PublishedComparison> = figures.iter()
            // A relative performance is a ratio already, and is in the table above.
            .filter(|one| one.figure.metric != PublishedMetric::RelativePerformance).collect();
        @if !absolute.is_empty() { details open[absolute.len() <= 24] {
            summary { "Absolute figures, published and ours" }
            div.scroll { table {
                thead { tr {
                    th.l { "Workload" } th.l { "Storage" } th.l { "Figure" } th { "Published" } th { "Ours" } th { "Ours : published" } th.l { "Printed in" }
                } }
                tbody { @for one in &absolute { (absolute_row(page, one)) } }
            } }
        } }
    })
}

/// The paper's claims in words, and their findings.
fn claims_list(page: &ReportPage, table: &underlay_record::ReferenceTable) -> Markup {
    let judged = claims::judge(table, &page.comparison);
    html! {
        @if !judged.is_empty() {
            h3 { "What the paper says" }
            ul.claims { @for one in &judged { (claim(one)) } }
        }
    }
}

fn claim(one: &JudgedClaim) -> Markup {
    html! {
        li {
            strong { (one.claim.what) ": " } (one.claim.value) ". "
            @match one.verdict {
                ClaimVerdict::Agrees => span.badge.faithful { (one.verdict.describe()) },
                ClaimVerdict::AgreesSmaller | ClaimVerdict::AgreesLarger => span.badge.faithful { (one.verdict.describe()) },
                ClaimVerdict::Differs => span.badge.doubtful { (one.verdict.describe()) },
                _ => span.badge.plain { (one.verdict.describe()) },
            }
            @for finding in &one.findings { p { (finding) } }
            @for words in &one.contradictions {
                p { strong { "Its own figures say otherwise: " } (words) "." }
            }
        }
    }
}

/// Colours that no storage of a study of two or three has.
const PUBLISHED: usize = 4;
const OURS: usize = 3;

/// Published throughput ratios and ours, side by side.
fn ratio_pictures(page: &ReportPage, ratios: &[&PublishedComparison]) -> Markup {
    let groups: Vec<MarkGroup> = ratios
        .iter()
        .filter(|one| {
            // On one axis with these, ratios of latencies would point the wrong way.
            matches!(one.figure.metric, PublishedMetric::Throughput | PublishedMetric::RelativePerformance)
        })
        .filter_map(|one| {
            let (published, ours) = (one.published_ratio?, one.our_ratio?);
            let label = page.row_label(&page.comparison.rows[one.row?]);
            // With two storages only one can be compared with the baseline, and the label need not name it.
            let is_only_other = page.comparison.storages.len() == 2;
            let label = if is_only_other { label } else { format!("{label}, {}", one.figure.storage) };
            let mark = |series, value, interval| ChartMark { series, value, interval, is_doubtful: false };
            Some(MarkGroup {
                label,
                marks: vec![mark(PUBLISHED, published, None), mark(OURS, ours.value, ours.interval)],
            })
        })
        .collect();
    let has_jobs = page.comparison.jobs().next().is_some();
    html! {
        @if !groups.is_empty() {
            ul.legend { li { (swatch(PUBLISHED)) "published" } li { (swatch(OURS)) "ours, with its interval" } }
        }
        @for groups in groups.chunks(GROUPS_ACROSS) {
            @let words: Vec<String> = groups
                .iter()
                .map(|group| {
                    let [published, ours] = [0, 1].map(|index| quantity::ratio(group.marks[index].value));
                    format!("{}: published {published}, ours {ours}.", group.label)
                })
                .collect();
            @let metric_name = if has_jobs { "Performance" } else { "Throughput ratio" };
            (figure(metric_name, GroupChart {
                words: AltText { title: &format!("{metric_name}, published and ours"), description: &words.join(" ") },
                y_title: "ratio, logarithmic scale",
                groups,
                is_log: true,
                width: 1060,
                height: 260,
                label: &quantity::ratio,
            }.draw()))
        }
    }
}

fn names(page: &ReportPage, one: &PublishedComparison) -> Markup {
    let label = match one.row {
        Some(index) => page.row_label(&page.comparison.rows[index]),
        None => figure_label(one),
    };
    let series = page.comparison.storages.iter().position(|name| *name == one.figure.storage);
    html! {
        th.l scope="row" { (label) }
        td.l { @if let Some(series) = series { (swatch(series)) } (one.figure.storage) }
    }
}

fn ratio_row(page: &ReportPage, one: &PublishedComparison) -> Markup {
    let metric = one.figure.metric.describe();
    html! {
        tr {
            (names(page, one))
            td.l { (metric.split(',').next().unwrap_or_default()) }
            td { (one.published_ratio.map_or(ABSENT.to_owned(), |ratio| published_ratio(one, ratio))) }
            td {
                @match one.our_ratio {
                    None => (ABSENT),
                    Some(ratio) => {
                        span.strong { (quantity::ratio(ratio.value)) }
                        @if let Some(interval) = ratio.interval { small { (quantity::ratio_interval(interval)) } }
                        (less_data(one))
                    },
                }
            }
            td.l { (reading(one.reading)) }
        }
    }
}

/// Our data where that is less than the published data.
fn less_data(one: &PublishedComparison) -> Markup {
    html! { @if let Some(less) = one.less_data { small { "on " (quantity::without_last_zeros(&quantity::bytes(less.bytes))) } } }
}

fn reading(reading: ReferenceReading) -> Markup {
    html! {
        @match reading {
            ReferenceReading::Agrees => span.badge.faithful { (reading.describe()) },
            ReferenceReading::Opposite => span.badge.doubtful { (reading.describe()) },
            ReferenceReading::NotCompared => span.dim { (reading.describe()) },
            _ => span.badge.plain { (reading.describe()) },
        }
    }
}

fn absolute_row(page: &ReportPage, one: &PublishedComparison) -> Markup {
    html! {
        tr {
            (names(page, one))
            td.l { (one.figure.metric.describe()) }
            td {
                (quantity::number(one.figure.value, 3))
                @if let Some(machines) = one.figure.one_of {
                    small { (reference::data::part_of(machines)) " of " (quantity::number(one.figure.value * f64::from(machines), 3)) }
                }
            }
            td {
                @match one.ours {
                    None => (ABSENT),
                    Some(ours) => {
                        (quantity::number(ours.value, 3))
                        @if let Some(interval) = ours.interval {
                            small { (quantity::number(interval.low, 3)) "–" (quantity::number(interval.high, 3)) }
                        }
                        (less_data(one))
                    },
                }
            }
            td {
                @match one.ours {
                    // On other data an absolute figure is another figure.
                    Some(ours) if one.figure.value > 0.0 && one.less_data.is_none() => (quantity::ratio(ours.value / one.figure.value)),
                    _ => (ABSENT),
                }
            }
            td.l { (one.figure.from) }
        }
    }
}
