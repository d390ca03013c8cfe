//! The modelled machine on this host: which CPUs stand for its cores, which carry the emulation, and how slow the
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

/// The share of the system's CPUs that is left free. The kernel's own work on the devices runs there too, and a
/// hypervisor sometimes takes time.
const MARGIN: f64 = 0.15;
