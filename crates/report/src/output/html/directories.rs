//! Where jobs wrote: the directories of each storage.

use maud::{Markup, html};

use super::{ReportPage, swatch};
use crate::cell::directories::{self, DirectoryFigures, DirectoryGroup};
use crate::comparison::ComparisonRow;
use crate::output::terminal::jobs::{OfStorage, counted, over_all_jobs, range, roles};
use crate::quantity;

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    let of_systems: Vec<(&str, Vec<OfStorage>)> = page
        .comparison
        .systems
        .iter()
        .map(|system| {
            let rows: Vec<&ComparisonRow> =
                page.comparison.jobs().filter(|row| row.system == *system).collect();
            (*system, over_all_jobs(&page.comparison, &rows))
        })
        .filter(|(_, storages)| !storages.is_empty())
        .collect();
    if of_systems.is_empty() {
        return None;
    }
    Some(html! {
        p.lead {
            "Where the jobs wrote, over all jobs of a storage, as a mean of its runs. A system that fills its directories in turn gives one on a fast device "
            "no more than one on a slow device; split into more directories, the fast device gets more."
        }
        @for (system, storages) in &of_systems {
            @if of_systems.len() > 1 { h3 { (page.comparison.system_title(system)) } }
            (table(page, storages))
            (words(page, storages))
            @for (storage, all) in storages { (each(page, *storage, all)) }
        }
    })
}

fn table(page: &ReportPage, storages: &[OfStorage]) -> Markup {
    html! {
        div.scroll { table {
            thead { tr {
                th.l { "Storage" } th.l { "For" } th.l { "Directories" } th { "Files in each" } th { "Share of files" } th { "Share of bytes" }
                th { "Written into each" }
            } }
            tbody {
                @for (storage, all) in storages {
                    @for (position, group) in directories::groups(all).iter().enumerate() {
                        tr {
                            @if position == 0 { th.l scope="row" { (swatch(*storage)) (page.comparison.storages[*storage]) } } @else { td {} }
                            (group_fields(group))
                        }
                    }
                }
            }
        } }
    }
}

fn group_fields(group: &DirectoryGroup) -> Markup {
    let kind = group.kind.as_deref().unwrap_or("several devices");
    html! {
        td.l { (group.role) }
        td.l { (group.directories) " on " (counted(group.devices, kind)) }
        td { (range(group.files_low, group.files_high)) }
        td { (quantity::percent(group.share_of_files)) }
        td { (quantity::percent(group.share_of_bytes)) }
        td { (quantity::bytes(group.write_bytes_per_s)) "/s" }
    }
}

/// The table's sentences, where a storage has directories on devices of several kinds.
fn words(page: &ReportPage, storages: &[OfStorage]) -> Markup {
    let lines: Vec<(usize, String, String)> = storages
        .iter()
        .flat_map(|(storage, all)| {
            let groups = directories::groups(all);
            roles(&groups)
                .into_iter()
                .filter_map(|role| Some((*storage, directories::describe(&groups, &role)?, role)))
                .collect::<Vec<_>>()
        })
        .collect();
    html! {
        @if !lines.is_empty() {
            ul {
                @for (storage, text, role) in &lines {
                    li { strong { (page.comparison.storages[*storage]) ", " (role) ": " } (text) "." }
                }
            }
        }
    }
}

fn each(page: &ReportPage, storage: usize, all: &[DirectoryFigures]) -> Markup {
    html! {
        details {
            summary { "Each directory of " (page.comparison.storages[storage]) }
            div.scroll { table {
                thead { tr {
                    th.l { "For" } th { "Directory" } th.l { "Device" } th { "Files" } th { "Bytes" } th { "Written into it" }
                } }
                tbody {
                    @for one in all {
                        tr {
                            td.l { (one.role) }
                            td { (one.directory) }
                            td.l { (one.device.as_ref().map_or("several".to_owned(), ToString::to_string)) }
                            td { (quantity::number(one.files.round(), 1)) }
                            td { (quantity::bytes(one.write_bytes)) }
                            td { (quantity::bytes(one.write_bytes_per_s)) "/s" }
                        }
                    }
                }
            } }
        }
    }
}
