//! Parameters of the network volume model: a link, and a medium at its other end.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ParameterEntry, ParameterField, SourcedDistribution, SourcedQuantity};
use crate::catalogue::table::{NumberRange, TableReader};
use crate::catalogue::{ModelParameters, TailParameters};

parameters! {
    /// The way to a device that is elsewhere. 1 MB is a million bytes.
    LinkParameters
    numbers {
        /// The link's bandwidth, each way on its own: writes go to the target, reads come from it.
        to_target_mb_s: All in 0.001 to 1000000.0,
        from_target_mb_s: All in 0.001 to 1000000.0,
        /// The size of a command or an answer besides its data, headers of all protocols included.
        message_bytes: Whole in 0.0 to 1e6,
        /// The work of sending and receiving one message, which the next must wait for.
        message_us: All in 0.0 to 1e6,
        /// Commands that may be in flight; more wait on this side.
        queue_depth: Whole in 1.0 to 65536.0,
        /// Each command's processing at the target; commands overlap in it.
        target_us: All in 0.0 to 1e6,
    }
    properties {}
    others {
        /// There and back for a message that finds the link idle; half of it each way, drawn each time.
        round_trip_us: {SourcedDistribution} in 0.0 to 1e8,
        /// Commands that the target can start in a second; no bound when absent.
        target_iops: {Option<SourcedQuantity>} in 1.0 to 1e9,
    }
}

/// The medium at the other end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemoteMedium {
    /// Its name in the catalogue; absent when it is described in place.
    pub name: Option<String>,
    /// That it is sold with; a network volume may be a part of it.
    pub capacity_bytes: f64,
    /// Of its own file; empty when it is described in place, with the sources around it.
    pub sources: BTreeMap<String, String>,
    pub model: ModelParameters,
    #[serde(default)]
    pub tail: Option<TailParameters>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkParameters {
    pub link: LinkParameters,
    pub inner: Box<RemoteMedium>,
}

impl NetworkParameters {
    pub fn entries(&self) -> Vec<ParameterEntry<'_>> {
        let mut entries = self.link.entries();
        // A medium of the catalogue lists its own, with its own sources.
        if self.inner.name.is_none() {
            entries.extend(self.inner.model.entries());
            entries.extend(self.inner.tail.iter().flat_map(TailParameters::entries));
        }
        entries
    }

    /// Everything that would make a model of these parameters meaningless; empty when all is well.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.link.out_of_bounds();
        if let ModelParameters::Network(_) = self.inner.model {
            problems.push("a network volume can't be behind another: state one link".into());
            return problems;
        }
        problems.extend(self.inner.model.problems());
        problems.extend(self.inner.tail.iter().flat_map(TailParameters::problems));
        problems
    }
}
