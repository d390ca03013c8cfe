//! From probes of a device to a medium: the probes, their results, the fit, and how good it is.
//!
//! All of it is pure but for the [`ProbeTarget`] that is asked: a disk of this machine, or a model in virtual time.
//! The same campaign runs on both, so that a fitted medium can be held against what it was fitted to.

mod campaign;
mod demerit;
mod fitting;
mod medium_file;
mod plausible;
mod profile;
mod quantiles;
mod rounding;
mod score;
mod target;
mod virtual_target;

pub use campaign::{CampaignProgress, ProbeCampaign, profile};
pub use demerit::{DistributionDistance, distance};
pub use fitting::{FitError, fit};
pub use medium_file::{DeviceIdentity, medium_text};
pub use profile::{
    BurstPoint, CachePoint, DeviceProfile, FlushPoint, LoadShape, PointRole, ProbePoint, SteadyRounds,
};
pub use score::{PointScore, WorstScore, score};
pub use target::{LoadSample, ProbeLoad, ProbeTarget, SLICES, TargetError};
pub use virtual_target::VirtualTarget;
