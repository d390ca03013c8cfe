//! What lies on flash, sealed and in clear, and what stays there; what those get who wait for the same block.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path as StorePath;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};

use super::*;
use crate::store::BackendKind;

#[tokio::test]
async fn unsealed_flash_block_with_sealing_is_a_miss() {
    let key = Arc::new(AtRest::parse(&"7".repeat(64)).unwrap());
    let sealed = BlockCache::open(64 << 10, 1 << 20, None, Some(Arc::clone(&key))).await.unwrap();
    let open = BlockCache::open(64 << 10, 1 << 20, None, None).await.unwrap();
    let from_flash = |cached: CachedBlock| {
        let mut bytes = Vec::new();
        cached.encode(&mut bytes).unwrap();
        CachedBlock::decode(&mut &bytes[..]).unwrap()
    };
    let bytes = Bytes::from_static(b"a block");
    let ours = from_flash(CachedBlock::Open { bytes: bytes.clone(), seal: Some((key, 7)) });
    assert_eq!(sealed.opened(7, &ours), Some(bytes.clone()));
    // Of another place, of a gateway that seals nothing, and of anybody who can write there.
    assert!(sealed.opened(8, &ours).is_none() && open.opened(7, &ours).is_none());
    let theirs = from_flash(CachedBlock::Open { bytes: bytes.clone(), seal: None });
    assert!(sealed.opened(7, &theirs).is_none());
    assert_eq!(open.opened(7, &theirs), Some(bytes));
}

/// Freed memory full of it is what the next allocations are made of.
fn leave_in_memory(pattern: &[u8]) {
    let pages: Vec<Vec<u8>> = (0..256).map(|_| pattern.repeat((16 << 10) / pattern.len())).collect();
    drop(std::hint::black_box(pages));
}

#[tokio::test]
async fn flash_with_sealed_blocks_has_no_clear_bytes() {
    const SECRET: &[u8] = b"what nobody may read";
    let folder = tempfile::TempDir::new().unwrap();
    let key = Arc::new(AtRest::parse(&"7".repeat(64)).unwrap());
    leave_in_memory(SECRET);
    let blocks =
        BlockCache::open(64 << 10, 1 << 20, Some((folder.path(), 64 << 20)), Some(key)).await.unwrap();
    for number in 0..64 {
        leave_in_memory(SECRET);
        let block = SECRET.repeat(2500 + number as usize);
        blocks.insert(BlockOwner::new(&[b"an object"]), number, Bytes::from(block));
    }
    blocks.close().await;
    let mut written_bytes = 0;
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        written_bytes += bytes.iter().filter(|&&byte| byte != 0).count();
        let clear = bytes.windows(SECRET.len()).filter(|&window| window == SECRET).count();
        assert_eq!(clear, 0, "of {} bytes", bytes.len());
    }
    assert!(written_bytes > 64 * 2500 * SECRET.len() / 2, "{written_bytes}");
}

/// Blocks of an object that are in memory or on flash.
async fn hits(blocks: &BlockCache, owner: BlockOwner, count: u64) -> u64 {
    let mut hits = 0;
    for number in 0..count {
        hits += u64::from(blocks.look(owner.block(number)).await.is_some());
    }
    hits
}

/// As they come from the store, no faster than flash takes them.
async fn come(blocks: &BlockCache, owner: BlockOwner, numbers: Range<u64>) {
    for number in numbers {
        blocks.insert(owner, number, Bytes::from(vec![number as u8; 64 << 10]));
        if number % 64 == 63 {
            blocks.cache.storage().wait().await;
        }
    }
}

/// Blocks that are read again and again stay on flash while something ten times as long goes by once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scan_evicts_nothing_from_flash() {
    const FLASH_BYTES: u64 = 128 << 20;
    let folder = tempfile::TempDir::new().unwrap();
    let blocks = BlockCache::open(64 << 10, 1 << 20, Some((folder.path(), FLASH_BYTES)), None).await.unwrap();
    let (hot, scan, late) =
        (BlockOwner::new(&[b"hot"]), BlockOwner::new(&[b"scan"]), BlockOwner::new(&[b"late"]));
    let count = 256;
    come(&blocks, hot, 0..count).await;
    // Behind this, memory has none of it.
    come(&blocks, scan, 0..64).await;
    let before = hits(&blocks, hot, count).await;
    assert!(before > count * 9 / 10, "{before} of {count} blocks got to flash, so this shows nothing");
    come(&blocks, scan, 64..10 * FLASH_BYTES / (64 << 10)).await;
    let after = hits(&blocks, hot, count).await;
    assert!(after >= before * 9 / 10, "{after} of {before}");
    // What is asked for again gets there all the same.
    for round in 0..2_u64 {
        come(&blocks, late, 0..64).await;
        come(&blocks, BlockOwner::new(&[b"between", &round.to_le_bytes()]), 0..128).await;
        assert_eq!(hits(&blocks, late, 64).await > 32, round == 1, "round {round}");
    }
    blocks.close().await;
}

