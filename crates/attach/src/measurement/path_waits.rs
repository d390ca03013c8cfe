//! Programs' waits for a volume outside of its devices: the kernel's times for the block device minus the daemon's.
//!
//! Reads are exact, and so are flushes when they reach the daemon. The kernel makes one request to the daemon for each
//! request to the block device; on a loop device these have at most 512 KiB. If it splits one all the same (the counts
//! show it), a program waits for the longest part, but only the parts' mean is known. The path cost is then
//! overestimated.
//!
//! Writes among flushes are not exact. To the kernel a flush is a write without data, and a write with a flush before
//! or after it (as in journals) includes their waits. Each flush that reached the device is subtracted once, though
//! several writes may have waited for it. So the remainder is an upper bound, and a wide one with parallel flushes. A
//! flush takes the same path as a write, without data, and its own wait is exact. So a write among flushes gets the
//! path time of a flush, or of a read where that was longer (reads, too, may wait behind a flush in a loop device),
//! plus the measured cost of its data. The bound limits the sum.
//!
//! Without flushes, writes are as exact as reads.
//!
//! The kernel's counters end when a request is complete. The waiting program runs a moment later, or more if its CPU
//! sleeps. The probes measure that ([`crate::measurement::path_probes`]), and it is added to every kind.

use underlay_record::PathWait;
use underlay_storage::paced::PathCost;
use underlay_storage::times::KindTimes;

use crate::measurement::block_counters::{BlockCounters, RequestTotals};
use crate::serving::daemon::request_meter::{AnsweredTotals, VolumeTimes};

/// With this many requests, the kernel's rounding of times to milliseconds is harmless.
pub(crate) const ENOUGH_REQUESTS: u64 = 100;

/// A volume's requests between two snapshots.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathWaitDelta {
    pub kernel: BlockCounters,
    pub daemon: VolumeTimes,
}

/// The path cost of one kind of request, in wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct WayCost {
    /// The number of requests on this path.
    pub requests: u64,
    pub mean_us: f64,
    pub is_estimate: bool,
}

/// For all kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct WayCosts {
    pub reads: WayCost,
    pub writes: WayCost,
    pub flushes: WayCost,
}

impl PathWaitDelta {
    /// `mib_us` is the measured path cost of a MiB of data.
    pub(crate) fn way_costs(&self, mib_us: f64) -> WayCosts {
        let (kernel, daemon) = (&self.kernel, &self.daemon);
        let reads = exact(kernel.reads, &daemon.reads);
        let flushes = exact(kernel.flushes, &daemon.flushes);
        let is_clouded = kernel.flushes.requests > 0 || kernel.writes.requests > daemon.writes.requests;
        let writes = if is_clouded {
            self.writes_among_flushes(&reads, &flushes, mib_us)
        } else {
            exact(kernel.writes, &daemon.writes)
        };
        WayCosts { reads, writes, flushes }
    }

    fn writes_among_flushes(&self, reads: &WayCost, flushes: &WayCost, mib_us: f64) -> WayCost {
        let written = &self.daemon.writes;
        let requests = written.requests;
        if requests == 0 {
            return WayCost::default();
        }
        let at_most_us =
            self.kernel.writes.wall_us() - self.kernel.flushes.wall_us() - self.daemon.writes.wall_us;
        let at_most_us = (at_most_us / requests as f64).max(0.0);
        let without_data = [(flushes, 0.0), (reads, mib_us * self.daemon.reads.mean_mib())];
        let like = without_data.into_iter().filter(|(way, _)| way.requests >= ENOUGH_REQUESTS);
        let like_us = like.map(|(way, data_us)| way.mean_us - data_us).reduce(f64::max);
        let mean_us =
            like_us.map_or(at_most_us, |us| at_most_us.min(us + mib_us * written.mean_mib()).max(0.0));
        WayCost { requests, mean_us, is_estimate: true }
    }

