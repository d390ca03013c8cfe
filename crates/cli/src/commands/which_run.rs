//! Which run is meant: the one that is named, or where none is, the newest.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use underlay_files::Folder;

use crate::exit_codes::ExitFailure;

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

/// The run of this user below `runs/` that began last. Other users' runs there do not count.
pub(super) fn newest_run() -> Result<PathBuf, ExitFailure> {
    newest_below(Path::new("runs"))
}

fn newest_below(runs: &Path) -> Result<PathBuf, ExitFailure> {
    let shown = runs.display();
    let entries = std::fs::read_dir(runs).map_err(|error| {
        ExitFailure::Mistake(format!("there is no run below {shown}/ ({error}): name its directory"))
    })?;
    let found: Vec<(SystemTime, PathBuf)> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| Folder::open(path).is_ok())
        .filter_map(|path| Some((std::fs::metadata(path.join("run.json")).ok()?.modified().ok()?, path)))
        .collect();
    let Some((_, newest)) = found.iter().max() else {
        return Err(ExitFailure::Mistake(format!(
            "there is no run of yours below {shown}/: name its directory"
        )));
    };
    // Runs of one second began in the order of their numbers, and may have written their first file in another.
    let (base, _) = base_and_number(newest);
    let of_that_second = found.iter().map(|(_, path)| path).filter(|path| base_and_number(path).0 == base);
    let last = of_that_second.max_by_key(|path| base_and_number(path).1);
    Ok(last.unwrap_or(newest).clone())
}

/// A run's directory without the number that tells it from others of the same second, and that number: 1 of the first,
/// which has none. The numbered ones are those whose name goes on behind a date and a time, `-20261129-045024`.
fn base_and_number(path: &Path) -> (&OsStr, u32) {
    let name = path.file_name().unwrap_or_default();
    let numbered = name.to_str().and_then(|text| {
        let (base, number) = text.rsplit_once('-')?;
        let (rest, time) = base.rsplit_once('-')?;
        let (_, date) = rest.rsplit_once('-')?;
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let is_timed = date.len() == 8 && time.len() == 6 && is_number(date) && is_number(time);
        Some((OsStr::new(base), number.parse::<u32>().ok().filter(|_| is_timed)?))
    });
    numbered.unwrap_or((name, 1))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    /// Of three runs that began in one second, the second one was taken, whose first file was written last.
    #[test]
    fn newest_run_of_same_second_has_highest_number() {
        let scratch = tempfile::tempdir().unwrap();
        let runs = scratch.path().join("runs");
        fs::create_dir(&runs).unwrap();
        let none = newest_below(&runs).err().map(|failure| format!("{failure:?}")).unwrap_or_default();
        assert!(none.contains("no run of yours"), "{none}");
        let begun = SystemTime::now() - Duration::from_secs(3600);
        let begin = |name: &str, after_ms: u64| {
            let folder = runs.join(name);
            fs::create_dir(&folder).unwrap();
            let head = fs::File::create(folder.join("run.json")).unwrap();
            head.set_modified(begun + Duration::from_millis(after_ms)).unwrap();
        };
        begin("other-20261129-045023", 0);
        begin("tiny-20261129-045024", 10);
        begin("tiny-20261129-045024-3", 20);
        begin("tiny-20261129-045024-2", 30);
        assert_eq!(newest_below(&runs).unwrap(), runs.join("tiny-20261129-045024-3"));
        // Ten is more than nine, and a name of the user's with a number behind it is no date.
        begin("tiny-20261129-045024-10", 15);
        begin("tiny-20261129-045024-9", 40);
        assert_eq!(newest_below(&runs).unwrap(), runs.join("tiny-20261129-045024-10"));
        begin("mine-3", 50);
        begin("mine-2", 60);
        assert_eq!(newest_below(&runs).unwrap(), runs.join("mine-2"));
    }
}
