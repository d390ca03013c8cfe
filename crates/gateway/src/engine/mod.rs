//! The gateway without its protocol: buckets, objects, copies, uploads, listings. `s3/` puts S3 in front of it.

mod copy;
mod expiry;
mod flush;
mod import;
mod list;
mod parts;
mod queue;
mod read;
mod shared;
mod upload;
mod write;

pub use copy::{CopyRequest, SourceConditions};
pub use list::{Entry, ListRequest, Listing};
pub use parts::CompletedPart;
pub use read::{Body, Resolved};
pub use upload::{MOST_PARTS, PartSummary, UploadSummary};
pub use write::{Conditions, PutRequest, Stored, Verify};

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use underlay_files::{Access, Folder};
use underlay_sync::{Mutex, RwLock};

use crate::blocks::{Blocks, Counts, Whose};
use crate::config::{Bucket, Consistency, Local, NewBuckets, Rule, StorePlace, Write};
use crate::errors::{Error, Result};
use crate::journal::{Journal, Known};
use crate::meta::{Committer, Metadata, Name};
use crate::model::{BucketRecord, ContentId, Place, now_ms};
use crate::store::{Backend, Found};
use queue::Queue;

/// Makes the store of a place ready, or says why it can't be.
pub type OpenStore = dyn Fn(&StorePlace) -> std::result::Result<Backend, String> + Send + Sync;

/// Makes the place of a bucket that a client creates, below another one.
pub type CreatePlace = dyn Fn(&StorePlace, &str) -> std::result::Result<StorePlace, String> + Send + Sync;

/// What the engine is opened with.
pub struct Setup {
    pub local: Local,
    pub patience: Duration,
    pub flushes: usize,
    /// An upload that no part came to for so long is given up.
    pub uploads_expire: Duration,
    pub buckets: Vec<Bucket>,
    pub new_buckets: Option<NewBuckets>,
    pub open_store: Box<OpenStore>,
    pub create_place: Box<CreatePlace>,
}

/// See the module.
pub struct Engine {
    metadata: Metadata,
    committer: Committer,
    journal: Arc<Journal>,
    blocks: Arc<Blocks>,
    queue: Arc<Queue>,
    served: Arc<Served>,
    setup: Setup,
    /// Of this local directory: blocks of another one's are not ours.
    identity: u64,
    next_number: AtomicU64,
    /// Nobody else may use the directory while we do.
    _lock: std::fs::File,
    pub(crate) counters: Counters,
}

/// The buckets with their rules.
#[derive(Default)]
struct Served {
    buckets: RwLock<HashMap<String, Arc<BucketState>>>,
    is_draining: AtomicBool,
}

impl Served {
    /// How long a write may wait before it is stored.
    fn delay_of(&self, name: &Name) -> Duration {
        let rule = self.buckets.read().get(&name.bucket).map(|bucket| bucket.rule(&name.key).rule.write);
        match rule {
            Some(Write::Back { after }) if !self.is_draining.load(Ordering::Relaxed) => after,
            _ => Duration::ZERO,
        }
    }
}

/// What the engine did since its start.
#[derive(Default)]
pub(crate) struct Counters {
    /// Objects that clients made where the prefix is ours alone: by a PUT, a copy, or the end of an upload.
    pub(crate) accepted_objects: AtomicU64,
    /// Bytes that came into the journal.
    pub(crate) accepted_bytes: AtomicU64,
    pub(crate) flushed_objects: AtomicU64,
    pub(crate) flushed_bytes: AtomicU64,
    pub(crate) copied_in_store: AtomicU64,
    pub(crate) deleted_in_store: AtomicU64,
    pub(crate) flush_failures: AtomicU64,
    pub(crate) rescued_bytes: AtomicU64,
    pub(crate) expired_uploads: AtomicU64,
    /// Objects that someone else changed although the prefix is ours alone.
    pub(crate) strangers: AtomicU64,
}

/// A bucket that is served.
pub(crate) struct BucketState {
    pub(crate) name: String,
    pub(crate) backend: Backend,
    pub(crate) created_ms: i64,
    pub(crate) is_created: bool,
    pub(crate) place: StorePlace,
    /// The longest prefix first.
    pub(crate) rules: Vec<RuleState>,
}

pub(crate) struct RuleState {
    pub(crate) rule: Rule,
    pub(crate) counts: Arc<Counts>,
    pub(crate) fresh: Mutex<Fresh>,
}

