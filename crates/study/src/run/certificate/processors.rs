//! Whether the system had the CPU time of the modelled machine, and the emulation enough of its own.

use std::fmt::Write as _;

use underlay_record::{Check, CpuRecord, cpus_in_words};

/// What was due to a system, and wanted by it, and could not be had may be this share of it.
const LOST_TOLERANCE: f64 = 0.05;
/// The emulation's CPUs may be this busy, stolen time included: beyond, they had no time left. The thread that paces devices spins
/// for the last microseconds before a reply, so that a good part of it is no work.
const EMULATION_LIMIT: f64 = 0.97;
/// By so much operations may be held up by what waits for the emulation's CPUs: half of what devices' latencies may be late by, which their own
/// checks judge.
const EMULATION_WAITED_TOLERANCE: f64 = 0.05;
/// The account of who waited has no time that the hypervisor took from a thread that had the CPU.
const STOLEN_TOLERANCE: f64 = 0.05;
/// So much of the time the system may wait for CPUs that others have, as devices may be late by so much on average. A quiet host has 1 to
/// 4 % of it: the kernel's own work on the devices is others' too.
const WAITED_TOLERANCE: f64 = 0.10;
const SYSTEM_CPU: &str = "system CPU";
const WAIT: &str = "wait for CPU";
const EMULATION_CPU: &str = "emulation CPU";

/// Whether a slower motion can mend what fails a check of this name.
pub(super) fn is_mended(name: &str) -> bool {
    [SYSTEM_CPU, WAIT, EMULATION_CPU].contains(&name)
}

/// Whether the system had the CPUs that it was to have, no more and no less, and the emulation enough of its own.
/// `in_flight` is how many operations clients waited for on average, where that is known; `slower` the remedy where a slower motion is one.
pub(super) fn checks(cpu: &CpuRecord, in_flight: Option<f64>, slower: &str) -> Vec<Check> {
    let is_held = cpu.enforced_by != "none";
    let budget = Check {
        name: "CPU budget".into(),
        passed: is_held,
        finding: match is_held {
            true => format!("each server was held to {:.2} CPUs' worth of time", cpu.held_to_cpus),
            false => "nothing held the system to the CPUs of the modelled machine".into(),
        },
        extent: None,
        remedy: (!is_held).then(|| "`underlay doctor` says how to get a cgroup for CPUs".into()),
    };
    let passed = cpu.lost_share <= LOST_TOLERANCE;
    let system = Check {
        name: SYSTEM_CPU.into(),
        passed,
        finding: format!(
            "of the {:.2} CPUs that were due to each server, this machine could not give {:.1} % (allowed: {:.0} %)",
            cpu.due_cpus,
            cpu.lost_share * 100.0,
            LOST_TOLERANCE * 100.0
        ),
        extent: Some(cpu.lost_share),
        remedy: (!passed).then(|| slower.to_owned()),
    };
    let wait = cpu.waited_share.map(|share| wait(share, slower));
    let emulation = emulation(cpu, in_flight, slower);
    [budget, system].into_iter().chain(wait).chain([emulation]).collect()
}

/// CPUs that are never idle may be so because of programs that use what the emulation leaves: then it counts for how long it waited for them.
fn emulation(cpu: &CpuRecord, in_flight: Option<f64>, slower: &str) -> Check {
    let taken = cpu.emulation_busy_share + cpu.emulation_stolen_share;
    let has_room = taken <= EMULATION_LIMIT;
    let in_flight = in_flight.filter(|operations| *operations > 0.0);
    let held_up =
        cpu.emulation_waiting_threads.zip(in_flight).map(|(threads, operations)| threads / operations);
    let nobody_waited = cpu.emulation_stolen_share <= STOLEN_TOLERANCE
        && held_up.is_some_and(|share| share <= EMULATION_WAITED_TOLERANCE);
    let passed = has_room || nobody_waited;
    let mut finding = format!(
        "{:.0} % of the time of {}, where the load generator and the devices run, was busy or stolen (allowed: {:.0} %)",
        taken.min(1.0) * 100.0,
        cpus_in_words(&cpu.emulation_cpus),
        EMULATION_LIMIT * 100.0
    );
    if let Some(share) = held_up.filter(|_| !has_room) {
        let _ = write!(
            finding,
            "; operations waited for that for {:.1} % of their time (allowed: {:.0} %, where at most {:.0} % is stolen)",
            share * 100.0,
            EMULATION_WAITED_TOLERANCE * 100.0,
            STOLEN_TOLERANCE * 100.0
        );
    }
    Check {
        name: EMULATION_CPU.into(),
        passed,
        finding,
        extent: Some(taken),
        remedy: (!passed).then(|| slower.to_owned()),
    }
}

fn wait(share: f64, slower: &str) -> Check {
    let passed = share <= WAITED_TOLERANCE;
    Check {
        name: WAIT.into(),
        passed,
        finding: format!(
            "for {:.1} % of the time, the system had work and other programs had its CPUs (allowed: {:.0} %)",
            share * 100.0,
            WAITED_TOLERANCE * 100.0
        ),
        extent: Some(share),
        remedy: (!passed).then(|| slower.to_owned()),
    }
}
