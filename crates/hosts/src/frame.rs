//! Frames: a length of four bytes, little-endian, followed by that many bytes of JSON.
//!
//! `systems::wire` has frames of the same shape and its own reader, which returns a body in place, since each operation
//! is one. This reader frees memory after a large message and has a limit for each, since its peers are other hosts.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest body that is sent or accepted. A measurement with its histograms has some hundred kilobytes.
pub const MAX_BYTES: usize = 32 << 20;
/// The size of a read.
const READ_BYTES: usize = 16 << 10;
/// A buffer that has grown beyond this is shrunk again.
const KEPT_BYTES: usize = 1 << 20;

/// Why a frame could not be received or sent.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("the connection ended")]
    Ended,
    #[error("{0}")]
    Io(#[source] io::Error),
    #[error("a message of {bytes} bytes, where at most {most} are accepted")]
    TooLong { bytes: usize, most: usize },
    #[error("a message that can't be parsed: {0}")]
    Content(String),
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => FrameError::Ended,
            _ => FrameError::Io(error),
        }
    }
}

impl FrameError {
    /// Whether the wait for more timed out.
    pub fn is_timeout(&self) -> bool {
        matches!(self, FrameError::Io(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
    }
}

/// Sends one message.
///
/// # Errors
/// When the connection fails, or the message is too long.
pub fn send<M: Serialize>(to: &mut impl Write, message: &M) -> Result<(), FrameError> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message).map_err(|error| FrameError::Content(error.to_string()))?;
    let bytes = frame.len() - 4;
    if bytes > MAX_BYTES {
        return Err(FrameError::TooLong { bytes, most: MAX_BYTES });
    }
    frame[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
    // In one write: with Nagle's algorithm, a second small segment would wait until the first is acknowledged.
    to.write_all(&frame)?;
    to.flush()?;
    Ok(())
}

/// Reads messages from a stream. After a failed read or a timeout, the next call continues with what has been received.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
}

impl FrameReader {
    pub fn new() -> Self {
        FrameReader::default()
    }

    /// Receives one message of at most `most` bytes. Memory grows with the bytes received, not with the length that a
    /// frame claims.
    ///
    /// # Errors
    /// When the connection ends or fails, or the message is too long or can't be parsed.
    pub fn receive<M: DeserializeOwned>(
        &mut self,
        from: &mut impl Read,
        most: usize,
    ) -> Result<M, FrameError> {
        let mut buffer = [0; READ_BYTES];
        loop {
            if let Some(body_bytes) = self.complete(most)? {
                let message = serde_json::from_slice(&self.bytes[4..4 + body_bytes]);
                self.bytes.drain(..4 + body_bytes);
                if self.bytes.capacity() > KEPT_BYTES {
                    self.bytes.shrink_to(KEPT_BYTES);
                }
                return message.map_err(|error| FrameError::Content(error.to_string()));
            }
            match from.read(&mut buffer) {
                Ok(0) => return Err(FrameError::Ended),
                Ok(count) => self.bytes.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The length of the first body, if it is complete.
    fn complete(&self, most: usize) -> Result<Option<usize>, FrameError> {
        let Some((head, body)) = self.bytes.split_first_chunk::<4>() else { return Ok(None) };
        let bytes = u32::from_le_bytes(*head) as usize;
        if bytes > most {
            return Err(FrameError::TooLong { bytes, most });
        }
        Ok((body.len() >= bytes).then_some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes that come in pieces, with a wait that was too long after each.
    struct Halting<'a> {
        pieces: std::slice::ChunksExact<'a, u8>,
        rest: &'a [u8],
        waits: bool,
    }

    impl<'a> Halting<'a> {
        fn new(bytes: &'a [u8], piece: usize) -> Self {
            let pieces = bytes.chunks_exact(piece);
            Halting { rest: pieces.remainder(), pieces, waits: false }
        }
    }

    impl Read for Halting<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.waits = !self.waits;
            if self.waits {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let piece = self.pieces.next().unwrap_or_else(|| std::mem::take(&mut self.rest));
            buffer[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    proptest! {
        /// However the bytes are cut, and however often a wait for them ends early.
        #[test]
        fn messages_arrive_as_they_were_sent(
            texts in prop::collection::vec(".{0,50}", 0..5),
            piece in 1usize..40,
        ) {
            let mut wire = Vec::new();
            for text in &texts {
                send(&mut wire, text).unwrap();
            }
            let (mut stream, mut reader, mut found) = (Halting::new(&wire, piece), FrameReader::new(), Vec::new());
            loop {
                match reader.receive::<String>(&mut stream, MAX_BYTES) {
                    Ok(text) => found.push(text),
                    Err(error) if error.is_timeout() => {}
                    Err(FrameError::Ended) => break,
                    Err(error) => return Err(TestCaseError::fail(error.to_string())),
                }
            }
            prop_assert_eq!(found, texts);
        }

        /// Any bytes give a message or an error, and no more memory than came is used.
        #[test]
        fn receiver_arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let (mut stream, mut reader) = (bytes.as_slice(), FrameReader::new());
            while reader.receive::<Vec<String>>(&mut stream, MAX_BYTES).is_ok() {}
            prop_assert!(reader.bytes.len() <= bytes.len());
        }
    }

    #[test]
    fn long_or_truncated_frame_is_refused() {
        let mut wire = Vec::new();
        send(&mut wire, &"x".repeat(5000)).unwrap();
        let receive =
            |mut wire: &[u8], most| FrameReader::new().receive::<String>(&mut wire, most).unwrap_err();
        let error = receive(&wire, 4096);
        assert_eq!(error.to_string(), "a message of 5002 bytes, where at most 4096 are accepted");
        assert!(matches!(receive(&wire[..100], MAX_BYTES), FrameError::Ended));
        // No memory is reserved for a length that is only announced.
        assert!(matches!(receive(&[0xff; 4], MAX_BYTES), FrameError::TooLong { bytes: 0xffff_ffff, .. }));
        let error = send(&mut Vec::new(), &"x".repeat(MAX_BYTES)).unwrap_err();
        assert!(matches!(error, FrameError::TooLong { .. }), "{error}");
    }

    #[test]
    fn message_not_understood_is_read_once() {
        let mut wire = Vec::new();
        send(&mut wire, &17).unwrap();
        send(&mut wire, &"after it").unwrap();
        let (mut wire, mut reader) = (wire.as_slice(), FrameReader::new());
        assert!(matches!(reader.receive::<String>(&mut wire, MAX_BYTES), Err(FrameError::Content(_))));
        assert_eq!(reader.receive::<String>(&mut wire, MAX_BYTES).unwrap(), "after it");
    }
}
