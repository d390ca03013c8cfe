//! The machine that a simulated process believes to be on: its clocks, its random numbers and its disk.
//!
//! The gateway is the one that is shipped, and so are the libraries below it; what they ask the operating system for
//! passes through libc. So the simulator's program has its own functions of these names, which the linker prefers to
//! libc's (std documents that for `getrandom`; `rustix` is built to call libc here as well). On a thread that plays a
//! script they answer from the simulation. On any other thread they are system calls.
//!
//! They never call libc's function of the same name, only system calls, and take no lock that a caller may hold.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use libc::{c_char, c_int, c_long, c_uint, c_void, clockid_t, mode_t, off64_t, size_t, ssize_t, timespec};

use crate::clock;
use crate::disk::SimulatedDisks;

/// The clocks at the beginning of a run: seconds since 1970, and since the machine began.
const WALL_BEGIN_S: u64 = 1_800_000_000;
const BOOT_BEGIN_S: u64 = 100_000;

thread_local! {
    /// Whether this thread plays a script, and the state of its random numbers.
    static RANDOM: Cell<Option<u64>> = const { Cell::new(None) };
    /// How far the wall clock of the process that runs now is off.
    static WALL_OFF_MS: Cell<i64> = const { Cell::new(0) };
    static DISKS: RefCell<Option<Rc<SimulatedDisks>>> = const { RefCell::new(None) };
}

/// While it lives, this thread is a simulated machine.
pub(crate) struct OnThread(());

impl OnThread {
    pub(crate) fn begin(seed: u64, disks: Rc<SimulatedDisks>) -> OnThread {
        RANDOM.set(Some(seed));
        clock::set_now(std::time::Duration::ZERO);
        WALL_OFF_MS.set(0);
        DISKS.set(Some(disks));
        OnThread(())
    }
}

impl Drop for OnThread {
    fn drop(&mut self) {
        DISKS.set(None);
        RANDOM.set(None);
    }
}

pub(crate) fn set_wall_offset(off_ms: i64) {
    WALL_OFF_MS.set(off_ms);
}

fn is_simulated() -> bool {
    RANDOM.try_with(Cell::get).is_ok_and(|state| state.is_some())
}

fn disks() -> Option<Rc<SimulatedDisks>> {
    DISKS.try_with(|disks| disks.try_borrow().ok()?.clone()).ok().flatten()
}

