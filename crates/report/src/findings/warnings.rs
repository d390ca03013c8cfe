//! Where a run's measurement is weak, and what to try.

mod certificates;
mod cpus;
mod inputs;
mod run;

use underlay_record::{CellStatus, RunRecord};

use crate::cell::activity;
use crate::comparison::{CellOutcome, CellResult, RunComparison, search, workload_in_words};
use crate::load::LoadedRun;
use crate::quantity;
use crate::statistics::quantile::{MIN_OPERATIONS_BEYOND, is_measurable};

/// How much a warning weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WarningSeverity {
    /// Figures may be wrong: a failed check of a certificate, a broken record.
    Doubtful,
    /// A conclusion can turn with what no source gives.
    Turns,
    /// Figures are missing or less sure than they could be.
    Note,
}

/// Something that a reader of the figures must know.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReportWarning {
    pub severity: WarningSeverity,
    pub text: String,
    /// How bad it is, to be compared with the same warning about other cells; absent where one is as bad as another.
    extent: Option<f64>,
    /// The cells that it is about; none when it is about the run.
    pub cells: Vec<String>,
    /// The remedy.
    pub remedy: Option<String>,
    /// Says why a cell has no figures: a table that gives the reason beside the cell need not repeat it.
    pub is_reason: bool,
}

impl ReportWarning {
    fn new(severity: WarningSeverity, text: impl Into<String>) -> ReportWarning {
        let text = text.into();
        ReportWarning { severity, text, extent: None, cells: Vec::new(), remedy: None, is_reason: false }
    }

    fn note(text: impl Into<String>) -> ReportWarning {
        ReportWarning::new(WarningSeverity::Note, text)
    }

    fn doubtful(text: impl Into<String>) -> ReportWarning {
        ReportWarning::new(WarningSeverity::Doubtful, text)
    }

    fn with_cell(mut self, cell: &str) -> ReportWarning {
        self.cells.push(cell.to_owned());
        self
    }

    fn extent(self, extent: f64) -> ReportWarning {
        ReportWarning { extent: Some(extent.abs()), ..self }
    }

    fn remedy(self, remedy: impl Into<String>) -> ReportWarning {
        ReportWarning { remedy: Some(remedy.into()), ..self }
    }

    fn reason(self) -> ReportWarning {
        ReportWarning { is_reason: true, ..self }
    }
}

/// Share of operations answered by an error above which the reader is warned.
const TOLERATED_ERRORS: f64 = 0.001;

/// `nvme under A (half reads, half updates)`, with the system where the run has several.
pub(crate) fn cell_name(comparison: &RunComparison, result: &CellResult) -> String {
    let cell = result.cell;
    match comparison.systems.len() {
        0 | 1 => format!("{}{UNDER}{}", cell.storage, workload_in_words(cell)),
        _ => format!("{} on {}{UNDER}{}", cell.system, cell.storage, workload_in_words(cell)),
    }
}

/// Names of cells with what they have in common said once: `sata-ssd and nvme under A (half reads, half updates) and C
/// (reads only)`.
pub(crate) fn cells_in_words(cells: &[String], limit: usize) -> String {
    let mut by_workload: Vec<(&str, Vec<String>)> = Vec::new();
    for cell in cells {
        // As `cell_name` joins them; names of storages have no spaces.
        let (storage, workload) = cell.split_once(UNDER).unwrap_or((cell, ""));
        match by_workload.iter_mut().find(|(other, _)| *other == workload) {
            Some((_, storages)) => storages.push(storage.to_owned()),
            None => by_workload.push((workload, vec![storage.to_owned()])),
        }
    }
    let mut alike: Vec<(Vec<String>, Vec<String>)> = Vec::new();
    for (workload, storages) in by_workload {
        match alike.iter_mut().find(|(other, _)| *other == storages) {
            Some((_, workloads)) => workloads.push(workload.to_owned()),
            None => alike.push((storages, vec![workload.to_owned()])),
        }
    }
    let each: Vec<String> = alike
        .into_iter()
        .map(|(storages, workloads)| {
            let (storages, workloads) = (quantity::list(&storages, limit), quantity::list(&workloads, limit));
            if workloads.is_empty() { storages } else { format!("{storages}{UNDER}{workloads}") }
        })
        .collect();
    quantity::list(&each, limit)
}

