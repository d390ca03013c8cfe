//! The client of one thread.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use scylla::deserialize::row::ColumnIterator;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError, SerializationError};
use scylla::response::query_result::QueryResult;
use scylla::serialize::row::{RowSerializationContext, SerializeRow};
use scylla::serialize::writers::RowWriter;
use scylla::statement::prepared::PreparedStatement;
use underlay_workload::client::{
    Client, ClientError, FieldSelection, FieldValues, FoundRecords, OperationOutcome,
};

use super::database::{CassandraSession, words};
use super::ring::CassandraRing;
use super::table::TableRequest;

/// A client of a cluster. Requests of many clients share the connections.
pub(super) struct CassandraClient {
    database: Arc<CassandraSession>,
    /// The nodes that were started here, to report how they ended; they do not live for a client. `None` for an
    /// existing cluster.
    ring: Option<Weak<CassandraRing>>,
    prepared: HashMap<TableRequest, PreparedStatement>,
}

/// The values bound to a statement, in the order of its markers.
struct BoundValues<'a> {
    first: &'a [Option<&'a [u8]>],
    last: &'a [Option<&'a [u8]>],
}

impl SerializeRow for BoundValues<'_> {
    fn serialize(
        &self,
        context: &RowSerializationContext<'_>,
        writer: &mut RowWriter<'_>,
    ) -> Result<(), SerializationError> {
        let count = self.first.len() + self.last.len();
        if context.columns().len() != count {
            let problem = format!("{count} values for {} marks", context.columns().len());
            return Err(SerializationError::new(std::io::Error::other(problem)));
        }
        for value in self.first.iter().chain(self.last) {
            let cell = writer.make_cell_writer();
            match value {
                Some(bytes) => cell.set_value(bytes).map_err(SerializationError::new)?,
                None => cell.set_null(),
            };
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.first.is_empty() && self.last.is_empty()
    }
}

/// Cassandra's answer to a request, or that it was too busy for it.
enum CassandraAnswer {
    Result(Box<QueryResult>),
    Throttled,
}

impl CassandraClient {
    pub(super) fn new(database: Arc<CassandraSession>, ring: Option<Weak<CassandraRing>>) -> Self {
        CassandraClient { database, ring, prepared: HashMap::new() }
    }

    fn ask(
        &mut self,
        question: TableRequest,
        bound: &BoundValues<'_>,
    ) -> Result<CassandraAnswer, ClientError> {
        if !self.prepared.contains_key(&question) {
            let prepared = self.database.prepare(&question);
            let prepared = prepared.map_err(|error| self.lost_or(ClientError::System(error.to_string())))?;
            self.prepared.insert(question.clone(), prepared);
        }
        let prepared = &self.prepared[&question];
        let result = self.database.wait(self.database.session().execute_unpaged(prepared, bound));
        match result {
            Ok(result) => Ok(CassandraAnswer::Result(Box::new(result))),
            Err(ExecutionError::LastAttemptError(RequestAttemptError::DbError(
                DbError::Overloaded | DbError::RateLimitReached { .. },
                _,
            ))) => Ok(CassandraAnswer::Throttled),
            Err(ExecutionError::RequestTimeout(limit)) => Err(self.lost_or(ClientError::Timeout(limit))),
            Err(error @ ExecutionError::LastAttemptError(RequestAttemptError::DbError(..))) => {
                Err(ClientError::System(words(&error)))
            }
            Err(error) => Err(self.lost_or(ClientError::System(words(&error)))),
        }
    }

    /// `error`, or the loss of the cluster if all nodes that were started here have ended.
    fn lost_or(&self, error: ClientError) -> ClientError {
        let Some(ring) = &self.ring else { return error };
        match ring.upgrade() {
            Some(ring) => ring.loss().map_or(error, ClientError::Lost),
            None => ClientError::Lost("cassandra has been stopped".to_owned()),
        }
    }

    fn write(
        &mut self,
        question: TableRequest,
        bound: &BoundValues<'_>,
    ) -> Result<OperationOutcome, ClientError> {
        match self.ask(question, bound)? {
            CassandraAnswer::Result(_) => Ok(OperationOutcome::Found),
            CassandraAnswer::Throttled => Ok(OperationOutcome::Throttled),
        }
    }

    /// The values by field number. If a field has two values, the later one counts.
    fn values_by_field<'v>(&self, values: &'v FieldValues) -> Result<Vec<Option<&'v [u8]>>, ClientError> {
        let mut by_field = vec![None; self.database.table().fields as usize];
        for (field, value) in values.iter() {
            let Some(place) = by_field.get_mut(field as usize) else {
                let fields = self.database.table().fields;
                return Err(ClientError::System(format!("a record has {fields} fields and no field{field}")));
            };
            *place = Some(value);
        }
        Ok(by_field)
    }
}

fn unreadable(problem: &dyn std::fmt::Display) -> ClientError {
    ClientError::System(format!("Cassandra's answer can't be read: {problem}"))
}

