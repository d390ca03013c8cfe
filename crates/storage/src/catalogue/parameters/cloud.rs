//! Parameters of the cloud volume model.

use serde::{Deserialize, Serialize};

use super::{ParameterEntry, ParameterField, SourcedDistribution, SourcedQuantity};
use crate::catalogue::table::{NumberRange, TableReader};

parameters! {
    /// A volume that a cloud rents out: rates that are bought, credits to go beyond them, and a latency that is
    /// the service's. 1 MB is a million bytes.
    CloudParameters
    numbers {
        /// I/O operations a second without credits; credits come in at this rate, too.
        baseline_iops: All in 1.0 to 1e9,
        baseline_mb_s: All in 0.1 to 1000000.0,
        /// A request counts as one I/O operation for each of these that it begins.
        io_unit_bytes: Whole in 512.0 to 1e8,
        /// At which the data of one request move, once it is served.
        request_mb_s: All in 1.0 to 1000000.0,
        /// Requests that are served at once; more wait in line.
        queue_depth: Whole in 1.0 to 65536.0,
    }
    properties {}
    others {
        /// Of a request that nothing holds back, without its data's way.
        read_latency_us: {SourcedDistribution} in 0.0 to 1e8,
        write_latency_us: {SourcedDistribution} in 0.0 to 1e8,
        /// A flush; nothing is volatile, so it has nothing to wait for.
        flush_us: {Option<SourcedDistribution>} in 0.0 to 1e8,
        burst_iops: {Option<SourcedQuantity>} in 1.0 to 1e9,
        /// I/O operations that a full bucket lets through above the baseline.
        io_credits: {Option<SourcedQuantity>} in 0.0 to 1e15,
        burst_mb_s: {Option<SourcedQuantity>} in 0.1 to 1000000.0,
        throughput_credits_mb: {Option<SourcedQuantity>} in 0.0 to 1e12,
        /// How full the buckets of a fresh volume are; full when absent.
        initial_credits_share: {Option<SourcedQuantity>} in 0.0 to 1.0,
        /// The most that the machine which the volume is attached to lets through.
        instance_iops: {Option<SourcedQuantity>} in 1.0 to 1e9,
        instance_mb_s: {Option<SourcedQuantity>} in 0.1 to 1000000.0,
        instance_burst_iops: {Option<SourcedQuantity>} in 1.0 to 1e9,
        instance_burst_mb_s: {Option<SourcedQuantity>} in 0.1 to 1000000.0,
        /// For how long it bears a full burst, when rested.
        instance_burst_s: {Option<SourcedQuantity>} in 0.0 to 1e8,
        /// How long after the last piece of a stream the next one still joins its I/O operation. Absent: never.
        merge_window_us: {Option<SourcedQuantity>} in 0.0 to 1e8,
        /// The smallest throughput charge of a request that continues no stream.
        random_charge_bytes: {Option<SourcedQuantity>} in 0.0 to 1e8,
        /// Share of time in which the volume is degraded.
        degraded_share: {Option<SourcedQuantity>} in 0.0 to 0.9,
        /// The mean length of such an episode.
        degraded_episode_s: {Option<SourcedQuantity>} in 0.001 to 1e8,
        /// The share of the rates that is left meanwhile; latencies are longer by as much.
        degraded_factor: {Option<SourcedQuantity>} in 0.001 to 1.0,
        /// Share of a fresh volume's blocks that are still in the snapshot which it was made from.
        cold_share: {Option<SourcedQuantity>} in 0.0 to 1.0,
        cold_block_bytes: {Option<SourcedQuantity>} in 4096.0 to 1e9,
        /// The extra cost of the first touch of such a block.
        cold_latency_us: {Option<SourcedDistribution>} in 0.0 to 1e9,
        /// At which such blocks come in, all together; no bound when absent.
        cold_mb_s: {Option<SourcedQuantity>} in 0.01 to 1000000.0,
    }
}

impl CloudParameters {
    /// Everything that would make a model of these parameters meaningless; empty when all is well.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.out_of_bounds();
        let mut together = |names: &str, present: &[bool]| {
            if present.iter().any(|&is_present| is_present) && !present.iter().all(|&is_present| is_present) {
                problems.push(format!("{names} go together: state all of them or none"));
            }
        };
        // The model bursts only with both of a pair: one alone would be dropped without a word.
        together("`burst_iops` and `io_credits`", &[self.burst_iops.is_some(), self.io_credits.is_some()]);
        together(
            "`burst_mb_s` and `throughput_credits_mb`",
            &[self.burst_mb_s.is_some(), self.throughput_credits_mb.is_some()],
        );
        together(
            "`degraded_share`, `degraded_episode_s` and `degraded_factor`",
            &[
                self.degraded_share.is_some(),
                self.degraded_episode_s.is_some(),
                self.degraded_factor.is_some(),
            ],
        );
        together(
            "`cold_share`, `cold_block_bytes` and `cold_latency_us`",
            &[self.cold_share.is_some(), self.cold_block_bytes.is_some(), self.cold_latency_us.is_some()],
        );
        let instance_burst = self.instance_burst_iops.is_some() || self.instance_burst_mb_s.is_some();
        if instance_burst != self.instance_burst_s.is_some() {
            problems.push("an instance's burst needs `instance_burst_s` and a burst rate".into());
        }
        if self.cold_mb_s.is_some() && self.cold_share.is_none() {
            problems.push("`cold_mb_s` has no effect without `cold_share`".into());
        }
        for (low_name, low, high_name, high) in [
            ("baseline_iops", Some(&self.baseline_iops), "burst_iops", &self.burst_iops),
            ("baseline_mb_s", Some(&self.baseline_mb_s), "burst_mb_s", &self.burst_mb_s),
            ("instance_iops", self.instance_iops.as_ref(), "instance_burst_iops", &self.instance_burst_iops),
            ("instance_mb_s", self.instance_mb_s.as_ref(), "instance_burst_mb_s", &self.instance_burst_mb_s),
        ] {
            match (low, high) {
                // A burst below the usual rate would make a rested volume the slower one.
                (Some(low), Some(high)) if high.value < low.value => {
                    problems.push(format!("`{high_name}` is below `{low_name}`"));
                }
                (None, Some(_)) => problems.push(format!("`{high_name}` needs `{low_name}`")),
                _ => {}
            }
        }
        if let Some(block) = &self.cold_block_bytes
            && block.value % 4096.0 != 0.0
        {
            problems.push("`cold_block_bytes` must be a multiple of 4096".into());
        }
        problems
    }
}
