//! One thread's operations: the next one, with its key and values prepared in reusable buffers.
//!
//! Operations are drawn several at a time ([`crate::draw::draws`]). In a closed loop this also saves reading the clock
//! between the end of one operation and the start of the next. Values are created when their operation is next.

use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use underlay_record::WrongValue;

use crate::client::{Client, ClientError, FieldSelection, FieldValues, FoundRecords, OperationOutcome};
use crate::draw::distribution::{
    CounterDistribution, Exponential, Hotspot, KeyChooser, KeyRange, Latest, RequestDistribution,
    ScrambledZipfian, Sequential, Uniform,
};
use crate::draw::draws::{DrawnOperation, OperationDraws};
use crate::draw::insert_sequence::InsertSequence;
use crate::draw::integrity::ExpectedValues;
use crate::draw::values;
use crate::draw::written_values::WrittenValues;
use crate::mix::{OperationKind, OperationMix};
use crate::workload::CoreWorkload;

/// A growing keyspace is foreseen up to this many times the existing records. Beyond it, most draws would miss and be
/// repeated.
const MAX_FORESEEN_GROWTH: u64 = 4;
/// The largest number of operations drawn at once.
const MAX_AT_ONCE: u64 = 64;
/// Where the number of operations is limited, a thread takes at most this part of its share of the remaining ones. So
/// at the end no thread has many while others have none.
const PARTS_OF_A_SHARE: u64 = 8;

/// State shared by the threads of a run.
#[derive(Debug)]
pub(crate) struct SharedOperations {
    workload: Arc<CoreWorkload>,
    mix: OperationMix,
    range: KeyRange,
    inserts: InsertSequence,
    /// Load and delete: the records not visited yet.
    unvisited: Option<CounterDistribution>,
    /// Operations that the run may still start.
    budget: Option<CounterDistribution>,
    sequential: Arc<Sequential>,
    operation_limit: Option<u64>,
    threads: u32,
}

/// The right to start some operations.
struct OperationGrant {
    count: usize,
    /// Load and delete: the record to visit.
    number: Option<u64>,
}

impl SharedOperations {
    /// # Errors
    /// When the workload has no records to request.
    pub(crate) fn new(
        workload: Arc<CoreWorkload>,
        mix: OperationMix,
        threads: u32,
        operation_limit: Option<u64>,
    ) -> Result<Self, String> {
        let range = workload.key_range()?;
        let unvisited =
            mix.visits_every_record().then(|| CounterDistribution::new(range.first(), range.last() + 1));
        Ok(SharedOperations {
            range,
            inserts: InsertSequence::new(workload.record_count, threads),
            unvisited,
            budget: operation_limit.map(|limit| CounterDistribution::new(0, limit)),
            sequential: Arc::new(Sequential::new(range)),
            operation_limit,
            threads: threads.max(1),
            workload,
            mix,
        })
    }

    /// Takes the right to start up to `most` more operations; none when there are no more. Visited records are taken
    /// one by one, since a thread that loses its connection must not take others with it.
    fn take(&self, most: u64) -> OperationGrant {
        let mut count = most;
        if let Some(budget) = &self.budget {
            let share = budget.remaining() / u64::from(self.threads) / PARTS_OF_A_SHARE;
            let range = budget.take_some(share.clamp(1, most));
            count = range.end - range.start;
        }
        match &self.unvisited {
            Some(unvisited) if count > 0 => {
                let number = unvisited.take();
                OperationGrant { count: usize::from(number.is_some()), number }
            }
            _ => OperationGrant { count: count as usize, number: None },
        }
    }

    /// How many operations may be drawn at once. A draw that depends on added records must not come before they are
    /// added.
    fn most_at_once(&self) -> u64 {
        use RequestDistribution::{Hotspot, Sequential, Uniform};
        let distribution = self.workload.distribution_for(&self.mix);
        let is_settled = self.mix.share(OperationKind::Insert) == 0.0
            || matches!(distribution, Uniform | Hotspot | Sequential);
        if is_settled && self.unvisited.is_none() { MAX_AT_ONCE } else { 1 }
    }

