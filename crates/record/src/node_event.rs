//! Nodes that went away while a cell was measured, and what clients noticed of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::node::{NodeExit, NodeRole};

/// A node that went away, and came back or not. All times are modelled seconds from the start of the measurement, as
/// they were and not as they were planned; they may lie after its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeEventRecord {
    /// As the study calls it; absent where it was done by hand (`underlay node`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// Which node was to go, as the study says it: `master of shard 1`.
    pub chosen: String,
    /// Which one it was; absent where none could be found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its role when it went down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<NodeRole>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
    pub how: NodeExit,
    /// When it was killed, or told to stop. 0 where that was before the measurement; absent where it did not go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub away_s: Option<f64>,
    /// When its process had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_s: Option<f64>,
    /// When Underlay asked it to start; absent where it stayed away, as are the next two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_s: Option<f64>,
    /// An event of the study sent it away, and somebody (`underlay node start`), not the event, started it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub started_by_hand: bool,
    /// When its process ran again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_back_s: Option<f64>,
    /// When it did its part again, as far as its system can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_s: Option<f64>,
    /// The problem with its stop or start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Absent for batch jobs, and where it did not go away within the measured time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<NodeEventEffect>,
}

impl NodeEventRecord {
    /// From the start command until it did its part.
    pub fn recovery_s(&self) -> Option<f64> {
        Some(self.served_s? - self.start_s?)
    }
}

/// The effect on clients. Intervals that are partly within belong to `during`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeEventEffect {
    /// From the start of the measurement, or since another node had come back; absent where that is less than an
    /// interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<NodePhase>,
    /// From the moment that it went until it did its part again, or the end.
    pub during: NodePhase,
    /// Until the end, or until another node went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<NodePhase>,
    /// The share of the throughput before that counts as failed over.
    pub failover_share: f64,
    /// From its going until throughput was back at that share; 0 where it never fell below. Absent where it did not
    /// come back, or there is nothing to compare with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failover_s: Option<f64>,
    /// The resolution of times: the length of an interval.
    pub interval_s: f64,
}

/// A part of the measured time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodePhase {
    pub from_s: f64,
    pub to_s: f64,
    /// Answered in it.
    pub operations: u64,
    /// Failed in it, or were refused.
    pub failed: u64,
    pub throughput_per_s: f64,
    pub mean_us: f64,
    pub p99_us: f64,
}
