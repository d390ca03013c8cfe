//! Resources created on this host, with their processes, to undo them after a crash.
//!
//! Every process that creates something keeps a journal in the registry's directory: one JSON line for each resource
//! *before* it is created, and one when it is gone again. A journal with a living owner is not touched. One with a dead
//! owner lists what [`crate::cleanup::clean`] must undo. A truncated or damaged line is skipped: it was written before
//! its resource was created.

mod folder;
mod journal;
mod resource;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use underlay_sync::Mutex;

use underlay_files::{Access, Folder, plain_file, scratch_dir};

use crate::machine::error::AttachError;
use crate::machine::processes;

pub use crate::machine::processes::ProcessId;
pub use folder::OwnFolder;
pub use journal::{RegistryJournal, RegistryOwner, parse_journal};
pub use resource::{OwnedResource, PreviousLimits};

/// Names the directory of the registry; unset, it is `/run/underlay` for root and a private one for others.
pub const RUNTIME_DIR_VARIABLE: &str = "UNDERLAY_RUNTIME_DIR";

const OF_ROOT: &str = "/run/underlay";

/// Other processes lock a journal briefly to read it, or remove it before it is locked.
const JOURNAL_ATTEMPTS: u32 = 100;
const JOURNAL_PAUSE: Duration = Duration::from_millis(10);

/// The receipt for a noted resource.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a thing that is noted must be forgotten once it is gone"]
pub struct RegistryNote {
    id: u64,
}

/// A resource that a dead process left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftoverResource {
    pub owner: RegistryOwner,
    pub resource: OwnedResource,
}

/// The registry in one directory. Any number of handles and processes may use it at once.
#[derive(Clone, Debug)]
pub struct ResourceRegistry {
    directory: PathBuf,
}

/// The journal of this process in one registry.
struct OwnJournal {
    file: File,
    outstanding: BTreeSet<u64>,
}

