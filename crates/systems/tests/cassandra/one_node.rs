//! What every system must do, on one node and one start of it: a start takes ten seconds.

use std::net::TcpStream;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tempfile::TempDir;
use underlay_systems::cassandra::INSTALLED;
use underlay_systems::system::{RunningSystem, StoragePaths, System, SystemError, SystemResources};
use underlay_workload::MemoryStore;
use underlay_workload::client::{
    Client, ClientError, FieldSelection, FieldValues, FoundRecords, OperationOutcome,
};

use crate::{
    FIELDS, NODE_BYTES, ROLES, SETTLE_LIMIT, files_in, has_own_network, is_process, join, record,
    run_in_network, secured, settings, settings_in_force, start, whole_record,
};

const SLOW_MOTION: f64 = 4.0;

#[test]
fn node_behaves_like_other_systems() {
    let directory = TempDir::new().unwrap();
    let running = start(directory.path(), &[("compaction", "UCS")], SLOW_MOTION).unwrap();
    it_tells_what_it_is(running.as_ref());
    it_listens_to_nobody_else(running.as_ref());
    it_has_the_settings_that_it_was_given(running.as_ref(), directory.path());
    it_locks_none_of_its_memory(running.as_ref());
    scans_give_each_record_once(running.as_ref());
    every_operation_means_what_it_means_in_a_map(running.as_ref());
    concurrent_updates_of_one_record_lose_nothing(running.as_ref());
    fields_that_there_are_not_are_refused(running.as_ref());
    settling_leaves_the_data_in_files(running.as_ref());
    a_cluster_that_runs_already_is_used_as_it_is(running.as_ref());

    assert!(files_in(&directory.path().join("log/cassandra/commitlog")) > 0);
    let [process] = running.processes().try_into().unwrap();
    let mut client = running.connect().unwrap();
    running.stop().unwrap();
    assert!(!is_process(process));
    let error = client.insert(b"user", &whole_record("")).unwrap_err();
    assert!(matches!(&error, ClientError::Lost(reason) if reason.contains("cassandra")), "{error}");

    secured::with_passwords_and_encryption(directory.path());
}

/// Neither its clients' port nor the others: it asks nobody for a password.
fn it_listens_to_nobody_else(running: &dyn RunningSystem) {
    let address = running.applied_settings()["addresses"].clone();
    let network = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).unwrap();
    let namespace = network(&running.processes()[0].to_string());
    if !has_own_network(running) {
        assert!(!rustix::process::geteuid().is_root(), "root can give it a network of its own");
        return;
    }
    assert_ne!(namespace, network("self"));
    assert!(TcpStream::connect(&address).is_err(), "{address} is open to the host");
    run_in_network(running, || drop(TcpStream::connect(&address).unwrap()));
    let devices = run_in_network(running, || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap());
    let devices: Vec<&str> = devices.lines().skip(2).filter_map(|line| line.split(':').next()).collect();
    assert_eq!(devices.iter().map(|device| device.trim()).collect::<Vec<_>>(), ["lo"]);
}

/// As where the program may not make network namespaces.
#[test]
fn unprivileged_node_listens_on_loopback_and_reports_it() {
    let directory = TempDir::new().unwrap();
    let started = std::thread::spawn({
        let path = directory.path().to_owned();
        move || {
            // The rights of a thread are its own.
            let mut rights = capabilities(None).unwrap();
            rights.effective.remove(CapabilitySet::SYS_ADMIN);
            set_capabilities(None, rights).unwrap();
            start(&path, &[], 1.0)
        }
    });
    let running = started.join().unwrap().unwrap();
    let applied = running.applied_settings();
    assert!(applied["network"].contains("CAP_SYS_ADMIN is missing"), "{applied:?}");
    drop(TcpStream::connect(&applied["addresses"]).unwrap());
    let mut client = running.connect().unwrap();
    assert_eq!(client.insert(b"user", &whole_record("user")), Ok(OperationOutcome::Found));
    drop(client);
    running.stop().unwrap();
}

