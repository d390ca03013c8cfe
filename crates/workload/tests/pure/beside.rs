//! Two streams of operations at once, and one that comes from several hosts.

use std::sync::Arc;
use std::time::Duration;

use underlay_record::MeasuredWindow;
use underlay_workload::{
    BackgroundWork, CoreWorkload, HostShare, MemoryStore, NullClient, OperationMix, RunError, RunHandle,
    RunSpec, run,
};

/// Readers beside a writer: each stream has figures of its own.
#[test]
fn background_load_is_in_no_measured_figure() {
    let store = MemoryStore::new();
    let workload = Arc::new(CoreWorkload::new(500, 1, 100));
    let mix = |name: &str| OperationMix::parse(name).unwrap();
    let load = RunSpec { duration: Duration::MAX, ..RunSpec::new(Arc::clone(&workload), mix("load")) };
    let run_on = |spec: &RunSpec| run(spec, &|_| Ok(Box::new(store.client())), &RunHandle::new());
    run_on(&load).unwrap();
    let background = BackgroundWork { mix: mix("update100"), threads: 2, rate_per_s: Some(200.0) };
    let spec = RunSpec {
        threads: 2,
        duration: Duration::from_millis(400),
        beside: Some(background.clone()),
        ..RunSpec::new(Arc::clone(&workload), mix("c"))
    };
    let measured = run_on(&spec).unwrap();
    let kinds: u64 = measured.by_operation.values().map(|stats| stats.count).sum();
    assert_eq!(kinds, measured.operations);
    let names: Vec<&str> = measured.by_operation.keys().map(String::as_str).collect();
    assert_eq!((names, measured.by_operation["read"].count > 0), (vec!["read"], true));
    let found = measured.beside.expect("it went on");
    assert_eq!((found.mix.as_str(), found.threads, found.rate_per_s), ("update100", 2, Some(200.0)));
    assert_eq!((found.operations, found.errors), (found.by_operation["update"].count, 0));
    // Every update that was due in 0.4 s, however late: those that were not answered within it are in the latency
    // alone.
    let due = found.by_operation["update"].latency.histogram.count();
    assert!((79..=81).contains(&due), "{due}");
    assert_eq!(found.by_operation.len(), 1);

    let error_for = |change: &dyn Fn(&mut RunSpec)| {
        let mut spec = spec.clone();
        change(&mut spec);
        match run_on(&spec) {
            Err(RunError::Spec { problems }) => problems.join("; "),
            other => panic!("{other:?}"),
        }
    };
    assert!(error_for(&|spec| spec.mix = mix("load")).contains("beside those of a load"));
    assert!(error_for(&|spec| spec.operation_limit = Some(9)).contains("beside a number"));
    let inserting = BackgroundWork { mix: mix("d"), ..background };
    let both = error_for(&|spec| {
        spec.mix = mix("d");
        spec.beside = Some(inserting.clone());
    });
    assert!(both.contains("inserts in both"), "{both}");
}

#[test]
fn hosts_share_a_rate_by_their_threads() {
    let workload = Arc::new(CoreWorkload::new(100, 1, 100));
    let measure_on = |first_thread, threads| {
        let spec = RunSpec {
            threads,
            share: Some(HostShare { first_thread, all_threads: 4 }),
            rate_per_s: Some(2_000.0),
            duration: Duration::from_millis(100),
            ..RunSpec::new(Arc::clone(&workload), OperationMix::parse("c").unwrap())
        };
        run(&spec, &|_| Ok(Box::new(NullClient)), &RunHandle::new())
    };
    let due = |measured: MeasuredWindow| measured.latency.histogram.count();
    // 200 operations in all, a fourth for each thread.
    assert_eq!((due(measure_on(0, 1).unwrap()), due(measure_on(1, 3).unwrap())), (50, 150));
    let error = measure_on(2, 3).unwrap_err().to_string();
    assert!(error.contains("threads from 2 on, 3 of them, of 4 in all"), "{error}");
}