/// What the store said lately of keys that others may write, and when.
#[derive(Default)]
pub(crate) struct Fresh {
    pub(crate) found: HashMap<String, (std::time::Instant, Found)>,
    /// Another one with each of our own writes: an answer that was asked for before one is not kept.
    pub(crate) generation: u64,
}

impl BucketState {
    pub(crate) fn rule(&self, key: &str) -> &RuleState {
        // The last rule has the empty prefix.
        let found = self.rules.iter().find(|state| key.starts_with(&state.rule.prefix));
        found.unwrap_or(&self.rules[self.rules.len() - 1])
    }

    pub(crate) fn is_exclusive(&self, key: &str) -> bool {
        self.rule(key).rule.consistency == Consistency::Exclusive
    }

    /// Deletes from the store. A directory is asked to remember it: `object_store` does so for what it writes, and not for
    /// what it deletes, which would be back after a power cut.
    pub(crate) async fn delete_durably(&self, key: &str) -> Result<()> {
        self.backend.delete(key).await?;
        let StorePlace::Directory(directory) = &self.place else { return Ok(()) };
        let (directory, path) = (directory.clone(), self.backend.path(key)?);
        tokio::task::spawn_blocking(move || sync_above(&directory, path.as_ref()))
            .await
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|error| Error::Store(format!("cannot make the deletion durable: {error}")))
    }

    /// Whether all keys with the prefix are ours alone.
    pub(crate) fn is_exclusive_below(&self, prefix: &str) -> bool {
        self.is_exclusive(prefix)
            && self.rules.iter().all(|state| {
                !state.rule.prefix.starts_with(prefix) || state.rule.consistency == Consistency::Exclusive
            })
    }
}

/// Numbers beyond the epoch: so many can be given after one start.
const NUMBER_BITS: u32 = 40;
/// Where the journal is in the local directory.
pub(crate) const JOURNAL: &str = "journal";
const CACHE: &str = "cache";
const LOCK: &str = "lock";

/// The local directory, for whoever has it alone.
///
/// # Errors
/// When it can't be made or trusted, or a gateway is using it.
pub(crate) fn lock_directory(
    directory: &std::path::Path,
) -> std::result::Result<(Folder, std::fs::File), String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", directory.display());
    let folder = Folder::make(directory, Access::Private).map_err(|error| failed(&error))?;
    let lock = folder.file(LOCK).map_err(|error| failed(&error))?;
    match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok((folder, lock)),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(failed(&"another gateway is using this directory: stop it first, or name another in [local]"))
        }
        Err(error) => Err(failed(&error)),
    }
}

impl Engine {
    /// Opens the local directory, recovers what a crash left, and takes over what is in stores that are new. Flushing begins at once.
    ///
    /// # Errors
    /// When the directory or a store can't be used, or the configuration would lose something that is not in a store yet.
    pub async fn open(setup: Setup) -> std::result::Result<Arc<Engine>, String> {
        let (folder, lock) = lock_directory(&setup.local.directory)?;
        let journal_folder =
            folder.make_inner(JOURNAL, Access::Private).map_err(|error| error.to_string())?;
        let metadata = open_metadata(&folder, &journal_folder, setup.local.metadata_bytes as usize)?;
        let journal = recover(&metadata, journal_folder, setup.local.journal_bytes)
            .map_err(|error| error.to_string())?;
        let cache_folder = folder.make_inner(CACHE, Access::Private).map_err(|error| error.to_string())?;
        let flash = (setup.local.flash_bytes > 0).then(|| (cache_folder.path(), setup.local.flash_bytes));
        let blocks = Blocks::open(setup.local.block_bytes, setup.local.memory_bytes, flash).await?;
        let (queue, served) = (Arc::new(Queue::default()), Arc::new(Served::default()));
        let committer = {
            let (journal, queue, served) = (Arc::clone(&journal), Arc::clone(&queue), Arc::clone(&served));
            Committer::start(metadata.database(), move |effects| {
                queue.apply(effects.queued, &effects.unblocked, |name| served.delay_of(name));
                journal.release(effects.released);
            })
            .map_err(|error| format!("cannot start a thread: {error}"))?
        };
        let identity = committer
            .commit(Vec::new(), |change| match change.number(b"identity")? {
                Some(identity) => Ok(identity),
                None => {
                    let identity =
                        getrandom::u64().map_err(|error| Error::local("no random numbers", error))?;
                    change.set_number(b"identity", identity)?;
                    Ok(identity)
                }
            })
            .await
            .map_err(|error| error.to_string())?;
        let next_number = AtomicU64::new(metadata.epoch << NUMBER_BITS);
        let engine = Engine {
            metadata,
            committer,
            journal,
            blocks: Arc::new(blocks),
            queue,
            served,
            setup,
            identity,
            next_number,
            _lock: lock,
            counters: Counters::default(),
        };
        engine.open_buckets().await?;
        engine.take_over().await?;
        let engine = Arc::new(engine);
        engine.start_flushing().map_err(|error| error.to_string())?;
        engine.start_expiring();
        Ok(engine)
    }

