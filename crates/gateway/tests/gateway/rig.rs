//! An engine over a store of the test's, and what tests do with it again and again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt as _;
use object_store::{ObjectStore, ObjectStoreExt as _};
use underlay_gateway::at_rest::AtRest;
use underlay_gateway::config::{
    BucketConfig, LocalConfig, NewBuckets, PrefixRule, StoreConsistency, StorePlace, WriteMode,
};
use underlay_gateway::engine::{
    AnswerBody, EngineSetup, GatewayEngine, PutRequest, ResolvedObject, ShortRange, WriteConditions,
    WriteReceipt,
};
use underlay_gateway::errors::GatewayError;
use underlay_gateway::store::{BackendKind, StoreBackend, key_of};

use crate::faulty::{Faulty, Mood};

pub(crate) const BUCKET: &str = "lake";
/// Small, so that a short object has several.
pub(crate) const BLOCK_BYTES: u64 = 64 << 10;

/// What an engine is opened over.
#[derive(Clone)]
pub(crate) struct Ground {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) kind: BackendKind,
    pub(crate) mood: Arc<Mood>,
    pub(crate) write: WriteMode,
    pub(crate) consistency: StoreConsistency,
    pub(crate) journal_bytes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) uploads_expire: Duration,
    pub(crate) patience: Duration,
    /// How long after it should have answered the store may carry out a request.
    pub(crate) landing: Duration,
    pub(crate) at_rest: Option<Arc<AtRest>>,
    pub(crate) flash_bytes: u64,
    /// Of prefixes that differ.
    pub(crate) rules: Vec<PrefixRule>,
    /// Where the store is, if it is a directory that is looked at.
    pub(crate) root: Option<PathBuf>,
    /// Whether clients make buckets: all in the same place of S3, so one at a time, and nothing may be in the other
    /// one.
    pub(crate) takes_buckets: bool,
    /// What the configuration calls its bucket.
    pub(crate) bucket: &'static str,
}

