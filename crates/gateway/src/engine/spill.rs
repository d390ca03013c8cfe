//! Parts of uploads that the journal has no room for. A part is in the journal when it is acknowledged. When parts take
//! more than their share of it, when somebody waits for room, or when a part has lain there for long, the oldest go to
//! the store, each as an object under a [name](crate::staged) that no client knows. The object that is made of them is
//! flushed from there like any other, and the parts are deleted once nothing consists of them.
//!
//! The name is pending from before the first byte is sent until the part counts there. So the next start deletes all
//! leftovers of a crash.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use underlay_sync::Mutex;

use super::failing::{FailedAttempt, FailingName, FailureCause, UnstoredName};
use super::room::RoomKind;
use super::staging::staged_name;
use super::write::WriteTarget;
use super::{BucketState, GatewayEngine};
use crate::errors::{GatewayError, GatewayResult, StoreRefusal};
use crate::journal::{ContentWriter, ReleasedRange};
use crate::meta::{Holder, MetadataChange, MetadataView, ObjectName, PartContent};
use crate::model::{ContentExtent, ContentId, ContentPlace, now_ms};
use crate::store::StoredInfo;

/// Parts that take more than one in so many of the journal go to the store, though nobody waits for room yet. Those of
/// an upload that is soon completed are better kept: they go to the store once.
const SHARE: u64 = 2;
/// A part that is still in the journal behind this goes, too: its upload may never be completed.
const LAIN_FOR: Duration = Duration::from_secs(600);
/// Parts on their way to the store at the same time. Each may take as much memory as an object that is flushed.
const MAX_CONCURRENT: usize = 2;
/// How often to look for old parts, and for parts whose upload is over.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// The same where somebody waits for room that flushes are making.
const LOOK_WHILE_WAITED: Duration = Duration::from_millis(200);
/// Before a part is tried again, at least: each attempt sends all of it.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
/// A bucket in which no part was tried for so long is taken for a sound one. No pause is longer.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(1200);
/// How often the log says that parts were refused.
const SAY_EVERY: Duration = Duration::from_secs(60);
const SPILLER: &str = "spiller of parts";

/// A content in the journal that parts consist of.
#[derive(Clone, Debug)]
struct ParkedContent {
    /// Each once, however often it is copied anew.
    holders: HashSet<Holder>,
    size_bytes: u64,
    since: Instant,
    not_before: Instant,
    failed: Option<FailedPart>,
}

/// A part whose attempts have failed so often in a row.
#[derive(Clone, Debug)]
struct FailedPart {
    attempts: u32,
    failed_at: Instant,
    last: FailingName,
}

/// The store refuses all parts of a bucket, as far as is known: they are tried one at a time, with pauses.
struct RefusedBucket {
    cause: FailureCause,
    attempts: u32,
    /// The last attempt, or the beginning of one that is in flight.
    tried_at: Instant,
}

#[derive(Default)]
pub(super) struct SpillQueue {
    state: Mutex<SpillState>,
    /// Notified when there is something to do.
    wake: Notify,
    /// Parts get their room in the order in which they came.
    turns: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct SpillState {
    /// The oldest first: numbers of contents grow.
    parked: BTreeMap<ContentId, ParkedContent>,
    bytes: u64,
    /// The requests that wait for room in the journal.
    waiting: usize,
    /// Names that are being written to.
    under_way: HashSet<ObjectName>,
    said: Option<Instant>,
    /// Of the parked ones, those that were fetched and whose room a flush needs.
    in_the_way: BTreeSet<ContentId>,
    /// Whether a flush needs such room, and when its users were last looked for.
    wants_fetched: bool,
    looked: Option<Instant>,
    refused_buckets: HashMap<String, RefusedBucket>,
}

impl ParkedContent {
    /// Whose part it is: that of the first one where there are several.
    fn name(&self) -> Option<&ObjectName> {
        self.holders.iter().next().map(|holder| &holder.name)
    }
}

impl SpillState {
    /// When a part may be tried. Where somebody waits for its room, that `is_hurried`.
    fn due_at(&self, parked: &ParkedContent, is_hurried: bool) -> Instant {
        let pause = |cause: FailureCause, attempts| cause.pause(attempts, is_hurried).max(AGAIN_AFTER);
        let own = parked.failed.as_ref().map_or(parked.not_before, |failed| {
            parked.not_before.max(failed.failed_at + pause(failed.last.cause, failed.attempts))
        });
        match self.refused_bucket(parked) {
            Some(refused) => own.max(refused.tried_at + pause(refused.cause, refused.attempts)),
            None => own,
        }
    }

