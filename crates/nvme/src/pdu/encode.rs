//! Headers to bytes.

use super::{
    COMMON_HEADER_BYTES, DIGEST_BYTES, DataTransfer, Digests, FLAG_DATA_DIGEST, FLAG_HEADER_DIGEST,
    FLAG_LAST, FLAG_SUCCESS, MAX_HEAD_BYTES, Pdu, header_bytes,
};
use crate::wire::put;

/// How one side frames what it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduFraming {
    pub digests: Digests,
    /// Data begins at a multiple of this within its PDU: 4 to 128, as the other side asked for.
    pub data_alignment_bytes: u8,
}

impl Default for PduFraming {
    /// As before anything is agreed on.
    fn default() -> PduFraming {
        PduFraming { digests: Digests::default(), data_alignment_bytes: 4 }
    }
}

/// A header as it is sent: with its digest, and filled up to where the data begins.
#[derive(Clone, Copy, Debug)]
pub struct EncodedHeader {
    bytes: [u8; MAX_HEAD_BYTES],
    length: u8,
}

impl EncodedHeader {
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl PduFraming {
    /// The bytes before a PDU's data. The data (`data_bytes`) and its digest follow ([`PduFraming::has_data_digest`]).
    pub fn head(&self, pdu: &Pdu, data_bytes: usize) -> EncodedHeader {
        let header = header_bytes(pdu.kind()).expect("every PDU has a header");
        let with_header_digest = self.digests.header && pdu.has_digests();
        let with_data_digest = self.has_data_digest(pdu, data_bytes);
        let headed = header + if with_header_digest { DIGEST_BYTES } else { 0 };
        let (data_at, length) = match data_bytes {
            0 => (0, headed),
            // The last PDU is never aligned: nothing may have been agreed on.
            _ if !pdu.has_digests() => (headed, headed),
            _ => {
                let offset = headed.next_multiple_of(usize::from(self.data_alignment_bytes.max(1)));
                (offset, offset)
            }
        };
        let total = length + data_bytes + if with_data_digest { DIGEST_BYTES } else { 0 };
        let mut head = EncodedHeader { bytes: [0; MAX_HEAD_BYTES], length: length as u8 };
        let bytes = &mut head.bytes;
        fill(bytes, pdu);
        bytes[0] = pdu.kind();
        bytes[1] |= if with_header_digest { FLAG_HEADER_DIGEST } else { 0 }
            | if with_data_digest { FLAG_DATA_DIGEST } else { 0 };
        bytes[2] = header as u8;
        // Of those without digests the field is reserved.
        bytes[3] = if pdu.has_digests() { data_at as u8 } else { 0 };
        put(bytes, 4, &(total as u32).to_le_bytes());
        if with_header_digest {
            let digest = crc_fast::crc32_iscsi(&bytes[..header]);
            put(bytes, header, &digest.to_le_bytes());
        }
        head
    }

    /// Whether a digest follows the data.
    pub fn has_data_digest(&self, pdu: &Pdu, data_bytes: usize) -> bool {
        self.digests.data && data_bytes > 0 && pdu.has_digests()
    }

    pub fn data_digest(data: &[u8]) -> [u8; DIGEST_BYTES] {
        crc_fast::crc32_iscsi(data).to_le_bytes()
    }

    /// A whole PDU, for those that are small or rare.
    pub fn encode(&self, pdu: &Pdu, data: &[u8]) -> Vec<u8> {
        let mut bytes = self.head(pdu, data.len()).as_bytes().to_vec();
        bytes.extend(data);
        if self.has_data_digest(pdu, data.len()) {
            bytes.extend(PduFraming::data_digest(data));
        }
        bytes
    }
}

fn fill(bytes: &mut [u8], pdu: &Pdu) {
    const AT: usize = COMMON_HEADER_BYTES;
    match pdu {
        Pdu::IcReq(request) => {
            put(bytes, AT, &request.format_version.to_le_bytes());
            bytes[AT + 2] = alignment_field(request.data_alignment_bytes);
            bytes[AT + 3] = digests_field(request.digests);
            put(bytes, AT + 4, &request.max_r2t.saturating_sub(1).to_le_bytes());
        }
        Pdu::IcResp(response) => {
            put(bytes, AT, &response.format_version.to_le_bytes());
            bytes[AT + 2] = alignment_field(response.data_alignment_bytes);
            bytes[AT + 3] = digests_field(response.digests);
            put(bytes, AT + 4, &response.max_h2c_data_bytes.to_le_bytes());
        }
        Pdu::H2cTermReq(request) | Pdu::C2hTermReq(request) => {
            put(bytes, AT, &request.status.number().to_le_bytes());
            put(bytes, AT + 2, &request.information.to_le_bytes());
        }
        Pdu::CapsuleCmd(command) => put(bytes, AT, command),
        Pdu::CapsuleResp(completion) => put(bytes, AT, completion),
        Pdu::H2cData(transfer) | Pdu::C2hData(transfer) => {
            let DataTransfer { cid, transfer_tag, offset_bytes, length_bytes, is_last, is_success } =
                transfer;
            bytes[1] = if *is_last { FLAG_LAST } else { 0 } | if *is_success { FLAG_SUCCESS } else { 0 };
            put_extent(bytes, *cid, *transfer_tag, *offset_bytes, *length_bytes);
        }
        Pdu::R2t(r2t) => put_extent(bytes, r2t.cid, r2t.transfer_tag, r2t.offset_bytes, r2t.length_bytes),
    }
}

fn put_extent(bytes: &mut [u8], cid: u16, transfer_tag: u16, offset_bytes: u32, length_bytes: u32) {
    put(bytes, COMMON_HEADER_BYTES, &cid.to_le_bytes());
    put(bytes, COMMON_HEADER_BYTES + 2, &transfer_tag.to_le_bytes());
    put(bytes, COMMON_HEADER_BYTES + 4, &offset_bytes.to_le_bytes());
    put(bytes, COMMON_HEADER_BYTES + 8, &length_bytes.to_le_bytes());
}

/// In dwords, less one.
fn alignment_field(alignment_bytes: u8) -> u8 {
    (alignment_bytes / 4).saturating_sub(1)
}

fn digests_field(digests: Digests) -> u8 {
    u8::from(digests.header) | u8::from(digests.data) << 1
}