fn it_has_the_settings_that_it_was_given(running: &dyn RunningSystem, directory: &std::path::Path) {
    let applied = running.applied_settings();
    let in_force = run_in_network(running, || settings_in_force(&applied["addresses"]));
    for (role, name) in ROLES {
        let expected = directory.join(name).join("cassandra").join(role);
        assert_eq!(in_force[&format!("{role}_directory")], expected.display().to_string());
    }
    for name in ["data-1", "data-2"] {
        let expected = directory.join(name).join("cassandra/data");
        assert!(in_force["data_file_directories"].contains(&*expected.to_string_lossy()), "{name}");
    }
    // Cassandra's own timeouts and its bandwidth for compactions, four times slower.
    for (name, expected) in [
        ("read_request_timeout", "20000ms"),
        ("write_request_timeout", "8000ms"),
        ("range_request_timeout", "40000ms"),
        ("native_transport_timeout", "48000ms"),
        ("commitlog_sync_period", "40000ms"),
        ("hints_flush_period", "40000ms"),
        ("compaction_throughput", "16384KiB/s"),
    ] {
        assert_eq!(in_force[name], expected, "{name}");
    }
    let mib = |name: &str| format!("{}MiB", applied[name].parse::<u64>().unwrap() >> 20);
    assert_eq!(in_force["memtable_heap_space"], mib("memtable_bytes"));
    assert_eq!(in_force["file_cache_size"], mib("file_buffer_bytes"));
    assert_eq!(in_force["commitlog_segment_size"], mib("commitlog_segment_bytes"));
}

/// Locked, the files of Java that it maps would leave a small budget no page cache, and the kernel would kill it.
fn it_locks_none_of_its_memory(running: &dyn RunningSystem) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.processes()[0])).unwrap();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    assert_eq!(locked.trim(), "0 kB");
}

fn it_tells_what_it_is(running: &dyn RunningSystem) {
    let versions = INSTALLED.versions();
    assert!(versions["cassandra"].starts_with("5.0."), "{versions:?}");
    assert!(versions["java"].starts_with("17") && versions.contains_key("rust-scylla"), "{versions:?}");
    running.health().unwrap();
    let applied = running.applied_settings();
    for (name, _) in INSTALLED.capabilities().settings {
        assert!(applied.contains_key(*name), "{name}");
    }
    assert_eq!(applied["compaction"], "UCS");
    let mut client = running.connect().unwrap();
    let before = running.figures().unwrap();
    assert!(before["key_cache_requests"] > 0.0 && before.contains_key("key_cache_hits"), "{before:?}");
    for number in 0..50 {
        client.insert(format!("figure{number}").as_bytes(), &whole_record("x")).unwrap();
        client
            .read(format!("figure{number}").as_bytes(), FieldSelection::All, &mut FieldValues::default())
            .unwrap();
        client.delete(format!("figure{number}").as_bytes()).unwrap();
    }
    let figures = underlay_systems::figures::between(&before, &running.figures().unwrap());
    assert!(running.gauges().unwrap().keys().eq(["current_compactions_running"]));
    assert_eq!(figures["writes"], 100.0);
    assert_eq!(figures["reads"], 50.0);
    assert!(figures["current_resident_bytes"] > 1e8, "{figures:?}");
}

