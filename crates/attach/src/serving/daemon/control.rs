//! The control socket: one JSON object a line in each direction, a reply for every line.
//!
//! | command | reply | meaning |
//! | --- | --- | --- |
//! | `{"command":"ping"}` | `{"reply":"pong","volumes":[{"name":"data","capacity_bytes":1073741824}]}` | it serves |
//! | `{"command":"set-pace","pace":"immediate"}` | `{"reply":"done"}` | in effect once everything in flight has completed; `"modelled"` goes back |
//! | `{"command":"begin-measurement","interval_s":1.0}` | `{"reply":"done"}` | counters are cleared; the interval is in modelled seconds, 0.001 to 86400 |
//! | `{"command":"end-measurement"}` | `{"reply":"activity","devices":[…]}` | one `DeviceActivity` a device |
//! | `{"command":"glance"}` | `{"reply":"glance","devices":[…]}` | one `DeviceGlance` a device: running totals; counting goes on |
//! | `{"command":"fault","device":"ssd-sata.0","fault":{"kind":"slow","factor":10.0},"for_s":5.0}` | `{"reply":"fault","id":1}` | the device has it until it is cleared, or for `for_s` modelled seconds |
//! | `{"command":"clear-faults","device":"ssd-sata.0"}` | `{"reply":"done"}` | it has none any more; without `device`, none has |
//! | `{"command":"return","device":"ssd-sata.0"}` | `{"reply":"done"}` | a vanished device is there again |
//! | `{"command":"faults"}` | `{"reply":"faults","devices":[…]}` | one `DeviceFaults` a device |
//! | `{"command":"power-cut","devices":[],"seed":1,"torn":true,"reordered":true}` | `{"reply":"power-cut","survived":3,"torn":1,"lost":9}` | all named devices, or all there are, lose power in one instant; the numbers are of unflushed writes |
//! | `{"command":"check-power-on"}` | `{"reply":"done"}` | `power-on` would be obeyed now; nothing changes |
//! | `{"command":"power-on"}` | `{"reply":"done"}` | power is back everywhere |
//! | the same with `"by":"study"` | the same | the record says that the study asked for it; without, that it was done by hand |
//! | `{"command":"layers"}` | `{"reply":"layers","layers":[…]}` | one `LayerActivity` for each layer that counts or keeps something |
//! | `{"command":"path-times"}` | `{"reply":"path-times","volumes":[…]}` | one `VolumeTimes` a volume: running totals of what requests took |
//! | `{"command":"set-path","path":{"fixed_us":30.0,"mib_us":200.0}}` | `{"reply":"done"}` | requests are backdated by this from now on, in wall time |
//! | `{"command":"delay-answers","delay_us":300.0}` | `{"reply":"done"}` | for tests: answers go out this much later, after everything was counted; 0 ends it |
//! | `{"command":"shutdown"}` | `{"reply":"done"}` | the daemon flushes, unmounts its export and ends |
//!
//! A line that can't be parsed gets `{"reply":"failed","problem":"…"}` and the connection goes on; only a line of more
//! than [`MAX_LINE_BYTES`] ends it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use underlay_files::control_socket::{Answer, Connection, ControlSocket};
use underlay_record::{DeviceActivity, DeviceGlance, DeviceInputs, DisturbedBy, LayerActivity};
use underlay_storage::faults::{DeviceFault, DeviceFaults, FaultError, FaultId, PowerCut, WriteSurvival};
use underlay_storage::paced::PathCost;
use underlay_storage::stack::{PacingMode, Stack};

use super::request_meter::{RequestMeters, VolumeTimes};
use crate::machine::error::AttachError;

/// The longest command, in bytes with its newline.
pub const MAX_LINE_BYTES: u64 = 4096;

/// A connection to a daemon's control socket.
pub(crate) type DaemonConnection = Connection<DaemonCommand, DaemonReply>;

/// Backdating by more would treat a busy moment as a property of this machine.
pub(crate) const MAX_PATH_US: f64 = 250.0;
pub(crate) const MAX_MIB_US: f64 = 1000.0;

