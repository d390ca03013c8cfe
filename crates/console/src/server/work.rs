//! Slow work, on threads that may block. Each kind has its own number of them: what hangs holds only threads of its kind, and other kinds
//! don't wait for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use underlay_sync::UnsimulatedMutex;

use super::Shared;
use super::answer::{Answer, Refusal};

/// What is done, and so beside what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Reads files and draws a page.
    Look,
    /// Draws pieces of pages that are open.
    Draw,
    /// Reads a study and finds its mistakes.
    Check,
    /// Tells a run or a service something that it does at once.
    Command,
    /// Does something to devices, whose pool may take minutes or not answer.
    Fault,
    /// Has a node of a system stop or start, which may take as long as it takes.
    Node,
    /// Starts a run, of which one at a time begins.
    Start,
}

struct Row {
    kind: Kind,
    /// As in "too many … are under way".
    name: &'static str,
    threads: usize,
    /// For a thread.
    wait: Duration,
    /// For the work itself. Whatever has begun goes on, and keeps its thread until it ends.
    limit: Duration,
}

const fn row(kind: Kind, name: &'static str, threads: usize, wait_s: u64, limit_s: u64) -> Row {
    Row { kind, name, threads, wait: Duration::from_secs(wait_s), limit: Duration::from_secs(limit_s) }
}

const ROWS: [Row; 7] = [
    row(Kind::Look, "pages", 16, 10, 30),
    row(Kind::Draw, "pieces of pages", 8, 10, 30),
    row(Kind::Check, "checks of studies", 4, 10, 30),
    row(Kind::Command, "commands for runs and services", 4, 2, 20),
    row(Kind::Fault, "commands for devices", 8, 2, 60),
    row(Kind::Node, "commands for nodes", 6, 0, 3700),
    row(Kind::Start, "starts of runs", 2, 2, 90),
];

/// Threads for all that may be under way.
pub(super) fn max_threads() -> usize {
    ROWS.iter().map(|row| row.threads).sum()
}

/// The threads of each kind that are free.
pub(crate) struct Work(Vec<(&'static Row, Arc<Semaphore>)>);

/// One of them, until it is dropped.
pub(super) struct Turn {
    row: &'static Row,
    permit: OwnedSemaphorePermit,
}

impl Work {
    pub(super) fn new() -> Work {
        Work(ROWS.iter().map(|row| (row, Arc::new(Semaphore::new(row.threads)))).collect())
    }

    /// # Errors
    /// When none becomes free soon.
    pub(super) async fn turn(&self, kind: Kind) -> Result<Turn, Refusal> {
        let (row, free) =
            self.0.iter().find(|(row, _)| row.kind == kind).expect("each kind has its row, as a test says");
        match timeout(row.wait, Arc::clone(free).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(Turn { row: *row, permit }),
            _ => Err(Refusal::busy(format!(
                "too many {} are under way, {} at most: try again when one of them has ended",
                row.name, row.threads
            ))),
        }
    }
}

impl Turn {
    /// Does it on a thread of its kind.
    ///
    /// # Errors
    /// When it takes longer than its kind may, or panics.
    pub(super) async fn spend<T: Send + 'static>(
        self,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let Turn { row, permit } = self;
        let task = tokio::task::spawn_blocking(move || {
            let outcome = act();
            drop(permit);
            outcome
        });
        match timeout(row.limit, task).await {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(_)) => Err(Refusal::failed(
                "this is a bug in underlay: the console's standard error says more about it",
            )),
            Err(_) => Err(Refusal::busy(format!(
                "no answer after {} s: the request goes on and may still succeed; other {} continue",
                row.limit.as_secs(),
                row.name
            ))),
        }
    }

    /// Has it done while nobody waits for it.
    pub(super) fn leave_to_it(self, act: impl FnOnce() + Send + 'static) {
        let permit = self.permit;
        tokio::task::spawn_blocking(move || {
            act();
            drop(permit);
        });
    }
}

/// Does what reads files or draws where it may take its time.
///
/// # Errors
/// When it refuses, takes too long, or there is no thread for it.
pub(super) async fn on_a_thread(
    shared: Arc<Shared>,
    kind: Kind,
    act: impl FnOnce(&Shared) -> Result<Answer, Refusal> + Send + 'static,
) -> Result<Answer, Refusal> {
    let turn = shared.work.turn(kind).await?;
    turn.spend(move || act(&shared)).await?
}

/// The storages that a command is under way for, since when: one that does not answer takes one thread and no more.
#[derive(Default)]
pub(crate) struct UnderWay(UnsimulatedMutex<HashMap<String, Instant>>);

/// A command for a storage, until it is dropped.
pub(super) struct Held<'a> {
    all: &'a UnderWay,
    storage: String,
}

impl UnderWay {
    /// # Errors
    /// When another command for that storage is under way.
    pub(super) fn begin(&self, storage: &str) -> Result<Held<'_>, Refusal> {
        let mut all = self.0.lock();
        if let Some(since) = all.get(storage) {
            return Err(Refusal::busy(format!(
                "another command for this storage has been under way for {} s: wait for it, or see whether its process hangs",
                since.elapsed().as_secs()
            )));
        }
        all.insert(storage.to_owned(), Instant::now());
        Ok(Held { all: self, storage: storage.to_owned() })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.storage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(kind: Kind) -> usize {
        ROWS.iter().find(|row| row.kind == kind).unwrap().threads
    }

    #[test]
    fn each_kind_has_its_own_row() {
        for kind in [Kind::Look, Kind::Draw, Kind::Check, Kind::Command, Kind::Fault, Kind::Node, Kind::Start]
        {
            let own: Vec<&Row> = ROWS.iter().filter(|row| row.kind == kind).collect();
            assert!(own.len() == 1 && own[0].threads > 0, "{kind:?}");
        }
    }

    #[test]
    fn one_command_at_a_time_is_under_way_for_a_storage() {
        let all = UnderWay::default();
        let one = all.begin("a").unwrap_or_else(|refusal| panic!("{refusal:?}"));
        assert!(all.begin("a").is_err() && all.begin("b").is_ok());
        drop(one);
        assert!(all.begin("a").is_ok());
    }

    #[test]
    fn whoever_hangs_keeps_the_threads_of_one_kind_alone() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(max_threads())
            .enable_time()
            .build()
            .unwrap();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let ended = Arc::new(std::sync::Mutex::new(ended));
        runtime.block_on(async {
            let work = Work::new();
            for _ in 0..threads(Kind::Node) {
                let ended = Arc::clone(&ended);
                work.turn(Kind::Node).await.unwrap_or_else(|refusal| panic!("{refusal:?}")).leave_to_it(
                    move || {
                        let _ = ended.lock().unwrap().recv();
                    },
                );
            }
            assert!(work.turn(Kind::Node).await.is_err());
            let turn = work.turn(Kind::Look).await.unwrap_or_else(|refusal| panic!("{refusal:?}"));
            assert_eq!(turn.spend(|| 7).await.unwrap_or_else(|refusal| panic!("{refusal:?}")), 7);
            // A panic gives its thread back.
            for _ in 0..2 * threads(Kind::Start) {
                let turn = work.turn(Kind::Start).await.unwrap_or_else(|refusal| panic!("{refusal:?}"));
                assert!(turn.spend::<()>(|| panic!("expected by this test")).await.is_err());
            }
        });
        drop(end);
    }
}
