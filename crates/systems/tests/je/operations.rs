//! What operations mean, held against a sorted map in memory on a store that runs already.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use underlay_systems::system::RunningSystem;
use underlay_workload::MemoryStore;
use underlay_workload::client::{Client, FieldSelection, FieldValues, FoundRecords, OperationOutcome};

use crate::FIELDS;

/// Few enough that operations meet, and more than are in one shard.
const KEYS: u8 = 12;
const CASES: u32 = 60;

#[derive(Clone, Debug)]
enum Step {
    Read(u8, FieldSelection),
    Scan(u8, u32, FieldSelection),
    Update(u8, Vec<(u32, Vec<u8>)>),
    Insert(u8, Vec<(u32, Vec<u8>)>),
    Delete(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let values = || prop::collection::vec((0..FIELDS, prop::collection::vec(any::<u8>(), 0..20)), 0..5);
    let fields = || prop_oneof![Just(FieldSelection::All), (0..FIELDS + 1).prop_map(FieldSelection::One)];
    prop_oneof![
        8 => (0..KEYS, fields()).prop_map(|(key, fields)| Step::Read(key, fields)),
        4 => (0..KEYS, 0..15u32, fields()).prop_map(|(key, limit, fields)| Step::Scan(key, limit, fields)),
        6 => (0..KEYS, values()).prop_map(|(key, values)| Step::Update(key, values)),
        6 => (0..KEYS, values()).prop_map(|(key, values)| Step::Insert(key, values)),
        3 => (0..KEYS).prop_map(Step::Delete),
    ]
}

fn record(fields: &[(u32, Vec<u8>)]) -> FieldValues {
    let mut values = FieldValues::default();
    fields.iter().for_each(|(field, value)| values.push(*field, value));
    values
}

/// The store must be empty, and is so afterwards. Scans are part of it where it has them.
pub(crate) fn mean_what_they_mean_in_a_map(running: &dyn RunningSystem, can_scan: bool) {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(CASES) };
    let mut client = running.connect().unwrap();
    let round = Cell::new(0);
    let steps = prop::collection::vec(step(), 1..60);
    let outcome = TestRunner::new(config).run(&steps, |steps| {
        round.set(round.get() + 1);
        replay(client_of(running), can_scan, round.get(), &steps);
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    if can_scan {
        assert_eq!(client.scan(b"", 10, FieldSelection::All), Ok((OperationOutcome::Missing, 0)));
    }
}

fn client_of(running: &dyn RunningSystem) -> Box<dyn Client> {
    running.connect().unwrap()
}

fn replay(mut client: Box<dyn Client>, can_scan: bool, round: u32, steps: &[Step]) {
    // Bytes that are no letters, and that signed bytes would sort elsewhere.
    let key_of = |number: u8| [&round.to_be_bytes()[..], &[number.wrapping_mul(23)]].concat();
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
            Step::Scan(key, limit, fields) if can_scan => {
                let outcome = client.scan(&key_of(*key), *limit, *fields);
                assert_eq!(outcome, reference.scan(&key_of(*key), *limit, *fields));
                let outcome = client.scan_records(&key_of(*key), *limit, *fields, &mut records);
                let expected = reference.scan_records(&key_of(*key), *limit, *fields, &mut expected_records);
                assert_eq!(outcome, expected);
                assert!(records.iter().eq(expected_records.iter()), "{records:?}");
            }
            Step::Scan(..) => {}
            Step::Update(key, changes) => {
                let (key, changes) = (key_of(*key), record(changes));
                assert_eq!(client.update(&key, &changes), Ok(OperationOutcome::Found));
                if reference.update(&key, &changes) == Ok(OperationOutcome::Missing) {
                    reference.insert(&key, &changes).unwrap();
                }
            }
            Step::Insert(key, fields) => {
                let fields = record(fields);
                assert_eq!(client.insert(&key_of(*key), &fields), reference.insert(&key_of(*key), &fields));
            }
            Step::Delete(key) => {
                assert_eq!(client.delete(&key_of(*key)), reference.delete(&key_of(*key)));
            }
        }
    }
    for key in store.keys() {
        reference.read(&key, FieldSelection::All, &mut expected).unwrap();
        assert_eq!(client.read(&key, FieldSelection::All, &mut values), Ok(OperationOutcome::Found));
        assert_eq!(values, expected);
        assert_eq!(client.delete(&key), Ok(OperationOutcome::Found));
    }
}
