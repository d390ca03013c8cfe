//! Two runs of the same cells, A and B: which figures differ by more than chance.

use std::collections::{BTreeMap, BTreeSet};

use underlay_record::{
    BetterDirection, Cell, DisturbedBy, OfferedRate, RecordedWork, RequestWork, RunRecord,
};

use crate::cell::cost::devices_in_words;
use crate::comparison::{CellResult, RunComparison, storage_records, workload_in_words};
use crate::load::LoadedRun;
use crate::quantity;
use crate::statistics::IntervalEstimate;
use crate::statistics::multiple::holm;
use crate::statistics::ratio::EstimateRatio;

/// A difference is one when its corrected p-value is below this.
pub const SIGNIFICANCE: f64 = 0.05;

/// The compared metric of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComparedQuantity {
    /// Of a closed loop, or of a rate that was looked for.
    Throughput,
    /// With a rate, whose throughput is the rate.
    MeanLatency,
    P99Latency,
    /// Of a batch job.
    Duration,
    /// Of a benchmark of the user's.
    Own {
        name: String,
        unit: String,
        better: BetterDirection,
    },
}

impl ComparedQuantity {
    pub fn describe(&self) -> &str {
        match self {
            ComparedQuantity::Throughput => "ops/s",
            ComparedQuantity::MeanLatency => "mean",
            ComparedQuantity::P99Latency => "p99",
            ComparedQuantity::Duration => "duration",
            ComparedQuantity::Own { name, .. } => name,
        }
    }

    /// With its unit, as scripts have it.
    pub fn name(&self) -> String {
        match self {
            ComparedQuantity::Throughput => "throughput_per_s".to_owned(),
            ComparedQuantity::MeanLatency => "mean_us".to_owned(),
            ComparedQuantity::P99Latency => "p99_us".to_owned(),
            ComparedQuantity::Duration => "duration_s".to_owned(),
            ComparedQuantity::Own { name, unit, .. } => format!("{name} ({unit})"),
        }
    }

    /// A value with its unit, where the metric's name does not say it.
    pub fn value_in_words(&self, value: f64) -> String {
        match self {
            ComparedQuantity::Throughput => quantity::rate(value),
            ComparedQuantity::MeanLatency | ComparedQuantity::P99Latency => quantity::latency(value),
            ComparedQuantity::Duration => quantity::duration(value),
            ComparedQuantity::Own { unit, .. } => quantity::format_with_unit(value, unit),
        }
    }

    fn more_is_better(&self) -> bool {
        match self {
            ComparedQuantity::Throughput => true,
            ComparedQuantity::MeanLatency | ComparedQuantity::P99Latency | ComparedQuantity::Duration => {
                false
            }
            ComparedQuantity::Own { better, .. } => *better == BetterDirection::Higher,
        }
    }
}

/// The verdict on a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricChange {
    /// In B.
    Better,
    Worse,
    NoneSeen,
    /// One of the two has no known error.
    Unknown,
}

impl MetricChange {
    pub fn describe(self) -> &'static str {
        match self {
            MetricChange::Better => "B is better",
            MetricChange::Worse => "B is worse",
            MetricChange::NoneSeen => "no difference seen",
            MetricChange::Unknown => "certainty unknown",
        }
    }

    pub fn is_certain(self) -> bool {
        matches!(self, MetricChange::Better | MetricChange::Worse)
    }
}

/// One figure of a cell, in both runs.
#[derive(Clone, Debug)]
pub struct MetricPair {
    pub metric: ComparedQuantity,
    pub a: IntervalEstimate,
    pub b: IntervalEstimate,
    /// B to A, with its own 95 % interval, which knows nothing of other figures.
    pub ratio: EstimateRatio,
    /// By itself, and corrected for all figures that are compared; absent where the error of one is not known.
    pub p_value: Option<f64>,
    pub corrected: Option<f64>,
}

