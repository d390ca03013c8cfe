//! Who may connect to which volume, kept beside the pool.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::error::ServerError;
use super::whole_file;
use crate::pool_file::VolumeAdmission;

const FILE: &str = "hosts.json";

/// By the volume's name. A volume that is not in it admits any host.
#[derive(Debug)]
pub(super) struct VolumeAdmissions {
    path: PathBuf,
    volumes: BTreeMap<String, VolumeAdmission>,
    /// Writing failed: the file may say one or the other.
    is_file_uncertain: bool,
}

impl VolumeAdmissions {
    /// Reads them. A file that makes no sense is an error: taken for empty it would let everybody in.
    pub(super) fn open(directory: &Path) -> Result<VolumeAdmissions, ServerError> {
        let path = directory.join(FILE);
        let volumes = match whole_file::read(&path) {
            Ok(Some(text)) => serde_json::from_slice(&text).map_err(|error| {
                let problem = format!(
                    "{} is not valid ({error}): correct it, or remove it to admit any host",
                    path.display()
                );
                ServerError::Failed(problem)
            })?,
            Ok(None) => BTreeMap::new(),
            Err(error) => return Err(ServerError::io("read", path, error)),
        };
        Ok(VolumeAdmissions { path, volumes, is_file_uncertain: false })
    }

    pub(super) fn get(&self, volume: &str) -> VolumeAdmission {
        self.volumes.get(volume).cloned().unwrap_or_default()
    }

    /// Durable once it returns. In force only then: what is not in the file would be forgotten by a restart.
    pub(super) fn set(&mut self, volume: &str, admission: VolumeAdmission) -> Result<(), ServerError> {
        if self.get(volume) == admission && !self.is_file_uncertain {
            return Ok(());
        }
        let mut volumes = self.volumes.clone();
        match admission == VolumeAdmission::default() {
            true => volumes.remove(volume),
            false => volumes.insert(volume.to_owned(), admission),
        };
        let text =
            serde_json::to_vec_pretty(&volumes).map_err(|error| ServerError::Failed(error.to_string()))?;
        let written = whole_file::replace(&self.path, &text);
        self.is_file_uncertain = written.is_err();
        written.map_err(|error| ServerError::io("write", &self.path, error))?;
        self.volumes = volumes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use underlay_storage::stack::SecretPlaces;

    use super::*;

    #[test]
    fn admissions_are_found_again_and_nonsense_admits_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let some = VolumeAdmission {
            hosts: vec!["nqn.2014-08.org.example:a".into()],
            secrets: SecretPlaces {
                secret_env: Some("S".into()),
                controller_secret_file: Some("/etc/tank/controller".into()),
                ..SecretPlaces::default()
            },
            shared: true,
        };
        let mut admissions = VolumeAdmissions::open(folder.path()).unwrap();
        assert_eq!(admissions.get("data"), VolumeAdmission::default());
        admissions.set("data", some.clone()).unwrap();
        let mut again = VolumeAdmissions::open(folder.path()).unwrap();
        assert_eq!(again.get("data"), some);
        again.set("data", VolumeAdmission::default()).unwrap();
        assert_eq!(VolumeAdmissions::open(folder.path()).unwrap().get("data"), VolumeAdmission::default());
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert!(VolumeAdmissions::open(folder.path()).unwrap_err().to_string().contains("is not valid"));
    }

    #[test]
    fn earlier_file_version_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{ "data": { "hosts": ["nqn.2014-08.org.example:a"], "secret_env": "S", "shared": false },
                        "logs": { "hosts": ["nqn.2014-08.org.example:a"], "secret_env": null, "shared": true } }"#;
        fs::write(folder.path().join(FILE), text).unwrap();
        let admissions = VolumeAdmissions::open(folder.path()).unwrap();
        let (data, logs) = (admissions.get("data"), admissions.get("logs"));
        let places = SecretPlaces { secret_env: Some("S".into()), ..SecretPlaces::default() };
        assert_eq!((data.hosts.len(), data.secrets, data.shared), (1, places, false));
        assert_eq!((logs.hosts.len(), logs.secrets, logs.shared), (1, SecretPlaces::default(), true));
    }

    /// As after "no space": nobody may take for kept what a restart forgets.
    #[test]
    fn unwritten_admission_is_not_in_force_and_rewritten() {
        let folder = tempfile::tempdir().unwrap();
        let some =
            VolumeAdmission { hosts: vec!["nqn.2014-08.org.example:a".into()], ..VolumeAdmission::default() };
        let mut admissions = VolumeAdmissions::open(folder.path()).unwrap();
        // Nothing can be put in its place.
        let obstacle = folder.path().join("hosts.json.part");
        fs::create_dir(&obstacle).unwrap();
        assert!(admissions.set("data", some.clone()).is_err());
        assert_eq!(admissions.get("data"), VolumeAdmission::default());
        fs::remove_dir(&obstacle).unwrap();
        admissions.set("data", some.clone()).unwrap();
        assert_eq!(VolumeAdmissions::open(folder.path()).unwrap().get("data"), some);
        // Which of the two the file has is not known: it is written again even for what is in force.
        fs::create_dir(&obstacle).unwrap();
        assert!(admissions.set("data", VolumeAdmission::default()).is_err());
        fs::remove_dir(&obstacle).unwrap();
        fs::remove_file(folder.path().join(FILE)).unwrap();
        admissions.set("data", some.clone()).unwrap();
        assert_eq!(VolumeAdmissions::open(folder.path()).unwrap().get("data"), some);
    }
}
