//! Selects cells of a study: `--only storage=nvme,mix=c` and `--repetitions 1`.

use std::collections::BTreeSet;

use underlay_config::closest;
use underlay_record::{Cell, CellLimit, OfferedRate, PlannedCell};

use crate::plan;
use crate::spec::{MAX_REPETITIONS, Study};

/// The dimensions of cells, in the order of a report's columns.
const DIMENSIONS: [&str; 9] =
    ["system", "storage", "workload", "mix", "job", "distribution", "threads", "rate", "data"];
const RECORDS: &str = "records";

/// A part of a study's cells, checked against the study.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellSelection {
    pairs: Vec<(String, String)>,
    repetitions: Option<u32>,
}

impl CellSelection {
    /// # Errors
    /// When no cell of the study has a dimension or a value, or no cell has these pairs together. The text lists what
    /// exists.
    pub fn new(study: &Study, limit: &CellLimit) -> Result<CellSelection, String> {
        if let Some(repetitions) = limit.repetitions
            && !(1..=MAX_REPETITIONS).contains(&repetitions)
        {
            return Err(format!("--repetitions {repetitions}: expected from 1 to {MAX_REPETITIONS}"));
        }
        let cells = plan::expand(study);
        let mut pairs = Vec::new();
        for text in limit.only.iter().flat_map(|text| text.split(',')) {
            pairs.push(pair(text.trim(), &cells)?);
        }
        let selection = CellSelection { pairs, repetitions: limit.repetitions };
        if !cells.iter().any(|cell| selection.has(cell)) {
            return Err(format!(
                "--only {} selects no cell: each of these exists in the study, but not together; `underlay check` lists its cells",
                limit.only.join(",")
            ));
        }
        Ok(selection)
    }

    /// Whether a cell is selected. Values of one dimension are alternatives. So are mixes and jobs, since no cell has
    /// both.
    pub fn has(&self, cell: &Cell) -> bool {
        let column =
            |dimension: &str| if dimension == "job" { "mix".to_owned() } else { dimension.to_owned() };
        let columns: BTreeSet<String> = self.pairs.iter().map(|(dimension, _)| column(dimension)).collect();
        columns.iter().all(|wanted| {
            self.pairs.iter().any(|(dimension, value)| {
                column(dimension) == *wanted
                    && value_of(cell, dimension).is_some_and(|cell_value| plain(&cell_value) == plain(value))
            })
        })
    }

    fn keeps(&self, planned: &PlannedCell, of_study: u32) -> bool {
        planned.repetition <= self.repetitions.unwrap_or(of_study) && self.has(&planned.cell)
    }

    /// The selected cells, in study order.
    pub fn cells(&self, study: &Study) -> Vec<Cell> {
        plan::expand(study).into_iter().filter(|cell| self.has(cell)).collect()
    }

    /// How often each of them is measured.
    pub fn repetitions(&self, study: &Study) -> u32 {
        self.repetitions.unwrap_or(study.run.repetitions)
    }
}

/// A run's plan: the whole study, or the union of its selections.
#[derive(Debug)]
pub(crate) struct RunSelections(Vec<CellSelection>);

impl RunSelections {
    pub(crate) fn new(study: &Study, limits: &[CellLimit]) -> Result<RunSelections, String> {
        limits
            .iter()
            .map(|limit| CellSelection::new(study, limit))
            .collect::<Result<_, _>>()
            .map(RunSelections)
    }

    /// In the order of the whole study.
    pub(crate) fn plan(&self, study: &Study) -> Vec<PlannedCell> {
        let of_study = study.run.repetitions;
        let mut order = plan::order_of(study, self.repetitions(study));
        order.retain(|planned| self.has(planned, of_study));
        order
    }

    pub(crate) fn has(&self, planned: &PlannedCell, of_study: u32) -> bool {
        match self.0.as_slice() {
            [] => planned.repetition <= of_study,
            some => some.iter().any(|one| one.keeps(planned, of_study)),
        }
    }

    pub(crate) fn repetitions(&self, study: &Study) -> u32 {
        self.0.iter().map(|one| one.repetitions(study)).max().unwrap_or(study.run.repetitions)
    }
}

