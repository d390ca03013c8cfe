//! What every system must do, gated by what it says it can. The reference is a sorted map in memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tempfile::TempDir;
use underlay_systems::memory_plan::ClientLoad;
use underlay_systems::profile::JAVA;
use underlay_systems::rocksdb::Rocksdb;
use underlay_systems::system::{
    RunningSystem, StoragePaths, System, SystemError, SystemResources, SystemSettings,
};
use underlay_workload::MemoryStore;
use underlay_workload::client::{
    Client, ClientError, FieldSelection, FieldValues, FoundRecords, OperationOutcome,
};

const FIELDS: u32 = 3;

/// RocksDB's engine is a subcommand, and that of another program than this test.
static ROCKSDB: LazyLock<Rocksdb> =
    LazyLock::new(|| Rocksdb::with_program(env!("CARGO_BIN_EXE_underlay-engine")));

/// The real systems that start at once. One that keeps nothing has a test of its own below; those of several processes
/// have test programs of their own, as `je-ha` in `je/group.rs` and `oracle-nosql` in `oracle_nosql`.
fn systems() -> Vec<&'static dyn System> {
    let all = underlay_systems::all()
        .filter(|system| system.profile().starts_at_once && !system.capabilities().keeps_nothing);
    all.map(|system| if system.name() == ROCKSDB.name() { &*ROCKSDB as &dyn System } else { system })
        .collect()
}

/// Systems that refuse something before any start.
fn refusing() -> Vec<&'static dyn System> {
    let mut systems = systems();
    systems.push(&underlay_systems::je_ha::INSTALLED);
    systems.push(&underlay_systems::oracle_nosql::INSTALLED);
    systems
}

/// With room for what the system is made of.
fn resources_of(system: &dyn System) -> SystemResources {
    let is_java = system.profile().needs.contains(&JAVA);
    let mut budget_bytes = if is_java { 256 << 20 } else { 32 << 20 };
    let is_small = |bytes| {
        system.memory(&BTreeMap::new(), bytes, ClientLoad::default()).is_some_and(|plan| plan.is_err())
    };
    while is_small(budget_bytes) {
        budget_bytes *= 2;
    }
    SystemResources::with_budget(budget_bytes)
}

fn start_on(
    system: &dyn System,
    directory: &Path,
    settings: &[(&str, &str)],
) -> Result<Box<dyn RunningSystem>, SystemError> {
    let data = directory.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let paths =
        StoragePaths { data: vec![data], scratch: directory.join("scratch"), ..StoragePaths::default() };
    let settings = SystemSettings {
        values: settings.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
        fields: FIELDS,
        field_bytes: 10,
        timeout: Duration::from_secs(30),
        ..SystemSettings::default()
    };
    system.start(&paths, &resources_of(system), &settings)
}

fn record(fields: &[(u32, Vec<u8>)]) -> FieldValues {
    let mut values = FieldValues::default();
    fields.iter().for_each(|(field, value)| values.push(*field, value));
    values
}

fn whole_record(text: &str) -> FieldValues {
    record(&(0..FIELDS).map(|field| (field, format!("{text}{field}").into_bytes())).collect::<Vec<_>>())
}

/// Hundreds of starts would wait for the disk that temporary files are on.
fn directory_in_memory() -> TempDir {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Read(u8, FieldSelection),
    Scan(u8, u32, FieldSelection),
    Update(u8, Vec<(u32, Vec<u8>)>),
    Insert(u8, Vec<(u32, Vec<u8>)>),
    Delete(u8),
    Settle,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0..12u8;
    let values = || prop::collection::vec((0..FIELDS, prop::collection::vec(any::<u8>(), 0..20)), 0..5);
    let fields = || prop_oneof![Just(FieldSelection::All), (0..FIELDS + 1).prop_map(FieldSelection::One)];
    prop_oneof![
        8 => (key(), fields()).prop_map(|(key, fields)| Step::Read(key, fields)),
        4 => (key(), 0..15u32, fields()).prop_map(|(key, limit, fields)| Step::Scan(key, limit, fields)),
        6 => (key(), values()).prop_map(|(key, values)| Step::Update(key, values)),
        6 => (key(), values()).prop_map(|(key, values)| Step::Insert(key, values)),
        3 => key().prop_map(Step::Delete),
        1 => Just(Step::Settle),
        1 => Just(Step::Restart),
    ]
}

fn key_of(number: u8) -> Vec<u8> {
    format!("user{number:02}").into_bytes()
}

