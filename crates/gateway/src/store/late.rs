//! Requests that got no answer. The store may still carry one out, minutes later, so nothing that it would undo may
//! follow until it can no longer land. The same request may follow: it makes no difference which of the two lands last.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use hyper::Method;
use object_store::client::{HttpError, HttpErrorKind, HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use underlay_sync::Mutex;
use underlay_sync::planted::{PlantedBug, is_planted};

use super::{BackendKind, StoreBackend};
use crate::errors::{GatewayError, GatewayResult};
use crate::model::ObjectHeaders;

/// A request's effect on a name. It is kept on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RequestEffect {
    /// The name has these bytes and headers afterwards.
    Put {
        etag: String,
        size_bytes: u64,
        headers_hash: u64,
    },
    Delete,
    /// The store reads the source when it carries the copy out. So a late copy may be one of other bytes, even where
    /// the request is the same.
    Copy,
}

impl RequestEffect {
    /// `etag` is that of the bytes as the gateway computes it.
    pub(crate) fn put(etag: &str, size_bytes: u64, headers: &ObjectHeaders) -> RequestEffect {
        RequestEffect::Put { etag: etag.to_owned(), size_bytes, headers_hash: headers.hash_code() }
    }

    fn may_follow(&self, earlier: &RequestEffect) -> bool {
        (*self != RequestEffect::Copy && self == earlier) || is_planted(PlantedBug::NewerOvertakes)
    }
}

/// Why a request can't be sent yet: an earlier one may land until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LateWait {
    pub(crate) until: Instant,
}

/// Names to which a request may still land.
#[derive(Debug)]
pub(crate) struct LateRequests {
    /// How long a store goes on with a request that it does not answer.
    within: Duration,
    state: Mutex<LateState>,
    notes: Mutex<Option<Arc<dyn SentNotes>>>,
}

/// Where requests are noted before they are sent, for a start after a kill.
pub(crate) trait SentNotes: std::fmt::Debug + Send + Sync {
    /// Returns by what the note is known; `None` where there can be none.
    fn begin(&self, key: &str, effect: &RequestEffect) -> Option<u64>;

    /// The request was answered, or the next start knows of it otherwise.
    fn end(&self, note: u64);
}

#[derive(Debug, Default)]
struct LateState {
    names: HashMap<String, (RequestEffect, Instant)>,
    /// When to look at a name again, in order.
    ends: VecDeque<(Instant, String)>,
    /// Whether something has come that [`LateRequests::to_keep`] has not returned yet.
    is_news: bool,
    /// Notes of requests that may land, until the metadata have those. The second ones are about to be there.
    noted: Vec<u64>,
    being_kept: Vec<u64>,
    /// Each [`SendPermit`] that lives.
    followings: HashMap<u64, OnWay>,
    next_number: u64,
}

/// A request that a [`SendPermit`] may have sent.
#[derive(Debug)]
struct OnWay {
    name: String,
    effect: RequestEffect,
    seen: Arc<AtomicU8>,
    /// How often in a row a request was found on its way.
    looks: u8,
    /// Whether the next start would know of it.
    is_kept: bool,
}

impl LateState {
    fn forget_over(&mut self, now: Instant) {
        while let Some((end, name)) = self.ends.front()
            && *end <= now
        {
            if self.names.get(name).is_some_and(|(_, deadline)| *deadline <= now) {
                self.names.remove(name);
                // The row that the next start would read goes, too.
                self.is_news = true;
            }
            self.ends.pop_front();
        }
    }
}

impl LateRequests {
    pub(crate) fn new(within: Duration) -> LateRequests {
        LateRequests { within, state: Mutex::default(), notes: Mutex::default() }
    }

