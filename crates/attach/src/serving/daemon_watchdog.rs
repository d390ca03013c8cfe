//! Waits that end although a device daemon hangs.
//!
//! What the kernel does with a daemon's device waits for the daemon without limit: `fsync`, clearing a loop device,
//! a read by another thread. A daemon that is stopped or stuck keeps such a call in the kernel, where no signal reaches
//! it. Once the daemon is dead, the kernel answers with errors.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::serving::daemon::control::{DaemonCommand, DaemonConnection};

/// How often the daemon is asked whether it still answers.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// Runs `wait`, and meanwhile asks the daemon for a sign of life every second. One that gives none within `limit` is
/// given to `kill`, once. The time that `wait` takes has no limit of its own: a daemon that answers may have much to
/// write.
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
        scope.spawn(move || {
            while ended.recv_timeout(PING_INTERVAL.min(limit)) == Err(RecvTimeoutError::Timeout) {
                let answer = DaemonConnection::open(control, limit)
                    .and_then(|mut connection| connection.ask(&DaemonCommand::Ping));
                if answer.is_err() {
                    return kill();
                }
            }
        });
        let result = wait();
        drop(running);
        result
    })
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
        // As a call in the kernel that only the daemon's end ends.
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