impl Client for CassandraClient {
    fn read(
        &mut self,
        key: &[u8],
        fields: FieldSelection,
        values: &mut FieldValues,
    ) -> Result<OperationOutcome, ClientError> {
        values.clear();
        let question = match fields {
            FieldSelection::All => TableRequest::ReadAll,
            FieldSelection::One(field) => TableRequest::ReadOne(field),
        };
        let count = self.database.table().fields;
        let result = match self.ask(question, &BoundValues { first: &[Some(key)], last: &[] })? {
            CassandraAnswer::Result(result) => result,
            CassandraAnswer::Throttled => return Ok(OperationOutcome::Throttled),
        };
        let rows = result.into_rows_result().map_err(|error| unreadable(&error))?;
        let mut rows = rows.rows::<ColumnIterator<'_, '_>>().map_err(|error| unreadable(&error))?;
        let Some(row) = rows.next() else { return Ok(OperationOutcome::Missing) };
        for column in row.map_err(|error| unreadable(&error))? {
            let column = column.map_err(|error| unreadable(&error))?;
            // A field that the table hasn't is answered with the key, to tell whether the record is there.
            let field = match fields {
                FieldSelection::All => u32::try_from(column.index).unwrap_or(u32::MAX),
                FieldSelection::One(field) => field,
            };
            if let Some(value) = column.slice.filter(|_| field < count) {
                values.push(field, value.as_slice());
            }
        }
        Ok(OperationOutcome::Found)
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: FieldSelection,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        if limit == 0 {
            // Cassandra calls a limit of 0 a mistake.
            return Ok((OperationOutcome::Missing, 0));
        }
        let question = match fields {
            FieldSelection::All => TableRequest::ScanAll,
            FieldSelection::One(field) => TableRequest::ScanOne(field),
        };
        let limit = i32::try_from(limit).unwrap_or(i32::MAX).to_be_bytes();
        match self.ask(question, &BoundValues { first: &[Some(start)], last: &[Some(&limit)] })? {
            CassandraAnswer::Throttled => Ok((OperationOutcome::Throttled, 0)),
            CassandraAnswer::Result(result) => {
                let rows = result.into_rows_result().map_err(|error| unreadable(&error))?;
                let count = u32::try_from(rows.rows_num()).unwrap_or(u32::MAX);
                Ok((if count > 0 { OperationOutcome::Found } else { OperationOutcome::Missing }, count))
            }
        }
    }

    fn scan_records(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: FieldSelection,
        found: &mut FoundRecords,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        found.clear();
        if limit == 0 {
            return Ok((OperationOutcome::Missing, 0));
        }
        let question = match fields {
            FieldSelection::All => TableRequest::ScanRecordsAll,
            FieldSelection::One(field) => TableRequest::ScanRecordsOne(field),
        };
        let field_count = self.database.table().fields;
        let limit = i32::try_from(limit).unwrap_or(i32::MAX).to_be_bytes();
        let result =
            match self.ask(question, &BoundValues { first: &[Some(start)], last: &[Some(&limit)] })? {
                CassandraAnswer::Result(result) => result,
                CassandraAnswer::Throttled => return Ok((OperationOutcome::Throttled, 0)),
            };
        let rows = result.into_rows_result().map_err(|error| unreadable(&error))?;
        for row in rows.rows::<ColumnIterator<'_, '_>>().map_err(|error| unreadable(&error))? {
            for column in row.map_err(|error| unreadable(&error))? {
                let column = column.map_err(|error| unreadable(&error))?;
                let value = column.slice.as_ref().map(|slice| slice.as_slice());
                // The key comes first.
                let Some(place) = column.index.checked_sub(1) else {
                    found.push(value.unwrap_or_default());
                    continue;
                };
                let field = match fields {
                    FieldSelection::All => u32::try_from(place).unwrap_or(u32::MAX),
                    FieldSelection::One(field) => field,
                };
                if let (Some(value), Some(values)) = (value.filter(|_| field < field_count), found.last_mut())
                {
                    values.push(field, value);
                }
            }
        }
        let count = u32::try_from(found.len()).unwrap_or(u32::MAX);
        Ok((if count > 0 { OperationOutcome::Found } else { OperationOutcome::Missing }, count))
    }

    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        let by_field = self.values_by_field(values)?;
        let (fields, changes): (Vec<u32>, Vec<Option<&[u8]>>) =
            (0..).zip(by_field).filter(|(_, value)| value.is_some()).unzip();
        self.write(TableRequest::Update(fields), &BoundValues { first: &changes, last: &[Some(key)] })
    }

    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        let by_field = self.values_by_field(values)?;
        self.write(TableRequest::Insert, &BoundValues { first: &[Some(key)], last: &by_field })
    }

    fn delete(&mut self, key: &[u8]) -> Result<OperationOutcome, ClientError> {
        self.write(TableRequest::Delete, &BoundValues { first: &[Some(key)], last: &[] })
    }
}
