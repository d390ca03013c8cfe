//! A run's directory: `run.json`, `cells/*.json`, and `work/` for everything that is removed at the end.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use underlay_files::{Access, Folder};
use underlay_record::{CellStatus, DisturbedBy, PlannedCell, ReadError, RunHeader, RunRecord, read};

use super::RunError;

const HEAD: &str = "run.json";
const LOCK: &str = "lock";
const CELLS: &str = "cells";
const MAX_HEAD_BYTES: u64 = 64 << 20;
const MAX_RECORD_BYTES: u64 = 256 << 20;

/// The scratch directory, below a cell's, for a server's files outside its storage.
pub(super) fn scratch_of(server: usize) -> String {
    format!("scratch-{server}")
}

/// An open run, held by one process at a time.
pub struct RunDirectory {
    /// Files are accessed through it, so that no other directory can take the place of its path.
    folder: Folder,
    cells: Folder,
    /// The directories that were created for it, from its own upwards.
    made: Vec<PathBuf>,
    /// Whether the directory of its cells was created for it.
    makes_cells: bool,
    /// Holds the lock. The kernel releases it however the process ends.
    lock: File,
}

impl RunDirectory {
    /// Makes a directory for a new run: `path`, or if another run has it, the first free one of `path-2`, `path-3` ...
    /// Two runs of one study may start in the same second.
    ///
    /// # Errors
    /// When none of them is free, or the first free one can't be made.
    pub fn create_beside_others(path: &Path) -> Result<Self, RunError> {
        const MAX_RUNS: u32 = 100;
        let numbered = |number: u32| {
            let mut name = path.as_os_str().to_owned();
            name.push(format!("-{number}"));
            PathBuf::from(name)
        };
        let mut refused = None;
        for candidate in std::iter::once(path.to_owned()).chain((2..=MAX_RUNS).map(numbered)) {
            let is_new = candidate.symlink_metadata().is_err();
            match RunDirectory::create(&candidate) {
                Ok(directory) => return Ok(directory),
                // If nothing was there before and nothing is there now, another run is not the reason.
                Err(error) if is_new && candidate.symlink_metadata().is_err() => return Err(error),
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or_else(|| RunError::Failed(format!("{} is not free", path.display()))))
    }

    /// Makes a directory for a new run. `path` must be absent or empty.
    ///
    /// # Errors
    /// When it holds a run or anything else, can't be made, or another process runs a study in it.
    pub fn create(path: &Path) -> Result<Self, RunError> {
        check_new(path)?;
        let made = missing_of(path);
        let folder =
            Folder::make(path, Access::Readable).map_err(|error| cannot("keep a run in", path, &error))?;
        // Before anything else: a process that gives up its new run removes only what it made under the lock.
        let lock = lock(&folder)?;
        check_new(path).inspect_err(|_| {
            let _ = folder.remove_file(LOCK);
        })?;
        let makes_cells = !folder.has(CELLS);
        let cells = folder.make_inner(CELLS, Access::Readable);
        let cells = cells.map_err(|error| {
            let _ = folder.remove_file(LOCK);
            cannot("make", &path.join(CELLS), &error)
        })?;
        Ok(RunDirectory { folder, cells, made, makes_cells, lock })
    }

    /// Removes what [`create`](RunDirectory::create) made for a run that was refused before it began.
    pub fn give_up(self) {
        // Only empty directories are removed. Whatever can't be removed simply stays.
        if self.makes_cells {
            let _ = self.folder.remove_empty(CELLS);
        }
        self.remove_lock();
        for path in &self.made {
            if fs::remove_dir(path).is_err() {
                break;
            }
        }
    }

    /// Opens an existing run.
    ///
    /// # Errors
    /// When it holds no run, can't be opened, or another process runs it.
    pub fn open(path: &Path) -> Result<Self, RunError> {
        let folder = open_run(path)?;
        let cells = folder.inner(CELLS).map_err(|error| cannot("open", &path.join(CELLS), &error))?;
        let lock = lock(&folder)?;
        let opened = RunDirectory { folder, cells, made: Vec::new(), makes_cells: false, lock };
        // Left by a process that was killed while it wrote them: raw logs may be long.
        let tidied = opened.cells.remove_parts();
        tidied.map_err(|error| cannot("tidy", opened.cells.path(), &error))?;
        Ok(opened)
    }

    /// Absolute, since a daemon that opens images by path has another working directory.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn work(&self) -> PathBuf {
        self.path().join("work")
    }

    /// Where a file for each cell is.
    pub fn records(&self) -> PathBuf {
        self.cells.path().to_path_buf()
    }

    /// # Errors
    /// When it can't be written.
    pub fn write_run(&self, run: &RunHeader) -> Result<(), RunError> {
        write_json(&self.folder, HEAD, run)
    }

