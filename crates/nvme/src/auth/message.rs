//! The messages of DH-HMAC-CHAP as bytes (base specification, section 8.13).

use super::group::DhGroup;
use super::hash::AuthHash;

const COMMON: u8 = 0x00;
const DH_HMAC_CHAP: u8 = 0x01;

const NEGOTIATE: u8 = 0x00;
const CHALLENGE: u8 = 0x01;
const REPLY: u8 = 0x02;
const SUCCESS1: u8 = 0x03;
const SUCCESS2: u8 = 0x04;
const FAILURE2: u8 = 0xf0;
const FAILURE1: u8 = 0xf1;

/// Of the protocol in a negotiate message.
const PROTOCOL_IDENTIFIER: u8 = 0x01;
const PROTOCOL_DESCRIPTOR_BYTES: usize = 64;
const MAX_IDENTIFIERS: usize = 30;
/// The reason code of failure messages: there is only this one.
const AUTHENTICATION_FAILED: u8 = 0x01;

/// A host's offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NegotiateMessage {
    pub transaction: u16,
    /// Whether a secure channel (TLS) is to be set up after authentication.
    pub wants_secure_channel: bool,
    /// Empty when the host offers other protocols only.
    pub hashes: Vec<AuthHash>,
    pub groups: Vec<DhGroup>,
}

/// A controller's choice, and its challenge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChallengeMessage {
    pub transaction: u16,
    pub hash: AuthHash,
    pub group: DhGroup,
    pub sequence: u32,
    /// As long as the hash.
    pub challenge: Vec<u8>,
    /// As long as the group's prime.
    pub public_value: Vec<u8>,
}

/// The host's proof, and its own challenge where the controller has to prove itself too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyMessage {
    pub transaction: u16,
    pub sequence: u32,
    pub response: Vec<u8>,
    pub challenge: Option<Vec<u8>>,
    pub public_value: Vec<u8>,
}

/// The host is in; with the controller's proof where it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Success1Message {
    pub transaction: u16,
    pub hash_bytes: u8,
    pub response: Option<Vec<u8>>,
}

/// One side gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureMessage {
    pub transaction: u16,
    pub code: FailureCode,
}

/// Why (base specification, figure "AUTH_Failure Reason Code Explanation").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCode {
    AuthenticationFailed,
    ProtocolNotUsable,
    SecureChannelMismatch,
    HashNotUsable,
    DhGroupNotUsable,
    IncorrectPayload,
    IncorrectMessage,
    /// A number that the specification does not name.
    Other(u8),
}

impl FailureCode {
    const NAMED: [FailureCode; 7] = [
        FailureCode::AuthenticationFailed,
        FailureCode::ProtocolNotUsable,
        FailureCode::SecureChannelMismatch,
        FailureCode::HashNotUsable,
        FailureCode::DhGroupNotUsable,
        FailureCode::IncorrectPayload,
        FailureCode::IncorrectMessage,
    ];

    fn number(self) -> u8 {
        match self {
            FailureCode::Other(number) => number,
            named => {
                FailureCode::NAMED.iter().position(|code| *code == named).map_or(0, |index| index as u8 + 1)
            }
        }
    }

    fn from_number(number: u8) -> FailureCode {
        let named = usize::from(number).checked_sub(1).and_then(|index| FailureCode::NAMED.get(index));
        named.copied().unwrap_or(FailureCode::Other(number))
    }

