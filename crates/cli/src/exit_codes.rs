//! Exit codes: a script tells by them whose turn it is. Zero is that everything asked for was done.

use std::process::ExitCode;

use underlay_config::Diagnostics;

use crate::output;

/// It finished with problems: operations failed, a medium is far from the device that it models, or a cell has no sound
/// figures. Such a cell failed, was skipped on command, was disturbed by hand or could not run here; its record says
/// why.
pub(crate) const INCOMPLETE: u8 = 1;
/// A mistake in what the user wrote: an argument, a study, a medium.
pub(crate) const MISTAKE: u8 = 2;
/// This host lacks something: a privilege, a kernel feature, a package.
pub(crate) const MISSING: u8 = 3;
/// A system or the storage under it failed.
pub(crate) const FAILED: u8 = 4;
/// A bug in Underlay.
pub(crate) const BUG: u8 = 70;
/// Stopped by Ctrl-C or SIGTERM, everything finished kept.
pub(crate) const INTERRUPTED: u8 = 130;

/// An error with the code that it ends the program with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExitFailure {
    #[error("{0}")]
    Mistake(String),
    /// Several, each of which says where it is.
    #[error("{0}")]
    Mistakes(String),
    /// Those in a study or a pool's file, with its lines.
    #[error("{0}")]
    Findings(Box<Diagnostics>),
    #[error("{0}")]
    Missing(String),
    #[error("{0}")]
    Failed(String),
    /// By the user, before anything could be kept.
    #[error("{0}")]
    Stopped(String),
}

impl ExitFailure {
    /// An error that a place brought which the user named: a storage that is full or fails is not their mistake.
    pub(crate) fn from_place_error(text: String, error: &std::io::Error) -> ExitFailure {
        match underlay_files::is_storage_failure(error) {
            true => ExitFailure::Failed(text),
            false => ExitFailure::Mistake(text),
        }
    }

    /// Tells it on standard error.
    pub(crate) fn say(&self) {
        match self {
            ExitFailure::Findings(findings) => output::say(findings.render(output::colour_of_errors())),
            ExitFailure::Mistakes(list) => output::say(list),
            other => output::say(format_args!("underlay: {other}")),
        }
    }

    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(self.number())
    }

    pub(crate) fn number(&self) -> u8 {
        match self {
            ExitFailure::Mistake(_) | ExitFailure::Mistakes(_) | ExitFailure::Findings(_) => MISTAKE,
            ExitFailure::Missing(_) => MISSING,
            ExitFailure::Failed(_) => FAILED,
            ExitFailure::Stopped(_) => INTERRUPTED,
        }
    }
}

impl From<underlay_study::run::RunError> for ExitFailure {
    fn from(error: underlay_study::run::RunError) -> Self {
        use underlay_study::run::RunError;
        match error {
            RunError::Mistake(text) => ExitFailure::Mistake(text),
            RunError::Missing(missing) => missing.into(),
            RunError::Failed(text) => ExitFailure::Failed(text),
            stopped @ RunError::Stopped => ExitFailure::Stopped(stopped.to_string()),
        }
    }
}

impl From<underlay_attach::MissingCapability> for ExitFailure {
    fn from(missing: underlay_attach::MissingCapability) -> Self {
        ExitFailure::Missing(format!("missing: {}\n  what to do: {}", missing.what, missing.remedy))
    }
}

impl From<underlay_attach::AttachError> for ExitFailure {
    fn from(error: underlay_attach::AttachError) -> Self {
        match error {
            underlay_attach::AttachError::Missing(missing) => missing.into(),
            other => ExitFailure::Failed(other.to_string()),
        }
    }
}

impl From<underlay_study::session::SessionError> for ExitFailure {
    fn from(error: underlay_study::session::SessionError) -> Self {
        use underlay_study::session::SessionError;
        match error {
            SessionError::Stopped => ExitFailure::Stopped(error.to_string()),
            SessionError::System(error) => error.into(),
            SessionError::Attach(error) => error.into(),
        }
    }
}

impl From<underlay_systems::system::SystemError> for ExitFailure {
    fn from(error: underlay_systems::system::SystemError) -> Self {
        use underlay_systems::system::SystemError;
        match &error {
            SystemError::Setting { .. } => ExitFailure::Mistake(error.to_string()),
            SystemError::Missing { .. } => ExitFailure::Missing(error.to_string()),
            SystemError::Failed { .. } => ExitFailure::Failed(error.to_string()),
        }
    }
}
