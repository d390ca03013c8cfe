//! Names that are to be flushed, and when. The metadata have the same names durably; this is how the flushers wait for them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use underlay_sync::Mutex;

use crate::errors::{Error, Result};
use crate::meta::Name;
use crate::model::ContentId;

/// The longest pause after failures.
const MOST_PAUSE: Duration = Duration::from_secs(30);
/// A name whose turn depends on another's looks again after so long, if nothing wakes it before.
const BLOCKED_PAUSE: Duration = Duration::from_secs(2);
/// And so does one that is another gateway's, as far as is known.
const NOT_OURS_PAUSE: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    items: HashMap<Name, Item>,
    /// Those that nobody is flushing, by when they are due.
    order: BTreeSet<(Instant, Name)>,
    /// Names that somebody is flushing, kept apart from the items: a commit may settle an item and enter the name anew
    /// meanwhile, and no second flusher may have the name before the first is through with it.
    under_way: HashSet<Name>,
    is_stopped: bool,
    last_failure: Option<(String, String)>,
}

struct Item {
    since_ms: i64,
    due: Instant,
    attempts: u32,
    blocked_since: Option<Instant>,
    /// What the store has at the name until a flush overwrites it. Some may be reading it still.
    formers: Vec<ContentId>,
    /// Counts commits that made the name pending.
    generation: u64,
    /// That count when the last attempt began: what came after it has not been tried.
    tried: u64,
    /// Each with the count when it began to wait.
    waiters: Vec<(u64, oneshot::Sender<Result<()>>)>,
}

/// What became of one attempt.
pub(super) enum Attempt {
    /// The metadata say so too: the row is gone, or is there for a newer version.
    Done,
    /// Others need what the store has at this name.
    Blocked,
    Failed(Error),
    /// It is not ours to flush now.
    NotOurs,
    /// An earlier request may still be carried out until then.
    Waits(Instant),
}

/// A name to flush.
pub(super) struct Turn {
    pub(super) name: Name,
    /// Nothing else can be done before this one is: what others need of it has to be fetched.
    pub(super) is_stuck: bool,
}

