//! One request on one connection, at any pace.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};

use super::ClientSession;
use super::signing::{SigningInput, base64_of, escaped, sha256};
use crate::script::{BodyFraming, BodyPace};

/// By which address clients know a gateway.
const HOST: &str = "127.0.0.1:9000";
/// How long a client waits, beside what its own pace takes.
const REPLY_TIMEOUT: Duration = Duration::from_secs(400);
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Longer bodies are not hashed before they are sent.
const MAX_HASHED_BYTES: usize = 1 << 20;
/// A slow peer moves so often.
const STEP: Duration = Duration::from_millis(250);
const STALLED_BEGINS_WITH: usize = 10;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestFailure {
    /// The connection ended before the answer was whole.
    Broken,
    /// The client had no more patience.
    Late,
    /// The client went away, as it meant to.
    Left,
}

/// An answer that came whole.
#[derive(Clone, Debug)]
pub(super) struct HttpReply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
}

impl HttpReply {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body[..self.body.len().min(2000)]).into_owned()
    }

    /// Of an error, also where the status was sent before it was known.
    pub(super) fn code(&self) -> String {
        let text = self.text();
        match text.contains("<Error>") {
            true => tags(&text, "Code").into_iter().next().unwrap_or_else(|| "an error".to_owned()),
            false => String::new(),
        }
    }
}

/// The texts between all tags of this name.
pub(super) fn tags(text: &str, name: &str) -> Vec<String> {
    let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
    text.split(&begin)
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(&end)?.0.replace("&quot;", "\"").replace("&amp;", "&")))
        .collect()
}

/// A request.
pub(super) struct HttpRequest {
    pub(super) method: &'static str,
    /// Of the bucket, if it is empty.
    pub(super) key: String,
    /// In order.
    pub(super) query: Vec<(String, String)>,
    /// In small letters.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
    pub(super) framing: BodyFraming,
    /// Its signature is none.
    pub(super) is_forged: bool,
    /// Of the body.
    pub(super) sends: BodyPace,
    /// Of the answer.
    pub(super) reads: BodyPace,
}

impl fmt::Display for HttpRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {:?}", self.method, self.key, self.query)
    }
}

impl HttpRequest {
    pub(super) fn new(method: &'static str, key: &str) -> HttpRequest {
        HttpRequest {
            method,
            key: key.to_owned(),
            query: Vec::new(),
            headers: Vec::new(),
            body: Bytes::new(),
            framing: BodyFraming::Whole,
            is_forged: false,
            sends: BodyPace::Full,
            reads: BodyPace::Full,
        }
    }

    pub(super) fn query(mut self, name: &str, value: &str) -> HttpRequest {
        self.query.push((name.to_owned(), value.to_owned()));
        self.query.sort();
        self
    }

