//! The matrix as a table: systems and workloads down, storages across.

pub mod ab;
pub mod background;
pub mod background_load;
pub(crate) mod changing;
pub mod inputs;
pub(crate) mod network;
pub(crate) mod node_events;
pub mod prices;
pub mod rates;
pub(crate) mod search;
mod shares;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use underlay_record::{
    Cell, CellStatus, Certificate, CertificateVerdict, CheckId, DisturbedBy, Histogram, MeasuredWindow,
    RecordedWork, RunHeader, RunRecord, ShortenedAmount, StorageRecord, WarmUp, disturbance,
};

use crate::cell::benchmark::BenchmarkFigures;
use crate::cell::completed::worst_verdict;
use crate::cell::cost::StorageCost;
use crate::cell::jobs::{self, JobFigures};
use crate::load::LoadedRun;
use crate::statistics::bracket::bracket_error;
use crate::statistics::operation::{OperationFigures, group_by_operation};
use crate::statistics::quantile::{merged, quantile_us};
use crate::statistics::ratio::EstimateRatio;
use crate::statistics::throughput::{mean_latency_us, throughput};
use crate::statistics::{IntervalEstimate, StandardError, trend};

/// Everything that a report says of a run's cells.
#[derive(Debug)]
pub struct RunComparison<'a> {
    run: &'a RunHeader,
    /// The storage that ratios are against.
    pub baseline: &'a str,
    /// The baseline first, the others as the study names them.
    pub storages: Vec<&'a str>,
    pub systems: Vec<&'a str>,
    /// By system, mix, distribution, data, threads and rate.
    pub rows: Vec<ComparisonRow<'a>>,
    /// The short form's data in place of the study's, where it is one amount.
    pub shortened: Option<ShortenedAmount>,
    /// Conclusions that the uncertainty of the inputs can turn.
    pub turns: Vec<inputs::ConclusionReversal>,
}

/// One system under one workload, on every storage.
#[derive(Debug)]
pub struct ComparisonRow<'a> {
    pub system: &'a str,
    /// A cell of the row: its storage is that of the first one planned and means nothing here.
    pub cell: &'a Cell,
    label: String,
    label_in_mix: String,
    /// In the order of [`RunComparison::storages`]; absent where the study has no such cell.
    pub cells: Vec<Option<CellResult<'a>>>,
}

/// One cell over its repetitions.
#[derive(Debug)]
pub struct CellResult<'a> {
    pub cell: &'a Cell,
    /// How many repetitions the study asks for.
    pub planned: usize,
    /// Those on record, regardless of their outcome, by repetition; without those that are [left
    /// out](CellResult::disturbed).
    pub records: Vec<&'a RunRecord>,
    /// Completed repetitions that are left out, because somebody disturbed them by hand.
    pub disturbed: Vec<&'a RunRecord>,
    pub outcome: CellOutcome,
    /// Unknown inputs can reverse its conclusion: see [`RunComparison::turns`].
    pub can_turn: bool,
}

/// A cell's outcome.
#[derive(Debug)]
pub enum CellOutcome {
    /// At least one repetition of operations completed.
    Measured(Box<RowMetrics>),
    /// At least one repetition of a batch job completed.
    Job(Box<JobFigures>),
    /// At least one repetition of a benchmark of the user's completed.
    Benchmark(Box<BenchmarkFigures>),
    Failed {
        reason: String,
    },
    Unavailable {
        missing: String,
        remedy: String,
    },
    /// All that completed was disturbed by hand, and shows what was done to it.
    Disturbed {
        reason: String,
    },
    /// The user skipped it.
    Skipped {
        /// An earlier failure, if there was one.
        failure: Option<String>,
    },
    /// No repetition is on record yet.
    Pending,
}

/// The figures of a cell, over all completed repetitions, in modelled time.
#[derive(Debug)]
pub struct RowMetrics {
    /// Completed repetitions.
    pub repetitions: usize,
    pub throughput_per_s: IntervalEstimate,
    pub mean_us: Option<IntervalEstimate>,
    pub p50_us: Option<IntervalEstimate>,
    pub p99_us: Option<IntervalEstimate>,
    pub p999_us: Option<IntervalEstimate>,
    /// By the kind of operation: `read`, `update`.
    pub operations: BTreeMap<String, OperationFigures>,
    /// Throughput to that of the baseline in the same row; absent on the baseline itself, and where it has none.
    pub ratio: Option<EstimateRatio>,
    pub latency: Histogram,
    /// The worst of the repetitions; absent when none carries a certificate.
    pub verdict: Option<CertificateVerdict>,
    pub cost: Option<StorageCost>,
    /// The largest change of throughput within a repetition's window, where it was not steady: a share of the mean.
    pub trend: Option<f64>,
    /// The longest warm-up that reached into what was measured.
    pub warm_up: Option<WarmUp>,
}

