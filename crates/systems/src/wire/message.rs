//! Requests and replies: bytes to values and back.

use std::ops::Range;

use underlay_workload::client::{ClientError, FieldSelection, FieldValues, FoundRecords, OperationOutcome};

use super::{
    ALL_FIELDS, BodyReader, FrameError, MAX_FRAME_BYTES, MAX_KEY_BYTES, ValuesBuilder, WireValues,
    append_values,
};

/// The position of the service time in a reply's frame.
const SERVICE: Range<usize> = 9..17;

/// A request's operation. The numbers are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WireOpcode {
    /// Answers at once: is anyone there?
    Ping = 1,
    Read = 2,
    Scan = 3,
    Update = 4,
    Insert = 5,
    Delete = 6,
    /// The system's running totals.
    Figures = 7,
    /// Write everything out and wait until background work rests.
    Settle = 8,
    /// Write everything out, close, answer, exit.
    Stop = 9,
    /// Options of this connection, before its first operation. For children that know some.
    Open = 10,
    /// Something that this child alone knows how to do.
    Command = 11,
    /// How much of what runs in the background, quickly told.
    Gauges = 12,
    /// A scan that brings its records.
    ScanRecords = 13,
}

impl WireOpcode {
    pub const ALL: [WireOpcode; 13] = [
        WireOpcode::Ping,
        WireOpcode::Read,
        WireOpcode::Scan,
        WireOpcode::Update,
        WireOpcode::Insert,
        WireOpcode::Delete,
        WireOpcode::Figures,
        WireOpcode::Settle,
        WireOpcode::Stop,
        WireOpcode::Open,
        WireOpcode::Command,
        WireOpcode::Gauges,
        WireOpcode::ScanRecords,
    ];

    fn from_byte(byte: u8) -> Result<Self, FrameError> {
        WireOpcode::ALL.into_iter().find(|&opcode| opcode as u8 == byte).ok_or(FrameError::Opcode(byte))
    }
}

/// How a request ended. The numbers are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WireStatus {
    /// Done; the record was there.
    Found = 0,
    /// No such record.
    Missing = 1,
    /// Refused because of load.
    Throttled = 2,
    /// Field 0 says why.
    Failed = 3,
}

impl WireStatus {
    pub const ALL: [WireStatus; 4] =
        [WireStatus::Found, WireStatus::Missing, WireStatus::Throttled, WireStatus::Failed];

    fn from_byte(byte: u8) -> Result<Self, FrameError> {
        WireStatus::ALL.into_iter().find(|&status| status as u8 == byte).ok_or(FrameError::Status(byte))
    }
}

/// A request, its key and values still in the frame that it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireRequest<'a> {
    pub id: u32,
    pub opcode: WireOpcode,
    pub fields: FieldSelection,
    /// Scan: most records. Settle, command: the limit in milliseconds.
    pub number: u64,
    pub key: &'a [u8],
    pub values: WireValues<'a>,
}

impl<'a> WireRequest<'a> {
    /// Reads a frame's body.
    ///
    /// # Errors
    /// The malformed part.
    pub fn decode(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut parts = BodyReader { rest: body };
        let id = parts.u32("id")?;
        let opcode = WireOpcode::from_byte(parts.u8("opcode")?)?;
        let fields = match parts.u32("selector")? {
            ALL_FIELDS => FieldSelection::All,
            field => FieldSelection::One(field),
        };
        let number = parts.u64("number")?;
        let key_bytes = parts.u16("key length")?;
        let key = parts.take(usize::from(key_bytes), "key")?;
        Ok(WireRequest { id, opcode, fields, number, key, values: WireValues::parse(parts.rest)? })
    }

    /// The id of a frame whose rest may be malformed; 0 if it has none.
    pub(crate) fn id_of(body: &[u8]) -> u32 {
        BodyReader { rest: body }.u32("id").unwrap_or(0)
    }
}

/// A reply, its values still in the frame that it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireReply<'a> {
    pub id: u32,
    pub status: WireStatus,
    /// The system's time, in nanoseconds by the child's clock.
    pub service_ns: u64,
    /// Scan: records read.
    pub number: u64,
    pub values: WireValues<'a>,
}

