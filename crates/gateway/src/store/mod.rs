//! Stores behind the gateway: each bucket's objects are in one, an S3 endpoint's or a local directory, reached by
//! `object_store`.

mod attributes;
mod confirm;
mod crypto;
mod late;
mod leftovers;
mod links;
mod names;
mod one_name;
mod open;
mod place;
mod put;
mod refusals;
mod root;
mod said;
mod turns;
mod unfinished;
mod wire;

pub(crate) use confirm::{EtagFingerprint, bare};
pub(crate) use late::{
    LatePlaces, LateRequests, RecalledRequest, RequestEffect, SendPermit, SentNotes, StorePlaces,
};
pub(crate) use leftovers::{DirectoryWriters, look_through};
pub(crate) use names::{MAX_KEY_BYTES, OWNERS, folder_of, has_own_name, holds_escaped, is_behind_escaped};
pub use names::{NameError, key_of, path_of};
pub use one_name::{MakeMedium, NameDirectory};
pub(crate) use open::{EndpointAccess, create_below, open};
pub(crate) use place::{FolderContents, PlaceFinding};
pub(crate) use root::DirectoryIdentity;
pub(crate) use said::read_any as read_any_error;
pub(crate) use wire::read_any;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt as _};
use object_store::path::Path;
use object_store::{
    Attributes, CopyMode, CopyOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt as _,
    PutMode, PutOptions, PutPayload,
};
use underlay_sync::planted::{PlantedBug, is_planted};

use crate::errors::{GatewayError, GatewayResult, StoreRefusal};
use crate::memory::MemoryBudget;
use crate::model::ObjectHeaders;
use attributes::{found, is_header_value};
use links::PathEnd;

/// Objects up to this size are sent by one request, and longer ones in parts of this size or more.
const PART_BYTES: u64 = 8 << 20;
/// S3 takes no more parts than 10,000.
const MAX_PARTS: u64 = 9_000;
/// For parts in flight, where nobody says how much there is.
const MEMORY_BYTES: u64 = 256 << 20;
/// After so long without an answer the store counts as failing, and the request is tried again later.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(120);

/// A read that goes on for longer is given up: nothing can come of it late.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// A look at a directory itself is short, unless what it lies on hangs.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

const MAX_MARKER_BYTES: u64 = 1024;

/// S3's limit of a copy: what is longer is sent as bytes.
const MAX_COPY_BYTES: u64 = 5 << 30;

/// S3's own limit, with the prefix of the bucket's objects.
const MAX_S3_KEY_BYTES: usize = 1024;
/// Linux takes 4096 bytes as a path: this is the part below the store's directory, with room for the names of
/// unfinished files.
const MAX_PATH_BYTES: usize = 3000;

/// The kind of store: kinds differ in the headers that they can keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    S3,
    /// Keeps bytes only, and no name that is also the beginning of another's path.
    Directory,
}

/// The store's description of an object.
#[derive(Clone, Debug)]
pub(crate) struct StoredInfo {
    pub(crate) size_bytes: u64,
    pub(crate) etag: Option<String>,
    pub(crate) modified_ms: i64,
    pub(crate) headers: ObjectHeaders,
}

/// Whether a request may still be begun: looking where it goes may have taken minutes.
pub(crate) type MayGoOn<'a> = dyn Fn() -> GatewayResult<()> + Sync + 'a;

/// A condition that the store itself checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum StoreCondition {
    #[default]
    Always,
    IfAbsent,
    IfMatch(String),
}

/// The store of one bucket.
#[derive(Clone)]
pub struct StoreBackend {
    store: Arc<dyn ObjectStore>,
    pub kind: BackendKind,
    most_path_bytes: usize,
    /// Where it is reached, if not on this machine.
    endpoint: Option<Arc<str>>,
    /// Of a directory: there links have to be looked out for, and that it is still mounted.
    root: Option<Arc<root::StoreRoot>>,
    turns: turns::NameLocks,
    late: Arc<late::LateRequests>,
    etags: Arc<confirm::StoreEtags>,
    /// For bytes on their way there.
    memory: MemoryBudget,
    /// Where names are tried, if not in the directory itself.
    medium: Option<Arc<MakeMedium>>,
}

/// Whether files go that interrupted writes to a name have left in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnfinishedFiles {
    Removed,
    /// Somebody may be writing one.
    Kept,
}

