//! Scripts played in processes of their own: a run leaves threads behind, and may end its process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::run::Report;
use crate::script::Script;

/// On this machine's clock: a run that takes longer never ends.
const PATIENCE: Duration = Duration::from_secs(240);

/// A process that plays one script after the other.
pub struct Player {
    child: Child,
    answers: mpsc::Receiver<String>,
}

impl Player {
    /// # Errors
    /// When this program can't be started again.
    pub fn start(bug: Option<&str>) -> Result<Player> {
        let program = std::env::current_exe().context("this program can't be found")?;
        Player::start_program(&program, bug)
    }

    /// As [`Player::start`], where this program is another one: a test's.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn start_program(program: &std::path::Path, bug: Option<&str>) -> Result<Player> {
        let mut command = Command::new(program);
        command.arg("player");
        bug.map(|bug| command.args(["--bug", bug]));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What it says of simulated faults is of no interest: a failure is in its answer.
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{} can't be started", program.display()))?;
        let output = child.stdout.take().context("it has no output")?;
        let (sender, answers) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Player { child, answers })
    }

    /// Plays a script. A process that ends on it, or does not, is a failure like any other.
    pub fn play(&mut self, script: &Script) -> Report {
        let fail = |words: String| Report { failure: Some(words), ..Report::default() };
        let asked = serde_json::to_string(script).expect("a script can be written down");
        let written = self.child.stdin.as_mut().is_some_and(|input| writeln!(input, "{asked}").is_ok());
        if !written {
            return fail("its process has ended".into());
        }
        match self.answers.recv_timeout(PATIENCE) {
            Ok(answer) => serde_json::from_str(&answer)
                .unwrap_or_else(|error| fail(format!("its process says what makes no sense: {error}"))),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let _ = self.child.kill();
                fail(format!("its process was not done after {} s", PATIENCE.as_secs()))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().map_or("nobody knows how".into(), |status| status.to_string());
                fail(format!("its process has ended ({status})"))
            }
        }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What such a process does: reads scripts, a line each, and answers with a report, a line each.
///
/// # Errors
/// When its input or output fails.
pub fn serve() -> Result<()> {
    let mut output = std::io::stdout();
    for line in std::io::stdin().lines() {
        let script: Script = serde_json::from_str(&line?).context("a script that makes no sense")?;
        let report = crate::run(&script);
        writeln!(output, "{}", serde_json::to_string(&report)?)?;
        output.flush()?;
    }
    Ok(())
}
