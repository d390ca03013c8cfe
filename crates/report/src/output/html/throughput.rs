//! Throughput side by side.

use maud::{Markup, html};

use super::charts::{ChartMark, GroupChart, MarkGroup};
use super::drawing::AltText;
use super::{ReportPage, figure};
use crate::comparison::{ComparisonRow, RowMetrics, group_by_mix};
use crate::quantity;
use crate::statistics::ConfidenceInterval;

/// Groups of bars that one picture holds readably.
pub(super) const GROUPS_ACROSS: usize = 8;
/// Highest over lowest value from which dots on a logarithmic axis take the place of bars.
const LOG_FROM: f64 = 30.0;

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    let pictures = bar_pictures(
        page,
        page.comparison.operations(),
        ["Throughput", "operations per second"],
        &|figures| {
            let estimate = figures.throughput_per_s;
            Some((estimate.value, estimate.interval))
        },
        &rate_label,
    )?;
    Some(html! {
        p.lead { "Operations per second, more is better. Whiskers are 95 % intervals." }
        (page.legend())
        (pictures)
    })
}

/// `9.1k` on an axis.
pub(super) fn rate_label(per_s: f64) -> String {
    match per_s {
        large if large >= 999_500.0 => format!("{}M", quantity::number(per_s / 1e6, 2)),
        large if large >= 999.5 => format!("{}k", quantity::number(per_s / 1e3, 2)),
        _ => quantity::number(per_s, 2),
    }
}

/// A cell's value and its interval.
pub(super) type ThroughputPick<'a> = &'a dyn Fn(&RowMetrics) -> Option<(f64, Option<ConfidenceInterval>)>;

/// Grouped bars of one figure over rows: one picture when each mix has one workload, else one for each mix.
pub(super) fn bar_pictures<'c>(
    page: &ReportPage,
    rows: impl Iterator<Item = &'c ComparisonRow<'c>>,
    [title, y_title]: [&str; 2],
    pick: ThroughputPick,
    label: &dyn Fn(f64) -> String,
) -> Option<Markup> {
    let by_mix = group_by_mix(rows);
    let is_one_picture = by_mix.iter().all(|(_, _, rows)| rows.len() == 1) && by_mix.len() <= GROUPS_ACROSS;
    let parts: Vec<(String, Vec<&ComparisonRow>)> = if is_one_picture {
        vec![(title.to_owned(), by_mix.iter().flat_map(|(_, _, rows)| rows.iter().copied()).collect())]
    } else {
        by_mix
            .iter()
            .flat_map(|(system, mix, rows)| {
                let name = page.mix_heading(system, mix);
                rows.chunks(GROUPS_ACROSS).map(move |chunk| (name.clone(), chunk.to_vec()))
            })
            .collect()
    };
    let pictures: Vec<Markup> = parts
        .iter()
        .filter_map(|(name, rows)| {
            let groups: Vec<MarkGroup> = rows.iter().map(|row| group(page, row, pick)).collect();
            let values: Vec<f64> =
                groups.iter().flat_map(|group| &group.marks).map(|mark| mark.value).collect();
            let high = values.iter().copied().reduce(f64::max)?;
            // A logarithmic axis has no place for 0.
            let low = values.iter().copied().filter(|value| *value > 0.0).reduce(f64::min)?;
            let is_log = high > LOG_FROM * low;
            let scale = if is_log { ", logarithmic scale" } else { "" };
            let svg = GroupChart {
                words: AltText { title: name, description: &description(page, &groups, label) },
                y_title: &format!("{y_title}{scale}"),
                groups: &groups,
                is_log,
                width: 1060,
                height: 320,
                label,
            }
            .draw();
            Some(figure(name, svg))
        })
        .collect();
    (!pictures.is_empty()).then(|| html! { @for picture in &pictures { (picture) } })
}

fn group(page: &ReportPage, row: &ComparisonRow, pick: ThroughputPick) -> MarkGroup {
    let marks = ChartMark::from_row(row, |result| pick(result.figures()?));
    let label = match row.label_in_mix() {
        // A single workload of a mix is named by what the mix is.
        "" => page.mix_heading(row.system, row.cell.mix_or_job()).replace("Workload ", ""),
        label => label.to_owned(),
    };
    MarkGroup { label, marks }
}

/// The picture's values in words, for those who don't see it.
pub(super) fn description(page: &ReportPage, groups: &[MarkGroup], label: &dyn Fn(f64) -> String) -> String {
    groups
        .iter()
        .map(|group| {
            let marks: Vec<String> = group
                .marks
                .iter()
                .map(|mark| format!("{} {}", page.comparison.storages[mark.series], label(mark.value)))
                .collect();
            format!("{}: {}.", group.label, marks.join(", "))
        })
        .collect::<Vec<_>>()
        .join(" ")
}
