//! Whole runs against clients in memory: what they leave behind, count and refuse. Nothing here depends on speed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::reading::Reading;
use underlay_record::{Histogram, MeasuredWindow};
use underlay_workload::client::{Client, ClientError, FieldSelection, FieldValues, OperationOutcome};
use underlay_workload::{
    CoreWorkload, KeysOnlyClient, MemoryStore, NullClient, OperationKind, OperationMix, RawAnswer, RawLog,
    RawOperation, RunError, RunHandle, RunPhase, RunSpec, YcsbProperties, YcsbStatistics, null_ceiling, run,
};

fn workload(records: u64, arguments: &[&str]) -> Arc<CoreWorkload> {
    let mut properties = YcsbProperties::new();
    properties.add_argument(&format!("recordcount={records}")).unwrap();
    for argument in arguments {
        properties.add_argument(argument).unwrap();
    }
    Arc::new(properties.workload().unwrap())
}

/// A run that ends with its operations, however slow this machine is.
fn limited(workload: &Arc<CoreWorkload>, mix: &str, threads: u32, operations: Option<u64>) -> RunSpec {
    RunSpec {
        threads,
        duration: Duration::MAX,
        operation_limit: operations,
        ..RunSpec::new(Arc::clone(workload), OperationMix::parse(mix).unwrap())
    }
}

fn run_on(store: &MemoryStore, spec: &RunSpec) -> MeasuredWindow {
    run(spec, &|_| Ok(Box::new(store.client())), &RunHandle::new()).unwrap()
}

fn count(measured: &MeasuredWindow, kind: &str) -> u64 {
    measured.by_operation.get(kind).map_or(0, |stats| stats.count)
}

fn assert_consistent(measured: &MeasuredWindow) {
    let kinds: u64 = measured.by_operation.values().map(|stats| stats.count).sum();
    let in_series: u64 = measured.series.iter().map(|point| point.operations).sum();
    assert_eq!((kinds, in_series), (measured.operations, measured.operations));
    let throughput = measured.operations as f64 / measured.duration_s;
    assert!((measured.throughput_per_s / throughput - 1.0).abs() < 1e-9);
    assert!(measured.series.windows(2).all(|pair| pair[0].t_s < pair[1].t_s));
    assert!((measured.series.last().unwrap().t_s / measured.duration_s - 1.0).abs() < 1e-9);
    assert_eq!(measured.latency.us, measured.latency.histogram.summary_us());
}

#[test]
fn load_writes_records_once_and_delete_removes_them() {
    let workload = workload(3000, &["fieldcount=3", "insertstart=500", "insertcount=2000"]);
    let store = MemoryStore::new();
    let loaded = run_on(&store, &limited(&workload, "load", 4, None));
    assert_consistent(&loaded);
    assert_eq!((loaded.operations, loaded.errors, count(&loaded, "insert")), (2000, 0, 2000));
    let expected: BTreeSet<Vec<u8>> = (500..2500).map(|number| workload.key_naming.name(number)).collect();
    assert_eq!(store.keys(), expected.into_iter().collect::<Vec<_>>());
    let mut values = FieldValues::default();
    assert_eq!(
        store.client().read(&workload.key_naming.name(500), FieldSelection::All, &mut values),
        Ok(OperationOutcome::Found)
    );
    assert_eq!(
        values.iter().map(|(field, value)| (field, value.len())).collect::<Vec<_>>(),
        [(0, 100), (1, 100), (2, 100)]
    );

    let deleted = run_on(&store, &limited(&workload, "delete", 3, None));
    assert_eq!((count(&deleted, "delete"), deleted.by_operation["delete"].missing), (2000, 0));
    assert_eq!(store.record_count(), 0);
}