    fn state_of(
        &self,
        name: &str,
        place: &StorePlace,
        rules: &[Rule],
        record: &BucketRecord,
    ) -> std::result::Result<BucketState, String> {
        let backend = (self.setup.open_store)(place)
            .map_err(|problem| format!("the store of bucket {name}: {problem}"))?;
        let rules = rules
            .iter()
            .map(|rule| RuleState { rule: rule.clone(), counts: Arc::default(), fresh: Mutex::default() })
            .collect();
        Ok(BucketState {
            name: name.to_owned(),
            backend,
            created_ms: record.created_ms,
            is_created: record.is_created,
            place: place.clone(),
            rules,
        })
    }

    async fn open_buckets(&self) -> std::result::Result<(), String> {
        let known =
            self.metadata.view().and_then(|view| view.all_buckets()).map_err(|error| error.to_string())?;
        let mut states = HashMap::new();
        for bucket in &self.setup.buckets {
            let place = bucket.store.to_string();
            let former =
                known.iter().find(|(name, _)| *name == bucket.name).map(|(_, record)| record.clone());
            if let Some(former) = &former
                && former.store != place
            {
                return Err(format!(
                    "bucket {} was over {} and is now over {place}, so what the gateway knows of its objects is wrong\n  what to do: give the new store a new bucket name, or another directory in [local]",
                    bucket.name, former.store
                ));
            }
            let record = former.unwrap_or_else(|| BucketRecord {
                created_ms: now_ms(),
                store: place,
                is_created: false,
            });
            let (name, row) = (bucket.name.clone(), record.clone());
            self.committer
                .commit(Vec::new(), move |change| match change.bucket(&name)? {
                    Some(_) => Ok(()),
                    None => change.set_bucket(&name, &row),
                })
                .await
                .map_err(|error| error.to_string())?;
            states.insert(
                bucket.name.clone(),
                Arc::new(self.state_of(&bucket.name, &bucket.store, &bucket.rules, &record)?),
            );
        }
        for (name, record) in &known {
            if states.contains_key(name) {
                continue;
            }
            match (&self.setup.new_buckets, record.is_created) {
                (Some(new), true) => {
                    let place = StorePlace::parse(&record.store).ok_or_else(|| {
                        format!("bucket {name} is over {}, which is no store", record.store)
                    })?;
                    let state = self.state_of(name, &place, std::slice::from_ref(&new.rule), record)?;
                    states.insert(name.clone(), Arc::new(state));
                }
                _ => self.check_left_out(name)?,
            }
        }
        *self.served.buckets.write() = states;
        Ok(())
    }

    /// A bucket that the configuration no longer has may be left out only when its store has everything.
    fn check_left_out(&self, bucket: &str) -> std::result::Result<(), String> {
        let view = self.metadata.view().map_err(|error| error.to_string())?;
        let pending = view.all_pending().map_err(|error| error.to_string())?;
        match pending.iter().filter(|(name, _)| name.bucket == bucket).count() {
            0 => match self.needed_elsewhere(|name| name.bucket == bucket) {
                Ok(0) => Ok(()),
                Ok(count) => Err(format!(
                    "the configuration no longer has bucket {bucket}, and the bytes of {count} of its objects are what copies or unfinished uploads of other buckets consist of\n  what to do: put [bucket.{bucket}] back, complete or abort those uploads, and run `underlay-gateway drain` before you remove it"
                )),
                Err(error) => Err(error.to_string()),
            },
            count => Err(format!(
                "the configuration no longer has bucket {bucket}, and {count} of its objects are not in its store yet\n  what to do: put [bucket.{bucket}] back, and run `underlay-gateway drain` before you remove it"
            )),
        }
    }

