//! Ctrl-C and SIGTERM: the first asks a run to end in order, the second ends it at once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit_codes::{Failure, INTERRUPTED};

/// A flag that the first signal raises.
pub fn stop_flag() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // Registered in this order the exit looks at the flag before the same signal raises it.
        signal_hook::flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| Failure::Failed(format!("cannot handle signals: {error}")))?;
    }
    Ok(stop)
}