/// Ten seconds.
const MAX_DELAY_US: f64 = 1e7;

/// A week.
const MAX_FAULT_S: f64 = 604_800.0;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum DaemonCommand {
    Ping,
    SetPace {
        pace: PacingMode,
    },
    BeginMeasurement {
        interval_s: f64,
    },
    EndMeasurement,
    Glance,
    Layers,
    Inputs,
    Fault {
        device: String,
        fault: DeviceFault,
        #[serde(default)]
        for_s: Option<f64>,
        #[serde(default, skip_serializing_if = "DisturbedBy::is_hand")]
        by: DisturbedBy,
    },
    ClearFaults {
        #[serde(default)]
        device: Option<String>,
        #[serde(default, skip_serializing_if = "DisturbedBy::is_hand")]
        by: DisturbedBy,
    },
    Return {
        device: String,
    },
    Faults,
    PowerCut {
        /// Empty for all.
        #[serde(default)]
        devices: Vec<String>,
        seed: u64,
        #[serde(default)]
        torn: bool,
        #[serde(default)]
        reordered: bool,
        #[serde(default, skip_serializing_if = "DisturbedBy::is_hand")]
        by: DisturbedBy,
    },
    PowerOn {
        #[serde(default, skip_serializing_if = "DisturbedBy::is_hand")]
        by: DisturbedBy,
    },
    CheckPowerOn,
    PathTimes,
    SetPath {
        path: PathCost,
    },
    DelayAnswers {
        delay_us: f64,
    },
    Shutdown,
}

/// A volume of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeInfo {
    pub name: String,
    pub capacity_bytes: u64,
    pub block_bytes: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum DaemonReply {
    Done,
    Pong { volumes: Vec<VolumeInfo> },
    Layers { layers: Vec<LayerActivity> },
    Inputs { devices: Vec<(String, DeviceInputs)> },
    Activity { devices: Vec<DeviceActivity> },
    Glance { devices: Vec<DeviceGlance> },
    Fault { id: FaultId },
    Faults { devices: Vec<DeviceFaults> },
    PowerCut(WriteSurvival),
    PathTimes { volumes: Vec<VolumeTimes> },
    Failed { problem: String },
}

/// Parses one line (its newline may be missing), or describes its mistake.
///
/// # Errors
/// The mistake.
pub fn parse(line: &[u8]) -> Result<DaemonCommand, String> {
    if line.len() as u64 > MAX_LINE_BYTES {
        return Err(format!("a command has at most {MAX_LINE_BYTES} bytes, this one has {}", line.len()));
    }
    let command = serde_json::from_slice(line).map_err(|error| format!("not a command: {error}"))?;
    match command {
        DaemonCommand::BeginMeasurement { interval_s } if !(0.001..=86_400.0).contains(&interval_s) => {
            Err(format!("an interval of {interval_s} s: expected 0.001 to 86400"))
        }
        DaemonCommand::Fault { for_s: Some(for_s), .. } if !(for_s > 0.0 && for_s <= MAX_FAULT_S) => {
            Err(format!("a fault for {for_s} s: expected more than 0 and at most {MAX_FAULT_S}"))
        }
        DaemonCommand::SetPath { path } if !is_path(&path) => Err(format!(
            "a path of {} µs and {} µs for each MiB: expected 0 to {MAX_PATH_US} and 0 to {MAX_MIB_US}",
            path.fixed_us, path.mib_us
        )),
        DaemonCommand::DelayAnswers { delay_us } if !(0.0..=MAX_DELAY_US).contains(&delay_us) => {
            Err(format!("a delay of {delay_us} µs: expected 0 to {MAX_DELAY_US}"))
        }
        DaemonCommand::Fault { fault, .. } if fault.check().is_err() => {
            Err(fault.check().map_or_else(|error| error.to_string(), |()| String::new()))
        }
        command => Ok(command),
    }
}

fn is_path(path: &PathCost) -> bool {
    (0.0..=MAX_PATH_US).contains(&path.fixed_us) && (0.0..=MAX_MIB_US).contains(&path.mib_us)
}

