//! Scripts played in separate processes: a run may hang, take too much memory, or end its process.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tempfile::TempDir;

use crate::problem::CommandProblem;
use crate::run::ScriptReport;
use crate::script::SimulationScript;

/// On this machine's clock: a run that takes longer never ends.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// How often it checks whether the user still wants an answer.
const LOOK: Duration = Duration::from_millis(50);

/// Signals are the process's, and so is this.
static ASKED_TO_STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From now on a signal ends a command in order, and nothing by itself.
///
/// # Errors
/// When no handler can be had.
pub(crate) fn listen_to_signals() -> Result<(), CommandProblem> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ASKED_TO_STOP))
            .map_err(|error| CommandProblem::Missing(format!("signals can't be handled: {error}")))?;
    }
    Ok(())
}

/// A process that plays one script after the other.
pub struct ScriptPlayer {
    child: Child,
    answers: mpsc::Receiver<String>,
    /// What the process makes is in here: killed, it removes nothing itself.
    _folder: TempDir,
}

/// How a player is started.
#[derive(Clone, Debug, Default)]
pub struct PlayerOptions {
    pub bug: Option<String>,
    /// Its stderr is this one's, with what the code under test logs.
    pub is_loud: bool,
}

impl ScriptPlayer {
    /// # Errors
    /// When this program can't be started again.
    pub fn start(start: &PlayerOptions) -> Result<ScriptPlayer, CommandProblem> {
        let program = std::env::current_exe()
            .map_err(|error| CommandProblem::Missing(format!("this program can't be found: {error}")))?;
        ScriptPlayer::start_program(&program, start)
    }

    /// As [`ScriptPlayer::start`], where this program is another one: a test's.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn start_program(program: &Path, start: &PlayerOptions) -> Result<ScriptPlayer, CommandProblem> {
        let unstarted = |error: std::io::Error| {
            CommandProblem::Missing(format!("{} can't be started again: {error}", program.display()))
        };
        let parent = fast_directory();
        let folder = tempfile::Builder::new()
            .prefix("underlay-gateway-simulate-")
            .tempdir_in(&parent)
            .map_err(|error| {
                let parent = parent.display();
                CommandProblem::Missing(format!(
                    "a folder can't be created in {parent}: {error}; set TMPDIR to one that can be written to"
                ))
            })?;
        let mut command = Command::new(program);
        command.arg("player").env("TMPDIR", folder.path());
        if let Some(bug) = &start.bug {
            command.args(["--bug", bug]);
        }
        if start.is_loud {
            command.arg("--loud");
        }
        // A terminal's Ctrl-C is for the parent, which ends its players itself: else it would look like a failure.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(if start.is_loud { Stdio::inherit() } else { Stdio::null() });
        without_random_addresses(&mut command);
        let mut child = command.spawn().map_err(unstarted)?;
        let output = child.stdout.take();
        let (sender, answers) = mpsc::channel();
        // From here on its end is seen to.
        let player = ScriptPlayer { child, answers, _folder: folder };
        let listen = move || {
            for line in
                output.into_iter().flat_map(|output| BufReader::new(output).lines()).map_while(Result::ok)
            {
                if sender.send(line).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new().spawn(listen).map_err(unstarted)?;
        Ok(player)
    }

    /// Plays a script. A process that ends on it, or does not, is a failure like any other.
    ///
    /// # Errors
    /// When it can't be played, and when the user wants no answer any more.
    pub fn play(&mut self, script: &SimulationScript) -> Result<ScriptReport, CommandProblem> {
        let fail = |words: String| Ok(ScriptReport { failure: Some(words), ..ScriptReport::default() });
        let text = serde_json::to_string(script)
            .map_err(|error| CommandProblem::Bug(format!("a script can't be written as JSON: {error}")))?;
        if !self.child.stdin.as_mut().is_some_and(|input| writeln!(input, "{text}").is_ok()) {
            return self.ended();
        }
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            if ASKED_TO_STOP.load(Ordering::Relaxed) {
                return Err(CommandProblem::Interrupted);
            }
            match self.answers.recv_timeout(LOOK) {
                Ok(answer) => return understand(&answer),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => {
                    let _ = self.child.kill();
                    return fail(format!("its process was not done after {} s", ANSWER_TIMEOUT.as_secs()));
                }
                Err(RecvTimeoutError::Disconnected) => return self.ended(),
            }
        }
    }

    fn ended(&mut self) -> Result<ScriptReport, CommandProblem> {
        let status = self.child.wait().map_or("nobody knows how".into(), |status| status.to_string());
        Ok(ScriptReport {
            failure: Some(format!("its process has ended ({status})")),
            ..ScriptReport::default()
        })
    }
}

fn understand(answer: &str) -> Result<ScriptReport, CommandProblem> {
    let report: ScriptReport = serde_json::from_str(answer)
        .map_err(|error| CommandProblem::Bug(format!("a player sent something unintelligible: {error}")))?;
    match report.unfit {
        Some(words) => Err(CommandProblem::Mistake(format!("the script can't be played: {words}"))),
        None => Ok(report),
    }
}

/// In memory, where there is such a file system, unless another is asked for.
fn fast_directory() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let is_asked_for = std::env::var_os("TMPDIR").is_some();
    if memory.is_dir() && !is_asked_for { memory.to_owned() } else { std::env::temp_dir() }
}

/// Some maps take their order from where they lie in memory. A player whose parent was killed is of no use.
fn without_random_addresses(command: &mut Command) {
    // SAFETY: the calls change the child alone, between fork and exec, and need no memory.
    unsafe {
        command.pre_exec(|| {
            libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        });
    }
}

impl Drop for ScriptPlayer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What such a process does: reads scripts, a line each, and answers with a report, a line each.
///
/// # Errors
/// When its input or output fails.
pub fn serve(keeps_notes: bool) -> Result<(), CommandProblem> {
    let mut output = std::io::stdout();
    for line in std::io::stdin().lines() {
        let line =
            line.map_err(|error| CommandProblem::Missing(format!("the input can't be read: {error}")))?;
        let script: SimulationScript = serde_json::from_str(&line)
            .map_err(|error| CommandProblem::Mistake(format!("a line is not a script: {error}")))?;
        let report = serde_json::to_string(&crate::run::play(&script, keeps_notes))
            .map_err(|error| CommandProblem::Bug(format!("a report can't be written as JSON: {error}")))?;
        writeln!(output, "{report}").and_then(|()| output.flush()).map_err(CommandProblem::Output)?;
    }
    Ok(())
}
