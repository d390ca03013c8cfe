//! From one gateway to another: requests of clients as they came, with the client's own signature, and questions of the
//! engine. Both carry a proof that a gateway of the cluster sent them.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base16ct::lower::encode_string as hex;
use bytes::{Bytes, BytesMut};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use openssl::ssl::{SslConnector, SslMethod};
use s3s::path::S3Path;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_openssl::SslStream;
use underlay_sync::Mutex;

use super::standstill::StallDetector;
use crate::config;
use crate::engine::{GatewayEngine, PeerAnswer, PeerQueries, PeerQuestion};
use crate::errors::{GatewayError, GatewayResult};
use crate::model::now_ms;
use crate::ownership::{KeyRoute, SlotOwnership};
use crate::s3::{AddressingStyle, BucketAddressing};

/// The time of the proof, what it is of, and the proof.
const PROOF: HeaderName = HeaderName::from_static("x-underlay-gateway");
/// No bucket can have this name.
const QUESTIONS: &str = "/.underlay/1/ask";
/// The same for the one that waits for no store.
const PINGS: &str = "/.underlay/1/ping";
/// Clocks of gateways may differ as much as those of clients.
const MAX_SKEW_MS: i64 = 15 * 60 * 1000;
const CONNECT: Duration = Duration::from_secs(3);
/// A host that acknowledges nothing for so long is out of reach; the process there may take its time.
const REACH: Duration = Duration::from_secs(15);
const PROBE: Duration = Duration::from_secs(5);
/// A question is answered in so long: one that changes something waits for the store, maybe.
const READ: Duration = Duration::from_secs(60);
const CHANGE: Duration = Duration::from_secs(300);
/// And is here in so long.
const QUESTION: Duration = Duration::from_secs(30);
/// A connection that has been idle for longer may be closed at the other end.
const MAX_IDLE_TIME: Duration = Duration::from_secs(10);
/// A client's request in which nothing has moved for so long, either way, is given up, unless its owner says that it is
/// there: it may have a large object to store before it answers.
const STANDSTILL: Duration = Duration::from_secs(15 * 60);
/// After so many pings without an answer in a row nothing moves any more.
const MAX_PINGS: u32 = 3;
const PING_PAUSE: Duration = Duration::from_secs(10);
const MAX_IDLE_CONNECTIONS: usize = 64;
/// A page of a listing, or some blocks of an object.
const MAX_ANSWER_BYTES: usize = 96 << 20;
const MAX_QUESTION_BYTES: usize = 4 << 20;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type PeerRequestBody = UnsyncBoxBody<Bytes, BoxError>;
/// A connection, with since when it is idle.
type IdleConnection = (Instant, SendRequest<PeerRequestBody>);

/// A connection to another gateway that is none of this machine's sockets.
pub trait PeerStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> PeerStream for S {}

/// How a simulation connects gateways, by the address that they say.
pub type ConnectPeer = dyn Fn(&str) -> std::io::Result<Box<dyn PeerStream>> + Send + Sync;

/// See the module.
pub(crate) struct PeerClients {
    secret: Vec<u8>,
    /// Where gateways speak TLS.
    connector: Option<SslConnector>,
    /// In place of TCP.
    simulated: Option<Box<ConnectPeer>>,
    ownership: Arc<SlotOwnership>,
    /// By address, with since when they are idle.
    kept: Mutex<HashMap<String, Vec<IdleConnection>>>,
    pub(crate) forwarded: AtomicU64,
    standstill: Duration,
}

/// A request from another gateway.
pub(crate) enum PeerRequest {
    /// A request of one of its clients, which is ours to answer.
    ByClient,
    Question,
    /// Nobody of the cluster has sent it.
    ByStranger,
}

/// Keys of requests that concern one connection.
const OF_CONNECTION: [&str; 5] = ["connection", "keep-alive", "proxy-connection", "te", "upgrade"];

fn failed(address: &str, error: impl std::fmt::Display) -> GatewayError {
    tracing::debug!("gateway at {address}: {error}");
    GatewayError::Busy("the gateway that has these keys does not answer: try again later".to_owned())
}

