//! Processes in `/proc`: which are alive, which hold a path open, and how to end one.

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use underlay_files::mountinfo;

/// A process, identified so that a later one with the same number is not mistaken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: u32,
    /// When it started, in clock ticks since boot: field 22 of `/proc/PID/stat` (proc_pid_stat(5)).
    pub start_ticks: u64,
}

impl ProcessId {
    /// `None` when there is no such process, or only a zombie of it.
    pub fn from_pid(pid: u32) -> Option<ProcessId> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, start_ticks) = parse_stat(&stat)?;
        (!matches!(state, 'Z' | 'X')).then_some(ProcessId { pid, start_ticks })
    }

    pub fn current() -> ProcessId {
        let pid = std::process::id();
        // Without /proc nothing identifies a process; zero then compares equal to itself only.
        ProcessId::from_pid(pid).unwrap_or(ProcessId { pid, start_ticks: 0 })
    }

    pub fn is_alive(&self) -> bool {
        ProcessId::from_pid(self.pid) == Some(*self)
    }

    /// Sends a signal, if it is still this process.
    pub fn signal(&self, signal: Signal) {
        // A process that has ended needs no signal.
        signal_if(self.pid, signal, || self.is_alive());
    }

    /// Waits until it has ended; false when `limit` passes first.
    pub fn wait_gone(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Sends SIGTERM, and SIGKILL if it has not ended after `grace`; true when it has ended.
    pub fn end(&self, grace: Duration) -> bool {
        self.signal(Signal::TERM);
        if self.wait_gone(grace) {
            return true;
        }
        self.signal(Signal::KILL);
        self.wait_gone(Duration::from_secs(5))
    }
}

/// Sends a signal to the process with this number if it is the intended one. The process is held during the check, so
/// that its number can't refer to another one by then.
pub(crate) fn signal_if(pid: u32, signal: Signal, is_meant: impl Fn() -> bool) {
    let open = |pid| pidfd_open(pid, PidfdFlags::empty());
    signal_by(open, |pidfd, signal| pidfd_send_signal(pidfd, signal), pid, signal, is_meant);
}

/// Where a kernel before Linux 5.3 or a sandbox refuses to hold a process, its number and start time identify it.
fn signal_by<Held>(
    open: impl Fn(Pid) -> rustix::io::Result<Held>,
    send: impl Fn(&Held, Signal) -> rustix::io::Result<()>,
    pid: u32,
    signal: Signal,
    is_meant: impl Fn() -> bool,
) {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    let before = ProcessId::from_pid(pid);
    let pidfd = open(number);
    if pidfd.as_ref().err() == Some(&Errno::SRCH) || !is_meant() {
        return;
    }
    let sent = pidfd.and_then(|pidfd| send(&pidfd, signal));
    // After a refusal for lack of rights, the attempt is repeated, which does no harm.
    if sent.is_err_and(|errno| errno != Errno::SRCH) && before.is_some() && ProcessId::from_pid(pid) == before
    {
        let _ = kill_process(number, signal);
    }
}

/// State and start time of a `/proc/PID/stat` line. The command name before them may hold blanks and brackets.
pub fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // The state is field 3, the start time field 22.
    let start_ticks = fields.nth(18)?.parse().ok()?;
    Some((state, start_ticks))
}

/// Identifies one boot of this machine; empty when the kernel doesn't report it.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// All processes that this one may see.
pub fn all() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The short name of a process: `cassandra`, `bash`.
pub(crate) fn command_name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .map(|name| name.trim().to_owned())
        .unwrap_or_else(|_| "?".into())
}

/// Processes whose command line, starting with the program, matches.
pub(crate) fn matching(is_wanted: impl Fn(&[OsString]) -> bool) -> Vec<ProcessId> {
    let matches = |pid: u32| {
        // The identity first: if the number is reused in between, it no longer matches.
        let process = ProcessId::from_pid(pid)?;
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let line = line.strip_suffix(&[0]).unwrap_or(&line);
        let arguments: Vec<OsString> =
            line.split(|byte| *byte == 0).map(|argument| OsString::from_vec(argument.to_vec())).collect();
        is_wanted(&arguments).then_some(process)
    };
    all().into_iter().filter_map(matches).collect()
}

