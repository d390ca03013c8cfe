//! Runs by the name that an address or a form has for them.

use std::path::PathBuf;
use std::sync::Arc;

use underlay_report::LoadedRun;

use super::ServerShared;
use super::answer::ActionRefusal;
use crate::hub::FollowedRun;

/// # Errors
/// When there is no such run, or it can't be read.
pub(super) fn with_run<T>(
    shared: &ServerShared,
    name: &str,
    act: impl FnOnce(&FollowedRun) -> T,
) -> Result<T, ActionRefusal> {
    run_directory(shared, name)?;
    shared.hub.with(name, act).map_err(ActionRefusal::failed)
}

/// # Errors
/// When there is no such run.
pub(super) fn run_directory(shared: &ServerShared, name: &str) -> Result<PathBuf, ActionRefusal> {
    let directory = shared.hub.runs.directory(name);
    directory.ok_or_else(|| ActionRefusal::missing(format!("there is no run {name:?} here")))
}

/// # Errors
/// When there is no such run, or it can't be read.
pub(super) fn load_run(shared: &ServerShared, name: &str) -> Result<Arc<LoadedRun>, ActionRefusal> {
    run_directory(shared, name)?;
    shared.hub.load(name).map_err(ActionRefusal::failed)
}
