//! Where a system of several nodes had its copies of the data.

use maud::{Markup, html};
use underlay_record::{RunRecord, TopologyRecord};

use super::ReportPage;
use crate::quantity::{self, ABSENT};

/// The topologies of each system and storage that tell one; several where they differed between cells.
pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    let mut found: Vec<(&str, &str, &TopologyRecord, usize)> = Vec::new();
    for record in page.comparison.cells().flat_map(|result| &result.records) {
        let RunRecord { cell, topology: Some(topology), .. } = record else { continue };
        let same = found.iter_mut().find(|(system, storage, other, _)| {
            (*system, *storage, *other) == (cell.system.as_str(), cell.storage.as_str(), topology)
        });
        match same {
            Some((.., count)) => *count += 1,
            None => found.push((&cell.system, &cell.storage, topology, 1)),
        }
    }
    (!found.is_empty()).then(|| {
        html! {
            p { "Which process had which copy of the data when the system had started. The first of each shard is its master." }
            @for (system, storage, topology, count) in &found {
                details {
                    summary { (system) " on " (storage) ", in " (quantity::plural(*count, "measurement")) }
                    (table(topology))
                    @if !topology.findings.is_empty() {
                        p { "The system's report: " (quantity::list(&topology.findings, 8)) }
                    }
                }
            }
        }
    })
}

fn table(topology: &TopologyRecord) -> Markup {
    html! {
        div.scroll { table {
            thead { tr { th.l { "Shard" } th.l { "Copy" } th.l { "Role" } th.l { "Node" } th { "Directory" } th.l { "Device" } } }
            tbody {
                @for shard in &topology.shards {
                    @for (index, copy) in shard.copies.iter().enumerate() {
                        tr {
                            @if index == 0 {
                                th.l scope="rowgroup" rowspan=(shard.copies.len()) {
                                    (shard.shard)
                                    @if let Some(partitions) = shard.partitions { small { (partitions) " partitions" } }
                                }
                            }
                            td.l { (copy.name) }
                            td.l { (copy.role.map_or(ABSENT, |role| role.word())) }
                            td.l { (copy.node) }
                            td { (copy.directory.map_or_else(|| ABSENT.to_owned(), |directory| (directory + 1).to_string())) }
                            td.l { (copy.device.as_ref().map_or(ABSENT, |device| device.name.as_str())) }
                        }
                    }
                }
            }
        } }
    }
}
