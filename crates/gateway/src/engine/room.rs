//! Waiting for room. Who waits has a place among the requests, and gives it up where others need one: its client is told to come again.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Engine;
use super::queue::Reserved;
use crate::errors::{Error, Result};
use crate::meta::Name;

/// How long a request waits before others are asked for room, and whether they need its place.
const PAUSE: Duration = Duration::from_millis(250);

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Room in the journal.
    Bytes,
    /// A name that the store is not up to date at.
    Name,
}

/// Asks others for room, and says whether whoever asks had better not wait.
pub(crate) type Ask = Box<dyn Fn(Wanted) -> bool + Send + Sync>;

/// Those who wait.
#[derive(Default)]
pub(super) struct Waiting {
    count: AtomicUsize,
    ask: OnceLock<Ask>,
}

/// One of those.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn begin(count: &'a AtomicUsize) -> Waits<'a> {
        count.fetch_add(1, Ordering::Relaxed);
        Waits(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Engine {
    /// `ask` is called now and then while there is no room for somebody.
    pub(crate) fn ask_for_room(&self, ask: impl Fn(Wanted) -> bool + Send + Sync + 'static) {
        // There is one port for clients.
        let _ = self.waiting.ask.set(Box::new(ask));
    }

    /// How many requests have been waiting for room.
    pub(crate) fn waiting_for_room(&self) -> usize {
        self.waiting.count.load(Ordering::Relaxed)
    }

    /// Places for names that are about to become pending.
    pub(super) async fn place_of(&self, names: &[Name]) -> Result<Reserved> {
        self.wait_for(Wanted::Name, |pause| self.queue.reserve(names, pause)).await
    }

    /// Has `reserve` wait for as long as `patience` says, a short time each.
    pub(super) async fn wait_for<T, F>(&self, wanted: Wanted, reserve: impl Fn(Duration) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let until = Instant::now() + self.setup.patience;
        let mut waits = None;
        loop {
            let begun = Instant::now();
            let pause = until.saturating_duration_since(begun).min(PAUSE);
            match reserve(pause).await {
                // What says so at once is full for another reason than a limit.
                Err(error @ Error::Busy(_)) if begun.elapsed() >= pause && Instant::now() < until => {
                    waits.get_or_insert_with(|| Waits::begin(&self.waiting.count));
                    if self.waiting.ask.get().is_some_and(|ask| ask(wanted)) {
                        return Err(error);
                    }
                }
                outcome => return outcome,
            }
        }
    }
}
