//! Copies. Between prefixes that are ours alone a copy is a second list of the same extents, however long the object.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::GatewayEngine;
use super::conditions::{EtagCondition, WriteConditions};
use super::elsewhere::check_shareable;
use super::read::ResolvedObject;
use super::shared::{check_headers, refuse_feature};
use super::slots::CommitFence;
use super::to_its_end::to_its_end;
use super::write::{PutRequest, WriteReceipt, check_target};
use crate::digests::ChecksumKind;
use crate::errors::{GatewayError, GatewayResult};
use crate::meta::ObjectName;
use crate::model::{ChecksumCoverage, ObjectHeaders, ObjectRecord, now_ms};
use crate::store::{BackendKind, RequestEffect, bare};

/// A copy's source and target.
#[derive(Clone, Debug, Default)]
pub struct CopyRequest {
    pub from: (String, String),
    pub to: (String, String),
    /// In place of the source's.
    pub headers: Option<ObjectHeaders>,
    pub tags: Option<Vec<(String, String)>>,
    /// Of the source.
    pub source: SourceConditions,
    /// Of what is at the target.
    pub target: WriteConditions,
    /// The checksum that the copy is to have, if not the source's.
    pub checksum: Option<ChecksumKind>,
}

/// The conditions on a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceConditions {
    pub if_match: Option<EtagCondition>,
    pub if_none_match: Option<EtagCondition>,
    pub modified_since_ms: Option<i64>,
    pub unmodified_since_ms: Option<i64>,
}

impl SourceConditions {
    pub(super) fn check(&self, record: &ObjectRecord) -> GatewayResult<()> {
        let matches = |wanted: &EtagCondition| wanted.holds_for(&record.etag);
        // An ETag that matches outweighs the time, and one that does not decides.
        let is_match = self.if_match.as_ref().map(matches);
        let is_none_match = self.if_none_match.as_ref().map(|wanted| !matches(wanted));
        // S3's times have whole seconds.
        let modified_s = record.modified_ms.div_euclid(1000);
        let modified_since =
            self.modified_since_ms.map(|modified_since| modified_s > modified_since.div_euclid(1000));
        let not_since =
            self.unmodified_since_ms.map(|unmodified_since| modified_s <= unmodified_since.div_euclid(1000));
        let is_met =
            is_match.or(not_since).unwrap_or(true) && is_none_match.or(modified_since).unwrap_or(true);
        if is_met { Ok(()) } else { Err(GatewayError::PreconditionFailed) }
    }
}

/// No upload has this name.
const NO_UPLOAD: &str = "";

impl GatewayEngine {
    /// Copies an object, or gives one other headers in its place.
    ///
    /// # Errors
    /// `NoSuchKey` for the source, a condition that does not hold, or as for [`put`](Self::put).
    pub async fn copy(self: &Arc<Self>, request: CopyRequest) -> GatewayResult<WriteReceipt> {
        let (from, to) = (
            ObjectName::new(&request.from.0, &request.from.1),
            ObjectName::new(&request.to.0, &request.to.1),
        );
        let (source, target) = (self.bucket(&from.bucket)?, self.bucket(&to.bucket)?);
        target.backend.path(&to.key)?;
        request.headers.as_ref().map_or(Ok(()), ObjectHeaders::check)?;
        if from == to && request.headers.is_none() {
            return Err(GatewayError::InvalidRequest(
                "a copy onto itself has to change something: the metadata directive is COPY".to_owned(),
            ));
        }
        // It learns the headers of an object that only a listing told of.
        let resolved = self.resolve_source(&from.bucket, &from.key).await?;
        request.source.check(&resolved.record)?;
        // It is sent to the store under its new name, unless the store copies it itself, which nobody knows yet.
        target.backend.check_size(resolved.record.size_bytes)?;
        let is_together = self.are_together((&from.bucket, &from.key), (&to.bucket, &to.key));
        // Of an object of several parts, too, S3 computes it anew from all bytes.
        let has_checksum = request.checksum.is_none_or(|wanted| {
            resolved.record.checksums.get(wanted).is_some()
                && resolved.record.checksums.coverage != Some(ChecksumCoverage::Composite)
        });
        if !is_together || !has_checksum || !source.is_exclusive(&from.key) || !target.is_exclusive(&to.key) {
            return self.copy_bytes(request, resolved).await;
        }
        drop(resolved);
        let pass = self.to_write(&to.bucket, &[&to.key]).await?;
        let (version, is_directory) = (self.number(), target.backend.kind == BackendKind::Directory);
        let backend = target.backend.clone();
        let (object, fence) = (to.clone(), CommitFence::from_pass(&pass));
        let (is_shared, kind) = (self.setup.sharing.is_some(), target.backend.kind);
        let claim = self.claim_place(&target, &to).await?;
        let place = self.place_of(std::slice::from_ref(&to)).await?;
        let stored = self
            .committer
            .commit(Vec::new(), move |change| {
                fence.check(change)?;
                let mut record = change.object(&from)?.ok_or(GatewayError::NoSuchKey)?;
                request.source.check(&record)?;
                // It may have been overwritten since.
                backend.check_size(record.size_bytes)?;
                check_target(change, &object, &request.target, is_directory)?;
                record.version = version;
                record.modified_ms = now_ms();
                if let Some(headers) = request.headers {
                    record.headers = headers;
                }
                if let Some(tags) = request.tags {
                    record.tags = tags;
                }
                // Also what it has from its source.
                if is_shared {
                    check_shareable(kind, &record.headers, &record.tags)?;
                }
                change.set_object(&object, Some(&record))?;
                // An object of parts without a maker is one that an earlier version completed.
                if !record.part_sizes_bytes.is_empty() {
                    change.set_maker(&object, NO_UPLOAD, version)?;
                }
                change.mark_pending(&object)?;
                Ok(WriteReceipt {
                    etag: record.etag.clone(),
                    checksums: record.checksums.clone(),
                    modified_ms: record.modified_ms,
                })
            })
            .await?;
        drop((place, claim));
        self.counters.accepted_objects.fetch_add(1, Ordering::Relaxed);
        self.settled(&target, &to).await?;
        pass.check()?;
        Ok(stored)
    }

