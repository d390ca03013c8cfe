//! From probes of a device to a medium: what is asked, what came of it, the fit, and how good it is.
//!
//! All of it is pure but for the [`Target`] that is asked: a disk of this machine, or a model in virtual time.
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

pub use campaign::{Campaign, Progress, profile};
pub use demerit::{Distance, distance};
pub use fitting::{FitError, fit};
pub use medium_file::{Identity, medium_text};
pub use profile::{BurstPoint, CachePoint, FlushPoint, Point, Profile, Role, Rounds, Shape};
pub use score::{Score, Worst, score};
pub use target::{Load, SLICES, Sample, Target, TargetError};
pub use virtual_target::VirtualTarget;
