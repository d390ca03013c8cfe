//! Writes that a system has acknowledged, noted during the measurement, and whether they are present afterwards.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use underlay_record::{LostWrite, LostWriteProblem, ReadBackRecord};
use underlay_sync::Mutex;

use crate::client::{Client, ClientError, FieldSelection, FieldValues, FoundRecords, OperationOutcome};
use crate::draw::integrity::ExpectedValues;
use crate::workload::CoreWorkload;

/// The maximum number of noted records, each at most a few kilobytes; of more records, a sample is noted.
const MAX_NOTED: u64 = 20_000;
const PARTS: usize = 64;
/// Replaced values of a field, to distinguish an older value from a wrong one.
const REPLACED_KEPT: usize = 8;
/// Writes of a field with an unknown outcome. With more, any value may be correct.
const UNANSWERED_KEPT: usize = 32;
const EXAMPLES: usize = 10;
const READERS: u32 = 4;
/// A record that can't be read is retried, since another node may just have taken over.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);
/// After this many consecutive records that can't be read, the rest is not worth waiting for.
const HOPELESS: u64 = 40;

/// The hash of a value; `None` if it was deleted.
type ValueDigest = Option<u64>;

#[derive(Clone, Copy, Debug)]
struct ClientWrite {
    digest: ValueDigest,
    begun: u64,
    /// `None` while it is in flight, and forever if it failed: it may be present or not.
    answered: Option<u64>,
}

/// The possible contents of one field.
#[derive(Debug, Default)]
struct FieldHistory {
    writes: Vec<ClientWrite>,
    replaced: Vec<ValueDigest>,
    /// There were more writes than can be kept.
    may_be_anything: bool,
    /// A write deleted it, or may have.
    was_deleted: bool,
}

impl FieldHistory {
    fn begin(&mut self, digest: ValueDigest, begun: u64) {
        self.was_deleted |= digest.is_none();
        if self.writes.len() >= UNANSWERED_KEPT {
            self.may_be_anything = true;
            return;
        }
        self.writes.push(ClientWrite { digest, begun, answered: None });
    }

    fn answered(&mut self, begun: u64, now: u64) {
        let Some(write) = self.writes.iter_mut().find(|write| write.begun == begun) else { return };
        write.answered = Some(now);
        // All writes answered before this one began are superseded.
        let replaced = &mut self.replaced;
        self.writes.retain(|write| {
            let stays = write.answered.is_none_or(|answered| answered > begun);
            if !stays {
                replaced.push(write.digest);
            }
            stays
        });
        let too_many = self.replaced.len().saturating_sub(REPLACED_KEPT);
        self.replaced.drain(..too_many);
    }

    fn refused(&mut self, begun: u64) {
        self.writes.retain(|write| write.begun != begun);
    }

    /// The verdict on finding this. `is_sound`: it is a value that was written to this field at some time.
    fn judge(&self, found: ValueDigest, is_sound: &dyn Fn() -> bool) -> FieldVerdict {
        let was_acknowledged =
            !self.replaced.is_empty() || self.writes.iter().any(|write| write.answered.is_some());
        if self.may_be_anything {
            // A record that existed and was not deleted must exist.
            let may_be_missing = self.was_deleted || !was_acknowledged;
            return match found {
                None if !may_be_missing => FieldVerdict::Lost(LostWriteProblem::Missing),
                _ => FieldVerdict::Unknown,
            };
        }
        if self.writes.iter().all(|write| write.answered.is_none()) {
            return FieldVerdict::Unknown;
        }
        if self.writes.iter().any(|write| write.digest == found) {
            return FieldVerdict::Right;
        }
        FieldVerdict::Lost(match found {
            None => LostWriteProblem::Missing,
            Some(_) if self.replaced.contains(&found) || is_sound() => LostWriteProblem::Older,
            Some(_) => LostWriteProblem::Wrong,
        })
    }
}

/// The verdict on a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldVerdict {
    /// It is correct, or may be.
    Right,
    Lost(LostWriteProblem),
    /// No value could be called wrong.
    Unknown,
}

type RecordHistory = HashMap<Vec<u8>, HashMap<u32, FieldHistory>>;

/// The writes of all clients of a run. Memory is bounded: if there are many records, a sample is noted.
#[derive(Debug)]
pub struct AcknowledgedWrites {
    one_in: u64,
    fields: u32,
    expected: Option<ExpectedValues>,
    /// The order of beginnings and answers of writes, as seen by the clients.
    tick: AtomicU64,
    noted: AtomicU64,
    acknowledged: AtomicU64,
    left_out: AtomicU64,
    parts: Vec<Mutex<RecordHistory>>,
}

