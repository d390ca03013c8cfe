//! One connection: its requests, how many there may be at once, and what is written down of each.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::{Body as _, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, CONTENT_TYPE, EXPECT, HeaderValue, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use openssl::ssl::{Ssl, SslAcceptor};
use s3s::service::S3Service;
use s3s::{Body, HttpError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_openssl::SslStream;

use super::access_log::{AccessLine, AccessLog};
use super::metrics::RequestMetrics;
use super::received::RequestBody;
use super::request_ids::{RequestId, RequestIds};
use super::seats::{
    BodyKind, ConnectionSeat, ConnectionSeats, GivenUp, RoomAnswer, ScarceResource, SeatGuard,
    TimedConnection,
};
use crate::cluster::{PeerClients, PeerRequest};
use crate::engine::GatewayEngine;
use crate::form;
use crate::memory::MemoryBudget;
use crate::ownership::KeyRoute;
use crate::s3::{
    BucketAddressing, ChunkDecoder, KeyPermissions, PostForms, RequestNote, answer_of, make_well_formed,
    numbered, put_right, refused_at_once,
};
use crate::supervision::CaughtPanic;

/// A client that is slower than this to say what it wants is not waited for.
const HEADERS_IN: Duration = Duration::from_secs(30);
/// Another gateway keeps a connection for less than this, and strangers hold none for longer.
const INNER_HEADERS_IN: Duration = Duration::from_secs(15);
const HANDSHAKE_IN: Duration = Duration::from_secs(10);
/// S3 takes 8 KiB of headers, up to 2 KiB of them user metadata: some 450 of the shortest, `x-amz-meta-a: b`. Presigned
/// URLs are long.
const MAX_HEADERS: usize = 512;
const MAX_HEADER_BYTES: usize = 64 << 10;
/// A key has 1024 bytes, and most need no escape.
const MAX_LOGGED_BYTES: usize = 2048;
/// How long a request waits for the place of one whose client is slow.
const SLOT_IN: Duration = Duration::from_secs(4);
/// How long a client that is to make room may take before another one is asked.
const ROOM_PAUSE: Duration = Duration::from_millis(100);
/// Memory for the long documents of all requests together, in KiB; the beginning of each is not counted.
pub(super) const DOCUMENTS_KIB: usize = 32 << 10;
/// The same for answers that are documents, such as listings: shorter ones are not counted.
pub(super) const ANSWERS_BYTES: u64 = 32 << 20;
const SHORT_ANSWER_BYTES: usize = 64 << 10;
/// The bytes handed to TLS at once: it copies them.
const SEALED_BYTES: usize = 64 << 10;

/// State that all connections share.
pub(super) struct ConnectionSet {
    pub(super) service: S3Service,
    /// `None` where another gateway may have the key of a form.
    pub(super) forms: Option<PostForms>,
    pub(super) ids: RequestIds,
    pub(super) requests: Arc<RequestMetrics>,
    pub(super) slots: Arc<Semaphore>,
    /// Those of questions of other gateways, which have to be answered also where clients have taken all others.
    pub(super) question_slots: Arc<Semaphore>,
    pub(super) ping_slots: Arc<Semaphore>,
    pub(super) seats: Arc<ConnectionSeats>,
    /// Requests that wait for a slot.
    pub(super) slot_wishes: Arc<AtomicUsize>,
    /// Memory for documents, in KiB.
    pub(super) documents: Arc<Semaphore>,
    /// And for answers that are.
    pub(super) answers: MemoryBudget,
    /// Whose signatures chunks of bodies have.
    pub(super) permissions: Arc<KeyPermissions>,
    pub(super) access_log: Arc<AccessLog>,
    /// The other gateways, where there are some.
    pub(super) peers: Option<Arc<PeerClients>>,
    pub(super) engine: Arc<GatewayEngine>,
    pub(super) addressing: Arc<BucketAddressing>,
    /// Whether these connections are the other gateways'.
    pub(super) is_inner: bool,
}

impl ConnectionSet {
    /// Serves a connection in a task of its own.
    pub(super) fn start(
        self: &Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        acceptor: Option<SslAcceptor>,
        place: OwnedSemaphorePermit,
        graceful: &GracefulShutdown,
    ) {
        let (connections, watcher) = (Arc::clone(self), graceful.watcher());
        let seated = self.seats.take();
        tokio::spawn(async move {
            let _place = place;
            let seat = seated.seat();
            let served = async {
                match acceptor {
                    None => connections.serve_seated(stream, peer, watcher, &seated, false).await,
                    Some(acceptor) => {
                        let Ok(mut stream) =
                            Ssl::new(acceptor.context()).and_then(|ssl| SslStream::new(ssl, stream))
                        else {
                            return;
                        };
                        let shaken = tokio::time::timeout(HANDSHAKE_IN, Pin::new(&mut stream).accept()).await;
                        if matches!(shaken, Ok(Ok(()))) {
                            connections.serve_seated(stream, peer, watcher, &seated, true).await;
                        }
                    }
                }
            };
            tokio::select! {
                biased;
                () = seat.is_over() => tracing::debug!("{peer}: closed, because its place was needed or it was too slow"),
                () = served => {}
            }
        });
    }

    pub(super) async fn serve(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        watcher: hyper_util::server::graceful::Watcher,
    ) {
        let seated = self.seats.take();
        self.serve_seated(stream, peer, watcher, &seated, false).await;
    }

    async fn serve_seated(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        watcher: hyper_util::server::graceful::Watcher,
        seated: &SeatGuard,
        is_sealed: bool,
    ) {
        let (seat, stream) = (seated.seat(), TimedConnection::new(stream, seated.seat()));
        let headers_in = if self.is_inner { INNER_HEADERS_IN } else { HEADERS_IN };
        let service = service_fn(move |request| {
            let (connections, seat) = (Arc::clone(&self), Arc::clone(&seat));
            // On the heap, and only while there is a request: what an answer keeps would count for each idle connection
            // too.
            Box::pin(async move { connections.answer(request, peer, seat, is_sealed).await })
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(headers_in)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEADER_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        // A client that goes away in the middle is no news.
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!("{peer}: {error}");
        }
    }

    async fn answer(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        peer: SocketAddr,
        seat: Arc<ConnectionSeat>,
        is_sealed: bool,
    ) -> Result<Response<LoggedBody>, HttpError> {
        if !seat.request_begins() {
            return Err(HttpError::new("the connection has been given up".into()));
        }
        let (begun, note) = (Instant::now(), RequestNote::default());
        request.extensions_mut().insert(note.clone());
        let method = request.method().clone();
        // A presigned URL has its signature in the query, which is as good as a password.
        let path = beginning(&self.addressing.path_of(request.headers(), request.uri().path()));
        let is_read = Arc::new(AtomicBool::new(request.body().is_end_stream()));
        // `hyper` tells only those to go on who have a body to send. botocore asks also without one, and would take the
        // answer for that to the next request of the connection, whose own it would wait for.
        let is_told_nothing = request.body().is_end_stream() && request.headers().contains_key(EXPECT);
        let received = |body| {
            RequestBody::new(body, Arc::clone(&is_read), Arc::clone(&seat), Arc::clone(&self.documents))
        };
        let id = self.ids.draw();
        let number = id.as_str().to_owned();
        // `s3s` would take a whole form into memory before it looks for a signature.
        let is_form = form::is_form(request.method(), request.headers());
        let (mut response, slot) = match (is_form, &self.forms) {
            // They are received before anybody knows whose they are, and have places of their own.
            (true, Some(forms)) => {
                if forms.are_full() {
                    self.make_room(ScarceResource::Form, || forms.are_full()).await;
                }
                let item = PathOf(request.uri().clone());
                let request = request.map(|body| Body::http_body(received(body).with_kind(BodyKind::Form)));
                let answering = numbered(number, forms.answer(request));
                let answered = self.engine.supervisor.shield("form", &item, answering).await;
                (answered.unwrap_or_else(|panicked| broken_by(&panicked)), None)
            }
            (true, None) => (refuse_form(), None),
            (false, _) => match self.slot_for(&request).await {
                None => (too_many(), None),
                Some(slot) => {
                    seat.has_slot();
                    let carried_out = numbered(number, self.carry_out(request.map(received), &note));
                    (carried_out.await?, Some(slot))
                }
            },
        };
        // The handler's error for a broken body says less.
        if let Some(reason) = seat.given_up() {
            response = given_up(reason);
        }
        make_well_formed(&note.0.lock().operation, &mut response);
        id.put_into(&mut response);
        if is_told_nothing || !is_read.load(Ordering::Acquire) {
            // A client that waits for `100 Continue` sends no body now, and one that doesn't sends it: what comes next
            // may be either. Taken for the rest of the body it would cut off the beginning of the next request.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            seat.leaves_body_unread();
        }
        let head_ns = begun.elapsed();
        self.requests.answered(&note.0.lock().operation, response.status(), head_ns);
        Ok(response.map(|body| LoggedBody {
            status: None,
            body,
            sent_bytes: 0,
            begun,
            head: head_ns,
            id,
            method,
            path,
            peer,
            note,
            seat,
            most_bytes: if is_sealed { SEALED_BYTES } else { usize::MAX },
            rest: Bytes::new(),
            _slot: slot,
            connections: self,
        }))
        .map(|mut response| {
            response.body_mut().status = Some(response.status());
            response
        })
    }
}

impl ConnectionSet {
    fn slots_for(&self, request: &Request<Incoming>) -> &Arc<Semaphore> {
        match (self.is_inner, request.uri()) {
            // Behind questions that wait for a store it would say that nothing moves here.
            (true, uri) if PeerClients::is_ping(uri) => &self.ping_slots,
            (true, uri) if PeerClients::is_question(uri) => &self.question_slots,
            _ => &self.slots,
        }
    }

    /// A place among the requests. Where all are taken, one comes free if a client has been slow with its own.
    async fn slot_for(&self, request: &Request<Incoming>) -> Option<OwnedSemaphorePermit> {
        let slots = self.slots_for(request);
        if let Ok(slot) = Arc::clone(slots).try_acquire_owned() {
            return Some(slot);
        }
        let _wish = SlotRequest::begin(&self.slot_wishes);
        let deadline = Instant::now() + SLOT_IN;
        loop {
            let pause = match self.seats.make_room(ScarceResource::Slot) {
                RoomAnswer::Coming => deadline.saturating_duration_since(Instant::now()),
                RoomAnswer::After(pause) => pause,
                // Those give up their places as soon as they hear of the wish.
                RoomAnswer::None if !self.is_inner && self.engine.waiting_for_room() > 0 => ROOM_PAUSE,
                RoomAnswer::None => return Arc::clone(slots).try_acquire_owned().ok(),
            };
            // In the order in which they came.
            if let Ok(slot) = tokio::time::timeout(pause, Arc::clone(slots).acquire_owned()).await {
                return slot.ok();
            }
            if Instant::now() >= deadline {
                return None;
            }
        }
    }

    /// Has a slow client give up what `is_full` says to be scarce, if there is one, and waits for that.
    async fn make_room(&self, scarce: ScarceResource, is_full: impl Fn() -> bool) {
        let deadline = Instant::now() + SLOT_IN;
        while is_full() && self.seats.make_room(scarce) != RoomAnswer::None && Instant::now() < deadline {
            tokio::time::sleep(ROOM_PAUSE).await;
        }
    }

    async fn here(
        &self,
        request: Request<RequestBody>,
        note: &RequestNote,
    ) -> Result<Response<Body>, HttpError> {
        let item = PathOf(request.uri().clone());
        let rechunker = ChunkDecoder::from_headers(request.headers(), &self.permissions);
        let promised = request.headers().get("x-amz-decoded-content-length");
        let promised = promised.and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(0);
        let context = (note.clone(), Arc::clone(&self.seats));
        let request = request.map(|body| Body::http_body(body.read_here(rechunker, promised, context)));
        let calling = self.service.call(request);
        let mut response = match self.engine.supervisor.shield("request", &item, calling).await {
            Ok(response) => response?,
            Err(panicked) => return Ok(broken_by(&panicked)),
        };
        put_right(&note.0.lock().operation, &mut response);
        let is_document = note.0.lock().operation != "GetObject";
        Ok(if is_document { self.counted(response) } else { response })
    }

    /// An answer that is a document is in memory as a whole for as long as its client takes.
    fn counted(&self, mut response: Response<Body>) -> Response<Body> {
        let Some(bytes) = response.body().bytes().filter(|bytes| bytes.len() > SHORT_ANSWER_BYTES) else {
            return response;
        };
        match self.answers.try_hold(bytes.len() as u64) {
            Some(hold) => {
                *response.body_mut() = Body::from(hold.wrap(bytes));
                response
            }
            None => {
                self.seats.make_room(ScarceResource::Answer);
                given_up(GivenUp::NoMemory)
            }
        }
    }

    /// Here, or by the gateway that has the key.
    async fn carry_out(
        &self,
        mut request: Request<RequestBody>,
        note: &RequestNote,
    ) -> Result<Response<Body>, HttpError> {
        let is_question = self.is_inner && PeerClients::is_question(request.uri());
        let (headers, addressing) = (request.headers(), &self.addressing);
        if !is_question
            && let Some(refused) = refused_at_once(request.method(), headers, request.uri(), addressing)
        {
            return answer_of(refused, addressing.region()).map_err(|cause| HttpError::new(Box::new(cause)));
        }
        let Some(peers) = &self.peers else { return self.here(request, note).await };
        if self.is_inner {
            return match peers.asked(&request) {
                PeerRequest::ByClient => {
                    PeerClients::take_proof(&mut request);
                    self.here(request, note).await
                }
                PeerRequest::Question => {
                    note.0.lock().operation = "Question".to_owned();
                    Ok(peers.answer(&self.engine, request).await)
                }
                PeerRequest::ByStranger => {
                    let text = "this port is for the gateways of the cluster";
                    let mut response = refused(StatusCode::FORBIDDEN, "AccessDenied", text);
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                    Ok(response)
                }
            };
        }
        let busy = |reason: &str| {
            let mut response = refused(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", reason);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            response
        };
        match peers.route(&request, &self.addressing) {
            KeyRoute::Here => self.here(request, note).await,
            KeyRoute::There { owner, address } => {
                note.0.lock().operation = "Forwarded".to_owned();
                match peers.forward(&owner, &address, request).await {
                    Ok(response) => Ok(response),
                    Err(error) => Ok(busy(&error.to_string())),
                }
            }
            // A client without access learns no more: the names of gateways are not for everybody.
            KeyRoute::Nowhere(_) => Ok(busy(
                "the gateway that has these keys is down, and only it has their acknowledged data: try again later",
            )),
        }
    }
}

fn refuse_form() -> Response<Body> {
    refused(
        StatusCode::NOT_IMPLEMENTED,
        "NotImplemented",
        "uploads by a browser's form have no place where several gateways share a store",
    )
}

fn too_many() -> Response<Body> {
    let mut response = refused(
        StatusCode::SERVICE_UNAVAILABLE,
        "SlowDown",
        "the gateway is serving as many requests as it may ([limits] requests): try again later",
    );
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

fn given_up(reason: GivenUp) -> Response<Body> {
    let text = reason.to_string();
    match reason {
        GivenUp::ManyTags => refused(StatusCode::BAD_REQUEST, "MaxMessageLengthExceeded", &text),
        GivenUp::TooSlow => refused(StatusCode::BAD_REQUEST, "RequestTimeout", &text),
        GivenUp::MadeRoom | GivenUp::NoMemory => {
            let mut response = refused(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", &text);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            response
        }
    }
}

/// To a request that has run into a bug.
fn broken_by(panicked: &CaughtPanic) -> Response<Body> {
    refused(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &panicked.to_string())
}

/// Shows a path alone: a presigned URL has its signature in the query.
struct PathOf(hyper::Uri);

impl std::fmt::Display for PathOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&beginning(self.0.path()))
    }
}

/// The logged part of a path: anybody may send a long one, signed or not.
fn beginning(path: &str) -> String {
    match path.char_indices().find(|(offset, _)| *offset >= MAX_LOGGED_BYTES) {
        Some((end, _)) => format!("{}...", &path[..end]),
        None => path.to_owned(),
    }
}

fn refused(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    );
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

/// A request that waits for a slot.
struct SlotRequest(Arc<AtomicUsize>);

impl SlotRequest {
    fn begin(wishes: &Arc<AtomicUsize>) -> SlotRequest {
        wishes.fetch_add(1, Ordering::Relaxed);
        SlotRequest(Arc::clone(wishes))
    }
}

impl Drop for SlotRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer, which is written down when it has been sent.
struct LoggedBody {
    status: Option<StatusCode>,
    body: Body,
    sent_bytes: u64,
    begun: Instant,
    head: Duration,
    id: RequestId,
    method: hyper::Method,
    path: String,
    peer: SocketAddr,
    note: RequestNote,
    seat: Arc<ConnectionSeat>,
    /// No frame is longer; what is left of one comes next.
    most_bytes: usize,
    rest: Bytes,
    /// Given back with the last byte.
    _slot: Option<OwnedSemaphorePermit>,
    connections: Arc<ConnectionSet>,
}

impl hyper::body::Body for LoggedBody {
    type Data = Bytes;
    type Error = <Body as hyper::body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let mut polled = match self.rest.is_empty() {
            true => Pin::new(&mut self.body).poll_frame(context),
            false => Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.rest))))),
        };
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(data) = frame.data_mut()
        {
            self.rest = data.split_off(data.len().min(self.most_bytes));
            self.sent_bytes += data.len() as u64;
        }
        if let Poll::Ready(Some(Err(error))) = &polled {
            // The status has been sent: all that is left is to break off.
            let (id, path) = (self.id.as_str(), self.path.escape_debug());
            tracing::warn!("request {id}: the answer of {path} broke off: {error}");
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        match (self.body.size_hint(), rest) {
            (hint, 0) => hint,
            (hint, rest) => {
                let mut whole = SizeHint::new();
                whole.set_lower(hint.lower() + rest);
                if let Some(upper) = hint.upper() {
                    whole.set_upper(upper + rest);
                }
                whole
            }
        }
    }
}

impl Drop for LoggedBody {
    fn drop(&mut self) {
        self.seat.request_ends();
        self.connections.requests.sent(self.sent_bytes);
        if !self.connections.access_log.is_on() {
            return;
        }
        let noted = self.note.0.lock().clone();
        self.connections.access_log.write(&AccessLine {
            id: &self.id,
            peer: self.peer,
            key_id: &noted.key_id,
            operation: &noted.operation,
            method: self.method.as_str(),
            path: &self.path,
            status: self.status.map_or(0, |status| status.as_u16()),
            sent_bytes: self.sent_bytes,
            head: self.head,
            whole: self.begun.elapsed(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_path_is_cut_in_log() {
        assert_eq!(beginning("/lake/a"), "/lake/a");
        let cut = beginning(&"é".repeat(60_000));
        assert!(cut.len() <= MAX_LOGGED_BYTES + 5 && cut.ends_with("..."), "{}", cut.len());
    }
}
