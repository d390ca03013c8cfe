//! A journal alone under test: records of any length, checkpoints, failing writes and power cuts, on
//! a small stack.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use underlay_storage::device::DeviceError;
use underlay_storage::journal::{Journal, JournalSnapshot, RecoveredJournal};
use underlay_sync::simulation::{SimulatedWorld, TaskGroup};
use underlay_sync::{Mutex, MutexGuard, thread};

use crate::disk::SimulatedDisk;
use crate::faults::FaultInjector;
use crate::script::{JournalSetup, ScriptStep};
use crate::slot::SharedSlot;
use crate::user::{UserEvents, await_answer, wait_until};

const KIND: [u8; 8] = *b"simulate";
/// Enough for sound code, and too little for a recursion over the pieces of a large snapshot.
const STACK_BYTES: usize = 64 << 10;
const MIB: u64 = 1 << 20;

/// What the journal's owner has in memory, and what was promised to it.
#[derive(Default)]
struct JournalOwner {
    /// Numbers of all records so far, beginning with 1.
    appended: u64,
    /// Up to which record a commit was acknowledged.
    committed: u64,
    /// The journal's own number of the last record: it counts from its opening.
    since_opening: u64,
    commits_under_way: u32,
}

type OwnerShared = Arc<Mutex<JournalOwner>>;

fn lock(owner: &OwnerShared) -> MutexGuard<'_, JournalOwner> {
    owner.lock()
}

struct JournalRig {
    world: SimulatedWorld,
    setup: JournalSetup,
    events: Arc<UserEvents>,
    disk: SimulatedDisk,
    faults: FaultInjector,
    owner: OwnerShared,
    process: TaskGroup,
    opened: SharedSlot<Result<Journal, String>>,
}

/// The state that a snapshot holds: the number of the last record in it, and as much more as the script says.
fn snapshot(owner: &OwnerShared, bytes: u64) -> JournalSnapshot {
    let owner = lock(owner);
    let mut state = owner.appended.to_le_bytes().to_vec();
    state.resize(8 + bytes as usize, 0);
    JournalSnapshot { state, covers: owner.since_opening }
}

/// The last record that was found again.
///
/// # Errors
/// When they are not the first ones, each once and in order.
fn last_of(recovered: &RecoveredJournal) -> Result<u64, String> {
    let number = |bytes: &[u8]| bytes.first_chunk::<8>().map_or(0, |first| u64::from_le_bytes(*first));
    let mut last = number(&recovered.snapshot);
    for record in &recovered.records {
        if number(record) != last + 1 {
            return Err(format!("record {} follows record {last}", number(record)));
        }
        last += 1;
    }
    Ok(last)
}

/// Runs a script.
pub(crate) fn run(
    world: &SimulatedWorld,
    setup: &JournalSetup,
    steps: &[ScriptStep],
    events: &Arc<UserEvents>,
) {
    let snapshot_bytes = setup.snapshot_mib * MIB + 4096;
    let capacity_bytes = Journal::range_bytes(snapshot_bytes, 64 << 10);
    let disk = SimulatedDisk::new(world, capacity_bytes, false);
    disk.set_at_once(setup.answers_at_once);
    let mut rig = JournalRig {
        world: world.clone(),
        setup: setup.clone(),
        events: Arc::clone(events),
        faults: FaultInjector::new(std::slice::from_ref(&disk), 0..0),
        disk,
        owner: OwnerShared::default(),
        process: world.new_group(),
        opened: SharedSlot::default(),
    };
    rig.open();
    rig.await_opened().unwrap_or_else(|problem| panic!("a journal can't be made on a new disk: {problem}"));
    for step in steps {
        rig.step(step);
    }
    rig.faults.heal();
    for takes_power in [false, true] {
        rig.crash(takes_power);
        let opened = rig.await_opened();
        if rig.events.anything_goes.load(Ordering::Relaxed) {
            return;
        }
        let journal = opened.unwrap_or_else(|problem| panic!("a sound disk can't be opened: {problem}"));
        rig.append(&journal, 1);
        let committed = await_answer(world, "a last commit", |then| rig.small(move || journal.commit(then)));
        assert_eq!(committed, Ok(()), "a commit succeeds once all faults are over");
    }
}

