//! The load generator's side of the engine.

use underlay_workload::client::{Client, ClientError, FieldValues, Fields, FoundRecords, Outcome};

use crate::connection::Connection;
use crate::wire::Opcode;

/// A connection to the process of the engine.
#[derive(Debug)]
pub(super) struct RocksdbClient {
    connection: Connection,
}

impl RocksdbClient {
    pub(super) fn new(connection: Connection) -> Self {
        RocksdbClient { connection }
    }
}

impl Client for RocksdbClient {
    fn read(&mut self, key: &[u8], fields: Fields, values: &mut FieldValues) -> Result<Outcome, ClientError> {
        values.clear();
        let reply = self.connection.call(Opcode::Read, fields, 0, key, None)?;
        reply.values.copy_to(values);
        Ok(reply.outcome())
    }

    fn scan(&mut self, start: &[u8], limit: u32, fields: Fields) -> Result<(Outcome, u32), ClientError> {
        let reply = self.connection.call(Opcode::Scan, fields, u64::from(limit), start, None)?;
        Ok((reply.outcome(), u32::try_from(reply.number).unwrap_or(u32::MAX)))
    }

    fn scan_records(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: Fields,
        found: &mut FoundRecords,
    ) -> Result<(Outcome, u32), ClientError> {
        let reply = self.connection.call(Opcode::ScanRecords, fields, u64::from(limit), start, None)?;
        reply.copy_records_to(found)?;
        Ok((reply.outcome(), u32::try_from(reply.number).unwrap_or(u32::MAX)))
    }

    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<Outcome, ClientError> {
        let reply = self.connection.call(Opcode::Update, Fields::All, 0, key, Some(values))?;
        Ok(reply.outcome())
    }

    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<Outcome, ClientError> {
        let reply = self.connection.call(Opcode::Insert, Fields::All, 0, key, Some(values))?;
        Ok(reply.outcome())
    }

    fn delete(&mut self, key: &[u8]) -> Result<Outcome, ClientError> {
        let reply = self.connection.call(Opcode::Delete, Fields::All, 0, key, None)?;
        Ok(reply.outcome())
    }
}