    fn refused_bucket(&self, parked: &ParkedContent) -> Option<&RefusedBucket> {
        self.refused_buckets.get(&parked.name()?.bucket)
    }

    /// How soon its turn comes: the oldest first, and in a bucket that refuses parts the one that has failed least
    /// often. It may be only one that the store does not take.
    fn order_of(&self, content: ContentId, parked: &ParkedContent) -> (u32, ContentId) {
        let attempts = parked.failed.as_ref().map_or(0, |failed| failed.attempts);
        (if self.refused_bucket(parked).is_some() { attempts } else { 0 }, content)
    }

    /// Takes a part that is to be tried now.
    fn take(&mut self, content: ContentId, now: Instant) -> Option<(ContentId, ParkedContent)> {
        let parked = self.remove(content)?;
        if let Some(refused) = parked.name().and_then(|name| self.refused_buckets.get_mut(&name.bucket)) {
            // The others wait for its outcome.
            refused.tried_at = now;
        }
        Some((content, parked))
    }

    /// Records a part's failure, and puts it back. Returns whether it is the first one for this cause.
    fn fail(&mut self, content: ContentId, mut parked: ParkedContent, failure: &FailedAttempt) -> bool {
        let (now, cause) = (Instant::now(), failure.cause);
        let former = parked.failed.take();
        let is_new = former.as_ref().is_none_or(|former| former.last.cause != cause);
        let attempts = former.as_ref().map_or(0, |former| former.attempts) + 1;
        let since_ms = former.map_or_else(now_ms, |former| former.last.since_ms);
        let last = FailingName { since_ms, cause, why: failure.reason() };
        parked.failed = Some(FailedPart { attempts, failed_at: now, last });
        // Buckets come and go.
        self.refused_buckets
            .retain(|_, refused| now.saturating_duration_since(refused.tried_at) < FORGOTTEN_AFTER);
        if let Some(name) = parked.name().filter(|_| is_of_bucket(cause)) {
            let bucket = name.bucket.clone();
            let refused = self.refused_buckets.entry(bucket);
            let refused = refused.or_insert(RefusedBucket { cause, attempts: 0, tried_at: now });
            (refused.cause, refused.tried_at) = (cause, now);
            refused.attempts += 1;
        }
        self.insert(content, parked);
        is_new
    }

    fn failing(&self) -> impl Iterator<Item = (&ObjectName, &FailingName)> {
        self.parked.values().filter_map(|parked| Some((parked.name()?, &parked.failed.as_ref()?.last)))
    }

    fn remove(&mut self, content: ContentId) -> Option<ParkedContent> {
        let parked = self.parked.remove(&content)?;
        self.bytes -= parked.size_bytes;
        self.in_the_way.remove(&content);
        Some(parked)
    }

    /// Parks a content, or puts one back: with the parts that came to consist of it meanwhile.
    fn insert(&mut self, content: ContentId, mut parked: ParkedContent) {
        self.bytes += parked.size_bytes;
        if let Some(newer) = self.parked.remove(&content) {
            self.bytes -= newer.size_bytes;
            parked.holders.extend(newer.holders);
        }
        self.parked.insert(content, parked);
    }