impl ComparisonRow<'_> {
    /// The workload's name, as the study's tables have it.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The workload's name under a heading that names its mix: `uniform, 256 GB` of `a, uniform, 256 GB`, and nothing
    /// of `a`.
    pub fn label_in_mix(&self) -> &str {
        &self.label_in_mix
    }

    /// The same where several workloads of the mix stand together and each needs a name.
    pub fn name_in_mix(&self) -> &str {
        match self.label_in_mix() {
            "" => self.label(),
            label => label,
        }
    }

    pub fn figures(&self, storage_index: usize) -> Option<&RowMetrics> {
        self.cells.get(storage_index)?.as_ref()?.figures()
    }

    pub fn job(&self, storage_index: usize) -> Option<&JobFigures> {
        self.cells.get(storage_index)?.as_ref()?.job()
    }

    pub fn benchmark(&self, storage_index: usize) -> Option<&BenchmarkFigures> {
        self.cells.get(storage_index)?.as_ref()?.benchmark()
    }

    pub fn is_job(&self) -> bool {
        self.cell.is_job()
    }

    pub fn is_benchmark(&self) -> bool {
        self.cell.is_benchmark()
    }

    /// Whether its throughput tells what a storage can give, beside rows of closed loops or without any: see
    /// [`RunComparison::unthrottled`].
    pub(crate) fn tells_throughput(&self, has_closed: bool) -> bool {
        let is_telling = self.cell.is_unthrottled() || !has_closed;
        self.is_operations() && self.cell.compacts_at().is_none() && is_telling
    }

    /// Whether what was measured of it on this storage was all disturbed by hand, and is left out.
    pub(crate) fn is_disturbed_by_hand(&self, storage_index: usize) -> bool {
        let result = self.cells.get(storage_index).and_then(Option::as_ref);
        result.is_some_and(|result| matches!(result.outcome, CellOutcome::Disturbed { .. }))
    }

    /// Whether a repetition of it was found to have worked beside the storage under test.
    pub(crate) fn is_beside_storage(&self) -> bool {
        let records = self.cells.iter().flatten().flat_map(|cell| &cell.records);
        let mut failed =
            records.filter_map(|record| record.certificate.as_ref()).flat_map(Certificate::failed);
        failed.any(|check| check.id == Some(CheckId::StorageUsed))
    }

    /// Whether it has a throughput and latencies of ours.
    pub fn is_operations(&self) -> bool {
        self.cell.requests().is_some()
    }
}

impl<'a> CellResult<'a> {
    pub fn figures(&self) -> Option<&RowMetrics> {
        match &self.outcome {
            CellOutcome::Measured(figures) => Some(figures),
            _ => None,
        }
    }

    /// The figures of a batch job.
    pub fn job(&self) -> Option<&JobFigures> {
        match &self.outcome {
            CellOutcome::Job(figures) => Some(figures),
            _ => None,
        }
    }

    /// The figures of a benchmark of the user's.
    pub fn benchmark(&self) -> Option<&BenchmarkFigures> {
        match &self.outcome {
            CellOutcome::Benchmark(figures) => Some(figures),
            _ => None,
        }
    }

    /// Whether a repetition completed, regardless of its kind.
    pub fn is_measured(&self) -> bool {
        matches!(self.outcome, CellOutcome::Measured(_) | CellOutcome::Job(_) | CellOutcome::Benchmark(_))
    }

    pub fn verdict(&self) -> Option<CertificateVerdict> {
        match &self.outcome {
            CellOutcome::Measured(figures) => figures.verdict,
            CellOutcome::Job(figures) => figures.verdict,
            CellOutcome::Benchmark(figures) => figures.verdict,
            CellOutcome::Disturbed { .. } => Some(CertificateVerdict::Disturbed),
            _ => None,
        }
    }

