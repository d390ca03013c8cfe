//! Writing one content to the journal.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::{Journal, JournalSegment, frame};
use crate::errors::{GatewayError, GatewayResult};
use crate::model::{ContentId, ContentPlace};

/// Chunks that are written by one call: 256 KiB. Every body that is coming has so much in memory.
const CHUNKS_A_WRITE: usize = 4;

/// Writes one content. Unless it is [kept](ContentWriter::keep), its room is given back.
pub(crate) struct ContentWriter {
    pub(super) journal: Arc<Journal>,
    pub(super) segment: Arc<JournalSegment>,
    pub(super) content: ContentId,
    pub(super) offset_bytes: u64,
    pub(super) size_bytes: u64,
    pub(super) stored_bytes: u64,
    /// Bytes that the disk may not have set aside yet.
    pub(super) unallocated_bytes: u64,
    pub(super) written_bytes: u64,
    pub(super) next_chunk: u64,
    /// Whole chunks with checksums, and a last one without.
    pub(super) buffer: Vec<u8>,
    pub(super) is_kept: bool,
}

impl ContentWriter {
    /// The next bytes.
    ///
    /// # Errors
    /// When there are more than were announced, or they can't be written.
    pub(crate) async fn write(&mut self, mut bytes: Bytes) -> GatewayResult<()> {
        if self.written_bytes + bytes.len() as u64 > self.size_bytes {
            return Err(GatewayError::IncompleteBody(
                "the body is longer than its Content-Length".to_owned(),
            ));
        }
        let step = self.journal.framing.step_bytes();
        while !bytes.is_empty() {
            let in_chunk = self.buffer.len() % step;
            if in_chunk == 0 {
                // Chunk by chunk, and no more: doubling would take twice what is needed.
                let left = self.journal.framing.stored_bytes(self.size_bytes - self.written_bytes);
                self.buffer.reserve_exact(step.min(left as usize));
            }
            let piece = bytes.split_to(bytes.len().min(frame::CHUNK_BYTES as usize - in_chunk));
            self.buffer.extend_from_slice(&piece);
            self.written_bytes += piece.len() as u64;
            if in_chunk + piece.len() == frame::CHUNK_BYTES as usize {
                self.close_chunk()?;
                if self.buffer.len() >= CHUNKS_A_WRITE * step {
                    self.flush().await?;
                }
            }
        }
        Ok(())
    }

    fn close_chunk(&mut self) -> GatewayResult<()> {
        let step = self.journal.framing.step_bytes();
        let begin = self.buffer.len() - 1 - (self.buffer.len() - 1) % step;
        self.journal.framing.close(self.content, self.next_chunk, &mut self.buffer, begin)?;
        self.next_chunk += 1;
        Ok(())
    }

    async fn flush(&mut self) -> GatewayResult<()> {
        let bytes = std::mem::take(&mut self.buffer);
        let offset = self.offset_bytes + self.stored_bytes.min(self.flushed_bytes(bytes.len()));
        let segment = Arc::clone(&self.segment);
        let written = match bytes.len() as u64 > frame::CHUNK_BYTES {
            // The kernel may make a writer wait for the disk.
            true => crate::blocking::spawn_blocking(move || segment.write(&bytes, offset))
                .await
                .unwrap_or_else(|error| Err(io::Error::other(error))),
            false => segment.write(&bytes, offset),
        };
        written.map_err(|error| match underlay_files::is_storage_failure(&error) {
            true => GatewayError::Busy(format!("the gateway's local disk: {error}")),
            false => GatewayError::local("cannot write the journal", error),
        })
    }

    /// Stored bytes before the last `pending` ones.
    fn flushed_bytes(&self, pending: usize) -> u64 {
        self.journal.framing.stored_bytes(self.written_bytes) - pending as u64
    }

    /// Writes what is left. Nothing is durable yet: that comes with the commit, which takes the segment along.
    ///
    /// # Errors
    /// When there are fewer bytes than announced, or they can't be written.
    pub(crate) async fn finish(mut self) -> GatewayResult<WrittenContent> {
        if self.written_bytes != self.size_bytes {
            return Err(GatewayError::IncompleteBody(format!(
                "the body has {} bytes, and its Content-Length says {}",
                self.written_bytes, self.size_bytes
            )));
        }
        let step = self.journal.framing.step_bytes();
        if !self.buffer.len().is_multiple_of(step) {
            self.close_chunk()?;
        }
        if !self.buffer.is_empty() {
            self.flush().await?;
        }
        Ok(WrittenContent { writer: self })
    }
}

impl Drop for ContentWriter {
    fn drop(&mut self) {
        if self.is_kept && self.unallocated_bytes == 0 {
            return;
        }
        let mut state = self.journal.state.lock();
        state.unallocated_bytes -= self.unallocated_bytes;
        if !self.is_kept {
            self.journal.free(&mut state, self.segment.number(), self.offset_bytes);
        }
    }
}

/// A content that is whole and that no commit speaks of yet.
pub(crate) struct WrittenContent {
    writer: ContentWriter,
}

impl WrittenContent {
    pub(crate) fn content(&self) -> ContentId {
        self.writer.content
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.writer.size_bytes
    }

    pub(crate) fn segment(&self) -> Arc<JournalSegment> {
        Arc::clone(&self.writer.segment)
    }

    pub(crate) fn place(&self) -> ContentPlace {
        ContentPlace::Local { segment: self.writer.segment.number(), offset_bytes: self.writer.offset_bytes }
    }

    /// A commit has it: from now on the metadata decides when its room is free.
    pub(crate) fn keep(mut self) {
        self.writer.is_kept = true;
    }
}
