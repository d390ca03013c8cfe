//! A member whose label could not be read when the pool was opened.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use underlay_storage::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};

use super::extent::BLOCK_BYTES;
use super::label::{FirstBlock, MemberLabel};

/// Asks the device for its label before anything else, until it has shown it once: it may be another device than the
/// pool had, and nothing may be read from or written to that.
pub(super) struct LabelProbeDevice {
    device: Arc<dyn BlockDevice>,
    expected: MemberLabel,
    is_known: Arc<AtomicBool>,
}

impl LabelProbeDevice {
    pub(super) fn new(device: Arc<dyn BlockDevice>, expected: MemberLabel) -> LabelProbeDevice {
        LabelProbeDevice { device, expected, is_known: Arc::default() }
    }

    /// Whether it has shown the label that it must have; shared with the device, and stays true.
    pub(super) fn is_known(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_known)
    }
}

impl BlockDevice for LabelProbeDevice {
    fn geometry(&self) -> DeviceGeometry {
        self.device.geometry()
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        if self.is_known.load(Ordering::Acquire) {
            return self.device.submit(request, done);
        }
        let (device, expected) = (Arc::clone(&self.device), self.expected);
        let is_known = Arc::clone(&self.is_known);
        let shown =
            move |completion: DeviceCompletion| match completion.map(|block| MemberLabel::decode(&block)) {
                Ok(FirstBlock::Label(label)) if MemberLabel { made: true, ..label } == expected => {
                    is_known.store(true, Ordering::Release);
                    device.submit(request, done);
                }
                Ok(_) => done(Err(DeviceError::Io(
                    "it does not have the label of the member that it stands for".into(),
                ))),
                Err(error) => done(Err(error)),
            };
        let label = DeviceRequest::Read { offset_bytes: 0, buffer: vec![0; BLOCK_BYTES as usize] };
        self.device.submit(label, Box::new(shown));
    }
}
