//! The cost of results at the prices of different times, and the price of a faster medium at which it would pay.
//!
//! A run measures devices of one time. At another time the same bandwidth is bought: a device of 120 MB/s stands for
//! half of one that brings 240 MB/s, at half its price and with half its capacity. So performance, which was measured,
//! stays as it is.

use underlay_record::{DevicePrice, PriceSum, ReferenceTable, StorageRecord};

use crate::cell::cost::under_test;
use crate::comparison::{ComparisonRow, RunComparison, storage_records};
use crate::statistics::ConfidenceInterval;
use crate::statistics::ratio::EstimateRatio;

/// Devices' own prices, as the records have them.
pub const ON_RECORD: &str = "list price";

/// The substitute for one device of the study, bought at some time.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitPrice {
    /// The medium of the study's devices.
    pub medium: String,
    pub price: PriceSum,
    pub capacity_bytes: f64,
    /// Devices of that time for one of the study's, by their bandwidth; 1 where prices are those on record.
    pub devices: f64,
    pub source: String,
}

/// The prices of one time.
#[derive(Clone, Debug, PartialEq)]
pub struct PriceList {
    /// `2013`, `catalogue`, [`ON_RECORD`].
    pub when: String,
    pub prices: Vec<UnitPrice>,
}

/// A storage at the prices of one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoragePrice {
    pub price: PriceSum,
    pub capacity_bytes: f64,
}

impl StoragePrice {
    /// Dollars for a terabyte (10¹² bytes).
    pub fn usd_per_tb(&self) -> Option<f64> {
        (self.capacity_bytes > 0.0).then(|| self.price.usd / (self.capacity_bytes / 1e12))
    }
}

impl PriceList {
    pub fn find_medium(&self, medium: &str) -> Option<&UnitPrice> {
        self.prices.iter().find(|price| price.medium == medium)
    }

    /// None unless each of the storage's devices has a price. A role's own storage is not counted: it is the same
    /// beside every storage.
    pub fn price_storage(&self, storage: &StorageRecord) -> Option<StoragePrice> {
        let each: Option<Vec<&UnitPrice>> =
            under_test(storage).map(|device| self.find_medium(device.medium.as_deref()?)).collect();
        let each = each.filter(|prices| !prices.is_empty())?;
        Some(StoragePrice {
            price: each.iter().map(|unit| unit.price).sum(),
            capacity_bytes: each.iter().map(|price| price.capacity_bytes).sum(),
        })
    }

    fn is_like(&self, other: &PriceList) -> bool {
        self.prices.iter().all(|price| {
            other
                .find_medium(&price.medium)
                .is_some_and(|one| (one.price.usd - price.price.usd).abs() <= 0.005 * price.price.usd.abs())
        })
    }
}

/// Every time that has prices of the run's devices: those beside the reference, in its order, then those on record
/// where they differ.
pub fn lists(table: Option<&ReferenceTable>, comparison: &RunComparison) -> Vec<PriceList> {
    let mut lists: Vec<PriceList> = Vec::new();
    let published = table.map_or(&[][..], |table| &table.prices);
    for price in published {
        // The first price of a medium is that of the study's own device.
        let Some(own) = published.iter().find(|one| one.medium == price.medium) else { continue };
        let Some(unit) = unit_price(own, price) else { continue };
        match lists.iter_mut().find(|list| list.when == price.when) {
            Some(list) if list.find_medium(&unit.medium).is_none() => list.prices.push(unit),
            Some(_) => {}
            None => lists.push(PriceList { when: price.when.clone(), prices: vec![unit] }),
        }
    }
    let own = on_record(comparison);
    if !own.prices.is_empty() && !lists.iter().any(|list| own.is_like(list)) {
        lists.push(own);
    }
    lists
}

