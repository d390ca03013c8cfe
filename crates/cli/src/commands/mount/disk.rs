//! The folder of a disk's backing files. One that is kept remembers what kind of disk it is.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use underlay_attach::{FilesystemKind, OwnFolder, ResourceRegistry};
use underlay_config::units;
use underlay_files::{Access, Folder};
use underlay_storage::exclusive;
use underlay_storage::stack::{BackingSpec, StackNode, StackSpec};

use crate::arguments::MountArguments;
use crate::exit_codes::ExitFailure;

const DESCRIPTION: &str = "disk.json";
const LOCK: &str = "lock";
const MAX_DESCRIPTION_BYTES: u64 = 1 << 20;

/// Nobody else mounts it while this lives.
pub(super) struct MountedDisk {
    place: ImagePlace,
    /// Make the file system anew, over any existing one.
    format: bool,
    images: Vec<(PathBuf, u64)>,
    /// Those that were not there before.
    new_images: Vec<PathBuf>,
}

enum ImagePlace {
    Temporary(OwnFolder),
    Kept { folder: Folder, known: Option<DiskDescription>, wanted: Option<DiskDescription>, _lock: File },
}

/// The known state of the file system on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskState {
    /// There is none.
    Blank,
    /// It was being made when its process ended: perhaps it is there.
    Unfinished,
    Whole,
}

/// A kept disk's description, in the folder with its images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DiskDescription {
    devices: Vec<DiskImage>,
    /// Of each volume, how its devices are put together: put together otherwise, they hold nothing that makes sense.
    layout: Vec<String>,
    filesystem: FilesystemKind,
    /// From then on it may hold what its user wrote.
    was_mounted: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DiskImage {
    image: String,
    capacity_bytes: u64,
}

impl MountedDisk {
    pub(super) fn open(
        arguments: &MountArguments,
        registry: &ResourceRegistry,
    ) -> Result<MountedDisk, ExitFailure> {
        let place = match &arguments.keep {
            Some(folder) => keep(folder)?,
            // Not where the sockets are: that is in memory on most machines.
            None => {
                ImagePlace::Temporary(OwnFolder::make_in(&std::env::temp_dir(), "underlay-disk", registry)?)
            }
        };
        Ok(MountedDisk { place, format: arguments.format, images: Vec::new(), new_images: Vec::new() })
    }

    pub(super) fn folder(&self) -> &Path {
        match &self.place {
            ImagePlace::Temporary(folder) => folder.path(),
            ImagePlace::Kept { folder, .. } => folder.path(),
        }
    }

    /// Its recorded description, unless it is to be made anew.
    fn known(&self) -> Option<&DiskDescription> {
        match &self.place {
            ImagePlace::Kept { known: recorded, .. } if !self.format => recorded.as_ref(),
            _ => None,
        }
    }

    /// Of each device of a kept disk.
    pub(super) fn device_bytes(&self) -> Option<u64> {
        self.known()?.devices.first().map(|device| device.capacity_bytes)
    }

    /// Of a kept disk.
    pub(super) fn filesystem(&self) -> Option<FilesystemKind> {
        self.known().map(|recorded| recorded.filesystem)
    }

    /// Compares what there is with what is asked for, and changes nothing. A disk that is there in part, or is another
    /// one, is a mistake: making a file system would destroy what it holds.
    pub(super) fn examine(
        &mut self,
        stack: &StackSpec,
        filesystem: FilesystemKind,
    ) -> Result<DiskState, ExitFailure> {
        self.images = images_of(stack);
        let is_there = |path: &Path| path.symlink_metadata().is_ok();
        let (present, absent): (Vec<PathBuf>, Vec<PathBuf>) =
            self.images.iter().map(|(path, _)| path.clone()).partition(|path| is_there(path));
        let layout = stack.volumes.iter().map(|volume| {
            format!("{} in {} of {}", volume.name, volume.directories, layout_of(&volume.root))
        });
        let asked = DiskDescription {
            devices: described(&self.images),
            layout: layout.collect(),
            filesystem,
            was_mounted: false,
        };
        let state = match (self.format, self.known()) {
            (true, _) => DiskState::Blank,
            (false, Some(recorded)) if recorded.was_mounted => {
                check_is_same(self.folder(), recorded, &asked)?;
                DiskState::Whole
            }
            (false, Some(_)) if present.is_empty() => DiskState::Blank,
            (false, Some(_)) => DiskState::Unfinished,
            // Without a description it is of a former version, or was copied here.
            (false, None) if present.is_empty() => DiskState::Blank,
            (false, None) => DiskState::Whole,
        };
        if state == DiskState::Whole
            && let Some(absent) = absent.first()
        {
            return Err(ExitFailure::Mistake(format!(
                "the disk that is kept in {} is not whole: {} is missing. Put it back, or mount as many devices as the disk was \
                 made of, or name another directory for --keep",
                self.folder().display(),
                absent.display()
            )));
        }
        if !self.format {
            self.images.iter().try_for_each(|(path, capacity_bytes)| check_length(path, *capacity_bytes))?;
        }
        self.new_images = if self.format { present.into_iter().chain(absent).collect() } else { absent };
        if let ImagePlace::Kept { wanted, .. } = &mut self.place {
            *wanted = Some(asked);
        }
        Ok(state)
    }

