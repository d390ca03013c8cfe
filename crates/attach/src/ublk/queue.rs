//! The thread that serves a device's queue: it fetches requests, and gives back the results that any thread reports.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use underlay_sync::{Mutex, MutexGuard};

use io_uring::{opcode, squeue, types};
use underlay_storage::device::{BlockDevice, Completion, Request};

use super::protocol::{self, COMMIT_AND_FETCH, Call, DESCRIPTOR_BYTES, FETCH};
use super::{MAX_REQUEST_BYTES, Ring, SLOTS, build_ring};
use crate::daemon::export::{self, Buffers};

const PAYLOAD_BYTES: usize = MAX_REQUEST_BYTES as usize;

/// Marks the completion that says: another thread has reported a result.
const WOKEN: u64 = u64::MAX;

struct Mapping {
    start: *mut u8,
    length_bytes: usize,
}

// SAFETY: a slot's part belongs to one owner at a time: while its request is under way to the reply (`Reply`),
// otherwise to the worker or the kernel. The descriptors are only read, by the worker.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory of our own. It is taken only where a request needed it.
    fn anonymous(length_bytes: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Mapping::new(length_bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
    }

    /// The descriptors of a device's first queue, which the kernel writes.
    fn descriptors(device: &File) -> io::Result<Mapping> {
        const PAGE_BYTES: usize = 4096;
        let length_bytes = (SLOTS * DESCRIPTOR_BYTES).next_multiple_of(PAGE_BYTES);
        Mapping::new(length_bytes, libc::PROT_READ, libc::MAP_SHARED | libc::MAP_POPULATE, device.as_raw_fd())
    }

    fn new(length_bytes: usize, protection: i32, flags: i32, file: i32) -> io::Result<Mapping> {
        // SAFETY: a new mapping; nothing else is touched.
        let start = unsafe { libc::mmap(ptr::null_mut(), length_bytes, protection, flags, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { start: start.cast(), length_bytes })
    }

    fn part(&self, slot: u16, bytes: usize) -> *mut u8 {
        let at = usize::from(slot) * bytes;
        assert!(at + bytes <= self.length_bytes, "slot {slot} lies outside");
        // SAFETY: inside, as was just looked at.
        unsafe { self.start.add(at) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; nobody uses it any more.
        unsafe { libc::munmap(self.start.cast(), self.length_bytes) };
    }
}

/// What the worker shares with the replies that are owed.
struct Shared {
    payloads: Mapping,
    ready: Mutex<Vec<(u16, i32)>>,
    /// Set while the worker may be asleep, so that whoever adds to `ready` must wake it.
    is_sleeping: AtomicBool,
    wake: OwnedFd,
}

impl Shared {
    fn ready(&self) -> MutexGuard<'_, Vec<(u16, i32)>> {
        self.ready.lock()
    }
}

/// The answer to one request, owed. Dropped without one, as by a device that vanished, it is an I/O error.
struct Reply {
    shared: Arc<Shared>,
    slot: u16,
    is_given: bool,
}

impl Reply {
    fn done(mut self, bytes: usize) {
        self.give(bytes as i32);
    }

    fn data(mut self, bytes: &[u8]) {
        if bytes.len() > PAYLOAD_BYTES {
            return self.give(-libc::EIO);
        }
        let payload = self.shared.payloads.part(self.slot, PAYLOAD_BYTES);
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
        self.shared.ready().push((self.slot, result));
        if self.shared.is_sleeping.swap(false, Ordering::SeqCst) {
            // It can only fail when the counter is full, and then the worker is being woken already.
            let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
        }
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
    /// Where the kernel puts the count of wake-ups. Boxed: it must stay where it is.
    wakes: Box<u64>,
    under_way: usize,
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
            ready: Mutex::new(Vec::with_capacity(SLOTS)),
            is_sleeping: AtomicBool::new(false),
            wake: rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?,
        };
        let worker = Worker {
            descriptors: Mapping::descriptors(&device)?,
            device,
            volume,
            buffers: Arc::default(),
            shared: Arc::new(shared),
            wakes: Box::new(0),
            under_way: SLOTS,
        };
        std::thread::Builder::new().name(format!("ublk-{number}")).spawn(move || worker.run(&started))
    }

    fn run(mut self, started: &Sender<io::Result<()>>) {
        let mut ring = match build_ring(SLOTS + 1).and_then(|mut ring| {
            self.fetch_all(&mut ring)?;
            Ok(ring)
        }) {
            Ok(ring) => ring,
            Err(error) => {
                let _ = started.send(Err(error));
                return;
            }
        };
        let _ = started.send(Ok(()));
        if let Err(error) = self.serve(&mut ring) {
            // Without it, requests would wait for ever; without the process, the kernel fails them.
            tracing::error!("io_uring failed: {error}");
            std::process::abort();
        }
    }

    fn fetch_all(&mut self, ring: &mut Ring) -> io::Result<()> {
        for slot in 0..SLOTS as u16 {
            push(ring, &self.command(FETCH, slot, -1))?;
        }
        self.await_wake(ring)?;
        // A refusal is there when this call returns.
        ring.submit()?;
        let refused = ring.completion().find(|completion| completion.result() < 0);
        refused.map_or(Ok(()), |refused| Err(io::Error::from_raw_os_error(-refused.result())))
    }

    fn command(&self, operation: u32, slot: u16, result: i32) -> squeue::Entry128 {
        let payload = self.shared.payloads.part(slot, PAYLOAD_BYTES) as u64;
        opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), operation)
            .cmd(protocol::queue_command(slot, result, payload))
            .build()
            .user_data(u64::from(slot))
    }

    fn await_wake(&mut self, ring: &mut Ring) -> io::Result<()> {
        let counter: *mut u64 = &raw mut *self.wakes;
        let read = opcode::Read::new(types::Fd(self.shared.wake.as_raw_fd()), counter.cast(), 8);
        push(ring, &read.build().user_data(WOKEN).into())
    }

    fn serve(&mut self, ring: &mut Ring) -> io::Result<()> {
        let mut ready = Vec::with_capacity(SLOTS);
        let mut completed = Vec::with_capacity(SLOTS);
        // None is under way once the device is stopped: the kernel has given every slot back.
        while self.under_way > 0 {
            self.shared.is_sleeping.store(true, Ordering::SeqCst);
            std::mem::swap(&mut *self.shared.ready(), &mut ready);
            for (slot, result) in ready.drain(..) {
                push(ring, &self.command(COMMIT_AND_FETCH, slot, result))?;
            }
            match ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            self.shared.is_sleeping.store(false, Ordering::SeqCst);
            completed
                .extend(ring.completion().map(|completion| (completion.user_data(), completion.result())));
            for (slot, result) in completed.drain(..) {
                match u16::try_from(slot) {
                    Err(_) => self.await_wake(ring)?,
                    Ok(slot) if result == 0 => self.handle(slot),
                    Ok(_) => self.under_way -= 1,
                }
            }
        }
        Ok(())
    }

    fn handle(&self, slot: u16) {
        let reply = Reply { shared: Arc::clone(&self.shared), slot, is_given: false };
        // SAFETY: the kernel has written this descriptor and leaves it alone until the result is there.
        let descriptor = unsafe {
            ptr::read_volatile(self.descriptors.part(slot, DESCRIPTOR_BYTES).cast::<[u8; DESCRIPTOR_BYTES]>())
        };
        match protocol::parse(&descriptor, PAYLOAD_BYTES) {
            Some(Call::Read { offset_bytes, length_bytes }) => self.read(offset_bytes, length_bytes, reply),
            Some(Call::Write { offset_bytes, length_bytes, fua }) => {
                let payload = self.shared.payloads.part(slot, PAYLOAD_BYTES);
                // SAFETY: the kernel has filled so much of the slot's payload, and the slot is ours.
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

fn push(ring: &mut Ring, command: &squeue::Entry128) -> io::Result<()> {
    // SAFETY: what a command points to, the slots' memory and the wake-up counter, outlives the ring.
    unsafe { ring.submission().push(command) }
        .map_err(|_| io::Error::other("the ring has fewer places than slots"))
}
