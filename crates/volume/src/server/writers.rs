//! Which host writes to which volume, kept beside the pool: after a restart of the server a host that has kept writes
//! comes back to write them again, and nobody else may have written before.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use underlay_nvme::target::{HostIdentity, LeaseStore};
use underlay_sync::Mutex;

use super::error::ServerError;
use super::whole_file;

const FILE: &str = "writers.json";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct VolumeWriter {
    /// The volume's name, for people: another volume may get it.
    volume: String,
    host_nqn: String,
    host_id: [u8; 16],
    /// Which of the host's initiators, where it says so.
    #[serde(default)]
    instance: Option<u64>,
    /// It may write; otherwise it only was the last one that did.
    is_held: bool,
}

/// By the volume's identity: an export of a volume that is gone must not touch what is known of its successor under the
/// same name. Nobody writes to a volume that is not in it.
#[derive(Debug)]
pub(super) struct KnownWriters {
    path: PathBuf,
    volumes: Mutex<BTreeMap<u64, VolumeWriter>>,
}

impl KnownWriters {
    /// Reads them. A file that makes no sense is an error: taken for empty it would let two hosts write.
    pub(super) fn open(directory: &Path) -> Result<Arc<KnownWriters>, ServerError> {
        let path = directory.join(FILE);
        let volumes = match whole_file::read(&path) {
            Ok(Some(text)) => serde_json::from_slice(&text).map_err(|error| {
                let problem = format!(
                    "{} is not valid ({error}): remove it once no host has a volume of this pool in use",
                    path.display()
                );
                ServerError::Failed(problem)
            })?,
            Ok(None) => BTreeMap::new(),
            Err(error) => return Err(ServerError::io("read", path, error)),
        };
        Ok(Arc::new(KnownWriters { path, volumes: Mutex::new(volumes) }))
    }

    /// Forgets volumes that no longer exist. Where that can't be written they are forgotten later.
    pub(super) fn keep_only(&self, identities: &BTreeSet<u64>) {
        let mut volumes = self.volumes.lock();
        let mut remaining = volumes.clone();
        remaining.retain(|identity, _| identities.contains(identity));
        if remaining.len() < volumes.len()
            && let Ok(text) = serde_json::to_vec_pretty(&remaining)
            && whole_file::replace(&self.path, &text).is_ok()
        {
            *volumes = remaining;
        }
    }

    /// The place of one volume.
    pub(super) fn store_for(self: &Arc<KnownWriters>, volume: &str, identity: u64) -> Arc<dyn LeaseStore> {
        Arc::new(WriterPlace { writers: Arc::clone(self), volume: volume.to_owned(), identity })
    }
}

struct WriterPlace {
    writers: Arc<KnownWriters>,
    volume: String,
    identity: u64,
}

impl LeaseStore for WriterPlace {
    fn load(&self) -> Option<(HostIdentity, bool)> {
        let volumes = self.writers.volumes.lock();
        let writer = volumes.get(&self.identity)?;
        let VolumeWriter { host_id, instance, is_held, .. } = *writer;
        Some((HostIdentity { nqn: writer.host_nqn.clone(), id: host_id, instance }, is_held))
    }

    fn store(&self, writer: &HostIdentity, is_held: bool) -> io::Result<()> {
        let mut volumes = self.writers.volumes.lock();
        let mut changed = volumes.clone();
        let HostIdentity { nqn, id, instance } = writer.clone();
        let volume = self.volume.clone();
        let writer = VolumeWriter { volume, host_nqn: nqn, host_id: id, instance, is_held };
        changed.insert(self.identity, writer);
        whole_file::replace(&self.writers.path, &serde_json::to_vec_pretty(&changed)?)?;
        *volumes = changed;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn writer_is_found_again_for_its_volume_only() {
        let folder = tempfile::tempdir().unwrap();
        let host = HostIdentity { nqn: "nqn.2014-08.org.example:a".into(), id: [5; 16], instance: Some(6) };
        let writers = KnownWriters::open(folder.path()).unwrap();
        writers.store_for("data", 7).store(&host, true).unwrap();
        writers.store_for("logs", 8).store(&host, true).unwrap();
        writers.store_for("logs", 8).store(&host, false).unwrap();
        let again = KnownWriters::open(folder.path()).unwrap();
        assert_eq!(again.store_for("data", 7).load(), Some((host.clone(), true)));
        let successor = again.store_for("data", 9);
        assert_eq!(successor.load(), None, "made anew under the same name");
        successor.store(&host, true).unwrap();
        again.store_for("data", 7).store(&host, false).unwrap();
        assert_eq!(successor.load(), Some((host.clone(), true)), "the export of the old one ends late");
        again.keep_only(&[8, 9].into());
        assert_eq!((again.store_for("data", 7).load(), successor.load().is_some()), (None, true));
        assert_eq!(again.store_for("logs", 8).load(), Some((host.clone(), false)));
        let obstacle = folder.path().join("writers.json.part");
        fs::create_dir(&obstacle).unwrap();
        assert!(again.store_for("logs", 8).store(&host, true).is_err());
        assert_eq!(again.store_for("logs", 8).load(), Some((host, false)));
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert!(KnownWriters::open(folder.path()).unwrap_err().to_string().contains("is not valid"));
    }
}
