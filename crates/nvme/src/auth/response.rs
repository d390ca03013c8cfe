//! The proof that a side knows its secret (base specification, section 8.13.5).

use super::hash::AuthHash;
use super::secret::AuthSecret;

/// The common values of both responses of one transaction.
pub(super) struct ResponseContext<'a> {
    pub hash: AuthHash,
    pub transaction: u16,
    pub host_nqn: &'a str,
    pub subsystem_nqn: &'a str,
    /// The key of the DH exchange; absent without one.
    pub session_key: Option<&'a [u8]>,
}

/// Who proves what it knows.
#[derive(Clone, Copy)]
pub(super) enum ProverSide {
    Host,
    Controller,
}

impl ResponseContext<'_> {
    /// The response to a challenge.
    pub(super) fn respond(
        &self,
        prover: ProverSide,
        secret: &AuthSecret,
        challenge: &[u8],
        sequence: u32,
    ) -> Vec<u8> {
        self.with_parts(prover, secret, challenge, sequence, |key, parts| self.hash.mac(key, parts))
    }

    /// Whether this is the response to a challenge.
    pub(super) fn verify(
        &self,
        prover: ProverSide,
        secret: &AuthSecret,
        challenge: &[u8],
        sequence: u32,
        response: &[u8],
    ) -> bool {
        self.with_parts(prover, secret, challenge, sequence, |key, parts| {
            self.hash.proves(key, parts, response)
        })
    }

    fn with_parts<T>(
        &self,
        prover: ProverSide,
        secret: &AuthSecret,
        challenge: &[u8],
        sequence: u32,
        then: impl FnOnce(&[u8], &[&[u8]]) -> T,
    ) -> T {
        let (host, subsystem) = (self.host_nqn.as_bytes(), self.subsystem_nqn.as_bytes());
        let (role, own, other): (&[u8], _, _) = match prover {
            ProverSide::Host => (b"HostHost", host, subsystem),
            ProverSide::Controller => (b"Controller", subsystem, host),
        };
        let key = secret.transformed(match prover {
            ProverSide::Host => self.host_nqn,
            ProverSide::Controller => self.subsystem_nqn,
        });
        let augmented = self.augment(challenge);
        let (sequence, transaction) = (sequence.to_le_bytes(), self.transaction.to_le_bytes());
        // The byte behind the transaction is SC_C: no secure channel is ever concatenated here.
        then(&key, &[&augmented, &sequence, &transaction, &[0], role, own, &[0], other])
    }

    /// With a DH exchange the challenge is bound to its key.
    fn augment(&self, challenge: &[u8]) -> Vec<u8> {
        match self.session_key {
            None => challenge.to_vec(),
            Some(key) => self.hash.mac(&self.hash.digest(key), &[challenge]),
        }
    }
}
