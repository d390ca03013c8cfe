//! What lies on flash, sealed and in clear, and what stays there.

use std::time::Duration;

use object_store::ObjectStoreExt as _;
use object_store::memory::InMemory;

use super::*;
use crate::store::Kind;

#[tokio::test]
async fn what_came_open_from_flash_is_a_miss_where_all_is_sealed() {
    let key = Arc::new(AtRest::parse(&"7".repeat(64)).unwrap());
    let sealed = Blocks::open(64 << 10, 1 << 20, None, Some(Arc::clone(&key))).await.unwrap();
    let open = Blocks::open(64 << 10, 1 << 20, None, None).await.unwrap();
    let from_flash = |cached: Cached| {
        let mut bytes = Vec::new();
        cached.encode(&mut bytes).unwrap();
        Cached::decode(&mut &bytes[..]).unwrap()
    };
    let bytes = Bytes::from_static(b"a block");
    let ours = from_flash(Cached::Open { bytes: bytes.clone(), seal: Some((key, 7)) });
    assert_eq!(sealed.opened(7, &ours), Some(bytes.clone()));
    // Of another place, of a gateway that seals nothing, and of anybody who can write there.
    assert!(sealed.opened(8, &ours).is_none() && open.opened(7, &ours).is_none());
    let theirs = from_flash(Cached::Open { bytes: bytes.clone(), seal: None });
    assert!(sealed.opened(7, &theirs).is_none());
    assert_eq!(open.opened(7, &theirs), Some(bytes));
}

/// Freed memory full of it is what the next allocations are made of.
fn leave_in_memory(pattern: &[u8]) {
    let pages: Vec<Vec<u8>> = (0..256).map(|_| pattern.repeat((16 << 10) / pattern.len())).collect();
    drop(std::hint::black_box(pages));
}

#[tokio::test]
async fn nothing_clear_is_on_flash_beside_sealed_blocks() {
    const SECRET: &[u8] = b"what nobody may read";
    let folder = tempfile::TempDir::new().unwrap();
    let key = Arc::new(AtRest::parse(&"7".repeat(64)).unwrap());
    leave_in_memory(SECRET);
    let blocks = Blocks::open(64 << 10, 1 << 20, Some((folder.path(), 64 << 20)), Some(key)).await.unwrap();
    for number in 0..64 {
        leave_in_memory(SECRET);
        let block = SECRET.repeat(2500 + number as usize);
        blocks.insert(Whose::new(&[b"an object"]), number, Bytes::from(block));
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
async fn hits(blocks: &Blocks, whose: Whose, count: u64) -> u64 {
    let mut hits = 0;
    for number in 0..count {
        hits += u64::from(blocks.look(whose.block(number)).await.is_some());
    }
    hits
}

/// As they come from the store, no faster than flash takes them.
async fn come(blocks: &Blocks, whose: Whose, numbers: Range<u64>) {
    for number in numbers {
        blocks.insert(whose, number, Bytes::from(vec![number as u8; 64 << 10]));
        if number % 64 == 63 {
            blocks.cache.storage().wait().await;
        }
    }
}

/// Blocks that are read again and again stay on flash while something ten times as long goes by once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_drives_out_nothing_from_flash() {
    const FLASH_BYTES: u64 = 128 << 20;
    let folder = tempfile::TempDir::new().unwrap();
    let blocks = Blocks::open(64 << 10, 1 << 20, Some((folder.path(), FLASH_BYTES)), None).await.unwrap();
    let (hot, scan, late) = (Whose::new(&[b"hot"]), Whose::new(&[b"scan"]), Whose::new(&[b"late"]));
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
        come(&blocks, Whose::new(&[b"between", &round.to_le_bytes()]), 0..128).await;
        assert_eq!(hits(&blocks, late, 64).await > 32, round == 1, "round {round}");
    }
    blocks.close().await;
}

/// The cache counts the bytes of its blocks: what they take besides would be in nobody's bounds.
#[tokio::test]
async fn a_block_takes_no_more_memory_than_it_has_bytes() {
    const BLOCK_BYTES: u64 = 64 << 10;
    const SIZE_BYTES: u64 = 2 * BLOCK_BYTES + 5_000;
    let store = Arc::new(InMemory::new());
    let bytes = Bytes::from(vec![7; SIZE_BYTES as usize]);
    let put = store.put(&"a".into(), bytes.into()).await.unwrap();
    let blocks = Arc::new(Blocks::open(BLOCK_BYTES, 8 << 20, None, None).await.unwrap());
    let origin = Origin {
        backend: Backend::new(store, Kind::S3),
        key: "a".to_owned(),
        etag: put.e_tag,
        size_bytes: SIZE_BYTES,
        whose: Whose::new(&[b"a"]),
        counts: Arc::default(),
        missed: None,
    };
    drop(blocks.read(&origin, 0..SIZE_BYTES).await.unwrap());
    for number in 0..3 {
        let id = origin.whose.block(number);
        let mut block = blocks.in_memory(id).unwrap();
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
