//! The price of the storage, and of its results.

use maud::{Markup, html};
use underlay_record::RENT_YEARS;

use super::summary::priced;
use super::throughput::bar_pictures;
use super::{ReportPage, swatch};
use crate::cell::cost::{StorageCost, devices_in_words, roles_in_words};
use crate::comparison::storage_records;
use crate::quantity::{self, ABSENT};
use crate::statistics::ConfidenceInterval;

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    let records = storage_records(&page.comparison);
    if records.is_empty() {
        return None;
    }
    let is_rented = records
        .values()
        .filter_map(|one| StorageCost::from_storage(one))
        .any(|cost| cost.price.rent_usd > 0.0);
    let has_operations = page.comparison.operations().next().is_some();
    let pictures = bar_pictures(
        page,
        // The cost of an offered rate is the price over that rate.
        page.comparison.unthrottled(),
        ["Dollars for each 1,000 ops/s", "$ per 1,000 ops/s"],
        &|figures| {
            let cost = figures.cost.as_ref()?;
            let value = cost.usd_per_kops(figures.throughput_per_s.value)?;
            // A price is exact, so the interval is the throughput's, turned round.
            let interval = figures.throughput_per_s.interval.filter(|one| one.low > 0.0).and_then(|one| {
                Some(ConfidenceInterval {
                    low: cost.usd_per_kops(one.high)?,
                    high: cost.usd_per_kops(one.low)?,
                })
            });
            Some((value, interval))
        },
        &quantity::dollars,
    );
    Some(html! {
        p.lead {
            "List prices of the devices alone: no servers, power, redundancy or discount. "
            @if records.values().any(|storage| roles_in_words(storage).is_some()) {
                "Devices that only one role of the system uses are named and not counted: they are the same with every storage. "
            }
            @if is_rented { "Rented devices are priced at " (RENT_YEARS) " years' rent, and nothing is owned afterwards. " }
            @if has_operations { "Dollars for each 1,000 ops/s divide the price by the throughput above: less is better." }
        }
        div.scroll { table {
            thead { tr {
                th.l { "Storage" } th.l { "Devices" } th { "Capacity as sold" } th { "List price" } th { "$/TB" } th.l { "Price taken from" }
            } }
            tbody {
                @for (index, name) in page.comparison.storages.iter().enumerate() {
                    @if let Some(storage) = records.get(name) {
                        @let cost = StorageCost::from_storage(storage);
                        @let capacity = cost.as_ref().and_then(|cost| cost.capacity_bytes);
                        tr {
                            th.l scope="row" { (swatch(index)) (name) }
                            td.l {
                                (devices_in_words(storage))
                                @if let Some(roles) = roles_in_words(storage) { small { "not counted: " (roles) } }
                            }
                            td { (capacity.map_or(ABSENT.to_owned(), quantity::bytes)) }
                            @let price = cost.as_ref().map(|cost| &cost.price);
                            (priced(price.map(|price| price.usd), price))
                            (priced(cost.as_ref().and_then(StorageCost::usd_per_tb), price))
                            td.w {
                                @match &cost {
                                    Some(cost) if !cost.sources.is_empty() => (cost.sources.join("; ")),
                                    _ => (ABSENT),
                                }
                            }
                        }
                    }
                }
            }
        } }
        @if let Some(pictures) = pictures { (page.legend()) (pictures) }
    })
}