/// A resumed run's plan from now on, with the user's current selection in `asked`. Planned cells stay planned, since
/// some may have been measured.
pub(crate) fn extended(study: &Study, limits: &[CellLimit], asked: &CellLimit) -> Vec<CellLimit> {
    if asked.is_whole() {
        // Repetitions beyond the study's would be missing from the report.
        let exceeds =
            |limit: &&CellLimit| limit.repetitions.is_some_and(|count| count > study.run.repetitions);
        let mut limits: Vec<CellLimit> = limits.iter().filter(exceeds).cloned().collect();
        if !limits.is_empty() {
            limits.push(CellLimit::default());
        }
        return limits;
    }
    let mut extended = limits.to_vec();
    if limits.is_empty() && asked.repetitions.is_some_and(|count| count > study.run.repetitions) {
        extended.push(CellLimit::default());
    }
    if !(extended.is_empty() || extended.contains(asked)) {
        extended.push(asked.clone());
    }
    extended
}

/// A cell's value of a dimension, as written in the option.
fn value_of(cell: &Cell, dimension: &str) -> Option<String> {
    let requests = cell.requests();
    match dimension {
        "system" => Some(cell.system.clone()),
        "storage" => Some(cell.storage.clone()),
        "workload" => Some(cell.workload.clone()),
        "job" => cell.is_job().then(|| cell.mix_or_job().to_owned()),
        "mix" => requests.map(|requests| requests.mix.clone()),
        "distribution" => requests.map(|requests| requests.distribution.clone()),
        "threads" => requests.map(|requests| requests.threads.to_string()),
        RECORDS => requests.map(|requests| requests.records.to_string()),
        "data" => cell.data.clone(),
        "rate" => requests.map(|requests| match &requests.rate {
            OfferedRate::Unthrottled | OfferedRate::Highest { .. } => "max".to_owned(),
            OfferedRate::Steady { per_s } => per_s.to_string(),
            OfferedRate::Changing { .. } => changing(cell),
        }),
        _ => None,
    }
}

/// A changing rate, as written in the cell's id: `ramp-1000-50000`.
fn changing(cell: &Cell) -> String {
    let last = cell.id.rsplit('/').next().unwrap_or_default();
    ["-ramp-", "-steps-"]
        .iter()
        .find_map(|kind| last.find(kind))
        .map_or("", |index| &last[index + 1..])
        .to_owned()
}

/// `100 GB` and `100gb` are the same value, and so are `1_000_000` and `1000000`.
fn plain(value: &str) -> String {
    value.chars().filter(|c| !c.is_whitespace() && *c != '_').flat_map(char::to_lowercase).collect()
}

