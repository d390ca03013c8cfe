//! Whose turn it is.

mod task;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::thread::Thread;
use std::time::Duration;

use super::random::SimulationRng;
use crate::unsimulated::UnsimulatedMutex;
pub(crate) use task::is_ordinary;
pub use task::{SimulatedTask, TaskId, TaskWaker, current};
use task::{WORLDS, panic_message, spawn};

const RUNNER_STACK_BYTES: usize = 1 << 20;
/// The one that [`SimulatedWorld::run`] starts.
const ROOT: TaskId = TaskId(0);
const NOBODY: usize = usize::MAX;

/// Tasks and calls that end together: a process, in what is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskGroup(u32);

/// Why a world failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorldFailure {
    /// A task panicked, with these words.
    Panic(String),
    /// Nobody could ever go on: every task waits for another one.
    Deadlock,
    /// There were more turns than allowed.
    Endless,
}

/// How much happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorldStatistics {
    pub turns: u64,
    pub tasks: u64,
    pub virtual_time: Duration,
    /// Of every choice: two runs that did the same have the same.
    pub trace: u64,
}

/// A handle: clones are the same world.
#[derive(Clone)]
pub struct SimulatedWorld {
    shared: Arc<WorldShared>,
}

pub(super) struct WorldShared {
    state: UnsimulatedMutex<SchedulerState>,
    running: AtomicUsize,
    now_ns: AtomicU64,
    /// One lock in this many is preceded by a yield; 0 for never.
    yield_every: AtomicU64,
    is_over: AtomicBool,
}

type ScheduledCall = Box<dyn FnOnce() + Send>;

enum ReadyItem {
    Task(TaskId),
    Call(TaskGroup, ScheduledCall),
}

enum TimerAction {
    Wake(TaskWaker),
    Call(TaskGroup, ScheduledCall),
}

struct SchedulerState {
    random: SimulationRng,
    tasks: Vec<TaskEntry>,
    ready: Vec<ReadyItem>,
    timers: BTreeMap<(u64, u64), TimerAction>,
    next_timer: u64,
    lock_waiters: HashMap<usize, Vec<TaskWaker>>,
    idle_runners: Vec<TaskId>,
    killed: BTreeSet<TaskGroup>,
    next_group: u32,
    /// The work assigned to runners.
    assigned: HashMap<usize, (TaskGroup, ScheduledCall)>,
    turns: u64,
    most_turns: u64,
    trace: u64,
    failure: Option<WorldFailure>,
}

struct TaskEntry {
    group: TaskGroup,
    thread: Option<Thread>,
    /// Counts waits.
    wait: u64,
    is_blocked: bool,
    is_over: bool,
    waiting_for_end: Vec<TaskWaker>,
}

impl SimulatedWorld {
    pub fn new(seed: u64) -> SimulatedWorld {
        let state = SchedulerState {
            random: SimulationRng::new(seed),
            tasks: Vec::new(),
            ready: Vec::new(),
            timers: BTreeMap::new(),
            next_timer: 0,
            lock_waiters: HashMap::new(),
            idle_runners: Vec::new(),
            killed: BTreeSet::new(),
            next_group: 1,
            assigned: HashMap::new(),
            turns: 0,
            most_turns: u64::MAX,
            // The offset basis of 64-bit FNV-1a, which `mix` goes on from.
            trace: 0xcbf2_9ce4_8422_2325,
            failure: None,
        };
        SimulatedWorld {
            shared: Arc::new(WorldShared {
                state: UnsimulatedMutex::new(state),
                running: AtomicUsize::new(NOBODY),
                now_ns: AtomicU64::new(0),
                yield_every: AtomicU64::new(0),
                is_over: AtomicBool::new(false),
            }),
        }
    }

    /// Fails with [`WorldFailure::Endless`] after this many turns.
    #[must_use]
    pub fn with_most_turns(self, turns: u64) -> SimulatedWorld {
        self.shared.lock().most_turns = turns;
        self
    }

