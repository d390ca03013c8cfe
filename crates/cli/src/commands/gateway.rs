//! `underlay gateway`: hands over to the program `underlay-gateway`, which is one of its own so that this one stays
//! small.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use underlay_systems::gateway;
use underlay_systems::system::SystemError;

use crate::exit_codes::ExitFailure;
use crate::output;

/// The help where it isn't installed.
const HELP: &str = "\
An S3 gateway: cache, write-back and O(1) rename in front of an S3 store or a directory

Usage: underlay gateway <COMMAND>

Commands:
  init    Write a small configuration and a secret into a directory
  serve   Serve S3 until SIGTERM or Ctrl-C
  top     Show what a running gateway does, once a second
  check   Find damage in the local directory of a stopped gateway
  repair  Put right what `check` found
  drain   Store everything that is not stored yet

These are commands of the program underlay-gateway (docs/gateway.md).
";

fn asks_for_help(arguments: &[OsString]) -> bool {
    arguments.first().is_none_or(|first| ["--help", "-h", "help"].iter().any(|word| first == word))
}

/// Becomes the gateway; it only returns where that can't be.
pub(crate) fn gateway(arguments: &[OsString]) -> Result<ExitCode, ExitFailure> {
    let program = match find() {
        Err(missing) if asks_for_help(arguments) => {
            output::print(HELP);
            return Err(missing);
        }
        found => found?,
    };
    let error = Command::new(&program).args(arguments).exec();
    Err(ExitFailure::Failed(format!("cannot start {}: {error}", program.display())))
}

/// The program beside this one, or in a directory of `PATH` in which only root can put something.
pub(crate) fn find() -> Result<PathBuf, ExitFailure> {
    gateway::find("underlay gateway").map_err(|error| match error {
        SystemError::Missing { missing, remedy, .. } => {
            ExitFailure::Missing(format!("missing: {missing}\n  what to do: {remedy}"))
        }
        other => ExitFailure::Failed(other.to_string()),
    })
}
