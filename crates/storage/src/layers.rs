//! Devices made of devices.

pub mod cache;
pub mod compress;
mod flushes;
pub mod join;
pub mod link;
pub mod mirror;
mod ranges;
pub mod sectors;
pub mod stripe;
pub mod workers;

pub use cache::CacheLayer;
pub use compress::CompressLayer;
pub use link::LinkLayer;
pub use mirror::Mirror;
pub use sectors::SectorLayer;
pub use stripe::Stripe;
