//! `underlay schema`: what scripts may rely on. `docs/schemas` holds each, and `make schema` renews them.

mod study;

use std::process::ExitCode;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use underlay_record::{RunExplanation, RunRecord};
use underlay_report::export::{AbExport, ReportExport};

use super::{advise, check, doctor, predict};
use crate::arguments::SchemaOf;
use crate::exit_codes::ExitFailure;
use crate::output;

pub(crate) fn schema(kind: SchemaOf) -> Result<ExitCode, ExitFailure> {
    let schema = match kind {
        SchemaOf::Study => {
            output::print(&serde_json::to_string_pretty(&study::schema()).expect("a schema is plain JSON"));
            return Ok(ExitCode::SUCCESS);
        }
        SchemaOf::Record => schemars::schema_for!(RunRecord),
        SchemaOf::Report => printed::<ReportExport>(),
        SchemaOf::Comparison => printed::<AbExport<'_>>(),
        SchemaOf::Check => printed::<check::CheckAnswer>(),
        SchemaOf::Doctor => printed::<Vec<doctor::DoctorEntry>>(),
        SchemaOf::Predict => printed::<predict::PredictAnswers>(),
        SchemaOf::HeldOut => printed::<predict::held_out::HeldOutAnswer>(),
        SchemaOf::Explain => printed::<RunExplanation>(),
        SchemaOf::AdviseStorage => printed::<advise::storage::StorageAnswer<'_>>(),
        SchemaOf::AdviseMemory => printed::<advise::memory::MemoryAnswer<'_>>(),
    };
    output::print(&serde_json::to_string_pretty(&schema).expect("a schema is plain JSON"));
    Ok(ExitCode::SUCCESS)
}

/// Of what is only written: a key that may be null is there all the same.
fn printed<T: JsonSchema>() -> Schema {
    SchemaSettings::default().for_serialize().into_generator().into_root_schema_for::<T>()
}
