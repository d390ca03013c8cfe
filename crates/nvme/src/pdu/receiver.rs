//! PDUs out of a stream of bytes, however it is cut into pieces.

use std::io::{self, IoSliceMut, Read};

use crc_fast::{CrcAlgorithm, Digest};

use super::decode::{DecodedHeader, PduDecoder, decode};
use super::{DIGEST_BYTES, MAX_HEAD_BYTES, Pdu, ProtocolError};

/// Why nothing more is received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("the connection ended in the middle of a PDU")]
    Truncated,
    #[error("the other side broke the protocol: {0}")]
    Protocol(#[from] ProtocolError),
}

/// Whether data arrived as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum DataState {
    Intact,
    /// Its digest is another one. The connection may go on; the command can't succeed.
    Damaged,
}

/// Takes PDUs from a stream: first [`PduReceiver::next`] for the header, then its data in one or more pieces.
///
/// Reads are large and go into one buffer, so that many small PDUs cost one. Data that the buffer doesn't hold yet is
/// received where it is wanted, without passing through the buffer.
pub struct PduReceiver<S> {
    stream: S,
    arriving: PduDecoder,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// The next header, where it was looked at already.
    ahead: Option<DecodedHeader>,
    /// Data of the last PDU that was not taken yet.
    data_left_bytes: usize,
    has_data_digest: bool,
    digest: Digest,
}

impl<S: Read> PduReceiver<S> {
    /// # Panics
    /// If the buffer can't hold a header.
    pub fn new(stream: S, arriving: PduDecoder, buffer_bytes: usize) -> PduReceiver<S> {
        assert!(buffer_bytes >= MAX_HEAD_BYTES, "a buffer of {buffer_bytes} bytes");
        PduReceiver {
            stream,
            arriving,
            buffer: vec![0; buffer_bytes].into_boxed_slice(),
            start: 0,
            end: 0,
            ahead: None,
            data_left_bytes: 0,
            has_data_digest: false,
            digest: Digest::new(CrcAlgorithm::Crc32Iscsi),
        }
    }

    pub fn stream(&self) -> &S {
        &self.stream
    }

    pub fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// From now on with a buffer of this size, if it is larger than before.
    pub fn grow(&mut self, buffer_bytes: usize) {
        if buffer_bytes > self.buffer.len() {
            let mut larger = vec![0; buffer_bytes].into_boxed_slice();
            let buffered_bytes = self.end - self.start;
            larger[..buffered_bytes].copy_from_slice(&self.buffer[self.start..self.end]);
            (self.buffer, self.start, self.end) = (larger, 0, buffered_bytes);
        }
    }

    /// Sets the PDUs that are taken from now on, as the two sides agreed.
    pub fn set_arriving(&mut self, arriving: PduDecoder) {
        self.arriving = arriving;
        // It was decoded by the former rules.
        self.ahead = None;
    }

    /// Whether a header is here as a whole, or is known to be wrong, so that [`PduReceiver::next`] will not wait.
    pub fn is_ready(&mut self) -> bool {
        if self.data_left_bytes > 0 {
            return false;
        }
        match self.look_ahead() {
            Ok(found) => {
                self.ahead = found;
                found.is_some()
            }
            Err(_) => true,
        }
    }

    fn look_ahead(&self) -> Result<Option<DecodedHeader>, ProtocolError> {
        match self.ahead {
            Some(decoded) => Ok(Some(decoded)),
            None => decode(&self.buffer[self.start..self.end], &self.arriving),
        }
    }

    /// The next PDU, and how many bytes of data are behind it: they must be taken by [`PduReceiver::read_data`] or
    /// [`PduReceiver::skip_data`] before the next one. `None` when the stream has ended between two PDUs.
    ///
    /// # Errors
    /// When the stream fails, ends in the middle, or holds what may not arrive.
    ///
    /// # Panics
    /// If data of the last PDU was not taken.
    #[expect(clippy::should_implement_trait, reason = "it can fail, and data comes in between")]
    pub fn next(&mut self) -> Result<Option<(Pdu, usize)>, ReceiveError> {
        assert_eq!(self.data_left_bytes, 0, "data was left where it is");
        loop {
            if let Some(decoded) = self.look_ahead()? {
                return Ok(Some(self.take(&decoded)));
            }
            if self.fill()? == 0 {
                return if self.start == self.end { Ok(None) } else { Err(ReceiveError::Truncated) };
            }
        }
    }

