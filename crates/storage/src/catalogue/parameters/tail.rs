//! Stragglers as measured: a distribution that any medium may carry beside its model.

use serde::{Deserialize, Serialize};

use super::{ParameterEntry, ParameterField, SourcedDistribution};
use crate::catalogue::table::TableReader;

parameters! {
    /// Measured distributions of latency, in microseconds.
    TailDistributions
    numbers {}
    properties {}
    others {
        /// Absent: reads are as the model has them.
        read_us: {Option<SourcedDistribution>} in 0.0 to 1e9,
        write_us: {Option<SourcedDistribution>} in 0.0 to 1e9,
    }
}

/// The meaning of a tail's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TailMeasure {
    /// Time on top of the model's.
    Extra,
    /// The whole latency: a request takes it where the model would be done sooner.
    Total,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TailParameters {
    pub measure: TailMeasure,
    pub distributions: TailDistributions,
}

impl TailParameters {
    pub(in crate::catalogue) fn read(table: &mut TableReader<'_>) -> Option<Self> {
        let measure =
            table.choice("measure", &[("extra", TailMeasure::Extra), ("total", TailMeasure::Total)]);
        let distributions = TailDistributions::read(table);
        Some(TailParameters { measure: measure?, distributions: distributions? })
    }

    pub fn entries(&self) -> Vec<ParameterEntry<'_>> {
        let name = |read: bool| match (read, self.measure) {
            (true, TailMeasure::Extra) => "tail read extra_us",
            (true, TailMeasure::Total) => "tail read total_us",
            (false, TailMeasure::Extra) => "tail write extra_us",
            (false, TailMeasure::Total) => "tail write total_us",
        };
        let mut entries = Vec::new();
        entries.extend(self.distributions.read_us.as_ref().and_then(|read| read.entry(name(true))));
        entries.extend(self.distributions.write_us.as_ref().and_then(|write| write.entry(name(false))));
        entries
    }

    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.distributions.out_of_bounds();
        if self.distributions.read_us.is_none() && self.distributions.write_us.is_none() {
            problems.push("a tail needs `read_us`, `write_us` or both".into());
        }
        problems
    }
}
