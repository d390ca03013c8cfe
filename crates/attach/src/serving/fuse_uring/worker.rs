//! A thread that serves queues: it fetches requests, and returns replies that any thread has written.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use fuser::{Errno, FopenFlags, INodeNo};
use io_uring::{opcode, squeue, types};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use underlay_storage::device::{DeviceCompletion, DeviceRequest};

use super::protocol::{self, EntryHeader, FuseCall, FuseRequest, ReplyArguments};
use crate::serving::daemon::export::{
    self, BlockCover, ExportFiles, MAX_REQUEST_BYTES, REPORTED_BLOCK_BYTES, VALID,
};
use crate::serving::ring::{self, RingAnswers, RingSlots, SharedMapping};

// From <linux/fuse.h>.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

const PAYLOAD_BYTES: usize = MAX_REQUEST_BYTES as usize;
const PAGE_BYTES: usize = 4096;

/// Requests with this much data are handled by a separate thread next to the ring's. Copying their data then competes
/// only with the kernel's own copy, which the ring's thread makes while it submits. Below this, waking another thread
/// would cost more than the copy.
const LARGE_BYTES: u32 = 256 << 10;

/// State that a worker shares with pending replies.
struct UringShared {
    area: EntryArea,
    /// Entries with a written reply.
    answers: Arc<RingAnswers<u32>>,
}

/// The memory of a worker's entries: their headers, and after them their payloads. An entry belongs to one owner at a
/// time: while its request is in flight that is the reply (`FuseReply`), otherwise the worker or the kernel.
struct EntryArea {
    memory: SharedMapping,
    payloads_at: usize,
}

impl EntryArea {
    fn new(entries: usize) -> io::Result<EntryArea> {
        let payloads_at = (entries * size_of::<EntryHeader>()).next_multiple_of(PAGE_BYTES);
        Ok(EntryArea {
            memory: SharedMapping::anonymous(payloads_at + entries * PAYLOAD_BYTES)?,
            payloads_at,
        })
    }

    fn header(&self, entry: u32) -> *mut EntryHeader {
        self.memory.part(0, entry, size_of::<EntryHeader>()).cast()
    }

    fn payload(&self, entry: u32) -> *mut u8 {
        self.memory.part(self.payloads_at, entry, PAYLOAD_BYTES)
    }
}

/// A pending answer to one request. If it is dropped without one, as by a device that vanished, it is an I/O error.
struct FuseReply {
    shared: Arc<UringShared>,
    entry: u32,
    unique: u64,
    is_given: bool,
}

impl FuseReply {
    fn bytes(mut self, bytes: &[u8]) {
        if bytes.len() > PAYLOAD_BYTES {
            return self.give(libc::EIO, 0);
        }
        // SAFETY: the entry is this reply's, its payload has room, and the two don't overlap.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.shared.area.payload(self.entry), bytes.len());
        }
        self.give(0, bytes.len() as u32);
    }

    fn ok(self) {
        self.bytes(&[]);
    }

    fn error(mut self, errno: Errno) {
        self.give(errno.code(), 0);
    }

    fn outcome(self, completion: DeviceCompletion) {
        match completion {
            Ok(_) => self.ok(),
            Err(error) => self.error(export::errno(&error)),
        }
    }

    fn give(&mut self, error: i32, payload_bytes: u32) {
        self.is_given = true;
        // SAFETY: the entry is this reply's.
        let header = unsafe { &mut *self.shared.area.header(self.entry) };
        protocol::put_reply(&mut header.in_out, self.unique, error, payload_bytes);
        header.payload_bytes = payload_bytes;
        self.shared.answers.give(self.entry);
    }
}

impl Drop for FuseReply {
    fn drop(&mut self) {
        if !self.is_given {
            self.give(libc::EIO, 0);
        }
    }
}

pub(super) struct UringWorker {
    device: OwnedFd,
    /// The queue of each entry.
    queues: Vec<u16>,
    files: Arc<ExportFiles>,
    shared: Arc<UringShared>,
}

impl UringWorker {
    /// Starts a thread, which reports once whether its entries were accepted.
    pub(super) fn start(
        index: usize,
        device: OwnedFd,
        queues: Vec<u16>,
        entries_per_queue: usize,
        files: Arc<ExportFiles>,
        started: Sender<io::Result<()>>,
    ) -> io::Result<()> {
        let queues: Vec<u16> =
            queues.into_iter().flat_map(|queue| std::iter::repeat_n(queue, entries_per_queue)).collect();
        let shared = UringShared {
            area: EntryArea::new(queues.len())?,
            answers: Arc::new(RingAnswers::new(queues.len())?),
        };
        let worker = UringWorker { device, queues, files, shared: Arc::new(shared) };
        std::thread::Builder::new()
            .name(format!("fuse-uring-{index}"))
            .spawn(move || worker.run(&started))?;
        Ok(())
    }

