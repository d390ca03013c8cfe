//! Claims on regions that block no thread: a claim that has to wait gets a callback later.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::ops::Range;
use std::sync::Arc;

use crate::{Mutex, MutexGuard};

/// A part of something that can be claimed.
pub trait LockRegion: Clone + Send {
    fn overlaps(&self, other: &Self) -> bool;
}

/// Numbered units.
impl LockRegion for Range<u64> {
    fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// Any of 64 parts, one a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSet(pub u64);

impl LockRegion for PartSet {
    fn overlaps(&self, other: &Self) -> bool {
        self.0 & other.0 != 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockAccess {
    /// Together with others that only look.
    Shared,
    Exclusive,
}

/// Grants claims on regions of things, each known by a key. Shared claims overlap each other, exclusive ones nothing.
/// Claims that overlap are granted in the order in which they were asked for.
///
/// Keys are hashed the same way in every process, so that a simulation can be repeated.
pub struct RangeLocks<K, R, S = BuildHasherDefault<DefaultHasher>>
where
    K: Copy + Eq + Hash,
    R: LockRegion,
    S: BuildHasher + Default,
{
    shards: Box<[LockShard<K, R, S>]>,
}

type LockShard<K, R, S> = Mutex<HashMap<K, LockHolders<K, R, S>, S>>;
type GrantCallback<K, R, S> = Box<dyn FnOnce(RangeLock<K, R, S>) + Send>;

/// The claims on one thing; it is forgotten with the last of them.
struct LockHolders<K, R, S>
where
    K: Copy + Eq + Hash,
    R: LockRegion,
    S: BuildHasher + Default,
{
    next_id: u64,
    granted: Vec<(u64, PendingLock<R>)>,
    waiting: VecDeque<(PendingLock<R>, GrantCallback<K, R, S>)>,
}

#[derive(Clone)]
struct PendingLock<R> {
    region: R,
    access: LockAccess,
}

impl<R: LockRegion> PendingLock<R> {
    fn excludes(&self, other: &PendingLock<R>) -> bool {
        let both_shared = self.access == LockAccess::Shared && other.access == LockAccess::Shared;
        !both_shared && self.region.overlaps(&other.region)
    }
}

/// A granted claim; dropping it releases the region and starts the claims that waited for it.
pub struct RangeLock<K, R, S = BuildHasherDefault<DefaultHasher>>
where
    K: Copy + Eq + Hash,
    R: LockRegion,
    S: BuildHasher + Default,
{
    claims: Arc<RangeLocks<K, R, S>>,
    key: K,
    region: R,
    id: u64,
}

impl<K, R, S> RangeLock<K, R, S>
where
    K: Copy + Eq + Hash,
    R: LockRegion,
    S: BuildHasher + Default,
{
    pub fn region(&self) -> &R {
        &self.region
    }
}

impl<K, R, S> Default for RangeLocks<K, R, S>
where
    K: Copy + Eq + Hash,
    R: LockRegion,
    S: BuildHasher + Default,
{
    fn default() -> Self {
        RangeLocks::with_shards(1)
    }
}

impl<K, R, S> RangeLocks<K, R, S>
where
    K: Copy + Eq + Hash,
    R: LockRegion,
    S: BuildHasher + Default,
{
    /// More shards, each with its own lock, let more threads claim different things at once.
    pub fn with_shards(count: usize) -> Self {
        RangeLocks { shards: (0..count.max(1)).map(|_| Mutex::default()).collect() }
    }

    /// Whether nobody holds or waits for anything.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().is_empty())
    }

    fn shard(&self, key: K) -> MutexGuard<'_, HashMap<K, LockHolders<K, R, S>, S>> {
        let index = match self.shards.len() {
            1 => 0,
            count => S::default().hash_one(key) as usize % count,
        };
        self.shards[index].lock()
    }

