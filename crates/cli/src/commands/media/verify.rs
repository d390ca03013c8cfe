//! `underlay media verify`: is the device that this machine delivers the one that was modelled, and is that the one
//! that was published or measured?

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Serialize;
use underlay_attach::ResourceRegistry;
use underlay_attach::probe::ProbedDisk;
use underlay_record::Certificate;
use underlay_report::quantity;
use underlay_storage::catalogue::CatalogueMedium;
use underlay_storage::fit::{
    self, DeviceProfile, DistributionDistance, LoadSample, ProbeLoad, ProbeTarget as _, TargetError,
    VirtualTarget,
};
use underlay_storage::predict::AccessPattern;

use super::figures::{self, FigureCheck, TOLERANCE};
use super::serve::{self, ServedMedium};
use crate::arguments::VerifyArguments;
use crate::exit_codes::{ExitFailure, INCOMPLETE, INTERRUPTED};
use crate::{output, signals};

/// How far delivered latency may be from the modelled one.
const MEAN_TOLERANCE: f64 = 0.05;
const P99_TOLERANCE: f64 = 0.15;
/// Where fewer requests were answered, chance alone moves a 99th percentile further than that.
const ENOUGH_FOR_P99: u64 = 1000;
/// And a mean, of a disk above all: its tolerance is widened by the noise of so few.
const NOISE_SIGMAS: f64 = 3.0;
const DEVICE_BYTES: u64 = 2 << 30;
const CELL: Duration = Duration::from_millis(1500);
const WARMUP: Duration = Duration::from_millis(500);
/// A load as modelled, as delivered here, and as measured of the real device where that is known.
#[derive(Serialize)]
struct VerifyRow {
    load: &'static str,
    block_bytes: u64,
    queue_depth: usize,
    requests: u64,
    modelled_mean_us: f64,
    delivered_mean_us: f64,
    modelled_p99_us: f64,
    delivered_p99_us: f64,
    /// Of the delivered latencies from the modelled ones.
    distance: DistributionDistance,
    /// Mean latency that was measured of the real device.
    measured_mean_us: Option<f64>,
    mean_allowed: f64,
    /// Failed checks of the certificate that a study's cell would have: `device latency p99: modelled ...`. It is of
    /// all requests, those of the warm-up too.
    doubts: Vec<String>,
    off: bool,
}

/// A load on the device of this machine, and its certificate; `None` where it had too few requests for one.
struct DeliveredLoad {
    sample: LoadSample,
    certificate: Option<Certificate>,
}

pub(crate) fn verify(arguments: &VerifyArguments) -> Result<ExitCode, ExitFailure> {
    let medium = serve::medium_of(&arguments.medium)?;
    let profile = profile_beside(&arguments.medium)?;
    let loads = loads();
    let capacity_bytes = DEVICE_BYTES.min(medium.capacity_bytes());
    // Virtual time needs no device here, so this machine's speed does not matter.
    if arguments.is_virtual {
        return Ok(published_only(&medium, arguments.json));
    }
    let factor = serve::factor_or_honest(arguments.time, &medium)?;
    let stop = signals::stop_flag()?;
    let modelled = run_virtual(&medium, capacity_bytes, &loads)?;
    let delivered = match run_here(&medium, capacity_bytes, factor, &loads, &stop) {
        Ok(delivered) => delivered,
        Err(VerifyEnding::Stopped) => return Ok(ExitCode::from(INTERRUPTED)),
        Err(VerifyEnding::Failed(failure)) => return Err(failure),
    };
    let rows: Vec<VerifyRow> = loads
        .iter()
        .zip(modelled.iter().zip(&delivered))
        .filter_map(|(load, (modelled, delivered))| row(load, modelled, delivered, profile.as_ref()))
        .collect();
    let comparisons = figures::compare(&medium);
    let off = rows.iter().filter(|row| row.off).count();
    let missed = comparisons.iter().filter(|comparison| comparison.is_off()).count();
    if arguments.json {
        let whole = serde_json::json!({
            "medium": medium.name, "time": factor, "published": as_json(&comparisons), "loads": rows,
            "off": off + missed,
        });
        output::print(&serde_json::to_string_pretty(&whole).expect("plain data"));
    } else {
        if !comparisons.is_empty() {
            output::print(&format!("{}: what was published, and the model in virtual time\n", medium.name));
            output::print(&figures::table(&comparisons));
        }
        output::print(&format!(
            "\nThe model, and a device of {} on this machine{}\n",
            quantity::bytes(capacity_bytes as f64),
            slow(factor)
        ));
        output::print(&table(&rows, profile.is_some()));
        for row in &rows {
            let load = format!("{} {} KiB QD{}", row.load, row.block_bytes >> 10, row.queue_depth);
            row.doubts.iter().for_each(|doubt| output::print(&format!("doubtful: {load}: {doubt}")));
        }
        output::print(&verdict(off, missed, factor));
    }
    Ok(if off + missed > 0 { ExitCode::from(INCOMPLETE) } else { ExitCode::SUCCESS })
}

