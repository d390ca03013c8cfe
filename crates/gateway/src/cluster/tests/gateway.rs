//! Gateways of a test: engines over one store, and what keeps them in step with the etcd of the test, taken step by
//! step.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{ObjectStore, ObjectStoreExt as _};
use tokio::sync::Notify;
use underlay_sync::Mutex;

use super::fake::{At, Fake, PREFIX};
use crate::cluster::control::ClusterControl;
use crate::cluster::etcd::EtcdKv as _;
use crate::cluster::operate::alone_by;
use crate::cluster::records::{ClusterView, EtcdKeys, MemberRecord};
use crate::cluster::{MemberRefusal, MemberShared};
use crate::config::{BucketConfig, LocalConfig, PrefixRule, StoreConsistency, StorePlace, WriteMode};
use crate::engine::{
    EngineSetup, GatewayEngine, HeldSlot, KeySharing, OfflineDrain, PeerAnswer, PeerQueries, PeerQuestion,
    PutRequest,
};
use crate::errors::{GatewayError, GatewayResult};
use crate::model::{ObjectChecksums, ObjectHeaders, ObjectRecord};
use crate::ownership::{OwnedSlot, SlotOwnership, VisiblePeer};
use crate::placement::SLOTS;
use crate::store::{BackendKind, StoreBackend};

pub(super) const BUCKET: &str = "lake";
/// Over a directory, where a site has one.
pub(super) const FILES: &str = "files";
/// None of a test ends by itself.
const TTL: Duration = Duration::from_secs(3600);
/// For what takes some steps.
const TIMEOUT: Duration = Duration::from_secs(30);

/// State that gateways share.
pub(super) struct Site {
    pub(super) etcd: Arc<Fake>,
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) consistency: StoreConsistency,
    /// Where the store is said to be reached.
    pub(super) endpoint: &'static str,
    /// Whether there is another bucket, over a directory.
    pub(super) has_files: bool,
    directory: tempfile::TempDir,
}

/// Keys that were called another gateway's.
#[derive(Default)]
pub(super) struct Others(Mutex<Option<ObjectRecord>>);

pub(super) struct Gateway {
    pub(super) engine: Arc<GatewayEngine>,
    pub(super) ownership: Arc<SlotOwnership>,
    pub(super) control: ClusterControl,
    pub(super) elsewhere: Arc<Others>,
    pub(super) shared: Arc<MemberShared>,
}

impl Others {
    pub(super) fn has(&self, _key: &str, etag: &str, size_bytes: u64) {
        *self.0.lock() = Some(ObjectRecord {
            version: 1,
            size_bytes,
            etag: etag.to_owned(),
            modified_ms: 0,
            extents: Vec::new(),
            headers: ObjectHeaders::default(),
            tags: Vec::new(),
            checksums: ObjectChecksums::default(),
            part_sizes_bytes: Vec::new(),
            part_checksums: Vec::new(),
            only_listed: false,
        });
    }
}

#[async_trait]
impl PeerQueries for Others {
    async fn ask(&self, _: &str, question: &PeerQuestion) -> GatewayResult<PeerAnswer> {
        match (question, &*self.0.lock()) {
            (PeerQuestion::Look { .. }, Some(record)) => Ok(PeerAnswer::Object(Box::new(record.clone()))),
            // It was replaced since.
            (PeerQuestion::Read { .. }, Some(_)) => Err(GatewayError::PreconditionFailed),
            _ => Err(GatewayError::Busy("there is nobody".to_owned())),
        }
    }
}

impl Site {
    pub(super) fn new() -> Site {
        Site::over(Arc::new(InMemory::new()))
    }

    /// With a store that takes so long for each PUT.
    pub(super) fn slow(put: Duration) -> Site {
        let config = ThrottleConfig { wait_put_per_call: put, ..ThrottleConfig::default() };
        Site::over(Arc::new(ThrottledStore::new(InMemory::new(), config)))
    }

