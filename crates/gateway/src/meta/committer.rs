//! The one thread that writes (in a simulation a task): first the journal's bytes are made durable, then everything
//! that waits goes into one transaction, then each caller gets its change's outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Duration;

use redb::Durability;
use tokio::sync::oneshot;

use super::COMMITS_KEY;
use super::change::{MetadataChange, PartContent, UploadCounts};
use super::latest::ViewedDatabase;
use super::tables::ObjectName;
use crate::blocking::simulated_delay;
use crate::disk_room::DiskRoom;
use crate::errors::{GatewayError, GatewayResult};
use crate::journal::{JournalSegment, ReleasedRange, WrittenContent};
use crate::model::ContentId;
use crate::supervision::LoopSupervisor;

/// So many changes share a commit at most: one that waits behind more of them would wait for long.
const MAX_CHANGES: usize = 512;
/// And so many where the disk is nearly full: it has to have room for all of them at once.
const FEW_CHANGES: usize = 16;
/// Without changes it is looked so often whether there could be one.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A commit's effects on the rest of the gateway.
#[derive(Default)]
pub(crate) struct CommitEffects {
    /// How many there have been, with this one.
    pub(crate) commits: u64,
    pub(crate) released: Vec<ReleasedRange>,
    pub(crate) queued: Vec<(ObjectName, Option<i64>)>,
    /// Names at which the store has bytes that no object consists of any more, and which those are.
    pub(crate) unblocked: Vec<(ObjectName, ContentId)>,
    pub(crate) unfinished: Vec<UploadCounts>,
    /// Parts that came, with what of them is in the journal.
    pub(crate) part_contents: Vec<PartContent>,
    /// Uploads that are over.
    pub(crate) ended: Vec<String>,
}

/// Tells the caller, once it is known whether the commit is durable.
type CommitCallback = Box<dyn FnOnce(TransactionOutcome) + Send>;

/// A transaction's outcome.
#[derive(Clone)]
enum TransactionOutcome {
    Durable,
    /// Nothing of it is there.
    NotMade(GatewayError),
    /// The same, for a bug in one of its changes: the next one may be made.
    Stopped(GatewayError),
    /// The disk failed while it was made durable: the next start may find it or not, so what it points to has to stay.
    Unknown(GatewayError),
    /// Nothing of it is there, and the metadata take no more before they are opened again, as behind an error of the
    /// disk, a read's as well.
    Over(GatewayError),
}

impl TransactionOutcome {
    fn error(&self) -> Option<&GatewayError> {
        match self {
            TransactionOutcome::Durable => None,
            TransactionOutcome::NotMade(error)
            | TransactionOutcome::Stopped(error)
            | TransactionOutcome::Unknown(error)
            | TransactionOutcome::Over(error) => Some(error),
        }
    }
}