    /// The records of completed repetitions, regardless of their kind.
    pub fn completed(&self) -> impl Iterator<Item = &'a RunRecord> + '_ {
        let is_complete = |record: &&RunRecord| {
            let has_figures = record.measured.is_some() || record.job.is_some() || record.benchmark.is_some();
            record.status == CellStatus::Completed && has_figures
        };
        self.records.iter().copied().filter(is_complete)
    }

    /// The same, as functions over several records take them.
    pub fn completed_records(&self) -> Vec<&'a RunRecord> {
        self.completed().collect()
    }

    /// Completed repetitions' measurements.
    pub fn measured(&self) -> Vec<&'a MeasuredWindow> {
        completed(&self.records)
    }

    pub fn certificates(&self) -> impl Iterator<Item = &'a Certificate> + '_ {
        self.records.iter().filter_map(|record| record.certificate.as_ref())
    }

    /// Whether a check failed of what its figures are made of, also where the study disturbed it.
    pub fn is_doubtful(&self) -> bool {
        self.is_measured() && self.completed().any(|record| record.is_doubtful())
    }

    /// Who disturbed the repetitions that the cell shows; `None` where nobody did, even if others were left out.
    pub fn disturbed_by(&self) -> Option<DisturbedBy> {
        match self.outcome {
            CellOutcome::Disturbed { .. } => Some(DisturbedBy::Hand),
            _ => self.completed().filter_map(|record| record.disturbed_by()).max(),
        }
    }

    /// The repetitions to draw over time: measured ones, or those disturbed by hand where there is nothing else.
    pub fn drawn(&self) -> Vec<&'a RunRecord> {
        let completed = self.completed_records();
        if completed.is_empty() { self.disturbed.clone() } else { completed }
    }

    /// The cell's storage, by its first record.
    pub fn storage(&self) -> Option<&'a StorageRecord> {
        self.records.iter().chain(&self.disturbed).next().map(|record| &record.storage)
    }
}

fn completed<'a>(records: &[&'a RunRecord]) -> Vec<&'a MeasuredWindow> {
    records
        .iter()
        .filter(|record| record.status == CellStatus::Completed)
        .filter_map(|record| record.measured.as_ref())
        .collect()
}

impl<'a> RunComparison<'a> {
    pub fn from_loaded(loaded: &'a LoadedRun) -> RunComparison<'a> {
        let run = &loaded.run;
        // Records count even when the plan doesn't name them, so that nothing measured goes unshown.
        let cells: Vec<&Cell> = run
            .plan
            .iter()
            .map(|planned| &planned.cell)
            .chain(loaded.records.iter().map(|r| &r.cell))
            .collect();
        let mut storages = sort_as_in_study(cells.iter().map(|cell| cell.storage.as_str()), &run.storages);
        storages.sort_by_key(|name| *name != run.baseline);
        let systems = sort_as_in_study(cells.iter().map(|cell| cell.system.as_str()), &run.systems);

        let mut rows: Vec<ComparisonRow> = Vec::new();
        for cell in &cells {
            if !rows.iter().any(|row| is_same_row(row.cell, cell)) {
                let (label, label_in_mix) = (cell.label(), cell.label_in_mix());
                rows.push(ComparisonRow {
                    system: &cell.system,
                    cell,
                    label,
                    label_in_mix,
                    cells: Vec::new(),
                });
            }
        }
        let system_index = |name: &str| systems.iter().position(|system| *system == name);
        rows.sort_by(|a, b| {
            let by_workload = match (kind(a), kind(b)) {
                // A job finds what earlier ones made: the plan's order is theirs.
                (TableKind::Job, TableKind::Job) => {
                    let place = |cell: &Cell| cells.iter().position(|one| one.work == cell.work);
                    place(a.cell).cmp(&place(b.cell)).then(a.cell.data_bytes.cmp(&b.cell.data_bytes))
                }
                (a_kind, b_kind) => a_kind.cmp(&b_kind).then_with(|| compare_workloads(a, b)),
            };
            system_index(a.system).cmp(&system_index(b.system)).then(by_workload)
        });
        for row in &mut rows {
            row.cells = storages.iter().map(|storage| result(loaded, row.cell, storage)).collect();
            add_ratios(row, storages.iter().position(|name| *name == run.baseline));
        }
        let (baseline, shortened) = (run.baseline.as_str(), run.shortened);
        let mut comparison =
            RunComparison { run, baseline, storages, systems, rows, shortened, turns: Vec::new() };
        comparison.turns = inputs::turns(&comparison);
        for turn in &comparison.turns {
            if let Some(Some(result)) = comparison.rows[turn.row].cells.get_mut(turn.storage) {
                result.can_turn = true;
            }
        }
        comparison
    }

    /// The title of the system with this name.
    pub fn system_title<'s>(&'s self, name: &'s str) -> &'s str {
        self.run.system_title(name)
    }

    /// Every cell that the study has.
    pub fn cells(&self) -> impl Iterator<Item = &CellResult<'a>> {
        self.rows.iter().flat_map(|row| row.cells.iter().flatten())
    }

