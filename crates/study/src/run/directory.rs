//! A run's directory: `run.json`, `cells/*.json`, and `work/` for what is removed at the end.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use underlay_record::{CellStatus, PlannedCell, Run, RunRecord, SCHEMA_VERSION};

use super::RunError;

/// An open run, held by one process at a time.
pub struct RunDirectory {
    path: PathBuf,
    /// Keeps the lock; the kernel lets go of it however the process ends.
    _lock: File,
}

impl RunDirectory {
    /// Makes a directory for a new run. `path` must be absent or empty.
    pub fn create(path: &Path) -> Result<Self, RunError> {
        if path.join("run.json").exists() {
            return Err(RunError::Mistake(format!(
                "{} holds a run already: name another --out, or go on with it by --resume",
                path.display()
            )));
        }
        // What stands there is someone's: none of it becomes part of a run, or is taken for one later.
        if let Ok(mut entries) = fs::read_dir(path)
            && entries.next().is_some()
        {
            return Err(RunError::Mistake(format!(
                "{} is not empty, and a run needs a directory of its own: name one that is new or empty by --out",
                path.display()
            )));
        }
        fs::create_dir_all(path.join("cells"))
            .map_err(|error| cannot("make", &path.join("cells"), &error))?;
        Self::lock(path)
    }

    /// Opens a run that was begun before.
    pub fn open(path: &Path) -> Result<Self, RunError> {
        Self::read(path)?;
        Self::lock(path)
    }

    fn lock(path: &Path) -> Result<Self, RunError> {
        let lock_path = path.join("lock");
        let lock = File::create(&lock_path).map_err(|error| cannot("make", &lock_path, &error))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            RunError::Mistake(format!("another process is running the study in {}", path.display()))
        })?;
        // Images are taken by absolute path in a daemon whose working directory is another.
        let path = path.canonicalize().map_err(|error| cannot("open", path, &error))?;
        Ok(RunDirectory { path, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn work(&self) -> PathBuf {
        self.path.join("work")
    }

    /// Where a file for each cell is.
    pub fn records(&self) -> PathBuf {
        self.path.join("cells")
    }

    pub fn write_run(&self, run: &Run) -> Result<(), RunError> {
        write_json(&self.path.join("run.json"), run)
    }

    pub fn read_run(&self) -> Result<Run, RunError> {
        RunDirectory::read(&self.path)
    }

    /// What a run was begun with, whoever holds it.
    pub fn read(path: &Path) -> Result<Run, RunError> {
        let head = path.join("run.json");
        if !head.exists() {
            return Err(RunError::Mistake(format!("{} holds no run: it has no run.json", path.display())));
        }
        let run: Run = read_json(&head)?;
        if run.schema != SCHEMA_VERSION {
            return Err(RunError::Mistake(format!(
                "{} was written with schema {}, this program knows {SCHEMA_VERSION}",
                head.display(),
                run.schema
            )));
        }
        Ok(run)
    }

    pub fn write_cell(&self, planned: &PlannedCell, record: &RunRecord) -> Result<(), RunError> {
        write_json(&self.records().join(&planned.file), record)
    }

    /// Whether a cell needs no further run: it completed. Failed ones are tried again, the reason may be mended.
    ///
    /// A file that is no whole record is no finished cell either, and `damaged` is told of it.
    ///
    /// # Errors
    /// When a record is there and can't be read, so that nobody knows what it holds.
    pub fn is_finished(
        &self,
        planned: &PlannedCell,
        damaged: &mut dyn FnMut(&str),
    ) -> Result<bool, RunError> {
        let path = self.records().join(&planned.file);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                damaged(&format!("{} is damaged ({error}): its cell is run again", path.display()));
                return Ok(false);
            }
            Err(error) => return Err(cannot("read", &path, &error)),
        };
        match serde_json::from_str::<RunRecord>(&text) {
            Ok(record) => Ok(record.status == CellStatus::Completed),
            Err(error) => {
                damaged(&format!("{} is damaged ({error}): its cell is run again", path.display()));
                Ok(false)
            }
        }
    }

    /// Removes the lock's file; the lock itself goes with this value.
    pub fn remove_lock(&self) {
        let _ = fs::remove_file(self.path.join("lock"));
    }
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> RunError {
    RunError::Mistake(format!("cannot {what} {}: {error}", path.display()))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, RunError> {
    let text = fs::read_to_string(path).map_err(|error| cannot("read", path, &error))?;
    serde_json::from_str(&text)
        .map_err(|error| RunError::Mistake(format!("{} is not what a run writes: {error}", path.display())))
}

/// Writes beside and renames, so that a crash leaves the old file or the new one.
fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), RunError> {
    let beside = path.with_extension("json.part");
    let text = serde_json::to_string_pretty(value).expect("records have string keys only");
    File::create(&beside)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&beside, path))
        .map_err(|error| RunError::Failed(format!("cannot write {}: {error}", path.display())))
}
