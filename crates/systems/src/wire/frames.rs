//! Splitting a stream of bytes into frames.

use std::io::{self, ErrorKind, Read};
use std::ops::Range;

use super::{FrameError, MAX_FRAME_BYTES};

/// The minimum size of a read: an ordinary message then takes one system call.
const READ_BYTES: usize = 8 << 10;

/// Collects the bytes of a stream and returns them frame by frame. After a failed or interrupted read, the next call
/// continues with what has been received.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    /// `bytes[start..end]` has been received and not returned yet.
    start: usize,
    end: usize,
    /// The body that was returned last.
    body: Range<usize>,
}

impl FrameBuffer {
    pub fn new() -> Self {
        FrameBuffer::default()
    }

    /// Receives the next frame, whose body [`body`](Self::body) then returns. `false` at the end of the stream, between
    /// frames.
    ///
    /// A frame that is too long is an error of kind `InvalidData` that wraps a [`FrameError`], an end inside a
    /// frame one of kind `UnexpectedEof`. Memory grows with the bytes that came, not with the length that a
    /// frame claims.
    ///
    /// # Errors
    /// See above; otherwise those of the stream. Received bytes are kept.
    pub fn receive(&mut self, stream: &mut impl Read) -> io::Result<bool> {
        self.body = 0..0;
        loop {
            let received = &self.bytes[self.start..self.end];
            if let Some(head) = received.first_chunk::<4>() {
                let length = u32::from_le_bytes(*head) as usize;
                if length > MAX_FRAME_BYTES {
                    return Err(io::Error::new(
                        ErrorKind::InvalidData,
                        FrameError::TooLong { bytes: length },
                    ));
                }
                if received.len() >= 4 + length {
                    self.body = self.start + 4..self.start + 4 + length;
                    self.start = self.body.end;
                    return Ok(true);
                }
            }
            self.make_room();
            match stream.read(&mut self.bytes[self.end..]) {
                Ok(0) if self.start == self.end => return Ok(false),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.end += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The body of the last frame; empty if there was none.
    pub fn body(&self) -> &[u8] {
        &self.bytes[self.body.clone()]
    }

    fn make_room(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.bytes.len() - self.end < READ_BYTES {
            let longer = (2 * self.bytes.len()).max(READ_BYTES);
            self.bytes.resize(longer.max(self.end + READ_BYTES), 0);
        }
    }
}
