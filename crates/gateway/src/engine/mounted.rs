//! Directories as stores: whether one is mounted that should be. While the gateway runs, the store itself looks
//! ([`StoreBackend::check_there`]); here it is looked at the start, and for one that comes back.

use std::collections::HashMap;
use std::fs::Metadata as FileMetadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use super::regions::PrefixRegions;
use super::suitable::{StoreAge, StoreProblem};
use super::withheld::is_same_file;
use super::{BucketState, GatewayEngine, slots};
use crate::config::StoreConsistency;
use crate::errors::{GatewayError, GatewayResult};
use crate::meta::{MetadataChange, MetadataView, ObjectName};
use crate::model::ObjectHeaders;
use crate::staged::is_staged;
use crate::store::{DirectoryIdentity, OWNERS, STORE_TIMEOUT, StoreBackend, StoredInfo};

/// How often it is looked whether a directory is there.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const MOUNTS_LOOK: &str = "look at directories";
/// Slow looks are rarer: a pause is so many times as long as the look, and no longer than this.
const PAUSE_BY: u32 = 10;
const MAX_PAUSE: Duration = Duration::from_secs(300);
/// Files that are looked for in a directory before it is no longer asked for more.
const MAX_PROBED_FILES: usize = 100_000;

/// The metadata's view of a store, compared with it.
#[derive(Debug, Default)]
struct RecordedMount {
    /// A name at which it has an object for sure: what is pending may never have got there.
    example: Option<ObjectName>,
    /// Whether a file is what is recorded, by its size and time.
    fits: bool,
    /// Whether there is a file at one of the names at all.
    has_name: bool,
    is_empty: bool,
}

/// The verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MountVerdict {
    /// It is what the metadata speak of, as far as anybody can say.
    Known,
    /// It is another one, and not one that something is to be mounted on: what it has is listed anew.
    Another,
    /// It has nothing of what was stored there: is it mounted?
    Away,
}

impl RecordedMount {
    /// `is_listed_anyway`: of several gateways each lists what it takes from another, and what is recorded may be older
    /// than what is there.
    fn verdict(&self, former: Option<DirectoryIdentity>, is_listed_anyway: bool) -> MountVerdict {
        let exchanged = match former.is_some() && !is_listed_anyway {
            true => MountVerdict::Another,
            false => MountVerdict::Known,
        };
        match self {
            RecordedMount { fits: true, .. } => MountVerdict::Known,
            // Nothing was stored in it, so nobody knows what it has.
            RecordedMount { example: None, .. } | RecordedMount { has_name: true, .. } => exchanged,
            _ => MountVerdict::Away,
        }
    }
}

/// Under which the metadata have the directory that a bucket was over last.
fn key_of(bucket: &str) -> Vec<u8> {
    format!("root {bucket}").into_bytes()
}

/// Removes the note of a bucket that has gone.
pub(super) fn forget_root(change: &mut MetadataChange<'_>, bucket: &str) -> GatewayResult<()> {
    change.remove_state(&key_of(bucket))
}

/// As the store would speak of the file.
fn found_of(file: &FileMetadata) -> StoredInfo {
    let modified = file.modified().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    let modified = modified.unwrap_or_default();
    StoredInfo {
        size_bytes: file.len(),
        etag: Some(format!("{:x}-{:x}-{:x}", file.ino(), modified.as_micros(), file.len())),
        modified_ms: i64::try_from(modified.as_millis()).unwrap_or(i64::MAX),
        headers: ObjectHeaders::default(),
    }
}

