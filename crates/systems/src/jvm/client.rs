//! The load generator's side of the child.

use std::sync::Arc;
use std::time::Instant;

use underlay_sync::Mutex;
use underlay_workload::client::{Client, ClientError, FieldValues, Fields, FoundRecords, Outcome};

use super::hop::Hop;
use crate::connection::Connection;
use crate::wire::{Opcode, Reply};

/// A connection to the child, where it has a client of the system.
#[derive(Debug)]
pub struct JvmClient {
    connection: Connection,
    hop: Option<Arc<Mutex<Hop>>>,
}

impl JvmClient {
    pub(super) fn new(connection: Connection, hop: Option<Arc<Mutex<Hop>>>) -> JvmClient {
        JvmClient { connection, hop }
    }

    fn call(
        &mut self,
        opcode: Opcode,
        fields: Fields,
        number: u64,
        key: &[u8],
        values: Option<&FieldValues>,
    ) -> Result<(Outcome, Reply<'_>), ClientError> {
        let started = Instant::now();
        let reply = self.connection.call(opcode, fields, number, key, values)?;
        if let Some(hop) = &self.hop {
            hop.lock().note(started.elapsed(), reply.service_ns);
        }
        Ok((reply.outcome(), reply))
    }
}

impl Client for JvmClient {
    fn read(&mut self, key: &[u8], fields: Fields, values: &mut FieldValues) -> Result<Outcome, ClientError> {
        values.clear();
        let (outcome, reply) = self.call(Opcode::Read, fields, 0, key, None)?;
        reply.values.copy_to(values);
        Ok(outcome)
    }

    fn scan(&mut self, start: &[u8], limit: u32, fields: Fields) -> Result<(Outcome, u32), ClientError> {
        let (outcome, reply) = self.call(Opcode::Scan, fields, u64::from(limit), start, None)?;
        Ok((outcome, u32::try_from(reply.number).unwrap_or(u32::MAX)))
    }

    fn scan_records(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: Fields,
        found: &mut FoundRecords,
    ) -> Result<(Outcome, u32), ClientError> {
        let (outcome, reply) = self.call(Opcode::ScanRecords, fields, u64::from(limit), start, None)?;
        reply.copy_records_to(found)?;
        Ok((outcome, u32::try_from(reply.number).unwrap_or(u32::MAX)))
    }

    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<Outcome, ClientError> {
        self.call(Opcode::Update, Fields::All, 0, key, Some(values)).map(|(outcome, _)| outcome)
    }

    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<Outcome, ClientError> {
        self.call(Opcode::Insert, Fields::All, 0, key, Some(values)).map(|(outcome, _)| outcome)
    }

    fn delete(&mut self, key: &[u8]) -> Result<Outcome, ClientError> {
        self.call(Opcode::Delete, Fields::All, 0, key, None).map(|(outcome, _)| outcome)
    }
}
