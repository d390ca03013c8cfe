//! Where secrets are kept. They themselves are in no spec, note or record.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where the secrets of a host and of its controller are (DH-HMAC-CHAP), each in a variable of the environment or in a
/// file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretPlaces {
    /// The secret that the host proves to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_env: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// The secret that the controller proves to know in turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_secret_env: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_secret_file: Option<PathBuf>,
}
