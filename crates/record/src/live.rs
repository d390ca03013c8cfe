//! A run's feed for live views: one entry a line, in JSON, appended to [`FEED_FILE`].
//!
//! Nothing in it is a finding: the records of the cells are. A reader may come and go at any time, and the run never
//! waits for one.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cell::{CellStatus, RunRecord, StorageRecord};
use crate::devices::{DeviceId, DeviceTotals};
use crate::disturbed_by::DisturbedBy;
use crate::latency_buckets::SparseBuckets;
use crate::node_event::NodeEventRecord;
use crate::parts::PartsRecord;
use crate::topology::TopologyRecord;

/// The feed, in the run's directory.
pub const FEED_FILE: &str = "feed.jsonl";
/// Its older part: when the feed has reached [`MAX_FEED_BYTES`], it gets this name in the place of the one before, and
/// a new one begins.
pub const EARLIER_FEED_FILE: &str = "feed.earlier.jsonl";
pub const MAX_FEED_BYTES: u64 = 16 << 20;
/// The longest line, with its newline: an entry that would be longer is left out.
pub const MAX_FEED_LINE_BYTES: usize = 256 << 10;
/// Raised whenever a reader of the previous version would misread an entry.
pub const FEED_VERSION: u32 = 1;

/// A line of the feed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FeedLine {
    /// Milliseconds of this host's clock since 1970.
    pub at_ms: u64,
    #[serde(flatten)]
    pub entry: FeedEntry,
}

/// A line's entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum FeedEntry {
    /// A process began the run, or went on with it; or the feed begins anew because the one before was full.
    Begun {
        version: u32,
        process: u32,
        /// When that process started, by the kernel's count: a number may come back, with this it is another process.
        process_start_ticks: u64,
    },
    /// A round through the cells begins: those before count for nothing unless they are on record.
    Planned {
        total: usize,
        finished: usize,
        /// By this machine's clock, as all `remaining_s`.
        remaining_s: f64,
    },
    /// Work that belongs to no single cell: `loading 440,000 records`.
    Doing {
        what: String,
    },
    /// A notice that the user should still see later.
    Notice {
        what: String,
    },
    CellStarted {
        /// In the run's plan, from 0.
        position: u32,
    },
    /// The things below the running cell, once its system has started.
    Ground {
        storage: Box<StorageRecord>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        topology: Option<TopologyRecord>,
        /// Absent from what an earlier version wrote.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parts: Option<PartsRecord>,
        /// Where its processes keep their logs and what else is not data.
        scratch: String,
    },
    CellEnded(CellEnd),
    Sample(Box<LiveSample>),
    /// A node went away or came back: the record of it as it is by now. `index` tells which of the cell's it is.
    Node {
        index: usize,
        event: Box<NodeEventRecord>,
    },
    /// Something was done to a device on command, or is over.
    Fault {
        device: DeviceId,
        what: String,
        began: bool,
    },
    /// The run is to be stopped, on command.
    Asked {
        what: String,
    },
    /// The cell at this place of the plan is to be skipped, on command. [`CellEnd`] reports its end.
    SkipAsked {
        /// In the run's plan, from 0.
        position: u32,
    },
    Ended {
        completed: usize,
        failed: usize,
        unavailable: usize,
        /// Absent from what an earlier version wrote.
        #[serde(default)]
        skipped: usize,
        left: usize,
        /// Why the run could not go on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    },
}

/// How a cell ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CellEnd {
    pub position: u32,
    pub state: CellState,
    /// Why, where it has no figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// 0 where it was skipped before it began.
    pub wall_s: f64,
    pub remaining_s: f64,
}

/// A cell's state while its run goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CellState {
    #[default]
    Planned,
    Running,
    Completed,
    /// Completed, and its certificate is doubtful.
    Doubtful,
    /// Completed, and something was done to it on purpose.
    Disturbed,
    Failed,
    Unavailable,
    /// By the user.
    Skipped,
    /// It has a record that can't be used. No feed says so: it is found by reading the records.
    Unreadable,
}

impl CellState {
    pub const ALL: [CellState; 9] = [
        CellState::Planned,
        CellState::Running,
        CellState::Completed,
        CellState::Doubtful,
        CellState::Disturbed,
        CellState::Failed,
        CellState::Unavailable,
        CellState::Skipped,
        CellState::Unreadable,
    ];

    /// The state that a record says its cell is in. Disturbances by hand go before doubts, and those before the study's
    /// own disturbances.
    pub fn from_record(record: &RunRecord) -> CellState {
        match &record.status {
            CellStatus::Completed => match record.disturbed_by() {
                Some(DisturbedBy::Hand) => CellState::Disturbed,
                _ if record.is_doubtful() => CellState::Doubtful,
                Some(DisturbedBy::Study) => CellState::Disturbed,
                None => CellState::Completed,
            },
            CellStatus::Failed { .. } => CellState::Failed,
            CellStatus::Unavailable { .. } => CellState::Unavailable,
            CellStatus::Skipped { .. } => CellState::Skipped,
        }
    }

