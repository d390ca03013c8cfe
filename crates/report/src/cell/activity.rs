//! The activity of a cell's devices, over all of its completed repetitions.

use underlay_record::{DeviceActivity, DeviceId, RunRecord};

use crate::statistics::{IntervalEstimate, StandardError};

fn is_under_test(device: &DeviceActivity) -> bool {
    device.description.id.role.is_none()
}

/// The activity of the devices under test, without those of roles on their own storages.
pub(crate) fn under_test(record: &RunRecord) -> impl Iterator<Item = &DeviceActivity> {
    record.devices.iter().filter(|device| is_under_test(device))
}

/// Devices taken together: rates of all of them, means of one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JoinedActivity {
    pub devices: usize,
    pub read_iops: f64,
    pub write_iops: f64,
    pub read_bytes_per_s: f64,
    pub write_bytes_per_s: f64,
    /// Bytes of a read and of a write, on average; absent where there was none.
    pub read_bytes: Option<f64>,
    pub write_bytes: Option<f64>,
    pub flushes_per_s: f64,
    /// Requests in flight, of all devices together.
    pub queue_depth: f64,
    /// Mean over the devices, 0 to 1.
    pub busy: f64,
}

impl JoinedActivity {
    /// Of all devices of the storage under test over these records; none where no device is on them.
    pub(crate) fn from_records(records: &[&RunRecord]) -> Option<JoinedActivity> {
        JoinedActivity::from_matching(records, is_under_test)
    }

    /// Of those devices that `belongs` takes.
    fn from_matching(
        records: &[&RunRecord],
        belongs: impl Fn(&DeviceActivity) -> bool,
    ) -> Option<JoinedActivity> {
        let devices: Vec<&DeviceActivity> = records
            .iter()
            .flat_map(|record| &record.devices)
            .filter(|device| device.duration_s > 0.0 && belongs(device))
            .collect();
        let repetitions = records.iter().filter(|record| !record.devices.is_empty()).count().max(1);
        let device_s: f64 = devices.iter().map(|device| device.duration_s).sum();
        if device_s <= 0.0 {
            return None;
        }
        let count = devices.len() as f64 / repetitions as f64;
        let sum = |pick: fn(&DeviceActivity) -> f64| devices.iter().map(|device| pick(device)).sum::<f64>();
        // Of one device in a second, times the devices of one repetition.
        let rate = |pick: fn(&DeviceActivity) -> f64| sum(pick) / device_s * count;
        let reads = sum(|device| device.totals.reads as f64);
        let writes = sum(|device| device.totals.writes as f64);
        Some(JoinedActivity {
            devices: count.round() as usize,
            read_iops: rate(|device| device.totals.reads as f64),
            write_iops: rate(|device| device.totals.writes as f64),
            read_bytes_per_s: rate(|device| device.totals.read_bytes as f64),
            write_bytes_per_s: rate(|device| device.totals.write_bytes as f64),
            read_bytes: (reads > 0.0).then(|| sum(|device| device.totals.read_bytes as f64) / reads),
            write_bytes: (writes > 0.0).then(|| sum(|device| device.totals.write_bytes as f64) / writes),
            flushes_per_s: rate(|device| device.totals.flushes as f64),
            queue_depth: rate(|device| device.totals.queue_us / 1e6),
            busy: sum(|device| device.totals.busy_us / 1e6) / device_s,
        })
    }
}

/// A device's kind: its medium, or the name of a real one.
pub(crate) fn kind_of(device: &DeviceActivity) -> &str {
    device.description.medium.as_deref().unwrap_or(&device.description.id.name)
}

/// The activity of each kind of device over these records, in the storage's order: `hdd-7200-sata`. Roles' own devices
/// are left out.
pub(crate) fn group_by_kind<'a>(records: &[&'a RunRecord]) -> Vec<(&'a str, JoinedActivity)> {
    let mut kinds: Vec<&'a str> = Vec::new();
    for device in records.iter().copied().flat_map(under_test) {
        if !kinds.contains(&kind_of(device)) {
            kinds.push(kind_of(device));
        }
    }
    kinds
        .into_iter()
        .filter_map(|kind| {
            let belongs = |device: &DeviceActivity| kind_of(device) == kind && is_under_test(device);
            Some((kind, JoinedActivity::from_matching(records, belongs)?))
        })
        .collect()
}

/// The activity of each device over these records; those of roles are among them.
pub(crate) fn group_by_device<'a>(records: &[&'a RunRecord]) -> Vec<(&'a DeviceId, JoinedActivity)> {
    let mut devices: Vec<&'a DeviceId> = Vec::new();
    for device in records.iter().copied().flat_map(|record| &record.devices) {
        if !devices.contains(&&device.description.id) {
            devices.push(&device.description.id);
        }
    }
    devices
        .into_iter()
        .filter_map(|id| {
            Some((id, JoinedActivity::from_matching(records, |device| device.description.id == *id)?))
        })
        .collect()
}

/// Which requests a size is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestDirection {
    Reads,
    Writes,
    Both,
}

/// Mean bytes of a request to any device of the storage under test, with its spread between repetitions.
pub(crate) fn request_bytes(records: &[&RunRecord], direction: RequestDirection) -> Option<IntervalEstimate> {
    let each: Vec<f64> = records
        .iter()
        .filter_map(|record| {
            // As floats: what a record says may be anything.
            let sum = |pick: fn(&DeviceActivity) -> u64| {
                under_test(record).map(|device| pick(device) as f64).sum::<f64>()
            };
            let (reads, read_bytes) =
                (sum(|device| device.totals.reads), sum(|device| device.totals.read_bytes));
            let (writes, write_bytes) =
                (sum(|device| device.totals.writes), sum(|device| device.totals.write_bytes));
            let (requests, bytes) = match direction {
                RequestDirection::Reads => (reads, read_bytes),
                RequestDirection::Writes => (writes, write_bytes),
                RequestDirection::Both => (reads + writes, read_bytes + write_bytes),
            };
            (requests > 0.0).then(|| bytes / requests)
        })
        .collect();
    let mean = each.iter().sum::<f64>() / each.len().max(1) as f64;
    (!each.is_empty()).then(|| IntervalEstimate::combine(mean, None, StandardError::between(&each)))
}