impl StoreBackend {
    pub fn new(store: Arc<dyn ObjectStore>, kind: BackendKind) -> StoreBackend {
        let most_path_bytes = match kind {
            BackendKind::S3 => MAX_S3_KEY_BYTES,
            BackendKind::Directory => MAX_PATH_BYTES,
        };
        let (turns, etags) = (turns::NameLocks::default(), Arc::default());
        let memory = MemoryBudget::new(MEMORY_BYTES);
        let late = Arc::new(late::LateRequests::new(STORE_TIMEOUT));
        StoreBackend {
            store,
            kind,
            most_path_bytes,
            endpoint: None,
            root: None,
            turns,
            late,
            etags,
            memory,
            medium: None,
        }
    }

    /// The same, with this memory for what is on its way there: others may have a part of it.
    pub(crate) fn with_memory(self, memory: MemoryBudget) -> StoreBackend {
        StoreBackend { memory, ..self }
    }

    /// # Errors
    /// `TooLarge` when an object of this size would have to be sent in parts that there is no memory for.
    pub(crate) fn check_size(&self, size_bytes: u64) -> GatewayResult<()> {
        let (part, most) = (self.bytes_a_part(size_bytes), self.memory.bytes());
        match part <= most || is_planted(PlantedBug::WholeObjectInMemory) {
            true => Ok(()),
            false => Err(GatewayError::TooLarge(format!(
                "the store takes an object of {size_bytes} bytes in parts of {} MiB, and this gateway has {} MiB for parts, a fourth of `memory` in [local]: raise it",
                part.div_ceil(1 << 20),
                most >> 20
            ))),
        }
    }

    /// Of an object that is sent in parts. A directory takes any number of them.
    fn bytes_a_part(&self, size_bytes: u64) -> u64 {
        match self.kind {
            BackendKind::S3 => part_bytes(size_bytes),
            BackendKind::Directory => PART_BYTES,
        }
    }

    /// The same, below a prefix of so many bytes.
    fn below(self, prefix_bytes: usize) -> StoreBackend {
        StoreBackend { most_path_bytes: self.most_path_bytes.saturating_sub(prefix_bytes), ..self }
    }

    /// The same, in a directory of this machine, which has to stay the one that it is now.
    ///
    /// # Errors
    /// When it can't be opened.
    pub fn with_root(self, root: &std::path::Path) -> std::io::Result<StoreBackend> {
        Ok(StoreBackend { root: Some(Arc::new(root::StoreRoot::open(root)?)), ..self })
    }

    /// As [`path`](Self::path), for a request to the store: one through a link is refused, and one to another directory
    /// than was opened.
    async fn reach(&self, key: &str) -> GatewayResult<Path> {
        let path = self.locate(key)?;
        let looked_at = path.clone();
        self.check_root(move |root| root.check().and_then(|()| links::check(root.path(), &looked_at)))
            .await?;
        Ok(path)
    }

