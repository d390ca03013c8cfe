//! Clients of the gateways: real HTTP over streams of virtual time, signed, and without retries unless an operation
//! is about them. A client tells the
//! model what it begins and what it knows of the end.

mod greedy;
mod http;
mod look;
mod objects;
mod signing;
mod uploads;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::DuplexStream;

use crate::model::{ChangeOutcome, ObjectModel};
use crate::network::SimulatedNetwork;
use crate::script::ClientOperation;
use crate::store::SimulatedStores;
use crate::world::SimulatedWorld;
use http::{HttpReply, HttpRequest, RequestFailure};

pub(crate) use look::verify;
pub(crate) use objects::prepare;

/// A client looks for a gateway that takes its connection for so long.
const CONNECT_WITHIN: Duration = Duration::from_secs(60);
/// Between one request and the next.
const PAUSE: Duration = Duration::from_millis(20);
const BUSY_PAUSE: Duration = Duration::from_millis(1000);
const CONNECT_PAUSE: Duration = Duration::from_millis(500);

/// Odd ones among them, and few, so that operations meet.
const KEYS: [&str; 20] = [
    "a",
    "b",
    "dir/",
    "dir/a",
    "dir/b",
    "dir/sub/a",
    "x//y",
    "raw/a",
    "raw/b",
    "raw/x/a",
    "tmp/a",
    "tmp/\u{10ffff}x",
    "z/a",
    "A",
    "\u{e9}",
    "big/one",
    "big/two",
    "big/three",
    "rename/from",
    "rename/to",
];

/// A client's identity.
#[derive(Clone)]
pub(crate) struct ClientSession {
    pub world: SimulatedWorld,
    pub network: SimulatedNetwork,
    pub model: ObjectModel,
    pub stores: SimulatedStores,
    pub gateways: usize,
    pub client: usize,
    pub id: String,
    pub secret: String,
    pub bucket: String,
}

pub(crate) fn key_of(number: u32) -> &'static str {
    KEYS[number as usize % KEYS.len()]
}

impl ClientSession {
    /// A connection to a gateway, first to the one that this client prefers.
    async fn connect(&self) -> Option<(usize, DuplexStream)> {
        let deadline = self.world.now() + CONNECT_WITHIN;
        loop {
            for step in 0..self.gateways {
                let gateway = (self.client + step) % self.gateways;
                if let Ok(stream) = self.network.connect(gateway).await {
                    return Some((gateway, stream));
                }
            }
            if self.world.now() >= deadline {
                return None;
            }
            self.world.sleep(CONNECT_PAUSE).await;
        }
    }

    async fn exchange(
        &self,
        stream: DuplexStream,
        request: HttpRequest,
    ) -> Result<HttpReply, RequestFailure> {
        let label = request.to_string();
        let reply = http::exchange(self, stream, request).await;
        match &reply {
            Ok(reply) => self.world.note(format_args!(
                "client {}: {label}: {} {} {}",
                self.client,
                reply.status,
                reply.code(),
                reply.body.len()
            )),
            Err(failed) => self.world.note(format_args!("client {}: {label}: {failed:?}", self.client)),
        }
        if reply.as_ref().is_ok_and(|reply| reply.status == 503) {
            IS_BUSY.set(true);
        }
        reply
    }

    /// Asks once. `None` if nobody took the connection.
    async fn ask(&self, request: HttpRequest) -> Option<Result<HttpReply, RequestFailure>> {
        let (_, stream) = self.connect().await?;
        Some(self.exchange(stream, request).await)
    }

    /// A change's outcome from its reply.
    fn answer_of(&self, label: &str, reply: &Result<HttpReply, RequestFailure>) -> ChangeOutcome {
        match reply {
            Ok(reply) if (200..300).contains(&reply.status) && reply.code().is_empty() => ChangeOutcome::Done,
            Ok(reply) if (400..500).contains(&reply.status) => {
                self.check_refusal(label, reply);
                ChangeOutcome::NotDone
            }
            Ok(_) | Err(_) => ChangeOutcome::Unknown,
        }
    }