    /// Lets a request be sent to `name`.
    ///
    /// # Errors
    /// When an earlier one of another effect may still land.
    fn follow(
        self: &Arc<Self>,
        name: &str,
        effect: RequestEffect,
    ) -> std::result::Result<SendPermit, LateWait> {
        let mut state = self.state.lock();
        state.forget_over(Instant::now());
        match state.names.get(name) {
            Some((earlier, deadline)) if !effect.may_follow(earlier) => Err(LateWait { until: *deadline }),
            _ => {
                let (late, seen) = (Arc::clone(self), Arc::new(AtomicU8::new(0)));
                let number = state.next_number;
                state.next_number += 1;
                let on_way = OnWay {
                    name: name.to_owned(),
                    effect: effect.clone(),
                    seen: Arc::clone(&seen),
                    looks: 0,
                    is_kept: false,
                };
                state.followings.insert(number, on_way);
                drop(state);
                let note = self.notes.lock().clone().and_then(|notes| notes.begin(name, &effect));
                Ok(SendPermit { late, number, name: name.to_owned(), effect, seen, note })
            }
        }
    }

    fn note(&self, name: &str, effect: &RequestEffect) {
        let deadline = Instant::now() + self.within;
        let mut state = self.state.lock();
        state.forget_over(Instant::now());
        state.names.insert(name.to_owned(), (effect.clone(), deadline));
        state.ends.push_back((deadline, name.to_owned()));
        state.is_news = true;
    }

    /// Requests that the next start has to know, each with its remaining time; `None` if there is nothing new since the
    /// last time. A request that is on its way counts from the second look on, or at once `at_end`: a start after a
    /// crash can't know whether it was answered.
    pub(crate) fn to_keep(&self, at_end: bool) -> Option<Vec<(String, RequestEffect, Duration)>> {
        let now = Instant::now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        for on_way in state.followings.values_mut() {
            let is_sent = on_way.seen.load(Ordering::Relaxed) & ON_ITS_WAY != 0;
            on_way.looks = if is_sent { on_way.looks.saturating_add(1) } else { 0 };
            let is_kept = is_sent && (at_end || on_way.looks >= LOOKS);
            state.is_news |= is_kept != std::mem::replace(&mut on_way.is_kept, is_kept);
        }
        // What has expired is news.
        state.forget_over(now);
        if !std::mem::take(&mut state.is_news) {
            return None;
        }
        state.being_kept.append(&mut state.noted);
        let left = |(name, (effect, deadline)): (&String, &(RequestEffect, Instant))| {
            (name.clone(), effect.clone(), deadline.saturating_duration_since(now))
        };
        let mut unanswered: Vec<_> = state.names.iter().map(left).collect();
        let on_way = state.followings.values().filter(|on_way| on_way.is_kept);
        // Behind the others: of two for one name, the next start goes by the later one, which is that of the longer
        // time as well.
        unanswered.extend(on_way.map(|on_way| (on_way.name.clone(), on_way.effect.clone(), self.within)));
        Some(unanswered)
    }

    /// The result of [`to_keep`](Self::to_keep) was not kept: it has to return it again.
    pub(crate) fn not_kept(&self) {
        let mut state = self.state.lock();
        state.is_news = true;
        let LateState { noted, being_kept, .. } = &mut *state;
        noted.append(being_kept);
    }

    /// The result of [`to_keep`](Self::to_keep) was kept.
    pub(crate) fn kept(&self) {
        let notes = std::mem::take(&mut self.state.lock().being_kept);
        notes.into_iter().for_each(|note| self.end(note));
    }

    fn end(&self, note: u64) {
        if let Some(notes) = self.notes.lock().clone() {
            notes.end(note);
        }
    }

    /// Has requests noted before they are sent.
    pub(crate) fn note_sent_in(&self, notes: Arc<dyn SentNotes>) {
        *self.notes.lock() = Some(notes);
    }

    /// Takes the requests that an earlier start kept. To be called before anything is sent.
    pub(crate) fn recall(&self, kept: Vec<(String, RequestEffect, Duration)>) {
        let now = Instant::now();
        let mut ends: Vec<(Instant, String)> = Vec::new();
        let mut state = self.state.lock();
        for (name, effect, left) in kept {
            let deadline = now + left.min(self.within);
            ends.push((deadline, name.clone()));
            state.names.insert(name, (effect, deadline));
        }
        ends.sort();
        state.ends.extend(ends);
    }

