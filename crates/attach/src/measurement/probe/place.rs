//! The user's device or file to probe: found, refused where probing would do damage, and opened for direct I/O.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use underlay_storage::fit::TargetError;
use underlay_storage::{contents, exclusive};

use super::disk::ProbedDisk;
use crate::machine::error::AttachError;
use crate::machine::mounts;
use crate::undo::registry::{OwnedResource, RegistryNote, ResourceRegistry};

/// How to probe a place.
#[derive(Clone, Debug)]
pub struct ProbeSettings {
    pub path: PathBuf,
    /// For a device or file, this many bytes from its start; in a directory, the size of the test file.
    pub size_bytes: Option<u64>,
    /// The device or the file may be overwritten.
    pub destroy: bool,
    /// The size of the test file when none is given.
    pub default_file_bytes: u64,
    /// Laying out the test file stops after this, with the bytes written by then.
    pub longest_layout: Duration,
}

/// Facts about a place, for the sources of a medium.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlaceFacts {
    /// `directory`, `file` or `block device`.
    pub what: &'static str,
    /// The maker's name of the device, if the kernel reports it.
    pub model: Option<String>,
    /// The capacity of the underlying device.
    pub capacity_bytes: u64,
    pub filesystem: Option<String>,
    /// `6.12.1`
    pub kernel: String,
    pub rotational: Option<bool>,
    /// The kernel's view of the device's cache: `write back`, `write through`.
    pub write_cache: Option<String>,
}

/// A place that is ready to be probed. Dropping it removes the test file.
pub struct ProbePlace {
    pub disk: ProbedDisk,
    pub facts: PlaceFacts,
    _test_file: Option<TestFile>,
}

/// The file that is probed in a directory; dropping this removes it.
struct TestFile {
    path: PathBuf,
    registry: ResourceRegistry,
    note: Option<RegistryNote>,
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = underlay_files::remove_file(&self.path);
        if fs::symlink_metadata(&self.path).is_err()
            && let Some(note) = self.note.take()
        {
            self.registry.forget(note);
        }
    }
}

/// A test file takes at most this share of the free space.
const FREE_SHARE: u64 = 4;
/// A smaller size shows only caches.
const MIN_BYTES: u64 = 16 << 20;
const ALIGNMENT: u64 = 1 << 20;

/// Why a place can't be probed.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The user's mistake.
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error(transparent)]
    Target(#[from] TargetError),
}

fn refused(path: &Path, problem: impl std::fmt::Display) -> PlaceError {
    PlaceError::Refused(format!("{}: {problem}", path.display()))
}

impl ProbePlace {
    /// Finds and opens it. In a directory a test file is created and laid out, which is reported to `progress`.
    ///
    /// # Errors
    /// When it is not there, can't be opened, is in use, or holds something that would be overwritten.
    pub fn open(
        wanted: &ProbeSettings,
        registry: &ResourceRegistry,
        stop: &Arc<AtomicBool>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<ProbePlace, PlaceError> {
        let path = &wanted.path;
        let metadata = fs::metadata(path).map_err(|error| refused(path, error))?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            if wanted.destroy {
                return Err(refused(
                    path,
                    "--destroy is for a device or a file; in a directory nothing is overwritten",
                ));
            }
            ProbePlace::open_in_directory(wanted, registry, stop, progress)
        } else if kind.is_block_device() {
            ProbePlace::on_device(wanted, metadata.rdev(), stop)
        } else if kind.is_file() {
            ProbePlace::on_file(wanted, &metadata, stop)
        } else {
            Err(refused(path, "is neither a directory, a file nor a block device"))
        }
    }

    fn open_in_directory(
        wanted: &ProbeSettings,
        registry: &ResourceRegistry,
        stop: &Arc<AtomicBool>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<ProbePlace, PlaceError> {
        // Mount points are compared with it below, and their paths have no links.
        let directory = wanted.path.canonicalize().map_err(|error| refused(&wanted.path, error))?;
        let space = rustix::fs::statvfs(&directory)
            .map_err(|errno| refused(&directory, std::io::Error::from(errno)))?;
        let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
        let size_bytes = match wanted.size_bytes {
            Some(bytes) if bytes > free_bytes => {
                return Err(refused(
                    &directory,
                    format!(
                        "a test file of {bytes} bytes does not fit, {free_bytes} are free: give a smaller --size"
                    ),
                ));
            }
            Some(bytes) => bytes,
            None => wanted.default_file_bytes.min(free_bytes / FREE_SHARE),
        };
        // Direct I/O must end on a block boundary of the device.
        let size_bytes = size_bytes / ALIGNMENT * ALIGNMENT;
        if size_bytes < MIN_BYTES {
            return Err(refused(
                &directory,
                format!(
                    "a test file needs {MIN_BYTES} bytes at least, a quarter of what is free; --size takes more"
                ),
            ));
        }
        let path = directory.join(underlay_files::unique_name("underlay-probe"));
        // Noted before it is created, so that it is on record after a crash in between.
        let note = registry.note(OwnedResource::File { path: path.clone() })?;
        let test_file = TestFile { path: path.clone(), registry: registry.clone(), note: Some(note) };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_DIRECT)
            .open(&path)
            .map_err(|error| refused(&directory, explain_missing_direct_io(&error)))?;
        progress(&format!("laying out a test file of {} MiB", size_bytes >> 20));
        let mut disk = ProbedDisk::new(file, path.display().to_string(), size_bytes, true, Arc::clone(stop));
        let laid_out = disk.lay_out(wanted.longest_layout)?;
        if laid_out < MIN_BYTES {
            return Err(refused(
                &directory,
                "so slow that not even 16 MiB could be written: give it more --time",
            ));
        }
        // Among the mount points above it, the innermost one counts.
        let mount = mounts::all()
            .into_iter()
            .filter(|mount| directory.starts_with(&mount.mount_point))
            .max_by_key(|mount| mount.mount_point.as_os_str().len());
        let device = fs::metadata(&directory).map_err(|error| refused(&directory, error))?.dev();
        let whole = space.f_blocks.saturating_mul(space.f_frsize);
        let facts = PlaceFacts {
            what: "directory",
            filesystem: mount.map(|mount| mount.filesystem),
            ..device_facts(device, whole)
        };
        Ok(ProbePlace { disk, facts, _test_file: Some(test_file) })
    }