    /// Lets another task go first before one lock in `every`, on average.
    #[must_use]
    pub fn with_yields(self, every: u64) -> SimulatedWorld {
        self.shared.yield_every.store(every, Ordering::Relaxed);
        self
    }

    /// Runs a task and everything that comes of it until the task ends. Tasks that still wait then are left where they
    /// are.
    ///
    /// # Errors
    /// When a task panicked, or nobody could go on.
    pub fn run(
        &self,
        body: impl FnOnce(&SimulatedWorld) + Send + 'static,
    ) -> (Result<(), WorldFailure>, WorldStatistics) {
        // Before the world's first thread starts: locks look here to learn whether they are simulated.
        WORLDS.fetch_add(1, Ordering::SeqCst);
        let world = self.clone();
        let builder = std::thread::Builder::new().name("world".into()).stack_size(8 << 20);
        let root = spawn(&self.shared, TaskGroup(0), builder, move || body(&world));
        let outcome = match root {
            Err(error) => Err(WorldFailure::Panic(format!("no thread could be started: {error}"))),
            Ok((thread, id)) => {
                debug_assert_eq!(id, ROOT);
                self.shared.hand_to(ROOT);
                // Polled rather than joined: when nobody can go on, the root task never ends.
                while !thread.is_finished() && !self.shared.is_over.load(Ordering::SeqCst) {
                    std::thread::park_timeout(Duration::from_millis(1));
                }
                Ok(())
            }
        };
        self.shared.is_over.store(true, Ordering::SeqCst);
        let state = self.shared.lock();
        let statistics = WorldStatistics {
            turns: state.turns,
            tasks: state.tasks.len() as u64,
            virtual_time: self.shared.now(),
            trace: state.trace,
        };
        let failure = state.failure.clone();
        drop(state);
        WORLDS.fetch_sub(1, Ordering::SeqCst);
        (failure.map_or(outcome, Err), statistics)
    }

    pub fn now(&self) -> Duration {
        self.shared.now()
    }

    pub fn with_random<T>(&self, draw: impl FnOnce(&mut SimulationRng) -> T) -> T {
        self.shared.with_random(draw)
    }

    pub fn new_group(&self) -> TaskGroup {
        let mut state = self.shared.lock();
        state.next_group += 1;
        TaskGroup(state.next_group - 1)
    }

    /// The calling task's.
    pub fn own_group(&self) -> TaskGroup {
        current().map_or(TaskGroup(0), |task| self.shared.group_of(task.id))
    }

    /// Calls `call` later. It may wait, as any task.
    pub fn call_after(&self, after: Duration, group: TaskGroup, call: impl FnOnce() + Send + 'static) {
        let due_ns = self.shared.now_ns.load(Ordering::Relaxed) + after.as_nanos() as u64;
        let mut state = self.shared.lock();
        if state.killed.contains(&group) {
            // Its contents are the dead process's, and stay as that left them.
            std::mem::forget(call);
            return;
        }
        state.add_timer(due_ns, TimerAction::Call(group, Box::new(call)));
    }

    /// Does something as a task of another group: threads that it starts belong there.
    pub fn enter<T>(&self, group: TaskGroup, body: impl FnOnce() -> T) -> T {
        let Some(task) = current() else { return body() };
        let before = std::mem::replace(&mut self.shared.lock().tasks[task.id.0].group, group);
        let result = body();
        let is_dead = {
            let mut state = self.shared.lock();
            state.tasks[task.id.0].group = before;
            state.killed.contains(&before)
        };
        if is_dead {
            // Its own group was killed meanwhile, so it never gets another turn.
            task.waker();
            task.block(None);
        }
        result
    }

