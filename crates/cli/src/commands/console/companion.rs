//! The console that a run starts beside itself: a process of its own, so that neither's memory or CPU is the other's,
//! and the run goes on if it fails. It outlives the run, so that the user can read the report.

use std::io::{IsTerminal as _, stderr, stdin};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use underlay_config::units;
use underlay_report::quantity;

use super::{address_in_words, in_time, valid_for};
use crate::exit_codes::ExitFailure;
use crate::output;
use crate::signals::SignalRequests;

/// After the run, where nobody could press Ctrl-C.
const STAYS_ALONE: Duration = Duration::from_secs(60);
/// It takes its socket and its address away in this time, and finishes its work on a storage, which it reports itself.
const END_LIMIT: Duration = Duration::from_secs(90);
/// It says where it is in this time, or the run goes on without it.
const BEGIN_LIMIT: Duration = Duration::from_secs(30);
const MAX_LINE_BYTES: u64 = 64 << 10;
const POLL: Duration = Duration::from_millis(20);
/// Of a file with an address in it.
const MAX_ADDRESS_BYTES: u64 = 4096;

/// How long the console stays after the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConsoleStay {
    UntilCtrlC,
    For(Duration),
}

impl ConsoleStay {
    /// The time of `--console-stays`; without it, until Ctrl-C at a terminal, and elsewhere a minute.
    ///
    /// # Errors
    /// When it says no time.
    pub(crate) fn parse(argument: Option<&str>) -> Result<ConsoleStay, ExitFailure> {
        match argument {
            Some(text) => units::parse_duration(text)
                .map(ConsoleStay::For)
                .map_err(|problem| ExitFailure::Mistake(format!("--console-stays {text}: {problem}"))),
            None if is_at_terminal() => Ok(ConsoleStay::UntilCtrlC),
            None => Ok(ConsoleStay::For(STAYS_ALONE)),
        }
    }
}

/// Whether somebody sees what is said and can answer it with Ctrl-C: not of a job in the background.
fn is_at_terminal() -> bool {
    // SAFETY: both calls touch no memory.
    let is_foreground = || unsafe { libc::tcgetpgrp(libc::STDIN_FILENO) == libc::getpgrp() };
    stdin().is_terminal() && stderr().is_terminal() && is_foreground()
}

/// It ends with this value, and with this process however that ends.
pub(crate) struct CompanionConsole {
    /// Nothing where it did not start.
    child: Option<Child>,
    run: PathBuf,
}

/// Where a console is, as it tells the run that started it. The address that opens it is in a file of this user's
/// alone.
#[derive(Serialize, Deserialize)]
pub(super) struct ConsoleAddress {
    pub listens: SocketAddr,
    pub file: PathBuf,
    pub socket: PathBuf,
}

impl ConsoleAddress {
    /// # Errors
    /// When a path is not text, as that of the runtime directory may be.
    pub(super) fn to_line(&self) -> Result<String, ExitFailure> {
        serde_json::to_string(self).map_err(|_| {
            ExitFailure::Mistake(format!(
                "the runtime directory's path is not text (UTF-8), but {}: choose another one by UNDERLAY_RUNTIME_DIR",
                self.socket.display()
            ))
        })
    }

    /// Without the address, which would be whose who reads it.
    pub(super) fn describe(&self) -> String {
        format!("console  {}; its address is in {} for {}", self.listens, self.file.display(), valid_for())
    }

    /// With the address, where a terminal shows it.
    fn shown(&self, is_on_terminal: bool) -> String {
        let address = match is_on_terminal {
            true => underlay_files::read_secret(&self.file, MAX_ADDRESS_BYTES).ok(),
            false => None,
        };
        address.map_or_else(|| self.describe(), |address| address_in_words(address.trim()))
    }
}