#[test]
fn operations_agree_with_a_map() {
    for system in systems() {
        // A Java process takes a second to start.
        let cases = if system.profile().needs.contains(&JAVA) { 8 } else { 64 };
        let mut runner = TestRunner::new(ProptestConfig {
            failure_persistence: None,
            max_shrink_iters: cases,
            ..ProptestConfig::with_cases(cases)
        });
        let steps = prop::collection::vec(step(), 1..60);
        let outcome = runner.run(&steps, |steps| {
            replay(system, &steps);
            Ok(())
        });
        outcome.unwrap_or_else(|failure| panic!("{}: {failure}", system.name()));
    }
}

fn replay(system: &dyn System, steps: &[Step]) {
    let directory = directory_in_memory();
    let capabilities = system.capabilities();
    let mut running = start_on(system, directory.path(), &[]).unwrap();
    let mut client = running.connect().unwrap();
    let store = MemoryStore::new();
    let mut reference = store.client();
    let (mut values, mut expected) = (FieldValues::default(), FieldValues::default());
    let (mut records, mut expected_records) = (FoundRecords::default(), FoundRecords::default());
    for step in steps {
        match step {
            Step::Read(key, fields) => {
                let outcome = client.read(&key_of(*key), *fields, &mut values);
                assert_eq!(outcome, reference.read(&key_of(*key), *fields, &mut expected));
                assert_eq!(values, expected);
            }
            Step::Scan(key, limit, fields) if capabilities.scan => {
                let outcome = client.scan(&key_of(*key), *limit, *fields);
                assert_eq!(outcome, reference.scan(&key_of(*key), *limit, *fields));
                let outcome = client.scan_records(&key_of(*key), *limit, *fields, &mut records);
                let expected = reference.scan_records(&key_of(*key), *limit, *fields, &mut expected_records);
                assert_eq!(outcome, expected);
                assert!(records.iter().eq(expected_records.iter()), "{records:?}");
            }
            Step::Update(key, changes) => {
                let (key, changes) = (key_of(*key), record(changes));
                let outcome = client.update(&key, &changes);
                // Both answers are allowed for a record that is not there; whichever it is must be the truth.
                if reference.update(&key, &changes) == Ok(OperationOutcome::Missing)
                    && outcome == Ok(OperationOutcome::Found)
                {
                    reference.insert(&key, &changes).unwrap();
                }
                assert!(
                    matches!(outcome, Ok(OperationOutcome::Found | OperationOutcome::Missing)),
                    "{outcome:?}"
                );
            }
            Step::Insert(key, fields) => {
                let fields = record(fields);
                assert_eq!(client.insert(&key_of(*key), &fields), reference.insert(&key_of(*key), &fields));
            }
            Step::Delete(key) if capabilities.delete => {
                reference.delete(&key_of(*key)).unwrap();
                // A system need not look for what it deletes.
                assert!(matches!(
                    client.delete(&key_of(*key)),
                    Ok(OperationOutcome::Found | OperationOutcome::Missing)
                ));
            }
            Step::Settle => running.settle(Duration::from_secs(60)).unwrap(),
            Step::Restart => {
                running.stop().unwrap();
                running = start_on(system, directory.path(), &[]).unwrap();
                client = running.connect().unwrap();
            }
            Step::Scan(..) | Step::Delete(_) => {}
        }
    }
    for key in store.keys() {
        reference.read(&key, FieldSelection::All, &mut expected).unwrap();
        assert_eq!(client.read(&key, FieldSelection::All, &mut values), Ok(OperationOutcome::Found));
        assert_eq!(values, expected);
    }
    running.stop().unwrap();
}

#[test]
fn concurrent_updates_of_one_record_lose_nothing() {
    const ROUNDS: u32 = 200;
    for system in systems() {
        let directory = TempDir::new().unwrap();
        let running = start_on(system, directory.path(), &[]).unwrap();
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
        running.stop().unwrap();
    }
}

#[test]
fn wrong_settings_are_all_found_before_the_start() {
    for system in refusing() {
        let wrong = BTreeMap::from([("no-such-setting".to_owned(), "1".to_owned())]);
        let mistakes = system.check_settings(&wrong);
        assert_eq!(mistakes.len(), 1);
        assert_eq!(mistakes[0].0, "no-such-setting");
        for (name, meaning) in system.capabilities().settings {
            assert!(mistakes[0].1.contains(name), "the message lists {name}");
            assert!(!meaning.is_empty());
        }
        let directory = TempDir::new().unwrap();
        let error = start_on(system, directory.path(), &[("no-such-setting", "1")]).err().unwrap();
        assert!(matches!(error, SystemError::Setting { ref key, .. } if key == "no-such-setting"), "{error}");
        assert!(system.check_settings(&BTreeMap::new()).is_empty());
    }
}