    /// The last before it is attached. A disk to be made anew goes, unless somebody uses it. A disk to be made is
    /// noted, so that an interrupted one is not taken for a whole one.
    pub(super) fn begin(&mut self, state: DiskState) -> Result<(), ExitFailure> {
        let ImagePlace::Kept { folder, known: recorded, wanted: Some(wanted), .. } = &self.place else {
            return Ok(());
        };
        if self.format {
            let recorded =
                recorded.iter().flat_map(|recorded| &recorded.devices).map(|device| device.image.clone());
            let wanted = wanted.devices.iter().map(|device| device.image.clone());
            // Each once: who claims a file claims it from itself, too.
            let names: BTreeSet<String> = recorded.chain(wanted).collect();
            let claimed: Vec<File> = names
                .iter()
                .filter_map(|name| claimed(&folder.path().join(name)).transpose())
                .collect::<Result<_, _>>()?;
            // The description first, so that what is left of a disk is not taken for a whole one.
            for name in [DESCRIPTION].into_iter().chain(names.iter().map(String::as_str)) {
                folder
                    .remove_file(name)
                    .map_err(|error| cannot("remove", &folder.path().join(name), &error))?;
            }
            drop(claimed);
        }
        if state == DiskState::Blank { write(folder, wanted) } else { Ok(()) }
    }

    /// From now on it may hold what its user wrote.
    pub(super) fn is_ready(&self) -> Result<(), ExitFailure> {
        match &self.place {
            ImagePlace::Kept { folder, wanted: Some(wanted), .. } => {
                write(folder, &DiskDescription { was_mounted: true, ..wanted.clone() })
            }
            _ => Ok(()),
        }
    }

    /// It could not be mounted. A disk made just now holds nothing, and must not be taken for a kept disk the next
    /// time.
    pub(super) fn give_up(&self) {
        for image in &self.new_images {
            let _ = std::fs::remove_file(image);
        }
        if let ImagePlace::Kept { folder, .. } = &self.place
            && self.new_images.len() == self.images.len()
            && self.images.iter().all(|(path, _)| path.symlink_metadata().is_err())
        {
            let _ = folder.remove_file(DESCRIPTION);
        }
    }
}

/// Locked for as long as it is open; nothing where it is not there.
fn claimed(image: &Path) -> Result<Option<File>, ExitFailure> {
    use std::os::unix::fs::OpenOptionsExt as _;

    let file =
        match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(image) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|error| cannot("open", image, &error))?,
        };
    exclusive::claim(&file).map_err(|error| cannot("make anew", image, &error))?;
    Ok(Some(file))
}

fn cannot(action: &str, path: &Path, error: &std::io::Error) -> ExitFailure {
    ExitFailure::from_place_error(format!("cannot {action} {}: {error}", path.display()), error)
}

fn keep(path: &Path) -> Result<ImagePlace, ExitFailure> {
    // The disk's data is this user's alone, and nobody can replace the disk.
    let folder =
        Folder::make(path, Access::Private).map_err(|error| cannot("keep a disk in", path, &error))?;
    let lock = folder.file(LOCK).map_err(|error| cannot("lock", &folder.path().join(LOCK), &error))?;
    // File systems without locks go on without this protection; each image is locked by its daemon.
    if let Err(TryLockError::WouldBlock) = lock.try_lock() {
        return Err(ExitFailure::Mistake(format!(
            "the disk that is kept in {} is mounted by another process: end that first, or name another directory",
            folder.path().display()
        )));
    }
    let recorded = match folder.has(DESCRIPTION) {
        false => None,
        true => Some(read(&folder)?),
    };
    Ok(ImagePlace::Kept { folder, known: recorded, wanted: None, _lock: lock })
}