fn values(cells: &[Cell], dimension: &str) -> Vec<String> {
    let mut values: Vec<String> = Vec::new();
    for value in cells.iter().filter_map(|cell| value_of(cell, dimension)) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

fn pair(text: &str, cells: &[Cell]) -> Result<(String, String), String> {
    let dimensions: Vec<(&str, Vec<String>)> = DIMENSIONS
        .iter()
        .chain([&RECORDS])
        .map(|&dimension| (dimension, values(cells, dimension)))
        .filter(|(_, values)| !values.is_empty())
        .collect();
    let listed = || {
        let one = |(dimension, values): &(&str, Vec<String>)| format!("{dimension} ({})", values.join(", "));
        format!("this study's cells have {}", dimensions.iter().map(one).collect::<Vec<_>>().join("; "))
    };
    let shown = text.escape_debug();
    let Some((dimension, value)) = text.split_once('=') else {
        return Err(format!("--only {shown}: expected `dimension=value`; {}", listed()));
    };
    let (dimension, value) = (dimension.trim(), value.trim());
    let meant = |word: &str, candidates: &mut dyn Iterator<Item = &str>| {
        closest(word, candidates).map_or(String::new(), |meant| format!("did you mean `{meant}`? "))
    };
    let Some((_, values)) = dimensions.iter().find(|(name, _)| *name == dimension) else {
        let meant = meant(dimension, &mut dimensions.iter().map(|(name, _)| *name));
        return Err(format!("--only {shown}: no cell has this dimension; {meant}{}", listed()));
    };
    let Some(found) = values.iter().find(|candidate| plain(candidate) == plain(value)) else {
        let meant = meant(value, &mut values.iter().map(String::as_str));
        return Err(format!(
            "--only {shown}: no cell has this {dimension}; {meant}expected one of {}",
            values.join(", ")
        ));
    };
    Ok((dimension.to_owned(), found.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUDY: &str = r#"
name = "select"
baseline = "hdd"
[system.rocksdb]
memory = "64 MiB"
[storage.hdd]
devices = [{ medium = "hdd-7200-sata", capacity = "1 GiB" }]
[storage.nvme]
devices = [{ medium = "ssd-sata", capacity = "1 GiB" }]
[workload.w]
records = 1_000_000
record = { fields = 1, bytes = 100 }
mixes = ["a", "c"]
threads = [1, 8]
rate = ["max", 500]
[run]
repetitions = 2
"#;

    fn study() -> Study {
        Study::parse("select.toml", STUDY, false).unwrap()
    }

    fn limit(only: &[&str], repetitions: Option<u32>) -> CellLimit {
        CellLimit { only: only.iter().map(|&text| text.to_owned()).collect(), repetitions }
    }

    #[test]
    fn values_are_alternatives_and_dimensions_combine() {
        let study = study();
        let count =
            |only: &[&str]| CellSelection::new(&study, &limit(only, None)).unwrap().cells(&study).len();
        assert_eq!(count(&[]), 16);
        assert_eq!(count(&["storage=nvme,mix=c"]), 4);
        assert_eq!(count(&["storage=nvme", "mix=c,threads=8", "rate=max"]), 1);
        assert_eq!(count(&["mix=a,mix=c", "threads=1"]), 8);
        assert_eq!(count(&["records=1_000_000,rate=500"]), 8);
    }

    #[test]
    fn unmatched_selection_is_refused_with_choices() {
        let study = study();
        let refusal_of = |only: &str| CellSelection::new(&study, &limit(&[only], None)).unwrap_err();
        let dimension = refusal_of("storag=nvme");
        assert!(dimension.contains("did you mean `storage`?"), "{dimension}");
        assert!(dimension.contains("threads (1, 8)") && !dimension.contains("job"), "{dimension}");
        let value = refusal_of("storage=nvmee");
        assert!(value.contains("did you mean `nvme`?") && value.contains("hdd, nvme"), "{value}");
        assert!(refusal_of("nvme").contains("`dimension=value`"));
        assert!(CellSelection::new(&study, &limit(&[], Some(0))).unwrap_err().contains("--repetitions 0"));
    }

    #[test]
    fn limited_plan_is_ordered_part_of_whole() {
        let study = study();
        let whole = plan::order(&study);
        let limits = [limit(&["storage=nvme"], Some(1)), limit(&["mix=c"], None)];
        let part = RunSelections::new(&study, &limits).unwrap().plan(&study);
        assert_eq!(part.len(), 8 + 4 + 8, "8 of nvme once, and of mix c the others of the two repetitions");
        let mut rest = whole.iter();
        assert!(part.iter().all(|planned| rest.any(|one| one == planned)));
        assert!(plan::is_same(&RunSelections::new(&study, &[]).unwrap().plan(&study), &whole));
    }

    #[test]
    fn resumed_run_keeps_its_plan() {
        let study = study();
        let (first, more) = (limit(&["storage=nvme"], Some(1)), limit(&["mix=a"], None));
        assert_eq!(extended(&study, std::slice::from_ref(&first), &CellLimit::default()), []);
        assert_eq!(extended(&study, std::slice::from_ref(&first), &first), std::slice::from_ref(&first));
        assert_eq!(extended(&study, std::slice::from_ref(&first), &more), [first.clone(), more.clone()]);
        assert_eq!(extended(&study, &[], &more), [], "a whole run stays whole");
        let many = limit(&[], Some(5));
        let limits = extended(&study, std::slice::from_ref(&many), &CellLimit::default());
        assert_eq!(limits, [many, CellLimit::default()], "more repetitions than the study's stay");
    }
}