    /// Whether the cell has ended. One whose record can't be used is measured again by `--resume`.
    pub fn has_ended(self) -> bool {
        !matches!(self, CellState::Planned | CellState::Running | CellState::Unreadable)
    }

    /// Whether the cell has figures, sound or not.
    pub fn is_measured(self) -> bool {
        matches!(self, CellState::Completed | CellState::Doubtful | CellState::Disturbed)
    }

    /// As queries have it: one word.
    pub fn key(self) -> &'static str {
        match self {
            CellState::Planned => "planned",
            CellState::Running => "running",
            CellState::Completed => "done",
            CellState::Doubtful => "doubtful",
            CellState::Disturbed => "disturbed",
            CellState::Failed => "failed",
            CellState::Unavailable => "cannot_run",
            CellState::Skipped => "skipped",
            CellState::Unreadable => "unreadable",
        }
    }

    /// As people read it: `cannot run here`.
    pub fn word(self) -> &'static str {
        match self {
            CellState::Planned => "planned",
            CellState::Running => "running",
            CellState::Completed => "done",
            CellState::Doubtful => "doubtful",
            CellState::Disturbed => "disturbed",
            CellState::Failed => "failed",
            CellState::Unavailable => "cannot run here",
            CellState::Skipped => "skipped",
            CellState::Unreadable => "unreadable",
        }
    }
}

/// A run's activity at a moment. Rates and latencies are in modelled time and of the last second or so.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LiveSample {
    /// The cell that runs; absent between cells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// `warming up`, `measuring`, `loading` ...; of a batch job `map`, `reduce`.
    pub phase: String,
    /// The measurement has not begun: data are loaded or caches filled, and devices may take no modelled time. Its
    /// rates compare with nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preparing: bool,
    /// 0 to 1, of this phase; absent where it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    /// The progress that a benchmark command printed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figure: Option<LiveFigure>,
    /// The clients' figures; absent where no load generator of ours runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<LiveLoad>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<LiveDevice>,
    /// Counters of layers since the measurement began, and their state: by the kind of the layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<crate::devices::LayerActivity>,
    /// The system's own gauges.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gauges: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<LiveBudget>,
    /// The share of a core that writing the feed took, over half a second or more; absent until that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_share: Option<f64>,
}

/// A figure of a benchmark command, as the command prints its progress.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LiveFigure {
    pub name: String,
    /// `tps`, `ms`; as the study has it.
    pub unit: String,
    /// In modelled time, if the study says how the figure follows it.
    pub value: f64,
}

/// The load generator at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LiveLoad {
    pub throughput_per_s: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Since the phase's load began.
    pub errors: u64,
}

/// A device at a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LiveDevice {
    #[serde(flatten)]
    pub id: DeviceId,
    pub read_iops: f64,
    pub write_iops: f64,
    pub read_bytes_per_s: f64,
    pub write_bytes_per_s: f64,
    pub queue_depth: f64,
    /// 0 to 1.
    pub busy: f64,
    /// The mean that the model asked for; absent on real storage, and where nothing was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled_us: Option<f64>,
    /// The mean from arrival to reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_us: Option<f64>,
    /// Quantiles of the same, within 6 %; absent where means are, and where the device only counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled_p50_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled_p99_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_p50_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_p99_us: Option<f64>,
    /// Its injected faults.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
    /// Its state in the pool while it is not in normal use: `out of use`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// The system's use of its budgets, all servers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LiveBudget {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    pub memory_budget_bytes: u64,
    /// CPUs' worth of time since the sample before, by this machine's clock; absent in the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_used: Option<f64>,
    /// Absent where nothing holds it to any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_budget: Option<f64>,
    /// The share of the quota's periods since the sample before in which it had to wait for the next one; absent where
    /// nothing holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_throttled_share: Option<f64>,
}

/// The reports of a process that is no run: a load from several hosts, or a worker that takes part in one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LiveService {
    /// `load`, `worker`.
    pub kind: String,
    /// `run of cassandra, mix b, 64 threads`.
    pub what: String,
    /// `running`, `waits for a coordinator`.
    pub state: String,
    /// One a second while there is a load, the oldest first.
    pub moments: Vec<ServiceMoment>,
}

/// A load at a moment, as its clients see it: in this machine's time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceMoment {
    /// Milliseconds of this host's clock since 1970.
    pub at_ms: u64,
    pub load: LiveLoad,
    /// Answered since the load began.
    pub operations: u64,
    /// Of a load from several hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<LiveWorker>,
}

/// A host's part of a load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LiveWorker {
    /// The address that the coordinator got.
    pub name: String,
    /// `running`, `done`, `failed`, `lost`.
    pub state: String,
    pub load: LiveLoad,
    pub operations: u64,
}

