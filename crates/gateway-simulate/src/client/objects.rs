//! Changes of whole objects.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use object_store::{Attribute, Attributes};
use openssl::hash::{MessageDigest, hash};
use underlay_gateway::store::{BackendKind, path_of};

use super::ClientSession;
use super::http::{HttpReply, HttpRequest, tags};
use super::signing::{base64_of, escaped};
use crate::model::{BegunChange, ChangeOutcome, MAX_SENT_WHOLE_BYTES, ObjectVersion};
use crate::script::{BodyFraming, BodyPace, ClientCondition, ClientHeaders, RuleConsistency, ScriptSetup};
use crate::store::name_of;

/// More headers than this no store takes, and the gateway says so at once.
const MAX_HEADER_BYTES: u32 = 7 << 10;
/// A body that moves as fast as this is not given up, unless something is short.
const FAST_ENOUGH_BYTES_PER_S: u32 = 2 << 10;

/// Of objects on their way to a store, however little memory there is.
const MIN_IN_FLIGHT_BYTES: u64 = 32 << 20;
/// Parts of clients that go to the store at the same time.
const HELD_SLACK_BYTES: u64 = 8 << 20;

/// Of a body in one chunk: shorter ones fit what a connection may have in memory.
const MIN_WATCHED_BYTES: u32 = 2 << 20;
const MIN_WRITTEN_BYTES: u64 = 512 << 10;

pub(super) struct PutOperation {
    pub(super) key: String,
    pub(super) size: u32,
    pub(super) condition: ClientCondition,
    pub(super) headers: ClientHeaders,
    pub(super) framing: BodyFraming,
    pub(super) pace: BodyPace,
}

impl PutOperation {
    pub(super) fn plain(key: &str, size: u32) -> PutOperation {
        PutOperation {
            key: key.to_owned(),
            size,
            condition: ClientCondition::None,
            headers: ClientHeaders::Plain,
            framing: BodyFraming::Whole,
            pace: BodyPace::Full,
        }
    }
}

pub(super) fn md5_of(bytes: &[u8]) -> String {
    let sum = hash(MessageDigest::md5(), bytes).map(|sum| sum.to_vec()).unwrap_or_default();
    base16ct::lower::encode_string(&sum)
}

impl ClientSession {
    /// A version whose bytes and headers nothing else has.
    pub(super) fn fresh(&self, size: u64) -> (ObjectVersion, Bytes) {
        let content = self.model.fresh(size);
        let bytes = content.bytes();
        let id = self.model.fresh_id();
        (ObjectVersion { content, etag: Some(md5_of(&bytes)), id: Some(id) }, bytes)
    }

    /// The ETag that a condition names, if it names one that there may be.
    fn etag_for(&self, key: &str, condition: ClientCondition) -> Option<String> {
        let start = self.model.begin_read();
        let is_wanted = condition == ClientCondition::IfSame && !self.model.has_etags_of_its_own();
        let version = self.model.versions(key, start).into_iter().next().filter(|_| is_wanted)?;
        // That of a longer one is the store's own at times, which sends it in parts.
        let is_known = |etag: &String| version.content.size() <= MAX_SENT_WHOLE_BYTES && !etag.contains('-');
        version.etag.clone().filter(is_known)
    }
}

/// A request on a condition, and the ETag that it names.
fn on_condition(
    session: &ClientSession,
    request: HttpRequest,
    key: &str,
    condition: ClientCondition,
) -> (HttpRequest, Option<String>) {
    match condition {
        ClientCondition::None => (request, None),
        ClientCondition::IfAbsent => (request.header("if-none-match", "*"), None),
        ClientCondition::IfSame => match session.etag_for(key, condition) {
            Some(etag) => (request.header("if-match", &format!("\"{etag}\"")), Some(etag)),
            None => (request, None),
        },
    }
}

/// Whether a condition can have had this outcome.
fn check_condition(
    session: &ClientSession,
    begun: &BegunChange,
    condition: ClientCondition,
    etag: Option<&str>,
    answer: &ChangeOutcome,
    reply: &HttpReply,
) {
    let (may_be_nothing, versions) = session.model.may_have_been(begun);
    let is_it =
        |version: &ObjectVersion| version.etag.as_deref().is_none_or(|expected| etag == Some(expected));
    let (may_hold, may_fail) = match (condition, etag) {
        (ClientCondition::IfAbsent, _) => (may_be_nothing, !versions.is_empty()),
        (ClientCondition::IfSame, Some(_)) => {
            let is_other = |version: &ObjectVersion| version.etag.is_none() || !is_it(version);
            (versions.iter().any(is_it), may_be_nothing || versions.iter().any(is_other))
        }
        (ClientCondition::None | ClientCondition::IfSame, _) => return,
    };
    let label = format!("a write on the condition {condition:?} of {etag:?}");
    if *answer == ChangeOutcome::Done && !may_hold {
        session.model.fail(format!("{label} succeeded, and it can't have held: {begun:?}"));
    }
    if reply.status == 412 && !may_fail {
        session.model.fail(format!("{label} failed, and it held: {begun:?}"));
    }
}

