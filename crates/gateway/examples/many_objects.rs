//! A bucket with as many objects as one wants, for `benches/gateway`: `many_objects fill|open DIRECTORY COUNT`. `fill`
//! takes over a store that lists so many and ends by SIGKILL; `open` opens what that left. Each prints a line of JSON.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use object_store::path::Path as Name;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use underlay_gateway::config::{
    BucketConfig, LocalConfig, PrefixRule, StoreConsistency, StorePlace, WriteMode,
};
use underlay_gateway::engine::{EngineSetup, GatewayEngine, ListRequest};
use underlay_gateway::store::{BackendKind, StoreBackend};

/// A store that has nothing but names, as Spark gives them.
#[derive(Debug)]
struct Names(u64);

fn object(number: u64) -> ObjectMeta {
    let key = format!(
        "warehouse/sales.db/orders/day={:04}/part-{:05}-5f0c1a52-7d3b-4c41-9b0e-3a1f6d2c8e77-c000.snappy.parquet",
        number / 10_000,
        number % 10_000
    );
    ObjectMeta {
        location: Name::from(key),
        last_modified: chrono::DateTime::from_timestamp(1_700_000_000, 0).unwrap(),
        size: 64 << 20,
        e_tag: Some(format!("\"{number:032x}\"")),
        version: None,
    }
}

impl std::fmt::Display for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} names", self.0)
    }
}

fn none<T>() -> Result<T> {
    Err(object_store::Error::NotImplemented {
        operation: "anything".to_owned(),
        implementer: "names".to_owned(),
    })
}

#[async_trait]
impl ObjectStore for Names {
    async fn put_opts(&self, _: &Name, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        none()
    }

    async fn put_multipart_opts(&self, _: &Name, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        none()
    }

    async fn get_opts(&self, name: &Name, _: GetOptions) -> Result<GetResult> {
        Err(object_store::Error::NotFound { path: name.to_string(), source: "it has names alone".into() })
    }

    fn delete_stream(&self, _: BoxStream<'static, Result<Name>>) -> BoxStream<'static, Result<Name>> {
        futures_util::stream::once(async { none() }).boxed()
    }

    fn list(&self, _: Option<&Name>) -> BoxStream<'static, Result<ObjectMeta>> {
        futures_util::stream::iter((0..self.0).map(|number| Ok(object(number)))).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Name>) -> Result<ListResult> {
        none()
    }

    async fn copy_opts(&self, _: &Name, _: &Name, _: CopyOptions) -> Result<()> {
        none()
    }
}

fn setup(directory: &Path, count: u64) -> EngineSetup {
    let rule = PrefixRule {
        prefix: String::new(),
        write: WriteMode::Back { after: Duration::from_secs(5) },
        consistency: StoreConsistency::Exclusive,
    };
    let backend = StoreBackend::new(Arc::new(Names(count)), BackendKind::S3);
    EngineSetup {
        local: LocalConfig {
            directory: directory.to_owned(),
            journal_bytes: 1 << 30,
            memory_bytes: 64 << 20,
            flash_bytes: 0,
            block_bytes: 1 << 20,
            metadata_bytes: 256 << 20,
            encryption: None,
        },
        patience: Duration::from_secs(30),
        flushes: 8,
        uploads_expire: Duration::from_secs(3600),
        buckets: vec![BucketConfig {
            name: "lake".to_owned(),
            store: StorePlace::Directory("/names".into()),
            rules: vec![rule],
        }],
        new_buckets: None,
        open_store: Box::new(move |_| Ok(backend.clone())),
        create_place: Box::new(|_, _| Err("no buckets are created here".to_owned())),
        sharing: None,
        alone: None,
        at_rest: None,
        into_empty: Vec::new(),
    }
}

fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// All pages of the bucket, and how many objects they have.
async fn list_all(engine: &GatewayEngine) -> u64 {
    let (mut count, mut after) = (0, None);
    loop {
        let request = ListRequest { after, most: 1000, ..ListRequest::default() };
        let page = engine.list("lake", &request).await.unwrap();
        count += page.entries.len() as u64;
        match page.entries.last().filter(|_| page.is_truncated) {
            Some(last) => after = Some(last.name().to_owned()),
            None => return count,
        }
    }
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [word, directory, count] = &arguments[..] else { panic!("fill|open DIRECTORY COUNT") };
    let (directory, count) = (Path::new(directory), count.parse().expect("a number"));
    let begun = Instant::now();
    let engine = GatewayEngine::open(setup(directory, count)).await.unwrap();
    let open_s = begun.elapsed().as_secs_f64();
    let metadata = std::fs::metadata(directory.join("metadata.redb")).unwrap();
    let stored = std::os::unix::fs::MetadataExt::blocks(&metadata) * 512;
    let opened_bytes = status_bytes("VmRSS:");
    let begun = Instant::now();
    let listed = list_all(&engine).await;
    let list_s = begun.elapsed().as_secs_f64();
    assert_eq!(listed, count);
    let begun = Instant::now();
    let request = ListRequest {
        delimiter: Some("/".to_owned()),
        prefix: "warehouse/sales.db/orders/".to_owned(),
        most: 1000,
        after: None,
    };
    let days = engine.list("lake", &request).await.unwrap().entries.len();
    let days_ms = begun.elapsed().as_secs_f64() * 1e3;
    println!(
        "{{\"objects\": {count}, \"open_s\": {open_s}, \"metadata_bytes\": {stored}, \"opened_memory_bytes\": {opened_bytes}, \"list_s\": {list_s}, \"directories\": {days}, \"directories_ms\": {days_ms}, \"most_memory_bytes\": {}}}",
        status_bytes("VmHWM:")
    );
    if word == "fill" {
        // As a crash does.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    }
}