    /// These uploads are over: what they held is an object's or nobody's.
    fn forget(&mut self, ended: &HashSet<&str>) {
        let mut gone = Vec::new();
        for (content, parked) in &mut self.parked {
            parked.holders.retain(|holder| !ended.contains(holder.upload.as_str()));
            if parked.holders.is_empty() {
                gone.push(*content);
            }
        }
        for content in gone {
            self.remove(content);
        }
    }

    /// One that was fetched and whose room a flush needs.
    fn next_in_the_way(&mut self, now: Instant) -> Option<(ContentId, ParkedContent)> {
        let ready = self.in_the_way.iter().filter_map(|content| {
            let parked = self.parked.get(content)?;
            (self.due_at(parked, true) <= now).then(|| self.order_of(*content, parked))
        });
        let (_, content) = ready.min()?;
        self.take(content, now)
    }

    /// The oldest that should go to the store, or until when there is none. So many bytes of the journal are used.
    fn next(
        &mut self,
        (share_bytes, used_bytes): (u64, u64),
        now: Instant,
    ) -> std::result::Result<(ContentId, ParkedContent), Instant> {
        // As long as there is more else in the journal, flushes make room, which cost the store less.
        let is_in_the_way = self.waiting > 0 && self.bytes.saturating_mul(2) >= used_bytes;
        let is_full = self.bytes > share_bytes || is_in_the_way;
        let mut deadline = now + if self.waiting > 0 { LOOK_WHILE_WAITED } else { LOOK_EVERY };
        if let Some(found) = self.next_in_the_way(now) {
            return Ok(found);
        }
        let mut first: Option<(u32, ContentId)> = None;
        for (content, parked) in &self.parked {
            if !is_full && now.saturating_duration_since(parked.since) < LAIN_FOR {
                // Those behind it are younger.
                break;
            }
            let due = self.due_at(parked, self.waiting > 0);
            if due > now {
                deadline = deadline.min(due);
                continue;
            }
            let order = self.order_of(*content, parked);
            first = Some(first.map_or(order, |earlier| earlier.min(order)));
            if order.0 == 0 {
                // None comes before it.
                break;
            }
        }
        let found = first.and_then(|(_, content)| self.take(content, now));
        found.ok_or(deadline)
    }
}

/// Somebody waits for room while it lives.
struct SpillWaiter<'a>(&'a SpillQueue);

impl Drop for SpillWaiter<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waiting -= 1;
    }
}

/// A name is being written to while it lives, so nobody deletes what is there.
pub(super) struct SpillGuard<'a>(&'a SpillQueue, ObjectName);

impl Drop for SpillGuard<'_> {
    fn drop(&mut self) {
        self.0.state.lock().under_way.remove(&self.1);
    }
}

impl SpillQueue {
    fn park(&self, content: ContentId, size_bytes: u64, holder: Holder) {
        let now = Instant::now();
        let mut state = self.state.lock();
        match state.parked.get_mut(&content) {
            Some(parked) => drop(parked.holders.insert(holder)),
            None => {
                let parked = ParkedContent {
                    holders: HashSet::from([holder]),
                    size_bytes,
                    since: now,
                    not_before: now,
                    failed: None,
                };
                state.insert(content, parked);
            }
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Applies a commit: parts that came, uploads that are over, and contents that left the journal.
    pub(super) fn apply(&self, contents: Vec<PartContent>, ended: &[String], released: &[ReleasedRange]) {
        for PartContent { holder, content, size_bytes } in contents {
            self.park(content, size_bytes, holder);
        }
        if ended.is_empty() && released.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        if !ended.is_empty() {
            state.forget(&ended.iter().map(String::as_str).collect());
        }
        for range in released {
            state.remove(range.content);
        }
    }

    fn wait(&self) -> SpillWaiter<'_> {
        self.state.lock().waiting += 1;
        self.wake.notify_waiters();
        self.wake.notify_one();
        SpillWaiter(self)
    }

    pub(super) fn begin(&self, name: ObjectName) -> SpillGuard<'_> {
        self.state.lock().under_way.insert(name.clone());
        SpillGuard(self, name)
    }

