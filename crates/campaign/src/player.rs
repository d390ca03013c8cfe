//! Scripts played in separate processes: a run may hang, leave threads behind, or end its process.

use std::io::{BufRead, BufReader, Write};
use std::marker::PhantomData;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::problem::CommandProblem;
use crate::script::{PlayedScript, ScriptReport};
use crate::signals;

/// How often it checks whether the user still wants an answer.
const LOOK: Duration = Duration::from_millis(50);

/// In which `/proc` gives times: the same on x86-64 and ARM, whatever the kernel's own clock.
const TICKS_PER_S: u64 = 100;

/// A process that plays one script after the other.
pub struct ScriptPlayer<S> {
    child: Child,
    answers: mpsc::Receiver<String>,
    /// What the process makes is in here: killed, it removes nothing itself.
    folder: TempDir,
    script: PhantomData<fn(&S)>,
}

/// How a player is started.
#[derive(Clone, Debug, Default)]
pub struct PlayerOptions {
    /// The name of a bug to plant.
    pub bug: Option<String>,
    /// Its stderr is this one's, with what the code under test logs, and its reports have notes.
    pub is_loud: bool,
}

fn new_folder(program: &str, parent: &Path) -> Result<TempDir, CommandProblem> {
    tempfile::Builder::new().prefix(&format!("{program}-")).tempdir_in(parent).map_err(|error| {
        CommandProblem::Missing(format!(
            "a folder can't be created in {}: {error}; set TMPDIR to one that can be written to",
            parent.display()
        ))
    })
}

impl<S: PlayedScript> ScriptPlayer<S> {
    /// # Errors
    /// When this program can't be started again.
    pub fn start(options: &PlayerOptions) -> Result<ScriptPlayer<S>, CommandProblem> {
        let program = std::env::current_exe()
            .map_err(|error| CommandProblem::Missing(format!("this program can't be found: {error}")))?;
        ScriptPlayer::start_program(&program, options)
    }

    /// As [`ScriptPlayer::start`], where this program is another one: a test's.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn start_program(program: &Path, options: &PlayerOptions) -> Result<ScriptPlayer<S>, CommandProblem> {
        let unstarted = |error: std::io::Error| {
            CommandProblem::Missing(format!("{} can't be started again: {error}", program.display()))
        };
        let folder = new_folder(S::PROGRAM, &S::folders_parent())?;
        let mut command = Command::new(program);
        command.arg("player").env("TMPDIR", folder.path());
        if let Some(bug) = &options.bug {
            command.args(["--bug", bug]);
        }
        if options.is_loud {
            command.arg("--loud");
        }
        // A terminal's Ctrl-C is for the parent, which ends its players itself: else it would look like a failure.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        // What a quiet one says of simulated faults is of no interest: a failure is in its answer.
        command.stderr(if options.is_loud { Stdio::inherit() } else { Stdio::null() });
        S::prepare(&mut command);
        let mut child = command.spawn().map_err(unstarted)?;
        let output = child.stdout.take();
        let (sender, answers) = mpsc::channel();
        // From here on its end is seen to.
        let player = ScriptPlayer { child, answers, folder, script: PhantomData };
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
    pub fn play(&mut self, script: &S) -> Result<ScriptReport, CommandProblem> {
        let fail = |words: String| Ok(ScriptReport { failure: Some(words), ..ScriptReport::default() });
        let text = serde_json::to_string(script)
            .map_err(|error| CommandProblem::Bug(format!("a script can't be written as JSON: {error}")))?;
        let has_taken_it = match self.child.stdin.as_mut() {
            Some(input) => writeln!(input, "{text}").is_ok(),
            None => false,
        };
        if !has_taken_it {
            return self.ended();
        }
        let mut limit = ProgressLimit::new(S::TIMEOUT, cpu_time(self.child.id()), Instant::now());
        loop {
            if signals::is_asked() {
                return Err(CommandProblem::Interrupted);
            }
            match self.answers.recv_timeout(LOOK) {
                Ok(answer) => return understand(&answer),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(words) = limit.check(cpu_time(self.child.id()), Instant::now()) {
                        let _ = self.child.kill();
                        return fail(words);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return self.ended(),
            }
        }
    }

    fn ended(&mut self) -> Result<ScriptReport, CommandProblem> {
        let status = self.child.wait();
        // By this code it says that no script is to blame.
        if status.as_ref().is_ok_and(|status| status.code() == Some(i32::from(CommandProblem::MISSING))) {
            let folder = self.folder.path().display();
            return Err(CommandProblem::Missing(format!("a player can't write to its folder {folder}")));
        }
        let status = status.map_or("nobody knows how".into(), |status| status.to_string());
        Ok(ScriptReport {
            failure: Some(format!("its process has ended ({status})")),
            ..ScriptReport::default()
        })
    }
}

/// How long a player may compute for one script, and how long it may stand still. The host's other work counts for
/// neither.
struct ProgressLimit {
    limit: Duration,
    begun: Duration,
    last: Duration,
    moved_at: Instant,
}

impl ProgressLimit {
    /// With the CPU time of the process at the beginning.
    fn new(limit: Duration, cpu: Duration, now: Instant) -> ProgressLimit {
        ProgressLimit { limit, begun: cpu, last: cpu, moved_at: now }
    }