impl MetricPair {
    fn new(
        metric: ComparedQuantity,
        estimates: [Option<IntervalEstimate>; 2],
        repetitions: [usize; 2],
    ) -> Option<MetricPair> {
        let [a, b] = estimates;
        let (a, b) = (a?, b?);
        // Compared by repetitions, but shown as each run's own report shows them.
        let tested = [a.widen_for_repetitions(repetitions[0]), b.widen_for_repetitions(repetitions[1])];
        let ratio = EstimateRatio::new(&tested[1], &tested[0])?;
        let p_value = EstimateRatio::p_value(&tested[1], &tested[0]);
        Some(MetricPair { metric, a, b, ratio, p_value, corrected: None })
    }

    pub fn change(&self) -> MetricChange {
        match self.corrected {
            None => MetricChange::Unknown,
            Some(p) if p >= SIGNIFICANCE => MetricChange::NoneSeen,
            Some(_) if (self.ratio.value > 1.0) == self.metric.more_is_better() => MetricChange::Better,
            Some(_) => MetricChange::Worse,
        }
    }
}

/// A cell that both runs measured.
#[derive(Clone, Debug)]
pub struct AbCell {
    pub system: String,
    pub storage: String,
    /// As scripts know it: `a`.
    pub workload: String,
    /// As people read it: `A (half reads, half updates)`.
    pub workload_in_words: String,
    pub figures: Vec<MetricPair>,
    /// The certificate of one of the two is.
    pub is_doubtful: bool,
    /// The study disturbs it, in both.
    pub is_disturbed: bool,
}

/// Two runs beside each other.
#[derive(Clone, Debug)]
pub struct AbComparison {
    /// Their names, and when they began.
    pub names: [String; 2],
    pub started_at: [String; 2],
    pub cells: Vec<AbCell>,
    /// Cells that are not compared, each with the reason.
    pub left_out: Vec<String>,
    /// How the runs differ besides their figures: settings, versions, machines.
    pub differences: Vec<String>,
    /// Cautions for the reader, each a sentence.
    pub cautions: Vec<String>,
    /// A and B hold the same records, so there is nothing to compare.
    pub is_one_run: bool,
}

impl AbComparison {
    /// Compares cells of the same id. Each run comes with the name to show for it.
    pub fn new(a: (&str, &LoadedRun), b: (&str, &LoadedRun)) -> AbComparison {
        let comparisons = [RunComparison::from_loaded(a.1), RunComparison::from_loaded(b.1)];
        let mut left_out = Vec::new();
        let by_id = |comparison: &RunComparison| -> BTreeSet<String> {
            comparison.cells().map(|result| result.cell.id.clone()).collect()
        };
        let mut cells: Vec<AbCell> = Vec::new();
        for ours in comparisons[0].cells() {
            match comparisons[1].cells().find(|theirs| theirs.cell.id == ours.cell.id) {
                None => left_out.push(format!("{}: only A has it", ours.cell.id)),
                Some(theirs) => match cell(ours, theirs) {
                    Ok(cell) => cells.push(cell),
                    Err(reason) => left_out.push(format!("{}: {reason}", ours.cell.id)),
                },
            }
        }
        let only_theirs = by_id(&comparisons[1]);
        let only_theirs = only_theirs.difference(&by_id(&comparisons[0])).cloned().collect::<Vec<_>>();
        left_out.extend(only_theirs.into_iter().map(|id| format!("{id}: only B has it")));
        correct(&mut cells);
        AbComparison {
            names: [a.0.to_owned(), b.0.to_owned()],
            started_at: [a.1.run.started_at.clone(), b.1.run.started_at.clone()],
            differences: differences([a.1, b.1], &comparisons),
            cautions: cautions([a.1, b.1], &cells),
            cells,
            left_out,
            is_one_run: a.1.run == b.1.run && a.1.records == b.1.records,
        }
    }

    pub fn figures(&self) -> impl Iterator<Item = &MetricPair> {
        self.cells.iter().flat_map(|cell| &cell.figures)
    }

