//! Parameters of the persistent memory model.

use serde::{Deserialize, Serialize};

use super::{
    ParameterEntry, ParameterField, SourcedCurve, SourcedDistribution, SourcedProperty, SourcedQuantity,
};
use crate::catalogue::table::{NumberRange, TableReader};

parameters! {
    /// Persistent memory behind the block layer: requests are copied by the processor that asks, at the memory's
    /// bandwidth. 1 MB is a million bytes.
    PmemParameters
    numbers {
        /// The memory reads and writes whole pieces of this size.
        granule_bytes: Whole in 64.0 to 65536.0,
        /// The kernel's way to the memory and back; requests overlap in it.
        command_us: All in 0.0 to 1000.0,
        /// At which writes enter the write queue, where they are safe.
        copy_mb_s: All in 1.0 to 1000000.0,
        /// The bytes that memory controllers and modules take in before a writer notices the medium.
        write_queue_bytes: Whole in 0.0 to 1e9,
        /// A store fence, when nothing must be waited for.
        flush_us: All in 0.0 to 1e6,
    }
    properties {
        /// The platform saves the write queue when power fails (ADR), so that a flush need not wait for it.
        write_queue_is_persistent,
    }
    others {
        /// To the first byte.
        read_latency_us: {SourcedDistribution} in 0.0 to 10000.0,
        write_latency_us: {SourcedDistribution} in 0.0 to 10000.0,
        /// Bandwidth over all requests by the number of them that are in flight.
        read_mb_s_by_requests: {SourcedCurve} in 1.0 to 1000000.0,
        write_mb_s_by_requests: {SourcedCurve} in 1.0 to 1000000.0,
    }
}

impl PmemParameters {
    /// Everything that would make a model of these parameters meaningless; empty when all is well.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.out_of_bounds();
        if !(self.granule_bytes.value as u64).is_power_of_two() || self.granule_bytes.value.fract() != 0.0 {
            problems.push("`granule_bytes` must be a power of two".into());
        }
        problems
    }
}