impl CompanionConsole {
    /// Starts it for the runs beside this one, opens on this one, and says where it is. Without it, the run goes on and
    /// that is said.
    pub(crate) fn start(run: &Path) -> CompanionConsole {
        let child = match begin(run) {
            Ok((child, begun)) => {
                output::say(begun.shown(stderr().is_terminal()));
                Some(child)
            }
            Err(problem) => {
                output::say(format_args!("note: there is no console: {problem}"));
                None
            }
        };
        CompanionConsole { child, run: run.to_owned() }
    }

    /// Stays open behind a run that has ended with this code, until a signal or the time limit ends it.
    pub(crate) fn stay(mut self, stay: ConsoleStay, signalled: &SignalRequests, code: u8) {
        signalled.work_is_done(code);
        // A run that never began has nothing to show.
        let has_something = self.run.join("run.json").is_file();
        let deadline = match stay {
            ConsoleStay::UntilCtrlC => None,
            ConsoleStay::For(length) => Some(Instant::now() + length),
        };
        let is_over =
            || deadline.is_some_and(|deadline| Instant::now() >= deadline) || signalled.is_leaving();
        if !has_something || is_over() || !self.is_up() {
            return;
        }
        output::say(match stay {
            ConsoleStay::UntilCtrlC => "the console stays open with the report; Ctrl-C ends it".to_owned(),
            ConsoleStay::For(length) => format!(
                "the console stays open with the report for {}; Ctrl-C ends it at once",
                quantity::duration(length.as_secs_f64())
            ),
        });
        while !is_over() && self.is_up() {
            std::thread::sleep(POLL);
        }
    }

    fn is_up(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }
}

fn begin(run: &Path) -> Result<(Child, ConsoleAddress), String> {
    let run = std::path::absolute(run).map_err(|error| error.to_string())?;
    let above = run.parent().unwrap_or(Path::new("/"));
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.arg("console").arg(above).args(["--with", &std::process::id().to_string()]);
    if let Some(name) = run.file_name().and_then(|name| name.to_str()) {
        command.args(["--open", name]);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // Ctrl-C is for the run; the console ends when this process does.
        .process_group(0)
        .spawn()
        .map_err(|error| error.to_string())?;
    let first_line = match child.stdout.take() {
        Some(output) => in_time::first_line(output, MAX_LINE_BYTES, BEGIN_LIMIT),
        None => Ok(String::new()),
    };
    let begun = first_line.and_then(|line| {
        serde_json::from_str::<ConsoleAddress>(&line).map_err(|_| "it did not start".to_owned())
    });
    match begun {
        // It says nothing more.
        Ok(begun) => Ok((child, begun)),
        Err(problem) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(problem)
        }
    }
}

impl Drop for CompanionConsole {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        // In order, so that its socket and its address go with it. It has not been waited for, and so its number is
        // still its own.
        if let Ok(None) = child.try_wait()
            && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, Signal::TERM);
            let asked = Instant::now();
            while matches!(child.try_wait(), Ok(None)) && asked.elapsed() < END_LIMIT {
                std::thread::sleep(POLL);
            }
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn runtime_directory_of_invalid_text_is_refused() {
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        let begun = |place: &[u8]| ConsoleAddress {
            listens: ([127, 0, 0, 1], 7100).into(),
            file: path(place),
            socket: path(place),
        };
        assert!(begun(b"/run/underlay/x").to_line().unwrap().contains("/run/underlay/x"));
        let refused = begun(b"/run/\xff/x").to_line().unwrap_err().to_string();
        assert!(refused.contains("UNDERLAY_RUNTIME_DIR"), "{refused}");
    }

    #[test]
    fn console_stay_needs_a_unit() {
        assert_eq!(ConsoleStay::parse(Some("0 s")).unwrap(), ConsoleStay::For(Duration::ZERO));
        assert_eq!(ConsoleStay::parse(Some("2 min")).unwrap(), ConsoleStay::For(Duration::from_secs(120)));
        let refused = ConsoleStay::parse(Some("soon")).unwrap_err().to_string();
        assert!(refused.starts_with("--console-stays soon: "), "{refused}");
    }
}
