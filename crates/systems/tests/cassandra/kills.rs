//! A killed node comes back with every write that it acknowledged.

use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use underlay_workload::client::{Client, ClientError, FieldValues, Fields, Outcome};

use crate::{SETTLE_LIMIT, available, start, turn, whole_record};

const WRITERS: u32 = 4;
const BEFORE_THE_KILL: usize = 400;

#[test]
fn what_a_killed_node_acknowledged_is_there_again() {
    let _turn = turn();
    if !available() {
        return;
    }
    let directory = TempDir::new().unwrap();
    let settings = [("commitlog_sync", "group"), ("table_layout", "ycsb-usertable"), ("settle", "major")];
    let running = start(directory.path(), &settings).unwrap();
    let [process] = running.processes().try_into().unwrap();
    let acknowledged = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let mut client = running.connect().unwrap();
            let acknowledged = &acknowledged;
            scope.spawn(move || {
                for number in 0.. {
                    let key = format!("user{writer}-{number}");
                    match client.insert(key.as_bytes(), &whole_record(&key)) {
                        Ok(outcome) => {
                            assert_eq!(outcome, Outcome::Found);
                            acknowledged.lock().unwrap().push(key);
                        }
                        Err(ClientError::Lost(reason)) => {
                            assert!(reason.contains(&process.to_string()), "{reason}");
                            return;
                        }
                        // The connection broke and the process was not seen dead yet, or a new one can't be made.
                        Err(ClientError::System(_) | ClientError::Timeout(_)) => {}
                    }
                }
            });
        }
        while acknowledged.lock().unwrap().len() < BEFORE_THE_KILL {
            std::thread::sleep(Duration::from_millis(5));
        }
        let pid = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    });
    let error = running.health().unwrap_err().to_string();
    assert!(error.contains("SIGKILL") && error.contains("last words"), "{error}");
    assert!(running.processes().is_empty());
    drop(running);

    let running = start(directory.path(), &settings).unwrap();
    let mut client = running.connect().unwrap();
    let acknowledged = acknowledged.into_inner().unwrap();
    assert_all_there(client.as_mut(), &acknowledged);
    running.settle(SETTLE_LIMIT).unwrap();
    // Two data directories, each compacted to one file at most.
    let figures = running.figures().unwrap();
    assert!((1.0..=2.0).contains(&figures["current_sstables"]), "{figures:?}");
    assert_all_there(client.as_mut(), &acknowledged);
    running.stop().unwrap();
}

fn assert_all_there(client: &mut dyn Client, keys: &[String]) {
    let mut values = FieldValues::default();
    for key in keys {
        assert_eq!(client.read(key.as_bytes(), Fields::All, &mut values), Ok(Outcome::Found), "{key}");
        assert_eq!(values, whole_record(key));
    }
}
