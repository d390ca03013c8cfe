//! Where a run's measurement is weak, and what to try.

use underlay_record::{CellStatus, Verdict};

use crate::cell::activity;
use crate::comparison::{CellResult, Comparison, Outcome};
use crate::load::LoadedRun;
use crate::quantity;
use crate::statistics::quantile::{FEWEST_BEYOND, is_measurable};

/// How much a warning weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Figures may be wrong: a failed check of a certificate, a broken record.
    Doubtful,
    /// Figures are missing or less sure than they could be.
    Note,
}

/// Something that a reader of the figures must know.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Warning {
    pub severity: Severity,
    pub text: String,
    /// The cells that it is about; none when it is about the run.
    pub cells: Vec<String>,
    /// What to try.
    pub remedy: Option<String>,
    /// Says why a cell has no figures: a table that gives the reason beside the cell need not repeat it.
    pub is_reason: bool,
}

/// Share of operations answered by an error above which the reader is warned.
const TOLERATED_ERRORS: f64 = 0.001;

/// `nvme under a`, with the system where the run has several.
pub(crate) fn cell_name(comparison: &Comparison, result: &CellResult) -> String {
    let cell = result.cell;
    match comparison.systems.len() {
        0 | 1 => format!("{} under {}", cell.storage, cell.label()),
        _ => format!("{} on {} under {}", cell.system, cell.storage, cell.label()),
    }
}

/// Every warning of a run, the weighty ones first, equal ones of several cells as one.
pub(crate) fn collect(loaded: &LoadedRun, comparison: &Comparison) -> Vec<Warning> {
    let mut found = Collector::default();
    about_run(loaded, comparison, &mut found);
    for result in comparison.cells() {
        let name = cell_name(comparison, result);
        about_certificate(result, &name, &mut found);
        about_outcome(result, &name, &mut found);
        about_figures(loaded, comparison, result, &name, &mut found);
        about_warm_up(loaded, comparison, result, &name, &mut found);
        about_memory(loaded, result, &name, &mut found);
        about_search(result, &name, &mut found);
        about_job(result, &name, &mut found);
        for text in result.records.iter().flat_map(|record| &record.warnings) {
            found.add(Severity::Note, text.clone(), None, Some(&name));
        }
    }
    found.warnings.sort_by_key(|warning| warning.severity);
    found.warnings
}

fn about_run(loaded: &LoadedRun, comparison: &Comparison, found: &mut Collector) {
    for error in &loaded.broken {
        let remedy = "delete the file and continue the run with `underlay run --resume`".to_owned();
        found.add(Severity::Doubtful, format!("A record was left out: {error}"), Some(remedy), None);
    }
    if loaded.is_partial() {
        let (finished, planned) = (loaded.finished(), loaded.planned());
        let text = format!("The run is not complete: {finished} of {planned} repetitions are on record");
        found.add(Severity::Note, text, Some("`underlay run --resume`".to_owned()), None);
    }
    if comparison.baseline_index().is_none() && !comparison.storages.is_empty() {
        let text = format!("No cell runs on the baseline `{}`, so there are no ratios", comparison.baseline);
        found.add(
            Severity::Note,
            text,
            Some("name one of the study's storages as `baseline`".to_owned()),
            None,
        );
    }
    if loaded.run.repetitions < 2 && loaded.finished() > 0 {
        let text = match comparison.operations().next() {
            Some(_) => {
                "Each cell ran once: the intervals hold what varied within it, and not what would between runs"
            }
            None => "Each job ran once: there are no intervals, so a difference may be no more than chance",
        };
        found.add(
            Severity::Note,
            text.to_owned(),
            Some("set `repetitions = 3` under [run]".to_owned()),
            None,
        );
    }
    if loaded.run.repetitions == 2 {
        let text =
            "Each cell ran twice: two runs hardly show how much runs differ, so intervals may be too narrow";
        found.add(
            Severity::Note,
            text.to_owned(),
            Some("set `repetitions = 3` under [run]".to_owned()),
            None,
        );
    }
    if loaded.run.short {
        let text = "This is the study's short form: fewer cells or less time each than the study describes";
        found.add(
            Severity::Note,
            text.to_owned(),
            Some("run it without `--short` for the whole".to_owned()),
            None,
        );
    }
}

