//! Which run is meant: the one that is named, or where none is, the newest.

use std::path::{Path, PathBuf};

use underlay_files::Folder;

use crate::exit_codes::Failure;

/// A run's directory, for which its `run.json` stands too.
pub(super) fn run_directory(named: &Path) -> PathBuf {
    match named.parent() {
        Some(parent) if named.ends_with("run.json") && named.is_file() => match parent.as_os_str().is_empty()
        {
            true => PathBuf::from("."),
            false => parent.to_path_buf(),
        },
        _ => named.to_path_buf(),
    }
}

/// The run of this user below `runs/` that began last. What another user put there does not count.
pub(super) fn newest_run() -> Result<PathBuf, Failure> {
    let entries = std::fs::read_dir("runs").map_err(|error| {
        Failure::Mistake(format!("there is no run below runs/ ({error}): name its directory"))
    })?;
    entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| Folder::open(path).is_ok())
        .filter_map(|path| Some((std::fs::metadata(path.join("run.json")).ok()?.modified().ok()?, path)))
        .max()
        .map(|(_, path)| path)
        .ok_or_else(|| Failure::Mistake("there is no run of yours below runs/: name its directory".into()))
}
