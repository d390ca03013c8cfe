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

pub use cache::Cache;
pub use compress::Compress;
pub use link::Link;
pub use mirror::Mirror;
pub use sectors::Sectors;
pub use stripe::Stripe;