#[test]
fn mixes_run_with_checked_values_after_load() {
    let workload =
        workload(1000, &["dataintegrity=true", "fieldcount=2", "readallfields=false", "maxscanlength=20"]);
    for distribution in ["uniform", "zipfian", "latest", "hotspot", "exponential", "sequential"] {
        let store = MemoryStore::new();
        run_on(&store, &limited(&workload, "load", 2, None));
        let mut workload = CoreWorkload::clone(&workload);
        workload.request_distribution = underlay_workload::RequestDistribution::parse(distribution);
        let workload = Arc::new(workload);
        for mix in ["a", "b", "c", "d", "e", "f"] {
            let control = RunHandle::new();
            let spec = limited(&workload, mix, 4, Some(2000));
            let measured = run(&spec, &|_| Ok(Box::new(store.client())), &control).unwrap();
            assert_consistent(&measured);
            assert_eq!(
                (measured.operations, measured.errors),
                (2000, 0),
                "{mix} {distribution}: {:?}",
                measured.error_samples
            );
            let missing: u64 = measured.by_operation.values().map(|stats| stats.missing).sum();
            assert_eq!(missing, 0, "{mix} {distribution}");
            assert_eq!(control.aftermath().integrity_mismatches, 0);
            assert_eq!(measured.by_operation.values().map(|stats| stats.latency.us.count).sum::<u64>(), 2000);
        }
        let inserted = store.record_count() as u64;
        // Both D and E add records from the same number on: about 5 % of 2,000.
        assert!((1050..1180).contains(&inserted), "{inserted}");
    }
}

/// What YCSB shows beside the record: the parts of read-modify-writes, and what failed.
#[test]
fn particulars_hold_what_the_record_leaves_out() {
    let workload = workload(100, &[]);
    let store = MemoryStore::new();
    run_on(&store, &limited(&workload, "load", 1, None));
    // Half of the records are gone.
    for key in store.keys().iter().step_by(2) {
        store.client().delete(key).unwrap();
    }
    let mut control = RunHandle::new();
    control.keeps_particulars = true;
    let measured =
        run(&limited(&workload, "f", 2, Some(1000)), &|_| Ok(Box::new(store.client())), &control).unwrap();
    let particulars = control.particulars();
    let stats = |name: &str| measured.by_operation[name].clone();
    let (reads, modified) = (stats("read"), stats("read-modify-write"));
    assert!(reads.missing > 10 && modified.missing > 10, "{reads:?}");
    let failed = |kind| particulars.failed[&(kind, RawAnswer::Missing)].service.count();
    assert_eq!(failed(OperationKind::Read), reads.missing);
    assert_eq!(failed(OperationKind::ReadModifyWrite), modified.missing);
    let part = |kind, answer| particulars.parts.get(&(kind, answer)).map_or(0, |both| both.service.count());
    assert_eq!(part(OperationKind::Read, RawAnswer::Missing), modified.missing);
    assert_eq!(part(OperationKind::Read, RawAnswer::Found), modified.count - modified.missing);
    assert_eq!(part(OperationKind::Update, RawAnswer::Found), modified.count - modified.missing);
    assert_eq!((particulars.parts.len(), particulars.failed.len(), particulars.closings.count()), (3, 2, 2));
    // The parts are no longer than the whole.
    let mean = |kind| particulars.parts[&(kind, RawAnswer::Found)].service.mean_us();
    assert!(mean(OperationKind::Read) + mean(OperationKind::Update) > 0.0);
    assert!(control.particulars().parts.is_empty(), "they are taken out");

    let control = RunHandle::new();
    run(&limited(&workload, "f", 1, Some(10)), &|_| Ok(Box::new(store.client())), &control).unwrap();
    assert_eq!(control.particulars(), YcsbStatistics::default(), "nobody asked for them");
}