    /// Names to which something may still land.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut state = self.state.lock();
        state.forget_over(Instant::now());
        state.names.keys().cloned().collect()
    }

    /// Whether nothing can land any more, and the next start has nothing to learn of it.
    pub(crate) fn is_over(&self) -> bool {
        let mut state = self.state.lock();
        state.forget_over(Instant::now());
        let has_notes = !state.noted.is_empty() || !state.being_kept.is_empty();
        state.names.is_empty() && state.followings.is_empty() && !state.is_news && !has_notes
    }
}

/// A request has been sent whose outcome nobody knows. It may be carried out later.
const MAY_LAND: u8 = 1;
/// Each answer was seen on the wire, so nothing has to be concluded from the error that the client library made of it.
const SEEN_ON_WIRE: u8 = 2;
/// The last of them said that all is well.
const WELL: u8 = 4;
/// One is on its way.
const ON_ITS_WAY: u8 = 8;

/// A request that was on its way at so many looks in a row is kept for the next start: most are answered before.
const LOOKS: u8 = 2;

tokio::task_local! {
    /// The state of the requests that this task is sending for a [`SendPermit`].
    static SEEN: Arc<AtomicU8>;
}

fn mark(bits: u8, cleared: u8) {
    // Outside of a `SendPermit` nobody wants to know.
    let _ = SEEN.try_with(|seen| {
        seen.fetch_and(!cleared, Ordering::Relaxed);
        seen.fetch_or(bits, Ordering::Relaxed)
    });
}

impl StoreBackend {
    /// The same, of a store that carries out nothing later than this after it should have answered.
    #[must_use]
    pub fn landing_within(self, time: Duration) -> StoreBackend {
        StoreBackend { late: Arc::new(LateRequests::new(time)), ..self }
    }

    /// Lets a request of this effect be sent to a key. Every request that changes what is there needs it.
    ///
    /// # Errors
    /// When an earlier one, of another effect, got no answer and may still be carried out.
    pub(crate) fn follow(
        &self,
        key: &str,
        effect: RequestEffect,
    ) -> std::result::Result<SendPermit, LateWait> {
        self.late.follow(key, effect)
    }

    /// The same for a client that waits for it, but not beyond `patience`.
    ///
    /// # Errors
    /// `Busy` when it would have to wait for longer.
    pub(crate) async fn follow_within(
        &self,
        key: &str,
        effect: RequestEffect,
        patience: Duration,
    ) -> GatewayResult<SendPermit> {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            match self.follow(key, effect.clone()) {
                Ok(following) => return Ok(following),
                Err(waits) if waits.until <= deadline => tokio::time::sleep_until(waits.until).await,
                Err(_) => {
                    return Err(GatewayError::Busy(
                        "the store has not answered an earlier write to this key and may still carry it out: try again later"
                            .to_owned(),
                    ));
                }
            }
        }
    }

    /// Requests without an answer.
    pub(crate) fn late(&self) -> &Arc<LateRequests> {
        &self.late
    }

    /// The same, where an earlier one at the same place had requests without an answer.
    #[must_use]
    pub(crate) fn behind(self, late: Arc<LateRequests>) -> StoreBackend {
        StoreBackend { late, ..self }
    }
}

/// Whether a request that this task has sent for its [`SendPermit`] may be carried out later.
pub(super) fn may_land() -> bool {
    SEEN.try_with(|seen| seen.load(Ordering::Relaxed) & MAY_LAND != 0).unwrap_or(false)
}

/// The right to send a request of one effect to a name. If the outcome of what was sent is unknown when this goes, also
/// since the caller was dropped, nothing else may follow for a while.
#[must_use]
pub(crate) struct SendPermit {
    late: Arc<LateRequests>,
    number: u64,
    name: String,
    effect: RequestEffect,
    seen: Arc<AtomicU8>,
    note: Option<u64>,
}

impl SendPermit {
    /// Does the work that sends the request.
    pub(crate) async fn watch<T>(&self, work: impl Future<Output = T>) -> T {
        SEEN.scope(Arc::clone(&self.seen), work).await
    }

    /// Whether one of the requests that were sent so far may still land, or has landed without an answer.
    pub(crate) fn may_land(&self) -> bool {
        self.seen.load(Ordering::Relaxed) & MAY_LAND != 0
    }
}