/// Says that the thread has ended, even by a panic.
struct ThreadEnd(Arc<AtomicBool>);

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct CommitJob {
    /// Those that the change points into.
    segments: Vec<Arc<JournalSegment>>,
    run: Box<dyn FnOnce(&mut MetadataChange<'_>) -> CommitCallback + Send>,
    /// Whether none follows.
    is_last: bool,
}

/// Hands changes to the thread. The thread ends when the last of these is gone and everything is committed.
pub(crate) struct MetadataCommitter {
    jobs: Sender<CommitJob>,
    is_broken: Arc<AtomicBool>,
    is_closed: Arc<AtomicBool>,
    has_ended: Arc<AtomicBool>,
    supervisor: LoopSupervisor,
}

impl MetadataCommitter {
    /// Starts the thread. `applied` is called after each commit, before the callers hear of it.
    pub(crate) fn start(
        database: Arc<ViewedDatabase>,
        applied: impl FnMut(CommitEffects) + Send + 'static,
    ) -> std::io::Result<MetadataCommitter> {
        MetadataCommitter::start_on(database, None, applied)
    }

    /// The same, which looks at the room on this disk.
    pub(crate) fn start_on(
        database: Arc<ViewedDatabase>,
        disk: Option<Arc<DiskRoom>>,
        applied: impl FnMut(CommitEffects) + Send + 'static,
    ) -> std::io::Result<MetadataCommitter> {
        let (jobs, waiting) = channel();
        let (is_broken, is_closed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let has_ended = Arc::new(AtomicBool::new(false));
        let ended = ThreadEnd(Arc::clone(&has_ended));
        let writing = CommitterThread {
            database,
            disk,
            waiting,
            is_broken: Arc::clone(&is_broken),
            is_closed: Arc::clone(&is_closed),
            applied,
            _ended: ended,
        };
        match simulated_delay() {
            None => {
                let builder = underlay_sync::thread::ThreadBuilder::new().name("metadata".to_owned());
                builder.spawn(move || writing.run())?;
            }
            Some(_) => drop(tokio::spawn(writing.run_simulated())),
        }
        Ok(MetadataCommitter { jobs, is_broken, is_closed, has_ended, supervisor: LoopSupervisor::default() })
    }

    /// The same, whose panics are counted with those of the whole gateway.
    pub(crate) fn supervised_by(self, supervisor: &LoopSupervisor) -> MetadataCommitter {
        MetadataCommitter { supervisor: supervisor.clone(), ..self }
    }

    /// Whether a commit failed. The metadata store may take no more after that until it is opened again.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    /// Whether it certainly takes no more.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Carries out a change and returns once it is durable, with the bytes of `written` before it. Those are kept if
    /// the change was made, and given back if not, also when the caller has gone away meanwhile. A closure that returns
    /// an error must not have changed anything.
    ///
    /// # Errors
    /// The closure's, or when the metadata can't be written: then nothing of it is.
    pub(crate) async fn commit<T: Send + 'static>(
        &self,
        written: Vec<WrittenContent>,
        change: impl FnOnce(&mut MetadataChange<'_>) -> GatewayResult<T> + Send + 'static,
    ) -> GatewayResult<T> {
        self.send(written, change, false).await
    }

    /// Returns once everything before is committed. Nothing is from then on: later changes get `Busy`.
    ///
    /// # Errors
    /// When the metadata can't be written.
    pub(crate) async fn close(&self) -> GatewayResult<()> {
        self.send(Vec::new(), |_| Ok(()), true).await
    }

    async fn send<T: Send + 'static>(
        &self,
        written: Vec<WrittenContent>,
        change: impl FnOnce(&mut MetadataChange<'_>) -> GatewayResult<T> + Send + 'static,
        is_last: bool,
    ) -> GatewayResult<T> {
        let (answer, answered) = oneshot::channel();
        let segments = written.iter().map(WrittenContent::segment).collect();
        let supervisor = self.supervisor.clone();
        let run = Box::new(move |target: &mut MetadataChange<'_>| -> CommitCallback {
            let changed = supervisor.attempt_now("committer", &"a change of the metadata", || change(target));
            // It may have stopped half-way.
            let outcome = match changed {
                Ok(outcome) => {
                    target.is_broken |= matches!(outcome, Err(GatewayError::Local(_)));
                    outcome
                }
                Err(panicked) => {
                    target.has_panicked = true;
                    Err(GatewayError::Local(panicked.to_string()))
                }
            };
            Box::new(move |committed: TransactionOutcome| {
                // Before the answer: a caller that learns that nothing was made finds the room free.
                let is_none = matches!(
                    committed,
                    TransactionOutcome::NotMade(_)
                        | TransactionOutcome::Stopped(_)
                        | TransactionOutcome::Over(_)
                );
                match outcome.is_ok() && !is_none {
                    true => written.into_iter().for_each(WrittenContent::keep),
                    false => drop(written),
                }
                // The caller may be gone: the change stands all the same.
                let _ = answer.send(committed.error().cloned().map_or(outcome, Err));
            })
        });
        let ended = || match self.is_closed.load(Ordering::Relaxed) {
            true => GatewayError::Busy("the gateway is stopping: try again later".to_owned()),
            false => {
                GatewayError::Local("the local storage failed, and the gateway's log says how".to_owned())
            }
        };
        self.jobs.send(CommitJob { segments, run, is_last }).map_err(|_| ended())?;
        answered.await.unwrap_or_else(|_| Err(ended()))
    }
}

/// The thread's state.
struct CommitterThread<A> {
    database: Arc<ViewedDatabase>,
    disk: Option<Arc<DiskRoom>>,
    waiting: Receiver<CommitJob>,
    is_broken: Arc<AtomicBool>,
    is_closed: Arc<AtomicBool>,
    applied: A,
    _ended: ThreadEnd,
}

impl<A: FnMut(CommitEffects)> CommitterThread<A> {
    fn run(mut self) {
        loop {
            self.restore_room();
            let goes_on = match self.waiting.recv_timeout(LOOK_EVERY) {
                Ok(first) => self.commit(first),
                Err(RecvTimeoutError::Disconnected) => false,
                Err(RecvTimeoutError::Timeout) => self.look(),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// The same on the one thread of a simulation, in its time.
    async fn run_simulated(mut self) {
        let mut looked = tokio::time::Instant::now();
        loop {
            self.restore_room();
            let goes_on = match self.waiting.try_recv() {
                Ok(first) => self.commit(first),
                Err(TryRecvError::Disconnected) => false,
                Err(TryRecvError::Empty) if looked.elapsed() < LOOK_EVERY => true,
                Err(TryRecvError::Empty) => {
                    looked = tokio::time::Instant::now();
                    self.look()
                }
            };
            if !goes_on {
                return;
            }
            tokio::time::sleep(simulated_delay().unwrap_or_default()).await;
        }
    }

    fn restore_room(&self) {
        if let Some(disk) = &self.disk {
            disk.restore();
        }
    }

    /// Without a change for a while. Returns whether there may be another one.
    fn look(&self) -> bool {
        // A read may have found it out since.
        let goes_on = takes_more(&self.database);
        if !goes_on {
            self.is_broken.store(true, Ordering::Relaxed);
            say_end();
        }
        goes_on
    }

    /// Commits this change and those behind it. Returns whether there may be another one.
    fn commit(&mut self, first: CommitJob) -> bool {
        if self.is_closed.load(Ordering::Relaxed) {
            // Its caller learns that by the answer's being dropped.
            return true;
        }
        let mut jobs = vec![first];
        let is_low = self.disk.as_deref().is_some_and(DiskRoom::is_low);
        let most = if is_low { FEW_CHANGES } else { MAX_CHANGES };
        while jobs.len() < most
            && !jobs.last().is_some_and(|job| job.is_last)
            && let Ok(next) = self.waiting.try_recv()
        {
            jobs.push(next);
        }
        let is_last = jobs.last().is_some_and(|job| job.is_last);
        let mut finishes = Vec::with_capacity(jobs.len());
        let carried_out = carry_out(&self.database, jobs, &mut finishes);
        self.is_closed.fetch_or(is_last, Ordering::Relaxed);
        // Also behind one that failed: nobody knows then what it left.
        self.database.forget_view();
        let outcome = match carried_out {
            Ok(effects) => {
                (self.applied)(effects);
                TransactionOutcome::Durable
            }
            Err(failure) => {
                if !matches!(failure, TransactionOutcome::Stopped(_)) {
                    self.is_broken.store(true, Ordering::Relaxed);
                }
                if let Some(error) = failure.error() {
                    tracing::error!("a commit failed, and everything in it: {error}");
                }
                failure
            }
        };
        let is_over = match &outcome {
            TransactionOutcome::Durable => false,
            // Later changes would build on what may not be there.
            TransactionOutcome::Unknown(_) | TransactionOutcome::Over(_) => true,
            TransactionOutcome::NotMade(_) | TransactionOutcome::Stopped(_) => !takes_more(&self.database),
        };
        for finish in finishes {
            finish(outcome.clone());
        }
        if is_over {
            // Callers that ask for a change learn that the thread has ended.
            say_end();
        }
        !is_over
    }
}

fn say_end() {
    tracing::error!("no more writes until the gateway is started again");
}

/// Whether a change can be begun.
fn takes_more(database: &ViewedDatabase) -> bool {
    database.begin_write().is_ok_and(|transaction| transaction.abort().is_ok())
}

fn carry_out(
    database: &ViewedDatabase,
    jobs: Vec<CommitJob>,
    finishes: &mut Vec<CommitCallback>,
) -> std::result::Result<CommitEffects, TransactionOutcome> {
    let mut segments: Vec<&Arc<JournalSegment>> = jobs.iter().flat_map(|job| &job.segments).collect();
    segments.sort_by_key(|segment| segment.number());
    segments.dedup_by_key(|segment| segment.number());
    // One that can't be synced fails them all; each caller can try again.
    let synced = segments.iter().try_for_each(|segment| segment.sync());
    let failed = |error: &dyn std::fmt::Display| GatewayError::local("cannot write the metadata", error);
    let over = |error: &dyn std::fmt::Display| TransactionOutcome::Over(failed(error));
    let begun = synced.map_err(TransactionOutcome::NotMade).and_then(|()| {
        let mut transaction = database.begin_write().map_err(|error| over(&error))?;
        transaction.set_durability(Durability::Immediate).map_err(|error| over(&error))?;
        Ok(transaction)
    });
    let transaction = match begun {
        Ok(transaction) => transaction,
        Err(outcome) => {
            // Their callers hear of it by their answer's being dropped.
            drop(jobs);
            return Err(outcome);
        }
    };
    let mut effects = CommitEffects::default();
    let (is_changed, is_broken, has_panicked) = {
        let mut change = MetadataChange::begin(&transaction).map_err(TransactionOutcome::Over)?;
        for job in jobs {
            finishes.push((job.run)(&mut change));
        }
        let commits = change.number(COMMITS_KEY).map_err(TransactionOutcome::Over)?.unwrap_or(0);
        effects.commits = commits + u64::from(change.is_changed);
        if change.is_changed {
            change.set_number(COMMITS_KEY, effects.commits).map_err(TransactionOutcome::Over)?;
        }
        effects.released = std::mem::take(&mut change.released);
        effects.queued = std::mem::take(&mut change.queued);
        effects.unblocked = std::mem::take(&mut change.unblocked);
        effects.unfinished = std::mem::take(&mut change.unfinished);
        effects.part_contents = std::mem::take(&mut change.part_contents);
        effects.ended = std::mem::take(&mut change.ended);
        (change.is_changed, change.is_broken, change.has_panicked)
    };
    if has_panicked && !is_broken {
        transaction.abort().map_err(|error| over(&error))?;
        let text = "a bug stopped a change of the metadata, and the log says where";
        return Err(TransactionOutcome::Stopped(GatewayError::Local(text.to_owned())));
    }
    if is_broken {
        transaction.abort().map_err(|error| over(&error))?;
        let text = "a change of the metadata failed, and the log says how";
        return Err(TransactionOutcome::NotMade(GatewayError::Local(text.to_owned())));
    }
    if is_changed {
        transaction.commit().map_err(|error| TransactionOutcome::Unknown(failed(&error)))?;
    } else {
        transaction.abort().map_err(|error| over(&error))?;
    }
    Ok(effects)
}

#[cfg(test)]
mod tests {
    use std::io;

    use bytes::Bytes;
    use redb::backends::InMemoryBackend;
    use redb::{Database, StorageBackend};

    use super::*;
    use crate::journal::Journal;

    /// A disk that takes bytes and, once one of these is set, can't make them durable any more, or can't be read.
    #[derive(Debug, Default)]
    struct Failing {
        memory: InMemoryBackend,
        fails_syncs: Arc<AtomicBool>,
        fails_reads: Arc<AtomicBool>,
    }

    fn unless(fails: &AtomicBool) -> io::Result<()> {
        match fails.load(Ordering::Relaxed) {
            true => Err(io::Error::from(rustix::io::Errno::IO)),
            false => Ok(()),
        }
    }

    impl StorageBackend for Failing {
        fn len(&self) -> io::Result<u64> {
            self.memory.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            unless(&self.fails_reads)?;
            self.memory.read(offset, out)
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.memory.set_len(len)
        }

        fn sync_data(&self) -> io::Result<()> {
            unless(&self.fails_syncs)?;
            self.memory.sync_data()
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.memory.write(offset, data)
        }
    }

    #[tokio::test]
    async fn bytes_stay_when_a_commit_may_have_been_made() {
        let directory = tempfile::tempdir().unwrap();
        let folder = underlay_files::Folder::open(directory.path()).unwrap();
        let journal = Arc::new(Journal::open(folder, 1 << 20, &[], Default::default()).unwrap());
        let fails = Arc::new(AtomicBool::new(false));
        let backend = Failing { fails_syncs: Arc::clone(&fails), ..Failing::default() };
        let database = Database::builder().create_with_backend(backend).unwrap();
        let committer = MetadataCommitter::start(Arc::new(ViewedDatabase::from(database)), |_| {}).unwrap();

        let written = async |number| {
            let mut writer = journal.reserve_beyond(ContentId(number), 5).unwrap();
            writer.write(Bytes::from_static(b"bytes")).await.unwrap();
            writer.finish().await.unwrap()
        };
        // A refused closure gives its room back.
        let refused: GatewayResult<()> =
            committer.commit(vec![written(1).await], |_| Err(GatewayError::NoSuchKey)).await;
        assert_eq!((refused, journal.used_bytes()), (Err(GatewayError::NoSuchKey), 0));

        fails.store(true, Ordering::Relaxed);
        let number = |change: &mut MetadataChange<'_>| change.set_number(b"test", 1);
        assert!(committer.commit(vec![written(2).await], number).await.is_err());
        let used_bytes = journal.used_bytes();
        assert!(used_bytes > 0, "the next start may find the commit");
        // Nothing is built on it, also when the disk works again.
        fails.store(false, Ordering::Relaxed);
        assert!(committer.commit(vec![written(3).await], number).await.is_err());
        assert!(committer.is_broken());
        while !committer.has_ended() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!(journal.used_bytes(), used_bytes);
    }

    #[tokio::test]
    async fn change_behind_close_is_refused_and_frees_room() {
        let directory = tempfile::tempdir().unwrap();
        let folder = underlay_files::Folder::open(directory.path()).unwrap();
        let journal = Arc::new(Journal::open(folder, 1 << 20, &[], Default::default()).unwrap());
        let database = Database::builder().create_with_backend(InMemoryBackend::new()).unwrap();
        let database = Arc::new(ViewedDatabase::from(database));
        let committer = MetadataCommitter::start(Arc::clone(&database), |_| {}).unwrap();
        let number = |number| move |change: &mut MetadataChange<'_>| change.set_number(b"test", number);
        // Of changes that come at the same time, those before it are made.
        let (before, closed, behind) = tokio::join!(
            committer.commit(Vec::new(), number(1)),
            committer.close(),
            committer.commit(Vec::new(), number(2))
        );
        assert!(
            before.is_ok() && closed.is_ok() && matches!(behind, Err(GatewayError::Busy(_))),
            "{behind:?}"
        );
        let mut writer = journal.reserve_beyond(ContentId(1), 5).unwrap();
        writer.write(Bytes::from_static(b"bytes")).await.unwrap();
        let written = writer.finish().await.unwrap();
        assert!(matches!(committer.commit(vec![written], number(3)).await, Err(GatewayError::Busy(_))));
        assert_eq!(journal.used_bytes(), 0);
        assert_eq!(database.view().unwrap().number(b"test"), Ok(Some(1)));
        assert!(!committer.is_broken() && !committer.has_ended());
    }

    #[tokio::test]
    async fn panicking_change_is_undone_and_others_commit() {
        let database = Database::builder().create_with_backend(InMemoryBackend::new()).unwrap();
        let supervisor = LoopSupervisor::default();
        let committer = MetadataCommitter::start(Arc::new(ViewedDatabase::from(database)), |_| {})
            .unwrap()
            .supervised_by(&supervisor);
        let half = committer.commit(Vec::new(), |change| -> GatewayResult<()> {
            change.set_number(b"half", 1)?;
            panic!("as the test wants it")
        });
        assert!(matches!(half.await, Err(GatewayError::Local(_))));
        committer.commit(Vec::new(), |change| change.set_number(b"test", 1)).await.unwrap();
        let found =
            committer.commit(Vec::new(), |change| Ok((change.number(b"half")?, change.number(b"test")?)));
        assert_eq!(found.await, Ok((None, Some(1))));
        assert!(!committer.is_broken() && !committer.has_ended());
        assert_eq!(supervisor.panics()["committer"], 1);
    }

    #[tokio::test]
    async fn commit_is_visible_when_its_caller_returns() {
        let database = Database::builder().create_with_backend(InMemoryBackend::new()).unwrap();
        let database = Arc::new(ViewedDatabase::from(database));
        let committer = MetadataCommitter::start(Arc::clone(&database), |_| {}).unwrap();
        committer.commit(Vec::new(), |change| change.set_number(b"test", 0)).await.unwrap();
        let first = database.view().unwrap();
        assert!(Arc::ptr_eq(&first, &database.view().unwrap()), "readers of one commit share a view");
        for number in 1..100 {
            committer.commit(Vec::new(), move |change| change.set_number(b"test", number)).await.unwrap();
            assert_eq!(database.view().unwrap().number(b"test"), Ok(Some(number)));
        }
        // Who holds one goes on seeing what it saw.
        assert_eq!(first.number(b"test"), Ok(Some(0)));
    }

    /// The gateways with the rest of a cluster's keys wait for this one to say that it can't go on.
    #[tokio::test(flavor = "multi_thread")]
    async fn failed_read_ends_committer() {
        use redb::ReadableDatabase as _;
        let fails = Arc::new(AtomicBool::new(false));
        let backend = Failing { fails_reads: Arc::clone(&fails), ..Failing::default() };
        let database = Database::builder().set_cache_size(0).create_with_backend(backend).unwrap();
        let database = Arc::new(ViewedDatabase::from(database));
        let committer = MetadataCommitter::start(Arc::clone(&database), |_| {}).unwrap();
        let number = |change: &mut MetadataChange<'_>| change.set_number(b"test", 1);
        committer.commit(Vec::new(), number).await.unwrap();
        fails.store(true, Ordering::Relaxed);
        // Not even a change: somebody looks at an object.
        let read = database.begin_read().map_err(|error| error.to_string());
        let read = read.and_then(|view| view.list_tables().map(|_| ()).map_err(|error| error.to_string()));
        assert!(read.is_err(), "nothing was read");
        fails.store(false, Ordering::Relaxed);
        while !committer.has_ended() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert!(committer.is_broken() && committer.commit(Vec::new(), number).await.is_err());
    }
}
