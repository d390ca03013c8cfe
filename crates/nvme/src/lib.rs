//! NVMe over TCP: the wire format, pure; a target that serves block devices; and what a host needs to use one.
//!
//! Sections are of the NVM Express Base Specification 2.0 ("base"), the NVM Command Set Specification 1.0 ("NVM") and
//! the TCP Transport Specification 1.0 ("TCP").

#![cfg_attr(not(test), warn(clippy::disallowed_types, clippy::disallowed_methods))]

pub mod auth;
pub mod command;
pub mod fabrics;
pub mod features;
pub mod identify;
pub mod initiator;
pub mod log_page;
pub mod nqn;
pub mod pdu;
pub mod status;
pub mod stream;
pub mod target;
mod wire;
