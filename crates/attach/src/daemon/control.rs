//! The control socket: one JSON object a line in each direction, a reply for every line.
//!
//! | command | reply | meaning |
//! | --- | --- | --- |
//! | `{"command":"ping"}` | `{"reply":"pong","volumes":[{"name":"data","capacity_bytes":1073741824}]}` | it serves |
//! | `{"command":"set-pace","pace":"immediate"}` | `{"reply":"done"}` | in force once everything under way has completed; `"modelled"` goes back |
//! | `{"command":"begin-measurement","interval_s":1.0}` | `{"reply":"done"}` | counters are cleared; the interval is in modelled seconds, 0.001 to 86400 |
//! | `{"command":"end-measurement"}` | `{"reply":"activity","devices":[…]}` | one `DeviceActivity` a device |
//! | `{"command":"shutdown"}` | `{"reply":"done"}` | the daemon flushes, unmounts its export and ends |
//!
//! Whatever can't be understood is answered by `{"reply":"failed","problem":"…"}` and the connection goes on; only
//! a line of more than [`LONGEST_LINE_BYTES`] ends it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};
use underlay_record::DeviceActivity;
use underlay_storage::stack::{Pace, Stack};

use crate::attachment::AttachError;

/// The longest command, in bytes with its newline.
pub const LONGEST_LINE_BYTES: u64 = 4096;

/// Connections served at once; the launcher needs one.
const MOST_CONNECTIONS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    Ping,
    SetPace { pace: Pace },
    BeginMeasurement { interval_s: f64 },
    EndMeasurement,
    Shutdown,
}

/// A volume as the daemon serves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeInfo {
    pub name: String,
    pub capacity_bytes: u64,
    pub block_bytes: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    Done,
    Pong { volumes: Vec<VolumeInfo> },
    Activity { devices: Vec<DeviceActivity> },
    Failed { problem: String },
}

/// Understands one line (its newline may be missing), or says what is wrong with it.
pub fn parse(line: &[u8]) -> Result<Command, String> {
    if line.len() as u64 > LONGEST_LINE_BYTES {
        return Err(format!("a command has at most {LONGEST_LINE_BYTES} bytes, this one has {}", line.len()));
    }
    let command = serde_json::from_slice(line).map_err(|error| format!("not a command: {error}"))?;
    match command {
        Command::BeginMeasurement { interval_s } if !(0.001..=86_400.0).contains(&interval_s) => {
            Err(format!("an interval of {interval_s} s: expected 0.001 to 86400"))
        }
        command => Ok(command),
    }
}

/// Makes the socket and serves it on threads of its own.
pub(super) fn listen(
    path: &Path,
    stack: Arc<Stack>,
    volumes: Vec<VolumeInfo>,
    shutdown: impl Fn() + Send + Sync + 'static,
) -> Result<(), AttachError> {
    let listener = UnixListener::bind(path).map_err(|error| AttachError::io("listen on", path, error))?;
    let connections = Arc::new(AtomicUsize::new(0));
    let service = Arc::new(Service { stack, volumes, shutdown: Box::new(shutdown) });
    let accept = move || {
        for stream in listener.incoming().flatten() {
            let (service, connections) = (Arc::clone(&service), Arc::clone(&connections));
            if connections.fetch_add(1, Ordering::SeqCst) >= MOST_CONNECTIONS {
                connections.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            let counter = Arc::clone(&connections);
            let serve = move || {
                // A peer that went away is no concern of the devices.
                let _ = service.serve(stream);
                connections.fetch_sub(1, Ordering::SeqCst);
            };
            if std::thread::Builder::new().name("control".into()).spawn(serve).is_err() {
                counter.fetch_sub(1, Ordering::SeqCst);
            }
        }
    };
    std::thread::Builder::new()
        .name("control-accept".into())
        .spawn(accept)
        .map(|_| ())
        .map_err(|error| AttachError::failed(format!("could not start the control thread: {error}")))
}

struct Service {
    stack: Arc<Stack>,
    volumes: Vec<VolumeInfo>,
    shutdown: Box<dyn Fn() + Send + Sync>,
}

impl Service {
    fn serve(&self, stream: UnixStream) -> io::Result<()> {
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        loop {
            let mut line = Vec::new();
            // One byte more than allowed tells a line that is too long from one that just fits.
            (&mut reader).take(LONGEST_LINE_BYTES + 1).read_until(b'\n', &mut line)?;
            if line.is_empty() {
                return Ok(());
            }
            let too_long = line.len() as u64 > LONGEST_LINE_BYTES;
            let command = parse(&line);
            let ends = matches!(command, Ok(Command::Shutdown));
            let reply =
                command.map_or_else(|problem| Reply::Failed { problem }, |command| self.obey(command));
            let mut text = serde_json::to_vec(&reply)?;
            text.push(b'\n');
            writer.write_all(&text)?;
            if ends {
                (self.shutdown)();
            }
            if too_long {
                return Ok(());
            }
        }
    }

    fn obey(&self, command: Command) -> Reply {
        match command {
            Command::Ping => return Reply::Pong { volumes: self.volumes.clone() },
            Command::SetPace { pace } => self.stack.set_pace(pace),
            Command::BeginMeasurement { interval_s } => self.stack.begin_measurement(interval_s),
            Command::EndMeasurement => return Reply::Activity { devices: self.stack.end_measurement() },
            Command::Shutdown => {}
        }
        Reply::Done
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_documented_lines_are_understood() {
        assert_eq!(parse(b"{\"command\":\"ping\"}\n"), Ok(Command::Ping));
        assert_eq!(
            parse(br#"{"command":"set-pace","pace":"immediate"}"#),
            Ok(Command::SetPace { pace: Pace::Immediate })
        );
        assert_eq!(
            parse(br#"{"command":"begin-measurement","interval_s":1.0}"#),
            Ok(Command::BeginMeasurement { interval_s: 1.0 })
        );
        assert_eq!(parse(br#"{"command":"end-measurement"}"#), Ok(Command::EndMeasurement));
        assert_eq!(parse(br#"{"command":"shutdown"}"#), Ok(Command::Shutdown));
    }

    #[test]
    fn everything_else_is_answered_by_what_is_wrong() {
        let refused: [&[u8]; 10] = [
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
        ];
        for line in refused {
            assert!(parse(line).is_err(), "{}", String::from_utf8_lossy(line));
        }
        assert!(parse(&vec![b' '; 5000]).unwrap_err().contains("at most"));
    }

    fn some_command() -> impl Strategy<Value = Command> {
        prop_oneof![
            Just(Command::Ping),
            Just(Command::EndMeasurement),
            Just(Command::Shutdown),
            Just(Command::SetPace { pace: Pace::Modelled }),
            // Eighths: parsing may be off in the last of 53 bits, which is no concern of an interval.
            (1_u32..691_200)
                .prop_map(|eighths| Command::BeginMeasurement { interval_s: f64::from(eighths) / 8.0 }),
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
