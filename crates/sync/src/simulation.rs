//! Threads that take turns in virtual time, in an order that a seed decides.
//!
//! A [`SimulatedWorld`] runs its tasks (threads that were started inside of it) one at a time. A task that waits (for a
//! lock, a condition, a time, another task's end) hands the turn to one that can go on, picked by the seed. When nobody
//! can, time goes on to the next thing that is due. So a run repeats itself exactly, and an hour of waiting takes no
//! time.
//!
//! ```text
//! let outcome = World::new(seed).run(|world| {
//!     world.call_after(Duration::from_micros(80), world.own_group(), || ...);   // a device's answer
//!     let server = world.new_group();
//!     world.enter(server, || start the server);                                // its threads belong to the group
//!     world.kill(server);                                                      // and never run again
//! });
//! ```
//!
//! A killed task is never woken: its thread and what it holds stay until the process ends. To run many
//! worlds, use several processes.

mod random;
mod scheduler;

pub use random::SimulationRng;
pub(crate) use scheduler::is_ordinary;
pub use scheduler::{
    SimulatedTask, SimulatedWorld, TaskGroup, TaskId, TaskWaker, WorldFailure, WorldStatistics, current,
};