const UNDER: &str = " under ";

/// Every warning of a run, the weighty ones first, equal ones of several cells as one.
pub(crate) fn collect(loaded: &LoadedRun, comparison: &RunComparison) -> Vec<ReportWarning> {
    let mut found = WarningCollector::default();
    run::about_run(loaded, comparison, &mut found);
    certificates::about_certificates(comparison, &mut found);
    inputs::about_turns(comparison, &mut found);
    for result in comparison.cells() {
        let name = cell_name(comparison, result);
        about_outcome(result, &name, &mut found);
        inputs::about_inputs(result, &name, &mut found);
        about_figures(loaded, comparison, result, &name, &mut found);
        about_warm_up(loaded, comparison, result, &name, &mut found);
        about_memory(loaded, result, &name, &mut found);
        about_search(result, &name, &mut found);
        about_job(result, &name, &mut found);
        for text in result.records.iter().flat_map(|record| &record.warnings) {
            found.add(ReportWarning::note(text).with_cell(&name));
        }
    }
    cpus::about_cpus(comparison, &mut found);
    let mut warnings = found.joined();
    warnings.sort_by_key(|warning| warning.severity);
    warnings
}

/// The remedy for a cell that somebody disturbed.
const MEASURE_AGAIN: &str = "`underlay run --resume` measures it again";
const EARLIER_OR_LONGER: &str = "begin them earlier, or measure longer, so that they meet every repetition";
const MEASURES_SKIPPED: &str = "`underlay run --resume`, which measures skipped cells";

fn about_outcome(result: &CellResult, name: &str, found: &mut WarningCollector) {
    match &result.outcome {
        CellOutcome::Failed { reason } => {
            // What a search lacked that found no rate is in its settings, and not in its record.
            let remedy =
                match search::list_searches(result).iter().any(|(_, record)| record.holds_per_s.is_none()) {
                    true => "allow more time, or lengthen `step`: lower rates need longer steps to be judged",
                    false => "read its record below `cells/`, then run the study again",
                };
            found.add(
                ReportWarning::note(format!("Failed: {reason}")).remedy(remedy).with_cell(name).reason(),
            );
        }
        CellOutcome::Unavailable { missing, remedy } => {
            found.add(
                ReportWarning::note(format!("Can't run here: {missing}"))
                    .remedy(remedy)
                    .with_cell(name)
                    .reason(),
            );
        }
        CellOutcome::Disturbed { reason } => {
            let text = format!("Disturbed by hand, and left out: {reason}");
            found.add(ReportWarning::note(text).remedy(MEASURE_AGAIN).with_cell(name).reason());
        }
        CellOutcome::Skipped { failure } => {
            let suffix = failure
                .as_ref()
                .map_or_else(String::new, |message| format!(", after it had failed: {message}"));
            let text = format!("Skipped on command{suffix}");
            found.add(ReportWarning::note(text).remedy(MEASURES_SKIPPED).with_cell(name).reason());
        }
        // That the run is not complete is said once, and not of each cell.
        CellOutcome::Pending => {}
        CellOutcome::Measured(_) | CellOutcome::Job(_) | CellOutcome::Benchmark(_) => {
            let completed = result.completed_records();
            let met = completed.iter().filter(|record| record.disturbed_by().is_some()).count();
            if met > 0 && met < completed.len() {
                let text = format!(
                    "The faults and events of the study met only {met} of {} repetitions, and the figures are of all",
                    completed.len()
                );
                found.add(ReportWarning::note(text).remedy(EARLIER_OR_LONGER).with_cell(name));
            }
            for record in &result.disturbed {
                let text = format!(
                    "Repetition {} was disturbed {} and is left out: {}",
                    record.repetition,
                    record.disturbed_by().unwrap_or_default().describe(),
                    record.disturbances_in_words()
                );
                found.add(ReportWarning::note(text).remedy(MEASURE_AGAIN).with_cell(name));
            }
            for record in &result.records {
                let number = record.repetition;
                match &record.status {
                    CellStatus::Failed { reason } => {
                        let text = format!("Repetition {number} failed and is left out: {reason}");
                        found.add(ReportWarning::note(text).with_cell(name));
                    }
                    CellStatus::Skipped { .. } => {
                        let text = format!("Repetition {number} was skipped on command");
                        found.add(ReportWarning::note(text).remedy(MEASURES_SKIPPED).with_cell(name));
                    }
                    CellStatus::Completed | CellStatus::Unavailable { .. } => {}
                }
            }
        }
    }
}

