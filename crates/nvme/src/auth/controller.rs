//! The controller's side.

use super::group::DhGroup;
use super::hash::AuthHash;
use super::message::{
    AuthMessage, ChallengeMessage, FailureCode, FailureMessage, NegotiateMessage, ReplyMessage,
    Success1Message,
};
use super::response::{ProverSide, ResponseContext};
use super::secret::AuthSecret;
use super::{AuthError, MessageError, SessionEntropy};

/// A permitted host, as a subsystem knows it.
#[derive(Clone, Debug)]
pub struct ControllerSecrets {
    /// The secret that the host has to prove to know.
    pub host: AuthSecret,
    /// The secret that the controller proves to know when the host asks; without it such a host is refused.
    pub controller: Option<AuthSecret>,
}

/// The algorithms that a controller takes, the best first.
#[derive(Clone, Debug)]
pub struct AuthPolicy {
    pub hashes: Vec<AuthHash>,
    pub groups: Vec<DhGroup>,
}

impl Default for AuthPolicy {
    /// All hashes; the exchange over 2048 bits where the host offers it, so that a connection is not slow to begin.
    fn default() -> AuthPolicy {
        use DhGroup::{Ffdhe2048, Ffdhe3072, Ffdhe4096, Ffdhe6144, Ffdhe8192, Null};
        AuthPolicy {
            hashes: vec![AuthHash::Sha256, AuthHash::Sha384, AuthHash::Sha512],
            groups: vec![Ffdhe2048, Ffdhe3072, Ffdhe4096, Ffdhe6144, Ffdhe8192, Null],
        }
    }
}

/// How far it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthProgress {
    /// The host has to send something, or to fetch what is there for it.
    UnderWay,
    /// The host is who it says.
    Authenticated,
    /// It is not, and this is why. A failure message may still be there for it; then its connection is to be closed.
    Failed(AuthError),
}

enum ControllerAuthState {
    Idle,
    Challenged {
        hash: AuthHash,
        group: DhGroup,
    },
    /// The controller's proof is out, and the host says whether it takes it.
    Proved,
    Over,
}

/// One queue's authentications by a controller: messages of Authentication Send go in by
/// [`ControllerSession::receive`], those for Authentication Receive come out by [`ControllerSession::next_message`].
pub struct ControllerSession {
    secrets: ControllerSecrets,
    policy: AuthPolicy,
    host_nqn: String,
    subsystem_nqn: String,
    entropy: SessionEntropy,
    transaction: u16,
    state: ControllerAuthState,
    outgoing: Option<Vec<u8>>,
    progress: AuthProgress,
}

impl ControllerSession {
    pub fn new(
        secrets: ControllerSecrets,
        policy: AuthPolicy,
        host_nqn: &str,
        subsystem_nqn: &str,
        entropy: SessionEntropy,
    ) -> ControllerSession {
        ControllerSession {
            secrets,
            policy,
            host_nqn: host_nqn.to_owned(),
            subsystem_nqn: subsystem_nqn.to_owned(),
            entropy,
            transaction: 0,
            state: ControllerAuthState::Idle,
            outgoing: None,
            progress: AuthProgress::UnderWay,
        }
    }

    pub fn progress(&self) -> &AuthProgress {
        &self.progress
    }

    /// The message that is there for the host, which fetches it by Authentication Receive. When none is there the
    /// command is out of order.
    pub fn next_message(&mut self) -> Option<Vec<u8>> {
        self.outgoing.take()
    }

    /// Takes a message of Authentication Send. The command itself succeeds in any case: a failure shows in the next
    /// message, or in the end of the connection.
    pub fn receive(&mut self, bytes: &[u8]) -> &AuthProgress {
        // Over, unless a step sets the next state: after any mistake the host has to begin again.
        let state = std::mem::replace(&mut self.state, ControllerAuthState::Over);
        let outcome = match AuthMessage::decode(bytes) {
            Err(error) => Err((FailureCode::IncorrectPayload, error.into())),
            Ok(message) => match (state, message) {
                (ControllerAuthState::Idle, AuthMessage::Negotiate(negotiate)) => self.challenge(&negotiate),
                (ControllerAuthState::Challenged { hash, group }, AuthMessage::Reply(reply)) => {
                    self.judge(hash, group, &reply)
                }
                (ControllerAuthState::Proved, AuthMessage::Success2 { transaction }) => {
                    self.check_transaction(transaction).map(|()| self.progress = AuthProgress::Authenticated)
                }
                (_, AuthMessage::Failure2(failure)) => {
                    self.progress = AuthProgress::Failed(AuthError::Refused(failure.code));
                    self.outgoing = None;
                    return &self.progress;
                }
                _ => Err((FailureCode::IncorrectMessage, AuthError::OutOfOrder)),
            },
        };
        if let Err((code, error)) = outcome {
            let failure = FailureMessage { transaction: self.transaction, code };
            self.outgoing = Some(AuthMessage::Failure1(failure).encode());
            self.progress = AuthProgress::Failed(error);
        }
        &self.progress
    }

