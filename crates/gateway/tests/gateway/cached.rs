//! What the store is asked for, and what it is not: reads that others wait for, that are here, or that begin before all
//! has come.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use underlay_gateway::config::{StoreConsistency, WriteMode};
use underlay_gateway::engine::{CopyRequest, GatewayEngine, ListRequest, ShortRange, WriteConditions};
use underlay_gateway::store::BackendKind;

use crate::program::Program;
use crate::rig::{BLOCK_BYTES, BUCKET, Ground, content, get, get_short, in_memory, put};
use crate::signed::ask;

/// Where a store says which gateways it belongs to: they look now and then.
const MARKER: &str = "%underlay-cluster";

/// A store that counts what it is asked, and can hold back what comes behind the first block of an object.
#[derive(Debug)]
struct Watched {
    inner: Arc<dyn ObjectStore>,
    asked: AtomicU64,
    holds_back: Arc<AtomicBool>,
    /// What is not held back of an object: its beginning of so many bytes, in two pieces.
    soon_bytes: AtomicU64,
    /// The answer that is held back breaks off, once.
    breaks_off: Arc<AtomicBool>,
}

impl Watched {
    fn over(inner: Arc<dyn ObjectStore>) -> Arc<Watched> {
        Arc::new(Watched {
            inner,
            asked: AtomicU64::new(0),
            holds_back: Arc::default(),
            soon_bytes: AtomicU64::new(BLOCK_BYTES),
            breaks_off: Arc::default(),
        })
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "watched {}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Watched {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.count();
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.count();
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if location.as_ref() != MARKER {
            self.count();
        }
        let is_head = options.head;
        let found = self.inner.get_opts(location, options).await?;
        if is_head || !self.holds_back.load(Ordering::Relaxed) {
            return Ok(found);
        }
        let (meta, range) = (found.meta.clone(), found.range.clone());
        let (attributes, extensions) = (found.attributes.clone(), found.extensions.clone());
        let bytes = found.bytes().await?;
        let soon_bytes = self.soon_bytes.load(Ordering::Relaxed);
        let first = soon_bytes.saturating_sub(range.start).min(bytes.len() as u64) as usize;
        let (soon, late) = (bytes.slice(..first), bytes.slice(first..));
        let (holds_back, breaks_off) = (Arc::clone(&self.holds_back), Arc::clone(&self.breaks_off));
        let is_whole = late.is_empty();
        let late = futures_util::stream::once(async move {
            while holds_back.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            match breaks_off.swap(false, Ordering::Relaxed) {
                true => Err(object_store::Error::Generic {
                    store: "watched",
                    source: "the connection was reset".into(),
                }),
                false => Ok(late),
            }
        });
        let half = soon.len() / 2;
        let soon = futures_util::stream::iter([Ok(soon.slice(..half)), Ok(soon.slice(half..))]);
        // What is whole ends: that something is missing behind it, nobody could know.
        let body = if is_whole { soon.boxed() } else { soon.chain(late).boxed() };
        let payload = GetResultPayload::Stream(body);
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.count();
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.count();
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.count();
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.count();
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.count();
        self.inner.copy_opts(from, to, options).await
    }
}

/// An object that is in the store before the gateway comes. S3 gives every one a content type.
async fn store(store: &dyn ObjectStore, key: &str, bytes: &Bytes) {
    let attributes = Attributes::from_iter([(Attribute::ContentType, "text/plain")]);
    let options = PutOptions { attributes, ..PutOptions::default() };
    store.put_opts(&key.into(), PutPayload::from_bytes(bytes.clone()), options).await.unwrap();
}

