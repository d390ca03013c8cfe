//! Sending objects with little memory.

use object_store::memory::InMemory;

use super::*;

fn body_of(bytes: &Bytes) -> BoxStream<'static, GatewayResult<Bytes>> {
    let pieces: Vec<_> = bytes.chunks(1_000_003).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    futures_util::stream::iter(pieces).boxed()
}

/// Each would have several parts in flight, and there is memory for one.
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

/// A store in this directory.
fn in_directory(directory: &std::path::Path) -> StoreBackend {
    let files = object_store::local::LocalFileSystem::new_with_prefix(directory).unwrap();
    StoreBackend::new(Arc::new(files), BackendKind::Directory).with_root(directory).unwrap()
}

async fn put_byte(backend: &StoreBackend, key: &str, only: StoreCondition) -> GatewayResult<()> {
    let body = body_of(&Bytes::from_static(b"y"));
    backend.put(key, &ObjectHeaders::default(), 1, &only, body, &|| Ok(())).await.map(drop)
}

/// Its name can't be there, so it is as absent as any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_below_file_is_absent() {
    let directory = tempfile::tempdir().unwrap();
    let backend = in_directory(directory.path());
    std::fs::write(directory.path().join("a"), "x").unwrap();
    for key in ["a/b", "a/b/c"] {
        assert!(matches!(backend.head(key).await, Err(GatewayError::NoSuchKey)), "{key}");
        let read = backend.get(key, None, 1, 0..1).await.map(drop);
        assert_eq!(read, Err(GatewayError::NoSuchKey), "{key}");
        assert_eq!(backend.delete(key, &|| Ok(())).await, Ok(false), "{key}");
        assert_eq!(backend.confirm_gone(key).await, Ok(()), "{key}");
        assert_eq!(backend.lists(key).await, Ok(false), "{key}");
        let listed: Vec<_> = backend.list(&format!("{key}/")).unwrap().collect().await;
        assert!(listed.is_empty(), "{key}: {listed:?}");
    }
    let put = put_byte(&backend, "a/b", StoreCondition::IfAbsent).await;
    assert!(matches!(put, Err(GatewayError::Refused { .. })), "{put:?}");
    assert_eq!(std::fs::read(directory.path().join("a")).unwrap(), b"x");
}

/// The other way round: where the object was is a directory by now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_in_place_of_directory_is_absent() {
    let directory = tempfile::tempdir().unwrap();
    let backend = in_directory(directory.path());
    put_byte(&backend, "a/b", StoreCondition::Always).await.unwrap();
    assert!(matches!(backend.head("a").await, Err(GatewayError::NoSuchKey)));
    assert_eq!(backend.delete("a", &|| Ok(())).await, Ok(false));
    assert_eq!(backend.confirm_gone("a").await, Ok(()));
    // There is no object that a condition could be about.
    for only in [StoreCondition::Always, StoreCondition::IfAbsent] {
        let put = put_byte(&backend, "a", only).await;
        let refused =
            matches!(&put, Err(GatewayError::Refused { refusal, .. }) if *refusal == StoreRefusal::Name);
        assert!(refused, "{put:?}");
    }
    assert!(directory.path().join("a/b").is_file());
}

/// Another object could not have their names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_of_failed_write_go() {
    let directory = tempfile::tempdir().unwrap();
    let backend = in_directory(directory.path());
    let path = |name: &str| directory.path().join(name);
    std::fs::create_dir_all(path("kept/empty")).unwrap();
    for key in ["e/f/g", "kept/h/i"] {
        let broken = Err(GatewayError::Store("broken off".to_owned()));
        let pieces = vec![Ok(Bytes::from(vec![7; PART_BYTES as usize])), broken];
        let body = futures_util::stream::iter(pieces).boxed();
        let (headers, only, size) = (ObjectHeaders::default(), StoreCondition::Always, 2 * PART_BYTES);
        assert!(backend.put(key, &headers, size, &only, body, &|| Ok(())).await.is_err());
        backend.clear_place(key, 0, UnfinishedFiles::Removed).await.unwrap();
    }
    assert!(!path("e").exists() && !path("kept/h").exists() && path("kept/empty").is_dir());
}

/// What can't become an object is not written first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn obstacle_in_directory_is_found_before_bytes_are_sent() {
    let directory = tempfile::tempdir().unwrap();
    let backend = in_directory(directory.path());
    let path = |name: &str| directory.path().join(name);
    for folder in ["empty/inner/most", "full/inner", "half/inner"] {
        std::fs::create_dir_all(path(folder)).unwrap();
    }
    for file in ["full/inner/k", "file"] {
        std::fs::write(path(file), "x").unwrap();
    }
    std::os::unix::fs::symlink(path("file"), path("half/link")).unwrap();
    for key in ["new", "new/a", "full/new", "file", "empty"] {
        assert_eq!(backend.make_way(key).await, Ok(()), "{key}");
    }
    assert!(!path("empty").exists() && path("file").is_file());
    for key in ["full", "half", "file/a", "file/a/b"] {
        let refused = backend.make_way(key).await;
        assert!(
            matches!(&refused, Err(GatewayError::Refused { refusal: StoreRefusal::Name, .. })),
            "{refused:?}"
        );
    }
    assert!(path("full/inner/k").is_file() && path("half/inner").is_dir() && path("half/link").is_symlink());
}

/// Its end is not the end of what is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listing_of_changing_directories_fails() {
    let directory = tempfile::tempdir().unwrap();
    let backend = in_directory(directory.path());
    let folders: Vec<_> = (0..10).map(|index| directory.path().join(format!("d/{index}"))).collect();
    for folder in &folders {
        std::fs::create_dir_all(folder).unwrap();
        for index in 0..400 {
            std::fs::write(folder.join(index.to_string()), "").unwrap();
        }
    }
    for prefix in ["", "d/"] {
        let mut listed = backend.list(prefix).unwrap();
        assert!(listed.next().await.unwrap().is_ok());
        // `object_store` looks at some 1,000 entries at a time.
        for folder in &folders {
            let aside = folder.with_extension("aside");
            std::fs::rename(folder, &aside).unwrap();
            std::fs::write(folder, "x").unwrap();
        }
        let rest: Vec<_> = listed.collect().await;
        assert!(rest.iter().any(Result::is_err), "{prefix}: {} entries", rest.len());
        for folder in &folders {
            std::fs::remove_file(folder).unwrap();
            std::fs::rename(folder.with_extension("aside"), folder).unwrap();
        }
    }
}
