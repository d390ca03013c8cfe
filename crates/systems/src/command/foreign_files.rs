//! Reading what a program wrote, in directories that its user can write to: no link leads out of them, and nothing but files is read.

use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags, openat2};

/// More of a file is not read.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;

/// The text of a file below one of these directories, of which the program can't move any, with whatever is no UTF-8 replaced.
///
/// # Errors
/// When it lies elsewhere, or is no file.
pub(super) fn read_below(places: &[PathBuf], path: &Path) -> io::Result<String> {
    let below = places.iter().find_map(|place| Some((place, path.strip_prefix(place).ok()?)));
    let Some((place, rest)) = below else {
        return Err(io::Error::other("it is outside of {data}, {wal}, {temp}, {scratch} and {logs}"));
    };
    read_in(&open_directory(place)?, rest)
}

/// The files in a directory below `place`, by name, with the end of their texts.
pub(super) fn texts_in(
    place: &Path,
    directory: &str,
    most_files: usize,
) -> io::Result<Vec<(String, String)>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let inner = openat2(open_directory(place)?, directory, flags, Mode::empty(), beneath())?;
    let entries = Dir::read_from(&inner)?;
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned)).collect();
    names.retain(|name| !matches!(name.as_str(), "." | ".."));
    names.sort();
    names.truncate(most_files);
    let text = |name: String| read_in(&inner, Path::new(&name)).ok().map(|text| (name, text));
    Ok(names.into_iter().filter_map(text).collect())
}

fn beneath() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
}

/// One of ours, in which the program may write.
fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

fn read_in(directory: &OwnedFd, path: &Path) -> io::Result<String> {
    // A pipe would never end, and some devices do something when they are opened.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = std::fs::File::from(openat2(directory, path, flags, Mode::empty(), beneath())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_link_leads_out_of_a_program_s_directories() {
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
        assert_eq!(texts_in(&place, "logs", 10).unwrap(), [("server.log".to_owned(), "theirs".to_owned())]);
        assert!(texts_in(&place, "out", 10).is_err());
    }
}
