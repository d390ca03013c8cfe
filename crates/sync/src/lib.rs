//! Locks, channels, threads and time as `std` has them, which a simulation can take over.
//!
//! The storage stack waits, locks and looks at the clock through this crate alone. Ordinarily that is `std` with one
//! branch on top. On a thread of a [`simulation::SimulatedWorld`] the same calls run one thread at a time in virtual
//! time, in an order that a seed decides: so the code that is simulated is the code that is shipped.
//!
//! Locks do not poison (`unsimulated` says why).

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "the one place that may have them")]

mod channel;
mod condvar;
mod fate;
mod mutex;
pub mod planted;
mod random;
pub mod range_locks;
pub mod rate_limited_log;
mod rwlock;
pub mod simulation;
pub mod slices;
pub mod thread;
mod time;
pub mod timer_slack;
mod unsimulated;

pub use channel::{Receiver, RecvError, RecvTimeoutError, SendError, Sender, channel};
pub use condvar::Condvar;
pub use fate::ThreadFate;
pub use mutex::{Mutex, MutexGuard};
pub use random::random_u64;
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use time::Instant;
pub use unsimulated::UnsimulatedMutex;
