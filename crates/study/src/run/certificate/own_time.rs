//! Whether the think time of programs between their requests matches that on the modelled machine.
//!
//! Slow motion stretches the time of devices, but not that of a thread that computes. Relative to its device, the
//! thread is faster by the factor. Where threads keep all modelled cores busy, the quota slows them down by the same
//! factor, and nothing is wrong. Where too few threads run for that, an operation is shorter by what its thread
//! computes. The record shows how much that is: how many cores' worth was computed, and how many requests were waited
//! for meanwhile.

use underlay_record::{Check, CheckId, CpuRecord, DeviceActivity};

/// The kind of caller that waits for each answer before it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerKind {
    /// This many threads in a closed loop.
    Threads(u32),
    /// A user's programs, in loops of their own.
    Programs,
    /// None: requests arrive at a rate, or tasks run independently.
    Nobody,
}

/// An operation that would take this many times as long depends on the program more than on the device.
const LIMIT: f64 = 2.0;
/// Below this, nothing is reported: the emulation's own path through the kernel is part of what a system computes.
const WORTH_TELLING: f64 = 1.25;
/// A system whose quota ran out in more than this share of its periods was held back by it.
const THROTTLED: f64 = 0.1;
/// Devices with more writes than this share have background work, which no client waits for.
const WRITES: f64 = 0.05;
/// CPU time of the servers' periodic work: Java compiles and collects garbage.
const HOUSEKEEPING_CPUS: f64 = 0.05;

/// How many times as long an operation would take if threads did not compute faster relative to their devices. This is
/// an upper bound, since background work counts too. None where it is unknown.
fn lengthened(
    callers: CallerKind,
    devices: &[DeviceActivity],
    cpu: &CpuRecord,
    time_scale: f64,
) -> Option<f64> {
    // Both in modelled time: the mean number of requests waited for, and how many cores' worth was computed.
    let under_way: f64 = devices
        .iter()
        .filter(|device| device.modelled.is_some() && device.duration_s > 0.0)
        .map(|device| device.totals.queue_us / 1e6 / device.duration_s)
        .sum();
    let is_throttled = cpu.throttled_share > THROTTLED;
    let (in_loops, used_cpus) = match callers {
        CallerKind::Threads(threads) => {
            (f64::from(threads), (cpu.used_at_reference_cpus() - HOUSEKEEPING_CPUS).max(0.0))
        }
        // As many as were observed to wait or to compute.
        CallerKind::Programs if !is_throttled => {
            (under_way + cpu.used_at_reference_cpus(), cpu.used_at_reference_cpus())
        }
        CallerKind::Programs | CallerKind::Nobody => return None,
    };
    // A thread that waits for several devices at once counts once.
    (in_loops > 0.0).then(|| (under_way.min(in_loops) + used_cpus * time_scale) / in_loops)
}

/// The same value, where it matters.
pub(in crate::run) fn worth_telling(
    callers: CallerKind,
    devices: &[DeviceActivity],
    cpu: &CpuRecord,
    time_scale: f64,
) -> Option<f64> {
    if time_scale <= 1.0 || !devices.iter().any(|device| device.modelled.is_some()) {
        return None;
    }
    lengthened(callers, devices, cpu, time_scale).filter(|times| *times >= WORTH_TELLING)
}

/// Reports it where it matters. Fails where more of the operation depends on the program than on the device, as far as
/// that is certain.
pub(super) fn check(
    callers: CallerKind,
    devices: &[DeviceActivity],
    cpu: &CpuRecord,
    time_scale: f64,
) -> Option<Check> {
    let times = worth_telling(callers, devices, cpu, time_scale)?;
    let sum = |field: fn(&DeviceActivity) -> u64| devices.iter().map(field).sum::<u64>() as f64;
    let (reads, writes) = (sum(|device| device.totals.reads), sum(|device| device.totals.writes));
    let is_alone = callers == CallerKind::Programs || writes <= WRITES * (reads + writes);
    let passed = times < LIMIT || !is_alone;
    let finding = format!(
        "programs computed as much as {:.2} modelled cores do, by threads that slow motion speeds up {time_scale} times beside their \
         devices: as fast as they are, operations would take up to {times:.1} times as long (allowed: {LIMIT:.0})",
        cpu.used_cpus * time_scale
    );
    let check = Check::new(CheckId::OwnTime, passed, finding).with_extent(times);
    Some(check.with_remedy(
        "compare with more clients, to keep the cores busy, or in less slow motion: these figures are of a program that takes \
         no time",
    ))
}

#[cfg(test)]
mod tests {
    use underlay_record::{DeviceTotals, Histogram};

    use super::*;

