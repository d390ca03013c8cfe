//! Who disturbed a cell: devices, nodes and the verdict all say it in the same words.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who did something to a running cell. A disturbance by hand weighs more than one that the study asks for in every
/// repetition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DisturbedBy {
    /// A `[fault]` or an `[event]` of the study.
    Study,
    /// From the console or a command line, or through a control socket.
    #[default]
    Hand,
}

impl DisturbedBy {
    /// `by hand`
    pub fn describe(self) -> &'static str {
        match self {
            DisturbedBy::Study => "by the study",
            DisturbedBy::Hand => "by hand",
        }
    }

    /// For serde: what is not said was done by hand.
    pub fn is_hand(&self) -> bool {
        *self == DisturbedBy::Hand
    }
}