impl Drop for SendPermit {
    fn drop(&mut self) {
        let may_land = self.may_land();
        if may_land {
            self.late.note(&self.name, &self.effect);
        } else if let Some(note) = self.note {
            self.late.end(note);
        }
        let mut state = self.late.state.lock();
        state.noted.extend(self.note.filter(|_| may_land));
        state.is_news |= may_land;
        let on_way = state.followings.remove(&self.number);
        // The next start need not wait for it any more.
        state.is_news |= on_way.is_some_and(|on_way| on_way.is_kept);
    }
}

/// A request on its way, until it has ended.
struct OnItsWay {
    has_ended: bool,
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        mark(if self.has_ended { 0 } else { MAY_LAND }, ON_ITS_WAY);
    }
}

/// Does one request that changes a name. One that is given up before its answer may land, and so may one whose answer
/// leaves its outcome open.
pub(super) async fn sent<T>(
    kind: BackendKind,
    request: impl Future<Output = object_store::Result<T>>,
) -> object_store::Result<T> {
    mark(ON_ITS_WAY, 0);
    let mut on_its_way = OnItsWay { has_ended: false };
    let outcome = request.await;
    on_its_way.has_ended = true;
    drop(on_its_way);
    if let Err(error) = &outcome {
        let seen = SEEN.try_with(|seen| seen.load(Ordering::Relaxed)).unwrap_or(0);
        let is_unclear = match error {
            // A directory has failed by the time it says so.
            _ if kind == BackendKind::Directory => false,
            // The status was fine, and what came with it was not.
            _ if seen & SEEN_ON_WIRE != 0 => seen & WELL != 0,
            object_store::Error::Generic { .. } | object_store::Error::JoinError { .. } => true,
            _ => false,
        };
        if is_unclear {
            mark(MAY_LAND, 0);
        }
    }
    outcome
}

/// Whether a request changes the object of a name when it is carried out: parts of an upload do not, and neither do its
/// beginning and its end without an object.
pub(super) fn changes_object(request: &HttpRequest) -> bool {
    let query = request.uri().query().unwrap_or_default();
    let has_parameter = |wanted: &str| query.split('&').any(|pair| pair.split('=').next() == Some(wanted));
    match *request.method() {
        Method::PUT => !has_parameter("partNumber"),
        Method::POST => has_parameter("uploadId"),
        Method::DELETE => !has_parameter("uploadId"),
        _ => false,
    }
}

/// Notes what the answer to a request that [changes an object](changes_object) says about its outcome. The store's
/// client may repeat the request without telling us.
pub(super) async fn seen_on_wire(
    answering: impl Future<Output = std::result::Result<HttpResponse, HttpError>>,
) -> std::result::Result<HttpResponse, HttpError> {
    let answer = answering.await;
    match &answer {
        Ok(answer) if is_unclear(answer.status().as_u16()) => mark(SEEN_ON_WIRE | MAY_LAND, WELL),
        Ok(answer) if answer.status().is_success() => mark(SEEN_ON_WIRE | WELL, 0),
        Ok(_) => mark(SEEN_ON_WIRE, WELL),
        // It has never left.
        Err(error) if matches!(error.kind(), HttpErrorKind::Connect) => mark(SEEN_ON_WIRE, WELL),
        Err(_) => mark(SEEN_ON_WIRE | MAY_LAND, WELL),
    }
    answer
}

/// A server that failed, or one in front of it that got no answer: neither knows whether it will be carried out (RFC
/// 9110, section 15.6).
fn is_unclear(status: u16) -> bool {
    matches!(status, 500 | 502..=504)
}

#[cfg(test)]
mod tests {
    use object_store::client::HttpRequestBody;

    use super::*;

    /// Longer than any test.
    const LONG: Duration = Duration::from_secs(3600);

    fn put(etag: &str) -> RequestEffect {
        RequestEffect::put(etag, 1, &ObjectHeaders::default())
    }

    fn generic() -> object_store::Error {
        object_store::Error::Generic { store: "stub", source: "no answer".into() }
    }

    async fn lose_answer(late: &Arc<LateRequests>, effect: RequestEffect) {
        let following = late.follow("a", effect).unwrap();
        following.watch(sent(BackendKind::S3, async { Err::<(), _>(generic()) })).await.unwrap_err();
        assert!(following.may_land());
    }