    fn device(under_way: f64, writes: u64) -> DeviceActivity {
        DeviceActivity {
            duration_s: 2.0,
            totals: DeviceTotals {
                reads: 1000,
                writes,
                queue_us: under_way * 2e6,
                ..DeviceTotals::default()
            },
            modelled: Some(Histogram::default()),
            ..DeviceActivity::default()
        }
    }

    fn cpu(used_cpus: f64, throttled_share: f64) -> CpuRecord {
        CpuRecord {
            modelled_cores: 32,
            due_cpus: 0.67,
            held_to_cpus: 0.67,
            enforced_by: "cgroup v2".to_owned(),
            used_cpus,
            servers: 1,
            throttled_share,
            lost_share: 0.0,
            waited_share: None,
            system_cpus: "1".to_owned(),
            system_stolen_share: 0.0,
            emulation_cpus: "0".to_owned(),
            emulation_busy_share: 0.2,
            emulation_stolen_share: 0.0,
            emulation_waiting_threads: None,
            speed_probe_us: None,
            reference_probe_us: None,
            allowed_slowdown: None,
            extra_ticks: 0,
        }
    }

    fn judged(callers: CallerKind, device: DeviceActivity, cpu: &CpuRecord) -> Option<(bool, f64)> {
        check(callers, &[device], cpu, 48.0).map(|check| (check.passed, check.extent.unwrap()))
    }

    #[test]
    fn single_reader_of_fast_drive_is_mostly_software() {
        // LMDB on Optane at x48: 9 us of device and as much of page fault would be one in two; here it is 33 us to 9.
        let (passed, times) = judged(CallerKind::Programs, device(0.93, 0), &cpu(0.07, 0.0)).unwrap();
        assert!(!passed && (times - 4.29).abs() < 0.01, "{times}");
        assert!(!judged(CallerKind::Threads(1), device(0.93, 0), &cpu(0.15, 0.0)).unwrap().0);
        // A server's housekeeping does not belong to a client.
        assert_eq!(judged(CallerKind::Threads(1), device(0.93, 0), &cpu(0.04, 0.0)), None);
        // The same program with a drive of 2 ms.
        assert_eq!(judged(CallerKind::Programs, device(0.999, 0), &cpu(0.001, 0.0)), None);
    }

    #[test]
    fn between_the_two_it_is_told_and_passes() {
        let (passed, times) = judged(CallerKind::Threads(20), device(16.0, 0), &cpu(0.25, 0.0)).unwrap();
        assert!(passed && (times - 1.28).abs() < 1e-9, "{times}");
        // Eight devices under a stripe; its one reader waits for them together.
        assert_eq!(judged(CallerKind::Threads(1), device(7.5, 0), &cpu(0.05, 0.0)), None);
    }

    /// One reader of a fast drive, whose page faults take longer than the drive.
    #[test]
    fn program_computation_is_reported_in_slow_motion() {
        let (devices, cpu) = ([device(0.93, 0)], cpu(0.07, 0.0));
        let times = worth_telling(CallerKind::Programs, &devices, &cpu, 48.0).unwrap();
        assert!((times - 4.29).abs() < 0.01, "{times}");
        assert_eq!(worth_telling(CallerKind::Programs, &devices, &cpu, 1.0), None, "no slow motion");
        assert_eq!(worth_telling(CallerKind::Nobody, &devices, &cpu, 48.0), None, "nobody waits");
    }

    #[test]
    fn single_client_with_all_cores_is_too_fast() {
        // All data in memory: the quota of 32 cores is one thread's.
        let found = judged(CallerKind::Threads(1), device(0.0, 0), &cpu(0.67, 0.9)).unwrap();
        assert!(!found.0 && found.1 > 25.0, "{found:?}");
        // The number of a program's threads is unknown.
        assert_eq!(judged(CallerKind::Programs, device(0.0, 0), &cpu(0.67, 0.9)), None);
    }

    #[test]
    fn work_in_the_background_is_told_and_fails_nothing() {
        // Two clients that write, and compactions on six cores.
        let (passed, times) = judged(CallerKind::Threads(2), device(1.5, 500), &cpu(0.125, 0.0)).unwrap();
        assert!(passed && times > 2.0, "{times}");
    }

    #[test]
    fn check_without_slow_motion_or_loop_reports_nothing() {
        let (device, cpu) = (device(0.93, 0), cpu(0.07, 0.0));
        assert_eq!(check(CallerKind::Programs, std::slice::from_ref(&device), &cpu, 1.0), None);
        assert_eq!(check(CallerKind::Nobody, std::slice::from_ref(&device), &cpu, 48.0), None);
        let real = DeviceActivity { modelled: None, ..device };
        assert_eq!(check(CallerKind::Programs, &[real], &cpu, 48.0), None);
    }
}