    /// Calls `start` once nobody holds or waits for anything in the way: perhaps before this returns.
    pub fn claim(
        self: &Arc<Self>,
        key: K,
        region: R,
        access: LockAccess,
        start: impl FnOnce(RangeLock<K, R, S>) + Send + 'static,
    ) {
        let id = {
            let mut shard = self.shard(key);
            let holders = shard.entry(key).or_default();
            let wish = PendingLock { region: region.clone(), access };
            let mut ahead = holders.granted.iter().map(|(_, wish)| wish);
            let mut waiting = holders.waiting.iter().map(|(wish, _)| wish);
            // Those that wait count as well: a stream of shared claims would otherwise starve an exclusive
            // one.
            if ahead.any(|other| other.excludes(&wish)) || waiting.any(|other| other.excludes(&wish)) {
                holders.waiting.push_back((wish, Box::new(start)));
                return;
            }
            holders.grant(wish)
        };
        // Outside the shard's lock, as `start` may claim or release something itself.
        start(RangeLock { claims: Arc::clone(self), key, region, id });
    }
}

impl<K, R, S> Default for LockHolders<K, R, S>
where
    K: Copy + Eq + Hash,
    R: LockRegion,
    S: BuildHasher + Default,
{
    fn default() -> Self {
        LockHolders { next_id: 0, granted: Vec::new(), waiting: VecDeque::new() }
    }
}

impl<K, R, S> LockHolders<K, R, S>
where
    K: Copy + Eq + Hash,
    R: LockRegion,
    S: BuildHasher + Default,
{
    fn grant(&mut self, wish: PendingLock<R>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.granted.push((id, wish));
        id
    }

    /// Releases a claim, and returns those that may start now, in the order in which they were asked for.
    fn give_back(&mut self, id: u64) -> Vec<(u64, R, GrantCallback<K, R, S>)> {
        let mut started = Vec::new();
        let Some(granted_index) = self.granted.iter().position(|(granted, _)| *granted == id) else {
            return started;
        };
        let (_, freed) = self.granted.swap_remove(granted_index);
        let mut index = 0;
        while index < self.waiting.len() {
            let wish = &self.waiting[index].0;
            let mut granted = self.granted.iter().map(|(_, wish)| wish);
            let mut ahead = self.waiting.iter().take(index).map(|(wish, _)| wish);
            // A claim that doesn't touch what was freed waits for something else.
            let has_to_wait = !freed.excludes(wish)
                || granted.any(|other| other.excludes(wish))
                || ahead.any(|other| other.excludes(wish));
            if has_to_wait {
                index += 1;
            } else if let Some((wish, start)) = self.waiting.remove(index) {
                let region = wish.region.clone();
                started.push((self.grant(wish), region, start));
            }
        }
        started
    }
}

impl<K, R, S> Drop for RangeLock<K, R, S>
where
    K: Copy + Eq + Hash,
    R: LockRegion,
    S: BuildHasher + Default,
{
    fn drop(&mut self) {
        let started = {
            let mut shard = self.claims.shard(self.key);
            let Some(holders) = shard.get_mut(&self.key) else { return };
            let started = holders.give_back(self.id);
            if holders.granted.is_empty() && holders.waiting.is_empty() {
                shard.remove(&self.key);
            }
            started
        };
        // Outside the shard's lock, as in `claim`.
        for (id, region, start) in started {
            start(RangeLock { claims: Arc::clone(&self.claims), key: self.key, region, id });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Held<R> = Arc<Mutex<Vec<(u32, RangeLock<u32, R>)>>>;

    struct Book<R: LockRegion> {
        claims: Arc<RangeLocks<u32, R>>,
        held: Held<R>,
    }

    impl<R: LockRegion + 'static> Book<R> {
        fn new() -> Book<R> {
            Book { claims: Arc::new(RangeLocks::with_shards(4)), held: Held::default() }
        }

        fn ask(&self, name: u32, region: R, access: LockAccess) {
            let locks = Arc::clone(&self.held);
            self.claims.claim(7, region, access, move |claim| locks.lock().push((name, claim)));
        }

        fn names(&self) -> Vec<u32> {
            self.held.lock().iter().map(|(name, _)| *name).collect()
        }

        fn release(&self, name: u32) {
            let claim = {
                let mut locks = self.held.lock();
                let index = locks.iter().position(|(lock_name, _)| *lock_name == name).unwrap();
                locks.remove(index)
            };
            drop(claim);
        }
    }

    fn writers_exclude_and_readers_share_in_order_of_asking<R: LockRegion + 'static>(regions: [R; 5]) {
        let book = Book::new();
        let [first, second, third, fourth, fifth] = regions;
        book.ask(1, first, LockAccess::Shared);
        book.ask(2, second, LockAccess::Shared);
        book.ask(3, third, LockAccess::Exclusive);
        // Behind the writer, though it would go with the readers.
        book.ask(4, fourth, LockAccess::Shared);
        book.ask(5, fifth, LockAccess::Exclusive);
        assert_eq!(book.names(), [1, 2, 5]);
        book.release(1);
        assert_eq!(book.names(), [2, 5]);
        book.release(2);
        assert_eq!(book.names(), [5, 3]);
        book.release(3);
        assert_eq!(book.names(), [5, 4]);
        book.release(5);
        book.release(4);
        assert!(book.claims.is_empty(), "nothing is left of them");
    }

    #[test]
    fn ranges_exclude_and_share_in_order_of_asking() {
        writers_exclude_and_readers_share_in_order_of_asking([0..10, 5..15, 8..9, 8..20, 20..30]);
    }

    #[test]
    fn parts_exclude_and_share_in_order_of_asking() {
        let parts = [0b0011, 0b0110, 0b0010, 0b0010, 0b1000];
        writers_exclude_and_readers_share_in_order_of_asking(parts.map(PartSet));
    }

    #[test]
    fn lock_with_another_key_is_independent() {
        let claims: Arc<RangeLocks<u32, Range<u64>>> = Arc::default();
        let locks: Held<Range<u64>> = Held::default();
        for key in 0..3 {
            let locks = Arc::clone(&locks);
            claims.claim(key, 0..1, LockAccess::Exclusive, move |claim| locks.lock().push((key, claim)));
        }
        assert_eq!(locks.lock().len(), 3);
    }
}
