//! Requests that got no answer. The store may still carry one out, minutes later, so nothing that it would undo may
//! follow until it can no longer land. The same request may follow: it makes no difference which of the two lands last.

mod places;

pub(crate) use places::{LatePlaces, StorePlaces};

use std::collections::{BTreeMap, BTreeSet, HashMap};
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
use crate::staged::is_staged;
use places::LatePlace;

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

/// Why a client's request can't be sent yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientWait {
    Late(LateWait),
    /// There is no place for one more name of this store.
    NoPlace,
}

/// Names to which a request may still land.
#[derive(Debug)]
pub(crate) struct LateRequests {
    /// How long a store goes on with a request that it does not answer.
    within: Duration,
    state: Mutex<LateState>,
    notes: Mutex<Option<Arc<dyn SentNotes>>>,
    /// Where there is a limit.
    places: Mutex<Option<Arc<StorePlaces>>>,
}

/// Where requests are noted before they are sent, for a start after a kill.
pub(crate) trait SentNotes: std::fmt::Debug + Send + Sync {
    /// Returns by what the note is known; `None` where there can be none.
    fn begin(&self, key: &str, effect: &RequestEffect) -> Option<u64>;

    /// The request was answered, or the next start knows of it otherwise.
    fn end(&self, note: u64);
}

/// What the next start has to know of a name: the effect, and the remaining time. `None` if nothing can land there.
pub(crate) type KeptRequest = (Arc<str>, Option<(RequestEffect, Duration)>);

/// A request that an earlier start has left.
#[derive(Clone, Debug)]
pub(crate) struct RecalledRequest {
    pub(crate) name: String,
    pub(crate) effect: RequestEffect,
    pub(crate) left: Duration,
    /// Whether it is kept as [`LateRequests::to_keep`] would have it.
    pub(crate) is_kept: bool,
}

#[derive(Debug, Default)]
struct LateState {
    names: HashMap<Arc<str>, LateName>,
    /// When each name is to be forgotten.
    ends: BTreeSet<(Instant, Arc<str>)>,
    /// Names of which [`LateRequests::to_keep`] has not returned the last yet. The second ones are about to be kept.
    changed: BTreeSet<Arc<str>>,
    changes_being_kept: BTreeSet<Arc<str>>,
    /// Notes of requests that may land, until the metadata have those. The second ones are about to be there.
    noted: Vec<u64>,
    being_kept: Vec<u64>,
    /// Each [`SendPermit`] that lives.
    followings: HashMap<u64, OnWay>,
    next_number: u64,
}

#[derive(Debug)]
struct LateName {
    effect: RequestEffect,
    deadline: Instant,
    place: Option<LatePlace>,
}

/// A request that a [`SendPermit`] may have sent.
#[derive(Debug)]
struct OnWay {
    name: Arc<str>,
    effect: RequestEffect,
    seen: Arc<AtomicU8>,
    /// How often in a row a request was found on its way.
    looks: u8,
    /// Since when the next start would know of it.
    kept_since: Option<Instant>,
}

impl LateState {
    fn forget_over(&mut self, now: Instant) {
        while let Some((end, _)) = self.ends.first()
            && *end <= now
            && let Some((_, name)) = self.ends.pop_first()
        {
            self.names.remove(&name);
            // The row that the next start would read goes, too.
            self.changed.insert(name);
        }
    }

    /// The latest request for a name counts. It has the place of an earlier one.
    fn enter(&mut self, name: Arc<str>, late: LateName) -> &mut LateName {
        let (deadline, former) = (late.deadline, self.names.remove(&name));
        let place = former.and_then(|former| {
            self.ends.remove(&(former.deadline, Arc::clone(&name)));
            former.place
        });
        self.ends.insert((deadline, Arc::clone(&name)));
        self.names.entry(name).or_insert(LateName { place: place.or(late.place), ..late })
    }
}

impl LateRequests {
    pub(crate) fn new(within: Duration) -> LateRequests {
        let (state, notes, places) = (Mutex::default(), Mutex::default(), Mutex::default());
        LateRequests { within, state, notes, places }
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
        self.follow_in(None, name, effect).map_err(|wait| match wait {
            ClientWait::Late(wait) => wait,
            // Without a limit there is a place.
            ClientWait::NoPlace => LateWait { until: Instant::now() },
        })
    }

