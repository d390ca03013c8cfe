//! Ctrl-C and SIGTERM: the first asks a run to end in order, a later one ends it at once.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exit_codes::{Failure, INTERRUPTED};

/// Signals so close together are one wish: timeout(1) sends its own to the program and at once to the group it is in.
const ONE_WISH: Duration = Duration::from_millis(500);

/// A flag that the first signal raises.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    // SIGHUP too: a terminal that is closed must not leave devices and mounts behind.
    Signals::new([SIGINT, SIGTERM, SIGHUP])
        .and_then(|signals| {
            std::thread::Builder::new().name("signals".to_owned()).spawn(move || obey(signals, &flag))
        })
        .map_err(|error| Failure::Failed(format!("cannot handle signals: {error}")))?;
    Ok(stop)
}

fn obey(mut signals: Signals, stop: &AtomicBool) {
    let mut first: Option<Instant> = None;
    for _ in signals.forever() {
        match first {
            None => {
                first = Some(Instant::now());
                stop.store(true, Ordering::Relaxed);
            }
            Some(first) if first.elapsed() < ONE_WISH => {}
            Some(_) => {
                // Whoever reads that may be gone.
                let _ = writeln!(
                    std::io::stderr(),
                    "\nended at once: `underlay clean` removes what is left behind"
                );
                signal_hook::low_level::exit(i32::from(INTERRUPTED))
            }
        }
    }
}
