//! The S3 gateway (`underlay-gateway`, docs/gateway.md) as a process of a system: between its clients and an object
//! store.

mod configuration;
mod process;
mod program;

pub(crate) use configuration::{ADDRESS, GatewayPlan, GatewaySizes, OWN_BYTES};
pub(crate) use process::{GatewayProcess, draw_keys, make_certificate};
pub use program::find;
pub(crate) use program::trusted;
