//! Storing an object: by one request, or in parts, with memory for what is on its way.

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt as _};
use object_store::path::Path;
use object_store::{
    MultipartUpload, ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload, UpdateVersion,
};
use underlay_sync::planted::{PlantedBug, is_planted};

use super::attributes::{self, is_header_value};
use super::unfinished::UnfinishedUpload;
use super::{
    BackendKind, MayGoOn, PART_BYTES, PlaceFinding, STORE_TIMEOUT, StoreBackend, StoreCondition, late,
    refusals, without_condition,
};
use crate::errors::{GatewayError, GatewayResult, StoreRefusal};
use crate::memory::MemoryHold;
use crate::model::ObjectHeaders;

/// Parts of one object that are in flight at the same time.
const PARTS_AT_ONCE: usize = 3;

impl StoreBackend {
    /// Stores an object of a known size. The old object stays until the new one is whole. No request begins once
    /// `may_go_on` says no: the name may be another gateway's by then. Returns the store's ETag.
    pub(crate) async fn put(
        &self,
        key: &str,
        headers: &ObjectHeaders,
        size_bytes: u64,
        only: &StoreCondition,
        body: BoxStream<'_, GatewayResult<Bytes>>,
        may_go_on: &MayGoOn<'_>,
    ) -> GatewayResult<Option<String>> {
        let put = self.put_object(key, headers, size_bytes, only, body, may_go_on).await;
        // A directory is no object that a condition could be about.
        if self.kind == BackendKind::Directory
            && *only == StoreCondition::IfAbsent
            && put == Err(GatewayError::PreconditionFailed)
            && matches!(self.look_at_place(key).await, Ok(PlaceFinding::Folder(_)))
        {
            let text = "PUT: the store has a directory of this name".to_owned();
            return Err(GatewayError::Refused { refusal: StoreRefusal::Name, text });
        }
        put
    }

    async fn put_object(
        &self,
        key: &str,
        headers: &ObjectHeaders,
        size_bytes: u64,
        only: &StoreCondition,
        mut body: BoxStream<'_, GatewayResult<Bytes>>,
        may_go_on: &MayGoOn<'_>,
    ) -> GatewayResult<Option<String>> {
        let attributes = attributes::attributes(self.kind, headers);
        if size_bytes <= PART_BYTES {
            let _hold = match is_planted(PlantedBug::WholeObjectInMemory) {
                true => None,
                false => self.memory.hold(size_bytes).await,
            };
            let mut payload = Vec::new();
            while let Some(piece) = body.next().await {
                payload.push(piece?);
            }
            let path = self.reach(key).await?;
            let mode = match only {
                StoreCondition::Always => PutMode::Overwrite,
                StoreCondition::IfAbsent => PutMode::Create,
                // No store has such a one.
                StoreCondition::IfMatch(etag) if !is_header_value(etag) => {
                    return Err(GatewayError::PreconditionFailed);
                }
                StoreCondition::IfMatch(etag) => {
                    PutMode::Update(UpdateVersion { e_tag: Some(etag.clone()), version: None })
                }
            };
            may_go_on()?;
            let options = PutOptions { mode, attributes, ..PutOptions::default() };
            let payload: PutPayload = payload.into_iter().collect();
            let put = late::sent(self.kind, self.store.put_opts(&path, payload, options));
            let put = self.patiently("PUT", self.read_conflict(put, only, &path)).await;
            let put = match only {
                StoreCondition::Always => put.map_err(without_condition)?,
                StoreCondition::IfAbsent | StoreCondition::IfMatch(_) => put?,
            };
            return Ok(put.e_tag);
        }
        // Parts that all of the memory has no room for would be gathered all the same.
        self.check_size(size_bytes)?;
        if *only != StoreCondition::Always {
            // `object_store` can't make its completion conditional; `head` before it is the best there is.
            self.check(key, only).await?;
        }
        let path = self.reach(key).await?;
        may_go_on()?;
        let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
        let upload =
            self.patiently("CreateMultipartUpload", self.store.put_multipart_opts(&path, options)).await?;
        let mut unfinished = UnfinishedUpload::new(upload);
        match self.put_parts(unfinished.upload(), size_bytes, body, may_go_on).await {
            Ok(etag) => {
                unfinished.finished();
                Ok(etag)
            }
            Err(error) => {
                unfinished.abort().await;
                Err(error)
            }
        }
    }

