//! The network between a system's servers and their volumes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How volumes were reached, and what the way cost. Latencies run in modelled time: what the machine's own network and
/// programs took is divided by the time scale as everything is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NetworkRecord {
    /// `nvme-tcp`
    pub transport: String,
    /// Who connected: `own initiator`, or `kernel initiator`.
    pub initiator: String,
    /// Requests to volumes, over all servers.
    pub requests: u64,
    /// From a request's leaving the initiator to its answer, without the modelled link: the real way there and back,
    /// the volume server and its devices.
    pub request_mean_us: f64,
    pub request_p50_us: f64,
    pub request_p99_us: f64,
    /// A request to one of the pool's devices. A volume's request may take several of them, or none.
    pub device_mean_us: f64,
    /// There and back of a command that no device has to do with, over the real way; absent where the initiator does
    /// not tell.
    pub round_trip_p50_us: Option<f64>,
    /// There and back over the modelled link with the mean request's bytes, where nothing waits; absent without one.
    pub link_us: Option<f64>,
    /// CPU time of the volume server over wall time: 1.0 is one core of this machine.
    pub server_cpu_cores: f64,
}