fn unit_price(own: &DevicePrice, price: &DevicePrice) -> Option<UnitPrice> {
    let devices = own.bandwidth_bytes_per_s / price.bandwidth_bytes_per_s;
    let is_usable = devices.is_finite() && devices > 0.0 && price.usd.is_finite() && price.usd > 0.0;
    is_usable.then(|| UnitPrice {
        medium: price.medium.clone(),
        price: PriceSum::new(price.usd, price.is_rented) * devices,
        capacity_bytes: price.capacity_bytes as f64 * devices,
        devices,
        source: price.source.clone(),
    })
}

fn on_record(comparison: &RunComparison) -> PriceList {
    let mut list = PriceList { when: ON_RECORD.to_owned(), prices: Vec::new() };
    for device in storage_records(comparison).values().flat_map(|storage| under_test(storage)) {
        let (Some(medium), Some(usd), Some(capacity)) =
            (&device.medium, device.price_usd, device.capacity_bytes)
        else {
            continue;
        };
        if list.find_medium(medium).is_none() {
            list.prices.push(UnitPrice {
                medium: medium.clone(),
                price: PriceSum::new(usd, device.is_rented),
                capacity_bytes: capacity as f64,
                devices: 1.0,
                source: device.price_source.clone().unwrap_or_default(),
            });
        }
    }
    list
}

/// How many times as fast one storage is as another under a row's workload: by the durations of a job, by the first
/// figure of a benchmark, or by throughput.
pub fn performance(row: &ComparisonRow, storage: usize, against: usize) -> Option<EstimateRatio> {
    if let (Some(ours), Some(theirs)) = (row.benchmark(storage), row.benchmark(against)) {
        return ours.first()?.against(theirs.first()?);
    }
    match (row.job(storage), row.job(against)) {
        // The shorter job is the faster one, so the ratio is turned over.
        (Some(ours), Some(theirs)) => EstimateRatio::new(&theirs.duration_s, &ours.duration_s),
        _ => EstimateRatio::new(
            &row.figures(storage)?.throughput_per_s,
            &row.figures(against)?.throughput_per_s,
        ),
    }
}

/// Dollars for another storage's performance on one of this price, which is `performance` times as fast.
pub fn usd_per_performance(price: &StoragePrice, performance: &EstimateRatio) -> EstimateRatio {
    let interval = performance
        .interval
        .filter(|one| one.low > 0.0)
        // The ends change places: the highest performance makes the lowest price.
        .map(|one| ConfidenceInterval { low: price.price.usd / one.high, high: price.price.usd / one.low });
    EstimateRatio { value: price.price.usd / performance.value, interval }
}

/// The price of one device at which a storage costs as much for its performance as another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakEvenPrice {
    /// Not above zero where the rest of the storage alone costs as much already.
    pub usd: f64,
    pub interval: Option<ConfidenceInterval>,
}

/// A storage with a medium that another one lacks, and what that medium may cost.
#[derive(Clone, Debug, PartialEq)]
pub struct BreakEven<'a> {
    pub storage: usize,
    pub against: usize,
    pub medium: &'a str,
    pub devices: usize,
    /// By row: its index in [`RunComparison::rows`], the performance, and the price by list.
    pub rows: Vec<(usize, EstimateRatio, Vec<Option<BreakEvenPrice>>)>,
}

/// Every storage with one medium more than the baseline, or than what the reference's claims hold it against.
pub fn break_evens<'a>(
    lists: &[PriceList],
    table: Option<&ReferenceTable>,
    comparison: &RunComparison<'a>,
) -> Vec<BreakEven<'a>> {
    let records = storage_records(comparison);
    let place = |name: &str| comparison.storages.iter().position(|storage| *storage == name);
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for (storage, name) in comparison.storages.iter().enumerate() {
        let checks = table.iter().flat_map(|table| &table.claims).flat_map(|claim| &claim.checks);
        let claimed = checks.filter(|check| check.storage == *name).filter_map(|check| place(&check.against));
        for against in comparison.baseline_index().into_iter().chain(claimed) {
            if against != storage && !pairs.contains(&(storage, against)) {
                pairs.push((storage, against));
            }
        }
    }
    let record = |index: usize| records.get(comparison.storages[index]).copied();
    pairs
        .into_iter()
        .filter_map(|(storage, against)| {
            let (ours, theirs) = (record(storage)?, record(against)?);
            let medium = medium_alone_in(ours, theirs)?;
            let devices = under_test(ours).filter(|one| one.medium.as_deref() == Some(medium)).count();
            let rows: Vec<_> = comparison
                .rows
                .iter()
                .enumerate()
                .filter_map(|(index, row)| {
                    let ratio = performance(row, storage, against)?;
                    let each =
                        lists.iter().map(|list| break_even(list, ours, theirs, medium, &ratio)).collect();
                    Some((index, ratio, each))
                })
                .collect();
            (!rows.is_empty()).then_some(BreakEven { storage, against, medium, devices, rows })
        })
        .collect()
}

