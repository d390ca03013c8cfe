//! The daemon's side: volumes become mounted directories.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;
use underlay_sync::Instant;

use fuser::{BackgroundSession, Config, Session, SessionACL};
use serde::{Deserialize, Serialize};
use underlay_storage::device::BlockDevice;
use underlay_storage::journal::JournalError;
use underlay_storage::stack::{PacingMode, Stack};

use super::core::{DirectoryCore, OpenError};
use super::fuse::FuseRequestHandler;
use super::mount;
use crate::machine::error::AttachError;
use crate::machine::mounts;
use crate::serving::daemon::control::VolumeInfo;

/// A volume to show as a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryConfig {
    pub mount_point: PathBuf,
    /// The source name of the mount.
    pub source: String,
    /// Begins with an empty directory, and discards the volume's files.
    pub format: bool,
}

/// Threads that accept requests. Two keep two cores busy; a throttled name change may block one of them.
const THREADS: usize = 4;
/// The kernel's remaining writes proceed at this machine's own pace.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(60);

/// Directories in use.
pub(crate) struct ServedDirectories {
    directories: Vec<(DirectoryConfig, Arc<DirectoryCore>, BackgroundSession)>,
    volumes: Vec<VolumeInfo>,
}

impl ServedDirectories {
    /// Opens or creates the file system of each volume and mounts it. The devices stay at the immediate pace.
    pub(crate) fn start(
        directories: &[DirectoryConfig],
        names: &[&str],
        stack: &Stack,
    ) -> Result<ServedDirectories, AttachError> {
        stack.set_pace(PacingMode::Immediate);
        let mut serving = ServedDirectories { directories: Vec::new(), volumes: Vec::new() };
        for ((directory, device), name) in directories.iter().zip(stack.volumes()).zip(names) {
            match serve(directory, device, name) {
                Ok((core, session)) => serving.directories.push((directory.clone(), core, session)),
                Err(error) => {
                    // The first error is the one to report.
                    let _ = serving.stop(false);
                    return Err(error);
                }
            }
            let geometry = device.geometry();
            serving.volumes.push(VolumeInfo {
                name: (*name).to_owned(),
                capacity_bytes: geometry.capacity_bytes,
                block_bytes: geometry.block_bytes,
            });
        }
        Ok(serving)
    }

    pub(crate) fn volumes(&self) -> &[VolumeInfo] {
        &self.volumes
    }

    /// Whether nothing is mounted any more.
    pub(crate) fn is_over(&self) -> bool {
        self.directories.iter().all(|(_, _, session)| session.guard.is_finished())
    }

    /// The function to call when the devices have lost their power: memory then differs from them.
    pub(crate) fn abandoner(&self) -> impl Fn() + Send + Sync + 'static {
        let cores: Vec<Weak<DirectoryCore>> =
            self.directories.iter().map(|(_, core, _)| Arc::downgrade(core)).collect();
        move || cores.iter().filter_map(Weak::upgrade).for_each(|core| core.abandon())
    }

    /// Unmounts, and makes everything durable, unless a power cut of the devices `lost` it.
    pub(crate) fn stop(self, lost: bool) -> Result<(), AttachError> {
        let mut outcome = Ok(());
        for (directory, core, session) in self.directories {
            let unmounted = mounts::try_unmount(&directory.mount_point, UNMOUNT_LIMIT);
            if !lost && let Err(errno) = core.close() {
                let place = directory.mount_point.display();
                outcome = Err(AttachError::failed(format!(
                    "{place} could not be made durable ({errno}): unsynced writes are lost"
                )));
            }
            if let Err(error) = unmounted {
                // Dead but visible, so that `underlay clean` finds it.
                tracing::warn!("left mounted: {}", mounts::explain(&directory.mount_point, error));
                std::mem::forget(session);
                continue;
            }
            let deadline = Instant::now() + Duration::from_secs(2);
            while !session.guard.is_finished() && Instant::now() < deadline {
                underlay_sync::thread::sleep(Duration::from_millis(2));
            }
        }
        outcome
    }
}

fn serve(
    directory: &DirectoryConfig,
    device: &Arc<dyn BlockDevice>,
    name: &str,
) -> Result<(Arc<DirectoryCore>, BackgroundSession), AttachError> {
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let core = match directory.format {
        true => DirectoryCore::format(Arc::clone(device), owner),
        false => DirectoryCore::open(Arc::clone(device)),
    };
    let core = core.map_err(|error| {
        let problem = format!("volume '{name}' can't be a directory: {error}");
        match error {
            OpenError::NothingThere
            | OpenError::Journal(JournalError::Damaged { .. } | JournalError::OtherKind { .. })
            | OpenError::Damaged(_) => AttachError::NoFilesystem(problem),
            _ => AttachError::failed(problem),
        }
    })?;
    let connection = mount::mount(&directory.mount_point, &directory.source)?;
    let mut config = Config::default();
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    // The kernel keeps other users out; its own requests come in the name of root.
    let session =
        Session::from_fd(FuseRequestHandler::new(Arc::clone(&core)), connection, SessionACL::All, config)
            .and_then(Session::spawn);
    match session {
        Ok(session) => Ok((core, session)),
        Err(error) => {
            let _ = mounts::try_unmount(&directory.mount_point, UNMOUNT_LIMIT);
            Err(AttachError::io("serve the directory on", &directory.mount_point, error))
        }
    }
}
