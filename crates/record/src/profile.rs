//! What a system says of itself, for reports, which know no system.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The part of a system's profile that its run keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RecordedProfile {
    /// As people say it: `RocksDB`.
    pub title: String,
    /// It stores nothing of what is written, so memory and storage mean nothing to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_nothing: bool,
}
