//! Linux's native asynchronous I/O: many direct requests in flight from one thread.
//!
//! Not io_uring, which containers often forbid: probes often run on production machines.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// `struct iocb` of the kernel's `aio_abi.h`; the two fields before the opcode are zero on either byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct ControlBlock {
    data: u64,
    key_and_flags: u64,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_file: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct AioEvent {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

const READ: u16 = 0;
const WRITE: u16 = 1;

/// An alignment that every device accepts.
const ALIGNMENT: usize = 4096;

/// Requests in flight on one file, each with its own slot and buffer.
pub(super) struct AioRing<'a> {
    context: libc::c_ulong,
    file: BorrowedFd<'a>,
    slot_bytes: usize,
    buffers: *mut u8,
    layout: std::alloc::Layout,
    under_way: usize,
    events: Vec<AioEvent>,
}

/// A completed request: its slot, and the bytes moved.
pub(super) struct AioCompletion {
    pub slot: usize,
    pub result: io::Result<usize>,
}

impl<'a> AioRing<'a> {
    /// With `slots` buffers of `slot_bytes`, filled with incompressible bytes.
    pub(super) fn new(file: BorrowedFd<'a>, slots: usize, slot_bytes: usize) -> io::Result<AioRing<'a>> {
        let layout = std::alloc::Layout::from_size_align(slots.max(1) * slot_bytes.max(1), ALIGNMENT)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one context id, which must be zero before.
        let made =
            unsafe { libc::syscall(libc::SYS_io_setup, slots.max(1) as libc::c_long, &raw mut context) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the layout's size is not zero.
        let buffers = unsafe { std::alloc::alloc_zeroed(layout) };
        let ring = AioRing {
            context,
            file,
            slot_bytes,
            buffers,
            layout,
            under_way: 0,
            events: vec![AioEvent::default(); slots.max(1)],
        };
        if buffers.is_null() {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        ring.fill();
        Ok(ring)
    }

    fn fill(&self) {
        // Some devices compress or deduplicate: with zeros they would look faster than with real data.
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        // SAFETY: the allocation is as long as its layout and belongs to this ring alone; nothing is in flight yet.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.buffers, self.layout.size()) };
        for word in bytes.chunks_mut(8) {
            // Marsaglia's xorshift.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
        }
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    /// Starts a request of a whole slot. The slot must be free.
    pub(super) fn submit(&mut self, slot: usize, is_write: bool, offset_bytes: u64) -> io::Result<()> {
        assert!((slot + 1) * self.slot_bytes <= self.layout.size(), "no slot {slot}");
        // SAFETY: inside the allocation, by the line above.
        let buffer = unsafe { self.buffers.add(slot * self.slot_bytes) };
        let mut block = ControlBlock {
            data: slot as u64,
            opcode: if is_write { WRITE } else { READ },
            file: self.file.as_raw_fd() as u32,
            buffer: buffer as u64,
            bytes: self.slot_bytes as u64,
            offset: offset_bytes as i64,
            ..ControlBlock::default()
        };
        let mut list = [&raw mut block];
        loop {
            // SAFETY: one control block, read during the call; its buffer lives until the request has ended, since
            // dropping the ring waits for all.
            let begun = unsafe {
                libc::syscall(libc::SYS_io_submit, self.context, 1 as libc::c_long, list.as_mut_ptr())
            };
            if begun == 1 {
                self.under_way += 1;
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                // EAGAIN: the kernel has no room for it at the moment (io_submit(2)).
                io::ErrorKind::WouldBlock => std::thread::yield_now(),
                _ => return Err(error),
            }
        }
    }

    /// Waits for at least one request to end; returns at once when none is in flight.
    pub(super) fn wait(&mut self, ended: &mut Vec<AioCompletion>) -> io::Result<()> {
        if self.under_way == 0 {
            return Ok(());
        }
        let got = loop {
            // SAFETY: the kernel writes at most as many events as there is room for.
            let got = unsafe {
                libc::syscall(
                    libc::SYS_io_getevents,
                    self.context,
                    1 as libc::c_long,
                    self.events.len() as libc::c_long,
                    self.events.as_mut_ptr(),
                    std::ptr::null_mut::<libc::timespec>(),
                )
            };
            if got >= 0 {
                break got as usize;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        };
        for event in &self.events[..got] {
            let result = match usize::try_from(event.result) {
                Ok(bytes) => Ok(bytes),
                Err(_) => Err(io::Error::from_raw_os_error(-event.result as i32)),
            };
            ended.push(AioCompletion { slot: event.data as usize, result });
        }
        self.under_way -= got;
        Ok(())
    }
}

impl Drop for AioRing<'_> {
    fn drop(&mut self) {
        // SAFETY: the context is ours. The call waits for what is in flight, so that the kernel is done with the
        // buffers when they are freed.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
        if !self.buffers.is_null() {
            // SAFETY: allocated in `new` with this layout.
            unsafe { std::alloc::dealloc(self.buffers, self.layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn native_aio_writes_data_and_reports_errors() {
        let file = tempfile::tempfile().unwrap();
        let mut ring = AioRing::new(file.as_fd(), 4, 8192).unwrap();
        for slot in 0..4 {
            ring.submit(slot, true, slot as u64 * 8192).unwrap();
        }
        let mut ended = Vec::new();
        while ring.under_way() > 0 {
            ring.wait(&mut ended).unwrap();
        }
        assert!(ended.iter().all(|ended| ended.result.as_ref().is_ok_and(|bytes| *bytes == 8192)));
        assert_eq!(file.metadata().unwrap().len(), 4 * 8192);
        drop(ring);
        let read_only = std::fs::File::open("/proc/self/exe").unwrap();
        let mut ring = AioRing::new(read_only.as_fd(), 1, 4096).unwrap();
        let outcome = ring.submit(0, true, 0);
        let mut ended = Vec::new();
        ring.wait(&mut ended).unwrap();
        assert!(outcome.is_err() || ended[0].result.is_err());
    }
}
