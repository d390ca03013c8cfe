//! A store in a directory: real files by `object_store`, outside of every simulated disk. It has no headers, a copy
//! is a second name of a file, and
//! some directories take two names for one.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, StreamExt as _};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    UploadPart,
};
use underlay_gateway::store::{BackendKind, NameDirectory};

use super::reached::joined;
use super::{BucketObjects, SimulatedStores, failure};

/// See the module.
#[derive(Clone)]
pub(super) struct InDirectory {
    stores: SimulatedStores,
    files: Arc<LocalFileSystem>,
    gateway: usize,
    lives: Arc<AtomicBool>,
    folds: bool,
}

impl fmt::Debug for InDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the simulated directory")
    }
}

impl fmt::Display for InDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Outside of a runtime `object_store` does everything at the first poll.
fn poll_once<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    work.now_or_never().unwrap_or_else(|| Err(failure("a file has to be waited for")))
}

/// The files of a directory, as the gateways open them.
///
/// # Errors
/// When it is not there.
pub(super) fn open_files(directory: &std::path::Path) -> Result<LocalFileSystem> {
    LocalFileSystem::new_with_prefix(directory)
}

/// Somebody else puts a file, or deletes one.
pub(super) fn change(files: &LocalFileSystem, key: &str, bytes: Option<Bytes>) -> Result<()> {
    let path = underlay_gateway::store::path_of(key, BackendKind::Directory)
        .map_err(|error| failure(&error.to_string()))?;
    match bytes {
        Some(bytes) => poll_once(files.put(&path, bytes.into())).map(drop),
        None => match poll_once(files.delete(&path)) {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            outcome => outcome,
        },
    }
}

/// All objects with their bytes.
pub(super) fn all(files: &LocalFileSystem) -> Result<Vec<(Path, ObjectMeta, Bytes)>> {
    let listed: Vec<Result<ObjectMeta>> = poll_once(files.list(None).collect::<Vec<_>>().map(Ok))?;
    let read = |meta: ObjectMeta| {
        let bytes = poll_once(async { files.get(&meta.location).await?.bytes().await })?;
        Ok((meta.location.clone(), meta, bytes))
    };
    listed.into_iter().map(|meta| read(meta?)).collect()
}

/// Files of a name that no listing shows, below a directory.
pub(super) fn unfinished(directory: &std::path::Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![directory.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_unfinished = name.split_once('#').is_some_and(|(_, digits)| {
                !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
            });
            if path.is_dir() {
                folders.push(path);
            } else if is_unfinished {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

impl InDirectory {
    pub(super) fn new(
        stores: SimulatedStores,
        files: Arc<LocalFileSystem>,
        gateway: usize,
        lives: Arc<AtomicBool>,
        folds: bool,
    ) -> InDirectory {
        InDirectory { stores, files, gateway, lives, folds }
    }

    /// The one file that all names are that this directory takes for it.
    fn own_name(&self, path: &Path) -> Path {
        match self.folds {
            true => Path::parse(path.as_ref().to_lowercase()).unwrap_or_else(|_| path.clone()),
            false => path.clone(),
        }
    }

    async fn ask<T: Send + 'static>(
        &self,
        label: String,
        changes: bool,
        work: impl FnOnce(&LocalFileSystem) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let files = Arc::clone(&self.files);
        let work = move |_: &mut BucketObjects, _| work(&files);
        self.stores.ask(("directory", self.gateway, &*self.lives), label, changes, work).await
    }
}

#[async_trait]
impl ObjectStore for InDirectory {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let path = self.own_name(location);
        let _held = self.stores.hold(self.gateway, payload.content_length() as u64);
        let label = format!("PUT {path} {} bytes", payload.content_length());
        self.ask(label, true, move |files| poll_once(files.put_opts(&path, payload, options))).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(DirectoryUpload {
            directory: self.clone(),
            path: self.own_name(location),
            parts: Vec::new(),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let path = self.own_name(location);
        let is_head = options.head;
        let label = format!("{} {path}", if is_head { "HEAD" } else { "GET" });
        let (found, bytes) = self
            .ask(label, false, move |files| {
                let found = poll_once(files.get_opts(&path, options))?;
                let (meta, range) = (found.meta.clone(), found.range.clone());
                let attributes = found.attributes.clone();
                let bytes = if is_head { Bytes::new() } else { poll_once(found.bytes())? };
                Ok(((meta, range, attributes), bytes))
            })
            .await?;
        let (meta, range, attributes) = found;
        let meta = ObjectMeta { location: location.clone(), ..meta };
        let payload = GetResultPayload::Stream(stream::iter([Ok(bytes)]).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions: Default::default() })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (path, ranges) = (self.own_name(location), ranges.to_vec());
        self.ask(format!("GET {path}"), false, move |files| poll_once(files.get_ranges(&path, &ranges))).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let directory = self.clone();
        locations
            .then(move |location| {
                let directory = directory.clone();
                async move {
                    let location = location?;
                    let path = directory.own_name(&location);
                    let label = format!("DELETE {path}");
                    directory.ask(label, true, move |files| poll_once(files.delete(&path))).await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (directory, prefix) = (self.clone(), prefix.cloned());
        let listing = async move {
            let listed = directory
                .ask("LIST".to_owned(), false, move |files| {
                    poll_once(files.list(prefix.as_ref()).collect::<Vec<_>>().map(Ok))
                })
                .await;
            stream::iter(listed.unwrap_or_else(|error| vec![Err(error)]))
        };
        listing.flatten_stream().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = prefix.cloned();
        self.ask("LIST".to_owned(), false, move |files| poll_once(files.list_with_delimiter(prefix.as_ref())))
            .await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (from, to) = (self.own_name(from), self.own_name(to));
        self.ask(format!("copy {from} to {to}"), true, move |files| {
            poll_once(files.copy_opts(&from, &to, options))
        })
        .await
    }
}

/// An object in parts: they are kept until all of them are there.
struct DirectoryUpload {
    directory: InDirectory,
    path: Path,
    parts: Vec<Bytes>,
}

impl fmt::Debug for DirectoryUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "parts of {}", self.path)
    }
}

#[async_trait]
impl MultipartUpload for DirectoryUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.parts.push(joined(&data));
        let (directory, length) = (self.directory.clone(), data.content_length() as u64);
        let guard = directory.stores.hold(directory.gateway, length);
        let label = format!("a part of {}", self.path);
        Box::pin(async move {
            let _held = guard;
            directory.ask(label, false, |_| Ok(())).await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let (path, parts) = (self.path.clone(), std::mem::take(&mut self.parts));
        let payload: PutPayload = parts.into_iter().collect();
        let label = format!("the end of {path}");
        self.directory
            .ask(label, true, move |files| poll_once(files.put_opts(&path, payload, PutOptions::default())))
            .await
    }

    async fn abort(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A directory in which names are tried, as one that folds case shows itself.
#[derive(Default)]
pub(crate) struct FoldingMedium(BTreeSet<String>);

impl NameDirectory for FoldingMedium {
    fn make(&mut self, name: &str) -> io::Result<()> {
        match self.0.insert(name.to_lowercase()) {
            true => Ok(()),
            false => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }

    fn names(&mut self) -> io::Result<Vec<OsString>> {
        Ok(self.0.iter().map(OsString::from).collect())
    }
}