/// The limits of reading back.
#[derive(Clone, Copy, Debug)]
pub struct ReadBack<'a> {
    /// Records not read by then are left out. The last answers may take an additional client timeout.
    pub limit: Duration,
    /// Ends it early.
    pub stop: &'a AtomicBool,
}

impl AcknowledgedWrites {
    /// For a run of this workload, with nothing noted yet.
    pub fn for_workload(workload: &CoreWorkload) -> AcknowledgedWrites {
        AcknowledgedWrites {
            one_in: workload.record_count.div_ceil(MAX_NOTED).max(1),
            fields: workload.field_count,
            expected: workload.data_integrity.then(|| ExpectedValues::from_workload(workload)),
            tick: AtomicU64::new(0),
            noted: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
        }
    }

    /// A client whose writes are noted.
    pub fn noted(self: &Arc<Self>, client: Box<dyn Client>) -> Box<dyn Client> {
        Box::new(NotedClient { client, writes: Arc::clone(self) })
    }

    fn tick(&self) -> u64 {
        self.tick.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The part that contains a record of the sample.
    fn part(&self, key: &[u8]) -> Option<&Mutex<RecordHistory>> {
        let hash = hash(key);
        hash.is_multiple_of(self.one_in).then(|| &self.parts[(hash / self.one_in) as usize % PARTS])
    }

    /// Notes a write that is about to be sent. `None` if it is not in the sample.
    fn begin(&self, key: &[u8], digests: &[(u32, ValueDigest)]) -> Option<u64> {
        let mut records = self.part(key)?.lock();
        if !records.contains_key(key) {
            // Inserts have grown the sample to twice its usual limit: it is large enough.
            if self.noted.load(Ordering::Relaxed) >= 2 * MAX_NOTED {
                self.left_out.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            self.noted.fetch_add(1, Ordering::Relaxed);
        }
        let begun = self.tick();
        let record = records.entry(key.to_vec()).or_default();
        for &(field, digest) in digests {
            record.entry(field).or_default().begin(digest, begun);
        }
        Some(begun)
    }

    fn ended(&self, key: &[u8], begun: u64, answer: &Result<OperationOutcome, ClientError>) {
        let Some(part) = self.part(key) else { return };
        let mut records = part.lock();
        let now = self.tick();
        let fields = records.get_mut(key).into_iter().flat_map(HashMap::values_mut);
        for field in fields {
            match answer {
                Ok(OperationOutcome::Found) => field.answered(begun, now),
                Ok(OperationOutcome::Missing | OperationOutcome::Throttled) => field.refused(begun),
                Err(_) => {}
            }
        }
    }

    fn digests(values: &FieldValues) -> Vec<(u32, ValueDigest)> {
        values.iter().map(|(field, value)| (field, Some(hash(value)))).collect()
    }

    /// Reads every noted record over separate connections, and returns the ones that differ from their acknowledged
    /// state. No client may write meanwhile.
    pub fn read_back(
        &self,
        connect: &(dyn Fn(u32) -> Result<Box<dyn Client>, ClientError> + Sync),
        options: &ReadBack<'_>,
    ) -> ReadBackRecord {
        let records: Vec<(Vec<u8>, HashMap<u32, FieldHistory>)> =
            self.parts.iter().flat_map(|part| std::mem::take(&mut *part.lock())).collect();
        let reading = ReadBackShared {
            records: &records,
            expected: self.expected.as_ref(),
            next: AtomicUsize::new(0),
            silent: AtomicU64::new(0),
            deadline: Instant::now() + options.limit,
            stop: options.stop,
            found: Mutex::default(),
        };
        std::thread::scope(|scope| {
            for thread in 0..READERS {
                let reading = &reading;
                scope.spawn(move || reading.read(&|| connect(thread)));
            }
        });
        let found = reading.found.into_inner();
        let noted = records.len() as u64;
        let unchecked = noted - found.checked - found.unreadable - found.unjudged;
        let (acknowledged, left_out) =
            (self.acknowledged.load(Ordering::Relaxed), self.left_out.load(Ordering::Relaxed));
        let acknowledged = Some(acknowledged);
        ReadBackRecord { noted, one_in: self.one_in, unchecked, acknowledged, left_out, ..found }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// State shared by the threads that read back.
struct ReadBackShared<'a> {
    records: &'a [(Vec<u8>, HashMap<u32, FieldHistory>)],
    expected: Option<&'a ExpectedValues>,
    next: AtomicUsize,
    /// Records that could not be read since the last one that could.
    silent: AtomicU64,
    deadline: Instant,
    stop: &'a AtomicBool,
    found: Mutex<ReadBackRecord>,
}

impl ReadBackShared<'_> {
    fn read(&self, connect: &dyn Fn() -> Result<Box<dyn Client>, ClientError>) {
        let (mut client, mut values) = (None, FieldValues::default());
        while Instant::now() < self.deadline && !self.stop.load(Ordering::Relaxed) {
            let Some((key, fields)) = self.records.get(self.next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            if self.silent.load(Ordering::Relaxed) >= HOPELESS {
                self.found.lock().unreadable += 1;
                continue;
            }
            match self.read_one(&mut client, connect, key, &mut values) {
                Some(outcome) => {
                    self.silent.store(0, Ordering::Relaxed);
                    self.judge(key, fields, (outcome == OperationOutcome::Found).then_some(&values));
                }
                None => {
                    self.silent.fetch_add(1, Ordering::Relaxed);
                    self.found.lock().unreadable += 1;
                }
            }
        }
    }

    fn read_one(
        &self,
        client: &mut Option<Box<dyn Client>>,
        connect: &dyn Fn() -> Result<Box<dyn Client>, ClientError>,
        key: &[u8],
        values: &mut FieldValues,
    ) -> Option<OperationOutcome> {
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                if Instant::now() >= self.deadline || self.stop.load(Ordering::Relaxed) {
                    return None;
                }
                std::thread::sleep(PAUSE);
            }
            if client.is_none() {
                *client = connect().ok();
            }
            let Some(connected) = client.as_mut() else { continue };
            match connected.read(key, FieldSelection::All, values) {
                Ok(outcome @ (OperationOutcome::Found | OperationOutcome::Missing)) => return Some(outcome),
                Ok(OperationOutcome::Throttled) | Err(ClientError::System(_) | ClientError::Timeout(_)) => {}
                Err(ClientError::Lost(_)) => *client = None,
            }
        }
        None
    }

    /// `values` is `None` where there is no such record.
    fn judge(&self, key: &[u8], fields: &HashMap<u32, FieldHistory>, values: Option<&FieldValues>) {
        let is_sound = || {
            let verify = |(expected, values): (&ExpectedValues, &FieldValues)| {
                expected.verify(key, FieldSelection::All, values, &mut Vec::new()).is_ok()
            };
            self.expected.zip(values).is_some_and(verify)
        };
        let mut worst: Option<(LostWriteProblem, u32)> = None;
        let (mut is_judged, mut is_partly_unknown) = (false, false);
        for (&field, written) in fields {
            let value = values.and_then(|values| values.iter().find(|(number, _)| *number == field));
            match written.judge(value.map(|(_, value)| hash(value)), &is_sound) {
                // Values acknowledged after so many writes are not even noted.
                FieldVerdict::Unknown => is_partly_unknown |= written.may_be_anything,
                FieldVerdict::Right => is_judged = true,
                FieldVerdict::Lost(problem) => {
                    is_judged = true;
                    worst = worst.max(Some((problem, field)));
                }
            }
        }
        let mut found = self.found.lock();
        match is_judged && (worst.is_some() || !is_partly_unknown) {
            true => found.checked += 1,
            false => found.unjudged += 1,
        }
        let Some((problem, field)) = worst else { return };
        match problem {
            LostWriteProblem::Missing => found.missing += 1,
            LostWriteProblem::Older => found.older += 1,
            LostWriteProblem::Wrong => found.wrong += 1,
        }
        if found.examples.len() < EXAMPLES {
            let record = String::from_utf8_lossy(key).into_owned();
            found.examples.push(LostWrite { record, field, problem });
        }
    }
}

struct NotedClient {
    client: Box<dyn Client>,
    writes: Arc<AcknowledgedWrites>,
}

impl NotedClient {
    fn write(
        &mut self,
        key: &[u8],
        digests: &[(u32, ValueDigest)],
        write: impl FnOnce(&mut dyn Client) -> Result<OperationOutcome, ClientError>,
    ) -> Result<OperationOutcome, ClientError> {
        let begun = self.writes.begin(key, digests);
        let answer = write(self.client.as_mut());
        if matches!(answer, Ok(OperationOutcome::Found)) {
            self.writes.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(begun) = begun {
            self.writes.ended(key, begun, &answer);
        }
        answer
    }

    /// Of noted values only; hashing the others would waste time.
    fn digests(&self, key: &[u8], values: &FieldValues) -> Vec<(u32, ValueDigest)> {
        self.writes.part(key).map_or_else(Vec::new, |_| AcknowledgedWrites::digests(values))
    }
}

impl Client for NotedClient {
    fn read(
        &mut self,
        key: &[u8],
        fields: FieldSelection,
        values: &mut FieldValues,
    ) -> Result<OperationOutcome, ClientError> {
        self.client.read(key, fields, values)
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: FieldSelection,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        self.client.scan(start, limit, fields)
    }

