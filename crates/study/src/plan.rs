//! From a study to the cells that run: the full product of its lists, in a balanced random order.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use underlay_record::{BenchmarkWork, Cell, CellLabels, JobWork, PlannedCell, RecordedWork, RequestWork};
use underlay_systems::system::System;
use underlay_workload::OperationMix;

use crate::spec::{
    BenchmarkSpec, ChangingRate, DataSize, FindRate, JobSpec, StorageSpec, Study, StudyRate, SystemSpec,
    WorkloadSpec,
};

/// A cell with the parts of the study that it consists of.
#[derive(Clone, Debug)]
pub struct CellParts<'a> {
    pub cell: Cell,
    pub system: &'a SystemSpec,
    pub storage: &'a StorageSpec,
    pub workload: &'a WorkloadSpec,
    pub asked: CellWork<'a>,
}

/// A cell's work: requests to a data set, a batch job, or a command of the user.
#[derive(Clone, Copy, Debug)]
pub enum CellWork<'a> {
    Requests(&'a DataSize),
    Job(&'a JobSpec),
    Benchmark(&'a BenchmarkSpec),
}

/// Every combination of the study once, in file order.
///
/// `load` and `delete` go through all keys in order, so they are not multiplied by the distributions; their
/// cells say `sequential`. `records` and `data_bytes` of a cell are unscaled.
pub fn expand(study: &Study) -> Vec<Cell> {
    entries(study).into_iter().map(|entry| entry.cell).collect()
}

/// How long it takes in wall time to measure all cells once, including warm-up and the shortest searches. The duration
/// of batch jobs is unknown, so they do not count.
pub fn measuring_wall(study: &Study) -> Duration {
    let each = study.run.warmup + study.run.duration;
    let points = study.workloads.iter().flat_map(points_of);
    let wall_of = |point: WorkloadPoint<'_>| match point.find_rate() {
        Some(wanted) => each + wanted.shortest(study.run.duration, study.scale.time),
        None => each,
    };
    let benchmarks = study.workloads.iter().filter(|workload| workload.benchmark.is_some()).count();
    // Most commands get their running time from {warmup_s} and {duration_s}.
    let of_benchmarks = each * u32::try_from(benchmarks).unwrap_or(u32::MAX);
    let once: Duration = points.map(wall_of).sum::<Duration>() + of_benchmarks;
    let times = study.systems.len() * study.storages.len();
    once * u32::try_from(times).unwrap_or(u32::MAX)
}

/// The cells to run, in order. Each repetition is a round over all cells in its own shuffle, so that a run that is cut
/// short has measured every cell about equally often. Batch jobs that [run together](groups) stay together, in their
/// system's own order. The same study always gives the same order.
pub fn order(study: &Study) -> Vec<PlannedCell> {
    order_of(study, study.run.repetitions)
}

/// The order for another number of repetitions; earlier repetitions keep their order.
pub(crate) fn order_of(study: &Study, repetitions: u32) -> Vec<PlannedCell> {
    let units = units(study);
    let mut planned = Vec::new();
    for repetition in 1..=repetitions {
        // One random stream per round: adding repetitions does not change the order of the earlier ones. 2^64 over the
        // golden ratio spreads neighbouring numbers over all bits.
        let seed = study.run.seed ^ u64::from(repetition).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut round = units.clone();
        round.shuffle(&mut Pcg64::seed_from_u64(seed));
        planned.extend(round.into_iter().flatten().map(|cell| {
            let file = record_file(&cell, repetition);
            PlannedCell { cell, repetition, file }
        }));
    }
    planned
}

/// The ranges of a plan that run on one started system. Each cell of requests runs by itself. The batch jobs of one
/// system, storage configuration, workload and repetition run together, since a job may read what an earlier one wrote.
pub fn groups(planned: &[PlannedCell]) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    for (position, one) in planned.iter().enumerate() {
        let belongs = |group: &Range<usize>| {
            let first = &planned[group.start];
            one.cell.is_job()
                && first.cell.is_job()
                && first.repetition == one.repetition
                && group_key(&first.cell) == group_key(&one.cell)
        };
        match groups.last_mut() {
            Some(group) if belongs(group) => group.end = position + 1,
            _ => groups.push(position..position + 1),
        }
    }
    groups
}

/// The key that batch jobs share if they run together.
fn group_key(cell: &Cell) -> (&str, &str, &str) {
    (&cell.system, &cell.storage, &cell.workload)
}

