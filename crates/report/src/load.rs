//! Reading a run directory: `run.json` beside `cells/*.json`, of which some may still be missing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use underlay_record::{Run, RunRecord, SCHEMA_VERSION};

/// Why a file of a run could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{} is not a run directory: it has no run.json. Name the directory that `underlay run` wrote.", .0.display())]
    NotARun(PathBuf),
    #[error("{} can't be read: {source}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not a record: {source}", .path.display())]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error(
        "{} has schema {found}, and this version of underlay reads schema {SCHEMA_VERSION}: \
         use the version that wrote it, or run the study again",
        .path.display()
    )]
    Schema { path: PathBuf, found: u64 },
}

/// A run as it was found: everything that could be read, and what could not.
#[derive(Debug)]
pub struct LoadedRun {
    pub run: Run,
    /// The records of finished cells, one a repetition, in the order of the plan.
    pub records: Vec<RunRecord>,
    /// Record files that exist and could not be used.
    pub broken: Vec<LoadError>,
}

impl LoadedRun {
    /// Repetitions that the run set out to do, over all cells.
    pub fn planned(&self) -> usize {
        self.run.plan.len()
    }

    /// Repetitions whose record was read.
    pub fn finished(&self) -> usize {
        self.records.len()
    }

    /// Whether some of the plan has no record: the run was interrupted, goes on still, or a file is broken.
    pub fn is_partial(&self) -> bool {
        self.finished() < self.planned()
    }
}

/// A directory that `underlay run` wrote.
pub struct RunDirectory;

impl RunDirectory {
    /// Reads `run.json` and every record of its plan that exists.
    ///
    /// A record that can't be used goes to [`LoadedRun::broken`], so that one bad file costs one cell.
    ///
    /// # Errors
    ///
    /// When `run.json` is missing, unreadable, malformed or of another schema.
    pub fn load(path: impl AsRef<Path>) -> Result<LoadedRun, LoadError> {
        let directory = path.as_ref();
        let head = directory.join("run.json");
        if !head.is_file() {
            return Err(LoadError::NotARun(directory.to_owned()));
        }
        let run: Run = read(&head)?;
        let mut records = Vec::new();
        let mut broken = Vec::new();
        for planned in &run.plan {
            let file = directory.join("cells").join(&planned.file);
            if !file.exists() {
                continue;
            }
            match read::<RunRecord>(&file) {
                Ok(record) => records.push(record),
                Err(error) => broken.push(error),
            }
        }
        Ok(LoadedRun { run, records, broken })
    }
}

/// The schema number alone, so that a record of another version is refused by its number and not by its first
/// unknown field.
#[derive(Deserialize)]
struct SchemaOnly {
    schema: u64,
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, LoadError> {
    let text =
        fs::read_to_string(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
    let parse = |source| LoadError::Parse { path: path.to_owned(), source };
    let SchemaOnly { schema } = serde_json::from_str(&text).map_err(parse)?;
    if schema != u64::from(SCHEMA_VERSION) {
        return Err(LoadError::Schema { path: path.to_owned(), found: schema });
    }
    serde_json::from_str(&text).map_err(parse)
}