    #[tokio::test]
    async fn only_the_same_request_follows_one_without_an_answer() {
        let late = Arc::new(LateRequests::new(LONG));
        lose_answer(&late, put("1")).await;
        assert!(late.follow("b", put("2")).is_ok());
        for other in [put("2"), RequestEffect::Delete, RequestEffect::Copy] {
            assert!(late.follow("a", other).is_err());
        }
        // The same one that succeeds does not make the first one harmless.
        let again = late.follow("a", put("1")).unwrap();
        again.watch(sent(BackendKind::S3, async { Ok(()) })).await.unwrap();
        drop(again);
        assert!(late.follow("a", put("2")).is_err());
        assert_eq!(late.names(), ["a"]);
    }

    #[tokio::test]
    async fn request_follows_after_late_window() {
        let late = Arc::new(LateRequests::new(Duration::ZERO));
        for effect in [put("1"), RequestEffect::Delete, RequestEffect::Copy, put("2")] {
            lose_answer(&late, effect).await;
        }
        assert!(late.names().is_empty());
        let state = late.state.lock();
        assert!(state.names.is_empty() && state.ends.is_empty());
    }

    #[tokio::test]
    async fn unanswered_copy_is_not_repeated() {
        let late = Arc::new(LateRequests::new(LONG));
        lose_answer(&late, RequestEffect::Copy).await;
        assert!(late.follow("a", RequestEffect::Copy).is_err());
    }

    #[tokio::test]
    async fn recorded_unanswered_requests_are_recalled() {
        let late = Arc::new(LateRequests::new(LONG));
        lose_answer(&late, put("1")).await;
        let unanswered = late.to_keep(false).unwrap();
        assert!(late.to_keep(false).is_none());
        // If it could not be written down, it is returned again.
        late.not_kept();
        // Some time has passed meanwhile.
        let names_and_effects =
            |unanswered: &[(String, RequestEffect, Duration)]| -> Vec<(String, RequestEffect)> {
                unanswered.iter().map(|(name, effect, _)| (name.clone(), effect.clone())).collect()
            };
        assert_eq!(names_and_effects(&late.to_keep(false).unwrap()), names_and_effects(&unanswered));
        let next = Arc::new(LateRequests::new(LONG));
        next.recall(unanswered);
        assert!(next.follow("a", put("1")).is_ok() && next.follow("a", RequestEffect::Delete).is_err());
        // A clock that was set back makes nothing wait for longer than a request can take.
        let next = Arc::new(LateRequests::new(Duration::ZERO));
        next.recall(vec![("a".to_owned(), RequestEffect::Delete, LONG)]);
        assert!(next.follow("a", put("1")).is_ok());
    }

    #[tokio::test]
    async fn requests_in_flight_at_shutdown_are_recorded() {
        let late = Arc::new(LateRequests::new(LONG));
        let expected = vec![("a".to_owned(), put("1"), LONG)];
        let following = late.follow("a", put("1")).unwrap();
        // Nothing has been sent yet.
        assert!(late.to_keep(true).is_none());
        let (answer, answered) = tokio::sync::oneshot::channel::<()>();
        let request = async {
            answered.await.unwrap();
            Ok(())
        };
        let mut request = Box::pin(following.watch(sent(BackendKind::S3, request)));
        assert!(futures_util::poll!(&mut request).is_pending());
        // It may be answered soon; a crash in between is not known of.
        assert!(late.to_keep(false).is_none());
        assert_eq!(late.to_keep(false), Some(expected.clone()));
        assert!(late.to_keep(false).is_none() && late.to_keep(true).is_none());
        let next = Arc::new(LateRequests::new(LONG));
        next.recall(expected);
        assert!(next.follow("a", put("1")).is_ok() && next.follow("a", put("2")).is_err());
        // Once it is answered, nobody has to wait for it.
        answer.send(()).unwrap();
        request.await.unwrap();
        assert_eq!(late.to_keep(false), Some(Vec::new()));
        drop(following);
        assert!(late.to_keep(true).is_none() && late.state.lock().followings.is_empty());
        // At the end there is no second look.
        let following = late.follow("b", RequestEffect::Delete).unwrap();
        let waiting = sent(BackendKind::S3, std::future::pending::<object_store::Result<()>>());
        let mut request = Box::pin(following.watch(waiting));
        assert!(futures_util::poll!(&mut request).is_pending());
        assert_eq!(late.to_keep(true), Some(vec![("b".to_owned(), RequestEffect::Delete, LONG)]));
    }