/// Whether two plans run the same cells in the same order. Their names in tables do not matter.
pub fn is_same(a: &[PlannedCell], b: &[PlannedCell]) -> bool {
    let is_same = |a: &PlannedCell, b: &PlannedCell| {
        let identity =
            |planned: &PlannedCell| (planned.repetition, planned.file.clone(), planned.cell.servers);
        identity(a) == identity(b)
            && a.cell.id == b.cell.id
            && a.cell.work == b.cell.work
            && a.cell.data_bytes == b.cell.data_bytes
    };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
}

/// The study's cells in [`groups`].
fn units(study: &Study) -> Vec<Vec<Cell>> {
    let mut units: Vec<Vec<Cell>> = Vec::new();
    for cell in expand(study) {
        match units.last_mut() {
            Some(unit) if cell.is_job() && unit[0].is_job() && group_key(&unit[0]) == group_key(&cell) => {
                unit.push(cell);
            }
            _ => units.push(vec![cell]),
        }
    }
    for unit in units.iter_mut().filter(|unit| unit.len() > 1) {
        let kind = study.systems.iter().find(|system| system.name == unit[0].system);
        let system = kind.and_then(|system| underlay_systems::find(&system.kind));
        let jobs = system.map_or(&[][..], |system| system.capabilities().jobs);
        unit.sort_by_key(|cell| jobs.iter().position(|&(job, _)| job == cell.mix_or_job()));
    }
    units
}

/// Whether the system loads its data on each storage configuration. A single directory then does not hold all files, so
/// they could not be copied from one storage configuration to another.
pub fn is_loaded_on_its_storage(system: &dyn System, storage: &StorageSpec) -> bool {
    system.capabilities().spreads_data || storage.nodes > 1
}

/// Names a loaded data set: cells with the same key can start from copies of one.
///
/// It depends on everything that shapes the files: the system, its settings and memory, the records that one server
/// stores on this machine, their shape and properties, and the seed. The files do not depend on the storage
/// configuration, so only settings that apply to all of it count. Lower-case letters, digits and dashes.
pub fn dataset_key(study: &Study, cell: &Cell) -> String {
    if let Some(entry) = entries(study).iter().find(|entry| entry.cell.id == cell.id) {
        return dataset_key_of(study, entry);
    }
    // Not a cell of this study, so it shares nothing that is known.
    let records = study.records_here(cell.requests().map_or(0, |requests| requests.records));
    named_key(cell, records, &format!("{} {records} {}", cell.id, study.run.seed))
}

/// The same for an entry of the study's matrix.
pub fn dataset_key_of(study: &Study, entry: &CellParts<'_>) -> String {
    let CellParts { cell, system, storage, workload, .. } = entry;
    if let CellWork::Benchmark(benchmark) = entry.asked {
        return command_key(study, entry, benchmark);
    }
    // Every server holds the same number, so one set serves all.
    let records = cell.requests().map_or(0, |requests| requests.records);
    let records = study.records_here(records / u64::from(system.servers));
    let parts = format!(
        "{} {} {} {:?} {} {} {} {:?} {} {:?}",
        system.kind,
        study.budget_here(system),
        system.nodes,
        storage.settings_of(system),
        records,
        workload.fields,
        workload.field_bytes,
        workload.properties,
        study.run.seed,
        workload.visibility.as_ref().map(|visibility| &visibility.expression)
    );
    named_key(cell, records, &parts)
}

/// The key for a program that commands load: everything that they can know of the cell.
fn command_key(study: &Study, entry: &CellParts<'_>, benchmark: &BenchmarkSpec) -> String {
    let CellParts { cell, system, storage, .. } = entry;
    let data_bytes = study.bytes_here(benchmark.data_bytes);
    let parts = format!(
        "{} {} {:?} {:?} {data_bytes} {} {}",
        system.name,
        study.budget_here(system),
        system.roles,
        storage.settings_of(system),
        study.run.seed,
        storage.name,
    );
    named_key(cell, data_bytes, &parts)
}

fn named_key(cell: &Cell, records: u64, parts: &str) -> String {
    format!("{}-{records}-{:016x}", slug(&cell.system), fnv1a(parts.as_bytes()))
}

