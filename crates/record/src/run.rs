//! A run: one execution of a study. It is a directory, `run.json` beside `cells/*.json`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cell::{Cell, RunRecord, ScaleFactors};
use crate::cpu::SlowMotion;
use crate::machine::MachineRecord;
use crate::metric::PublishedMetric;
use crate::profile::RecordedProfile;
use crate::wall::WallRecord;

/// One entry of the randomised order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedCell {
    pub cell: Cell,
    pub repetition: u32,
    /// The record's file, below `cells/`.
    pub file: String,
}

impl PlannedCell {
    /// Whether a record is this repetition of this cell. How tables call the cell is no part of that: it changes from
    /// version to version.
    pub fn is_recorded_by(&self, record: &RunRecord) -> bool {
        let (planned, found) = (&self.cell, &record.cell);
        self.repetition == record.repetition
            && planned.id == found.id
            && planned.system == found.system
            && planned.storage == found.storage
            && planned.workload == found.workload
            && planned.servers == found.servers
            && planned.work == found.work
    }
}

/// A published figure that a cell's own is printed beside.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PublishedFigure {
    /// As in a cell: a mix or a job; `all` for the mean over the mixes.
    pub mix: String,
    pub distribution: Option<String>,
    /// As the study's storages are named.
    pub storage: String,
    /// The data set as published: `256 GB`.
    pub data: Option<String>,
    /// That in bytes, where it is a size.
    #[serde(default)]
    pub data_bytes: Option<f64>,
    pub threads: Option<u32>,
    /// `throughput_per_s`, `mean_latency_ms`; of a job `duration_s`, or `relative_performance`: the baseline's duration
    /// over this one.
    #[schemars(with = "String")]
    pub metric: PublishedMetric,
    pub value: f64,
    /// `table` or `prose`.
    pub from: String,
    /// The most that was seen, and not what was seen everywhere.
    #[serde(default)]
    pub up_to: bool,
    /// The paper's machines; the study models one of them: `value` is the printed throughput divided by it. Absent
    /// where it is as printed.
    #[serde(default)]
    pub one_of: Option<u32>,
}

/// A finding that a paper states in words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PublishedClaim {
    /// Its subject.
    pub what: String,
    /// Its value.
    pub value: String,
    /// How a run may be held against it; empty where it is for people to judge.
    #[serde(default)]
    pub checks: Vec<ClaimCheck>,
}

/// A claim's check of one figure on one storage against another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimCheck {
    /// As in [`PublishedFigure`]: `throughput_per_s`, `read_mean_latency_ms`, `duration_s`. Besides, `io_bytes`,
    /// `read_io_bytes` and
    /// `write_io_bytes` are the mean
    /// size of what the devices were asked for; `usd_per_performance` and `usd_per_tb` are at the paper's first prices;
    /// `compaction_slowdown` is the mean latency while the system compacts over that while it does not.
    #[schemars(with = "String")]
    pub metric: PublishedMetric,
    pub storage: String,
    pub against: String,
    /// A mix or a job; any when absent.
    pub mix: Option<String>,
    /// Any number when absent.
    #[serde(default)]
    pub threads: Option<u32>,
    /// Offered rates of one server that it is about: from this one on ...
    pub rate_from_per_s: Option<f64>,
    /// ... and below this one. Without the two, no offered rate.
    pub rate_below_per_s: Option<f64>,
    /// About what nothing holds back, as jobs are.
    pub unthrottled: bool,
    pub expect: ClaimExpectation,
    /// The ratio `storage : against` that the paper gives.
    #[serde(default)]
    pub published: Option<f64>,
    /// That ratio is the furthest from 1 that was seen.
    #[serde(default)]
    pub up_to: bool,
    /// It is about how the effect under `mix` compares with that under this one: `less` is a smaller effect.
    #[serde(default)]
    pub than_mix: Option<String>,
}

/// How the figure on the storage compares with the one that it is held against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimExpectation {
    #[default]
    Same,
    More,
    Less,
}

/// The price of one device of a medium.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DevicePrice {
    /// As the study's devices are named, not as their successors on sale today.
    pub medium: String,
    /// A year, or `catalogue`.
    pub when: String,
    pub usd: f64,
    /// The price is three years' rent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_rented: bool,
    pub capacity_bytes: u64,
    pub bandwidth_bytes_per_s: f64,
    /// Where the figures are from.
    pub source: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReferenceTable {
    /// `oracle-nosql-flash`.
    pub paper: String,
    pub title: String,
    pub source: String,
    pub figures: Vec<PublishedFigure>,
    #[serde(default)]
    pub claims: Vec<PublishedClaim>,
    /// Those of the paper in its order, then today's; empty where it gives none.
    #[serde(default)]
    pub prices: Vec<DevicePrice>,
    /// Where the study departs from the paper, each a sentence.
    pub departures: Vec<String>,
}

/// An amount of data that a study's short form replaced.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ShortenedAmount {
    pub full_bytes: f64,
    pub short_bytes: f64,
}

