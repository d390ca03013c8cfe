//! From a study to the cells that run: the full product of its lists, and a balanced random order of it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use underlay_record::{Cell, PlannedCell};
use underlay_workload::Mix;

use crate::spec::{
    ChangingRate, DataSize, FindRate, JobSpec, Rate, StorageSpec, Study, SystemSpec, WorkloadSpec,
};
use underlay_config::units::format_duration;

/// A cell with the parts of the study that it is made of.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    pub cell: Cell,
    pub system: &'a SystemSpec,
    pub storage: &'a StorageSpec,
    pub workload: &'a WorkloadSpec,
    pub asked: CellWork<'a>,
}

/// What a cell asks for: requests over a data set, or a batch job.
#[derive(Clone, Copy, Debug)]
pub enum CellWork<'a> {
    Requests(&'a DataSize),
    Job(&'a JobSpec),
}

/// Every combination of the study once, in the order of the file.
///
/// `load` and `delete` go through all keys in order, so they are not multiplied by the distributions; their
/// cells say `sequential`. `records` and `data_bytes` of a cell are unscaled.
pub fn expand(study: &Study) -> Vec<Cell> {
    entries(study).into_iter().map(|entry| entry.cell).collect()
}

/// How long all cells are measured once on this machine's clock, warm-up and the shortest searches included. Batch jobs take
/// as long as they take, and count for nothing.
pub fn measuring_wall(study: &Study) -> Duration {
    let each = study.run.warmup + study.run.duration;
    let points = study.workloads.iter().flat_map(points_of);
    let of = |point: Point<'_>| match point.find_rate() {
        Some(wanted) => each + wanted.shortest(study.run.duration, study.scale.time),
        None => each,
    };
    let once: Duration = points.map(of).sum();
    let times = study.systems.len() * study.storages.len();
    once * u32::try_from(times).unwrap_or(u32::MAX)
}

/// What runs, in order: each repetition is a round over all cells in a shuffle of its own, so that a run
/// that is cut short has measured every cell about equally often. Batch jobs that [run together](groups) stay together, in
/// their system's own order. The same study gives the same order.
pub fn order(study: &Study) -> Vec<PlannedCell> {
    let units = units(study);
    let mut planned = Vec::new();
    for repetition in 1..=study.run.repetitions {
        // A stream for each round: adding repetitions leaves the order of the earlier ones as it was.
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

/// The ranges of a plan that run on one started system: each cell of requests by itself, and the batch jobs of one
/// system, storage, workload and repetition together, since a job may read what an earlier one wrote.
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

/// What batch jobs that run together have in common: the system, the storage and the workload of an id.
fn group_key(cell: &Cell) -> &str {
    cell.id.strip_suffix(cell.mix.as_str()).unwrap_or(&cell.id)
}

/// The study's cells as [`groups`] have them.
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
        unit.sort_by_key(|cell| jobs.iter().position(|&(job, _)| job == cell.mix));
    }
    units
}

/// Names a loaded data set: cells with the same key can start from copies of one.
///
/// It depends on everything that shapes the files: the system, its settings and memory, the records stored
/// by a server on this machine, their shape and properties, and the seed; not on the storage, which the files don't
/// show, but for the settings that hold on it.
/// Lower-case letters, digits and dashes.
pub fn dataset_key(study: &Study, cell: &Cell) -> String {
    if let Some(entry) = entries(study).iter().find(|entry| entry.cell.id == cell.id) {
        return dataset_key_of(study, entry);
    }
    // Not a cell of this study, so nothing is known that it could share.
    let records = study.records_here(cell.records);
    named_key(cell, records, &format!("{} {records} {}", cell.id, study.run.seed))
}

