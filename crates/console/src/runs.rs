//! The runs below a directory: which there are, and what each is in a line.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use underlay_record::RunHeader;
use underlay_report::RunDirectory;
use underlay_sync::UnsimulatedMutex;

use crate::recorded::{RecordedRun, StateTally};

/// Of one directory; more are not looked at.
const MAX_RUNS: usize = 2_000;
const HEAD: &str = "run.json";
const CELLS: &str = "cells";
/// Another file that only a run has.
const FEED: &str = underlay_record::live::FEED_FILE;
/// A record that is changed without a trace in its directory is noticed after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// A run in the list.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct RunSummary {
    /// The name of its directory.
    pub name: String,
    pub study: String,
    pub title: Option<String>,
    pub started_at: String,
    pub systems: Vec<String>,
    pub storages: Vec<String>,
    pub planned: usize,
    /// Cells with a record of any kind.
    pub recorded: usize,
    /// How many cells are in each state, by their records; absent where they have not been read yet.
    #[serde(serialize_with = "serialize_by_key")]
    pub cells: Option<StateTally>,
    /// A process goes on with it now.
    pub is_running: bool,
    /// Why nothing else is known of it: its `run.json` is missing or can't be used.
    pub problem: Option<String>,
}

fn serialize_by_key<S: serde::Serializer>(tally: &Option<StateTally>, to: S) -> Result<S::Ok, S::Error> {
    match tally {
        Some(tally) => to.collect_map(tally.all().map(|(state, count)| (state.key(), count))),
        None => to.serialize_none(),
    }
}

impl RunSummary {
    pub(crate) fn state(&self) -> &'static str {
        let ended = self.cells.map_or(self.recorded, |tally| tally.ended());
        match (&self.problem, self.is_running) {
            (Some(_), _) => "unreadable",
            (None, true) => "running",
            (None, false) if ended >= self.planned => "complete",
            (None, false) => "stopped",
        }
    }

    /// Whether all these words are somewhere in it.
    pub(crate) fn matches(&self, words: &str) -> bool {
        let mut text = format!("{} {} {}", self.name, self.study, self.state());
        for (state, _) in self.cells.iter().flat_map(StateTally::there) {
            text.push(' ');
            text.push_str(state.word());
        }
        let more = self.title.iter().chain(&self.systems).chain(&self.storages).chain([&self.started_at]);
        more.for_each(|part| {
            text.push(' ');
            text.push_str(part);
        });
        let text = text.to_lowercase();
        words.to_lowercase().split_whitespace().all(|word| text.contains(word))
    }
}

/// By name, with the stamp of their `run.json`.
type RunHeads = HashMap<String, (HeadStamp, Result<RunHead, String>)>;

/// See the module.
pub(crate) struct RunCatalog {
    root: PathBuf,
    /// Nothing of one that can't be used, so that it is not read again and again.
    heads: UnsimulatedMutex<RunHeads>,
    /// By name: the counts, with the head that they belong to.
    counted: UnsimulatedMutex<HashMap<String, CountedRecords>>,
}

struct CountedRecords {
    of: HeadStamp,
    /// When the directory of the records was changed.
    changed: (i64, i64),
    at: Instant,
    records: RecordedRun,
    tally: StateTally,
}

/// When a file was changed, its length and its number.
type HeadStamp = (i64, i64, u64, u64);

#[derive(Clone)]
struct RunHead {
    study: String,
    title: Option<String>,
    started_at: String,
    systems: Vec<String>,
    storages: Vec<String>,
    planned: usize,
}