impl JournalRig {
    /// As a thread with a small stack.
    fn small(&self, act: impl FnOnce() + Send + 'static) {
        self.world.enter(self.process, || {
            let thread = thread::ThreadBuilder::new().stack_size(STACK_BYTES).spawn(act);
            thread.expect("a thread can be had");
        });
    }

    fn open(&mut self) {
        self.process = self.world.new_group();
        self.opened = SharedSlot::default();
        let device = self.disk.device(self.process);
        let range = 0..device.geometry().capacity_bytes / 8192 * 8192;
        let (slot, owner, events) = (self.opened.clone(), Arc::clone(&self.owner), Arc::clone(&self.events));
        let bytes = self.setup.snapshot_mib * MIB;
        self.small(move || {
            let opened = Journal::open(device, range, KIND).map_err(|error| error.to_string());
            slot.fill(opened.map(|(journal, recovered)| {
                check(&recovered, &owner, &events);
                let source = Arc::clone(&owner);
                journal.set_source(move || snapshot(&source, bytes));
                journal
            }));
        });
    }

    fn await_opened(&self) -> Result<Journal, String> {
        wait_until(&self.world, || "the journal opens".into(), || self.opened.is_full());
        self.opened.get().expect("it was just filled")
    }

    fn crash(&mut self, takes_power: bool) {
        self.world.kill(self.process);
        self.faults.crash(self.process, takes_power, &self.events);
        lock(&self.owner).commits_under_way = 0;
        self.open();
    }

    fn journal(&mut self) -> Option<Journal> {
        match self.opened.get()? {
            Ok(journal) => Some(journal),
            Err(_) => {
                self.crash(false);
                None
            }
        }
    }

    fn append(&self, journal: &Journal, blocks: u32) {
        let mut owner = lock(&self.owner);
        owner.appended += 1;
        let mut record = owner.appended.to_le_bytes().to_vec();
        record.resize(8 + blocks as usize * 700, 7);
        owner.since_opening = journal.append(record);
    }

    fn commit(&mut self) {
        let Some(journal) = self.journal() else { return };
        let (owner, events) = (Arc::clone(&self.owner), Arc::clone(&self.events));
        let requested = {
            let mut owner = lock(&owner);
            owner.commits_under_way += 1;
            owner.appended
        };
        let is_void = events.flushes_are_void.load(Ordering::Relaxed);
        let done = move |outcome: Result<(), DeviceError>| {
            let counter = if outcome.is_ok() { &events.acknowledged } else { &events.refused };
            counter.fetch_add(1, Ordering::Relaxed);
            let mut owner = lock(&owner);
            owner.commits_under_way = owner.commits_under_way.saturating_sub(1);
            if outcome.is_ok() && !is_void {
                owner.committed = owner.committed.max(requested);
            }
        };
        self.small(move || journal.commit(Box::new(done)));
    }

    fn step(&mut self, step: &ScriptStep) {
        match *step {
            ScriptStep::Write { count, .. } => {
                if let Some(journal) = self.journal() {
                    self.append(&journal, count.min(40));
                }
            }
            ScriptStep::Flush { .. } => self.commit(),
            ScriptStep::Resync { .. } | ScriptStep::Snapshot { .. } => {
                if let Some(journal) = self.journal() {
                    self.small(move || journal.checkpoint(Box::new(drop)));
                }
            }
            ScriptStep::Pause { us } => thread::sleep(Duration::from_micros(us)),
            ScriptStep::Settle => {
                let owner = Arc::clone(&self.owner);
                let is_over = move || lock(&owner).commits_under_way == 0;
                wait_until(&self.world, || "commits in progress".into(), is_over);
            }
            ScriptStep::KillServer => self.crash(false),
            ScriptStep::CutPower => self.crash(true),
            _ => self.faults.strike(step, &self.events, !self.opened.is_full()),
        }
    }
}

/// Everything committed is there, and nothing that was never appended.
fn check(recovered: &RecoveredJournal, owner: &OwnerShared, events: &UserEvents) {
    if events.anything_goes.load(Ordering::Relaxed) {
        return;
    }
    let mut owner = lock(owner);
    let last = last_of(recovered).unwrap_or_else(|problem| panic!("the journal's records: {problem}"));
    assert!(
        (owner.committed..=owner.appended).contains(&last),
        "the journal ends with record {last}; {} were committed and {} appended",
        owner.committed,
        owner.appended
    );
    // All of it is durable, and the owner goes on from there.
    (owner.appended, owner.committed, owner.since_opening) = (last, last, 0);
}
