//! Reading a run directory: `run.json` beside `cells/*.json`; some of those may still be missing.

mod doubts;
pub(crate) mod origins;
mod outside;

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use underlay_files::ForeignFolder;
use underlay_record::{
    CellStatus, PlannedCell, ReadError, RunHeader, RunRecord, decoded_bytes, read as record,
};

use outside::{MAX_DISTRIBUTIONS_BYTES, MAX_HEAD_BYTES, MAX_RECORD_BYTES, MAX_RECORDS_BYTES, harmless};

pub use doubts::ReportDoubt;

/// Why a file of a run could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{} is not a run directory: it has no run.json. Name the directory that `underlay run` wrote.", .0.display())]
    NotARun(PathBuf),
    #[error("{} is a file of a run: name its directory, {}", .path.display(), .directory.display())]
    FileOfARun { path: PathBuf, directory: PathBuf },
    #[error("{} can't be read: {source}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is refused: {problem}", .path.display())]
    Refused { path: PathBuf, problem: String },
    #[error("{} can't be used: {source}", .path.display())]
    Record { path: PathBuf, source: ReadError },
    #[error(
        "{} is misplaced: it has repetition {repetition} of {cell}, where the plan has repetition {expected_repetition} of \
         {expected_cell}",
        .path.display()
    )]
    Misplaced {
        path: PathBuf,
        cell: String,
        repetition: u32,
        expected_cell: String,
        expected_repetition: u32,
    },
}

/// A run as it was found: everything that could be read, and what could not.
#[derive(Debug)]
pub struct LoadedRun {
    pub run: RunHeader,
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

    /// Whether some of the plan has no record: the run was interrupted, is under way, or a file is broken.
    pub fn is_partial(&self) -> bool {
        self.finished() < self.planned()
    }
}

/// The file that makes a directory a run.
const HEAD: &str = "run.json";

/// A directory that `underlay run` wrote.
pub struct RunDirectory;

impl RunDirectory {
    /// Reads `run.json` alone.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn head(path: &Path) -> Result<RunHeader, LoadError> {
        let folder =
            ForeignFolder::open(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
        let head = path.join(HEAD);
        let read = read(&folder, HEAD, &head, MAX_HEAD_BYTES, record::run)?;
        let (run, _) = read.ok_or_else(|| LoadError::NotARun(path.to_owned()))?;
        let checked = run.check_files().and_then(|()| run.check_scale());
        checked.map_err(|problem| LoadError::Refused { path: head, problem })?;
        Ok(run)
    }

    /// Reads the record of one cell; nothing where it has none yet.
    ///
    /// # Errors
    ///
    /// When it can't be used.
    pub fn record(
        path: &Path,
        run: &RunHeader,
        planned: &PlannedCell,
    ) -> Result<Option<RunRecord>, LoadError> {
        let unreadable = |source| LoadError::Read { path: path.to_owned(), source };
        let folder = ForeignFolder::open(path).map_err(unreadable)?;
        let Some(cells) = folder.inner("cells").map_err(unreadable)? else { return Ok(None) };
        let file = path.join("cells").join(&planned.file);
        let found = read(&cells, &planned.file, &file, MAX_RECORD_BYTES, record::cell)?;
        let Some((mut record, _)) = found else { return Ok(None) };
        run.attribute_faults(&mut record);
        let refused = |problem| LoadError::Refused { path: file.clone(), problem };
        match misplaced(planned, &record, &file).or_else(|| unusable(&record).map(refused)) {
            Some(error) => Err(error),
            None => Ok(Some(record)),
        }
    }