impl Queue {
    /// Enters names or takes them out, as a commit said. `delay_of` says how long a new one may wait.
    pub(super) fn apply(
        &self,
        queued: Vec<(Name, Option<i64>)>,
        unblocked: &[(Name, ContentId)],
        delay_of: impl Fn(&Name) -> Duration,
    ) {
        if queued.is_empty() && unblocked.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for (name, since) in queued {
            match since {
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
    pub(super) fn load(&self, name: Name, since_ms: i64, due: Instant) {
        self.state.lock().enter(name, since_ms, due);
    }

    /// Answers when the store has what the name has now, or with what went wrong.
    pub(super) fn hasten(&self, name: &Name) -> oneshot::Receiver<Result<()>> {
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

    pub(super) fn hasten_bucket(&self, bucket: &str) {
        self.hasten_those(|name| name.bucket == bucket);
    }

    pub(super) fn hasten_all(&self) {
        self.hasten_those(|_| true);
    }

    /// Calls `take` for every name that is pending or that somebody is flushing.
    pub(super) fn each_name(&self, mut take: impl FnMut(&Name)) {
        let state = self.state.lock();
        state.items.keys().for_each(&mut take);
        state.under_way.iter().for_each(&mut take);
    }

    pub(super) fn hasten_some(&self, which: impl Fn(&Name) -> bool) {
        self.hasten_those(which);
    }

    fn hasten_those(&self, which: impl Fn(&Name) -> bool) {
        let mut state = self.state.lock();
        let names: Vec<Name> = state.items.keys().filter(|name| which(name)).cloned().collect();
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
        // One that was settled under way may yet turn out to have something to be deleted.
        let leaving = state.under_way.iter().filter(|name| !state.items.contains_key(*name)).count();
        (state.items.len() + leaving, state.items.values().map(|item| item.since_ms).min())
    }

    pub(super) fn last_failure(&self) -> Option<(String, String)> {
        self.state.lock().last_failure.clone()
    }

    /// The next name that is due; `None` once the queue is stopped.
    pub(super) async fn next(&self) -> Option<Turn> {
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
                Some(until) => drop(tokio::time::timeout_at(until, changed).await),
                None => changed.await,
            }
        }
    }

    /// What the store has at a name that no object consists of any more. Told once.
    pub(super) fn take_formers(&self, name: &Name) -> Vec<ContentId> {
        self.state.lock().items.get_mut(name).map_or_else(Vec::new, |item| std::mem::take(&mut item.formers))
    }

    /// What became of a [`Turn`].
    pub(super) fn finish(&self, name: &Name, attempt: Attempt) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.under_way.remove(name);
        let mut failure = None;
        if let Some(item) = state.items.get_mut(name) {
            let now = Instant::now();
            let due = match attempt {
                // Still there: a newer version came meanwhile, and may have time.
                Attempt::Done => {
                    (item.attempts, item.blocked_since) = (0, None);
                    item.due.max(now)
                }
                Attempt::Blocked => {
                    item.blocked_since.get_or_insert(now);
                    now + BLOCKED_PAUSE
                }
                Attempt::NotOurs => now + NOT_OURS_PAUSE,
                Attempt::Waits(until) => until.max(now),
                Attempt::Failed(error) => {
                    item.attempts += 1;
                    failure = Some((name.to_string(), error.to_string()));
                    let tried = item.tried;
                    for (_, waiter) in item.waiters.extract_if(.., |(generation, _)| *generation <= tried) {
                        // The client may be gone.
                        let _ = waiter.send(Err(error.clone()));
                    }
                    now + MOST_PAUSE.min(Duration::from_millis(100) * 2_u32.pow(item.attempts.min(12)))
                }
            };
            item.due = due;
            state.order.insert((due, name.clone()));
        }
        if failure.is_some() {
            state.last_failure = failure;
        }
        drop(guard);
        self.changed.notify_waiters();
    }
}

impl State {
    fn enter(&mut self, name: Name, since_ms: i64, due: Instant) {
        if let Some(item) = self.items.get_mut(&name) {
            item.generation += 1;
            return;
        }
        if !self.under_way.contains(&name) {
            self.order.insert((due, name.clone()));
        }
        let item = Item {
            since_ms,
            due,
            attempts: 0,
            blocked_since: None,
            formers: Vec::new(),
            generation: 1,
            tried: 0,
            waiters: Vec::new(),
        };
        self.items.insert(name, item);
    }

    fn settle(&mut self, name: &Name) {
        let Some(item) = self.items.remove(name) else { return };
        self.order.remove(&(item.due, name.clone()));
        for (_, waiter) in item.waiters {
            let _ = waiter.send(Ok(()));
        }
        if self.items.is_empty() {
            self.last_failure = None;
        }
    }

    fn set_due(&mut self, name: &Name, due: Instant) {
        let Some(item) = self.items.get_mut(name) else { return };
        let former = std::mem::replace(&mut item.due, due);
        // Else it is put in order when its flusher is through.
        if !self.under_way.contains(name) {
            self.order.remove(&(former, name.clone()));
            self.order.insert((due, name.clone()));
        }
    }