    /// Looks at the store's directory, if it is one. Where a mount hangs, each look would keep a thread, and they would
    /// soon be all there are.
    async fn check_root<T: Default + Send + 'static>(
        &self,
        look: impl FnOnce(&root::StoreRoot) -> GatewayResult<T> + Send + 'static,
    ) -> GatewayResult<T> {
        match &self.root {
            Some(root) if root.hangs() => Err(root::not_there()),
            Some(_) => self.look_at_root(look).await,
            None => Ok(T::default()),
        }
    }

    async fn look_at_root<T: Default + Send + 'static>(
        &self,
        look: impl FnOnce(&root::StoreRoot) -> GatewayResult<T> + Send + 'static,
    ) -> GatewayResult<T> {
        let Some(root) = self.root.clone() else { return Ok(T::default()) };
        // Waiting behind the looks of others says nothing of the directory, as long as some of them come back.
        let answers_before = root.answers();
        let acquiring = Arc::clone(&root.looks).acquire_owned();
        let Ok(place) = tokio::time::timeout(CHECK_TIMEOUT, acquiring).await else {
            if root.answers() > answers_before {
                return Err(GatewayError::Busy("the store's directory is busy: try again later".to_owned()));
            }
            root.note_hanging();
            return Err(root::not_there());
        };
        let looking = async {
            let root = Arc::clone(&root);
            let looked = crate::blocking::spawn_blocking(move || {
                let outcome = look(&root);
                root.note_answer();
                drop(place);
                outcome
            });
            looked.await.map_err(|error| {
                GatewayError::Store(format!("cannot look at the store's directory: {error}"))
            })?
        };
        match tokio::time::timeout(CHECK_TIMEOUT, looking).await {
            Ok(outcome) => outcome,
            Err(_) => {
                root.note_hanging();
                Err(root::not_there())
            }
        }
    }

    /// # Errors
    /// When the store is a directory that is not there now, or was exchanged.
    pub(crate) async fn check_there(&self) -> GatewayResult<()> {
        self.check_root(root::StoreRoot::check).await
    }

    /// The same for who looks now and then: also at one that hangs, since the thread that does may never come back.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn watch(&self) -> GatewayResult<()> {
        self.look_at_root(root::StoreRoot::check).await
    }

    /// The directory that was opened is not the one that is expected: it counts as away until [`accept`](Self::accept).
    pub(crate) fn await_another(&self) {
        self.root.iter().for_each(|root| root.await_another());
    }

    pub(crate) fn is_awaited(&self) -> bool {
        self.root.as_ref().is_some_and(|root| root.is_awaited())
    }

    /// Blocks.
    ///
    /// # Errors
    /// When the path does not name this one.
    pub(crate) fn accept(&self, identity: DirectoryIdentity) -> std::io::Result<()> {
        self.root.as_ref().map_or(Ok(()), |root| root.accept(identity))
    }

    /// Whether it was not there when it was last looked at.
    pub(crate) fn is_away(&self) -> bool {
        self.root.as_ref().is_some_and(|root| root.is_away())
    }

    /// How often its directory has come back; `None` where it has none.
    pub(crate) fn returns(&self) -> Option<u64> {
        self.root.as_ref().map(|root| root.returns())
    }

    /// Where its directory is, and which one.
    pub(crate) fn root(&self) -> Option<(&std::path::Path, DirectoryIdentity)> {
        self.root.as_ref().map(|root| (root.path(), root.identity()))
    }

    /// Waits until nobody else of this process writes to the key.
    pub(crate) async fn turn(&self, key: &str) -> turns::NameLock {
        self.turns.take(key).await
    }

    /// As [`path`](Self::path), also of a [part](crate::staged) that is kept in the store: only the gateway itself asks
    /// for one.
    pub(crate) fn locate(&self, name: &str) -> GatewayResult<Path> {
        match crate::staged::path_of(name) {
            Some(path) => Path::parse(path).map_err(|error| GatewayError::InvalidArgument(error.to_string())),
            None => self.path(name),
        }
    }

    /// Where the object of this key is. An error means that the store could never take it.
    pub(crate) fn path(&self, key: &str) -> GatewayResult<Path> {
        let path = path_of(key, self.kind).map_err(|error| match error {
            NameError::TooLong(_) => GatewayError::KeyTooLong(error.to_string()),
            NameError::Unusable(_) => GatewayError::InvalidArgument(error.to_string()),
        })?;
        let length = names::length_of(&path, self.kind);
        if length > self.most_path_bytes {
            return Err(GatewayError::KeyTooLong(format!(
                "the store behind the bucket takes {} bytes at most here, and needs {length} for this key",
                self.most_path_bytes
            )));
        }
        Ok(path)
    }

    /// Waits for the store, but not forever. A directory's answer counts only if it is still the one that was opened.
    async fn patiently<T>(
        &self,
        operation: &str,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> GatewayResult<T> {
        let patience = if matches!(operation, "HEAD" | "GET") { READ_TIMEOUT } else { STORE_TIMEOUT };
        let outcome = tokio::time::timeout(patience, work).await;
        self.check_there().await?;
        match outcome {
            Ok(outcome) => outcome.map_err(|error| match operation {
                "HEAD" | "GET" | "DELETE" if refusals::says_no_object(self.kind, operation, &error) => {
                    GatewayError::NoSuchKey
                }
                "HEAD" | "GET" | "LIST" => failed(operation, error),
                _ => self.failed_to_write(operation, error),
            }),
            Err(_) => {
                Err(GatewayError::Store(format!("{operation}: no answer for {} s", patience.as_secs())))
            }
        }
    }

    /// The same as [`failed`] of a request that changes something, with what the store refuses told from what passes.
    fn failed_to_write(&self, operation: &str, error: object_store::Error) -> GatewayError {
        let is_not_found = matches!(error, object_store::Error::NotFound { .. });
        // The object to be written need not be there, so its absence is no answer.
        let refusal = match operation {
            "PUT" | "CreateMultipartUpload" if is_not_found && self.kind == BackendKind::S3 => {
                Some(StoreRefusal::NoBucket)
            }
            _ => refusals::refusal_of(self.kind, &error),
        };
        let text = || format!("{operation}: {}", said::text_of(&error));
        match (refusal, operation) {
            (Some(refusal), _) => GatewayError::Refused { refusal, text: text() },
            // The store has no such upload: it gave it up, or an attempt without an answer has completed it.
            (None, "PUT" | "CreateMultipartUpload" | "UploadPart" | "CompleteMultipartUpload")
                if is_not_found =>
            {
                GatewayError::Store(text())
            }
            (None, _) => failed(operation, error),
        }
    }

    pub(crate) async fn head(&self, key: &str) -> GatewayResult<StoredInfo> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        let path = self.reach(key).await?;
        let answer = self.patiently("HEAD", self.store.get_opts(&path, options)).await?;
        Ok(found(&answer.meta, &answer.attributes))
    }

    /// A range of an object of this size, as a stream, with what the store says of the whole. With an ETag, of that
    /// version only: another one is `PreconditionFailed`, also where the store gives it without having looked at what
    /// it was asked for.
    pub(crate) async fn get(
        &self,
        key: &str,
        etag: Option<&str>,
        size_bytes: u64,
        range: Range<u64>,
    ) -> GatewayResult<(StoredInfo, BoxStream<'static, object_store::Result<Bytes>>)> {
        // A directory's ETags have the time of change in them: good to compare, and `object_store` does.
        let if_match = etag.filter(|etag| is_header_value(etag)).map(str::to_owned);
        let asked = Some(GetRange::Bounded(range.clone()));
        let options = GetOptions { range: asked, if_match, ..GetOptions::default() };
        let path = self.reach(key).await?;
        let answer = self.patiently("GET", self.store.get_opts(&path, options)).await?;
        let is_of_other =
            matches!((etag, &answer.meta.e_tag), (Some(asked), Some(given)) if bare(asked) != bare(given));
        if is_of_other || answer.meta.size != size_bytes || answer.range != range {
            return Err(GatewayError::PreconditionFailed);
        }
        Ok((found(&answer.meta, &answer.attributes), answer.into_stream()))
    }

    async fn check(&self, key: &str, only: &StoreCondition) -> GatewayResult<()> {
        let current = match self.head(key).await {
            Ok(found) => Some(found),
            Err(GatewayError::NoSuchKey) => None,
            Err(error) => return Err(error),
        };
        let is_met = match only {
            StoreCondition::Always => true,
            StoreCondition::IfAbsent => current.is_none(),
            StoreCondition::IfMatch(etag) => {
                current.and_then(|found| found.etag).is_some_and(|found| bare(&found) == bare(etag))
            }
        };
        if is_met { Ok(()) } else { Err(GatewayError::PreconditionFailed) }
    }

    /// Has the store copy an object itself, with its headers, if it may go on as for [`put`](Self::put). Returns the
    /// ETag of the copy.
    pub(crate) async fn copy(
        &self,
        from: &str,
        to: &str,
        may_go_on: &MayGoOn<'_>,
    ) -> GatewayResult<Option<String>> {
        self.copy_object(from, to, may_go_on).await?;
        // The copy's answer is not handed on.
        Ok(self.head(to).await?.etag)
    }

    /// Whether the store may take a copy of an object of this size.
    pub(crate) fn can_copy(&self, size_bytes: u64) -> bool {
        self.kind == BackendKind::Directory
            || size_bytes <= MAX_COPY_BYTES
            || is_planted(PlantedBug::RefusalRetriedForEver)
    }

    async fn copy_object(&self, from: &str, to: &str, may_go_on: &MayGoOn<'_>) -> GatewayResult<()> {
        let (from, to) = (self.reach(from).await?, self.reach(to).await?);
        may_go_on()?;
        let options = CopyOptions::new().with_mode(CopyMode::Overwrite);
        let copied = async {
            if self.is_linked(&from, &to).await? {
                return Ok(());
            }
            self.store.copy_opts(&from, &to, options).await
        };
        self.patiently("CopyObject", late::sent(self.kind, copied)).await
    }

    /// The marker that [`mark`](Self::mark) has left here.
    pub(crate) async fn marker(&self) -> GatewayResult<Option<String>> {
        // One that hangs is not asked: the thread that does would not come back.
        if self.root.as_ref().is_some_and(|root| root.hangs()) {
            return Err(root::not_there());
        }
        let path = marker_path()?;
        let read = async {
            match self.store.get(&path).await {
                Ok(found) if found.meta.size > MAX_MARKER_BYTES => Ok(Some("no cluster's".to_owned())),
                Ok(found) => {
                    found.bytes().await.map(|text| Some(String::from_utf8_lossy(&text).into_owned()))
                }
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                // S3 says this of an object that does not exist, if the client may list only a part of the bucket.
                Err(object_store::Error::PermissionDenied { .. }) if self.kind == BackendKind::S3 => {
                    Ok(self.is_listed(&path).await?.then(|| "no cluster's".to_owned()))
                }
                Err(error) => Err(error),
            }
        };
        self.patiently("GET", read).await
    }

    /// Writes down which gateways the store belongs to, unless something stands there already.
    pub(crate) async fn mark(&self, text: &str) -> GatewayResult<()> {
        let path = marker_path()?;
        self.check_there().await?;
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let put = self.store.put_opts(&path, PutPayload::from(text.to_owned()), options);
        match self.patiently("PUT", async { put.await.map(drop) }).await {
            Err(GatewayError::PreconditionFailed) => Ok(()),
            // Another gateway may be doing the same just now.
            Err(error) => match self.marker().await {
                Ok(Some(there)) if there == text => Ok(()),
                _ => Err(error),
            },
            Ok(()) => Ok(()),
        }
    }

    /// It is no error when there is none. Nothing is begun once `may_go_on` says no. The directories above it stay: see
    /// [`clear_place`](Self::clear_place). Returns whether there was one, which S3 does not say: then it may have been.
    pub(crate) async fn delete(&self, key: &str, may_go_on: &MayGoOn<'_>) -> GatewayResult<bool> {
        let path = self.reach(key).await?;
        may_go_on()?;
        let deleted = self.patiently("DELETE", late::sent(self.kind, self.store.delete(&path))).await;
        match deleted.map_err(without_condition) {
            Err(GatewayError::NoSuchKey) if self.kind == BackendKind::S3 => {
                self.check_absent(&path).await.map(|()| true)
            }
            Err(GatewayError::NoSuchKey) => Ok(false),
            outcome => outcome.map(|()| true),
        }
    }

    /// Removes what keeps other objects of a directory from their names, after an object was deleted or could not be
    /// stored: the empty directories above it. The outermost `kept_folders` ones stay, since others may be about to use
    /// them. Files of interrupted writes go, too, where nobody else writes to the name now.
    pub(crate) async fn clear_place(
        &self,
        key: &str,
        kept_folders: usize,
        unfinished: UnfinishedFiles,
    ) -> GatewayResult<()> {
        if self.kind != BackendKind::Directory {
            return Ok(());
        }
        let path = self.locate(key)?;
        self.check_root(move |root| {
            root.check()?;
            links::check(root.path(), &path)?;
            if unfinished == UnfinishedFiles::Removed {
                links::remove_unfinished(root.path(), &path);
            }
            links::remove_empty_above(root.path(), &path, kept_folders);
            Ok(())
        })
        .await
    }

    /// Removes empty directories of an object's name, before its bytes are sent to a directory in which nobody else
    /// writes.
    ///
    /// # Errors
    /// `Refused` where a directory with something in it has its name, or a file is where its directory has to be:
    /// its bytes would be written in vain.
    pub(crate) async fn make_way(&self, key: &str) -> GatewayResult<()> {
        if self.kind != BackendKind::Directory {
            return Ok(());
        }
        let path = self.locate(key)?;
        self.check_root(move |root| {
            root.check()?;
            if links::walk(root.path(), &path)? == PathEnd::Folder {
                links::remove_empty_below(&root.path().join(path.as_ref()));
            }
            let text = match links::walk(root.path(), &path)? {
                PathEnd::Open => return Ok(()),
                PathEnd::FileAbove(_) => "PUT: the store has an object where a directory has to be",
                PathEnd::Folder => "PUT: the store has a directory of this name",
            };
            Err(GatewayError::Refused { refusal: StoreRefusal::Name, text: text.to_owned() })
        })
        .await
    }

    /// S3 says 204 of a deleted object that was not there. One that says 404 may mean the bucket, or something in front
    /// of the store says it. A listing tells, where the store lets us list.
    async fn check_absent(&self, path: &Path) -> GatewayResult<()> {
        let listed = async {
            match self.is_listed(path).await {
                Err(object_store::Error::PermissionDenied { .. }) => Ok(false),
                outcome => outcome,
            }
        };
        match self.patiently("LIST", listed).await? {
            false => Ok(()),
            true => Err(GatewayError::Store("DELETE: the store says 404, and lists the object".to_owned())),
        }
    }

    /// Objects in the folder of `prefix`, in the store's order. A directory has none.
    pub(crate) fn list(
        &self,
        prefix: &str,
    ) -> GatewayResult<BoxStream<'static, GatewayResult<(String, StoredInfo)>>> {
        let Some(folder) = self.folder_of(prefix)? else { return Ok(self.list_nothing()) };
        Ok(self.look_through(self.listed_from(folder, None)))
    }

    /// The same of an S3 store, from shortly before the first object that has its own name and the prefix. The others
    /// come [by themselves](Self::list_escaped).
    pub(crate) fn list_prefix(
        &self,
        prefix: &str,
        after: Option<&str>,
    ) -> GatewayResult<BoxStream<'static, GatewayResult<(String, StoredInfo)>>> {
        let Some(folder) = self.folder_of(prefix)? else { return Ok(self.list_nothing()) };
        let begin = names::offset_before(folder.as_ref(), last_segment(prefix));
        let after = after.and_then(|after| offset_of(folder.as_ref(), prefix, after)).max(begin);
        Ok(self.look_through(self.listed_from(folder, after)))
    }

    /// Objects of an S3 store in the prefix's folder whose own name can't be in a path, nor that of a folder there.
    /// They come before most others, or behind them, so where a listing begins at a prefix it does not have them. Those
    /// in the folder `passed` and before it are left out.
    pub(crate) fn list_escaped(
        &self,
        prefix: &str,
        passed: Option<&str>,
    ) -> GatewayResult<BoxStream<'static, GatewayResult<(String, StoredInfo)>>> {
        let Some(folder) = self.folder_of(prefix)? else { return Ok(self.list_nothing()) };
        let begin = names::offset_of_escaped(folder.as_ref())?;
        let offset = passed.and_then(|passed| names::offset_behind(folder.as_ref(), passed));
        let offset = Some(offset.unwrap_or_else(|| begin.clone()));
        // Parts of uploads come last of all in the outermost folder, and no key leads to them.
        let (is_outermost, parts) = (folder.is_none(), crate::staged::FOLDER);
        let is_one = move |entry: &object_store::Result<ObjectMeta>| {
            let is_behind = |meta: &ObjectMeta| {
                let location = meta.location.as_ref();
                !location.starts_with(begin.as_ref()) || (is_outermost && location.starts_with(parts))
            };
            std::future::ready(!entry.as_ref().is_ok_and(is_behind))
        };
        Ok(self.look_through(self.listed_from(folder, offset).take_while(is_one).boxed()))
    }

    /// Where all objects with this prefix are: in the folder `None`, if that is everything. `None` where no object can
    /// have the prefix, since the folder's name is too long for the store.
    fn folder_of(&self, prefix: &str) -> GatewayResult<Option<Option<Path>>> {
        match names::folder_of(prefix).strip_suffix('/').map(|folder| self.path(folder)) {
            None => Ok(Some(None)),
            Some(Ok(folder)) => Ok(Some(Some(folder))),
            Some(Err(GatewayError::KeyTooLong(_))) => Ok(None),
            Some(Err(error)) => Err(error),
        }
    }

    fn list_nothing(&self) -> BoxStream<'static, GatewayResult<(String, StoredInfo)>> {
        self.look_through(futures_util::stream::empty().boxed())
    }

    fn listed_from(
        &self,
        folder: Option<Path>,
        offset: Option<Path>,
    ) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let listed = match offset {
            Some(offset) => self.store.list_with_offset(folder.as_ref(), &offset),
            None => self.store.list(folder.as_ref()),
        };
        let Some((root, folder)) = self.root.clone().zip(folder) else { return listed };
        let (kind, mut is_first) = (self.kind, true);
        // An error ends the stream. Only where the folder itself is below a file is there nothing behind it.
        let mut is_nothing = move |entry: &object_store::Result<ObjectMeta>| {
            std::mem::take(&mut is_first)
                && entry.as_ref().is_err_and(|error| refusals::says_no_object(kind, "LIST", error))
                && matches!(links::walk(root.path(), &folder), Ok(PathEnd::FileAbove(_)))
        };
        listed.filter(move |entry| std::future::ready(!is_nothing(entry))).boxed()
    }

    /// What of a listing clients may see.
    fn look_through(
        &self,
        listed: BoxStream<'static, object_store::Result<ObjectMeta>>,
    ) -> BoxStream<'static, GatewayResult<(String, StoredInfo)>> {
        // A directory that was unmounted meanwhile has listed a part.
        let looked = |backend: StoreBackend| {
            futures_util::stream::once(async move { backend.check_there().await.err().map(Err) })
                .filter_map(std::future::ready)
        };
        let (before, later) = (looked(self.clone()), looked(self.clone()));
        let (backend, mut is_told) = (self.clone(), false);
        let listed = listed
            .filter_map(move |entry| {
                let entry = entry.map_err(|error| failed("LIST", error)).map(|meta| {
                    let key = key_of(&meta.location);
                    let is_reachable = backend.path(&key).is_ok_and(|path| path == meta.location)
                        && backend
                            .root
                            .as_ref()
                            .is_none_or(|root| links::check(root.path(), &meta.location).is_ok());
                    let is_own = is_own(meta.location.as_ref());
                    if !is_reachable && !is_own && !std::mem::replace(&mut is_told, true) {
                        // Others have put it there.
                        tracing::warn!(
                            "the store has objects behind links or under names that no key has here, and they stay hidden, for example {}",
                            meta.location.as_ref().replace(names::NO_KEY, "").escape_debug()
                        );
                    }
                    is_reachable.then(|| (key, found(&meta, &Attributes::default())))
                });
                std::future::ready(entry.transpose())
            });
        before.chain(listed).chain(later).boxed()
    }

    /// Whether no key leads to anything in the store.
    pub(crate) async fn is_empty(&self) -> GatewayResult<bool> {
        Ok(self.list("")?.next().await.transpose()?.is_none())
    }
}