    fn key_chooser(&self) -> KeyChooser {
        let workload = &self.workload;
        match workload.distribution_for(&self.mix) {
            RequestDistribution::Uniform => KeyChooser::Uniform(Uniform::new(self.range)),
            RequestDistribution::Zipfian => KeyChooser::Zipfian(ScrambledZipfian::new(self.foreseen_range())),
            RequestDistribution::Latest => KeyChooser::Latest(Latest::new(workload.record_count)),
            RequestDistribution::Hotspot => KeyChooser::Hotspot(Hotspot::new(
                self.range,
                workload.hot_data_fraction,
                workload.hot_operation_fraction,
            )),
            RequestDistribution::Exponential => KeyChooser::Exponential(Exponential::new(
                workload.exponential_percentile,
                workload.record_count as f64 * workload.exponential_fraction,
            )),
            RequestDistribution::Sequential => KeyChooser::Sequential(Arc::clone(&self.sequential)),
        }
    }

    /// The existing records and those expected to be added: popular keys should stay the same while records are added.
    ///
    /// As in YCSB, twice the inserts that the operation count promises, and one number above the last record. Where
    /// time ends the run, a tenth of the records is expected to be added.
    fn foreseen_range(&self) -> KeyRange {
        let share = self.mix.share(OperationKind::Insert);
        let count = self.range.count();
        let growth = match self.operation_limit.or(self.workload.operation_count) {
            _ if share == 0.0 => 0,
            Some(limit) => (limit as f64 * share * 2.0) as u64,
            None => count / 10,
        };
        let growth = growth.min(count.saturating_mul(MAX_FORESEEN_GROWTH));
        KeyRange::new(self.range.first(), count.saturating_add(growth).saturating_add(1))
            .unwrap_or(self.range)
    }
}

/// The operation that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextOperation {
    pub kind: OperationKind,
    /// It had been drawn: preparing it took almost no time, and launching it won't either.
    pub is_at_hand: bool,
}

/// The result of checking the records that one operation returned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VerifiedRecords {
    pub records: u32,
    pub mismatches: u32,
    pub first_mismatch: Option<WrongValue>,
}

/// One thread's source of operations.
pub(crate) struct OperationSource<'a> {
    shared: &'a SharedOperations,
    thread: u32,
    expected: Option<ExpectedValues>,
    makes_values: bool,
    most_at_once: u64,
    draws: OperationDraws,
    // The last prepared operation, its place among the draws, and its values.
    current: DrawnOperation,
    place: usize,
    written: WrittenValues,
    retries: u32,
    /// Draws pauses.
    rng: Pcg64Mcg,
    // What it read.
    found: FieldValues,
    scanned: FoundRecords,
    /// For a read-modify-write: when its read ended, if that found the record.
    read_end_ns: Option<u64>,
    scratch: Vec<u8>,
}

impl<'a> OperationSource<'a> {
    pub(crate) fn new(shared: &'a SharedOperations, thread: u32, seed: u64) -> Self {
        let workload = &shared.workload;
        let mut rng = Pcg64Mcg::seed_from_u64(values::mix(seed ^ values::mix(u64::from(thread) + 1)));
        let most_at_once = shared.most_at_once();
        // Inserts may exceed the foreseen records: their names take a little longer.
        let highest = shared.foreseen_range().last();
        let keys = shared.key_chooser();
        let written = WrittenValues::new(workload, &mut rng);
        let draws =
            OperationDraws::new(workload, &shared.mix, keys, highest, most_at_once as usize, &mut rng);
        OperationSource {
            shared,
            thread,
            expected: workload.data_integrity.then(|| ExpectedValues::from_workload(workload)),
            makes_values: true,
            most_at_once,
            draws,
            current: DrawnOperation::whole(OperationKind::Read, false),
            place: 0,
            written,
            retries: 0,
            rng,
            found: FieldValues::default(),
            scanned: FoundRecords::default(),
            read_end_ns: None,
            scratch: Vec::new(),
        }
    }

