//! The hash functions of DH-HMAC-CHAP (base specification, figure "HASH Identifiers").

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    pub const ALL: [Hash; 3] = [Hash::Sha256, Hash::Sha384, Hash::Sha512];
    pub(crate) const MAX_BYTES: usize = 64;

    /// As it stands in messages and in secrets.
    pub fn identifier(self) -> u8 {
        match self {
            Hash::Sha256 => 1,
            Hash::Sha384 => 2,
            Hash::Sha512 => 3,
        }
    }

    pub fn from_identifier(identifier: u8) -> Option<Hash> {
        Hash::ALL.into_iter().find(|hash| hash.identifier() == identifier)
    }

    /// Of a digest, in bytes.
    pub fn length_bytes(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    pub(crate) fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Hash::Sha256 => Sha256::digest(bytes).to_vec(),
            Hash::Sha384 => Sha384::digest(bytes).to_vec(),
            Hash::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }

    /// HMAC (RFC 2104) over the parts, one behind the other.
    pub(crate) fn mac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        match self {
            Hash::Sha256 => keyed::<Hmac<Sha256>>(key, parts).finalize().into_bytes().to_vec(),
            Hash::Sha384 => keyed::<Hmac<Sha384>>(key, parts).finalize().into_bytes().to_vec(),
            Hash::Sha512 => keyed::<Hmac<Sha512>>(key, parts).finalize().into_bytes().to_vec(),
        }
    }

    /// Whether `tag` is what [`Hash::mac`] gives, in a time that does not tell where they differ.
    pub(crate) fn proves(self, key: &[u8], parts: &[&[u8]], tag: &[u8]) -> bool {
        match self {
            Hash::Sha256 => keyed::<Hmac<Sha256>>(key, parts).verify_slice(tag).is_ok(),
            Hash::Sha384 => keyed::<Hmac<Sha384>>(key, parts).verify_slice(tag).is_ok(),
            Hash::Sha512 => keyed::<Hmac<Sha512>>(key, parts).verify_slice(tag).is_ok(),
        }
    }
}

fn keyed<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> M {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}
