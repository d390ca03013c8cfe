//! How coordinator and workers authenticate each other: TLS 1.3, with a key derived from a token or with certificates.
//!
//! With a token, the handshake uses a pre-shared key and fails without it: neither side has a certificate to present
//! instead. OpenSSL requires SHA-256 for such a key, so there is only one cipher suite.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use openssl::error::ErrorStack;
use openssl::pkey::PKey;
use openssl::ssl::{
    Ssl, SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions, SslSessionCacheMode, SslVerifyMode,
    SslVersion,
};
use openssl::x509::X509;
use openssl::x509::store::X509StoreBuilder;
use openssl::x509::verify::X509CheckFlags;

use crate::HostError;
use crate::secret_file::{MAX_FILE_BYTES, read_private, read_some};
use crate::token::SharedToken;

/// The identity of the key. There is only one.
const IDENTITY: &[u8] = b"underlay";
const SUITES_WITH_TOKEN: &str = "TLS_AES_128_GCM_SHA256";
const SUITES_WITH_CERTIFICATES: &str =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

/// How coordinator and workers authenticate each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustMethod {
    /// Both know the same secret.
    Token(SharedToken),
    /// Both hold a certificate of the same authority.
    Certificates(CertificateFiles),
}

/// Files in PEM form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The only authority whose certificates are accepted.
    pub authority: PathBuf,
    /// Our own certificate, followed by any intermediate ones.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerSide {
    Coordinator,
    Worker,
}

impl TrustMethod {
    /// The TLS context of a side.
    pub(crate) fn context(&self, side: PeerSide) -> Result<SslContext, HostError> {
        match self {
            TrustMethod::Token(token) => with_token(token, side)
                .map_err(|error| HostError::Trust(format!("TLS can't use the token: {error}"))),
            TrustMethod::Certificates(certificates) => certificates.context(side),
        }
    }

    /// A hint when a handshake fails.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            TrustMethod::Token(_) => "is the token the same on both sides?",
            TrustMethod::Certificates(_) => {
                "are both certificates of the same authority, and is the worker's issued for the name that is used here?"
            }
        }
    }

    /// The coordinator's handshake with the worker that is called `host`.
    pub(crate) fn handshake(&self, context: &SslContext, host: &str) -> Result<Ssl, ErrorStack> {
        let mut ssl = Ssl::new(context)?;
        if let TrustMethod::Certificates(_) = self {
            let parameters = ssl.param_mut();
            parameters.set_hostflags(X509CheckFlags::NO_PARTIAL_WILDCARDS);
            match host.parse::<IpAddr>() {
                // No server name then: SNI carries host names only (RFC 6066, section 3).
                Ok(address) => parameters.set_ip(address)?,
                Err(_) => {
                    parameters.set_host(host)?;
                    ssl.set_hostname(host)?;
                }
            }
        }
        Ok(ssl)
    }
}

fn builder(side: PeerSide, suites: &str) -> Result<SslContextBuilder, ErrorStack> {
    let mut builder = SslContextBuilder::new(match side {
        PeerSide::Coordinator => SslMethod::tls_client(),
        PeerSide::Worker => SslMethod::tls_server(),
    })?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    builder.set_ciphersuites(suites)?;
    // Frames have a length, so a truncated connection is detected without TLS's close_notify.
    builder.set_options(SslOptions::IGNORE_UNEXPECTED_EOF);
    builder
        .set_mode(SslMode::AUTO_RETRY | SslMode::ACCEPT_MOVING_WRITE_BUFFER | SslMode::ENABLE_PARTIAL_WRITE);
    // No resumption: every connection authenticates again.
    builder.set_session_cache_mode(SslSessionCacheMode::OFF);
    builder.set_num_tickets(0)?;
    Ok(builder)
}