/// An environment variable of a study's program and all its children: their private directory.
const PROGRAM_S_DIRECTORY: &str = "UNDERLAY_SCRATCH=";
/// A host with thousands of containers has several megabytes.
const MAX_MOUNTINFO_BYTES: u64 = 16 << 20;
/// Only this much of an environment is checked.
const MAX_ENVIRONMENT_BYTES: u64 = 1 << 20;

/// The processes of programs whose directory is below `path`, as far as they have kept their initial environment.
pub(crate) fn list_programs_below(path: &Path) -> Vec<ProcessId> {
    let is_one = |pid: u32| {
        // The identity first, as above.
        let process = ProcessId::from_pid(pid)?;
        let mut environment = Vec::new();
        let file = fs::File::open(format!("/proc/{pid}/environ")).ok()?;
        file.take(MAX_ENVIRONMENT_BYTES).read_to_end(&mut environment).ok()?;
        let mut variables = environment.split(|byte| *byte == 0);
        let directory = variables.find_map(|each| each.strip_prefix(PROGRAM_S_DIRECTORY.as_bytes()))?;
        let directory = PathBuf::from(OsString::from_vec(directory.to_vec()));
        (directory.starts_with(path) && pid != std::process::id()).then_some(process)
    };
    all().into_iter().filter_map(is_one).collect()
}

/// A process that keeps a filesystem from being unmounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesystemHolder {
    pub pid: u32,
    pub command: String,
    /// The path that it uses: an open file, or its working directory.
    pub path: PathBuf,
}

impl std::fmt::Display for FilesystemHolder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} (process {}) uses {}", self.command, self.pid, self.path.display())
    }
}

/// The processes with a file, a mapping or a working directory below `directory`; one entry per process.
pub fn holders(directory: &Path) -> Vec<FilesystemHolder> {
    holding(directory, |_| true)
}

/// The same where the file system of this block device is mounted. Another mount namespace may have a different one at
/// the same path.
pub(crate) fn holders_on(directory: &Path, device: &Path) -> Vec<FilesystemHolder> {
    let Ok(number) = fs::metadata(device).map(|device| device.rdev()) else { return holders(directory) };
    // One that can't be checked may be on it.
    holding(directory, |link| fs::metadata(link).map_or(true, |found| found.dev() == number))
}

/// `is_meant` is called for the links of `/proc` that lead below `directory`.
fn holding(directory: &Path, is_meant: impl Fn(&Path) -> bool) -> Vec<FilesystemHolder> {
    let found = |pid: &u32| {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let links = ["cwd", "root", "exe"].into_iter().map(|name| process.join(name));
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
        let by_link = links.chain(open).find_map(|link| {
            let path = fs::read_link(&link).ok().filter(|path| path.starts_with(directory))?;
            is_meant(&link).then_some(path)
        });
        by_link.or_else(|| mapped_below(&process, directory))
    };
    all()
        .into_iter()
        .filter_map(|pid| found(&pid).map(|path| FilesystemHolder { pid, command: command_name(pid), path }))
        .collect()
}

/// A program in another mount namespace in which a device is mounted too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountedElsewhere {
    pid: u32,
    command: String,
    /// Its name in the kernel: `mnt:[4026532573]`.
    namespace: PathBuf,
    /// Unmounting here leaves it mounted there.
    pub is_private: bool,
}

impl std::fmt::Display for MountedElsewhere {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let MountedElsewhere { pid, command, namespace, .. } = self;
        write!(
            formatter,
            "{command} (process {pid}) has it mounted in its mount namespace {}",
            namespace.display()
        )
    }
}