fn as_json(comparisons: &[FigureCheck<'_>]) -> Vec<serde_json::Value> {
    let one = |comparison: &FigureCheck<'_>| {
        serde_json::json!({
            "figure": comparison.published.figure.name(),
            "queue_depth": comparison.published.queue_depth,
            "block_bytes": comparison.published.block_bytes,
            "percentile": comparison.published.percentile,
            "published": comparison.published.value,
            "estimate": comparison.published.estimate,
            "modelled": comparison.modelled,
            "off": comparison.is_off(),
        })
    };
    comparisons.iter().map(one).collect()
}

/// The model's results for the usual loads, without measured rows: for scripts that choose a slow-motion factor.
fn virtual_loads(medium: &CatalogueMedium) -> Vec<serde_json::Value> {
    let capacity_bytes = DEVICE_BYTES.min(medium.capacity_bytes());
    let short: Vec<ProbeLoad> =
        loads().into_iter().map(|load| ProbeLoad { most_requests: 2_000, ..load }).collect();
    let samples = run_virtual(medium, capacity_bytes, &short).unwrap_or_default();
    let one = |(load, sample): (&ProbeLoad, &LoadSample)| {
        serde_json::json!({
            "load": load.pattern.name(), "block_bytes": load.block_bytes, "queue_depth": load.queue_depth,
            "p50_us": sample.latency.quantile_us(0.5), "iops": sample.iops(),
        })
    };
    short.iter().zip(&samples).map(one).collect()
}

fn published_only(medium: &CatalogueMedium, json: bool) -> ExitCode {
    let comparisons = figures::compare(medium);
    let missed = comparisons.iter().filter(|comparison| comparison.is_off()).count();
    if json {
        let whole = serde_json::json!({
            "medium": medium.name, "published": as_json(&comparisons), "loads": virtual_loads(medium), "off": missed,
        });
        output::print(&serde_json::to_string_pretty(&whole).expect("plain data"));
    } else if comparisons.is_empty() {
        output::print("No figures were published for it: there is nothing to compare with.");
    } else {
        output::print(&figures::table(&comparisons));
    }
    if missed > 0 { ExitCode::from(INCOMPLETE) } else { ExitCode::SUCCESS }
}

fn slow(factor: f64) -> String {
    if factor == 1.0 {
        ", at its own speed".into()
    } else {
        format!(", {factor} times slowed down and divided out")
    }
}

/// Few, and of each kind.
fn loads() -> Vec<ProbeLoad> {
    let load = |pattern, block_bytes: u64, queue_depth, seed| ProbeLoad {
        pattern,
        block_bytes,
        queue_depth,
        first_byte: 0,
        span_bytes: DEVICE_BYTES,
        flush_every: 0,
        warmup: WARMUP,
        duration: CELL,
        most_requests: u64::MAX,
        seed,
    };
    vec![
        load(AccessPattern::RandomRead, 4096, 1, 1),
        load(AccessPattern::RandomRead, 4096, 8, 2),
        load(AccessPattern::RandomRead, 4096, 32, 3),
        load(AccessPattern::RandomRead, 64 << 10, 4, 4),
        load(AccessPattern::SequentialRead, 128 << 10, 4, 5),
        load(AccessPattern::SequentialWrite, 128 << 10, 4, 6),
        load(AccessPattern::RandomWrite, 4096, 1, 7),
        load(AccessPattern::RandomWrite, 4096, 16, 8),
    ]
}

