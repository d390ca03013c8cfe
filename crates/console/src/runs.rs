//! The runs below a directory: which there are, and what each is in a line.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use underlay_record::Run;
use underlay_report::RunDirectory;
use underlay_sync::UnsimulatedMutex;

/// Of one directory; more are not looked at.
const MAX_RUNS: usize = 2_000;
const HEAD: &str = "run.json";

/// What the list shows of a run.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Summary {
    /// The name of its directory.
    pub name: String,
    pub study: String,
    pub title: Option<String>,
    pub started_at: String,
    pub systems: Vec<String>,
    pub storages: Vec<String>,
    pub planned: usize,
    /// Cells with a record, whatever it says.
    pub recorded: usize,
    /// A process goes on with it now.
    pub is_running: bool,
}

impl Summary {
    pub(crate) fn state(&self) -> &'static str {
        match (self.is_running, self.recorded >= self.planned) {
            (true, _) => "running",
            (false, true) => "complete",
            (false, false) => "stopped",
        }
    }

    /// Whether all these words are somewhere in it.
    pub(crate) fn matches(&self, words: &str) -> bool {
        let mut text = format!("{} {} {}", self.name, self.study, self.state());
        let more = self.title.iter().chain(&self.systems).chain(&self.storages).chain([&self.started_at]);
        more.for_each(|part| {
            text.push(' ');
            text.push_str(part);
        });
        let text = text.to_lowercase();
        words.to_lowercase().split_whitespace().all(|word| text.contains(word))
    }
}

/// See the module.
pub(crate) struct Runs {
    root: PathBuf,
    /// By name, with that of their `run.json`; nothing of one that can't be used, so that it is not read again and again.
    heads: UnsimulatedMutex<HashMap<String, (Stamp, Option<Head>)>>,
}

/// When a file was changed, its length and its number.
type Stamp = (i64, i64, u64, u64);

#[derive(Clone)]
struct Head {
    study: String,
    title: Option<String>,
    started_at: String,
    systems: Vec<String>,
    storages: Vec<String>,
    planned: usize,
}

impl Runs {
    pub(crate) fn below(root: PathBuf) -> Runs {
        Runs { root, heads: UnsimulatedMutex::new(HashMap::new()) }
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

    /// A run's head, and what it was read from: another text has another one.
    pub(crate) fn head(&self, name: &str) -> Result<Run, String> {
        let directory = self.directory(name).ok_or_else(|| format!("there is no run {name:?} here"))?;
        RunDirectory::head(&directory).map_err(|error| error.to_string())
    }

    /// All runs, those that began last first; `running` are the directories of those that go on now.
    pub(crate) fn list(&self, running: &[PathBuf]) -> Vec<Summary> {
        let Ok(entries) = std::fs::read_dir(&self.root) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut found: Vec<Summary> =
            names.take(MAX_RUNS).filter_map(|name| self.summary(&name, running)).collect();
        found.sort_by(|a, b| (&b.started_at, &b.name).cmp(&(&a.started_at, &a.name)));
        self.heads.lock().retain(|name, _| self.root.join(name).exists());
        found
    }

    fn summary(&self, name: &str, running: &[PathBuf]) -> Option<Summary> {
        let directory = self.directory(name)?;
        let found = std::fs::metadata(directory.join(HEAD)).ok()?;
        let stamp = (found.mtime(), found.mtime_nsec(), found.len(), found.ino());
        let known = self.heads.lock().get(name).filter(|(at, _)| *at == stamp).map(|(_, head)| head.clone());
        let head = match known {
            Some(head) => head,
            None => {
                let head = self.head(name).ok().map(|run| Head {
                    study: run.name,
                    title: run.title,
                    started_at: run.started_at,
                    systems: run.systems,
                    storages: run.storages,
                    planned: run.plan.len(),
                });
                self.heads.lock().insert(name.to_owned(), (stamp, head.clone()));
                head
            }
        }?;
        let records = std::fs::read_dir(directory.join("cells")).ok()?.flatten();
        let recorded =
            records.filter(|entry| entry.path().extension().is_some_and(|ending| ending == "json")).count();
        let real = directory.canonicalize().ok();
        Some(Summary {
            name: name.to_owned(),
            study: head.study,
            title: head.title,
            started_at: head.started_at,
            systems: head.systems,
            storages: head.storages,
            planned: head.planned,
            recorded,
            is_running: real.is_some_and(|real| running.contains(&real)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_a_run_and_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("runs");
        for run in ["one", "hidden/inner"] {
            std::fs::create_dir_all(root.join(run)).unwrap();
            std::fs::write(root.join(run).join(HEAD), "{}").unwrap();
        }
        std::fs::create_dir(folder.path().join("outside")).unwrap();
        std::fs::write(folder.path().join("outside").join(HEAD), "{}").unwrap();
        std::os::unix::fs::symlink("../outside", root.join("link")).unwrap();
        let runs = Runs::below(root);
        assert!(runs.directory("one").is_some());
        for wrong in ["..", ".", "", "../outside", "hidden/inner", "link", "two", "one\0", ".one"] {
            assert_eq!(runs.directory(wrong), None, "{wrong:?}");
        }
        // What is no run is passed over.
        assert!(runs.list(&[]).is_empty() && runs.head("one").is_err());
    }

    #[test]
    fn a_search_finds_all_of_its_words() {
        let run = Summary {
            name: "quickstart-2026".to_owned(),
            study: "quickstart".to_owned(),
            title: Some("Three disks".to_owned()),
            started_at: "2026-11-25T02:00:00Z".to_owned(),
            systems: vec!["rocksdb".to_owned()],
            storages: vec!["hdd".to_owned(), "nvme".to_owned()],
            planned: 4,
            recorded: 4,
            is_running: false,
        };
        for found in ["", "three NVME", "rocksdb complete", "2026-11"] {
            assert!(run.matches(found), "{found}");
        }
        assert!(!run.matches("three floppy") && !run.matches("running"));
    }
}
