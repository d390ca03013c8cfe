//! Waiting for room. A waiting request has a place among the requests, and gives it up if others need one: its client gets `SlowDown`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::Engine;
use super::queue::Reserved;
use crate::errors::Result;
use crate::meta::Name;
use crate::refusals::Cause;

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

/// Asks others for room, and says whether the caller had better not wait.
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
    ///
    /// # Errors
    /// `Busy` if there are none.
    pub(super) async fn place_of(&self, names: &[Name]) -> Result<Reserved> {
        let reserved = self.wait_for(Wanted::Name, self.queue.reserve(names)).await;
        reserved.ok_or_else(|| self.disk.refusals().refuse(Cause::Names))
    }

    /// Waits for as long as `patience` says. `None` if that is over, or others need the waiter's place. It keeps its turn meanwhile, as it
    /// polls the same future all the time.
    pub(super) async fn wait_for<T>(&self, wanted: Wanted, room: impl Future<Output = T>) -> Option<T> {
        let until = Instant::now() + self.setup.patience;
        tokio::pin!(room);
        let mut waits = None;
        loop {
            let pause = until.min(Instant::now() + PAUSE);
            if let Ok(found) = timeout_at(pause, &mut room).await {
                return Some(found);
            }
            if Instant::now() >= until {
                return None;
            }
            waits.get_or_insert_with(|| Waits::begin(&self.waiting.count));
            if self.waiting.ask.get().is_some_and(|ask| ask(wanted)) {
                return None;
            }
        }
    }
}
