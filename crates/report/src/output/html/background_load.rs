//! The background load.

use maud::{Markup, html};

use super::{ReportPage, swatch};
use crate::comparison::background_load::BackgroundLoad;
use crate::output::terminal::background_load::{answered, asked, describe};
use crate::quantity;

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    let rows = BackgroundLoad::group_by_row(&page.comparison);
    if rows.is_empty() {
        return None;
    }
    Some(html! {
        p.lead { "Operations that went on beside the measured ones while those lasted. They are in none of the other figures." }
        div.scroll { table {
            thead { tr {
                th.l { "Workload" } th.l { "Storage" } th.l { "beside" } th { "asked for, ops/s" } th { "answered" }
                th { "mean latency" } th { "p99" } th { "errors" }
            } }
            tbody {
                @for (row, found) in &rows {
                    @for (position, (storage, one)) in found.iter().enumerate() {
                        tr {
                            @if position == 0 { th.l scope="row" { (page.row_label(row)) } } @else { td {} }
                            td.l { (swatch(*storage)) (page.comparison.storages[*storage]) }
                            td.l { (describe(one)) }
                            td { (asked(one)) }
                            td { (answered(one)) }
                            td { (quantity::latency(one.mean_us)) }
                            td { (quantity::latency(one.p99_us)) }
                            td { (quantity::number(one.errors as f64, 3)) }
                        }
                    }
                }
            }
        } }
    })
}
