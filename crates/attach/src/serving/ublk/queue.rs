//! The thread that serves a device's queue: it fetches requests, and returns the results that any thread reports.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use io_uring::{opcode, squeue, types};
use underlay_storage::device::{BlockDevice, DeviceCompletion, DeviceRequest};

use super::protocol::{self, COMMIT_AND_FETCH, DESCRIPTOR_BYTES, FETCH, UblkCall};
use super::{MAX_REQUEST_BYTES, SLOTS};
use crate::serving::daemon::export::{self, ReadBuffers};
use crate::serving::ring::{self, RingAnswers, RingSlots, SharedMapping};

const PAYLOAD_BYTES: usize = MAX_REQUEST_BYTES as usize;

/// State that the worker shares with pending replies.
struct UblkShared {
    payloads: SharedMapping,
    answers: Arc<RingAnswers<UblkAnswer>>,
}

impl UblkShared {
    fn payload(&self, slot: u32) -> *mut u8 {
        self.payloads.part(0, slot, PAYLOAD_BYTES)
    }
}

/// The result of a slot's request: bytes, or a negative error number.
pub(super) struct UblkAnswer {
    slot: u32,
    result: i32,
}

/// The descriptors of a device's first queue, which the kernel writes.
fn descriptors_of(device: &File) -> io::Result<SharedMapping> {
    const PAGE_BYTES: usize = 4096;
    // The descriptors of queue 0 begin at offset 0 of the device file (UBLKSRV_CMD_BUF_OFFSET).
    SharedMapping::from_kernel(device, (SLOTS * DESCRIPTOR_BYTES).next_multiple_of(PAGE_BYTES))
}

/// A pending answer to one request. If it is dropped without one, as by a device that vanished, it is an I/O error.
struct UblkReply {
    shared: Arc<UblkShared>,
    slot: u32,
    is_given: bool,
}

impl UblkReply {
    fn done(mut self, bytes: usize) {
        // Fits: no request is longer than MAX_REQUEST_BYTES.
        self.give(bytes as i32);
    }

    fn data(mut self, bytes: &[u8]) {
        if bytes.len() > PAYLOAD_BYTES {
            return self.give(-libc::EIO);
        }
        let payload = self.shared.payload(self.slot);
        // SAFETY: the slot is this reply's, its payload has room, and the two don't overlap.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), payload, bytes.len()) };
        self.give(bytes.len() as i32);
    }

    fn error(mut self, errno: i32) {
        self.give(-errno);
    }

    fn outcome(self, completion: DeviceCompletion, bytes: usize) {
        match completion {
            Ok(_) => self.done(bytes),
            Err(error) => self.error(export::errno(&error).code()),
        }
    }

    fn give(&mut self, result: i32) {
        self.is_given = true;
        self.shared.answers.give(UblkAnswer { slot: self.slot, result });
    }
}

impl Drop for UblkReply {
    fn drop(&mut self) {
        if !self.is_given {
            self.give(-libc::EIO);
        }
    }
}

pub(super) struct UblkWorker {
    device: File,
    descriptors: SharedMapping,
    volume: Arc<dyn BlockDevice>,
    buffers: Arc<ReadBuffers>,
    shared: Arc<UblkShared>,
}

impl UblkWorker {
    /// Starts a thread, which reports once whether its slots were accepted. It ends with the device.
    pub(super) fn start(
        number: u32,
        device: File,
        volume: Arc<dyn BlockDevice>,
        started: Sender<io::Result<()>>,
    ) -> io::Result<JoinHandle<()>> {
        let shared = UblkShared {
            payloads: SharedMapping::anonymous(SLOTS * PAYLOAD_BYTES)?,
            answers: Arc::new(RingAnswers::new(SLOTS)?),
        };
        let worker = UblkWorker {
            descriptors: descriptors_of(&device)?,
            device,
            volume,
            buffers: Arc::default(),
            shared: Arc::new(shared),
        };
        std::thread::Builder::new()
            .name(format!("ublk-{number}"))
            .spawn(move || ring::serve(&worker, &worker.shared.answers, &started))
    }

    fn command(&self, operation: u32, slot: u32, result: i32) -> squeue::Entry128 {
        let payload = self.shared.payload(slot) as u64;
        opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), operation)
            .cmd(protocol::queue_command(slot as u16, result, payload))
            .build()
            .user_data(u64::from(slot))
    }

    fn read(&self, offset_bytes: u64, length_bytes: usize, reply: UblkReply) {
        let buffers = Arc::clone(&self.buffers);
        let buffer = buffers.take(length_bytes);
        let done = move |completion: DeviceCompletion| match completion {
            Ok(buffer) => {
                reply.data(&buffer);
                buffers.put(buffer);
            }
            Err(error) => reply.error(export::errno(&error).code()),
        };
        self.volume.submit(DeviceRequest::Read { offset_bytes, buffer }, Box::new(done));
    }

    fn submit(&self, request: DeviceRequest, bytes: usize, reply: UblkReply) {
        self.volume.submit(request, Box::new(move |completion| reply.outcome(completion, bytes)));
    }
}

impl RingSlots for UblkWorker {
    type Answer = UblkAnswer;

    fn count(&self) -> usize {
        SLOTS
    }

    fn offer(&self, submit: &mut dyn FnMut(&[squeue::Entry128]) -> io::Result<()>) -> io::Result<()> {
        let commands: Vec<squeue::Entry128> =
            (0..SLOTS as u32).map(|slot| self.command(FETCH, slot, -1)).collect();
        submit(&commands)
    }

    fn give_back(&self, UblkAnswer { slot, result }: UblkAnswer) -> squeue::Entry128 {
        self.command(COMMIT_AND_FETCH, slot, result)
    }

    fn handle(&self, slot: u32) {
        let reply = UblkReply { shared: Arc::clone(&self.shared), slot, is_given: false };
        // SAFETY: the kernel has written this descriptor and leaves it alone until the result is there.
        let descriptor = unsafe {
            ptr::read_volatile(
                self.descriptors.part(0, slot, DESCRIPTOR_BYTES).cast::<[u8; DESCRIPTOR_BYTES]>(),
            )
        };
        match protocol::parse(&descriptor, PAYLOAD_BYTES) {
            Some(UblkCall::Read { offset_bytes, length_bytes }) => {
                self.read(offset_bytes, length_bytes, reply)
            }
            Some(UblkCall::Write { offset_bytes, length_bytes, fua }) => {
                let payload = self.shared.payload(slot);
                // SAFETY: the kernel has filled this much of the slot's payload, and the slot is ours.
                let data = unsafe { std::slice::from_raw_parts(payload, length_bytes) }.to_vec();
                self.submit(DeviceRequest::Write { offset_bytes, data, fua }, length_bytes, reply);
            }
            Some(UblkCall::Flush) => self.submit(DeviceRequest::Flush, 0, reply),
            Some(UblkCall::Discard { offset_bytes, length_bytes }) => {
                self.submit(DeviceRequest::Discard { offset_bytes, length_bytes }, 0, reply);
            }
            Some(UblkCall::Other(_)) => reply.error(libc::EOPNOTSUPP),
            None => reply.error(libc::EINVAL),
        }
    }
}