/// The same loads by the model's own clock.
fn run_virtual(
    medium: &CatalogueMedium,
    capacity_bytes: u64,
    loads: &[ProbeLoad],
) -> Result<Vec<LoadSample>, ExitFailure> {
    let mut target = VirtualTarget::new(medium.model(capacity_bytes, serve::SEED, serve::initial()));
    let run = |load: &ProbeLoad| {
        let span_bytes = capacity_bytes / load.block_bytes * load.block_bytes;
        let load = ProbeLoad { span_bytes, ..*load };
        target.run(&load).map_err(|error| ExitFailure::Failed(error.to_string()))
    };
    loads.iter().map(run).collect()
}

enum VerifyEnding {
    Stopped,
    Failed(ExitFailure),
}

impl From<ExitFailure> for VerifyEnding {
    fn from(failure: ExitFailure) -> VerifyEnding {
        VerifyEnding::Failed(failure)
    }
}

fn run_here(
    medium: &CatalogueMedium,
    capacity_bytes: u64,
    factor: f64,
    loads: &[ProbeLoad],
    stop: &Arc<AtomicBool>,
) -> Result<Vec<DeliveredLoad>, VerifyEnding> {
    let registry = ResourceRegistry::open().map_err(ExitFailure::from)?;
    let served = ServedMedium::attach(medium, capacity_bytes, factor, &registry)?;
    let path = served.path();
    let file = open_direct(&path)?;
    let mut disk =
        ProbedDisk::new(file, path.display().to_string(), served.capacity_bytes, true, Arc::clone(stop));
    disk.slow_down(factor);
    let mut samples = Vec::new();
    for load in loads {
        let span_bytes = served.capacity_bytes / load.block_bytes * load.block_bytes;
        served.begin()?;
        match disk.run(&ProbeLoad { span_bytes, ..*load }) {
            Ok(sample) => {
                let certificate = served.certificate(&served.end()?, factor);
                samples.push(DeliveredLoad { sample, certificate });
            }
            Err(TargetError::Stopped) => return Err(VerifyEnding::Stopped),
            Err(error) => return Err(VerifyEnding::Failed(ExitFailure::Failed(error.to_string()))),
        }
    }
    drop(disk);
    served.detach()?;
    Ok(samples)
}

fn open_direct(path: &Path) -> Result<std::fs::File, ExitFailure> {
    use std::os::unix::fs::OpenOptionsExt as _;
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        // Past the page cache, which would answer in the device's place.
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .map_err(|error| ExitFailure::Failed(format!("could not open {}: {error}", path.display())))
}

fn row(
    load: &ProbeLoad,
    modelled: &LoadSample,
    delivered: &DeliveredLoad,
    profile: Option<&DeviceProfile>,
) -> Option<VerifyRow> {
    let DeliveredLoad { sample: delivered, certificate } = delivered;
    let doubts: Vec<String> = certificate
        .iter()
        .flat_map(Certificate::failed)
        .map(|check| format!("{}: {}", check.name, check.finding))
        .collect();
    let distance = fit::distance(&modelled.latency, &delivered.latency)?;
    let requests = modelled.requests.min(delivered.requests);
    let mean_allowed = MEAN_TOLERANCE + noise(modelled) + noise(delivered);
    let p99_off = requests >= ENOUGH_FOR_P99 && distance.p99.abs() > P99_TOLERANCE;
    let measured = profile.and_then(|profile| {
        profile.points.iter().find(|point| {
            point.pattern == load.pattern
                && point.block_bytes == load.block_bytes
                && point.queue_depth == load.queue_depth
        })
    });
    Some(VerifyRow {
        load: load.pattern.name(),
        block_bytes: load.block_bytes,
        queue_depth: load.queue_depth,
        requests: delivered.requests,
        modelled_mean_us: modelled.latency.mean_us(),
        delivered_mean_us: delivered.latency.mean_us(),
        modelled_p99_us: modelled.latency.quantile_us(0.99),
        delivered_p99_us: delivered.latency.quantile_us(0.99),
        distance,
        measured_mean_us: measured.map(|point| point.latency.mean_us()),
        mean_allowed,
        off: distance.mean.abs() > mean_allowed || p99_off || !doubts.is_empty(),
        doubts,
    })
}