    fn over(store: Arc<dyn ObjectStore>) -> Site {
        let directory = tempfile::tempdir().unwrap();
        let (consistency, endpoint) = (StoreConsistency::Exclusive, "http://store");
        Site { etcd: Arc::default(), store, consistency, endpoint, has_files: false, directory }
    }

    fn setup(
        &self,
        directory: &str,
        sharing: Option<KeySharing>,
        alone: Option<OfflineDrain>,
    ) -> EngineSetup {
        let backend = StoreBackend::new(Arc::clone(&self.store), BackendKind::S3).reached_at(self.endpoint);
        // Nothing is flushed before a test says so.
        let write = WriteMode::Back { after: Duration::from_secs(3600) };
        let rules = vec![PrefixRule { prefix: String::new(), write, consistency: self.consistency }];
        let of_files = StorePlace::Directory("/the/files/of/the/test".into());
        let lake = BucketConfig {
            name: BUCKET.to_owned(),
            store: StorePlace::Directory("/the/store/of/the/test".into()),
            rules: rules.clone(),
        };
        let files = BucketConfig { name: FILES.to_owned(), store: of_files.clone(), rules };
        let files_backend = StoreBackend::new(Arc::new(InMemory::new()), BackendKind::Directory);
        EngineSetup {
            local: LocalConfig {
                directory: self.directory.path().join(directory),
                journal_bytes: 64 << 20,
                memory_bytes: 8 << 20,
                flash_bytes: 0,
                block_bytes: 64 << 10,
                metadata_bytes: 4 << 20,
                encryption: None,
            },
            patience: Duration::from_secs(5),
            flushes: 2,
            uploads_expire: Duration::from_secs(3600),
            buckets: [lake].into_iter().chain(self.has_files.then_some(files)).collect(),
            new_buckets: None,
            open_store: Box::new(move |place| {
                Ok(if *place == of_files { files_backend.clone() } else { backend.clone() })
            }),
            create_place: Box::new(|_, _| Err("not here".to_owned())),
            sharing,
            alone,
            at_rest: None,
            into_empty: Vec::new(),
        }
    }