/// Blocks. Objects without bytes are not looked for: any empty file would fit.
fn look(
    view: &MetadataView,
    bucket: &str,
    is_exclusive: impl Fn(&str) -> bool,
    backend: &StoreBackend,
    root: &Path,
) -> Result<RecordedMount, GatewayError> {
    let is_ours = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().as_encoded_bytes() == OWNERS.as_bytes())
    };
    let is_empty = std::fs::read_dir(root).is_ok_and(|mut entries| entries.all(is_ours));
    let (mut recorded, mut looked_for) = (RecordedMount { is_empty, ..RecordedMount::default() }, 0);
    view.stored_in(bucket, |name, stored| {
        let Some(content) = stored.content else { return Ok(true) };
        if is_staged(&name.key) || !is_exclusive(&name.key) || view.pending(name)?.is_some() {
            return Ok(true);
        }
        recorded.example.get_or_insert_with(|| name.clone());
        if is_empty || looked_for == MAX_PROBED_FILES {
            return Ok(false);
        }
        looked_for += 1;
        let file =
            backend.path(&name.key).ok().and_then(|path| root.join(path.as_ref()).symlink_metadata().ok());
        if let Some(file) = file.filter(FileMetadata::is_file)
            && let Some(content) = view.content(content)?
        {
            recorded.has_name = true;
            recorded.fits = is_same_file(&content, &found_of(&file));
        }
        Ok(!recorded.fits)
    })?;
    Ok(recorded)
}

impl GatewayEngine {
    /// At the start: a directory with nothing of what was stored there is most likely one that something has to be
    /// mounted on. To go on would store into it, and take what is deleted meanwhile for deleted there. So its bucket is
    /// away until it is mounted, unless [`EngineSetup::into_empty`](super::EngineSetup::into_empty) says that it is
    /// right; the others are none the worse for it.
    ///
    /// # Errors
    /// When the metadata can't be read or written.
    pub(super) async fn check_mounted(&self) -> Result<(), String> {
        let buckets = self.bucket_states();
        let has_directory = |name: &&String| {
            buckets.iter().any(|state| state.name == **name && state.backend.root().is_some())
        };
        if let Some(name) = self.setup.into_empty.iter().find(|name| !has_directory(name)) {
            return Err(format!("--into-empty {name}: the gateway has no such bucket over a directory"));
        }
        for state in buckets {
            let is_right = self.setup.into_empty.contains(&state.name);
            let message_for = |reason: String| format!("the store of bucket {}: {reason}", state.name);
            let Some((root, identity)) = state.backend.root() else { continue };
            if is_right {
                // A cluster marks it anew then.
                let key = slots::marked_key(&state.name);
                let forgotten = move |change: &mut MetadataChange<'_>| change.set_state(&key, &String::new());
                self.committer.commit(Vec::new(), forgotten).await.map_err(|error| error.to_string())?;
            }
            let looked = tokio::time::timeout(STORE_TIMEOUT, self.verdict_of(&state, &state.backend)).await;
            let Ok(looked) = looked else {
                state.backend.await_another();
                tracing::warn!(
                    "{} does not say what it has: its bucket, {}, counts as not mounted until it does",
                    root.display(),
                    state.name
                );
                continue;
            };
            let (verdict, recorded) = looked.map_err(message_for)?;
            if verdict == MountVerdict::Away && recorded.example.is_none() {
                state.backend.await_another();
                continue;
            }
            if let (MountVerdict::Away, Some(name)) = (verdict, &recorded.example) {
                let root = root.display();
                let observation = if recorded.is_empty {
                    "is empty"
                } else {
                    "has none of the objects that were stored there"
                };
                let reason =
                    format!("{name} is recorded in {root}, for example, and the directory {observation}");
                if !is_right {
                    state.backend.await_another();
                    tracing::warn!(
                        "{reason}: is it mounted? Nothing of the bucket is stored or read there before it is, and all else is served\n  what to do: mount it, without a restart. If those objects are lost for good, stop the gateway and run `underlay-gateway drain --into-empty {}`, which accepts that directory as it is: see \"A directory that is not mounted\" in docs/gateway.md",
                        state.name
                    );
                    continue;
                }
                tracing::warn!("{reason}: it is the right one all the same, as --into-empty says");
            }
            self.enter_root(&state, identity, verdict).await.map_err(message_for)?;
        }
        Ok(())
    }

