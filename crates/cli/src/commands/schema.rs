//! `underlay schema`: what scripts may rely on. `docs/schemas` holds each, and `make schema` renews them.

mod study;

use std::process::ExitCode;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use underlay_record::{Explained, RunRecord};
use underlay_report::export::{AbExport, Export};

use super::{advise, check, doctor, predict};
use crate::arguments::SchemaOf;
use crate::exit_codes::Failure;
use crate::output;

pub(crate) fn schema(of: SchemaOf) -> Result<ExitCode, Failure> {
    let schema = match of {
        SchemaOf::Study => {
            output::print(&serde_json::to_string_pretty(&study::schema()).expect("a schema is plain JSON"));
            return Ok(ExitCode::SUCCESS);
        }
        SchemaOf::Record => schemars::schema_for!(RunRecord),
        SchemaOf::Report => printed::<Export>(),
        SchemaOf::Comparison => printed::<AbExport<'_>>(),
        SchemaOf::Check => printed::<check::Answer>(),
        SchemaOf::Doctor => printed::<Vec<doctor::Entry>>(),
        SchemaOf::Predict => printed::<predict::Answers>(),
        SchemaOf::HeldOut => printed::<predict::held_out::Answer>(),
        SchemaOf::Explain => printed::<Explained>(),
        SchemaOf::AdviseStorage => printed::<advise::storage::Answer<'_>>(),
        SchemaOf::AdviseMemory => printed::<advise::memory::Answer<'_>>(),
    };
    output::print(&serde_json::to_string_pretty(&schema).expect("a schema is plain JSON"));
    Ok(ExitCode::SUCCESS)
}

/// Of what is only written: a key that may be null is there all the same.
fn printed<T: JsonSchema>() -> Schema {
    SchemaSettings::default().for_serialize().into_generator().into_root_schema_for::<T>()
}