    async fn engine(
        &self,
        directory: &str,
        sharing: Option<KeySharing>,
        alone: Option<OfflineDrain>,
    ) -> std::result::Result<Arc<GatewayEngine>, String> {
        let begun = Instant::now();
        loop {
            match GatewayEngine::open(self.setup(directory, sharing.clone(), alone.clone())).await {
                // The one before may still be letting go.
                Err(reason)
                    if (reason.contains("using this directory") || reason.contains("already open"))
                        && begun.elapsed() < TIMEOUT =>
                {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                outcome => return outcome,
            }
        }
    }

    pub(super) async fn start(&self, name: &str) -> std::result::Result<Gateway, String> {
        self.start_as(name, name).await
    }

    /// A gateway of this name, with that directory.
    pub(super) async fn start_as(&self, name: &str, directory: &str) -> std::result::Result<Gateway, String> {
        let (ownership, peers) = (Arc::new(SlotOwnership::new(1)), Arc::new(Others::default()));
        let others = Arc::clone(&peers) as Arc<dyn PeerQueries>;
        let sharing = KeySharing { ownership: Arc::clone(&ownership), others };
        let engine = self.engine(directory, Some(sharing), None).await?;
        let address = format!("{name}:1");
        let shared = Arc::new(MemberShared {
            engine: Arc::clone(&engine),
            ownership: Arc::clone(&ownership),
            etcd: Box::new(At(Arc::clone(&self.etcd))),
            keys: EtcdKeys::new(PREFIX),
            name: name.to_owned(),
            member: MemberRecord {
                name: name.to_owned(),
                address,
                buckets: "the same".to_owned(),
                is_leaving: false,
            },
            segments: 1,
            ttl: TTL,
            tick: Duration::from_millis(1),
            token: crate::cluster::random()?,
            seen: AtomicU64::new(0),
            witness: tokio::sync::Mutex::default(),
            is_marked: AtomicBool::new(false),
            lease: Mutex::new(None),
            poked: Notify::new(),
            leaving: Notify::new(),
            has_left: AtomicBool::new(false),
            has_only_uploads: AtomicBool::new(false),
            came_round: Mutex::new(tokio::time::Instant::now()),
        });
        let control = ClusterControl::new(Arc::clone(&shared));
        let gateway = Gateway { engine, ownership, control, elsewhere: peers, shared };
        self.etcd.expire_member(gateway.ownership.id());
        gateway.register().await?;
        Ok(gateway)
    }

    /// As by SIGKILL, and its lease ends.
    pub(super) fn kill(&self, gateway: Gateway) {
        self.etcd.expire_member(gateway.ownership.id());
        // Also what its tasks still hold of it goes.
        gateway.ownership.let_go();
    }

    /// The lease ends, and the gateway hears of it.
    pub(super) fn lapse(&self, gateway: &Gateway) {
        self.etcd.expire_member(gateway.ownership.id());
        *gateway.shared.lease.lock() = None;
        gateway.ownership.let_go();
    }

    /// Copies a gateway's directory as it is.
    pub(super) fn copy(&self, from: &str, to: &str) {
        fn copy(from: &Path, to: &Path) {
            std::fs::create_dir_all(to).unwrap();
            std::fs::set_permissions(to, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
            for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
                let target = to.join(entry.file_name());
                match entry.file_type().unwrap().is_dir() {
                    true => copy(&entry.path(), &target),
                    false => drop(std::fs::copy(entry.path(), target).unwrap()),
                }
            }
        }
        let to = self.directory.path().join(to);
        let _ = std::fs::remove_dir_all(&to);
        copy(&self.directory.path().join(from), &to);
    }

    /// A gateway that knows of no other.
    pub(super) async fn single(&self, directory: &str) -> std::result::Result<Arc<GatewayEngine>, String> {
        self.engine(directory, None, None).await
    }

    /// As `drain --without-etcd`. Returns how many objects are kept back.
    pub(super) async fn store_alone(
        &self,
        directory: &str,
        is_trusted: bool,
    ) -> std::result::Result<usize, String> {
        let (rows, revision) = At(Arc::clone(&self.etcd)).range(&EtcdKeys::new(PREFIX).all()).await.unwrap();
        let view = ClusterView::read(&EtcdKeys::new(PREFIX), &rows, revision).unwrap();
        let alone = alone_by(Some(&view), 1, is_trusted)?;
        let engine = self.engine(directory, None, Some(alone)).await?;
        engine.begin_drain();
        let begun = Instant::now();
        while !engine.is_clean() {
            assert!(begun.elapsed() < TIMEOUT, "{:?}", engine.last_failure());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        engine.close().await;
        Ok(engine.kept_back().unwrap())
    }

    /// The store's object.
    pub(super) async fn stored(&self, key: &str) -> Option<String> {
        let bytes = self.store.get(&key.into()).await.ok()?.bytes().await.unwrap();
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    /// A gateway's own rights never exceed those in etcd.
    pub(super) fn check(&self, gateways: &[&Gateway]) {
        for gateway in gateways {
            let known_slots = gateway.engine.known_slots().unwrap();
            for slot in 0..SLOTS {
                let record = self.etcd.find_slot(slot);
                let is_owner = record.as_ref().is_some_and(|record| record.owner == gateway.ownership.id());
                let name = &gateway.shared.name;
                if gateway.ownership.may_flush(slot) {
                    let is_dirty = record.as_ref().is_some_and(|record| record.is_dirty);
                    assert!(is_owner && is_dirty, "{name} may flush {slot}: {record:?}");
                }
                let epoch = known_slots.get(&slot).map_or(0, HeldSlot::epoch);
                if gateway.ownership.read_slots(vec![(slot, epoch)]).is_ok() {
                    assert!(is_owner, "{name} answers for {slot}: {record:?}");
                }
            }
        }
    }
}

pub(super) async fn put_to(engine: &Arc<GatewayEngine>, key: &str, text: &str) -> GatewayResult<()> {
    let bytes = Bytes::copy_from_slice(text.as_bytes());
    let request = PutRequest { size_bytes: bytes.len() as u64, ..PutRequest::default() };
    let body = futures_util::stream::iter([Ok(bytes)]).boxed();
    engine.put(BUCKET, key, request, body, Box::new(|_, _| Ok(()))).await.map(drop)
}

pub(super) async fn get_from(engine: &Arc<GatewayEngine>, key: &str) -> GatewayResult<Option<String>> {
    let resolved = match engine.resolve(BUCKET, key).await {
        Err(GatewayError::NoSuchKey) => return Ok(None),
        outcome => outcome?,
    };
    let size_bytes = resolved.record.size_bytes;
    let mut body = engine.body(BUCKET, key, resolved, 0..size_bytes);
    let mut bytes = Vec::new();
    while let Some(piece) = body.next().await {
        bytes.extend_from_slice(&piece?);
    }
    Ok(Some(String::from_utf8(bytes).unwrap()))
}

impl Gateway {
    pub(super) async fn register(&self) -> std::result::Result<(), String> {
        for _ in 0..5 {
            match self.shared.register().await {
                Ok(()) => return Ok(()),
                Err(MemberRefusal::Wrong(reason)) => return Err(reason),
                // The cluster is new.
                Err(MemberRefusal::NotYet(_)) => {}
            }
        }
        Err("not yet".to_owned())
    }

    pub(super) fn is_registered(&self) -> bool {
        self.shared.lease.lock().is_some()
    }

    pub(super) fn served(&self) -> usize {
        self.ownership.counts().0
    }

    /// Goes on until it is so.
    pub(super) async fn pass_until(&mut self, is_so: impl Fn(&Gateway) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < TIMEOUT, "it does not come to that");
            let _ = self.control.pass().await;
            // A pass does not wait for the work that it starts.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Whether it was acknowledged, where the gateway is driven on while it waits.
    pub(super) async fn put(&mut self, key: &str, text: &str) -> bool {
        let engine = Arc::clone(&self.engine);
        let mut put = Box::pin(put_to(&engine, key, text));
        if let Ok(outcome) = tokio::time::timeout(Duration::from_millis(20), &mut put).await {
            return outcome.is_ok();
        }
        let _ = self.control.mark_dirty_or_look().await;
        matches!(tokio::time::timeout(Duration::from_millis(300), put).await, Ok(Ok(_)))
    }

    pub(super) async fn get(&self, key: &str) -> GatewayResult<Option<String>> {
        get_from(&self.engine, key).await
    }

    pub(super) fn hasten(&self) {
        self.engine.hasten_slots(&(0..SLOTS).collect());
    }

    /// Waits until the store has everything.
    pub(super) async fn flushed(&self) {
        let begun = Instant::now();
        while !self.engine.is_clean() {
            assert!(begun.elapsed() < TIMEOUT, "{:?}", self.engine.last_failure());
            self.hasten();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Another gateway is said to have the slot.
    pub(super) fn say_elsewhere(&self, slot: u16) {
        let peers = [("them".to_owned(), VisiblePeer { address: "x:1".to_owned() })].into();
        let owned =
            |owner: &str| Some(OwnedSlot { owner: owner.to_owned(), name: owner.to_owned(), epoch: 9 });
        let us = self.ownership.id();
        let slots = (0..SLOTS).map(|number| owned(if number == slot { "them" } else { us })).collect();
        self.ownership.learn(peers, slots);
    }
}