    async fn verdict_of(
        &self,
        state: &Arc<BucketState>,
        backend: &StoreBackend,
    ) -> Result<(MountVerdict, RecordedMount), String> {
        let failed = |error: GatewayError| error.to_string();
        let Some((root, identity)) = backend.root() else {
            return Ok((MountVerdict::Known, RecordedMount::default()));
        };
        let view = self.metadata.view().map_err(failed)?;
        let former: Option<DirectoryIdentity> = view.state(&key_of(&state.name)).map_err(failed)?;
        if former == Some(identity) {
            // Even after deletions by others.
            return Ok((MountVerdict::Known, RecordedMount::default()));
        }
        let (bucket, store, place) = (Arc::clone(state), backend.clone(), root.to_owned());
        let looked = crate::blocking::spawn_blocking(move || {
            look(&view, &bucket.name, |key| bucket.is_exclusive(key), &store, &place)
        });
        let recorded = looked.await.map_err(|error| error.to_string())?.map_err(failed)?;
        // It may have looked at another directory than the one that was opened; then it looks again.
        if backend.check_there().await.is_err() {
            return Ok((MountVerdict::Away, RecordedMount::default()));
        }
        Ok((recorded.verdict(former, self.setup.sharing.is_some()), recorded))
    }

    /// From now on this is the one that is expected.
    async fn enter_root(
        &self,
        state: &BucketState,
        identity: DirectoryIdentity,
        verdict: MountVerdict,
    ) -> Result<(), String> {
        let key = key_of(&state.name);
        let (bucket, whose) = (state.name.clone(), state.identity());
        self.committer
            .commit(Vec::new(), move |change| {
                whose.check_with_going(change)?;
                if change.state(&key)? == Some(identity) {
                    return Ok(());
                }
                if verdict == MountVerdict::Another {
                    PrefixRegions::note(change, &bucket, |_| PrefixRegions::default())?;
                }
                change.set_state(&key, &identity)
            })
            .await
            .map_err(|error| error.to_string())
    }

    /// Buckets whose directory is not there, or is another one than was opened.
    pub(crate) fn away_stores(&self) -> Vec<String> {
        let states = self.bucket_states();
        states.iter().filter(|state| state.backend.is_away()).map(|state| state.name.clone()).collect()
    }

    pub(crate) fn count_directories(&self) -> usize {
        self.bucket_states().iter().filter(|state| state.backend.root().is_some()).count()
    }

    /// Looks once more at a directory that was not the one that is expected. Returns whether it is now.
    async fn look_again(self: &Arc<Self>, state: &Arc<BucketState>) -> Result<bool, String> {
        if !self.serves(state) {
            // It has been removed.
            return Ok(true);
        }
        let (engine, place) = (Arc::clone(self), state.place.clone());
        // As at the start: that nobody else can write there has to be seen as well.
        let opened = crate::blocking::spawn_blocking(move || (engine.setup.open_store)(&place));
        let backend = opened.await.map_err(|error| error.to_string())??;
        let Some((_, identity)) = backend.root() else { return Ok(false) };
        let (verdict, _) = self.verdict_of(state, &backend).await?;
        if verdict == MountVerdict::Away {
            return Ok(false);
        }
        let looked = self.check_suitable(&state.name, &backend, StoreAge::Former).await;
        looked.map_err(StoreProblem::into_text)?;
        // It is listed before anything of the bucket goes there or comes from there: what is deleted meanwhile would
        // come back.
        if verdict == MountVerdict::Another
            && state.rules.iter().any(|rule| rule.rule.consistency == StoreConsistency::Exclusive)
        {
            state.is_unlisted.store(true, Ordering::Relaxed);
        }
        self.enter_root(state, identity, verdict).await?;
        // Files in a bucket that is going are nobody's objects.
        if self.setup.alone.is_none() && !state.is_going() {
            self.import_late(state, &backend).await?;
        }
        let bucket = Arc::clone(state);
        let accepted = crate::blocking::spawn_blocking(move || bucket.backend.accept(identity)).await;
        accepted.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        state.is_unlisted.store(false, Ordering::Relaxed);
        tracing::info!("the directory of bucket {} is there", state.name);
        self.queue.hasten_bucket(&state.name);
        Ok(true)
    }

