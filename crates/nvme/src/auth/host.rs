//! The host's side.

use super::group::DhGroup;
use super::hash::AuthHash;
use super::message::{
    AuthMessage, ChallengeMessage, FailureCode, FailureMessage, MessageError, NegotiateMessage, ReplyMessage,
    Success1Message, same,
};
use super::response::{ProverSide, ResponseContext};
use super::secret::AuthSecret;
use super::{AuthError, SessionEntropy};

/// A host's secrets.
#[derive(Clone, Debug)]
pub struct HostSecrets {
    /// The secret that it proves to know.
    pub host: AuthSecret,
    /// The secret that the controller has to prove to know, if any.
    pub controller: Option<AuthSecret>,
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub enum HostStep {
    /// This is to be sent, and an answer to be received.
    Exchange(Vec<u8>),
    /// This is to be sent; with it all is well.
    SendAndFinish(Vec<u8>),
    /// All is well.
    Finished,
    /// It came to nothing. The message to send tells the controller so.
    Failed { send: Option<Vec<u8>>, error: AuthError },
}

enum HostAuthState {
    Negotiating,
    Replied(ControllerProof),
    Over,
}

/// The values that check the controller's response.
struct ControllerProof {
    hash: AuthHash,
    session_key: Option<Vec<u8>>,
    sequence: u32,
}

/// One authentication of a host. It begins with [`HostSession::start`].
pub struct HostSession {
    secrets: HostSecrets,
    host_nqn: String,
    subsystem_nqn: String,
    groups: Vec<DhGroup>,
    entropy: SessionEntropy,
    state: HostAuthState,
}

impl HostSession {
    pub fn new(
        secrets: HostSecrets,
        host_nqn: &str,
        subsystem_nqn: &str,
        entropy: SessionEntropy,
    ) -> HostSession {
        HostSession {
            secrets,
            host_nqn: host_nqn.to_owned(),
            subsystem_nqn: subsystem_nqn.to_owned(),
            groups: DhGroup::ALL.to_vec(),
            entropy,
            state: HostAuthState::Negotiating,
        }
    }

    /// Offers these groups only.
    #[must_use]
    pub fn with_groups(self, groups: Vec<DhGroup>) -> HostSession {
        HostSession { groups, ..self }
    }

    /// The first message.
    pub fn start(&self) -> Vec<u8> {
        AuthMessage::Negotiate(NegotiateMessage {
            transaction: self.entropy.transaction,
            wants_secure_channel: false,
            hashes: AuthHash::ALL.to_vec(),
            groups: self.groups.clone(),
        })
        .encode()
    }

    /// Takes the controller's answer.
    pub fn receive(&mut self, bytes: &[u8]) -> HostStep {
        let state = std::mem::replace(&mut self.state, HostAuthState::Over);
        let outcome =
            AuthMessage::decode(bytes).map_err(AuthError::from).and_then(|message| match (state, message) {
                (HostAuthState::Negotiating, AuthMessage::Challenge(challenge)) => self.reply(&challenge),
                (HostAuthState::Replied(proof), AuthMessage::Success1(success)) => {
                    self.check(&proof, &success)
                }
                (_, AuthMessage::Failure1(failure)) => Err(AuthError::Refused(failure.code)),
                _ => Err(AuthError::OutOfOrder),
            });
        outcome.unwrap_or_else(|error| HostStep::Failed { send: self.farewell(&error), error })
    }

    fn reply(&mut self, challenge: &ChallengeMessage) -> Result<HostStep, AuthError> {
        self.check_transaction(challenge.transaction)?;
        if !self.groups.contains(&challenge.group) {
            return Err(AuthError::NotOffered(challenge.group.name()));
        }
        let session_key = match challenge.group {
            DhGroup::Null => None,
            group => Some(
                group
                    .shared_key(&challenge.public_value, &self.entropy.exponent)
                    .ok_or(AuthError::PublicValue(group))?,
            ),
        };
        let context = self.context(challenge.hash, session_key.as_deref());
        let response =
            context.respond(ProverSide::Host, &self.secrets.host, &challenge.challenge, challenge.sequence);
        let asks = self.secrets.controller.is_some();
        let reply = ReplyMessage {
            transaction: self.entropy.transaction,
            sequence: if asks { self.entropy.sequence } else { 0 },
            response,
            challenge: asks.then(|| self.challenge(challenge.hash).to_vec()),
            public_value: challenge.group.public_value(&self.entropy.exponent),
        };
        let (hash, sequence) = (challenge.hash, self.entropy.sequence);
        self.state = HostAuthState::Replied(ControllerProof { hash, session_key, sequence });
        Ok(HostStep::Exchange(AuthMessage::Reply(reply).encode()))
    }

    fn check(&self, proof: &ControllerProof, success: &Success1Message) -> Result<HostStep, AuthError> {
        self.check_transaction(success.transaction)?;
        let Some(secret) = &self.secrets.controller else { return Ok(HostStep::Finished) };
        let response = success.response.as_deref().ok_or(AuthError::ControllerSilent)?;
        same("a response", response.len(), proof.hash.length_bytes())?;
        let context = self.context(proof.hash, proof.session_key.as_deref());
        let challenge = self.challenge(proof.hash);
        match context.verify(ProverSide::Controller, secret, challenge, proof.sequence, response) {
            true => Ok(HostStep::SendAndFinish(
                AuthMessage::Success2 { transaction: self.entropy.transaction }.encode(),
            )),
            false => Err(AuthError::ControllerUnproved),
        }
    }

    fn check_transaction(&self, transaction: u16) -> Result<(), AuthError> {
        if transaction == self.entropy.transaction {
            return Ok(());
        }
        Err(MessageError::Transaction(transaction, self.entropy.transaction).into())
    }

    fn challenge(&self, hash: AuthHash) -> &[u8] {
        &self.entropy.challenge[..hash.length_bytes()]
    }

    fn context<'a>(&'a self, hash: AuthHash, session_key: Option<&'a [u8]>) -> ResponseContext<'a> {
        ResponseContext {
            hash,
            transaction: self.entropy.transaction,
            host_nqn: &self.host_nqn,
            subsystem_nqn: &self.subsystem_nqn,
            session_key,
        }
    }

    /// A controller that gave up itself gets no message.
    fn farewell(&self, error: &AuthError) -> Option<Vec<u8>> {
        let code = match error {
            AuthError::Refused(_) => return None,
            AuthError::ControllerUnproved
            | AuthError::ControllerSilent
            | AuthError::HostUnproved
            | AuthError::NoControllerSecret => FailureCode::AuthenticationFailed,
            AuthError::Message(_) | AuthError::PublicValue(_) => FailureCode::IncorrectPayload,
            AuthError::NotOffered(_) => FailureCode::DhGroupNotUsable,
            AuthError::OutOfOrder => FailureCode::IncorrectMessage,
        };
        Some(AuthMessage::Failure2(FailureMessage { transaction: self.entropy.transaction, code }).encode())
    }
}
