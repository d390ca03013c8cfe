//! The fidelity certificate: what shows that a run measured what it claims.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CertificateVerdict {
    /// Every check passed.
    Faithful,
    /// A check failed: the figures are shown, marked.
    Doubtful,
    /// Nothing was modelled, so there is nothing to certify but the generator.
    RealStorage,
    /// Something was done to it on purpose while it ran: a device failed on command, a node was sent away. Its figures
    /// are of that, even if all checks passed.
    Disturbed,
}

impl CertificateVerdict {
    /// As people read it.
    pub fn describe(self) -> &'static str {
        match self {
            CertificateVerdict::Faithful => "faithful",
            CertificateVerdict::Doubtful => "doubtful",
            CertificateVerdict::RealStorage => "real storage",
            CertificateVerdict::Disturbed => "disturbed",
        }
    }
}

/// The name of the check whether the workload used the storage under test at all. Where it failed, nothing follows
/// about any storage.
pub const STORAGE_USED: &str = "storage used";

/// One thing that was checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// `device latency p50`, `generator headroom` ...
    pub name: String,
    pub passed: bool,
    /// The measured value and its limit, in words with units.
    pub finding: String,
    /// How bad that is, to be compared with the same check of other cells: the larger, the worse. Absent where one
    /// failure is as bad as another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extent: Option<f64>,
    /// The remedy when it did not pass.
    pub remedy: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Certificate {
    pub verdict: CertificateVerdict,
    pub checks: Vec<Check>,
    /// Over all devices of the cell, in modelled time: what the models asked for ...
    pub modelled_p50_us: Option<f64>,
    pub modelled_p99_us: Option<f64>,
    /// ... and what the program got.
    pub delivered_p50_us: Option<f64>,
    pub delivered_p99_us: Option<f64>,
    /// The smallest latency that this machine can model at this scale, in modelled time.
    pub floor_us: Option<f64>,
    /// Share of the wall clock that the hypervisor took from this machine while measuring.
    pub steal_share: f64,
}

impl Certificate {
    /// The checks that did not pass.
    pub fn failed(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| !check.passed)
    }

    /// Whether a check failed, also where the verdict is about something else.
    pub fn is_doubtful(&self) -> bool {
        self.verdict == CertificateVerdict::Doubtful || self.failed().next().is_some()
    }
}
