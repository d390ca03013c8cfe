//! A system that finds every record; only its reads matter.

use underlay_workload::client::{Client, ClientError, FieldSelection, FieldValues, OperationOutcome};

/// Calls this at every read.
pub(crate) struct Reading<F>(pub F);

impl<F: FnMut() + Send> Client for Reading<F> {
    fn read(
        &mut self,
        _: &[u8],
        _: FieldSelection,
        _: &mut FieldValues,
    ) -> Result<OperationOutcome, ClientError> {
        (self.0)();
        Ok(OperationOutcome::Found)
    }
    fn scan(
        &mut self,
        _: &[u8],
        limit: u32,
        _: FieldSelection,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        Ok((OperationOutcome::Found, limit))
    }
    fn update(&mut self, _: &[u8], _: &FieldValues) -> Result<OperationOutcome, ClientError> {
        Ok(OperationOutcome::Found)
    }
    fn insert(&mut self, _: &[u8], _: &FieldValues) -> Result<OperationOutcome, ClientError> {
        Ok(OperationOutcome::Found)
    }
    fn delete(&mut self, _: &[u8]) -> Result<OperationOutcome, ClientError> {
        Ok(OperationOutcome::Found)
    }
}
