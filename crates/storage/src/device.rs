//! A block device: what layers are built from and what an attachment shows to a program.

use underlay_sync::channel;

/// The sizes that a user of a device must respect or may exploit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceGeometry {
    pub capacity_bytes: u64,
    /// The unit of addressing: every offset and length is a multiple of it.
    pub block_bytes: u32,
    /// The size at which the device works best, a stripe's width for one.
    pub optimal_io_bytes: u32,
}

/// A request to a device. Buffers are owned, so that a request may outlive its caller's stack.
#[derive(Debug)]
pub enum DeviceRequest {
    /// Fills `buffer`, whose length is the length of the read.
    Read {
        offset_bytes: u64,
        buffer: Vec<u8>,
    },
    Write {
        offset_bytes: u64,
        data: Vec<u8>,
        fua: bool,
    },
    Flush,
    /// The range's content becomes undefined on devices in general, zero on ours.
    Discard {
        offset_bytes: u64,
        length_bytes: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error("{length_bytes} bytes at {offset_bytes} lie outside a device of {capacity_bytes} bytes")]
    OutOfRange { offset_bytes: u64, length_bytes: u64, capacity_bytes: u64 },
    #[error("{length_bytes} bytes at {offset_bytes} are not aligned to blocks of {block_bytes} bytes")]
    Unaligned { offset_bytes: u64, length_bytes: u64, block_bytes: u32 },
    #[error("the device has no space left")]
    NoSpace,
    #[error("the device reported an I/O error: {0}")]
    Io(String),
    #[error("the device is gone")]
    Gone,
}

/// The answer to a request: the buffer of a read, filled; the empty vector for all others.
pub type DeviceCompletion = Result<Vec<u8>, DeviceError>;

/// Called exactly once, on any thread, when the request is over. It must not block.
pub type CompletionCallback = Box<dyn FnOnce(DeviceCompletion) + Send>;

/// A device of numbered bytes, addressed in blocks.
///
/// **Ordering.** Requests in flight at the same time may happen in any order. A request submitted after
/// another one's completion sees its effect.
///
/// **Durability.** A completed write may be lost with power until a later flush completes, unless it was
/// written with `fua`. A flush covers every write that had *completed* when the flush was submitted.
///
/// **Errors.** A failed write leaves each of its blocks old or new, never anything else. After a failed flush a later
/// one succeeds only if it covers what the failed one should have: a device that can't tell fails all of them.
pub trait BlockDevice: Send + Sync {
    fn geometry(&self) -> DeviceGeometry;

    /// Starts a request and returns; `done` carries the answer, possibly before `submit` returns.
    fn submit(&self, request: DeviceRequest, done: CompletionCallback);

    /// Submits and waits: for callers that have nothing else to do.
    fn execute(&self, request: DeviceRequest) -> DeviceCompletion {
        let (sender, receiver) = channel();
        self.submit(
            request,
            Box::new(move |completion| {
                let _ = sender.send(completion);
            }),
        );
        // A dropped `done` is a device that vanished with the request inside.
        receiver.recv().unwrap_or(Err(DeviceError::Gone))
    }
}

impl DeviceRequest {
    /// Offset and length in bytes; zeros for a flush.
    pub fn extent(&self) -> (u64, u64) {
        match self {
            DeviceRequest::Read { offset_bytes, buffer } => (*offset_bytes, buffer.len() as u64),
            DeviceRequest::Write { offset_bytes, data, .. } => (*offset_bytes, data.len() as u64),
            DeviceRequest::Flush => (0, 0),
            DeviceRequest::Discard { offset_bytes, length_bytes } => (*offset_bytes, *length_bytes),
        }
    }

    /// Every device checks a request by this before it acts.
    ///
    /// # Errors
    /// When it does not begin and end with a block, or lies outside the device.
    pub fn check(&self, geometry: &DeviceGeometry) -> Result<(), DeviceError> {
        let (offset_bytes, length_bytes) = self.extent();
        let block_bytes = u64::from(geometry.block_bytes);
        if !offset_bytes.is_multiple_of(block_bytes) || !length_bytes.is_multiple_of(block_bytes) {
            return Err(DeviceError::Unaligned {
                offset_bytes,
                length_bytes,
                block_bytes: geometry.block_bytes,
            });
        }
        match offset_bytes.checked_add(length_bytes) {
            Some(end) if end <= geometry.capacity_bytes => Ok(()),
            _ => Err(DeviceError::OutOfRange {
                offset_bytes,
                length_bytes,
                capacity_bytes: geometry.capacity_bytes,
            }),
        }
    }
}
