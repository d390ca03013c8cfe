//! The load generator's side of the engine.

use underlay_workload::client::{
    Client, ClientError, FieldSelection, FieldValues, FoundRecords, OperationOutcome,
};

use crate::connection::FramedConnection;
use crate::wire::WireOpcode;

/// A connection to the process of the engine.
#[derive(Debug)]
pub(super) struct RocksdbClient {
    connection: FramedConnection,
}

impl RocksdbClient {
    pub(super) fn new(connection: FramedConnection) -> Self {
        RocksdbClient { connection }
    }
}

impl Client for RocksdbClient {
    fn read(
        &mut self,
        key: &[u8],
        fields: FieldSelection,
        values: &mut FieldValues,
    ) -> Result<OperationOutcome, ClientError> {
        values.clear();
        let reply = self.connection.call(WireOpcode::Read, fields, 0, key, None)?;
        reply.values.copy_to(values);
        Ok(reply.outcome())
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: FieldSelection,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        let reply = self.connection.call(WireOpcode::Scan, fields, u64::from(limit), start, None)?;
        Ok((reply.outcome(), u32::try_from(reply.number).unwrap_or(u32::MAX)))
    }

    fn scan_records(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: FieldSelection,
        found: &mut FoundRecords,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        let reply = self.connection.call(WireOpcode::ScanRecords, fields, u64::from(limit), start, None)?;
        reply.copy_records_to(found)?;
        Ok((reply.outcome(), u32::try_from(reply.number).unwrap_or(u32::MAX)))
    }

    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        let reply = self.connection.call(WireOpcode::Update, FieldSelection::All, 0, key, Some(values))?;
        Ok(reply.outcome())
    }

    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        let reply = self.connection.call(WireOpcode::Insert, FieldSelection::All, 0, key, Some(values))?;
        Ok(reply.outcome())
    }

    fn delete(&mut self, key: &[u8]) -> Result<OperationOutcome, ClientError> {
        let reply = self.connection.call(WireOpcode::Delete, FieldSelection::All, 0, key, None)?;
        Ok(reply.outcome())
    }
}