fn about_certificate(result: &CellResult, name: &str, found: &mut Collector) {
    for certificate in result.certificates().filter(|one| one.verdict == Verdict::Doubtful) {
        let failed: Vec<_> = certificate.checks.iter().filter(|check| !check.passed).collect();
        if failed.is_empty() {
            let text = "The certificate says doubtful and names no failed check".to_owned();
            found.add(Severity::Doubtful, text, None, Some(name));
        }
        for check in failed {
            let text = format!("Doubtful, {}: {}", check.name, check.finding);
            found.add(Severity::Doubtful, text, check.remedy.clone(), Some(name));
        }
    }
}

fn about_outcome(result: &CellResult, name: &str, found: &mut Collector) {
    match &result.outcome {
        Outcome::Failed { reason } => {
            let remedy = match crate::comparison::search::of(result)
                .iter()
                .any(|(_, record)| record.holds_per_s.is_none())
            {
                true => "allow more time, or lengthen `step`: lower rates need longer steps to be judged",
                false => "read its record below `cells/`, then run the study again",
            };
            let remedy = remedy.to_owned();
            found.add(Severity::Note, format!("Failed: {reason}"), Some(remedy), Some(name));
            found.last_is_reason();
        }
        Outcome::Unavailable { missing, remedy } => {
            found.add(Severity::Note, format!("Can't run here: {missing}"), Some(remedy.clone()), Some(name));
            found.last_is_reason();
        }
        Outcome::Pending => {}
        Outcome::Measured(_) | Outcome::Job(_) => {
            for record in &result.records {
                if let CellStatus::Failed { reason } = &record.status {
                    let text = format!("Repetition {} failed and is left out: {reason}", record.repetition);
                    found.add(Severity::Note, text, None, Some(name));
                }
            }
        }
    }
}

/// A job whose busiest device has less to do than this, as a share of the time, waits for something else.
const HARDLY_BUSY: f64 = 0.3;

/// Storages can only differ as far as jobs wait for them.
fn about_job(result: &CellResult, name: &str, found: &mut Collector) {
    if result.job().is_none() {
        return;
    }
    let busiest = activity::by_device(&result.completed_records())
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
        let remedy = "for a job that shall wait for storage: more data a task, or a larger `[scale] time`";
        found.add(Severity::Note, text, Some(remedy.to_owned()), Some(name));
    }
}

fn about_figures(
    loaded: &LoadedRun,
    comparison: &Comparison,
    result: &CellResult,
    name: &str,
    found: &mut Collector,
) {
    let Some(figures) = result.figures() else { return };
    // A forced compaction is meant to change it, and so is a changing rate; a warm-up has its own warning.
    let is_meant = result.cell.compacts_at().is_some() || !result.cell.rate_parts().is_empty();
    let is_told = figures.warm_up.is_some_and(|warm_up| warm_up.difference.is_some());
    if let Some(change) = figures.trend.filter(|_| !is_meant && !is_told) {
        let direction = if change > 0.0 { "rose" } else { "fell" };
        let share = quantity::percent(change.abs());
        let text = format!("Not steady: throughput {direction} by {share} of its mean while it was measured");
        let remedy = "lengthen `warmup` until the time series is level".to_owned();
        found.add(Severity::Note, text, Some(remedy), Some(name));
    }
    for (share, word) in [(0.5, "median"), (0.99, "p99"), (0.999, "p99.9")] {
        if !is_measurable(figures.latency.count(), share) {
            let text = format!("No {word} latency: fewer than {FEWEST_BEYOND} operations lie beyond it");
            found.add(Severity::Note, text, Some(longer(loaded, comparison, share)), Some(name));
            break;
        }
    }
    let measured = result.measured();
    let errors: u64 = measured.iter().map(|one| one.errors).sum();
    let operations = errors + measured.iter().map(|one| one.operations).sum::<u64>();
    if errors as f64 > TOLERATED_ERRORS * operations as f64 {
        let sample = measured.iter().flat_map(|one| &one.error_samples).next();
        let share = quantity::percent(errors as f64 / (operations as f64).max(1.0));
        let said = sample.map_or(String::new(), |text| format!(", the first: {text}"));
        let text = format!("Errors: {share} of the operations were answered by one{said}");
        found.add(
            Severity::Doubtful,
            text,
            Some("read the system's log of this cell".to_owned()),
            Some(name),
        );
    }
}

