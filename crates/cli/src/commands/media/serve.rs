//! `underlay media serve`: a bare modelled block device for scripts, and for our own probes.

use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use underlay_attach::{Attachment as _, BlockAttachment, BlockVolumes, ResourceRegistry};
use underlay_config::units;
use underlay_record::{Certificate, DeviceActivity, Histogram, PathRecord, path};
use underlay_storage::catalogue::{self, CatalogueMedium};
use underlay_storage::predict::{self, AccessPattern, ClosedLoop};
use underlay_storage::stack::{BackingSpec, DeviceSpec, InitialState, StackSpec, VolumeSpec};
use underlay_study::run::certificate;

use crate::arguments::ServeArguments;
use crate::exit_codes::{ExitFailure, INTERRUPTED};
use crate::{output, signals};

const ALIGNMENT: u64 = 1 << 20;
const STOP_INTERVAL: Duration = Duration::from_millis(100);
/// Between the device's samples, which nobody reads here.
const SAMPLE_INTERVAL_S: f64 = 10.0;

/// A bare device of one medium that keeps no data: for measuring times alone.
pub(super) struct ServedMedium {
    volumes: BlockVolumes,
    pub capacity_bytes: u64,
}

impl ServedMedium {
    pub(super) fn attach(
        medium: &CatalogueMedium,
        size_bytes: u64,
        time: f64,
        registry: &ResourceRegistry,
    ) -> Result<ServedMedium, ExitFailure> {
        let capacity_bytes = size_bytes.min(medium.capacity_bytes()) / ALIGNMENT * ALIGNMENT;
        if capacity_bytes == 0 {
            return Err(ExitFailure::Mistake("--size: a device of less than 1 MiB".into()));
        }
        let mut device = DeviceSpec::new(
            format!("{}.0", medium.name),
            Some(medium.clone()),
            capacity_bytes,
            BackingSpec::Null,
        );
        device.initial = initial();
        let volume = VolumeSpec::striped("device", vec![device], 0);
        let stack = StackSpec { volumes: vec![volume], dilation: time, seed: SEED };
        let volumes = best()?.attach_devices(&stack, registry)?;
        Ok(ServedMedium { volumes, capacity_bytes })
    }

    pub(super) fn path(&self) -> PathBuf {
        self.volumes.paths()[0].clone()
    }

    pub(super) fn begin(&self) -> Result<(), ExitFailure> {
        Ok(self.volumes.begin_measurement(SAMPLE_INTERVAL_S)?)
    }

    pub(super) fn end(&self) -> Result<DeviceActivity, ExitFailure> {
        let devices = self.volumes.end_measurement()?;
        devices.into_iter().next().ok_or_else(|| ExitFailure::Failed("the daemon serves no device".into()))
    }

    /// The certificate that a cell with this activity would have, of the last measurement. `None` where there were too
    /// few requests.
    pub(super) fn certificate(&self, activity: &DeviceActivity, time: f64) -> Option<Certificate> {
        certificate::certify_devices(std::slice::from_ref(activity), &self.path_records(), time)
    }

    /// Programs' waits on the way, in the last measurement.
    fn path_records(&self) -> Vec<PathRecord> {
        self.volumes.path_records()
    }

    pub(super) fn detach(mut self) -> Result<(), ExitFailure> {
        Ok(self.volumes.detach()?)
    }
}

pub(super) const SEED: u64 = 1;
const HONEST_BYTES: u64 = 2 << 30;

/// Published figures of flash are those of a drive that has been written over; other media have no such state.
pub(super) fn initial() -> InitialState {
    InitialState::Steady
}

/// The best way of attaching a bare device here.
fn best() -> Result<BlockAttachment, ExitFailure> {
    use underlay_attach::daemon::DaemonTransport;
    let uring = BlockAttachment::new()?.with_transport(DaemonTransport::Uring);
    if uring.probe().is_ok() {
        Ok(uring)
    } else {
        Ok(BlockAttachment::new()?.with_transport(DaemonTransport::DevFuse))
    }
}

/// A medium by its name, or from a file.
pub(super) fn medium_of(text: &str) -> Result<CatalogueMedium, ExitFailure> {
    let path = Path::new(text);
    if text.ends_with(".toml") || text.contains('/') {
        return super::check::read(path);
    }
    catalogue::find(text).map_err(|unknown| ExitFailure::Mistake(unknown.to_string()))
}

