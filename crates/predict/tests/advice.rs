//! What could be bought: media alone, a fast device in front of slow ones, and both side by side.

mod support;

use std::sync::Arc;

use support::{measured, point, record, storage};
use underlay_predict::advice::storage::{Advice, Wanted, search};
use underlay_predict::demand::{Background, Class, Demand};
use underlay_predict::simulation::Arrivals;
use underlay_predict::{Calibration, MeasuredCell, Point};
use underlay_storage::catalogue::{self, Medium};
use underlay_storage::stack::InitialState;

fn cell(point: Point) -> Arc<MeasuredCell> {
    let miss = 1.0 - 0.6 * point.memory_bytes / point.data_bytes();
    let class = Class {
        name: "read".to_owned(),
        share: 1.0,
        cpu_us: 40.0,
        reads: 1.2 * miss,
        read_bytes: 4096.0,
        writes: false,
        commits: false,
    };
    let demand = Demand { classes: vec![class], background: Background::default(), commit_bytes: None };
    let record = record(&point, &demand, 1.05);
    Arc::new(measured(point, &[record]))
}

/// 818 GB of data in memory of 100 GB, measured on disks; `directories` of them in one cell.
fn calibration(directories: usize) -> Calibration {
    let one = point("hdd", storage("hdd-7200-sata", 2), 8e5, 32);
    let several = Point {
        volumes: (0..directories).flat_map(|_| storage("hdd-7200-sata", 1)).collect(),
        ..point("hdds", Vec::new(), 8e5, 32)
    };
    Calibration::new(vec![cell(one), cell(several)])
}

fn media(names: &[&str]) -> Vec<Medium> {
    names.iter().map(|name| catalogue::find(name).unwrap()).collect()
}

fn ask(calibration: &Calibration, rate_per_s: f64, p99_us: f64, names: &[&str]) -> Advice {
    let point = point("wanted", storage("hdd-7200-sata", 1), 8e5, 32);
    let wanted = Wanted {
        data_bytes: 1_000.0 * point.data_bytes(),
        point: Point { arrivals: Arrivals::Even { per_s: rate_per_s }, ..point },
        rate_per_s,
        p99_us,
        data_scale: 1_000.0,
        initial: InitialState::Steady,
        most_devices: 24,
    };
    search(calibration, &wanted, &media(names), catalogue::layouts()).unwrap()
}

#[test]
fn a_cache_in_front_of_disks_is_found_where_it_pays() {
    // Few disks hold the data, and many are needed for the rate; a cache takes half of it off them, and flash for all of the data costs more.
    let rates = [600.0, 900.0, 1_200.0, 1_500.0, 2_000.0];
    let asked = rates.map(|rate| ask(&calibration(1), rate, 150_000.0, &["hdd-7200-sata", "optane-p4800x"]));
    let pays = |advice: &&Advice| advice.offers.iter().any(|offer| offer.cache.is_some());
    let advice = asked.iter().find(pays).expect("at one of these rates it pays");
    let cached = advice.offers.iter().find(|offer| offer.cache.is_some()).expect("one keeps to the bound");
    let cache = cached.cache.as_ref().unwrap();
    assert_eq!((cache.medium.as_str(), cache.mode), ("optane-p4800x", "read"), "nothing writes");
    assert_eq!(cached.parts.len(), 1);
    assert!(cached.name.contains("hdd-7200-sata + optane-p4800x as read cache"), "{}", cached.name);
    let behind = f64::from(cached.parts[0].devices);
    let of = |name: &str| catalogue::find(name).unwrap().price_usd();
    assert!((cached.usd - of("optane-p4800x") - behind * of("hdd-7200-sata")).abs() < 1e-6);
    assert!(cached.prediction.cached_share.is_some_and(|share| share > 0.2 && share < 0.7));
    let alone = advice.all().filter(|offer| offer.cache.is_none() && offer.preset.is_none());
    for offer in alone {
        assert!(offer.prediction.cached_share.is_none(), "{}", offer.name);
        // What is listed with a cache is faster than all that costs less.
        let is_beaten = offer.usd >= cached.usd || offer.prediction.is_saturated;
        assert!(is_beaten || offer.prediction.p99_us.value > cached.prediction.p99_us.value, "{}", offer.name);
    }
    // The cheapest is first, and each of the frontier is faster than what costs less.
    let usd: Vec<f64> = advice.offers.iter().map(|offer| offer.usd).collect();
    assert!(usd.is_sorted(), "{usd:?}");
}

#[test]
fn devices_side_by_side_need_a_system_that_was_seen_on_several() {
    let names = ["hdd-7200-sata", "optane-p4800x"];
    let is_excluded = |advice: &Advice| advice.excluded.iter().any(|one| one.name.contains("side by side"));
    assert!(is_excluded(&ask(&calibration(1), 1_000.0, 50_000.0, &names)));
    let advice = ask(&calibration(2), 1_000.0, 50_000.0, &names);
    assert!(!is_excluded(&advice), "{:?}", advice.excluded);
    for offer in advice.all().filter(|offer| offer.parts.len() > 1) {
        assert_eq!(offer.layout, "jbod", "{}", offer.name);
        assert!(offer.capacity_bytes >= 1.2e12, "{}", offer.name);
    }
}