/// The time of the proof that a request has, what it is of, and the proof. Of several, none counts.
pub(super) fn proof_in(headers: &HeaderMap) -> Option<(i64, &str, &str)> {
    let mut values = headers.get_all(&PROOF).iter();
    let (value, None) = (values.next()?.to_str().ok()?, values.next()) else { return None };
    let words: Vec<&str> = value.split(' ').collect();
    let [time_ms, body, proof] = words.as_slice() else { return None };
    Some((time_ms.parse().ok()?, body, proof))
}

impl PeerClients {
    pub(super) fn new(
        config: &config::ClusterConfig,
        has_tls: bool,
        secret: String,
        ownership: Arc<SlotOwnership>,
    ) -> std::result::Result<PeerClients, String> {
        let connector = match has_tls {
            false => None,
            true => {
                let failed = |error: openssl::error::ErrorStack| format!("[cluster]: {error}");
                let mut builder = SslConnector::builder(SslMethod::tls_client()).map_err(failed)?;
                if let Some(path) = &config.authority {
                    builder.set_ca_file(path).map_err(failed)?;
                }
                Some(builder.build())
            }
        };
        Ok(PeerClients {
            secret: secret.into_bytes(),
            connector,
            simulated: None,
            ownership,
            kept: Mutex::new(HashMap::new()),
            forwarded: AtomicU64::new(0),
            standstill: STANDSTILL,
        })
    }

    /// The same, by other connections than TCP's.
    pub(crate) fn connected_by(self, connect: Box<ConnectPeer>) -> PeerClients {
        PeerClients { simulated: Some(connect), ..self }
    }

    fn proof(&self, method: &Method, target: &str, time_ms: i64, body: &str) -> Option<String> {
        // HMAC takes keys of any length.
        let mut hmac = Hmac::<Sha256>::new_from_slice(&self.secret).ok()?;
        hmac.update(format!("{method}\n{target}\n{time_ms}\n{body}").as_bytes());
        Some(hex(&hmac.finalize().into_bytes()))
    }

    fn signed(&self, method: &Method, target: &str, body: &str) -> Option<HeaderValue> {
        let time_ms = now_ms();
        let proof = self.proof(method, target, time_ms, body)?;
        HeaderValue::from_str(&format!("{time_ms} {body} {proof}")).ok()
    }

    /// The kind of a request on the gateways' own port. Of a question, [`answer`](Self::answer) looks at the body as
    /// well.
    pub(crate) fn asked<B>(&self, request: &Request<B>) -> PeerRequest {
        match self.proven_body(request) {
            None => PeerRequest::ByStranger,
            Some(body) if body == "client" => PeerRequest::ByClient,
            Some(_) if Self::is_question(request.uri()) && request.method() == Method::POST => {
                PeerRequest::Question
            }
            Some(_) => PeerRequest::ByStranger,
        }
    }

    /// The body's hash in a request's proof, if it has one.
    fn proven_body<B>(&self, request: &Request<B>) -> Option<String> {
        let (time_ms, body, proof) = proof_in(request.headers())?;
        let right = self.proof(request.method(), &target_of(request.uri()), time_ms, body)?;
        let is_right = proof.len() == right.len() && openssl::memcmp::eq(proof.as_bytes(), right.as_bytes());
        (is_right && now_ms().abs_diff(time_ms) <= MAX_SKEW_MS.unsigned_abs()).then(|| body.to_owned())
    }

    /// Takes the proof off: the rest is the client's.
    pub(crate) fn take_proof<B>(request: &mut Request<B>) {
        request.headers_mut().remove(&PROOF);
    }

    /// Where a request of a client has to go: that is, one that is about one key.
    pub(crate) fn route<B>(&self, request: &Request<B>, addressing: &BucketAddressing) -> KeyRoute {
        match name_in(request, addressing) {
            Some((bucket, key)) => self.ownership.route(&bucket, &key),
            None => KeyRoute::Here,
        }
    }