#[test]
fn offered_rate_is_kept() {
    let spec = RunSpec {
        rate_per_s: Some(2000.0),
        warmup: Duration::from_millis(50),
        duration: Duration::from_millis(200),
        dilation: 2.0,
        threads: 2,
        series_intervals: 4,
        ..RunSpec::new(workload(100, &[]), OperationMix::parse("a").unwrap())
    };
    let control = RunHandle::new();
    let measured = run(&spec, &|_| Ok(Box::new(NullClient)), &control).unwrap();
    // 2,000 per modelled second are 1,000 per wall second, over 0.2 s; every arrival is measured, late or not.
    assert_eq!(measured.latency.us.count, 200);
    assert_eq!((measured.duration_s, measured.wall_s, measured.series.len()), (0.1, 0.2, 4));
    assert!(measured.generator.lateness_p99_us.is_some() && measured.generator.ceiling_per_s.is_none());
    assert_eq!(control.progress().phase, RunPhase::Ended);
}

#[test]
fn window_edges_are_announced_in_pairs() {
    for warmup_ms in [0, 20] {
        let events = Arc::new(Mutex::new(Vec::new()));
        let (started, ended) = (Arc::clone(&events), Arc::clone(&events));
        let mut control = RunHandle::new();
        control.on_measurement_started = Some(Box::new(move || started.lock().unwrap().push("started")));
        control.on_measurement_ended = Some(Box::new(move || ended.lock().unwrap().push("ended")));
        let spec = RunSpec {
            warmup: Duration::from_millis(warmup_ms),
            // Long enough for a thread that has to wait for a core to send something.
            duration: Duration::from_millis(400),
            ..RunSpec::new(workload(100, &[]), OperationMix::parse("c").unwrap())
        };
        run(&spec, &|_| Ok(Box::new(NullClient)), &control).unwrap();
        assert_eq!(*events.lock().unwrap(), ["started", "ended"]);
    }
}

/// Time since the window's beginning is the generator's: the system's preparation before it is not counted.
#[test]
fn window_begins_when_ready_before_first_operation() {
    for warmup_ms in [0, 20] {
        let (window, ready, first) = (OnceLock::new(), OnceLock::new(), Arc::new(OnceLock::new()));
        let mut control = RunHandle::new();
        control.on_window = Some(Box::new(|instant| window.set(instant).unwrap()));
        control.on_measurement_started = Some(Box::new(|| {
            // As a system that takes its time to tell its figures.
            std::thread::sleep(Duration::from_millis(5));
            ready.set(Instant::now()).unwrap();
        }));
        let spec = RunSpec {
            warmup: Duration::from_millis(warmup_ms),
            duration: Duration::from_millis(400),
            ..RunSpec::new(workload(100, &[]), OperationMix::parse("c").unwrap())
        };
        let connect = |_| -> Result<Box<dyn Client>, ClientError> {
            let first = Arc::clone(&first);
            let note = move || {
                first.get_or_init(Instant::now);
                Ok(OperationOutcome::Found)
            };
            Ok(Box::new(Failing(note)))
        };
        run(&spec, &connect, &control).unwrap();
        drop(control);
        let [window, ready, first] =
            [window.get(), ready.get(), first.get()].map(|instant| *instant.unwrap());
        match warmup_ms {
            0 => assert!(ready <= window && window <= first),
            _ => assert!(first < window && window < ready),
        }
    }
}

