//! A run that the console starts: a process of its own session, which goes on without the console.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use underlay_files::{Access, Folder};

/// A run exists as soon as its head does; before that, devices may be measured.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);
/// Between looks whether a run has ended, which then is collected.
const REAP: Duration = Duration::from_secs(1);
/// Of what it said, where it could not begin.
const SAID_BYTES: u64 = 8 << 10;

/// A study to run.
pub(super) struct RunRequest {
    pub study: PathBuf,
    pub below: PathBuf,
    pub short: bool,
    pub answer: Sender<Result<PathBuf, String>>,
}

/// A thread that starts runs, one after the other. It has this process's priority, not that of its requester: a run
/// inherits it.
///
/// # Errors
/// When there is no thread to be had.
pub(super) fn starter() -> std::io::Result<Sender<RunRequest>> {
    let (sender, receiver) = mpsc::channel::<RunRequest>();
    let serve = move || {
        let mut last: Option<Child> = None;
        loop {
            let wanted = receiver.recv_timeout(REAP);
            if last.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None))) {
                last = None;
            }
            let wanted = match wanted {
                Ok(wanted) => wanted,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // Two that are measured beside each other spoil each other's figures.
            let started = match &last {
                Some(_) => {
                    Err("the run that was started last still goes on: stop it first, or wait".to_owned())
                }
                None => start(&wanted.study, &wanted.below, wanted.short),
            };
            let answer = started.map(|(directory, child)| {
                last = Some(child);
                directory
            });
            let _ = wanted.answer.send(answer);
        }
    };
    std::thread::Builder::new().name("console-starter".to_owned()).spawn(serve)?;
    Ok(sender)
}

fn start(study: &Path, below: &Path, short: bool) -> Result<(PathBuf, Child), String> {
    let stem = study.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let now = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
    let name = format!("{stem}-{now}");
    let directory = below.join(&name);
    let cannot = |error: std::io::Error| format!("{}: {error}", below.display());
    let folder = Folder::make(below, Access::Readable).map_err(cannot)?;
    let log_name = format!("{name}.log");
    // It may be that of another run, which writes into it.
    if folder.has(&log_name) {
        return Err("a run of that study was started a moment ago: try again".to_owned());
    }
    let log = folder.file(&log_name).map_err(cannot)?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command
        .arg("run")
        .arg(study)
        .arg("--out")
        .arg(&directory)
        .arg("--quiet")
        .args(short.then_some("--short"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(cannot)?)
        .stderr(log.try_clone().map_err(cannot)?);
    // SAFETY: between fork and exec, this call alone is made, which may be.
    unsafe {
        command.pre_exec(|| {
            // The terminal's Ctrl-C is for the console.
            libc::setsid();
            Ok(())
        });
    }
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let begun = Instant::now();
    while !directory.join("run.json").exists() && begun.elapsed() < BEGIN_LIMIT {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(POLL),
            _ => {
                let log_text = said(&log).unwrap_or_default();
                let _ = folder.remove_file(&log_name);
                return Err(log_text.trim().to_owned());
            }
        }
    }
    Ok((directory, child))
}

fn said(mut log: &File) -> std::io::Result<String> {
    log.seek(SeekFrom::Start(0))?;
    let mut text = Vec::new();
    log.take(SAID_BYTES).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
