//! How a host and a server of volumes prove themselves to each other (DH-HMAC-CHAP).

use std::path::{Path, PathBuf};

use clap::Args;
use underlay_storage::stack::SecretPlaces;

use crate::exit_codes::ExitFailure;

#[derive(Debug, Args)]
pub(crate) struct SecretArguments {
    /// The environment variable with the secret with which the host authenticates (DH-HMAC-CHAP); of the server's
    /// environment in `volume create`
    #[arg(long, value_name = "VARIABLE", conflicts_with = "secret_file")]
    pub secret_env: Option<String>,
    /// The file with that secret, which must not be readable by others
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// The environment variable with the secret that the server proves to know in turn
    #[arg(long, value_name = "VARIABLE", conflicts_with = "controller_secret_file")]
    pub controller_secret_env: Option<String>,
    /// The file with that secret, which must not be readable by others
    #[arg(long, value_name = "FILE")]
    pub controller_secret_file: Option<PathBuf>,
}

impl SecretArguments {
    /// Whether the controller has to prove itself.
    pub(crate) fn has_controller(&self) -> bool {
        self.controller_secret_env.is_some() || self.controller_secret_file.is_some()
    }

    /// Files are named from the root: who reads them may be in another directory.
    pub(crate) fn places(&self) -> Result<SecretPlaces, ExitFailure> {
        let has_host = self.secret_env.is_some() || self.secret_file.is_some();
        if !has_host && self.has_controller() {
            return Err(ExitFailure::Mistake(
                "a controller's secret without the host's: expected --secret-env or --secret-file as well"
                    .into(),
            ));
        }
        let absolute = |file: &Option<PathBuf>| {
            let file = file.as_deref().map(|file: &Path| (file, std::path::absolute(file)));
            file.map(|(file, found)| {
                found.map_err(|error| ExitFailure::Mistake(format!("{}: {error}", file.display())))
            })
            .transpose()
        };
        Ok(SecretPlaces {
            secret_env: self.secret_env.clone(),
            secret_file: absolute(&self.secret_file)?,
            controller_secret_env: self.controller_secret_env.clone(),
            controller_secret_file: absolute(&self.controller_secret_file)?,
        })
    }
}
