//! Processes that were stopped by a signal or a debugger, or frozen with their control group, as observed from outside
//! through `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::processes::ProcessId;

/// More processes than a cell has here; the rest of a longer list is ignored.
const MAX_PROCESSES: usize = 1024;
/// The number of generations of processes to follow.
const MAX_DEPTH: usize = 16;

/// A process, and how to check whether it is stopped.
#[derive(Clone, Debug)]
pub struct WatchedProcess {
    pub id: ProcessId,
    /// Its name in the kernel.
    pub name: String,
    /// Files that show that its control group is frozen, in each hierarchy that can freeze it.
    freezers: Vec<PathBuf>,
}

impl WatchedProcess {
    fn from_pid(pid: u32) -> Option<WatchedProcess> {
        let id = ProcessId::from_pid(pid)?;
        let process = process(pid);
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default().trim().to_owned();
        let groups = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
        let freezers = freezers(&groups, Path::new("/sys/fs/cgroup"));
        Some(WatchedProcess { id, name, freezers })
    }

    /// Whether it is stopped, traced or frozen at this moment.
    pub fn stands_still(&self, frozen: &mut FrozenGroups) -> bool {
        let stat = fs::read_to_string(process(self.id.pid).join("stat")).unwrap_or_default();
        let is_stopped = state(&stat).is_some_and(|state| matches!(state, 'T' | 't'));
        is_stopped || self.freezers.iter().any(|freezer| frozen.has(freezer))
    }
}

/// Which control groups are frozen, each looked up once.
#[derive(Debug, Default)]
pub struct FrozenGroups(BTreeMap<PathBuf, bool>);

impl FrozenGroups {
    fn has(&mut self, file: &Path) -> bool {
        if let Some(cached) = self.0.get(file) {
            return *cached;
        }
        let is_frozen = says_frozen(&fs::read_to_string(file).unwrap_or_default());
        self.0.insert(file.to_owned(), is_frozen);
        is_frozen
    }
}

/// If there are more new numbers than this between two samples, they are left to the next listing: the host starts many
/// processes that are not ours.
const MAX_NEW: u32 = 128;

/// All processes that this one has started, with their children, and those in some control groups, as they start and
/// end.
#[derive(Debug, Default)]
pub struct RunProcesses {
    groups: Vec<PathBuf>,
    known: BTreeMap<u32, WatchedProcess>,
    /// The latest number that the kernel had given to a process or thread.
    newest: Option<u32>,
}

impl RunProcesses {
    /// None yet.
    pub fn from_groups(groups: Vec<PathBuf>) -> RunProcesses {
        RunProcesses { groups, ..RunProcesses::default() }
    }

    /// Lists them again. This reads several files for each of their threads.
    pub fn list(&mut self) {
        // Before the listing: processes that start meanwhile are checked again.
        self.newest = newest();
        let all = find_run_processes(self.groups.iter().map(PathBuf::as_path));
        self.known = all.into_iter().map(|process| (process.id.pid, process)).collect();
    }

