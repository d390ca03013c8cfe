//! Waiting for room. A waiting request has a place among the requests, and gives it up if others need one: its client
//! gets `SlowDown`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::GatewayEngine;
use super::queue::ReservedNames;
use crate::errors::GatewayResult;
use crate::meta::ObjectName;
use crate::refusals::RefusalCause;

/// How long a request waits before others are asked for room, and whether they need its place.
const PAUSE: Duration = Duration::from_millis(250);

/// The resource that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoomKind {
    /// Room in the journal.
    Bytes,
    /// A name that the store is not up to date at.
    Name,
}

/// Asks others for room, and says whether the caller had better not wait.
pub(crate) type RoomRequest = Box<dyn Fn(RoomKind) -> bool + Send + Sync>;

/// Those who wait.
#[derive(Default)]
pub(super) struct RoomQueue {
    count: AtomicUsize,
    ask: OnceLock<RoomRequest>,
}

/// One of those.
struct RoomWaiter<'a>(&'a AtomicUsize);

impl<'a> RoomWaiter<'a> {
    fn begin(count: &'a AtomicUsize) -> RoomWaiter<'a> {
        count.fetch_add(1, Ordering::Relaxed);
        RoomWaiter(count)
    }
}

impl Drop for RoomWaiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl GatewayEngine {
    /// `ask` is called now and then while there is no room for somebody.
    pub(crate) fn ask_for_room(&self, ask: impl Fn(RoomKind) -> bool + Send + Sync + 'static) {
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
    pub(super) async fn place_of(&self, names: &[ObjectName]) -> GatewayResult<ReservedNames> {
        let reserved = self.wait_for(RoomKind::Name, self.queue.reserve(names)).await;
        reserved.ok_or_else(|| self.disk.refusals().refuse(RefusalCause::Names))
    }

    /// Waits for as long as `patience` says. `None` if that is over, or others need the waiter's place. It keeps its
    /// turn meanwhile, as it polls the same future all the time.
    pub(super) async fn wait_for<T>(&self, wanted: RoomKind, room: impl Future<Output = T>) -> Option<T> {
        let deadline = Instant::now() + self.setup.patience;
        tokio::pin!(room);
        let mut waits = None;
        loop {
            let pause = deadline.min(Instant::now() + PAUSE);
            if let Ok(found) = timeout_at(pause, &mut room).await {
                return Some(found);
            }
            if Instant::now() >= deadline {
                return None;
            }
            waits.get_or_insert_with(|| RoomWaiter::begin(&self.waiting.count));
            if self.waiting.ask.get().is_some_and(|ask| ask(wanted)) {
                return None;
            }
        }
    }
}
