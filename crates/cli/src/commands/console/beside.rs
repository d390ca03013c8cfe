//! The console that a run starts beside itself: a process of its own, so that neither's memory or CPU is the other's, and the run goes
//! on whatever becomes of it.

use std::io::{BufRead, BufReader, IsTerminal as _, stderr};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::{address_in_words, valid_for};
use crate::output;

/// It takes its socket away in this time.
const END_LIMIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);
/// Of a file with an address in it.
const MAX_ADDRESS_BYTES: u64 = 4096;

/// It ends with this value, and with this process however that ends.
pub(crate) struct Beside(Option<Child>);

/// Where a console is, as it tells the run that started it. The address that opens it is in a file of this user's alone.
#[derive(Serialize, Deserialize)]
pub(super) struct Begun {
    pub listens: SocketAddr,
    pub file: PathBuf,
    pub socket: PathBuf,
}

impl Begun {
    pub(super) fn to_line(&self) -> String {
        serde_json::to_string(self).expect("paths of ours and an address are plain data")
    }

    /// Without the address, which would be whose who reads it.
    pub(super) fn in_words(&self) -> String {
        format!("console  {}; its address is in {} for {}", self.listens, self.file.display(), valid_for())
    }

    /// With the address, where a terminal shows it.
    fn shown(&self, is_on_terminal: bool) -> String {
        let address = match is_on_terminal {
            true => underlay_files::read_secret(&self.file, MAX_ADDRESS_BYTES).ok(),
            false => None,
        };
        address.map_or_else(|| self.in_words(), |address| address_in_words(address.trim()))
    }
}

impl Beside {
    /// Starts it for the runs beside this one, and says where it is. Without it, the run goes on and that is said.
    pub(crate) fn start(run: &Path) -> Beside {
        match begin(run) {
            Ok((child, begun)) => {
                output::say(begun.shown(stderr().is_terminal()));
                Beside(Some(child))
            }
            Err(problem) => {
                output::say(format_args!("note: there is no console: {problem}"));
                Beside(None)
            }
        }
    }
}

fn begin(run: &Path) -> Result<(Child, Begun), String> {
    let run = std::path::absolute(run).map_err(|error| error.to_string())?;
    let above = run.parent().unwrap_or(Path::new("/"));
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(program)
        .arg("console")
        .arg(above)
        .args(["--with", &std::process::id().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // Ctrl-C is for the run; the console ends when that has ended.
        .process_group(0)
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut line = String::new();
    let mut lines = child.stdout.take().map(BufReader::new);
    let said = lines.as_mut().map(|lines| lines.read_line(&mut line));
    let begun = match said {
        Some(Ok(_)) => serde_json::from_str(&line).ok(),
        _ => None,
    };
    let Some(begun) = begun else {
        let _ = child.kill();
        let _ = child.wait();
        return Err("it did not start".to_owned());
    };
    // It says nothing more.
    Ok((child, begun))
}

impl Drop for Beside {
    fn drop(&mut self) {
        let Some(child) = &mut self.0 else { return };
        // In order, so that its socket goes with it. It has not been waited for, and so its number is still its own.
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
