//! Makes changes durable: the thread that commits, and the requests for it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::io::Errno;
use underlay_storage::device::{DeviceCompletion, DeviceRequest};
use underlay_sync::planted::{PlantedBug, is_planted};
use underlay_sync::{Receiver, RecvTimeoutError, Sender, channel};

use super::extents::BlockRun;
use super::failures::errno;
use super::{BLOCK_BYTES, CoreCallback, DirectoryCore};

/// A transaction of this size is committed unasked; at twice the size changes have to wait.
const FULL_TRANSACTION_BYTES: usize = 512 << 10;

/// How long a change may stay in memory, as with ext4.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);

pub(super) enum CommitJob {
    Commit(CoreCallback<()>),
    /// Commit, and then retry what had found no space.
    Reclaim(Box<dyn FnOnce() + Send>),
    Stop(Sender<()>),
}

impl DirectoryCore {
    /// Makes all earlier changes durable. Waits for the device.
    ///
    /// # Errors
    /// When the device fails, or is gone.
    pub fn commit(&self) -> Result<(), Errno> {
        let _one = self.committing.lock();
        self.check_alive()?;
        let (nothing_new, begins_anew) = {
            let mut state = self.state();
            state.seal(&self.journal);
            (state.sealed_number == state.durable_number, std::mem::take(&mut state.begins_anew))
        };
        // Flush the data that the records describe. Only this function makes the journal write, so no record overtakes
        // it.
        let covers = self.state().covers();
        let flushed = match is_planted(PlantedBug::NamesBeforeData) {
            true => Ok(()),
            false => self.device.execute(DeviceRequest::Flush).map(drop),
        };
        let outcome = self.flush_ended(covers, flushed).and_then(|()| match nothing_new {
            true => Ok(()),
            // A checkpoint flushes as well.
            false => match begins_anew {
                true => self.journal.checkpoint_and_wait(),
                false => self.journal.commit_and_wait(),
            }
            .inspect_err(|error| self.state().note_failure(errno(error))),
        });
        if outcome.is_err() {
            self.state().begins_anew |= begins_anew;
        } else {
            let runs = {
                let mut state = self.state();
                state.durable_number = state.sealed_number;
                let runs = merged(std::mem::take(&mut state.sealed_runs));
                state.discarding_blocks += runs.iter().map(|run| run.count).sum::<u64>();
                runs
            };
            runs.into_iter().for_each(|run| self.discard(run));
        }
        self.committed.notify_all();
        outcome.map_err(|error| self.errno(&error))
    }

    /// Returns blocks to the device, and then to the allocator.
    fn discard(&self, run: BlockRun) {
        let request = DeviceRequest::Discard {
            offset_bytes: run.start * BLOCK_BYTES,
            length_bytes: run.count * BLOCK_BYTES,
        };
        // Weak: a request in flight must not keep the file system alive after its last user.
        let core = Weak::clone(&self.itself);
        let discarded = move |_| {
            let Some(core) = core.upgrade() else { return };
            let mut state = core.state();
            state.discarding_blocks -= run.count;
            if let Err(overlap) = state.allocator.release(run) {
                // Better to lose them than to give them to two files.
                tracing::error!("not used again: {overlap}");
            }
            drop(state);
            core.committed.notify_all();
        };
        // A device that can't discard still has the blocks.
        self.device.submit(request, Box::new(discarded));
    }

    /// Waits until the device has discarded all freed blocks.
    fn wait_for_discards(&self) {
        let mut state = self.state();
        while state.discarding_blocks > 0 && self.check_alive().is_ok() {
            state = self.committed.wait_timeout(state, Duration::from_secs(1));
        }
    }

    /// [`DirectoryCore::commit`] on its own thread; simultaneous requests share one commit.
    pub fn commit_later(&self, done: CoreCallback<()>) {
        self.send(CommitJob::Commit(done));
    }

    pub(super) fn send(&self, job: CommitJob) {
        let jobs = self.jobs.lock().clone();
        match (jobs, job) {
            (Some(jobs), job) => {
                // The thread lives as long as this value does.
                let _ = jobs.send(job);
            }
            (None, CommitJob::Commit(done)) => done(Err(Errno::IO)),
            (None, CommitJob::Reclaim(then)) => then(),
            (None, CommitJob::Stop(_)) => {}
        }
    }