    /// A flush needs the room that fetched bytes have beside the limit. Parts that consist of such give it up.
    pub(super) fn want_fetched(&self) {
        self.state.lock().wants_fetched = true;
        self.wake.notify_one();
    }

    /// Whether it has to be looked now whose those are: it takes a look at all parts.
    fn is_time_to_look(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let is_time = state.wants_fetched && state.looked.is_none_or(|looked| now - looked >= LOOK_EVERY);
        if is_time {
            (state.wants_fetched, state.looked) = (false, Some(now));
        }
        is_time
    }

    /// These go to the store before all others.
    fn put_first(&self, content: ContentId) {
        let mut state = self.state.lock();
        // One that is on its way there is not parked.
        if state.parked.contains_key(&content) {
            state.in_the_way.insert(content);
        }
    }

    /// Whether a part is being written to this name.
    pub(super) fn is_under_way(&self, name: &ObjectName) -> bool {
        self.state.lock().under_way.contains(name)
    }

    /// Bytes in the journal that parts of unfinished uploads consist of.
    pub(super) fn journal_bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Some part of the bucket was taken, so the others are tried again.
    fn note_stored(&self, bucket: &str) {
        self.state.lock().refused_buckets.remove(bucket);
    }

    /// Uploads whose parts have failed to go to the store since before this time, those that failed first, no more than
    /// `most`. Each object's name comes once.
    pub(super) fn failing(&self, before_ms: i64, most: usize) -> Vec<UnstoredName> {
        let state = self.state.lock();
        let mut first: BTreeMap<&ObjectName, &FailingName> = BTreeMap::new();
        for (name, failed) in state.failing().filter(|(_, failed)| failed.since_ms <= before_ms) {
            let earliest = first.entry(name).or_insert(failed);
            if failed.since_ms < earliest.since_ms {
                *earliest = failed;
            }
        }
        let mut failing: Vec<UnstoredName> = first
            .into_iter()
            .map(|(name, failed)| {
                let reason = format!("a part of an unfinished upload: {}", failed.why);
                UnstoredName {
                    name: name.clone(),
                    failed: Some(FailingName { why: reason, ..failed.clone() }),
                }
            })
            .collect();
        failing.sort_by_key(|unstored| unstored.failed.as_ref().map(|failed| failed.since_ms));
        failing.truncate(most);
        failing
    }

    /// How many parts have failed at their last attempt, by cause.
    pub(super) fn failing_counts(&self) -> BTreeMap<FailureCause, usize> {
        let mut counts = BTreeMap::new();
        for (_, failed) in self.state.lock().failing() {
            *counts.entry(failed.cause).or_default() += 1;
        }
        counts
    }

    /// Whether the log has not said for a while that parts are refused. It has, from now on.
    fn is_time_to_say(&self) -> bool {
        let now = Instant::now();
        let mut state = self.state.lock();
        let is_time = state.said.is_none_or(|last| now - last >= SAY_EVERY);
        if is_time {
            state.said = Some(now);
        }
        is_time
    }
}

/// Whether the store would refuse other parts as well.
fn is_of_bucket(cause: FailureCause) -> bool {
    match cause {
        FailureCause::Passing | FailureCause::Panicked => false,
        FailureCause::Refused(refusal) => match refusal {
            StoreRefusal::Request
            | StoreRefusal::Denied
            | StoreRefusal::NoBucket
            | StoreRefusal::NotSupported
            | StoreRefusal::ReadOnly => true,
            StoreRefusal::TooLarge | StoreRefusal::Name | StoreRefusal::Links => false,
        },
    }
}

/// The outcome of a part that was to go to the store.
enum SpillOutcome {
    Stored,
    /// Its upload is over, or it is not in the journal any more.
    NotNeeded,
    /// The key is not ours to store now.
    Later,
}

