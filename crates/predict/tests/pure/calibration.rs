//! Answers from measured cells: right where they can be, refused where not, and never a panic.

use std::sync::Arc;

use crate::support::{measured, point, read_demand, record, storage};
use proptest::prelude::*;
use underlay_predict::cache::{AccessDistribution, CachedBlocks};
use underlay_predict::demand::{MixDemand, OperationClass};
use underlay_predict::simulation::OperationArrivals;
use underlay_predict::validation::held_out;
use underlay_predict::{Calibration, CellPoint, LeftOut, MeasuredCell, PredictionRefusal, QuestionChange};

/// A system whose reads miss as the law has it, with 0.6 of its memory for data, and 1.2 reads a miss.
fn demand(point: &CellPoint) -> MixDemand {
    let blocks = CachedBlocks::new(AccessDistribution::Uniform, point.records, point.record_bytes, 4096.0);
    let reads = 1.2 * blocks.miss_ratio(0.6 * point.memory_bytes / point.data_bytes());
    read_demand(40.0, reads)
}

fn cell(point: CellPoint) -> Arc<MeasuredCell> {
    let record = record(&point, &demand(&point), 1.15);
    Arc::new(measured(point, &[record]))
}

const STORAGES: [(&str, &str, u32); 4] = [
    ("hdd", "hdd-7200-sata", 1),
    ("hdds", "hdd-7200-sata", 6),
    ("ssd", "ssd-sata", 1),
    ("nvme", "nvme-9300-max", 1),
];

fn calibration() -> Calibration {
    let mut cells = Vec::new();
    for (name, medium, count) in STORAGES {
        for records in [2e5, 4e5, 8e5] {
            cells.push(cell(point(name, storage(medium, count), records, 32)));
        }
    }
    Calibration::new(cells)
}

#[test]
fn system_of_known_model_is_predicted_from_others() {
    let all = held_out(&calibration());
    for kind in [LeftOut::Storage, LeftOut::Size] {
        let of_kind: Vec<_> = all.iter().filter(|cell| cell.without == kind.name()).collect();
        assert_eq!(of_kind.len(), 12);
        for cell in of_kind {
            assert_eq!(cell.refused, None, "{}", cell.cell);
            let error = cell.throughput_per_s.error.unwrap();
            // The largest size from the smaller ones is the furthest.
            assert!(error.abs() < 0.3, "{} without {}: {error}", cell.cell, cell.without);
            let worse = (cell.nearest_per_s.unwrap() / cell.throughput_per_s.measured - 1.0).abs();
            assert!(error.abs() < worse + 0.1, "{}: {error}, nearest {worse}", cell.cell);
        }
    }
    assert!(
        all.iter().all(|cell| cell.without != LeftOut::Threads.name()),
        "one number of threads was measured"
    );
    let covered = all.iter().filter(|cell| cell.throughput_per_s.is_covered == Some(true)).count();
    assert!(covered as f64 >= 0.9 * all.len() as f64, "{covered} of {}", all.len());
}

#[test]
fn unmeasured_input_is_refused_with_reason() {
    let calibration = calibration();
    let known_point = point("new", storage("optane-p4800x", 1), 4e5, 32);
    let answer = calibration.predict(&known_point).unwrap();
    assert!(answer.throughput_per_s.low < answer.throughput_per_s.value);
    assert!(answer.throughput_per_s.value < answer.throughput_per_s.high);
    let refused = |change: fn(&mut CellPoint)| {
        let mut asked = known_point.clone();
        change(&mut asked);
        calibration.predict(&asked).unwrap_err()
    };
    assert!(matches!(refused(|p| p.system = "je".to_owned()), PredictionRefusal::System { .. }));
    assert!(matches!(refused(|p| p.mix = "a".to_owned()), PredictionRefusal::Mix { .. }));
    assert!(matches!(refused(|p| p.distribution = "zipfian".to_owned()), PredictionRefusal::Mix { .. }));
    assert!(matches!(
        refused(|p| drop(p.settings.insert("wal".to_owned(), "sync".to_owned()))),
        PredictionRefusal::Settings { .. }
    ));
    assert!(matches!(refused(|p| p.records *= 10.0), PredictionRefusal::Size { .. }));
    assert!(matches!(refused(|p| p.threads = 4_000), PredictionRefusal::Threads { .. }));
    assert!(matches!(refused(|p| p.cores = Some(64)), PredictionRefusal::Cores { .. }));
    assert!(matches!(refused(|p| p.cores = None), PredictionRefusal::Cores { .. }));
    assert!(matches!(refused(|p| p.nodes = 3), PredictionRefusal::Nodes { .. }));
    assert!(matches!(
        refused(|p| p.record_bytes = 200.0),
        PredictionRefusal::Size { .. } | PredictionRefusal::Records { .. }
    ));
    assert!(matches!(
        refused(|p| p.not_modelled = Some("a cache device".to_owned())),
        PredictionRefusal::Layer { .. }
    ));
    assert!(matches!(refused(|p| p.volumes.clear()), PredictionRefusal::Layer { .. }));
    for refusal in [refused(|p| p.records *= 10.0), refused(|p| p.mix = "a".to_owned())] {
        assert!(refusal.to_string().contains("measure"), "{refusal}");
    }
}

