//! Programs' waits on the way to modelled devices and back, counted while a cell ran.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::devices::DeviceId;
use crate::histogram::Histogram;

/// The way between a block device as programs see it and the process that stands for the disk.
///
/// Its source is the kernel's own accounting of the block device (`/sys/dev/block/MAJOR:MINOR/stat`): how long every
/// request was under way, queueing included. Discards are not in it. Absent where programs reach no block device of
/// ours, as in a directory without root, on real paths and on a cluster that runs already.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathRecord {
    /// The volume: as the storage calls it.
    pub id: DeviceId,
    /// Whose accounting it is: `/dev/loop3`.
    pub block_device: String,
    /// Whether a program's request is a device's, or one each of several. Otherwise a layer makes requests of its own,
    /// a cache for one, and the modelled times below include what the layers took.
    pub is_direct: bool,
    pub reads: PathWait,
    pub writes: PathWait,
    pub flushes: PathWait,
    /// The times of small reads that the daemon answered at once, some 50 a second all the time, beside the cell's own
    /// requests: they pass the kernel's FUSE and the daemon, but not the loop device. Absent where the attachment has
    /// no place for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<Histogram>,
    /// How long it took, on average, until a program ran again whose request was done: the kernel's account ends there.
    /// The probes tell; it is part of the times of each kind. Absent without probes, and in records of before it was
    /// measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub woken_mean_us: Option<f64>,
}

/// The waits of one kind of request, in modelled microseconds: this machine's clock divided by the slow-motion factor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathWait {
    /// Those of the block device. A program's request that is longer than what the kernel passes on at once (512 KiB on
    /// a loop device) is several.
    pub requests: u64,
    /// The models' mean.
    pub modelled_mean_us: f64,
    /// Programs' mean wait: from the block device's receipt of the request until they run again after it.
    pub waited_mean_us: f64,
    /// The part of it that was spent outside of the daemon, on the way there and back.
    pub path_mean_us: f64,
    /// By how much requests were to be dated back, so that the model's time is over that much earlier. One is dated
    /// back less where the model has gone on already.
    pub dated_back_mean_us: f64,
    /// `path_mean_us` is no exact count but an estimate, on the safe side where it can be: of writes among flushes,
    /// since the kernel adds what a write waits for a flush to the write; of requests that the kernel splits.
    pub is_estimate: bool,
}

/// The distribution of the way's cost is made of so many equally likely values.
const PATH_VALUES: u32 = 200;

impl PathRecord {
    /// With what each is called in messages.
    pub fn kinds(&self) -> [(&'static str, &PathWait); 3] {
        [("reads", &self.reads), ("writes", &self.writes), ("flushes", &self.flushes)]
    }
}

/// The mean of a figure over requests, of the three kinds of all these paths; none where there were no requests.
fn mean(paths: &[&PathRecord], figure: impl Fn(&PathWait) -> f64) -> Option<f64> {
    let waits = || paths.iter().flat_map(|path| path.kinds()).map(|(_, wait)| wait);
    let requests: u64 = waits().map(|wait| wait.requests).sum();
    let sum: f64 = waits().map(|wait| figure(wait) * wait.requests as f64).sum();
    (requests > 0).then(|| sum / requests as f64)
}

/// The distribution of what programs waited, from `delivered`: what the devices below `paths` took, the dating back
/// included.
///
/// The path cost is assumed independent of the device's time. Its distribution is that of the probes, shifted (where
/// they were too slow, scaled) to the mean that the kernel counted. Without probes it is that mean alone. It is `None`
/// where no request of these paths is a device's own: then programs' waits for each are unknown.
pub fn waited(paths: &[PathRecord], delivered: &Histogram) -> Option<Histogram> {
    let direct: Vec<&PathRecord> = paths.iter().filter(|path| path.is_direct).collect();
    let path_us = mean(&direct, |wait| wait.path_mean_us)?;
    let dated_back_us = mean(&direct, |wait| wait.dated_back_mean_us)?;
    let mut probes = Histogram::default();
    direct.iter().filter_map(|path| path.probes.as_ref()).for_each(|one| probes.merge(one));
    let late_us: Vec<f64> = way_costs_us(&probes, path_us).into_iter().map(|us| us - dated_back_us).collect();
    let mut waited = Histogram::default();
    for (ns, count) in delivered.values_ns() {
        for us in &late_us {
            // A cast of what is negative gives 0.
            waited.record_n_ns((ns as f64 + us * 1e3) as u64, count);
        }
    }
    Some(waited)
}

/// Equally likely costs of the way, whose mean is `mean_us`.
fn way_costs_us(probes: &Histogram, mean_us: f64) -> Vec<f64> {
    if probes.count() == 0 {
        return vec![mean_us];
    }
    let costs: Vec<f64> = (0..PATH_VALUES)
        .map(|index| probes.quantile_us((f64::from(index) + 0.5) / f64::from(PATH_VALUES)))
        .collect();
    let mean_of_probes_us = costs.iter().sum::<f64>() / f64::from(PATH_VALUES);
    let adjusted = |us: f64| {
        if mean_us >= mean_of_probes_us {
            us + (mean_us - mean_of_probes_us)
        } else {
            us * mean_us / mean_of_probes_us.max(f64::MIN_POSITIVE)
        }
    };
    costs.into_iter().map(adjusted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values_us: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        values_us.iter().for_each(|us| histogram.record_ns(us * 1000));
        histogram
    }

    fn path(path_mean_us: f64, dated_back_mean_us: f64, probes: Option<Histogram>) -> PathRecord {
        let reads = PathWait { requests: 1000, path_mean_us, dated_back_mean_us, ..PathWait::default() };
        PathRecord { is_direct: true, reads, probes, ..PathRecord::default() }
    }

    fn near(found: f64, wanted: f64) {
        assert!((found / wanted - 1.0).abs() < 0.002, "{found}, not {wanted}");
    }

    #[test]
    fn without_probes_all_are_late_by_the_same() {
        let found = waited(&[path(80.0, 30.0, None)], &histogram(&[100, 200, 300])).unwrap();
        assert_eq!(found.count(), 3);
        near(found.mean_us(), 250.0);
        near(found.quantile_us(1.0), 350.0);
    }

    #[test]
    fn probes_give_the_tail_and_the_kernel_the_mean() {
        // A probe in twenty is slow.
        let probes = histogram(&[vec![20; 95], vec![1000; 5]].concat());
        let delivered = histogram(&[500; 100]);
        for path_mean_us in [89.0, 30.0] {
            let found = waited(&[path(path_mean_us, 20.0, Some(probes.clone()))], &delivered).unwrap();
            near(found.mean_us(), 480.0 + path_mean_us);
            assert!(found.quantile_us(0.99) > found.quantile_us(0.5) + 200.0, "{:?}", found.summary_us());
        }
    }

    #[test]
    fn layered_paths_yield_no_request_waits() {
        let layered = PathRecord { is_direct: false, ..path(80.0, 0.0, None) };
        assert_eq!(waited(&[layered, PathRecord::default()], &histogram(&[100])), None);
        assert_eq!(
            waited(&[PathRecord { is_direct: true, ..PathRecord::default() }], &histogram(&[1])),
            None
        );
    }

    #[test]
    fn path_record_reads_back() {
        let path = path(80.0, 30.0, Some(histogram(&[20, 30])));
        let text = serde_json::to_string(&path).unwrap();
        assert_eq!(serde_json::from_str::<PathRecord>(&text).unwrap(), path);
    }
}
