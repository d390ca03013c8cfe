//! Which blocks of which files are being read or changed. Whoever must wait is called later; no thread is kept.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use underlay_sync::{Mutex, MutexGuard};

use rustix::io::Errno;

use super::Done;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Shared,
    Exclusive,
}

type Then = Box<dyn FnOnce(Held) + Send>;

#[derive(Default)]
struct File {
    held: Vec<(u64, Range<u64>, Access)>,
    waiting: VecDeque<(u64, Range<u64>, Access, Then)>,
}

#[derive(Default)]
struct State {
    files: HashMap<u64, File>,
    next: u64,
}

/// Locks on ranges of blocks, first come, first served.
#[derive(Clone, Default)]
pub struct Ranges {
    state: Arc<Mutex<State>>,
}

/// A range that is held until this is dropped.
pub struct Held {
    ranges: Ranges,
    inode: u64,
    number: u64,
    range: Range<u64>,
}

impl Held {
    pub fn range(&self) -> &Range<u64> {
        &self.range
    }
}

/// The answer first, then the range: whoever waits for it need not be waited for.
pub(super) fn answer<T>(done: Done<T>, outcome: Result<T, Errno>, held: Held) {
    done(outcome);
    drop(held);
}

fn conflict(a: (&Range<u64>, Access), b: (&Range<u64>, Access)) -> bool {
    let exclusive = a.1 == Access::Exclusive || b.1 == Access::Exclusive;
    exclusive && a.0.start < b.0.end && b.0.start < a.0.end
}

impl Ranges {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Calls `then` with the range, now or once nobody who came before is in the way.
    pub fn lock(
        &self,
        inode: u64,
        range: Range<u64>,
        access: Access,
        then: impl FnOnce(Held) + Send + 'static,
    ) {
        let number = {
            let mut state = self.state();
            state.next += 1;
            let number = state.next;
            let file = state.files.entry(inode).or_default();
            let wanted = (&range, access);
            let taken = file.held.iter().any(|(_, range, access)| conflict(wanted, (range, *access)))
                || file.waiting.iter().any(|(_, range, access, _)| conflict(wanted, (range, *access)));
            if taken {
                return file.waiting.push_back((number, range, access, Box::new(then)));
            }
            file.held.push((number, range.clone(), access));
            number
        };
        then(Held { ranges: self.clone(), inode, number, range });
    }

    fn unlock(&self, inode: u64, number: u64) {
        let mut granted = Vec::new();
        {
            let mut state = self.state();
            let Some(file) = state.files.get_mut(&inode) else { return };
            file.held.retain(|(held, _, _)| *held != number);
            let mut still = VecDeque::new();
            for (number, range, access, then) in std::mem::take(&mut file.waiting) {
                let wanted = (&range, access);
                let blocked = file.held.iter().any(|(_, range, access)| conflict(wanted, (range, *access)))
                    || still.iter().any(|(_, range, access, _): &(u64, Range<u64>, Access, Then)| {
                        conflict(wanted, (range, *access))
                    });
                if blocked {
                    still.push_back((number, range, access, then));
                } else {
                    file.held.push((number, range.clone(), access));
                    granted.push((Held { ranges: self.clone(), inode, number, range }, then));
                }
            }
            file.waiting = still;
            if file.held.is_empty() && file.waiting.is_empty() {
                state.files.remove(&inode);
            }
        }
        for (held, then) in granted {
            then(held);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.ranges.unlock(self.inode, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_and_writers_wait_their_turn() {
        let ranges = Ranges::default();
        let order = Arc::new(Mutex::new(Vec::new()));
        let held = Arc::new(Mutex::new(Vec::new()));
        let ask = |name: &'static str, range: Range<u64>, access| {
            let (order, kept) = (Arc::clone(&order), Arc::clone(&held));
            ranges.lock(7, range, access, move |lock| {
                order.lock().push(name);
                kept.lock().push((name, lock));
            });
        };
        let release = |name: &str| {
            let mut kept = held.lock();
            let index = kept.iter().position(|(held, _)| *held == name).unwrap();
            let lock = kept.remove(index);
            drop(kept);
            drop(lock);
        };
        ask("reader a", 0..10, Access::Shared);
        ask("reader b", 5..15, Access::Shared);
        ask("writer", 8..9, Access::Exclusive);
        // It could go on now, but then a writer might wait for ever.
        ask("late reader", 0..10, Access::Shared);
        ask("elsewhere", 20..30, Access::Exclusive);
        assert_eq!(*order.lock(), ["reader a", "reader b", "elsewhere"]);
        release("reader a");
        release("reader b");
        assert_eq!(order.lock().last(), Some(&"writer"));
        release("writer");
        assert_eq!(order.lock().last(), Some(&"late reader"));
        release("late reader");
        release("elsewhere");
        assert!(ranges.state().files.is_empty());
    }
}
