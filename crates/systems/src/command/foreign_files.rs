//! Reading what a program wrote, in directories that its user can write to: no link leads out of them, and nothing but
//! files is read.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags, openat2};

/// The folder in a program's scratch that `{logs}` stands for.
pub(super) const LOGS: &str = "logs";
const TAIL_LINES: usize = 40;
const TAIL_BYTES: usize = 4 << 10;
/// A longer file is refused: figures from a part of it would be wrong.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;

/// The text of a file below one of these directories, none of which the program can move. Bytes that are no UTF-8 are
/// replaced.
///
/// # Errors
/// When it lies elsewhere, or is no file.
pub(super) fn read_below(places: &[PathBuf], path: &Path) -> io::Result<String> {
    let below = places.iter().find_map(|place| Some((place, path.strip_prefix(place).ok()?)));
    let Some((place, rest)) = below else {
        return Err(io::Error::other("it is outside of {data}, {wal}, {temp}, {scratch} and {logs}"));
    };
    let file = open_in(&open_directory(place)?, rest).map_err(explain_error)?;
    let mut bytes = Vec::new();
    if file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)? as u64 > MAX_FILE_BYTES {
        let problem = format!(
            "it has more than {} MiB: have the command print only the important lines",
            MAX_FILE_BYTES >> 20
        );
        return Err(io::Error::other(problem));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Explains the kernel's error where a path may not be followed.
fn explain_error(error: io::Error) -> io::Error {
    match rustix::io::Errno::from_io_error(&error) {
        Some(rustix::io::Errno::LOOP) => {
            io::Error::other("there is a link on the way, and links are not followed")
        }
        Some(rustix::io::Errno::XDEV) => io::Error::other("it leads out of the program's directories"),
        _ => error,
    }
}

/// The end of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogEnd {
    pub name: String,
    pub modified: SystemTime,
    pub text: String,
}

/// The files in a directory below `place`, by name, with the end of their texts. Of too many, the last by name are
/// taken.
pub(super) fn texts_in(
    place: &Path,
    directory: &str,
    most_files: usize,
    most_bytes: u64,
) -> io::Result<Vec<LogEnd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let inner = openat2(open_directory(place)?, directory, flags, Mode::empty(), beneath())?;
    let entries = Dir::read_from(&inner)?;
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned)).collect();
    names.retain(|name| !matches!(name.as_str(), "." | ".."));
    names.sort();
    names.drain(..names.len().saturating_sub(most_files));
    let end = |name: String| end_in(&inner, name, most_bytes).ok();
    Ok(names.into_iter().filter_map(end).collect())
}

/// Only that much is read: a sparse file of any length costs nobody anything.
fn end_in(directory: &OwnedFd, name: String, most_bytes: u64) -> io::Result<LogEnd> {
    let mut file = open_in(directory, Path::new(&name))?;
    let found = file.metadata()?;
    file.seek(SeekFrom::Start(found.len().saturating_sub(most_bytes)))?;
    let mut bytes = Vec::new();
    file.take(most_bytes).read_to_end(&mut bytes)?;
    // A character may have been cut.
    let from = bytes.iter().take(4).position(|byte| byte & 0xc0 != 0x80).unwrap_or(0);
    let text = String::from_utf8_lossy(&bytes[from..]).into_owned();
    Ok(LogEnd { name, modified: found.modified()?, text })
}

fn beneath() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
}

/// One of ours, in which the program may write.
fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

fn open_in(directory: &OwnedFd, path: &Path) -> io::Result<std::fs::File> {
    // A pipe would never end, and some devices do something when they are opened.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = std::fs::File::from(openat2(directory, path, flags, Mode::empty(), beneath())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

/// The last lines of a text.
pub(super) fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    end_of(&lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n"), TAIL_BYTES).to_owned()
}

fn end_of(text: &str, most_bytes: usize) -> &str {
    let mut from = text.len().saturating_sub(most_bytes);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_never_lead_out_of_program_directories() {
        let folder = tempfile::tempdir().unwrap();
        let (place, secret) = (folder.path().join("scratch"), folder.path().join("secret"));
        std::fs::create_dir_all(place.join("logs/deep")).unwrap();
        std::fs::write(&secret, "ours").unwrap();
        std::fs::write(place.join("logs/server.log"), "theirs").unwrap();
        symlink(&secret, place.join("logs/stolen")).unwrap();
        symlink(folder.path(), place.join("out")).unwrap();
        let places = [place.clone()];
        let read = |name: &str| read_below(&places, &place.join(name));
        assert_eq!(read("logs/server.log").unwrap(), "theirs");
        for path in ["logs/stolen", "out/secret", "../secret", "logs", "logs/none"] {
            assert!(read(path).is_err(), "{path}");
        }
        assert!(read_below(&places, &secret).unwrap_err().to_string().contains("outside of"));
        let logs = texts_in(&place, "logs", 10, 100).unwrap();
        assert_eq!(logs.len(), 1);
        assert_eq!((logs[0].name.as_str(), logs[0].text.as_str()), ("server.log", "theirs"));
        assert!(texts_in(&place, "out", 10, 100).is_err());
    }

    #[test]
    fn long_log_is_read_at_end_long_result_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (place, logs) = (folder.path().to_owned(), folder.path().join("logs"));
        std::fs::create_dir(&logs).unwrap();
        for (name, text) in [("1", "one"), ("2", "aé two"), ("3", "three")] {
            std::fs::write(logs.join(name), text).unwrap();
        }
        let ends = texts_in(&place, "logs", 2, 5).unwrap();
        let ends: Vec<(&str, &str)> = ends.iter().map(|end| (end.name.as_str(), end.text.as_str())).collect();
        // Of `aé two` the fifth byte from the end is half of a character.
        assert_eq!(ends, [("2", " two"), ("3", "three")]);
        let long = place.join("long");
        std::fs::File::create(&long).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        assert!(read_below(&[place], &long).unwrap_err().to_string().contains("more than 64 MiB"));
    }

    #[test]
    fn tail_keeps_end() {
        let text: String = (0..100).map(|line| format!("line {line}\n")).collect();
        let kept_text = tail(&text);
        assert!(kept_text.starts_with("line 60\n") && kept_text.ends_with("line 99"));
        assert_eq!(tail(&"é".repeat(TAIL_BYTES)).len(), TAIL_BYTES);
    }
}
