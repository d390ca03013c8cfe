//! The pace of peers. A peer that connects takes something that others may need: a connection, a place among the
//! requests, journal room, memory. A *seat* says of each connection how long the gateway has been waiting for its peer,
//! and what that has brought. A peer that brings or takes too little is given up. Where something is scarce, the
//! slowest peer loses it to one that needs it.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use underlay_sync::Mutex;
use underlay_sync::planted::{PlantedBug, is_planted};

use super::lingering::LingeringClose;

/// A body has to bring [`MIN_BYTES`] in so long,
const BODY_WINDOW: Duration = Duration::from_secs(60);
/// and a reader has to take as many in so long: some work on what they have read before they read on.
const READER_WINDOW: Duration = Duration::from_secs(300);
const MIN_BYTES: u64 = 32 << 10;
/// A document is in memory as a whole, so all of it has to come in so long.
const DOCUMENT_IN: Duration = Duration::from_secs(30);
/// A connection without a request. `hyper` has a limit of its own for heads, and none for a peer that does not take the
/// end of an answer.
const IDLE: Duration = Duration::from_secs(35);
/// Nobody loses anything before it was waited for so long,
const RIPE: Duration = Duration::from_secs(1);
/// nor who brings or takes as much in a second.
const FAST_BYTES: u64 = 64 << 10;
/// How long the room of one peer may take to come free in the journal before the next one loses its own.
const JOURNAL_PAUSE: Duration = Duration::from_millis(100);
/// Room in the journal is for bodies that are whole in so long.
const WHOLE_IN: Duration = Duration::from_secs(3600);

/// Why a peer is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum GivenUp {
    #[error(
        "too little of the request's body came in time: at least 32 KiB in 60 s, and a whole document in 30 s"
    )]
    TooSlow,
    #[error("the request came slowly, and others needed its place: try again")]
    MadeRoom,
    #[error("the gateway is reading or sending as many documents as it has memory for: try again later")]
    NoMemory,
    #[error("a document has at most 120,000 tags")]
    ManyTags,
}

/// The kind of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyKind {
    /// Read into memory as a whole.
    Document,
    /// For the journal, which has kept room for so many bytes.
    Upload(u64),
    Form,
}

/// A scarce resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScarceResource {
    /// A place among the requests.
    Slot,
    /// Room in the journal.
    Journal,
    /// Memory for documents.
    Document,
    /// Memory for answers that are documents.
    Answer,
    /// A place among the forms.
    Form,
}

/// The answer to a request for something scarce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoomAnswer {
    /// Somebody is giving it up.
    Coming,
    /// Somebody may have to after so long.
    After(Duration),
    /// Nobody is slow.
    None,
}

/// How long a peer was waited for since its window began, and what it has brought or taken.
#[derive(Clone, Copy, Debug, Default)]
struct PeerWait {
    since: Option<Instant>,
    waited: Duration,
    moved_bytes: u64,
}

impl PeerWait {
    fn begins(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    fn ends(&mut self, now: Instant, moved_bytes: u64) {
        self.waited = self.waited(now);
        self.since = None;
        self.moved_bytes += moved_bytes;
    }

    fn waited(&self, now: Instant) -> Duration {
        self.waited + self.since.map_or(Duration::ZERO, |start| now.saturating_duration_since(start))
    }

    fn bytes_a_second(&self, now: Instant) -> u64 {
        let waited_ms = self.waited(now).as_millis().max(1);
        u64::try_from(u128::from(self.moved_bytes) * 1000 / waited_ms).unwrap_or(u64::MAX)
    }

    /// Whether it is too slow. A window that was not begins anew.
    fn fails(&mut self, now: Instant, window: Duration) -> bool {
        if self.waited(now) < window {
            return false;
        }
        if self.moved_bytes < MIN_BYTES {
            return true;
        }
        *self = PeerWait { since: self.since.map(|_| now), ..PeerWait::default() };
        false
    }
}

/// Of one connection.
struct PeerPace {
    /// Since when there is no request.
    idle_since: Option<Instant>,
    has_slot: bool,
    kind: Option<BodyKind>,
    /// When the body's first byte was asked for, and how many have come.
    body_begun: Option<Instant>,
    body_bytes: u64,
    body: PeerWait,
    waker: Option<Waker>,
    writing: PeerWait,
    /// For the document that the request has brought.
    memory: Vec<OwnedSemaphorePermit>,
    given_up: Option<GivenUp>,
    /// Whether the client may still be sending a body that nobody reads.
    has_unread_body: bool,
    is_over: bool,
}

/// See the module.
pub(super) struct ConnectionSeat {
    pace: Mutex<PeerPace>,
    over: Notify,
}

impl ConnectionSeat {
    fn new(now: Instant) -> ConnectionSeat {
        let pace = PeerPace {
            idle_since: Some(now),
            has_slot: false,
            kind: None,
            body_begun: None,
            body_bytes: 0,
            body: PeerWait::default(),
            waker: None,
            writing: PeerWait::default(),
            memory: Vec::new(),
            given_up: None,
            has_unread_body: false,
            is_over: false,
        };
        ConnectionSeat { pace: Mutex::new(pace), over: Notify::new() }
    }