/// A job whose busiest device has less to do than this, as a share of the time, waits for something else.
const HARDLY_BUSY: f64 = 0.3;

/// Storages can only differ as far as jobs wait for them.
fn about_job(result: &CellResult, name: &str, found: &mut WarningCollector) {
    if result.job().is_none() {
        return;
    }
    let busiest = activity::group_by_device(&result.completed_records())
        .into_iter()
        .filter(|(device, _)| device.role.is_none())
        .map(|(_, one)| one.busy)
        .reduce(f64::max);
    if busiest.is_some_and(|busy| busy < HARDLY_BUSY) {
        let text = format!(
            "The busiest device worked for less than {} of the time: the job waited for something else, most likely CPU, \
             so storages hardly make a difference to it",
            quantity::percent(HARDLY_BUSY)
        );
        let remedy = "for a job that waits for storage, give each task more data, or raise `[scale] time`";
        found.add(ReportWarning::note(text).remedy(remedy).with_cell(name));
    }
}

fn about_figures(
    loaded: &LoadedRun,
    comparison: &RunComparison,
    result: &CellResult,
    name: &str,
    found: &mut WarningCollector,
) {
    let Some(figures) = result.figures() else { return };
    // A forced compaction is meant to change it, and so is a changing rate; a warm-up has its own warning.
    let is_meant = result.cell.compacts_at().is_some() || !result.cell.rate_parts().is_empty();
    let is_told = figures.warm_up.is_some_and(|warm_up| warm_up.difference.is_some());
    if let Some(change) = figures.trend.filter(|_| !is_meant && !is_told) {
        let direction = if change > 0.0 { "rose" } else { "fell" };
        let share = quantity::percent(change.abs());
        let text = format!("Not steady: throughput {direction} by {share} of its mean while it was measured");
        let remedy = "lengthen `warmup` until the time series is level";
        found.add(ReportWarning::note(text).extent(change).remedy(remedy).with_cell(name));
    }
    for (share, word) in [(0.5, "median"), (0.99, "p99"), (0.999, "p99.9")] {
        if !is_measurable(figures.latency.count(), share) {
            let text =
                format!("No {word} latency: fewer than {MIN_OPERATIONS_BEYOND} operations were slower");
            found.add(ReportWarning::note(text).remedy(longer(loaded, comparison, share)).with_cell(name));
            break;
        }
    }
    let measured = result.measured();
    let errors: u64 = measured.iter().map(|one| one.errors).sum();
    let operations = errors + measured.iter().map(|one| one.operations).sum::<u64>();
    if errors as f64 > TOLERATED_ERRORS * operations as f64 {
        let sample = measured.iter().flat_map(|one| &one.error_samples).next();
        let share = errors as f64 / (operations as f64).max(1.0);
        let suffix = sample.map_or(String::new(), |text| format!(", the first: {text}"));
        let text = format!("Errors: {} of the operations failed{suffix}", quantity::percent(share));
        let node_went = |record: &RunRecord| record.node_events.iter().any(|event| event.away_s.is_some());
        let warning = match result.completed().any(node_went) {
            // That is what was asked for.
            true => ReportWarning::note(text)
                .remedy("see how many failed while nodes were away, and how many after"),
            false => ReportWarning::doubtful(text).remedy("read the system's log of this cell"),
        };
        found.add(warning.extent(share).with_cell(name));
    }
}