    /// The outcome, in a sentence.
    pub fn sentence(&self) -> String {
        if self.is_one_run {
            return "A and B are one and the same run, so nothing can differ: name two runs.".to_owned();
        }
        let all = self.figures().count();
        let cells = quantity::plural(self.cells.len(), "cell");
        if all == 0 {
            return "The two runs have no cell in common that both have measured.".to_owned();
        }
        let count = |change: MetricChange| self.figures().filter(|figure| figure.change() == change).count();
        let (better, worse, unknown) =
            (count(MetricChange::Better), count(MetricChange::Worse), count(MetricChange::Unknown));
        let unknown = match unknown {
            0 => String::new(),
            many => format!(" For {many} of them, the certainty is unknown."),
        };
        let differ = match better + worse {
            0 => "none differs by more than chance".to_owned(),
            1 => "1 differs by more than chance".to_owned(),
            many => format!("{many} differ by more than chance"),
        };
        let direction = match (better, worse) {
            (0, 0) => String::new(),
            (_, 0) => ", better in B".to_owned(),
            (0, _) => ", worse in B".to_owned(),
            (better, worse) => format!(": {better} better in B, {worse} worse"),
        };
        format!("Of {} in {cells}, {differ}{direction}.{unknown}", quantity::plural(all, "figure"))
    }
}

/// How a cell is called in a sentence or above its figures, where several systems or workloads stand together.
pub fn cell_name(cell: &AbCell, comparison: &AbComparison) -> String {
    let several = comparison.cells.iter().any(|other| other.system != cell.system);
    match several {
        true => format!("{} on {} under {}", cell.system, cell.storage, cell.workload_in_words),
        false => format!("{} under {}", cell.storage, cell.workload_in_words),
    }
}

fn cell(a: &CellResult, b: &CellResult) -> Result<AbCell, String> {
    if let Some(difference) = asked_differently(a.cell, b.cell) {
        return Err(format!("B asked for something else: {difference}"));
    }
    let mut figures = Vec::new();
    if let (Some(one), Some(other)) = (a.figures(), b.figures()) {
        let has_rate = a.cell.rate_per_s().is_some();
        let (metric, estimates) = if has_rate {
            (ComparedQuantity::MeanLatency, [one.mean_us, other.mean_us])
        } else {
            (ComparedQuantity::Throughput, [Some(one.throughput_per_s), Some(other.throughput_per_s)])
        };
        let repetitions = [one.repetitions, other.repetitions];
        figures.extend(MetricPair::new(metric, estimates, repetitions));
        figures.extend(MetricPair::new(
            ComparedQuantity::P99Latency,
            [one.p99_us, other.p99_us],
            repetitions,
        ));
    }
    if let (Some(one), Some(other)) = (a.job(), b.job()) {
        let (durations, repetitions) =
            ([Some(one.duration_s), Some(other.duration_s)], [one.repetitions, other.repetitions]);
        figures.extend(MetricPair::new(ComparedQuantity::Duration, durations, repetitions));
    }
    if let (Some(one), Some(other)) = (a.benchmark(), b.benchmark()) {
        for ours in &one.figures {
            // One of the same name in another unit is another figure.
            let Some(theirs) = other.named(&ours.name).filter(|theirs| theirs.unit == ours.unit) else {
                continue;
            };
            let metric = ComparedQuantity::Own {
                name: ours.name.clone(),
                unit: ours.unit.clone(),
                better: ours.better,
            };
            let (values, repetitions) =
                ([Some(ours.value), Some(theirs.value)], [one.repetitions, other.repetitions]);
            figures.extend(MetricPair::new(metric, values, repetitions));
        }
    }
    let is_by_hand = |result: &CellResult| result.disturbed_by() == Some(DisturbedBy::Hand);
    match (is_by_hand(a), is_by_hand(b)) {
        (true, true) => return Err("both runs were disturbed by hand in it".to_owned()),
        (true, false) => return Err("A was disturbed by hand in it".to_owned()),
        (false, true) => return Err("B was disturbed by hand in it".to_owned()),
        (false, false) => {}
    }
    if a.is_measured() && b.is_measured() && a.disturbed_by() != b.disturbed_by() {
        let [yes, no] = if a.disturbed_by().is_some() { ["A", "B"] } else { ["B", "A"] };
        return Err(format!("the study of {yes} disturbs it, and that of {no} does not"));
    }
    if figures.is_empty() {
        return Err(match (a.is_measured(), b.is_measured()) {
            (false, false) => "neither run measured it",
            (false, true) => "A did not measure it",
            (true, false) => "B did not measure it",
            (true, true) => "the two have no figure in common",
        }
        .to_owned());
    }
    Ok(AbCell {
        system: a.cell.system.clone(),
        storage: a.cell.storage.clone(),
        workload: a.cell.label(),
        workload_in_words: workload_in_words(a.cell),
        figures,
        is_doubtful: a.is_doubtful() || b.is_doubtful(),
        is_disturbed: a.disturbed_by().is_some(),
    })
}