    /// A request has come. `false` if the connection has been given up: then nothing of it may be done.
    pub(super) fn request_begins(&self) -> bool {
        let mut pace = self.pace.lock();
        if pace.is_over {
            return false;
        }
        (pace.idle_since, pace.given_up, pace.kind) = (None, None, None);
        pace.memory = Vec::new();
        (pace.body, pace.body_begun, pace.body_bytes) = (PeerWait::default(), None, 0);
        true
    }

    /// The connection is closed behind the answer, and the client may still be sending the request's body.
    pub(super) fn leaves_body_unread(&self) {
        self.pace.lock().has_unread_body = true;
    }

    pub(super) fn has_slot(&self) {
        self.pace.lock().has_slot = true;
    }

    /// The answer is `hyper`'s.
    pub(super) fn request_ends(&self) {
        let mut pace = self.pace.lock();
        (pace.idle_since, pace.has_slot, pace.kind) = (Some(Instant::now()), false, None);
        (pace.body.since, pace.waker) = (None, None);
        pace.memory = Vec::new();
    }

    /// Memory that the request has until it ends: what is made of a document outlives its body.
    pub(super) fn keep_memory(&self, permit: OwnedSemaphorePermit) {
        self.pace.lock().memory.push(permit);
    }

    /// The body is read from now on, and is this.
    pub(super) fn body_begins(&self, kind: BodyKind) {
        let mut pace = self.pace.lock();
        (pace.kind, pace.body_begun) = (Some(kind), Some(Instant::now()));
    }

    /// Nothing of the body is here. Who waits for it is woken if it is given up.
    ///
    /// # Errors
    /// When it has been.
    pub(super) fn body_is_awaited(&self, waker: &Waker) -> Result<(), GivenUp> {
        let mut pace = self.pace.lock();
        if let Some(reason) = pace.given_up {
            return Err(reason);
        }
        pace.body.begins(Instant::now());
        if !pace.waker.as_ref().is_some_and(|current| current.will_wake(waker)) {
            pace.waker = Some(waker.clone());
        }
        Ok(())
    }

    /// # Errors
    /// When it has been given up.
    pub(super) fn body_moves(&self, bytes: u64) -> Result<(), GivenUp> {
        let mut pace = self.pace.lock();
        pace.body_bytes += bytes;
        if pace.body.since.is_some() {
            pace.body.ends(Instant::now(), bytes);
        } else {
            pace.body.moved_bytes += bytes;
        }
        pace.given_up.map_or(Ok(()), Err)
    }

    /// Gives the body up: its reader's fault.
    pub(super) fn give_up(&self, reason: GivenUp) {
        self.pace.lock().give_up(reason);
    }

    pub(super) fn given_up(&self) -> Option<GivenUp> {
        self.pace.lock().given_up
    }

    /// Returns once the connection is to be closed.
    pub(super) async fn is_over(&self) {
        loop {
            let over = self.over.notified();
            tokio::pin!(over);
            over.as_mut().enable();
            if self.pace.lock().is_over {
                return;
            }
            over.await;
        }
    }

    fn close(&self, pace: &mut PeerPace) {
        pace.is_over = true;
        self.over.notify_waiters();
    }