#[test]
fn better_machines_are_never_predicted_to_be_slower() {
    let calibration = calibration();
    for cell in calibration.cells().iter().filter(|cell| cell.point.records == 4e5) {
        for change in [
            QuestionChange { device_speed: 2.0, ..QuestionChange::NONE },
            QuestionChange { memory: 2.0, ..QuestionChange::NONE },
            QuestionChange { cores: 2.0, ..QuestionChange::NONE },
        ] {
            let [throughput, mean, ..] = calibration.predict_change(cell, change).unwrap();
            assert!(throughput.value >= 1.0 && mean.value <= 1.0, "{}: {change:?}", cell.point.id);
            assert!(throughput.low < throughput.value && throughput.value < throughput.high);
        }
        let faster = calibration
            .predict_change(cell, QuestionChange { device_speed: 2.0, ..QuestionChange::NONE })
            .unwrap()[0];
        let is_device_bound = cell.point.storage.starts_with("hdd");
        assert!(!is_device_bound || faster.value > 1.7, "{}: {faster:?}", cell.point.id);
        let answer =
            calibration.predict_change(cell, QuestionChange { memory: 64.0, ..QuestionChange::NONE });
        assert!(matches!(answer, Err(PredictionRefusal::Size { .. })), "{answer:?}");
    }
}

#[test]
fn offered_rate_has_latency_or_is_too_high() {
    let calibration = calibration();
    let asked = |per_s| CellPoint {
        arrivals: OperationArrivals::Even { per_s },
        ..point("nvme", storage("nvme-9300-max", 1), 4e5, 32)
    };
    let calm = calibration.predict(&asked(1_000.0)).unwrap();
    assert_eq!(calm.throughput_per_s.value, 1_000.0);
    assert!(!calm.is_saturated);
    let busy = calibration.predict(&asked(100_000.0)).unwrap();
    assert!(busy.is_saturated || busy.mean_us.value > calm.mean_us.value);
    assert!(calibration.predict(&asked(1e8)).unwrap().is_saturated);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A record may be anybody's.
    #[test]
    fn any_figures_are_a_cell_or_refused(
        counts in prop::array::uniform6(prop_oneof![Just(0u64), 1..1_000_000u64, Just(1 << 48), any::<u64>()]),
        figures in prop::array::uniform6(prop_oneof![Just(0.0), 1e-3..1e9f64, -1e9..0.0f64, Just(1e308)]),
    ) {
        let asked = point("nvme", storage("nvme-9300-max", 1), 4e5, 32);
        let mut hostile = record(&CellPoint { threads: 1, ..asked.clone() }, &demand(&asked), 1.0);
        let totals = &mut hostile.devices[0].totals;
        (totals.reads, totals.read_bytes, totals.writes) = (counts[0], counts[1], counts[2]);
        (totals.write_bytes, totals.flushes) = (counts[3], counts[4]);
        totals.busy_us = figures[0];
        let measured = hostile.measured.as_mut().unwrap();
        measured.operations = counts[5];
        measured.throughput_per_s = figures[1];
        (measured.latency.us.mean, measured.latency.us.p50, measured.latency.us.p99) =
            (figures[2], figures[3], figures[4]);
        measured.wall_s = figures[5];
        if let Ok(cell) = MeasuredCell::new(asked.clone(), &[&hostile], None) {
            // There is an answer of some kind.
            let reads_few = cell.demand.reads() < 50.0;
            if reads_few {
                let _ = Calibration::new(vec![Arc::new(cell)]).predict(&asked);
            }
        }
    }
}

/// Half of the operations read, and nearly each of these waits: the median is of one kind or of the other, as chance
/// has it.
#[test]
fn median_between_two_kinds_covers_either() {
    let of_mix = |reads: f64| MixDemand {
        classes: vec![
            OperationClass {
                share: 0.5,
                reads,
                name: "read".to_owned(),
                ..demand(&point("x", Vec::new(), 4e5, 16)).classes[0].clone()
            },
            OperationClass {
                share: 0.5,
                reads: 0.0,
                writes: true,
                name: "update".to_owned(),
                ..demand(&point("x", Vec::new(), 4e5, 16)).classes[0].clone()
            },
        ],
        ..demand(&point("x", Vec::new(), 4e5, 16))
    };
    let measured_on = |name: &str, medium: &str, reads: f64| {
        let point = point(name, storage(medium, 1), 4e5, 16);
        let record = record(&point, &of_mix(reads), 1.0);
        let mut cell = measured(point, &[record]);
        // The records of these tests have one kind of operation.
        cell.demand = of_mix(reads);
        Arc::new(cell)
    };
    let sharp = [measured_on("ssd", "ssd-sata", 0.2), measured_on("nvme", "nvme-9300-max", 0.2)];
    let torn = [measured_on("ssd", "ssd-sata", 0.97), measured_on("nvme", "nvme-9300-max", 0.97)];
    let width = |cells: [Arc<MeasuredCell>; 2]| {
        let question = point("hdd", storage("hdd-7200-sata", 1), 4e5, 16);
        let p50_us = Calibration::new(cells.to_vec()).predict(&question).unwrap().p50_us;
        p50_us.high / p50_us.low
    };
    assert!(width(sharp.clone()) < 20.0, "{}", width(sharp));
    assert!(width(torn.clone()) > 100.0, "{}", width(torn));
}
