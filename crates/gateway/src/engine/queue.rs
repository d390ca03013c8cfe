//! Names that are to be flushed, and when. The metadata have the same names durably; this is how the flushers wait for
//! them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use underlay_sync::Mutex;
use underlay_sync::planted::{PlantedBug, is_planted};

use super::failing::{FailedAttempt, FailingName, FailureCause, MAX_REFUSED_COPIES, UnstoredName};
use crate::errors::GatewayResult;
use crate::meta::ObjectName;
use crate::model::{ContentId, now_ms};

/// A name that was refused so often since a drain began is not waited for.
const REFUSED_IN_VAIN: u32 = 4;
/// A name whose turn depends on another's looks again after so long, if nothing wakes it before.
const BLOCKED_PAUSE: Duration = Duration::from_secs(2);
/// The same where somebody waits for it.
const AWAITED_PAUSE: Duration = Duration::from_millis(200);
/// A name blocked for so long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(60);
/// Names that failed, of those a deletion looks at so many: the others have their own pace.
const MAX_LOOKED_AT: usize = 1000;
/// A name that is another gateway's, as far as is known, looks again after so long.
const NOT_OURS_PAUSE: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(super) struct FlushQueue {
    state: Mutex<FlushQueueState>,
    changed: Notify,
    /// How many names it may have, if that is limited.
    most: Option<usize>,
}

#[derive(Default)]
struct FlushQueueState {
    items: HashMap<ObjectName, FlushItem>,
    /// Those that nobody is flushing, by when they are due.
    order: BTreeSet<(Instant, ObjectName)>,
    /// Names that somebody is flushing, kept apart from the items: a commit may settle an item and enter the name anew
    /// meanwhile, and no second flusher may have the name before the first is through with it.
    under_way: HashSet<ObjectName>,
    /// Names that are about to be entered.
    reserved: usize,
    is_stopped: bool,
    /// Whether somebody waits for everything.
    is_hurried: bool,
    last_failure: Option<(String, String)>,
    /// Those whose last attempt failed, the first that did first.
    failing: BTreeSet<(i64, ObjectName)>,
    failing_by_cause: BTreeMap<FailureCause, usize>,
}

struct FlushItem {
    since_ms: i64,
    due: Instant,
    /// Those that failed, in a row.
    attempts: u32,
    /// Of those, the ones that the store refused.
    refusals: u32,
    failed: Option<FailingName>,
    /// Whether there is something else to store than at the last attempt.
    is_renewed: bool,
    blocked_since: Option<Instant>,
    /// Whether something in its way went during the present attempt, which may be too late for it.
    is_hastened: bool,
    /// Whether it can't be flushed before an earlier request has landed, or can't land any more.
    waits: bool,
    /// The contents of the store's object until a flush overwrites it. Some may be reading it still.
    formers: Vec<ContentId>,
    /// Counts commits that made the name pending.
    generation: u64,
    /// That count when the last attempt began: what came after it has not been tried.
    tried: u64,
    /// Each with the count when it began to wait.
    waiters: Vec<(u64, oneshot::Sender<GatewayResult<()>>)>,
}

impl FlushItem {
    fn is_awaited(&self) -> bool {
        self.waiters.iter().any(|(_, waiter)| !waiter.is_closed())
    }
}

/// One attempt's outcome.
pub(super) enum AttemptOutcome {
    /// The metadata say so too: the row is gone, or is there for a newer version.
    Done,
    /// Others need what the store has at this name.
    Blocked,
    Failed(FailedAttempt),
    /// It is not ours to flush now.
    NotOurs,
    /// An earlier request may still be carried out until then.
    Waits(Instant),
}

/// A name to flush.
pub(super) struct FlushTurn {
    pub(super) name: ObjectName,
    /// Nothing else can be done before this one is: what others need of it has to be fetched.
    pub(super) is_stuck: bool,
    /// The store has refused it again and again, so it is not to copy it itself.
    pub(super) wants_bytes: bool,
}