/// How much reaches a local disk while most of a long chunk comes slowly: what does not is held in memory.
fn watch_one_chunk(
    session: &ClientSession,
    key: &str,
    (framing, pace): (BodyFraming, BodyPace),
    size: u32,
) -> Option<Rc<Cell<u64>>> {
    let (
        BodyFraming::Signed { chunk_bytes } | BodyFraming::Trailer { chunk_bytes },
        BodyPace::Slow { bytes_per_s },
    ) = (framing, pace)
    else {
        return None;
    };
    let is_exclusive = session.model.consistency(key) == RuleConsistency::Exclusive;
    if chunk_bytes < size || size < MIN_WATCHED_BYTES || !is_exclusive {
        return None;
    }
    let written = Rc::new(Cell::new(u64::MAX));
    let (noted, world, before) = (Rc::clone(&written), session.world.clone(), session.world.written_bytes());
    let most_of_it = Duration::from_secs(u64::from(size / bytes_per_s.max(1)) * 4 / 5);
    tokio::task::spawn_local(async move {
        world.sleep(most_of_it).await;
        noted.set(world.written_bytes() - before);
    });
    Some(written)
}

pub(super) async fn put(session: &ClientSession, put: PutOperation) -> bool {
    let PutOperation { key, size, condition, headers, framing, pace } = put;
    let (version, bytes) = session.fresh(u64::from(size));
    let id = version.id.clone().unwrap_or_default();
    let mut request = HttpRequest::new("PUT", &key).body(bytes).header("x-amz-meta-id", &id);
    request.framing = framing;
    request.sends = pace;
    request = match headers {
        ClientHeaders::Plain => request,
        ClientHeaders::EncodedLineFeed => request.header("x-amz-meta-word", "=?UTF-8?B?YQpi?="),
        ClientHeaders::EncodedWord => request.header("x-amz-meta-word", "=?UTF-8?B?w6k=?="),
        ClientHeaders::Long { bytes } => {
            request.header("content-disposition", &"x".repeat(bytes.min(60_000) as usize))
        }
    };
    let Some((gateway, stream)) = session.connect().await else { return false };
    let (request, etag) = on_condition(session, request, &key, condition);
    let begun = session.model.begin_put(&key, gateway, version);
    let watched = watch_one_chunk(session, &key, (framing, pace), size);
    let reply = session.exchange(stream, request).await;
    let label = format!("PUT {key:?}");
    let answer = match &reply {
        // Its own refusals are deserved.
        Ok(reply) if reply.status == 400 && headers != ClientHeaders::Plain => ChangeOutcome::NotDone,
        reply => session.answer_of(&label, reply),
    };
    if let Some(written) = watched.map(|written| written.get()).filter(|written| *written < MIN_WRITTEN_BYTES)
        && answer == ChangeOutcome::Done
    {
        session.model.fail(format!(
            "{label}: {written} bytes are on the disk when most of a chunk of {size} bytes has come"
        ));
    }
    if let Ok(reply) = &reply {
        check_condition(session, &begun, condition, etag.as_deref(), &answer, reply);
        let is_too_slow = match pace {
            BodyPace::Full => false,
            BodyPace::Slow { bytes_per_s } => bytes_per_s < FAST_ENOUGH_BYTES_PER_S,
            BodyPace::Stalled { .. } => true,
        };
        if reply.code() == "RequestTimeout" && !is_too_slow {
            session.model.fail(format!("{label}: given up although it moved at {pace:?}: {}", reply.text()));
        }
        match headers {
            ClientHeaders::EncodedLineFeed if answer == ChangeOutcome::Done => {
                session.model.note_odd_headers(&key);
            }
            ClientHeaders::Long { bytes } if answer == ChangeOutcome::Done && bytes > MAX_HEADER_BYTES => {
                session.model.note_odd_headers(&key);
            }
            _ => {}
        }
    }
    let etag = reply.as_ref().ok().and_then(|reply| reply.header("etag"));
    session.model.end(&begun, answer.clone(), etag);
    answer == ChangeOutcome::Done
}

pub(super) async fn delete(session: &ClientSession, key: &str) {
    let Some((gateway, stream)) = session.connect().await else { return };
    let begun = session.model.begin_delete(key, gateway);
    let reply = session.exchange(stream, HttpRequest::new("DELETE", key)).await;
    let answer = session.answer_of(&format!("DELETE {key:?}"), &reply);
    session.model.end(&begun, answer, None);
}

