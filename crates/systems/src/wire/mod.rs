//! Framed messages between the load generator's process and a child process that runs a data system.
//!
//! One Unix stream socket a client thread; the child answers a connection's requests in their order. All
//! integers are little-endian. Both directions are a sequence of frames:
//!
//! ```text
//! frame    length u32            bytes that follow, at most MAX_FRAME_BYTES
//!          body   [length]       a request (to the child) or a reply (from it)
//!
//! request  id       u32          repeated in the reply
//!          opcode   u8           see Opcode
//!          selector u32          read, scans: the field wanted, 0xFFFF_FFFF for all; else 0
//!          number   u64          scans: most records; settle, command: limit in ms; else 0
//!          key      u16 + bytes  length, then the key; command: its name
//!          values   (below)      update, insert: the fields; open: options, in turn a name and its value;
//!                                command: field 0 is its argument; else none
//!
//! reply    id       u32
//!          status   u8           see Status
//!          service  u64          nanoseconds that the system took, by the child's clock: the rest of what the
//!                                client waited is the way to the child and back
//!          number   u64          scans: records read; else 0
//!          values   (below)      read: the fields; figures: field 0 is a JSON object of numbers;
//!                                command: field 0 is its answer; an error: field 0 is its text in UTF-8,
//!                                and an empty field 1 says that the operation had no effect;
//!                                scan of records: the fields of one after the other, each behind an entry
//!                                of field 0xFFFF that is its key
//!
//! values   count    u16
//!          count times: field u16, length u32, bytes
//! ```
//!
//! A body ends where its values end: bytes left over make the frame malformed. A child answers a malformed
//! request with [`WireStatus::Failed`] and closes the connection, because the place of the next frame is no longer
//! certain; a frame that is too long is not read at all. Neither ends the child. A client whose request timed out
//! may go on: replies whose id is not the one it waits for are skipped.

mod frames;
mod message;
mod values;

pub use frames::FrameBuffer;
pub use message::{
    WireOpcode, WireReply, WireRequest, WireStatus, encode_reply, encode_request, encode_text_reply,
    set_service_ns,
};
pub use values::{ValuesBuilder, WireValues, append_values};

/// The longest frame body. It holds a record of 16,000 fields of 1 KB, and bounds what a connection can make a child
/// allocate.
pub const MAX_FRAME_BYTES: usize = 16 << 20;
/// The longest key: its length is a `u16`.
pub(crate) const MAX_KEY_BYTES: usize = u16::MAX as usize;
/// `selector` for all fields.
pub(crate) const ALL_FIELDS: u32 = u32::MAX;
/// In the place of a field's number: the key of the record whose fields follow.
pub const RECORD_KEY: u16 = u16::MAX;

/// The error of a frame, or of a message that can't become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {bytes} bytes is longer than the {MAX_FRAME_BYTES} allowed")]
    TooLong { bytes: usize },
    #[error("the frame ends inside its {0}")]
    Truncated(&'static str),
    #[error("{bytes} bytes are left over at the frame's end")]
    LeftOver { bytes: usize },
    #[error("unknown opcode {0}")]
    Opcode(u8),
    #[error("unknown status {0}")]
    Status(u8),
    #[error("a key of {bytes} bytes is longer than the {MAX_KEY_BYTES} allowed")]
    Key { bytes: usize },
    #[error("field {0} is beyond the last possible, 65535")]
    Field(u32),
    #[error(
        "{0} fields are more than the 65535 a message holds, keys of records among them: ask for fewer at once"
    )]
    FieldCount(usize),
    #[error("field {0} stands before the key of its record")]
    NoKey(u16),
}

/// Splits parts off the front of a body.
struct BodyReader<'a> {
    rest: &'a [u8],
}

impl<'a> BodyReader<'a> {
    fn take(&mut self, bytes: usize, part: &'static str) -> Result<&'a [u8], FrameError> {
        let (front, rest) = self.rest.split_at_checked(bytes).ok_or(FrameError::Truncated(part))?;
        self.rest = rest;
        Ok(front)
    }

    fn u8(&mut self, part: &'static str) -> Result<u8, FrameError> {
        Ok(self.take(1, part)?[0])
    }

    fn u16(&mut self, part: &'static str) -> Result<u16, FrameError> {
        let bytes = self.take(2, part)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self, part: &'static str) -> Result<u32, FrameError> {
        let bytes = self.take(4, part)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn u64(&mut self, part: &'static str) -> Result<u64, FrameError> {
        let low = self.u32(part)?;
        let high = self.u32(part)?;
        Ok(u64::from(high) << 32 | u64::from(low))
    }
}