/// How long cells must be measured for enough operations to lie beyond a quantile.
fn longer(loaded: &LoadedRun, comparison: &Comparison, quantile: f64) -> String {
    let counts = comparison.cells().filter_map(|result| result.figures()).map(|one| one.latency.count());
    let fewest = counts.filter(|count| *count > 0 && !is_measurable(*count, quantile)).min();
    let factor = fewest.map(|count| FEWEST_BEYOND / (1.0 - quantile) / count as f64);
    // Rounding must not turn a whole number of seconds into one more.
    match factor.map(|factor| (loaded.run.duration_wall_s * factor - 1e-6).ceil()) {
        Some(seconds) if seconds <= MAX_ADVISED_S => {
            format!("set `duration` to {} or more", quantity::duration(seconds))
        }
        _ => "lengthen `duration`".to_owned(),
    }
}

/// Nobody measures a cell for longer.
const MAX_ADVISED_S: f64 = 24.0 * 3600.0;

/// What is measured while it warms up belongs to no steady state.
fn about_warm_up(
    loaded: &LoadedRun,
    comparison: &Comparison,
    result: &CellResult,
    name: &str,
    found: &mut Collector,
) {
    let of = |result: &CellResult| result.figures().and_then(|figures| figures.warm_up);
    let Some(warm_up) = of(result) else { return };
    let figure = warm_up.figure.in_words();
    let Some(difference) = warm_up.difference else {
        // A change over the whole has its own warning.
        if result.figures().is_some_and(|figures| figures.trend.is_none()) {
            let text = format!("Not steady: {figure} still changed in the second half of what was measured");
            let remedy = "lengthen `warmup`, and `duration` where it changes for ever".to_owned();
            found.add(Severity::Note, text, Some(remedy), Some(name));
        }
        return;
    };
    let direction = if difference > 0.0 { "higher" } else { "lower" };
    let share = quantity::percent(difference.abs());
    let text =
        format!("Still warming up when the measurement began: {figure} was {share} {direction} at first");
    // One warm-up serves all cells.
    let lacking = comparison.cells().filter_map(of).filter(|one| one.difference.is_some());
    let lacking_s = lacking.map(|one| one.lacking_wall_s).fold(0.0, f64::max).ceil();
    let remedy = format!(
        "set `warmup = \"{:.0} s\"` under [run], {lacking_s:.0} s more",
        loaded.run.warmup_wall_s + lacking_s
    );
    found.add(Severity::Note, text, Some(remedy), Some(name));
}

/// Data that fits in memory is read from there, whatever it is stored on.
fn about_memory(loaded: &LoadedRun, result: &CellResult, name: &str, found: &mut Collector) {
    let cell = result.cell;
    // Against published figures, a size that fits in memory is one of the paper's own points.
    let is_meant = loaded.run.reference.is_some() || cell.is_job() || cell.system == "null";
    if is_meant || cell.visits_every_record() || result.figures().is_none() {
        return;
    }
    let Some(memory) = result.records.first().map(|record| &record.memory) else { return };
    if memory.data_to_memory > 0.0 && memory.data_to_memory <= 1.0 {
        let share = quantity::percent(memory.data_to_memory);
        let text = format!(
            "The data fits in memory and takes {share} of it: reads come from there, and not from the storage"
        );
        let remedy = "four times as much data as memory and more shows what a storage does".to_owned();
        found.add(Severity::Note, text, Some(remedy), Some(name));
    }
}