    /// Gives up a peer that is too slow.
    fn look(&self, now: Instant) {
        let mut pace = self.pace.lock();
        let is_late = pace.kind == Some(BodyKind::Document)
            && pace.body.since.is_some()
            && pace.body_begun.is_some_and(|begun| now.saturating_duration_since(begun) >= DOCUMENT_IN);
        if (pace.body.since.is_some() && pace.body.fails(now, BODY_WINDOW)) || is_late {
            pace.give_up(GivenUp::TooSlow);
        }
        let is_idle = pace.idle_since.is_some_and(|start| now.saturating_duration_since(start) >= IDLE);
        let takes_nothing = pace.writing.since.is_some() && pace.writing.fails(now, READER_WINDOW);
        // While it takes an answer's end, that is what counts.
        if takes_nothing || (is_idle && pace.writing.since.is_none()) {
            self.close(&mut pace);
        }
    }
}

impl PeerPace {
    fn give_up(&mut self, reason: GivenUp) {
        if self.given_up.is_none() {
            self.given_up = Some(reason);
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        }
    }

    /// How fast a peer is that has what is scarce and is being waited for, and for how long that has been.
    fn slowness(&self, scarce: ScarceResource, now: Instant) -> Option<(u64, Duration)> {
        if self.is_over || self.given_up.is_some() {
            return None;
        }
        let wait = match (self.body.since, self.writing.since) {
            (Some(_), _) => &self.body,
            (None, Some(_)) => &self.writing,
            (None, None) => return None,
        };
        let (speed, waited) = (wait.bytes_a_second(now), wait.waited(now));
        let is_slow = match (scarce, self.kind) {
            (ScarceResource::Slot, _) => self.has_slot && speed < FAST_BYTES,
            (ScarceResource::Journal, Some(BodyKind::Upload(size_bytes))) if self.body.since.is_some() => {
                let left = size_bytes.saturating_sub(self.body_bytes);
                speed < FAST_BYTES.max(left / WHOLE_IN.as_secs())
            }
            // Who reads what is in the journal keeps it there.
            (ScarceResource::Journal, _) => self.has_slot && self.body.since.is_none() && speed < FAST_BYTES,
            (ScarceResource::Answer, _) => self.body.since.is_none() && speed < FAST_BYTES,
            (ScarceResource::Document, kind) => kind == Some(BodyKind::Document) && speed < FAST_BYTES,
            (ScarceResource::Form, kind) => kind == Some(BodyKind::Form) && speed < FAST_BYTES,
        };
        is_slow.then_some((speed, waited))
    }

    /// The gain of giving it up: the most room in the journal first, and else the slowest.
    fn rank(&self, scarce: ScarceResource, speed: u64) -> (u64, u64) {
        match (scarce, self.kind) {
            (ScarceResource::Journal, Some(BodyKind::Upload(size_bytes))) => (u64::MAX - size_bytes, speed),
            (ScarceResource::Journal, _) => (u64::MAX, speed),
            _ => (0, speed),
        }
    }
}

/// All connections of a port.
pub(super) struct ConnectionSeats {
    seats: Mutex<HashMap<u64, Arc<ConnectionSeat>>>,
    next_number: AtomicU64,
    /// When room in the journal was looked for last.
    asked_for_journal: Mutex<Option<Instant>>,
    /// Other gateways wait for their own clients, whose pace they look after.
    is_of_gateways: bool,
}

impl ConnectionSeats {
    pub(super) fn new(is_of_gateways: bool) -> Arc<ConnectionSeats> {
        let (seats, asked_for_journal) = (Mutex::default(), Mutex::default());
        Arc::new(ConnectionSeats { seats, next_number: AtomicU64::new(0), asked_for_journal, is_of_gateways })
    }

    /// For a connection that has been accepted.
    pub(super) fn take(self: &Arc<Self>) -> SeatGuard {
        let (number, seat) =
            (self.next_number.fetch_add(1, Ordering::Relaxed), Arc::new(ConnectionSeat::new(Instant::now())));
        self.seats.lock().insert(number, Arc::clone(&seat));
        SeatGuard { seats: Arc::clone(self), number, seat }
    }

    fn all(&self) -> Vec<Arc<ConnectionSeat>> {
        self.seats.lock().values().cloned().collect()
    }

    /// Gives up peers that are too slow: to be called every second or so.
    pub(super) fn look(&self) {
        if self.is_of_gateways || is_planted(PlantedBug::NoSlowestPace) {
            return;
        }
        let now = Instant::now();
        self.all().iter().for_each(|seat| seat.look(now));
    }

    /// Closes all connections, with what is in flight on them.
    pub(super) fn close_all(&self) {
        for seat in self.all() {
            let mut pace = seat.pace.lock();
            seat.close(&mut pace);
        }
    }

