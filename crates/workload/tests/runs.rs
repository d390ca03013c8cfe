//! Whole runs against clients in memory: what they leave behind, count and refuse. Nothing here depends on speed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use underlay_record::Measured;
use underlay_workload::client::{Client, ClientError, FieldValues, Fields, Outcome};
use underlay_workload::{
    Control, MemoryStore, Mix, NullClient, Phase, Properties, RunError, RunSpec, Workload, null_ceiling, run,
    ycsb_output,
};

fn workload(records: u64, arguments: &[&str]) -> Arc<Workload> {
    let mut properties = Properties::new();
    properties.add_argument(&format!("recordcount={records}")).unwrap();
    for argument in arguments {
        properties.add_argument(argument).unwrap();
    }
    Arc::new(properties.workload().unwrap())
}

/// A run that ends with its operations, however slow this machine is.
fn limited(workload: &Arc<Workload>, mix: &str, threads: u32, operations: Option<u64>) -> RunSpec {
    RunSpec {
        threads,
        duration: Duration::MAX,
        operation_limit: operations,
        ..RunSpec::new(Arc::clone(workload), Mix::parse(mix).unwrap())
    }
}

fn run_on(store: &MemoryStore, spec: &RunSpec) -> Measured {
    run(spec, &|_| Ok(Box::new(store.client())), &Control::new()).unwrap()
}

fn count(measured: &Measured, kind: &str) -> u64 {
    measured.by_operation.get(kind).map_or(0, |stats| stats.count)
}