/// Where a listing of a prefix's folder goes on after a key.
fn offset_of(folder: Option<&Path>, prefix: &str, after: &str) -> Option<Path> {
    match after.strip_prefix(names::folder_of(prefix)) {
        Some(rest) => names::offset_of(folder, rest),
        None => names::offset_of(None, after),
    }
}

/// What comes behind a prefix's folder.
fn last_segment(prefix: &str) -> &str {
    prefix.rsplit('/').next().unwrap_or_default()
}

/// Of an object that S3 is sent in parts.
fn part_bytes(size_bytes: u64) -> u64 {
    PART_BYTES.max(size_bytes.div_ceil(MAX_PARTS))
}

/// Whether the gateway itself has put it there, and no client knows it.
fn is_own(path: &str) -> bool {
    path == names::OWNERS
        || path.strip_prefix(crate::staged::FOLDER).is_some_and(|rest| rest.starts_with('/'))
}

fn marker_path() -> GatewayResult<Path> {
    Path::parse(names::OWNERS).map_err(|error| GatewayError::InvalidArgument(error.to_string()))
}

/// The error of a request that had no condition: none can have failed.
fn without_condition(error: GatewayError) -> GatewayError {
    match error {
        GatewayError::PreconditionFailed => GatewayError::Store(
            "the store says that a condition does not hold, and the request had none".to_owned(),
        ),
        other => other,
    }
}

/// The store's error, in our terms.
pub(crate) fn failed(request: &str, error: object_store::Error) -> GatewayError {
    match error {
        object_store::Error::NotFound { .. } => GatewayError::NoSuchKey,
        object_store::Error::Precondition { .. } | object_store::Error::AlreadyExists { .. } => {
            GatewayError::PreconditionFailed
        }
        object_store::Error::NotModified { .. } => GatewayError::NotModified,
        object_store::Error::NotImplemented { operation, implementer } => {
            // Which store it is, is not for clients.
            tracing::warn!("{request}: {implementer} can't do {operation}");
            GatewayError::NotImplemented("the store behind the bucket can't do what this needs".to_owned())
        }
        other => GatewayError::Store(format!("{request}: {}", said::text_of(&other))),
    }
}

#[cfg(test)]
mod tests;
