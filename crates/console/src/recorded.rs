//! The states of a run's cells from its records: one reading of them for the list of runs and for a run's own page.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use underlay_record::{CellState, PlannedCell, RunHeader};
use underlay_report::RunDirectory;

use crate::feed::CellView;

/// Of how many cells each state is true, in the order of [`CellState::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateTally([usize; CellState::ALL.len()]);

impl StateTally {
    pub(crate) fn from_states(states: impl Iterator<Item = CellState>) -> StateTally {
        let mut tally = StateTally::default();
        for state in states {
            if let Some(place) = CellState::ALL.iter().position(|other| *other == state) {
                tally.0[place] += 1;
            }
        }
        tally
    }

    /// Each state with its count, also of those that no cell has.
    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = (CellState, usize)> {
        CellState::ALL.into_iter().zip(self.0)
    }

    /// The states that some cell has.
    pub(crate) fn there(&self) -> impl DoubleEndedIterator<Item = (CellState, usize)> {
        self.all().filter(|(_, count)| *count > 0)
    }

    fn sum(&self, is_meant: impl Fn(CellState) -> bool) -> usize {
        self.all().filter(|(state, _)| is_meant(*state)).map(|(_, count)| count).sum()
    }

    pub(crate) fn total(&self) -> usize {
        self.sum(|_| true)
    }

    pub(crate) fn ended(&self) -> usize {
        self.sum(CellState::has_ended)
    }

    /// Whether every cell has figures and none of them is doubted.
    pub(crate) fn is_sound(&self) -> bool {
        self.sum(|state| state == CellState::Completed) == self.total()
    }
}

/// The identity that tells a file from its predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    changed: (i64, i64),
    length_bytes: u64,
    number: (u64, u64),
}

impl FileStamp {
    fn from_file(file: &Path) -> Option<FileStamp> {
        let found = std::fs::symlink_metadata(file).ok()?;
        Some(FileStamp {
            changed: (found.ctime(), found.ctime_nsec()),
            length_bytes: found.len(),
            number: (found.dev(), found.ino()),
        })
    }
}

/// The records of a run as they were last read: only what has changed is read again.
#[derive(Debug, Default)]
pub(crate) struct RecordedRun {
    /// By the name of its file.
    known: HashMap<String, (FileStamp, Option<CellView>)>,
}

impl RecordedRun {
    /// Each cell's record, by its place in the plan.
    pub(crate) fn read(&mut self, directory: &Path, run: &RunHeader) -> HashMap<u32, CellView> {
        let cells = directory.join("cells");
        let mut found = HashMap::new();
        for (position, planned) in (0..).zip(&run.plan) {
            let Some(stamp) = FileStamp::from_file(&cells.join(&planned.file)) else {
                self.known.remove(&planned.file);
                continue;
            };
            let view = match self.known.get(&planned.file) {
                Some((cached_stamp, view)) if *cached_stamp == stamp => view.clone(),
                _ => {
                    let view = view(directory, run, planned);
                    self.known.insert(planned.file.clone(), (stamp, view.clone()));
                    view
                }
            };
            found.extend(view.map(|view| (position, view)));
        }
        found
    }

    /// Whether the files that were read are still the same ones.
    pub(crate) fn are_unchanged(&self, directory: &Path) -> bool {
        let cells = directory.join("cells");
        self.known.iter().all(|(file, (stamp, _))| FileStamp::from_file(&cells.join(file)) == Some(*stamp))
    }

    /// How many cells of the plan are in each state, by their records alone.
    pub(crate) fn tally(&mut self, directory: &Path, run: &RunHeader) -> StateTally {
        let found = self.read(directory, run);
        let state = |position| found.get(&position).map_or(CellState::Planned, |view| view.state);
        StateTally::from_states((0..).take(run.plan.len()).map(state))
    }
}

/// Nothing where there is no record, or one that was left from before the run began again in slower motion.
fn view(directory: &Path, run: &RunHeader, planned: &PlannedCell) -> Option<CellView> {
    match RunDirectory::record(directory, run, planned) {
        Ok(Some(record)) if record.scale == run.scale => Some(CellView {
            state: CellState::from_record(&record),
            reason: record.reason(),
            wall_s: Some(record.wall_s).filter(|wall_s| *wall_s > 0.0),
            ..CellView::default()
        }),
        Ok(_) => None,
        Err(problem) => Some(CellView {
            state: CellState::Unreadable,
            reason: Some(problem.to_string()),
            ..CellView::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tally_distinguishes_sound_runs() {
        use CellState::{Completed, Doubtful, Planned, Running, Skipped, Unreadable};
        let tally = |states: &[CellState]| StateTally::from_states(states.iter().copied());
        assert!(tally(&[Completed, Completed]).is_sound());
        for other in [Doubtful, Skipped, Unreadable, Planned] {
            assert!(!tally(&[Completed, other]).is_sound(), "{other:?}");
        }
        let mixed = tally(&[Completed, Skipped, Unreadable, Running, Planned]);
        assert_eq!((mixed.total(), mixed.ended()), (5, 2), "an unreadable record is measured again");
    }
}