    fn run(self, started: &Sender<io::Result<()>>) {
        let (large, large_entries) = mpsc::channel();
        std::thread::scope(|scope| {
            // Before this thread is bound to its CPUs, so that the other one isn't.
            let worker = &self;
            let copying = std::thread::Builder::new()
                .name("fuse-uring-copy".into())
                .spawn_scoped(scope, move || large_entries.iter().for_each(|entry| worker.take(entry)));
            self.stay_close();
            // Without it, the ring's thread does everything.
            let large = copying.is_ok().then_some(large);
            ring::serve(&UringEntries { worker, large }, &self.shared.answers, started);
        });
    }

    /// Reads the request that the kernel has put into an entry, and answers it or passes it on.
    fn take(&self, entry: u32) {
        // SAFETY: the kernel has filled the entry and waits for the reply, which doesn't exist yet.
        let (header, payload) = unsafe {
            let header = &*self.shared.area.header(entry);
            let length = (header.payload_bytes as usize).min(PAYLOAD_BYTES);
            (header, std::slice::from_raw_parts(self.shared.area.payload(entry), length))
        };
        let request = protocol::parse(&header.in_out, &header.arguments, payload);
        let unique = request.as_ref().map_or(0, |request| request.unique);
        let reply = FuseReply { shared: Arc::clone(&self.shared), entry, unique, is_given: false };
        match request {
            Some(request) => self.answer(&request, reply),
            None => reply.error(Errno::EINVAL),
        }
    }

    /// Keeps the thread on the CPUs of its queues. Woken on the CPU where the request was made, it runs at once, while
    /// waking another sleeping CPU would take longer than the request. Where the process may use none of them, it stays
    /// on the process's CPUs.
    fn stay_close(&self) {
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let mut processors = CpuSet::new();
        let queues = self.queues.iter().map(|queue| usize::from(*queue));
        for processor in queues.filter(|queue| *queue < CpuSet::MAX_CPU && allowed.is_set(*queue)) {
            processors.set(processor);
        }
        if processors.count() > 0 {
            let _ = sched_setaffinity(None, &processors);
        }
    }

    /// A command of `struct fuse_uring_cmd_req`.
    fn command(&self, operation: u32, entry: u32, commit_id: u64, address: u64) -> squeue::Entry128 {
        let mut request = [0; 80];
        request[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        request[16..18].copy_from_slice(&self.queues[entry as usize].to_ne_bytes());
        opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), operation)
            .cmd(request)
            .addr(Some(address))
            .build()
            .user_data(u64::from(entry))
    }

    /// The same answers as those of `FuseExport`.
    fn answer(&self, request: &FuseRequest<'_>, reply: FuseReply) {
        let inode = INodeNo(request.inode);
        let attributes = |reply: FuseReply| match self.files.attributes(inode) {
            Some(attributes) => reply.bytes(&ReplyArguments::attributes_reply(VALID, &attributes)),
            None => reply.error(Errno::ENOENT),
        };
        match request.call {
            FuseCall::Read { offset, length } => self.read(inode, offset, length, reply),
            FuseCall::Write { offset, data, is_synchronous } => {
                // Copied before the request starts: an immediate answer overwrites the data.
                self.write(inode, offset, data.to_vec(), is_synchronous, reply);
            }
            FuseCall::Sync => self.submit(inode, DeviceRequest::Flush, reply),
            FuseCall::Allocate { mode, .. } if !export::is_discard(mode) => reply.error(Errno::EOPNOTSUPP),
            FuseCall::Allocate { offset, length, .. } => {
                self.submit(
                    inode,
                    DeviceRequest::Discard { offset_bytes: offset, length_bytes: length },
                    reply,
                );
            }
            FuseCall::Lookup { name } => match self.files.find(inode, OsStr::from_bytes(name)) {
                Some(attributes) => reply.bytes(&ReplyArguments::entry_reply(VALID, &attributes)),
                None => reply.error(Errno::ENOENT),
            },
            FuseCall::Attributes | FuseCall::SetAttributes { keeps: true } => attributes(reply),
            FuseCall::SetAttributes { keeps: false } => reply.error(Errno::EPERM),
            FuseCall::Open if self.files.volume(inode).is_some() => {
                reply.bytes(&ReplyArguments::open_reply(inode.0, OPEN_FLAGS.bits()));
            }
            FuseCall::Open => reply.error(Errno::EISDIR),
            FuseCall::OpenDirectory => reply.bytes(&ReplyArguments::open_reply(0, 0)),
            // Closing a file promises nothing.
            FuseCall::Flush | FuseCall::Release => reply.ok(),
            FuseCall::List { offset, length } => reply.bytes(&self.listing(offset, length)),
            FuseCall::Statistics => {
                let blocks = self.files.capacity_bytes() / u64::from(REPORTED_BLOCK_BYTES);
                let files = self.files.volumes().len() as u64;
                reply.bytes(&ReplyArguments::statistics_reply(blocks, files, REPORTED_BLOCK_BYTES));
            }
            // The kernel remembers ENOSYS for many calls and stops sending them.
            FuseCall::Other(_) => reply.error(Errno::ENOSYS),
        }
    }

    fn read(&self, inode: INodeNo, offset: u64, wanted: u32, reply: FuseReply) {
        let Some(volume) = self.files.volume(inode) else { return reply.error(Errno::EISDIR) };
        let Some(BlockCover { start, length, skip, wanted }) =
            export::covering(&volume.geometry, offset, wanted)
        else {
            return reply.ok();
        };
        let files = Arc::clone(&self.files);
        let buffer = files.buffers.take(length);
        let done = move |completion: DeviceCompletion| match completion {
            Ok(buffer) => {
                reply.bytes(&buffer[skip..skip + wanted]);
                files.buffers.put(buffer);
            }
            Err(error) => reply.error(export::errno(&error)),
        };
        volume.device.submit(DeviceRequest::Read { offset_bytes: start, buffer }, Box::new(done));
    }

    fn write(&self, inode: INodeNo, offset: u64, data: Vec<u8>, fua: bool, reply: FuseReply) {
        let Some(volume) = self.files.volume(inode) else { return reply.error(Errno::EISDIR) };
        let length = data.len() as u32;
        let done = move |completion: DeviceCompletion| match completion {
            Ok(_) => reply.bytes(&ReplyArguments::written_reply(length)),
            Err(error) => reply.error(export::errno(&error)),
        };
        let request = DeviceRequest::Write { offset_bytes: offset, data, fua };
        volume.device.submit(request, Box::new(done));
    }

    fn submit(&self, inode: INodeNo, request: DeviceRequest, reply: FuseReply) {
        let Some(volume) = self.files.volume(inode) else { return reply.error(Errno::EISDIR) };
        volume.device.submit(request, Box::new(move |completion| reply.outcome(completion)));
    }

    fn listing(&self, offset: u64, length: u32) -> Vec<u8> {
        let mut listing = ReplyArguments::default();
        let entries = self.files.entries().zip(1..).skip(usize::try_from(offset).unwrap_or(usize::MAX));
        for ((inode, kind, name), next) in entries {
            if !listing.add_entry(length as usize, inode.0, next, kind, name.as_bytes()) {
                break;
            }
        }
        listing.into_bytes()
    }
}