/// How long cells must be measured for enough operations to lie beyond a quantile.
fn longer(loaded: &LoadedRun, comparison: &RunComparison, quantile: f64) -> String {
    let counts = comparison.cells().filter_map(|result| result.figures()).map(|one| one.latency.count());
    let fewest = counts.filter(|count| *count > 0 && !is_measurable(*count, quantile)).min();
    let factor = fewest.map(|count| MIN_OPERATIONS_BEYOND / (1.0 - quantile) / count as f64);
    let wanted_s = factor.map(|factor| to_modelled_s(loaded, loaded.run.duration_wall_s * factor));
    match wanted_s {
        Some(seconds) if seconds <= MAX_ADVISED_S => {
            format!("set `duration` to {} or more", quantity::duration(seconds))
        }
        _ => "lengthen `duration`".to_owned(),
    }
}

/// Wall time as the study would write it, rounded up: modelled time where it leaves the factor of slow motion to the
/// host.
fn to_modelled_s(loaded: &LoadedRun, wall_s: f64) -> f64 {
    let is_modelled = loaded.run.slow_motion.as_ref().is_some_and(|chosen| chosen.times_are_modelled);
    // Rounding must not turn a whole number of seconds into one more.
    match is_modelled {
        true => ((wall_s / loaded.run.scale.time - 1e-6) * 10.0).ceil() / 10.0,
        false => (wall_s - 1e-6).ceil(),
    }
}

/// Nobody measures a cell for longer.
const MAX_ADVISED_S: f64 = 24.0 * 3600.0;

/// Measurements during the warm-up belong to no steady state.
fn about_warm_up(
    loaded: &LoadedRun,
    comparison: &RunComparison,
    result: &CellResult,
    name: &str,
    found: &mut WarningCollector,
) {
    let warm_up_of = |result: &CellResult| result.figures().and_then(|figures| figures.warm_up);
    let Some(warm_up) = warm_up_of(result) else { return };
    let figure = warm_up.figure.describe();
    let Some(difference) = warm_up.difference else {
        // A change over the whole has its own warning.
        if result.figures().is_some_and(|figures| figures.trend.is_none()) {
            let text =
                format!("Not steady: {figure} still changed in the second half of the measured window");
            let remedy = "lengthen `warmup`, or `duration` if it never settles";
            found.add(ReportWarning::note(text).remedy(remedy).with_cell(name));
        }
        return;
    };
    let direction = if difference > 0.0 { "higher" } else { "lower" };
    let share = quantity::percent(difference.abs());
    let text =
        format!("Still warming up when the measurement began: {figure} was {share} {direction} at first");
    // One warm-up serves all cells.
    let lacking = comparison.cells().filter_map(warm_up_of).filter(|one| one.difference.is_some());
    let lacking_s = lacking.map(|one| one.lacking_wall_s).fold(0.0, f64::max).ceil();
    let wanted_s = to_modelled_s(loaded, loaded.run.warmup_wall_s + lacking_s);
    // The addition to the study's own figure, so that the two of the sentence agree.
    let configured_s = match loaded.run.slow_motion.as_ref().is_some_and(|chosen| chosen.times_are_modelled) {
        true => loaded.run.warmup_wall_s / loaded.run.scale.time,
        false => loaded.run.warmup_wall_s,
    };
    let more_s = ((wanted_s - configured_s) * 1000.0).round() / 1000.0;
    let remedy = format!("set `warmup = \"{wanted_s} s\"` under [run], {more_s} s more");
    found.add(ReportWarning::note(text).extent(difference).remedy(remedy).with_cell(name));
}

