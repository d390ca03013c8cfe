//! Where a job's files are: on the storage under test, in the directories of the cell, or somewhere on the host, which
//! is refused.

/// The storage under test.
const STORAGE: [&str; 4] = ["data", "wal", "temp", "device"];
/// The cell's own directories, on this host's disk.
const HOST: [&str; 2] = ["scratch", "logs"];

/// Where a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilePlace {
    Storage,
    Host,
}

/// The mistake in a path, and the expected one.
type PathRefusal = (String, String);

/// Where the paths of a value are: on the host where one of them is. Nothing where one of them is nowhere known.
pub(super) fn place_of(value: &str) -> Option<FilePlace> {
    let places: Option<Vec<FilePlace>> =
        split(value).iter().map(|path| anchored(path).map(|(place, _)| place)).collect();
    let places = places?;
    match places.contains(&FilePlace::Host) {
        true => Some(FilePlace::Host),
        false if places.is_empty() => None,
        false => Some(FilePlace::Storage),
    }
}

/// `filename`: several are separated by colons. With a `directory`, fio puts that in front of each.
pub(super) fn check_files(value: &str, has_directory: bool) -> Result<(), PathRefusal> {
    let paths = split(value);
    if paths.is_empty() {
        return Err(("names no file".to_owned(), "expected a file below {data}, or {device}".to_owned()));
    }
    for path in paths {
        if leads_out(&path) {
            return Err((
                format!("leaves its directory through `{path}`"),
                "expected a path without `..`".to_owned(),
            ));
        }
        if anchored(&path).is_none() && !(has_directory && is_relative(&path)) {
            let location = if is_relative(&path) {
                "which is relative to the working directory"
            } else {
                "which is not on the storage"
            };
            return Err((
                format!("names `{path}`, {location}"),
                "expected a file below {data}, or {device} of a storage without a file system".to_owned(),
            ));
        }
    }
    Ok(())
}

/// `directory` and `opendir`.
pub(super) fn check_directories(value: &str) -> Result<(), PathRefusal> {
    let paths = split(value);
    let expected = || "expected a directory: {data}, or one below it".to_owned();
    if paths.is_empty() {
        return Err(("names no directory".to_owned(), expected()));
    }
    for path in paths {
        if leads_out(&path) {
            return Err((
                format!("leaves its directory through `{path}`"),
                "expected a path without `..`".to_owned(),
            ));
        }
        if anchored(&path).is_none_or(|(_, word)| word == "device") {
            return Err((format!("names `{path}`, which is not on the storage"), expected()));
        }
    }
    Ok(())
}

/// A log: relative ones are in `{scratch}`, the working directory.
pub(super) fn check_log(value: &str) -> Result<(), PathRefusal> {
    let expected = || "expected a log below {logs}, which are kept, or {scratch}".to_owned();
    for path in split(value) {
        let is_inside = match anchored(&path) {
            Some((place, _)) => place == FilePlace::Host,
            None => is_relative(&path),
        };
        if leads_out(&path) || !is_inside {
            return Err((format!("writes to `{path}`"), expected()));
        }
    }
    Ok(())
}

/// The paths of a value. A backslash keeps a colon from separating two.
fn split(value: &str) -> Vec<String> {
    let mut paths = vec![String::new()];
    let mut letters = value.trim().chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if letters.peek() == Some(&':') => {
                letters.next();
                paths.last_mut().expect("there is one from the beginning").push(':');
            }
            ':' => paths.push(String::new()),
            other => paths.last_mut().expect("there is one from the beginning").push(other),
        }
    }
    paths.retain(|path| !path.is_empty());
    paths
}

fn leads_out(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

/// Neither absolute nor standard input, nor a placeholder that we do not know a place of.
fn is_relative(path: &str) -> bool {
    !path.starts_with(['/', '{', '~']) && path != "-"
}

/// The place of a path that begins with a placeholder, with its word.
fn anchored(path: &str) -> Option<(FilePlace, &str)> {
    let (word, rest) = path.strip_prefix('{')?.split_once('}')?;
    let is_whole = match word {
        "device" => rest.is_empty(),
        _ => rest.is_empty() || rest.starts_with('/'),
    };
    let place = match word {
        _ if !is_whole => return None,
        word if STORAGE.contains(&word) => FilePlace::Storage,
        word if HOST.contains(&word) => FilePlace::Host,
        _ => return None,
    };
    Some((place, word))
}
