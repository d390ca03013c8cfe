//! Which amounts of data a published figure may be held against.
//!
//! A study that stands for one of several machines has that part of the paper's data; its short form has less yet, and
//! what is less is marked wherever it is shown.

use underlay_record::{Cell, ReferenceTable, ShortenedAmount};

use crate::quantity;

/// Sizes within this share of each other are the same data set: `1 TB` may be 10⁹ records of 1,024 bytes and keys.
const SIZE_TOLERANCE: f64 = 0.15;

/// A cell's data where it has less than the published one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LessData {
    pub bytes: f64,
    /// The study's full data, which is the published amount, or a machine's part of it.
    pub full_bytes: f64,
}

/// How a cell's amount of data fits a published one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum DataFit {
    Same,
    Less(LessData),
}

/// How many machines' data the paper has for that of a study's one.
fn machines(table: &ReferenceTable) -> u32 {
    table.figures.iter().filter_map(|figure| figure.one_of).max().unwrap_or(1).max(1)
}

/// Whether a cell may be held against figures of so much data: it has that amount, or a machine's part of it, or what
/// the short form has in that place.
pub(super) fn fit(
    label: &str,
    published_bytes: Option<f64>,
    cell: &Cell,
    table: &ReferenceTable,
    shortened: Option<ShortenedAmount>,
) -> Option<DataFit> {
    let machines = machines(table);
    let is_named = || cell.data.as_ref().is_some_and(|data| data.trim().eq_ignore_ascii_case(label.trim()));
    if machines == 1 && is_named() {
        return Some(DataFit::Same);
    }
    let published = published_bytes? / f64::from(machines);
    let bytes = cell.data_bytes as f64;
    if is_close(bytes, published) {
        return Some(DataFit::Same);
    }
    let ShortenedAmount { full_bytes, short_bytes } = shortened?;
    (is_close(full_bytes, published) && is_close(bytes, short_bytes))
        .then_some(DataFit::Less(LessData { bytes: short_bytes, full_bytes }))
}

fn is_close(ours: f64, published: f64) -> bool {
    (1.0 - SIZE_TOLERANCE..=1.0 + SIZE_TOLERANCE).contains(&(ours / published))
}

/// A note on figures that are compared with ones of more data; none where there are none.
pub fn note<'a>(
    table: &ReferenceTable,
    figures: impl IntoIterator<Item = &'a super::PublishedComparison<'a>>,
) -> Option<String> {
    let (less, label) =
        figures.into_iter().find_map(|one| Some((one.less_data?, one.figure.data.as_ref()?)))?;
    let part = match machines(table) {
        1 => String::new(),
        machines => format!("{} of ", part_of(machines)),
    };
    Some(format!(
        "Ours, in the short form, has {} of data where the study in full has {}, {part}the paper's {label}",
        quantity::without_last_zeros(&quantity::bytes(less.bytes)),
        quantity::without_last_zeros(&quantity::bytes(less.full_bytes)),
    ))
}

/// `a fifth`, `1/12`: the study stands for one of this many machines.
pub fn part_of(machines: u32) -> String {
    match machines {
        2 => "half".to_owned(),
        3 => "a third".to_owned(),
        4 => "a quarter".to_owned(),
        5 => "a fifth".to_owned(),
        6 => "a sixth".to_owned(),
        8 => "an eighth".to_owned(),
        10 => "a tenth".to_owned(),
        more => format!("1/{more}"),
    }
}

#[cfg(test)]
mod tests {
    use underlay_record::{CellLabels, OfferedRate, PublishedFigure, RecordedWork, RequestWork};

    use super::*;

    #[test]
    fn published_cell_matches_its_amount_and_substitute() {
        let table = |one_of| ReferenceTable {
            figures: vec![PublishedFigure { one_of, ..PublishedFigure::default() }],
            ..ReferenceTable::default()
        };
        let cell = |bytes: f64| Cell {
            id: String::new(),
            system: String::new(),
            storage: String::new(),
            workload: String::new(),
            servers: 1,
            data_bytes: bytes as u64,
            data: None,
            work: RecordedWork::Requests(RequestWork {
                mix: "a".to_owned(),
                distribution: String::new(),
                threads: 1,
                records: 1,
                rate: OfferedRate::Unthrottled,
                compacts_at: None,
            }),
            named: CellLabels::default(),
        };
        let fit = |label: &str, cell: &Cell, table: &ReferenceTable, shortened| {
            let bytes =
                [("2 TB", 2e12), ("1 TB", 1e12), ("400 GB", 400e9)].into_iter().find(|one| one.0 == label);
            super::fit(label, bytes.map(|one| one.1), cell, table, shortened)
        };
        let shortened = Some(ShortenedAmount { full_bytes: 400e9, short_bytes: 48e9 });
        let less = Some(DataFit::Less(LessData { bytes: 48e9, full_bytes: 400e9 }));
        assert_eq!(fit("2 TB", &cell(2e12), &table(None), None), Some(DataFit::Same));
        assert_eq!(fit("2 TB", &cell(400e9), &table(Some(5)), None), Some(DataFit::Same));
        assert_eq!(fit("2 TB", &cell(2e12), &table(Some(5)), None), None, "five times a machine's part");
        assert_eq!(fit("2 TB", &cell(48e9), &table(Some(5)), shortened), less);
        assert_eq!(fit("400 GB", &cell(48e9), &table(None), shortened), less);
        // Neither what the short form does not replace, nor another amount in its place.
        assert_eq!(fit("1 TB", &cell(48e9), &table(Some(5)), shortened), None);
        assert_eq!(fit("2 TB", &cell(96e9), &table(Some(5)), shortened), None);
        assert_eq!(fit("2 TB", &cell(48e9), &table(Some(5)), None), None);
    }
}
