//! Members whose last flush has failed: what was written to them before may be in a cache alone, for good.

mod kept;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use underlay_sync::Mutex;

use self::kept::FlushHistoryFile;
use super::host_memory::HostMemory;

/// What is known about the flushes of one member.
#[derive(Default)]
pub(super) struct MemberFlushHistory {
    /// What could not be made durable, by this process or by one before it, has yet to be written again.
    owes: AtomicBool,
    /// How many have failed.
    failures: AtomicU64,
}

impl MemberFlushHistory {
    /// How many of its flushes have failed.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::SeqCst)
    }

    pub(super) fn note_failure(&self) {
        self.failures.fetch_add(1, Ordering::SeqCst);
    }

    /// All that it owed was written again.
    pub(super) fn settle(&self) {
        self.owes.store(false, Ordering::Release);
    }

    /// Whether a flush of the member would answer for what it may never have been given.
    pub(super) fn owes(&self) -> bool {
        self.owes.load(Ordering::Acquire)
    }
}

/// Of all members of a pool.
#[derive(Default)]
pub(super) struct FlushHistories {
    list: Mutex<Vec<Arc<MemberFlushHistory>>>,
    kept: Mutex<Option<FlushHistoryFile>>,
}

impl FlushHistories {
    /// Keeps them from now on. A member that was in doubt owes what it has.
    ///
    /// # Errors
    /// When they can't be kept.
    pub(super) fn begin(&self, memory: Option<&HostMemory>, identity: u64, members: usize) -> io::Result<()> {
        let history = memory.map(|memory| FlushHistoryFile::open(memory, identity)).transpose()?;
        let doubt = |member: usize| {
            let owes = history.as_ref().is_some_and(|history| history.has(member as u8));
            Arc::new(MemberFlushHistory { owes: AtomicBool::new(owes), ..MemberFlushHistory::default() })
        };
        *self.list.lock() = (0..members).map(doubt).collect();
        *self.kept.lock() = history;
        Ok(())
    }

    /// By member.
    pub(super) fn all(&self) -> Vec<Arc<MemberFlushHistory>> {
        self.list.lock().clone()
    }

    pub(super) fn set(&self, member: u8, is_doubtful: bool) {
        if let Some(history) = self.kept.lock().as_mut() {
            // Where it can't be written changes of the maps can't be noted either: they fail.
            let _ = history.set(member, is_doubtful);
        }
    }
}
