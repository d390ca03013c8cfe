//! Reading what a run left behind, whichever version wrote it.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cell::{CellStatus, RunRecord};
use crate::run::RunHeader;
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
pub fn run(text: &str) -> Result<RunHeader, ReadError> {
    read(text, schema1::lift_run)
}

/// Reads the record of a cell.
///
/// # Errors
/// When the text is no record, or one of a schema that this version does not know.
pub fn cell(text: &str) -> Result<RunRecord, ReadError> {
    let mut record: RunRecord = read(text, schema1::lift_record)?;
    if let CellStatus::Failed { reason } = &record.status
        && serde_json::from_str::<EarlierSkip>(text)?.skipped
    {
        let failure = reason.split_once(EARLIER_FAILURE).map(|(_, message)| message.to_owned());
        record.status = CellStatus::Skipped { failure };
    }
    Ok(record)
}

/// Version 0.2 wrote a skipped cell as a failed one with a mark.
#[derive(Deserialize)]
struct EarlierSkip {
    #[serde(default)]
    skipped: bool,
}

/// Stood in the reason of such a cell before the failure that it had had by itself.
const EARLIER_FAILURE: &str = "it had ended by: ";

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cell_skipped_by_earlier_version_has_not_failed() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/schema-1/cells");
        let text =
            std::fs::read_to_string(format!("{folder}/rocksdb.local.ycsb-a-uniform-4t.r1.json")).unwrap();
        let record = cell(&text).unwrap();
        let status_of = |reason: &str, skipped: bool| {
            let mut earlier = serde_json::to_value(&record).unwrap();
            earlier["status"] = json!({ "state": "failed", "reason": reason });
            if skipped {
                earlier["skipped"] = true.into();
            }
            cell(&earlier.to_string()).unwrap().status
        };
        let note = "skipped on command; `underlay run --resume` measures it";
        assert_eq!(status_of(note, true), CellStatus::Skipped { failure: None });
        let failed = format!("{note}\nit had ended by: no space left");
        let failure = Some("no space left".to_owned());
        assert_eq!(status_of(&failed, true), CellStatus::Skipped { failure });
        assert_eq!(status_of("no space", false), CellStatus::Failed { reason: "no space".to_owned() });
        // As it is written now, it reads back.
        let skipped = RunRecord { status: CellStatus::Skipped { failure: None }, ..record };
        assert_eq!(cell(&serde_json::to_string(&skipped).unwrap()).unwrap(), skipped);
    }
}