impl RunCatalog {
    pub(crate) fn below(root: PathBuf) -> RunCatalog {
        RunCatalog {
            root,
            heads: UnsimulatedMutex::new(HashMap::new()),
            counted: UnsimulatedMutex::new(HashMap::new()),
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of a run by its name, which leads nowhere else.
    pub(crate) fn directory(&self, name: &str) -> Option<PathBuf> {
        let is_plain =
            !name.is_empty() && name.len() <= 255 && !name.starts_with('.') && !name.contains(['/', '\0']);
        let directory = self.root.join(name);
        let is_real = || std::fs::symlink_metadata(&directory).is_ok_and(|found| found.is_dir());
        (is_plain && is_real() && directory.join(HEAD).is_file()).then_some(directory)
    }

    /// What the directory has beyond what [`list`](Self::list) looks at.
    pub(crate) fn left_out(&self) -> usize {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        entries.count().saturating_sub(MAX_RUNS)
    }

    /// A run's head.
    pub(crate) fn head(&self, name: &str) -> Result<RunHeader, String> {
        let directory = self.directory(name).ok_or_else(|| format!("there is no run {name:?} here"))?;
        RunDirectory::head(&directory).map_err(|error| error.to_string())
    }

    /// All runs, those that began last first; `running` are the directories of those that go on now. Where counting
    /// their cells takes longer than the limit, some have no counts.
    pub(crate) fn list(&self, running: &[PathBuf], limit: Option<Duration>) -> Vec<RunSummary> {
        let Ok(entries) = std::fs::read_dir(&self.root) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut found: Vec<(RunSummary, Option<HeadStamp>)> =
            names.take(MAX_RUNS).filter_map(|name| self.summary(&name, running)).collect();
        // Runs of one study and one second have numbers behind their names, and the tenth comes behind the ninth.
        found.sort_by(|(a, _), (b, _)| {
            (&b.started_at, b.name.len(), &b.name).cmp(&(&a.started_at, a.name.len(), &a.name))
        });
        let begun = Instant::now();
        for (summary, stamp) in &mut found {
            let may_read = limit.is_none_or(|limit| begun.elapsed() < limit);
            if let Some(stamp) = stamp {
                summary.cells = self.tally(summary, *stamp, may_read);
            }
        }
        let is_there = |name: &String| self.root.join(name).exists();
        self.heads.lock().retain(|name, _| is_there(name));
        self.counted.lock().retain(|name, _| is_there(name));
        found.into_iter().map(|(summary, _)| summary).collect()
    }

    /// Nothing of what is no run.
    fn summary(&self, name: &str, running: &[PathBuf]) -> Option<(RunSummary, Option<HeadStamp>)> {
        let empty_summary = || RunSummary { name: name.to_owned(), ..RunSummary::default() };
        let Some(directory) = self.directory(name) else {
            let problem = self.describe_missing_head(name)?;
            return Some((RunSummary { problem: Some(problem), ..empty_summary() }, None));
        };
        let found = std::fs::metadata(directory.join(HEAD)).ok()?;
        // Taken before the head is read: if that is replaced in between, the next look reads it again.
        let stamp = (found.mtime(), found.mtime_nsec(), found.len(), found.ino());
        let cached = self
            .heads
            .lock()
            .get(name)
            .filter(|(cached_stamp, _)| *cached_stamp == stamp)
            .map(|(_, head)| head.clone());
        let head = cached.unwrap_or_else(|| {
            let head = self.head(name).map(|run| RunHead {
                study: run.name,
                title: run.title,
                started_at: run.started_at,
                systems: run.systems,
                storages: run.storages,
                planned: run.plan.len(),
            });
            self.heads.lock().insert(name.to_owned(), (stamp, head.clone()));
            head
        });
        // The paths of running runs are without links.
        let real = directory.canonicalize().ok();
        let is_running = real.is_some_and(|real| running.contains(&real));
        let head = match head {
            Ok(head) => head,
            Err(problem) => {
                return Some((RunSummary { problem: Some(problem), is_running, ..empty_summary() }, None));
            }
        };
        let records = std::fs::read_dir(directory.join(CELLS)).into_iter().flatten().flatten();
        let recorded =
            records.filter(|entry| entry.path().extension().is_some_and(|ending| ending == "json")).count();
        let summary = RunSummary {
            name: name.to_owned(),
            study: head.study,
            title: head.title,
            started_at: head.started_at,
            systems: head.systems,
            storages: head.storages,
            planned: head.planned,
            recorded,
            cells: None,
            is_running,
            problem: None,
        };
        Some((summary, Some(stamp)))
    }

    /// Why a directory is no run, where it has what only runs have: one that is just being prepared has none of it yet.
    fn describe_missing_head(&self, name: &str) -> Option<String> {
        let directory = self.root.join(name);
        let is_real = std::fs::symlink_metadata(&directory).is_ok_and(|found| found.is_dir());
        if name.starts_with('.') || !is_real {
            return None;
        }
        let has_records = || {
            let mut records = std::fs::read_dir(directory.join(CELLS)).into_iter().flatten().flatten();
            records.any(|entry| entry.path().extension().is_some_and(|ending| ending == "json"))
        };
        let is_run = directory.join(FEED).exists() || has_records();
        is_run.then(|| match std::fs::symlink_metadata(directory.join(HEAD)) {
            Ok(_) => format!("its {HEAD} is not a file"),
            Err(_) => format!("its {HEAD} is missing"),
        })
    }

    fn tally(&self, summary: &RunSummary, stamp: HeadStamp, may_read: bool) -> Option<StateTally> {
        let directory = self.root.join(&summary.name);
        let changed = std::fs::metadata(directory.join(CELLS)).ok();
        let changed = changed.map_or((0, 0), |found| (found.ctime(), found.ctime_nsec()));
        let mut counted = self.counted.lock();
        let cached = counted.remove(&summary.name).filter(|cached| cached.of == stamp);
        let is_fresh =
            |cached: &CountedRecords| cached.changed == changed && cached.at.elapsed() < LOOK_AGAIN;
        let cached = match cached {
            Some(cached) if is_fresh(&cached) || !may_read => cached,
            None if !may_read => return None,
            Some(cached) if cached.changed == changed && cached.records.are_unchanged(&directory) => {
                CountedRecords { at: Instant::now(), ..cached }
            }
            cached => {
                let mut records = cached.map(|cached| cached.records).unwrap_or_default();
                // Others may list meanwhile, and count this one too.
                drop(counted);
                let run = self.head(&summary.name).ok()?;
                let tally = records.tally(&directory, &run);
                counted = self.counted.lock();
                CountedRecords { of: stamp, changed, at: Instant::now(), records, tally }
            }
        };
        let tally = cached.tally;
        counted.insert(summary.name.clone(), cached);
        Some(tally)
    }
}

#[cfg(test)]
mod tests {
    use underlay_record::CellState;

    use super::*;

    #[test]
    fn run_name_cannot_leave_directory() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("runs");
        for run in ["one", "hidden/inner"] {
            std::fs::create_dir_all(root.join(run)).unwrap();
            std::fs::write(root.join(run).join(HEAD), "{}").unwrap();
        }
        std::fs::create_dir(folder.path().join("outside")).unwrap();
        std::fs::write(folder.path().join("outside").join(HEAD), "{}").unwrap();
        std::os::unix::fs::symlink("../outside", root.join("link")).unwrap();
        let runs = RunCatalog::below(root);
        assert!(runs.directory("one").is_some());
        for wrong in ["..", ".", "", "../outside", "hidden/inner", "link", "two", "one\0", ".one"] {
            assert_eq!(runs.directory(wrong), None, "{wrong:?}");
        }
        // Other directories are passed over, and a run that can't be read is listed with the reason.
        let listed = runs.list(&[], None);
        let found: Vec<&str> = listed.iter().map(|run| run.name.as_str()).collect();
        assert_eq!(found, ["one"]);
        assert!(
            listed[0].problem.is_some() && listed[0].state() == "unreadable" && runs.head("one").is_err()
        );
    }

    #[test]
    fn search_requires_all_words() {
        let run = RunSummary {
            name: "quickstart-2026".to_owned(),
            study: "quickstart".to_owned(),
            title: Some("Three disks".to_owned()),
            started_at: "2026-11-25T02:00:00Z".to_owned(),
            systems: vec!["rocksdb".to_owned()],
            storages: vec!["hdd".to_owned(), "nvme".to_owned()],
            planned: 4,
            recorded: 4,
            cells: Some(StateTally::from_states(
                [CellState::Completed; 3].into_iter().chain([CellState::Doubtful]),
            )),
            is_running: false,
            problem: None,
        };
        for found in ["", "three NVME", "rocksdb complete", "2026-11", "doubtful"] {
            assert!(run.matches(found), "{found}");
        }
        assert!(!run.matches("three floppy") && !run.matches("running") && !run.matches("skipped"));
    }

    #[test]
    fn headless_run_is_listed_unless_being_prepared() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["prepared", "beheaded", "folder"] {
            std::fs::create_dir_all(folder.path().join(name).join(CELLS)).unwrap();
        }
        std::fs::write(folder.path().join("prepared/lock"), "").unwrap();
        std::fs::write(folder.path().join("beheaded").join(FEED), "").unwrap();
        let listed = RunCatalog::below(folder.path().to_owned()).list(&[], None);
        let found: Vec<_> = listed.iter().map(|run| (run.name.as_str(), run.problem.as_deref())).collect();
        assert_eq!(found, [("beheaded", Some("its run.json is missing"))]);
    }
}