    /// Writes the end of a run. The file keeps its modification time: the newest run is the one that began last.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn write_ended_run(&self, run: &RunHeader) -> Result<(), RunError> {
        let modified = self.folder.file(HEAD).and_then(|head| head.metadata()?.modified());
        self.write_run(run)?;
        if let Ok(modified) = modified {
            // If this fails, commands without a name take this run for the newest.
            let _ = self.folder.file(HEAD).and_then(|head| head.set_modified(modified));
        }
        Ok(())
    }

    /// # Errors
    /// When it can't be read, or is not a run's head.
    pub fn read_run(&self) -> Result<RunHeader, RunError> {
        read_head(&self.folder)
    }

    /// A run's header, even while another process holds its lock.
    ///
    /// # Errors
    /// When there is no run, or its head can't be read.
    pub fn read(path: &Path) -> Result<RunHeader, RunError> {
        read_head(&open_run(path)?)
    }

    /// # Errors
    /// When it can't be written.
    pub fn write_cell(&self, planned: &PlannedCell, record: &RunRecord) -> Result<(), RunError> {
        write_json(&self.cells, &planned.file, record)
    }

    /// Whether a cell has completed and needs no further run. Failed cells run again, since their cause may have been
    /// mended. So do cells disturbed by hand, which `tell` reports.
    ///
    /// An incomplete record does not count as finished either, and `tell` reports it too. A record of another scale was
    /// left when the run began again in slower motion.
    ///
    /// # Errors
    /// When a record exists but can't be read, so that its contents are unknown, or is of a later version.
    pub fn is_finished(
        &self,
        planned: &PlannedCell,
        run: &RunHeader,
        tell: &mut dyn FnMut(&str),
    ) -> Result<bool, RunError> {
        let path = self.records().join(&planned.file);
        let again =
            |problem: String| format!("{} is damaged ({problem}): its cell is run again", path.display());
        let text = match self.cells.read_text(&planned.file, MAX_RECORD_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            // Too long or not text: no run has written it like this.
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                tell(&again(error.to_string()));
                return Ok(false);
            }
            Err(error) => return Err(cannot("read", &path, &error)),
        };
        match read::cell(&text) {
            Ok(record) if !planned.is_recorded_by(&record) => {
                tell(&again(format!("it belongs to {}, repetition {}", record.cell.id, record.repetition)));
                Ok(false)
            }
            Ok(mut record) => {
                // Old records do not say who requested a fault, and the study's own faults are no disturbance.
                run.attribute_faults(&mut record);
                let is_completed = record.status == CellStatus::Completed && record.scale == run.scale;
                let is_disturbed = record.disturbed_by() == Some(DisturbedBy::Hand);
                if is_completed && is_disturbed {
                    tell(&format!(
                        "{}, repetition {}, was disturbed by hand ({}): it is measured again",
                        record.cell.id,
                        record.repetition,
                        record.disturbances_in_words()
                    ));
                }
                Ok(is_completed && !is_disturbed)
            }
            // A later version may have measured it well; running it again would overwrite that.
            Err(error @ ReadError::Schema { .. }) => Err(RunError::Mistake(format!(
                "{} is refused: {error}. To measure only its cell again, move this file away",
                path.display()
            ))),
            Err(error) => {
                tell(&again(error.to_string()));
                Ok(false)
            }
        }
    }

    /// Begins a run again at another scale. The header is written first: records of another scale than the header's do
    /// not count, whenever this is interrupted.
    ///
    /// # Errors
    /// When something can't be written or removed.
    pub fn begin_again(&self, run: &RunHeader) -> Result<(), RunError> {
        self.write_run(run)?;
        for planned in &run.plan {
            let record = Path::new(&planned.file);
            for name in [record, &record.with_extension("parquet"), &record.with_extension("log")] {
                let removed = self.cells.remove_if_there(&name.to_string_lossy());
                removed.map_err(|error| cannot("remove", &self.records().join(name), &error))?;
            }
        }
        Ok(())
    }

    /// Removes the lock file, unless it already belongs to another process. The lock itself is released with this
    /// value.
    fn remove_lock(&self) {
        if self.folder.holds(LOCK, &self.lock) {
            let _ = self.folder.remove_file(LOCK);
        }
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        self.remove_lock();
    }
}

/// Whether a new run may be kept there. Creates nothing.
fn check_new(path: &Path) -> Result<(), RunError> {
    if path.join(HEAD).exists() {
        return Err(RunError::Mistake(format!(
            "{} already holds a run: choose another --out, or continue it with --resume",
            path.display()
        )));
    }
    // Existing files there belong to someone: none may become part of a run, or be mistaken for one later.
    let Ok(entries) = fs::read_dir(path) else { return Ok(()) };
    let is_empty = |path: &Path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    for entry in entries.flatten() {
        // From a process that was killed before its run began, or that is about to begin it and holds the lock.
        let is_lock = || entry.metadata().is_ok_and(|found| found.is_file() && found.len() == 0);
        let is_ours =
            entry.file_name() == LOCK && is_lock() || entry.file_name() == CELLS && is_empty(&entry.path());
        if !is_ours {
            return Err(RunError::Mistake(format!(
                "{} is not empty, but a run needs a directory of its own: choose a new or empty one with --out",
                path.display()
            )));
        }
    }
    Ok(())
}