impl GatewayEngine {
    /// Brings parts to the store when they have to go there, for as long as the engine lives.
    pub(super) fn start_spilling(self: &Arc<Self>) -> GatewayResult<()> {
        self.each_part_with_holder(|view, holder, extents| self.park_extents(view, holder, extents))?;
        let share_bytes = self.journal.capacity_bytes() / SHARE;
        for _ in 0..MAX_CONCURRENT.min(self.setup.flushes.max(1)) {
            let (engine, spills) = (Arc::downgrade(self), Arc::clone(&self.spills));
            self.supervisor.run(SPILLER, move || {
                let (engine, spills) = (engine.clone(), Arc::clone(&spills));
                async move {
                    loop {
                        let woken = spills.wake.notified();
                        let Some(engine) = engine.upgrade() else { return };
                        if engine.queue.is_stopped() {
                            return;
                        }
                        if spills.is_time_to_look(Instant::now()) {
                            let looking = Arc::clone(&engine);
                            let looked =
                                crate::blocking::spawn_blocking(move || looking.put_fetched_first()).await;
                            if let Ok(Err(error)) = looked {
                                tracing::warn!("cannot record which parts were fetched: {error}");
                            }
                        }
                        // Bytes fetched beyond the limit block no write.
                        let used_bytes = engine.journal.limited_bytes();
                        // On a full disk, all parts here are in the way, and nobody waits for them any more.
                        let share_bytes = if engine.disk.is_full() { 0 } else { share_bytes };
                        let now = Instant::now();
                        // A draining gateway takes no more parts, and must not wait for those that are safe here, but
                        // for those whose room what it waits for needs.
                        let next = match engine.served.is_draining.load(Ordering::Relaxed) {
                            true => spills.state.lock().next_in_the_way(now).ok_or(now + LOOK_EVERY),
                            false => spills.state.lock().next((share_bytes, used_bytes), now),
                        };
                        match next {
                            Ok((content, parked)) => engine.spill_or_put_back(content, parked).await,
                            Err(deadline) => {
                                drop(engine);
                                let _ = timeout_at(deadline, woken).await;
                            }
                        }
                    }
                }
            });
        }
        Ok(())
    }

    fn each_part_with_holder(
        &self,
        mut take: impl FnMut(&MetadataView, &Holder, &[ContentExtent]) -> GatewayResult<()>,
    ) -> GatewayResult<()> {
        let begun = self.uploads_that(|_, _| true)?;
        let view = self.metadata.view()?;
        for (name, upload) in begun {
            for (number, part) in view.parts(&upload, 0, usize::from(u16::MAX))? {
                let holder = Holder { name: name.clone(), upload: upload.clone(), number };
                take(&view, &holder, &part.extents)?;
            }
        }
        Ok(())
    }

    /// Parks what was fetched for parts, which is not done when it comes, and has it go first.
    fn put_fetched_first(&self) -> GatewayResult<()> {
        self.each_part_with_holder(|view, holder, extents| {
            for extent in extents {
                if let Some(content) = view.content(extent.content)?
                    && content.was_fetched()
                {
                    self.spills.park(extent.content, content.size_bytes, holder.clone());
                    self.spills.put_first(extent.content);
                }
            }
            Ok(())
        })
    }

    fn park_extents(
        &self,
        view: &MetadataView,
        holder: &Holder,
        extents: &[ContentExtent],
    ) -> GatewayResult<()> {
        for extent in extents {
            if let Some(content) = view.content(extent.content)?
                && matches!(content.place, ContentPlace::Local { .. })
            {
                self.spills.park(extent.content, content.size_bytes, holder.clone());
            }
        }
        Ok(())
    }