    /// Programs' waits with slow motion divided out: reads, writes and flushes. `woken_us` is how long a program takes
    /// to run again after its request is complete.
    pub(crate) fn waits(&self, mib_us: f64, woken_us: f64, dilation: f64) -> [PathWait; 3] {
        let costs = self.way_costs(mib_us).with(woken_us);
        let daemon = &self.daemon;
        let devices = daemon.devices.unwrap_or_default();
        [
            wait(&costs.reads, &daemon.reads, &devices.reads, dilation),
            wait(&costs.writes, &daemon.writes, &devices.writes, dilation),
            wait(&costs.flushes, &daemon.flushes, &devices.flushes, dilation),
        ]
    }
}

fn exact(kernel: RequestTotals, daemon: &AnsweredTotals) -> WayCost {
    if kernel.requests == 0 || daemon.requests == 0 {
        return WayCost::default();
    }
    let served_us = daemon.wall_us / daemon.requests as f64;
    // A request in transit at an edge of the window may be counted on one side only.
    let is_split = daemon.requests > kernel.requests + kernel.requests / 100 + 1;
    let mean_us = (kernel.wall_us() / kernel.requests as f64 - served_us).max(0.0);
    WayCost { requests: kernel.requests, mean_us, is_estimate: is_split }
}

fn wait(cost: &WayCost, daemon: &AnsweredTotals, devices: &KindTimes, dilation: f64) -> PathWait {
    if cost.requests == 0 {
        return PathWait::default();
    }
    let served_us = daemon.wall_us / daemon.requests.max(1) as f64 / dilation;
    let parts = devices.requests.max(1) as f64;
    // The daemon's lateness, minus its head start from backdating.
    let late_us = (devices.served_us - devices.modelled_us) / parts;
    let path_mean_us = cost.mean_us / dilation;
    PathWait {
        requests: cost.requests,
        modelled_mean_us: served_us - late_us,
        waited_mean_us: served_us + path_mean_us,
        path_mean_us,
        dated_back_mean_us: devices.dated_back_us / parts,
        is_estimate: cost.is_estimate,
    }
}

impl WayCosts {
    fn with(mut self, woken_us: f64) -> WayCosts {
        for cost in [&mut self.reads, &mut self.writes, &mut self.flushes] {
            cost.mean_us += woken_us;
        }
        self
    }

    /// The deduction per request, besides its data's cost, that makes the mean correct, based on exact values. `None`
    /// where there are too few requests.
    pub(crate) fn fixed_us(between: &[PathWaitDelta], path: &PathCost, woken_us: f64) -> Option<f64> {
        let (mut requests, mut us) = (0, 0.0);
        for one in between {
            let costs = one.way_costs(path.mib_us);
            let daemon = &one.daemon;
            let kinds =
                [(costs.reads, daemon.reads), (costs.writes, daemon.writes), (costs.flushes, daemon.flushes)];
            for (cost, answered) in kinds.into_iter().filter(|(cost, _)| !cost.is_estimate) {
                requests += cost.requests;
                us += (cost.mean_us - path.mib_us * answered.mean_mib()) * cost.requests as f64;
            }
        }
        (requests >= 2 * ENOUGH_REQUESTS).then(|| us / requests as f64 + woken_us)
    }
}

#[cfg(test)]
mod tests {
    use underlay_storage::times::RequestTimes;

    use super::*;

    fn answered(requests: u64, mean_us: f64) -> AnsweredTotals {
        AnsweredTotals { requests, bytes: requests * 4096, wall_us: mean_us * requests as f64 }
    }

