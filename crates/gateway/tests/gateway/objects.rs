//! What the model does not show: how often the store is asked, what was there before, and a journal that is full.

use std::sync::atomic::Ordering;
use std::time::Duration;

use underlay_gateway::config::{StoreConsistency, WriteMode};
use underlay_gateway::engine::{CopyRequest, ListRequest, WriteConditions};
use underlay_gateway::errors::GatewayError;
use underlay_gateway::store::BackendKind;

use crate::rig::{BUCKET, Ground, content, delete, get, in_directory, in_memory, put};

/// Renaming a directory costs the store one upload for each object, and nothing before the flush.
#[test]
fn rename_before_flush_uploads_each_object_once() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let mut ground = Ground::new(in_memory(), BackendKind::S3);
        ground.write = WriteMode::Back { after: Duration::from_secs(3600) };
        let engine = ground.open(&directory.path().join("local")).await;
        for index in 0..100_u64 {
            let temporary = format!("out/_temporary/0/task/part-{index:03}");
            put(&engine, &temporary, &content(index, 1000), WriteConditions::default()).await.unwrap();
            let request = CopyRequest {
                from: (BUCKET.to_owned(), temporary.clone()),
                to: (BUCKET.to_owned(), format!("out/part-{index:03}")),
                ..CopyRequest::default()
            };
            engine.copy(request).await.unwrap();
            delete(&engine, &temporary).await.unwrap();
        }
        put(&engine, "gone", &content(1, 5000), WriteConditions::default()).await.unwrap();
        delete(&engine, "gone").await.unwrap();
        assert_eq!(ground.mood.puts.load(Ordering::Relaxed), 0);
        assert_eq!(engine.pending().0, 100);
        ground.drain(&engine).await;
        assert_eq!(ground.mood.puts.load(Ordering::Relaxed), 100);
        assert_eq!(ground.mood.copies.load(Ordering::Relaxed), 0);
        let stored = ground.stored().await;
        assert_eq!(stored.len(), 100);
        assert!(stored.iter().enumerate().all(|(at, (_, bytes))| *bytes == content(at as u64, 1000)));
        // Renamed again, the store copies what it has, and sends nothing.
        let request = CopyRequest {
            from: (BUCKET.to_owned(), "out/part-000".to_owned()),
            to: (BUCKET.to_owned(), "moved".to_owned()),
            ..CopyRequest::default()
        };
        engine.copy(request).await.unwrap();
        delete(&engine, "out/part-000").await.unwrap();
        ground.drain(&engine).await;
        assert_eq!(ground.mood.puts.load(Ordering::Relaxed), 100);
        assert_eq!(ground.mood.copies.load(Ordering::Relaxed), 1);
        assert_eq!(get(&engine, "moved", None).await.unwrap(), content(0, 1000));
        assert_eq!(ground.stored().await.len(), 100);
    });
}

/// What was in the store before the gateway came is renamed by the store itself.
#[test]
fn existing_objects_are_imported_and_renamed_without_bytes() {
    use object_store::ObjectStoreExt as _;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        for kind in [BackendKind::S3, BackendKind::Directory] {
            let store = match kind {
                BackendKind::S3 => in_memory(),
                BackendKind::Directory => in_directory(&directory.path().join("store")),
            };
            let ground = Ground::new(store, kind);
            ground
                .store
                .put(&object_store::path::Path::from("old/a"), content(1, 100_000).into())
                .await
                .unwrap();
            let engine = ground.open(&directory.path().join(format!("{kind:?}"))).await;
            let request = CopyRequest {
                from: (BUCKET.to_owned(), "old/a".to_owned()),
                to: (BUCKET.to_owned(), "new/a".to_owned()),
                ..CopyRequest::default()
            };
            engine.copy(request).await.unwrap();
            delete(&engine, "old/a").await.unwrap();
            ground.drain(&engine).await;
            assert_eq!(ground.mood.puts.load(Ordering::Relaxed), 0);
            assert_eq!(ground.mood.copies.load(Ordering::Relaxed), 1);
            assert_eq!(get(&engine, "new/a", None).await.unwrap(), content(1, 100_000));
            assert_eq!(ground.stored().await, [("new/a".to_owned(), content(1, 100_000))]);
        }
    });
}

#[test]
fn full_journal_delays_writers_and_then_refuses() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let mut ground = Ground::new(in_memory(), BackendKind::S3);
        ground.journal_bytes = 3 << 20;
        let engine = ground.open(&directory.path().join("local")).await;
        ground.mood.failing.store(1000, Ordering::Relaxed);
        let megabyte = content(1, 1 << 20);
        put(&engine, "a", &megabyte, WriteConditions::default()).await.unwrap();
        put(&engine, "b", &megabyte, WriteConditions::default()).await.unwrap();
        let refused = put(&engine, "c", &megabyte, WriteConditions::default()).await;
        assert!(matches!(refused, Err(GatewayError::Busy(_))), "{refused:?}");
        let too_large = put(&engine, "d", &content(2, 4 << 20), WriteConditions::default()).await;
        assert!(matches!(too_large, Err(GatewayError::TooLarge(_))), "{too_large:?}");
        // Acknowledged objects are readable even if the store fails.
        assert_eq!(get(&engine, "b", None).await.unwrap(), megabyte);
        ground.mood.failing.store(0, Ordering::Relaxed);
        // As soon as the store works again there is room.
        put(&engine, "c", &megabyte, WriteConditions::default()).await.unwrap();
        ground.drain(&engine).await;
        assert_eq!(ground.stored().await.len(), 3);
    });
}

#[test]
fn other_writes_show_with_revalidation() {
    use object_store::ObjectStoreExt as _;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let mut ground = Ground::new(in_memory(), BackendKind::S3);
        (ground.write, ground.consistency) = (WriteMode::Through, StoreConsistency::Revalidate);
        let engine = ground.open(&directory.path().join("local")).await;
        put(&engine, "dir/a", &content(1, 200_000), WriteConditions::default()).await.unwrap();
        assert_eq!(get(&engine, "dir/a", None).await.unwrap(), content(1, 200_000));
        let theirs = object_store::path::Path::from("dir/a");
        ground.store.put(&theirs, content(2, 200_000).into()).await.unwrap();
        ground.store.put(&object_store::path::Path::from("new"), content(3, 10).into()).await.unwrap();
        assert_eq!(get(&engine, "dir/a", None).await.unwrap(), content(2, 200_000));
        let request = ListRequest { delimiter: Some("/".to_owned()), most: 10, ..ListRequest::default() };
        let names: Vec<String> = engine
            .list(BUCKET, &request)
            .await
            .unwrap()
            .entries
            .iter()
            .map(|entry| entry.name().to_owned())
            .collect();
        assert_eq!(names, ["dir/", "new"]);
        let absent = WriteConditions { if_none_match: true, ..WriteConditions::default() };
        assert_eq!(put(&engine, "new", &content(4, 10), absent).await, Err(GatewayError::PreconditionFailed));
        delete(&engine, "new").await.unwrap();
        assert_eq!(ground.stored().await.len(), 1);
    });
}
