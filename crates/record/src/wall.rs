//! The parts of a run's time, on this machine's clock: the expected and the real one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Seconds of this machine's clock, by what they go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WallParts {
    /// Programs fetched, and what this machine adds to a request measured.
    pub prepare_s: f64,
    /// Data sets loaded, settled and put on storages.
    pub load_s: f64,
    /// Storage attached, and the system started on it.
    pub start_s: f64,
    pub fill_s: f64,
    /// Until what filling the caches left to be done is done.
    pub settle_s: f64,
    /// For a rate, where one is looked for.
    pub search_s: f64,
    pub warmup_s: f64,
    /// Of a benchmark of the user's, its command with its own warm-up.
    pub measure_s: f64,
    /// Batch jobs, from their submission to their end.
    pub job_s: f64,
    /// Making the jobs' input, and checking their output.
    pub around_jobs_s: f64,
    /// The last operations waited for, the system stopped, its storage cleared away.
    pub restore_s: f64,
}

impl WallParts {
    /// Each with what it is called, in the order in which they come.
    pub fn named(&self) -> [(&'static str, f64); 11] {
        [
            ("what comes before", self.prepare_s),
            ("loading data", self.load_s),
            ("starting systems", self.start_s),
            ("filling caches", self.fill_s),
            ("settling", self.settle_s),
            ("searching for rates", self.search_s),
            ("warming up", self.warmup_s),
            ("measuring", self.measure_s),
            ("jobs", self.job_s),
            ("what is around jobs", self.around_jobs_s),
            ("stopping and clearing away", self.restore_s),
        ]
    }

    pub fn total_s(&self) -> f64 {
        self.named().iter().map(|(_, part_s)| part_s).sum()
    }
}

/// One go at a run: from where its cells were counted to its end. A run that was resumed has several.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WallRecord {
    /// RFC 3339, UTC.
    pub started_at: String,
    /// That were to be run.
    pub cells: u64,
    /// Those of them that were not, since it was stopped: they are in the estimate.
    #[serde(default, skip_serializing_if = "is_none")]
    pub left: u64,
    /// Before the cells: this host's CPUs measured, and where the factor of slow motion was open, the fastest device
    /// tried. In neither of the two that follow.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub measuring_host_s: f64,
    /// Of these cells; where the run began again in slower motion, at the factor that it came to.
    pub estimated: WallParts,
    pub took: WallParts,
    /// The time of measurements in motion that turned out to be too fast, which is in neither.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub given_up_s: f64,
}

fn is_none(cells: &u64) -> bool {
    *cells == 0
}

fn is_nothing(seconds: &f64) -> bool {
    *seconds == 0.0
}

impl WallRecord {
    /// The part that took most more, or most less, than was expected of it.
    pub fn furthest_off(&self) -> (&'static str, f64, f64) {
        let estimated = self.estimated.named();
        let parts = self
            .took
            .named()
            .into_iter()
            .zip(estimated)
            .map(|((name, took_s), (_, estimated_s))| (name, took_s, estimated_s));
        let off_s = |part: &(&str, f64, f64)| (part.1 - part.2).abs();
        parts.max_by(|a, b| off_s(a).total_cmp(&off_s(b))).expect("there are parts")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_furthest_from_estimate_is_named() {
        let estimated = WallParts { load_s: 100.0, start_s: 30.0, measure_s: 300.0, ..WallParts::default() };
        let actual = WallParts { load_s: 20.0, start_s: 90.0, measure_s: 310.0, ..WallParts::default() };
        let record = WallRecord { estimated, took: actual, ..WallRecord::default() };
        assert_eq!((estimated.total_s(), actual.total_s()), (430.0, 420.0));
        assert_eq!(record.furthest_off(), ("loading data", 20.0, 100.0));
        let text = serde_json::to_string(&record).unwrap();
        assert!(["given_up_s", "left", "measuring_host_s"].iter().all(|key| !text.contains(key)), "{text}");
        assert_eq!(serde_json::from_str::<WallRecord>(&text).unwrap(), record);
    }
}
