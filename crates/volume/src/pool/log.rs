//! The journal of a pool, and the tables that its records add up to.

use std::sync::Arc;
use underlay_sync::{Mutex, MutexGuard};

use underlay_storage::journal::{CommitDone, Journal, JournalSnapshot, RecoveredJournal};

use super::record::{PoolRecord, PoolTables};

/// About how many bytes of ours go into one record of the journal.
const RECORD_BYTES: usize = 64 << 10;

pub(super) struct PoolLog {
    journal: Journal,
    kept: Arc<Mutex<LoggedTables>>,
}

struct LoggedTables {
    tables: PoolTables,
    /// The journal's last record that is in the tables.
    appended: u64,
}

impl PoolLog {
    /// # Errors
    /// What about the journal's content can't be.
    pub(super) fn new(journal: Journal, recovered: &RecoveredJournal) -> Result<PoolLog, String> {
        let mut tables = PoolTables::default();
        tables.read(&recovered.snapshot)?;
        recovered.records.iter().try_for_each(|record| tables.read(record))?;
        let logged = Arc::new(Mutex::new(LoggedTables { tables, appended: 0 }));
        let source = Arc::clone(&logged);
        journal.set_source(move || {
            // Under the lock that `append` holds: the tables have all records up to `appended`, and no
            // others.
            let logged = source.lock();
            JournalSnapshot { state: logged.tables.encode(), covers: logged.appended }
        });
        Ok(PoolLog { journal, kept: logged })
    }

    fn lock(&self) -> MutexGuard<'_, LoggedTables> {
        self.kept.lock()
    }

    /// Adds records, in this order. They are durable after a later commit, or earlier.
    pub(super) fn append(&self, records: impl IntoIterator<Item = PoolRecord>) {
        let mut logged = self.lock();
        let mut bytes = Vec::new();
        for record in records {
            let from = bytes.len();
            record.encode(&mut bytes);
            // A volume may have been deleted since the change was captured.
            if logged.tables.apply(record).is_err() {
                bytes.truncate(from);
            }
            if bytes.len() >= RECORD_BYTES {
                logged.appended = self.journal.append(std::mem::take(&mut bytes));
            }
        }
        if !bytes.is_empty() {
            logged.appended = self.journal.append(bytes);
        }
    }

    /// Makes everything appended so far durable.
    pub(super) fn commit(&self, done: CommitDone) {
        self.journal.commit(done);
    }

    pub(super) fn checkpoint_and_wait(&self) -> Result<(), underlay_storage::device::DeviceError> {
        self.journal.checkpoint_and_wait()
    }

    pub(super) fn with_tables<T>(&self, look: impl FnOnce(&PoolTables) -> T) -> T {
        look(&self.lock().tables)
    }
}