/// Like [`expand`], with each cell's origin in the study.
pub fn entries(study: &Study) -> Vec<CellParts<'_>> {
    let points: Vec<WorkloadPoint<'_>> = study.workloads.iter().flat_map(points_of).collect();
    let varying = VaryingParts::among(&points);
    let labels: BTreeSet<String> = points.iter().map(|point| varying.cell(point, study).label()).collect();
    // Workloads that differ only in the shape of their records are told apart by their names.
    let varying = VaryingParts { workload: labels.len() < points.len(), ..varying };
    let mut entries = Vec::with_capacity(points.len() * study.systems.len() * study.storages.len());
    for system in &study.systems {
        for storage in &study.storages {
            for point in &points {
                let cell = Cell {
                    id: format!("{}/{}/{}", system.name, storage.name, point.id(varying.data, study.stretch)),
                    system: system.name.clone(),
                    storage: storage.name.clone(),
                    servers: system.servers,
                    ..varying.cell(point, study)
                };
                let asked = CellWork::Requests(point.size);
                entries.push(CellParts { cell, system, storage, workload: point.workload, asked });
            }
            for workload in &study.workloads {
                let Some(benchmark) = &workload.benchmark else { continue };
                let cell = benchmark_cell(system, storage, workload, benchmark);
                let asked = CellWork::Benchmark(benchmark);
                entries.push(CellParts { cell, system, storage, workload, asked });
            }
            let batches = study.workloads.iter().filter(|workload| !workload.jobs.is_empty());
            let several = batches.clone().count() > 1;
            for workload in batches {
                entries.extend(workload.jobs.iter().map(|job| CellParts {
                    cell: job_cell(system, storage, workload, job, several),
                    system,
                    storage,
                    workload,
                    asked: CellWork::Job(job),
                }));
            }
        }
    }
    entries
}

fn benchmark_cell(
    system: &SystemSpec,
    storage: &StorageSpec,
    workload: &WorkloadSpec,
    benchmark: &BenchmarkSpec,
) -> Cell {
    Cell {
        id: format!("{}/{}/{}", system.name, storage.name, workload.name),
        system: system.name.clone(),
        storage: storage.name.clone(),
        workload: workload.name.clone(),
        servers: system.servers,
        data_bytes: benchmark.data_bytes,
        data: None,
        work: RecordedWork::Benchmark(BenchmarkWork {
            name: workload.name.clone(),
            command: benchmark.plan.run.clone(),
            job: benchmark.plan.job.clone(),
        }),
        named: CellLabels::default(),
    }
}

/// `named` when the study has several workloads of jobs.
fn job_cell(
    system: &SystemSpec,
    storage: &StorageSpec,
    workload: &WorkloadSpec,
    job: &JobSpec,
    named: bool,
) -> Cell {
    Cell {
        id: format!("{}/{}/{}/{}", system.name, storage.name, workload.name, job.name),
        system: system.name.clone(),
        storage: storage.name.clone(),
        workload: workload.name.clone(),
        servers: system.servers,
        data_bytes: job.data_bytes,
        data: None,
        work: RecordedWork::Job(JobWork { name: job.name.clone() }),
        named: CellLabels { workload: named, ..CellLabels::default() },
    }
}

/// One combination of the values in a workload's lists.
struct WorkloadPoint<'a> {
    workload: &'a WorkloadSpec,
    mix: &'a str,
    distribution: &'a str,
    threads: u32,
    rate: &'a StudyRate,
    size: &'a DataSize,
}

fn points_of(workload: &WorkloadSpec) -> Vec<WorkloadPoint<'_>> {
    let mut points = Vec::new();
    for size in &workload.sizes {
        for mix in &workload.mixes {
            for distribution in distributions_of(workload, mix) {
                for &threads in &workload.threads {
                    for rate in &workload.rates {
                        points.push(WorkloadPoint { workload, mix, distribution, threads, rate, size });
                    }
                }
            }
        }
    }
    points
}

/// The study's distributions, or those of YCSB's own workload file for the mix.
fn distributions_of<'a>(workload: &'a WorkloadSpec, mix: &str) -> Vec<&'a str> {
    match OperationMix::parse(mix) {
        Ok(mix) if workload.distributions.is_empty() || mix.visits_every_record() => {
            vec![mix.default_distribution().name()]
        }
        _ => workload.distributions.iter().map(String::as_str).collect(),
    }
}

