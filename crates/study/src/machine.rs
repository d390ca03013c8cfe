//! The modelled machine on this host: which CPUs stand for its cores and which carry the emulation, and how slow the motion must
//! be for that.

mod capacity;
mod factor;
mod fastest;
mod placement;
mod speed;
mod ticks;

pub(crate) use capacity::thread_time;
pub use factor::{
    Chosen, busy_with_others, choose, factor_for, least_factor, left_at_wall_time, next_factor,
    too_many_cores_here, weigh, weigh_devices,
};
pub use placement::{Placement, SMALL_SHARE, Share};
pub use speed::Speed;
pub(crate) use speed::{Computation, MAX_SLOWDOWN, usual_us};
pub(crate) use ticks::Ticks;

/// The share of the system's CPUs that is left free: the kernel's own work on the devices runs there too, and what a hypervisor
/// takes now and then must not be missing.
const MARGIN: f64 = 0.15;
