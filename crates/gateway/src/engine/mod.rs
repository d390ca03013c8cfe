//! The gateway without its protocol: buckets, objects, copies, uploads, listings. `s3/` puts S3 in front of it.

mod ahead;
mod alone;
mod answering;
mod buckets;
mod coming;
mod completed;
mod conditions;
mod copy;
mod elsewhere;
mod entries;
mod expiry;
mod failing;
mod flush;
mod fresh;
mod import;
mod list;
mod listed;
mod lives;
mod mounted;
mod owners;
mod pages;
mod parts;
mod placing;
mod queue;
mod read;
mod recovery;
mod regions;
mod removal;
mod rescue;
mod room;
mod sent;
mod shared;
mod slots;
mod spill;
mod staging;
mod suitable;
mod to_its_end;
mod unanswered;
mod upload;
mod withheld;
mod write;

pub use alone::OfflineDrain;
pub(crate) use alone::RecordedCluster;
pub(crate) use buckets::MAX_BUCKETS;
pub use coming::ShortRange;
pub use conditions::{EtagCondition, WriteConditions};
pub use copy::{CopyRequest, SourceConditions};
pub use elsewhere::{KeySharing, PeerAnswer, PeerQueries, PeerQuestion};
pub(crate) use failing::UnstoredName;
pub(crate) use import::ImportProgress;
pub use pages::{
    ListEntry, ListPage, ListRequest, UploadEntry, UploadListing, UploadSummary, UploadsRequest,
};
pub use parts::CompletedPart;
pub use read::{AnswerBody, ResolvedObject};
pub(crate) use room::RoomKind;
pub(crate) use slots::HeldSlot;
pub use upload::{MAX_PART_BYTES, MAX_PARTS, PartSummary};
pub use write::{PutRequest, VerifyBody, WriteReceipt};

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use underlay_files::{Access, Folder};
use underlay_sync::{Mutex, RwLock};

use crate::at_rest::AtRest;
use crate::blocks::{BlockCache, BlockCounts, BlockOwner};
use crate::config::{
    BucketConfig, LocalConfig, NewBuckets, PrefixRule, StoreConsistency, StorePlace, WriteMode,
};
use crate::disk_room::{DiskRoom, is_out_of_room};
use crate::errors::{GatewayError, GatewayResult};
use crate::journal::frame::ContentFraming;
use crate::journal::{Journal, JournalCommits};
use crate::memory::MemoryBudget;
use crate::meta::{MetadataCommitter, MetadataStore, ObjectName};
use crate::model::ContentId;
use crate::staged::is_staged;
use crate::store::{LatePlaces, LateRequests, MayGoOn, StoreBackend, StorePlaces, UnfinishedFiles};
use crate::supervision::LoopSupervisor;
use entries::UploadEntries;
use queue::FlushQueue;
use recovery::{SEALED_BY, is_sealed_anew, recover};
pub(crate) use recovery::{check_seal, open_metadata, sealed_by};
use removal::RecentRemovals;

/// Makes the store of a place ready, or says why it can't be.
pub type OpenStore = dyn Fn(&StorePlace) -> std::result::Result<StoreBackend, String> + Send + Sync;

/// Makes the place of a bucket that a client creates, below another one.
pub type CreatePlace = dyn Fn(&StorePlace, &str) -> std::result::Result<StorePlace, String> + Send + Sync;

/// The engine's parameters.
pub struct EngineSetup {
    pub local: LocalConfig,
    pub patience: Duration,
    pub flushes: usize,
    /// An upload that no part came to for so long is given up.
    pub uploads_expire: Duration,
    pub buckets: Vec<BucketConfig>,
    pub new_buckets: Option<NewBuckets>,
    pub open_store: Box<OpenStore>,
    pub create_place: Box<CreatePlace>,
    /// How keys are divided among several gateways; `None` if this one has them all.
    pub sharing: Option<KeySharing>,
    /// The others are stopped: what is left here is to be stored, and nothing else is done.
    pub alone: Option<OfflineDrain>,
    /// The local disk's encryption.
    pub at_rest: Option<Arc<AtRest>>,
    /// Buckets whose directory is the right one also if it has nothing of what was stored there.
    pub into_empty: Vec<String>,
}