/// A rate that was not found as surely as it was looked for.
fn about_search(result: &CellResult, name: &str, found: &mut Collector) {
    for (_, record) in crate::comparison::search::of(result) {
        // That none holds is the reason for the missing figures, and reported there.
        if record.holds_per_s.is_none() {
            continue;
        }
        if !record.is_closed {
            let text =
                "The highest rate may be higher: the search used up its steps before it was narrowed down";
            let remedy = "begin nearer to it, by `from`, or lengthen `step`".to_owned();
            found.add(Severity::Note, text.to_owned(), Some(remedy), Some(name));
        } else if record.fails_per_s.is_none() {
            let text = "The highest rate may be higher: the highest that was to be tried holds";
            found.add(Severity::Note, text.to_owned(), Some("raise `to`".to_owned()), Some(name));
        }
    }
}

/// Joins warnings that differ in nothing but their numbers and cells. The worst one's numbers stand for all.
#[derive(Default)]
struct Collector {
    warnings: Vec<Warning>,
    keys: Vec<String>,
    /// Where the warning added last went.
    last: usize,
}

/// What joined findings are ranked by: the first percentage that a text states.
fn first_percentage(text: &str) -> f64 {
    let number = |part: &str| part.trim_end().rsplit(' ').next().and_then(|word| word.parse::<f64>().ok());
    text.split('%').next().filter(|part| part.len() < text.len()).and_then(number).map_or(0.0, f64::abs)
}

const AT_WORST: &str = ", at worst";

impl Collector {
    fn last_is_reason(&mut self) {
        self.warnings[self.last].is_reason = true;
    }

    fn add(&mut self, severity: Severity, text: String, remedy: Option<String>, cell: Option<&str>) {
        // What is missing of one cell is its p99, of another only its p99.9.
        let text_of_key = text.replace("p99.9", "p-nines").replace("p99", "p-nine");
        let key = text_of_key.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect::<String>();
        // Numbers of different lengths and signs are still numbers.
        let key = key.replace(": -#", ": +#");
        let key =
            key.split('#').filter(|part| !matches!(*part, "" | "." | ",")).collect::<Vec<_>>().join("#");
        self.last = match self.keys.iter().position(|known| *known == key) {
            Some(index) => {
                let joined = &mut self.warnings[index];
                let worst = joined.text.trim_end_matches(AT_WORST).to_owned();
                if worst != text {
                    let text = if first_percentage(&text) > first_percentage(&worst) { text } else { worst };
                    joined.text = if first_percentage(&text) > 0.0 { text + AT_WORST } else { text };
                }
                index
            }
            None => {
                self.keys.push(key);
                self.warnings.push(Warning { severity, text, cells: Vec::new(), remedy, is_reason: false });
                self.warnings.len() - 1
            }
        };
        let cells = &mut self.warnings[self.last].cells;
        if let Some(cell) = cell
            && !cells.iter().any(|known| known == cell)
        {
            cells.push(cell.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_warnings_show_the_worst_numbers() {
        let mut found = Collector::default();
        for (text, cell) in [
            ("device p50: modelled 36 us, delivered 40 us: +11.1 % (allowed: 10 %)", "a"),
            ("device p50: modelled 36 us, delivered 180 us: +400.0 % (allowed: 10 %)", "b"),
            ("device p50: modelled 36 us, delivered 30 us: -16.7 % (allowed: 10 %)", "c"),
        ] {
            found.add(Severity::Doubtful, text.to_owned(), None, Some(cell));
        }
        assert_eq!(found.warnings.len(), 1);
        assert_eq!(
            found.warnings[0].text,
            "device p50: modelled 36 us, delivered 180 us: +400.0 % (allowed: 10 %), at worst"
        );
        assert_eq!(found.warnings[0].cells, ["a", "b", "c"]);
    }
}
