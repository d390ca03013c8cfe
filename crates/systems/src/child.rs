//! A child process that runs a data system. It starts inside its memory budget and on its CPUs, never outlives this
//! process, and how it ended is part of every error that it causes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{Gid, Uid};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process, kill_process_group, waitid,
};
use rustix::thread::{
    CpuSet, UnshareFlags, sched_setaffinity, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use underlay_sync::{Condvar, Mutex, slices};

use crate::mount_namespace::enter_own_mounts;
use crate::printed::OutputPipe;
use crate::system::{SystemError, SystemResources};

/// How much of the log goes into an error.
const LOG_TAIL_BYTES: u64 = 2 << 10;
const LOG_TAIL_LINES: usize = 15;
/// How long an error about a broken socket waits for the process to be reaped, so that it can say how the process died.
/// The kernel closes the sockets of a killed process first.
pub(crate) const OBITUARY_WAIT: Duration = Duration::from_millis(500);
/// A killed process of many threads and much memory takes seconds to go.
const KILL_LIMIT: Duration = Duration::from_secs(60);
/// The exit status of a Java program that ended because of SIGTERM: 128 plus the signal's number.
const JAVA_ENDED_AS_ASKED: i32 = 128 + 15;

/// Runs first on the thread that forks.
type ForkPreparation = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// How a child comes into being, and what ends with it.
#[derive(Default)]
struct ChildOptions {
    prepare: Option<ForkPreparation>,
    /// Leftover processes in its group are killed when it ends.
    ends_group: bool,
    /// Whom it becomes last of all.
    user: Option<(Uid, Gid)>,
    /// It prints into a pipe, and the log keeps so much of that. Without one it has the log itself.
    printed_limit_bytes: Option<u64>,
}

/// The process's state. Everything that may have to explain its silence shares this.
#[derive(Debug)]
pub struct ChildState {
    system: &'static str,
    /// The name of the process in messages: that of the system, or its own where a system has several processes.
    name: String,
    pid: Pid,
    log: PathBuf,
    resources: SystemResources,
    oom_kills_before: u64,
    end: Mutex<ChildEnding>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct ChildEnding {
    over: bool,
    /// Unknown if something else reaped the process.
    status: Option<ExitStatus>,
    killed_by_us: bool,
    killed_by_budget: bool,
}

/// A running child. Dropping it kills its process group and waits for the end.
#[derive(Debug)]
pub struct ChildProcess {
    state: Arc<ChildState>,
    keeper: Option<JoinHandle<()>>,
}

impl ChildProcess {
    /// Starts `command` with its output in the new file `log`. It has a process group of its own, so that Ctrl-C in the
    /// terminal reaches this process alone. It joins every cgroup of `resources` and goes to their CPUs before it runs,
    /// and the kernel kills it if this process dies first.
    ///
    /// # Errors
    /// When the log or the cgroups can't be written to, or the program can't be run, at all or on these CPUs.
    pub fn spawn(
        system: &'static str,
        command: Command,
        log: &Path,
        resources: &SystemResources,
    ) -> Result<ChildProcess, SystemError> {
        Self::spawn_as(system, system, command, log, resources)
    }

    /// Like [`spawn`](Self::spawn), for one of several processes of `system`, which messages call `name`.
    pub(crate) fn spawn_as(
        system: &'static str,
        name: &str,
        mut command: Command,
        log: &Path,
        resources: &SystemResources,
    ) -> Result<ChildProcess, SystemError> {
        command.process_group(0);
        Self::spawn_by(system, name, command, log, resources, ChildOptions::default())
    }

    /// Like [`spawn_as`](Self::spawn_as), in mounts of its own without those of other runs; its own directories are
    /// `own`.
    pub(crate) fn spawn_in_own_mounts(
        system: &'static str,
        name: &str,
        mut command: Command,
        log: &Path,
        resources: &SystemResources,
        own: Vec<PathBuf>,
    ) -> Result<ChildProcess, SystemError> {
        command.process_group(0);
        let prepare = move || {
            let own: Vec<&Path> = own.iter().map(PathBuf::as_path).collect();
            enter_own_mounts(&own, UnshareFlags::empty())
        };
        let birth = ChildOptions { prepare: Some(Box::new(prepare)), ..ChildOptions::default() };
        Self::spawn_by(system, name, command, log, resources, birth)
    }

    /// Like [`spawn`](Self::spawn), for a program that creates its own session: all processes left there are killed
    /// when it ends. `prepare` runs on the thread that forks, which does nothing else, so the child inherits the
    /// namespaces it enters.
    pub(crate) fn spawn_apart(
        system: &'static str,
        command: Command,
        log: &Path,
        prepare: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<ChildProcess, SystemError> {
        let birth =
            ChildOptions { prepare: Some(Box::new(prepare)), ends_group: true, ..ChildOptions::default() };
        Self::spawn_by(system, system, command, log, &SystemResources::unlimited(), birth)
    }

    /// Like [`spawn`](Self::spawn), for a program in a session of its own that becomes `user` once it is in its groups.
    /// `prepare` runs on the thread that forks, as in [`spawn_apart`](Self::spawn_apart). Processes that it started and
    /// left behind stay. It prints into a pipe, whose first `printed_limit_bytes` are in the log.
    pub(crate) fn spawn_session(
        system: &'static str,
        name: &str,
        mut command: Command,
        (log, printed_limit_bytes): (&Path, u64),
        resources: &SystemResources,
        user: Option<(Uid, Gid)>,
        prepare: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<ChildProcess, SystemError> {
        // SAFETY: between fork and exec the closure makes one system call.
        unsafe {
            command.pre_exec(|| {
                // Away from our terminal, which a program could put input into.
                rustix::process::setsid()?;
                Ok(())
            });
        }
        let printed_limit_bytes = Some(printed_limit_bytes);
        let birth =
            ChildOptions { prepare: Some(Box::new(prepare)), ends_group: false, user, printed_limit_bytes };
        Self::spawn_by(system, name, command, log, resources, birth)
    }

    fn spawn_by(
        system: &'static str,
        name: &str,
        mut command: Command,
        log: &Path,
        resources: &SystemResources,
        birth: ChildOptions,
    ) -> Result<ChildProcess, SystemError> {
        let ChildOptions { prepare, ends_group, user, printed_limit_bytes } = birth;
        let failed = move |problem: String| SystemError::starting(system, problem);
        let no_log = |error: io::Error| failed(format!("can't write its log {}: {error}", log.display()));
        let output = File::create(log).map_err(no_log)?;
        let (printed, output) = match printed_limit_bytes {
            Some(limit) => {
                let (printed, end) = OutputPipe::into_log(output, limit, user).map_err(no_log)?;
                (Some(printed), end)
            }
            None => (None, output.into()),
        };
        let errors = output.try_clone().map_err(no_log)?;
        let mut cgroups = Vec::new();
        for path in &resources.join_files {
            let opened = OpenOptions::new().write(true).open(path);
            cgroups.push(opened.map_err(|error| {
                failed(format!("its budget can't be enforced: can't write {}: {error}", path.display()))
            })?);
        }
        let affinity = resources.processors.as_deref().map(affinity).transpose().map_err(failed)?;
        let parent = getpid();
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        // SAFETY: between fork and exec the closure makes a few kinds of system call on data that it owns; it
        // takes no lock and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                // The first process of a PID namespace has no parent that it can see.
                if getppid().is_some_and(|now| now != parent) {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                for mut procs in &cgroups {
                    // "0" is the process that writes, in both versions of cgroups.
                    procs.write_all(b"0")?;
                }
                // Otherwise it would keep the affinity of this process, wherever its groups let it run.
                if let Some(cpus) = &affinity {
                    sched_setaffinity(None, cpus)?;
                    // Other programs on these CPUs must not keep it waiting. A kernel that refuses costs latency alone.
                    let _ = slices::shorten();
                }
                if let Some((uid, gid)) = user {
                    set_no_new_privs(true)?;
                    set_thread_groups(&[])?;
                    set_thread_res_gid(gid, gid, gid)?;
                    set_thread_res_uid(uid, uid, uid)?;
                    // A process that becomes another user loses it.
                    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                }
                Ok(())
            });
        }
        let oom_kills_before = oom_kills(resources);
        let (name, resources, log) = (name.to_owned(), resources.clone(), log.to_owned());
        let (sender, receiver) = mpsc::channel();
        // PR_SET_PDEATHSIG fires when the thread that forked ends, not the process: this thread stays until the child
        // has ended.
        let keeper = std::thread::Builder::new().name(format!("{system}-keeper")).spawn(move || {
            let mut child = match prepare.map_or(Ok(()), |prepare| prepare()).and_then(|()| command.spawn()) {
                Ok(child) => child,
                Err(error) => {
                    let program = command.get_program().display();
                    let place = resources.processors.as_ref().map(|cpus| format!(" on the CPUs {cpus:?}"));
                    let place = place.unwrap_or_default();
                    drop(sender.send(Err(failed(format!("can't run {program}{place}: {error}")))));
                    return;
                }
            };
            let pid = Pid::from_child(&child);
            let state = Arc::new(ChildState {
                system,
                name,
                pid,
                log,
                resources,
                oom_kills_before,
                end: Mutex::default(),
                ended: Condvar::new(),
            });
            drop(sender.send(Ok(Arc::clone(&state))));
            // Reap only under the lock. Until then the pid can't have been reused, so it is safe to signal.
            let waited = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), waited) {}
            let mut end = state.end.lock();
            if ends_group {
                // Until the child is reaped, its pid and so the group can't have been reused. Fails only if the group
                // is empty.
                let _ = kill_process_group(pid, Signal::KILL);
            }
            end.status = child.wait().ok();
            if let Some(printed) = &printed {
                printed.drain();
            }
            end.over = true;
            end.killed_by_budget = oom_kills(&state.resources) > state.oom_kills_before;
            state.ended.notify_all();
        });
        let keeper = keeper.map_err(|error| failed(format!("can't start a thread: {error}")))?;
        match receiver.recv() {
            Ok(Ok(state)) => Ok(ChildProcess { state, keeper: Some(keeper) }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(failed("the thread that starts it panicked".to_owned())),
        }
    }

    pub fn state(&self) -> &Arc<ChildState> {
        &self.state
    }

    /// Kills the process group and waits until it is gone; false if it is not within a minute. A process that waits in
    /// the kernel for a device that hangs ends only with the device.
    pub fn kill(&self) -> bool {
        let mut end = self.state.end.lock();
        if !end.over {
            end.killed_by_us = true;
            // Fails only if the group is gone already.
            let _ = kill_process_group(self.state.pid, Signal::KILL);
        }
        drop(end);
        self.state.wait(KILL_LIMIT)
    }

    /// Waits for a process that has been asked to end, and kills it after `limit`.
    ///
    /// # Errors
    /// When it had to be killed, or its exit status is a failure.
    pub fn wait_for_end(&self, limit: Duration) -> Result<(), SystemError> {
        const DURING: &str = "stopping";
        let state = self.state();
        if !state.wait(limit) {
            let ending = match self.kill() {
                true => "was killed",
                false => "does not end when killed: it waits in the kernel, most likely for its storage",
            };
            let problem =
                format!("{} did not end within {:.0} s and {ending}", state.name(), limit.as_secs_f64());
            return Err(state.failed(DURING, problem));
        }
        match state.exit_code() {
            Some(0 | JAVA_ENDED_AS_ASKED) => Ok(()),
            _ => Err(state.failed(DURING, state.describe())),
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Otherwise its thread goes on, and reaps it once its storage is detached.
        if self.kill()
            && let Some(keeper) = self.keeper.take()
        {
            // A panic of that thread has been printed already, and a drop can't return it.
            let _ = keeper.join();
        }
    }
}

impl ChildState {
    pub fn system(&self) -> &'static str {
        self.system
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits up to `limit` for the process to end, and says whether it has.
    pub fn wait(&self, limit: Duration) -> bool {
        let deadline = Instant::now().checked_add(limit);
        let mut end = self.end.lock();
        while !end.over {
            end = match deadline {
                None => self.ended.wait(end),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    self.ended.wait_timeout(end, left)
                }
            };
        }
        true
    }

    /// Looks every `poll` whether it is `ready`. An error says that the process ended before, or is not yet in
    /// `condition` (`listening`) after `limit`.
    pub(crate) fn wait_until(
        &self,
        during: &'static str,
        condition: &str,
        limit: Duration,
        poll: Duration,
        ready: &dyn Fn() -> Result<bool, SystemError>,
    ) -> Result<(), SystemError> {
        let started = Instant::now();
        while !ready()? {
            if self.wait(poll) {
                return Err(self.failed(during, self.describe()));
            }
            if started.elapsed() > limit {
                let problem =
                    format!("{} and not yet {condition} after {:.0} s", self.describe(), limit.as_secs_f64());
                return Err(self.failed(during, problem));
            }
        }
        Ok(())
    }

    pub fn is_running(&self) -> bool {
        !self.end.lock().over
    }

    /// Its id while it runs.
    pub(crate) fn running_pid(&self) -> Option<u32> {
        self.is_running().then(|| self.pid())
    }

    /// Asks the process to shut down (SIGTERM), and nothing else in its group.
    pub(crate) fn terminate(&self) {
        let end = self.end.lock();
        if !end.over {
            // Fails only if it has ended already.
            let _ = kill_process(self.pid, Signal::TERM);
        }
    }

    /// Its exit status; `None` while it runs, and if a signal ended it.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        self.end.lock().status?.code()
    }

    /// Whether SIGTERM or SIGINT ended it, or a handler of its own did and said so the way shells do.
    pub(crate) fn ended_by_request(&self) -> bool {
        const ASKED: [i32; 2] = [Signal::TERM.as_raw(), Signal::INT.as_raw()];
        let Some(status) = self.end.lock().status else { return false };
        let asked = |signal: &i32| status.signal() == Some(*signal) || status.code() == Some(128 + signal);
        ASKED.iter().any(asked)
    }

    /// Whether it exited with status 0.
    pub fn ended_well(&self) -> bool {
        self.end.lock().status.is_some_and(|status| status.success())
    }

    /// How the process ended, or that it is still running, as a clause that names it.
    pub fn describe(&self) -> String {
        let process = format!("{} (process {})", self.name, self.pid());
        let end = self.end.lock();
        if !end.over {
            return format!("{process} is still running");
        }
        let Some(status) = end.status else { return format!("{process} has ended in an unknown way") };
        match status.signal() {
            Some(_) if end.killed_by_us => format!("{process} was killed by underlay"),
            // Tools and clients are in a group without a budget.
            Some(9) if end.killed_by_budget && self.resources.budget_bytes == u64::MAX => {
                format!("{process} was killed by the kernel because this machine ran out of memory")
            }
            Some(9) if end.killed_by_budget => format!(
                "{process} was killed by the kernel because it ran out of memory: is its memory budget of {} too small?",
                mebibytes(self.resources.budget_bytes)
            ),
            Some(9) => format!(
                "{process} was killed (SIGKILL), but not by underlay: either by hand, or because the machine ran out of memory"
            ),
            Some(signal) => format!("{process} was killed by signal {signal}"),
            None => {
                let ended = format!("{process} exited with status {}", status.code().unwrap_or_default());
                match self.log_tail().as_deref().and_then(java_memory_that_ran_out) {
                    Some(memory_area) => format!(
                        "{ended}, because Java ran out of memory ({memory_area}): give the system more memory, or a larger share of it to Java"
                    ),
                    None => ended,
                }
            }
        }
    }

    /// Like [`describe`](Self::describe), for a broken connection: waits a moment for the process to be reaped.
    pub fn describe_loss(&self) -> String {
        match self.wait(OBITUARY_WAIT) {
            true => self.describe(),
            false => format!("{} (process {}) closed the connection", self.name, self.pid()),
        }
    }

    /// The error of a process that failed, with the last lines of its log.
    pub fn failed(&self, during: &'static str, problem: String) -> SystemError {
        SystemError::Failed { system: self.system, during, problem, log_tail: self.log_tail() }
    }

    pub fn log_tail(&self) -> Option<String> {
        let mut log = File::open(&self.log).ok()?;
        let length = log.metadata().ok()?.len();
        log.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES))).ok()?;
        let mut bytes = Vec::new();
        log.take(LOG_TAIL_BYTES).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n");
        (!tail.trim().is_empty()).then_some(tail)
    }
}

