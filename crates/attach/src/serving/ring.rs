//! A thread that serves slots by io_uring. The kernel puts a request into a slot, any thread answers it, and the slot
//! is returned with the answer, many of them in one system call. FUSE and ublk both work like this, with different
//! commands.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use underlay_sync::Mutex;

pub(crate) type ServingRing = IoUring<squeue::Entry128, cqueue::Entry>;

/// Marks the completion for a wake-up: another thread has an answer.
const WOKEN: u64 = u64::MAX;

/// Whether a ring with the needed features is available.
pub(crate) fn probe() -> io::Result<()> {
    build(1).map(|_| ())
}

pub(crate) fn build(places: usize) -> io::Result<ServingRing> {
    // Only its thread submits, and nothing interrupts that thread: the kernel's work is done while it waits.
    // DEFER_TASKRUN is only allowed with SINGLE_ISSUER. With SUBMIT_ALL, a failed command does not hold up the ones
    // after it.
    let places = u32::try_from(places).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_submit_all().build(places)
}

/// Memory shared with the kernel, or with the threads that answer.
pub(crate) struct SharedMapping {
    start: *mut u8,
    length_bytes: usize,
}

// SAFETY: a slot's part belongs to one owner at a time: while its request is in flight to the thread that
// answers it, otherwise to the ring's thread or the kernel. What the kernel alone writes is only read, by the
// ring's thread.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Private memory. It is allocated only where a request needs it.
    pub(crate) fn anonymous(length_bytes: usize) -> io::Result<SharedMapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        SharedMapping::new(length_bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
    }

    /// Maps the area at the beginning of this file, which the kernel writes.
    pub(crate) fn from_kernel(file: &impl AsRawFd, length_bytes: usize) -> io::Result<SharedMapping> {
        SharedMapping::new(
            length_bytes,
            libc::PROT_READ,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            file.as_raw_fd(),
        )
    }

    fn new(length_bytes: usize, protection: i32, flags: i32, file: i32) -> io::Result<SharedMapping> {
        // SAFETY: a new mapping; nothing else is touched.
        let start = unsafe { libc::mmap(ptr::null_mut(), length_bytes, protection, flags, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(SharedMapping { start: start.cast(), length_bytes })
    }

    /// The part of a slot; parts of `bytes` follow one another from `first_at` on.
    pub(crate) fn part(&self, first_at: usize, slot: u32, bytes: usize) -> *mut u8 {
        let offset = first_at + slot as usize * bytes;
        assert!(offset + bytes <= self.length_bytes, "slot {slot} lies outside");
        // SAFETY: inside, as was just looked at.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; nobody uses it any more.
        unsafe { libc::munmap(self.start.cast(), self.length_bytes) };
    }
}

/// Answers on their way from any thread to the ring's own.
pub(crate) struct RingAnswers<A> {
    ready: Mutex<Vec<A>>,
    /// Set while the ring's thread may be asleep: then a thread that adds to `ready` must wake it.
    is_sleeping: AtomicBool,
    wake: OwnedFd,
}

impl<A> RingAnswers<A> {
    pub(crate) fn new(slots: usize) -> io::Result<RingAnswers<A>> {
        Ok(RingAnswers {
            ready: Mutex::new(Vec::with_capacity(slots)),
            is_sleeping: AtomicBool::new(false),
            wake: rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?,
        })
    }

    pub(crate) fn give(&self, answer: A) {
        self.ready.lock().push(answer);
        // After the push, in this order. Only the first of several threads pays for the system call.
        if self.is_sleeping.swap(false, Ordering::SeqCst) {
            // It can only fail when the counter is full, and then the thread is being woken already.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }
}

/// Slots that the kernel fills, by number.
pub(crate) trait RingSlots {
    /// An answer for the ring's thread.
    type Answer;

    fn count(&self) -> usize;

    /// Creates the commands that offer every slot, and lets `submit` carry them out. The memory that they point to is
    /// read only during that call.
    fn offer(&self, submit: &mut dyn FnMut(&[squeue::Entry128]) -> io::Result<()>) -> io::Result<()>;

    /// The command that returns a slot with its answer, and asks for its next request.
    fn give_back(&self, answer: Self::Answer) -> squeue::Entry128;

    /// The kernel has put a request into this slot.
    fn handle(&self, slot: u32);
}

/// Reports once whether the slots were accepted, and serves them until the kernel has returned all of them. A ring that
/// fails afterwards ends the process. Without its thread, requests would wait forever; without the process, the kernel
/// fails them.
pub(crate) fn serve<S: RingSlots>(
    slots: &S,
    answers: &Arc<RingAnswers<S::Answer>>,
    started: &Sender<io::Result<()>>,
) {
    // One more place, for wake-ups.
    let offered = build(slots.count() + 1).and_then(|ring| {
        let mut server = RingServer { ring, wakes: Box::new(0), answers, under_way: slots.count() };
        server.offer(slots)?;
        Ok(server)
    });
    let mut server = match offered {
        Ok(server) => server,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let _ = started.send(Ok(()));
    if let Err(error) = server.run(slots) {
        tracing::error!("io_uring failed: {error}");
        std::process::abort();
    }
}

struct RingServer<'a, A> {
    /// Before the memory that it points to, so that it is dropped first.
    ring: ServingRing,
    /// Where the kernel puts the count of wake-ups. Boxed, since it must not move.
    wakes: Box<u64>,
    answers: &'a Arc<RingAnswers<A>>,
    under_way: usize,
}

impl<A> RingServer<'_, A> {
    fn offer(&mut self, slots: &impl RingSlots<Answer = A>) -> io::Result<()> {
        slots.offer(&mut |commands| {
            for command in commands {
                push(&mut self.ring, command)?;
            }
            self.await_wake()?;
            // Slots are taken during this call, and a refusal has arrived when it returns.
            self.ring.submit()?;
            let refused = self.ring.completion().find(|completion| completion.result() < 0);
            refused.map_or(Ok(()), |refused| Err(io::Error::from_raw_os_error(-refused.result())))
        })
    }

    fn await_wake(&mut self) -> io::Result<()> {
        let counter: *mut u64 = &raw mut *self.wakes;
        let read = opcode::Read::new(types::Fd(self.answers.wake.as_raw_fd()), counter.cast(), 8);
        push(&mut self.ring, &read.build().user_data(WOKEN).into())
    }

    fn run(&mut self, slots: &impl RingSlots<Answer = A>) -> io::Result<()> {
        let mut ready = Vec::with_capacity(slots.count());
        let mut completed = Vec::with_capacity(slots.count());
        // None is in flight once the service has ended: the kernel has returned every slot.
        while self.under_way > 0 {
            // Set before `ready` is emptied: an answer given after that finds it set, and wakes us.
            self.answers.is_sleeping.store(true, Ordering::SeqCst);
            // Swapped rather than drained in place, since other threads wait for this lock with every answer.
            std::mem::swap(&mut *self.answers.ready.lock(), &mut ready);
            for answer in ready.drain(..) {
                push(&mut self.ring, &slots.give_back(answer))?;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            self.answers.is_sleeping.store(false, Ordering::SeqCst);
            completed.extend(
                self.ring.completion().map(|completion| (completion.user_data(), completion.result())),
            );
            for (slot, result) in completed.drain(..) {
                match u32::try_from(slot) {
                    Err(_) => self.await_wake()?,
                    Ok(slot) if result == 0 => slots.handle(slot),
                    // The service has ended.
                    Ok(_) => self.under_way -= 1,
                }
            }
        }
        Ok(())
    }
}

fn push(ring: &mut ServingRing, command: &squeue::Entry128) -> io::Result<()> {
    // SAFETY: what a command points to outlives it. A slot's memory and the wake-up counter outlive the ring's thread; what
    // is only read while slots are offered outlives the call that submits it.
    unsafe { ring.submission().push(command) }
        .map_err(|_| io::Error::other("the ring has fewer places than slots"))
}
