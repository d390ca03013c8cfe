//! Jobs of fio: what each operation asks for is known, so other devices are answered, and memory has no part in it.

use std::sync::Arc;

use crate::support::{measured, point, record, storage};
use underlay_predict::demand::{BackgroundDemand, MixDemand, OperationClass};
use underlay_predict::validation::held_out;
use underlay_predict::{
    Calibration, CellPoint, DeviceJob, MeasuredCell, PAST_MEMORY, PredictionRefusal, QuestionChange,
};
use underlay_record::{BenchmarkFigure, BenchmarkRecord, RunRecord};

const BLOCK_BYTES: f64 = 8_192.0;

fn demand(job: DeviceJob) -> MixDemand {
    let class = OperationClass {
        name: "read".to_owned(),
        share: 1.0,
        cpu_us: 10.0,
        reads: if job.writes { 0.0 } else { 1.0 },
        read_bytes: BLOCK_BYTES,
        is_sequential: job.sequential,
        writes: job.writes,
        commits: job.writes,
    };
    MixDemand {
        classes: vec![class],
        background: BackgroundDemand::default(),
        commit_bytes: job.writes.then_some(BLOCK_BYTES),
    }
}

fn asked(name: &str, medium: &str, threads: u32) -> CellPoint {
    let records = 5e4;
    CellPoint {
        distribution: PAST_MEMORY.to_owned(),
        mix: "job".to_owned(),
        record_bytes: BLOCK_BYTES,
        memory_bytes: records * BLOCK_BYTES,
        ..point(name, storage(medium, 1), records, threads)
    }
}

/// As fio would tell it.
fn told(point: &CellPoint, job: DeviceJob) -> RunRecord {
    let mut record = record(point, &demand(job), 1.05);
    let measured = record.measured.take().unwrap();
    let latency = measured.latency.us;
    let figure = |name: &str, value: f64, unit: &str| BenchmarkFigure {
        name: name.to_owned(),
        value,
        unit: unit.to_owned(),
        ..BenchmarkFigure::default()
    };
    let figures = match job.writes {
        true => vec![
            figure("write operations", measured.throughput_per_s, "operations/s"),
            figure("write p50", 500.0, "ns"),
            figure("write p99", 900.0, "ns"),
            figure("sync p50", 1e3 * latency.p50, "ns"),
            figure("sync p99", 1e3 * latency.p99, "ns"),
        ],
        false => vec![
            figure("read operations", measured.throughput_per_s, "operations/s"),
            figure("read p50", 1e3 * latency.p50, "ns"),
            figure("read p99", 1e3 * latency.p99, "ns"),
        ],
    };
    if job.writes {
        let totals = &mut record.devices[0].totals;
        (totals.writes, totals.flushes) = (measured.operations, measured.operations);
        totals.write_bytes = measured.operations * BLOCK_BYTES as u64;
    }
    let (duration_s, wall_s) = (measured.duration_s, measured.wall_s);
    record.benchmark = Some(BenchmarkRecord { duration_s, wall_s, figures, ..BenchmarkRecord::default() });
    record
}

fn cell(name: &str, medium: &str, threads: u32, job: DeviceJob) -> Arc<MeasuredCell> {
    let point = asked(name, medium, threads);
    let record = told(&point, job);
    Arc::new(MeasuredCell::from_job(point, &[&record], job).unwrap())
}

#[test]
fn device_is_predicted_from_others() {
    let reads = DeviceJob { writes: false, sequential: false, block_bytes: BLOCK_BYTES };
    for (job, threads) in [
        (reads, 16),
        (DeviceJob { sequential: true, ..reads }, 4),
        (DeviceJob { writes: true, sequential: true, ..reads }, 1),
    ] {
        let media = [("hdd", "hdd-7200-sata"), ("ssd", "ssd-sata"), ("nvme", "nvme-9300-max")];
        let cells: Vec<_> = media.iter().map(|(name, medium)| cell(name, medium, threads, job)).collect();
        let all = held_out(&Calibration::new(cells));
        assert_eq!(all.len(), 3);
        for one in &all {
            assert_eq!(one.refused, None);
            let error = one.throughput_per_s.error.unwrap();
            assert!(error.abs() < 0.1, "{job:?} on {}: {error}", one.cell);
        }
    }
}

#[test]
fn reads_in_order_are_not_reads_anywhere() {
    let anywhere = DeviceJob { writes: false, sequential: false, block_bytes: BLOCK_BYTES };
    let in_order = DeviceJob { sequential: true, ..anywhere };
    let rate = |job| cell("hdd", "hdd-7200-sata", 1, job).simulated().unwrap().throughput_per_s;
    assert!(rate(in_order) > 10.0 * rate(anywhere), "{} {}", rate(in_order), rate(anywhere));
}

#[test]
fn memory_is_no_help_and_other_sizes_are_answered() {
    let job = DeviceJob { writes: false, sequential: false, block_bytes: BLOCK_BYTES };
    let measured_cell = cell("ssd", "ssd-sata", 16, job);
    let calibration = Calibration::new(vec![measured_cell.clone()]);
    let [throughput, ..] = calibration
        .predict_change(&measured_cell, QuestionChange { memory: 2.0, ..QuestionChange::NONE })
        .unwrap();
    assert!((throughput.value - 1.0).abs() < 0.02, "{throughput:?}");
    let mut larger = asked("ssd", "ssd-sata", 16);
    larger.records *= 3.0;
    larger.memory_bytes *= 3.0;
    assert!(calibration.predict(&larger).is_ok());
}

#[test]
fn system_predicts_no_job() {
    let job = DeviceJob { writes: false, sequential: false, block_bytes: BLOCK_BYTES };
    let of_system = point("ssd", storage("ssd-sata", 1), 4e5, 16);
    let requests = record(&of_system, &demand(job), 1.0);
    assert!(MeasuredCell::from_job(of_system.clone(), &[&requests], job).is_err());
    let calibration = Calibration::new(vec![Arc::new(measured(of_system, &[requests]))]);
    let refusal = calibration.predict(&asked("nvme", "nvme-9300-max", 16)).unwrap_err();
    assert!(matches!(refusal, PredictionRefusal::Mix { .. }), "{refusal}");
}

#[test]
fn figures_that_no_run_has_are_refused() {
    let job = DeviceJob { writes: true, sequential: true, block_bytes: BLOCK_BYTES };
    let point = asked("ssd", "ssd-sata", 1);
    let sound = told(&point, job);
    let refused = |change: &dyn Fn(&mut RunRecord)| {
        let mut record = sound.clone();
        change(&mut record);
        MeasuredCell::from_job(point.clone(), &[&record], job).unwrap_err()
    };
    for value in [f64::NAN, f64::INFINITY, 0.0, -1.0, 1e300] {
        let refusal = refused(&|record| record.benchmark.as_mut().unwrap().figures[0].value = value);
        assert!(matches!(refusal, PredictionRefusal::Record { .. }), "{value}: {refusal}");
    }
    assert!(refused(&|record| record.benchmark = None).to_string().contains("benchmark"));
    assert!(
        refused(&|record| record.benchmark.as_mut().unwrap().figures.clear()).to_string().contains("write")
    );
    // A file system's log beside the job's own writes.
    assert!(refused(&|record| record.devices[0].totals.flushes *= 2).to_string().contains("flushes"));
    assert!(matches!(
        refused(&|record| record.benchmark.as_mut().unwrap().duration_s = f64::NAN),
        PredictionRefusal::Record { .. }
    ));
}