fn with_token(token: &SharedToken, side: PeerSide) -> Result<SslContext, ErrorStack> {
    let mut builder = builder(side, SUITES_WITH_TOKEN)?;
    let key = token.key();
    match side {
        PeerSide::Worker => builder.set_psk_server_callback(move |_, identity, buffer| {
            let is_ours = identity == Some(IDENTITY);
            Ok(buffer.get_mut(..key.len()).filter(|_| is_ours).map_or(0, |buffer| {
                buffer.copy_from_slice(&key);
                key.len()
            }))
        }),
        PeerSide::Coordinator => {
            builder.set_psk_client_callback(move |_, _, identity, buffer| {
                let name = identity.get_mut(..=IDENTITY.len());
                let (Some(name), Some(buffer)) = (name, buffer.get_mut(..key.len())) else { return Ok(0) };
                name[..IDENTITY.len()].copy_from_slice(IDENTITY);
                // OpenSSL reads the identity as a C string.
                name[IDENTITY.len()] = 0;
                buffer.copy_from_slice(&key);
                Ok(key.len())
            });
            // A server that doesn't know the token could continue with a certificate. With no trusted authority, none
            // is accepted.
            builder.set_verify(SslVerifyMode::PEER);
        }
    }
    Ok(builder.build())
}

impl CertificateFiles {
    /// The TLS context of a server that others than coordinators reach, such as browsers: each client has to show
    /// a certificate of the authority, and no session is resumed.
    ///
    /// # Errors
    /// When the files can't be read, anyone else can read the key, a group included, or they don't belong together.
    pub fn for_listening(&self) -> Result<SslContext, HostError> {
        let key = underlay_files::read_secret(&self.key, MAX_FILE_BYTES)
            .map_err(|error| HostError::Trust(format!("{}: {error}", self.key.display())))?;
        self.context_with(PeerSide::Worker, key.as_bytes())
    }

    /// A key may be a group's: a container's secrets are.
    fn context(&self, side: PeerSide) -> Result<SslContext, HostError> {
        self.context_with(side, read_private(&self.key)?.as_bytes())
    }

    fn context_with(&self, side: PeerSide, key: &[u8]) -> Result<SslContext, HostError> {
        let (authority, certificate) = (read_some(&self.authority)?, read_some(&self.certificate)?);
        let trust_error =
            |file: &Path, problem: &str| HostError::Trust(format!("{}: {problem}", file.display()));
        let no_certificate = "not a certificate in PEM format";
        let authorities = X509::stack_from_pem(&authority).unwrap_or_default();
        let mut chain = X509::stack_from_pem(&certificate).unwrap_or_default().into_iter();
        let own = chain.next().ok_or_else(|| trust_error(&self.certificate, no_certificate))?;
        if authorities.is_empty() {
            return Err(trust_error(&self.authority, no_certificate));
        }
        // Without this, OpenSSL would prompt for the password of an encrypted key.
        let key = PKey::private_key_from_pem_callback(key, |_| Ok(0))
            .map_err(|_| trust_error(&self.key, "not an unencrypted private key in PEM format"))?;
        let build = || -> Result<SslContext, ErrorStack> {
            let mut builder = builder(side, SUITES_WITH_CERTIFICATES)?;
            // Replaces the authorities that the host trusts.
            let mut store = X509StoreBuilder::new()?;
            for authority in authorities {
                store.add_cert(authority)?;
            }
            builder.set_cert_store(store.build());
            builder.set_certificate(&own)?;
            for link in chain {
                builder.add_extra_chain_cert(link)?;
            }
            builder.set_private_key(&key)?;
            builder.check_private_key()?;
            builder.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
            Ok(builder.build())
        };
        build().map_err(|error| {
            trust_error(&self.certificate, &format!("can't be used with {}: {error}", self.key.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn files_that_are_no_certificates_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
            file
        };
        let certificates = CertificateFiles {
            authority: write("authority.pem", "no certificate"),
            certificate: write("own.pem", ""),
            key: write("own.key", "-----BEGIN PRIVATE KEY-----\n"),
        };
        let context = |certificates: &CertificateFiles| match certificates.context(PeerSide::Worker) {
            Ok(_) => panic!("it was taken"),
            Err(error) => error.to_string(),
        };
        assert!(context(&certificates).ends_with("own.pem: not a certificate in PEM format"));
        std::fs::set_permissions(&certificates.key, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(context(&certificates).contains("open to everybody"));
        let refused =
            |certificates: &CertificateFiles| certificates.for_listening().err().unwrap().to_string();
        assert!(
            refused(&certificates).contains("own.key: it is open to everybody"),
            "{}",
            refused(&certificates)
        );
        let missing = CertificateFiles { key: folder.path().join("none"), ..certificates };
        assert!(context(&missing).contains("none can't be read"));
    }
}
