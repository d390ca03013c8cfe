//! What was written by clients at once, to say what a reader may find afterwards.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use underlay_systems::system::RunningSystem;
use underlay_workload::client::{Client, ClientError, FieldSelection, FieldValues, OperationOutcome};
use underlay_workload::{OperationMix, RunError, RunHandle, RunSpec, YcsbProperties, run};

const THREADS: u32 = 8;
/// Neither loading nor the way to the harm takes so long.
const MAX: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct Write {
    value: Vec<u8>,
    begun: u64,
    /// `None` while it is in flight, and forever if it failed: it may be there or not.
    answered: Option<u64>,
}

#[derive(Debug, Default)]
struct Written {
    /// Begins and answers of writes, in the order in which clients saw them.
    tick: u64,
    /// By record and field; those that cannot be found any more are left out.
    writes: HashMap<Vec<u8>, HashMap<u32, Vec<Write>>>,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Written>);

impl Ledger {
    fn begin(&self, key: &[u8], values: &FieldValues) -> u64 {
        let mut written = self.0.lock().unwrap();
        written.tick += 1;
        let begun = written.tick;
        let record = written.writes.entry(key.to_vec()).or_default();
        for (field, value) in values.iter() {
            record.entry(field).or_default().push(Write { value: value.to_vec(), begun, answered: None });
        }
        begun
    }

    fn answered(&self, key: &[u8], values: &FieldValues, begun: u64) {
        let mut written = self.0.lock().unwrap();
        written.tick += 1;
        let now = written.tick;
        let record = written.writes.get_mut(key).unwrap();
        for (field, _) in values.iter() {
            let writes = record.get_mut(&field).unwrap();
            writes.iter_mut().find(|write| write.begun == begun).unwrap().answered = Some(now);
            // All writes answered before this one began lie under it.
            writes.retain(|write| write.answered.is_none_or(|answered| answered > begun));
        }
    }

    pub(crate) fn records(&self) -> usize {
        self.0.lock().unwrap().writes.len()
    }

    /// Reads every record, and says which fields have a value that they can't have if nothing acknowledged was lost.
    pub(crate) fn losses(&self, running: &dyn RunningSystem) -> Vec<String> {
        let written = self.0.lock().unwrap();
        let (mut client, mut found) = (running.connect().unwrap(), FieldValues::default());
        let mut losses = Vec::new();
        for (key, fields) in &written.writes {
            client.read(key, FieldSelection::All, &mut found).unwrap();
            for (field, writes) in fields {
                let value = found.iter().find(|(number, _)| number == field).map(|(_, value)| value);
                let possible = match value {
                    Some(value) => writes.iter().any(|write| write.value == value),
                    None => writes.iter().all(|write| write.answered.is_none()),
                };
                if !possible {
                    losses.push(format!("{} field{field}", String::from_utf8_lossy(key)));
                }
            }
        }
        losses
    }
}

/// A client whose writes are noted.
pub(crate) struct Noted {
    pub client: Box<dyn Client>,
    pub ledger: Arc<Ledger>,
}

impl Noted {
    fn write(
        &mut self,
        key: &[u8],
        values: &FieldValues,
        write: fn(&mut dyn Client, &[u8], &FieldValues) -> Result<OperationOutcome, ClientError>,
    ) -> Result<OperationOutcome, ClientError> {
        let begun = self.ledger.begin(key, values);
        let answer = write(self.client.as_mut(), key, values);
        if answer == Ok(OperationOutcome::Found) {
            self.ledger.answered(key, values, begun);
        }
        answer
    }
}

impl Client for Noted {
    fn read(
        &mut self,
        key: &[u8],
        fields: FieldSelection,
        values: &mut FieldValues,
    ) -> Result<OperationOutcome, ClientError> {
        self.client.read(key, fields, values)
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: FieldSelection,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        self.client.scan(start, limit, fields)
    }

    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        self.write(key, values, |client, key, values| client.update(key, values))
    }

    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        self.write(key, values, |client, key, values| client.insert(key, values))
    }

    fn delete(&mut self, _: &[u8]) -> Result<OperationOutcome, ClientError> {
        unreachable!("no mix of these tests deletes")
    }
}

/// YCSB's records with all writes noted.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub records: usize,
    pub fields: u32,
    /// Before the harm is done.
    pub operations: u64,
}

impl Load {
    fn spec(&self, mix: &str) -> RunSpec {
        let mut properties = YcsbProperties::new();
        let arguments = [
            format!("recordcount={}", self.records),
            format!("fieldcount={}", self.fields),
            "fieldlength=200".to_owned(),
            "dataintegrity=true".to_owned(),
        ];
        arguments.iter().for_each(|argument| properties.add_argument(argument).unwrap());
        let workload = Arc::new(properties.workload().unwrap());
        RunSpec {
            threads: THREADS,
            duration: MAX,
            ..RunSpec::new(workload, OperationMix::parse(mix).unwrap())
        }
    }

    /// Writes all records.
    pub(crate) fn load(&self, running: &dyn RunningSystem, ledger: &Arc<Ledger>) {
        let loaded = run(&self.spec("load"), &|_| noted(running, ledger), &RunHandle::new()).unwrap();
        assert_eq!((loaded.errors, ledger.records()), (0, self.records));
    }

    /// Runs workload A, does `harm` in the middle of it, and lets it go on until the harm is seen: how it ended, if it
    /// was by an error.
    pub(crate) fn until_harmed(
        &self,
        running: &dyn RunningSystem,
        ledger: &Arc<Ledger>,
        harm: &dyn Fn(),
    ) -> Option<RunError> {
        self.meanwhile(running, ledger, &|| {
            harm();
            while running.health().is_ok() {
                std::thread::sleep(POLL);
            }
        })
    }

    /// Runs workload A, and ends it after something was done in the middle of it: how it ended, if it was by an error.
    pub(crate) fn meanwhile(
        &self,
        running: &dyn RunningSystem,
        ledger: &Arc<Ledger>,
        act: &dyn Fn(),
    ) -> Option<RunError> {
        let control = RunHandle::new();
        let (spec, connect) = (self.spec("a"), |_| noted(running, ledger));
        let outcome = std::thread::scope(|scope| {
            let load = scope.spawn(|| run(&spec, &connect, &control));
            while control.progress().operations < self.operations {
                assert!(!load.is_finished(), "{:?}", load.join());
                std::thread::sleep(POLL);
            }
            act();
            control.stop.store(true, Ordering::Relaxed);
            load.join().unwrap()
        });
        assert_eq!(control.aftermath().integrity_mismatches, 0);
        outcome.err()
    }
}

fn noted(running: &dyn RunningSystem, ledger: &Arc<Ledger>) -> Result<Box<dyn Client>, ClientError> {
    let client = running.connect().unwrap_or_else(|error| panic!("{error}"));
    Ok(Box::new(Noted { client, ledger: Arc::clone(ledger) }))
}
