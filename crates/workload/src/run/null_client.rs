//! A system that does nothing: what the load generator itself costs.

use crate::client::{Client, ClientError, FieldValues, Fields, Outcome};

/// Answers everything at once. Reads find a record without fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullClient;

impl Client for NullClient {
    fn read(&mut self, key: &[u8], fields: Fields, values: &mut FieldValues) -> Result<Outcome, ClientError> {
        values.clear();
        // The optimiser must not find out that nobody looks at what was prepared.
        std::hint::black_box((key, fields));
        Ok(Outcome::Found)
    }

    fn scan(&mut self, start: &[u8], limit: u32, fields: Fields) -> Result<(Outcome, u32), ClientError> {
        std::hint::black_box((start, fields));
        Ok((Outcome::Found, limit))
    }

    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<Outcome, ClientError> {
        std::hint::black_box((key, values));
        Ok(Outcome::Found)
    }

    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<Outcome, ClientError> {
        std::hint::black_box((key, values));
        Ok(Outcome::Found)
    }

    fn delete(&mut self, key: &[u8]) -> Result<Outcome, ClientError> {
        std::hint::black_box(key);
        Ok(Outcome::Found)
    }
}

/// A system that does nothing and looks at nothing but keys, as YCSB's `basic` binding does: values are never made.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeysOnlyClient;

impl Client for KeysOnlyClient {
    fn read(&mut self, key: &[u8], fields: Fields, values: &mut FieldValues) -> Result<Outcome, ClientError> {
        NullClient.read(key, fields, values)
    }

    fn scan(&mut self, start: &[u8], limit: u32, fields: Fields) -> Result<(Outcome, u32), ClientError> {
        NullClient.scan(start, limit, fields)
    }

    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<Outcome, ClientError> {
        NullClient.update(key, values)
    }

    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<Outcome, ClientError> {
        NullClient.insert(key, values)
    }

    fn delete(&mut self, key: &[u8]) -> Result<Outcome, ClientError> {
        NullClient.delete(key)
    }

    fn wants_values(&self) -> bool {
        false
    }
}
