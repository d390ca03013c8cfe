//! Runs by the name that an address or a form has for them.

use std::path::PathBuf;
use std::sync::Arc;

use underlay_report::LoadedRun;

use super::Shared;
use super::answer::Refusal;
use crate::hub::FollowedRun;

/// # Errors
/// When there is no such run, or it can't be read.
pub(super) fn with_run<T>(
    shared: &Shared,
    name: &str,
    act: impl FnOnce(&FollowedRun) -> T,
) -> Result<T, Refusal> {
    run_directory(shared, name)?;
    shared.hub.with(name, act).map_err(Refusal::failed)
}

/// # Errors
/// When there is no such run.
pub(super) fn run_directory(shared: &Shared, name: &str) -> Result<PathBuf, Refusal> {
    let directory = shared.hub.runs.directory(name);
    directory.ok_or_else(|| Refusal::missing(format!("there is no run {name:?} here")))
}

/// # Errors
/// When there is no such run, or it can't be read.
pub(super) fn load_run(shared: &Shared, name: &str) -> Result<Arc<LoadedRun>, Refusal> {
    run_directory(shared, name)?;
    shared.hub.load(name).map_err(Refusal::failed)
}
