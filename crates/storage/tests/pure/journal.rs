//! The journal's promise under power cuts, failures and damage.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::queued_device::{Pick, QueuedDevice};
use proptest::prelude::*;
use underlay_storage::device::{BlockDevice, CompletionCallback, DeviceError, DeviceGeometry, DeviceRequest};
use underlay_storage::journal::{Journal, JournalError, JournalSnapshot, RecoveredJournal};
use underlay_storage::layers::Mirror;
use underlay_storage::layers::mirror::MirrorSettings;

const KIND: [u8; 8] = *b"testing ";
const BLOCK: u64 = 4096;
/// Room for some batches an area, so that checkpoints are frequent.
const RANGE: std::ops::Range<u64> = BLOCK..BLOCK * 25;
const CAPACITY: usize = 26 * BLOCK as usize;

#[derive(Clone, Debug)]
enum Step {
    /// Records of this many bytes.
    Append(u8, usize),
    Commit,
    Checkpoint,
    /// This many requests happen.
    Run(u8),
    Fail,
    PowerCut,
    CleanEnd,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..8u8, prop_oneof![4 => 8..200usize, 1 => 4000..9000usize])
            .prop_map(|(count, length)| Step::Append(count, length)),
        5 => Just(Step::Commit),
        1 => Just(Step::Checkpoint),
        8 => (1..6u8).prop_map(Step::Run),
        1 => Just(Step::Fail),
        2 => Just(Step::PowerCut),
        1 => Just(Step::CleanEnd),
    ]
}

/// The owner of the journal: its state is the numbers of all records, each of which must follow the last.
struct Owner {
    journal: Journal,
    device: QueuedDevice,
    /// (the last record's number, which the journal counts on from)
    state: Arc<Mutex<(u64, u64)>>,
    committed: Arc<AtomicU64>,
}

fn record(number: u64, length: usize) -> Vec<u8> {
    let mut record = number.to_le_bytes().to_vec();
    record.resize(length.max(8), number as u8);
    record
}

fn number(record: &[u8]) -> u64 {
    u64::from_le_bytes(record[..8].try_into().unwrap())
}

/// The number of the last record in a journal, each of which follows the one before.
fn last(recovered: &RecoveredJournal) -> u64 {
    let mut last = if recovered.snapshot.is_empty() { 0 } else { number(&recovered.snapshot) };
    for record in &recovered.records {
        assert_eq!(number(record), last + 1, "a record is missing or comes twice");
        assert!(record[8..].iter().all(|byte| *byte == number(record) as u8), "a record is torn");
        last += 1;
    }
    last
}

fn open(image: Vec<u8>) -> (Owner, u64) {
    let device = QueuedDevice::new(image);
    let (journal, recovered) = Journal::open(device.as_device(), RANGE, KIND).expect("the journal opens");
    device.set_at_once(false);
    let last = last(&recovered);
    let state = Arc::new(Mutex::new((last, 0)));
    let source = Arc::clone(&state);
    journal.set_source(move || {
        let (last, covers) = *source.lock().unwrap();
        JournalSnapshot { state: record(last, 3000), covers }
    });
    (Owner { journal, device, state, committed: Arc::new(AtomicU64::new(last)) }, last)
}

impl Owner {
    fn append(&self, length: usize) {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        state.1 = self.journal.append(record(state.0, length));
    }

    fn note_commit(&self) -> underlay_storage::journal::CommitDone {
        let (last, committed) = (self.state.lock().unwrap().0, Arc::clone(&self.committed));
        Box::new(move |result| {
            if result.is_ok() {
                committed.fetch_max(last, Ordering::SeqCst);
            }
        })
    }
}