    fn on_file(
        wanted: &ProbeSettings,
        metadata: &fs::Metadata,
        stop: &Arc<AtomicBool>,
    ) -> Result<ProbePlace, PlaceError> {
        let path = &wanted.path;
        if wanted.destroy {
            refuse_what_is_held(path)?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(wanted.destroy)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .map_err(|error| refused(path, explain_missing_direct_io(&error)))?;
        if wanted.destroy {
            exclusive::claim(&file).map_err(|error| refused(path, error))?;
        }
        let span_bytes = span(path, metadata.len(), wanted.size_bytes)?;
        let facts = PlaceFacts { what: "file", ..device_facts(metadata.dev(), metadata.len()) };
        let disk =
            ProbedDisk::new(file, path.display().to_string(), span_bytes, wanted.destroy, Arc::clone(stop));
        Ok(ProbePlace { disk, facts, _test_file: None })
    }

    fn on_device(
        wanted: &ProbeSettings,
        number: u64,
        stop: &Arc<AtomicBool>,
    ) -> Result<ProbePlace, PlaceError> {
        let path = &wanted.path;
        let mut options = OpenOptions::new();
        options.read(true).write(wanted.destroy).custom_flags(libc::O_DIRECT);
        if wanted.destroy {
            refuse_what_is_held(path)?;
            // While it is open like this, nothing else can mount or use it.
            options.custom_flags(libc::O_DIRECT | libc::O_EXCL);
        }
        let file = options.open(path).map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) => refused(
                path,
                "is in use: mounted, or part of a RAID, a volume group or swap; --destroy is for devices that nobody uses",
            ),
            _ => refused(path, explain_missing_direct_io(&error)),
        })?;
        if wanted.destroy {
            exclusive::claim(&file).map_err(|error| refused(path, error))?;
        }
        let capacity_bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))
            .map_err(|errno| refused(path, std::io::Error::from(errno)))?;
        let span_bytes = span(path, capacity_bytes, wanted.size_bytes)?;
        let facts = PlaceFacts { what: "block device", ..device_facts(number, capacity_bytes) };
        let disk =
            ProbedDisk::new(file, path.display().to_string(), span_bytes, wanted.destroy, Arc::clone(stop));
        Ok(ProbePlace { disk, facts, _test_file: None })
    }
}

/// Refuses a place if probing would destroy its known contents.
fn refuse_what_is_held(path: &Path) -> Result<(), PlaceError> {
    let mut file = File::open(path).map_err(|error| refused(path, error))?;
    let length_bytes = file.seek(SeekFrom::End(0)).map_err(|error| refused(path, error))?;
    let existing = contents::inspect_file(&file, length_bytes).map_err(|error| refused(path, error))?;
    let Some(existing) = existing else { return Ok(()) };
    let signatures = existing.signatures().map_err(|error| {
        refused(
            path,
            format!(
                "holds data, and `wipefs` of util-linux, which knows what it is, can't be asked: {error}"
            ),
        )
    })?;
    if signatures.is_empty() {
        return Ok(());
    }
    Err(refused(
        path,
        format!(
            "holds {}, which --destroy would overwrite; if nobody needs it, remove it first with `wipefs --all {}`",
            signatures.join(", "),
            path.display()
        ),
    ))
}

fn span(path: &Path, there_bytes: u64, wanted_bytes: Option<u64>) -> Result<u64, PlaceError> {
    let span_bytes = wanted_bytes.unwrap_or(there_bytes).min(there_bytes) / ALIGNMENT * ALIGNMENT;
    if span_bytes < MIN_BYTES {
        return Err(refused(path, format!("{there_bytes} bytes: probes need {MIN_BYTES} at least")));
    }
    Ok(span_bytes)
}

fn explain_missing_direct_io(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EINVAL) => {
            "its file system has no direct I/O, so that only the page cache could be measured; name a place on a disk".into()
        }
        _ => error.to_string(),
    }
}

/// The kernel's facts about the device with this number, or about the disk of this partition.
fn device_facts(number: u64, capacity_bytes: u64) -> PlaceFacts {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let own = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let whole = own.canonicalize().ok().and_then(|own| {
        let is_part = own.join("partition").exists();
        if is_part { own.parent().map(Path::to_path_buf) } else { Some(own) }
    });
    let read = |name: &str| {
        let text = fs::read_to_string(whole.as_ref()?.join(name)).ok()?;
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        (!text.is_empty()).then_some(text)
    };
    // The kernel counts in sectors of 512 bytes, regardless of the device.
    let disk_bytes =
        read("size").and_then(|sectors| sectors.parse::<u64>().ok()).map(|sectors| sectors * 512);
    PlaceFacts {
        what: "",
        model: read("device/model"),
        capacity_bytes: disk_bytes.filter(|bytes| *bytes > 0).unwrap_or(capacity_bytes),
        filesystem: None,
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        rotational: read("queue/rotational").map(|text| text == "1"),
        write_cache: read("queue/write_cache"),
    }
}