    /// Makes a file durable, or with `data_only` only what is needed to read it: fsync(2) and fdatasync(2).
    pub fn sync(&self, inode: u64, data_only: bool, done: CoreCallback<()>) {
        let (is_durable, covers) = {
            let state = self.state();
            let is_durable = state.volatile.get(&inode).is_none_or(|volatile| {
                let changed = if data_only { volatile.data_changed_in } else { volatile.changed_in };
                changed <= state.durable_number
            });
            (is_durable, state.covers())
        };
        let weak = Weak::clone(&self.itself);
        if !is_durable {
            return self.commit_later(Box::new(move |outcome| match weak.upgrade() {
                Some(core) => done(core.with_failure(inode, outcome)),
                None => done(outcome),
            }));
        }
        if let Err(error) = self.check_alive() {
            return done(Err(error));
        }
        let flushed = move |completion: DeviceCompletion| {
            let Some(core) = weak.upgrade() else { return done(Err(Errno::IO)) };
            let outcome = core.flush_ended(covers, completion.map(drop));
            done(core.with_failure(inode, outcome.map_err(|error| core.errno(&error))));
        };
        self.device.submit(DeviceRequest::Flush, Box::new(flushed));
    }

    /// Waits while the transaction is so large that the device must catch up. Must not run on a thread that completes
    /// requests.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn throttle(&self) -> Result<(), Errno> {
        let mut state = self.state();
        if state.transaction.operations.len() > FULL_TRANSACTION_BYTES {
            self.commit_later(Box::new(|_| {}));
        }
        let limit = Duration::from_secs(1);
        while state.transaction.operations.len() > 2 * FULL_TRANSACTION_BYTES && self.check_alive().is_ok() {
            state = self.committed.wait_timeout(state, limit);
        }
        self.check_alive()
    }

    /// Makes everything durable and ends. Waits for the device.
    ///
    /// # Errors
    /// When not everything could be made durable.
    pub fn close(&self) -> Result<(), Errno> {
        let jobs = self.jobs.lock().take();
        if let Some(jobs) = jobs {
            let (stopped, wait) = channel();
            if jobs.send(CommitJob::Stop(stopped)).is_ok() {
                let _ = wait.recv();
            }
        }
        self.commit()
    }
}

fn merged(mut runs: Vec<BlockRun>) -> Vec<BlockRun> {
    runs.sort_unstable();
    let mut merged: Vec<BlockRun> = Vec::new();
    for run in runs {
        match merged.last_mut() {
            Some(last) if last.end() == run.start => last.count += run.count,
            _ => merged.push(run),
        }
    }
    merged
}

/// Starts the thread that commits. It ends when the file system is closed or no longer used.
pub(super) fn start_committing(core: &Arc<DirectoryCore>, jobs: Receiver<CommitJob>) -> std::io::Result<()> {
    let core = Arc::downgrade(core);
    underlay_sync::thread::ThreadBuilder::new()
        .name("directory-commit".into())
        .spawn(move || work(&core, &jobs))
        .map(drop)
}

/// The thread that commits, on request and at intervals.
fn work(core: &Weak<DirectoryCore>, jobs: &Receiver<CommitJob>) {
    loop {
        let first = match jobs.recv_timeout(COMMIT_INTERVAL) {
            Ok(job) => Some(job),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let Some(core) = core.upgrade() else { return };
        let waiting: Vec<CommitJob> = first.into_iter().chain(jobs.try_iter()).collect();
        if waiting.is_empty() && core.state().transaction.is_empty() {
            continue;
        }
        let outcome = core.commit();
        for job in waiting {
            match job {
                CommitJob::Commit(done) => done(outcome),
                CommitJob::Reclaim(then) => {
                    core.wait_for_discards();
                    then();
                }
                CommitJob::Stop(stopped) => {
                    let _ = stopped.send(());
                    return;
                }
            }
        }
    }
}