    /// Some stores answer 409 where an object is there that must not be, and S3 where one is just coming. A look tells
    /// these apart.
    async fn read_conflict<T>(
        &self,
        put: impl Future<Output = object_store::Result<T>>,
        only: &StoreCondition,
        path: &Path,
    ) -> object_store::Result<T> {
        match put.await {
            Err(error)
                if *only == StoreCondition::IfAbsent
                    && refusals::is_conflict(&error)
                    && self.store.head(path).await.is_ok() =>
            {
                Err(object_store::Error::Precondition { path: path.to_string(), source: Box::new(error) })
            }
            outcome => outcome,
        }
    }

    async fn put_parts(
        &self,
        upload: &mut dyn MultipartUpload,
        size_bytes: u64,
        mut body: BoxStream<'_, GatewayResult<Bytes>>,
        may_go_on: &MayGoOn<'_>,
    ) -> GatewayResult<Option<String>> {
        let part_bytes = self.bytes_a_part(size_bytes);
        let mut under_way = futures_util::stream::FuturesUnordered::new();
        // Received bytes that belong to the next part.
        let (mut rest, mut left) = (Bytes::new(), size_bytes);
        while left > 0 {
            let length = part_bytes.min(left);
            let hold = self.hold_for_part(length, &mut under_way).await?;
            let (mut pieces, mut gathered) = (Vec::new(), 0);
            while gathered < length {
                if rest.is_empty() {
                    let Some(piece) = body.next().await else { break };
                    rest = piece?;
                }
                let piece = rest.split_to(rest.len().min((length - gathered) as usize));
                gathered += piece.len() as u64;
                pieces.push(piece);
            }
            if gathered < length {
                // The store would complete what it has; it is not what was promised.
                return Err(GatewayError::Store(
                    "an object's bytes ended early on their way to the store".to_owned(),
                ));
            }
            left -= length;
            may_go_on()?;
            let part = upload.put_part(pieces.into_iter().collect());
            under_way.push(async move {
                let outcome = part.await;
                drop(hold);
                outcome
            });
            if under_way.len() >= PARTS_AT_ONCE
                && let Some(done) = self.next_of(&mut under_way).await?
            {
                done?;
            }
        }
        while let Some(done) = self.next_of(&mut under_way).await? {
            done?;
        }
        // The last parts may have taken minutes.
        may_go_on()?;
        let completed =
            self.patiently("CompleteMultipartUpload", late::sent(self.kind, upload.complete())).await;
        Ok(completed.map_err(without_condition)?.e_tag)
    }

    /// Memory for the next part. This object's own share comes back as its parts get through, which have to be waited
    /// for first.
    async fn hold_for_part<F>(
        &self,
        bytes: u64,
        under_way: &mut futures_util::stream::FuturesUnordered<F>,
    ) -> GatewayResult<Option<MemoryHold>>
    where
        F: Future<Output = object_store::Result<()>>,
    {
        if is_planted(PlantedBug::WholeObjectInMemory) {
            return Ok(None);
        }
        loop {
            if let Some(hold) = self.memory.try_hold(bytes) {
                return Ok(Some(hold));
            }
            match self.next_of(under_way).await? {
                Some(done) => done?,
                // This request holds no memory, so those that hold some never wait for it.
                None => return Ok(self.memory.hold(bytes).await),
            }
        }
    }

    async fn next_of<F>(
        &self,
        parts: &mut futures_util::stream::FuturesUnordered<F>,
    ) -> GatewayResult<Option<GatewayResult<()>>>
    where
        F: Future<Output = object_store::Result<()>>,
    {
        match tokio::time::timeout(STORE_TIMEOUT, parts.next()).await {
            Ok(next) => {
                Ok(next.map(|outcome| outcome.map_err(|error| self.failed_to_write("UploadPart", error))))
            }
            Err(_) => {
                Err(GatewayError::Store(format!("UploadPart: no answer for {} s", STORE_TIMEOUT.as_secs())))
            }
        }
    }
}
