//! The thread that serves a device's queue: it fetches requests, and gives back the results that any thread reports.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use io_uring::{opcode, squeue, types};
use underlay_storage::device::{BlockDevice, Completion, Request};

use super::protocol::{self, COMMIT_AND_FETCH, Call, DESCRIPTOR_BYTES, FETCH};
use super::{MAX_REQUEST_BYTES, SLOTS};
use crate::serving::daemon::export::{self, Buffers};
use crate::serving::ring::{self, Answers, Mapping, Slots};

const PAYLOAD_BYTES: usize = MAX_REQUEST_BYTES as usize;

/// What the worker shares with the replies that are owed.
struct Shared {
    payloads: Mapping,
    answers: Arc<Answers<Answer>>,
}

impl Shared {
    fn payload(&self, slot: u32) -> *mut u8 {
        self.payloads.part(0, slot, PAYLOAD_BYTES)
    }
}

/// What came of the request in a slot: bytes, or a negative error number.
pub(super) struct Answer {
    slot: u32,
    result: i32,
}

/// The descriptors of a device's first queue, which the kernel writes.
fn descriptors_of(device: &File) -> io::Result<Mapping> {
    const PAGE_BYTES: usize = 4096;
    // The descriptors of queue 0 begin at offset 0 of the device file (UBLKSRV_CMD_BUF_OFFSET).
    Mapping::of_kernel(device, (SLOTS * DESCRIPTOR_BYTES).next_multiple_of(PAGE_BYTES))
}

/// The answer to one request, owed. Dropped without one, as by a device that vanished, it is an I/O error.
struct Reply {
    shared: Arc<Shared>,
    slot: u32,
    is_given: bool,
}

impl Reply {
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

    fn outcome(self, completion: Completion, bytes: usize) {
        match completion {
            Ok(_) => self.done(bytes),
            Err(error) => self.error(export::errno(&error).code()),
        }
    }

    fn give(&mut self, result: i32) {
        self.is_given = true;
        self.shared.answers.give(Answer { slot: self.slot, result });
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.is_given {
            self.give(-libc::EIO);
        }
    }
}

pub(super) struct Worker {
    device: File,
    descriptors: Mapping,
    volume: Arc<dyn BlockDevice>,
    buffers: Arc<Buffers>,
    shared: Arc<Shared>,
}

impl Worker {
    /// Starts a thread, which tells once whether its slots were accepted. It ends with the device.
    pub(super) fn start(
        number: u32,
        device: File,
        volume: Arc<dyn BlockDevice>,
        started: Sender<io::Result<()>>,
    ) -> io::Result<JoinHandle<()>> {
        let shared = Shared {
            payloads: Mapping::anonymous(SLOTS * PAYLOAD_BYTES)?,
            answers: Arc::new(Answers::new(SLOTS)?),
        };
        let worker = Worker {
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

    fn read(&self, offset_bytes: u64, length_bytes: usize, reply: Reply) {
        let buffers = Arc::clone(&self.buffers);
        let buffer = buffers.take(length_bytes);
        let done = move |completion: Completion| match completion {
            Ok(buffer) => {
                reply.data(&buffer);
                buffers.put(buffer);
            }
            Err(error) => reply.error(export::errno(&error).code()),
        };
        self.volume.submit(Request::Read { offset_bytes, buffer }, Box::new(done));
    }

    fn submit(&self, request: Request, bytes: usize, reply: Reply) {
        self.volume.submit(request, Box::new(move |completion| reply.outcome(completion, bytes)));
    }
}

impl Slots for Worker {
    type Answer = Answer;

    fn count(&self) -> usize {
        SLOTS
    }

    fn offer(&self, submit: &mut dyn FnMut(&[squeue::Entry128]) -> io::Result<()>) -> io::Result<()> {
        let commands: Vec<squeue::Entry128> =
            (0..SLOTS as u32).map(|slot| self.command(FETCH, slot, -1)).collect();
        submit(&commands)
    }

    fn give_back(&self, Answer { slot, result }: Answer) -> squeue::Entry128 {
        self.command(COMMIT_AND_FETCH, slot, result)
    }

    fn handle(&self, slot: u32) {
        let reply = Reply { shared: Arc::clone(&self.shared), slot, is_given: false };
        // SAFETY: the kernel has written this descriptor and leaves it alone until the result is there.
        let descriptor = unsafe {
            ptr::read_volatile(
                self.descriptors.part(0, slot, DESCRIPTOR_BYTES).cast::<[u8; DESCRIPTOR_BYTES]>(),
            )
        };
        match protocol::parse(&descriptor, PAYLOAD_BYTES) {
            Some(Call::Read { offset_bytes, length_bytes }) => self.read(offset_bytes, length_bytes, reply),
            Some(Call::Write { offset_bytes, length_bytes, fua }) => {
                let payload = self.shared.payload(slot);
                // SAFETY: the kernel has filled this much of the slot's payload, and the slot is ours.
                let data = unsafe { std::slice::from_raw_parts(payload, length_bytes) }.to_vec();
                self.submit(Request::Write { offset_bytes, data, fua }, length_bytes, reply);
            }
            Some(Call::Flush) => self.submit(Request::Flush, 0, reply),
            Some(Call::Discard { offset_bytes, length_bytes }) => {
                self.submit(Request::Discard { offset_bytes, length_bytes }, 0, reply);
            }
            Some(Call::Other(_)) => reply.error(libc::EOPNOTSUPP),
            None => reply.error(libc::EINVAL),
        }
    }
}
