//! Values that are checked (`dataintegrity`), spoiled on their way from the system to the generator.

use std::sync::Arc;
use std::time::Duration;

use underlay_record::IntegrityRecord;
use underlay_workload::client::{
    Client, ClientError, FieldSelection, FieldValues, FoundRecords, OperationOutcome,
};
use underlay_workload::{
    CoreWorkload, MemoryClient, MemoryStore, OperationMix, RunHandle, RunSpec, YcsbProperties, run,
};

fn workload() -> Arc<CoreWorkload> {
    let mut properties = YcsbProperties::new();
    for argument in ["recordcount=100", "dataintegrity=true", "fieldcount=2"] {
        properties.add_argument(argument).unwrap();
    }
    Arc::new(properties.workload().unwrap())
}

/// A run that ends with its operations, however slow this machine is.
fn limited(workload: &Arc<CoreWorkload>, mix: &str, operation_limit: Option<u64>) -> RunSpec {
    RunSpec {
        duration: Duration::MAX,
        operation_limit,
        ..RunSpec::new(Arc::clone(workload), OperationMix::parse(mix).unwrap())
    }
}

fn loaded(workload: &Arc<CoreWorkload>) -> MemoryStore {
    let store = MemoryStore::new();
    run(&limited(workload, "load", None), &|_| Ok(Box::new(store.client())), &RunHandle::new()).unwrap();
    store
}

type Spoil = fn(&mut FieldValues);

/// Spoils what it reads, from the given read on.
struct Spoiling<C> {
    client: C,
    sound_reads: u64,
    spoil: Spoil,
}

impl<C: Client> Client for Spoiling<C> {
    fn read(
        &mut self,
        key: &[u8],
        fields: FieldSelection,
        values: &mut FieldValues,
    ) -> Result<OperationOutcome, ClientError> {
        let outcome = self.client.read(key, fields, values)?;
        if self.sound_reads == 0 {
            (self.spoil)(values);
        }
        self.sound_reads = self.sound_reads.saturating_sub(1);
        Ok(outcome)
    }
    fn scan(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: FieldSelection,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        self.client.scan(start, limit, fields)
    }
    fn scan_records(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: FieldSelection,
        found: &mut FoundRecords,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        let scanned = self.client.scan_records(start, limit, fields, found)?;
        if self.sound_reads == 0
            && let Some(last) = found.last_mut()
        {
            (self.spoil)(last);
        }
        self.sound_reads = self.sound_reads.saturating_sub(1);
        Ok(scanned)
    }
    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        self.client.update(key, values)
    }
    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        self.client.insert(key, values)
    }
    fn delete(&mut self, key: &[u8]) -> Result<OperationOutcome, ClientError> {
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
fn spoiled_values_are_found_and_are_no_errors() {
    let workload = workload();
    let store = loaded(&workload);
    let spoils: [(Spoil, &str); 5] = [
        (
            |values| {
                respelled(values, |field, mut value| {
                    value[60] ^= 1;
                    Some((field, value))
                })
            },
            "differs from the written value, from byte",
        ),
        (
            |values| {
                respelled(values, |field, mut value| {
                    value[2] ^= 1;
                    Some((field, value))
                })
            },
            "differs from the written value, from byte 8",
        ),
        (
            |values| respelled(values, |field, value| (field > 0).then_some((field, value))),
            "has 1 fields, expected 2",
        ),
        (
            |values| respelled(values, |field, value| Some((1 - field, value))),
            "differs from the written value",
        ),
        (
            |values| respelled(values, |field, value| Some((field, value[1..].to_vec()))),
            "has 99 bytes, expected 100",
        ),
    ];
    for (spoil, finding) in spoils {
        let control = RunHandle::new();
        let connect = |_| -> Result<Box<dyn Client>, ClientError> {
            Ok(Box::new(Spoiling { client: store.client(), sound_reads: 10, spoil }))
        };
        let measured = run(&limited(&workload, "c", Some(15)), &connect, &control).unwrap();
        assert_eq!(
            (measured.operations, measured.errors, control.aftermath().integrity_mismatches),
            (15, 0, 5)
        );
        let integrity = measured.integrity.unwrap();
        assert_eq!((integrity.checked, integrity.mismatches), (15, 5));
        assert_eq!(measured.by_operation["read"].mismatches, 5);
        let wrong = &integrity.wrong_values[0];
        assert!(wrong.to_string().contains(finding), "{wrong}");
        assert!(wrong.record.starts_with("user") && measured.error_samples.is_empty(), "{wrong}");

        // One record of each scan, and what a read-modify-write reads before it writes.
        let scans = run(&limited(&workload, "e", Some(100)), &connect, &RunHandle::new()).unwrap();
        let scanned = &scans.by_operation["scan"];
        let integrity = scans.integrity.unwrap();
        assert_eq!(
            (scans.errors, integrity.mismatches, scanned.mismatches),
            (0, scanned.count - 10, scanned.count - 10)
        );
        assert!(integrity.checked > scanned.count, "{integrity:?}");
        assert!(integrity.wrong_values[0].to_string().contains(finding), "{integrity:?}");
        let modified = run(&limited(&workload, "f", Some(100)), &connect, &RunHandle::new()).unwrap();
        let integrity = modified.integrity.unwrap();
        assert_eq!((integrity.checked, integrity.mismatches), (100, 90));
    }
}

/// Says how many records it scanned, and no more.
struct Counting(MemoryClient);

impl Client for Counting {
    fn read(
        &mut self,
        key: &[u8],
        fields: FieldSelection,
        values: &mut FieldValues,
    ) -> Result<OperationOutcome, ClientError> {
        self.0.read(key, fields, values)
    }
    fn scan(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: FieldSelection,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        self.0.scan(start, limit, fields)
    }
    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        self.0.update(key, values)
    }
    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        self.0.insert(key, values)
    }
    fn delete(&mut self, key: &[u8]) -> Result<OperationOutcome, ClientError> {
        self.0.delete(key)
    }
}

#[test]
fn client_without_records_fails_checked_scans() {
    let workload = workload();
    let store = loaded(&workload);
    let connect = |_| -> Result<Box<dyn Client>, ClientError> { Ok(Box::new(Counting(store.client()))) };
    let scan = |data_integrity| {
        let workload = Arc::new(CoreWorkload { data_integrity, ..CoreWorkload::clone(&workload) });
        run(&limited(&workload, "e", Some(100)), &connect, &RunHandle::new()).unwrap()
    };
    let measured = scan(true);
    assert_eq!(measured.errors, 100 - measured.by_operation.get("insert").map_or(0, |stats| stats.count));
    let message = &measured.error_samples[0];
    assert!(message.starts_with("scan: this system counts what it scans without returning it"), "{message}");
    assert_eq!(measured.integrity, Some(IntegrityRecord::default()));
    // Nobody asks it for records where they are not checked.
    let measured = scan(false);
    assert_eq!((measured.operations, measured.errors, measured.integrity), (100, 0, None));
}
