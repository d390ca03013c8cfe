//! Protocol data units of the TCP transport (TCP 3.6): their headers as values, and how they are framed.
//!
//! A header is decoded apart from the data behind it, so that data may be received where it is wanted
//! ([`PduReceiver`]), and is encoded apart from it, so that data may be sent from where it is ([`PduFraming`]).

mod decode;
mod encode;
mod receiver;

use std::fmt;

use crate::command::{COMMAND_BYTES, COMPLETION_BYTES};

pub use decode::{PduDecoder, decode};
pub use encode::{EncodedHeader, PduFraming};
pub use receiver::{DataState, PduReceiver, ReceiveError};

/// The part of the header that all PDUs share.
pub const COMMON_HEADER_BYTES: usize = 8;
/// The longest header, with its digest and what aligns the data: a command capsule's 76 bytes to a multiple of 75 or
/// less.
pub const MAX_HEAD_BYTES: usize = 152;
pub const DIGEST_BYTES: usize = 4;
/// Data of a termination request: the header that was wrong, or its beginning.
pub const MAX_TERM_DATA_BYTES: usize = 128;
/// The least that a controller may announce as MAXH2CDATA.
pub const MIN_MAX_H2C_DATA_BYTES: u32 = 4096;

const IC_BYTES: usize = 128;
const TERM_BYTES: usize = 24;
const COMMAND_CAPSULE_BYTES: usize = COMMON_HEADER_BYTES + COMMAND_BYTES;
const RESPONSE_CAPSULE_BYTES: usize = COMMON_HEADER_BYTES + COMPLETION_BYTES;
const TRANSFER_BYTES: usize = 24;

const FLAG_HEADER_DIGEST: u8 = 1;
const FLAG_DATA_DIGEST: u8 = 1 << 1;
const FLAG_LAST: u8 = 1 << 2;
const FLAG_SUCCESS: u8 = 1 << 3;

mod pdu_type {
    pub(super) const IC_REQ: u8 = 0x00;
    pub(super) const IC_RESP: u8 = 0x01;
    pub(super) const H2C_TERM_REQ: u8 = 0x02;
    pub(super) const C2H_TERM_REQ: u8 = 0x03;
    pub(super) const CAPSULE_CMD: u8 = 0x04;
    pub(super) const CAPSULE_RESP: u8 = 0x05;
    pub(super) const H2C_DATA: u8 = 0x06;
    pub(super) const C2H_DATA: u8 = 0x07;
    pub(super) const R2T: u8 = 0x09;
}

/// Which CRC32C digests are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    pub header: bool,
    pub data: bool,
}

/// The side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionSide {
    Host,
    Controller,
}

/// A host's first PDU on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcReq {
    pub format_version: u16,
    /// To what the controller has to align data: a multiple of 4, at most 128.
    pub data_alignment_bytes: u8,
    pub digests: Digests,
    /// How many R2Ts of one command may be outstanding: 1 or more.
    pub max_r2t: u32,
}

/// A controller's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcResp {
    pub format_version: u16,
    /// To what the host has to align data: a multiple of 4, at most 128.
    pub data_alignment_bytes: u8,
    pub digests: Digests,
    /// The most data of one H2CData PDU.
    pub max_h2c_data_bytes: u32,
}

/// Why a connection is ended (TCP 3.6.2.4, 3.6.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FatalStatus {
    InvalidHeaderField,
    SequenceError,
    HeaderDigestError,
    DataOutOfRange,
    /// More R2Ts, or more data, than the other side allows.
    LimitExceeded,
    UnsupportedParameter,
    Other(u16),
}

impl FatalStatus {
    fn number(self) -> u16 {
        match self {
            FatalStatus::InvalidHeaderField => 1,
            FatalStatus::SequenceError => 2,
            FatalStatus::HeaderDigestError => 3,
            FatalStatus::DataOutOfRange => 4,
            FatalStatus::LimitExceeded => 5,
            FatalStatus::UnsupportedParameter => 6,
            FatalStatus::Other(number) => number,
        }
    }

    fn from_number(number: u16) -> FatalStatus {
        match number {
            1 => FatalStatus::InvalidHeaderField,
            2 => FatalStatus::SequenceError,
            3 => FatalStatus::HeaderDigestError,
            4 => FatalStatus::DataOutOfRange,
            5 => FatalStatus::LimitExceeded,
            6 => FatalStatus::UnsupportedParameter,
            other => FatalStatus::Other(other),
        }
    }
}

