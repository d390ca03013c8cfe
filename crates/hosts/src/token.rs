//! The secret token of coordinator and workers.

use std::fmt;
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::HostError;
use crate::secret_file::read_private;

/// A shorter one could be found by brute force.
const MIN_BYTES: usize = 16;
/// The purpose of the key. Another protocol with the same token would derive another key.
const PURPOSE: &[u8] = b"underlay worker, TLS 1.3 pre-shared key, SHA-256";

/// A secret that workers and their coordinator share.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedToken(Vec<u8>);

impl fmt::Debug for SharedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl SharedToken {
    /// # Errors
    /// When it is too short.
    pub fn new(text: &str) -> Result<Self, HostError> {
        let text = text.trim();
        if text.len() < MIN_BYTES {
            return Err(HostError::Trust(format!(
                "a token of {} bytes: expected at least {MIN_BYTES}, such as the output of `openssl rand -hex 32`",
                text.len()
            )));
        }
        Ok(SharedToken(text.as_bytes().to_vec()))
    }

    /// Reads the first line of a file that others can't read.
    ///
    /// # Errors
    /// When it can't be read, is another user's or open to others, or when the token is too short.
    pub fn read(file: &Path) -> Result<Self, HostError> {
        let trust_error = |problem: String| HostError::Trust(format!("{}: {problem}", file.display()));
        let text = read_private(file)?;
        SharedToken::new(text.lines().next().unwrap_or_default())
            .map_err(|error| trust_error(error.to_string()))
    }

    /// The key for TLS. The token can't be derived from it.
    pub(crate) fn key(&self) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("any length is a key");
        mac.update(PURPOSE);
        mac.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn tokens_are_long_and_never_printed() {
        let error = SharedToken::new(" short ").unwrap_err().to_string();
        assert!(error.starts_with("a token of 5 bytes: expected at least 16"), "{error}");
        let token = SharedToken::new("correct horse battery").unwrap();
        assert_eq!(format!("{token:?}"), "Token(..)");
        assert_ne!(token.key(), SharedToken::new("correct horse batterz").unwrap().key());
    }

    #[test]
    fn token_is_first_line_of_private_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        assert!(SharedToken::read(&file).unwrap_err().to_string().contains("can't be read"));
        std::fs::write(&file, "correct horse battery\nand more\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = SharedToken::read(&file).unwrap_err().to_string();
        assert!(error.contains("open to everybody") && error.contains("chmod 600"), "{error}");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o440)).unwrap();
        assert_eq!(SharedToken::read(&file).unwrap(), SharedToken::new("correct horse battery").unwrap());
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&file, [0xff; 40]).unwrap();
        assert!(SharedToken::read(&file).unwrap_err().to_string().contains("can't be read"), "it is no text");
        std::fs::write(&file, "").unwrap();
        assert!(SharedToken::read(&file).unwrap_err().to_string().contains("a token of 0 bytes"));
    }
}
