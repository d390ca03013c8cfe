//! One connection: its requests, how many there may be at once, and what is written down of each.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_openssl::SslStream;

use super::access_log::{AccessLog, Line};
use super::metrics::Requests;
use super::request_ids::{RequestId, RequestIds};
use crate::cluster::{Asked, Peers};
use crate::engine::Engine;
use crate::ownership::Route;
use crate::s3::{Forms, Note, numbered, put_right, refused_at_once};

/// A client that is slower than this to say what it wants is not waited for.
const HEADERS_IN: Duration = Duration::from_secs(30);
/// Another gateway keeps a connection for less than this, and strangers hold none for longer.
const INNER_HEADERS_IN: Duration = Duration::from_secs(15);
const HANDSHAKE_IN: Duration = Duration::from_secs(10);
/// S3 requests have some 30 headers at most, and 8 KiB of them; presigned URLs are long.
const MOST_HEADERS: usize = 100;
const MOST_HEADER_BYTES: usize = 64 << 10;
/// A key has 1024 bytes, of which most need no escape.
const MOST_LOGGED_BYTES: usize = 2048;
/// The type of a browser's form.
const FORM: &[u8] = b"multipart/form-data";

/// What all connections share.
pub(super) struct Connections {
    pub(super) service: S3Service,
    /// `None` where another gateway may have the key of a form.
    pub(super) forms: Option<Forms>,
    pub(super) ids: RequestIds,
    pub(super) requests: Arc<Requests>,
    pub(super) slots: Arc<Semaphore>,
    /// Those of questions of other gateways, which have to be answered also where clients have taken all others.
    pub(super) question_slots: Arc<Semaphore>,
    pub(super) ping_slots: Arc<Semaphore>,
    pub(super) access_log: Arc<AccessLog>,
    /// The other gateways, where there are some.
    pub(super) peers: Option<Arc<Peers>>,
    pub(super) engine: Arc<Engine>,
    /// Whether these connections are the other gateways'.
    pub(super) is_inner: bool,
}

impl Connections {
    /// Serves a connection in a task of its own.
    pub(super) fn start(
        self: &Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        acceptor: Option<SslAcceptor>,
        place: OwnedSemaphorePermit,
        graceful: &GracefulShutdown,
    ) {
        let (connections, watcher) = (Arc::clone(self), graceful.watcher());
        tokio::spawn(async move {
            let _place = place;
            match acceptor {
                None => connections.serve(stream, peer, watcher).await,
                Some(acceptor) => {
                    let Ok(mut stream) =
                        Ssl::new(acceptor.context()).and_then(|ssl| SslStream::new(ssl, stream))
                    else {
                        return;
                    };
                    let shaken = tokio::time::timeout(HANDSHAKE_IN, Pin::new(&mut stream).accept()).await;
                    if matches!(shaken, Ok(Ok(()))) {
                        connections.serve(stream, peer, watcher).await;
                    }
                }
            }
        });
    }

