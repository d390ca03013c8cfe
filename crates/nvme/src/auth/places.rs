//! Secrets from where they are kept.

use std::path::PathBuf;

use underlay_storage::stack::SecretPlaces;

use super::secret::{Secret, SecretError};

/// More than the longest secret with a line's end.
const MAX_FILE_BYTES: u64 = 4096;

/// Why there is no secret where one was to be.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error(
        "the environment variable {0} is not set: it is to hold a secret for DH-HMAC-CHAP, as `nvme gen-dhchap-key` makes them"
    )]
    Unset(String),
    #[error("the environment variable {0}: {1}")]
    Variable(String, SecretError),
    #[error("the file with a secret, {path}: {0}", path = .1.display())]
    Unreadable(std::io::Error, PathBuf),
    #[error("the file with a secret, {path}: {0}", path = .1.display())]
    Content(SecretError, PathBuf),
    #[error("a secret is in the environment and in a file at once: name one of the two")]
    Twice,
    #[error(
        "it has a controller's secret and no host's: a controller proves itself only to a host that does"
    )]
    ControllerAlone,
}

/// The host's secret and the controller's, where there are any; `variable` asks the environment.
///
/// # Errors
/// When one of them is not there, is open to others, or is none.
pub fn read_secrets(
    places: &SecretPlaces,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<(Secret, Option<Secret>)>, PlaceError> {
    let read = |name: &Option<String>, file: &Option<PathBuf>| match (name, file) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(PlaceError::Twice),
        (Some(name), None) => {
            let text = variable(name).ok_or_else(|| PlaceError::Unset(name.clone()))?;
            Secret::parse(&text).map(Some).map_err(|error| PlaceError::Variable(name.clone(), error))
        }
        (None, Some(file)) => {
            let text = underlay_files::read_secret(file, MAX_FILE_BYTES)
                .map_err(|error| PlaceError::Unreadable(error, file.clone()))?;
            Secret::parse(&text).map(Some).map_err(|error| PlaceError::Content(error, file.clone()))
        }
    };
    let host = read(&places.secret_env, &places.secret_file)?;
    match (host, read(&places.controller_secret_env, &places.controller_secret_file)?) {
        (Some(host), controller) => Ok(Some((host, controller))),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(PlaceError::ControllerAlone),
    }
}