    /// A number that was never given before.
    fn number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn bucket(&self, name: &str) -> Result<Arc<BucketState>> {
        self.served.buckets.read().get(name).cloned().ok_or(Error::NoSuchBucket)
    }

    /// All buckets in order, with when they came.
    pub fn list_buckets(&self) -> Vec<(String, i64)> {
        let mut buckets: Vec<(String, i64)> =
            self.served.buckets.read().values().map(|state| (state.name.clone(), state.created_ms)).collect();
        buckets.sort();
        buckets
    }

    pub(crate) fn bucket_states(&self) -> Vec<Arc<BucketState>> {
        let mut states: Vec<_> = self.served.buckets.read().values().cloned().collect();
        states.sort_by(|a, b| a.name.cmp(&b.name));
        states
    }

    /// # Errors
    /// When the gateway serves no such bucket.
    pub fn check_bucket(&self, name: &str) -> Result<()> {
        self.bucket(name).map(drop)
    }

    /// Makes a bucket below the configured place.
    ///
    /// # Errors
    /// When it exists, or the configuration has no place for new ones.
    pub async fn create_bucket(&self, name: &str) -> Result<()> {
        if self.served.buckets.read().contains_key(name) {
            return Err(Error::BucketExists);
        }
        let Some(new) = &self.setup.new_buckets else {
            return Err(Error::NotImplemented(
                "this gateway has no place for new buckets: its configuration needs [new_buckets]".to_owned(),
            ));
        };
        let place = (self.setup.create_place)(&new.under, name).map_err(Error::Store)?;
        let record = BucketRecord { created_ms: now_ms(), store: place.to_string(), is_created: true };
        let state =
            self.state_of(name, &place, std::slice::from_ref(&new.rule), &record).map_err(Error::Store)?;
        if !state.backend.is_empty().await? {
            tracing::warn!("bucket {name} is not made: there are objects in {place} already");
            return Err(Error::NameTaken(
                "there are objects already where this bucket would be: give it another name, or ask whoever runs the gateway"
                    .to_owned(),
            ));
        }
        let (bucket, row) = (name.to_owned(), record.clone());
        self.committer
            .commit(Vec::new(), move |change| match change.bucket(&bucket)? {
                Some(_) => Err(Error::BucketExists),
                None => {
                    change.set_bucket(&bucket, &row)?;
                    // It is new: there is nothing to take over.
                    change.set_imported(&Name::new(&bucket, ""))
                }
            })
            .await?;
        self.served.buckets.write().insert(name.to_owned(), Arc::new(state));
        Ok(())
    }

