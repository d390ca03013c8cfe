//! The load generator's side of the child.

use std::sync::Arc;
use std::time::Instant;

use underlay_sync::Mutex;
use underlay_workload::client::{
    Client, ClientError, FieldSelection, FieldValues, FoundRecords, OperationOutcome,
};

use super::hop::ConnectionHop;
use crate::connection::FramedConnection;
use crate::wire::{WireOpcode, WireReply};

/// A connection to the child, where it has a client of the system.
#[derive(Debug)]
pub struct JvmClient {
    connection: FramedConnection,
    hop: Option<Arc<Mutex<ConnectionHop>>>,
}

impl JvmClient {
    pub(super) fn new(connection: FramedConnection, hop: Option<Arc<Mutex<ConnectionHop>>>) -> JvmClient {
        JvmClient { connection, hop }
    }

    fn call(
        &mut self,
        opcode: WireOpcode,
        fields: FieldSelection,
        number: u64,
        key: &[u8],
        values: Option<&FieldValues>,
    ) -> Result<(OperationOutcome, WireReply<'_>), ClientError> {
        let started = Instant::now();
        let reply = self.connection.call(opcode, fields, number, key, values)?;
        if let Some(hop) = &self.hop {
            hop.lock().note(started.elapsed(), reply.service_ns);
        }
        Ok((reply.outcome(), reply))
    }
}

impl Client for JvmClient {
    fn read(
        &mut self,
        key: &[u8],
        fields: FieldSelection,
        values: &mut FieldValues,
    ) -> Result<OperationOutcome, ClientError> {
        values.clear();
        let (outcome, reply) = self.call(WireOpcode::Read, fields, 0, key, None)?;
        reply.values.copy_to(values);
        Ok(outcome)
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: FieldSelection,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        let (outcome, reply) = self.call(WireOpcode::Scan, fields, u64::from(limit), start, None)?;
        Ok((outcome, u32::try_from(reply.number).unwrap_or(u32::MAX)))
    }

    fn scan_records(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: FieldSelection,
        found: &mut FoundRecords,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        let (outcome, reply) = self.call(WireOpcode::ScanRecords, fields, u64::from(limit), start, None)?;
        reply.copy_records_to(found)?;
        Ok((outcome, u32::try_from(reply.number).unwrap_or(u32::MAX)))
    }

    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        self.call(WireOpcode::Update, FieldSelection::All, 0, key, Some(values)).map(|(outcome, _)| outcome)
    }

    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        self.call(WireOpcode::Insert, FieldSelection::All, 0, key, Some(values)).map(|(outcome, _)| outcome)
    }

    fn delete(&mut self, key: &[u8]) -> Result<OperationOutcome, ClientError> {
        self.call(WireOpcode::Delete, FieldSelection::All, 0, key, None).map(|(outcome, _)| outcome)
    }
}