#[test]
fn stop_ends_run() {
    let control = RunHandle::with_stop(Arc::new(AtomicBool::new(false)));
    let stop = Arc::clone(&control.stop);
    let spec = RunSpec {
        threads: 3,
        rate_per_s: Some(5.0),
        duration: Duration::from_secs(3600),
        ..RunSpec::new(workload(100, &[]), OperationMix::parse("c").unwrap())
    };
    let error = std::thread::scope(|scope| {
        let runner = scope.spawn(|| run(&spec, &|_| Ok(Box::new(NullClient)), &control));
        while control.progress().phase != RunPhase::Measuring {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        runner.join().unwrap().unwrap_err()
    });
    assert!(matches!(error, RunError::Stopped), "{error}");
}

#[test]
fn stopped_run_keeps_measurements() {
    let mut control = RunHandle::new();
    control.keeps_stopped_run = true;
    control.keeps_intervals = true;
    let spec = RunSpec {
        rate_per_s: Some(1_000.0),
        duration: Duration::from_secs(3600),
        ..RunSpec::new(workload(100, &[]), OperationMix::parse("c").unwrap())
    };
    let stop_after_10 = |control: &RunHandle<'_>| {
        while control.progress().operations < 10 {
            std::thread::yield_now();
        }
        control.stop.store(true, Ordering::Relaxed);
    };
    let measured = std::thread::scope(|scope| {
        let runner = scope.spawn(|| run(&spec, &|_| Ok(Box::new(NullClient)), &control));
        stop_after_10(&control);
        runner.join().unwrap().unwrap()
    });
    assert!(measured.operations >= 10 && measured.wall_s < 3600.0, "{measured:?}");
    let logged: u64 = control.intervals().iter().map(|interval| interval.latency.count()).sum();
    assert_eq!(logged, measured.operations);
    // Nothing was measured during the warm-up.
    let mut control = RunHandle::new();
    control.keeps_stopped_run = true;
    let spec = RunSpec { warmup: Duration::from_secs(3600), ..spec };
    let error = std::thread::scope(|scope| {
        let runner = scope.spawn(|| run(&spec, &|_| Ok(Box::new(NullClient)), &control));
        stop_after_10(&control);
        runner.join().unwrap().unwrap_err()
    });
    assert!(matches!(error, RunError::Stopped), "{error}");
}

#[test]
fn thread_without_connection_ends_run_before_start() {
    let calls = AtomicU32::new(0);
    let connect = |thread| -> Result<Box<dyn Client>, ClientError> {
        calls.fetch_add(1, Ordering::Relaxed);
        if thread == 2 {
            Err(ClientError::System("too many clients".into()))
        } else {
            Ok(Box::new(NullClient))
        }
    };
    let error = run(&limited(&workload(10, &[]), "load", 4, None), &connect, &RunHandle::new()).unwrap_err();
    assert_eq!(error.to_string(), "client thread 2 could not connect: too many clients");
    assert_eq!(calls.into_inner(), 4);
}

/// Answers every operation as the test asks.
struct Failing<F>(F);

impl<F: Fn() -> Result<OperationOutcome, ClientError> + Send> Client for Failing<F> {
    fn read(
        &mut self,
        _: &[u8],
        _: FieldSelection,
        _: &mut FieldValues,
    ) -> Result<OperationOutcome, ClientError> {
        self.0()
    }
    fn scan(&mut self, _: &[u8], _: u32, _: FieldSelection) -> Result<(OperationOutcome, u32), ClientError> {
        self.0().map(|outcome| (outcome, 0))
    }
    fn update(&mut self, _: &[u8], _: &FieldValues) -> Result<OperationOutcome, ClientError> {
        self.0()
    }
    fn insert(&mut self, _: &[u8], _: &FieldValues) -> Result<OperationOutcome, ClientError> {
        self.0()
    }
    fn delete(&mut self, _: &[u8]) -> Result<OperationOutcome, ClientError> {
        self.0()
    }
}

#[test]
fn errors_are_counted_sampled_and_end_nothing() {
    let connect = |_| -> Result<Box<dyn Client>, ClientError> {
        Ok(Box::new(Failing(|| Err(ClientError::System("disk full".into())))))
    };
    let measured = run(&limited(&workload(500, &[]), "load", 2, None), &connect, &RunHandle::new()).unwrap();
    assert_eq!((measured.operations, measured.errors, measured.latency.us.count), (0, 500, 0));
    assert_eq!(measured.error_samples, ["insert: disk full"]);
}