    /// Removes an empty bucket that a client created.
    ///
    /// # Errors
    /// When it is not empty, or the configuration's.
    pub async fn delete_bucket(&self, name: &str) -> Result<()> {
        let state = self.bucket(name)?;
        if !state.is_created {
            return Err(Error::NotImplemented(format!(
                "bucket {name} is the configuration's: remove [bucket.{name}] there"
            )));
        }
        // Of what others write there, the metadata know nothing.
        if state.rules.iter().any(|rule| rule.rule.consistency != Consistency::Exclusive)
            && !state.backend.is_empty().await?
        {
            return Err(Error::BucketNotEmpty);
        }
        if !self.has_objects(name)? {
            // As in S3, unfinished uploads keep no bucket.
            self.end_uploads_of(name).await?;
        }
        // What was deleted has to be gone from the store first.
        self.queue.hasten_bucket(name);
        for _ in 0..100 {
            let bucket = name.to_owned();
            let is_empty = self.committer.commit(Vec::new(), move |change| {
                if change.bucket_has_rows(&bucket)? {
                    return Err(Error::BucketNotEmpty);
                }
                change.remove_bucket(&bucket)
            });
            match is_empty.await {
                Ok(()) => {
                    self.served.buckets.write().remove(name);
                    if let StorePlace::Directory(directory) = &state.place {
                        remove_empty(directory);
                    }
                    return Ok(());
                }
                Err(Error::BucketNotEmpty) if !self.has_objects(name)? && !self.has_uploads(name)? => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Busy("objects of the bucket are still being deleted from its store: try again".to_owned()))
    }

    fn has_objects(&self, bucket: &str) -> Result<bool> {
        let view = self.metadata.view()?;
        let mut found = false;
        view.objects(bucket, std::ops::Bound::Unbounded, |_, _| {
            found = true;
            Ok(false)
        })?;
        Ok(found)
    }

    fn has_uploads(&self, bucket: &str) -> Result<bool> {
        let (view, mut found) = (self.metadata.view()?, false);
        view.uploads(bucket, &Name::new(bucket, "").to_bytes(), |_, _, _| {
            found = true;
            Ok(false)
        })?;
        Ok(found)
    }

    fn whose_content(&self, content: ContentId) -> Whose {
        Whose::new(&[b"content", &self.identity.to_le_bytes(), &content.0.to_le_bytes()])
    }

    /// Bytes in the journal, and how many there may be.
    pub(crate) fn journal_bytes(&self) -> (u64, u64) {
        (self.journal.used_bytes(), self.journal.capacity_bytes())
    }

    pub(crate) fn cached_bytes(&self) -> u64 {
        self.blocks.memory_bytes()
    }

    /// Names whose object in the store is not what it should be, and since when the oldest is not (since 1970).
    pub fn pending(&self) -> (usize, Option<i64>) {
        self.queue.summary()
    }

    /// Flushes everything at once from now on.
    pub fn begin_drain(&self) {
        self.served.is_draining.store(true, Ordering::Relaxed);
        self.queue.hasten_all();
    }

    /// Whether everything is in the stores.
    pub fn is_clean(&self) -> bool {
        self.queue.summary().0 == 0
    }

    /// Whether the metadata can no longer be written: the gateway has to be started again.
    pub(crate) fn is_broken(&self) -> bool {
        self.committer.is_broken()
    }

    /// Of a flush that failed, the latest: the name and what the store said.
    pub fn last_failure(&self) -> Option<(String, String)> {
        self.queue.last_failure()
    }

    pub async fn close(&self) {
        self.queue.stop();
        self.blocks.close().await;
    }
}

/// Makes durable which names are in the innermost directory above `path` that is there still.
fn sync_above(directory: &std::path::Path, path: &str) -> std::io::Result<()> {
    let whole = directory.join(path);
    for above in whole.ancestors().skip(1).take_while(|above| above.starts_with(directory)) {
        let flags =
            rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC;
        match rustix::fs::open(above, flags, rustix::fs::Mode::empty()) {
            Ok(opened) => return Ok(rustix::fs::fsync(opened)?),
            // It went with its last file; that is an entry of the one above.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Directories that are left when their objects have gone, from the innermost outwards.
fn remove_empty(directory: &std::path::Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    // One that is not empty stays.
    let _ = std::fs::remove_dir(directory);
}

/// The metadata, made if they are not there. Those that don't fit the journal beside them are refused: going by them would remove
/// what clients were told is safe.
fn open_metadata(
    folder: &Folder,
    journal: &Folder,
    cache_bytes: usize,
) -> std::result::Result<Metadata, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.path().display());
    let path: PathBuf = folder.path().join(crate::meta::FILE);
    let journal_epoch = crate::journal::epoch_of(journal).map_err(failed)?;
    // Made by us, for us alone: the metadata store itself would go by the umask.
    let is_new = folder.file(crate::meta::FILE).and_then(|file| file.metadata()).map_err(failed)?.len() == 0;
    if is_new && journal_epoch > 0 {
        return Err(format!(
            "{} is missing or empty, and there is a journal beside it, which is worth nothing without it\n  what to do: bring the metadata back; if they are lost, move the whole directory away and begin with an empty one",
            path.display()
        ));
    }
    let metadata = Metadata::open(&path, cache_bytes, journal_epoch).map_err(|error| error.to_string())?;
    if is_new {
        // Their names have to be as durable as what will be in them.
        let above = folder.path().parent().unwrap_or(folder.path());
        for directory in [folder.path(), above] {
            std::fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
        }
    }
    crate::journal::set_epoch(journal, metadata.epoch).map_err(failed)?;
    Ok(metadata)
}

fn recover(metadata: &Metadata, folder: Folder, capacity_bytes: u64) -> Result<Arc<Journal>> {
    let mut known = Vec::new();
    metadata.view()?.each_content(|_, record| {
        if let Place::Local { segment, offset_bytes } = record.place {
            known.push(Known { segment, offset_bytes, size_bytes: record.size_bytes });
        }
        Ok(())
    })?;
    let journal = Journal::open(folder, capacity_bytes, &known);
    journal.map(Arc::new).map_err(|error| Error::local("cannot open the journal", error))
}