    #[test]
    fn record_of_expired_request_is_emptied() {
        let late = LateRequests::new(LONG);
        late.recall(vec![("a".to_owned(), put("1"), Duration::ZERO)]);
        // The next start has to learn of it.
        assert!(!late.is_over());
        assert_eq!(late.to_keep(false), Some(Vec::new()));
        assert!(late.is_over());
    }

    #[tokio::test]
    async fn abandoned_request_may_land() {
        for kind in [BackendKind::S3, BackendKind::Directory] {
            let late = Arc::new(LateRequests::new(LONG));
            let following = late.follow("a", put("1")).unwrap();
            let mut request =
                Box::pin(following.watch(sent(kind, std::future::pending::<object_store::Result<()>>())));
            assert!(futures_util::poll!(&mut request).is_pending());
            drop(request);
            drop(following);
            assert!(late.follow("a", RequestEffect::Delete).is_err());
        }
    }

    #[tokio::test]
    async fn refusal_counts_as_answer() {
        let late = Arc::new(LateRequests::new(LONG));
        let refusals = [
            object_store::Error::PermissionDenied { path: String::new(), source: "no".into() },
            object_store::Error::Precondition { path: String::new(), source: "no".into() },
        ];
        for refusal in refusals {
            let following = late.follow("a", put("1")).unwrap();
            following.watch(sent(BackendKind::S3, async { Err::<(), _>(refusal) })).await.unwrap_err();
        }
        // So is an error of a directory.
        let following = late.follow("a", put("1")).unwrap();
        following.watch(sent(BackendKind::Directory, async { Err::<(), _>(generic()) })).await.unwrap_err();
        drop(following);
        assert!(late.follow("a", RequestEffect::Delete).is_ok());
    }

    /// Whether nothing may land behind these answers. The store's client goes by the last one.
    async fn is_over(method: Method, target: &str, statuses: &[u16]) -> bool {
        let late = Arc::new(LateRequests::new(LONG));
        let following = late.follow("a", put("1")).unwrap();
        let work = async {
            for status in statuses {
                let request =
                    hyper::Request::builder().method(&method).uri(format!("http://store:9{target}"));
                let changes = changes_object(&request.body(HttpRequestBody::empty()).unwrap());
                let answer = hyper::Response::builder().status(*status).body(bytes::Bytes::new().into());
                let answering = std::future::ready(Ok(answer.unwrap()));
                let answer = if changes { seen_on_wire(answering).await } else { answering.await };
                answer.unwrap();
            }
            match statuses.last() {
                Some(200..=299) => Ok(()),
                _ => Err(generic()),
            }
        };
        let _ = following.watch(sent(BackendKind::S3, work)).await;
        drop(following);
        late.follow("a", RequestEffect::Delete).is_ok()
    }

    #[tokio::test]
    async fn transport_detects_unreported_repetitions() {
        for (method, target, statuses, expected) in [
            (Method::PUT, "/lake/a", &[200][..], true),
            (Method::PUT, "/lake/a", &[400], true),
            (Method::PUT, "/lake/a", &[502, 200], false),
            (Method::PUT, "/lake/a", &[503, 400], false),
            (Method::DELETE, "/lake/a", &[504, 204], false),
            (Method::POST, "/lake/a?uploadId=u", &[500, 200], false),
            // A part's fate is not the object's.
            (Method::PUT, "/lake/a?partNumber=1&uploadId=u", &[500, 200], true),
            (Method::POST, "/lake/a?uploads", &[500, 200], true),
            (Method::DELETE, "/lake/a?uploadId=u", &[500, 200], true),
        ] {
            assert_eq!(
                is_over(method.clone(), target, statuses).await,
                expected,
                "{method} {target} {statuses:?}"
            );
        }
    }
}
