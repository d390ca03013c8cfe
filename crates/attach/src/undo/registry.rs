//! Resources made on this host, with their processes, to undo them after a crash.
//!
//! Every process that makes something keeps a journal in the registry's directory: one JSON line for each
//! thing *before* it is made, one when it is gone again. A journal whose owner lives is left alone; one whose
//! owner is dead lists what [`crate::cleanup::clean`] has to undo. A line that was cut short or damaged is passed
//! over: it was written before the thing it names was made.

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

/// Others lock a journal for the moment in which they read it, or take it away before it is locked.
const JOURNAL_ATTEMPTS: u32 = 100;
const JOURNAL_PAUSE: Duration = Duration::from_millis(10);

/// The receipt for a noted thing.
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

/// By journal path: all handles of a process share one journal, which goes when nothing is outstanding.
static OWN_JOURNALS: Mutex<BTreeMap<PathBuf, OwnJournal>> = Mutex::new(BTreeMap::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
static NEXT_SESSION: AtomicU64 = AtomicU64::new(1);

impl ResourceRegistry {
    /// The registry of this user on this host.
    ///
    /// # Errors
    /// When its directory can't be made, or belongs to someone else.
    pub fn open() -> Result<ResourceRegistry, AttachError> {
        ResourceRegistry::open_at(&default_directory())
    }

    /// The registry in `directory`, which is made when it is not there and must belong to this user.
    ///
    /// # Errors
    /// When the directory can't be made, or belongs to someone else.
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

    /// This process, so that it can't be mistaken for a later one with the same number.
    pub fn this_process() -> ProcessId {
        ProcessId::current()
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes down a thing that is about to be made. Paths must not exist yet: what exists already is not ours.
    ///
    /// # Errors
    /// When the journal can't be written: nothing may be made then.
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

    /// Strikes out what is gone.
    pub fn forget(&self, note: RegistryNote) {
        let path = self.journal_path();
        let mut journals = OWN_JOURNALS.lock();
        let Some(journal) = journals.get_mut(&path) else { return };
        // A line that can't be written makes `clean` look for a thing that is not there, which is harmless.
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

    /// As [`ResourceRegistry::session`], with another word for its name to begin with.
    fn fresh(&self, purpose: &str) -> Result<(PathBuf, RegistryNote), AttachError> {
        loop {
            let number = NEXT_SESSION.fetch_add(1, Ordering::Relaxed);
            let path = self.directory.join(format!("{purpose}-{}-{number}", std::process::id()));
            // An earlier process of this number may have left one.
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
        // Root's mount would cover anything that someone puts in the directory's place meanwhile.
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

    /// Takes [`ResourceRegistry::make_directories`] back, as far as the directories are empty.
    pub(crate) fn remove_directories(&self, made: &mut Vec<(PathBuf, RegistryNote)>) {
        while let Some((path, note)) = made.pop() {
            // Someone else may keep things in it by now: then it stays, and is not ours any more.
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

    /// Whether this user's processes, living or gone, have mounted what is mounted there.
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

    /// The sockets on which living processes take commands for the nodes of a system, oldest first.
    pub fn node_controls(&self) -> Vec<(RegistryOwner, PathBuf)> {
        let control = |(owner, resource)| match resource {
            OwnedResource::Nodes { control } => Some((owner, control)),
            _ => None,
        };
        self.living().into_iter().filter_map(control).collect()
    }

    /// The sockets on which living processes take commands for their runs, with each run's directory, oldest first.
    pub fn run_controls(&self) -> Vec<(RegistryOwner, PathBuf, PathBuf)> {
        let control = |(owner, resource)| match resource {
            OwnedResource::Run { control, directory } => Some((owner, control, directory)),
            _ => None,
        };
        self.living().into_iter().filter_map(control).collect()
    }

    /// The sockets on which living loads and workers tell their figures, oldest first.
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

    /// Every journal with its path. Files that are no journals are passed over.
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

/// Registries of other users on this host, which this one may not look into.
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
        // A clean-up of another PID namespace may have taken it away before it was locked.
        if is_at(&file, path) {
            return Ok(file);
        }
    }
    Err(std::io::Error::other("it is taken away as soon as it is made"))
}

/// For as long as it is open, which is as long as anything is outstanding. It is how others see that this process runs
/// where they can't see the process; where there are no locks they leave it alone.
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

/// Removes the journal of an owner that is gone. One that somebody has locked stays: its owner has just begun it.
pub(crate) fn remove_journal(path: &Path) {
    let Ok(Some(file)) = plain_file::open(path) else { return };
    if !matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        // While it is locked: who opened it meanwhile finds out that it is gone.
        let _ = fs::remove_file(path);
    }
}

/// One line in one write: a reader sees all of it or a torn last line. It begins with a newline too, so that a
/// line that a full disk cut short does not swallow this one; readers pass empty lines over.
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