#[test]
fn run_losing_all_connections_fails_with_first_error() {
    let connected = AtomicU32::new(0);
    let connect = |_| -> Result<Box<dyn Client>, ClientError> {
        match connected.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Ok(Box::new(Failing(|| Err(ClientError::Lost("reset by peer".into()))))),
            _ => Err(ClientError::System("the system is gone".into())),
        }
    };
    // Fast motion: the pauses between attempts shrink with it.
    let spec = RunSpec { dilation: 1e-4, ..limited(&workload(100, &[]), "c", 2, Some(1000)) };
    let control = RunHandle::new();
    let error = run(&spec, &connect, &control).unwrap_err().to_string();
    let expected = "all 2 connections were lost, the last with: the system is gone\n  \
        read: the connection to the system is lost: reset by peer";
    assert_eq!(error, expected);
    assert_eq!((control.aftermath().lost_threads, control.aftermath().reconnections), (2, 0));
    assert_eq!(connected.into_inner(), 2 + 2 * 5);
}

#[test]
fn failed_inserts_are_repeated_as_often_as_asked() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let connect = |_| -> Result<Box<dyn Client>, ClientError> {
        Ok(Box::new(Failing(|| match CALLS.fetch_add(1, Ordering::Relaxed) % 3 {
            2 => Ok(OperationOutcome::Found),
            _ => Err(ClientError::System("busy".into())),
        })))
    };
    let retries = ["core_workload_insertion_retry_limit=2", "core_workload_insertion_retry_interval=0"];
    let workload = workload(50, &retries);
    let mut control = RunHandle::new();
    control.keeps_particulars = true;
    let measured = run(&limited(&workload, "load", 1, None), &connect, &control).unwrap();
    assert_eq!((measured.operations, measured.errors, CALLS.load(Ordering::Relaxed)), (50, 0, 150));
    let failed = &control.particulars().failed[&(OperationKind::Insert, RawAnswer::Error)];
    assert_eq!(failed.service.count(), 100, "each attempt is one of YCSB's");
}

#[test]
fn repeats_wait_for_interval_until_stopped() {
    let connect = |_| -> Result<Box<dyn Client>, ClientError> {
        Ok(Box::new(Failing(|| Err(ClientError::System("busy".into())))))
    };
    let retries = ["core_workload_insertion_retry_limit=2", "core_workload_insertion_retry_interval=3600"];
    let spec = limited(&workload(50, &retries), "load", 1, None);
    let control = RunHandle::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while control.progress().phase != RunPhase::Measuring {
                std::thread::yield_now();
            }
            control.stop.store(true, Ordering::Relaxed);
        });
        assert!(matches!(run(&spec, &connect, &control), Err(RunError::Stopped)));
    });
}

#[test]
fn panicking_client_ends_run_with_message() {
    let connect =
        |_| -> Result<Box<dyn Client>, ClientError> { Ok(Box::new(Failing(|| panic!("a defect")))) };
    let error = run(&limited(&workload(10, &[]), "load", 2, None), &connect, &RunHandle::new()).unwrap_err();
    assert_eq!(error.to_string(), "client thread 0 failed unexpectedly: a defect");
}

#[test]
fn unrunnable_specification_is_refused_with_all_reasons() {
    let spec = RunSpec {
        threads: 0,
        rate_per_s: Some(-1.0),
        dilation: 0.0,
        duration: Duration::MAX,
        ..RunSpec::new(Arc::new(CoreWorkload::new(0, 10, 100)), OperationMix::parse("c").unwrap())
    };
    let error = run(&spec, &|_| Ok(Box::new(NullClient)), &RunHandle::new()).unwrap_err().to_string();
    for reason in
        ["insertcount is 0", "0 threads", "a rate of -1", "a time scale of 0", "a run without an end"]
    {
        assert!(error.contains(reason), "{error}");
    }
    let ends_early =
        RunSpec { warmup: Duration::from_millis(50), ..limited(&workload(5, &[]), "load", 1, None) };
    let error = run(&ends_early, &|_| Ok(Box::new(NullClient)), &RunHandle::new()).unwrap_err();
    assert!(matches!(error, RunError::NothingMeasured), "{error}");
}

