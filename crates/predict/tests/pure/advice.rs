//! Storages that could be bought: fast devices beside slow ones. Caches in front are in the command line's tests, which
//! have a measured run.

use std::sync::Arc;

use crate::support::{measured, point, read_demand, record, storage};
use underlay_predict::advice::storage::{StorageAdvice, StorageGoal, search};
use underlay_predict::simulation::OperationArrivals;
use underlay_predict::{Calibration, CellPoint, MeasuredCell};
use underlay_storage::catalogue::{self, CatalogueMedium};
use underlay_storage::stack::InitialState;

fn cell(point: CellPoint) -> Arc<MeasuredCell> {
    let miss = 1.0 - 0.6 * point.memory_bytes / point.data_bytes();
    let record = record(&point, &read_demand(40.0, 1.2 * miss), 1.05);
    Arc::new(measured(point, &[record]))
}

/// 818 GB of data in memory of 100 GB, measured on disks; `directories` of them in one cell.
fn calibration(directories: usize) -> Calibration {
    let one = point("hdd", storage("hdd-7200-sata", 2), 8e5, 32);
    let several = CellPoint {
        volumes: (0..directories).flat_map(|_| storage("hdd-7200-sata", 1)).collect(),
        ..point("hdds", Vec::new(), 8e5, 32)
    };
    Calibration::new(vec![cell(one), cell(several)])
}

fn media(names: &[&str]) -> Vec<CatalogueMedium> {
    names.iter().map(|name| catalogue::find(name).unwrap()).collect()
}

fn ask(calibration: &Calibration, rate_per_s: f64, p99_us: f64, names: &[&str]) -> StorageAdvice {
    let point = point("wanted", storage("hdd-7200-sata", 1), 8e5, 32);
    let wanted = StorageGoal {
        data_bytes: 1_000.0 * point.data_bytes(),
        point: CellPoint { arrivals: OperationArrivals::Even { per_s: rate_per_s }, ..point },
        rate_per_s,
        p99_us,
        data_scale: 1_000.0,
        initial: InitialState::Steady,
        most_devices: 24,
    };
    search(calibration, &wanted, &media(names), catalogue::layouts()).unwrap()
}

#[test]
fn several_devices_need_a_system_measured_on_several() {
    let names = ["hdd-7200-sata", "optane-p4800x"];
    let is_excluded =
        |advice: &StorageAdvice| advice.excluded.iter().any(|one| one.name.contains("side by side"));
    assert!(is_excluded(&ask(&calibration(1), 1_000.0, 50_000.0, &names)));
    let advice = ask(&calibration(2), 1_000.0, 50_000.0, &names);
    assert!(!is_excluded(&advice), "{:?}", advice.excluded);
    for offer in advice.all().filter(|offer| offer.parts.len() > 1) {
        assert_eq!(offer.layout, "jbod", "{}", offer.name);
        assert!(offer.capacity_bytes >= 1.2e12, "{}", offer.name);
    }
}
