//! What is said on the control socket: one JSON object a line in each direction, a reply for every line.
//!
//! | command | reply | meaning |
//! | --- | --- | --- |
//! | `{"command":"ping"}` | `{"reply":"pong","pool":"tank","address":"127.0.0.1:4420","pid":7}` | it serves |
//! | `{"command":"list"}` | `{"reply":"state",…}` | one [`PoolState`] |
//! | `{"command":"create","volume":{…}}` | `{"reply":"done"}` | a [`VolumeFile`], served from now on |
//! | `{"command":"resize","volume":"data","capacity_bytes":1073741824,"shrink":false}` | `{"reply":"done"}` | initiators get an event; less than before only with `shrink` |
//! | `{"command":"snapshot","volume":"data","snapshot":"monday","writable":false}` | `{"reply":"done"}` | a new volume with what `data` holds now |
//! | `{"command":"delete","volume":"data","connected":false}` | `{"reply":"done"}` | its space comes back; while hosts are connected only with `connected` |
//! | `{"command":"resync","member":"nvme-9300-max.1"}` | `{"reply":"done"}` | a member that was left out is up to date and used again |
//! | `{"command":"check"}` | `{"reply":"checked","problems":[]}` | every extent has its owner |
//! | `{"command":"fault","device":"nvme-9300-max.1","fault":{"kind":"vanish"}}` | `{"reply":"done"}` | the modelled device has it until it is cleared, by this server or a later one |
//! | `{"command":"clear-faults","device":"nvme-9300-max.1"}` | `{"reply":"done"}` | without `device` those of all devices; one that vanished is there again with what it held |
//! | `{"command":"bring-back","device":"nvme-9300-max.1"}` | `{"reply":"done"}` | one that vanished or lost its power is there again; its other faults stay, and a resync is up to the client |
//! | `{"command":"cut-power","device":"nvme-9300-max.1","cut":{"seed":1}}` | `{"reply":"cut",…}` | the device has no power, and what of its unflushed writes was lost; only where everything else has a copy of all |
//! | `{"command":"faults"}` | `{"reply":"faults","devices":[…]}` | one `DeviceFaults` a device |
//! | `{"command":"set-pace","pace":"immediate"}` | `{"reply":"done"}` | in force once everything in flight has completed; `"modelled"` goes back |
//! | `{"command":"begin-measurement","interval_s":1.0}` | `{"reply":"done"}` | the devices' counters are cleared; the interval is in modelled seconds, 0.001 to 86400 |
//! | `{"command":"end-measurement"}` | `{"reply":"activity","devices":[…]}` | one `DeviceActivity` a device |
//! | `{"command":"glance"}` | `{"reply":"glance","devices":[…]}` | one `DeviceGlance` a device: running totals; counting goes on |
//! | `{"command":"shutdown"}` | `{"reply":"done"}` | the server flushes and ends |
//!
//! The answer to an impossible or unreadable command is `{"reply":"failed","kind":"mistake","problem":"…"}`, and the
//! connection stays open. Only a line of more than [`MAX_LINE_BYTES`] ends it. `kind` is `mistake` where another
//! command would be right and `failed` where the storage is to blame.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use underlay_record::{DeviceActivity, DeviceGlance};
use underlay_storage::faults::{DeviceFault, DeviceFaults, PowerCut, WriteSurvival};
use underlay_storage::stack::PacingMode;

use crate::pool::MemberState;
use crate::pool_file::{VolumeAdmission, VolumeFile};
use crate::rate::RateLimits;

/// The longest command, in bytes with its newline.
pub const MAX_LINE_BYTES: u64 = 64 << 10;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum PoolCommand {
    Ping,
    List,
    Create {
        volume: VolumeFile,
    },
    Resize {
        volume: String,
        capacity_bytes: u64,
        #[serde(default)]
        shrink: bool,
    },
    Snapshot {
        volume: String,
        snapshot: String,
        #[serde(default)]
        writable: bool,
    },
    Delete {
        volume: String,
        #[serde(default)]
        connected: bool,
    },
    Resync {
        member: String,
    },
    Check,
    Fault {
        device: String,
        fault: DeviceFault,
    },
    ClearFaults {
        #[serde(default)]
        device: Option<String>,
    },
    BringBack {
        device: String,
    },
    CutPower {
        device: String,
        cut: PowerCut,
    },
    Faults,
    SetPace {
        pace: PacingMode,
    },
    BeginMeasurement {
        interval_s: f64,
    },
    EndMeasurement,
    Glance,
    Shutdown,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum PoolReply {
    Done,
    Pong { pool: String, address: SocketAddr, pid: u32 },
    State(PoolState),
    Checked { problems: Vec<String> },
    Activity { devices: Vec<DeviceActivity> },
    Glance { devices: Vec<DeviceGlance> },
    Faults { devices: Vec<DeviceFaults> },
    Cut(WriteSurvival),
    Failed { kind: FailureKind, problem: String },
}

/// What has to change: the command, or the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    Mistake,
    Failed,
}