fn scans_give_each_record_once(running: &dyn RunningSystem) {
    const RECORDS: u32 = 20;
    let mut client = running.connect().unwrap();
    let keys: Vec<String> = (0..RECORDS).map(|number| format!("scanned{number}")).collect();
    for key in &keys {
        client.insert(key.as_bytes(), &whole_record(key)).unwrap();
    }
    // The table has no other records. In the order of hashes, a scan from the first record finds all, a scan from the
    // last finds that alone, and any other scan finds all from there on.
    let mut counts: Vec<u32> = keys
        .iter()
        .map(|key| match client.scan(key.as_bytes(), 1000, FieldSelection::All).unwrap() {
            (OperationOutcome::Found, count) => count,
            other => panic!("{key}: {other:?}"),
        })
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, (1..=RECORDS).collect::<Vec<_>>());
    for key in &keys {
        let (_, count) = client.scan(key.as_bytes(), 3, FieldSelection::One(1)).unwrap();
        assert!((1..=3).contains(&count));
        let mut records = FoundRecords::default();
        let scanned = client.scan_records(key.as_bytes(), 3, FieldSelection::One(1), &mut records).unwrap();
        assert_eq!(scanned, (OperationOutcome::Found, count));
        for (found, values) in records.iter() {
            let mut expected = FieldValues::default();
            client.read(found, FieldSelection::One(1), &mut expected).unwrap();
            assert_eq!((values, values.len()), (&expected, 1));
        }
        client.scan_records(key.as_bytes(), 1, FieldSelection::All, &mut records).unwrap();
        let (first, values) = records.iter().next().unwrap();
        assert_eq!((first, values), (key.as_bytes(), &whole_record(key)));
        assert_eq!(client.scan(key.as_bytes(), 0, FieldSelection::All), Ok((OperationOutcome::Missing, 0)));
    }
    for key in &keys {
        client.delete(key.as_bytes()).unwrap();
    }
    assert_eq!(client.scan(b"scanned", 1000, FieldSelection::All), Ok((OperationOutcome::Missing, 0)));
}

#[derive(Clone, Debug)]
enum Step {
    Read(u8, FieldSelection),
    Update(u8, Vec<(u32, Vec<u8>)>),
    Insert(u8, Vec<(u32, Vec<u8>)>),
    Delete(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0..12u8;
    let values = || prop::collection::vec((0..FIELDS, prop::collection::vec(any::<u8>(), 0..20)), 0..5);
    let fields = || prop_oneof![Just(FieldSelection::All), (0..FIELDS + 1).prop_map(FieldSelection::One)];
    prop_oneof![
        4 => (key(), fields()).prop_map(|(key, fields)| Step::Read(key, fields)),
        3 => (key(), values()).prop_map(|(key, values)| Step::Update(key, values)),
        3 => (key(), values()).prop_map(|(key, values)| Step::Insert(key, values)),
        2 => key().prop_map(Step::Delete),
    ]
}

/// Each case has keys of its own.
fn every_operation_means_what_it_means_in_a_map(running: &dyn RunningSystem) {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]));
    let case = std::cell::Cell::new(0);
    runner
        .run(&prop::collection::vec(step(), 1..60), |steps| {
            case.set(case.get() + 1);
            replay(running, case.get(), &steps);
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

fn replay(running: &dyn RunningSystem, case: u32, steps: &[Step]) {
    let mut client = running.connect().unwrap();
    let store = MemoryStore::new();
    let mut reference = store.client();
    let key_of = |number: u8| format!("case{case}-{number}").into_bytes();
    let (mut values, mut expected) = (FieldValues::default(), FieldValues::default());
    for step in steps {
        match step {
            Step::Read(key, fields) => {
                let outcome = client.read(&key_of(*key), *fields, &mut values);
                assert_eq!(outcome, reference.read(&key_of(*key), *fields, &mut expected));
                assert_eq!(values, expected);
            }
            Step::Update(key, changes) => {
                let (key, changes) = (key_of(*key), record(changes));
                // Cassandra creates what it updates.
                if reference.update(&key, &changes) == Ok(OperationOutcome::Missing) {
                    reference.insert(&key, &changes).unwrap();
                }
                assert_eq!(client.update(&key, &changes), Ok(OperationOutcome::Found));
            }
            Step::Insert(key, fields) => {
                let fields = record(fields);
                assert_eq!(client.insert(&key_of(*key), &fields), reference.insert(&key_of(*key), &fields));
            }
            Step::Delete(key) => {
                reference.delete(&key_of(*key)).unwrap();
                assert_eq!(client.delete(&key_of(*key)), Ok(OperationOutcome::Found));
            }
        }
    }
    for key in store.keys() {
        reference.read(&key, FieldSelection::All, &mut expected).unwrap();
        assert_eq!(client.read(&key, FieldSelection::All, &mut values), Ok(OperationOutcome::Found));
        assert_eq!(values, expected);
    }
}

fn concurrent_updates_of_one_record_lose_nothing(running: &dyn RunningSystem) {
    const ROUNDS: u32 = 100;
    running.connect().unwrap().insert(b"user", &whole_record("start")).unwrap();
    std::thread::scope(|scope| {
        for field in 0..FIELDS {
            let mut client = running.connect().unwrap();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let change = record(&[(field, format!("round {round}").into_bytes())]);
                    assert_eq!(client.update(b"user", &change), Ok(OperationOutcome::Found));
                }
            });
        }
    });
    let mut values = FieldValues::default();
    running.connect().unwrap().read(b"user", FieldSelection::All, &mut values).unwrap();
    let last = format!("round {}", ROUNDS - 1).into_bytes();
    assert_eq!(values, record(&(0..FIELDS).map(|field| (field, last.clone())).collect::<Vec<_>>()));
}