    pub(super) fn header(mut self, name: &str, value: &str) -> HttpRequest {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(super) fn body(self, body: Bytes) -> HttpRequest {
        HttpRequest { body, ..self }
    }

    /// The head, and the body as it goes over the wire.
    pub(super) fn framed(mut self, session: &ClientSession) -> (String, Bytes) {
        let path = match self.key.as_str() {
            "" => format!("/{}", session.bucket),
            key => format!("/{}/{}", session.bucket, escaped(key, true)),
        };
        let pair =
            |(name, value): &(String, String)| format!("{}={}", escaped(name, false), escaped(value, false));
        let query = self.query.iter().map(pair).collect::<Vec<_>>().join("&");
        let hash = match self.framing {
            BodyFraming::Whole if self.body.len() <= MAX_HASHED_BYTES => sha256(&self.body),
            BodyFraming::Whole => "UNSIGNED-PAYLOAD".to_owned(),
            BodyFraming::Signed { .. } => "STREAMING-AWS4-HMAC-SHA256-PAYLOAD".to_owned(),
            BodyFraming::Trailer { .. } => "STREAMING-UNSIGNED-PAYLOAD-TRAILER".to_owned(),
        };
        // Before signing, which covers these headers.
        if self.framing != BodyFraming::Whole {
            let length = self.body.len().to_string();
            self.headers.push(("content-encoding".to_owned(), "aws-chunked".to_owned()));
            self.headers.push(("x-amz-decoded-content-length".to_owned(), length));
        }
        if let BodyFraming::Trailer { .. } = self.framing {
            self.headers.push(("x-amz-trailer".to_owned(), "x-amz-checksum-crc32c".to_owned()));
        }
        let signing = SigningInput {
            id: &session.id,
            secret: &session.secret,
            host: HOST,
            method: self.method,
            path: &path,
            query: &query,
            headers: &self.headers,
            hash: &hash,
        };
        let signed = signing.sign();
        let body = match self.framing {
            BodyFraming::Whole => self.body.clone(),
            BodyFraming::Signed { chunk_bytes } => {
                let mut former = signed.signature.clone();
                // The empty chunk at the end is signed, too.
                let chunks = self.body.chunks(chunk_bytes.max(1) as usize).chain([&[][..]]);
                let mut body = Vec::with_capacity(self.body.len() + 200);
                for chunk in chunks {
                    former = signed.sign_chunk(&former, chunk);
                    body.extend_from_slice(
                        format!("{:x};chunk-signature={former}\r\n", chunk.len()).as_bytes(),
                    );
                    body.extend_from_slice(chunk);
                    body.extend_from_slice(b"\r\n");
                }
                Bytes::from(body)
            }
            BodyFraming::Trailer { chunk_bytes } => {
                let mut body = Vec::with_capacity(self.body.len() + 200);
                for chunk in self.body.chunks(chunk_bytes.max(1) as usize) {
                    body.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    body.extend_from_slice(chunk);
                    body.extend_from_slice(b"\r\n");
                }
                let sum = base64_of(&crc_fast::crc32_iscsi(&self.body).to_be_bytes());
                body.extend_from_slice(format!("0\r\nx-amz-checksum-crc32c:{sum}\r\n\r\n").as_bytes());
                Bytes::from(body)
            }
        };
        let target = if query.is_empty() { path } else { format!("{path}?{query}") };
        let mut head = format!("{} {target} HTTP/1.1\r\n", self.method);
        for (name, value) in &signed.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if self.is_forged {
            // A digit more than a signature has: surely not the right one.
            head = head.replace("Signature=", "Signature=0");
        }
        head.push_str(&format!("content-length: {}\r\nconnection: close\r\n\r\n", body.len()));
        (head, body)
    }
}

/// How long a peer of this pace takes for so many bytes, on its own account.
fn time_of(pace: BodyPace, bytes: u64) -> Duration {
    match pace {
        BodyPace::Full => Duration::ZERO,
        BodyPace::Slow { bytes_per_s } => Duration::from_secs(bytes / u64::from(bytes_per_s.max(1)) + 1),
        BodyPace::Stalled { ms } => Duration::from_millis(ms),
    }
}

async fn within<T>(
    session: &ClientSession,
    time: Duration,
    work: impl Future<Output = Result<T, RequestFailure>>,
) -> Result<T, RequestFailure> {
    let (work, sleep) = (std::pin::pin!(work), std::pin::pin!(session.world.sleep(time)));
    match select(work, sleep).await {
        Either::Left((outcome, _)) => outcome,
        Either::Right(_) => Err(RequestFailure::Late),
    }
}

pub(super) async fn exchange(
    session: &ClientSession,
    stream: DuplexStream,
    request: HttpRequest,
) -> Result<HttpReply, RequestFailure> {
    let (is_head, sends, reads) = (request.method == "HEAD", request.sends, request.reads);
    let (head, body) = request.framed(session);
    // An answer may be as long as the longest object.
    let time = REPLY_TIMEOUT
        + time_of(sends, body.len() as u64)
        + time_of(reads, 256 << 20).min(Duration::from_secs(7200));
    within(session, time, async {
        let (mut read, mut write) = tokio::io::split(stream);
        let sending = async {
            send(session, &mut write, head.as_bytes(), BodyPace::Full).await?;
            send(session, &mut write, &body, sends).await
        };
        let reading = receive(session, &mut read, is_head, reads);
        let (sending, reading) = (std::pin::pin!(sending), std::pin::pin!(reading));
        match select(sending, reading).await {
            Either::Left((Err(RequestFailure::Left), _)) => Err(RequestFailure::Left),
            // An answer may be there although not all was taken.
            Either::Left((_, reading)) => reading.await,
            Either::Right((reply, _)) => reply,
        }
    })
    .await
}

/// Writes at a pace. A stalled one leaves in the end.
pub(super) async fn send(
    session: &ClientSession,
    write: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    pace: BodyPace,
) -> Result<(), RequestFailure> {
    let broken = |_| RequestFailure::Broken;
    match pace {
        BodyPace::Full => write.write_all(bytes).await.map_err(broken)?,
        BodyPace::Slow { bytes_per_s } => {
            let step = (u64::from(bytes_per_s) * STEP.as_millis() as u64 / 1000).max(1) as usize;
            let pause = STEP.max(Duration::from_millis(1000 / u64::from(bytes_per_s.max(1))));
            for piece in bytes.chunks(step) {
                write.write_all(piece).await.map_err(broken)?;
                session.world.sleep(pause).await;
            }
        }
        BodyPace::Stalled { ms } => {
            write.write_all(&bytes[..bytes.len().min(STALLED_BEGINS_WITH)]).await.map_err(broken)?;
            session.world.sleep(Duration::from_millis(ms)).await;
            return Err(RequestFailure::Left);
        }
    }
    write.flush().await.map_err(broken)
}

/// Some bytes more, at a pace. 0 at the end.
async fn read_some(
    session: &ClientSession,
    read: &mut (impl AsyncRead + Unpin),
    buffer: &mut [u8],
    pace: BodyPace,
) -> Result<usize, RequestFailure> {
    match pace {
        BodyPace::Full => read.read(buffer).await.map_err(|_| RequestFailure::Broken),
        BodyPace::Slow { bytes_per_s } => {
            session.world.sleep(STEP).await;
            let step = (u64::from(bytes_per_s) * STEP.as_millis() as u64 / 1000).max(1) as usize;
            let length = buffer.len().min(step);
            read.read(&mut buffer[..length]).await.map_err(|_| RequestFailure::Broken)
        }
        BodyPace::Stalled { ms } => {
            session.world.sleep(Duration::from_millis(ms)).await;
            Err(RequestFailure::Left)
        }
    }
}

async fn receive(
    session: &ClientSession,
    read: &mut (impl AsyncRead + Unpin),
    is_head: bool,
    pace: BodyPace,
) -> Result<HttpReply, RequestFailure> {
    let mut received = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    let end = loop {
        let from = received.len().saturating_sub(3);
        let length = read.read(&mut buffer).await.map_err(|_| RequestFailure::Broken)?;
        if length == 0 || received.len() > MAX_HEAD_BYTES {
            return Err(RequestFailure::Broken);
        }
        received.extend_from_slice(&buffer[..length]);
        if let Some(position) = received[from..].windows(4).position(|window| window == b"\r\n\r\n") {
            break from + position;
        }
    };
    let text = String::from_utf8_lossy(&received[..end]).into_owned();
    let mut body = received.split_off(end + 4);
    let mut lines = text.lines();
    let status =
        lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).ok_or(RequestFailure::Broken)?;
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut reply = HttpReply { status, headers, body: Bytes::new() };
    if is_head || matches!(status, 204 | 304) {
        return Ok(reply);
    }
    let length = reply.header("content-length").and_then(|length| length.parse::<usize>().ok());
    let is_chunked = reply.header("transfer-encoding").is_some_and(|value| value.contains("chunked"));
    // Until the end of the connection, where neither says how long it is: the client asks for that.
    while length.is_none_or(|length| body.len() < length) {
        let length = read_some(session, read, &mut buffer, pace).await?;
        if length == 0 {
            break;
        }
        body.extend_from_slice(&buffer[..length]);
    }
    if length.is_some_and(|length| body.len() != length) {
        return Err(RequestFailure::Broken);
    }
    reply.body = match is_chunked {
        true => unchunked(&body).ok_or(RequestFailure::Broken)?.into(),
        false => body.into(),
    };
    Ok(reply)
}

fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?.trim(), 16).ok()?;
        rest = &rest[end + 2..];
        if length == 0 {
            return Some(whole);
        }
        whole.extend_from_slice(rest.get(..length)?);
        rest = rest.get(length + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_chunks_are_joined_and_need_an_end() {
        assert_eq!(unchunked(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").unwrap(), b"abcde");
        assert_eq!(unchunked(b"3\r\nabc\r\n"), None);
        assert_eq!(unchunked(b"9\r\nabc\r\n0\r\n\r\n"), None);
    }

    #[test]
    fn tags_are_found_where_they_are() {
        let text = "<A><Key>a&amp;b</Key><ETag>&quot;x&quot;</ETag><Key>c</Key></A>";
        assert_eq!(tags(text, "Key"), ["a&b", "c"]);
        assert_eq!(tags(text, "ETag"), ["\"x\""]);
    }
}