impl Ground {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, kind: BackendKind) -> Ground {
        Ground {
            store,
            kind,
            mood: Arc::default(),
            write: WriteMode::Back { after: Duration::from_millis(5) },
            consistency: StoreConsistency::Exclusive,
            journal_bytes: 256 << 20,
            memory_bytes: 8 << 20,
            uploads_expire: Duration::from_secs(3600),
            patience: Duration::from_secs(5),
            // What fails here has failed by then.
            landing: Duration::from_millis(5),
            at_rest: None,
            flash_bytes: 0,
            rules: Vec::new(),
            root: None,
            takes_buckets: false,
            bucket: BUCKET,
        }
    }

    fn setup(&self, directory: &Path) -> EngineSetup {
        let rule = PrefixRule { prefix: String::new(), write: self.write, consistency: self.consistency };
        let store = Arc::new(Faulty::new(Arc::clone(&self.store), Arc::clone(&self.mood)));
        let backend = StoreBackend::new(Arc::clone(&store) as Arc<dyn ObjectStore>, self.kind);
        let backend = backend.landing_within(self.landing);
        let made = StorePlace::S3 { bucket: "company".to_owned(), prefix: String::new() };
        let new_buckets = NewBuckets { under: made.clone(), rule: rule.clone() };
        let (landing, takes_buckets) = (self.landing, self.takes_buckets);
        let root = self.root.clone();
        let place = root.clone().unwrap_or_else(|| "/the/store/of/the/test".into());
        EngineSetup {
            local: LocalConfig {
                directory: directory.to_owned(),
                journal_bytes: self.journal_bytes,
                memory_bytes: self.memory_bytes,
                flash_bytes: self.flash_bytes,
                block_bytes: BLOCK_BYTES,
                metadata_bytes: 8 << 20,
                encryption: None,
            },
            patience: self.patience,
            flushes: 4,
            uploads_expire: self.uploads_expire,
            buckets: vec![BucketConfig {
                name: self.bucket.to_owned(),
                store: StorePlace::Directory(place),
                rules: self.rules.iter().cloned().chain([rule]).collect(),
            }],
            new_buckets: takes_buckets.then_some(new_buckets),
            open_store: Box::new(move |place| match &root {
                // Each bucket that is made has a backend of its own.
                _ if matches!(place, StorePlace::S3 { .. }) => {
                    let store = Arc::clone(&store) as Arc<dyn ObjectStore>;
                    Ok(StoreBackend::new(store, BackendKind::S3).landing_within(landing))
                }
                None => Ok(backend.clone()),
                Some(root) => backend.clone().with_root(root).map_err(|error| error.to_string()),
            }),
            create_place: Box::new(move |_, _| match takes_buckets {
                true => Ok(made.clone()),
                false => Err("not here".to_owned()),
            }),
            sharing: None,
            alone: None,
            at_rest: self.at_rest.clone(),
            into_empty: Vec::new(),
        }
    }

    /// Opens an engine. One that was there a moment ago may still be letting go of the directory.
    pub(crate) async fn open(&self, directory: &Path) -> Arc<GatewayEngine> {
        let begun = Instant::now();
        loop {
            match GatewayEngine::open(self.setup(directory)).await {
                Ok(engine) => return engine,
                Err(error) if begun.elapsed() > Duration::from_secs(20) => panic!("{error}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    pub(crate) async fn try_open(&self, directory: &Path) -> Result<Arc<GatewayEngine>, String> {
        GatewayEngine::open(self.setup(directory)).await
    }

    /// Every object of the store itself, without those that the gateway deletes meanwhile.
    pub(crate) async fn stored(&self) -> Vec<(String, Bytes)> {
        let mut listed = self.store.list(None);
        let mut objects = Vec::new();
        while let Some(meta) = listed.next().await {
            let location = meta.unwrap().location;
            let object = match self.store.get(&location).await {
                Err(object_store::Error::NotFound { .. }) => continue,
                object => object.unwrap(),
            };
            objects.push((key_of(&location), object.bytes().await.unwrap()));
        }
        objects.sort();
        objects
    }

    /// Waits until the store, which works from now on, has everything.
    pub(crate) async fn drain(&self, engine: &GatewayEngine) {
        self.mood.be_good();
        engine.begin_drain();
        let begun = Instant::now();
        while !engine.is_clean() {
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "{:?} {:?}",
                engine.pending(),
                engine.last_failure()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A store in a directory.
pub(crate) fn in_directory(directory: &Path) -> Arc<dyn ObjectStore> {
    std::fs::create_dir_all(directory).unwrap();
    let files = object_store::local::LocalFileSystem::new_with_prefix(directory).unwrap();
    Arc::new(files.with_fsync(true))
}

/// A store in memory.
pub(crate) fn in_memory() -> Arc<dyn ObjectStore> {
    Arc::new(object_store::memory::InMemory::new())
}

/// Bytes that a test recognises.
pub(crate) fn content(seed: u64, size: usize) -> Bytes {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes.extend_from_slice(&x.to_le_bytes());
    }
    bytes.truncate(size);
    Bytes::from(bytes)
}

/// As a client would send it, in pieces.
pub(crate) fn body_of(
    bytes: &Bytes,
) -> futures_util::stream::BoxStream<'static, Result<Bytes, GatewayError>> {
    let pieces: Vec<Result<Bytes, GatewayError>> =
        bytes.chunks(50_000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    futures_util::stream::iter(pieces).boxed()
}

pub(crate) async fn put(
    engine: &Arc<GatewayEngine>,
    key: &str,
    bytes: &Bytes,
    conditions: WriteConditions,
) -> Result<WriteReceipt, GatewayError> {
    let request = PutRequest { size_bytes: bytes.len() as u64, conditions, ..PutRequest::default() };
    engine.put(BUCKET, key, request, body_of(bytes), Box::new(|_, _| Ok(()))).await
}

/// A whole object, or a range of it.
pub(crate) async fn get(
    engine: &Arc<GatewayEngine>,
    key: &str,
    range: Option<std::ops::Range<u64>>,
) -> Result<Bytes, GatewayError> {
    let resolved = engine.resolve(BUCKET, key).await?;
    let range = range.unwrap_or(0..resolved.record.size_bytes);
    whole(engine.body(BUCKET, key, resolved, range)).await
}

async fn whole(mut body: AnswerBody) -> Result<Bytes, GatewayError> {
    let mut bytes = Vec::new();
    while let Some(piece) = body.next().await {
        bytes.extend_from_slice(&piece?);
    }
    Ok(Bytes::from(bytes))
}

/// A range that is no longer than a block, as the front reads it.
pub(crate) async fn get_short(
    engine: &Arc<GatewayEngine>,
    key: &str,
    resolved: ResolvedObject,
    range: std::ops::Range<u64>,
) -> Result<Bytes, GatewayError> {
    match engine.read(BUCKET, key, resolved, range).await? {
        ShortRange::Whole(bytes) => Ok(bytes),
        ShortRange::Coming(body) => whole(body).await,
    }
}

pub(crate) async fn delete(engine: &Arc<GatewayEngine>, key: &str) -> Result<(), GatewayError> {
    engine.delete(BUCKET, vec![(key.to_owned(), WriteConditions::default())]).await?.remove(0)
}