/// The directories that creating this one would create, from itself upwards.
fn missing_of(path: &Path) -> Vec<PathBuf> {
    let Ok(path) = std::path::absolute(path) else { return Vec::new() };
    let missing = path.ancestors().take_while(|path| path.symlink_metadata().is_err());
    missing.map(Path::to_path_buf).collect()
}

fn lock(folder: &Folder) -> Result<File, RunError> {
    let already_locked =
        || RunError::Mistake(format!("another process is running the study in {}", folder.path().display()));
    let lock = folder.file(LOCK).map_err(|error| cannot("make", &folder.path().join(LOCK), &error))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| already_locked())?;
    // The last holder may have removed the file in between, and a third process may have locked a new one.
    if folder.holds(LOCK, &lock) { Ok(lock) } else { Err(already_locked()) }
}

fn open_run(path: &Path) -> Result<Folder, RunError> {
    if !path.join(HEAD).exists() {
        return Err(RunError::Mistake(format!("{} contains no run: it has no run.json", path.display())));
    }
    Folder::open(path).map_err(|error| cannot("continue the run in", path, &error))
}

fn read_head(folder: &Folder) -> Result<RunHeader, RunError> {
    let head = folder.path().join(HEAD);
    let text = folder.read_text(HEAD, MAX_HEAD_BYTES).map_err(|error| cannot("read", &head, &error))?;
    let refused = |problem: String| RunError::Mistake(format!("{} is refused: {problem}", head.display()));
    let run = read::run(&text).map_err(|error| refused(error.to_string()))?;
    run.check_files().and_then(|()| run.check_scale()).map_err(refused)?;
    Ok(run)
}

fn cannot(action: &str, path: &Path, error: &std::io::Error) -> RunError {
    let text = format!("cannot {action} {}: {error}", path.display());
    match underlay_files::is_storage_failure(error) {
        true => RunError::Failed(text),
        false => RunError::Mistake(text),
    }
}

fn write_json<T: Serialize>(folder: &Folder, name: &str, value: &T) -> Result<(), RunError> {
    let text = serde_json::to_string_pretty(value).expect("records have string keys only");
    folder.replace(name, Access::Readable, text.as_bytes()).map_err(|error| {
        RunError::Failed(format!("cannot write {}: {error}", folder.path().join(name).display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_of_removed_file_is_void() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::open(scratch.path()).unwrap();
        let opened = folder.file(LOCK).unwrap();
        assert!(folder.holds(LOCK, &opened));
        folder.remove_file(LOCK).unwrap();
        assert!(!folder.holds(LOCK, &opened));
        // A third process has made its own lock file.
        let theirs = folder.file(LOCK).unwrap();
        assert!(!folder.holds(LOCK, &opened));
        assert!(folder.holds(LOCK, &theirs));
    }

    #[test]
    fn runs_in_same_second_have_own_directories() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("runs/tiny-20261129-045024");
        let first = RunDirectory::create_beside_others(&path).unwrap();
        let second = RunDirectory::create_beside_others(&path).unwrap();
        assert_eq!(first.path(), path);
        assert_eq!(second.path(), scratch.path().join("runs/tiny-20261129-045024-2"));
        // A run that has ended keeps its directory, and a directory without a run is left alone.
        drop(second);
        fs::write(path.with_file_name("tiny-20261129-045024-2").join(HEAD), "{}").unwrap();
        fs::write(path.with_file_name("tiny-20261129-045024-3"), "a file").unwrap();
        let fourth = RunDirectory::create_beside_others(&path).unwrap();
        assert_eq!(fourth.path(), scratch.path().join("runs/tiny-20261129-045024-4"));
        fourth.give_up();
        first.give_up();
        assert!(!path.exists() && path.with_file_name("tiny-20261129-045024-3").is_file());
    }

    #[test]
    fn abandoned_run_leaves_earlier_files() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("runs/of/mine");
        let first = RunDirectory::create(&path).unwrap();
        let refused = RunDirectory::create(&path).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains("another process is running"), "{refused}");
        assert!(path.join(CELLS).is_dir(), "the one that is refused takes nothing away");
        first.give_up();
        assert!(!scratch.path().join("runs").exists());
        // What a killed process left of a run that never began is not a run.
        fs::create_dir_all(path.join(CELLS)).unwrap();
        fs::write(path.join(LOCK), "").unwrap();
        RunDirectory::create(&path).unwrap().give_up();
        assert!(path.join(CELLS).is_dir() && !path.join(LOCK).exists());
        fs::write(path.join(LOCK), "of somebody's door").unwrap();
        let refused = RunDirectory::create(&path).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains("is not empty"), "{refused}");
        fs::remove_file(path.join(LOCK)).unwrap();
        fs::create_dir_all(path.join("cells/theirs")).unwrap();
        let refused = RunDirectory::create(&path).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains("is not empty"), "{refused}");
        assert!(path.join("cells/theirs").is_dir());
    }
}