#[test]
fn budget_too_small_is_refused() {
    for system in refusing() {
        let directory = TempDir::new().unwrap();
        let paths = StoragePaths {
            data: vec![directory.path().into()],
            scratch: directory.path().join("scratch"),
            ..StoragePaths::default()
        };
        let resources = SystemResources::with_budget(1 << 20);
        let error = system.start(&paths, &resources, &SystemSettings::default()).err().unwrap();
        assert!(error.to_string().contains("1.0 MiB is too small"), "{error}");
    }
}

#[test]
fn unusable_directory_is_named() {
    for system in refusing() {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let resources = resources_of(system);
        // Not even root can make a directory in /proc.
        for data in [Path::new("/proc"), &directory.path().join("missing"), &file] {
            let paths = StoragePaths {
                data: vec![data.into()],
                scratch: directory.path().join("scratch"),
                ..StoragePaths::default()
            };
            let error =
                system.start(&paths, &resources, &SystemSettings::default()).err().unwrap().to_string();
            assert!(error.contains(&data.display().to_string()), "{error}");
        }
        if !system.capabilities().many_directories {
            let data = vec![directory.path().join("a"), directory.path().join("b")];
            let paths =
                StoragePaths { data, scratch: directory.path().join("scratch"), ..StoragePaths::default() };
            let error =
                system.start(&paths, &resources, &SystemSettings::default()).err().unwrap().to_string();
            assert!(error.contains("not 2"), "{error}");
        }
    }
}

#[test]
fn started_system_is_gone_after_stop_or_drop() {
    for system in systems() {
        for orderly in [true, false] {
            let directory = TempDir::new().unwrap();
            let running = start_on(system, directory.path(), &[]).unwrap();
            let processes = running.processes();
            assert!(!processes.is_empty());
            let mut client = running.connect().unwrap();
            client.insert(b"user", &whole_record("")).unwrap();
            if orderly {
                running.stop().unwrap()
            } else {
                drop(running)
            }
            for process in processes {
                assert!(!Path::new(&format!("/proc/{process}")).exists(), "{process} is left");
            }
            let error = client.insert(b"user", &whole_record("")).unwrap_err();
            assert!(matches!(&error, ClientError::Lost(reason) if reason.contains(system.name())), "{error}");
            let files = std::fs::read_dir(directory.path().join("scratch")).unwrap();
            let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
            assert_eq!(names.filter(|name| name.ends_with(".sock")).count(), 0);
        }
    }
}

#[test]
fn system_reports_versions_settings_and_figures() {
    for system in systems() {
        let directory = TempDir::new().unwrap();
        assert!(system.versions().contains_key(system.name()), "{:?}", system.versions());
        let running = start_on(system, directory.path(), &[]).unwrap();
        running.health().unwrap();
        for (name, _) in system.capabilities().settings {
            assert!(running.applied_settings().contains_key(*name), "{name}");
        }
        let before = running.figures().unwrap();
        let mut client = running.connect().unwrap();
        for number in 0..100 {
            client.insert(&key_of(number), &whole_record("x")).unwrap();
        }
        let after = running.figures().unwrap();
        assert_ne!(before, after);
        let gauges = running.gauges().unwrap();
        assert!(gauges.keys().all(|name| after.contains_key(name)), "{gauges:?}");
        running.settle(Duration::from_secs(60)).unwrap();
        running.stop().unwrap();
    }
}

#[test]
fn null_answers_at_once_and_keeps_nothing() {
    let null = underlay_systems::find("null").unwrap();
    let directory = TempDir::new().unwrap();
    let running = start_on(null, directory.path(), &[]).unwrap();
    let mut client = running.connect().unwrap();
    client.insert(b"user", &whole_record("x")).unwrap();
    let mut values = whole_record("y");
    assert_eq!(client.read(b"user", FieldSelection::All, &mut values), Ok(OperationOutcome::Found));
    assert!(values.is_empty());
    assert_eq!(client.scan(b"user", 7, FieldSelection::All), Ok((OperationOutcome::Found, 7)));
    assert!(running.processes().is_empty());
    running.stop().unwrap();
    assert!(start_on(null, directory.path(), &[("wal", "sync")]).is_err());
}

#[test]
fn systems_are_found_by_their_names() {
    for name in underlay_systems::names() {
        assert_eq!(underlay_systems::find(name).unwrap().name(), name);
    }
    assert!(underlay_systems::find("rocksdb").is_some());
    assert!(underlay_systems::find("rocks").is_none());
}