/// As libc's functions answer: -1, with the reason in `errno`.
fn answer(outcome: Result<c_long, c_int>) -> c_long {
    outcome.unwrap_or_else(|errno| {
        // SAFETY: the address is this thread's own.
        unsafe { *libc::__errno_location() = errno };
        -1
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    let is_wall = matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE);
    let is_steady = matches!(
        clock,
        libc::CLOCK_MONOTONIC
            | libc::CLOCK_BOOTTIME
            | libc::CLOCK_MONOTONIC_COARSE
            | libc::CLOCK_MONOTONIC_RAW
    );
    if time.is_null() || !is_simulated() || !(is_wall || is_steady) {
        // SAFETY: as the caller has it.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as c_int };
    }
    let begin_ns = if is_wall { WALL_BEGIN_S } else { BOOT_BEGIN_S } * 1_000_000_000;
    let off_ns = if is_wall { WALL_OFF_MS.get() * 1_000_000 } else { 0 };
    let now_ns = (begin_ns + clock::now_ns()).saturating_add_signed(off_ns);
    let now = timespec { tv_sec: (now_ns / 1_000_000_000) as i64, tv_nsec: (now_ns % 1_000_000_000) as i64 };
    // SAFETY: it is not null, and the caller gives room for one.
    unsafe { time.write(now) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, length: size_t, flags: c_uint) -> ssize_t {
    let Some(mut state) = RANDOM.try_with(Cell::get).ok().flatten() else {
        // SAFETY: as the caller has it.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) as ssize_t };
    };
    for index in 0..length {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        // SAFETY: the caller gives room for so many bytes.
        unsafe { buffer.cast::<u8>().add(index).write((mixed >> 56) as u8) };
    }
    RANDOM.set(Some(state));
    length as ssize_t
}

/// Nobody waits on a thread where time stands still meanwhile.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    wanted: *const timespec,
    left: *mut timespec,
) -> c_int {
    if is_simulated() {
        return 0;
    }
    // SAFETY: as the caller has it.
    match unsafe { libc::syscall(libc::SYS_clock_nanosleep, clock, flags, wanted, left) } {
        0 => 0,
        // This one returns its error.
        // SAFETY: the address is this thread's own.
        _ => unsafe { *libc::__errno_location() },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nanosleep(wanted: *const timespec, left: *mut timespec) -> c_int {
    if is_simulated() {
        return 0;
    }
    // SAFETY: as the caller has it.
    unsafe { libc::syscall(libc::SYS_nanosleep, wanted, left) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(file: c_int, bytes: *const c_void, length: size_t, offset: off64_t) -> ssize_t {
    let length = match disks().and_then(|disks| disks.write(file, length, offset)) {
        Some(Ok(may_write)) => may_write.min(length),
        Some(Err(errno)) => return answer(Err(errno)) as ssize_t,
        None => length,
    };
    // SAFETY: as the caller has it; it is no more than there is.
    unsafe { libc::syscall(libc::SYS_pwrite64, file, bytes, length, offset) as ssize_t }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(file: c_int, bytes: *const c_void, length: size_t) -> ssize_t {
    let length = match disks().and_then(|disks| disks.write_here(file, length)) {
        Some(Ok(may_write)) => may_write.min(length),
        Some(Err(errno)) => return answer(Err(errno)) as ssize_t,
        None => length,
    };
    // SAFETY: as the caller has it; it is no more than there is.
    unsafe { libc::syscall(libc::SYS_write, file, bytes, length) as ssize_t }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdatasync(file: c_int) -> c_int {
    if let Some(outcome) = disks().and_then(|disks| disks.sync(file)) {
        return answer(outcome.map(|()| 0)) as c_int;
    }
    // SAFETY: a number is all it takes.
    unsafe { libc::syscall(libc::SYS_fdatasync, file) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fsync(file: c_int) -> c_int {
    if let Some(outcome) = disks().and_then(|disks| disks.sync(file)) {
        return answer(outcome.map(|()| 0)) as c_int;
    }
    // SAFETY: a number is all it takes.
    unsafe { libc::syscall(libc::SYS_fsync, file) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate64(file: c_int, length: off64_t) -> c_int {
    if let Some(Err(errno)) = disks().and_then(|disks| disks.set_length(file, length)) {
        return answer(Err(errno)) as c_int;
    }
    // SAFETY: numbers are all it takes.
    unsafe { libc::syscall(libc::SYS_ftruncate, file, length) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fallocate64(file: c_int, mode: c_int, offset: off64_t, length: off64_t) -> c_int {
    if let Some(Err(errno)) = disks().and_then(|disks| disks.allocate(file, mode, offset, length)) {
        return answer(Err(errno)) as c_int;
    }
    // SAFETY: numbers are all it takes.
    unsafe { libc::syscall(libc::SYS_fallocate, file, mode, offset, length) as c_int }
}

/// Returns its error, unlike the others.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_fadvise64(file: c_int, offset: off64_t, length: off64_t, advice: c_int) -> c_int {
    if advice == libc::POSIX_FADV_DONTNEED
        && let Some(disks) = disks()
    {
        disks.forget(file);
    }
    // SAFETY: numbers are all it takes.
    match unsafe { libc::syscall(libc::SYS_fadvise64, file, offset, length, advice) } {
        0 => 0,
        // SAFETY: the address is this thread's own.
        _ => unsafe { *libc::__errno_location() },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn statvfs64(path: *const c_char, stats: *mut libc::statvfs64) -> c_int {
    if path.is_null() || stats.is_null() {
        return answer(Err(libc::EFAULT)) as c_int;
    }
    // SAFETY: a C string, as the caller has it.
    let path = unsafe { std::ffi::CStr::from_ptr(path) };
    let (free, total) = match disks().and_then(|disks| disks.room(path.to_bytes())) {
        Some(room) => room,
        None => match real_room(path) {
            Ok(room) => room,
            Err(errno) => return answer(Err(errno)) as c_int,
        },
    };
    const BLOCK: u64 = 4096;
    // SAFETY: plain numbers, for which zero is a value; and the caller gives room for one.
    unsafe {
        let mut room: libc::statvfs64 = std::mem::zeroed();
        (room.f_bsize, room.f_frsize) = (BLOCK, BLOCK);
        (room.f_blocks, room.f_bfree, room.f_bavail) = (total / BLOCK, free / BLOCK, free / BLOCK);
        room.f_namemax = 255;
        stats.write(room);
    }
    0
}

/// Free and all bytes of the file system that is there.
fn real_room(path: &std::ffi::CStr) -> Result<(u64, u64), c_int> {
    // SAFETY: plain numbers, for which zero is a value; the path is a C string.
    let (found, room) = unsafe {
        let mut room: libc::statfs64 = std::mem::zeroed();
        let found = libc::syscall(libc::SYS_statfs, path.as_ptr(), std::ptr::from_mut(&mut room));
        (found, room)
    };
    match found {
        0 => Ok((room.f_bavail * room.f_bsize as u64, room.f_blocks * room.f_bsize as u64)),
        // SAFETY: the address is this thread's own.
        _ => Err(unsafe { *libc::__errno_location() }),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(file: c_int) -> c_int {
    if let Some(disks) = disks() {
        disks.close(file);
    }
    // SAFETY: as the caller has it.
    unsafe { libc::syscall(libc::SYS_close, file) as c_int }
}

/// Names change below a directory: `None` where it is not a simulated one.
unsafe fn names_change(directory: c_int, path: *const c_char, removes: bool) -> Option<c_int> {
    if path.is_null() {
        return None;
    }
    // SAFETY: a C string, as the caller has it.
    let path = unsafe { std::ffi::CStr::from_ptr(path) };
    disks()?.change_names(directory, path.to_bytes(), removes)?.err()
}

// Both are variadic in C: what follows is passed as a last argument is on every machine that this runs on.
#[unsafe(no_mangle)]
unsafe extern "C" fn openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    if flags & (libc::O_CREAT | libc::O_TRUNC) != 0 {
        // SAFETY: as the caller has it.
        if let Some(errno) = unsafe { names_change(directory, path, false) } {
            return answer(Err(errno)) as c_int;
        }
    }
    // SAFETY: as the caller has it.
    unsafe { libc::syscall(libc::SYS_openat, directory, path, flags, mode) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as the caller has it.
    unsafe { openat64(libc::AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn renameat(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
) -> c_int {
    // SAFETY: as the caller has it.
    if let Some(errno) = unsafe { names_change(to_directory, to, true) } {
        return answer(Err(errno)) as c_int;
    }
    // SAFETY: as the caller has it.
    unsafe { libc::syscall(libc::SYS_renameat2, from_directory, from, to_directory, to, 0) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: as the caller has it.
    unsafe { renameat(libc::AT_FDCWD, from, libc::AT_FDCWD, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlinkat(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: as the caller has it.
    if let Some(errno) = unsafe { names_change(directory, path, true) } {
        return answer(Err(errno)) as c_int;
    }
    // SAFETY: as the caller has it.
    unsafe { libc::syscall(libc::SYS_unlinkat, directory, path, flags) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: as the caller has it.
    unsafe { unlinkat(libc::AT_FDCWD, path, 0) }
}
