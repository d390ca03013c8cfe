//! Whether the system had the CPU time of the modelled machine, and the emulation had enough of its own.

use std::fmt::Write as _;

use underlay_record::{Check, CheckId, CpuRecord, cpus_in_words};

use crate::machine::SMALL_SHARE;

/// The share of due CPU time that a system may need and not get.
const LOST_TOLERANCE: f64 = 0.05;
/// The emulation's CPUs may be this busy, CPU steal included, where the callers that waited for them are unknown.
/// Beyond this they had no time left. The thread that paces devices spins for the last microseconds before a reply, so
/// a large part of this is not work.
const EMULATION_LIMIT: f64 = 0.97;
/// Operations may be held up by this share because of waits for the emulation's CPUs; devices' latencies may be late by
/// as much on average. It counts however busy those CPUs were, since simultaneous requests queue even on a CPU that is
/// half idle.
const EMULATION_WAITED_TOLERANCE: f64 = 0.10;
/// The system may wait for CPUs that others have for this share of the time; devices may be late by as much on average.
/// A quiet host shows 1 to 4 %, since the kernel's own work on the devices counts as others' too.
const WAITED_TOLERANCE: f64 = 0.10;
/// With fewer operations in flight than this, most threads that wait for the emulation's CPUs hold up none of them.
/// They count only where these CPUs have no time left either, and then as if this many operations were in flight.
const FEW_OPERATIONS: f64 = 0.5;
/// A system is limited by its cores if it uses up its quota in more than this share of its periods.
const MOSTLY: f64 = 0.5;
/// CPUs may be slower or faster by this much than the speed that the system's CPU time was based on.
const SPEED_TOLERANCE: f64 = 0.10;
/// A system is limited by something other than its cores if it uses less than this share of its due time, and its quota
/// runs out in fewer than this share of its periods.
const USED_BY_CORES: f64 = 0.5;
const THROTTLED_BY_CORES: f64 = 0.1;

/// Whether the system had exactly its CPUs, and the emulation had enough of its own. `in_flight` is the mean number of
/// operations that clients waited for, where known. `slower` is the remedy where slower motion is one.
pub(super) fn checks(cpu: &CpuRecord, in_flight: Option<f64>, slower: &str) -> Vec<Check> {
    let is_held = cpu.enforced_by != "none";
    let finding = match is_held {
        true => format!("each server was held to {:.2} CPUs' worth of time", cpu.held_to_cpus),
        false => "nothing held the system to the CPUs of the modelled machine".into(),
    };
    let budget = Check::new(CheckId::CpuBudget, is_held, finding)
        .with_remedy("`underlay doctor` says how to get a cgroup for CPUs");
    let finding = format!(
        "of the {:.2} CPUs that were due to each server, this machine could not give {:.1} % (allowed: {:.0} %)",
        cpu.due_cpus,
        cpu.lost_share * 100.0,
        LOST_TOLERANCE * 100.0
    );
    let system = Check::new(CheckId::SystemCpu, cpu.lost_share <= LOST_TOLERANCE, finding)
        .with_extent(cpu.lost_share)
        .with_remedy(slower);
    let wait = cpu.waited_share.map(|share| wait(share, slower));
    let emulation = emulation(cpu, in_flight, slower);
    [budget, system].into_iter().chain(speed(cpu)).chain(slices(cpu)).chain(wait).chain([emulation]).collect()
}

/// Whether a modelled core did as much as a core of this host at its fastest. The same time on a slower CPU is a
/// different machine.
fn speed(cpu: &CpuRecord) -> Option<Check> {
    let slowdown = cpu.slowdown()?;
    let allowed = cpu.allowed_slowdown.filter(|allowed| *allowed > 0.0);
    let off = slowdown / allowed.unwrap_or(1.0) - 1.0;
    // Real storage is compared with CPUs that all compute, so being faster than that is usual.
    let off = if allowed.is_some() { off } else { off.max(0.0) };
    let due_cpus = cpu.due_cpus * allowed.unwrap_or(1.0);
    let holds_up =
        cpu.used_by_each_cpus() > USED_BY_CORES * due_cpus || cpu.throttled_share > THROTTLED_BY_CORES;
    let is_off = off.abs() > SPEED_TOLERANCE;
    let passed = !is_off || !holds_up;
    let mut finding = format!("a fixed computation took {slowdown:.2} times as long as ");
    finding.push_str(match allowed {
        Some(_) => "on these CPUs at their fastest",
        None => "on these CPUs before the first cell, while all of them computed",
    });
    if let Some(allowed) = allowed {
        let _ = write!(finding, ", and the system got {allowed:.2} times the CPU time to compensate");
    }
    let _ = write!(finding, ": {:+.0} % (allowed: {:.0} %)", off * 100.0, SPEED_TOLERANCE * 100.0);
    if is_off && !holds_up {
        finding.push_str("; its cores did not limit it");
    }
    let check = Check::new(CheckId::CpuSpeed, passed, finding).with_extent(off.abs());
    Some(check.with_remedy(
        "run when other programs, and other guests of the same machine, are quiet: its cores did less or more work than the modelled ones",
    ))
}

