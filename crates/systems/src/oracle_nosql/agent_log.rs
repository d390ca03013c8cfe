//! An agent's log since a moment, of how its services ended. The log is rotated: `sn1_0.log` becomes `sn1_1.log`, and a
//! new one begins.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// More than any configuration keeps of a log.
const MAX_GENERATIONS: usize = 100;
/// Far more than a run's logs.
const MAX_BYTES: u64 = 1 << 30;
/// A longer line is read in parts.
const MAX_LINE_BYTES: u64 = 64 << 10;
const MAX_FOUND: usize = 100;

/// A place in a log.
#[derive(Clone, Debug)]
pub(super) struct LogPlace {
    /// The newest generation.
    log: PathBuf,
    /// The file that had this name, by device and inode, which it keeps under its later names. `None` where there was
    /// none.
    file: Option<(u64, u64)>,
    bytes: u64,
}

impl LogPlace {
    /// The end of a log as it is now.
    pub(super) fn end_of(log: &Path) -> LogPlace {
        let found = std::fs::metadata(log).ok();
        LogPlace {
            log: log.to_owned(),
            file: found.as_ref().map(id_of),
            bytes: found.map_or(0, |found| found.len()),
        }
    }

    /// The lines behind it that tell that the agent killed a service, or how one failed, oldest first.
    ///
    /// # Errors
    /// When the log can't be read, or was rotated so often that a part of it is gone (`InvalidData`).
    pub(super) fn unclean_ends(&self) -> io::Result<Vec<String>> {
        let mut files = Vec::new();
        let mut seen = BTreeSet::new();
        let mut is_reached = false;
        for generation in 0..MAX_GENERATIONS {
            let mut file = match File::open(self.generation(generation)) {
                // The first of a log that was to be there is missed.
                Err(error) if error.kind() == io::ErrorKind::NotFound && generation > 0 => break,
                opened => opened?,
            };
            let found = file.metadata()?;
            // One that was renamed meanwhile shows twice.
            if !seen.insert(id_of(&found)) {
                continue;
            }
            is_reached = self.file == Some(id_of(&found));
            // A log that was cut short and begun anew is read whole.
            if is_reached && found.len() >= self.bytes {
                file.seek(SeekFrom::Start(self.bytes))?;
            }
            files.push(file);
            if is_reached {
                break;
            }
        }
        if self.file.is_some() && !is_reached {
            let problem = "it was rotated so often that a part of it is gone";
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        let mut ends = Vec::new();
        let mut left = MAX_BYTES;
        for file in files.into_iter().rev() {
            let mut lines = BufReader::new(file);
            loop {
                let mut line = Vec::new();
                let read = (&mut lines).take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? as u64;
                left = left
                    .checked_sub(read)
                    .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is too long to be read"))?;
                if read == 0 {
                    break;
                }
                let line = String::from_utf8_lossy(&line);
                if is_unclean(&line) && ends.len() < MAX_FOUND {
                    ends.push(line.trim().to_owned());
                }
            }
        }
        Ok(ends)
    }

    /// `sn1_0.log`, `sn1_1.log` and so on.
    fn generation(&self, number: usize) -> PathBuf {
        let name = self.log.file_name().unwrap_or_default().to_string_lossy();
        match name.strip_suffix("_0.log") {
            Some(stem) => self.log.with_file_name(format!("{stem}_{number}.log")),
            None if number == 0 => self.log.clone(),
            None => self.log.with_file_name(format!("{name}.{number}")),
        }
    }
}

fn id_of(file: &std::fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn is_unclean(line: &str) -> bool {
    let code = line.split_once("exited, exit code: ").map(|(_, code)| code.trim());
    code.is_some_and(|code| code != "0") || line.contains("it will be killed")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const KILLED: &str = "[sn1] rg1-rn1: ProcessMonitor: exited, exit code: 137\n";
    const ENDED: &str =
        "[sn1] rg1-rn1: ProcessMonitor: exited, exit code: 0\n[sn1] restart requested for exit code: 0\n";
    const LATE: &str = "[sn1] Service did not exiting cleanly in 240000 milliseconds, it will be killed";

    fn append(log: &Path, text: &str) {
        use std::io::Write as _;
        File::options().create(true).append(true).open(log).unwrap().write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn killed_service_did_not_end_cleanly() {
        let folder = tempfile::TempDir::new().unwrap();
        let log = folder.path().join("sn1_0.log");
        let begin = LogPlace::end_of(&log);
        assert!(begin.unclean_ends().is_err(), "there is no log");
        append(&log, KILLED);
        // Earlier kills were on purpose.
        let log_end = LogPlace::end_of(&log);
        append(&log, ENDED);
        assert!(log_end.unclean_ends().unwrap().is_empty());
        append(&log, LATE);
        assert_eq!(log_end.unclean_ends().unwrap(), [LATE]);
        assert_eq!(begin.unclean_ends().unwrap(), [KILLED.trim_end(), LATE]);
        fs::write(&log, ENDED).unwrap();
        assert!(log_end.unclean_ends().unwrap().is_empty(), "begun anew");
    }

    #[test]
    fn service_end_is_found_in_rotated_log() {
        let folder = tempfile::TempDir::new().unwrap();
        let log_path = |number: usize| folder.path().join(format!("sn1_{number}.log"));
        let rotate = || {
            for number in (0..3).rev().filter(|number| log_path(*number).exists()) {
                fs::rename(log_path(number), log_path(number + 1)).unwrap();
            }
        };
        append(&log_path(0), LATE);
        append(&log_path(0), "\n");
        let log_end = LogPlace::end_of(&log_path(0));
        append(&log_path(0), KILLED);
        rotate();
        append(&log_path(0), ENDED);
        rotate();
        append(&log_path(0), ENDED);
        assert_eq!(log_end.unclean_ends().unwrap(), [KILLED.trim_end()]);
        rotate();
        append(&log_path(0), ENDED);
        fs::remove_file(log_path(3)).unwrap();
        assert_eq!(log_end.unclean_ends().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn service_end_behind_many_megabytes_is_found() {
        let folder = tempfile::TempDir::new().unwrap();
        let log = folder.path().join("sn1_0.log");
        append(&log, "begun\n");
        let log_end = LogPlace::end_of(&log);
        append(&log, &"x".repeat(17 << 20));
        append(&log, "\n");
        append(&log, KILLED);
        assert_eq!(log_end.unclean_ends().unwrap(), [KILLED.trim_end()]);
    }
}
