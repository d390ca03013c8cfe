//! Ctrl-C and SIGTERM: the first asks a run to end in order, a later one ends it at once. Once the work is done, and
//! only its console stays open, the first one closes that.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use underlay_sync::UnsimulatedMutex;

use crate::exit_codes::{ExitFailure, INTERRUPTED};

/// Signals so close together are one wish: timeout(1) sends its own to the program and at once to the group it is in.
const ONE_WISH: Duration = Duration::from_millis(500);

/// The requests of signals until now.
pub(crate) struct SignalRequests {
    stop: Arc<AtomicBool>,
    state: Arc<UnsimulatedMutex<SignalState>>,
}

#[derive(Debug, Default)]
struct SignalState {
    first: Option<Instant>,
    /// SIGTERM or SIGHUP was among them: the sender waits for this process to end, and nobody is at a terminal.
    is_final: bool,
    /// The work is done, with this exit code.
    done: Option<u8>,
    /// A signal came since.
    is_leaving: bool,
}

/// A signal's effect.
#[derive(Debug, PartialEq, Eq)]
enum SignalAction {
    Stop,
    Nothing,
    /// With what is left behind.
    EndAtOnce,
    /// With nothing left behind.
    Leave(u8),
}

impl SignalState {
    fn take(&mut self, signal: i32, now: Instant) -> SignalAction {
        self.is_final |= signal != SIGINT;
        if let Some(code) = self.done {
            let was_leaving = std::mem::replace(&mut self.is_leaving, true);
            return if was_leaving { SignalAction::Leave(code) } else { SignalAction::Nothing };
        }
        match self.first {
            None => {
                self.first = Some(now);
                SignalAction::Stop
            }
            Some(first) if now.saturating_duration_since(first) < ONE_WISH => SignalAction::Nothing,
            Some(_) => SignalAction::EndAtOnce,
        }
    }
}

impl SignalRequests {
    /// The flag that the first signal raises.
    pub(crate) fn stop(&self) -> &Arc<AtomicBool> {
        &self.stop
    }

    /// The work is done, and this process ends with that code. From now on a signal means that it is to end, and a
    /// second one that it is not to be waited for.
    pub(crate) fn work_is_done(&self, code: u8) {
        self.state.lock().done = Some(code);
    }

    /// Whether this process is to end now that its work is done.
    pub(crate) fn is_leaving(&self) -> bool {
        let state = self.state.lock();
        state.is_leaving || state.is_final
    }
}

/// # Errors
/// When signals can't be handled.
pub(crate) fn listen() -> Result<SignalRequests, ExitFailure> {
    let signalled = SignalRequests { stop: Arc::default(), state: Arc::default() };
    let (flag, state) = (Arc::clone(&signalled.stop), Arc::clone(&signalled.state));
    // SIGHUP too: a terminal that is closed must not leave devices and mounts behind.
    Signals::new([SIGINT, SIGTERM, SIGHUP])
        .and_then(|signals| {
            let obey = move || obey(signals, &flag, &state);
            std::thread::Builder::new().name("signals".to_owned()).spawn(obey)
        })
        .map_err(|error| ExitFailure::Failed(format!("cannot handle signals: {error}")))?;
    Ok(signalled)
}

/// A flag that the first signal raises.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>, ExitFailure> {
    listen().map(|signalled| signalled.stop)
}

fn obey(mut signals: Signals, stop: &AtomicBool, state: &UnsimulatedMutex<SignalState>) {
    for signal in signals.forever() {
        let act = state.lock().take(signal, Instant::now());
        match act {
            SignalAction::Nothing => {}
            SignalAction::Stop => stop.store(true, Ordering::Relaxed),
            SignalAction::EndAtOnce => {
                // The reader of standard error may be gone.
                let _ =
                    writeln!(std::io::stderr(), "\nended at once: `underlay clean` removes the leftovers");
                signal_hook::low_level::exit(i32::from(INTERRUPTED))
            }
            SignalAction::Leave(code) => signal_hook::low_level::exit(i32::from(code)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_signal_ends_work_but_twins_count_once() {
        let (mut state, now) = (SignalState::default(), Instant::now());
        assert_eq!(state.take(SIGTERM, now), SignalAction::Stop);
        assert_eq!(state.take(SIGTERM, now + ONE_WISH / 2), SignalAction::Nothing);
        assert_eq!(state.take(SIGTERM, now + ONE_WISH * 2), SignalAction::EndAtOnce);
    }

    #[test]
    fn signal_after_work_closes_console_and_keeps_exit_code() {
        let (mut state, now) = (SignalState::default(), Instant::now());
        assert_eq!(state.take(SIGINT, now), SignalAction::Stop);
        state.done = Some(130);
        // The Ctrl-C that stopped the run is not one that closes the console.
        assert!(!state.is_leaving && !state.is_final);
        assert_eq!(state.take(SIGINT, now + ONE_WISH * 2), SignalAction::Nothing);
        assert!(state.is_leaving);
        assert_eq!(state.take(SIGINT, now + ONE_WISH * 3), SignalAction::Leave(130));
    }
}
