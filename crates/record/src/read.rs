//! Reading what a run left behind, whichever version wrote it.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cell::RunRecord;
use crate::run::Run;
use crate::{SCHEMA_VERSION, schema1};

/// Why a text is no record that this version reads.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(
        "it has schema {found}, and this version of underlay reads schemas 1 to {SCHEMA_VERSION}: use the version that \
         wrote it, or run the study again"
    )]
    Schema { found: u64 },
    #[error("it is not a record: {0}")]
    Form(#[from] serde_json::Error),
}

/// The schema's number alone, so that what another version wrote is refused by its number and not by its first unknown
/// field.
#[derive(Deserialize)]
struct SchemaOnly {
    schema: u64,
}

/// Reads a run's `run.json`.
///
/// # Errors
/// When the text is no run, or one of a schema that this version does not know.
pub fn run(text: &str) -> Result<Run, ReadError> {
    read(text, schema1::lift_run)
}

/// Reads the record of a cell.
///
/// # Errors
/// When the text is no record, or one of a schema that this version does not know.
pub fn cell(text: &str) -> Result<RunRecord, ReadError> {
    read(text, schema1::lift_record)
}

fn read<T: DeserializeOwned>(
    text: &str,
    lift: fn(&mut Value) -> Result<(), serde_json::Error>,
) -> Result<T, ReadError> {
    let SchemaOnly { schema } = serde_json::from_str(text)?;
    if schema == u64::from(SCHEMA_VERSION) {
        return Ok(serde_json::from_str(text)?);
    }
    if schema != schema1::VERSION {
        return Err(ReadError::Schema { found: schema });
    }
    // An object, and not a list of its values, which would do for the number alone.
    let mut fields: serde_json::Map<String, Value> = serde_json::from_str(text)?;
    fields.insert("schema".to_owned(), SCHEMA_VERSION.into());
    let mut value = Value::Object(fields);
    lift(&mut value)?;
    Ok(serde_json::from_value(value)?)
}
