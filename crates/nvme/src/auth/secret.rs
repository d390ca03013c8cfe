//! Secrets as people hand them around: `DHHC-1:xx:base64:` (base specification, section 8.13.5).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::hash::Hash;

const PREFIX: &str = "DHHC-1:";
/// What a secret is transformed with, besides the NQN of its owner.
const TRANSFORMATION: &[u8] = b"NVMe-over-Fabrics";
const CRC_BYTES: usize = 4;
const LENGTHS_BYTES: [usize; 3] = [32, 48, 64];

/// A secret that two sides share. It never shows itself in messages or logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// How it is transformed before use; as it is without one.
    transformation: Option<Hash>,
    key: Vec<u8>,
}

/// Without the text that was wrong: most of it may be right, and this ends up in logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error("a secret begins with 'DHHC-1:' and two digits, as `nvme gen-dhchap-key` makes them")]
    Form,
    #[error("the two digits behind 'DHHC-1:' are 00, 01, 02 or 03")]
    Transformation,
    #[error("what lies between the last two colons of the secret is not base64")]
    Encoding,
    #[error(
        "the secret is {0} bytes long: it has to be 32, 48 or 64, and with 01, 02, 03 just 32, 48, 64 of them"
    )]
    Length(usize),
    #[error("the secret's checksum is wrong: a character was lost or mistyped")]
    Checksum,
}

impl Secret {
    /// From 32, 48 or 64 bytes: as many as the hash has, where there is one.
    ///
    /// # Errors
    /// For another length.
    pub fn new(transformation: Option<Hash>, key: Vec<u8>) -> Result<Secret, SecretError> {
        let fits = match transformation {
            Some(hash) => key.len() == hash.length_bytes(),
            None => LENGTHS_BYTES.contains(&key.len()),
        };
        if fits { Ok(Secret { transformation, key }) } else { Err(SecretError::Length(key.len())) }
    }

    /// A fresh one, as long as the hash.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn generate(hash: Hash) -> std::io::Result<Secret> {
        let mut key = vec![0; hash.length_bytes()];
        getrandom::fill(&mut key).map_err(|error| std::io::Error::other(error.to_string()))?;
        Ok(Secret { transformation: Some(hash), key })
    }

    /// From the form in which they are handed around.
    ///
    /// # Errors
    /// When it has not that form, or its checksum says that it was damaged.
    pub fn parse(text: &str) -> Result<Secret, SecretError> {
        let rest = text.trim().strip_prefix(PREFIX).ok_or(SecretError::Form)?;
        let (digits, rest) = rest.split_once(':').ok_or(SecretError::Form)?;
        let encoded = rest.strip_suffix(':').ok_or(SecretError::Form)?;
        let transformation = match digits {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(SecretError::Transformation),
        };
        let mut key = STANDARD.decode(encoded).map_err(|_| SecretError::Encoding)?;
        let length_bytes = key.len().checked_sub(CRC_BYTES).ok_or(SecretError::Length(0))?;
        let checksum = key.split_off(length_bytes);
        let secret = Secret::new(transformation, key)?;
        if checksum != crc32fast::hash(&secret.key).to_le_bytes() {
            return Err(SecretError::Checksum);
        }
        Ok(secret)
    }

    /// The form in which it is handed around. Whoever sees it knows the secret.
    pub fn reveal(&self) -> String {
        let digits = self.transformation.map_or(0, Hash::identifier);
        let mut bytes = self.key.clone();
        bytes.extend(crc32fast::hash(&self.key).to_le_bytes());
        format!("{PREFIX}{digits:02}:{}:", STANDARD.encode(bytes))
    }

    /// The key of the HMAC, for the one whose NQN this is.
    pub(crate) fn transformed(&self, owner_nqn: &str) -> Vec<u8> {
        match self.transformation {
            None => self.key.clone(),
            Some(hash) => hash.mac(&self.key, &[owner_nqn.as_bytes(), TRANSFORMATION]),
        }
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

impl std::str::FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Secret, SecretError> {
        Secret::parse(text)
    }
}
