//! TLS in front, by OpenSSL.

use openssl::pkey::PKey;
use openssl::ssl::{SslAcceptor, SslMethod, SslVersion};
use openssl::x509::X509;
use underlay_files::{read, read_given_secret};
use underlay_sync::RwLock;

use crate::config::TlsConfig;

const MAX_BYTES: u64 = 1 << 20;

/// The TLS acceptor of new connections: another one, once the files have been read anew.
pub(super) struct TlsFrontend {
    acceptor: RwLock<SslAcceptor>,
}

impl TlsFrontend {
    /// # Errors
    /// As [`acceptor`].
    pub(super) fn new(tls: &TlsConfig) -> Result<TlsFrontend, String> {
        Ok(TlsFrontend { acceptor: RwLock::new(acceptor(tls)?) })
    }

    pub(super) fn acceptor(&self) -> SslAcceptor {
        self.acceptor.read().clone()
    }

    pub(super) fn replace(&self, acceptor: SslAcceptor) {
        *self.acceptor.write() = acceptor;
    }
}

/// # Errors
/// When the files can't be read, others can read the key, or the two don't belong together.
pub(super) fn acceptor(tls: &TlsConfig) -> Result<SslAcceptor, String> {
    let describe =
        |path: &std::path::Path, error: &dyn std::fmt::Display| format!("[tls]: {}: {error}", path.display());
    let chain = read(&tls.certificate, MAX_BYTES).map_err(|error| describe(&tls.certificate, &error))?;
    let key = read_given_secret(&tls.key, MAX_BYTES).map_err(|error| describe(&tls.key, &error))?;
    let key = PKey::private_key_from_pem(key.as_bytes()).map_err(|error| describe(&tls.key, &error))?;
    let mut chain =
        X509::stack_from_pem(&chain).map_err(|error| describe(&tls.certificate, &error))?.into_iter();
    let own = chain.next().ok_or_else(|| describe(&tls.certificate, &"it has no certificate"))?;
    let build = || -> Result<SslAcceptor, openssl::error::ErrorStack> {
        let mut builder = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server())?;
        builder.set_min_proto_version(Some(SslVersion::TLS1_2))?;
        builder.set_certificate(&own)?;
        for other in chain {
            builder.add_extra_chain_cert(other)?;
        }
        builder.set_private_key(&key)?;
        builder.check_private_key()?;
        Ok(builder.build())
    };
    build().map_err(|error| describe(&tls.certificate, &error))
}