    async fn connect(&self, address: &str) -> std::result::Result<SendRequest<PeerRequestBody>, BoxError> {
        if let Some(connect) = &self.simulated {
            return start(TokioIo::new(connect(address)?)).await;
        }
        let connect = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            watch(&stream)?;
            let Some(connector) = &self.connector else { return start(TokioIo::new(stream)).await };
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
            let ssl = connector.configure()?.into_ssl(host)?;
            let mut stream = SslStream::new(ssl, stream)?;
            Pin::new(&mut stream).connect().await?;
            start(TokioIo::new(stream)).await
        };
        match tokio::time::timeout(CONNECT, connect).await {
            Ok(connected) => connected,
            Err(_) => Err("no connection in time".into()),
        }
    }

    fn kept(&self, address: &str) -> Option<SendRequest<PeerRequestBody>> {
        let mut idle = self.kept.lock();
        let of_it = idle.get_mut(address)?;
        of_it.retain(|(last_used, sender)| last_used.elapsed() < MAX_IDLE_TIME && !sender.is_closed());
        let index = of_it.iter().position(|(_, sender)| sender.is_ready())?;
        Some(of_it.swap_remove(index).1)
    }

    async fn send(
        &self,
        address: &str,
        request: Request<PeerRequestBody>,
        may_be_kept: bool,
    ) -> std::result::Result<Response<Incoming>, BoxError> {
        let idle = if may_be_kept { self.kept(address) } else { None };
        let mut sender = match idle {
            Some(sender) => sender,
            None => self.connect(address).await?,
        };
        let answer = sender.send_request(request).await?;
        let mut idle = self.kept.lock();
        let of_it = idle.entry(address.to_owned()).or_default();
        if of_it.len() < MAX_IDLE_CONNECTIONS {
            // It is ready again once the answer has been read.
            of_it.push((Instant::now(), sender));
        }
        Ok(answer)
    }

    /// Whether a request is for [`answer`](Self::answer) and not a client's that was sent on.
    pub(crate) fn is_question(uri: &Uri) -> bool {
        uri.path() == QUESTIONS || Self::is_ping(uri)
    }

    /// Whether it asks for nothing but whether somebody is there.
    pub(crate) fn is_ping(uri: &Uri) -> bool {
        uri.path() == PINGS
    }

    /// Sends a client's request to the owner of its key, and hands its answer back as it comes.
    ///
    /// # Errors
    /// `Busy` when there is none, or nothing moves any more: nobody knows then whether it was carried out.
    pub(crate) async fn forward<B>(
        &self,
        owner: &str,
        address: &str,
        request: Request<B>,
    ) -> GatewayResult<Response<s3s::Body>>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.forwarded.fetch_add(1, Ordering::Relaxed);
        let (mut parts, body) = request.into_parts();
        for name in OF_CONNECTION {
            parts.headers.remove(name);
        }
        let target = target_of(&parts.uri);
        parts.uri = target.parse().map_err(|error| failed(address, error))?;
        parts.version = hyper::Version::HTTP_11;
        let proof = self.signed(&parts.method, &target, "client");
        parts.headers.insert(PROOF, proof.ok_or_else(|| failed(address, "no proof"))?);
        let standstill = Arc::new(StallDetector::new(self.standstill));
        let of_request = Arc::clone(&standstill);
        let body = body.map_frame(move |frame| {
            of_request.moves();
            frame
        });
        let request = Request::from_parts(parts, body.map_err(Into::into).boxed_unsync());
        let mut sending = std::pin::pin!(self.send(address, request, true));
        // One that hangs answers no ping. One that is busy may have no place for it just then.
        let (mut pings_failed, mut moved_at) = (0, standstill.moved_at());
        let answer = loop {
            let ping = async {
                if pings_failed > 0 {
                    tokio::time::sleep(PING_PAUSE.min(self.standstill)).await;
                }
                standstill.is_over().await;
                self.ask_at(address, &PeerQuestion::Ping).await
            };
            tokio::select! {
                answer = &mut sending => break answer.map_err(|error| failed(address, error))?,
                () = self.ownership.gone(owner) => return Err(failed(address, "it is gone")),
                pong = ping => match pong {
                    Ok(_) => {
                        standstill.moves();
                        pings_failed = 0;
                    }
                    // It was later than the last one that failed.
                    Err(_) if moved_at != standstill.moved_at() => {
                        (pings_failed, moved_at) = (1, standstill.moved_at());
                    }
                    Err(_) if pings_failed + 1 < MAX_PINGS => pings_failed += 1,
                    Err(_) => return Err(failed(address, "nothing moves any more")),
                },
            }
        };
        standstill.moves();
        let (mut parts, body) = answer.into_parts();
        for name in OF_CONNECTION {
            parts.headers.remove(name);
        }
        // One that stops in the middle must not keep the client forever.
        let (ownership, owner) = (Arc::clone(&self.ownership), owner.to_owned());
        let frames = futures_util::stream::unfold(Some(body), move |body| {
            let (ownership, owner, standstill) =
                (Arc::clone(&ownership), owner.clone(), Arc::clone(&standstill));
            async move {
                let mut body = body?;
                // However long the client took to read what it had.
                standstill.moves();
                tokio::select! {
                    biased;
                    frame = body.frame() => {
                        let frame = frame?.map_err(|error| GatewayError::Store(format!("the other gateway broke off: {error}")));
                        Some((frame, Some(body)))
                    }
                    () = ownership.gone(&owner) => {
                        Some((Err(GatewayError::Store("the other gateway is gone".to_owned())), None))
                    }
                    () = standstill.is_over() => {
                        Some((Err(GatewayError::Store("the other gateway stands still".to_owned())), None))
                    }
                }
            }
        });
        let body = s3s::Body::http_body_unsync(SizedBody {
            length: parts
                .headers
                .get(hyper::header::CONTENT_LENGTH)
                .and_then(|value| value.to_str().ok()?.parse().ok()),
            frames: Box::pin(frames),
        });
        Ok(Response::from_parts(parts, body))
    }

    async fn ask_at(&self, address: &str, question: &PeerQuestion) -> GatewayResult<PeerAnswer> {
        let bytes = postcard::to_allocvec(question).map_err(|error| failed(address, error))?;
        let path = if matches!(question, PeerQuestion::Ping) { PINGS } else { QUESTIONS };
        let of_body = hex(&Sha256::digest(&bytes));
        // A connection that was kept may be closed by now. Only what changes nothing is asked again, and the rest on a
        // connection of its own.
        let (reads, mut last_error) = (question.only_reads(), None);
        let limit = if reads { READ } else { CHANGE };
        for _ in 0..if reads { 2 } else { 1 } {
            let proof =
                self.signed(&Method::POST, path, &of_body).ok_or_else(|| failed(address, "no proof"))?;
            let body: PeerRequestBody =
                Full::new(Bytes::from(bytes.clone())).map_err(|never| match never {}).boxed_unsync();
            let mut request = Request::new(body);
            (*request.method_mut(), *request.uri_mut()) = (Method::POST, Uri::from_static(path));
            request.headers_mut().insert(PROOF, proof);
            request.headers_mut().insert(HOST, HeaderValue::from_static("gateway"));
            let answered = async {
                match self.send(address, request, reads).await {
                    Ok(answer) if answer.status() == StatusCode::OK => {
                        let bytes = read(answer.into_body(), MAX_ANSWER_BYTES).await;
                        Ok(bytes.map_err(|error| failed(address, error)))
                    }
                    Ok(answer) => Ok(Err(failed(address, format_args!("status {}", answer.status())))),
                    Err(error) => Err(error),
                }
            };
            match tokio::time::timeout(limit, answered).await {
                Ok(Ok(bytes)) => {
                    return postcard::from_bytes::<GatewayResult<PeerAnswer>>(&bytes?)
                        .map_err(|error| failed(address, error))?;
                }
                Ok(Err(error)) => last_error = Some(error),
                Err(_) => return Err(failed(address, "no answer in time")),
            }
        }
        Err(failed(address, last_error.unwrap_or_else(|| "no answer".into())))
    }

    /// Answers a question, once it has been looked at whether it is one of the cluster's.
    pub(crate) async fn answer<B>(
        &self,
        engine: &Arc<GatewayEngine>,
        request: Request<B>,
    ) -> Response<s3s::Body>
    where
        B: Body<Data = Bytes> + Send + 'static + Unpin,
        B::Error: std::fmt::Display,
    {
        let respond = |status: StatusCode, bytes: Vec<u8>| {
            let mut response = Response::new(s3s::Body::from(Bytes::from(bytes)));
            *response.status_mut() = status;
            if status != StatusCode::OK {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            response
        };
        let (proven, is_ping) = (self.proven_body(&request), Self::is_ping(request.uri()));
        let body = read(request.into_body(), MAX_QUESTION_BYTES);
        let Ok(Ok(bytes)) = tokio::time::timeout(QUESTION, body).await else {
            return respond(StatusCode::BAD_REQUEST, Vec::new());
        };
        if proven != Some(hex(&Sha256::digest(&bytes))) {
            return respond(StatusCode::FORBIDDEN, Vec::new());
        }
        let Ok(question) = postcard::from_bytes::<PeerQuestion>(&bytes) else {
            return respond(StatusCode::BAD_REQUEST, Vec::new());
        };
        if is_ping != matches!(question, PeerQuestion::Ping) {
            return respond(StatusCode::BAD_REQUEST, Vec::new());
        }
        let answer = engine.answer(question).await;
        match postcard::to_allocvec(&answer) {
            Ok(bytes) => respond(StatusCode::OK, bytes),
            Err(_) => respond(StatusCode::INTERNAL_SERVER_ERROR, Vec::new()),
        }
    }
}

