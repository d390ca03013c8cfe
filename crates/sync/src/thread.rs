//! Threads.

use std::io;
use std::time::Duration;

pub use std::thread::{Thread, ThreadId, current};

use crate::simulation::{self, TaskId};

/// As `std::thread::ThreadBuilder`.
#[derive(Debug, Default)]
pub struct ThreadBuilder {
    name: Option<String>,
    stack_bytes: Option<usize>,
}

pub struct JoinHandle<T> {
    inner: std::thread::JoinHandle<T>,
    task: Option<TaskId>,
}

impl ThreadBuilder {
    pub fn new() -> ThreadBuilder {
        ThreadBuilder::default()
    }

    #[must_use]
    pub fn name(self, name: String) -> ThreadBuilder {
        ThreadBuilder { name: Some(name), ..self }
    }

    #[must_use]
    pub fn stack_size(self, bytes: usize) -> ThreadBuilder {
        ThreadBuilder { stack_bytes: Some(bytes), ..self }
    }

    /// # Errors
    /// When the system gives no thread.
    pub fn spawn<T: Send + 'static>(
        self,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let mut builder = std::thread::Builder::new();
        if let Some(name) = self.name {
            builder = builder.name(name);
        }
        if let Some(bytes) = self.stack_bytes {
            builder = builder.stack_size(bytes);
        }
        match simulation::current() {
            None => Ok(JoinHandle { inner: builder.spawn(body)?, task: None }),
            Some(parent) => {
                let (inner, task) = parent.spawn(builder, body)?;
                Ok(JoinHandle { inner, task: Some(task) })
            }
        }
    }
}

impl<T> JoinHandle<T> {
    /// # Errors
    /// The thread's panic.
    pub fn join(self) -> std::thread::Result<T> {
        if let (Some(task), Some(own)) = (self.task, simulation::current()) {
            own.wait_for_end(task);
        }
        self.inner.join()
    }

    pub fn thread(&self) -> &Thread {
        self.inner.thread()
    }

    pub fn is_finished(&self) -> bool {
        self.inner.is_finished()
    }
}

pub fn sleep(duration: Duration) {
    match simulation::current() {
        None => std::thread::sleep(duration),
        Some(task) => task.sleep(duration),
    }
}