    fn scan_records(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: FieldSelection,
        found: &mut FoundRecords,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        self.client.scan_records(start, limit, fields, found)
    }

    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        let digests = self.digests(key, values);
        self.write(key, &digests, |client| client.update(key, values))
    }

    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        let digests = self.digests(key, values);
        self.write(key, &digests, |client| client.insert(key, values))
    }

    fn delete(&mut self, key: &[u8]) -> Result<OperationOutcome, ClientError> {
        let digests: Vec<(u32, ValueDigest)> = (0..self.writes.fields).map(|field| (field, None)).collect();
        self.write(key, &digests, |client| client.delete(key))
    }

    fn wants_values(&self) -> bool {
        self.client.wants_values()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::run::memory_client::MemoryStore;

    const LIMIT: Duration = Duration::from_secs(60);

    fn values(text: &str) -> FieldValues {
        let mut values = FieldValues::default();
        values.push(0, text.as_bytes());
        values
    }

    fn read_back(writes: &AcknowledgedWrites, store: &MemoryStore) -> ReadBackRecord {
        let connect = |_| Ok(Box::new(store.client()) as Box<dyn Client>);
        writes.read_back(&connect, &ReadBack { limit: LIMIT, stop: &AtomicBool::new(false) })
    }

    /// A client that forgets, lies or fails on command.
    struct Unreliable {
        store: MemoryStore,
        /// The next write is acknowledged, or fails, but is not performed.
        drops: Option<Result<OperationOutcome, ClientError>>,
    }

    impl Client for Unreliable {
        fn read(
            &mut self,
            key: &[u8],
            fields: FieldSelection,
            values: &mut FieldValues,
        ) -> Result<OperationOutcome, ClientError> {
            self.store.client().read(key, fields, values)
        }
        fn scan(
            &mut self,
            start: &[u8],
            limit: u32,
            fields: FieldSelection,
        ) -> Result<(OperationOutcome, u32), ClientError> {
            self.store.client().scan(start, limit, fields)
        }
        fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
            self.drops.take().unwrap_or_else(|| self.store.client().update(key, values))
        }
        fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
            self.drops.take().unwrap_or_else(|| self.store.client().insert(key, values))
        }
        fn delete(&mut self, key: &[u8]) -> Result<OperationOutcome, ClientError> {
            self.store.client().delete(key)
        }
    }

    fn unreliable(
        writes: &Arc<AcknowledgedWrites>,
        store: &MemoryStore,
        drops: Option<Result<OperationOutcome, ClientError>>,
    ) -> Box<dyn Client> {
        writes.noted(Box::new(Unreliable { store: store.clone(), drops }))
    }

    #[test]
    fn lost_writes_are_found_and_unpromised_ignored() {
        let (store, writes) =
            (MemoryStore::new(), Arc::new(AcknowledgedWrites::for_workload(&CoreWorkload::new(100, 1, 9))));
        let sound = || unreliable(&writes, &store, None);
        let lying = || unreliable(&writes, &store, Some(Ok(OperationOutcome::Found)));
        let failing = || unreliable(&writes, &store, Some(Err(ClientError::System("no".to_owned()))));
        for key in ["kept", "older", "wrong", "deleted", "uncertain"] {
            sound().insert(key.as_bytes(), &values("first")).unwrap();
        }
        lying().insert(b"missing", &values("first")).unwrap();
        lying().update(b"older", &values("second")).unwrap();
        store.client().update(b"wrong", &values("by nobody")).unwrap();
        sound().delete(b"deleted").unwrap();
        failing().update(b"uncertain", &values("second")).unwrap_err();
        failing().insert(b"never", &values("first")).unwrap_err();
        let found = read_back(&writes, &store);
        // Nothing can be wrong about the record that was never acknowledged.
        assert_eq!((found.noted, found.one_in, found.checked, found.unjudged), (7, 1, 6, 1));
        assert_eq!((found.missing, found.older, found.wrong), (1, 1, 1), "{found:?}");
        let mut names: Vec<&str> = found.examples.iter().map(|lost| lost.record.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["missing", "older", "wrong"]);
        assert_eq!((found.unreadable, found.unchecked), (0, 0));
    }

    #[test]
    fn read_back_samples_and_gives_up_on_lost_system() {
        let workload = CoreWorkload::new(10 * MAX_NOTED, 1, 9);
        let writes = Arc::new(AcknowledgedWrites::for_workload(&workload));
        let store = MemoryStore::new();
        let mut client = unreliable(&writes, &store, None);
        for number in 0..1000 {
            client.insert(format!("user{number}").as_bytes(), &values("v")).unwrap();
        }
        let refuse = |_| Err(ClientError::Lost("gone".to_owned()));
        let found = writes.read_back(&refuse, &ReadBack { limit: LIMIT, stop: &AtomicBool::new(false) });
        assert_eq!(found.one_in, 10);
        assert!((50..200).contains(&found.noted), "{found:?}");
        assert_eq!((found.checked, found.unreadable), (0, found.noted));
        client.insert(b"user1", &values("v")).unwrap();
        let stopped = writes.read_back(&refuse, &ReadBack { limit: LIMIT, stop: &AtomicBool::new(true) });
        assert_eq!(stopped.unchecked, stopped.noted);
    }

    #[test]
    fn unverifiable_records_are_not_called_present() {
        let store = MemoryStore::new();
        let writes = Arc::new(AcknowledgedWrites::for_workload(&CoreWorkload::new(100, 1, 9)));
        let failing = |key: &[u8]| {
            let lost = Some(Err(ClientError::Timeout(LIMIT)));
            unreliable(&writes, &store, lost).update(key, &values("lost")).unwrap_err();
        };
        // A node was down for long, and each write failed. Then it was back, and they were acknowledged.
        for key in [b"hot", b"old"] {
            unreliable(&writes, &store, None).insert(key, &values("first")).unwrap();
            (0..=UNANSWERED_KEPT).for_each(|_| failing(key));
        }
        unreliable(&writes, &store, Some(Ok(OperationOutcome::Found)))
            .update(b"hot", &values("last"))
            .unwrap();
        store.client().delete(b"old").unwrap();
        failing(b"new");
        let found = read_back(&writes, &store);
        assert_eq!((found.noted, found.checked, found.unjudged, found.missing), (3, 1, 2, 1), "{found:?}");
    }

    proptest! {
        /// A store that keeps its promises loses nothing, with any writes in any order.
        #[test]
        fn sound_store_passes(steps in proptest::collection::vec((0u8..5, 0u8..4, any::<u8>()), 1..80)) {
            let (store, writes) = (MemoryStore::new(), Arc::new(AcknowledgedWrites::for_workload(&CoreWorkload::new(9, 1, 9))));
            let mut client = unreliable(&writes, &store, None);
            for (key, act, value) in steps {
                let (key, values) = ([key], values(&value.to_string()));
                match act {
                    0 => drop(client.insert(&key, &values)),
                    1 => drop(client.update(&key, &values)),
                    2 => drop(client.delete(&key)),
                    _ => {
                        let lost = Some(Err(ClientError::Timeout(LIMIT)));
                        let _ = unreliable(&writes, &store, lost).update(&key, &values);
                    }
                }
            }
            let found = read_back(&writes, &store);
            prop_assert_eq!((found.lost(), found.checked + found.unjudged), (0, found.noted), "{:?}", found);
        }

        /// Among concurrent writes, any may be the last; among consecutive ones, only the last.
        #[test]
        fn last_ordered_write_is_the_only_candidate(count in 1usize..300) {
            let mut field = FieldHistory::default();
            for number in 0..count as u64 {
                field.begin(Some(number), 2 * number + 1);
                field.answered(2 * number + 1, 2 * number + 2);
            }
            let last = count as u64 - 1;
            prop_assert_eq!(field.judge(Some(last), &|| false), FieldVerdict::Right);
            prop_assert_eq!(field.judge(None, &|| false), FieldVerdict::Lost(LostWriteProblem::Missing));
            if last > 0 {
                prop_assert_eq!(field.judge(Some(last - 1), &|| false), FieldVerdict::Lost(LostWriteProblem::Older));
            }
            prop_assert_eq!(field.judge(Some(u64::MAX), &|| false), FieldVerdict::Lost(LostWriteProblem::Wrong));
            prop_assert!(field.writes.len() <= 1 && field.replaced.len() <= REPLACED_KEPT);
        }
    }
}
