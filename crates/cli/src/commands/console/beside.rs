//! The console that a run starts beside itself: a process of its own, so that neither's memory or CPU is the other's, and the run goes
//! on whatever happens to it. It outlives the run, so that whoever watched it can read the report.

use std::io::{BufRead, BufReader, IsTerminal as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use underlay_config::units;
use underlay_report::quantity;

use crate::exit_codes::Failure;
use crate::output;
use crate::signals::Signalled;

/// After the run, where nobody could press Ctrl-C.
const STAYS_ALONE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

/// How long the console stays after the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stay {
    UntilCtrlC,
    For(Duration),
}

impl Stay {
    /// What `--console-stays` says; without it, until Ctrl-C at a terminal, and elsewhere a minute.
    ///
    /// # Errors
    /// When it says no time.
    pub(crate) fn of(said: Option<&str>) -> Result<Stay, Failure> {
        match said {
            Some(text) => units::parse_duration(text)
                .map(Stay::For)
                .map_err(|problem| Failure::Mistake(format!("--console-stays {text}: {problem}"))),
            None if is_at_terminal() => Ok(Stay::UntilCtrlC),
            None => Ok(Stay::For(STAYS_ALONE)),
        }
    }
}

/// Whether somebody sees what is said and can answer it with Ctrl-C: not of a job in the background.
fn is_at_terminal() -> bool {
    // SAFETY: both calls touch no memory.
    let is_foreground = || unsafe { libc::tcgetpgrp(libc::STDIN_FILENO) == libc::getpgrp() };
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal() && is_foreground()
}

/// It ends with this value, and with this process however that ends.
pub(crate) struct Beside {
    /// Nothing where it did not start.
    child: Option<Child>,
    run: PathBuf,
}

impl Beside {
    /// Starts it for the runs beside this one, opens on this one, and says where it is. Without it, the run goes on and that is said.
    pub(crate) fn start(run: &Path) -> Beside {
        let child = match begin(run) {
            Ok((child, line)) => {
                output::say(line);
                Some(child)
            }
            Err(problem) => {
                output::say(format_args!("note: there is no console: {problem}"));
                None
            }
        };
        Beside { child, run: run.to_owned() }
    }

    /// Stays open behind a run that has ended with this code, until it is told to end or its time is over.
    pub(crate) fn stay(mut self, stay: Stay, signalled: &Signalled, code: u8) {
        signalled.work_is_done(code);
        // A run that never began has nothing to show.
        let has_something = self.run.join("run.json").is_file();
        let until = match stay {
            Stay::UntilCtrlC => None,
            Stay::For(length) => Some(Instant::now() + length),
        };
        let is_over = || until.is_some_and(|until| Instant::now() >= until) || signalled.is_leaving();
        if !has_something || is_over() || !self.is_up() {
            return;
        }
        output::say(match stay {
            Stay::UntilCtrlC => "the console stays open with the report; Ctrl-C ends it".to_owned(),
            Stay::For(length) => format!(
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

fn begin(run: &Path) -> Result<(Child, String), String> {
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
        // Ctrl-C is for the run; the console ends when that has ended.
        .process_group(0)
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut line = String::new();
    let mut lines = child.stdout.take().map(BufReader::new);
    let said = lines.as_mut().map(|lines| lines.read_line(&mut line));
    if !matches!(said, Some(Ok(count)) if count > 0) {
        let _ = child.kill();
        let _ = child.wait();
        return Err("it did not start".to_owned());
    }
    // Whatever else it has to say, such as the address for the next browser; the thread ends with it.
    let say = move || lines.into_iter().flat_map(BufRead::lines).map_while(Result::ok).for_each(output::say);
    let _ = std::thread::Builder::new().name("console-says".to_owned()).spawn(say);
    Ok((child, line.trim_end().to_owned()))
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It keeps nothing that would have to be put in order.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_it_stays_is_a_time_with_a_unit() {
        assert_eq!(Stay::of(Some("0 s")).unwrap(), Stay::For(Duration::ZERO));
        assert_eq!(Stay::of(Some("2 min")).unwrap(), Stay::For(Duration::from_secs(120)));
        let refused = Stay::of(Some("soon")).unwrap_err().to_string();
        assert!(refused.starts_with("--console-stays soon: "), "{refused}");
    }
}