#[async_trait]
impl PeerQueries for PeerClients {
    async fn ask(&self, owner: &str, question: &PeerQuestion) -> GatewayResult<PeerAnswer> {
        let address = self.ownership.address_of(owner).ok_or_else(|| failed(owner, "it is gone"))?;
        tokio::select! {
            answer = self.ask_at(&address, question) => answer,
            () = self.ownership.gone(owner) => Err(failed(&address, "it is gone")),
        }
    }
}

/// A body of a known length, so that the answer has it too.
struct SizedBody<S> {
    length: Option<u64>,
    frames: Pin<Box<S>>,
}

impl<S: futures_util::Stream<Item = GatewayResult<Frame<Bytes>>>> Body for SizedBody<S> {
    type Data = Bytes;
    type Error = GatewayError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<GatewayResult<Frame<Bytes>>>> {
        let polled = self.frames.as_mut().poll_next(context);
        if let std::task::Poll::Ready(Some(Ok(frame))) = &polled
            && let (Some(data), Some(length)) = (frame.data_ref(), self.length)
        {
            self.length = Some(length.saturating_sub(data.len() as u64));
        }
        polled
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.length.map_or_else(hyper::body::SizeHint::default, hyper::body::SizeHint::with_exact)
    }
}

/// Has the kernel break off what leads to a host that is out of reach: without this it would wait for a quarter of an
/// hour, or forever.
fn watch(stream: &TcpStream) -> std::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE)?;
    sockopt::set_tcp_keepintvl(stream, PROBE)?;
    sockopt::set_tcp_keepcnt(stream, 2)?;
    sockopt::set_tcp_user_timeout(stream, u32::try_from(REACH.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}

async fn start(
    stream: impl hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
) -> std::result::Result<SendRequest<PeerRequestBody>, BoxError> {
    let (sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    tokio::spawn(async move {
        // The sender of the request gets the error.
        drop(connection.await);
    });
    Ok(sender)
}

async fn read<B: Body<Data = Bytes> + Unpin>(
    mut body: B,
    most_bytes: usize,
) -> std::result::Result<Bytes, String>
where
    B::Error: std::fmt::Display,
{
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| error.to_string())?.into_data() else { continue };
        if bytes.len() + data.len() > most_bytes {
            return Err("too long".to_owned());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

fn target_of(uri: &Uri) -> String {
    uri.path_and_query().map_or("/", hyper::http::uri::PathAndQuery::as_str).to_owned()
}

/// Bucket and key that a request of a client names, by its host and its path.
fn name_in<B>(request: &Request<B>, addressing: &BucketAddressing) -> Option<(String, String)> {
    name_of(&addressing.style_in(request.headers()).ok()?, request.uri().path())
}

/// Bucket and key of a path. Where another gateway should ever read another key, it says that the key is not its own.
pub(super) fn name_of(style: &AddressingStyle, path: &str) -> Option<(String, String)> {
    match style.target(path) {
        Ok(S3Path::Object { bucket, key }) => Some((bucket.into(), key.into())),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