    /// All rows in groups of one system and mix, in order.
    pub fn group_by_mix(&self) -> Vec<(&'a str, &'a str, Vec<&ComparisonRow<'a>>)> {
        group_by_mix(self.rows.iter())
    }

    /// The rows of operations, which have a throughput and latencies.
    pub fn operations(&self) -> impl Iterator<Item = &ComparisonRow<'a>> {
        self.rows.iter().filter(|row| row.is_operations())
    }

    /// The rows of batch jobs, which have a duration.
    pub fn jobs(&self) -> impl Iterator<Item = &ComparisonRow<'a>> {
        self.rows.iter().filter(|row| row.is_job())
    }

    /// The rows of benchmarks of the user's, which have the figures that the study names.
    pub fn benchmarks(&self) -> impl Iterator<Item = &ComparisonRow<'a>> {
        self.rows.iter().filter(|row| row.is_benchmark())
    }

    /// The rows whose throughput tells what a storage can give: an offered rate caps it, so where a system has closed
    /// loops it is those, and every row of it where not. A forced compaction costs more than users see.
    pub fn unthrottled(&self) -> impl Iterator<Item = &ComparisonRow<'a>> {
        let has_closed =
            |system: &str| self.rows.iter().any(|row| row.system == system && row.cell.is_unthrottled());
        self.operations().filter(move |row| row.tells_throughput(has_closed(row.system)))
    }

    /// Which storage ratios are against; absent when no cell runs on it.
    pub fn baseline_index(&self) -> Option<usize> {
        self.storages.iter().position(|name| *name == self.baseline)
    }
}

/// Rows in groups of one system and mix, in order.
pub fn group_by_mix<'a, 'c>(
    rows: impl Iterator<Item = &'c ComparisonRow<'a>>,
) -> Vec<(&'a str, &'a str, Vec<&'c ComparisonRow<'a>>)> {
    let mut groups: Vec<(&'a str, &'a str, Vec<&'c ComparisonRow<'a>>)> = Vec::new();
    for row in rows {
        match groups.last_mut() {
            Some((system, mix, rows)) if *system == row.system && *mix == row.cell.mix_or_job() => {
                rows.push(row)
            }
            _ => groups.push((row.system, row.cell.mix_or_job(), vec![row])),
        }
    }
    groups
}

fn is_same_row(a: &Cell, b: &Cell) -> bool {
    a.system == b.system
        && a.workload == b.workload
        && a.servers == b.servers
        && a.data_bytes == b.data_bytes
        && a.work == b.work
}

/// `load` first, `delete` last, the mixes by letter between.
fn mix_order(mix: &str) -> (u8, &str) {
    match mix {
        "load" => (0, mix),
        "delete" => (2, mix),
        _ => (1, mix),
    }
}

/// In the order of the tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TableKind {
    Operations,
    Job,
    Benchmark,
}

fn kind(row: &ComparisonRow) -> TableKind {
    match &row.cell.work {
        RecordedWork::Requests(_) => TableKind::Operations,
        RecordedWork::Job(_) => TableKind::Job,
        RecordedWork::Benchmark(_) => TableKind::Benchmark,
    }
}

fn compare_workloads(a: &ComparisonRow, b: &ComparisonRow) -> Ordering {
    fn key<'r>(row: &'r ComparisonRow) -> ((u8, &'r str), &'r str, u64, u32) {
        let requests = row.cell.requests();
        let distribution = requests.map_or("", |requests| &requests.distribution);
        let threads = requests.map_or(0, |requests| requests.threads);
        (mix_order(row.cell.mix_or_job()), distribution, row.cell.data_bytes, threads)
    }
    // An unthrottled load lies above every offered rate.
    let rate = |row: &ComparisonRow| row.cell.rate_per_s().unwrap_or(f64::INFINITY);
    key(a).cmp(&key(b)).then_with(|| rate(a).total_cmp(&rate(b))).then_with(|| a.label.cmp(&b.label))
}

