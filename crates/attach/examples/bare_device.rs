//! A modelled disk as a bare block device, until standard input ends: for `benches/overhead` and for trying things.
//!
//! `bare_device ATTACHMENT null|FILE [MEDIUM [TIME]]` prints one line `DEVICE DAEMON_PID`, and at the end what the
//! device was asked for and what it delivered, as JSON.

use std::error::Error;
use std::io::Read;
use std::path::{Path, PathBuf};

use underlay_attach::daemon::DaemonTransport;
use underlay_attach::{BlockAttachment, ResourceRegistry};
use underlay_record::path;
use underlay_storage::catalogue;
use underlay_storage::stack::{BackingSpec, DeviceSpec, StackSpec, VolumeSpec};

const DEVICE_BYTES: u64 = 2 << 30;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (attachment, backing, medium) = match arguments.as_slice() {
        ["device-daemon", "--config", config] => {
            return Ok(underlay_attach::daemon::main(Path::new(config))?);
        }
        [attachment, backing, medium @ ..] => (*attachment, *backing, medium),
        _ => return Err("usage: bare_device ATTACHMENT null|FILE [MEDIUM [TIME]]".into()),
    };
    let transport = match attachment {
        "fuse+loop" => DaemonTransport::DevFuse,
        "fuse-uring+loop" => DaemonTransport::Uring,
        other => return Err(format!("no attachment as a bare device is called {other}").into()),
    };
    let backing = match backing {
        "null" => BackingSpec::Null,
        file => BackingSpec::File(PathBuf::from(file)),
    };
    let (medium, dilation) = match medium {
        [] => (None, 1.0),
        [name] => (Some(catalogue::find(name)?), 1.0),
        [name, time, ..] => (Some(catalogue::find(name)?), time.parse()?),
    };
    let device = DeviceSpec::new("bare.0", medium, DEVICE_BYTES, backing);
    let stack = StackSpec { volumes: vec![VolumeSpec::striped("bare", vec![device], 0)], dilation, seed: 1 };
    let mut devices = BlockAttachment::new()?
        .with_transport(transport)
        .attach_devices(&stack, &ResourceRegistry::open()?)?;
    devices.begin_measurement(1.0)?;
    println!("{} {}", devices.paths()[0].display(), devices.daemon_pid().unwrap_or_default());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let activities = devices.end_measurement()?;
    let paths = devices.path_records();
    for activity in activities {
        let quantiles =
            |histogram: &underlay_record::Histogram| [0.5, 0.99].map(|rank| histogram.quantile_us(rank));
        let waited = activity
            .delivered
            .as_ref()
            .map(|delivered| path::waited(&paths, delivered).unwrap_or_else(|| delivered.clone()));
        let (modelled, delivered) =
            (activity.modelled.as_ref().map(quantiles), waited.as_ref().map(quantiles));
        let kinds: Vec<_> = paths.iter().flat_map(|path| path.kinds()).collect();
        println!(
            "{}",
            serde_json::json!({ "modelled_us": modelled, "delivered_us": delivered, "paths": kinds })
        );
    }
    devices.detach()?;
    Ok(())
}
