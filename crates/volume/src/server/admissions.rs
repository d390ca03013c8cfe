//! Who may connect to which volume, kept beside the pool.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::error::ServerError;
use crate::pool_file::Admission;

const FILE: &str = "hosts.json";

/// By the volume's name. A volume that is not in it admits any host.
#[derive(Debug)]
pub(super) struct Admissions {
    path: PathBuf,
    volumes: BTreeMap<String, Admission>,
}

impl Admissions {
    /// Reads them. A file that makes no sense is an error: taken for empty it would let everybody in.
    pub(super) fn open(directory: &Path) -> Result<Admissions, ServerError> {
        let path = directory.join(FILE);
        let volumes = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| {
                let problem = format!(
                    "{} makes no sense ({error}): put it right, or remove it to admit any host",
                    path.display()
                );
                ServerError::Failed(problem)
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(ServerError::io("read", path, error)),
        };
        Ok(Admissions { path, volumes })
    }

    pub(super) fn of(&self, volume: &str) -> Admission {
        self.volumes.get(volume).cloned().unwrap_or_default()
    }

    /// Durable once it returns.
    pub(super) fn set(&mut self, volume: &str, admission: Admission) -> Result<(), ServerError> {
        let before = match admission == Admission::default() {
            true => self.volumes.remove(volume),
            false => self.volumes.insert(volume.to_owned(), admission.clone()),
        };
        if before.unwrap_or_default() == admission {
            return Ok(());
        }
        self.write().map_err(|error| ServerError::io("write", &self.path, error))
    }

    /// In place only when whole.
    fn write(&self) -> io::Result<()> {
        let part = self.path.with_extension("part");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        file.write_all(&serde_json::to_vec_pretty(&self.volumes)?)?;
        file.sync_all()?;
        fs::rename(&part, &self.path)?;
        self.path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_found_again_and_nonsense_lets_nobody_in() {
        let folder = tempfile::tempdir().unwrap();
        let some =
            Admission { hosts: vec!["nqn.2014-08.org.example:a".into()], secret_env: Some("S".into()) };
        let mut admissions = Admissions::open(folder.path()).unwrap();
        assert_eq!(admissions.of("data"), Admission::default());
        admissions.set("data", some.clone()).unwrap();
        let mut again = Admissions::open(folder.path()).unwrap();
        assert_eq!(again.of("data"), some);
        again.set("data", Admission::default()).unwrap();
        assert_eq!(Admissions::open(folder.path()).unwrap().of("data"), Admission::default());
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert!(Admissions::open(folder.path()).unwrap_err().to_string().contains("makes no sense"));
    }
}