/// The same of an entry of the study's matrix.
pub fn dataset_key_of(study: &Study, entry: &Entry<'_>) -> String {
    let Entry { cell, system, storage, workload, .. } = entry;
    // Every server holds as many, so one set serves all.
    let records = study.records_here(cell.records / u64::from(system.servers));
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

fn named_key(cell: &Cell, records: u64, parts: &str) -> String {
    format!("{}-{records}-{:016x}", slug(&cell.system), fnv1a(parts.as_bytes()))
}

/// As [`expand`], each cell with its origin in the study.
pub fn entries(study: &Study) -> Vec<Entry<'_>> {
    let points: Vec<Point<'_>> = study.workloads.iter().flat_map(points_of).collect();
    let varying = Varying::among(&points);
    let mut labels: Vec<String> = points.iter().map(|point| varying.label(point)).collect();
    let distinct: BTreeSet<&String> = labels.iter().collect();
    if distinct.len() < labels.len() {
        // Workloads that differ in the shape of their records only: their names tell them apart.
        for (label, point) in labels.iter_mut().zip(&points) {
            *label = format!("{} {label}", point.workload.name);
        }
    }
    let mut entries = Vec::with_capacity(points.len() * study.systems.len() * study.storages.len());
    for system in &study.systems {
        for storage in &study.storages {
            let duration = study.run.duration;
            for (point, label) in points.iter().zip(&labels) {
                let cell = Cell {
                    id: format!("{}/{}/{}", system.name, storage.name, point.id(varying.data)),
                    system: system.name.clone(),
                    storage: storage.name.clone(),
                    workload: label.clone(),
                    mix: point.mix.to_owned(),
                    distribution: point.distribution.to_owned(),
                    threads: point.threads,
                    servers: system.servers,
                    rate_per_s: match point.rate {
                        Rate::Max => None,
                        Rate::Steady(per_s) => Some(*per_s),
                        Rate::Changing(changing) => Some(changing.mean_per_s(duration)),
                    },
                    rate_parts: match point.rate {
                        Rate::Changing(changing) => changing.parts(duration, study.scale.time),
                        Rate::Max | Rate::Steady(_) => Vec::new(),
                    },
                    find_rate: point.find_rate().map(FindRate::label),
                    records: point.size.records,
                    data_bytes: point.size.records.saturating_mul(point.workload.record_bytes()),
                    compacts_at: point.workload.compact_at,
                };
                let asked = CellWork::Requests(point.size);
                entries.push(Entry { cell, system, storage, workload: point.workload, asked });
            }
            let batches = study.workloads.iter().filter(|workload| !workload.jobs.is_empty());
            let several = batches.clone().count() > 1;
            for workload in batches {
                entries.extend(workload.jobs.iter().map(|job| Entry {
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
        workload: if named { format!("{} {}", workload.name, job.name) } else { job.name.clone() },
        mix: job.name.clone(),
        distribution: String::new(),
        threads: 0,
        servers: system.servers,
        rate_per_s: None,
        rate_parts: Vec::new(),
        find_rate: None,
        records: 0,
        data_bytes: job.data_bytes,
        compacts_at: None,
    }
}

/// One point of a workload's lists.
struct Point<'a> {
    workload: &'a WorkloadSpec,
    mix: &'a str,
    distribution: &'a str,
    threads: u32,
    rate: &'a Rate,
    size: &'a DataSize,
}

fn points_of(workload: &WorkloadSpec) -> Vec<Point<'_>> {
    let mut points = Vec::new();
    for size in &workload.sizes {
        for mix in &workload.mixes {
            for distribution in distributions_of(workload, mix) {
                for &threads in &workload.threads {
                    for rate in &workload.rates {
                        points.push(Point { workload, mix, distribution, threads, rate, size });
                    }
                }
            }
        }
    }
    points
}

/// What the study asks for; else what YCSB's own workload file of the mix does.
fn distributions_of<'a>(workload: &'a WorkloadSpec, mix: &str) -> Vec<&'a str> {
    match Mix::parse(mix) {
        Ok(mix) if workload.distributions.is_empty() || mix.visits_every_record() => {
            vec![mix.default_distribution().name()]
        }
        _ => workload.distributions.iter().map(String::as_str).collect(),
    }
}

impl Point<'_> {
    /// The last part of a cell's id; `with_data` when the study has several sizes.
    fn id(&self, with_data: bool) -> String {
        let mut id = format!("{}-{}-{}-{}t", self.workload.name, self.mix, self.distribution, self.threads);
        match self.rate {
            Rate::Max => {}
            Rate::Steady(rate) => id.push_str(&format!("-{rate}ps")),
            Rate::Changing(changing) => id.push_str(&format!("-{}", changing_id(changing))),
        }
        if with_data {
            id.push_str(&format!("-{}", slug(&size_label(self.size))));
        }
        id
    }

    /// What the highest rate is to keep to, where one is looked for.
    fn find_rate(&self) -> Option<&FindRate> {
        self.workload.find_rate.as_ref().filter(|_| *self.rate == Rate::Max)
    }
}

/// Which parts take more than one value in the study, so that a table must print them.
struct Varying {
    distribution: bool,
    threads: bool,
    rate: bool,
    data: bool,
}

