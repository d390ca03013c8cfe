//! Virtual time, random numbers that follow the seed, and what happens outside of every simulated process.
//!
//! The world is a handle: cheap to clone, and the same everywhere. All of a run happens on one thread, so its locks are
//! never contended; they are there because traits such as `ObjectStore` ask for `Send` and `Sync`.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use underlay_sync::Mutex;

use crate::clock::set_now;

/// SplitMix64: small, and good enough to choose faults by.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed ^ 0x6a09_e667_f3bc_c908)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end
    }

    /// True so many times in a thousand.
    pub fn is_one_of_thousand(&mut self, times: u64) -> bool {
        self.below(1000) < times
    }

    /// One of these; there must be at least one.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// Between two durations.
    pub fn delay(&mut self, least: Duration, most: Duration) -> Duration {
        let span = most.saturating_sub(least).as_micros() as u64;
        least + Duration::from_micros(self.below(span + 1))
    }
}

type WorldEvent = Box<dyn FnOnce() + Send>;

struct WorldState {
    now: Duration,
    random: SplitMix64,
    /// Pending events, by time and by order of request.
    due: BTreeMap<(Duration, u64), WorldEvent>,
    next_number: u64,
    trace: DefaultHasher,
    notes: Vec<(Duration, String)>,
    keeps_notes: bool,
    /// When the last fault ended; none while one lasts.
    sound_since: Option<Duration>,
}

/// See the module.
#[derive(Clone)]
pub struct SimulatedWorld(Arc<Mutex<WorldState>>, Arc<WorldCounts>);

#[derive(Default)]
struct WorldCounts {
    moves: AtomicU64,
    written_bytes: AtomicU64,
}

impl SimulatedWorld {
    pub fn new(seed: u64, keeps_notes: bool) -> SimulatedWorld {
        SimulatedWorld(
            Arc::new(Mutex::new(WorldState {
                now: Duration::ZERO,
                random: SplitMix64::new(seed),
                due: BTreeMap::new(),
                next_number: 0,
                trace: DefaultHasher::new(),
                notes: Vec::new(),
                keeps_notes,
                sound_since: Some(Duration::ZERO),
            })),
            Arc::default(),
        )
    }

    /// Something passes between processes, or between one and the world: time goes in short ticks as long as it does.
    pub(crate) fn note_move(&self) {
        self.1.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// A gateway writes to its local disk.
    pub(crate) fn note_written(&self, bytes: u64) {
        self.1.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// How much all gateways have written to their local disks.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.1.written_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn moves(&self) -> u64 {
        self.1.moves.load(Ordering::Relaxed)
    }

    /// Virtual time since the beginning. It goes in ticks.
    pub fn now(&self) -> Duration {
        self.0.lock().now
    }

    /// Something is wrong from now on: clients may wait.
    pub(crate) fn note_fault(&self) {
        self.0.lock().sound_since = None;
    }

    /// Nothing is wrong any more.
    pub(crate) fn note_sound(&self) {
        let mut state = self.0.lock();
        state.sound_since = Some(state.now);
    }

    /// When the last fault ended; none while one lasts.
    pub(crate) fn sound_since(&self) -> Option<Duration> {
        self.0.lock().sound_since
    }

    pub fn with_random<T>(&self, choose: impl FnOnce(&mut SplitMix64) -> T) -> T {
        choose(&mut self.0.lock().random)
    }

    /// Does something outside of every simulated process: also if the one that asked for it has been killed by then.
    pub fn call_after(&self, delay: Duration, work: impl FnOnce() + Send + 'static) {
        self.note_move();
        let mut state = self.0.lock();
        let key = (state.now + delay, state.next_number);
        state.next_number += 1;
        state.due.insert(key, Box::new(work));
    }

    /// In the process that calls it: with that process the wait ends, or is stopped.
    pub async fn sleep(&self, delay: Duration) {
        tokio::time::sleep(delay).await;
    }

    /// Enters an event into the trace. Two runs of one script have the same trace.
    pub fn note(&self, event: impl std::fmt::Display) {
        let text = event.to_string();
        let mut state = self.0.lock();
        let now = state.now;
        (now, &text).hash(&mut state.trace);
        if state.keeps_notes {
            state.notes.push((now, text));
        }
    }

    /// Notes a remark that is no part of the trace.
    pub(crate) fn remark(&self, text: String) {
        let mut state = self.0.lock();
        let now = state.now;
        state.notes.push((now, text));
    }

    /// The trace, which is equal in two runs of one script.
    pub fn trace(&self) -> u64 {
        self.0.lock().trace.finish()
    }

    pub fn notes(&self) -> Vec<(Duration, String)> {
        self.0.lock().notes.clone()
    }

    /// Time goes on, and what is due by then is done.
    pub(crate) fn advance(&self, tick: Duration) {
        let deadline = self.now() + tick;
        loop {
            let work = {
                let mut state = self.0.lock();
                let next =
                    state.due.first_key_value().map(|(key, _)| *key).filter(|(due, _)| *due <= deadline);
                let Some(key) = next else {
                    state.now = deadline;
                    set_now(deadline);
                    return;
                };
                state.now = state.now.max(key.0);
                set_now(state.now);
                state.due.remove(&key)
            };
            if let Some(work) = work {
                self.note_move();
                work();
            }
        }
    }
}