    fn near(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 0.01, "{found}, not {wanted}");
    }

    #[test]
    fn read_wait_is_kernel_time_minus_daemon_time() {
        // 1000 reads, 900 µs each for the kernel; 800 in the daemon, where they are backdated by 50.
        let modelled =
            KindTimes { requests: 1000, modelled_us: 420e3, served_us: 400e3, dated_back_us: 25e3 };
        let between = PathWaitDelta {
            kernel: BlockCounters::new((1000, 900), (0, 0), (0, 0)),
            daemon: VolumeTimes {
                reads: answered(1000, 800.0),
                devices: Some(RequestTimes { reads: modelled, ..RequestTimes::default() }),
                ..VolumeTimes::default()
            },
        };
        let [reads, writes, flushes] = between.waits(200.0, 0.0, 2.0);
        near(reads.path_mean_us, 50.0);
        near(reads.modelled_mean_us, 420.0);
        near(reads.waited_mean_us, 450.0);
        near(reads.dated_back_mean_us, 25.0);
        assert!(reads.requests == 1000 && !reads.is_estimate);
        assert_eq!((writes, flushes), (PathWait::default(), PathWait::default()));
        let path = PathCost { fixed_us: 40.0, mib_us: 256.0 };
        // The data of a 4 KiB block costs one.
        near(WayCosts::fixed_us(&[between], &path, 0.0).unwrap(), 99.0);

        // And the program runs again 30 µs later.
        let [reads, writes, _] = between.waits(200.0, 30.0, 2.0);
        near(reads.path_mean_us, 65.0);
        near(reads.waited_mean_us, 465.0);
        assert_eq!(writes, PathWait::default());
        near(WayCosts::fixed_us(&[between], &path, 30.0).unwrap(), 129.0);
    }

    #[test]
    fn writes_without_flushes_are_exact() {
        let between = PathWaitDelta {
            kernel: BlockCounters::new((0, 0), (500, 100), (0, 0)),
            daemon: VolumeTimes { writes: answered(500, 150.0), ..VolumeTimes::default() },
        };
        let writes = between.way_costs(0.0).writes;
        assert!(!writes.is_estimate);
        near(writes.mean_us, 50.0);
    }

    #[test]
    fn writes_among_flushes_go_the_way_of_a_flush() {
        // Each of 1000 writes is followed by an empty flush of 1040 µs: to the kernel 2000 writes.
        let daemon = VolumeTimes {
            writes: answered(1000, 100.0),
            flushes: answered(1000, 1000.0),
            ..VolumeTimes::default()
        };
        let alone = BlockCounters::new((0, 0), (2000, 1040 + 145), (1000, 1040));
        let costs = PathWaitDelta { kernel: alone, daemon }.way_costs(0.0);
        near(costs.flushes.mean_us, 40.0);
        near(costs.writes.mean_us, 40.0);
        assert!(costs.writes.is_estimate && !costs.flushes.is_estimate);
        // Never more than the kernel's remainder for them.
        let quick = BlockCounters::new((0, 0), (2000, 1040 + 120), (1000, 1040));
        near(PathWaitDelta { kernel: quick, daemon }.way_costs(0.0).writes.mean_us, 20.0);
        // Two wait for each flush, which is not due to the path.
        let shared = BlockCounters::new((0, 0), (3000, 2080 + 140), (1000, 1040));
        near(PathWaitDelta { kernel: shared, daemon }.way_costs(0.0).writes.mean_us, 40.0);
    }

    #[test]
    fn too_few_requests_tell_nothing() {
        let between = PathWaitDelta {
            kernel: BlockCounters::new((50, 60), (0, 0), (0, 0)),
            daemon: VolumeTimes { reads: answered(50, 100.0), ..VolumeTimes::default() },
        };
        assert_eq!(WayCosts::fixed_us(&[between], &PathCost::default(), 0.0), None);
        let idle = PathWaitDelta::default().waits(0.0, 40.0, 1.0);
        assert_eq!(idle, [PathWait::default(); 3]);
    }

    #[test]
    fn merged_request_waits_are_marked_estimated() {
        let between = PathWaitDelta {
            kernel: BlockCounters::new((100, 100), (0, 0), (0, 0)),
            daemon: VolumeTimes { reads: answered(400, 800.0), ..VolumeTimes::default() },
        };
        assert!(between.way_costs(0.0).reads.is_estimate);
    }
}