/// Names without repeats, in the order of the study. The plan's order is random; a name that the study lacks keeps to
/// the end.
fn sort_as_in_study<'a>(names: impl Iterator<Item = &'a str>, study: &[String]) -> Vec<&'a str> {
    let mut unique: Vec<&str> = names.collect();
    unique.sort_unstable();
    unique.dedup();
    unique.sort_by_key(|name| study.iter().position(|other| other == name).unwrap_or(usize::MAX));
    unique
}

fn result<'a>(loaded: &'a LoadedRun, like: &Cell, storage: &str) -> Option<CellResult<'a>> {
    let is_ours = |cell: &Cell| cell.storage == storage && is_same_row(cell, like);
    let planned: Vec<&Cell> =
        loaded.run.plan.iter().map(|planned| &planned.cell).filter(|cell| is_ours(cell)).collect();
    let mut records: Vec<&RunRecord> = loaded.records.iter().filter(|record| is_ours(&record.cell)).collect();
    records.sort_by_key(|record| record.repetition);
    let cell = planned.first().copied().or_else(|| records.first().map(|record| &record.cell))?;
    let planned = planned.len().max(records.len());
    let (records, disturbed) = disturbance::leave_out_by_hand(&records);
    let outcome = outcome(&records, &disturbed);
    Some(CellResult { cell, planned, records, disturbed, outcome, can_turn: false })
}

fn outcome(records: &[&RunRecord], disturbed: &[&RunRecord]) -> CellOutcome {
    if let Some(figures) = figures(records) {
        return CellOutcome::Measured(Box::new(figures));
    }
    if let Some(figures) = JobFigures::from_records(records) {
        return CellOutcome::Job(Box::new(figures));
    }
    if let Some(figures) = BenchmarkFigures::from_records(records) {
        return CellOutcome::Benchmark(Box::new(figures));
    }
    if let Some(record) = disturbed.first() {
        return CellOutcome::Disturbed { reason: record.disturbances_in_words() };
    }
    let mut outcome = CellOutcome::Pending;
    for record in records {
        match &record.status {
            CellStatus::Failed { reason } => return CellOutcome::Failed { reason: reason.clone() },
            CellStatus::Unavailable { missing, remedy } => {
                outcome = CellOutcome::Unavailable { missing: missing.clone(), remedy: remedy.clone() };
            }
            CellStatus::Skipped { failure } => {
                if matches!(outcome, CellOutcome::Pending) {
                    outcome = CellOutcome::Skipped { failure: failure.clone() };
                }
            }
            CellStatus::Completed => {
                let reason = match (&record.job, &record.benchmark) {
                    (Some(_), _) => "the job's record has no duration",
                    (_, Some(_)) => "the benchmark's record has no figure",
                    (None, None) => "it completed without a single operation",
                };
                outcome = CellOutcome::Failed { reason: reason.to_owned() };
            }
        }
    }
    outcome
}

fn figures(records: &[&RunRecord]) -> Option<RowMetrics> {
    let measured = completed(records);
    let throughput_per_s = throughput_of(records, &measured)?;
    let latency = merged(&measured);
    let quantile = |share| quantile_us(&measured, &latency, share);
    let trend = measured
        .iter()
        .filter_map(|one| {
            let samples: Vec<f64> = one.series.iter().map(|point| point.throughput_per_s).collect();
            trend::change(&samples)
        })
        .max_by(|a, b| a.abs().total_cmp(&b.abs()));
    let verdict = worst_verdict(records);
    let (p50_us, p99_us, p999_us) = (quantile(0.5), quantile(0.99), quantile(0.999));
    Some(RowMetrics {
        repetitions: measured.len(),
        throughput_per_s,
        mean_us: mean_latency_us(&measured),
        p50_us,
        p99_us,
        p999_us,
        operations: group_by_operation(&measured),
        ratio: None,
        verdict,
        cost: records.first().and_then(|record| StorageCost::from_storage(&record.storage)),
        trend,
        warm_up: WarmUp::longest(records),
        latency,
    })
}

/// A cell's throughput, with the error that its kind of rate has.
fn throughput_of(records: &[&RunRecord], measured: &[&MeasuredWindow]) -> Option<IntervalEstimate> {
    let estimate = throughput(measured)?;
    let is_changing = records.iter().any(|record| !record.cell.rate_parts().is_empty());
    // An open loop reaches its rate to the last digit, which says nothing of how well that was found; and that a
    // changing rate changes is no noise.
    let within_error = bracket_error(records);
    if within_error.is_none() && !is_changing {
        return Some(estimate);
    }
    let rates: Vec<f64> = measured.iter().map(|one| one.throughput_per_s).collect();
    Some(IntervalEstimate::combine(estimate.value, within_error, StandardError::between(&rates)))
}

