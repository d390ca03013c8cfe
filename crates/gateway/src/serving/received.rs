//! The body of a request as it comes: whether all of it has been read, at what pace, and how much memory it may take.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body as _, Bytes, Frame, Incoming, SizeHint};
use tokio::sync::Semaphore;

use super::seats::{BodyKind, ConnectionSeat, ConnectionSeats, GivenUp, ScarceResource};
use crate::s3::{ChunkDecoder, RequestNote};

/// A document is put together from what comes in pieces of so many bytes: many small ones would take more memory than
/// they have bytes.
const GATHERED_BYTES: usize = 64 << 10;
/// Every request may have as much of a document in memory.
const FREE_BYTES: u64 = 128 << 10;
/// The extra memory of a document's element, once it has been read: a part of an upload some 250 bytes, and it has
/// three elements or more.
const ELEMENT_BYTES: u64 = 128;
/// The parts of an upload, 10,000 of them, have some 80,000 tags.
const MAX_TAGS: u64 = 120_000;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// See the module.
pub(super) struct RequestBody {
    body: Incoming,
    is_read: Arc<AtomicBool>,
    seat: Arc<ConnectionSeat>,
    documents: Arc<Semaphore>,
    /// Its kind, once it is being read.
    kind: Option<BodyKind>,
    /// Where it is read by this gateway: what tells the operation, and who may have to make room.
    here: Option<(RequestNote, Arc<ConnectionSeats>)>,
    /// Its length from its head, where HTTP gives none.
    promised_bytes: u64,
    rechunker: Option<ChunkDecoder>,
    /// Of a document.
    gathered: Vec<u8>,
    tags: u64,
    taken_bytes: u64,
    /// Its part of the memory for documents.
    has_kib: u64,
    ready: VecDeque<Bytes>,
    is_over: bool,
}

impl RequestBody {
    pub(super) fn new(
        body: Incoming,
        is_read: Arc<AtomicBool>,
        seat: Arc<ConnectionSeat>,
        documents: Arc<Semaphore>,
    ) -> RequestBody {
        RequestBody {
            body,
            is_read,
            seat,
            documents,
            kind: None,
            here: None,
            promised_bytes: 0,
            rechunker: None,
            gathered: Vec::new(),
            tags: 0,
            taken_bytes: 0,
            has_kib: 0,
            ready: VecDeque::new(),
            is_over: false,
        }
    }

    pub(super) fn with_kind(mut self, kind: BodyKind) -> RequestBody {
        self.kind = Some(kind);
        self.seat.body_begins(kind);
        self
    }

    /// One that no other gateway is sent.
    pub(super) fn read_here(
        mut self,
        rechunker: Option<ChunkDecoder>,
        promised_bytes: u64,
        (note, seats): (RequestNote, Arc<ConnectionSeats>),
    ) -> RequestBody {
        (self.rechunker, self.here, self.promised_bytes) = (rechunker, Some((note, seats)), promised_bytes);
        self
    }

    /// Finds the body's kind: by the time that it is read, the operation is known.
    fn begin(&mut self) {
        if self.kind.is_some() {
            return;
        }
        let size_bytes = self.body.size_hint().upper().unwrap_or(self.promised_bytes);
        let is_document = self.here.as_ref().is_some_and(|(note, _)| {
            !matches!(note.0.lock().operation.as_str(), "PutObject" | "UploadPart" | "Question")
        });
        let kind = if is_document { BodyKind::Document } else { BodyKind::Upload(size_bytes) };
        self.kind = Some(kind);
        self.seat.body_begins(kind);
    }

    fn is_document(&self) -> bool {
        self.kind == Some(BodyKind::Document)
    }