/// Data that fits in memory is read from there, not from the storage.
fn about_memory(loaded: &LoadedRun, result: &CellResult, name: &str, found: &mut WarningCollector) {
    let cell = result.cell;
    // Against published figures, a size that fits in memory is one of the paper's own points.
    let is_meant = loaded.run.reference.is_some()
        || cell.is_job()
        || cell.is_benchmark()
        || loaded.run.keeps_nothing(&cell.system);
    if is_meant || cell.visits_every_record() || result.figures().is_none() {
        return;
    }
    let Some(memory) = result.records.first().map(|record| &record.memory) else { return };
    // A program's own memory caches nothing.
    let to_cache = match memory.cache_bytes {
        Some(bytes) => memory.data_bytes as f64 / bytes.max(1) as f64,
        None => memory.data_to_memory,
    };
    if to_cache > 0.0 && to_cache <= 1.0 {
        let share = quantity::percent(to_cache);
        let text = format!(
            "The data fits in memory and takes {share} of it: reads come from memory, and not from the storage"
        );
        let remedy = "four times as much data as memory, or more, to see the storage";
        found.add(ReportWarning::note(text).extent(to_cache).remedy(remedy).with_cell(name));
    }
}

/// A rate that was not found as surely as it was looked for.
fn about_search(result: &CellResult, name: &str, found: &mut WarningCollector) {
    for (_, record) in search::list_searches(result) {
        // That none holds is the reason for the missing figures, and reported there.
        if record.holds_per_s.is_none() {
            continue;
        }
        if !record.is_closed {
            let text =
                "The highest rate may be higher: the search ran out of steps before it had narrowed it down";
            let remedy = "start nearer to it, with `from`, or lengthen `step`";
            found.add(ReportWarning::note(text).remedy(remedy).with_cell(name));
        } else if record.fails_per_s.is_none() {
            let text = "The highest rate may be higher: even the highest in the range holds";
            found.add(ReportWarning::note(text).remedy("raise `to`").with_cell(name));
        }
    }
}

/// Joins warnings that differ in nothing but their numbers and cells. The numbers of the worst stand for all.
#[derive(Default)]
struct WarningCollector {
    found: Vec<JoinedWarning>,
}

struct JoinedWarning {
    key: String,
    warning: ReportWarning,
    /// Whether another one was worse, or better: then it says that its numbers are the worst.
    has_others: bool,
}

impl WarningCollector {
    fn add(&mut self, warning: ReportWarning) {
        let key = match warning.is_reason {
            // The cell's own words say why it failed.
            true => warning.text.clone(),
            false => key_of(&warning.text),
        };
        self.add_by(key, warning);
    }

    /// One that is joined with nothing: the caller has joined its cells already.
    fn add_as_it_is(&mut self, warning: ReportWarning) {
        let key = format!("{} {}", self.found.len(), warning.text);
        self.found.push(JoinedWarning { key, warning, has_others: false });
    }

    /// Joins it with others of the same key.
    fn add_by(&mut self, key: String, warning: ReportWarning) {
        let Some(joined) = self.found.iter_mut().find(|other| other.key == key) else {
            self.found.push(JoinedWarning { key, warning, has_others: false });
            return;
        };
        joined.has_others |= warning.text != joined.warning.text;
        if warning.extent > joined.warning.extent {
            (joined.warning.text, joined.warning.extent) = (warning.text, warning.extent);
        }
        let cells = &mut joined.warning.cells;
        cells.extend(warning.cells.into_iter().filter(|cell| !cells.contains(cell)).collect::<Vec<_>>());
    }

    fn joined(self) -> Vec<ReportWarning> {
        let ended = |JoinedWarning { mut warning, has_others, .. }: JoinedWarning| {
            if has_others && warning.extent.is_some() {
                warning.text += ", in the worst case";
            }
            warning
        };
        self.found.into_iter().map(ended).collect()
    }
}