/// How a pool fares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolState {
    pub pool: String,
    /// Absent while it is not served.
    pub address: Option<SocketAddr>,
    pub members: Vec<MemberStatus>,
    /// What volumes can use of the members, before compression and mirroring.
    pub space_bytes: u64,
    pub free_bytes: u64,
    pub volumes: Vec<VolumeState>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    pub name: String,
    pub space_bytes: u64,
    pub free_bytes: u64,
    pub state: MemberState,
}

/// How a volume fares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeState {
    pub name: String,
    /// Of the subsystem that initiators connect to.
    pub nqn: String,
    pub capacity_bytes: u64,
    /// What has been written and not discarded.
    pub used_bytes: u64,
    /// What that takes on the members: compressed, and one copy of a mirror. What snapshots share counts for each.
    pub stored_bytes: u64,
    /// `lz4`, `zstd` or absent.
    pub compress: Option<String>,
    pub mirror: bool,
    /// Some of a mirror is on one device only.
    pub degraded: bool,
    pub writable: bool,
    /// The volume that it was made of.
    pub snapshot_of: Option<String>,
    pub limits: RateLimits,
    pub admission: VolumeAdmission,
    /// Hosts connected now.
    pub clients: u32,
    /// The one host that writes, connected or for a time on its way back.
    #[serde(default)]
    pub writer: Option<String>,
    pub traffic: VolumeTraffic,
}

/// What a volume did since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeTraffic {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub errors: u64,
    /// Wall seconds since the volume is served.
    pub served_s: f64,
}

/// Understands one line (its newline may be missing), or says what is wrong with it.
///
/// # Errors
/// What was expected.
pub fn parse(line: &[u8]) -> Result<PoolCommand, String> {
    if line.len() as u64 > MAX_LINE_BYTES {
        return Err(format!("a command has at most {MAX_LINE_BYTES} bytes, this one has {}", line.len()));
    }
    let command = serde_json::from_slice(line).map_err(|error| format!("not a command: {error}"))?;
    match command {
        PoolCommand::BeginMeasurement { interval_s } if !(0.001..=86_400.0).contains(&interval_s) => {
            Err(format!("an interval of {interval_s} s: expected 0.001 to 86400"))
        }
        command => Ok(command),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn documented_lines_are_understood() {
        assert_eq!(parse(b"{\"command\":\"ping\"}\n"), Ok(PoolCommand::Ping));
        assert_eq!(parse(br#"{"command":"list"}"#), Ok(PoolCommand::List));
        assert_eq!(
            parse(br#"{"command":"resize","volume":"data","capacity_bytes":1073741824,"shrink":false}"#),
            Ok(PoolCommand::Resize { volume: "data".into(), capacity_bytes: 1 << 30, shrink: false })
        );
        assert_eq!(
            parse(br#"{"command":"snapshot","volume":"data","snapshot":"monday","writable":false}"#),
            Ok(PoolCommand::Snapshot { volume: "data".into(), snapshot: "monday".into(), writable: false })
        );
        assert_eq!(
            parse(br#"{"command":"delete","volume":"data"}"#),
            Ok(PoolCommand::Delete { volume: "data".into(), connected: false })
        );
        assert_eq!(
            parse(br#"{"command":"set-pace","pace":"immediate"}"#),
            Ok(PoolCommand::SetPace { pace: PacingMode::Immediate })
        );
        assert_eq!(
            parse(br#"{"command":"resync","member":"nvme-9300-max.1"}"#),
            Ok(PoolCommand::Resync { member: "nvme-9300-max.1".into() })
        );
    }

    #[test]
    fn everything_else_is_answered_by_what_is_wrong() {
        let refused: [&[u8]; 6] = [
            b"",
            b"{}",
            b"{\"command\":\"format\"}",
            b"{\"command\":\"resize\",\"volume\":\"data\",\"capacity_bytes\":-1}",
            b"{\"command\":\"begin-measurement\",\"interval_s\":0}",
            b"\xff\xfe",
        ];
        for line in refused {
            assert!(parse(line).is_err(), "{}", String::from_utf8_lossy(line));
        }
        assert!(parse(&vec![b' '; 70_000]).unwrap_err().contains("at most"));
    }

    proptest! {
        #[test]
        fn noise_never_panics(line in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&line);
        }
    }
}