    pub fn words(self) -> String {
        match self {
            FailureCode::AuthenticationFailed => {
                "it did not accept the proof: the secrets differ, or the NQNs that they belong to".into()
            }
            FailureCode::ProtocolNotUsable => "it does not offer DH-HMAC-CHAP".into(),
            FailureCode::SecureChannelMismatch => "the two don't agree on a secure channel".into(),
            FailureCode::HashNotUsable => "it takes none of the hash functions offered".into(),
            FailureCode::DhGroupNotUsable => "it takes none of the DH groups offered".into(),
            FailureCode::IncorrectPayload => "it found a malformed message".into(),
            FailureCode::IncorrectMessage => "it received a message out of order".into(),
            FailureCode::Other(number) => format!("for reason {number:#04x}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthMessage {
    Negotiate(NegotiateMessage),
    Challenge(ChallengeMessage),
    Reply(ReplyMessage),
    Success1(Success1Message),
    Success2 {
        transaction: u16,
    },
    /// The controller gave up.
    Failure1(FailureMessage),
    /// The host gave up.
    Failure2(FailureMessage),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("it ends after {0} bytes, in the middle")]
    Truncated(usize),
    #[error("type {0:#04x} with identifier {1:#04x} is not a DH-HMAC-CHAP message")]
    Unknown(u8, u8),
    #[error("unknown hash function {0}")]
    Hash(u8),
    #[error("unknown DH group {0}")]
    Group(u8),
    #[error("{1} bytes of {0}, but only {2} are there")]
    Length(&'static str, usize, usize),
    #[error("it belongs to transaction {0}, not {1}")]
    Transaction(u16, u16),
}

impl AuthMessage {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            AuthMessage::Negotiate(negotiate) => negotiate.encode(),
            AuthMessage::Challenge(challenge) => challenge.encode(),
            AuthMessage::Reply(reply) => reply.encode(),
            AuthMessage::Success1(success) => success.encode(),
            AuthMessage::Success2 { transaction } => {
                let mut bytes = head(DH_HMAC_CHAP, SUCCESS2, *transaction);
                bytes.resize(16, 0);
                bytes
            }
            AuthMessage::Failure1(failure) => failure.encode(FAILURE1),
            AuthMessage::Failure2(failure) => failure.encode(FAILURE2),
        }
    }

    /// From bytes; there may be more of them than the message has.
    ///
    /// # Errors
    /// When they are too few, or make no sense.
    pub fn decode(bytes: &[u8]) -> Result<AuthMessage, MessageError> {
        let mut reader = MessageReader { bytes, at: 0 };
        let (kind, identifier) = (reader.byte()?, reader.byte()?);
        reader.take(2)?;
        let transaction = reader.u16()?;
        match (kind, identifier) {
            (COMMON, NEGOTIATE) => {
                NegotiateMessage::decode(transaction, &mut reader).map(AuthMessage::Negotiate)
            }
            (DH_HMAC_CHAP, CHALLENGE) => {
                ChallengeMessage::decode(transaction, &mut reader).map(AuthMessage::Challenge)
            }
            (DH_HMAC_CHAP, REPLY) => ReplyMessage::decode(transaction, &mut reader).map(AuthMessage::Reply),
            (DH_HMAC_CHAP, SUCCESS1) => {
                Success1Message::decode(transaction, &mut reader).map(AuthMessage::Success1)
            }
            (DH_HMAC_CHAP, SUCCESS2) => Ok(AuthMessage::Success2 { transaction }),
            (COMMON, FAILURE1) => FailureMessage::decode(transaction, &mut reader).map(AuthMessage::Failure1),
            (COMMON, FAILURE2) => FailureMessage::decode(transaction, &mut reader).map(AuthMessage::Failure2),
            (kind, identifier) => Err(MessageError::Unknown(kind, identifier)),
        }
    }
}

fn head(kind: u8, identifier: u8, transaction: u16) -> Vec<u8> {
    let [low, high] = transaction.to_le_bytes();
    vec![kind, identifier, 0, 0, low, high]
}

impl NegotiateMessage {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = head(COMMON, NEGOTIATE, self.transaction);
        bytes.extend([u8::from(self.wants_secure_channel), 1]);
        let mut descriptor = [0; PROTOCOL_DESCRIPTOR_BYTES];
        let hashes = self.hashes.iter().map(|hash| hash.identifier()).take(MAX_IDENTIFIERS);
        let groups = self.groups.iter().map(|group| group.identifier()).take(MAX_IDENTIFIERS);
        (descriptor[0], descriptor[2], descriptor[3]) =
            (PROTOCOL_IDENTIFIER, hashes.len() as u8, groups.len() as u8);
        let (_, lists) = descriptor.split_at_mut(4);
        let (hash_list, group_list) = lists.split_at_mut(MAX_IDENTIFIERS);
        hash_list.iter_mut().zip(hashes).for_each(|(slot, identifier)| *slot = identifier);
        group_list.iter_mut().zip(groups).for_each(|(slot, identifier)| *slot = identifier);
        bytes.extend(descriptor);
        bytes
    }

    fn decode(transaction: u16, reader: &mut MessageReader<'_>) -> Result<NegotiateMessage, MessageError> {
        let wants_secure_channel = reader.byte()? != 0;
        let descriptors = reader.byte()?;
        let mut negotiate =
            NegotiateMessage { transaction, wants_secure_channel, hashes: Vec::new(), groups: Vec::new() };
        for _ in 0..descriptors {
            let descriptor = reader.take(PROTOCOL_DESCRIPTOR_BYTES)?;
            if descriptor[0] != PROTOCOL_IDENTIFIER {
                continue;
            }
            let (hash_list, group_list) = descriptor[4..].split_at(MAX_IDENTIFIERS);
            let length = |field, count: u8, list: &[u8]| -> Result<usize, MessageError> {
                let count = usize::from(count);
                if count <= list.len() {
                    Ok(count)
                } else {
                    Err(MessageError::Length(field, count, list.len()))
                }
            };
            let hashes = &hash_list[..length("hash identifiers", descriptor[2], hash_list)?];
            let groups = &group_list[..length("DH group identifiers", descriptor[3], group_list)?];
            // An unknown algorithm here may be known elsewhere: it is no error to offer it.
            negotiate.hashes =
                hashes.iter().filter_map(|number| AuthHash::from_identifier(*number)).collect();
            negotiate.groups = groups.iter().filter_map(|number| DhGroup::from_identifier(*number)).collect();
            break;
        }
        Ok(negotiate)
    }
}

