//! A member as the pool uses it: a flush that fails is known beside the journal before anybody else hears of it.

use std::sync::Arc;

use underlay_storage::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceGeometry, DeviceRequest,
};

use super::failed_flushes::MemberFlushHistory;
use super::map::OutstandingChanges;

/// Keeps beside the journal that a flush of the member has failed, before anybody else hears of it.
///
/// The next process finds in its notes where data is that this one could not make durable. Linux takes the pages for
/// clean, so it reads them and its flush succeeds: unless it writes them again, a power cut leaves a map that points to
/// what was never written.
pub(super) struct FlushMonitor {
    device: Arc<dyn BlockDevice>,
    member: u8,
    outstanding: Arc<OutstandingChanges>,
    doubt: Arc<MemberFlushHistory>,
}

impl FlushMonitor {
    pub(super) fn new(
        device: Arc<dyn BlockDevice>,
        member: u8,
        doubt: Arc<MemberFlushHistory>,
        outstanding: &Arc<OutstandingChanges>,
    ) -> FlushMonitor {
        FlushMonitor { device, member, outstanding: Arc::clone(outstanding), doubt }
    }
}

impl BlockDevice for FlushMonitor {
    fn geometry(&self) -> DeviceGeometry {
        self.device.geometry()
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        let is_flush = matches!(request, DeviceRequest::Flush);
        // A forced write is a flush as well on a device that has no other way to force it.
        if !is_flush && !matches!(request, DeviceRequest::Write { fua: true, .. }) {
            return self.device.submit(request, done);
        }
        let (member, outstanding) = (self.member, Arc::clone(&self.outstanding));
        let doubt = Arc::clone(&self.doubt);
        // A flush covers neither what is written again after it began nor what another flush loses meanwhile.
        let (owed, failures) = (doubt.owes(), doubt.failures());
        let answered = move |completion: DeviceCompletion| {
            if completion.is_err() {
                doubt.note_failure();
                outstanding.doubts.set(member, true);
            } else if is_flush && !owed && doubt.failures() == failures {
                outstanding.doubts.set(member, false);
            }
            done(completion);
        };
        self.device.submit(request, Box::new(answered));
    }
}
