//! The cost of performance and capacity at the prices of different times, and the price at which a medium pays.

use super::{TableLayout, TablePaint, wrap};
use crate::comparison::prices::{self, BreakEven, BreakEvenPrice, PriceList};
use crate::comparison::{ComparisonRow, RunComparison, storage_records};
use crate::findings::effect::envelope;
use crate::quantity::{self, ABSENT};
use crate::statistics::ConfidenceInterval;
use underlay_record::ReferenceTable;

/// A table for each time's prices and one of break-even prices; empty where the run has no jobs, or no prices.
pub(super) fn text(
    comparison: &RunComparison,
    table: Option<&ReferenceTable>,
    width: usize,
    paint: TablePaint,
) -> String {
    let lists = prices::lists(table, comparison);
    if !is_worth_it(comparison) || lists.is_empty() {
        return String::new();
    }
    let mut out = String::new();
    let title = format!(
        "Price of capacity, and of the performance of {}: price over how many times as fast, from job to job, {}",
        comparison.baseline,
        words_on_ranges(comparison)
    );
    out.push('\n');
    for line in wrap(&title, width, "") {
        out += &format!("{}\n", paint.bold(&line));
    }
    out += &table_of(comparison, &lists).render(width, paint);
    // With one list there is no other time that the note could mean.
    if lists.len() > 1 {
        for line in wrap(BANDWIDTH, width - 2, "") {
            out += &format!("  {}\n", paint.dim(&line));
        }
    }
    let pairs = prices::break_evens(&lists, table, comparison);
    if !pairs.is_empty() {
        let title = format!(
            "Break-even: the price of one device at which performance costs as much, {}",
            words_on_ranges(comparison)
        );
        out.push('\n');
        for line in wrap(&title, width, "") {
            out += &format!("{}\n", paint.bold(&line));
        }
        out += &break_even_table(comparison, &lists, &pairs).render(width, paint);
    }
    out
}

/// How prices of another time are applied.
pub(crate) const BANDWIDTH: &str = "Prices of another time buy the same bandwidth: that time's dollars per MB/s, times \
    the MB/s of the devices that were measured.";

/// Whether jobs were measured on several storages: what performance costs is only a figure beside another.
pub(crate) fn is_worth_it(comparison: &RunComparison) -> bool {
    let of_baseline = |row: &ComparisonRow, index: usize| prices::performance(row, index, index).is_some();
    let is_measured =
        |row: &ComparisonRow| comparison.baseline_index().is_some_and(|index| of_baseline(row, index));
    comparison.storages.len() > 1 && comparison.jobs().any(is_measured)
}

/// The note on ranges of dollars.
pub(crate) fn words_on_ranges(comparison: &RunComparison) -> &'static str {
    let cells = comparison.jobs().flat_map(|row| row.cells.iter().flatten());
    let mut ratios = cells.filter_map(|result| result.job()?.performance);
    match ratios.any(|ratio| ratio.interval.is_some()) {
        true => "95 % intervals",
        false => "single runs, without intervals",
    }
}

/// A list's name as a column says it.
pub(crate) fn describe_date(list: &PriceList) -> String {
    match list.when.as_str() {
        "catalogue" => "the catalogue".to_owned(),
        other => other.to_owned(),
    }
}

/// Dollars for the baseline's performance, from the lowest end of all jobs' intervals to the highest.
pub(crate) fn per_performance(
    comparison: &RunComparison,
    list: &PriceList,
    storage: usize,
) -> Option<(f64, f64)> {
    let baseline = comparison.baseline_index()?;
    let records = storage_records(comparison);
    let price = list.price_storage(records.get(comparison.storages[storage])?)?;
    if storage == baseline {
        return Some((price.price.usd, price.price.usd));
    }
    let each = comparison.jobs().filter_map(|row: &ComparisonRow| {
        let ratio = prices::performance(row, storage, baseline)?;
        let usd = prices::usd_per_performance(&price, &ratio);
        Some(usd.interval.unwrap_or(ConfidenceInterval { low: usd.value, high: usd.value }))
    });
    let each: Vec<ConfidenceInterval> = each.collect();
    envelope(&each).filter(|all| all.high > 0.0).map(|all| (all.low, all.high))
}