/// By journal path: all handles of a process share one journal, which is removed when nothing is outstanding.
static OWN_JOURNALS: Mutex<BTreeMap<PathBuf, OwnJournal>> = Mutex::new(BTreeMap::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
static NEXT_SESSION: AtomicU64 = AtomicU64::new(1);

impl ResourceRegistry {
    /// The registry of this user on this host.
    ///
    /// # Errors
    /// When its directory can't be created, or belongs to another user.
    pub fn open() -> Result<ResourceRegistry, AttachError> {
        ResourceRegistry::open_at(&default_directory())
    }

    /// The registry in `directory`, which is created if it is missing and must belong to this user.
    ///
    /// # Errors
    /// When the directory can't be created, or belongs to another user.
    pub fn open_at(directory: &Path) -> Result<ResourceRegistry, AttachError> {
        match Folder::make(directory, Access::Private) {
            Ok(folder) => Ok(ResourceRegistry { directory: folder.path().to_path_buf() }),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                Err(AttachError::failed(format!(
                    "the runtime directory {} can't be used: {error}. Set {RUNTIME_DIR_VARIABLE} to one of your own",
                    directory.display()
                )))
            }
            Err(error) => Err(AttachError::io("make the runtime directory", directory, error)),
        }
    }

    /// This process, identified so that a later one with the same number is not mistaken for it.
    pub fn this_process() -> ProcessId {
        ProcessId::current()
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Notes a resource that is about to be created. Paths must not exist yet: an existing one is not ours.
    ///
    /// # Errors
    /// When the journal can't be written: nothing may be created then.
    pub fn note(&self, resource: OwnedResource) -> Result<RegistryNote, AttachError> {
        if let Some(path) = resource.made_path()
            && fs::symlink_metadata(path).is_ok()
        {
            return Err(AttachError::failed(format!(
                "{} exists already, so it can't be made",
                path.display()
            )));
        }
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let path = self.journal_path();
        let mut journals = OWN_JOURNALS.lock();
        if !journals.contains_key(&path) {
            let file =
                start_journal(&path).map_err(|error| AttachError::io("write the registry", &path, error))?;
            journals.insert(path.clone(), OwnJournal { file, outstanding: BTreeSet::new() });
        }
        let journal = journals.get_mut(&path).expect("was just inserted");
        append(&mut journal.file, &journal::RegistryLine::Note { id, resource })
            .map_err(|error| AttachError::io("write the registry", &path, error))?;
        journal.outstanding.insert(id);
        Ok(RegistryNote { id })
    }

    /// Marks a resource as gone.
    pub fn forget(&self, note: RegistryNote) {
        let path = self.journal_path();
        let mut journals = OWN_JOURNALS.lock();
        let Some(journal) = journals.get_mut(&path) else { return };
        // If the line can't be written, `clean` looks for a resource that does not exist, which is harmless.
        let _ = append(&mut journal.file, &journal::RegistryLine::Forget { id: note.id });
        journal.outstanding.remove(&note.id);
        if journal.outstanding.is_empty() {
            journals.remove(&path);
            let _ = fs::remove_file(&path);
        }
    }

    /// Makes a fresh private directory for sockets, logs and mount points, and notes it.
    ///
    /// # Errors
    /// When the directory can't be made or noted.
    pub fn session(&self) -> Result<(PathBuf, RegistryNote), AttachError> {
        self.fresh("session")
    }

    /// Like [`ResourceRegistry::session`], with another first word in its name.
    fn fresh(&self, purpose: &str) -> Result<(PathBuf, RegistryNote), AttachError> {
        loop {
            let number = NEXT_SESSION.fetch_add(1, Ordering::Relaxed);
            let path = self.directory.join(format!("{purpose}-{}-{number}", std::process::id()));
            // An earlier process with this number may have left one.
            if fs::symlink_metadata(&path).is_ok() {
                continue;
            }
            let note = self.note(OwnedResource::Tree { path: path.clone() })?;
            return match Folder::make_new(&path, Access::Private) {
                Ok(_) => Ok((path, note)),
                Err(error) => {
                    self.forget(note);
                    Err(AttachError::io("make", &path, error))
                }
            };
        }
    }

    /// Makes `path` and every directory above it that is missing, noting each, outermost first.
    pub(crate) fn make_directories(&self, path: &Path) -> Result<Vec<(PathBuf, RegistryNote)>, AttachError> {
        let missing: Vec<&Path> =
            path.ancestors().take_while(|ancestor| fs::symlink_metadata(ancestor).is_err()).collect();
        // Root's mount would cover anything that replaces the directory meanwhile.
        let nearest = path.ancestors().nth(missing.len()).filter(|nearest| !nearest.as_os_str().is_empty());
        let checked = match nearest {
            Some(existing) if missing.is_empty() => underlay_files::check_trusted_path_to(existing),
            nearest => underlay_files::check_trusted_path(nearest.unwrap_or(Path::new("."))),
        };
        checked.map_err(|error| AttachError::io("mount on", path, error))?;
        let mut made = Vec::new();
        for directory in missing.into_iter().rev().filter(|directory| !directory.as_os_str().is_empty()) {
            let outcome =
                self.note(OwnedResource::EmptyDirectory { path: directory.to_owned() }).and_then(|note| {
                    match DirBuilder::new().mode(0o755).create(directory) {
                        Ok(()) => Ok(note),
                        Err(error) => {
                            self.forget(note);
                            Err(AttachError::io("make", directory, error))
                        }
                    }
                });
            match outcome {
                Ok(note) => made.push((directory.to_owned(), note)),
                Err(error) => {
                    self.remove_directories(&mut made);
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    /// Undoes [`ResourceRegistry::make_directories`], as far as the directories are empty.
    pub(crate) fn remove_directories(&self, made: &mut Vec<(PathBuf, RegistryNote)>) {
        while let Some((path, note)) = made.pop() {
            // If it has other contents by now, it stays, and is not ours any more.
            let _ = fs::remove_dir(&path);
            self.forget(note);
        }
    }

    /// Leftovers of dead processes, oldest journal first.
    pub fn leftovers(&self) -> Vec<LeftoverResource> {
        let dead = self.journals().into_iter().filter(|(_, journal)| !journal.is_alive());
        dead.flat_map(|(_, RegistryJournal { owner, resources, .. })| {
            resources
                .into_iter()
                .map(move |(_, resource)| LeftoverResource { owner: owner.clone(), resource })
        })
        .collect()
    }

    /// Resources of processes that still run, oldest journal first.
    pub(crate) fn living(&self) -> Vec<(RegistryOwner, OwnedResource)> {
        let living = self.journals().into_iter().filter(|(_, journal)| journal.is_alive());
        living
            .flat_map(|(_, RegistryJournal { owner, resources, .. })| {
                resources.into_iter().map(move |(_, resource)| (owner.clone(), resource))
            })
            .collect()
    }

    /// Whether one of this user's processes, living or dead, has mounted the file system there.
    pub fn has_mounted(&self, place: &Path) -> bool {
        let is_there = |resource: &OwnedResource| match resource {
            OwnedResource::Mount { mount_point, .. }
            | OwnedResource::Directory { mount_point, .. }
            | OwnedResource::FuseMount { mount_point, .. } => mount_point == place,
            _ => false,
        };
        self.living().iter().any(|(_, resource)| is_there(resource))
            || self.leftovers().iter().any(|left| is_there(&left.resource))
    }

    /// The sockets on which living processes accept commands for the nodes of a system, oldest first.
    pub fn node_controls(&self) -> Vec<(RegistryOwner, PathBuf)> {
        let control = |(owner, resource)| match resource {
            OwnedResource::Nodes { control } => Some((owner, control)),
            _ => None,
        };
        self.living().into_iter().filter_map(control).collect()
    }

    /// The sockets on which living processes accept commands for their runs, with each run's directory, oldest first.
    pub fn run_controls(&self) -> Vec<(RegistryOwner, PathBuf, PathBuf)> {
        let control = |(owner, resource)| match resource {
            OwnedResource::Run { control, directory } => Some((owner, control, directory)),
            _ => None,
        };
        self.living().into_iter().filter_map(control).collect()
    }

    /// The sockets on which living loads and workers report their metrics, oldest first.
    pub fn service_controls(&self) -> Vec<(RegistryOwner, PathBuf)> {
        let control = |(owner, resource)| match resource {
            OwnedResource::Service { control } => Some((owner, control)),
            _ => None,
        };
        self.living().into_iter().filter_map(control).collect()
    }

    fn journal_path(&self) -> PathBuf {
        let ProcessId { pid, start_ticks } = ProcessId::current();
        self.directory.join(journal::file_name(pid, start_ticks))
    }

    /// Every journal with its path. Other files are skipped.
    pub(crate) fn journals(&self) -> Vec<(PathBuf, RegistryJournal)> {
        let Ok(entries) = fs::read_dir(&self.directory) else { return Vec::new() };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        paths.into_iter().filter_map(|path| journal::read(&path).map(|journal| (path, journal))).collect()
    }
}

fn default_directory() -> PathBuf {
    if let Some(directory) = std::env::var_os(RUNTIME_DIR_VARIABLE).filter(|value| !value.is_empty()) {
        return PathBuf::from(directory);
    }
    let user = rustix::process::geteuid();
    if user.is_root() {
        return PathBuf::from(OF_ROOT);
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty()) {
        Some(directory) => Path::new(&directory).join("underlay"),
        None => std::env::temp_dir().join(format!("underlay-{}", user.as_raw())),
    }
}

/// Registries of other users on this host, which this user may not read.
pub fn closed_to_us() -> Vec<PathBuf> {
    let of_others =
        fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten().map(|entry| entry.path());
    let of_others = of_others.filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix("underlay-").is_some_and(|user| user.parse::<u32>().is_ok())
    });
    std::iter::once(PathBuf::from(OF_ROOT)).chain(of_others).filter(|path| is_closed(path)).collect()
}

fn is_closed(directory: &Path) -> bool {
    fs::read_dir(directory).is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

fn start_journal(path: &Path) -> std::io::Result<File> {
    for _ in 0..JOURNAL_ATTEMPTS {
        let mut file = plain_file::for_writing().append(true).open(path)?;
        lock_journal(&file)?;
        append(&mut file, &journal::RegistryLine::Owner(RegistryOwner::current()))?;
        // A clean-up in another PID namespace may have removed it before it was locked.
        if is_at(&file, path) {
            return Ok(file);
        }
    }
    Err(std::io::Error::other("it is taken away as soon as it is made"))
}

/// The lock lasts while the file is open, which is as long as anything is outstanding. It shows other processes that
/// this one runs even if they can't see it. Where there are no locks, they do not touch it.
fn lock_journal(file: &File) -> std::io::Result<()> {
    for _ in 0..JOURNAL_ATTEMPTS {
        match file.try_lock() {
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(JOURNAL_PAUSE),
        }
    }
    Err(std::io::Error::new(std::io::ErrorKind::WouldBlock, "another process keeps it locked"))
}

fn is_at(file: &File, path: &Path) -> bool {
    let same =
        |open: fs::Metadata, found: fs::Metadata| (open.dev(), open.ino()) == (found.dev(), found.ino());
    file.metadata().and_then(|open| Ok(same(open, fs::symlink_metadata(path)?))).unwrap_or(false)
}

/// Removes the journal of an owner that has ended. A locked one stays: its owner has just created it.
pub(crate) fn remove_journal(path: &Path) {
    let Ok(Some(file)) = plain_file::open(path) else { return };
    if !matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        // Under the lock, so that a process that opened it meanwhile notices that it is gone.
        let _ = fs::remove_file(path);
    }
}

/// Writes one line in one call: a reader sees all of it or a truncated last line. It begins with a newline too, so that
/// a line cut short by a full disk does not swallow this one. Readers skip empty lines.
fn append(file: &mut File, line: &journal::RegistryLine) -> std::io::Result<()> {
    let mut text = vec![b'\n'];
    serde_json::to_writer(&mut text, line)?;
    text.push(b'\n');
    file.write_all(&text)
}

impl RegistryOwner {
    fn current() -> RegistryOwner {
        let process = ProcessId::current();
        RegistryOwner {
            process,
            boot_id: processes::boot_id(),
            pid_namespace: scratch_dir::pid_namespace(),
            command: processes::command_name(process.pid),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
