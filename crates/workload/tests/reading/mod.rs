//! A system that finds every record, and of which only the reads are of interest.

use underlay_workload::client::{Client, ClientError, FieldValues, Fields, Outcome};

/// Calls this at every read.
pub(crate) struct Reading<F>(pub F);

impl<F: FnMut() + Send> Client for Reading<F> {
    fn read(&mut self, _: &[u8], _: Fields, _: &mut FieldValues) -> Result<Outcome, ClientError> {
        (self.0)();
        Ok(Outcome::Found)
    }
    fn scan(&mut self, _: &[u8], limit: u32, _: Fields) -> Result<(Outcome, u32), ClientError> {
        Ok((Outcome::Found, limit))
    }
    fn update(&mut self, _: &[u8], _: &FieldValues) -> Result<Outcome, ClientError> {
        Ok(Outcome::Found)
    }
    fn insert(&mut self, _: &[u8], _: &FieldValues) -> Result<Outcome, ClientError> {
        Ok(Outcome::Found)
    }
    fn delete(&mut self, _: &[u8]) -> Result<Outcome, ClientError> {
        Ok(Outcome::Found)
    }
}
