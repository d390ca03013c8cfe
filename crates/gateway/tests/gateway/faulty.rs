//! A store that fails, stalls and lies as often as a test wants.

use std::collections::{HashMap, HashSet};
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
    Attributes, CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result, UploadPart,
};
use openssl::hash::{MessageDigest, hash};
use underlay_sync::Mutex;

/// What a store may say that is not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lie {
    /// It has taken an object, and has not.
    Put,
    /// It has taken these bytes, and has others of the same length.
    OtherBytes,
    /// It has taken a part, and has nothing of it.
    Part,
    /// The parts are an object now, and are none.
    Complete,
    /// It has copied, and has not.
    Copy,
    /// It has deleted, and has not.
    Delete,
    /// The version before the last write is there, even if a request names another.
    Older,
    /// There is nothing.
    NotFound,
    /// An object is longer than it is.
    Size,
    /// A body that ends early, or goes on.
    Short,
    Long,
    /// An answer has none of an object's headers.
    Bare,
    /// As [`Size`](Lie::Size), where only headers are asked for.
    SizeOfHead,
}

/// A change that waits to be carried out.
#[derive(Debug)]
enum Late {
    Put(Path, PutPayload, PutOptions),
    Delete(Path),
    Copy(Path, Path, CopyOptions),
}

/// Where a store says which gateways it belongs to.
const MARKER: &str = "%underlay-cluster";

/// What an ETag is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Etags {
    #[default]
    OfTheStore,
    /// As S3 makes them.
    Md5,
    /// Written like those, and no sum of the bytes, as where S3 encrypts with keys of KMS.
    LikeMd5,
}

/// How the store behaves now. Shared, so that a test can change it.
#[derive(Debug, Default)]
pub(crate) struct Mood {
    /// Of a thousand requests so many fail: half of them before anything is done, half after it was.
    pub(crate) failing: AtomicU32,
    /// And so many take a while.
    pub(crate) stalling: AtomicU32,
    /// And of so many the answer is a lie, but none that nobody could see through: see [`Faulty::untrue`].
    pub(crate) lying: AtomicU32,
    /// Lies for each answer.
    pub(crate) always: Mutex<HashSet<Lie>>,
    /// Lies for the next answer alone.
    pub(crate) once: Mutex<HashSet<Lie>>,
    pub(crate) etags: Mutex<Etags>,
    /// Every PUT is done, and its answer lost.
    pub(crate) loses_answers: AtomicBool,
    /// Changes get no answer, and are carried out when the test says so: see [`Mood::land`].
    pub(crate) lands_late: AtomicBool,
    late: Mutex<Vec<Late>>,
    /// PUTs have arrived, and are not carried out as long as this says so.
    pub(crate) holds_puts: AtomicBool,
    /// The same of deletions.
    pub(crate) holds_deletes: AtomicBool,
    /// Answers to GET and HEAD are on their way as long as this says so.
    pub(crate) holds_answers: AtomicBool,
    /// The cluster's marker may not be read, nor what is not there: so S3 answers where not the whole bucket may be
    /// listed.
    pub(crate) denies_reads: AtomicBool,
    /// What is there may not be read either.
    pub(crate) denies_all_reads: AtomicBool,
    /// Nothing may be listed.
    pub(crate) denies_lists: AtomicBool,
    /// It gives no file a second name, as where that would be in another file system.
    pub(crate) refuses_copies: AtomicBool,
    /// A request that changes one of these panics, as a dependency may.
    pub(crate) panics_at: Mutex<HashSet<String>>,
    pub(crate) puts: AtomicU64,
    pub(crate) copies: AtomicU64,
    pub(crate) deletes: AtomicU64,
    /// HEADs and GETs.
    pub(crate) gets: AtomicU64,
    /// Of those, the ones that asked for bytes.
    pub(crate) bodies: AtomicU64,
    pub(crate) lies: AtomicU64,
    draws: AtomicU64,
    /// What was at a name before the last write that was carried out.
    former: Mutex<HashMap<Path, (ObjectMeta, Attributes, Bytes)>>,
    /// Names of writes that were acknowledged and not carried out.
    undone: Mutex<HashSet<Path>>,
    /// From the ETags of the store to those of [`StoreEtags`].
    renamed: Mutex<HashMap<String, String>>,
}