    /// Why the process will never be done, if that is so.
    fn check(&mut self, cpu: Duration, now: Instant) -> Option<String> {
        // One that only looks at the clock now and then does nothing.
        if cpu.saturating_sub(self.last) >= self.limit / 100 {
            (self.last, self.moved_at) = (cpu, now);
        }
        let limit_s = self.limit.as_secs();
        if cpu.saturating_sub(self.begun) >= self.limit {
            return Some(format!("its process was not done after {limit_s} s of CPU time"));
        }
        (now.saturating_duration_since(self.moved_at) >= self.limit)
            .then(|| format!("its process was not done, and had done nothing for {limit_s} s"))
    }
}

/// All of a process's CPU time; none where it has ended.
fn cpu_time(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name before the last parenthesis may have anything in it. Fields 14 and 15 of proc(5) are ticks.
    let fields = stat.rsplit_once(')').map_or("", |(_, tail)| tail).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / TICKS_PER_S)
}

fn understand(answer: &str) -> Result<ScriptReport, CommandProblem> {
    let report: ScriptReport = serde_json::from_str(answer)
        .map_err(|error| CommandProblem::Bug(format!("a player sent something unintelligible: {error}")))?;
    match report.unfit {
        Some(words) => Err(CommandProblem::Mistake(format!("the script can't be played: {words}"))),
        None => Ok(report),
    }
}

impl<S> Drop for ScriptPlayer<S> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Such a process's loop: reads scripts, a line each, and answers with a report, a line each.
///
/// # Errors
/// When its input or output fails.
pub fn serve<S: PlayedScript>(is_loud: bool) -> Result<(), CommandProblem> {
    let mut output = std::io::stdout();
    for line in std::io::stdin().lines() {
        let line =
            line.map_err(|error| CommandProblem::Missing(format!("the input can't be read: {error}")))?;
        let script: S = serde_json::from_str(&line)
            .map_err(|error| CommandProblem::Mistake(format!("a line is not a script: {error}")))?;
        // A run needs one, and without it would seem to have failed.
        drop(new_folder(S::PROGRAM, &std::env::temp_dir())?);
        let report = serde_json::to_string(&script.play(is_loud))
            .map_err(|error| CommandProblem::Bug(format!("a report can't be written as JSON: {error}")))?;
        writeln!(output, "{report}").and_then(|()| output.flush()).map_err(CommandProblem::Output)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_host_takes_no_time_of_a_script() {
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let mut limit = ProgressLimit::new(second * 10, second * 3, begin);
        // A second of CPU time in nine of the clock.
        for step in 1..10 {
            assert_eq!(limit.check(second * (3 + step), begin + second * 9 * step), None);
        }
        let words = limit.check(second * 13, begin + second * 90).unwrap();
        assert!(words.contains("10 s of CPU time"), "{words}");
    }

    #[test]
    fn process_that_stands_still_is_given_up() {
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let mut limit = ProgressLimit::new(second * 10, second, begin);
        assert_eq!(limit.check(second * 2, begin + second * 9), None);
        assert_eq!(limit.check(second * 2 + second / 20, begin + second * 14), None, "next to nothing");
        assert_eq!(limit.check(second * 2, begin + second * 18), None);
        assert!(limit.check(second * 2, begin + second * 19).unwrap().contains("had done nothing for 10 s"));
    }

    #[test]
    fn cpu_time_of_own_process_grows() {
        let before = cpu_time(std::process::id());
        let begun = Instant::now();
        while cpu_time(std::process::id()) == before {
            assert!(begun.elapsed() < Duration::from_secs(60), "no CPU time is counted");
        }
        assert_eq!(cpu_time(u32::MAX), Duration::ZERO);
    }
}