    fn take(&mut self, decoded: &DecodedHeader) -> (Pdu, usize) {
        self.ahead = None;
        self.start += decoded.head_bytes;
        self.data_left_bytes = decoded.data_bytes;
        self.has_data_digest = decoded.has_data_digest;
        self.digest.reset();
        (decoded.pdu, decoded.data_bytes)
    }

    /// Takes the next bytes of data. The state counts once all data of the PDU was taken; before that it is "intact".
    ///
    /// # Errors
    /// When the stream fails or ends.
    ///
    /// # Panics
    /// If more is asked for than the PDU has left.
    pub fn read_data(&mut self, buffer: &mut [u8]) -> Result<DataState, ReceiveError> {
        assert!(buffer.len() <= self.data_left_bytes, "{} bytes are left", self.data_left_bytes);
        let here = buffer.len().min(self.end - self.start);
        let (first, rest) = buffer.split_at_mut(here);
        first.copy_from_slice(&self.buffer[self.start..self.start + here]);
        self.start += here;
        self.read_behind(rest)?;
        self.consumed(buffer)
    }

    fn consumed(&mut self, data: &[u8]) -> Result<DataState, ReceiveError> {
        if self.has_data_digest {
            self.digest.update(data);
        }
        self.data_left_bytes -= data.len();
        if self.data_left_bytes == 0 { self.check_digest() } else { Ok(DataState::Intact) }
    }

    /// As [`PduReceiver::read_data`], behind what `buffer` holds. Only what is not here yet has to be made room for.
    ///
    /// # Errors
    /// When the stream fails or ends.
    ///
    /// # Panics
    /// If more is asked for than the PDU has left.
    pub fn append_data(&mut self, buffer: &mut Vec<u8>, bytes: usize) -> Result<DataState, ReceiveError> {
        assert!(bytes <= self.data_left_bytes, "{} bytes are left", self.data_left_bytes);
        let (before, here) = (buffer.len(), bytes.min(self.end - self.start));
        buffer.reserve(bytes);
        buffer.extend_from_slice(&self.buffer[self.start..self.start + here]);
        self.start += here;
        buffer.resize(before + bytes, 0);
        self.read_behind(&mut buffer[before + here..])?;
        self.consumed(&buffer[before..])
    }

    /// Receives straight into `buffer`, and into our own what comes behind. Ours is empty if anything is missing.
    fn read_behind(&mut self, mut buffer: &mut [u8]) -> Result<(), ReceiveError> {
        while !buffer.is_empty() {
            (self.start, self.end) = (0, 0);
            let wanted = buffer.len();
            let read = loop {
                let mut places = [IoSliceMut::new(buffer), IoSliceMut::new(&mut self.buffer)];
                match self.stream.read_vectored(&mut places) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other?,
                }
            };
            if read == 0 {
                return Err(ReceiveError::Truncated);
            }
            self.end = read.saturating_sub(wanted);
            buffer = &mut buffer[read.min(wanted)..];
        }
        Ok(())
    }

    /// Passes over what is left of the PDU's data.
    ///
    /// # Errors
    /// When the stream fails or ends.
    pub fn skip_data(&mut self) -> Result<DataState, ReceiveError> {
        let mut piece = [0; 4096];
        while self.data_left_bytes > piece.len() {
            let _ = self.read_data(&mut piece)?;
        }
        let left = self.data_left_bytes;
        if left == 0 { Ok(DataState::Intact) } else { self.read_data(&mut piece[..left]) }
    }

    fn check_digest(&mut self) -> Result<DataState, ReceiveError> {
        if !std::mem::take(&mut self.has_data_digest) {
            return Ok(DataState::Intact);
        }
        while self.end - self.start < DIGEST_BYTES {
            if self.fill()? == 0 {
                return Err(ReceiveError::Truncated);
            }
        }
        let found = crate::wire::u32_at(&self.buffer, self.start);
        self.start += DIGEST_BYTES;
        Ok(if u64::from(found) == self.digest.finalize() { DataState::Intact } else { DataState::Damaged })
    }

    /// Reads once, behind what is there. 0 is the end of the stream.
    fn fill(&mut self) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.end < MAX_HEAD_BYTES {
            // A whole header must fit behind `start`. Only where it might not, so that little is moved.
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        loop {
            match self.stream.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => {
                    let read = other?;
                    self.end += read;
                    return Ok(read);
                }
            }
        }
    }
}