pub(super) async fn delete_many(session: &ClientSession, keys: &[&str]) {
    let Some((gateway, stream)) = session.connect().await else { return };
    let objects: String = keys.iter().map(|key| format!("<Object><Key>{key}</Key></Object>")).collect();
    let body = Bytes::from(format!("<Delete>{objects}</Delete>"));
    let sum = hash(MessageDigest::md5(), &body).map(|sum| base64_of(&sum)).unwrap_or_default();
    let request = HttpRequest::new("POST", "").query("delete", "").header("content-md5", &sum).body(body);
    let begun: Vec<BegunChange> = keys.iter().map(|key| session.model.begin_delete(key, gateway)).collect();
    let reply = session.exchange(stream, request).await;
    let whole = session.answer_of("DeleteObjects", &reply);
    let deleted: Vec<String> = match &reply {
        Ok(reply) => tags(&String::from_utf8_lossy(&reply.body), "Deleted"),
        Err(_) => Vec::new(),
    };
    let deleted: Vec<String> = deleted.iter().flat_map(|entry| tags(entry, "Key")).collect();
    for (key, begun) in keys.iter().zip(&begun) {
        let answer = match whole {
            ChangeOutcome::Done if !deleted.iter().any(|found| found == key) => ChangeOutcome::Unknown,
            ref whole => whole.clone(),
        };
        session.model.end(begun, answer, None);
    }
}

pub(super) async fn copy(
    session: &ClientSession,
    from: &str,
    to: &str,
    replaces_headers: bool,
    condition: ClientCondition,
) {
    // Without other headers S3 refuses a copy onto itself.
    let id = (replaces_headers || from == to).then(|| session.model.fresh_id());
    let source = format!("/{}/{}", session.bucket, escaped(from, true));
    let mut request = HttpRequest::new("PUT", to).header("x-amz-copy-source", &source);
    if let Some(id) = &id {
        request = request.header("x-amz-metadata-directive", "REPLACE").header("x-amz-meta-id", id);
    }
    let Some((gateway, stream)) = session.connect().await else { return };
    let (request, wanted) = on_condition(session, request, to, condition);
    let begun = session.model.begin_copy(from, to, gateway, id);
    let start = begun.moment();
    let reply = session.exchange(stream, request).await;
    let answer = session.answer_of(&format!("copy of {from:?} to {to:?}"), &reply);
    if let Ok(reply) = &reply {
        check_condition(session, &begun, condition, wanted.as_deref(), &answer, reply);
        // Of what the condition names nothing is there, otherwise.
        if reply.status == 404 && condition != ClientCondition::IfSame && !session.model.may_be(from, start).0
        {
            session
                .model
                .fail(format!("copy of {from:?} to {to:?}: its source is there, and the answer is 404"));
        }
    }
    let etag = reply.ok().and_then(|reply| tags(&reply.text(), "ETag").into_iter().next());
    session.model.end(&begun, answer, etag.as_deref());
}

/// Somebody else changes the store, where the rules say that others may.
pub(super) async fn others(session: &ClientSession, key: &str, size: Option<u32>) {
    if !session.model.may_others_write(key) {
        return;
    }
    put_by_others(session, key, size);
}

pub(crate) fn put_by_others(session: &ClientSession, key: &str, size: Option<u32>) {
    match size {
        None => {
            session.stores.change(&session.bucket, key, None, Attributes::new());
            session.model.note_others(key, None);
        }
        Some(size) => {
            let (mut version, bytes) = session.fresh(u64::from(size));
            if session.model.has_etags_of_its_own() {
                version.etag = None;
            }
            let mut attributes = Attributes::new();
            let id = version.id.clone().unwrap_or_default();
            attributes.insert(Attribute::Metadata("id".into()), id.into());
            session.stores.change(&session.bucket, key, Some(bytes), attributes);
            session.model.note_others(key, Some(version));
        }
    }
}

/// Puts others' objects there before the first start, and records them as possible.
pub(crate) fn prepare(session: &ClientSession, setup: &ScriptSetup) {
    for (key, size) in &setup.store.before {
        let key = super::key_of(*key);
        // Nobody else writes under a name that no path can have.
        if path_of(key, BackendKind::S3).is_ok_and(|path| name_of(&path) == key) {
            put_by_others(session, key, Some(*size));
        }
    }
    session
        .stores
        .limit_held_bytes((setup.settings.memory_bytes / 4).max(MIN_IN_FLIGHT_BYTES) + HELD_SLACK_BYTES);
}

impl crate::model::ObjectModel {
    fn may_others_write(&self, key: &str) -> bool {
        // Files of a directory are changed outside of every runtime alone.
        self.is_s3() && self.consistency(key) != RuleConsistency::Exclusive
    }
}