/// The cache counts the bytes of its blocks: what they take besides would be in nobody's bounds.
#[tokio::test]
async fn block_takes_only_its_size_in_memory() {
    const BLOCK_BYTES: u64 = 64 << 10;
    const SIZE_BYTES: u64 = 2 * BLOCK_BYTES + 5_000;
    let store = Arc::new(InMemory::new());
    let bytes = Bytes::from(vec![7; SIZE_BYTES as usize]);
    let put = store.put(&"a".into(), bytes.into()).await.unwrap();
    let blocks = Arc::new(BlockCache::open(BLOCK_BYTES, 8 << 20, None, None).await.unwrap());
    let origin = origin_of(store, put.e_tag, SIZE_BYTES);
    drop(blocks.read(&origin, 0..SIZE_BYTES).await.unwrap());
    for number in 0..3 {
        let id = origin.whose.block(number);
        let mut block = blocks.find_in_memory(id).unwrap();
        let length = block.len();
        assert_eq!(length as u64, BLOCK_BYTES.min(SIZE_BYTES - number * BLOCK_BYTES));
        blocks.cache.remove(&id);
        // The task that fetched it may still hold it for a moment.
        let own = async {
            loop {
                match block.try_into_mut() {
                    Ok(own) => return own,
                    Err(shared) => block = shared,
                }
                tokio::task::yield_now().await;
            }
        };
        let own = tokio::time::timeout(Duration::from_secs(20), own).await.unwrap();
        assert_eq!(own.capacity(), length, "block {number}");
    }
}

/// The object `a` of a store.
fn origin_of(store: Arc<dyn ObjectStore>, etag: Option<String>, size_bytes: u64) -> BlockOrigin {
    BlockOrigin {
        backend: StoreBackend::new(store, BackendKind::S3),
        key: "a".to_owned(),
        etag,
        size_bytes,
        whose: BlockOwner::new(&[b"a"]),
        counts: Arc::default(),
        missed: None,
    }
}

/// A store whose first requests for bytes fail, as soon as they may. Later ones succeed.
#[derive(Debug)]
struct Failing {
    inner: InMemory,
    failures: u64,
    gets: AtomicU64,
    may_fail: Semaphore,
}

impl fmt::Display for Failing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "failing {}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Failing {
    async fn put_opts(
        &self,
        path: &StorePath,
        payload: PutPayload,
        options: PutOptions,
    ) -> StoreResult<PutResult> {
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &StorePath,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &StorePath, options: GetOptions) -> StoreResult<GetResult> {
        if self.gets.fetch_add(1, Ordering::Relaxed) >= self.failures {
            return self.inner.get_opts(path, options).await;
        }
        self.may_fail.acquire().await.unwrap().forget();
        Err(object_store::Error::Generic { store: "failing", source: "503".into() })
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, StoreResult<StorePath>>,
    ) -> BoxStream<'static, StoreResult<StorePath>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&StorePath>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&StorePath>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &StorePath, to: &StorePath, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// The results of two readers of the same block; the second comes while the first's request is in flight. The first
/// `failures` requests fail.
async fn both_read(failures: u64) -> (GatewayResult<Bytes>, GatewayResult<Bytes>, u64) {
    let store = Arc::new(Failing {
        inner: InMemory::new(),
        failures,
        gets: AtomicU64::new(0),
        may_fail: Semaphore::new(0),
    });
    let put = store.put(&"a".into(), Bytes::from_static(b"the bytes").into()).await.unwrap();
    let blocks = Arc::new(BlockCache::open(64 << 10, 8 << 20, None, None).await.unwrap());
    let shared: Arc<dyn ObjectStore> = store.clone();
    let origin = origin_of(shared, put.e_tag, 9);
    let reader = || {
        let (blocks, origin) = (Arc::clone(&blocks), origin.clone());
        tokio::spawn(async move { blocks.read(&origin, 0..9).await })
    };
    let wait_until = async |is_so: &dyn Fn() -> bool| {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    let first = reader();
    wait_until(&|| store.gets.load(Ordering::Relaxed) == 1).await;
    let second = reader();
    wait_until(&|| origin.counts.joined.load(Ordering::Relaxed) == 1).await;
    store.may_fail.add_permits(failures as usize);
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    (first, second, store.gets.load(Ordering::Relaxed))
}

/// The request that failed began before this reader came, so it says nothing of the store as it is now.
#[tokio::test]
async fn joined_reader_of_failing_request_retries_once() {
    let (first, second, gets) = both_read(1).await;
    assert!(matches!(first, Err(GatewayError::Store(_))), "{first:?}");
    assert_eq!((second.unwrap(), gets), (Bytes::from_static(b"the bytes"), 2));
    let (_, second, gets) = both_read(3).await;
    assert!(matches!(second, Err(GatewayError::Store(_))), "{second:?}");
    assert_eq!(gets, 2, "once only");
}
