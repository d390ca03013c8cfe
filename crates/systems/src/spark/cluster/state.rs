//! The state of the jobs that have run.

use std::collections::BTreeMap;

use serde_json::Value;
use underlay_record::CacheUse;

use super::super::committer::OutputCommitter;
use super::super::event_log::EventLog;
use super::super::jobs::DriverRequest;
use super::cached::UndrainedJob;
use crate::ceph::RequestLog;

/// Before the name of a table.
const TABLES: &str = "iceberg.underlay.";

#[derive(Debug)]
pub(in super::super) struct SparkState {
    pub committer: OutputCommitter,
    pub events: EventLog,
    /// `None` without an object store.
    pub requests: Option<RequestLog>,
    /// The outputs that are there, each with what it was made from.
    made: BTreeMap<&'static str, String>,
    /// Those of them that are tables, or will be, each with its name in the catalog.
    tables: BTreeMap<&'static str, String>,
    /// Caches that are gone: a table whose metadata were written through one can be neither read nor replaced.
    caches_gone: u64,
    /// Jobs so far.
    pub(super) groups: u64,
    /// Requests so far that only mark the store's log.
    pub(super) marks: u64,
    /// The last job's answer, for its verification.
    pub(super) result: Value,
    /// The last job's cache, until the store has everything.
    pub(super) undrained: Option<UndrainedJob>,
    /// Its use of the cache, from then on until somebody asks.
    pub(super) used: Option<CacheUse>,
    /// The bytes that the external shuffle service had served when the input of the next job was there,
    pub(super) served_bytes: Option<u64>,
    /// and the same of the last job, until its record is complete.
    pub(super) served_before: Option<u64>,
}

impl SparkState {
    pub(in super::super) fn new(
        committer: OutputCommitter,
        events: EventLog,
        requests: Option<RequestLog>,
    ) -> SparkState {
        SparkState {
            committer,
            events,
            requests,
            made: BTreeMap::new(),
            tables: BTreeMap::new(),
            caches_gone: 0,
            groups: 0,
            marks: 0,
            result: Value::Null,
            undrained: None,
            used: None,
            served_bytes: None,
            served_before: None,
        }
    }

    /// Nothing that was written is known behind another cache.
    pub(super) fn forget_caches(&mut self) {
        (self.made, self.undrained, self.used) = (BTreeMap::new(), None, None);
        self.caches_gone += 1;
    }

    /// `step` is about to write. Even if it fails, the earlier output is gone.
    pub(super) fn begins(&mut self, step: &DriverRequest, committer: OutputCommitter) {
        let Some(output) = step.output else { return };
        self.made.remove(output);
        match committer {
            OutputCommitter::Iceberg => {
                let table = match self.caches_gone {
                    0 => format!("{TABLES}{output}"),
                    dropped => format!("{TABLES}{output}_{dropped}"),
                };
                self.tables.insert(output, table)
            }
            _ => self.tables.remove(output),
        };
    }

    /// The name of an output in the catalog, if it is a table.
    pub(super) fn table(&self, output: &str) -> Option<&str> {
        self.tables.get(output).map(String::as_str)
    }

    /// `step` has made its output.
    pub(super) fn has_made(&mut self, step: &DriverRequest) {
        let Some(output) = step.output else { return };
        // Nobody asks for an input as a table: it is made anew as files, whichever job wrote it before.
        let kind = if self.tables.contains_key(output) { ", as a table" } else { "" };
        self.made.insert(output, step.fingerprint() + kind);
    }

    /// Whether the output of `step` is there, as files.
    pub(super) fn is_made(&self, step: &DriverRequest) -> bool {
        step.output.is_some_and(|output| self.made.get(output) == Some(&step.fingerprint()))
    }

    /// The output of `step` is wrong: no later job reads it.
    pub(super) fn is_wrong(&mut self, step: &DriverRequest) {
        let made_it = step.fingerprint();
        self.made.retain(|output, from| Some(*output) != step.output || !from.starts_with(&made_it));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::config::SparkConfig;
    use super::*;
    use crate::system::JobRequest;

    fn step(name: &str, seed: u64) -> DriverRequest {
        let job = JobRequest {
            name: name.to_owned(),
            data_bytes: 1 << 20,
            maps: None,
            reduces: None,
            compressibility: 0.5,
            seed,
            limit: std::time::Duration::from_secs(60),
        };
        DriverRequest::from_job(&SparkConfig::default(), &job).unwrap()
    }

    fn state() -> SparkState {
        SparkState::new(OutputCommitter::FileV1, EventLog::new(std::path::Path::new("/none")), None)
    }

    #[test]
    fn wrong_output_is_made_again() {
        let mut state = state();
        let (rows, sort, other) = (step("teragen", 1), step("terasort", 1), step("terasort", 2));
        for made in [&rows, &sort] {
            state.begins(made, OutputCommitter::FileV1);
            state.has_made(made);
        }
        assert!(state.is_made(&rows) && state.is_made(&sort) && !state.is_made(&other));
        // That it is not what another job would have written says nothing of it.
        state.is_wrong(&other);
        assert!(state.is_made(&sort));
        state.is_wrong(&sort);
        assert!(state.is_made(&rows) && !state.is_made(&sort));
        // A job that writes nothing is wrong by itself.
        state.is_wrong(&step("kmeans", 1));
        assert!(state.is_made(&rows));
    }

    #[test]
    fn table_gets_new_name_behind_another_cache() {
        let mut state = state();
        let sort = step("terasort", 1);
        state.begins(&sort, OutputCommitter::Iceberg);
        state.has_made(&sort);
        assert_eq!(state.table("terasort"), Some("iceberg.underlay.terasort"));
        assert!(!state.is_made(&sort), "nobody asks for an input as a table");
        state.forget_caches();
        // Who checks it still finds it.
        assert_eq!(state.table("terasort"), Some("iceberg.underlay.terasort"));
        state.begins(&sort, OutputCommitter::Iceberg);
        assert_eq!(state.table("terasort"), Some("iceberg.underlay.terasort_1"));
        state.begins(&sort, OutputCommitter::FileV1);
        assert_eq!(state.table("terasort"), None);
    }
}