fn assert_consistent(measured: &Measured) {
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
fn loading_writes_every_record_once_and_deleting_takes_it_away() {
    let workload = workload(3000, &["fieldcount=3", "insertstart=500", "insertcount=2000"]);
    let store = MemoryStore::new();
    let loaded = run_on(&store, &limited(&workload, "load", 4, None));
    assert_consistent(&loaded);
    assert_eq!((loaded.operations, loaded.errors, count(&loaded, "insert")), (2000, 0, 2000));
    let expected: BTreeSet<Vec<u8>> = (500..2500).map(|number| workload.key_naming.name(number)).collect();
    assert_eq!(store.keys(), expected.into_iter().collect::<Vec<_>>());
    let mut values = FieldValues::default();
    assert_eq!(
        store.client().read(&workload.key_naming.name(500), Fields::All, &mut values),
        Ok(Outcome::Found)
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
fn every_mix_runs_with_checked_values_and_finds_what_was_loaded() {
    let workload =
        workload(1000, &["dataintegrity=true", "fieldcount=2", "readallfields=false", "maxscanlength=20"]);
    for distribution in ["uniform", "zipfian", "latest", "hotspot", "exponential", "sequential"] {
        let store = MemoryStore::new();
        run_on(&store, &limited(&workload, "load", 2, None));
        let mut workload = Workload::clone(&workload);
        workload.request_distribution = underlay_workload::RequestDistribution::parse(distribution);
        let workload = Arc::new(workload);
        for mix in ["a", "b", "c", "d", "e", "f"] {
            let control = Control::new();
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

type Spoil = fn(&mut FieldValues);

/// Spoils what it reads, from the given read on.
struct Spoiling<C> {
    client: C,
    sound_reads: u64,
    spoil: Spoil,
}

impl<C: Client> Client for Spoiling<C> {
    fn read(&mut self, key: &[u8], fields: Fields, values: &mut FieldValues) -> Result<Outcome, ClientError> {
        let outcome = self.client.read(key, fields, values)?;
        if self.sound_reads == 0 {
            (self.spoil)(values);
        }
        self.sound_reads = self.sound_reads.saturating_sub(1);
        Ok(outcome)
    }
    fn scan(&mut self, start: &[u8], limit: u32, fields: Fields) -> Result<(Outcome, u32), ClientError> {
        self.client.scan(start, limit, fields)
    }
    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<Outcome, ClientError> {
        self.client.update(key, values)
    }
    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<Outcome, ClientError> {
        self.client.insert(key, values)
    }
    fn delete(&mut self, key: &[u8]) -> Result<Outcome, ClientError> {
        self.client.delete(key)
    }
}

fn respelled(values: &mut FieldValues, change: impl Fn(u32, Vec<u8>) -> Option<(u32, Vec<u8>)>) {
    let before: Vec<(u32, Vec<u8>)> = values.iter().map(|(field, value)| (field, value.to_vec())).collect();
    values.clear();
    for (field, value) in before.into_iter().filter_map(|(field, value)| change(field, value)) {
        values.push(field, &value);
    }
}

#[test]
fn spoiled_values_are_errors_of_their_own() {
    let workload = workload(100, &["dataintegrity=true", "fieldcount=2"]);
    let store = MemoryStore::new();
    run_on(&store, &limited(&workload, "load", 1, None));
    let spoils: [(Spoil, &str); 5] = [
        (
            |values| {
                respelled(values, |field, mut value| {
                    value[60] ^= 1;
                    Some((field, value))
                })
            },
            "differs from what was written, from byte",
        ),
        (
            |values| {
                respelled(values, |field, mut value| {
                    value[2] ^= 1;
                    Some((field, value))
                })
            },
            "differs from what was written, from byte 8",
        ),
        (
            |values| respelled(values, |field, value| (field > 0).then_some((field, value))),
            "has 1 fields, expected 2",
        ),
        (
            |values| respelled(values, |field, value| Some((1 - field, value))),
            "differs from what was written",
        ),
        (
            |values| respelled(values, |field, value| Some((field, value[1..].to_vec()))),
            "has 99 bytes, expected 100",
        ),
    ];
    for (spoil, finding) in spoils {
        let control = Control::new();
        let connect = |_| -> Result<Box<dyn Client>, ClientError> {
            Ok(Box::new(Spoiling { client: store.client(), sound_reads: 10, spoil }))
        };
        let measured = run(&limited(&workload, "c", 1, Some(15)), &connect, &control).unwrap();
        assert_eq!(
            (measured.operations, measured.errors, control.aftermath().integrity_mismatches),
            (15, 5, 5)
        );
        assert!(measured.error_samples[0].contains(finding), "{:?}", measured.error_samples);
        assert!(measured.error_samples[0].starts_with("data integrity: record user"));
    }
}

#[test]
fn an_offered_rate_is_kept_to() {
    let spec = RunSpec {
        rate_per_s: Some(2000.0),
        warmup: Duration::from_millis(50),
        duration: Duration::from_millis(200),
        dilation: 2.0,
        threads: 2,
        series_intervals: 4,
        ..RunSpec::new(workload(100, &[]), Mix::parse("a").unwrap())
    };
    let control = Control::new();
    let measured = run(&spec, &|_| Ok(Box::new(NullClient)), &control).unwrap();
    // 2,000 per modelled second are 1,000 per wall second, over 0.2 s; every arrival is measured, late or not.
    assert_eq!(measured.latency.us.count, 200);
    assert_eq!((measured.duration_s, measured.wall_s, measured.series.len()), (0.1, 0.2, 4));
    assert!(measured.generator.lateness_p99_us.is_some() && measured.generator.ceiling_per_s.is_none());
    assert_eq!(control.progress().phase, Phase::Ended);
}

#[test]
fn the_windows_edges_are_announced_in_pairs() {
    for warmup_ms in [0, 20] {
        let events = Arc::new(Mutex::new(Vec::new()));
        let (started, ended) = (Arc::clone(&events), Arc::clone(&events));
        let mut control = Control::new();
        control.on_measurement_started = Some(Box::new(move || started.lock().unwrap().push("started")));
        control.on_measurement_ended = Some(Box::new(move || ended.lock().unwrap().push("ended")));
        let spec = RunSpec {
            warmup: Duration::from_millis(warmup_ms),
            duration: Duration::from_millis(20),
            ..RunSpec::new(workload(100, &[]), Mix::parse("c").unwrap())
        };
        run(&spec, &|_| Ok(Box::new(NullClient)), &control).unwrap();
        assert_eq!(*events.lock().unwrap(), ["started", "ended"]);
    }
}

#[test]
fn a_stop_ends_the_run() {
    let control = Control::with_stop(Arc::new(AtomicBool::new(false)));
    let stop = Arc::clone(&control.stop);
    let spec = RunSpec {
        threads: 3,
        rate_per_s: Some(5.0),
        duration: Duration::from_secs(3600),
        ..RunSpec::new(workload(100, &[]), Mix::parse("c").unwrap())
    };
    let error = std::thread::scope(|scope| {
        let runner = scope.spawn(|| run(&spec, &|_| Ok(Box::new(NullClient)), &control));
        while control.progress().phase != Phase::Measuring {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        runner.join().unwrap().unwrap_err()
    });
    assert!(matches!(error, RunError::Stopped), "{error}");
}

#[test]
fn a_thread_that_cannot_connect_ends_the_run_before_it_begins() {
    let calls = AtomicU32::new(0);
    let connect = |thread| -> Result<Box<dyn Client>, ClientError> {
        calls.fetch_add(1, Ordering::Relaxed);
        if thread == 2 {
            Err(ClientError::System("too many clients".into()))
        } else {
            Ok(Box::new(NullClient))
        }
    };
    let error = run(&limited(&workload(10, &[]), "load", 4, None), &connect, &Control::new()).unwrap_err();
    assert_eq!(error.to_string(), "client thread 2 could not connect: too many clients");
    assert_eq!(calls.into_inner(), 4);
}

/// Fails every operation the way it is told to.
struct Failing(fn() -> Result<Outcome, ClientError>);

impl Client for Failing {
    fn read(&mut self, _: &[u8], _: Fields, _: &mut FieldValues) -> Result<Outcome, ClientError> {
        self.0()
    }
    fn scan(&mut self, _: &[u8], _: u32, _: Fields) -> Result<(Outcome, u32), ClientError> {
        self.0().map(|outcome| (outcome, 0))
    }
    fn update(&mut self, _: &[u8], _: &FieldValues) -> Result<Outcome, ClientError> {
        self.0()
    }
    fn insert(&mut self, _: &[u8], _: &FieldValues) -> Result<Outcome, ClientError> {
        self.0()
    }
    fn delete(&mut self, _: &[u8]) -> Result<Outcome, ClientError> {
        self.0()
    }
}

#[test]
fn errors_are_counted_sampled_and_end_nothing() {
    let connect = |_| -> Result<Box<dyn Client>, ClientError> {
        Ok(Box::new(Failing(|| Err(ClientError::System("disk full".into())))))
    };
    let measured = run(&limited(&workload(500, &[]), "load", 2, None), &connect, &Control::new()).unwrap();
    assert_eq!((measured.operations, measured.errors, measured.latency.us.count), (0, 500, 0));
    assert_eq!(measured.error_samples, ["insert: disk full"]);
}

#[test]
fn a_run_whose_connections_are_all_lost_fails_with_the_first_words() {
    let connected = AtomicU32::new(0);
    let connect = |_| -> Result<Box<dyn Client>, ClientError> {
        match connected.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Ok(Box::new(Failing(|| Err(ClientError::Lost("reset by peer".into()))))),
            _ => Err(ClientError::System("the system is gone".into())),
        }
    };
    // Fast motion: the pauses between attempts shrink with it.
    let spec = RunSpec { dilation: 1e-4, ..limited(&workload(100, &[]), "c", 2, Some(1000)) };
    let control = Control::new();
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
            2 => Ok(Outcome::Found),
            _ => Err(ClientError::System("busy".into())),
        })))
    };
    let workload = workload(50, &["core_workload_insertion_retry_limit=2"]);
    let measured = run(&limited(&workload, "load", 1, None), &connect, &Control::new()).unwrap();
    assert_eq!((measured.operations, measured.errors, CALLS.load(Ordering::Relaxed)), (50, 0, 150));
}

#[test]
fn a_client_that_panics_ends_the_run_with_its_words() {
    let connect =
        |_| -> Result<Box<dyn Client>, ClientError> { Ok(Box::new(Failing(|| panic!("a defect")))) };
    let error = run(&limited(&workload(10, &[]), "load", 2, None), &connect, &Control::new()).unwrap_err();
    assert_eq!(error.to_string(), "client thread 0 failed unexpectedly: a defect");
}

#[test]
fn a_specification_that_cannot_be_run_is_refused_with_every_reason() {
    let spec = RunSpec {
        threads: 0,
        rate_per_s: Some(-1.0),
        dilation: 0.0,
        duration: Duration::MAX,
        ..RunSpec::new(Arc::new(Workload::new(0, 10, 100)), Mix::parse("c").unwrap())
    };
    let error = run(&spec, &|_| Ok(Box::new(NullClient)), &Control::new()).unwrap_err().to_string();
    for reason in ["insertcount is 0", "0 threads", "a rate of -1", "a time scale of 0", "a run without end"]
    {
        assert!(error.contains(reason), "{error}");
    }
    let ends_early =
        RunSpec { warmup: Duration::from_millis(50), ..limited(&workload(5, &[]), "load", 1, None) };
    let error = run(&ends_early, &|_| Ok(Box::new(NullClient)), &Control::new()).unwrap_err();
    assert!(matches!(error, RunError::NothingMeasured), "{error}");
}

#[test]
fn the_generators_ceiling_is_found_for_every_mix() {
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
            fn read(&mut self, key: &[u8], _: Fields, _: &mut FieldValues) -> Result<Outcome, ClientError> {
                self.0.lock().unwrap().push(key.to_vec());
                Ok(Outcome::Found)
            }
            fn scan(&mut self, _: &[u8], limit: u32, _: Fields) -> Result<(Outcome, u32), ClientError> {
                Ok((Outcome::Found, limit))
            }
            fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<Outcome, ClientError> {
                let written: Vec<u8> = values.iter().flat_map(|(_, value)| value.to_vec()).collect();
                self.0.lock().unwrap().push([key, &written].concat());
                Ok(Outcome::Found)
            }
            fn insert(&mut self, _: &[u8], _: &FieldValues) -> Result<Outcome, ClientError> {
                Ok(Outcome::Found)
            }
            fn delete(&mut self, _: &[u8]) -> Result<Outcome, ClientError> {
                Ok(Outcome::Found)
            }
        }
        run(&spec, &|_| Ok(Box::new(Logging(Arc::clone(&log)))), &Control::new()).unwrap();
        log.lock().unwrap().clone()
    };
    assert_eq!(keys_of(3), keys_of(3));
    assert_ne!(keys_of(3), keys_of(4));
}