/// A part of a study's cells that a run was limited to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CellLimit {
    /// As the options had it, `storage=nvme,mix=c`; every cell when empty.
    #[serde(default)]
    pub only: Vec<String>,
    /// The study's own when absent.
    #[serde(default)]
    pub repetitions: Option<u32>,
}

impl CellLimit {
    /// Whether it leaves nothing out.
    pub fn is_whole(&self) -> bool {
        self.only.is_empty() && self.repetitions.is_none()
    }

    /// `storage=nvme,mix=c, 1 repetition`
    pub fn describe(&self) -> String {
        let mut parts: Vec<String> =
            if self.only.is_empty() { Vec::new() } else { vec![self.only.join(",")] };
        parts.extend(self.repetitions.map(|count| match count {
            1 => "1 repetition".to_owned(),
            many => format!("{many} repetitions"),
        }));
        if parts.is_empty() { "every cell".to_owned() } else { parts.join(", ") }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunHeader {
    pub schema: u32,
    pub name: String,
    /// The study's title, for the report's head.
    pub title: Option<String>,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// The study as it was read, so that the directory explains itself.
    pub study_toml: String,
    /// The command line's overrides of the study, `scale.data=100`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<String>,
    /// Parts of the study whose cells are all in the plan; the whole study when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<CellLimit>,
    /// The media that are files of the user's: each file's name as the study writes it, and its text.
    #[serde(default)]
    pub media_files: BTreeMap<String, String>,
    /// Names in the order of the study.
    pub systems: Vec<String>,
    /// What each of them says of itself, by its name. Absent in runs of earlier versions, whose systems go by their
    /// names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub profiles: BTreeMap<String, RecordedProfile>,
    pub storages: Vec<String>,
    /// The name of the storage that ratios are against.
    pub baseline: String,
    pub scale: ScaleFactors,
    /// How the factor of slow motion came about; absent in runs of versions that did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_motion: Option<SlowMotion>,
    pub seed: u64,
    pub short: bool,
    /// The short form's data in place of the study's, where both are one amount. Of several, nothing tells which stands
    /// for which.
    #[serde(default)]
    pub shortened: Option<ShortenedAmount>,
    pub repetitions: u32,
    /// Wall seconds of each cell's warm-up and measurement.
    pub warmup_wall_s: f64,
    pub duration_wall_s: f64,
    pub machine: MachineRecord,
    pub versions: BTreeMap<String, String>,
    pub plan: Vec<PlannedCell>,
    pub reference: Option<ReferenceTable>,
    /// The expected and the real time of each go at it; a killed one has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub walls: Vec<WallRecord>,
}

impl RunHeader {
    /// Whether each record has its own file right in `cells/`: a plan from elsewhere may name other places.
    ///
    /// # Errors
    /// The first entry that has none.
    pub fn check_files(&self) -> Result<(), String> {
        check_names(self.plan.iter().map(|planned| planned.file.as_str()))
    }

    /// The title of the system with this name, which is the name itself where the run says no more.
    pub fn system_title<'a>(&'a self, name: &'a str) -> &'a str {
        self.profiles.get(name).map_or(name, |profile| &profile.title)
    }

    /// Whether the system with this name is known to store nothing.
    pub fn keeps_nothing(&self, name: &str) -> bool {
        self.profiles.get(name).is_some_and(|profile| profile.keeps_nothing)
    }
}

impl RunHeader {
    /// Whether its scale is one that a study may have: everything is divided by it.
    ///
    /// # Errors
    /// The mistake in it.
    pub fn check_scale(&self) -> Result<(), String> {
        for (name, factor, largest) in [
            ("time", self.scale.time, ScaleFactors::MAX_TIME),
            ("data", self.scale.data, ScaleFactors::MAX_DATA),
        ] {
            if !(1.0..=largest).contains(&factor) {
                return Err(format!("scale.{name} is {factor}: expected a factor from 1 to {largest}"));
            }
        }
        Ok(())
    }
}

fn check_names<'a>(files: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
    let mut names = std::collections::BTreeSet::new();
    for (index, file) in files.into_iter().enumerate() {
        // The name is joined to a path: one with a slash could lead out of the run's directory.
        let is_plain = file.ends_with(".json") && !file.starts_with('.') && !file.contains(['/', '\0']);
        if !is_plain {
            return Err(format!("plan[{index}].file is {file:?}: expected the name of a file in cells/"));
        }
        // Otherwise one record would count as the result of two cells.
        if !names.insert(file) {
            return Err(format!("plan[{index}].file is {file:?}, which an earlier entry has already"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_names_are_distinct_and_inside_folder() {
        let checked = |files: &[&'static str]| check_names(files.iter().copied());
        assert_eq!(checked(&["a-1.json", "a-2.json"]), Ok(()));
        for file in ["/etc/a.json", "../a.json", "a/b.json", ".json", "a", "", "a\0.json"] {
            assert!(checked(&[file]).unwrap_err().contains("a file in cells/"), "{file:?}");
        }
        assert!(checked(&["a.json", "a.json"]).unwrap_err().contains("an earlier entry has"));
    }
}
