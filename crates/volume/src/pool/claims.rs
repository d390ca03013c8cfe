//! Who may touch which part of an extent at the same time, without blocking anyone.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use underlay_sync::{Mutex, MutexGuard};

use super::map::Hashing;

const SHARDS: usize = 64;

type Start = Box<dyn FnOnce(Claim) + Send>;

/// Grants claims on parts of extents, up to 64 parts each. Shared claims overlap each other, exclusive ones nothing.
/// Claims that overlap are granted in the order in which they were asked for.
pub struct Claims {
    shards: [Mutex<HashMap<u32, Slot, Hashing>>; SHARDS],
}

#[derive(Default)]
struct Slot {
    next_id: u32,
    granted: Vec<(u32, Wish)>,
    waiting: VecDeque<(Wish, Start)>,
}

#[derive(Clone, Copy)]
struct Wish {
    parts: u64,
    shared: bool,
}

impl Wish {
    fn excludes(self, other: Wish) -> bool {
        self.parts & other.parts != 0 && !(self.shared && other.shared)
    }
}

/// A granted claim; dropping it starts who waited for it.
pub struct Claim {
    claims: Arc<Claims>,
    extent: u32,
    id: u32,
}

impl Default for Claims {
    fn default() -> Self {
        Claims { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Claims {
    fn shard(&self, extent: u32) -> MutexGuard<'_, HashMap<u32, Slot, Hashing>> {
        self.shards[extent as usize % SHARDS].lock()
    }

    /// Calls `start` once nobody holds or waits for anything in the way: perhaps before this returns.
    pub fn claim(
        self: &Arc<Self>,
        extent: u32,
        parts: u64,
        shared: bool,
        start: impl FnOnce(Claim) + Send + 'static,
    ) {
        let wish = Wish { parts, shared };
        let id = {
            let mut shard = self.shard(extent);
            let slot = shard.entry(extent).or_default();
            let granted = slot.granted.iter().map(|(_, wish)| *wish);
            if granted.chain(slot.waiting.iter().map(|(wish, _)| *wish)).any(|other| other.excludes(wish)) {
                slot.waiting.push_back((wish, Box::new(start)));
                return;
            }
            slot.grant(wish)
        };
        start(Claim { claims: Arc::clone(self), extent, id });
    }
}

impl Slot {
    fn grant(&mut self, wish: Wish) -> u32 {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        self.granted.push((id, wish));
        id
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut starts = Vec::new();
        {
            let mut shard = self.claims.shard(self.extent);
            let Some(slot) = shard.get_mut(&self.extent) else { return };
            slot.granted.retain(|(id, _)| *id != self.id);
            let mut at = 0;
            while at < slot.waiting.len() {
                let wish = slot.waiting[at].0;
                let ahead = slot.waiting.iter().take(at).map(|(wish, _)| *wish);
                if slot.granted.iter().map(|(_, wish)| *wish).chain(ahead).any(|other| other.excludes(wish)) {
                    at += 1;
                } else if let Some((wish, start)) = slot.waiting.remove(at) {
                    starts.push((slot.grant(wish), start));
                }
            }
            if slot.granted.is_empty() && slot.waiting.is_empty() {
                shard.remove(&self.extent);
            }
        }
        for (id, start) in starts {
            start(Claim { claims: Arc::clone(&self.claims), extent: self.extent, id });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Log = Arc<Mutex<Vec<(u32, Claim)>>>;

    fn ask(claims: &Arc<Claims>, log: &Log, name: u32, parts: u64, shared: bool) {
        let log = Arc::clone(log);
        claims.claim(7, parts, shared, move |claim| log.lock().push((name, claim)));
    }

    fn release(log: &Log, name: u32) {
        let claim = {
            let mut log = log.lock();
            let at = log.iter().position(|(held, _)| *held == name).unwrap();
            log.remove(at)
        };
        drop(claim);
    }

    #[test]
    fn writers_exclude_and_readers_share_in_order_of_asking() {
        let (claims, log) = (Arc::new(Claims::default()), Log::default());
        let names = || log.lock().iter().map(|(name, _)| *name).collect::<Vec<_>>();
        ask(&claims, &log, 1, 0b0011, true);
        ask(&claims, &log, 2, 0b0110, true);
        ask(&claims, &log, 3, 0b0010, false);
        // Behind the writer, though it would go with the readers.
        ask(&claims, &log, 4, 0b0010, true);
        ask(&claims, &log, 5, 0b1000, false);
        assert_eq!(names(), [1, 2, 5]);
        release(&log, 1);
        assert_eq!(names(), [2, 5]);
        release(&log, 2);
        assert_eq!(names(), [5, 3]);
        release(&log, 3);
        assert_eq!(names(), [5, 4]);
        log.lock().clear();
        assert!(claims.shards.iter().all(|shard| shard.lock().is_empty()), "nothing is left of them");
    }
}
