//! Bytes to headers.

use super::{
    COMMON_HEADER_BYTES, ConnectionSide, DIGEST_BYTES, DataTransfer, Digests, FLAG_DATA_DIGEST,
    FLAG_HEADER_DIGEST, FLAG_LAST, FLAG_SUCCESS, FatalStatus, IcReq, IcResp, MAX_HEAD_BYTES,
    MAX_TERM_DATA_BYTES, Pdu, ProtocolError, R2t, TermReq, header_bytes, kind_has_digests, pdu_type,
};
use crate::wire::{array_at, u16_at, u32_at};

/// The PDUs that one side takes from the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduDecoder {
    /// The side that takes.
    pub side: ConnectionSide,
    pub digests: Digests,
    /// The alignment of data that this side has asked for.
    pub data_alignment_bytes: u8,
    /// The most data of a command capsule.
    pub max_capsule_data_bytes: u32,
    /// The most data of a data PDU.
    pub max_data_bytes: u32,
}

/// A header that was decoded, and where its PDU goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedHeader {
    pub pdu: Pdu,
    /// Bytes before the data: header, digest and what aligns.
    pub head_bytes: usize,
    pub data_bytes: usize,
    /// A digest follows the data.
    pub has_data_digest: bool,
}

/// The fields that every header begins with, once they are known to be sound.
struct CommonHeader {
    kind: u8,
    flags: u8,
    header_bytes: usize,
    head_bytes: usize,
    data_bytes: usize,
    has_data_digest: bool,
}

/// Decodes the header at the beginning of `bytes`. `None` says that more bytes are needed.
///
/// # Errors
/// When the header is none that may arrive at this side: the connection has to end.
pub fn decode(bytes: &[u8], arriving: &PduDecoder) -> Result<Option<DecodedHeader>, ProtocolError> {
    if bytes.len() < COMMON_HEADER_BYTES {
        return Ok(None);
    }
    let common = common(bytes, arriving)?;
    if bytes.len() < common.head_bytes {
        return Ok(None);
    }
    let header = &bytes[..common.header_bytes];
    if common.flags & FLAG_HEADER_DIGEST != 0 {
        let found = u32_at(bytes, common.header_bytes);
        if found != crc_fast::crc32_iscsi(header) {
            let status = FatalStatus::HeaderDigestError;
            return Err(ProtocolError::new(status, found, header, "the header digest does not match"));
        }
    }
    let pdu = specific(header, &common)?;
    let CommonHeader { head_bytes, data_bytes, has_data_digest, .. } = common;
    Ok(Some(DecodedHeader { pdu, head_bytes, data_bytes, has_data_digest }))
}

/// The common header says how long everything is, so it is looked at before anything else is waited for.
fn common(bytes: &[u8], arriving: &PduDecoder) -> Result<CommonHeader, ProtocolError> {
    let shown = &bytes[..bytes.len().min(MAX_HEAD_BYTES)];
    let invalid = |field_offset: u32, problem| {
        Err(ProtocolError::new(FatalStatus::InvalidHeaderField, field_offset, shown, problem))
    };
    let (kind, flags, header, data_at) = (bytes[0], bytes[1], usize::from(bytes[2]), usize::from(bytes[3]));
    let total = u64::from(u32_at(bytes, 4));
    let Some(expected) = header_bytes(kind) else { return invalid(0, "unknown type of PDU") };
    if !may_arrive(kind, arriving.side) {
        let status = FatalStatus::SequenceError;
        return Err(ProtocolError::new(status, 0, shown, "this type of PDU is for the other direction"));
    }
    if header != expected {
        return invalid(2, "the header has the wrong length");
    }
    let agreed = if kind_has_digests(kind) { arriving.digests } else { Digests::default() };
    if agreed.header != (flags & FLAG_HEADER_DIGEST != 0) {
        return invalid(1, "the header digest is not as agreed");
    }
    let headed = header + if agreed.header { DIGEST_BYTES } else { 0 };
    if total < headed as u64 {
        return invalid(4, "the PDU is shorter than its header");
    }
    let carries = carries_data(kind);
    if !carries && total != headed as u64 {
        return invalid(4, "the PDU is longer than its header");
    }
    if !carries || total == headed as u64 {
        let (head_bytes, data_bytes) = (headed, 0);
        return Ok(CommonHeader {
            kind,
            flags,
            header_bytes: header,
            head_bytes,
            data_bytes,
            has_data_digest: false,
        });
    }
    // In a TermReq PDO is reserved: its data follows the header at once.
    let head_bytes = if kind_has_digests(kind) {
        let alignment = usize::from(arriving.data_alignment_bytes.max(1));
        if data_at < headed || !data_at.is_multiple_of(alignment) || data_at > MAX_HEAD_BYTES {
            return invalid(3, "data starts where it can't");
        }
        data_at
    } else {
        headed
    };
    if agreed.data != (flags & FLAG_DATA_DIGEST != 0) {
        return invalid(1, "the data digest is not as agreed");
    }
    let digest_bytes = if agreed.data { DIGEST_BYTES } else { 0 };
    let Some(data_bytes) = total.checked_sub((head_bytes + digest_bytes) as u64).filter(|bytes| *bytes > 0)
    else {
        return invalid(4, "the PDU is shorter than its parts");
    };
    let most = match kind {
        pdu_type::CAPSULE_CMD => u64::from(arriving.max_capsule_data_bytes),
        pdu_type::H2C_TERM_REQ | pdu_type::C2H_TERM_REQ => MAX_TERM_DATA_BYTES as u64,
        _ => u64::from(arriving.max_data_bytes),
    };
    if data_bytes > most {
        let (status, field_offset) = match kind {
            pdu_type::H2C_DATA => (FatalStatus::LimitExceeded, 0),
            _ => (FatalStatus::InvalidHeaderField, 4),
        };
        return Err(ProtocolError::new(
            status,
            field_offset,
            shown,
            "there is more data than a PDU may carry",
        ));
    }
    Ok(CommonHeader {
        kind,
        flags,
        header_bytes: header,
        head_bytes,
        data_bytes: data_bytes as usize,
        has_data_digest: agreed.data,
    })
}