/// How far chance moves the mean of a sample of this size, as a share of it.
fn noise(sample: &LoadSample) -> f64 {
    let mean_us = sample.latency.mean_us();
    if sample.requests < 2 || mean_us == 0.0 {
        return 1.0;
    }
    let count = sample.requests as f64;
    let squares: f64 = sample
        .latency
        .values_ns()
        .map(|(ns, count)| (ns as f64 / 1e3 - mean_us).powi(2) * count as f64)
        .sum();
    // Standard errors of the mean, over the mean.
    NOISE_SIGMAS * (squares / count).sqrt() / count.sqrt() / mean_us
}

/// The points that `measure` left beside a measured medium's file.
fn profile_beside(text: &str) -> Result<Option<DeviceProfile>, ExitFailure> {
    let path = Path::new(text).with_extension("points.json");
    if !text.ends_with(".toml") || !path.exists() {
        return Ok(None);
    }
    let unreadable =
        |reason: String| ExitFailure::Mistake(format!("cannot read {}: {reason}", path.display()));
    let content = underlay_files::read_text(&path, super::check::BYTES_MAX)
        .map_err(|error| unreadable(error.to_string()))?;
    serde_json::from_str(&content).map(Some).map_err(|error| unreadable(error.to_string()))
}

fn table(rows: &[VerifyRow], with_measured: bool) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let mut header = vec!["load", "block", "depth", "modelled", "delivered", "mean", "p99", "demerit", ""];
    if with_measured {
        header.insert(3, "measured");
    }
    table.set_header(header);
    for row in rows {
        let percent = |error: f64| format!("{:+.1} %", error * 100.0);
        let mut cells = vec![
            Cell::new(row.load),
            right(format!("{} KiB", row.block_bytes >> 10)),
            right(row.queue_depth.to_string()),
        ];
        if with_measured {
            cells.push(right(row.measured_mean_us.map_or_else(|| "-".into(), quantity::latency)));
        }
        let p99 = if row.requests >= ENOUGH_FOR_P99 { percent(row.distance.p99) } else { "-".into() };
        cells.extend([
            right(quantity::latency(row.modelled_mean_us)),
            right(quantity::latency(row.delivered_mean_us)),
            right(percent(row.distance.mean)),
            right(p99),
            right(format!("{:.1} %", row.distance.demerit * 100.0)),
            Cell::new(if row.off { "!" } else { "" }),
        ]);
        table.add_row(cells);
    }
    output::table(&table)
}

fn verdict(off: usize, missed: usize, factor: f64) -> String {
    let allowed = format!(
        "Allowed: published figures within {:.0} %; delivered mean within {:.0} % and the noise of so few requests, p99 within {:.0} %; and what the certificate of a study's cell allows.",
        TOLERANCE * 100.0,
        MEAN_TOLERANCE * 100.0,
        P99_TOLERANCE * 100.0
    );
    let mut text = format!("\n{allowed}\n");
    if off + missed == 0 {
        text += "All are within that.";
    }
    if missed > 0 {
        text += &format!("{missed} published figures are missed: calibrate the medium's [model]. ");
    }
    if off > 0 {
        text += &format!(
            "{off} loads are delivered too far off (marked !): this machine is too busy or too slow for the device; try --time {}.",
            factor * 2.0
        );
    }
    text
}
