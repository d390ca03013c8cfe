//! Ctrl-C and SIGTERM: a command ends in order, and removes what it made.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::problem::CommandProblem;

/// Signals are the process's, and so is this.
static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From now on a signal is heard by [`is_asked`] and ends nothing by itself.
///
/// # Errors
/// When no handler can be had.
pub(crate) fn listen() -> Result<(), CommandProblem> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ASKED))
            .map_err(|error| CommandProblem::Missing(format!("signals can't be handled: {error}")))?;
    }
    Ok(())
}

pub(crate) fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}