    /// Refusals that no request here deserves are failures.
    fn check_refusal(&self, label: &str, reply: &HttpReply) {
        let code = reply.code();
        let is_skew = reply.status == 403 && self.model.may_have_skew();
        let is_deserved = matches!(
            (reply.status, code.as_str()),
            (412, _)
                | (404, "NoSuchKey" | "NoSuchUpload" | "")
                | (
                    400,
                    "RequestTimeout"
                        | "EntityTooLarge"
                        | "EntityTooSmall"
                        | "InvalidPart"
                        | "InvalidRequest"
                        | "InvalidArgument"
                )
                | (
                    400,
                    "RequestHeaderSectionTooLarge"
                        | "MetadataTooLarge"
                        | "IncompleteBody"
                        | "MalformedXML"
                        | "MaxMessageLengthExceeded"
                )
                | (413 | 416 | 304, _)
        );
        if !is_skew && !is_deserved {
            self.model.fail(format!("{label}: {} {code}: {}", reply.status, reply.text()));
        }
    }
}

thread_local! {
    /// A gateway has said so since a client has waited for it the last time.
    static IS_BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Carries out an operation, and waits a moment.
pub(crate) async fn perform(operation: &ClientOperation, session: &ClientSession) {
    carry_out(operation, session).await;
    // As clients do after a SlowDown.
    let most = if IS_BUSY.replace(false) { BUSY_PAUSE } else { PAUSE };
    let pause = session.world.with_random(|random| random.delay(Duration::ZERO, most));
    session.world.sleep(pause).await;
}

async fn carry_out(operation: &ClientOperation, session: &ClientSession) {
    let session = Rc::new(session.clone());
    match operation {
        ClientOperation::Put { key, size, condition, headers, framing, pace } => {
            let put = objects::PutOperation {
                key: key_of(*key).to_owned(),
                size: *size,
                condition: *condition,
                headers: *headers,
                framing: *framing,
                pace: *pace,
            };
            objects::put(&session, put).await;
        }
        ClientOperation::Get { key, range, pace } => look::get(&session, key_of(*key), *range, *pace).await,
        ClientOperation::Head { key } => {
            let _ = look::head(&session, key_of(*key)).await;
        }
        ClientOperation::Delete { key } => objects::delete(&session, key_of(*key)).await,
        ClientOperation::DeleteMany { keys } => {
            let mut keys: Vec<&str> = keys.iter().map(|key| key_of(*key)).collect();
            keys.sort_unstable();
            keys.dedup();
            objects::delete_many(&session, &keys).await;
        }
        ClientOperation::Copy { from, to, replaces_headers, condition } => {
            objects::copy(&session, key_of(*from), key_of(*to), *replaces_headers, *condition).await;
        }
        ClientOperation::Upload { key, parts, end } => {
            uploads::upload(&session, key_of(*key), parts, *end).await
        }
        ClientOperation::List { prefix, has_delimiter, page } => {
            let page = (*page).clamp(1, 1000);
            let _ = look::list(&session, look::prefix_of(*prefix), *has_delimiter, page).await;
        }
        ClientOperation::Probe { key, within_ms } => {
            greedy::probe(&session, key_of(*key), Duration::from_millis(*within_ms)).await;
        }
        ClientOperation::Document { bytes, pace } => {
            greedy::document(&session, u64::from(*bytes), *pace).await
        }
        ClientOperation::Forged { key, count } => greedy::forge(&session, key_of(*key), *count).await,
        ClientOperation::Idle { connections, ms } => {
            greedy::idle(&session, *connections, Duration::from_millis(*ms)).await;
        }
        ClientOperation::Begin { key, count, header_bytes } => {
            uploads::begin(&session, key_of(*key), *count, *header_bytes).await;
        }
        ClientOperation::Many { count } => greedy::many(&session, *count).await,
        ClientOperation::Others { key, size } => objects::others(&session, key_of(*key), *size).await,
    }
}

#[cfg(test)]
mod tests;
