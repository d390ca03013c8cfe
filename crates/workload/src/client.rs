//! What a workload asks of a data system. Systems implement it; the generator knows nothing else of them.

/// Which fields of a record an operation speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fields {
    All,
    /// The field of this index.
    One(u32),
}

/// How an operation ended that the system answered: the expected outcomes are values, not errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done; for a read, the record was there.
    Found,
    /// No such record.
    Missing,
    /// Refused because of load.
    Throttled,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The system answered with an error.
    #[error("{0}")]
    System(String),
    /// No answer in time.
    #[error("no answer within {0:?}")]
    Timeout(std::time::Duration),
    /// The connection is gone: no later operation of this client can succeed.
    #[error("the connection to the system is lost: {0}")]
    Lost(String),
}

/// The fields of one record, `index -> value`. One buffer, reused over operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldValues {
    bytes: Vec<u8>,
    /// (field, start, end) in `bytes`.
    entries: Vec<(u32, usize, usize)>,
}

impl FieldValues {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    pub fn push(&mut self, field: u32, value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.entries.push((field, start, self.bytes.len()));
    }

    /// Appends a field and gives its value to be filled in place.
    pub fn push_zeroed(&mut self, field: u32, length: usize) -> &mut [u8] {
        let start = self.bytes.len();
        self.bytes.resize(start + length, 0);
        self.entries.push((field, start, start + length));
        &mut self.bytes[start..]
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.entries.iter().map(|&(field, start, end)| (field, &self.bytes[start..end]))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// One connection, used by one thread. Calls wait for the answer.
pub trait Client: Send {
    /// Reads a record's fields into `values`, which is cleared first.
    fn read(&mut self, key: &[u8], fields: Fields, values: &mut FieldValues) -> Result<Outcome, ClientError>;

    /// Reads up to `limit` records in key order from `start` on, and says how many there were.
    fn scan(&mut self, start: &[u8], limit: u32, fields: Fields) -> Result<(Outcome, u32), ClientError>;

    /// Writes the given fields of a record, and leaves its others as they are. A record that is not there
    /// may be created (as YCSB's bindings do) or answered `Missing`.
    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<Outcome, ClientError>;

    /// Writes a whole record.
    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<Outcome, ClientError>;

    fn delete(&mut self, key: &[u8]) -> Result<Outcome, ClientError>;
}
