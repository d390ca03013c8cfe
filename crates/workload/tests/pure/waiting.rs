//! A system that stands still for a moment of real time. What is asserted holds on a machine of any speed: a slower one
//! only makes everybody wait longer.

use std::sync::Arc;
use std::time::Duration;

use crate::reading::Reading;
use underlay_workload::client::{Client, ClientError};
use underlay_workload::{CoreWorkload, OperationMix, RawLog, RawOperation, RunHandle, RunSpec, run};

const STALL: Duration = Duration::from_secs(1);

/// Answers at once, but for one read after a number of others.
fn stalling(mut reads_before: u32) -> impl Client {
    Reading(move || {
        if reads_before == 0 {
            std::thread::sleep(STALL);
        }
        reads_before = reads_before.wrapping_sub(1);
    })
}

#[test]
fn operations_due_during_stall_wait_for_its_end() {
    let spec = RunSpec {
        rate_per_s: Some(1_000.0),
        duration: Duration::from_secs(2),
        ..RunSpec::new(Arc::new(CoreWorkload::new(100, 1, 10)), OperationMix::parse("c").unwrap())
    };
    let control = RunHandle::new();
    let (log, operations) = RawLog::new();
    control.log_operations(log);
    let (measured, raw) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| operations.flatten().collect::<Vec<RawOperation>>());
        let connect = |_| -> Result<Box<dyn Client>, ClientError> { Ok(Box::new(stalling(50))) };
        let measured = run(&spec, &connect, &control).unwrap();
        (measured, reader.join().unwrap())
    });
    // A millisecond from one to the next, and none is left out.
    let due_ns: Vec<i64> = raw.iter().map(|one| one.intended_ns).collect();
    assert_eq!(due_ns, (0..2000).map(|index| index * 1_000_000).collect::<Vec<_>>());
    let stall_ns = STALL.as_nanos() as i64;
    let stalled = raw[50];
    assert!(stalled.end_ns - stalled.start_ns >= stall_ns);
    let over_ns = stalled.intended_ns + stall_ns;
    let delayed: Vec<_> = raw[50..].iter().take_while(|one| one.intended_ns < over_ns).collect();
    assert_eq!(delayed.len(), 1000);
    assert!(delayed.iter().all(|one| one.end_ns >= over_ns), "nothing ends before the stall does");
    // The one that was due j ms after the stall's begin waits 1000 - j ms at least: half of all operations wait, the
    // hundredth of all for 980 ms.
    let read = &measured.by_operation["read"];
    assert_eq!(read.latency.us.count, 2000);
    for (share, least_ms) in
        [(0.75, 500.0), (0.9, 800.0), (0.95, 900.0), (0.99, 980.0), (0.999, 998.0), (1.0, 1000.0)]
    {
        let found_us = read.latency.histogram.quantile_us(share);
        assert!(found_us >= least_ms * 1e3 * (1.0 - 1e-3), "{found_us} us at {share}");
    }
    assert!(read.service.us.max >= 1e6);
}
