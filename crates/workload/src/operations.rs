//! One thread's operations: what comes next, with its key and values prepared in buffers that are reused.

use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::client::{Client, ClientError, FieldValues, Fields, Outcome};
use crate::distribution::{
    Counter, Exponential, Hotspot, KeyChooser, KeyRange, Latest, RequestDistribution, ScrambledZipfian,
    Sequential, Uniform,
};
use crate::insert_sequence::InsertSequence;
use crate::integrity::{self, Expected};
use crate::mix::{Mix, MixKind, OperationChooser, OperationKind};
use crate::values::{self, LengthChooser, WordStream};
use crate::workload::Workload;

/// A keyspace that grows is foreseen up to this many times the records that are there: beyond it, most draws would
/// hit nothing and be repeated.
const MOST_FORESEEN_GROWTH: u64 = 4;

/// What the threads of a run share.
#[derive(Debug)]
pub(crate) struct SharedOperations {
    workload: Arc<Workload>,
    mix: Mix,
    range: KeyRange,
    inserts: InsertSequence,
    /// Load and delete: the records not visited yet.
    unvisited: Option<Counter>,
    /// Operations that the run may still start.
    budget: Option<Counter>,
    sequential: Arc<Sequential>,
    operation_limit: Option<u64>,
}

impl SharedOperations {
    /// # Errors
    /// When the workload has no records to ask for.
    pub fn new(
        workload: Arc<Workload>,
        mix: Mix,
        threads: u32,
        operation_limit: Option<u64>,
    ) -> Result<Self, String> {
        let range = workload.key_range()?;
        let unvisited = mix.visits_every_record().then(|| Counter::new(range.first(), range.last() + 1));
        Ok(SharedOperations {
            range,
            inserts: InsertSequence::new(workload.record_count, threads),
            unvisited,
            budget: operation_limit.map(|limit| Counter::new(0, limit)),
            sequential: Arc::new(Sequential::new(range)),
            operation_limit,
            workload,
            mix,
        })
    }

    /// Takes the right to start one more operation; for load and delete it is a record's number.
    fn take(&self) -> Option<Option<u64>> {
        if let Some(budget) = &self.budget {
            budget.take()?;
        }
        match &self.unvisited {
            Some(unvisited) => unvisited.take().map(Some),
            None => Some(None),
        }
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

    /// The records and those expected to be added: popular keys are to stay the same while records are added.
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
        let growth = growth.min(count.saturating_mul(MOST_FORESEEN_GROWTH));
        KeyRange::new(self.range.first(), count.saturating_add(growth).saturating_add(1))
            .unwrap_or(self.range)
    }
}

/// One thread's source of operations.
pub(crate) struct OperationSource<'a> {
    shared: &'a SharedOperations,
    thread: u32,
    rng: Pcg64Mcg,
    words: WordStream,
    kinds: Option<OperationChooser>,
    keys: KeyChooser,
    field_lengths: LengthChooser,
    scan_lengths: LengthChooser,
    expected: Option<Expected>,
    // The operation that was prepared last.
    kind: OperationKind,
    key: Vec<u8>,
    fields: Fields,
    values: FieldValues,
    scan_length: u32,
    inserting: bool,
    retries: u32,
    // What it read.
    found: FieldValues,
    scratch: Vec<u8>,
}

impl<'a> OperationSource<'a> {
    pub fn new(shared: &'a SharedOperations, thread: u32, seed: u64) -> Self {
        let workload = &shared.workload;
        let mut rng = Pcg64Mcg::seed_from_u64(values::mix(seed ^ values::mix(u64::from(thread) + 1)));
        let words = WordStream::new(rng.random());
        let kinds = match shared.mix.kind() {
            MixKind::Transactions(proportions) => Some(proportions.chooser()),
            MixKind::Load | MixKind::Delete => None,
        };
        OperationSource {
            shared,
            thread,
            words,
            kinds,
            keys: shared.key_chooser(),
            field_lengths: LengthChooser::of(workload.field_length),
            scan_lengths: workload.scan_lengths_for(&shared.mix),
            expected: workload.data_integrity.then(|| Expected {
                field_count: workload.field_count,
                field_bytes: workload.field_length.max_bytes(),
                compressibility: workload.compressibility,
            }),
            kind: OperationKind::Read,
            key: Vec::with_capacity(64),
            fields: Fields::All,
            values: FieldValues::default(),
            scan_length: 0,
            inserting: false,
            retries: 0,
            found: FieldValues::default(),
            scratch: Vec::new(),
            rng,
        }
    }

    /// Counts an operation that will never be sent, and says of what kind it would have been; `None` when there are no
    /// more.
    pub fn skip(&mut self) -> Option<OperationKind> {
        self.shared.take()?;
        Some(self.draw_kind())
    }