    fn start_waiting_for(self: &Arc<Self>, state: Arc<BucketState>) {
        let engine = Arc::downgrade(self);
        self.supervisor.run(MOUNTS_LOOK, move || {
            let (engine, state) = (engine.clone(), Arc::clone(&state));
            async move {
                let (mut pause, mut last_reason) = (LOOK_EVERY, String::new());
                loop {
                    tokio::time::sleep(pause).await;
                    let Some(engine) = engine.upgrade() else { return };
                    let begun = Instant::now();
                    let looked =
                        engine.supervisor.attempt(MOUNTS_LOOK, &state.name, engine.look_again(&state));
                    match looked.await.unwrap_or_else(|panicked| Err(panicked.to_string())) {
                        Ok(true) => return,
                        Ok(false) => {}
                        Err(reason) if reason != last_reason => {
                            tracing::warn!(
                                "the directory of bucket {} can't be used yet: {reason}",
                                state.name
                            );
                            last_reason = reason;
                        }
                        Err(_) => {}
                    }
                    pause = (begun.elapsed() * PAUSE_BY).clamp(LOOK_EVERY, MAX_PAUSE);
                }
            }
        });
    }

    /// Looks at each directory now and then, for as long as the engine lives. Names that wait for a returned one are
    /// flushed at once.
    pub(super) fn start_watching(self: &Arc<Self>) {
        for state in self.bucket_states().into_iter().filter(|state| state.backend.is_awaited()) {
            self.start_waiting_for(state);
        }
        // Once it has hung, nobody else asks whether it answers again.
        if let Some(under) = self.under.get().cloned() {
            let engine = Arc::downgrade(self);
            self.supervisor.run(MOUNTS_LOOK, move || {
                let (engine, under) = (engine.clone(), under.clone());
                async move {
                    while engine.strong_count() > 0 {
                        tokio::time::sleep(LOOK_EVERY).await;
                        let _ = under.watch().await;
                    }
                }
            });
        }
        let engine = Arc::downgrade(self);
        self.supervisor.run(MOUNTS_LOOK, move || {
            let engine = engine.clone();
            async move {
                let mut returns: HashMap<String, u64> = HashMap::new();
                loop {
                    tokio::time::sleep(LOOK_EVERY).await;
                    let Some(engine) = engine.upgrade() else { return };
                    for state in engine.bucket_states() {
                        // Its log says how it is, and the supervisor's that it panicked.
                        let watching = state.backend.watch();
                        let _ = engine.supervisor.attempt(MOUNTS_LOOK, &state.name, watching).await;
                        let Some(now) = state.backend.returns() else { continue };
                        if returns.insert(state.name.clone(), now).unwrap_or(0) != now {
                            engine.queue.hasten_bucket(&state.name);
                        }
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::{ConfigSecrets, GatewayConfig};
    use crate::journal::NotedEpoch;
    use crate::meta::{MetadataCommitter, MetadataStore};
    use crate::model::{ContentExtent, ContentId, ContentPlace, ObjectRecord, StoredRecord};
    use crate::serving::setup_of;
    use crate::store::BackendKind;

    fn object(content: ContentId) -> ObjectRecord {
        ObjectRecord {
            version: content.0,
            size_bytes: 1,
            etag: "e".to_owned(),
            modified_ms: 1,
            extents: vec![ContentExtent { content, offset_bytes: 0, length_bytes: 1 }],
            headers: ObjectHeaders::default(),
            tags: Vec::new(),
            checksums: crate::model::ObjectChecksums::default(),
            part_sizes_bytes: Vec::new(),
            part_checksums: Vec::new(),
            only_listed: false,
        }
    }

    #[tokio::test]
    async fn hung_bucket_directory_is_used_after_it_answers() {
        let ground = tempfile::tempdir().unwrap();
        let under = ground.path().join("under");
        let text = format!(
            "listen = \"127.0.0.1:9000\"\n[local]\ndirectory = \"{}\"\n[new_buckets]\nstore = \"{}\"\n\
             [key.test]\nid = \"TEST\"\nsecret_env = \"NONE\"\nallow = [{{ bucket = \"*\", may = [\"read\"] }}]\n",
            ground.path().join("local").display(),
            under.display()
        );
        let config = GatewayConfig::parse("gateway.toml", &text).unwrap();
        let engine = GatewayEngine::open(setup_of(&config, &ConfigSecrets::default(), None)).await.unwrap();
        engine.create_bucket("first").await.unwrap();
        engine.under.get().unwrap().hang();
        assert!(matches!(engine.create_bucket("second").await, Err(GatewayError::StoreAway(_))));
        assert!(!under.join("second").exists());
        let used_again = async {
            while engine.create_bucket("second").await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(STORE_TIMEOUT, used_again).await.unwrap();
        assert!(under.join("second").exists());
    }

    #[tokio::test]
    async fn recorded_files_are_probed() {
        let (local, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let metadata =
            MetadataStore::open(&local.path().join("metadata"), 1 << 20, NotedEpoch::default()).unwrap();
        let committer = MetadataCommitter::start(metadata.database(), |_| {}).unwrap();
        std::fs::create_dir(root.path().join("dir")).unwrap();
        std::fs::write(root.path().join("dir/b"), "b").unwrap();
        let etag = found_of(&root.path().join("dir/b").metadata().unwrap()).etag;
        let enter = committer.commit(Vec::new(), move |change| {
            let keys =
                [("lake", "a"), ("lake", "dir/b"), ("lake", "pending"), ("lake", "theirs/c"), ("new", "d")];
            for (number, (bucket, key)) in keys.into_iter().enumerate() {
                let (name, id) = (ObjectName::new(bucket, key), ContentId(number as u64 + 1));
                let (bucket, key) = (bucket.to_owned(), key.to_owned());
                let place = ContentPlace::Remote {
                    bucket,
                    key,
                    etag: etag.clone(),
                    headers_hash: None,
                    cached_as: id,
                };
                change.add_content(id, 1, place)?;
                change.set_object(&name, Some(&object(id)))?;
                change.set_stored(&name, Some(&StoredRecord { content: Some(id) }))?;
            }
            // One without bytes is no sign of anything.
            change.set_stored(&ObjectName::new("lake", "0"), Some(&StoredRecord { content: None }))?;
            change.mark_pending(&ObjectName::new("new", "d"))?;
            change.mark_pending(&ObjectName::new("lake", "pending"))
        });
        enter.await.unwrap();
        let store = Arc::new(object_store::memory::InMemory::new());
        let backend = StoreBackend::new(store, BackendKind::Directory).with_root(root.path()).unwrap();
        let is_exclusive = |key: &str| !key.starts_with("theirs/");
        let look = |bucket: &str| {
            look(&metadata.view().unwrap(), bucket, is_exclusive, &backend, root.path()).unwrap()
        };
        let verdicts = |bucket: &str| {
            let recorded = look(bucket);
            (
                recorded.verdict(Some((1, 1)), false),
                recorded.verdict(None, false),
                recorded.verdict(Some((1, 1)), true),
            )
        };
        use MountVerdict::{Another, Away, Known};
        assert_eq!(verdicts("lake"), (Known, Known, Known));
        // Pending rows alone say nothing.
        assert_eq!(verdicts("new"), (Another, Known, Known));
        // A file of that name alone is not the one that is recorded.
        std::fs::write(root.path().join("dir/b"), "another").unwrap();
        assert_eq!(verdicts("lake"), (Another, Known, Known));
        std::fs::remove_file(root.path().join("dir/b")).unwrap();
        for key in ["pending", "theirs", "README"] {
            std::fs::write(root.path().join(key), "x").unwrap();
        }
        assert_eq!(verdicts("lake"), (Away, Away, Away));
        assert!(!look("lake").is_empty && look("lake").example == Some(ObjectName::new("lake", "a")));
        for key in ["pending", "theirs", "README"] {
            std::fs::remove_file(root.path().join(key)).unwrap();
        }
        std::fs::remove_dir(root.path().join("dir")).unwrap();
        // Nor does the marker of a cluster make it the right one.
        std::fs::write(root.path().join(OWNERS), "a cluster").unwrap();
        assert!(look("lake").is_empty);
        assert_eq!((verdicts("lake"), verdicts("none")), ((Away, Away, Away), (Another, Known, Known)));
    }
}