    /// Creates no values from now on, for a client that never looks at them. Checked values are created regardless.
    pub(crate) fn leave_out_values(&mut self) {
        self.makes_values = self.expected.is_some();
        self.draws.look_for_details(&self.shared.mix, self.makes_values);
    }

    /// Whether the values read are checked after each answer.
    pub(crate) fn checks_values(&self) -> bool {
        self.expected.is_some()
    }

    /// Whether the total number of operations of all threads is limited.
    pub(crate) fn is_limited(&self) -> bool {
        self.shared.budget.is_some() || self.shared.unvisited.is_some()
    }

    /// Counts an operation that will never be sent, and returns its kind; `None` when there are no more.
    pub(crate) fn skip(&mut self) -> Option<OperationKind> {
        match self.draws.take() {
            Some((_, drawn)) => Some(drawn.kind),
            None => (self.shared.take(1).count > 0).then(|| self.draws.kind()),
        }
    }

    /// Draws the next operations; false when there are no more.
    fn draw_more(&mut self) -> bool {
        let grant = self.shared.take(self.most_at_once);
        self.draws.refill(grant.count, grant.number, self.shared.inserts.last_acknowledged());
        grant.count > 0
    }

    /// Prepares the next operation before the clock is read; `None` when there are no more. [`Self::launch`] completes
    /// it.
    #[inline]
    pub(crate) fn prepare(&mut self) -> Option<NextOperation> {
        let mut is_at_hand = true;
        if self.draws.left() == 0 {
            if !self.draw_more() {
                return None;
            }
            is_at_hand = false;
        }
        (self.place, self.current) = self.draws.take()?;
        let kind = self.current.kind;
        if self.current.is_added {
            is_at_hand = false;
            self.retries = 0;
        } else {
            if self.makes_values
                && let Some(fields) = self.current.written
            {
                is_at_hand = false;
                self.written.make(fields, self.draws.name(self.place));
            }
            if kind == OperationKind::Insert {
                self.retries = self.shared.workload.insert_retries;
            }
        }
        Some(NextOperation { kind, is_at_hand })
    }

    /// Whether [`Self::take_prompt`] would return one.
    #[inline]
    pub(crate) fn has_prompt(&self) -> bool {
        self.draws.has_prompt()
    }

    /// Draws more if none are left, so that one is ready.
    #[inline]
    pub(crate) fn draw_ahead(&mut self) {
        if self.draws.left() == 0 {
            self.draw_more();
        }
    }

    /// Prepares the next operation if it has been drawn, needs no [`Self::launch`] and no [`Self::finish`], and has no
    /// parts.
    #[inline]
    pub(crate) fn take_prompt(&mut self) -> Option<OperationKind> {
        (self.place, self.current) = self.draws.take_prompt()?;
        Some(self.current.kind)
    }

    /// Must be called when the prepared operation is due, just before it is sent. A record to be added gets its number
    /// here: any earlier, it would keep later records from being read while this one waits for its time.
    #[inline]
    pub(crate) fn launch(&mut self) {
        if self.current.is_added {
            let number = self.shared.inserts.begin(self.thread);
            self.draws.set_number(self.place, number);
            if self.makes_values {
                self.written.make(FieldSelection::All, self.draws.name(self.place));
            }
        }
    }

    /// Sends the prepared operation and waits for the answer. The clock is read between the parts of an operation that
    /// has several.
    #[inline]
    pub(crate) fn execute(
        &mut self,
        client: &mut dyn Client,
        now_ns: impl FnOnce() -> u64,
    ) -> Result<OperationOutcome, ClientError> {
        let key = self.draws.name(self.place);
        let current = self.current;
        match current.kind {
            OperationKind::Read => client.read(key, current.fields, &mut self.found),
            OperationKind::Scan => {
                let (limit, fields) = (current.scan_length, current.fields);
                let scanned = match &self.expected {
                    None => client.scan(key, limit, fields),
                    Some(_) => client.scan_records(key, limit, fields, &mut self.scanned),
                };
                scanned.map(|(outcome, _)| outcome)
            }
            OperationKind::Update => client.update(key, self.written.values()),
            OperationKind::Delete => client.delete(key),
            OperationKind::ReadModifyWrite => {
                self.read_end_ns = None;
                match client.read(key, current.fields, &mut self.found)? {
                    OperationOutcome::Found => {
                        self.read_end_ns = Some(now_ns());
                        client.update(key, self.written.values())
                    }
                    other => Ok(other),
                }
            }
            OperationKind::Insert => client.insert(key, self.written.values()),
        }
    }

