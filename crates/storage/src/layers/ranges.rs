//! Who may touch what at the same time: a table of claims on ranges, without blocking anyone.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use underlay_sync::{Mutex, MutexGuard};

/// Grants claims on ranges of numbered units. Shared claims overlap each other, exclusive ones nothing.
/// Claims that overlap are granted in the order in which they were asked for.
#[derive(Default)]
pub struct Ranges {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next_id: u64,
    granted: Vec<Entry>,
    waiting: VecDeque<(Entry, Start)>,
}

type Start = Box<dyn FnOnce(Claim) + Send>;

#[derive(Clone)]
struct Entry {
    id: u64,
    units: Range<u64>,
    shared: bool,
}

impl Entry {
    fn excludes(&self, other: &Entry) -> bool {
        let overlap = self.units.start < other.units.end && other.units.start < self.units.end;
        overlap && !(self.shared && other.shared)
    }
}

/// A granted claim; dropping it gives the range back, and starts who waited for it.
pub struct Claim {
    ranges: Arc<Ranges>,
    id: u64,
}

impl Ranges {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Calls `start` once nobody holds or waits for anything in the way: perhaps before this returns.
    pub fn claim(
        self: &Arc<Self>,
        units: Range<u64>,
        shared: bool,
        start: impl FnOnce(Claim) + Send + 'static,
    ) {
        let id = {
            let mut state = self.lock();
            let id = state.next_id;
            state.next_id += 1;
            let entry = Entry { id, units, shared };
            let waiting = state.waiting.iter().map(|(entry, _)| entry);
            if state.granted.iter().chain(waiting).any(|other| other.excludes(&entry)) {
                state.waiting.push_back((entry, Box::new(start)));
                return;
            }
            state.granted.push(entry);
            id
        };
        start(Claim { ranges: Arc::clone(self), id });
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut starts = Vec::new();
        {
            let mut state = self.ranges.lock();
            let Some(held) = state.granted.iter().position(|entry| entry.id == self.id) else { return };
            let freed = state.granted.swap_remove(held);
            let mut at = 0;
            while at < state.waiting.len() {
                let entry = &state.waiting[at].0;
                let ahead = state.waiting.iter().take(at).map(|(entry, _)| entry);
                // Whoever doesn't touch what was freed waits for something else.
                if !freed.excludes(entry)
                    || state.granted.iter().chain(ahead).any(|other| other.excludes(entry))
                {
                    at += 1;
                    continue;
                }
                if let Some((entry, start)) = state.waiting.remove(at) {
                    starts.push((entry.id, start));
                    state.granted.push(entry);
                }
            }
        }
        for (id, start) in starts {
            start(Claim { ranges: Arc::clone(&self.ranges), id });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Log = Arc<Mutex<Vec<(u32, Claim)>>>;

    fn ask(ranges: &Arc<Ranges>, log: &Log, name: u32, units: Range<u64>, shared: bool) {
        let log = Arc::clone(log);
        ranges.claim(units, shared, move |claim| log.lock().push((name, claim)));
    }

    fn names(log: &Log) -> Vec<u32> {
        log.lock().iter().map(|(name, _)| *name).collect()
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
        let (ranges, log) = (Arc::new(Ranges::default()), Log::default());
        ask(&ranges, &log, 1, 0..10, true);
        ask(&ranges, &log, 2, 5..15, true);
        ask(&ranges, &log, 3, 8..9, false);
        // Behind the writer, though it would go with the readers.
        ask(&ranges, &log, 4, 8..20, true);
        ask(&ranges, &log, 5, 20..30, false);
        assert_eq!(names(&log), [1, 2, 5]);
        release(&log, 1);
        assert_eq!(names(&log), [2, 5]);
        release(&log, 2);
        assert_eq!(names(&log), [5, 3]);
        release(&log, 3);
        assert_eq!(names(&log), [5, 4]);
    }
}
