//! What a service manager is told: sd_notify(3).

use sd_notify::NotifyState;

/// The service serves. Nobody hears it where no service manager asked for it.
pub(crate) fn is_ready() {
    let _ = sd_notify::notify(&[NotifyState::Ready]);
}

/// The service ends, which may take a while.
pub(crate) fn is_stopping() {
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
}
