//! Threads for what takes processor time, so that the thread that paces devices never computes.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs on threads of its own, or at once on the caller's: virtual time knows no other threads.
/// A handle: the threads end with the last clone.
#[derive(Clone, Default)]
pub struct Workers {
    pool: Option<Arc<Pool>>,
}

struct Pool {
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    ended: bool,
}

impl Workers {
    /// Everything happens on the caller's thread.
    pub fn at_once() -> Workers {
        Workers::default()
    }

    /// # Errors
    /// When a thread can't be had.
    pub fn start(threads: usize) -> io::Result<Workers> {
        let queue = Arc::new(Queue::default());
        let pool = Arc::new(Pool { queue: Arc::clone(&queue) });
        for _ in 0..threads {
            let queue = Arc::clone(&queue);
            thread::Builder::new().name("layer-worker".into()).spawn(move || queue.work())?;
        }
        Ok(Workers { pool: Some(pool) })
    }

    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        match &self.pool {
            None => job(),
            Some(pool) => {
                pool.queue.lock().jobs.push_back(Box::new(job));
                pool.queue.changed.notify_one();
            }
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Not joined: it may be one of the threads that drops the last handle.
        self.queue.lock().ended = true;
        self.queue.changed.notify_all();
    }
}