impl WorkloadPoint<'_> {
    /// The last part of a cell's id, `with_data` if the study has several sizes. The id has lengths of rates as in the
    /// study; here they are `stretch` times as long.
    fn id(&self, with_data: bool, stretch: f64) -> String {
        let mut id = format!("{}-{}-{}-{}t", self.workload.name, self.mix, self.distribution, self.threads);
        match self.rate {
            StudyRate::Max => {}
            StudyRate::Steady(rate) => id.push_str(&format!("-{rate}ps")),
            StudyRate::Changing(changing) => id.push_str(&format!("-{}", changing_id(changing, stretch))),
        }
        if with_data {
            id.push_str(&format!("-{}", slug(&size_label(self.size))));
        }
        id
    }

    fn offered(&self, study: &Study) -> underlay_record::OfferedRate {
        use underlay_record::OfferedRate as Offered;
        match (self.rate, self.find_rate()) {
            (_, Some(wanted)) => Offered::Highest { within: wanted.label() },
            (StudyRate::Max, None) => Offered::Unthrottled,
            (StudyRate::Steady(per_s), None) => Offered::Steady { per_s: *per_s },
            (StudyRate::Changing(changing), None) => Offered::Changing {
                mean_per_s: changing.mean_per_s(study.run.duration),
                parts: changing.parts(study.run.duration, study.scale.time),
                wall_s: match changing {
                    ChangingRate::Ramp { over: length, .. } | ChangingRate::Steps { each: length, .. } => {
                        length.map(|length| length.as_secs_f64())
                    }
                },
            },
        }
    }

    /// The limits of a search for the highest rate, if there is one.
    fn find_rate(&self) -> Option<&FindRate> {
        self.workload.find_rate.as_ref().filter(|_| *self.rate == StudyRate::Max)
    }
}

/// Which parts have more than one value in the study, so that a table must print them.
#[derive(Clone, Copy)]
struct VaryingParts {
    /// No other part tells two cells apart.
    workload: bool,
    distribution: bool,
    threads: bool,
    rate: bool,
    data: bool,
}

impl VaryingParts {
    fn among(points: &[WorkloadPoint<'_>]) -> Self {
        // A distribution that follows from the mix adds nothing.
        let distribution = points.iter().any(|point| {
            points.iter().any(|other| point.mix == other.mix && point.distribution != other.distribution)
        });
        let first = points.first();
        let differs = |differ: &dyn Fn(&WorkloadPoint<'_>, &WorkloadPoint<'_>) -> bool| {
            first.is_some_and(|first| points.iter().any(|point| differ(first, point)))
        };
        VaryingParts {
            workload: false,
            distribution,
            threads: differs(&|a, b| a.threads != b.threads),
            rate: differs(&|a, b| a.rate != b.rate),
            data: differs(&|a, b| size_label(a.size) != size_label(b.size)),
        }
    }

    /// A point's cell, without system and storage configuration.
    fn cell(&self, point: &WorkloadPoint<'_>, study: &Study) -> Cell {
        let ordered = OperationMix::parse(point.mix).is_ok_and(|mix| mix.visits_every_record());
        Cell {
            id: String::new(),
            system: String::new(),
            storage: String::new(),
            workload: point.workload.name.clone(),
            servers: 1,
            data_bytes: point.size.records.saturating_mul(point.workload.record_bytes()),
            data: point.size.label.clone(),
            work: RecordedWork::Requests(RequestWork {
                mix: point.mix.to_owned(),
                distribution: point.distribution.to_owned(),
                threads: point.threads,
                records: point.size.records,
                rate: point.offered(study),
                compacts_at: point.workload.compact_at,
            }),
            named: CellLabels {
                workload: self.workload,
                distribution: self.distribution && !ordered,
                data: self.data,
                threads: self.threads,
                rate: self.rate,
            },
        }
    }
}

fn size_label(size: &DataSize) -> String {
    size.label.clone().unwrap_or_else(|| format!("{} records", size.records))
}

/// `ramp-1000-50000`, or a hash if that would be too long for a file name.
fn changing_id(changing: &ChangingRate, stretch: f64) -> String {
    const MAX: usize = 40;
    let (kind, rates, length) = match changing {
        ChangingRate::Ramp { from_per_s, to_per_s, over } => ("ramp", vec![*from_per_s, *to_per_s], over),
        ChangingRate::Steps { rates_per_s, each } => ("steps", rates_per_s.clone(), each),
    };
    let mut id = kind.to_owned();
    rates.iter().for_each(|rate| id.push_str(&format!("-{rate}")));
    if let Some(length) = length {
        // To a microsecond: stretching and shrinking again may lose a nanosecond.
        let length_s = (length.as_secs_f64() / stretch * 1e6).round() / 1e6;
        id.push_str(&format!("-{length_s}s"));
    }
    if id.len() > MAX {
        id = format!("{kind}-{}-{:016x}", rates[0], fnv1a(id.as_bytes()));
    }
    id
}

fn record_file(cell: &Cell, repetition: u32) -> String {
    format!("{}.r{repetition}.json", cell.id.replace('/', "."))
}

/// Only lower-case letters, digits, dots and dashes.
fn slug(text: &str) -> String {
    text.chars()
        .map(|c| match c.to_ascii_lowercase() {
            c if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' => c,
            _ => '-',
        })
        .collect()
}

/// FNV-1a, 64 bits: stable across Rust versions, unlike the standard hasher.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
