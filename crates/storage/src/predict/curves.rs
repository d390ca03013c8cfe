//! Latency over load in virtual time, under loads that are the same for every medium.

use super::{AccessPattern, ClosedLoop, closed_loop, initial_state, requests_that_fill};
use crate::catalogue::{CatalogueMedium, MediumKind};

/// Requests of one kind, at rising queue depths.
#[derive(Clone, Copy, Debug)]
pub struct StandardLoad {
    pub pattern: AccessPattern,
    pub block_bytes: u64,
    pub queue_depths: &'static [usize],
}

/// The queue depths are those at which datasheets state throughput (32 to 512), and what programs keep in flight below.
pub const STANDARD_LOADS: [StandardLoad; 4] = [
    StandardLoad {
        pattern: AccessPattern::RandomRead,
        block_bytes: 4096,
        queue_depths: &[1, 4, 16, 64, 256],
    },
    StandardLoad {
        pattern: AccessPattern::RandomWrite,
        block_bytes: 4096,
        queue_depths: &[1, 4, 16, 64, 256],
    },
    StandardLoad {
        pattern: AccessPattern::SequentialRead,
        block_bytes: 131_072,
        queue_depths: &[1, 4, 16, 32],
    },
    StandardLoad {
        pattern: AccessPattern::SequentialWrite,
        block_bytes: 131_072,
        queue_depths: &[1, 4, 16, 32],
    },
];

/// A medium's answer at one queue depth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    pub queue_depth: usize,
    pub iops: f64,
    /// Million bytes a second.
    pub mb_s: f64,
    pub mean_us: f64,
    pub p99_us: f64,
}

/// A medium's answers to a standard load, one for each queue depth. Random writes meet flash that is full and
/// overwritten, and volumes without credits, as where a published figure is modelled.
pub fn load_curve(medium: &CatalogueMedium, load: &StandardLoad, seed: u64) -> Vec<CurvePoint> {
    // Enough for a p99 with 40 requests beyond it.
    let requests = match medium.kind {
        MediumKind::Hdd | MediumKind::Measured => 4_000,
        MediumKind::Flash | MediumKind::Cloud | MediumKind::Pmem | MediumKind::Network => 20_000,
    };
    let capacity_bytes = medium.capacity_bytes();
    let initial = initial_state(medium.kind, load.pattern == AccessPattern::RandomWrite);
    let is_write = matches!(load.pattern, AccessPattern::RandomWrite | AccessPattern::SequentialWrite);
    let warmup = if is_write { requests_that_fill(medium, capacity_bytes, load.block_bytes) } else { 200 };
    let answer_at = |&queue_depth: &usize| {
        let mut model = medium.model(capacity_bytes, seed, initial);
        let &StandardLoad { pattern, block_bytes, .. } = load;
        let load = ClosedLoop { pattern, block_bytes, queue_depth, requests, warmup, seed };
        let found = closed_loop(&mut *model, &load);
        CurvePoint {
            queue_depth,
            iops: found.iops,
            mb_s: found.mb_s,
            mean_us: found.latency.mean_us(),
            p99_us: found.latency.quantile_us(0.99),
        }
    };
    load.queue_depths.iter().map(answer_at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    #[test]
    fn deeper_queue_never_lowers_throughput_of_disk_or_flash() {
        for name in ["hdd-7200-sata", "nvme-p4500", "ebs-gp3"] {
            let medium = catalogue::find(name).unwrap();
            for load in &STANDARD_LOADS {
                let curve = load_curve(&medium, load, 7);
                assert_eq!(curve.len(), load.queue_depths.len());
                for pair in curve.windows(2) {
                    assert!(pair[1].iops >= 0.9 * pair[0].iops, "{name} {:?}: {pair:?}", load.pattern);
                    // Little's law: in a closed loop, requests in flight are throughput times latency.
                    let in_flight = pair[1].iops * pair[1].mean_us / 1e6;
                    let queue_depth = pair[1].queue_depth as f64;
                    assert!(
                        (in_flight / queue_depth - 1.0).abs() < 0.2,
                        "{name} {:?}: {pair:?}",
                        load.pattern
                    );
                }
            }
        }
    }
}
