//! The generator's side of the engine.

use underlay_workload::client::{Client, ClientError, FieldValues, Fields, Outcome};

use crate::connection::Connection;
use crate::wire::{Opcode, Reply, Status};

/// A connection to the engine's process.
#[derive(Debug)]
pub struct RocksdbClient {
    connection: Connection,
}

impl RocksdbClient {
    pub(super) fn new(connection: Connection) -> Self {
        RocksdbClient { connection }
    }
}

fn outcome(reply: &Reply<'_>) -> Outcome {
    match reply.status {
        Status::Found => Outcome::Found,
        Status::Throttled => Outcome::Throttled,
        Status::Missing | Status::Failed => {
            debug_assert!(reply.status == Status::Missing, "a failure is an error of Connection::call");
            Outcome::Missing
        }
    }
}

impl Client for RocksdbClient {
    fn read(&mut self, key: &[u8], fields: Fields, values: &mut FieldValues) -> Result<Outcome, ClientError> {
        values.clear();
        let reply = self.connection.call(Opcode::Read, fields, 0, key, None)?;
        reply.values.copy_to(values);
        Ok(outcome(&reply))
    }

    fn scan(&mut self, start: &[u8], limit: u32, fields: Fields) -> Result<(Outcome, u32), ClientError> {
        let reply = self.connection.call(Opcode::Scan, fields, u64::from(limit), start, None)?;
        Ok((outcome(&reply), u32::try_from(reply.number).unwrap_or(u32::MAX)))
    }

    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<Outcome, ClientError> {
        let reply = self.connection.call(Opcode::Update, Fields::All, 0, key, Some(values))?;
        Ok(outcome(&reply))
    }

    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<Outcome, ClientError> {
        let reply = self.connection.call(Opcode::Insert, Fields::All, 0, key, Some(values))?;
        Ok(outcome(&reply))
    }

    fn delete(&mut self, key: &[u8]) -> Result<Outcome, ClientError> {
        let reply = self.connection.call(Opcode::Delete, Fields::All, 0, key, None)?;
        Ok(outcome(&reply))
    }
}