/// Programs in other mount namespaces in which this device is mounted, one for each namespace.
pub(crate) fn mounted_elsewhere(device: &Path) -> Vec<MountedElsewhere> {
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let mut seen: Vec<PathBuf> = namespace(std::process::id()).into_iter().collect();
    let mut found = Vec::new();
    for pid in all() {
        let Some(own) = namespace(pid).filter(|own| !seen.contains(own)) else { continue };
        seen.push(own.clone());
        let mut text = Vec::new();
        let opened = fs::File::open(format!("/proc/{pid}/mountinfo"));
        let read = opened.and_then(|file| file.take(MAX_MOUNTINFO_BYTES).read_to_end(&mut text));
        let table = read.map(|_| mountinfo::parse(&text)).unwrap_or_default();
        let mut mounted = table.iter().filter(|mount| mount.source == device).peekable();
        if mounted.peek().is_some() {
            let is_private = mounted.any(|mount| mount.is_private);
            found.push(MountedElsewhere { pid, command: command_name(pid), namespace: own, is_private });
        }
    }
    found
}

fn mapped_below(process: &Path, directory: &Path) -> Option<PathBuf> {
    let maps = fs::read_to_string(process.join("maps")).ok()?;
    maps.lines()
        .filter_map(|line| line.find('/').map(|start| PathBuf::from(&line[start..])))
        .find(|path| path.starts_with(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_fields_survive_brackets_and_blanks_in_command() {
        let plain = "42 (sh) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1000 10 rest";
        let nasty = plain.replace("(sh)", "(a) R 9 (b )");
        assert_eq!(parse_stat(plain), Some(('S', 987_654)));
        assert_eq!(parse_stat(&nasty), Some(('S', 987_654)));
        assert_eq!(parse_stat("42 (sh) S 1"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn process_is_alive_until_end_despite_reused_pid() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let id = ProcessId::from_pid(child.id()).unwrap();
        assert!(id.is_alive());
        assert!(!ProcessId { start_ticks: id.start_ticks + 1, ..id }.is_alive());
        // A zombie is not alive, so this succeeds before the parent has collected it.
        assert!(id.end(Duration::from_secs(10)));
        child.wait().unwrap();
    }

    #[test]
    fn signal_without_pidfd_support_uses_pid() {
        let refused = |_: Pid| Err::<(), Errno>(Errno::NOSYS);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let id = ProcessId::from_pid(child.id()).unwrap();
        signal_by(refused, |(), _| Ok(()), id.pid, Signal::KILL, || false);
        assert!(id.is_alive());
        signal_by(refused, |(), _| Ok(()), id.pid, Signal::KILL, || id.is_alive());
        assert!(id.wait_gone(Duration::from_secs(10)));
        child.wait().unwrap();
        // Or where it holds it and accepts no signal.
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let id = ProcessId::from_pid(child.id()).unwrap();
        signal_by(|_| Ok(()), |(), _| Err(Errno::PERM), id.pid, Signal::KILL, || id.is_alive());
        assert!(id.wait_gone(Duration::from_secs(10)));
        child.wait().unwrap();
    }

    #[test]
    fn program_is_recognized_by_directory() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("scratch-0/program");
        let mut child =
            std::process::Command::new("sleep").arg("60").env("UNDERLAY_SCRATCH", &place).spawn().unwrap();
        let id = ProcessId::from_pid(child.id()).unwrap();
        // The child has this process's environment until it runs its program.
        let deadline = Instant::now() + Duration::from_secs(10);
        while list_programs_below(directory.path()) != [id] {
            assert!(Instant::now() < deadline);
        }
        assert_eq!(list_programs_below(&directory.path().join("scratch")), []);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn process_with_cwd_in_directory_is_a_holder() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").current_dir(&path).spawn().unwrap();
        // The child changes its directory between fork and exec.
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut found = Vec::new();
        while found.is_empty() && Instant::now() < deadline {
            found = holders(&path);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.iter().map(|holder| holder.pid).collect::<Vec<_>>(), [child.id()]);
    }
}
