//! The cost of the network between servers and volumes.

use maud::{Markup, html};

use super::summary::ratio_field;
use super::{ReportPage, swatch};
use crate::comparison::network::{self, NetworkPath, StorageUse, VolumePair};
use crate::quantity::{self, ABSENT};

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    let ways = network::ways(&page.comparison);
    let first = ways.first()?.record;
    let initiators = network::initiators(&ways);
    Some(html! {
        p.lead {
            "Volumes were reached over " (first.transport) " by " (initiators) ". A request to a volume is timed from when it leaves the "
            "initiator to its answer: the way there and back over this machine's own network, the volume server, and its devices. An empty "
            "command takes the same way and asks no device. The modelled link comes on top of both. All times are modelled: what this "
            "machine's network and programs took is divided by the time scale. Of each cell's first completed repetition."
        }
        div.scroll { table {
            thead { tr {
                th.l { "Workload" } th.l { "Storage" } th { "Requests" } th { "Request to a volume, mean" } th { "its p99" }
                th { "Request to a device, mean" } th { "Empty command, p50" } th { "Modelled link" } th { "Volume server's cores" }
                th { "System's mean latency against " (page.comparison.baseline) }
            } }
            tbody { @for way in &ways { (line(page, way)) } }
        } }
        (pairs(page, &network::pairs(&page.comparison)))
        (held(page, &network::held(&page.comparison)))
    })
}

fn line(page: &ReportPage, way: &NetworkPath) -> Markup {
    let us = |value: Option<f64>| value.map_or(ABSENT.to_owned(), quantity::latency);
    let record = way.record;
    html! {
        tr {
            th.l scope="row" { (page.row_label(way.row)) }
            td.l { (storage(page, way.storage)) }
            td { (quantity::rate(record.requests as f64)) }
            td { (quantity::latency(record.request_mean_us)) }
            td { (quantity::latency(record.request_p99_us)) }
            td { (quantity::latency(record.device_mean_us)) }
            td { (us(record.round_trip_p50_us)) }
            td { (us(record.link_us)) }
            td { (quantity::number(record.server_cpu_cores, 2)) }
            td { (ratio_field(way.latency)) }
        }
    }
}

fn storage(page: &ReportPage, index: usize) -> Markup {
    html! { (swatch(index)) (page.comparison.storages[index]) }
}

/// Volumes against each other, where there are several.
fn pairs(page: &ReportPage, pairs: &[VolumePair]) -> Markup {
    let Some(one) = pairs.first() else { return html! {} };
    let first = page.comparison.storages[one.first];
    html! {
        h3 { "Volumes against " (first) }
        p { "The network and the pool are the same, and only the volume differs: the rest is the effect of the volumes, and of the system's settings on them." }
        div.scroll { table {
            thead { tr {
                th.l { "Workload" } th.l { "Storage" }
                @for (name, _) in &one.ratios { th { (name) } }
            } }
            tbody {
                @for pair in pairs {
                    tr {
                        th.l scope="row" { (page.row_label(pair.row)) }
                        td.l { (storage(page, pair.storage)) }
                        @for (_, ratio) in &pair.ratios { td { (ratio_field(*ratio)) } }
                    }
                }
            }
        } }
    }
}

/// Where the data were compressed, and to what.
fn held(page: &ReportPage, uses: &[StorageUse]) -> Markup {
    let bytes = |value: Option<f64>| value.map_or(ABSENT.to_owned(), quantity::bytes);
    html! {
        h3 { "Data on the storages at the end, on this machine" }
        div.scroll { table {
            thead { tr {
                th.l { "Storage" } th.l { "The system compresses by" } th { "Records" } th { "System's files" }
                th { "Written to volumes" } th { "Stored in the pool" } th { "Written : stored" }
            } }
            tbody {
                @for one in uses {
                    tr {
                        th.l scope="row" { (storage(page, one.storage)) small.below { (one.layout) } }
                        td.l { (one.system_compression.unwrap_or(ABSENT)) }
                        td { (quantity::bytes(one.data_bytes)) }
                        td { (bytes(one.files_bytes)) }
                        td { (bytes(one.volumes.map(|(written, _)| written))) }
                        td { (bytes(one.volumes.map(|(_, stored)| stored))) }
                        td {
                            @match one.volumes {
                                Some((written, stored)) if stored > 0.0 => (quantity::number(written / stored, 3)),
                                _ => (ABSENT),
                            }
                        }
                    }
                }
            }
        } }
    }
}