    /// A copy from or to where others write: by the store itself if it can, else byte by byte.
    async fn copy_bytes(
        self: &Arc<Self>,
        request: CopyRequest,
        resolved: ResolvedObject,
    ) -> GatewayResult<WriteReceipt> {
        let (from, to) = (&request.from, &request.to);
        let (source, target) = (self.bucket(&from.0)?, self.bucket(&to.0)?);
        let record = resolved.record.clone();
        let headers = request.headers.clone().unwrap_or_else(|| record.headers.clone());
        if !target.is_exclusive(&to.1) {
            check_headers(&target.backend, &headers)?;
            if request.tags.as_ref().is_some_and(|tags| !tags.is_empty()) {
                return Err(refuse_feature("tags"));
            }
            let is_plain = request.headers.is_none()
                && request.target == WriteConditions::default()
                && request.checksum.is_none()
                && self.are_together((&from.0, &from.1), (&to.0, &to.1));
            if from.0 == to.0 && !source.is_exclusive(&from.1) && is_plain {
                let pass = self.to_write(&to.0, &[&to.1]).await?;
                let (engine, from, to) = (Arc::clone(self), from.1.clone(), to.1.clone());
                let (backend, turn) = (target.backend.clone(), target.backend.turn(&to).await);
                let claim = self.claim_shared(&target, &to)?;
                let following = backend.follow_within(&to, RequestEffect::Copy, self.setup.patience).await?;
                let target = Arc::clone(&target);
                let copy = async move {
                    let _open = target.enter().await?;
                    let etag = following.watch(backend.copy(&from, &to, &|| pass.check())).await;
                    engine.forget_found(&target, &to);
                    drop((following, claim, turn));
                    pass.check()?;
                    etag
                };
                match to_its_end(copy).await {
                    // If the store can't copy an object itself, it gets the bytes: a directory has no hard links to
                    // another file system, for example.
                    Err(GatewayError::Refused { .. }) => {}
                    outcome => {
                        let etag = outcome?.map_or(record.etag, |etag| bare(&etag).to_owned());
                        return Ok(WriteReceipt { etag, checksums: record.checksums, modified_ms: now_ms() });
                    }
                }
            }
        }
        let size_bytes = record.size_bytes;
        let put = PutRequest {
            size_bytes,
            headers,
            tags: request.tags.clone().unwrap_or(match target.is_exclusive(&to.1) {
                true => record.tags.clone(),
                false => Vec::new(),
            }),
            conditions: request.target.clone(),
            algorithms: request.checksum.into_iter().collect(),
        };
        let body = self.body(&from.0, &from.1, resolved, 0..size_bytes);
        self.put(&to.0, &to.1, put, body, Box::new(|_, _| Ok(()))).await
    }
}