    fn challenge(&mut self, negotiate: &NegotiateMessage) -> Result<(), (FailureCode, AuthError)> {
        self.transaction = negotiate.transaction;
        let refused = |code| (code, AuthError::Refused(code));
        if negotiate.wants_secure_channel {
            return Err(refused(FailureCode::SecureChannelMismatch));
        }
        let hash = self.policy.hashes.iter().copied().find(|hash| negotiate.hashes.contains(hash));
        let hash = hash.ok_or_else(|| refused(FailureCode::HashNotUsable))?;
        let group = self.policy.groups.iter().copied().find(|group| negotiate.groups.contains(group));
        let group = group.ok_or_else(|| refused(FailureCode::DhGroupNotUsable))?;
        let challenge = ChallengeMessage {
            transaction: self.transaction,
            hash,
            group,
            sequence: self.entropy.sequence,
            challenge: self.entropy.challenge[..hash.length_bytes()].to_vec(),
            public_value: group.public_value(&self.entropy.exponent),
        };
        self.outgoing = Some(AuthMessage::Challenge(challenge).encode());
        self.state = ControllerAuthState::Challenged { hash, group };
        Ok(())
    }

    fn judge(
        &mut self,
        hash: AuthHash,
        group: DhGroup,
        reply: &ReplyMessage,
    ) -> Result<(), (FailureCode, AuthError)> {
        self.check_transaction(reply.transaction)?;
        let unproved = |error| (FailureCode::AuthenticationFailed, error);
        if reply.response.len() != hash.length_bytes() {
            let (found, wanted) = (reply.response.len(), hash.length_bytes());
            let error = MessageError::Length("a response", found, wanted);
            return Err((FailureCode::IncorrectPayload, error.into()));
        }
        let session_key = match group {
            DhGroup::Null => None,
            group => Some(
                group
                    .shared_key(&reply.public_value, &self.entropy.exponent)
                    .ok_or((FailureCode::IncorrectPayload, AuthError::PublicValue(group)))?,
            ),
        };
        let context = ResponseContext {
            hash,
            transaction: self.transaction,
            host_nqn: &self.host_nqn,
            subsystem_nqn: &self.subsystem_nqn,
            session_key: session_key.as_deref(),
        };
        let challenge = &self.entropy.challenge[..hash.length_bytes()];
        let (secret, sequence) = (&self.secrets.host, self.entropy.sequence);
        if !context.verify(ProverSide::Host, secret, challenge, sequence, &reply.response) {
            return Err(unproved(AuthError::HostUnproved));
        }
        let response = match &reply.challenge {
            None => None,
            // A host that sends our own challenge back wants us to compute its answer.
            Some(theirs) if theirs == challenge => return Err(unproved(AuthError::HostUnproved)),
            Some(theirs) => {
                let secret = self.secrets.controller.as_ref();
                let secret = secret.ok_or(unproved(AuthError::NoControllerSecret))?;
                Some(context.respond(ProverSide::Controller, secret, theirs, reply.sequence))
            }
        };
        let is_over = response.is_none();
        let success = Success1Message {
            transaction: self.transaction,
            hash_bytes: hash.length_bytes() as u8,
            response,
        };
        self.outgoing = Some(AuthMessage::Success1(success).encode());
        match is_over {
            true => self.progress = AuthProgress::Authenticated,
            false => self.state = ControllerAuthState::Proved,
        }
        Ok(())
    }

    fn check_transaction(&self, transaction: u16) -> Result<(), (FailureCode, AuthError)> {
        if transaction == self.transaction {
            return Ok(());
        }
        let error = MessageError::Transaction(transaction, self.transaction);
        Err((FailureCode::IncorrectPayload, error.into()))
    }
}
