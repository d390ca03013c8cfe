//! Ends waits for a device daemon that hangs.
//!
//! Kernel calls on a daemon's device wait for the daemon without limit: `fsync`, clearing a loop device, a read by
//! another thread. A daemon that is stopped or stuck keeps such a call in the kernel, where no signal reaches it. Once
//! the daemon is dead, the kernel answers with errors.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rustix::process::Signal;

use crate::machine::processes::ProcessId;
use crate::serving::daemon::control::{DaemonCommand, DaemonConnection};

/// How often to check that the daemon still answers.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// The limit of errors before a daemon counts as dead. A single error may be temporary and ours, such as too many open
/// files.
const MAX_ERRORS: u32 = 2;

/// Runs `wait`, and pings the daemon every second meanwhile. If it does not answer within `limit`, this calls `kill`
/// once. `wait` itself has no limit: a daemon that answers may have much to write.
pub(crate) fn run_with_watchdog<T>(
    control: &Path,
    limit: Duration,
    kill: impl FnOnce() + Send,
    wait: impl FnOnce() -> T,
) -> T {
    let (running, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        // Dropped also when `wait` panics, so that the thread below ends.
        let running = running;
        let watch = move || {
            let mut errors = 0;
            while ended.recv_timeout(PING_INTERVAL.min(limit)) == Err(RecvTimeoutError::Timeout) {
                let answer = DaemonConnection::open(control, limit)
                    .and_then(|mut connection| connection.ask(&DaemonCommand::Ping));
                errors = if answer.is_ok() { 0 } else { errors + 1 };
                let is_silent = answer.is_err_and(|error| is_timeout(error.kind()));
                if is_silent || errors >= MAX_ERRORS {
                    return kill();
                }
            }
        };
        // If the thread can't be started, `wait` runs without a watchdog.
        let _ = std::thread::Builder::new().name("daemon-watchdog".into()).spawn_scoped(scope, watch);
        let result = wait();
        drop(running);
        result
    })
}

/// A daemon to watch, separate from its owner, which may change meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct DaemonWatchdog {
    pub control: PathBuf,
    pub daemon: ProcessId,
    /// How long it may be silent.
    pub limit: Duration,
}

/// Like [`run_with_watchdog`]; without a running daemon, nothing waits for one.
pub(crate) fn run_watched<T>(watchdog: Option<DaemonWatchdog>, wait: impl FnOnce() -> T) -> T {
    match watchdog {
        Some(DaemonWatchdog { control, daemon, limit }) => {
            run_with_watchdog(&control, limit, || daemon.signal(Signal::KILL), wait)
        }
        None => wait(),
    }
}

/// The error kind of a socket's timeout depends on the system call.
pub(crate) fn is_timeout(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn silent_daemon_is_killed_and_quick_wait_not_delayed() {
        let directory = tempfile::tempdir().unwrap();
        let control = directory.path().join("control");
        let _silent = UnixListener::bind(&control).unwrap();
        let limit = Duration::from_millis(50);

        let is_killed = AtomicBool::new(false);
        let kill = || is_killed.store(true, Ordering::Release);
        // Like a call in the kernel that only the daemon's end can end.
        run_with_watchdog(&control, limit, kill, || {
            while !is_killed.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        });
        let never = || panic!("killed before anyone waited");
        assert_eq!(run_with_watchdog(&control, Duration::from_secs(3600), never, || 7), 7);
    }

    #[test]
    fn watchdog_ends_with_a_wait_that_panics() {
        let control = Path::new("/nonexistent/control");
        let panicked = std::panic::catch_unwind(|| {
            run_with_watchdog(control, Duration::from_secs(3600), || {}, || panic!("as planned"))
        });
        assert!(panicked.is_err());
    }
}
