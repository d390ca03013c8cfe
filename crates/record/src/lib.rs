//! The record of a run: plain data that `study` writes, `report` reads and scripts may rely on.
//!
//! Every duration, rate and latency here is in *modelled* time: slow motion has been divided out already.
//! What was spent on this machine's clock says so in its name (`wall_s`).

pub mod cell;
pub mod certificate;
pub mod devices;
pub mod histogram;
pub mod interval_log;
pub mod job;
pub mod measured;
pub mod network;
pub mod run;
pub mod search;

pub use cell::{Cell, CellStatus, DirtyLimitRecord, MemoryRecord, RatePart, RunRecord, Scale, StorageRecord};
pub use certificate::{Certificate, Check, Verdict};
pub use devices::{
    DeviceActivity, DeviceDescription, DeviceSample, DeviceTotals, FaultRecord, LayerActivity, Wear,
};
pub use histogram::{Histogram, HistogramError, decoded_bytes};
pub use interval_log::IntervalLog;
pub use job::{DirectoryUse, JobRecord};
pub use measured::{
    Generator, IntegrityRecord, Latency, LatencySummary, Measured, OperationStats, SeriesPoint, SystemSample,
};
pub use network::NetworkRecord;
pub use run::{
    Claim, ClaimCheck, DevicePrice, Expectation, Figure, Machine, PlannedCell, ReferenceTable, Run,
};
pub use search::{SearchRecord, SearchStep};

/// Raised by one whenever a reader of the previous version would misread a record.
pub const SCHEMA_VERSION: u32 = 1;
