//! The counts that YCSB prints of one kind of operation, which are of the same operations: latencies from both starts and
//! statuses. Nothing here depends on speed.

use std::sync::Arc;
use std::time::Duration;

use underlay_workload::client::{Client, ClientError, FieldValues, Fields, Outcome};
use underlay_workload::ycsb::{Intervals, OutputOptions, RunFacts, Value, entries};
use underlay_workload::{Control, MemoryStore, Mix, RunSpec, Workload, run};

/// Takes its time, so that operations are under way at both ends of the measured time and some are never sent.
struct Slow(Box<dyn Client>);

impl Client for Slow {
    fn read(&mut self, key: &[u8], fields: Fields, values: &mut FieldValues) -> Result<Outcome, ClientError> {
        std::thread::sleep(Duration::from_millis(3));
        self.0.read(key, fields, values)
    }

    fn scan(&mut self, start: &[u8], limit: u32, fields: Fields) -> Result<(Outcome, u32), ClientError> {
        self.0.scan(start, limit, fields)
    }

    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<Outcome, ClientError> {
        std::thread::sleep(Duration::from_millis(3));
        self.0.update(key, values)
    }

    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<Outcome, ClientError> {
        self.0.insert(key, values)
    }

    fn delete(&mut self, key: &[u8]) -> Result<Outcome, ClientError> {
        self.0.delete(key)
    }
}

#[test]
fn operations_statuses_and_intended_operations_are_the_same_ones() {
    let store = MemoryStore::new();
    let workload = Arc::new(Workload::new(200, 1, 20));
    let load = RunSpec {
        duration: Duration::MAX,
        ..RunSpec::new(Arc::clone(&workload), Mix::parse("load").unwrap())
    };
    run(&load, &|_| Ok(Box::new(store.client())), &Control::new()).unwrap();
    // A fourth of the records are not found.
    for key in store.keys().iter().step_by(4) {
        store.client().delete(key).unwrap();
    }
    // A closed loop, a rate that is kept, and one that is far from it.
    for (mix, rate_per_s) in
        [("a", None), ("f", None), ("a", Some(500.0)), ("f", Some(500.0)), ("a", Some(50_000.0))]
    {
        let spec = RunSpec {
            threads: 8,
            rate_per_s,
            warmup: Duration::from_millis(100),
            duration: Duration::from_millis(400),
            ..RunSpec::new(Arc::clone(&workload), Mix::parse(mix).unwrap())
        };
        let mut control = Control::new();
        control.keeps_particulars = true;
        let measured = run(&spec, &|_| Ok(Box::new(Slow(Box::new(store.client())))), &control).unwrap();
        let particulars = control.particulars();
        let options = OutputOptions { intervals: Intervals::Both, ..OutputOptions::default() };
        let facts = RunFacts { particulars: Some(&particulars), points: None };
        let printed = entries(&measured, facts, &options);
        let count = |metric: &str, measurement: &str| {
            let found =
                printed.iter().find(|entry| entry.metric == metric && entry.measurement == measurement);
            match found.map(|entry| entry.value) {
                Some(Value::Whole(count)) => count,
                None => 0,
                other => panic!("{metric} {measurement} is {other:?}"),
            }
        };
        let operations = |metric: &str| count(metric, "Operations");
        for kind in ["READ", "UPDATE"] {
            let what = format!("{kind} of {mix} at {rate_per_s:?}");
            let failed = format!("{kind}-FAILED");
            assert!(operations(kind) > 0, "{what}");
            assert_eq!(count(kind, "Return=OK"), operations(kind), "{what}");
            assert_eq!(count(kind, "Return=NOT_FOUND"), operations(&failed), "{what}");
            assert_eq!(operations(&format!("Intended-{kind}")), operations(kind), "{what}");
            assert_eq!(operations(&format!("Intended-{failed}")), operations(&failed), "{what}");
        }
        if rate_per_s == Some(50_000.0) {
            // What was due and never sent is not lost: it stands by itself, and in the record.
            assert!(operations("Intended-READ-UNSENT") > 0);
            assert_eq!(operations("READ-UNSENT"), 0);
            let recorded = measured.by_operation["read"].latency.us.count;
            let intended = ["Intended-READ", "Intended-READ-FAILED", "Intended-READ-UNSENT"];
            assert_eq!(intended.map(operations).iter().sum::<u64>(), recorded);
        }
    }
}