impl Varying {
    fn among(points: &[Point<'_>]) -> Self {
        // A distribution that follows from the mix says nothing new.
        let distribution = points.iter().any(|point| {
            points.iter().any(|other| point.mix == other.mix && point.distribution != other.distribution)
        });
        let first = points.first();
        let differs = |differ: &dyn Fn(&Point<'_>, &Point<'_>) -> bool| {
            first.is_some_and(|first| points.iter().any(|point| differ(first, point)))
        };
        Varying {
            distribution,
            threads: differs(&|a, b| a.threads != b.threads),
            rate: differs(&|a, b| a.rate != b.rate),
            data: differs(&|a, b| size_label(a.size) != size_label(b.size)),
        }
    }

    /// `a`, or `a, zipfian, 256 GB, 20,000/s`.
    fn label(&self, point: &Point<'_>) -> String {
        let mut label = point.mix.to_owned();
        let ordered = Mix::parse(point.mix).is_ok_and(|mix| mix.visits_every_record());
        if self.distribution && !ordered {
            label.push_str(&format!(", {}", point.distribution));
        }
        if self.data {
            label.push_str(&format!(", {}", size_label(point.size)));
        }
        if self.threads {
            label.push_str(&format!(", {} threads", point.threads));
        }
        match (point.rate, point.find_rate()) {
            (_, Some(wanted)) => label.push_str(&format!(", highest rate with {}", wanted.label())),
            (Rate::Changing(changing), _) => label.push_str(&format!(", {}", changing_label(changing))),
            (Rate::Steady(rate), _) if self.rate => label.push_str(&format!(", {}/s", grouped(*rate))),
            (Rate::Max, _) if self.rate => label.push_str(", unthrottled"),
            _ => {}
        }
        if point.workload.compact_at.is_some() {
            label.push_str(", compacted midway");
        }
        label
    }
}

fn size_label(size: &DataSize) -> String {
    size.label.clone().unwrap_or_else(|| format!("{} records", size.records))
}

/// `ramp 1,000/s to 50,000/s`, or `steps 500/s, 1,000/s of 10 s each`.
fn changing_label(changing: &ChangingRate) -> String {
    let length = |words: &str, length: &Option<Duration>, end: &str| {
        length.map_or(String::new(), |length| format!(" {words} {}{end}", format_duration(length)))
    };
    match changing {
        ChangingRate::Ramp { from_per_s, to_per_s, over } => {
            format!("ramp {}/s to {}/s{}", grouped(*from_per_s), grouped(*to_per_s), length("over", over, ""))
        }
        ChangingRate::Steps { rates_per_s, each } => {
            let rates: Vec<String> = rates_per_s.iter().map(|rate| format!("{}/s", grouped(*rate))).collect();
            format!("steps {}{}", rates.join(", "), length("of", each, " each"))
        }
    }
}

/// `ramp-1000-50000`, and a hash where it would be too long for a file's name.
fn changing_id(changing: &ChangingRate) -> String {
    const MAX: usize = 40;
    let (kind, rates, length) = match changing {
        ChangingRate::Ramp { from_per_s, to_per_s, over } => ("ramp", vec![*from_per_s, *to_per_s], over),
        ChangingRate::Steps { rates_per_s, each } => ("steps", rates_per_s.clone(), each),
    };
    let mut id = kind.to_owned();
    rates.iter().for_each(|rate| id.push_str(&format!("-{rate}")));
    if let Some(length) = length {
        id.push_str(&format!("-{}s", length.as_secs_f64()));
    }
    if id.len() > MAX {
        id = format!("{kind}-{}-{:016x}", rates[0], fnv1a(id.as_bytes()));
    }
    id
}

/// A rate with its thousands apart: `20,000`, `0.5`.
fn grouped(rate: f64) -> String {
    let text = rate.to_string();
    let (whole, fraction) = text.split_once('.').map_or((text.as_str(), None), |(a, b)| (a, Some(b)));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    fraction.map_or(grouped.clone(), |fraction| format!("{grouped}.{fraction}"))
}

fn record_file(cell: &Cell, repetition: u32) -> String {
    format!("{}.r{repetition}.json", cell.id.replace('/', "."))
}

/// Small letters, digits, dots and dashes only.
fn slug(text: &str) -> String {
    text.chars()
        .map(|c| match c.to_ascii_lowercase() {
            c if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' => c,
            _ => '-',
        })
        .collect()
}

/// FNV-1a, 64 bits: stable over versions of Rust, which its own hasher is not.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