    /// Whether an insert with this answer must be sent again.
    #[inline]
    pub(crate) fn may_try_again(&self, answer: &Result<OperationOutcome, ClientError>) -> bool {
        // Not after a lost connection: the worker creates a new one, and the insert counts as failed.
        let failed = matches!(
            answer,
            Err(ClientError::System(_) | ClientError::Timeout(_)) | Ok(OperationOutcome::Throttled)
        );
        failed && self.retries > 0 && self.current.kind == OperationKind::Insert
    }

    /// Uses one more attempt, and returns how long to wait before it: about the interval, so that threads that failed
    /// together don't retry together.
    pub(crate) fn next_pause_ns(&mut self) -> u64 {
        self.retries = self.retries.saturating_sub(1);
        let interval_ns = self.shared.workload.insert_retry_interval.as_nanos() as f64;
        // YCSB's range.
        (interval_ns * self.rng.random_range(0.8..1.2)) as u64
    }

    /// When the read of the last read-modify-write ended; `None` if it found nothing.
    pub(crate) fn read_end_ns(&self) -> Option<u64> {
        self.read_end_ns
    }

    /// After the answer and outside the timing: makes an insert readable from now on.
    #[inline]
    pub(crate) fn finish(&mut self) {
        if self.current.is_added {
            self.shared.inserts.acknowledge(self.thread);
        }
    }