#[test]
fn generator_ceiling_is_found_for_every_mix() {
    let workload = workload(1000, &["dataintegrity=true"]);
    for mix in ["load", "a", "delete"] {
        let spec = RunSpec { threads: 2, ..limited(&workload, mix, 2, Some(1)) };
        assert!(null_ceiling(&spec).unwrap() > 0.0, "{mix}");
    }
}

#[test]
fn runs_of_one_seed_ask_for_the_same() {
    let keys_of = |seed| {
        let workload = workload(1000, &[]);
        let spec = RunSpec { seed, ..limited(&workload, "a", 1, Some(500)) };
        let log = Arc::new(Mutex::new(Vec::new()));
        struct Logging(Arc<Mutex<Vec<Vec<u8>>>>);
        impl Client for Logging {
            fn read(
                &mut self,
                key: &[u8],
                _: FieldSelection,
                _: &mut FieldValues,
            ) -> Result<OperationOutcome, ClientError> {
                self.0.lock().unwrap().push(key.to_vec());
                Ok(OperationOutcome::Found)
            }
            fn scan(
                &mut self,
                _: &[u8],
                limit: u32,
                _: FieldSelection,
            ) -> Result<(OperationOutcome, u32), ClientError> {
                Ok((OperationOutcome::Found, limit))
            }
            fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
                let written: Vec<u8> = values.iter().flat_map(|(_, value)| value.to_vec()).collect();
                self.0.lock().unwrap().push([key, &written].concat());
                Ok(OperationOutcome::Found)
            }
            fn insert(&mut self, _: &[u8], _: &FieldValues) -> Result<OperationOutcome, ClientError> {
                Ok(OperationOutcome::Found)
            }
            fn delete(&mut self, _: &[u8]) -> Result<OperationOutcome, ClientError> {
                Ok(OperationOutcome::Found)
            }
        }
        run(&spec, &|_| Ok(Box::new(Logging(Arc::clone(&log)))), &RunHandle::new()).unwrap();
        log.lock().unwrap().clone()
    };
    assert_eq!(keys_of(3), keys_of(3));
    assert_ne!(keys_of(3), keys_of(4));
}

/// What was measured, worked out anew from every single operation.
fn from_raw(operations: &[RawOperation], duration_ns: i64) -> BTreeMap<&'static str, [Histogram; 2]> {
    let is_within = |ns: i64| (0..duration_ns).contains(&ns);
    let mut kinds: BTreeMap<&'static str, [Histogram; 2]> = BTreeMap::new();
    for one in operations.iter().filter(|one| one.answer.is_timed()) {
        let [latency, service] = kinds.entry(one.kind.name()).or_default();
        if is_within(one.intended_ns) {
            latency.record_ns((one.end_ns - one.intended_ns) as u64);
        }
        if one.answer != RawAnswer::Unstarted && is_within(one.start_ns) {
            service.record_ns((one.end_ns - one.start_ns) as u64);
        }
    }
    kinds
}

#[test]
fn percentiles_follow_from_raw_log() {
    let workload = workload(1000, &["fieldcount=1"]);
    for (rate_per_s, duration_ms, limit) in [(None, u64::MAX, Some(20_000)), (Some(20_000.0), 200, None)] {
        let (store, control) = (MemoryStore::new(), RunHandle::new());
        run_on(&store, &limited(&workload, "load", 2, None));
        let (log, operations) = RawLog::new();
        control.log_operations(log);
        let spec = RunSpec {
            rate_per_s,
            duration: if duration_ms == u64::MAX {
                Duration::MAX
            } else {
                Duration::from_millis(duration_ms)
            },
            ..limited(&workload, "a", 3, limit)
        };
        let (measured, raw) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| operations.flatten().collect::<Vec<_>>());
            let measured = run(&spec, &|_| Ok(Box::new(store.client())), &control).unwrap();
            (measured, reader.join().unwrap())
        });
        let duration_ns = if duration_ms == u64::MAX { i64::MAX } else { duration_ms as i64 * 1_000_000 };
        let answered = raw
            .iter()
            .filter(|one| one.answer != RawAnswer::Unstarted && (0..duration_ns).contains(&one.end_ns))
            .count();
        assert_eq!(answered as u64, measured.operations);
        let kinds = from_raw(&raw, duration_ns);
        assert_eq!(kinds.keys().copied().collect::<Vec<_>>(), ["read", "update"]);
        for (kind, [latency, service]) in kinds {
            let stats = &measured.by_operation[kind];
            assert_eq!(stats.latency.histogram, latency, "{kind}");
            assert_eq!(stats.service.histogram, service, "{kind}");
        }
    }
}

