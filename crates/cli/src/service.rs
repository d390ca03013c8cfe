//! Notifications to a service manager, and the sockets it passes: sd_notify(3), sd_listen_fds(3).

use std::net::TcpListener;
use std::os::fd::{FromRawFd as _, OwnedFd};

use sd_notify::NotifyState;

/// The service serves. Nobody hears it where no service manager asked for it.
pub(crate) fn is_ready() {
    let _ = sd_notify::notify(&[NotifyState::Ready]);
}

/// The service ends, which may take a while.
pub(crate) fn is_stopping() {
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
}

/// The one TCP socket that the service manager listens on for this process; none where there is no such manager.
///
/// # Errors
/// When it passes something else.
pub(crate) fn passed_listener() -> Result<Option<TcpListener>, String> {
    // SAFETY: no other thread runs yet: the caller calls this before it starts any.
    let passed = unsafe { sd_notify::listen_fds_with_names_and_unset_env() }
        .map_err(|error| format!("the service manager passes no sockets that can be used: {error}"))?;
    // SAFETY: these descriptors were passed to this process, and are nobody else's in it.
    let mut passed: Vec<OwnedFd> = passed.map(|(fd, _)| unsafe { OwnedFd::from_raw_fd(fd) }).collect();
    let Some(socket) = passed.pop() else { return Ok(None) };
    if !passed.is_empty() {
        return Err(
            "the service manager passes several sockets: expected one ListenStream= with an address and port"
                .to_owned(),
        );
    }
    let listens = rustix::net::sockopt::socket_acceptconn(&socket);
    let listener = TcpListener::from(socket);
    match (listens, listener.local_addr()) {
        (Ok(true), Ok(_)) => Ok(Some(listener)),
        _ => Err("the service manager passes something other than a listening TCP socket: expected ListenStream= with an address and port".to_owned()),
    }
}
