//! The reference for the meaning of a client's operations: a sorted map in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use underlay_sync::{Mutex, MutexGuard};

use crate::client::{Client, ClientError, FieldSelection, FieldValues, FoundRecords, OperationOutcome};

type RecordFields = BTreeMap<u32, Vec<u8>>;
type RecordTable = BTreeMap<Vec<u8>, RecordFields>;

/// The records, shared by all clients of one store.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    records: Arc<Mutex<RecordTable>>,
}

impl MemoryStore {
    pub fn new() -> Self {
        MemoryStore::default()
    }

    /// A new connection.
    pub fn client(&self) -> MemoryClient {
        MemoryClient { store: self.clone() }
    }

    /// The number of records.
    pub fn record_count(&self) -> usize {
        self.lock().len()
    }

    /// The keys in order.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, RecordTable> {
        self.records.lock()
    }
}

/// A client of a [`MemoryStore`]. An update of a missing record answers `Missing` and creates nothing.
#[derive(Clone, Debug)]
pub struct MemoryClient {
    store: MemoryStore,
}

fn copy(record: &RecordFields, fields: FieldSelection, values: &mut FieldValues) {
    for (&field, value) in record {
        if fields == FieldSelection::All || fields == FieldSelection::One(field) {
            values.push(field, value);
        }
    }
}

fn found(is_found: bool) -> OperationOutcome {
    if is_found { OperationOutcome::Found } else { OperationOutcome::Missing }
}

impl Client for MemoryClient {
    fn read(
        &mut self,
        key: &[u8],
        fields: FieldSelection,
        values: &mut FieldValues,
    ) -> Result<OperationOutcome, ClientError> {
        values.clear();
        let records = self.store.lock();
        let Some(record) = records.get(key) else { return Ok(OperationOutcome::Missing) };
        copy(record, fields, values);
        Ok(OperationOutcome::Found)
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: u32,
        _fields: FieldSelection,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        let records = self.store.lock();
        let count = records.range(start.to_vec()..).take(limit as usize).count() as u32;
        Ok((found(count > 0), count))
    }

    fn scan_records(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: FieldSelection,
        found_records: &mut FoundRecords,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        found_records.clear();
        let records = self.store.lock();
        for (key, record) in records.range(start.to_vec()..).take(limit as usize) {
            copy(record, fields, found_records.push(key));
        }
        let count = found_records.len() as u32;
        Ok((found(count > 0), count))
    }

    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        let mut records = self.store.lock();
        let Some(record) = records.get_mut(key) else { return Ok(OperationOutcome::Missing) };
        record.extend(values.iter().map(|(field, value)| (field, value.to_vec())));
        Ok(OperationOutcome::Found)
    }

    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        let record = values.iter().map(|(field, value)| (field, value.to_vec())).collect();
        self.store.lock().insert(key.to_vec(), record);
        Ok(OperationOutcome::Found)
    }

    fn delete(&mut self, key: &[u8]) -> Result<OperationOutcome, ClientError> {
        Ok(found(self.store.lock().remove(key).is_some()))
    }
}
