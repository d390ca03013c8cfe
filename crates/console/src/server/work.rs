//! Slow work, on threads that may block. Each kind has its own number of them: what hangs holds only threads of its
//! kind, and other kinds don't wait for it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use underlay_sync::UnsimulatedMutex;

use super::ServerShared;
use super::answer::{ActionRefusal, PageAnswer};

/// What is done, and so beside what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkKind {
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
    /// Makes an address that opens a session: it depends on nobody else.
    Entry,
    /// Starts a run; runs begin one at a time.
    Start,
}

struct WorkRow {
    kind: WorkKind,
    /// As in "too many … are in flight".
    name: &'static str,
    threads: usize,
    /// For a thread.
    wait: Duration,
    /// For the work itself. Work that has begun goes on, and keeps its thread until it ends.
    limit: Duration,
}

const fn row(kind: WorkKind, name: &'static str, threads: usize, wait_s: u64, limit_s: u64) -> WorkRow {
    WorkRow { kind, name, threads, wait: Duration::from_secs(wait_s), limit: Duration::from_secs(limit_s) }
}

const ROWS: [WorkRow; 8] = [
    row(WorkKind::Look, "pages", 16, 10, 30),
    row(WorkKind::Draw, "pieces of pages", 8, 10, 30),
    row(WorkKind::Check, "checks of studies", 4, 10, 30),
    row(WorkKind::Command, "commands for runs and services", 4, 2, 20),
    row(WorkKind::Fault, "commands for devices", 8, 2, 60),
    row(WorkKind::Node, "commands for nodes", 6, 0, 3700),
    row(WorkKind::Entry, "new addresses", 2, 10, 30),
    row(WorkKind::Start, "starts of runs", 2, 2, 90),
];

/// Threads for all that may be in flight.
pub(super) fn max_threads() -> usize {
    ROWS.iter().map(|row| row.threads).sum()
}