/// A worker's entries, as served by its ring's thread.
struct UringEntries<'a> {
    worker: &'a UringWorker,
    /// The channel to the thread that handles large requests.
    large: Option<Sender<u32>>,
}

impl RingSlots for UringEntries<'_> {
    /// The entry with the written reply.
    type Answer = u32;

    fn count(&self) -> usize {
        self.worker.queues.len()
    }

    /// Offers every entry to its queue.
    fn offer(&self, submit: &mut dyn FnMut(&[squeue::Entry128]) -> io::Result<()>) -> io::Result<()> {
        let area = |entry: u32| {
            let header = self.worker.shared.area.header(entry).cast();
            let payload = self.worker.shared.area.payload(entry).cast();
            [
                libc::iovec { iov_base: header, iov_len: size_of::<EntryHeader>() },
                libc::iovec { iov_base: payload, iov_len: PAYLOAD_BYTES },
            ]
        };
        let areas: Vec<[libc::iovec; 2]> = (0..self.worker.queues.len() as u32).map(area).collect();
        let register = |(entry, area): (u32, &[libc::iovec; 2])| {
            with_length(self.worker.command(REGISTER, entry, 0, area.as_ptr() as u64), area.len() as u32)
        };
        let commands: Vec<squeue::Entry128> = (0..).zip(&areas).map(register).collect();
        submit(&commands)
    }

    fn give_back(&self, entry: u32) -> squeue::Entry128 {
        // SAFETY: its reply is written, so the entry is the worker's.
        let commit_id = unsafe { (*self.worker.shared.area.header(entry)).commit_id };
        self.worker.command(COMMIT_AND_FETCH, entry, commit_id, 0)
    }

    fn handle(&self, entry: u32) {
        // SAFETY: as in `take`, whose turn comes after this.
        let header = unsafe { &*self.worker.shared.area.header(entry) };
        let asked_bytes = protocol::data_bytes(&header.in_out, &header.arguments, header.payload_bytes);
        let entry = match &self.large {
            Some(large) if asked_bytes >= LARGE_BYTES => match large.send(entry) {
                Ok(()) => return,
                // That thread has panicked, which ended the process.
                Err(mpsc::SendError(entry)) => entry,
            },
            _ => entry,
        };
        self.worker.take(entry);
    }
}

/// Without the second flag, writes would wait for each other at the file's lock.
const OPEN_FLAGS: FopenFlags = FopenFlags::FOPEN_DIRECT_IO
    .union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES)
    .union(FopenFlags::FOPEN_NOFLUSH);

/// The crate has no length for commands; the kernel expects the number of areas there.
fn with_length(mut command: squeue::Entry128, length: u32) -> squeue::Entry128 {
    const LENGTH_AT: usize = 24;
    const { assert!(size_of::<squeue::Entry128>() == 128) };
    // SAFETY: `Entry128` is laid out as the kernel's `struct io_uring_sqe`, whose `len` is at this place.
    unsafe { (&raw mut command).byte_add(LENGTH_AT).cast::<u32>().write(length) };
    command
}