impl<'a> WireReply<'a> {
    /// Reads a frame's body.
    ///
    /// # Errors
    /// The malformed part.
    pub fn decode(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut parts = BodyReader { rest: body };
        let id = parts.u32("id")?;
        let status = WireStatus::from_byte(parts.u8("status")?)?;
        let service_ns = parts.u64("service time")?;
        let number = parts.u64("number")?;
        Ok(WireReply { id, status, service_ns, number, values: WireValues::parse(parts.rest)? })
    }

    /// How the operation ended. The caller must have handled a failure.
    pub fn outcome(&self) -> OperationOutcome {
        match self.status {
            WireStatus::Found => OperationOutcome::Found,
            WireStatus::Throttled => OperationOutcome::Throttled,
            WireStatus::Missing | WireStatus::Failed => {
                debug_assert!(self.status == WireStatus::Missing, "a failure is no outcome");
                OperationOutcome::Missing
            }
        }
    }

    /// A scan's records.
    ///
    /// # Errors
    /// When a field comes before the key of its record.
    pub fn copy_records_to(&self, target: &mut FoundRecords) -> Result<(), ClientError> {
        let unreadable = |error| ClientError::System(format!("the answer can't be read: {error}"));
        self.values.copy_records_to(target).map_err(unreadable)
    }

    /// Field 0 as text: an error's words, or the figures.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.values.get(0).unwrap_or_default()).into_owned()
    }
}

/// Replaces the content of `out` with the frame of a request. After an error, `out` must not be sent.
///
/// # Errors
/// When the key, the number of fields or the whole frame is too long.
pub fn encode_request(
    out: &mut Vec<u8>,
    id: u32,
    opcode: WireOpcode,
    fields: FieldSelection,
    number: u64,
    key: &[u8],
    values: Option<&FieldValues>,
) -> Result<(), FrameError> {
    let selector = match fields {
        FieldSelection::All => ALL_FIELDS,
        // No record has a field with a number this large, so that none is found, as it should be.
        FieldSelection::One(field) => field.min(ALL_FIELDS - 1),
    };
    let key_bytes = u16::try_from(key.len()).map_err(|_| FrameError::Key { bytes: key.len() })?;
    debug_assert!(key.len() <= MAX_KEY_BYTES);
    out.clear();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&id.to_le_bytes());
    out.push(opcode as u8);
    out.extend_from_slice(&selector.to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&key_bytes.to_le_bytes());
    out.extend_from_slice(key);
    match values {
        Some(values) => append_values(values, out)?,
        None => out.extend_from_slice(WireValues::NONE.as_bytes()),
    }
    write_length(out)
}

/// Replaces the content of `out` with the frame of a reply, whose values `append` writes in the encoding of
/// [`WireValues`]. Its service time is 0 until [`set_service_ns`].
///
/// # Errors
/// When the values are too many or too long, or `append` fails.
pub fn encode_reply(
    out: &mut Vec<u8>,
    id: u32,
    status: WireStatus,
    number: u64,
    append: impl FnOnce(&mut Vec<u8>) -> Result<(), FrameError>,
) -> Result<(), FrameError> {
    out.clear();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&id.to_le_bytes());
    out.push(status as u8);
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&number.to_le_bytes());
    append(out)?;
    write_length(out)
}

/// Fills in the service time of a complete reply, which is known only after the reply has been encoded.
pub fn set_service_ns(frame: &mut [u8], service_ns: u64) {
    if let Some(place) = frame.get_mut(SERVICE) {
        place.copy_from_slice(&service_ns.to_le_bytes());
    }
}

/// Replaces the content of `out` with the frame of a reply with `text` as field 0, truncated to what fits into a frame.
pub fn encode_text_reply(out: &mut Vec<u8>, id: u32, status: WireStatus, text: &str) {
    let text = &text.as_bytes()[..text.len().min(MAX_FRAME_BYTES / 2)];
    let encoded = encode_reply(out, id, status, 0, |out| {
        let mut builder = ValuesBuilder::new(out);
        builder.push(0, text)?;
        builder.finish();
        Ok(())
    });
    assert!(encoded.is_ok(), "half a frame of text fits in a frame");
}

fn write_length(out: &mut Vec<u8>) -> Result<(), FrameError> {
    let bytes = out.len() - 4;
    if bytes > MAX_FRAME_BYTES {
        out.clear();
        return Err(FrameError::TooLong { bytes });
    }
    let length = bytes as u32;
    out[..4].copy_from_slice(&length.to_le_bytes());
    Ok(())
}
