//! The machine that measured a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachineRecord {
    pub hostname: String,
    pub cores: u32,
    pub memory_bytes: u64,
    pub cpu: String,
    pub kernel: String,
    pub distribution: String,
    /// `kvm`, `none` ... where it is known.
    pub virtualisation: Option<String>,
    /// How long its CPUs could take to wake up, at most: the limit (PM QoS) that the run set. Absent where it set none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_up_limit_us: Option<u32>,
}