    /// After the answer and outside the timing: checks the values read, if requested.
    pub(crate) fn check(&mut self, answer: &Result<OperationOutcome, ClientError>) -> VerifiedRecords {
        let Some(expected) = &self.expected else { return VerifiedRecords::default() };
        let (fields, scratch) = (self.current.fields, &mut self.scratch);
        let mut checked = VerifiedRecords::default();
        let mut check = |key: &[u8], found: &FieldValues| {
            checked.records += 1;
            if let Err(mismatch) = expected.verify(key, fields, found, scratch) {
                checked.mismatches += 1;
                checked.first_mismatch.get_or_insert(mismatch);
            }
        };
        match (self.current.kind, answer) {
            (OperationKind::Read, Ok(OperationOutcome::Found)) => {
                check(self.draws.name(self.place), &self.found)
            }
            // The read counts even if the update failed.
            (OperationKind::ReadModifyWrite, _) if self.read_end_ns.is_some() => {
                check(self.draws.name(self.place), &self.found);
            }
            (OperationKind::Scan, Ok(OperationOutcome::Found)) => {
                self.scanned.iter().for_each(|(key, found)| check(key, found));
            }
            _ => {}
        }
        checked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NullClient;

    fn shared(mix: &str, threads: u32, limit: Option<u64>) -> SharedOperations {
        let workload = Arc::new(CoreWorkload::new(5_000, 4, 100));
        SharedOperations::new(workload, OperationMix::parse(mix).unwrap(), threads, limit).unwrap()
    }

    /// The next operations of a source: kind, key, fields read, scan length, and fields written.
    fn operations(source: &mut OperationSource<'_>, count: usize) -> Vec<String> {
        let mut shown = Vec::new();
        while shown.len() < count {
            let Some(NextOperation { kind, .. }) = source.prepare() else { break };
            source.launch();
            let key = String::from_utf8(source.draws.name(source.place).to_vec()).unwrap();
            let DrawnOperation { fields, scan_length, .. } = source.current;
            let written: Vec<u32> = match source.current.written {
                Some(_) => source.written.values().iter().map(|(field, _)| field).collect(),
                None => Vec::new(),
            };
            shown.push(format!("{kind} {key} {fields:?} {scan_length} {written:?}"));
            source.execute(&mut NullClient, || 0).unwrap();
            source.finish();
        }
        shown
    }

    #[test]
    fn batched_draws_equal_single_draws() {
        use RequestDistribution::{Uniform, Zipfian};
        // Neither repeated draws for a missing key (one key in 11) nor records that are added in between change
        // anything.
        for (mix, distribution) in [
            ("a", Zipfian),
            ("c", Zipfian),
            ("e", Uniform),
            ("e", Zipfian),
            ("f", Zipfian),
            ("load", Zipfian),
            ("delete", Zipfian),
        ] {
            let mut workload = CoreWorkload::new(10, 4, 100);
            workload.request_distribution = Some(distribution);
            workload.read_all_fields = false;
            let workload = Arc::new(workload);
            let shared = || {
                SharedOperations::new(Arc::clone(&workload), OperationMix::parse(mix).unwrap(), 1, None)
                    .unwrap()
            };
            let (together, one_by_one) = (shared(), shared());
            let mut fast = OperationSource::new(&together, 0, 9);
            let mut slow = OperationSource::new(&one_by_one, 0, 9);
            slow.most_at_once = 1;
            let shown = operations(&mut fast, 1_000);
            assert_eq!(shown, operations(&mut slow, 1_000), "{mix}");
            assert!(shown.len() == if matches!(mix, "load" | "delete") { 10 } else { 1_000 });
        }
    }

    #[test]
    fn draws_needing_added_records_wait_for_them() {
        assert_eq!(shared("a", 1, None).most_at_once(), MAX_AT_ONCE);
        // Both add records, which affect the draws of zipfian and latest.
        assert_eq!(shared("d", 1, None).most_at_once(), 1);
        assert_eq!(shared("e", 1, None).most_at_once(), 1);
        assert_eq!(shared("load", 1, None).most_at_once(), 1);
    }

    #[test]
    fn limit_is_reached_exactly_and_shared_fairly() {
        let shared = shared("c", 3, Some(10_000));
        let mut sources: Vec<_> = (0..3).map(|thread| OperationSource::new(&shared, thread, 1)).collect();
        let mut counts = [0u64; 3];
        // In turn, like threads of the same speed.
        for turn in 0..30_000 {
            counts[turn % 3] += u64::from(sources[turn % 3].prepare().is_some());
        }
        assert_eq!(counts.iter().sum::<u64>(), 10_000);
        assert!(counts.iter().all(|&count| count.abs_diff(3_333) <= 200), "{counts:?}");
    }

    #[test]
    fn skipped_operations_count_against_limit() {
        let shared = shared("c", 1, Some(100));
        let mut source = OperationSource::new(&shared, 0, 1);
        assert_eq!(operations(&mut source, 5).len(), 5);
        assert_eq!(std::iter::from_fn(|| source.skip()).count(), 95);
        assert_eq!((source.prepare(), source.skip()), (None, None));
    }

    #[test]
    fn values_are_omitted_for_indifferent_client() {
        let shared = shared("a", 1, None);
        let mut source = OperationSource::new(&shared, 0, 1);
        source.leave_out_values();
        let shown = operations(&mut source, 200);
        assert!(shown.iter().any(|one| one.starts_with("update")));
        assert!(shown.iter().all(|one| one.ends_with("[]")), "{shown:?}");
        let mut checked = CoreWorkload::new(100, 1, 100);
        checked.data_integrity = true;
        let shared =
            SharedOperations::new(Arc::new(checked), OperationMix::parse("a").unwrap(), 1, None).unwrap();
        let mut source = OperationSource::new(&shared, 0, 1);
        source.leave_out_values();
        assert!(
            operations(&mut source, 200).iter().any(|one| one.ends_with("[0]")),
            "checked values are made"
        );
    }
}
