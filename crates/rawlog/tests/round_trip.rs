//! What is written is what is read, and what a run measured follows from its raw log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use underlay_rawlog::{RawLogError, read, write};
use underlay_record::Histogram;
use underlay_workload::client::{Client, ClientError};
use underlay_workload::{
    ArrivalProcess, CoreWorkload, MemoryStore, OperationMix, RatePart, RateProfile, RawAnswer, RawLog,
    RawOperation, RunHandle, RunSpec, run,
};

fn all(path: &std::path::Path) -> Vec<RawOperation> {
    let mut operations = Vec::new();
    read(path, |one| operations.push(one)).unwrap();
    operations
}

#[test]
fn percentiles_are_those_worked_out_anew_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.parquet");
    let store = MemoryStore::new();
    let workload = Arc::new(CoreWorkload::new(500, 1, 20));
    let spec = |mix: &str| RunSpec {
        threads: 3,
        duration: Duration::MAX,
        operation_limit: Some(50_000),
        ..RunSpec::new(Arc::clone(&workload), OperationMix::parse(mix).unwrap())
    };
    let connect = |_| -> Result<Box<dyn Client>, ClientError> { Ok(Box::new(store.client())) };
    run(&spec("load"), &connect, &RunHandle::new()).unwrap();
    let control = RunHandle::new();
    let (log, operations) = RawLog::new();
    control.log_operations(log);
    let (measured, rows) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(operations, &file));
        let measured = run(&spec("f"), &connect, &control).unwrap();
        (measured, writer.join().unwrap().unwrap())
    });
    assert_eq!(rows, 50_000);
    assert!(!folder.path().join("run.parquet.part").exists());
    let mut kinds: BTreeMap<&str, Histogram> = BTreeMap::new();
    for one in all(&file) {
        assert!(one.answer == RawAnswer::Found && one.thread < 3 && one.intended_ns == one.start_ns);
        kinds.entry(one.kind.name()).or_default().record_ns((one.end_ns - one.intended_ns) as u64);
    }
    assert_eq!(kinds.keys().copied().collect::<Vec<_>>(), ["read", "read-modify-write"]);
    for (kind, latency) in kinds {
        assert_eq!(measured.by_operation[kind].latency.histogram, latency, "{kind}");
    }
}

/// Constant, independent and stepped arrivals: the time from the intended start and the time from the actual one, of
/// each kind of operation, in slow motion.
#[test]
fn offered_rate_latencies_match_recalculation_from_file() {
    let steps: Vec<RatePart> = [1_000.0, 8_000.0, 500.0]
        .map(|rate_per_s| RatePart::Steady { rate_per_s, length: Duration::from_millis(25) })
        .into();
    let store = MemoryStore::new();
    let connect = |_| -> Result<Box<dyn Client>, ClientError> { Ok(Box::new(store.client())) };
    let workload = Arc::new(CoreWorkload::new(500, 1, 20));
    for (arrivals, changes) in [
        (ArrivalProcess::Constant, false),
        (ArrivalProcess::Poisson, false),
        (ArrivalProcess::Constant, true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run.parquet");
        let spec = RunSpec {
            threads: 2,
            arrivals,
            rate_per_s: Some(4_000.0),
            rate_profile: changes.then(|| RateProfile::from_parts(&steps).unwrap()),
            warmup: Duration::from_millis(20),
            duration: Duration::from_millis(150),
            dilation: 2.0,
            ..RunSpec::new(Arc::clone(&workload), OperationMix::parse("a").unwrap())
        };
        let control = RunHandle::new();
        let (log, operations) = RawLog::new();
        control.log_operations(log);
        let measured = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write(operations, &file));
            let measured = run(&spec, &connect, &control).unwrap();
            writer.join().unwrap().unwrap();
            measured
        });
        let is_in_range = |ns: i64| (0..75_000_000).contains(&ns);
        let mut kinds: BTreeMap<&str, [Histogram; 2]> = BTreeMap::new();
        for one in all(&file).iter().filter(|one| one.answer.is_timed()) {
            let [latency, service] = kinds.entry(one.kind.name()).or_default();
            if is_in_range(one.intended_ns) {
                latency.record_ns((one.end_ns - one.intended_ns) as u64);
            }
            if one.answer != RawAnswer::Unstarted && is_in_range(one.start_ns) {
                service.record_ns((one.end_ns - one.start_ns) as u64);
            }
        }
        assert_eq!(kinds.keys().copied().collect::<Vec<_>>(), ["read", "update"]);
        for (kind, [latency, service]) in kinds {
            let stats = &measured.by_operation[kind];
            assert_eq!(stats.latency.histogram, latency, "{kind} {arrivals:?}");
            assert_eq!(stats.service.histogram, service, "{kind} {arrivals:?}");
            for quantile in [0.5, 0.99, 0.999] {
                assert_eq!(stats.latency.histogram.quantile_us(quantile), latency.quantile_us(quantile));
            }
        }
    }
}

#[test]
fn invalid_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text");
    assert!(matches!(read(&file, |_| ()), Err(RawLogError::Read { .. })));
    std::fs::write(&file, "no parquet").unwrap();
    assert!(matches!(read(&file, |_| ()), Err(RawLogError::Read { .. })));
    let nowhere = folder.path().join("not/there/run.parquet");
    let (log, operations) = RawLog::new();
    drop(log);
    let error = write(operations, &nowhere).unwrap_err();
    assert!(error.to_string().starts_with("cannot write the raw log "), "{error}");
}

#[test]
fn run_without_operations_has_no_rows() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("empty.parquet");
    let (log, operations) = RawLog::new();
    drop(log);
    assert_eq!(write(operations, &file).unwrap(), 0);
    assert_eq!(all(&file), Vec::new());
}