    async fn spill_or_put_back(&self, content: ContentId, mut parked: ParkedContent) {
        let name = parked.holders.iter().next().map(|holder| holder.name.to_string()).unwrap_or_default();
        let item = format!("a part of an upload to {name}");
        let spilling = self.spill(content, &parked.holders);
        let failure: FailedAttempt = match self.supervisor.attempt(SPILLER, &item, spilling).await {
            Ok(Ok(SpillOutcome::Stored)) => {
                if let Some(name) = parked.name() {
                    self.spills.note_stored(&name.bucket);
                }
                return;
            }
            Ok(Ok(SpillOutcome::NotNeeded)) => return,
            Ok(Ok(SpillOutcome::Later)) => {
                parked.not_before = Instant::now() + AGAIN_AFTER;
                return self.spills.state.lock().insert(content, parked);
            }
            Ok(Err(error)) => error.into(),
            Err(panicked) => FailedAttempt {
                cause: FailureCause::Panicked,
                error: GatewayError::Store(panicked.to_string()),
            },
        };
        self.counters.flush_failures.fetch_add(1, Ordering::Relaxed);
        // Its upload may have ended meanwhile.
        if let Ok(view) = self.metadata.view() {
            let has_ended = |holder: &Holder| matches!(view.upload(&holder.name, &holder.upload), Ok(None));
            parked.holders.retain(|holder| !has_ended(holder));
        }
        if parked.holders.is_empty() {
            return;
        }
        // What fails for longer is listed by the reporter of failures.
        if self.spills.state.lock().fail(content, parked, &failure) {
            tracing::warn!("{item} is not in the store yet: {}", failure.error);
        }
    }

    /// Stores a content of the journal as an object of its own.
    async fn spill(&self, content: ContentId, holders: &HashSet<Holder>) -> GatewayResult<SpillOutcome> {
        let holder = {
            let view = self.metadata.view()?;
            let mut owner = None;
            for holder in holders {
                let part = match view.upload(&holder.name, &holder.upload)? {
                    Some(_) => view.part(&holder.upload, holder.number)?,
                    None => None,
                };
                let consists =
                    |extents: &[ContentExtent]| extents.iter().any(|extent| extent.content == content);
                if part.is_some_and(|part| consists(&part.extents)) {
                    owner = Some(holder);
                    break;
                }
            }
            owner
        };
        let Some(Holder { name, upload, .. }) = holder else { return Ok(SpillOutcome::NotNeeded) };
        if !self.may_flush(name) {
            return Ok(SpillOutcome::Later);
        }
        let state = self.any_bucket(&name.bucket)?;
        self.check_whose(&state).await?;
        let staged = staged_name(name)?;
        let fence = self.fence_of(name)?;
        // It goes when the outcome has been committed, or has failed: then the flushers delete what is there.
        let _under_way = self.spills.begin(staged.clone());
        let (of_upload, upload) = (name.clone(), upload.clone());
        // With the upload its bucket may have gone, and nothing may be pending in one that is not there.
        let is_there = move |change: &MetadataChange<'_>| Ok(change.upload(&of_upload, &upload)?.is_some());
        if !self.announce_staged(&staged, fence.clone(), is_there).await? {
            // Another upload may consist of it as well.
            return Ok(SpillOutcome::Later);
        }
        let Some((place, found, size_bytes)) = self.store_part(&state, &staged, content).await? else {
            return Ok(SpillOutcome::NotNeeded);
        };
        if !self.enter_staged(staged, (content, place), found, fence).await? {
            return Ok(SpillOutcome::NotNeeded);
        }
        self.counters.spilled_parts.fetch_add(1, Ordering::Relaxed);
        self.counters.spilled_bytes.fetch_add(size_bytes, Ordering::Relaxed);
        Ok(SpillOutcome::Stored)
    }

