//! Finding every process that commands of a system started, also those that left its session: by its control groups, and where there
//! are none by a variable of their environment and by the network that they are in. A program may overwrite its environment.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long processes may take to be gone once they have been killed.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// How long init may take to reap what was killed. Some containers have one that never does.
const REAP_LIMIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);
/// More than this of an environment is not looked at.
const MAX_ENVIRONMENT_BYTES: u64 = 1 << 20;

/// The variable whose value every process inherits.
pub(super) const MARK: &str = "UNDERLAY_PROGRAM";

/// The processes of one started program.
#[derive(Clone, Debug)]
pub(super) struct Crew {
    /// The files of its control groups that list their processes.
    pub lists: Vec<PathBuf>,
    /// What [`MARK`] begins with.
    pub mark: String,
    /// Everything in this network namespace belongs to the program.
    pub network: Option<u64>,
}

impl Crew {
    /// All that run now.
    pub(super) fn members(&self) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        for list in &self.lists {
            let text = std::fs::read_to_string(list).unwrap_or_default();
            // Zero stands for a process that this namespace can't see.
            found.extend(
                text.lines().filter_map(|line| line.trim().parse::<u32>().ok()).filter(|pid| *pid != 0),
            );
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
        self.members().into_iter().for_each(|pid| signal(pid, Signal::TERM));
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
            for pid in left {
                signal(pid, Signal::KILL);
                killed.insert(pid);
            }
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

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // Fails only if it is gone.
        let _ = kill_process(pid, signal);
    }
}

fn is_zombie(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before it is in parentheses and may hold anything.
    status.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
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