/// See the module.
pub struct GatewayEngine {
    metadata: MetadataStore,
    committer: MetadataCommitter,
    journal: Arc<Journal>,
    disk: Arc<DiskRoom>,
    blocks: Arc<BlockCache>,
    queue: Arc<FlushQueue>,
    uploads: Arc<UploadEntries>,
    /// For answers on their way to clients.
    reading: MemoryBudget,
    /// For objects on their way to stores.
    storing: MemoryBudget,
    /// Stores' recent answers.
    fresh: Arc<fresh::FreshAnswers>,
    completed: completed::CompletedUploads,
    spills: Arc<spill::SpillQueue>,
    sent: Arc<sent::SentLog>,
    served: Arc<ServedBuckets>,
    ahead: ahead::ObjectReadAhead,
    clock: expiry::WallClock,
    setup: EngineSetup,
    /// Of this local directory: blocks of another one's are not ours.
    identity: u64,
    /// Of this start: no other one, of this directory or of a copy of it, has the same.
    life: u64,
    /// Fingerprint of the key that the local disk is encrypted with: blocks of another one's are not ours either.
    sealed_by: u64,
    /// Slots that others have, where this one is [alone](EngineSetup::alone).
    others: HashSet<u16>,
    next_number: AtomicU64,
    /// The directory below which clients make buckets, where it is one that is there.
    under: OnceLock<StoreBackend>,
    /// Buckets are made and removed one at a time.
    making: Arc<tokio::sync::Mutex<RecentRemovals>>,
    bucket_limits: buckets::BucketLimits,
    /// Of buckets that were removed, requests that their stores have not answered: a bucket of the same name has the
    /// same place there.
    late_of_removed: Mutex<HashMap<String, Arc<LateRequests>>>,
    /// For names to which stores may still do what clients asked for.
    late_places: Arc<LatePlaces>,
    /// Those of all buckets in S3, which have one endpoint.
    s3_late_places: Arc<StorePlaces>,
    /// What stores have not answered is made durable by one at a time, so that nothing overtakes what is newer.
    keeping: tokio::sync::Mutex<()>,
    /// Requests that wait for room.
    waiting: room::RoomQueue,
    /// Contents that the log has already named as withheld by the store.
    told: Mutex<HashSet<ContentId>>,
    /// Nobody else may use the directory while we do.
    _lock: std::fs::File,
    /// Of all that runs for as long as the gateway.
    pub(crate) supervisor: LoopSupervisor,
    pub(crate) counters: EngineCounters,
}

/// The buckets with their rules.
#[derive(Default)]
struct ServedBuckets {
    buckets: RwLock<HashMap<String, Arc<BucketState>>>,
    is_draining: AtomicBool,
}

impl ServedBuckets {
    /// How long a write may wait before it is stored.
    fn delay_of(&self, name: &ObjectName) -> Duration {
        // No rule is about parts: what has to go from the store goes at once.
        if is_staged(&name.key) {
            return Duration::ZERO;
        }
        let rule = self.buckets.read().get(&name.bucket).map(|bucket| bucket.rule(&name.key).rule.write);
        match rule {
            Some(WriteMode::Back { after }) if !self.is_draining.load(Ordering::Relaxed) => after,
            _ => Duration::ZERO,
        }
    }
}

/// The engine's counters since its start.
#[derive(Default)]
pub(crate) struct EngineCounters {
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
    /// Parts of unfinished uploads that went from the journal to a store.
    pub(crate) spilled_parts: AtomicU64,
    pub(crate) spilled_bytes: AtomicU64,
    /// Objects that someone else changed although the prefix is ours alone.
    pub(crate) strangers: AtomicU64,
    /// Reads of what the gateway has stored and the store does not give.
    pub(crate) withheld: AtomicU64,
}

