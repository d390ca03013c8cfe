//! Cells of a benchmark in which every operation is one request to a device, such as fio's: its own description states
//! the requests, and its metrics are the result.

use std::sync::OnceLock;

use underlay_record::RunRecord;

use super::{CellMetric, CellMetrics, CellPoint, MeasuredCell};
use crate::demand::{BackgroundDemand, MixDemand, OperationClass};
use crate::layers;
use crate::refusal::PredictionRefusal;

/// The kind of each of its operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceJob {
    /// A write that waits for its flush; otherwise a read that bypasses memory.
    pub writes: bool,
    /// Each request follows the previous one on the device.
    pub sequential: bool,
    pub block_bytes: f64,
}

/// The distribution of requests that no memory answers: every size reads the same.
pub const PAST_MEMORY: &str = "past memory";

/// A repetition: values in microseconds, and per operation.
#[derive(Clone, Copy, Debug)]
struct RawJobRepetition {
    operations: f64,
    throughput_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us: f64,
    busy: f64,
    due_cpus: Option<f64>,
}

impl MeasuredCell {
    /// A cell from the records of a benchmark's repetitions, in the form for [`MeasuredCell::new`].
    ///
    /// # Errors
    /// When none of them has metrics, they are not sound enough to use, or one has impossible metrics.
    pub fn from_job(
        point: CellPoint,
        records: &[&RunRecord],
        job: DeviceJob,
    ) -> Result<MeasuredCell, PredictionRefusal> {
        if !layers::cache_devices(&point.volumes).is_empty() {
            let problem = "a cache device that fio fills while it is measured".to_owned();
            return Err(PredictionRefusal::Layer { what: problem });
        }
        let raws: Vec<RawJobRepetition> = super::sound(records)?
            .into_iter()
            .map(|record| RawJobRepetition::from_record(record, job))
            .collect::<Result<_, _>>()?;
        if raws.is_empty() {
            let problem = format!("{} has no repetition that was measured", point.id);
            return Err(PredictionRefusal::Record { what: problem });
        }
        let figure = |value_of: &dyn Fn(&RawJobRepetition) -> f64| {
            CellMetric::from_values(&raws.iter().map(value_of).collect::<Vec<_>>())
        };
        let mean = |value_of: fn(&RawJobRepetition) -> f64| {
            raws.iter().map(value_of).sum::<f64>() / raws.len() as f64
        };
        let at_once = f64::from(point.threads);
        let class = OperationClass {
            name: if job.writes { "write" } else { "read" }.to_owned(),
            share: 1.0,
            cpu_us: mean(|raw| raw.cpu_us),
            reads: if job.writes { 0.0 } else { 1.0 },
            read_bytes: job.block_bytes,
            is_sequential: job.sequential,
            writes: job.writes,
            commits: job.writes,
        };
        Ok(MeasuredCell {
            repetitions: raws.len(),
            operations: raws.iter().map(|raw| raw.operations).sum(),
            figures: CellMetrics {
                throughput_per_s: figure(&|raw| raw.throughput_per_s),
                // This many are always in flight (Little's law): fio's own mean leaves out the time between them.
                mean_us: figure(&|raw| at_once * 1e6 / raw.throughput_per_s),
                p50_us: figure(&|raw| raw.p50_us),
                p99_us: figure(&|raw| raw.p99_us),
            },
            device_busy: mean(|raw| raw.busy),
            demand: MixDemand {
                classes: vec![class],
                background: BackgroundDemand::default(),
                commit_bytes: job.writes.then_some(job.block_bytes),
            },
            all_reads: if job.writes { 0.0 } else { 1.0 },
            cores_at_once: raws[0].due_cpus.map(|cpus| (cpus - 0.01).ceil().clamp(1.0, 4096.0) as u32),
            cached: 0.0,
            point,
            own: OnceLock::new(),
        })
    }
}

impl RawJobRepetition {
    fn from_record(record: &RunRecord, job: DeviceJob) -> Result<RawJobRepetition, PredictionRefusal> {
        let refused =
            |problem: String| PredictionRefusal::Record { what: format!("{}: {problem}", record.cell.id) };
        let Some(benchmark) = &record.benchmark else {
            return Err(refused("it has no figures of a benchmark".to_owned()));
        };
        let figure = |name: &str, unit: &str, most: f64| {
            let found = benchmark.figures.iter().find(|one| one.name == name && one.unit == unit);
            let value = found.map_or(f64::NAN, |one| one.value);
            match value > 0.0 && value <= most {
                true => Ok(value),
                false => Err(refused(format!("it has no figure `{name}` in {unit}, or one that no run has"))),
            }
        };
        let us = |name: &str| figure(name, "ns", 3.6e12).map(|ns| ns / 1e3);
        let (kind, latency) = match job.writes {
            true => ("write", ["write p50", "write p99", "sync p50", "sync p99"]),
            false => ("read", ["read p50", "read p99", "", ""]),
        };
        let throughput_per_s = figure(&format!("{kind} operations"), "operations/s", 1e12)?;
        // A write and then its flush, which takes almost all of the time.
        let (mut p50_us, mut p99_us) = (us(latency[0])?, us(latency[1])?);
        if job.writes {
            p50_us += us(latency[2])?;
            p99_us += us(latency[3])?;
            flushed_each(record, job).map_err(refused)?;
        }
        if !(benchmark.duration_s > 0.0 && benchmark.duration_s < 1e9 && benchmark.wall_s < 1e9) {
            return Err(refused("its duration is one that no run has".to_owned()));
        }
        let operations = throughput_per_s * benchmark.duration_s;
        let cpu_us = record
            .cpu
            .as_ref()
            .map_or(0.0, |cpu| cpu.used_at_reference_cpus() * benchmark.wall_s * 1e6 / operations);
        let busy = record
            .devices
            .iter()
            .map(|device| device.totals.busy_us / 1e6 / device.duration_s.max(1e-9))
            .fold(0.0, f64::max);
        if !(0.0..=1e9).contains(&cpu_us) || !(0.0..=1e3).contains(&busy) {
            return Err(refused("it has figures that no run has".to_owned()));
        }
        Ok(RawJobRepetition {
            operations,
            throughput_per_s,
            p50_us,
            p99_us,
            cpu_us,
            busy,
            due_cpus: record.cpu.as_ref().map(|cpu| cpu.due_cpus).filter(|cpus| (0.0..=1e6).contains(cpus)),
        })
    }
}

/// Whether the devices had one write and one flush per operation, without a file system's log.
fn flushed_each(record: &RunRecord, job: DeviceJob) -> Result<(), String> {
    let sum = |count_of: fn(&underlay_record::DeviceTotals) -> u64| {
        record.devices.iter().map(|device| count_of(&device.totals) as f64).sum::<f64>()
    };
    let (writes, bytes) = (sum(|totals| totals.writes), sum(|totals| totals.write_bytes));
    let flushes = sum(|totals| totals.flushes);
    let is_near = |value: f64, expected: f64| (value / expected.max(1.0) - 1.0).abs() < 0.1;
    match is_near(bytes, writes * job.block_bytes) && (record.devices.len() > 1 || is_near(flushes, writes)) {
        true => Ok(()),
        false => Err(format!(
            "its devices had {writes} writes of {:.0} bytes and {flushes} flushes, where the job makes one flush after each write of {} bytes",
            bytes / writes.max(1.0),
            job.block_bytes
        )),
    }
}
