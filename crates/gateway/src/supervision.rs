//! Loops that run as long as the gateway: each has a task of its own, and a panic in one never goes unnoticed. It is
//! caught, counted and logged with what the loop was working on; that item is set aside, and the loop goes on. Too many
//! panics end the process; its next start may help, or shows the bug again.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::task::JoinHandle;
use underlay_sync::Mutex;
use underlay_sync::planted::{PlantedBug, is_planted};

/// Panics are counted over this time.
const COUNTED_FOR: Duration = Duration::from_secs(600);
/// So many of a loop itself, outside of any item, show that it can't do its work.
const MAX_LOOP_PANICS: usize = 10;
/// Items are set aside one by one, so that many of them do not stop the others. So many in a row show that the fault is
/// not in the items.
const MAX_ITEM_PANICS: usize = 1_000;
/// Before a loop that panicked begins anew.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// Of what a panic said.
const MAX_MESSAGE_CHARS: usize = 500;

/// A panic that was caught, and counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CaughtPanic {
    loop_name: &'static str,
}

impl fmt::Display for CaughtPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a bug in the gateway stopped the {} here, and the gateway's log says where",
            self.loop_name
        )
    }
}

/// Its clones are one.
#[derive(Clone)]
pub(crate) struct LoopSupervisor {
    state: Arc<Mutex<SupervisorState>>,
    restart_pause: Duration,
}

impl Default for LoopSupervisor {
    fn default() -> LoopSupervisor {
        LoopSupervisor { state: Arc::default(), restart_pause: RESTART_PAUSE }
    }
}

#[derive(Default)]
struct SupervisorState {
    panics: BTreeMap<&'static str, PanicCounts>,
    /// Why the process has to end.
    failure: Option<String>,
}

#[derive(Default)]
struct PanicCounts {
    count: u64,
    of_loop: VecDeque<Instant>,
    of_items: VecDeque<Instant>,
}

/// How much of a panic the gateway goes on after.
#[derive(Clone, Copy)]
enum PanicScope {
    /// Of a client: it may ask again and again, and must not end the gateway by that.
    Request,
    Item,
    Loop,
    /// None: what the task knew is lost with it.
    Vital,
}

impl LoopSupervisor {
    /// Runs a loop in a task of its own, and begins it anew when it panics. It is over when it returns.
    pub(crate) fn run<W>(&self, name: &'static str, begin: impl Fn() -> W + Send + 'static) -> JoinHandle<()>
    where
        W: Future<Output = ()> + Send + 'static,
    {
        let supervisor = self.clone();
        if is_planted(PlantedBug::HeaderPanicsFlusher) {
            return tokio::spawn(begin());
        }
        tokio::spawn(async move {
            loop {
                let Err(payload) = AssertUnwindSafe(begin()).catch_unwind().await else { return };
                supervisor.note(name, PanicScope::Loop, &"no single item", payload.as_ref());
                if supervisor.failure().is_some() {
                    return;
                }
                tokio::time::sleep(supervisor.restart_pause).await;
            }
        })
    }

    /// Runs a task that can't begin anew, since what it knew is lost with it: a panic ends the process.
    pub(crate) fn run_vital(
        &self,
        name: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let supervisor = self.clone();
        tokio::spawn(async move {
            if let Err(payload) = AssertUnwindSafe(work).catch_unwind().await {
                supervisor.note(name, PanicScope::Vital, &"no single item", payload.as_ref());
            }
        })
    }

    /// Does a loop's work on one item, whose panic is the item's failure.
    ///
    /// # Errors
    /// When it panics.
    pub(crate) async fn attempt<T>(
        &self,
        name: &'static str,
        item: &(dyn fmt::Display + Sync),
        work: impl Future<Output = T>,
    ) -> Result<T, CaughtPanic> {
        let outcome = self.caught(name, PanicScope::Item, item, work).await;
        if outcome.is_ok() {
            self.forget_in_a_row(name);
        }
        outcome
    }

    fn forget_in_a_row(&self, name: &str) {
        if let Some(panics) = self.state.lock().panics.get_mut(name) {
            panics.of_items.clear();
        }
    }

