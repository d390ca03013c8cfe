//! Sending objects with little memory.

use object_store::memory::InMemory;

use super::*;

fn body_of(bytes: &Bytes) -> BoxStream<'static, GatewayResult<Bytes>> {
    let pieces: Vec<_> = bytes.chunks(1_000_003).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    futures_util::stream::iter(pieces).boxed()
}

/// Each would have several parts under way, and there is memory for one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_sharing_part_memory_all_arrive() {
    for kind in [BackendKind::S3, BackendKind::Directory] {
        let store = Arc::new(InMemory::new());
        let backend = StoreBackend::new(store, kind).with_memory(MemoryBudget::new(PART_BYTES));
        let bytes = Bytes::from(vec![7; 2 * PART_BYTES as usize + 12_345]);
        let puts = (0..5).map(|index| {
            let (backend, bytes) = (backend.clone(), bytes.clone());
            async move {
                let (key, size) = (format!("a{index}"), bytes.len() as u64);
                let (headers, only) = (ObjectHeaders::default(), StoreCondition::Always);
                backend.put(&key, &headers, size, &only, body_of(&bytes), &|| Ok(())).await.unwrap();
                let whole = 0..size;
                let (_, body) = backend.get(&key, None, size, whole).await.unwrap();
                let stored: Vec<Bytes> = body.map(|piece| piece.unwrap()).collect().await;
                assert!(stored.concat() == bytes);
            }
        });
        futures_util::future::join_all(puts).await;
        assert!(backend.memory.try_hold(PART_BYTES).is_some(), "all of it is free again");
    }
}

/// As many bodies are read as there is memory for, and the others wait.
#[tokio::test]
async fn body_is_read_only_with_free_memory() {
    let memory = MemoryBudget::new(PART_BYTES);
    let backend = StoreBackend::new(Arc::new(InMemory::new()), BackendKind::S3).with_memory(memory);
    for size in [PART_BYTES, 2 * PART_BYTES] {
        let begun = std::sync::atomic::AtomicUsize::new(0);
        let puts = (0..3).map(|index| {
            let (backend, begun) = (&backend, &begun);
            let body = futures_util::stream::once(async move {
                begun.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                std::future::pending().await
            });
            async move {
                let (key, headers) = (format!("a{index}"), ObjectHeaders::default());
                backend.put(&key, &headers, size, &StoreCondition::Always, body.boxed(), &|| Ok(())).await
            }
        });
        let all = futures_util::future::join_all(puts);
        assert!(futures_util::FutureExt::now_or_never(all).is_none());
        assert_eq!(begun.into_inner(), 1, "{size}");
    }
}

#[tokio::test]
async fn short_body_is_not_completed() {
    let backend = StoreBackend::new(Arc::new(InMemory::new()), BackendKind::S3);
    let bytes = Bytes::from(vec![7; 2 * PART_BYTES as usize]);
    let size = bytes.len() as u64 + 1;
    let (headers, only) = (ObjectHeaders::default(), StoreCondition::Always);
    assert!(backend.put("a", &headers, size, &only, body_of(&bytes), &|| Ok(())).await.is_err());
    assert!(matches!(backend.head("a").await, Err(GatewayError::NoSuchKey)));
    assert!(backend.memory.is_ample());
}

#[test]
fn object_with_parts_above_memory_is_refused() {
    let of_kind =
        |kind| StoreBackend::new(Arc::new(InMemory::new()), kind).with_memory(MemoryBudget::new(32 << 20));
    let most = MAX_PARTS * (32 << 20);
    assert!(of_kind(BackendKind::S3).check_size(most).is_ok());
    assert!(matches!(of_kind(BackendKind::S3).check_size(most + 1), Err(GatewayError::TooLarge(_))));
    assert!(of_kind(BackendKind::Directory).check_size(5 << 40).is_ok());
}

/// It would be gathered as a whole, however little of it has room.
#[tokio::test]
async fn part_larger_than_all_memory_is_never_gathered() {
    let memory = MemoryBudget::new(PART_BYTES / 2);
    let backend = StoreBackend::new(Arc::new(InMemory::new()), BackendKind::S3).with_memory(memory);
    let body = futures_util::stream::once(async { panic!("the body is read") }).boxed();
    let (headers, only) = (ObjectHeaders::default(), StoreCondition::Always);
    let put = backend.put("a", &headers, 2 * PART_BYTES, &only, body, &|| Ok(())).await;
    assert!(matches!(put, Err(GatewayError::TooLarge(_))), "{put:?}");
    assert!(backend.memory.is_ample());
}