    /// Starts a task in a group.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn spawn(&self, group: TaskGroup, body: impl FnOnce() + Send + 'static) -> std::io::Result<TaskId> {
        let builder = std::thread::Builder::new().name("task".into()).stack_size(RUNNER_STACK_BYTES);
        Ok(spawn(&self.shared, group, builder, body)?.1)
    }

    /// Whether a task is over, or was killed.
    pub fn is_over(&self, task: TaskId) -> bool {
        let state = self.shared.lock();
        let entry = &state.tasks[task.0];
        entry.is_over || state.killed.contains(&entry.group)
    }

    /// None of the group's tasks and calls ever has a turn again.
    pub fn kill(&self, group: TaskGroup) {
        let mut state = self.shared.lock();
        state.killed.insert(group);
        let is_of = |state: &SchedulerState, id: &TaskId| state.tasks[id.0].group == group;
        let ready = std::mem::take(&mut state.ready);
        for item in ready {
            match item {
                ReadyItem::Task(id) if is_of(&state, &id) => {}
                // Forgotten, not dropped: a killed process runs no destructors.
                ReadyItem::Call(owner, call) if owner == group => std::mem::forget(call),
                other => state.ready.push(other),
            }
        }
        let dead: Vec<(u64, u64)> = state
            .timers
            .iter()
            .filter(|(_, timer)| match timer {
                TimerAction::Call(owner, _) => *owner == group,
                TimerAction::Wake(waker) => is_of(&state, &waker.task),
            })
            .map(|(key, _)| *key)
            .collect();
        for key in dead {
            std::mem::forget(state.timers.remove(&key));
        }
    }

    pub fn is_killed(&self, group: TaskGroup) -> bool {
        self.shared.lock().killed.contains(&group)
    }

    /// Mixes a fact into the trace.
    pub fn note(&self, fact: u64) {
        self.shared.lock().mix(fact);
    }
}

impl SchedulerState {
    fn add_timer(&mut self, due_ns: u64, timer: TimerAction) {
        // The number tells timers apart that are due at the same moment: the one that was set first goes
        // first.
        let number = self.next_timer;
        self.next_timer += 1;
        self.timers.insert((due_ns, number), timer);
    }

    /// FNV-1a (Fowler, Noll, Vo), a word at a time.
    fn mix(&mut self, fact: u64) {
        self.trace = (self.trace ^ fact).wrapping_mul(0x0100_0000_01b3);
    }

    fn wake(&mut self, waker: TaskWaker) {
        let killed = self.killed.contains(&self.tasks[waker.task.0].group);
        let entry = &mut self.tasks[waker.task.0];
        if entry.is_blocked && entry.wait == waker.wait && !killed {
            entry.is_blocked = false;
            self.ready.push(ReadyItem::Task(waker.task));
        }
    }
}

