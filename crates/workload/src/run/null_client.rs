//! A system that does nothing, to measure the load generator's own cost.

use crate::client::{Client, ClientError, FieldSelection, FieldValues, OperationOutcome};

/// Answers everything at once. Reads find a record without fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullClient;

impl Client for NullClient {
    fn read(
        &mut self,
        key: &[u8],
        fields: FieldSelection,
        values: &mut FieldValues,
    ) -> Result<OperationOutcome, ClientError> {
        values.clear();
        // The optimiser must not notice that the prepared data is unused.
        std::hint::black_box((key, fields));
        Ok(OperationOutcome::Found)
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: FieldSelection,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        std::hint::black_box((start, fields));
        Ok((OperationOutcome::Found, limit))
    }

    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        std::hint::black_box((key, values));
        Ok(OperationOutcome::Found)
    }

    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        std::hint::black_box((key, values));
        Ok(OperationOutcome::Found)
    }

    fn delete(&mut self, key: &[u8]) -> Result<OperationOutcome, ClientError> {
        std::hint::black_box(key);
        Ok(OperationOutcome::Found)
    }
}

/// A system that does nothing and looks only at keys, like YCSB's `basic` binding: values are never created.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeysOnlyClient;

impl Client for KeysOnlyClient {
    fn read(
        &mut self,
        key: &[u8],
        fields: FieldSelection,
        values: &mut FieldValues,
    ) -> Result<OperationOutcome, ClientError> {
        NullClient.read(key, fields, values)
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: FieldSelection,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        NullClient.scan(start, limit, fields)
    }

    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        NullClient.update(key, values)
    }

    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        NullClient.insert(key, values)
    }

    fn delete(&mut self, key: &[u8]) -> Result<OperationOutcome, ClientError> {
        NullClient.delete(key)
    }

    fn wants_values(&self) -> bool {
        false
    }
}
