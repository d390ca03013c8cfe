//! The record of a run: plain data that `study` writes, `report` reads and scripts may rely on.
//!
//! Every duration, rate and latency here is in *modelled* time: slow motion has been divided out already. Times on this
//! machine's clock have it in their names (`wall_s`).

#![cfg_attr(not(test), warn(clippy::disallowed_types))]

pub mod benchmark;
pub mod cache;
pub mod cell;
pub mod certificate;
pub mod cpu;
pub mod devices;
pub mod disturbance;
mod disturbed_by;
pub mod duration;
pub mod explained;
pub mod exposition;
pub mod frontier;
pub mod histogram;
pub mod inputs;
mod integrity;
pub mod interval_log;
pub mod job;
mod label;
pub mod latency_buckets;
pub mod live;
pub mod machine;
pub mod measured;
pub mod metric;
pub mod metric_row;
pub mod network;
pub mod node;
pub mod node_event;
pub mod parts;
pub mod path;
pub mod pauses;
pub mod price;
pub mod profile;
pub mod read;
pub mod read_back;
pub mod run;
pub mod search;
pub mod soundness;
pub mod statistics;
pub mod steadiness;
pub mod topology;
pub mod wall;

pub use benchmark::{
    BenchmarkFigure, BenchmarkMark, BenchmarkRecord, BetterDirection, FigureSample, MetricDilation,
    usual_unit,
};
pub use cache::{CacheUse, GatewayClusterStatus, GatewayFailing, GatewayPrefix, GatewayStatus};
pub use cell::{
    BenchmarkWork, Cell, CellLabels, CellStatus, DeviceArrangement, DirtyLimitRecord, JobWork, MemoryRecord,
    OfferedRate, RatePart, RecordedWork, RequestWork, RunRecord, ScaleFactors, StorageRecord,
};
pub use certificate::{Certificate, CertificateVerdict, Check, CheckId, certificate_metrics};
pub use cpu::{ChosenBy, CpuRecord, GivenUp, SlowMotion, cpus_in_words};
pub use devices::{
    DeviceActivity, DeviceDescription, DeviceId, DeviceSample, DeviceTotals, EarlierFault, FaultRecord,
    FlashWear, LayerActivity,
};
pub use disturbance::Disturbance;
pub use disturbed_by::DisturbedBy;
pub use duration::latency_in_words;
pub use explained::{
    CellExplanation, EstimatedValue, NotExplained, RunExplanation, TimeAccount, TimeShares, WhatIf,
};
pub use histogram::{Histogram, HistogramError, LatencySummary, decoded_bytes};
pub use inputs::{CoveredShare, DeviceInputs, EstimateShare, InputCertificate, InputVerdict, UnknownInput};
pub use integrity::{IntegrityRecord, WrongValue, WrongValueProblem};
pub use interval_log::IntervalLog;
pub use job::{DirectoryUse, JobRecord, StageRecord, StoreRequests, TaskTime};
pub use label::thousands_apart;
pub use latency_buckets::{LatencyBuckets, SparseBuckets};
pub use live::{
    CellEnd, CellState, DeviceGlance, FeedEntry, FeedLine, LiveBudget, LiveDevice, LiveFigure, LiveLoad,
    LiveSample, LiveService, LiveWorker, ServiceMoment,
};
pub use machine::MachineRecord;
pub use measured::{
    BesideMeasured, GeneratorCost, MeasuredWindow, OperationStats, RecordedLatency, SeriesPoint, SystemSample,
};
pub use metric::PublishedMetric;
pub use metric_row::{MetricDescription, MetricRow};
pub use network::NetworkRecord;
pub use node::{NodeChoice, NodeCondition, NodeExit, NodeRole, NodeShard, NodeState, NotANode};
pub use node_event::{NodeEventEffect, NodeEventRecord, NodePhase};
pub use parts::{DirectoryPart, KeptPart, PartsRecord, ServerPart};
pub use path::{PathRecord, PathWait};
pub use pauses::{PauseRecord, Pauses, StoppedProcess};
pub use price::{PriceSum, RENT_YEARS};
pub use profile::RecordedProfile;
pub use read::ReadError;
pub use read_back::{LostWrite, LostWriteProblem, ReadBackRecord};
pub use run::{
    CellLimit, ClaimCheck, ClaimExpectation, DevicePrice, PlannedCell, PublishedClaim, PublishedFigure,
    ReferenceTable, RunHeader, ShortenedAmount,
};
pub use search::{SearchRecord, SearchStep};
pub use soundness::UnsoundReason;
pub use steadiness::{UnsteadyReason, WarmUp};
pub use topology::{CopyRecord, ShardRecord, TopologyRecord};
pub use wall::{WallParts, WallRecord};

/// Raised by one whenever a reader of the previous version would misread a record.
pub const SCHEMA_VERSION: u32 = 2;