impl WorldShared {
    fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock()
    }

    pub(super) fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns.load(Ordering::Relaxed))
    }

    pub(super) fn with_random<T>(&self, draw: impl FnOnce(&mut SimulationRng) -> T) -> T {
        draw(&mut self.lock().random)
    }

    pub(super) fn group_of(&self, id: TaskId) -> TaskGroup {
        self.lock().tasks[id.0].group
    }

    /// A task without a thread yet, which is ready.
    pub(super) fn reserve(&self, group: TaskGroup) -> TaskId {
        let mut state = self.lock();
        let id = TaskId(state.tasks.len());
        state.tasks.push(TaskEntry {
            group,
            thread: None,
            wait: 0,
            is_blocked: false,
            is_over: false,
            waiting_for_end: Vec::new(),
        });
        id
    }

    pub(super) fn started(&self, id: TaskId, thread: Thread) {
        let mut state = self.lock();
        state.tasks[id.0].thread = Some(thread);
        if !state.killed.contains(&state.tasks[id.0].group) && id != ROOT {
            state.ready.push(ReadyItem::Task(id));
        }
    }

    pub(super) fn await_turn(&self, id: TaskId) {
        // `park` may return without a reason; only the turn counts.
        while self.running.load(Ordering::Acquire) != id.0 {
            std::thread::park();
        }
    }

    fn hand_to(&self, id: TaskId) {
        let thread = self.lock().tasks[id.0].thread.clone();
        // Pairs with the `Acquire` in `await_turn`: the next task sees all that this one wrote.
        self.running.store(id.0, Ordering::Release);
        if let Some(thread) = thread {
            thread.unpark();
        }
    }

    pub(super) fn yields_now(&self) -> bool {
        let every = self.yield_every.load(Ordering::Relaxed);
        every > 0 && self.lock().random.one_in(every)
    }

    pub(super) fn yield_turn(self: &Arc<Self>, id: TaskId) {
        {
            let mut state = self.lock();
            if state.ready.is_empty() {
                return;
            }
            if !state.killed.contains(&state.tasks[id.0].group) {
                state.ready.push(ReadyItem::Task(id));
            }
        }
        self.give_up_turn(id);
    }

    pub(super) fn waker(&self, id: TaskId) -> TaskWaker {
        let mut state = self.lock();
        let entry = &mut state.tasks[id.0];
        entry.wait += 1;
        entry.is_blocked = true;
        TaskWaker { task: id, wait: entry.wait }
    }

    pub(super) fn wake(&self, waker: TaskWaker) {
        self.lock().wake(waker);
    }

    pub(super) fn block(self: &Arc<Self>, id: TaskId, timeout: Option<Duration>) {
        if let Some(timeout) = timeout {
            let due_ns = self.now_ns.load(Ordering::Relaxed).saturating_add(timeout.as_nanos() as u64);
            let mut state = self.lock();
            let waker = TaskWaker { task: id, wait: state.tasks[id.0].wait };
            state.add_timer(due_ns, TimerAction::Wake(waker));
        }
        self.give_up_turn(id);
    }

    pub(super) fn wait_for_lock(self: &Arc<Self>, id: TaskId, address: usize) {
        // No wake is lost between the failed attempt and this: no other task runs before the turn is given
        // up.
        let waker = self.waker(id);
        self.lock().lock_waiters.entry(address).or_default().push(waker);
        self.give_up_turn(id);
    }

    pub(super) fn unlocked(&self, address: usize) {
        let mut state = self.lock();
        if state.lock_waiters.is_empty() {
            return;
        }
        for waker in state.lock_waiters.remove(&address).unwrap_or_default() {
            state.wake(waker);
        }
    }

    pub(super) fn wait_for_end(self: &Arc<Self>, id: TaskId, other: TaskId) {
        loop {
            {
                let mut state = self.lock();
                let entry = &state.tasks[other.0];
                if entry.is_over || state.killed.contains(&entry.group) {
                    return;
                }
                let own = &mut state.tasks[id.0];
                own.wait += 1;
                own.is_blocked = true;
                let waker = TaskWaker { task: id, wait: own.wait };
                state.tasks[other.0].waiting_for_end.push(waker);
            }
            self.give_up_turn(id);
        }
    }

    pub(super) fn failed(&self, id: TaskId, words: String) {
        let mut state = self.lock();
        if !state.killed.contains(&state.tasks[id.0].group) {
            state.failure.get_or_insert(WorldFailure::Panic(words));
        }
    }

    /// The task's thread is about to end.
    pub(super) fn end(self: &Arc<Self>, id: TaskId) {
        {
            let mut state = self.lock();
            state.tasks[id.0].is_over = true;
            for waker in std::mem::take(&mut state.tasks[id.0].waiting_for_end) {
                state.wake(waker);
            }
            if id == ROOT || state.failure.is_some() {
                self.is_over.store(true, Ordering::SeqCst);
                return;
            }
        }
        self.choose(None);
    }

    fn give_up_turn(self: &Arc<Self>, id: TaskId) {
        if !self.choose(Some(id)) {
            self.await_turn(id);
        }
    }

    /// Hands the turn on; true if it is the caller's again.
    fn choose(self: &Arc<Self>, own: Option<TaskId>) -> bool {
        match self.next() {
            None => false,
            Some(ReadyItem::Task(id)) => {
                if Some(id) == own {
                    return true;
                }
                self.hand_to(id);
                false
            }
            Some(ReadyItem::Call(group, call)) => {
                let runner = self.runner(group, call);
                self.hand_to(runner);
                false
            }
        }
    }

    /// The next item; nothing when the world is over.
    fn next(&self) -> Option<ReadyItem> {
        let mut state = self.lock();
        state.turns += 1;
        if state.turns > state.most_turns {
            state.failure.get_or_insert(WorldFailure::Endless);
        }
        while state.ready.is_empty() && state.failure.is_none() {
            let Some(((due_ns, _), timer)) = state.timers.pop_first() else {
                state.failure = Some(WorldFailure::Deadlock);
                break;
            };
            let now = self.now_ns.load(Ordering::Relaxed).max(due_ns);
            // Relaxed is enough: handing over the turn orders it for the next task.
            self.now_ns.store(now, Ordering::Relaxed);
            match timer {
                TimerAction::Wake(waker) => state.wake(waker),
                TimerAction::Call(group, call) => state.ready.push(ReadyItem::Call(group, call)),
            }
        }
        if state.failure.is_some() {
            // All tasks stay parked.
            self.is_over.store(true, Ordering::SeqCst);
            return None;
        }
        let count = state.ready.len() as u64;
        let index = if count == 1 { 0 } else { state.random.below(count) as usize };
        let next = state.ready.swap_remove(index);
        let trace_code = match &next {
            ReadyItem::Task(id) => id.0 as u64,
            ReadyItem::Call(group, _) => 1 << 32 | u64::from(group.0),
        };
        let now = self.now_ns.load(Ordering::Relaxed);
        state.mix(trace_code);
        state.mix(now);
        Some(next)
    }

    /// A task that will do a call: one that has nothing to do, or a new one.
    fn runner(self: &Arc<Self>, group: TaskGroup, call: ScheduledCall) -> TaskId {
        let idle = {
            let mut state = self.lock();
            let idle = state.idle_runners.pop();
            if let Some(id) = idle {
                state.tasks[id.0].group = group;
                state.assigned.insert(id.0, (group, call));
                return id;
            }
            call
        };
        let id = self.reserve(group);
        let task = SimulatedTask { shared: Arc::clone(self), id };
        let shared = Arc::clone(self);
        self.lock().assigned.insert(id.0, (group, idle));
        let builder = std::thread::Builder::new().name("runner".into()).stack_size(RUNNER_STACK_BYTES);
        let thread = builder.spawn(move || {
            task.become_current();
            shared.await_turn(id);
            shared.run_calls(id);
        });
        match thread {
            Ok(thread) => self.lock().tasks[id.0].thread = Some(thread.thread().clone()),
            Err(error) => {
                self.lock()
                    .failure
                    .get_or_insert(WorldFailure::Panic(format!("no thread could be had: {error}")));
                self.is_over.store(true, Ordering::SeqCst);
            }
        }
        id
    }

    /// A runner's loop: its call, and then each next call, without handing the turn on.
    fn run_calls(self: &Arc<Self>, id: TaskId) {
        loop {
            let assigned = self.lock().assigned.remove(&id.0);
            if let Some((_, call)) = assigned
                && let Err(panic) = catch_unwind(AssertUnwindSafe(call))
            {
                self.failed(id, panic_message(&*panic));
                self.is_over.store(true, Ordering::SeqCst);
                return;
            }
            match self.next() {
                None => return,
                Some(ReadyItem::Call(group, call)) => {
                    let mut state = self.lock();
                    state.tasks[id.0].group = group;
                    state.assigned.insert(id.0, (group, call));
                }
                Some(ReadyItem::Task(next)) => {
                    // In no group while it is idle, or it would die with the last one.
                    {
                        let mut state = self.lock();
                        state.tasks[id.0].group = TaskGroup(0);
                        state.idle_runners.push(id);
                    }
                    self.hand_to(next);
                    self.await_turn(id);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