impl ChallengeMessage {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = head(DH_HMAC_CHAP, CHALLENGE, self.transaction);
        bytes.extend([self.challenge.len() as u8, 0, self.hash.identifier(), self.group.identifier()]);
        bytes.extend((self.public_value.len() as u16).to_le_bytes());
        bytes.extend(self.sequence.to_le_bytes());
        bytes.extend(&self.challenge);
        bytes.extend(&self.public_value);
        bytes
    }

    fn decode(transaction: u16, reader: &mut MessageReader<'_>) -> Result<ChallengeMessage, MessageError> {
        let hash_bytes = usize::from(reader.byte()?);
        reader.take(1)?;
        let (hash, group) = (reader.byte()?, reader.byte()?);
        let hash = AuthHash::from_identifier(hash).ok_or(MessageError::Hash(hash))?;
        let group = DhGroup::from_identifier(group).ok_or(MessageError::Group(group))?;
        let public_bytes = usize::from(reader.u16()?);
        let sequence = reader.u32()?;
        same("a challenge", hash_bytes, hash.length_bytes())?;
        same("a public value", public_bytes, group.length_bytes())?;
        let challenge = reader.take(hash_bytes)?.to_vec();
        let public_value = reader.take(public_bytes)?.to_vec();
        Ok(ChallengeMessage { transaction, hash, group, sequence, challenge, public_value })
    }
}

impl ReplyMessage {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = head(DH_HMAC_CHAP, REPLY, self.transaction);
        bytes.extend([self.response.len() as u8, 0, u8::from(self.challenge.is_some()), 0]);
        bytes.extend((self.public_value.len() as u16).to_le_bytes());
        bytes.extend(self.sequence.to_le_bytes());
        bytes.extend(&self.response);
        match &self.challenge {
            Some(challenge) => bytes.extend(challenge),
            // Its place is there without one.
            None => bytes.resize(bytes.len() + self.response.len(), 0),
        }
        bytes.extend(&self.public_value);
        bytes
    }

    fn decode(transaction: u16, reader: &mut MessageReader<'_>) -> Result<ReplyMessage, MessageError> {
        let hash_bytes = usize::from(reader.byte()?);
        reader.take(1)?;
        let has_challenge = reader.byte()? & 1 != 0;
        reader.take(1)?;
        let public_bytes = usize::from(reader.u16()?);
        let sequence = reader.u32()?;
        let response = reader.take(hash_bytes)?.to_vec();
        let challenge = reader.take(hash_bytes)?.to_vec();
        let public_value = reader.take(public_bytes)?.to_vec();
        let challenge = has_challenge.then_some(challenge);
        Ok(ReplyMessage { transaction, sequence, response, challenge, public_value })
    }
}

impl Success1Message {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = head(DH_HMAC_CHAP, SUCCESS1, self.transaction);
        bytes.extend([self.hash_bytes, 0, u8::from(self.response.is_some())]);
        bytes.resize(16, 0);
        bytes.extend(self.response.iter().flatten());
        bytes
    }

    fn decode(transaction: u16, reader: &mut MessageReader<'_>) -> Result<Success1Message, MessageError> {
        let hash_bytes = reader.byte()?;
        reader.take(1)?;
        let has_response = reader.byte()? & 1 != 0;
        reader.take(7)?;
        let response = match has_response {
            true => Some(reader.take(usize::from(hash_bytes))?.to_vec()),
            false => None,
        };
        Ok(Success1Message { transaction, hash_bytes, response })
    }
}

impl FailureMessage {
    fn encode(self, identifier: u8) -> Vec<u8> {
        let mut bytes = head(COMMON, identifier, self.transaction);
        bytes.extend([AUTHENTICATION_FAILED, self.code.number()]);
        bytes
    }

    fn decode(transaction: u16, reader: &mut MessageReader<'_>) -> Result<FailureMessage, MessageError> {
        reader.byte()?;
        Ok(FailureMessage { transaction, code: FailureCode::from_number(reader.byte()?) })
    }
}

pub(super) fn same(field: &'static str, found: usize, wanted: usize) -> Result<(), MessageError> {
    if found == wanted { Ok(()) } else { Err(MessageError::Length(field, found, wanted)) }
}

struct MessageReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> MessageReader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], MessageError> {
        let field = self.bytes.get(self.at..self.at + length);
        self.at += length;
        field.ok_or(MessageError::Truncated(self.bytes.len()))
    }

    fn byte(&mut self) -> Result<u8, MessageError> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, MessageError> {
        let bytes = self.take(2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self) -> Result<u32, MessageError> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }
}