    pub(super) async fn serve(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        watcher: hyper_util::server::graceful::Watcher,
    ) {
        let headers_in = if self.is_inner { INNER_HEADERS_IN } else { HEADERS_IN };
        let service = service_fn(move |request| {
            let connections = Arc::clone(&self);
            async move { connections.answer(request, peer).await }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(headers_in)
            .max_headers(MOST_HEADERS)
            .max_buf_size(MOST_HEADER_BYTES)
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
    ) -> Result<Response<Answer>, HttpError> {
        let (begun, note) = (Instant::now(), Note::default());
        request.extensions_mut().insert(note.clone());
        let method = request.method().clone();
        // A presigned URL has its signature in the query, which is as good as a password.
        let path = beginning(request.uri().path());
        let is_read = Arc::new(AtomicBool::new(request.body().is_end_stream()));
        // `hyper` tells only those to go on who have a body to send. botocore asks also without one, and would take the answer for that to the next
        // request of the connection, whose own it would wait for.
        let is_told_nothing = request.body().is_end_stream() && request.headers().contains_key(EXPECT);
        let received = |body| Received { body, is_read: Arc::clone(&is_read) };
        let id = self.ids.draw();
        let number = id.as_str().to_owned();
        let (mut response, slot) = match (is_form(&request), &self.forms) {
            // They are received before anybody knows whose they are, and have places of their own.
            (true, Some(forms)) => {
                let form = request.map(|body| Body::http_body(received(body)));
                (numbered(number, forms.answer(form)).await, None)
            }
            (true, None) => (no_forms(), None),
            (false, _) => match Arc::clone(self.slots_for(&request)).try_acquire_owned() {
                Err(_) => (too_many(), None),
                Ok(slot) => {
                    let carried_out = numbered(number, self.carry_out(request.map(received), &note));
                    (carried_out.await?, Some(slot))
                }
            },
        };
        id.put_into(&mut response);
        if is_told_nothing || !is_read.load(Ordering::Acquire) {
            // A client that waits for `100 Continue` sends no body now, and one that doesn't sends it: what comes next may be either. Taken
            // for the rest of the body it would cut off the beginning of the next request.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let head_ns = begun.elapsed();
        self.requests.answered(&note.0.lock().operation, response.status(), head_ns);
        Ok(response.map(|body| Answer {
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
            _slot: slot,
            connections: self,
        }))
        .map(|mut response| {
            response.body_mut().status = Some(response.status());
            response
        })
    }
}

impl Connections {
    fn slots_for(&self, request: &Request<Incoming>) -> &Arc<Semaphore> {
        match (self.is_inner, request.uri()) {
            // Behind questions that wait for a store it would say that nothing moves here.
            (true, uri) if Peers::is_ping(uri) => &self.ping_slots,
            (true, uri) if Peers::is_question(uri) => &self.question_slots,
            _ => &self.slots,
        }
    }

    async fn here(&self, request: Request<Received>, note: &Note) -> Result<Response<Body>, HttpError> {
        let mut response = self.service.call(request.map(Body::http_body)).await?;
        put_right(&note.0.lock().operation, &mut response);
        Ok(response)
    }

    /// Here, or by the gateway that has the key.
    async fn carry_out(
        &self,
        mut request: Request<Received>,
        note: &Note,
    ) -> Result<Response<Body>, HttpError> {
        if let Some(refused) = refused_at_once(request.method(), request.headers(), request.uri()) {
            return refused.to_http_response().map_err(|why| HttpError::new(Box::new(why)));
        }
        let Some(peers) = &self.peers else { return self.here(request, note).await };
        if self.is_inner {
            return match peers.asked(&request) {
                Asked::ByClient => {
                    Peers::take_proof(&mut request);
                    self.here(request, note).await
                }
                Asked::Question => {
                    note.0.lock().operation = "Question".to_owned();
                    Ok(peers.answer(&self.engine, request).await)
                }
                Asked::ByStranger => {
                    let text = "this port is for the gateways of the cluster";
                    let mut response = refused(StatusCode::FORBIDDEN, "AccessDenied", text);
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                    Ok(response)
                }
            };
        }
        let busy = |why: &str| {
            let mut response = refused(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", why);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            response
        };
        match peers.route(&request) {
            Route::Here => self.here(request, note).await,
            Route::There { owner, address } => {
                note.0.lock().operation = "Forwarded".to_owned();
                match peers.forward(&owner, &address, request).await {
                    Ok(response) => Ok(response),
                    Err(error) => Ok(busy(&error.to_string())),
                }
            }
            // Who is not let in is told of nothing else: the names of gateways are not for everybody.
            Route::Nowhere(_) => Ok(busy(
                "the gateway that has these keys is gone, and what it has acknowledged is with it: try again later",
            )),
        }
    }
}

/// The body of a request, which tells whether all of it has been read.
struct Received {
    body: Incoming,
    is_read: Arc<AtomicBool>,
}

impl hyper::body::Body for Received {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) || self.body.is_end_stream() {
            self.is_read.store(true, Ordering::Release);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn no_forms() -> Response<Body> {
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

/// What is written down of a path: anybody may send a long one, signed or not.
fn beginning(path: &str) -> String {
    match path.char_indices().find(|(at, _)| *at >= MOST_LOGGED_BYTES) {
        Some((end, _)) => format!("{}...", &path[..end]),
        None => path.to_owned(),
    }
}

/// Whether it is an upload by a browser's form. `s3s` would take the whole form into memory before it looks for a signature.
fn is_form<T>(request: &Request<T>) -> bool {
    request.method() == hyper::Method::POST
        && request.headers().get_all(CONTENT_TYPE).iter().any(|value| {
            let text = value.as_bytes().trim_ascii_start();
            text.get(..FORM.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(FORM))
        })
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

/// The body of an answer, which is written down when it has been sent.
struct Answer {
    status: Option<StatusCode>,
    body: Body,
    sent_bytes: u64,
    begun: Instant,
    head: Duration,
    id: RequestId,
    method: hyper::Method,
    path: String,
    peer: SocketAddr,
    note: Note,
    /// Given back with the last byte.
    _slot: Option<OwnedSemaphorePermit>,
    connections: Arc<Connections>,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = <Body as hyper::body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
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
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.connections.requests.sent(self.sent_bytes);
        let noted = self.note.0.lock().clone();
        self.connections.access_log.write(&Line {
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
    fn forms_are_known_by_their_type_alone() {
        let request = |method: &str, kind: &str| {
            Request::builder().method(method).uri("/lake").header("Content-Type", kind).body(()).unwrap()
        };
        assert!(is_form(&request("POST", "multipart/form-data; boundary=x")));
        assert!(is_form(&request("POST", " Multipart/Form-DATA;boundary=x")));
        assert!(!is_form(&request("POST", "application/xml")));
        assert!(!is_form(&request("PUT", "multipart/form-data")));
    }

    #[test]
    fn a_long_path_is_cut_before_it_is_written_down() {
        assert_eq!(beginning("/lake/a"), "/lake/a");
        let cut = beginning(&"é".repeat(60_000));
        assert!(cut.len() <= MOST_LOGGED_BYTES + 5 && cut.ends_with("..."), "{}", cut.len());
    }
}