    /// The same for a client, whose request needs a place.
    ///
    /// # Errors
    /// As there, and when there is no place.
    fn follow_for_client(
        self: &Arc<Self>,
        name: &str,
        effect: RequestEffect,
    ) -> std::result::Result<SendPermit, ClientWait> {
        let places = self.places.lock().clone();
        self.follow_in(places, name, effect)
    }

    fn follow_in(
        self: &Arc<Self>,
        places: Option<Arc<StorePlaces>>,
        name: &str,
        effect: RequestEffect,
    ) -> std::result::Result<SendPermit, ClientWait> {
        let mut state = self.state.lock();
        state.forget_over(Instant::now());
        let (name, earlier) = match state.names.get_key_value(name) {
            Some((name, earlier)) => (Arc::clone(name), Some(earlier)),
            None => (Arc::from(name), None),
        };
        if let Some(LateName { deadline, .. }) = earlier.filter(|earlier| !effect.may_follow(&earlier.effect))
        {
            return Err(ClientWait::Late(LateWait { until: *deadline }));
        }
        // The same request again needs no second place.
        let place = match places.as_ref().filter(|_| earlier.is_none()) {
            Some(places) => Some(places.try_take().ok_or(ClientWait::NoPlace)?),
            None => None,
        };
        let (late, seen) = (Arc::clone(self), Arc::new(AtomicU8::new(0)));
        let number = state.next_number;
        state.next_number += 1;
        let on_way = OnWay {
            name: Arc::clone(&name),
            effect: effect.clone(),
            seen: Arc::clone(&seen),
            looks: 0,
            kept_since: None,
        };
        state.followings.insert(number, on_way);
        drop(state);
        let note = self.notes.lock().clone().and_then(|notes| notes.begin(&name, &effect));
        Ok(SendPermit { late, number, name, effect, seen, note, places, place })
    }

    /// To keep what clients' requests leave here within a limit.
    pub(crate) fn limit_by(&self, places: Arc<StorePlaces>) {
        *self.places.lock() = Some(places);
    }

    /// Changes, by name, of what the next start has to know; `None` if there is nothing new since the last time. A
    /// request that is on its way counts from the second look on, or at once `at_end`: a start after a crash can't know
    /// whether it was answered.
    pub(crate) fn to_keep(&self, at_end: bool) -> Option<Vec<KeptRequest>> {
        let now = Instant::now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        for on_way in state.followings.values_mut() {
            let is_sent = on_way.seen.load(Ordering::Relaxed) & ON_ITS_WAY != 0;
            on_way.looks = if is_sent { on_way.looks.saturating_add(1) } else { 0 };
            let is_kept = is_sent && (at_end || on_way.looks >= LOOKS);
            // One that takes long may land later than was written down when it was found on its way.
            let is_old = on_way.kept_since.is_some_and(|noted| now - noted >= self.within / 2);
            if is_kept != on_way.kept_since.is_some() || (is_kept && is_old) {
                on_way.kept_since = is_kept.then_some(now);
                state.changed.insert(Arc::clone(&on_way.name));
            }
        }
        // What has expired is news.
        state.forget_over(now);
        if state.changed.is_empty() {
            return None;
        }
        state.being_kept.append(&mut state.noted);
        let changed = std::mem::take(&mut state.changed);
        // The next start goes by the request of the longer time, which is the one that is on its way still.
        let mut on_way: BTreeMap<&str, (u64, &RequestEffect)> = BTreeMap::new();
        let noted = state.followings.iter().filter(|(_, following)| following.kept_since.is_some());
        for (number, following) in noted {
            let latest = on_way.entry(&following.name).or_insert((*number, &following.effect));
            if *number > latest.0 {
                *latest = (*number, &following.effect);
            }
        }
        let request_for = |name: &Arc<str>| {
            let left = |late: &LateName| (late.effect.clone(), late.deadline.saturating_duration_since(now));
            match on_way.get(&**name) {
                Some((_, effect)) => Some(((*effect).clone(), self.within)),
                None => state.names.get(name).map(left),
            }
        };
        let changes = changed.iter().map(|name| (Arc::clone(name), request_for(name))).collect();
        state.changes_being_kept.extend(changed);
        Some(changes)
    }

    /// The result of [`to_keep`](Self::to_keep) was not kept: it has to return it again.
    pub(crate) fn not_kept(&self) {
        let mut state = self.state.lock();
        let LateState { noted, being_kept, changed, changes_being_kept, .. } = &mut *state;
        changed.append(changes_being_kept);
        noted.append(being_kept);
    }

