//! Errors of storage on a host.

use std::io;
use std::path::{Path, PathBuf};

use crate::machine::missing::MissingCapability;

/// Why storage could not be attached, used or detached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The host lacks something: this is not a failure of this attempt.
    #[error(transparent)]
    Missing(#[from] MissingCapability),
    /// The system refused something.
    #[error("could not {doing} {}: {source}", path.display())]
    Io { doing: String, path: PathBuf, source: io::Error },
    /// Something else went wrong. `output` holds the last output of the program that failed, if one did.
    #[error("{what}{}", .output.as_deref().map(|words| format!("\nits last words:\n{}", words.trim_end())).unwrap_or_default())]
    Failed { what: String, output: Option<String> },
    /// A device holds no file system of the requested kind, or a damaged one. Other reasons why it can't be mounted are
    /// temporary.
    #[error("{0}")]
    NoFilesystem(String),
    /// Another program still uses the object to be removed. Nothing is lost.
    #[error("{0}")]
    InUse(String),
}

impl AttachError {
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        AttachError::Failed { what: message.into(), output: None }
    }

    /// `could not WHAT PATH: the system's reason`
    pub fn io(doing: &str, path: &Path, error: impl Into<io::Error>) -> Self {
        AttachError::Io { doing: doing.to_owned(), path: path.to_owned(), source: error.into() }
    }
}