impl Mood {
    /// From now on the store says what is so, and does what it is asked for.
    pub(crate) fn be_good(&self) {
        for share in [&self.failing, &self.stalling, &self.lying] {
            share.store(0, Ordering::Relaxed);
        }
        self.always.lock().clear();
        self.once.lock().clear();
        for denies in [&self.denies_reads, &self.denies_all_reads, &self.denies_lists, &self.refuses_copies] {
            denies.store(false, Ordering::Relaxed);
        }
        self.panics_at.lock().clear();
    }

    /// Carries out what got no answer, in the order in which it came. Returns how many changes those are.
    pub(crate) async fn land(&self, store: &Arc<dyn ObjectStore>) -> usize {
        let late = std::mem::take(&mut *self.late.lock());
        let count = late.len();
        for change in late {
            match change {
                Late::Put(path, payload, options) => drop(store.put_opts(&path, payload, options).await),
                Late::Delete(path) => drop(store.delete(&path).await),
                Late::Copy(from, to, options) => drop(store.copy_opts(&from, &to, options).await),
            }
        }
        count
    }

    fn keeps(&self, change: Late) -> bool {
        let is_late = self.lands_late.load(Ordering::Relaxed);
        if is_late {
            self.late.lock().push(change);
        }
        is_late
    }

    pub(crate) fn tell(&self, lies: &[Lie]) {
        self.always.lock().extend(lies);
    }

    pub(crate) fn tell_once(&self, lie: Lie) {
        self.once.lock().insert(lie);
    }

    /// SplitMix64 of a counter.
    fn draw(&self) -> u64 {
        let mut x = self.draws.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^ (x >> 27)
    }

