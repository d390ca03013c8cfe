//! Encryption of what lies on the local disk: chunks of the journal and blocks of the cache, by AES-256-GCM.
//!
//! Each content and each block has a key of its own, derived from the one in the configuration, and each chunk a random
//! nonce that is stored with it. So two chunks share a nonce and a key only by chance, of some 80,000 among 2^96. Whose
//! chunk it is, is authenticated as well.

use hmac::{Hmac, KeyInit as _, Mac as _};
use openssl::symm::{Cipher, decrypt_aead, encrypt_aead};
use sha2::Sha256;

use crate::errors::{GatewayError, GatewayResult};

const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
/// The bytes that sealing adds.
pub const SEAL_BYTES: usize = NONCE_BYTES + TAG_BYTES;
const KEY_BYTES: usize = 32;

/// See the module.
pub struct AtRest {
    key: [u8; KEY_BYTES],
}

/// The kind of sealed bytes: those of another kind are not taken for these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealPurpose {
    Journal,
    Cache,
}

impl AtRest {
    /// Reads a key: 64 hexadecimal digits.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(text: &str) -> std::result::Result<AtRest, String> {
        let wrong = || {
            "the key for encryption at rest is not 64 hexadecimal digits: make one by `openssl rand -hex 32`"
                .to_owned()
        };
        let text = text.trim();
        if text.len() != 2 * KEY_BYTES {
            return Err(wrong());
        }
        let mut key = [0; KEY_BYTES];
        base16ct::mixed::decode(text, &mut key).map_err(|_| wrong())?;
        Ok(AtRest { key })
    }

    fn derived(&self, label: &[u8], owner: &[u8]) -> GatewayResult<[u8; KEY_BYTES]> {
        let mut hmac = Hmac::<Sha256>::new_from_slice(&self.key)
            .map_err(|error| GatewayError::local("cannot derive a key", error))?;
        hmac.update(&[label.len() as u8]);
        hmac.update(label);
        hmac.update(owner);
        Ok(hmac.finalize().into_bytes().into())
    }

    fn key_of(&self, purpose: SealPurpose, owner: &[u8]) -> GatewayResult<[u8; KEY_BYTES]> {
        match purpose {
            SealPurpose::Journal => self.derived(b"journal", owner),
            SealPurpose::Cache => self.derived(b"cache", owner),
        }
    }

    /// Tells one key from another, and nothing of either. Never 0.
    ///
    /// # Errors
    /// When the machine's cryptography fails.
    pub fn fingerprint(&self) -> GatewayResult<u64> {
        let derived = self.derived(b"fingerprint", b"")?;
        Ok(<[u8; 8]>::try_from(&derived[..8]).map_or(1, u64::from_le_bytes).max(1))
    }

    /// Appends the bytes, sealed, to `output`: a nonce, as many bytes as there are, and a tag.
    ///
    /// # Errors
    /// When there are no random numbers.
    pub fn seal(
        &self,
        purpose: SealPurpose,
        owner: &[u8],
        index: u64,
        plain: &[u8],
        output: &mut Vec<u8>,
    ) -> GatewayResult<()> {
        let failed = |error: &dyn std::fmt::Display| GatewayError::local("cannot encrypt", error);
        let (mut nonce, mut tag) = ([0; NONCE_BYTES], [0; TAG_BYTES]);
        getrandom::fill(&mut nonce).map_err(|error| failed(&error))?;
        let key = self.key_of(purpose, owner)?;
        let sealed =
            encrypt_aead(Cipher::aes_256_gcm(), &key, Some(&nonce), &index.to_le_bytes(), plain, &mut tag)
                .map_err(|error| failed(&error))?;
        output.extend_from_slice(&nonce);
        output.extend_from_slice(&sealed);
        output.extend_from_slice(&tag);
        Ok(())
    }

    /// `None` if this is not what was sealed by this key, for this place.
    pub fn open(&self, purpose: SealPurpose, owner: &[u8], index: u64, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, rest) = sealed.split_at_checked(NONCE_BYTES)?;
        let (bytes, tag) = rest.split_at_checked(rest.len().checked_sub(TAG_BYTES)?)?;
        let key = self.key_of(purpose, owner).ok()?;
        decrypt_aead(Cipher::aes_256_gcm(), &key, Some(nonce), &index.to_le_bytes(), bytes, tag).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(digit: char) -> AtRest {
        AtRest::parse(&digit.to_string().repeat(64)).unwrap()
    }

    #[test]
    fn encryption_key_has_64_digits() {
        for wrong in ["", "00", &"0".repeat(63), &"g".repeat(64), &"é".repeat(32)] {
            assert!(AtRest::parse(wrong).is_err(), "{wrong}");
        }
        assert_ne!(key('1').fingerprint().unwrap(), key('2').fingerprint().unwrap());
        assert_eq!(key('a').fingerprint().unwrap(), key('A').fingerprint().unwrap());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn only_the_right_key_and_place_open_it(plain in prop::collection::vec(any::<u8>(), 0..300), at in any::<usize>(), bit in 0..8_u8) {
            let (ours, theirs) = (key('1'), key('2'));
            let (mut sealed, mut again) = (Vec::new(), Vec::new());
            ours.seal(SealPurpose::Journal, b"a", 7, &plain, &mut sealed).unwrap();
            ours.seal(SealPurpose::Journal, b"a", 7, &plain, &mut again).unwrap();
            prop_assert_eq!(sealed.len(), plain.len() + SEAL_BYTES);
            prop_assert_ne!(&sealed, &again);
            prop_assert_eq!(ours.open(SealPurpose::Journal, b"a", 7, &sealed), Some(plain));
            prop_assert_eq!(theirs.open(SealPurpose::Journal, b"a", 7, &sealed), None);
            prop_assert_eq!(ours.open(SealPurpose::Cache, b"a", 7, &sealed), None);
            prop_assert_eq!(ours.open(SealPurpose::Journal, b"b", 7, &sealed), None);
            prop_assert_eq!(ours.open(SealPurpose::Journal, b"a", 8, &sealed), None);
            let at = at % sealed.len();
            sealed[at] ^= 1 << bit;
            prop_assert_eq!(ours.open(SealPurpose::Journal, b"a", 7, &sealed), None);
            prop_assert_eq!(ours.open(SealPurpose::Journal, b"a", 7, &sealed[..at]), None);
        }
    }
}