    /// The same on a thread that may wait.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn attempt_now<T>(
        &self,
        name: &'static str,
        item: &dyn fmt::Display,
        work: impl FnOnce() -> T,
    ) -> Result<T, CaughtPanic> {
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
            self.note(name, PanicScope::Item, item, payload.as_ref());
            CaughtPanic { loop_name: name }
        });
        if outcome.is_ok() {
            self.forget_in_a_row(name);
        }
        outcome
    }

    /// Does what a client has asked for, or set off.
    ///
    /// # Errors
    /// When it panics.
    pub(crate) async fn shield<T>(
        &self,
        name: &'static str,
        item: &(dyn fmt::Display + Sync),
        work: impl Future<Output = T>,
    ) -> Result<T, CaughtPanic> {
        self.caught(name, PanicScope::Request, item, work).await
    }

    async fn caught<T>(
        &self,
        name: &'static str,
        kind: PanicScope,
        item: &(dyn fmt::Display + Sync),
        work: impl Future<Output = T>,
    ) -> Result<T, CaughtPanic> {
        AssertUnwindSafe(work).catch_unwind().await.map_err(|payload| {
            self.note(name, kind, item, payload.as_ref());
            CaughtPanic { loop_name: name }
        })
    }

    fn note(
        &self,
        name: &'static str,
        kind: PanicScope,
        item: &dyn fmt::Display,
        payload: &(dyn Any + Send),
    ) {
        let payload = said_by(payload);
        tracing::error!(
            "a bug: the {name} panicked while working on {item}: {payload}\n  what to do: please report it with these lines; the gateway goes on with other items"
        );
        let mut state = self.state.lock();
        let panics = state.panics.entry(name).or_default();
        panics.count += 1;
        let is_over = match kind {
            PanicScope::Request => false,
            PanicScope::Item => is_too_often(&mut panics.of_items, MAX_ITEM_PANICS),
            PanicScope::Loop => is_too_often(&mut panics.of_loop, MAX_LOOP_PANICS),
            PanicScope::Vital => true,
        };
        if is_over && state.failure.is_none() {
            state.failure = Some(format!(
                "the {name} panicked too often to go on, which is a bug: please report it with the lines above\n  what to do: start the gateway again; acknowledged data is safe in the journal"
            ));
        }
    }

    /// Why the process has to end, once it has to.
    pub(crate) fn failure(&self) -> Option<String> {
        self.state.lock().failure.clone()
    }

    /// How often each loop has panicked, for those that have.
    pub(crate) fn panics(&self) -> BTreeMap<String, u64> {
        let state = self.state.lock();
        state.panics.iter().map(|(name, panics)| ((*name).to_owned(), panics.count)).collect()
    }
}

/// Whether this one is the last of too many.
fn is_too_often(lately: &mut VecDeque<Instant>, most: usize) -> bool {
    let now = Instant::now();
    lately.push_back(now);
    while lately.front().is_some_and(|first| now.duration_since(*first) > COUNTED_FOR) {
        lately.pop_front();
    }
    lately.len() > most
}

/// A panic's message, in one line.
fn said_by(panic: &(dyn Any + Send)) -> String {
    let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => *text,
        (_, Some(text)) => text.as_str(),
        _ => "nothing",
    };
    text.chars().take(MAX_MESSAGE_CHARS).collect::<String>().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn hasty() -> LoopSupervisor {
        LoopSupervisor { restart_pause: Duration::ZERO, ..LoopSupervisor::default() }
    }

    #[tokio::test]
    async fn panicking_loop_restarts() {
        let (supervisor, rounds) = (hasty(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&rounds);
        let ended = supervisor.run("test loop", move || {
            let counted = Arc::clone(&counted);
            async move {
                assert!(counted.fetch_add(1, Ordering::Relaxed) >= 2, "as the test wants it");
            }
        });
        ended.await.unwrap();
        assert_eq!(rounds.load(Ordering::Relaxed), 3);
        assert_eq!(supervisor.panics(), BTreeMap::from([("test loop".to_owned(), 2)]));
        assert_eq!(supervisor.failure(), None);
    }

    #[tokio::test]
    async fn repeatedly_panicking_loop_ends_process() {
        let supervisor = hasty();
        supervisor.run("test loop", || async { panic!("as the test wants it") }).await.unwrap();
        assert_eq!(supervisor.panics()["test loop"], MAX_LOOP_PANICS as u64 + 1);
        assert!(supervisor.failure().is_some_and(|why| why.contains("test loop")));
    }

    #[tokio::test]
    async fn panicking_vital_task_ends_process() {
        let supervisor = LoopSupervisor::default();
        supervisor.run_vital("test task", async {}).await.unwrap();
        assert_eq!(supervisor.failure(), None);
        supervisor.run_vital("test task", async { panic!("as the test wants it") }).await.unwrap();
        assert!(supervisor.failure().is_some());
    }

    #[tokio::test]
    async fn panicking_item_is_skipped_and_others_continue() {
        let supervisor = LoopSupervisor::default();
        for item in 0..MAX_ITEM_PANICS {
            // Every second one.
            let outcome = supervisor.attempt("test loop", &item, async {
                assert!(item % 2 == 1, "as the test wants it");
                item
            });
            assert_eq!(outcome.await.ok(), (item % 2 == 1).then_some(item));
        }
        assert_eq!(supervisor.panics()["test loop"], MAX_ITEM_PANICS as u64 / 2);
        // However many of a client's requests panic, others go on.
        for item in 0..2 * MAX_ITEM_PANICS {
            assert!(
                supervisor.shield("request", &item, async { panic!("as the test wants it") }).await.is_err()
            );
        }
        assert_eq!(supervisor.failure(), None);
        for item in 0..=MAX_ITEM_PANICS {
            assert_eq!(supervisor.failure(), None);
            let panics = supervisor.attempt("test loop", &item, async { panic!("as the test wants it") });
            assert!(panics.await.is_err());
        }
        assert!(supervisor.failure().is_some(), "the fault is not in the items");
    }
}
