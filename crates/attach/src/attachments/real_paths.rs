//! Existing storage: directories on the user's own disks.

use std::path::{Path, PathBuf};
use underlay_sync::Mutex;

use underlay_files::{Access, Folder};
use underlay_record::{DeviceActivity, DeviceGlance};
use underlay_storage::stack::PacingMode;

use crate::attachments::attachment::{AttachSpec, AttachedStorage, Attachment, HeldResource};
use crate::machine::error::AttachError;
use crate::machine::missing::MissingCapability;
use crate::machine::mounts;
use crate::measurement::real_activity::{CounterSampler, RealDevice};
use crate::undo::registry::{OwnedResource, RegistryNote, ResourceRegistry};

/// The attachment `directory`: a fresh private directory in each of the user's paths, and nothing outside it.
#[derive(Clone, Debug)]
pub struct RealPaths {
    paths: Vec<PathBuf>,
}

impl RealPaths {
    /// `paths` are existing, writable directories, one for each disk.
    pub fn new(paths: Vec<PathBuf>) -> RealPaths {
        RealPaths { paths }
    }
}

impl Attachment for RealPaths {
    fn name(&self) -> &'static str {
        "directory"
    }

    /// Real storage requires nothing of the host. `attach` shows whether the paths can be used.
    fn probe(&self) -> Result<(), MissingCapability> {
        Ok(())
    }

    /// Uses the paths only: the stack, filesystem and mount points of the spec mean nothing to real storage.
    fn attach(
        &self,
        _spec: &AttachSpec,
        registry: &ResourceRegistry,
    ) -> Result<AttachedStorage, AttachError> {
        if self.paths.is_empty() {
            return Err(AttachError::failed("the storage names no path to attach"));
        }
        let mut directories = RealDirectories {
            made: Vec::new(),
            devices: Vec::new(),
            sampler: Mutex::new(None),
            registry: registry.clone(),
        };
        for path in &self.paths {
            directories.make_in(path)?;
        }
        let paths = directories.made.iter().map(|(path, _)| path.clone()).collect();
        Ok(AttachedStorage::new(self.name(), paths, Box::new(directories)))
    }
}

struct RealDirectories {
    made: Vec<(PathBuf, RegistryNote)>,
    /// The distinct disks below the paths, in order.
    devices: Vec<RealDevice>,
    sampler: Mutex<Option<CounterSampler>>,
    registry: ResourceRegistry,
}

impl RealDirectories {
    fn make_in(&mut self, path: &Path) -> Result<(), AttachError> {
        let parent = path.canonicalize().map_err(|error| AttachError::io("use", path, error))?;
        if !parent.is_dir() {
            return Err(AttachError::failed(format!("{} is not a directory", path.display())));
        }
        if self.made.iter().any(|(made, _)| made.parent() == Some(&parent)) {
            return Err(AttachError::failed(format!(
                "{} is {}, which another path of this storage is as well: name each directory once",
                path.display(),
                parent.display()
            )));
        }
        let directory = parent.join(underlay_files::unique_name("underlay"));
        let note = self.registry.note(OwnedResource::Tree { path: directory.clone() })?;
        if let Err(error) = Folder::make_new(&directory, Access::Private) {
            self.registry.forget(note);
            if underlay_files::is_storage_failure(&error) {
                return Err(AttachError::io("make a folder in", path, error));
            }
            // If it is refused because other users could exchange it, the message says what to do.
            let advice = match error.raw_os_error() {
                Some(_) => format!(
                    "{} can't be written to: {error}. Name a directory that this user may write to",
                    path.display()
                ),
                None => error.to_string(),
            };
            return Err(AttachError::failed(advice));
        }
        if let Some(device) = RealDevice::below(&directory)
            && !self.devices.contains(&device)
        {
            self.devices.push(device);
        }
        self.made.push((directory, note));
        Ok(())
    }

    fn sampler(&self) -> underlay_sync::MutexGuard<'_, Option<CounterSampler>> {
        self.sampler.lock()
    }
}

impl HeldResource for RealDirectories {
    fn set_pace(&self, _pace: PacingMode) -> Result<(), AttachError> {
        Ok(())
    }

    fn begin_measurement(&self, interval_s: f64) -> Result<(), AttachError> {
        *self.sampler() = Some(CounterSampler::start(self.devices.clone(), interval_s)?);
        Ok(())
    }

    /// The disks' whole traffic, since the kernel doesn't separate ours from others' on the same disk. Paths on file
    /// systems without a disk of their own (memory, network) have no entry.
    fn end_measurement(&self) -> Result<Vec<DeviceActivity>, AttachError> {
        Ok(self.sampler().take().map(CounterSampler::finish).unwrap_or_default())
    }

    fn glance(&self) -> Result<Vec<DeviceGlance>, AttachError> {
        Ok(self.devices.iter().filter_map(RealDevice::glance).collect())
    }

    fn daemon_pid(&self) -> Option<u32> {
        None
    }

    /// The disks belong to the user.
    fn has_own_devices(&self) -> bool {
        false
    }

    fn health(&self) -> Result<(), AttachError> {
        match self.made.iter().find(|(path, _)| !path.is_dir()) {
            Some((path, _)) => Err(AttachError::failed(format!("{} was removed by someone", path.display()))),
            None => Ok(()),
        }
    }

    fn detach(&mut self) -> Result<(), AttachError> {
        self.sampler().take();
        while let Some((path, _)) = self.made.last() {
            if let Some(mount) = mounts::all().into_iter().find(|mount| mount.mount_point.starts_with(path)) {
                return Err(AttachError::failed(format!(
                    "{} holds the mount {}: unmount it and try again",
                    path.display(),
                    mount.mount_point.display()
                )));
            }
            match underlay_files::remove_tree(path) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(AttachError::io("remove", path, error)),
            }
            if let Some((_, note)) = self.made.pop() {
                self.registry.forget(note);
            }
        }
        Ok(())
    }
}

impl Drop for RealDirectories {
    fn drop(&mut self) {
        let _ = self.detach();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attachments::filesystem::FilesystemKind;
    use underlay_storage::stack::StackSpec;

    #[test]
    fn own_directory_is_removed_and_others_stay() {
        let keep = tempfile::tempdir().unwrap();
        let registry = ResourceRegistry::open_at(&keep.path().join("run")).unwrap();
        let disk = keep.path().canonicalize().unwrap().join("disk");
        std::fs::create_dir_all(disk.join("underlay")).unwrap();
        std::fs::write(disk.join("underlay/theirs"), "x").unwrap();
        let spec = AttachSpec {
            stack: StackSpec { volumes: Vec::new(), dilation: 1.0, seed: 1 },
            filesystem: Some(FilesystemKind::Xfs),
            mount_root: keep.path().join("mnt"),
            format: true,
            mount_point: None,
        };
        let mut attached = RealPaths::new(vec![disk.clone()]).attach(&spec, &registry).unwrap();
        let made = attached.paths()[0].clone();
        assert!(made.starts_with(&disk) && made.is_dir() && made != disk.join("underlay"));
        attached.detach().unwrap();
        assert!(!made.exists() && disk.join("underlay/theirs").exists());
    }
}
