//! Why a command ends before it is done.

use std::io::{self, ErrorKind};

/// A seed failed, or a planted bug was not found.
pub const FAILED_SEED: u8 = 1;
/// The exit codes in `--help`.
pub const EXIT_CODES: &str = "\
Exit codes:
    0  done, and nothing failed
    1  a seed failed (prove: a bug was not found, or its seed fails without it)
    2  a mistake in an argument or a script
    3  this host lacks something
    4  the output can't be written
   70  a bug in the simulator
  130  stopped by Ctrl-C or SIGTERM";

/// Each kind has its own exit code: none of them may look like a seed that failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandProblem {
    /// A mistake in the user's request.
    #[error("{0}")]
    Mistake(String),
    /// Something that this host lacks.
    #[error("{0}")]
    Missing(String),
    #[error("the output can't be written: {0}")]
    Output(#[source] io::Error),
    #[error("stopped")]
    Interrupted,
    #[error("{0}: a bug in the simulator; please report it")]
    Bug(String),
}

impl CommandProblem {
    /// The code of [`CommandProblem::Missing`].
    pub const MISSING: u8 = 3;

    pub fn code(&self) -> u8 {
        match self {
            CommandProblem::Mistake(_) => 2,
            CommandProblem::Missing(_) => CommandProblem::MISSING,
            CommandProblem::Output(_) => 4,
            CommandProblem::Bug(_) => 70,
            CommandProblem::Interrupted => 130,
        }
    }

    /// A reader that stops early knows it: `show 1 | head`.
    pub fn is_quiet(&self) -> bool {
        matches!(self, CommandProblem::Output(error) if error.kind() == ErrorKind::BrokenPipe)
    }
}