/// The threads of each kind that are free.
pub(crate) struct WorkPermits(Vec<(&'static WorkRow, Arc<Semaphore>)>);

/// One of them, until it is dropped.
pub(super) struct WorkPermit {
    row: &'static WorkRow,
    permit: OwnedSemaphorePermit,
}

impl WorkPermits {
    pub(super) fn new() -> WorkPermits {
        WorkPermits(ROWS.iter().map(|row| (row, Arc::new(Semaphore::new(row.threads)))).collect())
    }

    /// # Errors
    /// When none becomes free soon.
    pub(super) async fn turn(&self, kind: WorkKind) -> Result<WorkPermit, ActionRefusal> {
        let found = self.0.iter().find(|(row, _)| row.kind == kind).map(|(row, free)| (*row, free));
        let (row, free) = found.expect("each kind has its row, as a test says");
        match timeout(row.wait, Arc::clone(free).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(WorkPermit { row, permit }),
            _ => Err(ActionRefusal::busy(format!(
                "too many {} are in flight, {} at most: try again when one of them has ended",
                row.name, row.threads
            ))),
        }
    }
}

impl WorkPermit {
    /// Does it on a thread of its kind.
    ///
    /// # Errors
    /// When it takes longer than its kind may, or panics.
    pub(super) async fn spend<T: Send + 'static>(
        self,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ActionRefusal> {
        let WorkPermit { row, permit } = self;
        let task = tokio::task::spawn_blocking(move || {
            let outcome = act();
            drop(permit);
            outcome
        });
        match timeout(row.limit, task).await {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(_)) => Err(ActionRefusal::failed(
                "this is a bug in underlay: the console's standard error says more about it",
            )),
            Err(_) => Err(ActionRefusal::busy(format!(
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
    shared: Arc<ServerShared>,
    kind: WorkKind,
    act: impl FnOnce(&ServerShared) -> Result<PageAnswer, ActionRefusal> + Send + 'static,
) -> Result<PageAnswer, ActionRefusal> {
    let turn = shared.work.turn(kind).await?;
    turn.spend(move || act(&shared)).await?
}

/// What a command is for. One that does not answer takes one thread and no more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum CommandTarget {
    Storage(String),
    /// The same action on the same node: another action on it may be the way out.
    Node {
        process: u32,
        node: String,
        action: &'static str,
    },
    /// The same action on the same run: a run that hangs at a skip can still be stopped.
    Run {
        directory: PathBuf,
        action: &'static str,
    },
    Process(u32),
}

impl CommandTarget {
    /// As in "another command for this …".
    fn word(&self) -> &'static str {
        match self {
            CommandTarget::Storage(_) => "storage",
            CommandTarget::Node { .. } => "node",
            CommandTarget::Run { .. } => "run",
            CommandTarget::Process(_) => "process",
        }
    }
}

/// The commands that are in flight.
#[derive(Default)]
pub(crate) struct RunningCommands(Arc<UnsimulatedMutex<CommandTable>>);

#[derive(Default)]
struct CommandTable {
    /// When each began.
    begun: HashMap<CommandTarget, Instant>,
    /// The console ends: no command begins any more.
    is_closed: bool,
}

/// A command, until it is dropped.
pub(super) struct CommandGuard {
    commands: Arc<UnsimulatedMutex<CommandTable>>,
    target: CommandTarget,
}

impl RunningCommands {
    /// # Errors
    /// When another command for that target is in flight, or the console ends.
    pub(super) fn begin(&self, target: CommandTarget) -> Result<CommandGuard, ActionRefusal> {
        let mut commands = self.0.lock();
        if commands.is_closed {
            return Err(ActionRefusal::busy("the console ends: start it again, and send the command then"));
        }
        if let Some(begun) = commands.begun.get(&target) {
            return Err(ActionRefusal::busy(format!(
                "another command for this {} has been in flight for {} s: wait for it, or see whether its process hangs",
                target.word(),
                begun.elapsed().as_secs()
            )));
        }
        commands.begun.insert(target.clone(), Instant::now());
        Ok(CommandGuard { commands: Arc::clone(&self.0), target })
    }

    /// From now on no command begins.
    pub(super) fn close(&self) {
        self.0.lock().is_closed = true;
    }

    /// Whether this process does something to a storage, which stays half-done if the process ends now. Everything else
    /// is done by others.
    pub(super) fn changes_storage(&self) -> bool {
        self.0.lock().begun.keys().any(|target| matches!(target, CommandTarget::Storage(_)))
    }
}

impl Drop for CommandGuard {
    fn drop(&mut self) {
        self.commands.lock().begun.remove(&self.target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(kind: WorkKind) -> usize {
        ROWS.iter().find(|row| row.kind == kind).unwrap().threads
    }

    #[test]
    fn work_kinds_have_separate_queues() {
        for kind in [
            WorkKind::Look,
            WorkKind::Draw,
            WorkKind::Check,
            WorkKind::Command,
            WorkKind::Fault,
            WorkKind::Node,
            WorkKind::Entry,
            WorkKind::Start,
        ] {
            let own: Vec<&WorkRow> = ROWS.iter().filter(|row| row.kind == kind).collect();
            assert!(own.len() == 1 && own[0].threads > 0, "{kind:?}");
        }
    }

    #[test]
    fn storage_runs_one_command_at_a_time() {
        let all = RunningCommands::default();
        let storage = |name: &str| CommandTarget::Storage(name.to_owned());
        let one = all.begin(storage("a")).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        assert!(all.begin(storage("a")).is_err() && all.begin(storage("b")).is_ok());
        drop(one);
        assert!(all.begin(storage("a")).is_ok());
    }

    #[test]
    fn hanging_node_takes_one_thread_per_action() {
        let all = RunningCommands::default();
        let node = |action| CommandTarget::Node { process: 1, node: "a".to_owned(), action };
        let _starts = all.begin(node("start")).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        assert!(all.begin(node("start")).is_err() && all.begin(node("kill")).is_ok());
    }

    #[test]
    fn ending_console_starts_no_command_and_awaits_running_ones() {
        let all = RunningCommands::default();
        let run = CommandTarget::Run { directory: PathBuf::from("/runs/one"), action: "stop" };
        let _run = all.begin(run).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        assert!(!all.changes_storage());
        let storage = all.begin(CommandTarget::Storage("a".to_owned()));
        let storage = storage.unwrap_or_else(|refusal| panic!("{refusal:?}"));
        all.close();
        assert!(all.changes_storage() && all.begin(CommandTarget::Storage("b".to_owned())).is_err());
        drop(storage);
        assert!(!all.changes_storage());
    }

    #[test]
    fn hanging_task_keeps_threads_of_its_kind_only() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(max_threads())
            .enable_time()
            .build()
            .unwrap();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let ended = Arc::new(std::sync::Mutex::new(ended));
        runtime.block_on(async {
            let work = WorkPermits::new();
            for _ in 0..threads(WorkKind::Node) {
                let ended = Arc::clone(&ended);
                work.turn(WorkKind::Node).await.unwrap_or_else(|refusal| panic!("{refusal:?}")).leave_to_it(
                    move || {
                        let _ = ended.lock().unwrap().recv();
                    },
                );
            }
            assert!(work.turn(WorkKind::Node).await.is_err());
            let turn = work.turn(WorkKind::Look).await.unwrap_or_else(|refusal| panic!("{refusal:?}"));
            assert_eq!(turn.spend(|| 7).await.unwrap_or_else(|refusal| panic!("{refusal:?}")), 7);
            // A panic gives its thread back.
            for _ in 0..2 * threads(WorkKind::Start) {
                let turn = work.turn(WorkKind::Start).await.unwrap_or_else(|refusal| panic!("{refusal:?}"));
                assert!(turn.spend::<()>(|| panic!("expected by this test")).await.is_err());
            }
        });
        drop(end);
    }
}