/// Of a page with everything.
async fn listed(engine: &GatewayEngine) -> Vec<String> {
    let request = ListRequest { most: 1000, ..ListRequest::default() };
    let page = engine.list(BUCKET, &request).await.unwrap();
    page.entries.iter().map(|entry| entry.name().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_misses_of_block_send_a_single_request() {
    let directory = tempfile::tempdir().unwrap();
    let ground = Ground::new(in_memory(), BackendKind::S3);
    let bytes = content(1, BLOCK_BYTES as usize);
    store(&*ground.store, "a", &bytes).await;
    let engine = ground.open(directory.path()).await;
    // The headers are asked for once, and not what this is about.
    engine.resolve(BUCKET, "a").await.unwrap();
    let gets = || ground.mood.gets.load(Ordering::Relaxed);
    let before = gets();
    ground.mood.holds_answers.store(true, Ordering::Relaxed);
    let readers: Vec<_> = (0..32)
        .map(|_| {
            let engine = Arc::clone(&engine);
            tokio::spawn(async move { get(&engine, "a", None).await })
        })
        .collect();
    while gets() == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // For the others to come as well; those that don't find it here later.
    tokio::time::sleep(Duration::from_millis(100)).await;
    ground.mood.holds_answers.store(false, Ordering::Relaxed);
    for reader in readers {
        assert_eq!(reader.await.unwrap().unwrap(), bytes);
    }
    assert_eq!(gets() - before, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_begins_before_store_finishes() {
    let directory = tempfile::tempdir().unwrap();
    let watched = Watched::over(in_memory());
    let bytes = content(2, 5 * BLOCK_BYTES as usize);
    store(&*watched, "a", &bytes).await;
    let engine = Ground::new(Arc::clone(&watched) as _, BackendKind::S3).open(directory.path()).await;
    watched.holds_back.store(true, Ordering::Relaxed);
    let resolved = engine.resolve_to_read(BUCKET, "a", |_| 0).await.unwrap();
    let mut body = engine.body(BUCKET, "a", resolved, 0..bytes.len() as u64);
    let mut read = body.next().await.unwrap().unwrap().to_vec();
    assert!(!read.is_empty() && bytes.starts_with(&read));
    watched.holds_back.store(false, Ordering::Relaxed);
    while let Some(piece) = body.next().await {
        read.extend_from_slice(&piece.unwrap());
    }
    assert_eq!(read, bytes);
}

/// A client that wants the beginning of a block need not wait for the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_answer_streams_with_its_block() {
    let directory = tempfile::tempdir().unwrap();
    let watched = Watched::over(in_memory());
    let bytes = content(2, BLOCK_BYTES as usize);
    let soon_bytes = BLOCK_BYTES / 2;
    watched.soon_bytes.store(soon_bytes, Ordering::Relaxed);
    for key in ["a", "b", "c"] {
        store(&*watched, key, &bytes).await;
    }
    let engine = Ground::new(Arc::clone(&watched) as _, BackendKind::S3).open(directory.path()).await;
    for (key, breaks_off) in [("a", false), ("b", true)] {
        watched.holds_back.store(true, Ordering::Relaxed);
        watched.breaks_off.store(breaks_off, Ordering::Relaxed);
        let asked = watched.asked();
        let resolved = engine.resolve_to_read(BUCKET, key, |_| 0).await.unwrap();
        let range = 10..BLOCK_BYTES - 10;
        let ShortRange::Coming(mut body) = engine.read(BUCKET, key, resolved, range.clone()).await.unwrap()
        else {
            panic!("it waited for the whole block");
        };
        let mut read = body.next().await.unwrap().unwrap().to_vec();
        assert_eq!(read.len() as u64, soon_bytes / 2 - 10, "all that came but the last piece");
        watched.holds_back.store(false, Ordering::Relaxed);
        while let Some(piece) = body.next().await {
            read.extend_from_slice(&piece.unwrap());
        }
        assert_eq!(read, bytes.slice(range.start as usize..range.end as usize));
        let again = u64::from(breaks_off);
        assert_eq!(watched.asked() - asked, 1 + again, "what breaks off is asked for again");
    }
    // What ends too early at every attempt is an error, and no shorter object.
    watched.holds_back.store(true, Ordering::Relaxed);
    watched.breaks_off.store(true, Ordering::Relaxed);
    let resolved = engine.resolve_to_read(BUCKET, "c", |_| 0).await.unwrap();
    let reading = tokio::spawn({
        let engine = Arc::clone(&engine);
        async move { get_short(&engine, "c", resolved, 0..BLOCK_BYTES).await }
    });
    let deletion = watched.inner.delete(&"c".into()).await;
    assert!(deletion.is_ok(), "{deletion:?}");
    watched.holds_back.store(false, Ordering::Relaxed);
    assert!(reading.await.unwrap().is_err());
}

/// Metadata are local where a prefix is ours alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn head_and_listings_ask_the_store_for_nothing() {
    for kind in [BackendKind::S3, BackendKind::Directory] {
        let directory = tempfile::tempdir().unwrap();
        let watched = Watched::over(in_memory());
        for key in ["there/a", "there/b"] {
            store(&*watched, key, &content(3, 1000)).await;
        }
        let mut ground = Ground::new(Arc::clone(&watched) as _, kind);
        ground.write = WriteMode::Through;
        let engine = ground.open(directory.path()).await;
        for key in ["ours/a", "ours/b", "ours/c"] {
            put(&engine, key, &content(4, 1000), WriteConditions::default()).await.unwrap();
        }
        let before = watched.asked();
        for round in 0..3 {
            assert_eq!(listed(&engine).await, ["ours/a", "ours/b", "ours/c", "there/a", "there/b"]);
            for key in ["ours/a", "ours/b", "ours/c"] {
                assert_eq!(engine.resolve(BUCKET, key).await.unwrap().record.size_bytes, 1000, "{round}");
            }
            assert!(engine.resolve(BUCKET, "nothing").await.is_err());
        }
        assert_eq!(watched.asked(), before, "{kind:?}");
        // Of what was there before, a listing has told no headers: they are asked for once. A directory has none.
        for round in 0..3 {
            for key in ["there/a", "there/b"] {
                assert_eq!(engine.resolve(BUCKET, key).await.unwrap().record.size_bytes, 1000, "{round}");
            }
        }
        assert_eq!(watched.asked() - before, if kind == BackendKind::S3 { 2 } else { 0 }, "{kind:?}");
    }
}

/// What others write shows once the answer that the gateway has is too old, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_writes_show_after_ttl() {
    for (ttl, is_long) in [(Duration::from_secs(3600), true), (Duration::from_millis(300), false)] {
        let directory = tempfile::tempdir().unwrap();
        let mut ground = Ground::new(in_memory(), BackendKind::S3);
        (ground.write, ground.consistency) = (WriteMode::Through, StoreConsistency::Ttl(ttl));
        let engine = ground.open(directory.path()).await;
        put(&engine, "a", &content(5, 1000), WriteConditions::default()).await.unwrap();
        let first = engine.resolve(BUCKET, "a").await.unwrap().record.etag;
        store(&*ground.store, "a", &content(6, 2000)).await;
        if is_long {
            for _ in 0..3 {
                assert_eq!(engine.resolve(BUCKET, "a").await.unwrap().record.etag, first);
            }
            // A write of our own ends that.
            put(&engine, "a", &content(7, 3000), WriteConditions::default()).await.unwrap();
            assert_eq!(get(&engine, "a", None).await.unwrap(), content(7, 3000));
            continue;
        }
        let begun = Instant::now();
        while engine.resolve(BUCKET, "a").await.unwrap().record.etag == first {
            assert!(begun.elapsed() < Duration::from_secs(60), "it never shows");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(get(&engine, "a", None).await.unwrap(), content(6, 2000));
    }
}

/// With any names of the store's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etag_survives_flush_copy_and_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    ground.write = WriteMode::Back { after: Duration::from_secs(3600) };
    let engine = ground.open(directory.path()).await;
    let etag = put(&engine, "a", &content(8, 200_000), WriteConditions::default()).await.unwrap().etag;
    let etags = async |engine: &GatewayEngine| {
        let mut found = Vec::new();
        for key in ["a", "copy"] {
            found.push(engine.resolve(BUCKET, key).await.unwrap().record.etag);
        }
        let page = engine.list(BUCKET, &ListRequest { most: 10, ..ListRequest::default() }).await.unwrap();
        for entry in page.entries {
            if let underlay_gateway::engine::ListEntry::Object(_, record) = entry {
                found.push(record.etag);
            }
        }
        found
    };
    let name = |key: &str| (BUCKET.to_owned(), key.to_owned());
    let request = CopyRequest { from: name("a"), to: name("copy"), ..CopyRequest::default() };
    assert_eq!(engine.copy(request).await.unwrap().etag, etag);
    assert_eq!(etags(&engine).await, [&*etag; 4]);
    ground.drain(&engine).await;
    assert_eq!(etags(&engine).await, [&*etag; 4]);
    let theirs = ground.store.head(&"a".into()).await.unwrap().e_tag;
    assert_ne!(theirs.as_deref(), Some(&*etag), "the store's is no other one, so this shows nothing");
    engine.close().await;
    drop(engine);
    let engine = ground.open(directory.path()).await;
    assert_eq!(etags(&engine).await, [&*etag; 4]);
}

/// Blocks that are read again and again stay in memory while something four times as long as that goes by once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scan_evicts_no_frequently_read_block() {
    const OBJECT_BYTES: usize = 4 << 20;
    let directory = tempfile::tempdir().unwrap();
    let ground = Ground::new(in_memory(), BackendKind::S3);
    let hot = content(9, 8 * BLOCK_BYTES as usize);
    store(&*ground.store, "hot", &hot).await;
    // The memory of the rig is 8 MiB.
    for index in 0..8 {
        store(&*ground.store, &format!("scan/{index}"), &content(10 + index, OBJECT_BYTES)).await;
    }
    let engine = ground.open(directory.path()).await;
    for _ in 0..3 {
        assert_eq!(get(&engine, "hot", None).await.unwrap(), hot);
    }
    for index in 0..8 {
        assert_eq!(
            get(&engine, &format!("scan/{index}"), None).await.unwrap(),
            content(10 + index, OBJECT_BYTES)
        );
    }
    let before = ground.mood.gets.load(Ordering::Relaxed);
    assert_eq!(get(&engine, "hot", None).await.unwrap(), hot);
    assert_eq!(ground.mood.gets.load(Ordering::Relaxed), before, "the hot blocks had to be fetched again");
}

