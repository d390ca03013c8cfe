//! The records of a run, for every command that reads them.

use std::path::Path;

use underlay_report::load::{LoadError, LoadedRun, RunDirectory};

use crate::exit_codes::ExitFailure;

pub(super) fn load(directory: &Path) -> Result<LoadedRun, ExitFailure> {
    RunDirectory::load(directory).map_err(|error| match &error {
        LoadError::Read { source, .. } => ExitFailure::from_place_error(error.to_string(), source),
        _ => ExitFailure::Mistake(error.to_string()),
    })
}