/// Creates the socket and serves it on separate threads.
pub(super) fn listen(
    path: &Path,
    service: DaemonService,
    shutdown: impl Fn() + Send + Sync + 'static,
) -> Result<(), AttachError> {
    let shutdown = Arc::new(shutdown);
    let answer = move |line: &[u8]| {
        let command = parse(line);
        let ends = matches!(command, Ok(DaemonCommand::Shutdown));
        let shutdown = Arc::clone(&shutdown);
        Answer {
            reply: command
                .map_or_else(|problem| DaemonReply::Failed { problem }, |command| service.obey(command)),
            afterwards: ends.then(|| Box::new(move || shutdown()) as Box<dyn FnOnce()>),
        }
    };
    let socket = ControlSocket::listen(path, MAX_LINE_BYTES, answer)
        .map_err(|error| AttachError::io("listen on", path, error))?;
    socket.keep();
    Ok(())
}

/// The service that the commands act on.
pub(super) struct DaemonService {
    stack: Arc<Stack>,
    /// Wall seconds per modelled second.
    dilation: f64,
    doors: RequestMeters,
    volumes: Vec<VolumeInfo>,
    power_cut: Box<dyn Fn() + Send + Sync>,
}

impl DaemonService {
    /// `power_cut` is called after the devices have lost their power and before the answer, so before power can be
    /// switched on again.
    pub(super) fn new(
        stack: Arc<Stack>,
        dilation: f64,
        doors: RequestMeters,
        volumes: Vec<VolumeInfo>,
        power_cut: impl Fn() + Send + Sync + 'static,
    ) -> DaemonService {
        DaemonService { stack, dilation, doors, volumes, power_cut: Box::new(power_cut) }
    }

    fn obey(&self, command: DaemonCommand) -> DaemonReply {
        match command {
            DaemonCommand::Ping => return DaemonReply::Pong { volumes: self.volumes.clone() },
            DaemonCommand::SetPace { pace } => self.stack.set_pace(pace),
            DaemonCommand::BeginMeasurement { interval_s } => self.stack.begin_measurement(interval_s),
            DaemonCommand::Glance => return DaemonReply::Glance { devices: self.stack.glance() },
            DaemonCommand::Inputs => return DaemonReply::Inputs { devices: self.stack.inputs() },
            DaemonCommand::Layers => return DaemonReply::Layers { layers: self.stack.layers() },
            DaemonCommand::EndMeasurement => {
                return DaemonReply::Activity { devices: self.stack.end_measurement() };
            }
            // `listen` ends the daemon once this is answered.
            DaemonCommand::Shutdown => {}
            DaemonCommand::PathTimes => {
                return DaemonReply::PathTimes { volumes: self.doors.times(&self.stack) };
            }
            // It was measured in wall time, and the stack uses modelled time.
            DaemonCommand::SetPath { path } => self.stack.set_path(path.slowed(self.dilation)),
            DaemonCommand::DelayAnswers { delay_us } => {
                if let Err(error) = self.doors.delay(Duration::from_secs_f64(delay_us / 1e6)) {
                    return DaemonReply::Failed { problem: format!("could not delay answers: {error}") };
                }
            }
            DaemonCommand::Faults => return DaemonReply::Faults { devices: self.stack.faults() },
            DaemonCommand::CheckPowerOn => {
                return self.stack.check_restart().map_or_else(failed, |()| DaemonReply::Done);
            }
            // Checked first: `restore_power_by` refuses as well, but can't say why.
            DaemonCommand::PowerOn { by: disturbed_by } => match self.stack.check_restart() {
                Ok(()) => drop(self.stack.restore_power_by(disturbed_by)),
                Err(error) => return failed(error),
            },
            DaemonCommand::Fault { device, fault, for_s, by: disturbed_by } => {
                return self.inject(&device, fault, for_s, disturbed_by).unwrap_or_else(failed);
            }
            DaemonCommand::ClearFaults { device: None, by: disturbed_by } => {
                self.stack.clear_all_faults_by(disturbed_by)
            }
            DaemonCommand::ClearFaults { device: Some(device), by: disturbed_by } => {
                return self
                    .stack
                    .clear_faults_by(disturbed_by, &device)
                    .map_or_else(failed, |()| DaemonReply::Done);
            }
            DaemonCommand::Return { device } => {
                return match self.stack.bring_back(&device) {
                    Ok(true) => DaemonReply::Done,
                    Ok(false) => DaemonReply::Failed { problem: format!("{device} has not vanished") },
                    Err(error) => failed(error),
                };
            }
            DaemonCommand::PowerCut { devices, seed, torn, reordered, by: disturbed_by } => {
                let names: Vec<&str> = devices.iter().map(String::as_str).collect();
                let cut = self.stack.cut_power_by(disturbed_by, &names, PowerCut { seed, torn, reordered });
                // Before the answer: the lost memory must be gone before power can be switched on again.
                if cut.is_ok() {
                    (self.power_cut)();
                }
                return cut.map_or_else(failed, DaemonReply::PowerCut);
            }
        }
        DaemonReply::Done
    }

