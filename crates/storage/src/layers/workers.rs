//! Threads for what takes processor time, so that the thread that paces devices never computes.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use underlay_sync::thread::{self, JoinHandle};
use underlay_sync::{Condvar, Mutex, MutexGuard};

type WorkerJob = Box<dyn FnOnce() + Send>;

/// Runs jobs on its own threads, or at once on the caller's: virtual time knows no other threads.
/// A handle: the threads end with the last clone.
#[derive(Clone, Default)]
pub struct WorkerThreads {
    pool: Option<Arc<WorkerPool>>,
}

struct WorkerPool {
    queue: Arc<JobQueue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct JobQueue {
    state: Mutex<JobQueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct JobQueueState {
    jobs: VecDeque<WorkerJob>,
    ended: bool,
}

impl WorkerThreads {
    /// Everything happens on the caller's thread.
    pub fn inline() -> WorkerThreads {
        WorkerThreads::default()
    }

    /// # Errors
    /// When a thread can't be had.
    pub fn start(threads: usize) -> io::Result<WorkerThreads> {
        let queue = Arc::new(JobQueue::default());
        // Made first, so that threads that were started end when a later one can't be.
        let pool = Arc::new(WorkerPool { queue: Arc::clone(&queue), threads: Mutex::default() });
        for _ in 0..threads {
            let queue = Arc::clone(&queue);
            let thread =
                thread::ThreadBuilder::new().name("layer-worker".into()).spawn(move || queue.work())?;
            pool.threads.lock().push(thread);
        }
        Ok(WorkerThreads { pool: Some(pool) })
    }

    /// Waits until every job is over and the threads are gone. A later job runs on its caller's thread.
    pub fn stop(&self) {
        let Some(pool) = &self.pool else { return };
        pool.queue.end();
        let threads = std::mem::take(&mut *pool.threads.lock());
        for thread in threads {
            if thread.thread().id() != thread::current().id() {
                // A panic in a job has been printed.
                let _ = thread.join();
            }
        }
    }

    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        match &self.pool {
            None => job(),
            Some(pool) => {
                let mut state = pool.queue.lock();
                if state.ended {
                    drop(state);
                    return job();
                }
                state.jobs.push_back(Box::new(job));
                drop(state);
                pool.queue.changed.notify_one();
            }
        }
    }
}

impl JobQueue {
    fn lock(&self) -> MutexGuard<'_, JobQueueState> {
        self.state.lock()
    }

    fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.lock();
            } else if state.ended {
                return;
            } else {
                state = self.changed.wait(state);
            }
        }
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        // Not joined: it may be one of the threads that drops the last handle.
        self.queue.end();
    }
}
