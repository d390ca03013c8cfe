//! The effect of compactions on operations.

use maud::{Markup, html};

use super::summary::ratio_field;
use super::{ReportPage, swatch};
use crate::comparison::background::{CompactionComparison, CompactionWindow};
use crate::output::terminal::background::{describe, words_on_none};
use crate::quantity::{self, ABSENT};

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    let (rows, none_ran) = CompactionComparison::group_by_row(&page.comparison);
    if rows.is_empty() && none_ran.is_empty() {
        return None;
    }
    Some(html! {
        p.lead {
            "The same operations in two windows: while the system compacted, by its own count, and while it did not. Where a compaction takes nothing "
            "from operations the two mean latencies are the same. When compactions ran is drawn above the pictures of Over time."
        }
        @if !rows.is_empty() { div.scroll { table {
            thead { tr {
                th.l { "Workload" } th.l { "Storage" } th { "share of time compacting" }
                th { "mean latency without" } th { "with" } th { "with : without" } th { "ops/s without" } th { "with" }
            } }
            tbody {
                @for (row, found) in &rows {
                    @for (position, (storage, one)) in found.iter().enumerate() {
                        tr {
                            @if position == 0 { th.l scope="row" { (page.row_label(row)) } } @else { td {} }
                            td.l { (swatch(*storage)) (page.comparison.storages[*storage]) }
                            td { (quantity::percent(one.share)) }
                            td { (mean(one.without)) }
                            td { (mean(one.during)) }
                            td {
                                @if one.slowdown.is_some() { (ratio_field(one.slowdown)) }
                                @else { span.dim { (describe(one)) } }
                            }
                            td { (rate(one.without)) }
                            td { (rate(one.during)) }
                        }
                    }
                }
            }
        } } }
        @if !none_ran.is_empty() { p.muted { (words_on_none(&none_ran)) } }
    })
}

fn mean(window: Option<CompactionWindow>) -> Markup {
    html! {
        @match window {
            None => (ABSENT),
            Some(window) => {
                (quantity::latency(window.mean_us.value))
                @if let Some(interval) = window.mean_us.interval { small { (quantity::latency_interval(interval)) } }
            },
        }
    }
}

fn rate(window: Option<CompactionWindow>) -> String {
    window.map_or(ABSENT.to_owned(), |window| quantity::rate(window.throughput_per_s))
}