/// A line for each request that says who asked for what, and nothing that could be asked with again.
#[test]
fn access_log_has_a_line_per_request() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    std::fs::create_dir_all(&objects).unwrap();
    let log = directory.path().join("access.jsonl");
    let mut program = Program::start_without_waiting(
        directory.path(),
        &format!("access_log = \"{}\"\n", log.display()),
        &format!("[bucket.lake]\nstore = \"{}\"\n", objects.display()),
    );
    program.wait_ready();
    let requests = [
        ("PUT", "/lake/a", "PutObject", 200, 0),
        ("GET", "/lake/a", "GetObject", 200, 5),
        ("HEAD", "/lake/a", "HeadObject", 200, 0),
        ("DELETE", "/lake/a", "DeleteObject", 204, 0),
        ("GET", "/lake/a", "GetObject", 404, 1),
    ];
    let mut ids = Vec::new();
    for (method, target, _, status, _) in requests {
        let body: &[u8] = if method == "PUT" { b"bytes" } else { b"" };
        let reply = ask(program.address, method, target, &[], body).unwrap();
        assert_eq!(reply.status, status, "{method} {target}");
        ids.push(reply.header("x-amz-request-id").unwrap().to_owned());
    }
    // Nobody knows whose this is, and what its URL has to say for itself is not written down.
    let unsigned = "GET /lake/a?X-Amz-Signature=feed HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
    let refused = crate::signed::exchange(program.address, unsigned, b"").unwrap();
    ids.push(refused.header("x-amz-request-id").unwrap().to_owned());
    let begun = Instant::now();
    let mut text = String::new();
    // A thread of its own writes it.
    while text.lines().count() <= requests.len() || !text.ends_with('\n') {
        assert!(begun.elapsed() < Duration::from_secs(60), "lines are missing: {text}");
        std::thread::sleep(Duration::from_millis(10));
        text = std::fs::read_to_string(&log).unwrap();
    }
    assert!(!text.contains("feed") && !text.contains("Signature"), "{text}");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // An answer is there before its line is.
    for (id, request) in ids.iter().zip(requests.iter().map(Some).chain([None])) {
        let line = lines.iter().find(|line| line["id"] == id.as_str()).unwrap();
        let Some((method, target, operation, status, bytes)) = request else {
            assert_eq!((&line["key"], &line["path"]), (&"".into(), &"/lake/a".into()), "{line}");
            assert_eq!(line["status"], refused.status, "{line}");
            continue;
        };
        assert_eq!(
            (line["method"].as_str(), line["path"].as_str()),
            (Some(*method), Some(*target)),
            "{line}"
        );
        assert_eq!(line["operation"], *operation, "{line}");
        assert_eq!(
            (line["key"].as_str(), line["status"].as_u64()),
            (Some("TESTKEY"), Some(*status as u64)),
            "{line}"
        );
        let sent = line["sent_bytes"].as_u64().unwrap();
        assert!(if *status == 404 { sent > 1 } else { sent == *bytes }, "{line}");
        assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        assert!(line["whole_us"].as_u64() >= line["head_us"].as_u64(), "{line}");
    }
    let (status, log) = program.stop();
    assert!(status.success(), "{log}");
}