    /// Adds processes that started since, at the cost of one file, and one more for each group and each new process:
    /// those in the groups, and those with a known parent.
    pub fn add_new(&mut self) {
        let in_groups: Vec<u32> = self.groups.iter().flat_map(|group| members(group)).collect();
        for pid in in_groups {
            self.add(pid);
        }
        let (before, now) = (self.newest, newest());
        self.newest = now;
        let (Some(before), Some(now)) = (before, now) else { return };
        // The numbers eventually wrap around, which the next listing corrects.
        if now <= before || now - before > MAX_NEW {
            return;
        }
        for pid in before + 1..=now {
            if self.was_started_here(pid) {
                self.add(pid);
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &WatchedProcess> {
        self.known.values()
    }

    fn add(&mut self, pid: u32) {
        let is_new = !self.known.contains_key(&pid) && pid != std::process::id();
        if is_new
            && self.known.len() < MAX_PROCESSES
            && let Some(process) = WatchedProcess::from_pid(pid)
        {
            self.known.insert(pid, process);
        }
    }

    /// Whether this is the number of a process started by this one or by a known one.
    fn was_started_here(&self, pid: u32) -> bool {
        let stat = fs::read_to_string(process(pid).join("stat")).unwrap_or_default();
        let is_ours = parent(&stat)
            .is_some_and(|parent| parent == std::process::id() || self.known.contains_key(&parent));
        // A thread has a number too, and the same parent as its process.
        is_ours && leader(&fs::read_to_string(process(pid).join("status")).unwrap_or_default()) == Some(pid)
    }
}

/// From `/proc/loadavg`, whose last field is that number.
fn newest() -> Option<u32> {
    fs::read_to_string("/proc/loadavg").ok()?.split_ascii_whitespace().last()?.parse().ok()
}

/// The fourth field of `/proc/PID/stat`.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// From `/proc/PID/status`, the number of the process that a thread belongs to.
fn leader(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// The processes in a control group.
fn members(group: &Path) -> Vec<u32> {
    let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    // Processes of another namespace have no number here.
    listed.lines().filter_map(|line| line.trim().parse::<u32>().ok()).filter(|pid| *pid != 0).collect()
}

/// All processes that this one has started, with their children, and those in the control groups `groups`.
fn find_run_processes<'g>(groups: impl Iterator<Item = &'g Path>) -> Vec<WatchedProcess> {
    let own = std::process::id();
    let mut found = BTreeSet::new();
    let mut generation = vec![own];
    generation.extend(groups.flat_map(members));
    for _ in 0..MAX_DEPTH {
        let mut next = Vec::new();
        for pid in generation {
            if found.len() < MAX_PROCESSES && found.insert(pid) {
                next.extend(children(pid));
            }
        }
        if next.is_empty() {
            break;
        }
        generation = next;
    }
    found.remove(&own);
    found.into_iter().filter_map(WatchedProcess::from_pid).collect()
}

fn process(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// Empty on kernels without CONFIG_PROC_CHILDREN.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(process(pid).join("task")).into_iter().flatten().flatten();
    threads
        .take(MAX_PROCESSES)
        .flat_map(|thread| {
            let listed = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            listed.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

/// The third field of `/proc/PID/stat`, after a name that may contain anything.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Reads `/proc/PID/cgroup`, lines of `number:controllers:path`. Version 1 has a separate freezer; in version 2 each
/// group can be frozen.
fn freezers(groups: &str, root: &Path) -> Vec<PathBuf> {
    let file_of = |line: &str| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        // `..` refers to a group outside of this namespace.
        let path = path.strip_prefix('/').filter(|path| !path.split('/').any(|part| part == ".."))?;
        if controllers.split(',').any(|controller| controller == "freezer") {
            return Some(vec![root.join("freezer").join(path).join("freezer.state")]);
        }
        let places = ["", "unified"].map(|place| root.join(place).join(path).join("cgroup.events"));
        controllers.is_empty().then(|| places.into())
    };
    groups.lines().filter_map(file_of).flatten().filter(|file| file.exists()).collect()
}

/// `FROZEN` and `FREEZING` of version 1, `frozen 1` among the lines of version 2.
fn says_frozen(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    lines.any(|line| matches!(line, "FROZEN" | "FREEZING" | "frozen 1"))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use proptest::prelude::*;
    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[test]
    fn states_are_read_behind_any_name() {
        assert_eq!(state("12 (sleep) S 1 12 12"), Some('S'));
        assert_eq!(state("12 (a) T (b) t) T 1 12"), Some('T'));
        assert_eq!(state("12 (sleep"), None);
    }

    #[test]
    fn parents_and_the_processes_of_threads_are_read() {
        assert_eq!(parent("12 (a) T (b) t) T 7 12"), Some(7));
        assert_eq!(parent("12 (sleep) S"), None);
        assert_eq!(leader("Name:\tTgid: 5\nUmask:\t0022\nTgid:\t12\nPid:\t13\n"), Some(12));
        assert_eq!(leader(""), None);
    }

    /// For example a process of a benchmark that starts in the measured time: it may be stopped and continued before
    /// the next listing.
    #[test]
    fn new_process_is_found_on_next_look() {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let mut processes = RunProcesses::from_groups(Vec::new());
            processes.list();
            let shell = Command::new("sh").args(["-c", "sleep 600 & wait"]).spawn().unwrap();
            let shell = Ended(shell);
            let sleeper = loop {
                match children(shell.0.id()).first() {
                    Some(&pid) => break pid,
                    None => assert!(Instant::now() < deadline),
                }
            };
            processes.add_new();
            let is_known = |pid: u32| processes.iter().any(|process| process.id.pid == pid);
            let are_known = is_known(shell.0.id()) && is_known(sleeper);
            let _ = kill_process(Pid::from_raw(sleeper as i32).unwrap(), Signal::KILL);
            // If the host starts hundreds at this moment, the next listing has them.
            if are_known {
                break;
            }
            assert!(Instant::now() < deadline);
        }
    }

    #[test]
    fn thread_is_not_a_separate_process() {
        let (over, ended) = std::sync::mpsc::channel::<()>();
        let mut processes = RunProcesses::from_groups(Vec::new());
        processes.list();
        // The parent of a thread is its process's parent.
        let Some(parent) = WatchedProcess::from_pid(std::os::unix::process::parent_id()) else { return };
        processes.known.insert(parent.id.pid, parent);
        let thread = std::thread::spawn(move || ended.recv());
        processes.add_new();
        let of_threads = processes.iter().filter(|watched| {
            let status = fs::read_to_string(process(watched.id.pid).join("status"));
            status.is_ok_and(|status| leader(&status) != Some(watched.id.pid))
        });
        assert_eq!(of_threads.count(), 0);
        drop(over);
        let _ = thread.join().unwrap();
    }

    #[test]
    fn freezers_of_both_versions_are_found() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str, text: &str| {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text).unwrap();
            file
        };
        let old = make("freezer/a/freezer.state", "FROZEN\n");
        let new = make("unified/b/cgroup.events", "populated 1\nfrozen 0\n");
        let found = freezers("9:freezer:/a\n4:memory:/b\n0::/b\n1:name=x:/../c\nnonsense\n", root.path());
        assert_eq!(found, [old.clone(), new.clone()]);
        let mut frozen = FrozenGroups::default();
        assert!(frozen.has(&old) && !frozen.has(&new));
        assert!(says_frozen("populated 1\nfrozen 1\n") && !says_frozen("THAWED\n"));
    }

    proptest! {
        #[test]
        fn any_list_of_groups_is_read(text in "([0-9]{1,2}:[a-z,]{0,9}:(/\\.\\.)?/[a-z/]{0,9}\n|[^\n]{0,9}\n){0,6}") {
            let root = tempfile::tempdir().unwrap();
            prop_assert!(freezers(&text, root.path()).is_empty());
        }
    }

    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn stopped_grandchild_is_found() {
        let shell = Command::new("sh").args(["-c", "sleep 600 & wait"]).spawn().unwrap();
        let shell = Ended(shell);
        let deadline = Instant::now() + Duration::from_secs(60);
        let sleeper = loop {
            let pids = children(shell.0.id());
            let slept =
                pids.into_iter().filter_map(WatchedProcess::from_pid).find(|watched| watched.name == "sleep");
            match slept {
                Some(slept) => break slept.id,
                None => assert!(Instant::now() < deadline),
            }
        };
        let is_still = || {
            let all = find_run_processes(std::iter::empty());
            let found = all.iter().find(|watched| watched.id == sleeper).expect("it is there");
            found.stands_still(&mut FrozenGroups::default())
        };
        assert!(!is_still());
        let pid = Pid::from_raw(sleeper.pid as i32).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        while !is_still() {
            assert!(Instant::now() < deadline);
        }
        kill_process(pid, Signal::CONT).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    }
}