fn fields_that_there_are_not_are_refused(running: &dyn RunningSystem) {
    let mut client = running.connect().unwrap();
    let unknown_field = record(&[(FIELDS, b"x".to_vec())]);
    for error in [client.update(b"user", &unknown_field), client.insert(b"user", &unknown_field)] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains(&format!("no field{FIELDS}")), "{error}");
    }
}

fn settling_leaves_the_data_in_files(running: &dyn RunningSystem) {
    let before = running.figures().unwrap();
    running.settle(SETTLE_LIMIT).unwrap();
    let figures = running.figures().unwrap();
    assert!(figures["current_sstables"] >= 1.0, "{figures:?}");
    assert!(figures["flushes"] > before["flushes"], "{figures:?}");
    assert_eq!(figures["current_compaction_tasks"], 0.0);
    let mut values = FieldValues::default();
    assert_eq!(
        running.connect().unwrap().read(b"user", FieldSelection::All, &mut values),
        Ok(OperationOutcome::Found)
    );
}

fn a_cluster_that_runs_already_is_used_as_it_is(running: &dyn RunningSystem) {
    let address = &running.applied_settings()["addresses"];
    // A table that is there is not changed behind its owner's back.
    let error = run_in_network(running, || join(address, &[])).err().unwrap();
    assert!(matches!(&error, SystemError::Setting { key, .. } if key == "compaction"), "{error}");
    assert!(error.to_string().contains("UnifiedCompactionStrategy"), "{error}");

    let joined = run_in_network(running, || join(address, &[("compaction", "UCS")])).unwrap();
    joined.health().unwrap();
    assert!(joined.processes().is_empty());
    let mut values = FieldValues::default();
    assert_eq!(
        joined.connect().unwrap().read(b"user", FieldSelection::All, &mut values),
        Ok(OperationOutcome::Found)
    );
    joined.settle(SETTLE_LIMIT).unwrap();
    assert_eq!(joined.figures().unwrap()["current_nodes"], 1.0);
    joined.stop().unwrap();
    running.health().unwrap();
}

#[test]
fn mistakes_are_found_before_anything_is_started() {
    let wrong = settings(&[("no-such-setting", "1"), ("compression", "gzip")]);
    let mistakes = INSTALLED.check_settings(&wrong.values);
    assert_eq!(mistakes.len(), 2);
    assert_eq!((mistakes[0].0.as_str(), mistakes[1].0.as_str()), ("compression", "no-such-setting"));
    for (name, meaning) in INSTALLED.capabilities().settings {
        assert!(mistakes[1].1.contains(name), "the message lists {name}");
        assert!(!meaning.is_empty());
    }
    assert!(INSTALLED.check_settings(&settings(&[]).values).is_empty());

    let directory = TempDir::new().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let started = |data: &std::path::Path, budget_bytes: u64| {
        let paths = StoragePaths {
            data: vec![data.into()],
            scratch: directory.path().join("scratch"),
            ..StoragePaths::default()
        };
        let resources = SystemResources::with_budget(budget_bytes);
        INSTALLED.start(&paths, &resources, &settings(&[])).err().unwrap().to_string()
    };
    let error = started(directory.path(), 1 << 20);
    assert!(error.contains("1.0 MiB is too small"), "{error}");
    // Not even root can make a directory in /proc.
    for data in [std::path::Path::new("/proc"), &directory.path().join("missing"), &file] {
        let error = started(data, NODE_BYTES);
        assert!(error.contains(&data.display().to_string()), "{error}");
    }
}
