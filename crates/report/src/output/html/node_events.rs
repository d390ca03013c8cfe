//! Nodes that went away.

use maud::{Markup, html};

use super::{ReportPage, swatch};
use crate::comparison::node_events::{COLUMNS, LEGEND, figures, group_by_row, node_event_in_words};

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    let rows = group_by_row(&page.comparison);
    if rows.is_empty() {
        return None;
    }
    Some(html! {
        p.lead { (LEGEND) " When each was away is marked in the pictures of Over time." }
        div.scroll { table {
            thead { tr {
                th.l { "Workload" } th.l { "Storage" } th.l { "Node" }
                @for column in COLUMNS { th { (column) } }
            } }
            tbody {
                @for (row, departures) in &rows {
                    @for one in departures {
                        @for event in one.records.iter().flat_map(|record| &record.node_events) {
                            tr {
                                th.l scope="row" { (page.row_label(row)) }
                                td.l { (swatch(one.storage)) (page.comparison.storages[one.storage]) }
                                td.l {
                                    (node_event_in_words(event))
                                    @if let Some(problem) = &event.problem { small { (problem) } }
                                }
                                @for figure in figures(event) { td { (figure) } }
                            }
                        }
                    }
                }
            }
        } }
        @for (record, found) in read_back(&rows) { p { (record) ": " (found) "." } }
    })
}

/// Whether what was acknowledged is there, by cell.
fn read_back(
    rows: &[(&crate::comparison::ComparisonRow, Vec<crate::comparison::node_events::NodeDepartures>)],
) -> Vec<(String, String)> {
    let records = rows.iter().flat_map(|(_, departures)| departures).flat_map(|one| &one.records);
    let found =
        records.filter_map(|record| Some((record.cell.id.clone(), record.read_back.as_ref()?.to_string())));
    found.collect()
}