/// The one medium of a storage that the other has none of.
fn medium_alone_in<'a>(ours: &'a StorageRecord, theirs: &StorageRecord) -> Option<&'a str> {
    let mut alone: Vec<&str> = under_test(ours).filter_map(|device| device.medium.as_deref()).collect();
    alone.sort_unstable();
    alone.dedup();
    alone.retain(|medium| !under_test(theirs).any(|device| device.medium.as_deref() == Some(medium)));
    match alone[..] {
        [medium] => Some(medium),
        _ => None,
    }
}

/// `price : performance` is equal where the storage costs the other's price times as much as it is faster. The price of
/// its other devices is subtracted; the rest is for the devices in question.
fn break_even(
    list: &PriceList,
    ours: &StorageRecord,
    theirs: &StorageRecord,
    medium: &str,
    performance: &EstimateRatio,
) -> Option<BreakEvenPrice> {
    let against = list.price_storage(theirs)?.price.usd;
    let (in_question, others): (Vec<_>, Vec<_>) =
        under_test(ours).partition(|device| device.medium.as_deref() == Some(medium));
    let rest: Option<f64> = others
        .iter()
        .map(|device| Some(list.find_medium(device.medium.as_deref()?)?.price.usd))
        .sum::<Option<f64>>();
    let (rest, count) = (rest?, in_question.len() as f64);
    let price_at = |ratio: f64| (against * ratio - rest) / count;
    let usd = price_at(performance.value);
    // Nothing costs less than nothing: the interval of a price ends there.
    let lowest = |low: f64| if usd > 0.0 { low.max(0.0) } else { low };
    Some(BreakEvenPrice {
        usd,
        interval: performance
            .interval
            .map(|one| ConfidenceInterval { low: lowest(price_at(one.low)), high: price_at(one.high) }),
    })
}

#[cfg(test)]
mod tests {
    use underlay_record::{DeviceArrangement, DeviceDescription};

    use super::*;

    fn storage(devices: &[(&str, usize)]) -> StorageRecord {
        let devices = devices
            .iter()
            .flat_map(|(medium, count)| std::iter::repeat_n(*medium, *count))
            .map(|medium| DeviceDescription {
                medium: Some(medium.to_owned()),
                ..DeviceDescription::default()
            })
            .collect();
        StorageRecord {
            attachment: String::new(),
            filesystem: None,
            arrangement: Some(DeviceArrangement::Jbod),
            layout: "jbod".to_owned(),
            devices,
            usable_bytes: None,
        }
    }

    fn price(medium: &str, usd: f64, tb: f64, mb_s: f64) -> DevicePrice {
        DevicePrice {
            medium: medium.to_owned(),
            when: String::new(),
            usd,
            is_rented: false,
            capacity_bytes: (tb * 1e12) as u64,
            bandwidth_bytes_per_s: mb_s * 1e6,
            source: String::new(),
        }
    }

    fn list(prices: &[(DevicePrice, DevicePrice)]) -> PriceList {
        let prices = prices.iter().map(|(own, then)| unit_price(own, then).expect("usable")).collect();
        PriceList { when: String::new(), prices }
    }