    fn happens(&self, share: &AtomicU32) -> bool {
        ((self.draw() % 1000) as u32) < share.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Faulty {
    inner: Arc<dyn ObjectStore>,
    mood: Arc<Mood>,
}

enum Fate {
    Fine,
    FailsBefore,
    FailsAfter,
}

fn denied(location: &Path) -> object_store::Error {
    let (path, source) = (location.to_string(), "as the test wants it".into());
    object_store::Error::PermissionDenied { path, source }
}

fn failure() -> object_store::Error {
    object_store::Error::Generic { store: "faulty", source: "as the test wants it".into() }
}

fn not_found(location: &Path) -> object_store::Error {
    object_store::Error::NotFound { path: location.to_string(), source: "as the test wants it".into() }
}

fn md5(bytes: &[u8]) -> String {
    let sum = hash(MessageDigest::md5(), bytes).unwrap();
    base16ct::lower::encode_string(&sum)
}

fn joined(payload: &PutPayload) -> Bytes {
    Bytes::from(payload.iter().map(Bytes::as_ref).collect::<Vec<&[u8]>>().concat())
}

fn stream_of(bytes: Bytes) -> GetResultPayload {
    GetResultPayload::Stream(futures_util::stream::iter([Ok(bytes)]).boxed())
}

impl Faulty {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, mood: Arc<Mood>) -> Faulty {
        Faulty { inner, mood }
    }

    fn panic_if_wanted(&self, location: &Path) {
        let is_wanted = self.mood.panics_at.lock().contains(location.as_ref());
        assert!(!is_wanted, "the store's client panics, as the test wants it");
    }

    async fn fate(&self) -> Fate {
        let draw = self.mood.draw();
        let (draw, other) = ((draw % 1000) as u32, (draw >> 32) % 1000);
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

    /// The lie that the store tells now. Two never come by chance, since nobody could detect them. One is a lost part
    /// where ETags don't depend on bytes. The other is a second lie that agrees with a first: that nothing is where
    /// something should have been deleted.
    fn untrue(&self, location: &Path, lies: &[Lie]) -> Option<Lie> {
        let chosen = match self.wanted(location, lies) {
            Some(lie) => Some(lie),
            None if self.mood.happens(&self.mood.lying) => {
                let lie = lies[(self.mood.draw() % lies.len() as u64) as usize];
                let is_seen = match lie {
                    Lie::Part | Lie::OtherBytes => *self.mood.etags.lock() == Etags::Md5,
                    Lie::Older | Lie::NotFound => !self.mood.undone.lock().contains(location),
                    _ => true,
                };
                is_seen.then_some(lie)
            }
            None => None,
        };
        if matches!(chosen, Some(Lie::Put | Lie::Complete | Lie::Copy | Lie::Delete)) {
            self.mood.undone.lock().insert(location.clone());
        }
        self.mood.lies.fetch_add(u64::from(chosen.is_some()), Ordering::Relaxed);
        chosen
    }

    /// The lie of these that the test wants now.
    fn wanted(&self, location: &Path, lies: &[Lie]) -> Option<Lie> {
        let is_wanted =
            |lie: &Lie| self.mood.always.lock().contains(lie) || self.mood.once.lock().remove(lie);
        // The cluster's marker is looked for now and then, which is not what a test is about.
        lies.iter().copied().filter(|_| location.as_ref() != MARKER).find(is_wanted)
    }

    /// Another write is going to be carried out: what is there is what was there before it.
    async fn remember(&self, location: &Path) {
        self.mood.undone.lock().remove(location);
        if let Ok(found) = self.inner.get(location).await {
            let (meta, attributes) = (self.shown(found.meta.clone()), found.attributes.clone());
            let bytes = found.bytes().await.unwrap();
            self.mood.former.lock().insert(location.clone(), (meta, attributes, bytes));
        }
    }

    /// An ETag for what the store calls by another one.
    fn rename(&self, etag: Option<String>, of_bytes: impl FnOnce() -> String) -> Option<String> {
        let etag = etag?;
        let renamed = match *self.mood.etags.lock() {
            Etags::OfTheStore => return Some(etag),
            Etags::Md5 => format!("\"{}\"", of_bytes()),
            Etags::LikeMd5 => {
                let (of_bytes, other) = (of_bytes(), md5(etag.as_bytes()));
                format!("\"{other}{}\"", &of_bytes[32..])
            }
        };
        self.mood.renamed.lock().insert(etag, renamed.clone());
        Some(renamed)
    }

    fn shown(&self, meta: ObjectMeta) -> ObjectMeta {
        let renamed = self.mood.renamed.lock();
        let e_tag = meta.e_tag.map(|etag| renamed.get(&etag).cloned().unwrap_or(etag));
        ObjectMeta { e_tag, ..meta }
    }

    /// As if it had been done: with an ETag that nothing has, or with the right one, where it is known beforehand.
    fn pretended(&self, of_bytes: impl FnOnce() -> String) -> PutResult {
        let etag = match *self.mood.etags.lock() {
            Etags::Md5 => of_bytes(),
            _ => format!("a lie {}", self.mood.draw()),
        };
        PutResult { e_tag: Some(format!("\"{etag}\"")), version: None, extensions: Default::default() }
    }

    async fn put(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let mut payload = payload;
        match self.untrue(location, &[Lie::Put, Lie::OtherBytes]) {
            Some(Lie::OtherBytes) if payload.content_length() > 0 => {
                let mut other = joined(&payload).to_vec();
                other[0] ^= 1;
                payload = PutPayload::from(other);
            }
            Some(Lie::Put) => return Ok(self.pretended(|| md5(&joined(&payload)))),
            _ => {}
        }
        self.remember(location).await;
        let stored = payload.clone();
        let put = self.inner.put_opts(location, payload, options).await?;
        Ok(PutResult { e_tag: self.rename(put.e_tag, || md5(&joined(&stored))), ..put })
    }

    async fn get(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let lies: &[Lie] = match options.head {
            true => &[Lie::Older, Lie::NotFound, Lie::Size],
            false => &[Lie::Older, Lie::NotFound, Lie::Size, Lie::Short, Lie::Long],
        };
        let is_bare = self.wanted(location, &[Lie::Bare]).is_some();
        let lie = self.untrue(location, lies);
        let former = self.mood.former.lock().get(location).cloned();
        match (lie, former) {
            (Some(Lie::NotFound), _) => return Err(not_found(location)),
            (Some(Lie::Older), Some((meta, attributes, bytes))) => {
                let range = match &options.range {
                    Some(range) => range.as_range(meta.size).map_err(|_| failure())?,
                    None => 0..meta.size,
                };
                let payload = stream_of(bytes.slice(range.start as usize..range.end as usize));
                return Ok(GetResult { payload, meta, range, attributes, extensions: Default::default() });
            }
            _ => {}
        }
        // The store itself knows nothing of the names that its ETags have here.
        let (is_head, wanted) = (options.head, options.if_match.clone());
        let knows_etags = *self.mood.etags.lock() == Etags::OfTheStore;
        let if_match = wanted.clone().filter(|_| knows_etags);
        let mut answer = self.inner.get_opts(location, GetOptions { if_match, ..options }).await?;
        answer.meta = self.shown(answer.meta);
        if is_head && self.wanted(location, &[Lie::SizeOfHead]).is_some() {
            answer.meta.size += 1;
        }
        if is_bare {
            answer.attributes = Attributes::default();
        }
        if wanted.is_some() && wanted != answer.meta.e_tag {
            let (path, source) = (location.to_string(), "another version".into());
            return Err(object_store::Error::Precondition { path, source });
        }
        if lie == Some(Lie::Size) {
            answer.meta.size += 1;
        }
        let breaks = !is_head && self.mood.happens(&self.mood.failing);
        if is_head || (!breaks && !matches!(lie, Some(Lie::Short | Lie::Long))) {
            return Ok(answer);
        }
        let (meta, range, attributes) =
            (answer.meta.clone(), answer.range.clone(), answer.attributes.clone());
        let bytes = answer.bytes().await?;
        let payload = match lie {
            _ if breaks => {
                let half = bytes.slice(..bytes.len() / 2);
                GetResultPayload::Stream(futures_util::stream::iter([Ok(half), Err(failure())]).boxed())
            }
            Some(Lie::Long) => stream_of(Bytes::from([&bytes[..], b"!"].concat())),
            _ => stream_of(bytes.slice(..bytes.len().saturating_sub(1))),
        };
        Ok(GetResult { payload, meta, range, attributes, extensions: Default::default() })
    }

    async fn delete(&self, location: Path) -> Result<Path> {
        if self.untrue(&location, &[Lie::Delete]).is_some() {
            return Ok(location);
        }
        self.remember(&location).await;
        let one = futures_util::stream::iter([Ok(location)]).boxed();
        self.inner.delete_stream(one).next().await.unwrap_or_else(|| Err(failure()))
    }

    async fn copy(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        if self.untrue(to, &[Lie::Copy]).is_some() {
            return Ok(());
        }
        self.remember(to).await;
        self.inner.copy_opts(from, to, options).await?;
        let has_others = *self.mood.etags.lock() != Etags::OfTheStore;
        if has_others {
            let copied = self.inner.get(to).await?;
            let etag = copied.meta.e_tag.clone();
            let bytes = copied.bytes().await?;
            self.rename(etag, || md5(&bytes));
        }
        Ok(())
    }

    /// A listing that may break off.
    fn listed(
        &self,
        listed: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        if self.mood.denies_lists.load(Ordering::Relaxed) {
            return futures_util::stream::iter([Err(denied(&Path::ROOT))]).boxed();
        }
        let faulty = self.clone();
        let listed = listed.map(move |meta| meta.map(|meta| faulty.shown(meta)));
        if !self.mood.happens(&self.mood.failing) {
            return listed.boxed();
        }
        let end = futures_util::stream::iter([Err(failure())]);
        listed.take((self.mood.draw() % 3) as usize).chain(end).boxed()
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
        self.panic_if_wanted(location);
        if self.mood.loses_answers.load(Ordering::Relaxed) {
            drop(self.inner.put_opts(location, payload, options).await);
            self.mood.puts.fetch_add(1, Ordering::Relaxed);
            return Err(failure());
        }
        self.mood.puts.fetch_add(1, Ordering::Relaxed);
        if self.mood.keeps(Late::Put(location.clone(), payload.clone(), options.clone())) {
            return Err(failure());
        }
        while self.mood.holds_puts.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.done(self.put(location, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.mood.puts.fetch_add(1, Ordering::Relaxed);
        let inner = self.done(self.inner.put_multipart_opts(location, options)).await?;
        let (faulty, location) = (self.clone(), location.clone());
        Ok(Box::new(FaultyUpload { inner, faulty, location, sums: Vec::new() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let denies = self.mood.denies_reads.load(Ordering::Relaxed);
        let denies_all = self.mood.denies_all_reads.load(Ordering::Relaxed);
        if denies_all || (denies && location.as_ref() == MARKER) {
            return Err(denied(location));
        }
        let is_head = options.head;
        let answer = self.done(self.get(location, options)).await;
        self.mood.gets.fetch_add(1, Ordering::Relaxed);
        self.mood.bodies.fetch_add(u64::from(!is_head), Ordering::Relaxed);
        while self.mood.holds_answers.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        match answer {
            Err(object_store::Error::NotFound { .. }) if denies => Err(denied(location)),
            answer => answer,
        }
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.done(self.inner.get_ranges(location, ranges)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let faulty = self.clone();
        locations
            .then(move |location| {
                let faulty = faulty.clone();
                async move {
                    faulty.mood.deletes.fetch_add(1, Ordering::Relaxed);
                    let location = location?;
                    faulty.panic_if_wanted(&location);
                    while faulty.mood.holds_deletes.load(Ordering::Relaxed) {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    if faulty.mood.keeps(Late::Delete(location.clone())) {
                        return Err(failure());
                    }
                    faulty.done(faulty.delete(location)).await
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listed(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listed(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.done(self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.mood.copies.fetch_add(1, Ordering::Relaxed);
        if self.mood.refuses_copies.load(Ordering::Relaxed) {
            let source = Box::new(std::io::Error::from_raw_os_error(libc::EXDEV));
            return Err(object_store::Error::Generic { store: "faulty", source });
        }
        if self.mood.keeps(Late::Copy(from.clone(), to.clone(), options.clone())) {
            return Err(failure());
        }
        self.done(self.copy(from, to, options)).await
    }
}

/// An upload in parts to such a store.
#[derive(Debug)]
struct FaultyUpload {
    inner: Box<dyn MultipartUpload>,
    faulty: Faulty,
    location: Path,
    /// Of the parts in their order, as they came.
    sums: Vec<String>,
}

impl FaultyUpload {
    /// As S3 makes it.
    fn etag(&self) -> String {
        let sums: Vec<u8> = self
            .sums
            .iter()
            .flat_map(|sum| {
                (0..16).map(|index| u8::from_str_radix(&sum[index * 2..index * 2 + 2], 16).unwrap())
            })
            .collect();
        format!("{}-{}", md5(&sums), self.sums.len())
    }
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let faulty = self.faulty.clone();
        let mut data = data;
        // In its place there is a part of as many zeros, which the object's ETag is made of.
        if faulty.untrue(&self.location, &[Lie::Part]).is_some() {
            data = PutPayload::from(vec![0; data.content_length()]);
        }
        self.sums.push(md5(&joined(&data)));
        let part = self.inner.put_part(data);
        Box::pin(async move { faulty.done(part).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let (faulty, etag) = (self.faulty.clone(), self.etag());
        let location = self.location.clone();
        let completing = async {
            if faulty.untrue(&location, &[Lie::Complete]).is_some() {
                return Ok(faulty.pretended(|| etag.clone()));
            }
            faulty.remember(&location).await;
            let put = self.inner.complete().await?;
            Ok(PutResult { e_tag: faulty.rename(put.e_tag, || etag.clone()), ..put })
        };
        faulty.done(completing).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.faulty.done(self.inner.abort()).await
    }
}