    fn draw_kind(&mut self) -> OperationKind {
        match (&self.kinds, self.shared.mix.kind()) {
            (Some(kinds), _) => kinds.choose(&mut self.rng),
            (None, MixKind::Delete) => OperationKind::Delete,
            (None, _) => OperationKind::Insert,
        }
    }

    /// Prepares the next operation before the clock is read; `None` when there are no more. [`Self::launch`] completes
    /// it.
    pub fn prepare(&mut self) -> Option<OperationKind> {
        let visited = self.shared.take()?;
        let workload = &self.shared.workload;
        self.kind = self.draw_kind();
        self.retries = 0;
        self.inserting = false;
        let number = match (visited, self.kind) {
            (Some(number), _) => {
                self.retries = if self.kind == OperationKind::Insert { workload.insert_retries } else { 0 };
                number
            }
            (None, OperationKind::Insert) => {
                self.inserting = true;
                return Some(self.kind);
            }
            (None, _) => self.keys.next(&mut self.rng, self.shared.inserts.last_acknowledged()),
        };
        workload.key_naming.write(number, &mut self.key);
        match self.kind {
            OperationKind::Read => self.fields = self.draw_fields(workload.read_all_fields),
            OperationKind::Scan => {
                self.fields = self.draw_fields(workload.read_all_fields);
                self.scan_length = self.scan_lengths.next(&mut self.rng);
            }
            OperationKind::Insert => self.draw_values(Fields::All),
            OperationKind::Update => {
                let written = self.draw_fields(workload.write_all_fields);
                self.draw_values(written);
            }
            OperationKind::ReadModifyWrite => {
                self.fields = self.draw_fields(workload.read_all_fields);
                let written = self.draw_fields(workload.write_all_fields);
                self.draw_values(written);
            }
            OperationKind::Delete => {}
        }
        Some(self.kind)
    }

    /// To be called when the prepared operation is due, just before it is sent. A record that is added gets its number
    /// here: taken any earlier, it would keep the records after it from being read while this one waits for its time.
    pub fn launch(&mut self) {
        if self.inserting {
            let number = self.shared.inserts.begin(self.thread);
            self.shared.workload.key_naming.write(number, &mut self.key);
            self.draw_values(Fields::All);
        }
    }

    fn draw_fields(&mut self, all: bool) -> Fields {
        if all {
            Fields::All
        } else {
            Fields::One(self.rng.random_range(0..self.shared.workload.field_count))
        }
    }

    fn draw_values(&mut self, fields: Fields) {
        self.values.clear();
        match fields {
            Fields::One(field) => self.draw_value(field),
            Fields::All => {
                for field in 0..self.shared.workload.field_count {
                    self.draw_value(field);
                }
            }
        }
    }

    fn draw_value(&mut self, field: u32) {
        let length = self.field_lengths.next(&mut self.rng) as usize;
        let value = self.values.push_zeroed(field, length);
        let compressibility = self.shared.workload.compressibility;
        match self.expected {
            Some(_) => integrity::fill(value, &self.key, field, self.words.next_word(), compressibility),
            None => values::fill(value, &mut self.words, compressibility),
        }
    }

    /// Sends the prepared operation and waits for the answer.
    pub fn execute(&mut self, client: &mut dyn Client) -> Result<Outcome, ClientError> {
        match self.kind {
            OperationKind::Read => client.read(&self.key, self.fields, &mut self.found),
            OperationKind::Scan => {
                client.scan(&self.key, self.scan_length, self.fields).map(|(outcome, _)| outcome)
            }
            OperationKind::Update => client.update(&self.key, &self.values),
            OperationKind::Delete => client.delete(&self.key),
            OperationKind::ReadModifyWrite => match client.read(&self.key, self.fields, &mut self.found)? {
                Outcome::Found => client.update(&self.key, &self.values),
                other => Ok(other),
            },
            OperationKind::Insert => loop {
                let answer = client.insert(&self.key, &self.values);
                let failed = matches!(
                    answer,
                    Err(ClientError::System(_) | ClientError::Timeout(_)) | Ok(Outcome::Throttled)
                );
                if !failed || self.retries == 0 {
                    return answer;
                }
                self.retries -= 1;
            },
        }
    }

    /// After the answer and outside the timing: lets an insert be read from now on, and checks what was read.
    ///
    /// # Errors
    /// What differs from what was written, in words.
    pub fn finish(&mut self, answer: &Result<Outcome, ClientError>) -> Result<(), String> {
        if self.inserting {
            self.shared.inserts.acknowledge(self.thread);
        }
        let read = matches!(self.kind, OperationKind::Read | OperationKind::ReadModifyWrite);
        match self.expected {
            Some(expected) if read && *answer == Ok(Outcome::Found) => {
                expected.verify(&self.key, self.fields, &self.found, &mut self.scratch)
            }
            _ => Ok(()),
        }
    }
}
