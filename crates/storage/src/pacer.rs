//! The one thread that waits for all devices of a stack.

mod lead;

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use underlay_sync::{Condvar, Mutex, timer_slack};

use crate::clock::ModelClock;
use crate::device::DeviceError;
use crate::paced::{NEVER, Paced, PacedCore};
use crate::time::ModelTime;
use crate::waker::Waker;
use lead::Lead;

/// Only so much of the spin is its own: until then any other thread of its CPU goes first.
const BY_ITSELF: Duration = Duration::from_micros(5);

/// Completes the requests of its devices in real time: sleeps until shortly before the earliest event and
/// spins for the rest. Idle devices cost nothing. Stops with the value; requests still in flight are
/// answered with `DeviceError::Gone`.
pub struct Pacer {
    waker: Arc<Waker>,
    devices: Vec<Paced>,
    thread: Option<JoinHandle<()>>,
}

impl Pacer {
    /// # Errors
    /// When no thread can be had.
    #[allow(
        clippy::disallowed_methods,
        reason = "a simulation runs the devices by itself, without this thread"
    )]
    pub fn start(devices: Vec<Paced>, clock: Arc<dyn ModelClock>) -> io::Result<Pacer> {
        let waker = Arc::new(Waker {
            sleeping_until_ns: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        });
        let modelled: Vec<Paced> = devices.iter().filter(|device| device.is_modelled()).cloned().collect();
        let thread = if modelled.is_empty() {
            None
        } else {
            let cores: Vec<Arc<PacedCore>> =
                modelled.iter().map(|device| Arc::clone(device.core())).collect();
            for core in &cores {
                core.set_waker(Arc::clone(&waker));
            }
            let waker = Arc::clone(&waker);
            let run = move || pace_or_close(&cores, &*clock, &waker);
            Some(thread::Builder::new().name("pacer".into()).spawn(run)?)
        };
        Ok(Pacer { waker, devices, thread })
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.waker.stop.store(true, Ordering::SeqCst);
        {
            // Under the lock, or the pacer could miss it between its last look at `stop` and its wait.
            let _guard = self.waker.lock.lock();
            self.waker.changed.notify_one();
        }
        if let Some(thread) = self.thread.take() {
            // It can only have failed by a panic in a caller's `done`, which has been printed.
            let _ = thread.join();
        }
        for device in &self.devices {
            device.close();
        }
    }
}

fn earliest(cores: &[Arc<PacedCore>]) -> (u64, Option<&Arc<PacedCore>>) {
    match cores.iter().map(|core| (core.next_ns(), core)).min_by_key(|(next_ns, _)| *next_ns) {
        Some((next_ns, core)) if next_ns != NEVER => (next_ns, Some(core)),
        _ => (NEVER, None),
    }
}

/// Nothing completes without this thread: where it must end by a panic it closes its devices, rather than
/// leave their callers waiting.
fn pace_or_close(cores: &[Arc<PacedCore>], clock: &dyn ModelClock, waker: &Waker) {
    if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(|| pace(cores, clock, waker))) {
        for core in cores {
            let error = DeviceError::Io("the thread that completes requests has failed".into());
            // A `done` that panics here, too, has been called; the other devices want theirs.
            let _ = panic::catch_unwind(AssertUnwindSafe(|| core.close(&error)));
        }
        panic::resume_unwind(panic);
    }
}

fn pace(cores: &[Arc<PacedCore>], clock: &dyn ModelClock, waker: &Waker) {
    // A refusal only makes the spin longer than it had to be.
    let _ = timer_slack::narrow();
    let mut lead = Lead::default();
    while !waker.stop.load(Ordering::SeqCst) {
        let (next_ns, core) = earliest(cores);
        let Some(core) = core else {
            sleep(cores, waker, NEVER, None);
            continue;
        };
        let wait = clock.wall_until(ModelTime::from_ns(next_ns));
        if wait.is_zero() {
            core.run(clock.now());
        } else if wait > lead.time() {
            sleep(cores, waker, next_ns, Some(wait - lead.time()));
            let left = clock.wall_until(ModelTime::from_ns(next_ns));
            // More is left where a new request ended the sleep.
            if left <= lead.time() {
                lead.woke(left > BY_ITSELF);
            }
        } else if wait > BY_ITSELF {
            // The load generator and the daemon's other threads have the same CPU, and waited for the end of the spin.
            // Each of their turns is short.
            thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

fn sleep(cores: &[Arc<PacedCore>], waker: &Waker, until_ns: u64, wait: Option<Duration>) {
    let guard = waker.lock.lock();
    waker.sleeping_until_ns.store(until_ns, Ordering::SeqCst);
    if earliest(cores).0 == until_ns && !waker.stop.load(Ordering::SeqCst) {
        // Woken early or for nothing, the caller looks again.
        match wait {
            Some(wait) => drop(waker.changed.wait_timeout(guard, wait)),
            None => drop(waker.changed.wait(guard)),
        }
    }
    waker.sleeping_until_ns.store(0, Ordering::SeqCst);
}