/// `$3,200–$4,100`, or one of them when they read the same.
pub(crate) fn dollar_range(low: f64, high: f64) -> String {
    let (low, high) = (quantity::dollars(low), quantity::dollars(high));
    if low == high { low } else { format!("{low}–{high}") }
}

fn table_of(comparison: &RunComparison, lists: &[PriceList]) -> TableLayout {
    let header = ["prices of", "storage", "price", "$/TB", "$/performance", "against baseline"];
    let mut layout = TableLayout::new(&header.map(str::to_owned));
    let records = storage_records(comparison);
    for list in lists {
        let mut name = describe_date(list);
        let base = comparison.baseline_index().and_then(|index| per_performance(comparison, list, index));
        for (index, storage) in comparison.storages.iter().enumerate() {
            let price = records.get(storage).and_then(|record| list.price_storage(record));
            let Some(price) = price else { continue };
            let range = per_performance(comparison, list, index);
            layout.table.add_row(vec![
                std::mem::take(&mut name),
                (*storage).to_owned(),
                quantity::price(&price.price),
                price.usd_per_tb().map_or(ABSENT.to_owned(), |usd| match price.price.rent_usd > 0.0 {
                    true => format!("{} rent", quantity::number(usd, 3)),
                    false => quantity::number(usd, 3),
                }),
                range.map_or(ABSENT.to_owned(), |(low, high)| match price.price.rent_usd > 0.0 {
                    true => format!("{} rent", dollar_range(low, high)),
                    false => dollar_range(low, high),
                }),
                range.zip(base).map_or(ABSENT.to_owned(), |(ours, base)| times(ours, base.0)),
            ]);
        }
    }
    layout.finish(&[0, 1]);
    layout
}

/// `0.90–1.2x` of a base.
pub(crate) fn times((low, high): (f64, f64), base: f64) -> String {
    let (low, high) = (quantity::number(low / base, 2), quantity::number(high / base, 2));
    if low == high { format!("{low}x") } else { format!("{low}–{high}x") }
}

fn break_even_table(comparison: &RunComparison, lists: &[PriceList], pairs: &[BreakEven]) -> TableLayout {
    let header = ["storage", "against", "one device of", "prices of", "pays off below", "it costs"];
    let mut layout = TableLayout::new(&header.map(str::to_owned));
    for pair in pairs {
        let mut names = [comparison.storages[pair.storage], comparison.storages[pair.against], pair.medium]
            .map(str::to_owned);
        for (index, list) in lists.iter().enumerate() {
            let mut fields: Vec<String> = names.iter_mut().map(std::mem::take).collect();
            fields.extend([
                describe_date(list),
                break_even_range(pair, index),
                list.find_medium(pair.medium)
                    .map_or(ABSENT.to_owned(), |price| quantity::price(&price.price)),
            ]);
            layout.table.add_row(fields);
        }
    }
    layout.finish(&[0, 1, 2, 3]);
    layout
}

/// From the lowest end of all workloads' intervals to the highest.
pub(crate) fn break_even_range(pair: &BreakEven, list: usize) -> String {
    let each: Vec<BreakEvenPrice> =
        pair.rows.iter().filter_map(|(_, _, lists)| lists.get(list).copied().flatten()).collect();
    let ends =
        |one: &BreakEvenPrice| one.interval.unwrap_or(ConfidenceInterval { low: one.usd, high: one.usd });
    let low = each.iter().map(|one| ends(one).low).reduce(f64::min);
    let high = each.iter().map(|one| ends(one).high).reduce(f64::max);
    match (low, high) {
        (Some(_), Some(high)) if high <= 0.0 => NOT_AT_ANY_PRICE.to_owned(),
        (Some(low), Some(high)) if low <= 0.0 => format!("none–{}", quantity::dollars(high)),
        (Some(low), Some(high)) => dollar_range(low, high),
        _ => ABSENT.to_owned(),
    }
}

/// The text where even a free device would not pay.
pub(crate) const NOT_AT_ANY_PRICE: &str = "at no price";
