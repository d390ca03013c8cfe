//! An operation's demands on the machine, independent of the storage configuration: the portable part of a measurement.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The mean demands of a mix's operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MixDemand {
    /// Their shares add up to 1.
    pub classes: Vec<OperationClass>,
    pub background: BackgroundDemand,
    /// Bytes that a group commit writes before its flush; absent where no operation waits for a flush.
    pub commit_bytes: Option<f64>,
}

/// One kind of operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OperationClass {
    /// Its name in records: `read`, `update`.
    pub name: String,
    /// The share of all operations, 0 to 1.
    pub share: f64,
    /// CPU time of one core in modelled microseconds, background work included.
    pub cpu_us: f64,
    /// Consecutive device reads: each waits for the previous one.
    pub reads: f64,
    pub read_bytes: f64,
    /// Whether the reads of all its operations follow one another on the device; otherwise they are anywhere.
    pub is_sequential: bool,
    /// Whether it changes data, and so leaves work for the background.
    pub writes: bool,
    /// Whether it is answered only after a flush, which it shares with all operations waiting at that time.
    pub commits: bool,
}

/// The background work that a write leaves: flushes of memtables, compaction, write-back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BackgroundDemand {
    pub read_bytes: f64,
    pub read_request_bytes: f64,
    pub write_bytes: f64,
    pub write_request_bytes: f64,
    /// Flushes that no operation waits for.
    pub flushes: f64,
}

impl MixDemand {
    /// CPU time of an operation of the mix, in microseconds.
    pub fn cpu_us(&self) -> f64 {
        self.mean(|class| class.cpu_us)
    }

    /// Reads that an operation of the mix waits for.
    pub fn reads(&self) -> f64 {
        self.mean(|class| class.reads)
    }

    /// The share of operations that write.
    pub fn writing_share(&self) -> f64 {
        self.mean(|class| f64::from(u8::from(class.writes)))
    }

    fn mean(&self, figure: impl Fn(&OperationClass) -> f64) -> f64 {
        self.classes.iter().map(|class| class.share * figure(class)).sum()
    }

    /// The same with every class's reads multiplied.
    #[must_use]
    pub fn with_reads_times(&self, factor: f64) -> MixDemand {
        let mut changed = self.clone();
        changed.classes.iter_mut().for_each(|class| class.reads *= factor);
        changed
    }
}
