//! A program's logs, kept next to the record of its cell.

use std::path::{Path, PathBuf};

use underlay_files::{Access, Folder};
use underlay_systems::system::System;

use super::CellError;
use super::cell_plan::CellPlan;

/// The directory of records and of logs next to them.
pub(super) struct KeptLogs {
    records: PathBuf,
}

impl KeptLogs {
    pub(super) fn new(records: &Path) -> Self {
        KeptLogs { records: records.to_path_buf() }
    }

    /// Keeps these as the logs of a cell, in place of those of an earlier attempt.
    pub(super) fn keep(&self, plan: &CellPlan<'_>, logs: &[(String, String)]) -> Result<(), String> {
        let text: String =
            logs.iter().map(|(name, text)| format!("==> {name} <==\n{}\n\n", text.trim_end())).collect();
        let name = Path::new(&plan.planned.file).with_extension("log");
        let name = name.to_string_lossy();
        let result = Folder::open(&self.records).and_then(|folder| match text.is_empty() {
            true => folder.remove_if_there(&name),
            false => folder.replace(&name, Access::Readable, text.as_bytes()),
        });
        result.map_err(|error| format!("the logs of this cell were not kept: {error}"))
    }

    /// Keeps the logs of a server that failed to start or to load, before its scratch directory is removed.
    pub(super) fn keep_on_failure<T>(
        &self,
        plan: &CellPlan<'_>,
        system: &dyn System,
        scratch: &Path,
        outcome: Result<T, CellError>,
    ) -> Result<T, CellError> {
        let Err(CellError::Failed(reason)) = outcome else { return outcome };
        Err(CellError::Failed(match self.keep(plan, &system.logs_left(scratch)) {
            Ok(()) => reason,
            Err(problem) => format!("{reason}\n{problem}"),
        }))
    }
}