/// A bucket that is served.
pub(crate) struct BucketState {
    pub(crate) name: String,
    pub(crate) backend: StoreBackend,
    pub(crate) created_ms: i64,
    pub(crate) is_created: bool,
    pub(crate) place: StorePlace,
    /// The longest prefix first.
    pub(crate) rules: Vec<RuleState>,
    pub(crate) looked: Mutex<owners::StoreOwner>,
    /// Whether what its store has is still to be listed, as soon as it is mounted. Nothing is answered before.
    pub(crate) is_unlisted: AtomicBool,
    /// Whether it is one of clients no more: see [`removal`].
    pub(crate) is_going: AtomicBool,
    /// Closed while it is looked whether the bucket may go.
    pub(crate) gate: tokio::sync::RwLock<()>,
    /// Of writes on their way to a directory in which others write as well.
    pub(crate) claims: placing::KeyClaims,
    /// Of listings that ask the store about several folders at once.
    pub(crate) folder_steps: tokio::sync::Semaphore,
}

pub(crate) struct RuleState {
    pub(crate) rule: PrefixRule,
    pub(crate) counts: Arc<BlockCounts>,
    /// The store's recent answers about keys that others may write.
    pub(crate) fresh: fresh::PrefixAnswers,
}

impl BucketState {
    pub(crate) fn rule(&self, key: &str) -> &RuleState {
        // The last rule has the empty prefix.
        let found = self.rules.iter().find(|state| key.starts_with(&state.rule.prefix));
        found.unwrap_or(&self.rules[self.rules.len() - 1])
    }

    pub(crate) fn is_exclusive(&self, key: &str) -> bool {
        self.rule(key).rule.consistency == StoreConsistency::Exclusive
    }

    /// Deletes from the store. A directory is asked to remember it: `object_store` does so for what it writes, and not
    /// for what it deletes, which would be back after a power cut.
    pub(crate) async fn delete_durably(&self, key: &str, may_go_on: &MayGoOn<'_>) -> GatewayResult<()> {
        let was_there = self.backend.delete(key, may_go_on).await?;
        let StorePlace::Directory(directory) = &self.place else { return Ok(()) };
        // A kill may have come between the file's removal and theirs, or while the file was written. Nobody else writes
        // to a name of ours now, nor below the folder of parts. Where others write, a missing file says nothing of its
        // directories.
        if is_staged(key) {
            self.backend.clear_place(key, 0, UnfinishedFiles::Removed).await?;
        } else if self.is_exclusive(key) {
            self.backend.clear_place(key, self.folders_of_others(key), UnfinishedFiles::Removed).await?;
        } else if was_there {
            self.backend.clear_place(key, 0, UnfinishedFiles::Kept).await?;
        }
        let (directory, path) = (directory.clone(), self.backend.locate(key)?);
        crate::blocking::spawn_blocking(move || sync_above(&directory, path.as_ref()))
            .await
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|error| GatewayError::Store(format!("cannot make the deletion durable: {error}")))
    }

    /// How many of the folders above a key, from the outermost on, have keys that others write as well.
    pub(crate) fn folders_of_others(&self, key: &str) -> usize {
        let folders = key.match_indices('/').map(|(end, _)| &key[..=end]);
        let is_theirs = |(_, folder): &(usize, &str)| !self.is_exclusive_below(folder);
        folders.enumerate().filter(is_theirs).last().map_or(0, |(index, _)| index + 1)
    }

    /// Whether all keys with the prefix are ours alone.
    pub(crate) fn is_exclusive_below(&self, prefix: &str) -> bool {
        self.is_exclusive(prefix)
            && self.rules.iter().all(|state| {
                !state.rule.prefix.starts_with(prefix)
                    || state.rule.consistency == StoreConsistency::Exclusive
            })
    }
}

