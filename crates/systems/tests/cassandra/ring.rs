//! Two nodes that hold each record twice.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use underlay_workload::client::{ClientError, FieldValues, Fields, Outcome};

use crate::{available, is_process, start, turn, whole_record};

const RECORDS: u32 = 40;
/// Until the survivor has seen that the other is gone.
const DETECTION_LIMIT: Duration = Duration::from_secs(90);

#[test]
fn a_ring_of_two_survives_one_of_them() {
    let _turn = turn();
    if !available() {
        return;
    }
    let directory = TempDir::new().unwrap();
    let running =
        start(directory.path(), &[("nodes", "2"), ("replication_factor", "2"), ("consistency", "ALL")])
            .unwrap();
    let processes = running.processes();
    assert_eq!(processes.len(), 2);
    let mut client = running.connect().unwrap();
    let key_of = |number: u32| format!("user{number}");
    for number in 0..RECORDS {
        let key = key_of(number);
        assert_eq!(client.insert(key.as_bytes(), &whole_record(&key)), Ok(Outcome::Found));
    }
    let figures = running.figures().unwrap();
    assert_eq!(figures["current_nodes"], 2.0);
    assert_eq!(figures["writes"], f64::from(2 * RECORDS), "each node has a copy of each record");

    let pid = Pid::from_raw(i32::try_from(processes[1]).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    // At ALL, writes must fail now, each with a reason.
    let killed = Instant::now();
    loop {
        match client.insert(b"user0", &whole_record("user0")) {
            Err(ClientError::System(reason)) if reason.contains("Not enough nodes are alive") => break,
            Err(ClientError::System(_) | ClientError::Timeout(_)) => {}
            other => panic!("{other:?}"),
        }
        assert!(killed.elapsed() < DETECTION_LIMIT, "the dead node is still taken for alive");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(running.health().is_err());

    // The survivor alone has everything.
    let addresses = running.applied_settings()["addresses"].clone();
    let survivor = addresses.split(", ").next().unwrap();
    let joined = start(directory.path(), &[("endpoints", survivor), ("consistency", "ONE")]).unwrap();
    let mut reader = joined.connect().unwrap();
    let mut values = FieldValues::default();
    for number in 0..RECORDS {
        let key = key_of(number);
        assert_eq!(reader.read(key.as_bytes(), Fields::All, &mut values), Ok(Outcome::Found), "{key}");
        assert_eq!(values, whole_record(&key));
    }
    joined.stop().unwrap();
    drop(running);
    assert!(processes.iter().all(|&process| !is_process(process)));
}