/// The difference in the work of two cells with the same id.
fn asked_differently(a: &Cell, b: &Cell) -> Option<&'static str> {
    if a.servers != b.servers {
        return Some("other threads or servers");
    }
    let (one, other) = match (&a.work, &b.work) {
        (RecordedWork::Requests(one), RecordedWork::Requests(other)) => (one, other),
        (RecordedWork::Job(one), RecordedWork::Job(other)) if one == other => {
            return (a.data_bytes != b.data_bytes).then_some("another amount of data");
        }
        (RecordedWork::Benchmark(one), RecordedWork::Benchmark(other)) => {
            let checks =
                [(one == other, "another command"), (a.data_bytes == b.data_bytes, "another amount of data")];
            return checks.into_iter().find(|(same, _)| !same).map(|(_, difference)| difference);
        }
        _ => return Some("another mix or distribution"),
    };
    let latency_limit = |requests: &RequestWork| match &requests.rate {
        OfferedRate::Highest { within: limit } => Some(limit.clone()),
        _ => None,
    };
    let checks = [
        (one.mix == other.mix && one.distribution == other.distribution, "another mix or distribution"),
        (one.threads == other.threads, "other threads or servers"),
        (latency_limit(one) == latency_limit(other), "a rate within another latency"),
        (one.rate == other.rate, "another rate"),
        (one.records == other.records && a.data_bytes == b.data_bytes, "another amount of data"),
        (one.compacts_at == other.compacts_at, "a compaction at another time"),
    ];
    checks.into_iter().find(|(same, _)| !same).map(|(_, difference)| difference)
}

/// Corrects the p-values of all cells for their number.
fn correct(cells: &mut [AbCell]) {
    let mut tested: Vec<&mut MetricPair> = cells.iter_mut().flat_map(|cell| &mut cell.figures).collect();
    tested.retain(|figure| figure.p_value.is_some());
    let p_values: Vec<f64> = tested.iter().filter_map(|figure| figure.p_value).collect();
    for (figure, corrected) in tested.into_iter().zip(holm(&p_values)) {
        figure.corrected = Some(corrected);
    }
}

fn cautions(runs: [&LoadedRun; 2], cells: &[AbCell]) -> Vec<String> {
    let mut found = Vec::new();
    for (name, loaded) in ["A", "B"].into_iter().zip(runs) {
        found.extend(loaded.doubts().into_iter().map(|doubt| format!("{name}: {doubt}")));
        if loaded.run.repetitions < 2 && loaded.finished() > 0 {
            found.push(format!(
                "Each cell of {name} ran once: its intervals leave out how much runs differ, so a difference may be \
                 no more than that. Try: `repetitions = 3` under [run]"
            ));
        }
        if loaded.is_partial() {
            let (finished, planned) = (loaded.finished(), loaded.planned());
            found.push(format!(
                "{name} is not complete: {finished} of {planned} repetitions have been recorded"
            ));
        }
    }
    let disturbed = cells.iter().filter(|cell| cell.is_disturbed).count();
    if disturbed > 0 {
        let cells = quantity::plural(disturbed, "cell");
        found.push(format!(
            "{cells} disturbed by the study, in both runs: the figures include its faults and events"
        ));
    }
    let doubtful = cells.iter().filter(|cell| cell.is_doubtful).count();
    if doubtful > 0 {
        let cells = quantity::plural(doubtful, "cell");
        found.push(format!("A certificate calls {cells} doubtful: the report of each run says why"));
    }
    found
}