    /// The result of [`to_keep`](Self::to_keep) was kept.
    pub(crate) fn kept(&self) {
        let notes = {
            let mut state = self.state.lock();
            state.changes_being_kept.clear();
            std::mem::take(&mut state.being_kept)
        };
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

    /// Takes the requests that an earlier start has left; of two for one name, the later one counts. Those to names
    /// that are no client's need no place. To be called before anything is sent.
    pub(crate) fn recall(&self, requests: Vec<RecalledRequest>, is_of_client: impl Fn(&str) -> bool) {
        let now = Instant::now();
        let places = self.places.lock().clone();
        let mut state = self.state.lock();
        for RecalledRequest { name, effect, left, is_kept } in requests {
            let (name, deadline): (Arc<str>, _) = (name.into(), now + left.min(self.within));
            let late = state.enter(Arc::clone(&name), LateName { effect, deadline, place: None });
            // As in a process that runs: what the gateway sends by itself needs none.
            let needs_place = is_of_client(&name) && !is_staged(&name);
            late.place =
                late.place.take().or_else(|| places.as_ref().filter(|_| needs_place).map(StorePlaces::take));
            if !is_kept {
                state.changed.insert(name);
            }
        }
    }

    /// Names to which something may still land.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut state = self.state.lock();
        state.forget_over(Instant::now());
        state.names.keys().map(|name| name.to_string()).collect()
    }

    /// Whether nothing can land any more, and the next start has nothing to learn of it.
    pub(crate) fn is_over(&self) -> bool {
        let mut state = self.state.lock();
        state.forget_over(Instant::now());
        let has_notes = !state.noted.is_empty() || !state.being_kept.is_empty();
        let has_changes = !state.changed.is_empty() || !state.changes_being_kept.is_empty();
        state.names.is_empty() && state.followings.is_empty() && !has_changes && !has_notes
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

    /// The same for a client that waits for it, but not beyond `patience`. Parts that the gateway moves to the store
    /// have a limit of their own.
    ///
    /// # Errors
    /// `Busy` when it would have to wait for longer, or as many requests have got no answer as there may be.
    pub(crate) async fn follow_within(
        &self,
        key: &str,
        effect: RequestEffect,
        patience: Duration,
    ) -> GatewayResult<SendPermit> {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            let followed = match is_staged(key) {
                true => self.late.follow(key, effect.clone()).map_err(ClientWait::Late),
                false => self.late.follow_for_client(key, effect.clone()),
            };
            let reason = match followed {
                Ok(following) => return Ok(following),
                Err(ClientWait::Late(waits)) if waits.until <= deadline => {
                    tokio::time::sleep_until(waits.until).await;
                    continue;
                }
                Err(ClientWait::Late(_)) => {
                    "the store has not answered an earlier write to this key and may still carry it out: try again later"
                }
                Err(ClientWait::NoPlace) => {
                    "the store has not answered as many writes as the gateway has memory for: try again later"
                }
            };
            return Err(GatewayError::Busy(reason.to_owned()));
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
    name: Arc<str>,
    effect: RequestEffect,
    seen: Arc<AtomicU8>,
    note: Option<u64>,
    /// Of a client's request: where its place is from, and that unless the name had one.
    places: Option<Arc<StorePlaces>>,
    place: Option<LatePlace>,
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
        if let Some(note) = self.note.filter(|_| !may_land) {
            self.late.end(note);
        }
        let now = Instant::now();
        let mut state = self.late.state.lock();
        state.forget_over(now);
        if may_land {
            let (effect, place) = (self.effect.clone(), self.place.take());
            let late = LateName { effect, deadline: now + self.late.within, place };
            let late = state.enter(Arc::clone(&self.name), late);
            // The name that had a place may have been forgotten meanwhile.
            late.place = late.place.take().or_else(|| self.places.as_ref().map(StorePlaces::take));
            state.changed.insert(Arc::clone(&self.name));
            state.noted.extend(self.note);
        }
        let on_way = state.followings.remove(&self.number);
        // The next start need not wait for it any more.
        if on_way.is_some_and(|on_way| on_way.kept_since.is_some()) {
            state.changed.insert(Arc::clone(&self.name));
        }
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
mod tests;