    /// Closes the connection that has been without a request for longest. `false` if there is none.
    pub(super) fn close_idlest(&self) -> bool {
        let now = Instant::now();
        let idle = self.all().into_iter().filter_map(|seat| {
            let pace = seat.pace.lock();
            // The end of its answer may be on its way.
            let takes_it =
                pace.writing.since.is_some_and(|start| now.saturating_duration_since(start) < RIPE);
            let start = pace.idle_since.filter(|_| !pace.is_over && !takes_it);
            drop(pace);
            start.map(|start| (start, seat))
        });
        let Some((_, seat)) = idle.min_by_key(|(start, _)| *start) else { return false };
        let mut pace = seat.pace.lock();
        // A request may have come meanwhile.
        if pace.idle_since.is_some() {
            seat.close(&mut pace);
        }
        true
    }

    /// Has the slowest peer give up what somebody needs.
    pub(super) fn make_room(&self, scarce: ScarceResource) -> RoomAnswer {
        self.make_room_by(scarce, Instant::now())
    }

    /// The same of room in the journal. Hundreds may wait for it, and each asks again and again: they must not take it
    /// from more peers than they need it of, nor look at all connections each time.
    pub(super) fn make_room_in_journal(&self) {
        self.make_room_in_journal_by(Instant::now());
    }

    fn make_room_in_journal_by(&self, now: Instant) -> Option<RoomAnswer> {
        {
            let mut asked = self.asked_for_journal.lock();
            if asked.is_some_and(|asked| now.saturating_duration_since(asked) < JOURNAL_PAUSE) {
                return None;
            }
            *asked = Some(now);
        }
        Some(self.make_room_by(ScarceResource::Journal, now))
    }

    fn make_room_by(&self, scarce: ScarceResource, now: Instant) -> RoomAnswer {
        if self.is_of_gateways || is_planted(PlantedBug::NoSlowestPace) {
            return RoomAnswer::None;
        }
        let (mut soonest, mut slowest) = (None, None);
        for seat in self.all() {
            let pace = seat.pace.lock();
            let Some((speed, waited)) = pace.slowness(scarce, now) else { continue };
            if waited < RIPE {
                soonest = Some(soonest.map_or(RIPE - waited, |other: Duration| other.min(RIPE - waited)));
                continue;
            }
            let rank = pace.rank(scarce, speed);
            drop(pace);
            if slowest.as_ref().is_none_or(|(other, _)| rank < *other) {
                slowest = Some((rank, seat));
            }
        }
        let Some((_, seat)) = slowest else { return soonest.map_or(RoomAnswer::None, RoomAnswer::After) };
        let mut pace = seat.pace.lock();
        match pace.body.since.is_some() {
            true => pace.give_up(GivenUp::MadeRoom),
            // The head of its answer has been sent, so there is nothing left to say.
            false if pace.writing.since.is_some() => seat.close(&mut pace),
            false => {}
        }
        RoomAnswer::Coming
    }
}

/// A seat that is taken.
pub(super) struct SeatGuard {
    seats: Arc<ConnectionSeats>,
    number: u64,
    seat: Arc<ConnectionSeat>,
}

impl SeatGuard {
    pub(super) fn seat(&self) -> Arc<ConnectionSeat> {
        Arc::clone(&self.seat)
    }
}

impl Drop for SeatGuard {
    fn drop(&mut self) {
        self.seats.seats.lock().remove(&self.number);
    }
}

/// A connection that says when its peer takes nothing.
pub(super) struct TimedConnection<S> {
    stream: S,
    seat: Arc<ConnectionSeat>,
    /// Whether the peer has ever been waited for: most take all at once.
    has_waited: bool,
    /// Once its own direction has been closed.
    lingering: Option<LingeringClose>,
}

impl<S> TimedConnection<S> {
    pub(super) fn new(stream: S, seat: Arc<ConnectionSeat>) -> TimedConnection<S> {
        TimedConnection { stream, seat, has_waited: false, lingering: None }
    }

    fn note(&mut self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Pending => {
                self.has_waited = true;
                self.seat.pace.lock().writing.begins(Instant::now());
            }
            Poll::Ready(Ok(bytes)) if self.has_waited => {
                self.seat.pace.lock().writing.ends(Instant::now(), *bytes as u64);
            }
            Poll::Ready(_) => {}
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TimedConnection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
            if !this.seat.pace.lock().has_unread_body {
                return Poll::Ready(Ok(()));
            }
        }
        let lingering = this.lingering.get_or_insert_with(LingeringClose::begin);
        lingering.poll(Pin::new(&mut this.stream), context).map(Ok)
    }
}

#[cfg(test)]
mod tests;