/// How the runs differ besides their figures, `rocksdb, compression: none in A, lz4 in B`.
fn differences(runs: [&LoadedRun; 2], comparisons: &[RunComparison; 2]) -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |label: &str, [a, b]: [String; 2]| {
        if a != b {
            found.push(format!("{label}: {a} in A, {b} in B"));
        }
    };
    let [a, b] = runs.map(|loaded| &loaded.run);
    let both = |pick: &dyn Fn(&underlay_record::RunHeader) -> String| [pick(a), pick(b)];
    add("study", both(&|run| run.name.clone()));
    add("form", both(&|run| if run.short { "short" } else { "whole" }.to_owned()));
    add("slow motion", both(&|run| quantity::number(run.scale.time, 1)));
    add("data scale", both(&|run| quantity::number(run.scale.data, 1)));
    add("warm-up", both(&|run| quantity::duration(run.warmup_wall_s)));
    add("measured time", both(&|run| quantity::duration(run.duration_wall_s)));
    add(
        "machine",
        both(&|run| {
            let machine = &run.machine;
            let memory = quantity::memory(machine.memory_bytes as f64);
            format!(
                "{}, {} cores ({}), {memory}, {}",
                machine.hostname, machine.cores, machine.cpu, machine.kernel
            )
        }),
    );
    let none = || "none".to_owned();
    // Of both, since a program that one run lacks is a difference, too.
    let names: BTreeSet<&String> = a.versions.keys().chain(b.versions.keys()).collect();
    for name in names {
        add(name, both(&|run| run.versions.get(name).cloned().unwrap_or_else(none)));
    }
    let storages = comparisons.each_ref().map(storage_records);
    for (name, ours) in &storages[0] {
        // What only one run has is listed with the cells that are not compared.
        if let Some(theirs) = storages[1].get(name) {
            let in_words = |storage: &underlay_record::StorageRecord| {
                format!("{}, {}, {}", devices_in_words(storage), storage.layout, storage.attachment)
            };
            add(&format!("storage {name}"), [in_words(ours), in_words(theirs)]);
        }
    }
    let settings = runs.map(settings);
    for (name, ours) in &settings[0] {
        if let Some(theirs) = settings[1].get(name) {
            let keys: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
            for key in keys {
                let value = |run_settings: &BTreeMap<String, String>| {
                    run_settings.get(key).cloned().unwrap_or_else(none)
                };
                add(&format!("{name}, {key}"), [value(ours), value(theirs)]);
            }
        }
    }
    found
}

/// Each system's settings, by its first record; where storages have settings of their own, under both names.
fn settings(loaded: &LoadedRun) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut found: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let records: Vec<&RunRecord> =
        loaded.records.iter().filter(|record| !record.settings.is_empty()).collect();
    let systems: BTreeSet<&str> = records.iter().map(|record| record.cell.system.as_str()).collect();
    for system in systems {
        let own: Vec<&&RunRecord> = records.iter().filter(|record| record.cell.system == system).collect();
        let first = &own[0].settings;
        for record in &own {
            let name = match own.iter().all(|other| other.settings == *first) {
                true => system.to_owned(),
                false => format!("{system} on {}", record.cell.storage),
            };
            found.entry(name).or_insert_with(|| record.settings.clone());
        }
    }
    found
}