#[test]
fn the_summary_is_in_ycsbs_words() {
    use underlay_record::{Histogram, Latency, OperationStats};
    let histogram = |values_us: &[u64]| {
        let mut histogram = Histogram::default();
        values_us.iter().for_each(|&us| histogram.record_ns(us * 1000));
        Latency::of(histogram)
    };
    let mut measured =
        Measured { duration_s: 2.5, operations: 5, throughput_per_s: 2.0, ..Measured::default() };
    let service = histogram(&[100, 100, 200, 400]);
    let read =
        OperationStats { count: 4, missing: 1, throttled: 2, errors: 3, latency: service.clone(), service };
    let update = OperationStats {
        count: 1,
        latency: histogram(&[5000]),
        service: histogram(&[300]),
        ..OperationStats::default()
    };
    measured.by_operation.insert("read".into(), read);
    measured.by_operation.insert("read-modify-write".into(), update);
    let summary = ycsb_output::summary(&measured, &[50.0, 99.9]);
    let expected = "\
[OVERALL], RunTime(ms), 2500
[OVERALL], Throughput(ops/sec), 2
[READ], Operations, 4
[READ], AverageLatency(us), AVERAGE
[READ], MinLatency(us), 100
[READ], MaxLatency(us), 400
[READ], 50thPercentileLatency(us), 100
[READ], 99.9PercentileLatency(us), 400
[READ], Return=OK, 3
[READ], Return=NOT_FOUND, 1
[READ], Return=SERVICE_UNAVAILABLE, 2
[READ], Return=ERROR, 3
[READ-MODIFY-WRITE], Operations, 1
[READ-MODIFY-WRITE], AverageLatency(us), AVERAGE
[READ-MODIFY-WRITE], MinLatency(us), 300
[READ-MODIFY-WRITE], MaxLatency(us), 300
[READ-MODIFY-WRITE], 50thPercentileLatency(us), 300
[READ-MODIFY-WRITE], 99.9PercentileLatency(us), 300
[READ-MODIFY-WRITE], Return=OK, 1
[Intended-READ-MODIFY-WRITE], Operations, 1
[Intended-READ-MODIFY-WRITE], AverageLatency(us), AVERAGE
[Intended-READ-MODIFY-WRITE], MinLatency(us), 4997
[Intended-READ-MODIFY-WRITE], MaxLatency(us), 5001
[Intended-READ-MODIFY-WRITE], 50thPercentileLatency(us), 5001
[Intended-READ-MODIFY-WRITE], 99.9PercentileLatency(us), 5001
";
    let averages: Vec<f64> = summary
        .lines()
        .filter_map(|line| line.split_once("AverageLatency(us), ").map(|(_, value)| value.parse().unwrap()))
        .collect();
    for (found, exact) in averages.iter().zip([200.0, 300.0, 5000.0]) {
        assert!((found / exact - 1.0).abs() < 1e-3, "{averages:?}");
    }
    let without_averages: String = summary
        .lines()
        .map(|line| match line.split_once("AverageLatency(us), ") {
            Some((section, _)) => format!("{section}AverageLatency(us), AVERAGE\n"),
            None => format!("{line}\n"),
        })
        .collect();
    assert_eq!(without_averages, expected);
}
