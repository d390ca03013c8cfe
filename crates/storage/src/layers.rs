//! Devices made of devices.

pub mod stripe;

pub use stripe::Stripe;