    /// Reads `run.json` and every record of its plan that exists.
    ///
    /// A record that can't be used goes to [`LoadedRun::broken`], so that one bad file costs one cell.
    ///
    /// # Errors
    ///
    /// When `run.json` is missing, unreadable, malformed or of another schema.
    pub fn load(path: impl AsRef<Path>) -> Result<LoadedRun, LoadError> {
        let directory = path.as_ref();
        let not_a_run = || match directory.parent() {
            Some(parent) if directory.file_name() == Some(HEAD.as_ref()) && directory.is_file() => {
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                LoadError::FileOfARun { path: directory.to_owned(), directory: parent.to_owned() }
            }
            _ => LoadError::NotARun(directory.to_owned()),
        };
        let folder = match ForeignFolder::open(directory) {
            Ok(folder) => folder,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Err(not_a_run());
            }
            Err(source) => return Err(LoadError::Read { path: directory.to_owned(), source }),
        };
        let head = directory.join(HEAD);
        let (run, _) = read(&folder, HEAD, &head, MAX_HEAD_BYTES, record::run)?.ok_or_else(not_a_run)?;
        // Before any of its names is joined to a path.
        let checked = run.check_files().and_then(|()| run.check_scale());
        checked.map_err(|problem| LoadError::Refused { path: head, problem })?;
        let cells_path = directory.join("cells");
        let cells =
            folder.inner("cells").map_err(|source| LoadError::Read { path: cells_path.clone(), source })?;
        let mut records = Vec::new();
        let mut broken = Vec::new();
        let (before_bytes, mut text_bytes) = (decoded_bytes(), 0);
        for planned in run.plan.iter().filter(|_| cells.is_some()) {
            let path = cells_path.join(&planned.file);
            // The records of all cells stay in memory together.
            let limits = [
                (text_bytes, MAX_RECORDS_BYTES, "of text"),
                (decoded_bytes() - before_bytes, MAX_DISTRIBUTIONS_BYTES, "of distributions"),
            ];
            if let Some((_, most_bytes, description)) =
                limits.into_iter().find(|(bytes, most, _)| bytes > most)
            {
                let problem =
                    format!("the records before it hold more than {} GiB {description}", most_bytes >> 30);
                broken.push(LoadError::Refused { path, problem });
                continue;
            }
            let record =
                cells.as_ref().map(|cells| read(cells, &planned.file, &path, MAX_RECORD_BYTES, record::cell));
            match record.transpose().map(Option::flatten) {
                Ok(Some((mut record, length_bytes))) => {
                    text_bytes += length_bytes;
                    run.attribute_faults(&mut record);
                    let refused = |problem| LoadError::Refused { path: path.clone(), problem };
                    match misplaced(planned, &record, &path).or_else(|| unusable(&record).map(refused)) {
                        // Left over from before the run began again in slower motion: its cell is still to run.
                        None if record.scale != run.scale => broken.push(refused(format!(
                            "it was measured at [scale] time {} and data {}, and the run has {} and {}: `underlay run --resume` measures its cell again",
                            record.scale.time, record.scale.data, run.scale.time, run.scale.data
                        ))),
                        None => records.push(record),
                        Some(error) => broken.push(error),
                    }
                }
                Ok(None) => {}
                Err(error) => broken.push(error),
            }
        }
        Ok(LoadedRun { run, records, broken })
    }
}

/// A record under another one's name must not count as its repetition.
fn misplaced(planned: &PlannedCell, record: &RunRecord, path: &Path) -> Option<LoadError> {
    (!planned.is_recorded_by(record)).then(|| LoadError::Misplaced {
        path: path.to_owned(),
        cell: record.cell.id.clone(),
        repetition: record.repetition,
        expected_cell: planned.cell.id.clone(),
        expected_repetition: planned.repetition,
    })
}

/// Counts of any run are smaller, and their sums over all of its records fit into 64 bits.
const MAX_COUNT: u64 = 1 << 48;

/// Why a record's figures can't be used, where they can't.
fn unusable(record: &RunRecord) -> Option<String> {
    let Some(measured) = &record.measured else {
        let has_none =
            record.status == CellStatus::Completed && record.job.is_none() && record.benchmark.is_none();
        return has_none.then(|| "its cell is completed, and it has no figures".to_owned());
    };
    // JSON has no NaN.
    if measured.duration_s <= 0.0 {
        return Some(format!("its measurement lasted {} s", measured.duration_s));
    }
    let of_operations = measured
        .by_operation
        .values()
        .flat_map(|stats| [stats.count, stats.missing, stats.throttled, stats.errors, stats.mismatches]);
    let of_devices = record.devices.iter().flat_map(|device| {
        let totals = device.totals;
        let counts = [totals.reads, totals.writes, totals.flushes, totals.discards];
        counts.into_iter().chain([totals.read_bytes, totals.write_bytes])
    });
    let integrity = measured.integrity.iter().flat_map(|found| [found.checked, found.mismatches]);
    let all = [measured.operations, measured.errors].into_iter().chain(of_operations);
    let largest = all.chain(of_devices).chain(integrity).max().unwrap_or(0);
    (largest > MAX_COUNT).then(|| format!("it counts {largest}, and no run has more than {MAX_COUNT}"))
}

/// With the length of its text; nothing where there is no such file. A run may be anybody's: no link is followed, and
/// `path` is for messages.
fn read<T>(
    folder: &ForeignFolder,
    name: &str,
    path: &Path,
    most_bytes: u64,
    parse: fn(&str) -> Result<T, ReadError>,
) -> Result<Option<(T, u64)>, LoadError> {
    let unreadable = |source| LoadError::Read { path: path.to_owned(), source };
    let Some(bytes) = folder.read(name, most_bytes).map_err(unreadable)? else { return Ok(None) };
    let refused = |problem| LoadError::Refused { path: path.to_owned(), problem };
    let text = String::from_utf8(bytes).map_err(|_| refused("it is not text (UTF-8)".to_owned()))?;
    let text = harmless(text).map_err(refused)?;
    let length_bytes = text.len() as u64;
    let record = parse(&text).map_err(|source| LoadError::Record { path: path.to_owned(), source })?;
    Ok(Some((record, length_bytes)))
}
