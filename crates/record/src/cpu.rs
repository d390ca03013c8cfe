//! How this host's processors stood for those of the modelled machine: the slow-motion factor, and its effect in a
//! cell.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::certificate::{CheckId, known_id};

/// Who chose the factor of slow motion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ChosenBy {
    /// `[scale] time` in its file.
    Study,
    /// `--time`
    CommandLine,
    /// The smallest one that this host can keep up with, by measurements before the first cell.
    Host,
}

/// How the factor of slow motion came about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SlowMotion {
    pub chosen_by: ChosenBy,
    /// The study leaves the factor open, so that its `warmup` and `duration` are modelled time.
    #[serde(default)]
    pub times_are_modelled: bool,
    /// The factor from which on the modelled cores fit on the CPUs that this host had for them; absent where the study
    /// names no cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores_need: Option<f64>,
    /// CPUs' worth of time that this host had for the system when that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus_here: Option<f64>,
    /// The factor at which the fastest device kept its latencies at the study's concurrency; absent where that was not
    /// tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices_need: Option<f64>,
    /// The time of a fixed computation on this host's CPUs at their fastest: the speed of the modelled cores. Absent
    /// where the study names no cores, and in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_probe_us: Option<f64>,
    /// Smaller factors that the run began with: cells were measured, found doubtful and thrown away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given_up: Vec<GivenUp>,
}

/// A factor that turned out to be too small for this host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GivenUp {
    pub time: f64,
    /// The id of the cell that showed it.
    pub cell: String,
    /// The failed check in its certificate, in the certificate's words.
    pub finding: String,
    /// Which check failed; absent where this version does not know it.
    #[serde(default, deserialize_with = "known_id", skip_serializing_if = "Option::is_none")]
    pub check_id: Option<CheckId>,
    /// Its name, for people; absent in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
    /// How late requests were by that check, in modelled microseconds; absent where it is about something else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_us: Option<f64>,
    /// How far the check failed, as its certificate had it; absent in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extent: Option<f64>,
}

impl GivenUp {
    /// Older records have no id, and the name alone tells.
    pub(crate) fn identify(&mut self) {
        self.check_id = self.check_id.or_else(|| CheckId::from_title(self.check.as_deref()?));
    }
}

/// How the kernel's list of CPUs reads in a sentence: `CPU 1`, `CPUs 2-3`.
pub fn cpus_in_words(list: &str) -> String {
    let are_several = list.contains(['-', ',']);
    format!("{} {list}", if are_several { "CPUs" } else { "CPU" })
}

/// The processors of a cell while it was measured. Shares are of wall time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuRecord {
    /// Of one node of the modelled system.
    pub modelled_cores: u32,
    /// One server's due CPU time, in this host's CPUs: `modelled_cores` of all its nodes / `scale.time`.
    pub due_cpus: f64,
    /// Its limit: that, or all of `system_cpus` if it is more.
    pub held_to_cpus: f64,
    /// The mechanism that enforced that: `cgroup v1`, `cgroup v2` or `none`.
    pub enforced_by: String,
    /// CPUs that the servers used on average, all of them together.
    pub used_cpus: f64,
    /// How many servers that were; 1 in older records.
    #[serde(default = "one_server")]
    pub servers: u32,
    /// The share of the quota's periods in which a server had used up its share, of several servers that of the one
    /// which did so most often; 0 where whole CPUs needed no quota.
    pub throttled_share: f64,
    /// The share of what all servers were due that they wanted and could not have, because this host has too few CPUs
    /// or the hypervisor or other programs had them.
    pub lost_share: f64,
    /// The share of the time in which the server had something to run and none of it ran, because other programs or a
    /// hypervisor had its CPUs. It is the kernel's pressure stall information less waits for the quota, plus its part
    /// of CPU steal there. Absent where that is unknown: the kernel doesn't count it, several servers share CPUs, or
    /// there is one CPU for everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_share: Option<f64>,
    /// The CPUs that servers ran on, by the kernel's numbers: `1`, `2-3`.
    pub system_cpus: String,
    /// The share of their time that the hypervisor took.
    pub system_stolen_share: f64,
    /// The CPUs of the load generator and the modelled devices.
    pub emulation_cpus: String,
    /// The share of their time that was neither idle nor stolen.
    pub emulation_busy_share: f64,
    pub emulation_stolen_share: f64,
    /// How many threads of the load generator and of the devices' processes were ready to run without a CPU, on
    /// average: the scheduler's own account. Absent where no thread of ours stands for a client, and in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulation_waiting_threads: Option<f64>,
    /// Mean CPU time of a fixed computation of ours, run every 0.1 s on the system's CPUs: to be compared with other
    /// cells of the run. A core that a hypervisor shares with another guest takes longer. Absent in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_probe_us: Option<f64>,
    /// The same computation's shortest time seen on this host's CPUs; on real storage, while all of them compute.
    /// Absent in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_probe_us: Option<f64>,
    /// How many times as much CPU time as `due_cpus` the servers were given, on average, because CPUs are slower than
    /// that. Absent where nothing was given for it, and in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_slowdown: Option<f64>,
    /// How often a thread of ours made the kernel choose again who runs on the system's CPUs, a thousand times a second
    /// on each that hardly ever rested. None where all of them rested, and where no thread of ours may outrank others.
    #[serde(default, skip_serializing_if = "is_none")]
    pub extra_ticks: u64,
}

impl CpuRecord {
    /// How many times as long as at its fastest the computation took, where that was measured.
    pub fn slowdown(&self) -> Option<f64> {
        let (took_us, reference_us) = self.speed_probe_us.zip(self.reference_probe_us)?;
        (reference_us > 0.0 && took_us > 0.0).then(|| took_us / reference_us)
    }

    /// One server's CPU time, to compare with its due.
    pub fn used_by_each_cpus(&self) -> f64 {
        self.used_cpus / f64::from(self.servers.max(1))
    }

    /// The CPU time that the servers would have used of CPUs at their fastest. Records that don't tell have used them
    /// as they were.
    pub fn used_at_reference_cpus(&self) -> f64 {
        match self.allowed_slowdown {
            Some(_) => self.used_cpus / self.slowdown().unwrap_or(1.0),
            None => self.used_cpus,
        }
    }
}

fn one_server() -> u32 {
    1
}

fn is_none(count: &u64) -> bool {
    *count == 0
}
