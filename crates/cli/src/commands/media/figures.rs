//! A medium's published figures beside its model's.

use comfy_table::{Cell, CellAlignment, Table, presets};
use underlay_report::quantity;
use underlay_storage::catalogue::{CatalogueMedium, PublishedPerformance};
use underlay_storage::predict;
use underlay_storage::predict::paced::{LoadFigure, compare_measured};

use crate::output;

/// The catalogue's own media keep to it.
pub(super) const TOLERANCE: f64 = 0.05;
const SEED: u64 = 7;

pub(super) struct FigureCheck<'a> {
    pub published: &'a PublishedPerformance,
    /// `None` when this kind of medium has no such figure.
    pub modelled: Option<f64>,
}

impl FigureCheck<'_> {
    /// Relative to the published value.
    pub(super) fn difference(&self) -> Option<f64> {
        Some(self.modelled? / self.published.value - 1.0)
    }

    pub(super) fn is_off(&self) -> bool {
        self.difference().is_none_or(|difference| difference.abs() > TOLERANCE)
    }
}

/// Runs the model in virtual time, once for each published figure.
pub(super) fn compare(medium: &CatalogueMedium) -> Vec<FigureCheck<'_>> {
    let comparison =
        |published| FigureCheck { published, modelled: predict::published(medium, published, SEED) };
    medium.published.iter().map(comparison).collect()
}

pub(super) fn table(comparisons: &[FigureCheck<'_>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let header =
        ["queue depth", "block", "published", "modelled", "difference"].map(|name| right(name.to_owned()));
    table.set_header(
        std::iter::once(Cell::new("published figure")).chain(header).chain([Cell::new("source")]),
    );
    for comparison in comparisons {
        let published = comparison.published;
        let difference = match comparison.difference() {
            Some(difference) => {
                let mark = if comparison.is_off() { " !" } else { "" };
                format!("{:+.1} %{mark}", difference * 100.0)
            }
            None => "no such figure !".into(),
        };
        let estimate = if published.estimate { ", estimate" } else { "" };
        table.add_row(vec![
            Cell::new(label(published)),
            right(published.queue_depth.to_string()),
            right(block(published.block_bytes)),
            right(quantity::number(published.value, 3)),
            right(
                comparison
                    .modelled
                    .map_or_else(|| quantity::ABSENT.into(), |value| quantity::number(value, 3)),
            ),
            right(difference),
            Cell::new(format!("{}{estimate}", published.source)),
        ]);
    }
    output::table(&table) + "\n"
}

/// Of modelled time, for each row of `[[measured]]`: enough for a p99.9 of 5,000 requests a second.
const MEASURED_SECONDS: f64 = 5.0;

/// What `[[measured]]` says beside what the model does under the same loads, and how much of it is within tolerance.
pub(super) fn measured_table(medium: &CatalogueMedium) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let header = ["offered/s", "measured", "modelled", "ratio"].map(|name| right(name.to_owned()));
    table.set_header(std::iter::once(Cell::new("measured figure")).chain(header).chain([Cell::new("row")]));
    let (mut near, mut judged) = (0, 0);
    for row in &medium.measured {
        let is_judged = |figure: &LoadFigure| figure.tolerance.is_some();
        for figure in compare_measured(medium, row, MEASURED_SECONDS, SEED).into_iter().filter(is_judged) {
            let is_near = figure.is_within() == Some(true);
            judged += 1;
            near += usize::from(is_near);
            table.add_row(vec![
                Cell::new(&figure.name),
                right(quantity::number(row.offered_per_s(), 3)),
                right(quantity::number(figure.measured, 3)),
                right(quantity::number(figure.modelled, 3)),
                right(format!("{:.2}{}", figure.ratio(), if is_near { "" } else { " !" })),
                Cell::new(if row.held_out { "held out" } else { "" }),
            ]);
        }
    }
    format!(
        "{}\n{near} of {judged} within tolerance: medians and rates 10 %, reads 25 % at p99 and 50 % at p99.9, writes \
         a factor of 2 at both\n",
        output::table(&table)
    )
}

/// `read-latency-us p99`
pub(super) fn label(published: &PublishedPerformance) -> String {
    let name = published.figure.name();
    published.percentile.map_or_else(|| name.to_owned(), |percentile| format!("{name} p{percentile}"))
}

fn block(bytes: u32) -> String {
    if bytes.is_multiple_of(1024) { format!("{} KiB", bytes / 1024) } else { format!("{bytes} B") }
}