#[test]
fn intervals_are_kept_for_logs_when_asked() {
    let workload = workload(100, &[]);
    for keeps_intervals in [false, true] {
        let mut control = RunHandle::new();
        control.keeps_intervals = keeps_intervals;
        let spec = limited(&workload, "a", 2, Some(5_000));
        let measured = run(&spec, &|_| Ok(Box::new(NullClient)), &control).unwrap();
        let intervals = control.intervals();
        assert_eq!(intervals.is_empty(), !keeps_intervals);
        if keeps_intervals {
            let count: u64 = intervals.iter().map(|one| one.latency.count()).sum();
            assert_eq!(count, measured.operations);
            assert!(intervals.iter().all(|one| one.service.is_none()), "a closed loop has one latency");
        }
    }
}

#[test]
fn values_are_not_made_for_indifferent_client() {
    struct Counting(Arc<AtomicU64>, bool);
    impl Client for Counting {
        fn read(
            &mut self,
            _: &[u8],
            _: FieldSelection,
            _: &mut FieldValues,
        ) -> Result<OperationOutcome, ClientError> {
            Ok(OperationOutcome::Found)
        }
        fn scan(
            &mut self,
            _: &[u8],
            limit: u32,
            _: FieldSelection,
        ) -> Result<(OperationOutcome, u32), ClientError> {
            Ok((OperationOutcome::Found, limit))
        }
        fn update(&mut self, _: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
            self.0.fetch_add(values.len() as u64, Ordering::Relaxed);
            Ok(OperationOutcome::Found)
        }
        fn insert(&mut self, _: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
            self.update(b"", values)
        }
        fn delete(&mut self, _: &[u8]) -> Result<OperationOutcome, ClientError> {
            Ok(OperationOutcome::Found)
        }
        fn wants_values(&self) -> bool {
            self.1
        }
    }
    for (wants, fields) in [(true, 1_000), (false, 0)] {
        let count = Arc::new(AtomicU64::new(0));
        let spec = limited(&workload(100, &["fieldcount=10"]), "load", 1, None);
        run(&spec, &|_| Ok(Box::new(Counting(Arc::clone(&count), wants))), &RunHandle::new()).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), fields);
    }
    assert!(NullClient.wants_values() && !KeysOnlyClient.wants_values());
}

#[test]
fn run_begins_at_given_time() {
    let workload = workload(100, &[]);
    let spec = limited(&workload, "c", 2, Some(100));
    let begin = std::time::Instant::now() + Duration::from_millis(40);
    let mut control = RunHandle::new();
    control.on_connected = Some(Box::new(move || Some(begin)));
    let started = Arc::new(Mutex::new(Vec::new()));
    let timing = |_| -> Result<Box<dyn Client>, ClientError> {
        let started = Arc::clone(&started);
        Ok(Box::new(Reading(move || started.lock().unwrap().push(std::time::Instant::now()))))
    };
    run(&spec, &timing, &control).unwrap();
    // The two clocks were read one after the other.
    let tolerated = Duration::from_micros(500);
    assert!(
        started.lock().unwrap().iter().all(|&started_at| started_at + tolerated >= begin),
        "nothing comes before"
    );

    let mut refusing = RunHandle::new();
    refusing.on_connected = Some(Box::new(|| None));
    let error = run(&spec, &|_| Ok(Box::new(NullClient)), &refusing).unwrap_err();
    assert!(matches!(error, RunError::Stopped), "{error}");
}
