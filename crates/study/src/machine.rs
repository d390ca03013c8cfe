//! The modelled machine on this host: which CPUs stand for its cores and which carry the emulation, and how slow the
//! motion must be for that.

mod capacity;
mod factor;
mod fastest;
mod placement;
mod speed;
mod ticks;

pub(crate) use capacity::thread_time;
pub use factor::{
    ChosenFactor, busy_with_others, choose, factor_for, least_factor, left_at_wall_time, next_factor,
    too_many_cores_here, weigh, weigh_devices,
};
pub use placement::{CpuPlacement, SMALL_SHARE, ServerShare};
pub use speed::CpuSpeed;
pub(crate) use speed::{MAX_SLOWDOWN, SpeedComputation, usual_us};
pub(crate) use ticks::TickThreads;

/// The share of the system's CPUs that is left free: the kernel's own work on the devices runs there too, and what a
/// hypervisor takes now and then must not be missing.
const MARGIN: f64 = 0.15;
