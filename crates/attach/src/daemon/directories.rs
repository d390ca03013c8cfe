//! The daemon of an attachment whose volumes are directories.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};

use underlay_storage::stack::{Pace, Stack};

use super::{DaemonConfig, Event, WATCH_INTERVAL, control, watch_sigterm};
use crate::attachment::AttachError;
use crate::directory::Serving;

/// Serves them until told to end, or until all are unmounted.
pub(super) fn serve(config: &DaemonConfig, stack: &Arc<Stack>) -> Result<(), AttachError> {
    let names: Vec<&str> = config.stack.volumes.iter().map(|volume| volume.name.as_str()).collect();
    let serving = Serving::start(&config.directories, &names, stack)?;
    let (events, received) = mpsc::channel();
    watch_sigterm(events.clone())
        .map_err(|error| AttachError::failed(format!("could not catch SIGTERM: {error}")))?;
    let on_shutdown = move || {
        let _ = events.send(Event::Shutdown);
    };
    let volumes = serving.volumes().to_vec();
    control::listen(&config.control, Arc::clone(stack), config.stack.dilation, volumes, on_shutdown)?;

    let mut lost = false;
    loop {
        let event = received.recv_timeout(WATCH_INTERVAL);
        if !lost && stack.faults().iter().any(|device| !device.powered) {
            // When it comes back, the journal knows better what is there than we do.
            lost = true;
            serving.abandon();
        }
        match event {
            Ok(Event::Shutdown | Event::Terminated) | Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if serving.is_over() => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    // A fault ends with its storage; what a power cut took is gone all the same.
    stack.clear_all_faults();
    stack.restore_power();
    stack.set_pace(Pace::Immediate);
    let outcome = serving.stop(lost);
    let _ = std::fs::remove_file(&config.control);
    outcome
}