fn add_ratios(row: &mut ComparisonRow, baseline_index: Option<usize>) {
    let Some(index) = baseline_index else { return };
    if let Some(baseline) = row.job(index).map(|job| job.duration_s) {
        for (position, result) in row.cells.iter_mut().enumerate() {
            let Some(CellResult { outcome: CellOutcome::Job(job), .. }) = result else { continue };
            if position != index {
                // The shorter the faster: the baseline's duration stands above.
                job.performance = EstimateRatio::new(&baseline, &job.duration_s);
            }
        }
    }
    if let Some(baseline) = row.benchmark(index).cloned() {
        for (position, result) in row.cells.iter_mut().enumerate() {
            let Some(CellResult { outcome: CellOutcome::Benchmark(figures), .. }) = result else { continue };
            if position != index {
                figures.compare_with(&baseline);
            }
        }
    }
    let Some(baseline) = row.figures(index).map(|figures| figures.throughput_per_s) else { return };
    for (position, result) in row.cells.iter_mut().enumerate() {
        let Some(CellResult { outcome: CellOutcome::Measured(figures), .. }) = result else { continue };
        if position != index {
            figures.ratio = EstimateRatio::new(&figures.throughput_per_s, &baseline);
        }
    }
}

/// A storage of the run with the first record made on it.
pub fn storage_records<'a>(comparison: &RunComparison<'a>) -> BTreeMap<&'a str, &'a StorageRecord> {
    comparison
        .cells()
        .filter_map(|result| result.storage().map(|storage| (result.cell.storage.as_str(), storage)))
        .collect()
}

/// A cell's work, as a heading.
pub fn work_title(cell: &Cell) -> String {
    match &cell.work {
        RecordedWork::Benchmark(benchmark) => format!("Benchmark {}", benchmark.name),
        RecordedWork::Requests(_) | RecordedWork::Job(_) => mix_title(cell.mix_or_job()),
    }
}

/// A cell's workload in a sentence, for those who don't know YCSB's letters: `A (half reads, half updates), zipfian,
/// 256 GB`.
pub fn workload_in_words(cell: &Cell) -> String {
    let label = cell.label();
    let mix = cell.mix_or_job();
    if cell.requests().is_none() {
        return label;
    }
    let prefix = match cell.named.workload {
        true => format!("{} {mix}", cell.workload),
        false => mix.to_owned(),
    };
    let rest = label.strip_prefix(prefix.as_str()).unwrap_or_default();
    match cell.named.workload {
        true => format!("{} {}{rest}", cell.workload, mix_in_words(mix)),
        false => format!("{}{rest}", mix_in_words(mix)),
    }
}

/// A mix in a sentence: `A (half reads, half updates)`, `updates only`.
fn mix_in_words(mix: &str) -> String {
    let title = mix_title(mix);
    if let Some((letter, proportions)) =
        title.strip_prefix("Workload ").and_then(|rest| rest.split_once(": "))
    {
        return format!("{letter} ({proportions})");
    }
    match (mix, shares::title(mix)) {
        ("load" | "delete", _) => title.replacen(": ", " (", 1).to_lowercase() + ")",
        (_, Some(shares)) => shares.to_lowercase(),
        _ => mix.to_owned(),
    }
}

/// A mix as a heading: `Workload A: half reads, half updates`.
pub fn mix_title(mix: &str) -> String {
    // The proportions are those of YCSB's core workload files.
    match mix {
        "load" => "Load: insert every record".to_owned(),
        "a" => "Workload A: half reads, half updates".to_owned(),
        "b" => "Workload B: 95 % reads, 5 % updates".to_owned(),
        "c" => "Workload C: reads only".to_owned(),
        "d" => "Workload D: reads of the latest, 5 % inserts".to_owned(),
        "e" => "Workload E: short scans, 5 % inserts".to_owned(),
        "f" => "Workload F: half reads, half read-modify-writes".to_owned(),
        "delete" => "Delete: remove every record".to_owned(),
        other => shares::title(other).unwrap_or_else(|| jobs::title(other)),
    }
}