    /// Memory for these bytes of a document, and for what is parsed from them.
    fn reserve(&mut self, bytes: &[u8]) -> Result<(), GivenUp> {
        let tags = bytes.iter().filter(|byte| **byte == b'<').count() as u64;
        self.tags += tags;
        if self.tags > MAX_TAGS {
            self.seat.give_up(GivenUp::ManyTags);
            return Err(GivenUp::ManyTags);
        }
        self.taken_bytes += bytes.len() as u64 + tags * ELEMENT_BYTES;
        let counted_kib = self.taken_bytes.saturating_sub(FREE_BYTES).div_ceil(1024);
        let missing_kib = counted_kib.saturating_sub(self.has_kib);
        if missing_kib == 0 {
            return Ok(());
        }
        // In steps, so that there are few permits.
        let wanted = u32::try_from(missing_kib.next_multiple_of(64)).unwrap_or(u32::MAX);
        match Arc::clone(&self.documents).try_acquire_many_owned(wanted) {
            Ok(permit) => {
                self.has_kib += u64::from(wanted);
                self.seat.keep_memory(permit);
                Ok(())
            }
            Err(_) => {
                if let Some((_, seats)) = &self.here {
                    seats.make_room(ScarceResource::Document);
                }
                self.seat.give_up(GivenUp::NoMemory);
                Err(GivenUp::NoMemory)
            }
        }
    }

    fn take(&mut self, bytes: Bytes) -> Result<(), BoxError> {
        match &mut self.rechunker {
            Some(rechunker) => rechunker.take(bytes)?,
            None if self.kind != Some(BodyKind::Document) => {
                self.ready.push_back(bytes);
                return Ok(());
            }
            None => self.gather(&bytes)?,
        }
        self.take_rechunked()
    }

    fn take_rechunked(&mut self) -> Result<(), BoxError> {
        while let Some(bytes) = self.rechunker.as_mut().and_then(ChunkDecoder::next) {
            if self.is_document() {
                self.reserve(&bytes)?;
            }
            self.ready.push_back(bytes);
        }
        Ok(())
    }

    fn gather(&mut self, bytes: &[u8]) -> Result<(), GivenUp> {
        self.reserve(bytes)?;
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() >= GATHERED_BYTES {
            self.ready.push_back(Bytes::from(std::mem::take(&mut self.gathered)));
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), BoxError> {
        self.is_over = true;
        if let Some(rechunker) = &mut self.rechunker {
            rechunker.end()?;
        }
        self.take_rechunked()?;
        if !self.gathered.is_empty() {
            self.ready.push_back(Bytes::from(std::mem::take(&mut self.gathered)));
        }
        Ok(())
    }
}

impl hyper::body::Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        this.begin();
        loop {
            if let Some(bytes) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if this.is_over {
                return Poll::Ready(None);
            }
            let polled = Pin::new(&mut this.body).poll_frame(context);
            if matches!(polled, Poll::Ready(None)) || this.body.is_end_stream() {
                this.is_read.store(true, Ordering::Release);
            }
            let outcome = match polled {
                Poll::Pending => match this.seat.body_is_awaited(context.waker()) {
                    Ok(()) => return Poll::Pending,
                    Err(reason) => Err(reason.into()),
                },
                Poll::Ready(None) => this.seat.body_moves(0).map_err(Into::into).and_then(|()| this.end()),
                Poll::Ready(Some(Err(error))) => Err(error.into()),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(bytes) => {
                        let moves = this.seat.body_moves(bytes.len() as u64).map_err(Into::into);
                        moves.and_then(|()| this.take(bytes))
                    }
                    // HTTP's own trailers mean nothing here.
                    Err(_) => Ok(()),
                },
            };
            if let Err(error) = outcome {
                (this.is_over, this.gathered) = (true, Vec::new());
                this.ready.clear();
                return Poll::Ready(Some(Err(error)));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_through = self.rechunker.is_none() || self.is_over;
        is_through && self.ready.is_empty() && self.gathered.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let here =
            self.gathered.len() as u64 + self.ready.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        match (&self.rechunker, self.body.size_hint().exact()) {
            (None, Some(left)) => SizeHint::with_exact(left + here),
            _ => SizeHint::new(),
        }
    }
}
