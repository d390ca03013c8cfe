//! A store that fails and stalls as often as a test wants.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// How the store behaves now. Shared, so that a test can change it.
#[derive(Debug, Default)]
pub(crate) struct Mood {
    /// Of a thousand requests so many fail: half of them before anything is done, half after it was.
    pub(crate) failing: AtomicU32,
    /// And so many take a while.
    pub(crate) stalling: AtomicU32,
    /// Every PUT is done, and its answer lost.
    pub(crate) loses_answers: AtomicBool,
    /// PUTs have arrived, and are not carried out as long as this says so.
    pub(crate) holds_puts: AtomicBool,
    /// Answers to GET and HEAD are on their way as long as this says so.
    pub(crate) holds_answers: AtomicBool,
    /// Nothing may be read: so S3 answers for what is not there, too, where not the whole bucket may be listed.
    pub(crate) denies_reads: AtomicBool,
    pub(crate) puts: AtomicU64,
    pub(crate) copies: AtomicU64,
    pub(crate) gets: AtomicU64,
    draws: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Faulty {
    inner: Arc<dyn ObjectStore>,
    mood: Arc<Mood>,
}

enum Fate {
    Fine,
    FailsBefore,
    FailsAfter,
}

fn failure() -> object_store::Error {
    object_store::Error::Generic { store: "faulty", source: "as the test wants it".into() }
}

impl Faulty {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, mood: Arc<Mood>) -> Faulty {
        Faulty { inner, mood }
    }

    async fn fate(&self) -> Fate {
        // SplitMix64 of a counter.
        let mut x = self.mood.draws.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^= x >> 27;
        let (draw, other) = ((x % 1000) as u32, (x >> 32) % 1000);
        if (other as u32) < self.mood.stalling.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(other % 40)).await;
        }
        let failing = self.mood.failing.load(Ordering::Relaxed);
        match draw {
            draw if draw < failing / 2 => Fate::FailsBefore,
            draw if draw < failing => Fate::FailsAfter,
            _ => Fate::Fine,
        }
    }

    async fn done<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        match self.fate().await {
            Fate::FailsBefore => Err(failure()),
            Fate::FailsAfter => {
                // Like an answer that is lost on its way.
                drop(work.await);
                Err(failure())
            }
            Fate::Fine => work.await,
        }
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faulty {}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        if self.mood.loses_answers.load(Ordering::Relaxed) {
            drop(self.inner.put_opts(location, payload, options).await);
            self.mood.puts.fetch_add(1, Ordering::Relaxed);
            return Err(failure());
        }
        self.mood.puts.fetch_add(1, Ordering::Relaxed);
        while self.mood.holds_puts.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.done(self.inner.put_opts(location, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.mood.puts.fetch_add(1, Ordering::Relaxed);
        self.done(self.inner.put_multipart_opts(location, options)).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if self.mood.denies_reads.load(Ordering::Relaxed) {
            let source = "as the test wants it".into();
            return Err(object_store::Error::PermissionDenied { path: location.to_string(), source });
        }
        let answer = self.done(self.inner.get_opts(location, options)).await;
        self.mood.gets.fetch_add(1, Ordering::Relaxed);
        while self.mood.holds_answers.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        answer
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.done(self.inner.get_ranges(location, ranges)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (inner, mood) = (Arc::clone(&self.inner), Arc::clone(&self.mood));
        locations
            .then(move |location| {
                let faulty = Faulty::new(Arc::clone(&inner), Arc::clone(&mood));
                async move {
                    let location = location?;
                    let at = location.clone();
                    let work = async {
                        let one = futures_util::stream::iter([Ok(at)]).boxed();
                        faulty.inner.delete_stream(one).next().await.unwrap_or_else(|| Err(failure()))
                    };
                    faulty.done(work).await
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.done(self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.mood.copies.fetch_add(1, Ordering::Relaxed);
        self.done(self.inner.copy_opts(from, to, options)).await
    }
}
