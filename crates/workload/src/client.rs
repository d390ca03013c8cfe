//! The operations that a workload sends to a data system. Systems implement them; the generator knows nothing else
//! about them.

/// The fields of a record that an operation accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldSelection {
    All,
    /// The field of this index.
    One(u32),
}

/// The outcome of an operation that the system answered. Expected outcomes are values, not errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationOutcome {
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

    /// The values, for changes in place.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let mut rest = self.bytes.as_mut_slice();
        // They are stored one after the other, in the order in which they were appended.
        self.entries.iter().map(move |&(_, start, end)| {
            let (value, others) = std::mem::take(&mut rest).split_at_mut(end - start);
            rest = others;
            value
        })
    }

    /// Assigns the first value to another field.
    pub(crate) fn rename_first(&mut self, field: u32) {
        if let Some(first) = self.entries.first_mut() {
            first.0 = field;
        }
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

/// Records that a scan returned, in order. One buffer, reused over operations.
#[derive(Clone, Debug, Default)]
pub struct FoundRecords {
    /// More than are in use, to keep their memory.
    records: Vec<(Vec<u8>, FieldValues)>,
    used: usize,
}

impl FoundRecords {
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Appends a record without fields, to be filled in.
    pub fn push(&mut self, key: &[u8]) -> &mut FieldValues {
        if self.used == self.records.len() {
            self.records.push(Default::default());
        }
        let (name, values) = &mut self.records[self.used];
        self.used += 1;
        name.clear();
        name.extend_from_slice(key);
        values.clear();
        values
    }

    /// The fields of the record that was appended last.
    pub fn last_mut(&mut self) -> Option<&mut FieldValues> {
        self.records[..self.used].last_mut().map(|(_, values)| values)
    }

    /// Each record's key and fields.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &FieldValues)> {
        self.records[..self.used].iter().map(|(key, values)| (key.as_slice(), values))
    }

    pub fn len(&self) -> usize {
        self.used
    }

    pub fn is_empty(&self) -> bool {
        self.used == 0
    }
}

/// The message about scans where they can't be checked.
pub const SCANS_ARE_NOT_CHECKED: &str = "this system counts what it scans without returning it: choose a mix without scans, or leave dataintegrity out";

/// One connection, used by one thread. Calls wait for the answer.
pub trait Client: Send {
    /// Reads a record's fields into `values`, which is cleared first.
    ///
    /// # Errors
    /// When the system fails, does not answer in time, or is no longer connected.
    fn read(
        &mut self,
        key: &[u8],
        fields: FieldSelection,
        values: &mut FieldValues,
    ) -> Result<OperationOutcome, ClientError>;

    /// Reads up to `limit` records in key order from `start` on, and returns their number.
    ///
    /// # Errors
    /// When the system fails, does not answer in time, or is no longer connected.
    fn scan(
        &mut self,
        start: &[u8],
        limit: u32,
        fields: FieldSelection,
    ) -> Result<(OperationOutcome, u32), ClientError>;

    /// Like [`scan`](Self::scan), and returns the records in `found`, which is cleared first. Used where values are
    /// checked; it may take longer.
    ///
    /// # Errors
    /// Also where a system can't return them: its scans can't be checked then.
    fn scan_records(
        &mut self,
        _start: &[u8],
        _limit: u32,
        _fields: FieldSelection,
        found: &mut FoundRecords,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        found.clear();
        Err(ClientError::System(SCANS_ARE_NOT_CHECKED.to_owned()))
    }

    /// Writes the given fields of a record, and leaves its others unchanged. A record that does not exist may be
    /// created (as YCSB's bindings do) or answered `Missing`.
    ///
    /// # Errors
    /// When the system fails, does not answer in time, or is no longer connected.
    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError>;

    /// Writes a whole record.
    ///
    /// # Errors
    /// When the system fails, does not answer in time, or is no longer connected.
    fn insert(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError>;

    /// Removes a record.
    ///
    /// # Errors
    /// When the system fails, does not answer in time, or is no longer connected.
    fn delete(&mut self, key: &[u8]) -> Result<OperationOutcome, ClientError>;

    /// Whether it looks at the values to be written. Creating them takes longer than everything else that an operation
    /// needs, so they are all left out for a client that does not.
    fn wants_values(&self) -> bool {
        true
    }
}