/// The kind of memory in Java's last message when it ends for want of it (`-XX:+ExitOnOutOfMemoryError`).
fn java_memory_that_ran_out(last_words: &str) -> Option<&str> {
    last_words
        .lines()
        .find_map(|line| line.trim().strip_prefix("Terminating due to java.lang.OutOfMemoryError: "))
}

/// The CPUs as the kernel takes them.
fn affinity(cpus: &[u32]) -> Result<CpuSet, String> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        match usize::try_from(cpu) {
            Ok(cpu) if cpu < CpuSet::MAX_CPU => set.set(cpu),
            _ => {
                return Err(format!(
                    "no process can be put on CPU {cpu}: choose CPUs up to {}",
                    CpuSet::MAX_CPU - 1
                ));
            }
        }
    }
    Ok(set)
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Processes that the kernel killed in the budget's cgroups so far: `memory.events` in version 2,
/// `memory.oom_control` in version 1, both next to `cgroup.procs` and both with a line `oom_kill N`.
fn oom_kills(resources: &SystemResources) -> u64 {
    let mut kills = 0;
    for directory in resources.join_files.iter().filter_map(|procs| procs.parent()) {
        for file in ["memory.events", "memory.oom_control"] {
            let Ok(text) = std::fs::read_to_string(directory.join(file)) else { continue };
            let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
            kills += count.unwrap_or(0);
        }
    }
    kills
}
