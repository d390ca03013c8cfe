//! The hash functions of DH-HMAC-CHAP (base specification, figure "HASH Identifiers").

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuthHash {
    Sha256,
    Sha384,
    Sha512,
}

impl AuthHash {
    pub const ALL: [AuthHash; 3] = [AuthHash::Sha256, AuthHash::Sha384, AuthHash::Sha512];
    pub(crate) const MAX_BYTES: usize = 64;

    /// As it stands in messages and in secrets.
    pub fn identifier(self) -> u8 {
        match self {
            AuthHash::Sha256 => 1,
            AuthHash::Sha384 => 2,
            AuthHash::Sha512 => 3,
        }
    }

    pub fn from_identifier(identifier: u8) -> Option<AuthHash> {
        AuthHash::ALL.into_iter().find(|hash| hash.identifier() == identifier)
    }

    /// Of a digest, in bytes.
    pub fn length_bytes(self) -> usize {
        match self {
            AuthHash::Sha256 => 32,
            AuthHash::Sha384 => 48,
            AuthHash::Sha512 => 64,
        }
    }

    pub(crate) fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            AuthHash::Sha256 => Sha256::digest(bytes).to_vec(),
            AuthHash::Sha384 => Sha384::digest(bytes).to_vec(),
            AuthHash::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }

    /// HMAC (RFC 2104) over the parts, one behind the other.
    pub(crate) fn mac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        match self {
            AuthHash::Sha256 => keyed::<Hmac<Sha256>>(key, parts).finalize().into_bytes().to_vec(),
            AuthHash::Sha384 => keyed::<Hmac<Sha384>>(key, parts).finalize().into_bytes().to_vec(),
            AuthHash::Sha512 => keyed::<Hmac<Sha512>>(key, parts).finalize().into_bytes().to_vec(),
        }
    }

    /// Whether `tag` is what [`AuthHash::mac`] gives, in a time that does not tell where they differ.
    pub(crate) fn proves(self, key: &[u8], parts: &[&[u8]], tag: &[u8]) -> bool {
        match self {
            AuthHash::Sha256 => keyed::<Hmac<Sha256>>(key, parts).verify_slice(tag).is_ok(),
            AuthHash::Sha384 => keyed::<Hmac<Sha384>>(key, parts).verify_slice(tag).is_ok(),
            AuthHash::Sha512 => keyed::<Hmac<Sha512>>(key, parts).verify_slice(tag).is_ok(),
        }
    }
}

fn keyed<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> M {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}
