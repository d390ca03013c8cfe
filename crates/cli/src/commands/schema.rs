//! `underlay schema`: what scripts may rely on.

use std::path::Path;
use std::process::ExitCode;

use clap::ValueEnum as _;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::Value;
use underlay_files::{Access, Folder};
use underlay_record::{RunExplanation, RunRecord};
use underlay_report::export::{AbExport, ReportExport};
use underlay_study::spec::study_schema;

use super::{advise, check, doctor, predict};
use crate::arguments::SchemaSubject;
use crate::exit_codes::ExitFailure;
use crate::output;

pub(crate) fn print_schema(subject: SchemaSubject) -> Result<ExitCode, ExitFailure> {
    output::print(&text_of(subject));
    Ok(ExitCode::SUCCESS)
}

/// A file for each subject: `study.json`, `record.json`.
pub(crate) fn write_schemas(folder: &Path) -> Result<ExitCode, ExitFailure> {
    let failed = |error: std::io::Error| {
        ExitFailure::from_place_error(
            format!("cannot write the schemas to {}: {error}", folder.display()),
            &error,
        )
    };
    let files = Folder::make(folder, Access::Readable).map_err(failed)?;
    for subject in SchemaSubject::value_variants() {
        let value = subject.to_possible_value().expect("no schema is hidden");
        let text = format!("{}\n", text_of(*subject));
        files
            .replace(&format!("{}.json", value.get_name()), Access::Readable, text.as_bytes())
            .map_err(failed)?;
    }
    output::print(&format!("the schemas are in {}", folder.display()));
    Ok(ExitCode::SUCCESS)
}

fn text_of(subject: SchemaSubject) -> String {
    serde_json::to_string_pretty(&schema_of(subject)).expect("a schema is plain JSON")
}

fn schema_of(subject: SchemaSubject) -> Value {
    let schema = match subject {
        SchemaSubject::Study => return study_schema(),
        SchemaSubject::Record => schemars::schema_for!(RunRecord),
        SchemaSubject::Report => printed::<ReportExport>(),
        SchemaSubject::Comparison => printed::<AbExport<'_>>(),
        SchemaSubject::Check => printed::<check::CheckAnswer>(),
        SchemaSubject::Doctor => printed::<Vec<doctor::DoctorEntry>>(),
        SchemaSubject::Predict => printed::<predict::PredictAnswers>(),
        SchemaSubject::HeldOut => printed::<predict::held_out::HeldOutAnswer>(),
        SchemaSubject::Explain => printed::<RunExplanation>(),
        SchemaSubject::AdviseStorage => printed::<advise::storage::StorageAnswer<'_>>(),
        SchemaSubject::AdviseMemory => printed::<advise::memory::MemoryAnswer<'_>>(),
    };
    schema.to_value()
}

/// Of what is only written: a key that may be null is there all the same.
fn printed<T: JsonSchema>() -> Schema {
    SchemaSettings::default().for_serialize().into_generator().into_root_schema_for::<T>()
}
