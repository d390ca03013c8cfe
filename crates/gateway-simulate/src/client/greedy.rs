//! Clients that want too much, and one that has to be served beside them.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::io::AsyncReadExt as _;

use super::http::{self, HttpRequest};
use super::objects::{self, PutOperation};
use super::{ClientSession, http::RequestFailure};
use crate::script::{BodyFraming, BodyPace};

/// The longest document that is taken, with what the streams and the buffers between may hold.
const MAX_DOCUMENT_BYTES: u64 = (4 << 20) + (1 << 20);
const DOCUMENT_PIECE: usize = 64 << 10;
const PROBE_BYTES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(500);
/// Small objects that are on their way at the same time.
const MANY_AT_ONCE: u32 = 8;
/// Where a gateway can't start for want of its store, each of them takes seconds to break off.
const MANY_WITHIN: Duration = Duration::from_secs(1800);

/// Puts a small object and gets it, as often as it takes. It fails if that takes too long.
pub(super) async fn probe(session: &ClientSession, key: &str, limit: Duration) {
    let began = session.world.now();
    let is_late = || match session.world.sound_since() {
        Some(fault_end) => session.world.now() > fault_end.max(began) + limit,
        // A full disk, or a gateway that is down, may serve nobody.
        None => false,
    };
    while !objects::put(session, PutOperation::plain(key, PROBE_BYTES)).await {
        if session.model.failure().is_some() {
            return;
        }
        if is_late() {
            return session.model.fail(format!("a client was not served within {limit:?}: PUT {key:?}"));
        }
        session.world.sleep(PAUSE).await;
    }
    while !super::look::head(session, key).await {
        if session.model.failure().is_some() {
            return;
        }
        if is_late() {
            return session.model.fail(format!("a client was not served within {limit:?}: HEAD {key:?}"));
        }
        session.world.sleep(PAUSE).await;
    }
}

/// Sends a document as one chunk that is longer than any document may be.
pub(super) async fn document(session: &ClientSession, bytes: u64, pace: BodyPace) {
    let Some((_, mut stream)) = session.connect().await else { return };
    let mut request = HttpRequest::new("POST", "").query("delete", "").body(Bytes::from_static(b" "));
    request.framing = BodyFraming::Trailer { chunk_bytes: 1 };
    let (head, _) = request.framed(session);
    // The lengths are not covered by the signature of the chunks.
    let head = head
        .lines()
        .filter(|line| !line.starts_with("content-length"))
        .map(|line| format!("{line}\r\n"))
        .collect::<String>()
        .trim_end()
        .to_owned();
    let head = format!("{head}\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n", bytes + 32);
    let sending = async {
        let mut sent_bytes = 0;
        http::send(session, &mut stream, head.as_bytes(), BodyPace::Full).await?;
        http::send(session, &mut stream, format!("{bytes:x}\r\n").as_bytes(), BodyPace::Full).await?;
        let piece = vec![b' '; DOCUMENT_PIECE];
        while sent_bytes < bytes {
            http::send(session, &mut stream, &piece, pace).await?;
            sent_bytes += piece.len() as u64;
            // What comes behind an answer is discarded.
            if stream.read(&mut [0; 1]).now_or_never().is_some() {
                break;
            }
            if sent_bytes > MAX_DOCUMENT_BYTES {
                session.model.fail(format!(
                    "a gateway took {sent_bytes} bytes of a document, of 4 MiB that one may have"
                ));
                break;
            }
        }
        Ok::<u64, RequestFailure>(sent_bytes)
    };
    let sent_bytes = sending.await;
    session.world.note(format_args!("client {}: a document: {sent_bytes:?}", session.client));
}

/// Asks without a right to anything.
pub(super) async fn forge(session: &ClientSession, key: &str, count: u32) {
    for number in 0..count.min(10_000) {
        let mut request = HttpRequest::new(if number % 2 == 0 { "GET" } else { "DELETE" }, key);
        request.is_forged = true;
        let Some(reply) = session.ask(request).await else { return };
        if let Ok(reply) = reply
            && !matches!(reply.status, 400 | 403 | 503)
        {
            return session
                .model
                .fail(format!("a request with a signature that is none is answered by {}", reply.status));
        }
    }
}

/// Holds connections that send nothing.
pub(super) async fn idle(session: &ClientSession, connections: u32, time: Duration) {
    let mut streams = Vec::new();
    for _ in 0..connections.min(5000) {
        if let Some(connection) = session.connect().await {
            streams.push(connection);
        }
    }
    session.world.sleep(time).await;
}

fn name(number: u32) -> String {
    format!("many/{number:06}")
}

/// Small objects, which pile up here while the store is down.
pub(super) async fn many(session: &ClientSession, count: u32) {
    let begun = session.world.now();
    let lanes = (0..MANY_AT_ONCE).map(|lane| async move {
        let mut stored = 0_u64;
        for number in (lane..count.min(200_000)).step_by(MANY_AT_ONCE as usize) {
            if session.world.now() - begun > MANY_WITHIN {
                break;
            }
            stored += u64::from(objects::put(session, PutOperation::plain(&name(number), 16)).await);
        }
        stored
    });
    let accepted: u64 = join_all(lanes).await.into_iter().sum();
    let contents = session.stores.contents(&session.bucket);
    let pending =
        accepted.saturating_sub(contents.keys().filter(|key| key.starts_with("many/")).count() as u64);
    let limit = session.model.settings().memory_bytes.div_ceil(1024).max(16 << 10) * session.gateways as u64;
    let duration = session.world.now() - begun;
    let ending = if duration > MANY_WITHIN { ", broken off" } else { "" };
    session.world.note(format_args!(
        "client {}: {accepted} of {count} small objects in {duration:?}{ending}",
        session.client
    ));
    if pending > limit + u64::from(MANY_AT_ONCE) {
        session.model.fail(format!("{pending} names are pending, of {limit} that may be"));
    }
}