/// Where the quota is small: whether the system wanted more than it, which slower motion only makes worse.
fn slices(cpu: &CpuRecord) -> Option<Check> {
    (cpu.due_cpus < SMALL_SHARE && cpu.enforced_by != "none").then(|| {
        let finding = format!(
            "the system's cores are only {:.1} % of a CPU here, a millisecond at a time with cold caches, and it used up its quota in {:.0} % of the periods (allowed: {:.0} %)",
            cpu.due_cpus * 100.0,
            cpu.throttled_share * 100.0,
            MOSTLY * 100.0
        );
        Check::new(CheckId::CpuSlices, cpu.throttled_share <= MOSTLY, finding)
            .with_extent(cpu.throttled_share)
            .with_remedy("use faster motion (`--time`, or `[scale] time`), or run on a host with more idle CPUs: the system may do up to 1.5 times as much there")
    })
}

/// Where it is known, the delay of operations counts. CPUs that are never idle may be busy with programs that use what
/// the emulation leaves.
fn emulation(cpu: &CpuRecord, in_flight: Option<f64>, slower: &str) -> Check {
    let used_share = cpu.emulation_busy_share + cpu.emulation_stolen_share;
    let has_room = used_share <= EMULATION_LIMIT;
    let in_flight = in_flight.filter(|operations| *operations > 0.0);
    let are_few = in_flight.is_some_and(|operations| operations < FEW_OPERATIONS);
    let held_up = cpu.emulation_waiting_threads.zip(in_flight).map(|(threads, operations)| {
        // A hypervisor takes a CPU from a running thread, which no account of waiting includes. It affects at most one
        // thread per CPU, and at most one per operation.
        let stolen = cpu.emulation_stolen_share * operations.min(count_of(&cpu.emulation_cpus));
        (threads + stolen) / operations.max(FEW_OPERATIONS)
    });
    let passed = match held_up {
        Some(share) => share <= EMULATION_WAITED_TOLERANCE || (are_few && has_room),
        None => has_room,
    };
    let mut finding = format!(
        "{:.0} % of the time of {}, where the load generator and the devices run, was busy or stolen",
        used_share.min(1.0) * 100.0,
        cpus_in_words(&cpu.emulation_cpus),
    );
    let _ = match held_up {
        None => write!(finding, " (allowed: {:.0} %)", EMULATION_LIMIT * 100.0),
        Some(share) => write!(
            finding,
            "; operations waited for that for {:.1} % of their time (allowed: {:.0} %)",
            share * 100.0,
            EMULATION_WAITED_TOLERANCE * 100.0
        ),
    };
    // The extent that slower motion has to lower.
    let extent = held_up.unwrap_or(used_share);
    Check::new(CheckId::EmulationCpu, passed, finding).with_extent(extent).with_remedy(slower)
}

/// The number of CPUs in a list in the kernel's notation: `1`, `0,2-3`.
pub(super) fn count_of(list: &str) -> f64 {
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(last.trim().parse::<u32>().ok()?.checked_sub(first.trim().parse().ok()?)? + 1)
    };
    list.split(',').filter_map(count).map(f64::from).sum::<f64>().max(1.0)
}

fn wait(share: f64, slower: &str) -> Check {
    let finding = format!(
        "for {:.1} % of the time, the system had work and other programs or a hypervisor had its CPUs (allowed: {:.0} %)",
        share * 100.0,
        WAITED_TOLERANCE * 100.0
    );
    Check::new(CheckId::WaitForCpu, share <= WAITED_TOLERANCE, finding).with_extent(share).with_remedy(slower)
}
