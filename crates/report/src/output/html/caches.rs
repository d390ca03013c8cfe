//! The jobs' use of a cache between them and their store.

use maud::{Markup, html};

use super::swatch;
use crate::comparison::ComparisonRow;
use crate::output::terminal::caches::{figures, list_caches};
use crate::quantity::ABSENT;

/// Empty where no job of these rows had one.
pub(super) fn caches(rows: &[&ComparisonRow]) -> Markup {
    let entries: Vec<_> =
        rows.iter().flat_map(|row| list_caches(row).map(move |one| (row.label(), one))).collect();
    html! {
        @if !entries.is_empty() {
            details open {
                summary { "The cache between jobs and the store" }
                p.muted.small {
                    "Of the first repetition. Hits are the share of reads that the cache answered. Stored is its traffic to the store by the time that "
                    "this had everything; how long that took after the job is no part of the job's duration. An object that was renamed, replaced or deleted "
                    "before it was stored is never uploaded."
                }
                div.scroll { table {
                    thead { tr {
                        th.l { "Job" } th.l { "storage" } th.l { "cache" } th { "read" } th { "hits" } th { "fetched" } th { "written" } th { "stored" }
                        th { "unstored at its end" } th { "all stored after" } th { "uploads avoided" }
                    } }
                    tbody {
                        @for (label, (index, storage, cache)) in &entries {
                            tr {
                                th.l scope="row" { (label) }
                                td.l { (swatch(*index)) (storage) }
                                td.l { code { (cache.kind) } ", write " (cache.write) }
                                @for figure in figures(cache) { td { (figure) } }
                                td { (cache.avoided_uploads.map_or(ABSENT.to_owned(), |count| count.to_string())) }
                            }
                        }
                    }
                } }
            }
        }
    }
}
