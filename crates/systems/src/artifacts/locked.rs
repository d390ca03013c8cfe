//! The list of files that must be there, and how a directory compares with it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

const BUFFER_BYTES: usize = 256 << 10;
const HASH_BYTES: usize = 32;

/// One file of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockedFile {
    pub name: String,
    pub bytes: u64,
    pub sha256: [u8; HASH_BYTES],
}

/// Reads lines `SHA-256 BYTES NAME`. An error names its line, counted from 1.
pub(super) fn parse(text: &str) -> Result<Vec<LockedFile>, (usize, String)> {
    let mut files: Vec<LockedFile> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let wrong = |problem: &str| (index + 1, problem.to_owned());
        let mut words = line.split(' ');
        let (Some(hash), Some(bytes), Some(name), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(wrong("expected SHA-256, bytes and name"));
        };
        let sha256 = hash_of(hash).ok_or_else(|| wrong("a SHA-256 has 64 hexadecimal digits"))?;
        let bytes = bytes.parse().map_err(|_| wrong("the size is not a whole number of bytes"))?;
        // The name is appended to the path of a directory: it must not lead out of it.
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            return Err(wrong("the name is not a plain file name"));
        }
        if files.iter().any(|file| file.name == name) {
            return Err(wrong("the name appears twice"));
        }
        files.push(LockedFile { name: name.to_owned(), bytes, sha256 });
    }
    if files.is_empty() {
        return Err((1, "it is empty".to_owned()));
    }
    Ok(files)
}

fn hash_of(text: &str) -> Option<[u8; HASH_BYTES]> {
    if text.len() != 2 * HASH_BYTES {
        return None;
    }
    let mut hash = [0; HASH_BYTES];
    base16ct::mixed::decode(text, &mut hash).ok()?;
    Some(hash)
}

/// How `directory` differs from `files`: `None` if it holds exactly these.
pub(super) fn difference(directory: &Path, files: &[LockedFile]) -> Option<String> {
    let found = match std::fs::read_dir(directory) {
        Ok(found) => found,
        Err(error) => return Some(format!("{} can't be read: {error}", directory.display())),
    };
    for entry in found {
        let name = match entry {
            Ok(entry) => entry.file_name(),
            Err(error) => return Some(format!("{} can't be read: {error}", directory.display())),
        };
        if !files.iter().any(|file| name == file.name.as_str()) {
            return Some(format!("{} is not on the list", name.display()));
        }
    }
    files.iter().find_map(|file| match digest(&directory.join(&file.name)) {
        Err(error) => Some(format!("{} can't be read: {error}", file.name)),
        Ok((bytes, _)) if bytes != file.bytes => {
            Some(format!("{} has {bytes} bytes and not {}", file.name, file.bytes))
        }
        Ok((_, sha256)) if sha256 != file.sha256 => Some(format!("{} has another SHA-256", file.name)),
        Ok(_) => None,
    })
}

fn digest(path: &Path) -> std::io::Result<(u64, [u8; HASH_BYTES])> {
    let mut file = File::open(path)?;
    let (mut hasher, mut bytes) = (Sha256::new(), 0);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok((bytes, hasher.finalize().into()));
        }
        hasher.update(&buffer[..count]);
        bytes += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad 3 abc.jar";

    #[test]
    fn bundled_lists_can_be_read() {
        let files = crate::artifacts::CASSANDRA.files().unwrap();
        assert!(files.iter().any(|file| file.name.starts_with("cassandra-all-5.0.")));
        assert!(files.iter().map(|file| file.bytes).sum::<u64>() > 10_000_000);
        let version = crate::artifacts::CASSANDRA.version_of("cassandra-all").unwrap();
        assert!(version.starts_with("5.0."), "{version}");
        assert_eq!(crate::artifacts::CASSANDRA.version_of("cassandra"), None);
        // Servers of one version: they refuse each other otherwise.
        let hadoop = ["hadoop-hdfs", "hadoop-yarn-server-nodemanager", "hadoop-mapreduce-examples"];
        let versions = hadoop.map(|artifact| crate::artifacts::HADOOP.version_of(artifact).unwrap());
        assert!(versions.iter().all(|version| version == "3.4.2"), "{versions:?}");
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        assert_eq!(parse(ABC).unwrap()[0].bytes, 3);
        for (text, problem) in [
            (String::new(), "empty"),
            (format!("{ABC} x"), "expected"),
            (format!("{ABC}\n{ABC}"), "twice"),
            (ABC.replace("abc", "../abc"), "plain"),
            (ABC.replace("abc", "a/bc"), "plain"),
            (ABC.replace(" 3 ", " -3 "), "whole number"),
            (ABC.replacen('b', "", 1), "64"),
            (ABC.replacen('b', "ä", 1), "64"),
        ] {
            let (line, found) = parse(&text).unwrap_err();
            assert!(found.contains(problem), "{text}: {found}");
            assert_eq!(line, text.lines().count().max(1));
        }
    }

    #[test]
    fn differences_are_all_found() {
        let files = parse(ABC).unwrap();
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("abc.jar");
        assert!(difference(directory.path(), &files).unwrap().contains("can't be read"));
        std::fs::write(&path, "abd").unwrap();
        assert!(difference(directory.path(), &files).unwrap().contains("another SHA-256"));
        std::fs::write(&path, "abcd").unwrap();
        assert!(difference(directory.path(), &files).unwrap().contains("4 bytes and not 3"));
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(difference(directory.path(), &files), None);
        std::fs::write(directory.path().join("more.jar"), "").unwrap();
        assert!(difference(directory.path(), &files).unwrap().contains("more.jar is not on the list"));
    }
}
