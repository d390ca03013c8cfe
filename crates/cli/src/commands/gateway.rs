//! `underlay gateway`: hands over to the program `underlay-gateway`, which is one of its own so that this one stays small.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use underlay_systems::gateway;
use underlay_systems::system::SystemError;

use crate::exit_codes::Failure;

/// Becomes the gateway; it only returns where that can't be.
pub(crate) fn gateway(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let program = find()?;
    let error = Command::new(&program).args(arguments).exec();
    Err(Failure::Failed(format!("cannot start {}: {error}", program.display())))
}

/// The program beside this one, or in a directory of `PATH` in which only root can put something.
pub(crate) fn find() -> Result<PathBuf, Failure> {
    gateway::find("underlay gateway").map_err(|error| match error {
        SystemError::Missing { missing, remedy, .. } => {
            Failure::Missing(format!("missing: {missing}\n  what to do: {remedy}"))
        }
        other => Failure::Failed(other.to_string()),
    })
}