fn read(folder: &Folder) -> Result<DiskDescription, ExitFailure> {
    let path = folder.path().join(DESCRIPTION);
    let text = folder
        .read_text(DESCRIPTION, MAX_DESCRIPTION_BYTES)
        .map_err(|error| cannot("read", &path, &error))?;
    let description: DiskDescription = serde_json::from_str(&text).map_err(|error| {
        ExitFailure::Mistake(format!(
            "{} does not say what disk is kept there: {error}. Restore it, or name another directory for --keep",
            path.display()
        ))
    })?;
    // Names of files in the folder, and of no others.
    let is_elsewhere =
        |device: &&DiskImage| Path::new(&device.image).file_name() != Some(device.image.as_ref());
    match description.devices.iter().find(is_elsewhere) {
        Some(device) => Err(ExitFailure::Mistake(format!(
            "{}: \"{}\" is not the name of a file in its directory",
            path.display(),
            device.image.escape_debug()
        ))),
        None => Ok(description),
    }
}

fn write(folder: &Folder, description: &DiskDescription) -> Result<(), ExitFailure> {
    let text =
        serde_json::to_vec_pretty(description).map_err(|error| ExitFailure::Failed(error.to_string()))?;
    folder
        .replace(DESCRIPTION, Access::Private, &text)
        .map_err(|error| cannot("write", &folder.path().join(DESCRIPTION), &error))
}

fn images_of(stack: &StackSpec) -> Vec<(PathBuf, u64)> {
    let devices = stack.volumes.iter().flat_map(|volume| volume.devices());
    let image = |device: &underlay_storage::stack::DeviceSpec| match &device.backing {
        BackingSpec::File(path) => Some((path.clone(), device.capacity_bytes)),
        _ => None,
    };
    devices.filter_map(image).collect()
}

fn layout_of(node: &StackNode) -> String {
    let list = |members: &[StackNode]| members.iter().map(layout_of).collect::<Vec<_>>().join(", ");
    match node {
        StackNode::Device(device) => device.name.clone(),
        StackNode::Remote(_) => "remote".to_owned(),
        StackNode::Stripe { chunk_bytes, members } => format!("stripe({chunk_bytes}; {})", list(members)),
        StackNode::Mirror { members } => format!("mirror({})", list(members)),
        StackNode::Compress { member, .. } => format!("compress({})", layout_of(member)),
        StackNode::Cache { fast, slow, .. } => {
            format!("cache({} before {})", layout_of(fast), layout_of(slow))
        }
        // It changes when data comes, and not where it is.
        StackNode::Link { member, .. } => layout_of(member),
    }
}

fn described(images: &[(PathBuf, u64)]) -> Vec<DiskImage> {
    let describe = |(path, capacity_bytes): &(PathBuf, u64)| DiskImage {
        image: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        capacity_bytes: *capacity_bytes,
    };
    images.iter().map(describe).collect()
}

fn check_is_same(
    folder: &Path,
    recorded: &DiskDescription,
    asked: &DiskDescription,
) -> Result<(), ExitFailure> {
    let is_same = recorded.devices == asked.devices
        && recorded.filesystem == asked.filesystem
        && recorded.layout == asked.layout;
    if is_same {
        return Ok(());
    }
    let say = |description: &DiskDescription| {
        let devices = description.devices.iter().map(|device| {
            let name = device.image.strip_suffix(".img").unwrap_or(&device.image);
            format!("{} of {}", name.escape_debug(), units::format_bytes(device.capacity_bytes))
        });
        format!("{} on {}", description.filesystem.name(), devices.collect::<Vec<_>>().join(", "))
    };
    let problem = match say(recorded) == say(asked) {
        false => format!("it has {}, and {} was asked for", say(recorded), say(asked)),
        true => format!(
            "its devices are put together as {}, and {} was asked for",
            recorded.layout.join(", ").escape_debug(),
            asked.layout.join(", ").escape_debug()
        ),
    };
    Err(ExitFailure::Mistake(format!(
        "{} keeps another disk: {problem}. Mount that one, or name another directory for --keep",
        folder.display()
    )))
}

fn check_length(path: &Path, capacity_bytes: u64) -> Result<(), ExitFailure> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.len() != capacity_bytes => Err(ExitFailure::Mistake(format!(
            "the kept disk {} has {} bytes, and {capacity_bytes} were asked for: give the --size, or the study, that it was \
             made with",
            path.display(),
            found.len(),
        ))),
        _ => Ok(()),
    }
}
