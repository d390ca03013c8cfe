//! A device in memory that obeys the test: it fails, holds requests back, changes its size.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use underlay_storage::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};

pub(crate) const BLOCK_BYTES: u32 = 512;

#[derive(Default)]
pub struct TestDevice {
    bytes: Mutex<Vec<u8>>,
    capacity_bytes: AtomicU64,
    pub fails_with: Mutex<Option<DeviceError>>,
    pub holds_back: AtomicBool,
    held: Mutex<Vec<(DeviceRequest, CompletionCallback)>>,
    pub flushes: AtomicU64,
    pub forced_writes: AtomicU64,
}

impl TestDevice {
    pub fn new(capacity_bytes: u64) -> Arc<TestDevice> {
        let device = TestDevice::default();
        device.resize(capacity_bytes);
        Arc::new(device)
    }

    pub fn resize(&self, capacity_bytes: u64) {
        self.bytes.lock().unwrap().resize(capacity_bytes as usize, 0);
        self.capacity_bytes.store(capacity_bytes, Ordering::SeqCst);
    }

    pub fn content(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }

    pub fn held(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    /// Carries out what was held back.
    pub fn release(&self) {
        let requests = std::mem::take(&mut *self.held.lock().unwrap());
        for (request, done) in requests {
            done(self.carry_out(request));
        }
    }

    fn carry_out(&self, request: DeviceRequest) -> DeviceCompletion {
        request.check(&self.geometry())?;
        if let Some(error) = self.fails_with.lock().unwrap().clone() {
            return Err(error);
        }
        let mut bytes = self.bytes.lock().unwrap();
        match request {
            DeviceRequest::Read { offset_bytes, mut buffer } => {
                let from = offset_bytes as usize;
                let length = buffer.len();
                buffer.copy_from_slice(&bytes[from..from + length]);
                return Ok(buffer);
            }
            DeviceRequest::Write { offset_bytes, data, fua } => {
                self.forced_writes.fetch_add(u64::from(fua), Ordering::SeqCst);
                bytes[offset_bytes as usize..][..data.len()].copy_from_slice(&data);
            }
            DeviceRequest::Flush => {
                self.flushes.fetch_add(1, Ordering::SeqCst);
            }
            DeviceRequest::Discard { offset_bytes, length_bytes } => {
                bytes[offset_bytes as usize..][..length_bytes as usize].fill(0);
            }
        }
        Ok(Vec::new())
    }
}

impl BlockDevice for TestDevice {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            capacity_bytes: self.capacity_bytes.load(Ordering::SeqCst),
            block_bytes: BLOCK_BYTES,
            optimal_io_bytes: 64 << 10,
        }
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        if self.holds_back.load(Ordering::SeqCst) {
            self.held.lock().unwrap().push((request, done));
        } else {
            done(self.carry_out(request));
        }
    }
}
