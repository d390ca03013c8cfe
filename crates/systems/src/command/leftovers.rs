//! Finding every process that commands of a system started, also those that left its session: by its control groups,
//! and where there are none by a variable of their environment and by the network that they are in. A program may
//! overwrite its environment.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// How long processes may take to be gone once they have been killed.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// How long init may take to reap what was killed. Some containers have one that never does.
const REAP_LIMIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);
/// More than this of an environment is not looked at.
const MAX_ENVIRONMENT_BYTES: u64 = 1 << 20;

/// Nobody nests control groups deeper.
const MAX_GROUPS_DEEP: usize = 8;

/// The variable whose value every process inherits.
pub(super) const MARK: &str = "UNDERLAY_PROGRAM";

/// The processes of one started program.
#[derive(Clone, Debug)]
pub(super) struct ProgramProcesses {
    /// The files of its control groups that list their processes.
    pub lists: Vec<PathBuf>,
    /// The beginning of [`MARK`].
    pub mark: String,
    /// Everything in this network namespace belongs to the program.
    pub network: Option<u64>,
}

impl ProgramProcesses {
    /// All that run now.
    pub(super) fn members(&self) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        for list in &self.lists {
            found.extend(listed(list));
            // A program may have made groups below its own.
            found.extend(list.parent().into_iter().flat_map(|group| listed_below(group, MAX_GROUPS_DEEP)));
        }
        if self.lists.is_empty() {
            let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
            let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
            let is_ours = |pid: &u32| {
                self.network.is_some_and(|number| is_in(*pid, number)) || has_mark(*pid, &self.mark)
            };
            found.extend(pids.filter(is_ours));
        }
        found.remove(&std::process::id());
        found.retain(|pid| !is_zombie(*pid));
        found
    }

    /// The names of those that run now, for a message: `postgres (4711)`.
    pub(super) fn names(&self, besides: &BTreeSet<u32>) -> Vec<String> {
        let others = self.members().into_iter().filter(|pid| !besides.contains(pid));
        others
            .map(|pid| {
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                format!("{} ({pid})", name.trim())
            })
            .collect()
    }

    /// Asks all of them to end.
    pub(super) fn terminate(&self) {
        self.signal(&self.members(), Signal::TERM);
    }

    /// Between finding a number and signalling it, it may become another process's: so each is held, and looked at
    /// again.
    fn signal(&self, pids: &BTreeSet<u32>, signal: Signal) {
        let processes: Vec<(u32, HeldProcess)> =
            pids.iter().filter_map(|&pid| Some((pid, hold(pid)?))).collect();
        let members = self.members();
        for (_, process) in processes.iter().filter(|(pid, _)| members.contains(pid)) {
            process.signal(signal);
        }
    }

    /// Waits until none is left, and says whether that was so within `limit`.
    pub(super) fn wait_until_gone(&self, besides: &BTreeSet<u32>, limit: Duration) -> bool {
        let begun = Instant::now();
        while !self.members().is_subset(besides) {
            if begun.elapsed() > limit {
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }

    /// Kills all but these. Again in every round, as a process may fork before its signal arrives.
    pub(super) fn kill(&self, besides: &BTreeSet<u32>) {
        let begun = Instant::now();
        let mut killed = BTreeSet::new();
        loop {
            let mut left = self.members();
            left.retain(|pid| !besides.contains(pid));
            if left.is_empty() || begun.elapsed() > KILL_LIMIT {
                break;
            }
            self.signal(&left, Signal::KILL);
            killed.append(&mut left);
            std::thread::sleep(POLL);
        }
        // A number that init has not taken back yet looks alive to a program that finds it in a lock file.
        let begun = Instant::now();
        let is_there = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists() && is_zombie(*pid);
        while killed.iter().any(is_there) && begun.elapsed() < REAP_LIMIT {
            std::thread::sleep(POLL);
        }
    }
}

/// The processes of a control group.
fn listed(list: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(list).unwrap_or_default();
    // Zero stands for a process that this namespace can't see.
    text.lines().filter_map(|line| line.trim().parse::<u32>().ok()).filter(|pid| *pid != 0).collect()
}

/// Those of the groups below one.
fn listed_below(group: &Path, depth: usize) -> Vec<u32> {
    let entries = std::fs::read_dir(group).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let of_group = |group: PathBuf| {
        let mut found = listed(&group.join("cgroup.procs"));
        if depth > 0 {
            found.append(&mut listed_below(&group, depth - 1));
        }
        found
    };
    groups.flat_map(|entry| of_group(entry.path())).collect()
}

/// A process by its number. Where the kernel allows it, it is held so that the number is no other's.
struct HeldProcess {
    pid: Pid,
    descriptor: Option<OwnedFd>,
}

/// Nothing where it is gone.
fn hold(pid: u32) -> Option<HeldProcess> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(descriptor) => Some(HeldProcess { pid, descriptor: Some(descriptor) }),
        Err(Errno::SRCH) => None,
        // Linux before 5.3 has no such descriptors, and some sandboxes refuse them.
        Err(_) => Some(HeldProcess { pid, descriptor: None }),
    }
}

impl HeldProcess {
    fn signal(&self, signal: Signal) {
        let sent = self.descriptor.as_ref().map(|descriptor| pidfd_send_signal(descriptor, signal));
        if sent.is_none_or(|sent| sent.is_err_and(|errno| errno != Errno::SRCH)) {
            let _ = kill_process(self.pid, signal);
        }
    }
}

fn is_zombie(pid: u32) -> bool {
    is_over(&std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default())
}

/// Whether a process has ended, by its line in `/proc` (proc_pid_stat(5)). One whose first thread has ended shows as a
/// zombie while the others run on.
fn is_over(stat: &str) -> bool {
    // The name before it is in parentheses and may hold anything.
    stat.rsplit_once(") ").is_none_or(|(_, rest)| {
        let mut fields = rest.split_ascii_whitespace();
        let is_dead = matches!(fields.next(), Some("Z" | "X"));
        // The 20th field; the state is the third.
        let threads = fields.nth(16).and_then(|threads| threads.parse::<u64>().ok());
        is_dead && threads.is_none_or(|threads| threads <= 1)
    })
}

fn has_mark(pid: u32, mark: &str) -> bool {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let path = PathBuf::from(format!("/proc/{pid}/environ"));
    let read = |path: &Path, bytes: &mut Vec<u8>| -> std::io::Result<usize> {
        std::fs::File::open(path)?.take(MAX_ENVIRONMENT_BYTES).read_to_end(bytes)
    };
    if read(&path, &mut bytes).is_err() {
        return false;
    }
    let wanted = format!("{MARK}={mark}");
    bytes.split(|byte| *byte == 0).any(|variable| variable.starts_with(wanted.as_bytes()))
}

fn is_in(pid: u32, network: u64) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|found| found.ino() == network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_ends_with_its_last_thread() {
        let stat = |state: &str, threads: u32| {
            format!("7 (a) Z b) {state} 1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 {threads} 0 100 0 0\n")
        };
        assert!(is_over(&stat("Z", 1)) && is_over(&stat("X", 0)) && is_over(""));
        assert!(!is_over(&stat("Z", 2)) && !is_over(&stat("S", 1)) && !is_over(&stat("R", 9)));
    }
}
