//! What the network between servers and volumes added.

use maud::{Markup, html};
use underlay_record::{LayerActivity, NetworkRecord};

use super::{Page, swatch};
use crate::comparison::CellResult;
use crate::quantity::{self, ABSENT};
use crate::statistics::ratio::Ratio;

pub fn section(page: &Page) -> Option<Markup> {
    let cells: Vec<(usize, &CellResult, &NetworkRecord)> = page
        .comparison
        .rows
        .iter()
        .flat_map(|row| row.cells.iter().enumerate())
        .filter_map(|(index, result)| {
            let result = result.as_ref()?;
            Some((index, result, of_cell(result)?))
        })
        .collect();
    let (_, _, first) = cells.first()?;
    let initiators: std::collections::BTreeSet<&str> =
        cells.iter().map(|(_, _, network)| network.initiator.as_str()).collect();
    let initiators = initiators.into_iter().collect::<Vec<_>>().join(" and ");
    Some(html! {
        p.lead {
            "Volumes were reached over " (first.transport) " by the " (initiators) ". A request to a volume takes the real way there "
            "and back, the volume server and its devices, and the modelled link where there is one. All times are modelled: what this "
            "machine's own network and programs took is divided by the time scale. Of each cell's first completed repetition."
        }
        div.scroll { table {
            thead { tr {
                th.l { "Workload" } th.l { "Storage" } th { "Requests" } th { "Request, mean" } th { "p99" } th { "Device, mean" }
                th { "Empty command" } th { "Modelled link" } th { "Server's cores" } th { "Mean latency against " (page.comparison.baseline) }
            } }
            tbody { @for (index, result, network) in &cells { (line(page, *index, result, network)) } }
        } }
        (sizes(page))
    })
}

fn of_cell<'a>(result: &CellResult<'a>) -> Option<&'a NetworkRecord> {
    result.records.iter().find_map(|record| record.network.as_ref())
}

fn line(page: &Page, index: usize, result: &CellResult, network: &NetworkRecord) -> Markup {
    let us = |value: Option<f64>| value.map_or(ABSENT.to_owned(), quantity::latency);
    let row = page.comparison.rows.iter().find(|row| {
        row.cells.get(index).and_then(Option::as_ref).is_some_and(|one| std::ptr::eq(one, result))
    });
    html! {
        tr {
            th.l scope="row" { (row.map_or_else(|| result.cell.workload.clone(), |row| page.row_label(row))) }
            td.l { (swatch(index)) (result.cell.storage) }
            td { (quantity::rate(network.requests as f64)) }
            td { (quantity::latency(network.request_mean_us)) }
            td { (quantity::latency(network.request_p99_us)) }
            td { (quantity::latency(network.device_mean_us)) }
            td { (us(network.round_trip_p50_us)) }
            td { (us(network.link_us)) }
            td { (quantity::number(network.server_cpu_cores, 2)) }
            td { (against_baseline(page, index, result)) }
        }
    }
}

/// The system's mean latency against that on the baseline under the same workload.
fn against_baseline(page: &Page, index: usize, result: &CellResult) -> String {
    let ratio = page.comparison.rows.iter().find_map(|row| {
        let is_row =
            row.cells.get(index).and_then(Option::as_ref).is_some_and(|one| std::ptr::eq(one, result));
        let baseline = row.figures(page.comparison.baseline_index()?)?.mean_us?;
        is_row.then(|| Ratio::of(&result.figures()?.mean_us?, &baseline)).flatten()
    });
    ratio.map_or(ABSENT.to_owned(), |ratio| ratio.verdict())
}

/// How much of the pool the volumes' data took.
fn sizes(page: &Page) -> Markup {
    let cells: Vec<(usize, &CellResult, Vec<&LayerActivity>)> = page
        .comparison
        .rows
        .iter()
        .flat_map(|row| row.cells.iter().enumerate())
        .filter_map(|(index, result)| {
            let result = result.as_ref()?;
            let record = result.records.iter().find(|record| record.network.is_some())?;
            Some((index, result, record.layers.iter().filter(|layer| layer.kind == "volume").collect()))
        })
        .collect();
    let sum = |volumes: &[&LayerActivity], name: &str| -> f64 {
        volumes.iter().filter_map(|volume| volume.figures.get(name)).sum()
    };
    html! {
        h3 { "What the volumes held at the end, on this machine" }
        div.scroll { table {
            thead { tr { th.l { "Workload" } th.l { "Storage" } th { "Written" } th { "Stored in the pool" } th { "Written : stored" } } }
            tbody {
                @for (index, result, volumes) in &cells {
                    @let (used, stored) = (sum(volumes, "used_bytes"), sum(volumes, "stored_bytes"));
                    tr {
                        th.l scope="row" { (result.cell.workload) }
                        td.l { (swatch(*index)) (result.cell.storage) }
                        td { (quantity::bytes(used)) }
                        td { (quantity::bytes(stored)) }
                        td { @if stored > 0.0 { (quantity::number(used / stored, 3)) } @else { (ABSENT) } }
                    }
                }
            }
        } }
    }
}
