//! Time slices: how soon a thread that wakes up gets a CPU that a busy program has.

use std::io;

/// The kernel's least.
const SHORT_NS: u64 = 100_000;

/// Asks for short time slices for the calling thread, and for all threads and processes that it starts afterwards. When
/// it wakes up, it then runs ahead of a program with longer slices, which would otherwise keep the CPU until its own
/// slice is over, a millisecond or several. It gets no more of the CPU's time for that. Kernels before Linux 6.12 take
/// no notice.
///
/// It allocates nothing and takes no lock, so that a child may call it between fork and exec.
///
/// # Errors
/// When the kernel refuses.
pub fn shorten() -> io::Result<()> {
    set(SHORT_NS)
}

/// The slices of [`shorten`] back to the kernel's own.
///
/// # Errors
/// When the kernel refuses.
pub fn restore() -> io::Result<()> {
    set(0)
}

/// Has the calling thread run as soon as it wakes up, ahead of every ordinary program. It is for threads that measure,
/// use next to no time and must not count what they wait for a CPU. Threads that it starts are ordinary ones.
///
/// # Errors
/// When the kernel refuses, as it does without privileges.
pub fn run_at_once() -> io::Result<()> {
    let least = libc::sched_param { sched_priority: 1 };
    // SAFETY: the structure outlives the call, which only reads it; 0 is the calling thread.
    match unsafe {
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const least)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// 0 stands for the kernel's own.
fn set(slice_ns: u64) -> io::Result<()> {
    // SAFETY: both calls take plain numbers; 0 is the calling thread. No answer of the second tells an error from a niceness of
    // -1, but it has none for the calling thread.
    let (policy, nice) = unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) };
    // Other policies have no slices that could be set; what the user chose stays.
    if policy != libc::SCHED_OTHER {
        return Ok(());
    }
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: slice_ns,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the structure has the size that it says and outlives the call, which only reads it.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's own account of the calling thread.
    fn slice_ns() -> u64 {
        // SAFETY: an all-zero structure is a valid one.
        let mut found: libc::sched_attr = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::sched_attr>() as u32;
        // SAFETY: `size` is the structure's, and the structure outlives the call.
        let answer = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut found, size, 0) };
        assert_eq!(answer, 0, "{}", io::Error::last_os_error());
        found.sched_runtime
    }

    #[test]
    fn threads_inherit_short_slices() {
        let before = slice_ns();
        shorten().unwrap();
        // An old kernel tells no slices of ordinary threads.
        if before > 0 {
            assert_eq!(slice_ns(), SHORT_NS);
            assert_eq!(std::thread::spawn(slice_ns).join().unwrap(), SHORT_NS);
        }
        restore().unwrap();
        assert_eq!(slice_ns(), before);
    }
}