/// For the fuzzer: any bytes as what the metadata say of a bucket's rules.
pub(crate) fn read_any(data: &[u8]) {
    regions::read_any(data);
}

/// Numbers beyond the epoch: so many can be given after one start.
const NUMBER_BITS: u32 = 40;
/// Memory besides that of the cache, however little that has.
const MIN_READ_BYTES: u64 = 16 << 20;
const MIN_STORE_BYTES: u64 = 32 << 20;
/// Where the journal is in the local directory.
pub(crate) const JOURNAL: &str = "journal";
const CACHE: &str = "cache";
const LOCK: &str = "lock";

/// The local directory, for the one process that has it to itself.
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

impl GatewayEngine {
    /// Opens the local directory, recovers what a crash left, and takes over what is in stores that are new. Flushing
    /// begins at once.
    ///
    /// # Errors
    /// When the directory or a store can't be used, or the configuration would lose something that is not in a store
    /// yet.
    pub async fn open(setup: EngineSetup) -> std::result::Result<Arc<GatewayEngine>, String> {
        let locked = lock_directory(&setup.local.directory)?;
        GatewayEngine::open_locked(setup, locked, &ImportProgress::default()).await
    }

    /// As [`open`](Self::open), in a directory that the caller has [locked](lock_directory), and says how far it is.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn open_locked(
        setup: EngineSetup,
        (folder, lock): (Folder, std::fs::File),
        progress: &ImportProgress,
    ) -> std::result::Result<Arc<GatewayEngine>, String> {
        let journal_folder =
            folder.make_inner(JOURNAL, Access::Private).map_err(|error| error.to_string())?;
        // Before anything is written: on a full disk it is what makes room for it.
        let disk = DiskRoom::open(folder.path()).map_err(|error| error.to_string())?;
        let disk = Arc::new(disk);
        let cache_bytes = setup.local.metadata_bytes as usize;
        let metadata = open_metadata(&folder, &journal_folder, &disk, cache_bytes)?;
        // Before anything is removed or written by what these say.
        crate::journal::set_epoch(&journal_folder, metadata.epoch).map_err(|error| {
            let what_to_do = match is_out_of_room(&error) {
                true => {
                    "\n  what to do: make room on that disk, and start the gateway again; nothing is lost"
                }
                false => "",
            };
            format!("{}: {error}{what_to_do}", folder.path().display())
        })?;
        let sealed_by = sealed_by(setup.at_rest.as_deref())?;
        check_seal(&metadata, sealed_by, &setup.local.directory)?;
        let is_anew = is_sealed_anew(&metadata, sealed_by).map_err(|error| error.to_string())?;
        if is_anew && folder.has(CACHE) {
            // Clear blocks there have to go, and blocks sealed by another key are of no use. The key is noted after
            // this.
            let cache = folder.path().join(CACHE);
            underlay_files::remove_tree(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
        }
        let sent = sent::SentLog::open(&folder);
        let (sent, sent_before) = sent.map_err(|error| format!("{}: {error}", folder.path().display()))?;
        let framing = ContentFraming::new(setup.at_rest.clone());
        let commits = JournalCommits::open(&journal_folder).map_err(|error| error.to_string())?;
        let capacity_bytes = setup.local.journal_bytes;
        let journal = recover(&metadata, journal_folder, Arc::clone(&disk), capacity_bytes, framing)
            .map_err(|error| error.to_string())?;
        let supervisor = LoopSupervisor::default();
        let memory_bytes = setup.local.memory_bytes;
        let queue = Arc::new(FlushQueue::new(entries::most_names(memory_bytes)));
        let (served, spills) = (Arc::new(ServedBuckets::default()), Arc::new(spill::SpillQueue::default()));
        let uploads =
            metadata.view().and_then(|view| UploadEntries::counted(&view, setup.local.journal_bytes));
        let uploads = Arc::new(uploads.map_err(|error| error.to_string())?);
        let committer = {
            let (journal, queue, served) = (Arc::clone(&journal), Arc::clone(&queue), Arc::clone(&served));
            let (uploads, spills) = (Arc::clone(&uploads), Arc::clone(&spills));
            MetadataCommitter::start_on(metadata.database(), Some(Arc::clone(&disk)), move |effects| {
                commits.note(effects.commits);
                uploads.apply(effects.unfinished);
                queue.apply(effects.queued, &effects.unblocked, |name| served.delay_of(name));
                // Here, and not where clients wait for the commit: one that goes away meanwhile has sent its part all
                // the same.
                spills.apply(effects.part_contents, &effects.ended, &effects.released);
                journal.release(effects.released);
            })
            .map_err(|error| format!("cannot start a thread: {error}"))?
            .supervised_by(&supervisor)
        };
        // An earlier gateway would take a sealed journal for damaged, and others' stores for its own.
        let needs_format = sealed_by != 0 || setup.sharing.is_some();
        let identity = committer
            .commit(Vec::new(), move |change| {
                change.set_number(SEALED_BY, sealed_by)?;
                if needs_format {
                    change.need_format(crate::meta::FORMAT_OF_MORE)?;
                }
                match change.number(b"identity")? {
                    Some(identity) => Ok(identity),
                    None => {
                        let identity = getrandom::u64()
                            .map_err(|error| GatewayError::local("no random numbers", error))?;
                        change.set_number(b"identity", identity)?;
                        Ok(identity)
                    }
                }
            })
            .await
            .map_err(|error| error.to_string())?;
        let cache_folder = folder.make_inner(CACHE, Access::Private).map_err(|error| error.to_string())?;
        let life = lives::begin(&metadata, &committer, &cache_folder).await;
        let life = life.map_err(|error| error.to_string())?;
        let flash = (setup.local.flash_bytes > 0).then(|| (cache_folder.path(), setup.local.flash_bytes));
        let block_bytes = setup.local.block_bytes;
        let blocks = BlockCache::open(block_bytes, memory_bytes, flash, setup.at_rest.clone())
            .await?
            .supervised_by(&supervisor);
        match &setup.sharing {
            Some(sharing) => sharing.ownership.be(format!("{identity:016x}")),
            // Objects that it does not know, another gateway may have.
            None if setup.alone.is_none()
                && slots::membership_of(&metadata).map_err(|error| error.to_string())?.is_some() =>
            {
                return Err(format!(
                    "{} is that of a gateway which shares its store with others, and the configuration has no [cluster]\n  what to do: put [cluster] back, or begin with an empty directory once `drain` has stored everything",
                    setup.local.directory.display()
                ));
            }
            None => {}
        }
        let others = match &setup.alone {
            Some(alone) => alone.others(&metadata, &format!("{identity:016x}"))?,
            None => HashSet::new(),
        };
        let next_number = AtomicU64::new(metadata.epoch << NUMBER_BITS);
        let late_places = LatePlaces::new(entries::most_late_names(memory_bytes));
        let engine = GatewayEngine {
            metadata,
            committer,
            journal,
            disk,
            blocks: Arc::new(blocks),
            queue,
            uploads,
            reading: MemoryBudget::new((memory_bytes / 2).max(MIN_READ_BYTES)),
            storing: MemoryBudget::new((memory_bytes / 4).max(MIN_STORE_BYTES)),
            fresh: fresh::FreshAnswers::new(fresh::most_bytes(memory_bytes)),
            completed: completed::CompletedUploads::default(),
            spills,
            sent: Arc::new(sent),
            served,
            ahead: ahead::ObjectReadAhead::default(),
            clock: expiry::WallClock::new(setup.uploads_expire),
            setup,
            identity,
            life,
            sealed_by,
            others,
            next_number,
            under: OnceLock::new(),
            making: Arc::default(),
            bucket_limits: buckets::BucketLimits::default(),
            late_of_removed: Mutex::default(),
            s3_late_places: StorePlaces::new(Arc::clone(&late_places)),
            late_places,
            keeping: tokio::sync::Mutex::default(),
            waiting: room::RoomQueue::default(),
            told: Mutex::default(),
            _lock: lock,
            supervisor,
            counters: EngineCounters::default(),
        };
        engine.open_buckets().await?;
        engine.check_mounted().await?;
        engine.check_all_suitable().await?;
        if engine.setup.alone.is_none() {
            engine.check_stores().await?;
            engine.take_over(progress).await?;
        }
        let engine = Arc::new(engine);
        engine.recall_unanswered(sent_before).await.map_err(|error| error.to_string())?;
        engine.start_flushing().map_err(|error| error.to_string())?;
        engine.start_spilling().map_err(|error| error.to_string())?;
        engine.start_expiring();
        engine.start_removing();
        engine.start_keeping_unanswered();
        engine.start_looking_out();
        engine.start_watching();
        engine.start_reporting();
        Ok(engine)
    }

    /// A number that was never given before.
    fn number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    fn content_owner(&self, content: ContentId) -> BlockOwner {
        self.block_owner(&[b"content", &self.identity.to_le_bytes(), &content.0.to_le_bytes()])
    }

    /// Blocks that another key has sealed are not ours; without a key they have the names that they always had.
    fn block_owner(&self, parts: &[&[u8]]) -> BlockOwner {
        match self.sealed_by {
            0 => BlockOwner::new(parts),
            key => {
                let (label, key): (&[u8], _) = (b"sealed by", key.to_le_bytes());
                BlockOwner::new(&[parts, &[label, &key]].concat())
            }
        }
    }

    /// Bytes in the journal, and how many there may be.
    pub(crate) fn journal_bytes(&self) -> (u64, u64) {
        (self.journal.used_bytes(), self.journal.capacity_bytes())
    }

    /// The room on the local disk, and who was refused for want of it.
    pub(crate) fn disk(&self) -> &DiskRoom {
        &self.disk
    }

    /// Whether flash is left alone, how many blocks were not looked for there, and how long a block takes from it and
    /// from the store.
    pub(crate) fn bypass(&self) -> (bool, u64, f64, f64) {
        self.blocks.bypass()
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
        self.queue.hurry();
    }

    /// Whether everything is in the stores.
    pub fn is_clean(&self) -> bool {
        self.queue.summary().0 == 0
    }

    /// Whether the metadata can no longer be written: the gateway has to be started again.
    pub(crate) fn is_broken(&self) -> bool {
        self.committer.is_broken()
    }

    /// Whether nothing can be written to the metadata any more. One failed change is another matter: the next may
    /// succeed.
    pub(crate) fn takes_no_more(&self) -> bool {
        self.committer.has_ended()
    }

    /// Of a flush that failed, the latest: the name and what the store said.
    pub fn last_failure(&self) -> Option<(String, String)> {
        self.queue.last_failure()
    }

    /// Ends the flushers, and takes no more writes. Earlier writes may not be in the stores yet: from here on
    /// [`is_clean`](Self::is_clean) has the last word on that.
    pub async fn close(&self) {
        self.close_metadata().await;
        self.close_cache().await;
    }

    /// The same without the cache, which may take seconds, and in which nothing is that the stores don't have.
    pub(crate) async fn close_metadata(&self) {
        self.queue.stop();
        if let Err(error) = self.keep_unanswered(true).await {
            tracing::warn!(
                "cannot record for the next start which requests the stores have not answered: {error}"
            );
        }
        // Nothing that is acknowledged from here on would be stored.
        if let Err(error) = self.committer.close().await {
            tracing::warn!("the metadata are not closed: {error}");
        }
    }

    pub(crate) async fn close_cache(&self) {
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
