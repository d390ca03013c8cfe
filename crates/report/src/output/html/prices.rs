//! The cost of performance and capacity at the prices of different times, and the price at which a medium pays.

use maud::{Markup, html};

use super::summary::priced;
use super::{ReportPage, swatch};
use crate::comparison::prices::{self, BreakEven, BreakEvenPrice, ON_RECORD, PriceList};
use crate::comparison::{storage_records, work_title};
use crate::output::terminal::prices::{
    BANDWIDTH, NOT_AT_ANY_PRICE, break_even_range, describe_date, dollar_range, is_worth_it, per_performance,
    times, words_on_ranges,
};
use crate::quantity::{self, ABSENT};
use crate::statistics::ConfidenceInterval;

/// For runs of jobs; nothing else has a performance that is the same in every list of prices.
pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    if !is_worth_it(&page.comparison) {
        return None;
    }
    let table = page.loaded.run.reference.as_ref();
    let lists = prices::lists(table, &page.comparison);
    if lists.is_empty() {
        return None;
    }
    let pairs = prices::break_evens(&lists, table, &page.comparison);
    Some(html! {
        p.lead {
            "Dollars for the performance of " (page.comparison.baseline) ": a storage's price over how many times as fast it does a job, from the job "
            "where it is cheapest to the one where it is dearest (" (words_on_ranges(&page.comparison)) "). " @if lists.len() > 1 { (BANDWIDTH) " " } "Devices alone: no servers, power or redundancy."
        }
        (costs(page, &lists))
        (unit_prices(&lists))
        @if !pairs.is_empty() {
            h3 { "Break-even" }
            p.muted {
                "The price of one device of the faster medium at which performance costs the same on both storages, at that time's price of "
                "everything else. Below it the storage pays for itself in performance alone."
            }
            (break_evens(page, &lists, &pairs))
            @for pair in &pairs { (each_job(page, &lists, pair)) }
        }
    })
}

fn describe_prices(list: &PriceList) -> String {
    match list.when == ON_RECORD {
        true => "At list prices".to_owned(),
        false => format!("At the prices of {}", describe_date(list)),
    }
}

fn costs(page: &ReportPage, lists: &[PriceList]) -> Markup {
    let records = storage_records(&page.comparison);
    html! {
        div.scroll { table {
            thead { tr {
                th.l { "Storage" } th { "Price" } th { "Capacity" } th { "$/TB" } th { "$/TB against " (page.comparison.baseline) }
                th { "$ for performance" } th { "$ for performance against " (page.comparison.baseline) }
            } }
            tbody {
                @for list in lists {
                    @let base_index = page.comparison.baseline_index();
                    @let base = base_index.and_then(|index| list.price_storage(records.get(page.comparison.storages[index])?));
                    tr.group { th colspan="7" { (describe_prices(list)) } }
                    @for (index, name) in page.comparison.storages.iter().enumerate() {
                        @if let Some(price) = records.get(name).and_then(|storage| list.price_storage(storage)) {
                            @let range = per_performance(&page.comparison, list, index);
                            @let per_tb = base.and_then(|base| Some(price.usd_per_tb()? / base.usd_per_tb()?));
                            tr {
                                th.l scope="row" { (swatch(index)) (name) }
                                (priced(Some(price.price.usd), Some(&price.price)))
                                td { (quantity::bytes(price.capacity_bytes)) }
                                (priced(price.usd_per_tb(), Some(&price.price)))
                                td { (per_tb.map_or(ABSENT.to_owned(), quantity::ratio)) }
                                td {
                                    span.strong { (range.map_or(ABSENT.to_owned(), |(low, high)| dollar_range(low, high))) }
                                    @if let Some(remark) = price.price.remark_on_part().filter(|_| range.is_some()) { small { (remark) } }
                                }
                                td { (range.zip(base).map_or(ABSENT.to_owned(), |(range, base)| times(range, base.price.usd))) }
                            }
                        } @else {
                            tr { th.l scope="row" { (swatch(index)) (name) } td.w colspan="6" { span.dim { "a device of it has no price of that time" } } }
                        }
                    }
                }
            }
        } }
    }
}

/// Where each price is from.
fn unit_prices(lists: &[PriceList]) -> Markup {
    html! {
        details {
            summary { "Where the prices are from" }
            div.scroll { table {
                thead { tr {
                    th.l { "Prices of" } th.l { "Device" } th { "Its bandwidth costs" } th { "with a capacity of" } th { "Devices of that time for one" } th.l { "From" }
                } }
                tbody {
                    @for list in lists {
                        @for price in &list.prices {
                            tr {
                                th.l scope="row" { (describe_date(list)) }
                                td.l { (price.medium) }
                                (priced(Some(price.price.usd), Some(&price.price)))
                                td { (quantity::bytes(price.capacity_bytes)) }
                                td { (quantity::number(price.devices, 2)) }
                                td.w { (price.source) }
                            }
                        }
                    }
                }
            } }
        }
    }
}

fn break_evens(page: &ReportPage, lists: &[PriceList], pairs: &[BreakEven]) -> Markup {
    html! {
        div.scroll { table {
            thead {
                tr {
                    th.l { "Storage" } th.l { "Against" } th.l { "One device of" }
                    @for list in lists { th { "pays off below, at the prices of " (describe_date(list)) } }
                }
            }
            tbody {
                @for pair in pairs {
                    tr {
                        th.l scope="row" { (swatch(pair.storage)) (page.comparison.storages[pair.storage]) }
                        td.l { (swatch(pair.against)) (page.comparison.storages[pair.against]) }
                        td.l { (pair.medium) }
                        @for (index, list) in lists.iter().enumerate() {
                            td {
                                span.strong { (break_even_range(pair, index)) }
                                @if let Some(price) = list.find_medium(pair.medium) { small { "it costs " (quantity::price(&price.price)) } }
                            }
                        }
                    }
                }
            }
        } }
    }
}

fn each_job(page: &ReportPage, lists: &[PriceList], pair: &BreakEven) -> Markup {
    let names = [pair.storage, pair.against].map(|index| page.comparison.storages[index]);
    html! {
        details {
            summary { (names[0]) " against " (names[1]) ", job by job" }
            div.scroll { table {
                thead { tr {
                    th.l { "Job" } th { "Performance" }
                    @for list in lists { th { "pays off below, " (describe_date(list)) } }
                } }
                tbody {
                    @for (row, ratio, each) in &pair.rows {
                        @let row = &page.comparison.rows[*row];
                        tr {
                            th.l scope="row" title=(work_title(row.cell)) { (page.row_label(row)) }
                            td {
                                (quantity::ratio(ratio.value))
                                @if let Some(interval) = ratio.interval { small { (quantity::ratio_interval(interval)) } }
                            }
                            @for price in each { td { (break_even(*price)) } }
                        }
                    }
                }
            } }
        }
    }
}

fn break_even(price: Option<BreakEvenPrice>) -> Markup {
    let end = |usd: f64| if usd > 0.0 { quantity::dollars(usd) } else { "none".to_owned() };
    html! {
        @match price {
            None => (ABSENT),
            Some(price) if price.usd <= 0.0 => span.dim { (NOT_AT_ANY_PRICE) },
            Some(price) => {
                span.strong { (quantity::dollars(price.usd)) }
                @if let Some(ConfidenceInterval { low, high }) = price.interval { small { (end(low)) "–" (end(high)) } }
            },
        }
    }
}
