//! The jobs' use of a cache between them and their store.

use super::{TableLayout, TablePaint, wrap};
use crate::comparison::ComparisonRow;
use crate::quantity::{self, ABSENT};
use underlay_record::CacheUse;

/// The columns of a table of caches.
const HEADER: [&str; 9] = [
    "job",
    "storage",
    "read",
    "hits",
    "fetched",
    "written",
    "stored",
    "unstored at its end",
    "all stored after",
];
const WORDS: &str = "Hits: the share of reads that the cache answered. Stored: its traffic to the store until this had everything, \
     which is no part of a job's duration.";

/// Empty where no job of these rows had one.
pub(super) fn text(rows: &[&ComparisonRow], width: usize, paint: TablePaint) -> String {
    let mut layout = TableLayout::new(&HEADER.map(str::to_owned));
    for row in rows {
        let mut name = row.label().to_owned();
        for (_, storage, cache) in list_caches(row) {
            let mut fields = vec![std::mem::take(&mut name), storage.to_owned()];
            fields.extend(figures(cache));
            layout.table.add_row(fields);
        }
    }
    if layout.table.row_count() == 0 {
        return String::new();
    }
    layout.finish(&[0, 1]);
    let mut out = format!("\n{}\n", paint.bold("Caches between jobs and the store"));
    for line in wrap(WORDS, width, "") {
        out += &format!("{}\n", paint.dim(&line));
    }
    out + &layout.render(width, paint)
}

/// In the order of the header, without the job and its storage.
pub(crate) fn figures(cache: &CacheUse) -> [String; 7] {
    let bytes = |bytes: u64| if bytes == 0 { ABSENT.to_owned() } else { quantity::bytes(bytes as f64) };
    [
        bytes(cache.read_bytes),
        cache.hit_share().map_or(ABSENT.to_owned(), quantity::percent),
        bytes(cache.fetched_bytes),
        bytes(cache.written_bytes),
        bytes(cache.stored_bytes),
        bytes(cache.dirty_bytes),
        quantity::duration(cache.drain_s),
    ]
}

/// Those of a row that had a cache: the place of the storage, its name, and what was asked.
pub(crate) fn list_caches<'a>(
    row: &'a ComparisonRow<'_>,
) -> impl Iterator<Item = (usize, &'a str, &'a CacheUse)> {
    row.cells.iter().enumerate().filter_map(|(index, result)| {
        let result = result.as_ref()?;
        Some((index, result.cell.storage.as_str(), result.job()?.cache.as_ref()?))
    })
}