fn check(steps: &[Step], seed: u64) {
    let mut pick = Pick::new(seed);
    let (mut owner, _) = open(vec![0; CAPACITY]);
    for step in steps {
        match step {
            Step::Append(count, length) => (0..*count).for_each(|_| owner.append(*length)),
            Step::Commit => owner.journal.commit(owner.note_commit()),
            Step::Checkpoint => owner.journal.checkpoint(owner.note_commit()),
            Step::Run(count) => {
                for _ in 0..*count {
                    owner.device.step(&mut pick);
                }
            }
            Step::Fail => {
                owner.device.fail(&mut pick);
            }
            Step::PowerCut | Step::CleanEnd => {
                let appended = owner.state.lock().unwrap().0;
                let mut least = owner.committed.load(Ordering::SeqCst);
                let image = if matches!(step, Step::CleanEnd) {
                    while owner.device.step(&mut pick) {}
                    // What failed before is tried once more.
                    owner.journal.commit(owner.note_commit());
                    while owner.device.step(&mut pick) {}
                    least = appended;
                    assert_eq!(owner.committed.load(Ordering::SeqCst), appended, "a commit went unanswered");
                    owner.device.image()
                } else {
                    owner.device.cut(&mut pick)
                };
                let (next, last) = open(image);
                assert!((least..=appended).contains(&last), "{last}: {least} committed, {appended} appended");
                owner = next;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn power_cut_leaves_prefix_with_committed_records(
        mut steps in prop::collection::vec(step(), 1..120),
        seed in any::<u64>(),
    ) {
        steps.push(Step::PowerCut);
        steps.push(Step::CleanEnd);
        check(&steps, seed);
    }

    /// A byte that changed on the medium is an error, or lay where nothing of the journal is.
    #[test]
    fn changed_byte_never_shortens_journal(
        lengths in prop::collection::vec(8..3000usize, 1..30),
        position in 0..CAPACITY,
        change in 1..=255u8,
    ) {
        let (owner, _) = open(vec![0; CAPACITY]);
        owner.device.set_at_once(true);
        for length in &lengths {
            owner.append(*length);
            owner.journal.commit_and_wait().unwrap();
        }
        let mut image = owner.device.image();
        image[position] ^= change;
        let device = QueuedDevice::new(image);
        match Journal::open(device.as_device(), RANGE, KIND) {
            Ok((_, recovered)) => {
                let found = last(&recovered);
                // Nothing tells a damaged last batch from one that never became durable.
                prop_assert!(found + 1 >= lengths.len() as u64, "{found} of {}", lengths.len());
            }
            Err(JournalError::Damaged { offset_bytes, .. }) => prop_assert!(RANGE.contains(&offset_bytes)),
            Err(JournalError::OtherKind { .. }) => prop_assert!(false, "the checksum covers the kind"),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

/// Found by the property: the header of a checkpoint that had failed was on the medium all the same.
#[test]
fn commit_after_failed_checkpoint_survives_header_loss() {
    use Step::{Append, Checkpoint, CleanEnd, Commit, Fail, Run};
    for seed in 0..64 {
        let steps = [Append(1, 8), Checkpoint, Run(2), Fail, Append(1, 8), Commit, CleanEnd];
        check(&steps, seed);
    }
}

#[test]
fn full_journal_fails_commits_until_source_is_set() {
    let device = QueuedDevice::new(vec![0; CAPACITY]);
    let (journal, recovered) = Journal::open(device.as_device(), RANGE, KIND).unwrap();
    assert_eq!((recovered.snapshot.len(), recovered.records.len()), (0, 0));
    let mut failed = None;
    for _ in 0..20 {
        journal.append(vec![1; 3000]);
        failed = failed.or(journal.commit_and_wait().err());
    }
    assert!(matches!(failed, Some(DeviceError::Io(problem)) if problem.contains("full")));
    let owner = journal.clone();
    journal.set_source(move || JournalSnapshot { state: vec![9; 100], covers: owner.appended() });
    journal.commit_and_wait().unwrap();
    let (_, recovered) = Journal::open(device.as_device(), RANGE, KIND).unwrap();
    assert_eq!(recovered, RecoveredJournal { snapshot: vec![9; 100], records: Vec::new(), version: (2, 1) });
}

#[test]
fn oversized_snapshot_or_record_is_refused() {
    let device = QueuedDevice::new(vec![0; CAPACITY]);
    let (journal, _) = Journal::open(device.as_device(), RANGE, KIND).unwrap();
    journal.set_source(|| JournalSnapshot { state: vec![1; 60_000], covers: 0 });
    let problem = journal.checkpoint_and_wait().unwrap_err().to_string();
    assert!(problem.contains("a snapshot of 60000 bytes does not fit"), "{problem}");
    journal.set_source(JournalSnapshot::default);
    journal.append(vec![1; 50_000]);
    let problem = journal.commit_and_wait().unwrap_err().to_string();
    assert!(problem.contains("a record is too long"), "{problem}");
}

#[test]
fn journal_of_other_kind_or_range_is_refused() {
    let device = QueuedDevice::new(vec![0; CAPACITY]);
    Journal::open(device.as_device(), RANGE, KIND).unwrap();
    let error = Journal::open(device.as_device(), RANGE, *b"a cache ").map(|_| ()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "this is a journal of 'testing', not of 'a cache': the device was used in another way before"
    );
    for range in [1..BLOCK * 9, 0..BLOCK * 4, BLOCK..BLOCK * 101] {
        let refused = Journal::open(device.as_device(), range.clone(), KIND).map(|_| ());
        assert!(matches!(refused, Err(JournalError::Range { .. })), "{range:?}");
    }
}

#[test]
fn lost_header_is_damage_not_new_journal() {
    let (owner, _) = open(vec![0; CAPACITY]);
    owner.device.set_at_once(true);
    owner.append(10);
    owner.journal.checkpoint_and_wait().unwrap();
    for area in [RANGE.start, RANGE.start + (RANGE.end - RANGE.start) / 2] {
        let device = QueuedDevice::new(owner.device.image());
        let data = vec![0; BLOCK as usize];
        device.execute(DeviceRequest::Write { offset_bytes: area, data, fua: true }).unwrap();
        let error = Journal::open(device.as_device(), RANGE, KIND).map(|_| ()).unwrap_err();
        assert!(
            matches!(error, JournalError::Damaged { offset_bytes, .. } if offset_bytes == area),
            "{error}"
        );
    }
}

/// A device that answers at once and keeps nothing.
struct Sink;

impl BlockDevice for Sink {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry { capacity_bytes: 1 << 30, block_bytes: 4096, optimal_io_bytes: 4096 }
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        done(Ok(match request {
            DeviceRequest::Read { buffer, .. } => buffer,
            _ => Vec::new(),
        }));
    }
}

#[test]
fn large_snapshot_needs_no_more_stack() {
    let checkpoint = || {
        // Between the two, as in a pool, for what a request takes of the stack there.
        let members: Vec<Arc<dyn BlockDevice>> = vec![Arc::new(Sink), Arc::new(Sink)];
        let mirror = Arc::new(Mirror::open(members, MirrorSettings::default()).unwrap());
        let (journal, _) = Journal::open(mirror, 0..1 << 29, KIND).unwrap();
        journal.set_source(|| JournalSnapshot { state: vec![0; 200 << 20], covers: 0 });
        journal.checkpoint_and_wait()
    };
    let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(checkpoint).unwrap();
    thread.join().unwrap().unwrap();
}