/// Metrics count the cache's hits and misses for each prefix apart.
#[test]
fn hits_and_misses_are_told_for_each_prefix() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    for (name, bytes) in [("raw/a", 3000), ("b", 5000)] {
        let path = objects.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content(11, bytes)).unwrap();
    }
    let sections = format!(
        "[bucket.lake]\nstore = \"{}\"\n[[bucket.lake.prefix]]\nprefix = \"raw/\"\nwrite = \"back\"\n",
        objects.display()
    );
    let program = Program::start(directory.path(), &sections);
    let token = format!("Authorization: Bearer {}\r\n", program.token());
    let figures = |prefix: &str| {
        let text = program.ask("/metrics", &token).unwrap();
        ["block_hits_total", "block_misses_total", "fetched_bytes_total"].map(|name| {
            let begin = format!("underlay_gateway_{name}{{bucket=\"lake\",prefix=\"{prefix}\"}} ");
            let line = text.lines().find_map(|line| line.strip_prefix(&begin));
            line.unwrap_or_else(|| panic!("{begin} is not in: {text}")).parse::<u64>().unwrap()
        })
    };
    for (round, key) in ["raw/a", "raw/a", "b", "raw/a"].into_iter().enumerate() {
        assert_eq!(
            ask(program.address, "GET", &format!("/lake/{key}"), &[], b"").unwrap().status,
            200,
            "{round}"
        );
    }
    assert_eq!((figures("raw/"), figures("")), ([2, 1, 3000], [0, 1, 5000]));
    let (status, log) = program.stop();
    assert!(status.success(), "{log}");
}