impl FlushQueue {
    pub(super) fn new(most: usize) -> FlushQueue {
        FlushQueue { most: Some(most), ..FlushQueue::default() }
    }

    /// Places for those of the names that are not pending, waited for where there are none. Names that the stores
    /// refuse again and again may stay forever: they have as many places of their own, so that new names still have
    /// theirs.
    pub(super) async fn reserve(self: &Arc<Self>, names: &[ObjectName]) -> ReservedNames {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.state.lock();
                let count = names.iter().filter(|name| !state.items.contains_key(*name)).count();
                let lasting = state.failing_by_cause.iter().filter(|(cause, _)| cause.is_lasting());
                let lasting: usize = lasting.map(|(_, count)| count).sum();
                let used = |most| state.items.len() - lasting.min(most);
                let has_room = |most| used(most) + state.reserved + count <= most;
                let is_uncounted = is_planted(PlantedBug::EntriesUncounted);
                if count == 0 || is_uncounted || self.most.is_none_or(has_room) {
                    state.reserved += count;
                    return ReservedNames { queue: Arc::clone(self), count };
                }
            }
            changed.await;
        }
    }

    /// Places that have been used, or are not needed.
    fn give_back(&self, count: usize) {
        if count > 0 {
            self.state.lock().reserved -= count;
            self.changed.notify_waiters();
        }
    }

    /// Enters names or takes them out, as a commit said. `delay_of` says how long a new one may wait.
    pub(super) fn apply(
        &self,
        queued: Vec<(ObjectName, Option<i64>)>,
        unblocked: &[(ObjectName, ContentId)],
        delay_of: impl Fn(&ObjectName) -> Duration,
    ) {
        if queued.is_empty() && unblocked.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for (name, queued_since) in queued {
            match queued_since {
                Some(since_ms) => {
                    let due = Instant::now() + delay_of(&name);
                    state.enter(name, since_ms, due);
                }
                None => state.settle(&name),
            }
        }
        for (name, content) in unblocked {
            if let Some(item) = state.items.get_mut(name) {
                item.formers.push(*content);
            }
            if state.items.get(name).is_some_and(|item| item.blocked_since.is_some()) {
                state.set_due(name, Instant::now());
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Enters what the metadata had at the start.
    pub(super) fn load(&self, name: ObjectName, since_ms: i64, due: Instant) {
        self.state.lock().enter(name, since_ms, due);
    }

    /// Answers when the store has what the name has now, or with what went wrong.
    pub(super) fn hasten(&self, name: &ObjectName) -> oneshot::Receiver<GatewayResult<()>> {
        let (answer, answered) = oneshot::channel();
        let mut state = self.state.lock();
        match state.items.get_mut(name) {
            Some(item) => {
                item.waiters.push((item.generation, answer));
                state.set_due(name, Instant::now());
            }
            None => drop(answer.send(Ok(()))),
        }
        drop(state);
        self.changed.notify_waiters();
        answered
    }

    /// Makes a name due that has not been tried in vain: others have their own pace.
    pub(super) fn hasten_waiting(&self, name: &ObjectName) {
        let (mut state, now) = (self.state.lock(), Instant::now());
        let is_tried = |item: &FlushItem| item.failed.is_some() || item.waits || item.blocked_since.is_some();
        // One that is due keeps its place.
        if !state.items.get(name).is_some_and(|item| item.due > now && !is_tried(item)) {
            return;
        }
        state.set_due(name, now);
        drop(state);
        self.changed.notify_waiters();
    }

    pub(super) fn hasten_bucket(&self, bucket: &str) {
        self.hasten_those(|name| name.bucket == bucket);
    }

    /// The same without names that have been tried in vain: those have their own pace.
    pub(super) fn hasten_new_in(&self, bucket: &str) {
        self.hasten_items(|name, item| name.bucket == bucket && item.failed.is_none() && !item.waits);
    }

    /// A directory has removed a name: what failed above or below it may succeed now.
    pub(super) fn hasten_around(&self, removed: &ObjectName) {
        let mut state = self.state.lock();
        let failing = state.failing.iter().take(MAX_LOOKED_AT).map(|(_, name)| name);
        let nested =
            failing.filter(|name| name.bucket == removed.bucket && are_nested(&name.key, &removed.key));
        let now = Instant::now();
        // One that is due keeps its place.
        let is_later = |name: &&ObjectName| state.items.get(*name).is_some_and(|item| item.due > now);
        let names: Vec<ObjectName> = nested.filter(is_later).cloned().collect();
        for name in &names {
            state.set_due(name, now);
        }
        let attempted = state.under_way.iter();
        let attempted =
            attempted.filter(|name| name.bucket == removed.bucket && are_nested(&name.key, &removed.key));
        let attempted: Vec<ObjectName> = attempted.cloned().collect();
        for name in &attempted {
            if let Some(item) = state.items.get_mut(name) {
                item.is_hastened = true;
            }
        }
        drop(state);
        if !names.is_empty() {
            self.changed.notify_waiters();
        }
    }

    /// Somebody waits for everything from now on.
    pub(super) fn hurry(&self) {
        let mut state = self.state.lock();
        state.is_hurried = true;
        state.items.values_mut().for_each(|item| item.attempts = 0);
        drop(state);
        self.hasten_those(|_| true);
    }

    /// Names whose attempts have failed since before this time, no more than `most`.
    pub(super) fn failing(&self, before_ms: i64, most: usize) -> Vec<UnstoredName> {
        let state = self.state.lock();
        let failing = state.failing.iter().take_while(|(since_ms, _)| *since_ms <= before_ms);
        failing.take(most).map(|(_, name)| state.unstored(name)).collect()
    }

    pub(super) fn failing_counts(&self) -> Vec<(FailureCause, usize)> {
        let state = self.state.lock();
        state.failing_by_cause.iter().map(|(cause, count)| (*cause, *count)).collect()
    }

    /// Names that are not stored, those that fail first, no more than `most`.
    pub(super) fn unstored(&self, most: usize) -> Vec<UnstoredName> {
        let state = self.state.lock();
        let failing = state.failing.iter().map(|(_, name)| name);
        let others = state.items.iter().filter(|(_, item)| item.failed.is_none()).map(|(name, _)| name);
        failing.chain(others).take(most).map(|name| state.unstored(name)).collect()
    }

    /// Whether nothing but what is refused is left, or waits for that.
    pub(super) fn is_held_up(&self) -> bool {
        let state = self.state.lock();
        let is_refused = |item: &FlushItem| {
            item.attempts >= REFUSED_IN_VAIN
                && item.failed.as_ref().is_some_and(|failed| failed.cause.is_lasting())
        };
        state.is_hurried
            && !state.failing.is_empty()
            && state.items.values().all(|item| item.blocked_since.is_some() || is_refused(item))
    }

    /// Calls `take` for every name that is pending or that somebody is flushing.
    pub(super) fn each_name(&self, mut take: impl FnMut(&ObjectName)) {
        let state = self.state.lock();
        state.items.keys().for_each(&mut take);
        state.under_way.iter().for_each(&mut take);
    }

    pub(super) fn hasten_some(&self, predicate: impl Fn(&ObjectName) -> bool) {
        self.hasten_those(predicate);
    }

    fn hasten_those(&self, predicate: impl Fn(&ObjectName) -> bool) {
        self.hasten_items(|name, _| predicate(name));
    }

    fn hasten_items(&self, which: impl Fn(&ObjectName, &FlushItem) -> bool) {
        let mut state = self.state.lock();
        let names = state.items.iter().filter(|(name, item)| which(name, item)).map(|(name, _)| name);
        let names: Vec<ObjectName> = names.cloned().collect();
        let now = Instant::now();
        for name in names {
            state.set_due(&name, now);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    pub(super) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_waiters();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.state.lock().is_stopped
    }

    pub(super) fn summary(&self) -> (usize, Option<i64>) {
        let state = self.state.lock();
        // One that was settled in flight may yet turn out to have something to be deleted.
        let leaving = state.under_way.iter().filter(|name| !state.items.contains_key(*name)).count();
        (state.items.len() + leaving, state.items.values().map(|item| item.since_ms).min())
    }

    pub(super) fn last_failure(&self) -> Option<(String, String)> {
        self.state.lock().last_failure.clone()
    }

    /// The next name that is due; `None` once the queue is stopped.
    pub(super) async fn next(&self) -> Option<FlushTurn> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let wait = {
                let mut state = self.state.lock();
                if state.is_stopped {
                    return None;
                }
                match state.take(Instant::now()) {
                    Ok(turn) => return Some(turn),
                    Err(wait) => wait,
                }
            };
            match wait {
                Some(deadline) => drop(tokio::time::timeout_at(deadline, changed).await),
                None => changed.await,
            }
        }
    }

    /// Contents of the store's object that no other object needs any more. Told once.
    pub(super) fn take_formers(&self, name: &ObjectName) -> Vec<ContentId> {
        self.state.lock().items.get_mut(name).map_or_else(Vec::new, |item| std::mem::take(&mut item.formers))
    }

    /// Takes the outcome of a [`FlushTurn`].
    pub(super) fn finish(&self, name: &ObjectName, attempt: AttemptOutcome) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.under_way.remove(name);
        let mut last_failure = None;
        if let Some(item) = state.items.get_mut(name) {
            let now = Instant::now();
            // Nothing was tried where it waits: a failure before that stays the last word.
            let former = match attempt {
                AttemptOutcome::Waits(_) => None,
                _ => item.failed.take(),
            };
            if let Some(former) = &former {
                state.failing.remove(&(former.since_ms, name.clone()));
                uncount(&mut state.failing_by_cause, former.cause);
            }
            item.waits = matches!(attempt, AttemptOutcome::Waits(_));
            if std::mem::take(&mut item.is_renewed) {
                (item.attempts, item.refusals) = (0, 0);
            }
            let is_hastened = std::mem::take(&mut item.is_hastened);
            let due = match attempt {
                // Still there: a newer version came meanwhile, and may have time.
                AttemptOutcome::Done => {
                    (item.attempts, item.refusals, item.blocked_since) = (0, 0, None);
                    item.due.max(now)
                }
                AttemptOutcome::Blocked => {
                    item.blocked_since.get_or_insert(now);
                    now + if item.is_awaited() { AWAITED_PAUSE } else { BLOCKED_PAUSE }
                }
                AttemptOutcome::NotOurs => now + NOT_OURS_PAUSE,
                AttemptOutcome::Waits(deadline) => deadline.max(now),
                AttemptOutcome::Failed(failure) => {
                    item.attempts += 1;
                    item.refusals += u32::from(matches!(failure.cause, FailureCause::Refused(_)));
                    let since_ms = former.map_or_else(now_ms, |former| former.since_ms);
                    item.failed = Some(FailingName { since_ms, cause: failure.cause, why: failure.reason() });
                    state.failing.insert((since_ms, name.clone()));
                    *state.failing_by_cause.entry(failure.cause).or_default() += 1;
                    last_failure = Some((name.to_string(), failure.error.to_string()));
                    let tried = item.tried;
                    for (_, waiter) in item.waiters.extract_if(.., |(generation, _)| *generation <= tried) {
                        // The client may be gone.
                        let _ = waiter.send(Err(failure.error.clone()));
                    }
                    match is_hastened {
                        true => now,
                        false => now + failure.cause.pause(item.attempts, state.is_hurried),
                    }
                }
            };
            item.due = due;
            state.order.insert((due, name.clone()));
        }
        if last_failure.is_some() {
            state.last_failure = last_failure;
        }
        drop(guard);
        self.changed.notify_waiters();
    }
}