    /// Writes a content of the journal to the store, and looks whether it is there. Returns where it was here; `None`
    /// if it is in the journal no more.
    async fn store_part(
        &self,
        state: &BucketState,
        staged: &ObjectName,
        content: ContentId,
    ) -> GatewayResult<Option<(ContentPlace, StoredInfo, u64)>> {
        let (_pins, local) = self.journal.pin(|| {
            let view = self.metadata.view()?;
            let local = match view.content(content)? {
                Some(record) if matches!(record.place, ContentPlace::Local { .. }) => {
                    let whole = ContentExtent { content, offset_bytes: 0, length_bytes: record.size_bytes };
                    Some((self.runs_of(&view, state, &[whole])?, record))
                }
                _ => None,
            };
            Ok((vec![content], local))
        })?;
        let Some((runs, record)) = local else { return Ok(None) };
        let found = self.send_staged(state, staged, content, record.size_bytes, &runs).await?;
        Ok(Some((record.place, found, record.size_bytes)))
    }

    /// Room in the journal. Parts get theirs one after the other, so the one that has waited longest is not overtaken
    /// forever.
    ///
    /// # Errors
    /// `Busy` if it stays full, or others need the place of this request, and as
    /// [`Journal::reserve`](crate::journal::Journal::reserve).
    pub(super) async fn make_room(
        &self,
        content: ContentId,
        size_bytes: u64,
        most_bytes: u64,
        purpose: WriteTarget,
    ) -> GatewayResult<ContentWriter> {
        let reserving = async {
            let _turn = match purpose {
                WriteTarget::Object => None,
                WriteTarget::Part => Some(self.spills.turns.lock().await),
            };
            let mut reserving = std::pin::pin!(self.journal.reserve(content, size_bytes, most_bytes));
            if let Poll::Ready(outcome) = futures_util::poll!(&mut reserving) {
                return outcome;
            }
            // From now on parts go to the store, however few they are.
            let _waiting = self.spills.wait();
            reserving.await
        };
        let reserved = self.wait_for(RoomKind::Bytes, reserving).await;
        reserved.unwrap_or_else(|| Err(self.journal.refuse(most_bytes)))
    }

    /// Says in the log, now and then, that a part found no room.
    pub(super) fn say_refused(&self, name: &ObjectName, upload: &str, error: &GatewayError) {
        if matches!(error, GatewayError::Busy(_)) && self.spills.is_time_to_say() {
            let (bytes, (used, capacity)) = (self.spills.journal_bytes(), self.journal_bytes());
            tracing::warn!(
                "no room for a part of upload {upload} to {name}: {used} of {capacity} bytes of the journal are taken, {bytes} of them by parts, and the store takes them too slowly\n  what to do: see whether the stores answer; if they do, raise `journal` in [local]"
            );
        }
    }

    /// How many uploads are unfinished, how many bytes of them are in the journal, and when the oldest was begun (since
    /// 1970).
    ///
    /// # Errors
    /// When the metadata can't be read.
    pub fn unfinished_uploads(&self) -> GatewayResult<(u64, u64, Option<i64>)> {
        let (mut count, mut oldest_ms) = (0, None);
        self.metadata.view()?.each_upload(|_, _, record| {
            count += 1;
            oldest_ms = Some(oldest_ms.map_or(record.begun_ms, |oldest: i64| oldest.min(record.begun_ms)));
        })?;
        Ok((count, self.spills.journal_bytes(), oldest_ms))
    }

    /// Keys to which a request may still land that the store has not answered.
    pub(crate) fn unanswered_keys(&self) -> u64 {
        self.late_of_all().iter().map(|(_, late)| late.names().len() as u64).sum()
    }

    /// Some of the unfinished uploads, as the log names them, and how many there are.
    pub(crate) fn some_uploads(&self, most: usize) -> GatewayResult<(Vec<String>, usize)> {
        let (mut some, mut count) = (Vec::new(), 0);
        self.metadata.view()?.each_upload(|name, upload, _| {
            count += 1;
            if some.len() < most {
                some.push(format!("{upload} to {name}"));
            }
        })?;
        Ok((some, count))
    }
}

#[cfg(test)]
mod tests;
