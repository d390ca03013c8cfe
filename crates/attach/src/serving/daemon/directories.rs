//! The daemon of an attachment whose volumes are directories.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use underlay_storage::stack::{PacingMode, Stack};

use super::request_meter::RequestMeters;
use super::{DaemonConfig, obey};
use crate::attachments::directory::ServedDirectories;
use crate::machine::error::AttachError;

/// Serves them until shutdown, or until all are unmounted.
pub(super) fn serve(config: &DaemonConfig, stack: &Arc<Stack>) -> Result<(), AttachError> {
    let names: Vec<&str> = config.stack.volumes.iter().map(|volume| volume.name.as_str()).collect();
    let serving = ServedDirectories::start(&config.directories, &names, stack)?;
    // When the power comes back, the journal knows the contents better than memory does.
    let lost = Arc::new(AtomicBool::new(false));
    let (abandon, was_lost) = (serving.abandoner(), Arc::clone(&lost));
    let on_power_cut = move || {
        was_lost.store(true, Ordering::SeqCst);
        abandon();
    };
    // The kernel sees no block device whose counters could be compared with ours.
    let doors = RequestMeters::default();
    obey(config, stack, doors, serving.volumes().to_vec(), on_power_cut, || serving.is_over())?;
    // A fault ends with its storage, but data lost in a power cut stays lost.
    stack.clear_all_faults();
    stack.restore_power();
    stack.set_pace(PacingMode::Immediate);
    let outcome = serving.stop(lost.load(Ordering::SeqCst));
    let _ = std::fs::remove_file(&config.control);
    outcome
}