    /// The paper's disks and SSD, at its prices of 2013 and of 2015.
    fn lists() -> [PriceList; 2] {
        let (disk, ssd) = (price("hdd", 400.0, 2.0, 120.0), price("ssd", 14_000.0, 1.3, 1300.0));
        let later = (price("hdd", 250.0, 4.0, 120.0), price("ssd", 6_400.0, 2.0, 2000.0));
        [
            list(&[(disk.clone(), disk.clone()), (ssd.clone(), ssd.clone())]),
            list(&[(disk, later.0), (ssd, later.1)]),
        ]
    }

    #[test]
    fn later_year_buys_same_bandwidth() {
        let [first, later] = lists();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-6 * b.abs(), "{a}, expected {b}");
        let ssd = storage(&[("ssd", 1)]);
        close(first.price_storage(&ssd).unwrap().price.usd, 14_000.0);
        // 1,300 of 2,000 MB/s for 6,400 dollars: $3.20 a MB/s, as the paper prints.
        close(later.price_storage(&ssd).unwrap().price.usd, 1300.0 * 3.2);
        close(later.price_storage(&ssd).unwrap().usd_per_tb().unwrap(), 3200.0);
        let disks = storage(&[("hdd", 11)]);
        close(later.price_storage(&disks).unwrap().price.usd, 2_750.0);
        close(later.price_storage(&disks).unwrap().usd_per_tb().unwrap(), 62.5);
        assert_eq!(first.price_storage(&storage(&[("hdd", 1), ("tape", 1)])), None);
        assert_eq!(first.price_storage(&storage(&[])), None);
    }

    #[test]
    fn break_even_price_equalizes_cost_of_performance() {
        let [first, _] = lists();
        let ratio = |value: f64| EstimateRatio {
            value,
            interval: Some(ConfidenceInterval { low: 0.9 * value, high: 1.1 * value }),
        };
        for (ours, theirs, performance) in [
            (storage(&[("ssd", 1)]), storage(&[("hdd", 11)]), 1.7),
            (storage(&[("hdd", 6), ("ssd", 2)]), storage(&[("hdd", 6)]), 2.6),
            (storage(&[("hdd", 6), ("ssd", 1)]), storage(&[("hdd", 11)]), 0.4),
        ] {
            let found = break_even(&first, &ours, &theirs, "ssd", &ratio(performance)).unwrap();
            let count = ours.devices.iter().filter(|one| one.medium.as_deref() == Some("ssd")).count();
            let disks = (ours.devices.len() - count) as f64 * 400.0;
            let total = disks + found.usd * count as f64;
            let against = first.price_storage(&theirs).unwrap().price.usd;
            assert!((total / performance - against).abs() < 1e-6 * against);
            let interval = found.interval.unwrap();
            assert!(interval.low < found.usd && found.usd < interval.high);
        }
        // Six disks that take longer than eleven: no price of the SSD makes up for it.
        let slow = break_even(
            &first,
            &storage(&[("hdd", 6), ("ssd", 1)]),
            &storage(&[("hdd", 11)]),
            "ssd",
            &ratio(0.4),
        );
        assert!(slow.unwrap().usd < 0.0);
        // A price whose interval reached below zero ends it there.
        let wide = EstimateRatio { value: 2.6, interval: Some(ConfidenceInterval { low: 0.1, high: 60.0 }) };
        let (hybrid, disks) = (storage(&[("hdd", 6), ("ssd", 2)]), storage(&[("hdd", 6)]));
        let found = break_even(&first, &hybrid, &disks, "ssd", &wide).unwrap();
        assert!(found.usd > 0.0);
        assert_eq!(found.interval.unwrap().low, 0.0);
    }

    #[test]
    fn price_question_names_medium_that_baseline_lacks() {
        let hybrid = storage(&[("hdd", 6), ("ssd", 1)]);
        assert_eq!(medium_alone_in(&hybrid, &storage(&[("hdd", 11)])), Some("ssd"));
        assert_eq!(medium_alone_in(&storage(&[("hdd", 6)]), &storage(&[("hdd", 11)])), None);
        assert_eq!(medium_alone_in(&hybrid, &storage(&[("tape", 1)])), None, "two media: neither is the one");
    }
}