pub(super) fn factor_of(time: f64) -> Result<f64, ExitFailure> {
    if (1.0..=1e6).contains(&time) {
        return Ok(time);
    }
    let time = crate::arguments::as_typed(time);
    Err(ExitFailure::Mistake(format!("--time is {time}: expected a factor from 1 to 1,000,000")))
}

/// This machine's good range: latencies from this many microseconds up, and this many requests a second at most.
const HONEST_US: f64 = 200.0;
const HONEST_IOPS: f64 = 25_000.0;
const SLOWEST: i32 = 14;

/// The given factor, or the smallest power of two at which this machine is fast enough for the device.
pub(super) fn factor_or_honest(requested: Option<f64>, medium: &CatalogueMedium) -> Result<f64, ExitFailure> {
    if let Some(time) = requested {
        return factor_of(time);
    }
    let (mut least_us, mut most_iops) = (f64::MAX, 1.0f64);
    for (pattern, queue_depth) in
        [(AccessPattern::RandomRead, 1), (AccessPattern::RandomWrite, 1), (AccessPattern::RandomRead, 32)]
    {
        let load =
            ClosedLoop { pattern, block_bytes: 4096, queue_depth, requests: 500, warmup: 20, seed: SEED };
        let capacity_bytes = medium.capacity_bytes().min(HONEST_BYTES);
        let found = predict::closed_loop(&mut *medium.model(capacity_bytes, SEED, initial()), &load);
        least_us = least_us.min(found.latency.quantile_us(0.5));
        most_iops = most_iops.max(found.iops);
    }
    let factors = (0..SLOWEST).map(|power| 2f64.powi(power));
    let fits = |factor: &f64| least_us * factor >= HONEST_US && most_iops / factor <= HONEST_IOPS;
    Ok(factors.into_iter().find(fits).unwrap_or(2f64.powi(SLOWEST)))
}

pub(crate) fn serve(arguments: &ServeArguments) -> Result<ExitCode, ExitFailure> {
    let medium = medium_of(&arguments.medium)?;
    let size_bytes = units::parse_bytes(&arguments.size)
        .map_err(|problem| ExitFailure::Mistake(format!("--size {}: {problem}", arguments.size)))?;
    let stop = signals::stop_flag()?;
    let registry = ResourceRegistry::open()?;
    let factor = factor_or_honest(arguments.time, &medium)?;
    let served = ServedMedium::attach(&medium, size_bytes, factor, &registry)?;
    output::print(&format!("{} {factor}", served.path().display()));
    let lines = input_lines();
    let code = loop {
        match lines.recv_timeout(STOP_INTERVAL) {
            Ok(line) => match line.trim() {
                "" => {}
                "begin" => {
                    served.begin()?;
                    output::print("begun");
                }
                "end" => {
                    let activity = served.end()?;
                    output::print(&activity_json(&activity, &served.path_records(), factor));
                }
                other => {
                    return Err(ExitFailure::Mistake(format!(
                        "'{other}' on the input: expected begin or end"
                    )));
                }
            },
            Err(RecvTimeoutError::Disconnected) => break ExitCode::SUCCESS,
            Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => {
                break ExitCode::from(INTERRUPTED);
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    };
    served.detach()?;
    Ok(code)
}

/// Lines of the standard input, read on a separate thread so that a signal is not kept waiting.
fn input_lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// The device's activity, programs' waits for it, and the certificate: as in a cell's record.
fn activity_json(activity: &DeviceActivity, paths: &[PathRecord], time: f64) -> String {
    let histogram = |histogram: &Histogram| {
        serde_json::json!({
            "summary_us": histogram.summary_us(),
            "values_ns": histogram.values_ns().collect::<Vec<_>>(),
        })
    };
    let waited = activity.delivered.as_ref().and_then(|delivered| path::waited(paths, delivered));
    let certificate = certificate::certify_devices(std::slice::from_ref(activity), paths, time);
    serde_json::json!({
        "duration_s": activity.duration_s,
        "reads": activity.totals.reads,
        "writes": activity.totals.writes,
        "modelled": activity.modelled.as_ref().map(histogram),
        "delivered": activity.delivered.as_ref().map(histogram),
        "waited": waited.as_ref().map(histogram),
        "paths": paths,
        "certificate": certificate,
    })
    .to_string()
}