impl fmt::Display for FatalStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            FatalStatus::InvalidHeaderField => "invalid PDU header field",
            FatalStatus::SequenceError => "PDU sequence error",
            FatalStatus::HeaderDigestError => "header digest error",
            FatalStatus::DataOutOfRange => "data transfer out of range",
            FatalStatus::LimitExceeded => "data transfer or R2T limit exceeded",
            FatalStatus::UnsupportedParameter => "unsupported parameter",
            FatalStatus::Other(number) => return write!(formatter, "fatal status {number}"),
        })
    }
}

/// A side's last PDU before it ends the connection because of the other one's PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermReq {
    pub status: FatalStatus,
    /// The place of the wrong field in the header, or the digest that was received.
    pub information: u32,
}

/// A part of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataTransfer {
    pub cid: u16,
    /// Which R2T it answers; 0 in data to the host.
    pub transfer_tag: u16,
    pub offset_bytes: u32,
    pub length_bytes: u32,
    /// The last of what the R2T, or the command, asked for.
    pub is_last: bool,
    /// To the host only: there is no response capsule, the command has succeeded.
    pub is_success: bool,
}

/// A controller's demand for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2t {
    pub cid: u16,
    pub transfer_tag: u16,
    pub offset_bytes: u32,
    pub length_bytes: u32,
}

/// A header. Capsules are held as they are on the wire: [`crate::command`] decodes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu {
    IcReq(IcReq),
    IcResp(IcResp),
    H2cTermReq(TermReq),
    C2hTermReq(TermReq),
    CapsuleCmd([u8; COMMAND_BYTES]),
    CapsuleResp([u8; COMPLETION_BYTES]),
    H2cData(DataTransfer),
    C2hData(DataTransfer),
    R2t(R2t),
}

impl Pdu {
    fn kind(&self) -> u8 {
        match self {
            Pdu::IcReq(_) => pdu_type::IC_REQ,
            Pdu::IcResp(_) => pdu_type::IC_RESP,
            Pdu::H2cTermReq(_) => pdu_type::H2C_TERM_REQ,
            Pdu::C2hTermReq(_) => pdu_type::C2H_TERM_REQ,
            Pdu::CapsuleCmd(_) => pdu_type::CAPSULE_CMD,
            Pdu::CapsuleResp(_) => pdu_type::CAPSULE_RESP,
            Pdu::H2cData(_) => pdu_type::H2C_DATA,
            Pdu::C2hData(_) => pdu_type::C2H_DATA,
            Pdu::R2t(_) => pdu_type::R2T,
        }
    }

    /// Digests are never on those that open a connection or end it.
    fn has_digests(&self) -> bool {
        kind_has_digests(self.kind())
    }
}

fn kind_has_digests(kind: u8) -> bool {
    kind > pdu_type::C2H_TERM_REQ
}

/// The length of the header of a kind of PDU, or `None` for a kind that there is not.
fn header_bytes(kind: u8) -> Option<usize> {
    match kind {
        pdu_type::IC_REQ | pdu_type::IC_RESP => Some(IC_BYTES),
        pdu_type::H2C_TERM_REQ | pdu_type::C2H_TERM_REQ => Some(TERM_BYTES),
        pdu_type::CAPSULE_CMD => Some(COMMAND_CAPSULE_BYTES),
        pdu_type::CAPSULE_RESP => Some(RESPONSE_CAPSULE_BYTES),
        pdu_type::H2C_DATA | pdu_type::C2H_DATA | pdu_type::R2T => Some(TRANSFER_BYTES),
        _ => None,
    }
}

/// An error in a PDU that ends the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {what}")]
pub struct ProtocolError {
    pub status: FatalStatus,
    /// The place of the wrong field in the header, or the digest that was received.
    pub information: u32,
    /// The header, or its beginning.
    pub header: Vec<u8>,
    pub what: &'static str,
}

impl ProtocolError {
    pub fn new(status: FatalStatus, information: u32, header: &[u8], problem: &'static str) -> ProtocolError {
        let header = header[..header.len().min(MAX_TERM_DATA_BYTES)].to_vec();
        ProtocolError { status, information, header, what: problem }
    }

    pub fn term_req(&self) -> TermReq {
        TermReq { status: self.status, information: self.information }
    }
}
