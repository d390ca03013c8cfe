//! The cryptography that `object_store` signs requests with, by the crates that the rest of Underlay uses.

use hmac::{Hmac, KeyInit as _, Mac as _};
use object_store::client::{
    CryptoProvider, DigestAlgorithm, DigestContext, HmacContext, Signer, SigningAlgorithm,
};
use sha2::{Digest as _, Sha256};

/// See the module.
#[derive(Debug)]
pub(super) struct StoreCrypto;

struct Sha256Context(Sha256, Vec<u8>);
struct HmacSha256Context(Hmac<Sha256>, Vec<u8>);

impl DigestContext for Sha256Context {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn finish(&mut self) -> object_store::Result<&[u8]> {
        self.1 = self.0.finalize_reset().to_vec();
        Ok(&self.1)
    }
}

impl HmacContext for HmacSha256Context {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn finish(&mut self) -> object_store::Result<&[u8]> {
        self.1 = self.0.clone().finalize().into_bytes().to_vec();
        Ok(&self.1)
    }
}

fn unknown(value: impl std::fmt::Debug) -> object_store::Error {
    object_store::Error::NotSupported { source: format!("{value:?}").into() }
}

impl CryptoProvider for StoreCrypto {
    fn digest(&self, algorithm: DigestAlgorithm) -> object_store::Result<Box<dyn DigestContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => Ok(Box::new(Sha256Context(Sha256::new(), Vec::new()))),
            other => Err(unknown(other)),
        }
    }

    fn hmac(&self, algorithm: DigestAlgorithm, secret: &[u8]) -> object_store::Result<Box<dyn HmacContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => {
                let hmac = Hmac::new_from_slice(secret).map_err(unknown)?;
                Ok(Box::new(HmacSha256Context(hmac, Vec::new())))
            }
            other => Err(unknown(other)),
        }
    }

    fn sign(&self, algorithm: SigningAlgorithm, _: &[u8]) -> object_store::Result<Box<dyn Signer>> {
        Err(unknown(algorithm))
    }
}