/// Places for names that a commit is about to enter. They are given back behind it.
pub(super) struct ReservedNames {
    queue: Arc<FlushQueue>,
    count: usize,
}

impl Drop for ReservedNames {
    fn drop(&mut self) {
        self.queue.give_back(self.count);
    }
}

impl FlushQueueState {
    fn enter(&mut self, name: ObjectName, since_ms: i64, due: Instant) {
        if let Some(item) = self.items.get_mut(&name) {
            item.generation += 1;
            item.is_renewed = true;
            // A failed name may succeed now.
            if item.failed.is_some() && due < item.due {
                self.set_due(&name, due);
            }
            return;
        }
        if !self.under_way.contains(&name) {
            self.order.insert((due, name.clone()));
        }
        let item = FlushItem {
            since_ms,
            due,
            attempts: 0,
            refusals: 0,
            failed: None,
            is_renewed: false,
            is_hastened: false,
            blocked_since: None,
            waits: false,
            formers: Vec::new(),
            generation: 1,
            tried: 0,
            waiters: Vec::new(),
        };
        self.items.insert(name, item);
    }

    fn settle(&mut self, name: &ObjectName) {
        let Some(item) = self.items.remove(name) else { return };
        self.order.remove(&(item.due, name.clone()));
        if let Some(failed) = item.failed {
            self.failing.remove(&(failed.since_ms, name.clone()));
            uncount(&mut self.failing_by_cause, failed.cause);
        }
        for (_, waiter) in item.waiters {
            let _ = waiter.send(Ok(()));
        }
        if self.items.is_empty() {
            self.last_failure = None;
        }
    }

