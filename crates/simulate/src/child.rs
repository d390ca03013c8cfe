//! Scripts played in separate processes: a run leaves threads behind, and may end its process.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::problem::ScriptProblem;
use crate::run::ScriptReport;
use crate::script::FaultScript;
use crate::stop;

/// On this machine's clock: a run that takes longer never ends.
const RUN_TIMEOUT: Duration = Duration::from_secs(240);
/// How often it checks whether the user still wants an answer.
const LOOK: Duration = Duration::from_millis(50);

/// A process that plays one script after the other.
pub struct PlayerProcess {
    child: Child,
    answers: mpsc::Receiver<String>,
    /// The process's files are in here: killed, it removes nothing itself.
    folder: TempDir,
}

fn new_folder() -> Result<TempDir, ScriptProblem> {
    tempfile::Builder::new().prefix("underlay-simulate-").tempdir().map_err(|error| {
        let parent = std::env::temp_dir();
        ScriptProblem::Missing(format!(
            "a folder can't be created in {}: {error}; set TMPDIR to one that can be written to",
            parent.display()
        ))
    })
}

impl PlayerProcess {
    /// # Errors
    /// When this program can't be started again.
    pub fn start(bug: Option<&str>) -> Result<PlayerProcess, ScriptProblem> {
        // Its messages about simulated faults are of no interest: a failure is in its answer.
        PlayerProcess::start_with(bug, Stdio::null())
    }

    /// As [`PlayerProcess::start`], and `stderr` gets all that the code under test says.
    ///
    /// # Errors
    /// When this program can't be started again.
    pub fn start_with(bug: Option<&str>, stderr: Stdio) -> Result<PlayerProcess, ScriptProblem> {
        let program = std::env::current_exe()
            .map_err(|error| ScriptProblem::Missing(format!("this program can't be found: {error}")))?;
        PlayerProcess::start_program(&program, bug, stderr)
    }

    /// As [`PlayerProcess::start_with`], where this program is another one: a test's.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn start_program(
        program: &Path,
        bug: Option<&str>,
        stderr: Stdio,
    ) -> Result<PlayerProcess, ScriptProblem> {
        let unstarted = |error: std::io::Error| {
            ScriptProblem::Missing(format!("{} can't be started again: {error}", program.display()))
        };
        let folder = new_folder()?;
        let mut command = Command::new(program);
        command.arg("player").env("TMPDIR", folder.path());
        bug.map(|bug| command.args(["--bug", bug]));
        // A terminal's Ctrl-C is for the parent, which ends its players itself: else it would look like a failure.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().map_err(unstarted)?;
        let output = child.stdout.take();
        let (sender, answers) = mpsc::channel();
        // From here on its end is seen to.
        let player = PlayerProcess { child, answers, folder };
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
    pub fn play(&mut self, script: &FaultScript) -> Result<ScriptReport, ScriptProblem> {
        let fail = |words: String| Ok(ScriptReport { failure: Some(words), ..ScriptReport::default() });
        let text = serde_json::to_string(script)
            .map_err(|error| ScriptProblem::Bug(format!("a script can't be written as JSON: {error}")))?;
        if !self.child.stdin.as_mut().is_some_and(|input| writeln!(input, "{text}").is_ok()) {
            return self.ended();
        }
        let deadline = Instant::now() + RUN_TIMEOUT;
        loop {
            if stop::is_asked() {
                return Err(ScriptProblem::Interrupted);
            }
            match self.answers.recv_timeout(LOOK) {
                Ok(answer) => return understand(&answer),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => {
                    let _ = self.child.kill();
                    return fail(format!("its process was not done after {} s", RUN_TIMEOUT.as_secs()));
                }
                Err(RecvTimeoutError::Disconnected) => return self.ended(),
            }
        }
    }

    fn ended(&mut self) -> Result<ScriptReport, ScriptProblem> {
        let status = self.child.wait();
        // By this code it says that no script is to blame.
        if status.as_ref().is_ok_and(|status| status.code() == Some(i32::from(ScriptProblem::MISSING))) {
            let folder = self.folder.path().display();
            return Err(ScriptProblem::Missing(format!("a player can't write to its folder {folder}")));
        }
        let status = status.map_or("nobody knows how".into(), |status| status.to_string());
        Ok(ScriptReport {
            failure: Some(format!("its process has ended ({status})")),
            ..ScriptReport::default()
        })
    }
}

fn understand(answer: &str) -> Result<ScriptReport, ScriptProblem> {
    let report: ScriptReport = serde_json::from_str(answer)
        .map_err(|error| ScriptProblem::Bug(format!("a player sent something unintelligible: {error}")))?;
    match report.unfit {
        Some(words) => Err(ScriptProblem::Mistake(format!("the script can't be played: {words}"))),
        None => Ok(report),
    }
}

impl Drop for PlayerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Such a process's loop: reads scripts, a line each, and answers with a report, a line each.
///
/// # Errors
/// When its input or output fails.
pub fn serve() -> Result<(), ScriptProblem> {
    let mut output = std::io::stdout();
    for line in std::io::stdin().lines() {
        let line =
            line.map_err(|error| ScriptProblem::Missing(format!("the input can't be read: {error}")))?;
        let script: FaultScript = serde_json::from_str(&line)
            .map_err(|error| ScriptProblem::Mistake(format!("a line is not a script: {error}")))?;
        // A run needs one, and without it would seem to have failed.
        drop(new_folder()?);
        let report = serde_json::to_string(&crate::run(&script))
            .map_err(|error| ScriptProblem::Bug(format!("a report can't be written as JSON: {error}")))?;
        writeln!(output, "{report}").and_then(|()| output.flush()).map_err(ScriptProblem::Output)?;
    }
    Ok(())
}