fn may_arrive(kind: u8, side: ConnectionSide) -> bool {
    match side {
        ConnectionSide::Controller => matches!(
            kind,
            pdu_type::IC_REQ | pdu_type::H2C_TERM_REQ | pdu_type::CAPSULE_CMD | pdu_type::H2C_DATA
        ),
        ConnectionSide::Host => matches!(
            kind,
            pdu_type::IC_RESP
                | pdu_type::C2H_TERM_REQ
                | pdu_type::CAPSULE_RESP
                | pdu_type::C2H_DATA
                | pdu_type::R2T
        ),
    }
}

fn carries_data(kind: u8) -> bool {
    !matches!(kind, pdu_type::IC_REQ | pdu_type::IC_RESP | pdu_type::CAPSULE_RESP | pdu_type::R2T)
}

fn specific(header: &[u8], common: &CommonHeader) -> Result<Pdu, ProtocolError> {
    const AT: usize = COMMON_HEADER_BYTES;
    Ok(match common.kind {
        pdu_type::IC_REQ => Pdu::IcReq(IcReq {
            format_version: u16_at(header, AT),
            data_alignment_bytes: alignment(header)?,
            digests: digests(header[AT + 3]),
            // MAXR2T is 0's based; its largest value must not wrap.
            max_r2t: u32_at(header, AT + 4).saturating_add(1),
        }),
        pdu_type::IC_RESP => Pdu::IcResp(IcResp {
            format_version: u16_at(header, AT),
            data_alignment_bytes: alignment(header)?,
            digests: digests(header[AT + 3]),
            max_h2c_data_bytes: u32_at(header, AT + 4),
        }),
        pdu_type::H2C_TERM_REQ => Pdu::H2cTermReq(term_req(header)),
        pdu_type::C2H_TERM_REQ => Pdu::C2hTermReq(term_req(header)),
        pdu_type::CAPSULE_CMD => Pdu::CapsuleCmd(array_at(header, AT)),
        pdu_type::CAPSULE_RESP => Pdu::CapsuleResp(array_at(header, AT)),
        pdu_type::H2C_DATA => Pdu::H2cData(transfer(header, common)?),
        pdu_type::C2H_DATA => Pdu::C2hData(transfer(header, common)?),
        _ => Pdu::R2t(R2t {
            cid: u16_at(header, AT),
            transfer_tag: u16_at(header, AT + 2),
            offset_bytes: u32_at(header, AT + 4),
            length_bytes: u32_at(header, AT + 8),
        }),
    })
}

fn transfer(header: &[u8], common: &CommonHeader) -> Result<DataTransfer, ProtocolError> {
    const AT: usize = COMMON_HEADER_BYTES;
    const LENGTH_AT: u32 = AT as u32 + 8;
    let length_bytes = u32_at(header, AT + 8);
    if length_bytes as usize != common.data_bytes {
        let status = FatalStatus::InvalidHeaderField;
        return Err(ProtocolError::new(status, LENGTH_AT, header, "the data has the wrong length"));
    }
    let to_host = common.kind == pdu_type::C2H_DATA;
    Ok(DataTransfer {
        cid: u16_at(header, AT),
        transfer_tag: if to_host { 0 } else { u16_at(header, AT + 2) },
        offset_bytes: u32_at(header, AT + 4),
        length_bytes,
        is_last: common.flags & FLAG_LAST != 0,
        is_success: to_host && common.flags & FLAG_SUCCESS != 0,
    })
}

fn alignment(header: &[u8]) -> Result<u8, ProtocolError> {
    const FIELD_AT: usize = COMMON_HEADER_BYTES + 2;
    const MAX: u8 = 31;
    // HPDA and CPDA: 0's based, in dwords, 31 at most.
    let dwords = header[FIELD_AT];
    if dwords > MAX {
        let (status, field_offset) = (FatalStatus::InvalidHeaderField, FIELD_AT as u32);
        return Err(ProtocolError::new(status, field_offset, header, "data can't be aligned that far"));
    }
    Ok((dwords + 1) * 4)
}

fn digests(field: u8) -> Digests {
    Digests { header: field & 1 != 0, data: field & 2 != 0 }
}

fn term_req(header: &[u8]) -> TermReq {
    let status = FatalStatus::from_number(u16_at(header, COMMON_HEADER_BYTES));
    TermReq { status, information: u32_at(header, COMMON_HEADER_BYTES + 2) }
}