/// Running totals of a device: two of them make a [`LiveDevice`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceGlance {
    #[serde(flatten)]
    pub id: DeviceId,
    /// Since counting began, by the device's clock.
    pub since_s: f64,
    pub totals: DeviceTotals,
    pub depth: u32,
    pub answered: u64,
    /// Summed over what was answered; absent on real storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled_us: Option<f64>,
    pub delivered_us: f64,
    /// Each latency that was counted in those sums; empty where the device only counts.
    #[serde(default, skip_serializing_if = "SparseBuckets::is_empty")]
    pub modelled: SparseBuckets,
    #[serde(default, skip_serializing_if = "SparseBuckets::is_empty")]
    pub delivered: SparseBuckets,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
    /// As [`LiveDevice::state`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

impl DeviceGlance {
    /// The device between an earlier glance and this one. Counting may have begun anew meanwhile.
    pub fn delta_since(&self, earlier: Option<&DeviceGlance>) -> LiveDevice {
        let zero = DeviceGlance::default();
        let then = earlier.filter(|then| then.since_s <= self.since_s && then.answered <= self.answered);
        let then = then.unwrap_or(&zero);
        let span_s = self.since_s - then.since_s;
        let rate = |now: f64, then: f64| if span_s > 0.0 { ((now - then) / span_s).max(0.0) } else { 0.0 };
        let (now, previous) = (&self.totals, &then.totals);
        let answered = self.answered.saturating_sub(then.answered) as f64;
        let mean = |now: f64, then: f64| (answered > 0.0).then(|| ((now - then) / answered).max(0.0));
        let (modelled, delivered) =
            (self.modelled.delta_since(&then.modelled), self.delivered.delta_since(&then.delivered));
        LiveDevice {
            id: self.id.clone(),
            read_iops: rate(now.reads as f64, previous.reads as f64),
            write_iops: rate(now.writes as f64, previous.writes as f64),
            read_bytes_per_s: rate(now.read_bytes as f64, previous.read_bytes as f64),
            write_bytes_per_s: rate(now.write_bytes as f64, previous.write_bytes as f64),
            queue_depth: rate(now.queue_us, previous.queue_us) / 1e6,
            busy: (rate(now.busy_us, previous.busy_us) / 1e6).min(1.0),
            modelled_us: self.modelled_us.and_then(|us| mean(us, then.modelled_us.unwrap_or(0.0))),
            delivered_us: mean(self.delivered_us, then.delivered_us),
            modelled_p50_us: modelled.quantile_us(0.5),
            modelled_p99_us: modelled.quantile_us(0.99),
            delivered_p50_us: delivered.quantile_us(0.5),
            delivered_p99_us: delivered.quantile_us(0.99),
            faults: self.faults.clone(),
            state: self.state.clone(),
        }
    }
}

/// Reads a line of the feed. Unknown entries count as nothing: a later version may write them.
pub fn feed_line(line: &str) -> Option<FeedLine> {
    serde_json::from_str(line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_line_reads_back_and_noise_is_ignored() {
        let sample = LiveSample {
            position: Some(3),
            phase: "measuring".to_owned(),
            load: Some(LiveLoad { throughput_per_s: 1.5, ..LiveLoad::default() }),
            devices: vec![LiveDevice { id: DeviceId::new("ssd.0"), ..LiveDevice::default() }],
            ..LiveSample::default()
        };
        for entry in [
            FeedEntry::Begun { version: FEED_VERSION, process: 7, process_start_ticks: 9 },
            FeedEntry::Sample(Box::new(sample)),
            FeedEntry::CellEnded(CellEnd {
                position: 1,
                state: CellState::Skipped,
                reason: Some("by the user".to_owned()),
                wall_s: 1.0,
                remaining_s: 2.0,
            }),
        ] {
            let line = FeedLine { at_ms: 12, entry };
            let text = serde_json::to_string(&line).unwrap();
            assert_eq!(feed_line(&text), Some(line), "{text}");
        }
        for noise in ["", "{", "{\"at_ms\":1,\"kind\":\"of a later version\"}", "[]"] {
            assert_eq!(feed_line(noise), None, "{noise}");
        }
    }

    #[test]
    fn glance_difference_ignores_earlier_counts() {
        let glance = |since_s: f64, reads: u64, queue_us: f64| DeviceGlance {
            since_s,
            answered: reads,
            modelled_us: Some(reads as f64 * 100.0),
            delivered_us: reads as f64 * 150.0,
            totals: DeviceTotals { reads, queue_us, read_bytes: reads * 4096, ..DeviceTotals::default() },
            ..DeviceGlance::default()
        };
        let seen = glance(3.0, 500, 4e6).delta_since(Some(&glance(1.0, 100, 1e6)));
        assert_eq!((seen.read_iops, seen.read_bytes_per_s), (200.0, 819_200.0));
        assert_eq!((seen.queue_depth, seen.modelled_us, seen.delivered_us), (1.5, Some(100.0), Some(150.0)));
        // A measurement began meanwhile, and with it the counting.
        let anew = glance(0.5, 50, 0.0).delta_since(Some(&glance(9.0, 900, 1e6)));
        assert_eq!((anew.read_iops, anew.delivered_us), (100.0, Some(150.0)));
        assert_eq!(glance(0.0, 0, 0.0).delta_since(None).delivered_us, None);
    }
}
