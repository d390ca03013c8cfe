//! DH-HMAC-CHAP, the authentication of hosts and controllers in-band (NVMe base specification 2.0, section 8.13).
//!
//! Both sides are state machines that take messages and give messages; what carries them, Authentication Send and
//! Authentication Receive, is the caller's. The host's side is [`HostSession`], the controller's
//! [`ControllerSession`]. Messages may have bytes behind them, as they have in a buffer that is longer than they are.

mod controller;
mod group;
mod hash;
mod host;
mod message;
mod places;
mod response;
mod secret;

pub use controller::{AuthPolicy, AuthProgress, ControllerSecrets, ControllerSession};
pub use group::DhGroup;
pub use hash::AuthHash;
pub use host::{HostSecrets, HostSession, HostStep};
pub use message::{
    AuthMessage, ChallengeMessage, FailureCode, FailureMessage, MessageError, NegotiateMessage, ReplyMessage,
    Success1Message,
};
pub use places::{PlaceError, read_secrets};
pub use secret::{AuthSecret, SecretError};

/// Longer than any message: a reply with two SHA-512 values and a public value of 8192 bits.
pub const MAX_MESSAGE_BYTES: usize = 4096;

/// Bytes that nobody can guess, drawn once for a session, which is itself free of chance.
pub struct SessionEntropy {
    challenge: [u8; AuthHash::MAX_BYTES],
    exponent: [u8; group::EXPONENT_BYTES],
    sequence: u32,
    transaction: u16,
}

impl SessionEntropy {
    /// From the system.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn draw() -> std::io::Result<SessionEntropy> {
        let mut seed = [0; SessionEntropy::SEED_BYTES];
        getrandom::fill(&mut seed).map_err(|error| std::io::Error::other(error.to_string()))?;
        Ok(SessionEntropy::from_seed(&seed))
    }

    pub const SEED_BYTES: usize = AuthHash::MAX_BYTES + group::EXPONENT_BYTES + 6;

    /// The same for the same seed: for tests. The seed gives away the session's secrets.
    pub fn from_seed(seed: &[u8; SessionEntropy::SEED_BYTES]) -> SessionEntropy {
        let (challenge, rest) = seed.split_at(AuthHash::MAX_BYTES);
        let (exponent, rest) = rest.split_at(group::EXPONENT_BYTES);
        let mut entropy = SessionEntropy {
            challenge: [0; AuthHash::MAX_BYTES],
            exponent: [0; group::EXPONENT_BYTES],
            // Zero says that no sequence number is meant.
            sequence: u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]).max(1),
            transaction: u16::from_le_bytes([rest[4], rest[5]]),
        };
        entropy.challenge.copy_from_slice(challenge);
        entropy.exponent.copy_from_slice(exponent);
        entropy
    }
}

/// Why a session failed, on this side or as the other one said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    #[error("the other side ended the authentication: {}", .0.words())]
    Refused(FailureCode),
    #[error("the host did not prove that it knows its secret")]
    HostUnproved,
    #[error("the host asks for a proof, but this subsystem has no secret of its own")]
    NoControllerSecret,
    #[error(
        "the controller did not prove that it knows its secret: one of the two has the wrong secret, or it is a \
             different controller"
    )]
    ControllerUnproved,
    #[error(
        "the controller answered without a proof, although it was asked for one: no secret of its own is configured"
    )]
    ControllerSilent,
    #[error("a message from the other side could not be used: {0}")]
    Message(#[from] MessageError),
    #[error("the controller chose {0}, which was not offered to it")]
    NotOffered(&'static str),
    #[error("the other side's public value is not valid in a {} exchange", .0.name())]
    PublicValue(DhGroup),
    #[error("a message arrived out of order")]
    OutOfOrder,
}