    fn inject(
        &self,
        device: &str,
        fault: DeviceFault,
        for_s: Option<f64>,
        disturbed_by: DisturbedBy,
    ) -> Result<DaemonReply, FaultError> {
        let id = self.stack.inject_by(disturbed_by, device, fault)?;
        if let Some(for_s) = for_s {
            let stack = Arc::clone(&self.stack);
            let wall = Duration::from_secs_f64(for_s * self.dilation);
            let clear = move || {
                std::thread::sleep(wall);
                stack.clear_fault(id);
            };
            if std::thread::Builder::new().name("fault".into()).spawn(clear).is_err() {
                // Nothing else would remove it.
                self.stack.clear_fault(id);
                let problem = "no thread to end the fault by could be started".to_owned();
                return Ok(DaemonReply::Failed { problem });
            }
        }
        Ok(DaemonReply::Fault { id })
    }
}

fn failed(error: FaultError) -> DaemonReply {
    DaemonReply::Failed { problem: error.to_string() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use underlay_storage::medium::ModelOperation;

    use super::*;

    #[test]
    fn documented_lines_are_parsed() {
        assert_eq!(parse(b"{\"command\":\"ping\"}\n"), Ok(DaemonCommand::Ping));
        assert_eq!(
            parse(br#"{"command":"set-pace","pace":"immediate"}"#),
            Ok(DaemonCommand::SetPace { pace: PacingMode::Immediate })
        );
        assert_eq!(
            parse(br#"{"command":"begin-measurement","interval_s":1.0}"#),
            Ok(DaemonCommand::BeginMeasurement { interval_s: 1.0 })
        );
        assert_eq!(parse(br#"{"command":"end-measurement"}"#), Ok(DaemonCommand::EndMeasurement));
        assert_eq!(parse(br#"{"command":"glance"}"#), Ok(DaemonCommand::Glance));
        assert_eq!(parse(br#"{"command":"shutdown"}"#), Ok(DaemonCommand::Shutdown));
        let (device, fault) = ("ssd-sata.0".to_owned(), DeviceFault::Slow { factor: 10.0 });
        assert_eq!(
            parse(br#"{"command":"fault","device":"ssd-sata.0","fault":{"kind":"slow","factor":10.0},"for_s":5.0}"#),
            Ok(DaemonCommand::Fault { device, fault, for_s: Some(5.0), by: DisturbedBy::Hand })
        );
        assert_eq!(
            parse(br#"{"command":"clear-faults"}"#),
            Ok(DaemonCommand::ClearFaults { device: None, by: DisturbedBy::Hand })
        );
        assert_eq!(parse(br#"{"command":"faults"}"#), Ok(DaemonCommand::Faults));
        assert_eq!(
            parse(br#"{"command":"power-cut","devices":[],"seed":1,"torn":true,"reordered":true}"#),
            Ok(DaemonCommand::PowerCut {
                devices: Vec::new(),
                seed: 1,
                torn: true,
                reordered: true,
                by: DisturbedBy::Hand
            })
        );
        assert_eq!(parse(br#"{"command":"check-power-on"}"#), Ok(DaemonCommand::CheckPowerOn));
        assert_eq!(parse(br#"{"command":"power-on"}"#), Ok(DaemonCommand::PowerOn { by: DisturbedBy::Hand }));
        assert_eq!(parse(br#"{"command":"path-times"}"#), Ok(DaemonCommand::PathTimes));
        let path = PathCost { fixed_us: 30.0, mib_us: 200.0 };
        assert_eq!(
            parse(br#"{"command":"set-path","path":{"fixed_us":30.0,"mib_us":200.0}}"#),
            Ok(DaemonCommand::SetPath { path })
        );
        assert_eq!(
            parse(br#"{"command":"delay-answers","delay_us":300.0}"#),
            Ok(DaemonCommand::DelayAnswers { delay_us: 300.0 })
        );
    }

    #[test]
    fn everything_else_is_answered_by_what_is_wrong() {
        let refused: [&[u8]; 17] = [
            b"",
            b"ping",
            b"{}",
            b"{\"command\":\"format\"}",
            b"{\"command\":\"set-pace\"}",
            b"{\"command\":\"set-pace\",\"pace\":\"fast\"}",
            b"{\"command\":\"begin-measurement\",\"interval_s\":0}",
            b"{\"command\":\"begin-measurement\",\"interval_s\":-1}",
            b"{\"command\":\"begin-measurement\",\"interval_s\":1e999}",
            b"\xff\xfe",
            b"{\"command\":\"fault\",\"device\":\"a\",\"fault\":{\"kind\":\"slow\",\"factor\":0.5}}",
            b"{\"command\":\"fault\",\"device\":\"a\",\"fault\":{\"kind\":\"vanish\"},\"for_s\":-1}",
            b"{\"command\":\"fault\",\"device\":\"a\",\"fault\":{\"kind\":\"errors\",\"rate\":2,\"seed\":1}}",
            b"{\"command\":\"power-cut\",\"seed\":-1}",
            b"{\"command\":\"set-path\",\"path\":{\"fixed_us\":-1,\"mib_us\":0}}",
            b"{\"command\":\"set-path\",\"path\":{\"fixed_us\":0,\"mib_us\":1001}}",
            b"{\"command\":\"delay-answers\",\"delay_us\":-1}",
        ];
        for line in refused {
            assert!(parse(line).is_err(), "{}", String::from_utf8_lossy(line));
        }
        assert!(parse(&vec![b' '; 5000]).unwrap_err().contains("at most"));
    }

    fn some_command() -> impl Strategy<Value = DaemonCommand> {
        prop_oneof![
            Just(DaemonCommand::Ping),
            Just(DaemonCommand::EndMeasurement),
            Just(DaemonCommand::Shutdown),
            Just(DaemonCommand::SetPace { pace: PacingMode::Modelled }),
            // Eighths: parsing may be off in the last of 53 bits, which does not matter for an interval.
            (1_u32..691_200)
                .prop_map(|eighths| DaemonCommand::BeginMeasurement { interval_s: f64::from(eighths) / 8.0 }),
            ("[ -~]{0,20}", 1_u32..100, any::<u64>()).prop_map(|(device, share, seed)| {
                let (operations, extent) = (vec![ModelOperation::Flush], None);
                let fault = DeviceFault::Errors { operations, rate: f64::from(share) / 128.0, extent, seed };
                DaemonCommand::Fault {
                    device,
                    fault,
                    for_s: Some(f64::from(share) / 8.0),
                    by: if share % 2 == 0 { DisturbedBy::Study } else { DisturbedBy::Hand },
                }
            }),
            ("[ -~]{0,20}", any::<u64>(), any::<bool>()).prop_map(|(device, seed, torn)| {
                DaemonCommand::PowerCut {
                    devices: vec![device],
                    seed,
                    torn,
                    reordered: !torn,
                    by: DisturbedBy::Hand,
                }
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn commands_read_back(command in some_command()) {
            let line = serde_json::to_vec(&command).unwrap();
            prop_assert_eq!(parse(&line), Ok(command));
        }

        #[test]
        fn noise_never_panics(line in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&line);
        }
    }
}