    fn unstored(&self, name: &ObjectName) -> UnstoredName {
        let failed = self.items.get(name).and_then(|item| item.failed.clone());
        UnstoredName { name: name.clone(), failed }
    }

    fn set_due(&mut self, name: &ObjectName, due: Instant) {
        let Some(item) = self.items.get_mut(name) else { return };
        let former = std::mem::replace(&mut item.due, due);
        // Else it is put in order when its flusher is through.
        if !self.under_way.contains(name) {
            self.order.remove(&(former, name.clone()));
            self.order.insert((due, name.clone()));
        }
    }

    /// A turn, or until when there is none.
    fn take(&mut self, now: Instant) -> std::result::Result<FlushTurn, Option<Instant>> {
        let Some((due, name)) = self.order.first().cloned() else { return Err(None) };
        if due > now {
            return Err(Some(due));
        }
        self.order.pop_first();
        // A name is stuck if it was blocked when everything else was, too, or if somebody waits for it.
        // What the store refuses again and again changes nothing for the others.
        let is_refused =
            |item: &FlushItem| item.failed.as_ref().is_some_and(|failed| failed.cause.is_lasting());
        let can_go_on = |item: &FlushItem| item.blocked_since.is_none() && !is_refused(item);
        let others_can = || self.items.iter().any(|(other, item)| *other != name && can_go_on(item));
        let is_stuck = self.items.get(&name).is_some_and(|item| {
            let waited = item.blocked_since.map(|since| now - since);
            waited.is_some_and(|waited| item.is_awaited() || waited > STUCK_AFTER || !others_can())
        });
        let wants_bytes = self.items.get(&name).is_some_and(|item| item.refusals >= MAX_REFUSED_COPIES)
            && !is_planted(PlantedBug::RefusalRetriedForEver);
        self.under_way.insert(name.clone());
        if let Some(item) = self.items.get_mut(&name) {
            item.tried = item.generation;
        }
        Ok(FlushTurn { name, is_stuck, wants_bytes })
    }
}

/// Whether one of two keys would be a directory on the other's path.
fn are_nested(one: &str, other: &str) -> bool {
    let is_above = |above: &str, below: &str| {
        below.strip_prefix(above).is_some_and(|rest| rest.starts_with('/') || above.ends_with('/'))
    };
    one != other && (is_above(one, other) || is_above(other, one))
}

fn uncount(by_cause: &mut BTreeMap<FailureCause, usize>, cause: FailureCause) {
    if let Some(count) = by_cause.get_mut(&cause) {
        *count -= 1;
        if *count == 0 {
            by_cause.remove(&cause);
        }
    }
}

#[cfg(test)]
mod tests;