    /// A turn, or until when there is none.
    fn take(&mut self, now: Instant) -> std::result::Result<Turn, Option<Instant>> {
        let Some((due, name)) = self.order.first().cloned() else { return Err(None) };
        if due > now {
            return Err(Some(due));
        }
        self.order.pop_first();
        // Stuck is a name that was blocked when everything else was, too.
        let others_can =
            self.items.iter().any(|(other, item)| *other != name && item.blocked_since.is_none());
        let waited = self.items.get(&name).and_then(|item| item.blocked_since).map(|since| now - since);
        let is_stuck = waited.is_some_and(|waited| !others_can || waited > Duration::from_secs(60));
        self.under_way.insert(name.clone());
        if let Some(item) = self.items.get_mut(&name) {
            item.tried = item.generation;
        }
        Ok(Turn { name, is_stuck })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(queue: &Queue) -> Option<Name> {
        queue.state.lock().take(Instant::now()).ok().map(|turn| turn.name)
    }

    fn apply(queue: &Queue, name: &Name, since_ms: Option<i64>, delay: Duration) {
        queue.apply(vec![(name.clone(), since_ms)], &[], |_| delay);
    }

    #[test]
    fn a_name_that_comes_anew_waits_for_its_flusher() {
        let (queue, name) = (Queue::default(), Name::new("lake", "a"));
        apply(&queue, &name, Some(1), Duration::ZERO);
        assert_eq!(take(&queue), Some(name.clone()));
        // The flusher's commit settles the first version, and a second one comes before the flusher says that it is through.
        apply(&queue, &name, None, Duration::ZERO);
        assert_eq!(queue.summary().0, 1, "somebody is still at it");
        apply(&queue, &name, Some(2), Duration::ZERO);
        drop(queue.hasten(&name));
        assert_eq!(take(&queue), None);
        queue.finish(&name, Attempt::Done);
        assert_eq!(take(&queue), Some(name.clone()));
        assert_eq!(take(&queue), None);
        apply(&queue, &name, None, Duration::ZERO);
        queue.finish(&name, Attempt::Done);
        assert_eq!((take(&queue), queue.summary().0), (None, 0));
    }

    #[test]
    fn an_attempt_that_fails_is_no_word_about_a_version_that_came_meanwhile() {
        let (queue, name) = (Queue::default(), Name::new("lake", "a"));
        let failed = || Attempt::Failed(Error::Store("no".to_owned()));
        apply(&queue, &name, Some(1), Duration::ZERO);
        assert_eq!(take(&queue), Some(name.clone()));
        // It may be sent already when its writer begins to wait.
        let mut first = queue.hasten(&name);
        // A second client writes to the name while the first one's version is sent.
        apply(&queue, &name, Some(1), Duration::ZERO);
        let mut second = queue.hasten(&name);
        queue.finish(&name, failed());
        assert!(matches!(first.try_recv(), Ok(Err(_))) && second.try_recv().is_err());
        queue.hasten_all();
        assert_eq!(take(&queue), Some(name.clone()));
        queue.finish(&name, failed());
        assert!(matches!(second.try_recv(), Ok(Err(_))));
    }

    #[test]
    fn a_name_to_which_something_may_land_waits_until_it_can_no_longer() {
        let (queue, name) = (Queue::default(), Name::new("lake", "a"));
        apply(&queue, &name, Some(1), Duration::ZERO);
        let mut waiter = queue.hasten(&name);
        assert_eq!(take(&queue), Some(name.clone()));
        queue.finish(&name, Attempt::Waits(Instant::now() + Duration::from_secs(3600)));
        assert_eq!((take(&queue), queue.summary().0), (None, 1));
        // Nothing has failed: whoever waits for the store waits on.
        assert!(waiter.try_recv().is_err());
    }

    #[test]
    fn a_version_that_came_under_way_may_wait_as_long_as_its_rule_says() {
        let (queue, name) = (Queue::default(), Name::new("lake", "a"));
        apply(&queue, &name, Some(1), Duration::ZERO);
        assert_eq!(take(&queue), Some(name.clone()));
        apply(&queue, &name, None, Duration::ZERO);
        apply(&queue, &name, Some(2), Duration::from_secs(3600));
        queue.finish(&name, Attempt::Done);
        assert_eq!(take(&queue), None);
        drop(queue.hasten(&name));
        assert_eq!(take(&queue), Some(name));
    }
}
