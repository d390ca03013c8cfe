//! The wear of flash in the measured time.

use maud::{Markup, html};
use underlay_record::FlashWear;

use super::swatch;
use crate::cell::activity::under_test;
use crate::comparison::{CellResult, ComparisonRow};
use crate::quantity::{self, ABSENT};

/// The devices' wear, and its source.
struct DeviceWear {
    wear: FlashWear,
    /// Modelled seconds that were measured, of one repetition on average.
    measured_s: f64,
    /// How the drives were modelled to begin; absent where they differ, or records don't say.
    starts_overwritten: Option<bool>,
}

/// The devices under test taken together, over all completed repetitions.
fn summarize_wear(result: &CellResult) -> Option<DeviceWear> {
    let worn: Vec<(&FlashWear, f64, Option<bool>)> = result
        .completed()
        .flat_map(under_test)
        .filter_map(|device| {
            Some((device.wear.as_ref()?, device.duration_s, device.description.starts_overwritten))
        })
        .collect();
    let starts_overwritten = worn.first()?.2.filter(|first| worn.iter().all(|one| one.2 == Some(*first)));
    let (mut total, mut rated_bytes, mut device_s) = (FlashWear::default(), Some(0_u64), 0.0);
    for (wear, duration_s, _) in &worn {
        total.host_write_bytes += wear.host_write_bytes;
        total.programmed_bytes += wear.programmed_bytes;
        total.erased_blocks += wear.erased_blocks;
        rated_bytes = rated_bytes.zip(wear.rated_write_bytes).map(|(sum, rated)| sum + rated);
        device_s += duration_s;
    }
    // Each device's life, once for each repetition: the mean rate of one against the mean rating of one.
    total.rated_write_bytes = rated_bytes;
    let mean_s = device_s / worn.len().max(1) as f64;
    Some(DeviceWear {
        wear: total.delta_since(&FlashWear::default(), mean_s),
        measured_s: mean_s,
        starts_overwritten,
    })
}

/// A table, or nothing where no storage wears.
pub(super) fn table(rows: &[&ComparisonRow]) -> Markup {
    let lines: Vec<(&str, usize, &CellResult, DeviceWear)> = rows
        .iter()
        .flat_map(|row| {
            let cells = row.cells.iter().enumerate();
            cells.filter_map(|(index, result)| {
                let result = result.as_ref()?;
                Some((row.name_in_mix(), index, result, summarize_wear(result)?))
            })
        })
        .collect();
    if lines.is_empty() {
        return html! {};
    }
    html! {
        p.lead {
            "Wear: bytes that the flash programmed for each byte that the host wrote. Drive life is extrapolated: how long the rated endurance would last if the "
            "few seconds that were measured went on day and night. " (beginnings(lines.iter().map(|line| &line.3)))
        }
        div.scroll { table {
            thead { tr {
                @if rows.len() > 1 { th.l { "Workload" } }
                th.l { "Storage" } th { "host wrote" } th { "programmed" } th { "write amplification" }
                th { "blocks erased" } th { "drive life" }
            } }
            tbody {
                @for (name, index, result, worn) in &lines {
                    @let wear = &worn.wear;
                    tr {
                        @if rows.len() > 1 { td.n { (name) } }
                        th.l scope="row" { (swatch(*index)) (result.cell.storage) }
                        td { (quantity::bytes(wear.host_write_bytes as f64)) }
                        td { (quantity::bytes(wear.programmed_bytes as f64)) }
                        td { (amplification(wear)) }
                        td { (wear.erased_blocks) }
                        td {
                            (wear.life_days.map_or(ABSENT.to_owned(), life))
                            @if wear.life_days.is_some() { small { "from " (quantity::duration(worn.measured_s)) } }
                        }
                    }
                }
            }
        } }
    }
}

/// The assumptions of write amplification about the drives.
fn beginnings<'w>(worn: impl Iterator<Item = &'w DeviceWear>) -> &'static str {
    let all: Vec<Option<bool>> = worn.map(|one| one.starts_overwritten).collect();
    match all.first() {
        Some(Some(true)) if all.iter().all(|one| *one == Some(true)) => {
            "The drives are modelled as fully overwritten beforehand, so garbage collection works from the first write."
        }
        Some(Some(false)) if all.iter().all(|one| *one == Some(false)) => {
            "The drives are modelled as fresh, so that garbage collection may not have begun."
        }
        _ => "Write amplification depends on how full the drives were before: see initial in the study.",
    }
}

fn amplification(wear: &FlashWear) -> String {
    wear.write_amplification.map_or(ABSENT.to_owned(), |factor| quantity::number(factor, 3))
}

fn life(days: f64) -> String {
    const DAYS_OF_A_YEAR: f64 = 365.25;
    const MAX_YEARS: f64 = 100.0;
    let years = days / DAYS_OF_A_YEAR;
    match years {
        _ if years > MAX_YEARS => "over 100 years".to_owned(),
        _ if years >= 2.0 => format!("{} years", quantity::number(years, 2)),
        _ => format!("{} days", quantity::number(days, 2)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetime_is_printed_in_fitting_unit() {
        assert_eq!(life(1e9), "over 100 years");
        assert_eq!(life(1826.25), "5.0 years");
        assert_eq!(life(3.2), "3.2 days");
    }
}