/// The key of warnings to join: a text without its numbers.
fn key_of(text: &str) -> String {
    // One cell may lack its p99, another only its p99.9.
    let text = text.replace("p99.9", "p-nines").replace("p99", "p-nine");
    let key: String = text.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect();
    // Numbers of different lengths and signs are still numbers.
    let key = key.replace(": -#", ": +#");
    key.split('#').filter(|part| !matches!(*part, "" | "." | ",")).collect::<Vec<_>>().join("#")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_warnings_show_the_worst_numbers() {
        let mut found = WarningCollector::default();
        for (text, extent, cell) in [
            ("device p50: modelled 36 µs, delivered 40 µs: +11.1 % (allowed: 10 %)", 0.111, "a"),
            ("device p50: modelled 36 µs, delivered 180 µs: +400.0 % (allowed: 10 %)", 4.0, "b"),
            ("device p50: modelled 36 µs, delivered 30 µs: -16.7 % (allowed: 10 %)", -0.167, "c"),
        ] {
            found.add(ReportWarning::doubtful(text).extent(extent).with_cell(cell));
        }
        let [warning] = found.joined().try_into().unwrap();
        assert_eq!(
            warning.text,
            "device p50: modelled 36 µs, delivered 180 µs: +400.0 % (allowed: 10 %), in the worst case"
        );
        assert_eq!(warning.cells, ["a", "b", "c"]);
    }

    #[test]
    fn cells_say_once_what_they_have_in_common() {
        let words = |cells: &[&str], limit| {
            let cells: Vec<String> = cells.iter().map(|cell| (*cell).to_owned()).collect();
            cells_in_words(&cells, limit)
        };
        assert_eq!(
            words(&["hdd under A", "nvme under A", "hdd under C", "nvme under C"], 9),
            "hdd and nvme under A and C"
        );
        assert_eq!(words(&["hdd under A", "nvme under C"], 9), "hdd under A and nvme under C");
        assert_eq!(
            words(&["a under x", "b under x", "c under x", "d under x"], 2),
            "a, b and 2 more under x"
        );
        assert_eq!((words(&["hdd"], 9), words(&[], 9)), ("hdd".to_owned(), String::new()));
    }

    #[test]
    fn same_cause_in_other_words_is_one_warning() {
        let mut found = WarningCollector::default();
        for (estimates, extent, cause, cell) in [
            ("19 % of device time rests on measured figures (flush_us 81 %)", 0.81, "estimates", "a"),
            ("6 % of device time rests on measured figures (page_read_us 94 %)", 0.94, "estimates", "b"),
            ("no device time rests on estimates", 0.0, "coverage", "c"),
        ] {
            found.add_by(cause.to_owned(), ReportWarning::note(estimates).extent(extent).with_cell(cell));
        }
        let [first, second] = found.joined().try_into().unwrap();
        assert!(first.text.contains("page_read_us") && first.text.ends_with("worst case"), "{}", first.text);
        assert_eq!(first.cells, ["a", "b"]);
        assert_eq!(second.cells, ["c"]);
    }

    #[test]
    fn reasons_that_differ_in_a_number_are_not_joined() {
        let mut found = WarningCollector::default();
        for (reason, cell) in [("no number: 1,5", "a"), ("no number: 1.2.3", "b"), ("no number: 1,5", "c")] {
            found.add(ReportWarning::note(reason).with_cell(cell).reason());
        }
        let groups: Vec<(String, Vec<String>)> =
            found.joined().into_iter().map(|warning| (warning.text, warning.cells)).collect();
        let cells = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            groups,
            [
                ("no number: 1,5".to_owned(), cells(&["a", "c"])),
                ("no number: 1.2.3".to_owned(), cells(&["b"]))
            ]
        );
    }

    #[test]
    fn without_an_extent_none_is_the_worst() {
        let mut found = WarningCollector::default();
        for (text, cell) in
            [("1 record of 7 was reached", "a"), ("9 records of 7", "b"), ("5 record of 7 was reached", "c")]
        {
            found.add(ReportWarning::note(text).with_cell(cell));
        }
        let texts: Vec<_> = found.joined().into_iter().map(|one| (one.text, one.cells.len())).collect();
        assert_eq!(texts, [("1 record of 7 was reached".to_owned(), 2), ("9 records of 7".to_owned(), 1)]);
    }
}
