//! Multipart uploads. Parts are contents of the journal, which [go to the store](super::spill) where there are many, or
//! by reference ranges of other objects; completing one writes a list of extents.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use base16ct::lower::encode_string as hex;
use bytes::Bytes;
use futures_util::stream::BoxStream;

use super::completed::ListedPart;
use super::conditions::WriteConditions;
use super::copy::SourceConditions;
use super::elsewhere::{PeerAnswer, PeerQuestion, confused};
use super::pages::{UploadEntry, UploadListing, UploadSummary, UploadsRequest};
use super::parts::{
    CompletedPart, check_same, checksums_of_parts, is_splintered, joined, listed_parts, slice,
    whole_checksums,
};
use super::shared::{check_headers, refuse_feature};
use super::slots::CommitFence;
use super::write::{VerifyBody, WriteReceipt, WriteTarget, check_target, whole};
use super::{BucketState, GatewayEngine};
use crate::digests::{ChecksumKind, DigestResults, UploadChecksum, multipart_etag};
use crate::errors::{GatewayError, GatewayResult};
use crate::journal::WrittenContent;
use crate::meta::{Holder, ObjectName};
use crate::model::{ObjectChecksums, ObjectHeaders, ObjectRecord, PartRecord, UploadRecord, now_ms};
use crate::ownership::OwnerShare;
use crate::store::{BackendKind, bare};

/// S3's limits.
pub const MAX_PARTS: u16 = 10_000;
/// S3's limit for one part, sent or copied.
pub const MAX_PART_BYTES: u64 = 5 << 30;
const MAX_OBJECT_BYTES: u64 = 5 << 40;
/// So many uploads are looked at in one go; many may be of one group.
const UPLOADS_A_STEP: usize = 1_000;
/// An object's list of extents is read and written whole, and a part has one as a rule.
const MAX_EXTENTS: usize = 2 * MAX_PARTS as usize;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartSummary {
    pub number: u16,
    pub size_bytes: u64,
    pub etag: String,
    pub modified_ms: i64,
    pub checksums: ObjectChecksums,
}

/// The name of an upload. Those of a key are in the order in which they began, as S3 lists them.
fn upload_id(begun_ms: i64) -> GatewayResult<String> {
    // For uploads that began in the same millisecond.
    static BEGUN: AtomicU16 = AtomicU16::new(0);
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| GatewayError::local("no random numbers", error))?;
    let count = BEGUN.fetch_add(1, Ordering::Relaxed);
    Ok(format!("{:012x}{count:04x}{}", begun_ms.max(0), hex(&random)))
}

impl GatewayEngine {
    /// Begins an upload. Returns its name, which nobody can guess.
    ///
    /// # Errors
    /// When the bucket is not there, or the object could never be kept.
    pub async fn create_upload(
        &self,
        bucket: &str,
        key: &str,
        headers: ObjectHeaders,
        tags: Vec<(String, String)>,
        checksum: Option<UploadChecksum>,
    ) -> GatewayResult<String> {
        let state = self.bucket(bucket)?;
        state.backend.path(key)?;
        headers.check()?;
        self.check_keepable(&state, &headers, &tags)?;
        let pass = self.to_write(bucket, &[key]).await?;
        // Refused before the client sends any part: what the store can't keep where others write, and a path through a
        // link. The completion looks again, also for names that are in the way.
        if !state.is_exclusive(key) {
            check_headers(&state.backend, &headers)?;
            if !tags.is_empty() {
                return Err(refuse_feature("tags"));
            }
        }
        state.backend.look_at_place(key).await?;
        self.uploads.check_begin(bucket)?;
        let begun_ms = now_ms();
        let (upload, name) = (upload_id(begun_ms)?, ObjectName::new(bucket, key));
        let record = UploadRecord {
            begun_ms,
            headers,
            tags,
            checksum_algorithm: checksum.map(|checksum| checksum.algorithm().name().to_owned()),
            coverage: checksum.map(UploadChecksum::coverage),
        };
        let (upload_id, fence) = (upload.clone(), CommitFence::from_pass(&pass));
        self.committer
            .commit(Vec::new(), move |change| {
                // The slot may have gone, and the bucket too, while this waited for its turn.
                fence.check(change)?;
                match change.bucket(&name.bucket)? {
                    None => Err(GatewayError::NoSuchBucket),
                    Some(_) => change.set_upload(&name, &upload_id, &record),
                }
            })
            .await?;
        // A new owner of the slot does not know this upload, so its name must not be handed out.
        pass.check()?;
        Ok(upload)
    }

    /// The parameters of an upload's begin.
    ///
    /// # Errors
    /// When there is none.
    pub fn upload(&self, bucket: &str, key: &str, upload: &str) -> GatewayResult<UploadSummary> {
        self.bucket(bucket)?;
        let pass = self.to_read(bucket, key)?;
        let record = self.metadata.view()?.upload(&ObjectName::new(bucket, key), upload)?;
        pass.check()?;
        Ok(summary(key, upload, record.ok_or(GatewayError::NoSuchUpload)?))
    }

    /// Takes a part, in the place of one of the same number.
    ///
    /// # Errors
    /// When there is no such upload, `verify` says so, or it can't be kept.
    #[allow(clippy::too_many_arguments, reason = "S3's own, all of them")]
    pub async fn upload_part(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        number: u16,
        size_bytes: u64,
        algorithms: &[ChecksumKind],
        body: BoxStream<'_, GatewayResult<Bytes>>,
        verify: VerifyBody,
    ) -> GatewayResult<WriteReceipt> {
        let pass = self.to_write(bucket, &[key]).await?;
        self.upload(bucket, key, upload)?;
        self.uploads.check_part()?;
        let spooled = self.spool(size_bytes, algorithms, body, WriteTarget::Part).await;
        let (written, sums) =
            spooled.inspect_err(|error| self.say_refused(&ObjectName::new(bucket, key), upload, error))?;
        verify(&sums.md5, &sums.checksums)?;
        let stored = self
            .keep_part((bucket, key), upload, number, written, sums, CommitFence::from_pass(&pass))
            .await?;
        pass.check()?;
        Ok(stored)
    }

    async fn keep_part(
        &self,
        (bucket, key): (&str, &str),
        upload: &str,
        number: u16,
        written: Option<WrittenContent>,
        sums: DigestResults,
        fence: CommitFence,
    ) -> GatewayResult<WriteReceipt> {
        let part = PartRecord {
            size_bytes: written.as_ref().map_or(0, WrittenContent::size_bytes),
            etag: hex(&sums.md5),
            modified_ms: now_ms(),
            extents: whole(written.as_ref()),
            checksums: sums.checksums,
        };
        let stored = WriteReceipt {
            etag: part.etag.clone(),
            checksums: part.checksums.clone(),
            modified_ms: part.modified_ms,
        };
        let (name, upload) = (ObjectName::new(bucket, key), upload.to_owned());
        let holder = Holder { name, upload, number };
        let content =
            written.as_ref().map(|written| (written.content(), written.size_bytes(), written.place()));
        self.committer
            .commit(written.into_iter().collect(), move |change| {
                fence.check(change)?;
                change.upload(&holder.name, &holder.upload)?.ok_or(GatewayError::NoSuchUpload)?;
                if let Some((content, size_bytes, place)) = content {
                    change.add_content(content, size_bytes, place)?;
                }
                change.take_part(&holder, &part)
            })
            .await?;
        Ok(stored)
    }

    /// Takes a range of an object as a part: by reference if the object's prefix is ours alone and the range not in too
    /// many pieces.
    ///
    /// # Errors
    /// When there is no such upload or object, or the range is not within it.
    #[allow(clippy::too_many_arguments, reason = "S3's own, all of them")]
    pub async fn upload_part_copy(
        self: &Arc<Self>,
        bucket: &str,
        key: &str,
        upload: &str,
        number: u16,
        from: (&str, &str),
        conditions: SourceConditions,
        range: Option<Range<u64>>,
    ) -> GatewayResult<WriteReceipt> {
        let pass = self.to_write(bucket, &[key]).await?;
        self.upload(bucket, key, upload)?;
        self.uploads.check_part()?;
        let source = self.bucket(from.0)?;
        let resolved = self.resolve_source(from.0, from.1).await?;
        conditions.check(&resolved.record)?;
        let size = resolved.record.size_bytes;
        let whole = range.is_none();
        let range = range.unwrap_or(0..size);
        if range.end > size || (range.is_empty() && size > 0) {
            return Err(GatewayError::InvalidArgument(format!(
                "the range is not within the source, which has {size} bytes"
            )));
        }
        check_copied_part(&range)?;
        let is_together = self.are_together((bucket, key), from);
        if !is_together || !source.is_exclusive(from.1) || is_splintered(&resolved.record.extents, &range) {
            let length = range.end - range.start;
            let body = self.body(from.0, from.1, resolved, range);
            let spooled = self.spool(length, &[], body, WriteTarget::Part).await;
            let (written, sums) = spooled
                .inspect_err(|error| self.say_refused(&ObjectName::new(bucket, key), upload, error))?;
            let fence = CommitFence::from_pass(&pass);
            let stored = self.keep_part((bucket, key), upload, number, written, sums, fence).await?;
            return pass.check().map(|()| stored);
        }
        drop(resolved);
        let (name, from, upload) =
            (ObjectName::new(bucket, key), ObjectName::new(from.0, from.1), upload.to_owned());
        let holder = Holder { name, upload, number };
        let (life, fence) = (self.life, CommitFence::from_pass(&pass));
        let copied = self
            .committer
            .commit(Vec::new(), move |change| {
                fence.check(change)?;
                change.upload(&holder.name, &holder.upload)?.ok_or(GatewayError::NoSuchUpload)?;
                let source = change.object(&from)?.ok_or(GatewayError::NoSuchKey)?;
                conditions.check(&source)?;
                // It may have been overwritten since: then the whole is the new one's.
                let range = if whole { 0..source.size_bytes } else { range };
                if range.end > source.size_bytes {
                    return Err(GatewayError::PreconditionFailed);
                }
                check_copied_part(&range)?;
                // The MD5 of the bytes would need the bytes. Its substitute differs whenever they differ, also in a
                // copy of the local directory that gives the same versions to other objects.
                let text = format!("{life:016x}:{}:{}:{}", source.version, range.start, range.end);
                let mut digests = crate::digests::DigestSet::new(&[])?;
                digests.update(text.as_bytes())?;
                let part = PartRecord {
                    size_bytes: range.end - range.start,
                    etag: hex(&digests.finish()?.md5),
                    modified_ms: now_ms(),
                    extents: slice(&source.extents, &range),
                    checksums: ObjectChecksums::default(),
                };
                change.take_part(&holder, &part)?;
                Ok(WriteReceipt {
                    etag: part.etag,
                    checksums: ObjectChecksums::default(),
                    modified_ms: part.modified_ms,
                })
            })
            .await?;
        pass.check()?;
        Ok(copied)
    }

    /// Makes an object of the listed parts.
    ///
    /// # Errors
    /// When a part is missing, too small or another one, the order is wrong, the object's checksum is not `expected`,
    /// or as for [`put`](Self::put).
    #[allow(clippy::too_many_arguments, reason = "S3's own, all of them")]
    pub async fn complete_upload(
        self: &Arc<Self>,
        bucket: &str,
        key: &str,
        upload: &str,
        parts: Vec<CompletedPart>,
        conditions: WriteConditions,
        expected: ObjectChecksums,
        size_bytes: Option<u64>,
    ) -> GatewayResult<WriteReceipt> {
        let state = self.bucket(bucket)?;
        let pass = self.to_write(bucket, &[key]).await?;
        let name = ObjectName::new(bucket, key);
        let view = self.metadata.view()?;
        let Some(begun) = view.upload(&name, upload)? else {
            drop(view);
            if state.is_exclusive(key) {
                return self.completed_here(&state, &name, upload, &parts).await;
            }
            return self.completed_lately(&state, key, upload, &parts).await;
        };
        let found = listed_parts(&view, upload, &parts)?;
        drop(view);
        let size: u64 = found.iter().map(|(_, part)| part.size_bytes).sum();
        if size > MAX_OBJECT_BYTES {
            return Err(GatewayError::TooLarge("an object has at most 5 TiB".to_owned()));
        }
        state.backend.check_size(size)?;
        if size_bytes.is_some_and(|wanted| wanted != size) {
            return Err(GatewayError::InvalidRequest(format!(
                "the parts have {size} bytes, and the request says otherwise"
            )));
        }
        let checksums = whole_checksums(&begun, &found, &expected)?;
        let part_checksums = checksums_of_parts(&begun, &found);
        let record = ObjectRecord {
            version: self.number(),
            size_bytes: size,
            etag: multipart_etag(found.iter().map(|(_, part)| part.etag.as_str()))?,
            modified_ms: now_ms(),
            extents: joined(found.iter().flat_map(|(_, part)| part.extents.iter().copied())),
            headers: begun.headers,
            tags: begun.tags,
            checksums,
            part_sizes_bytes: found.iter().map(|(_, part)| part.size_bytes).collect(),
            part_checksums,
            only_listed: false,
        };
        if record.extents.len() > MAX_EXTENTS {
            return Err(GatewayError::InvalidArgument(format!(
                "the object would consist of {} pieces, copied from as many places, and may of {MAX_EXTENTS}: upload its parts anew",
                record.extents.len()
            )));
        }
        let stored = WriteReceipt {
            etag: record.etag.clone(),
            checksums: record.checksums.clone(),
            modified_ms: record.modified_ms,
        };
        if !state.is_exclusive(key) {
            let listed = ListedPart { upload: upload.to_owned(), parts, found };
            return self.complete_shared(state, name, listed, (record, stored), &conditions, pass).await;
        }
        let is_directory = state.backend.kind == BackendKind::Directory;
        let (at, made_by, fence) = (name.clone(), upload.to_owned(), CommitFence::from_pass(&pass));
        let claim = self.claim_place(&state, &name).await?;
        let place = self.place_of(std::slice::from_ref(&name)).await?;
        let outcome = self
            .committer
            .commit(Vec::new(), move |change| {
                fence.check(change)?;
                change.upload(&at, &made_by)?.ok_or(GatewayError::NoSuchUpload)?;
                for (number, part) in &found {
                    check_same(*number, change.part(&made_by, *number)?.as_ref(), part)?;
                }
                check_target(change, &at, &conditions, is_directory)?;
                change.set_object(&at, Some(&record))?;
                change.set_maker(&at, &made_by, record.version)?;
                change.remove_upload(&at, &made_by)?;
                change.mark_pending(&at)
            })
            .await;
        drop((place, claim));
        if outcome == Err(GatewayError::NoSuchUpload) {
            // A client that asked twice at once gets the first request's answer.
            return self.completed_here(&state, &name, upload, &parts).await;
        }
        outcome?;
        self.counters.accepted_objects.fetch_add(1, Ordering::Relaxed);
        self.settled(&state, &name).await?;
        pass.check()?;
        Ok(stored)
    }

    /// The answer to a client that asks again.
    async fn completed_here(
        &self,
        state: &BucketState,
        name: &ObjectName,
        upload: &str,
        parts: &[CompletedPart],
    ) -> GatewayResult<WriteReceipt> {
        let view = self.metadata.view()?;
        let maker = view.maker(name)?;
        let made = view.object(name)?.filter(|record| match &maker {
            // No upload has made a copy.
            Some((maker, version)) if *version == record.version => !maker.is_empty() && maker == upload,
            // Earlier versions did not note the maker: the ETag of the parts alone tells.
            _ => !record.part_sizes_bytes.is_empty(),
        });
        drop(view);
        let stored = completed_before(made, parts)?;
        self.settled(state, name).await?;
        Ok(stored)
    }

    /// Gives an upload up with all its parts.
    ///
    /// # Errors
    /// When there is none.
    pub async fn abort_upload(&self, bucket: &str, key: &str, upload: &str) -> GatewayResult<()> {
        self.bucket(bucket)?;
        let pass = self.to_delete(bucket, &[key]).await?;
        let (name, begun_as, fence) =
            (ObjectName::new(bucket, key), upload.to_owned(), CommitFence::from_pass(&pass));
        self.committer
            .commit(Vec::new(), move |change| {
                fence.check(change)?;
                change.upload(&name, &begun_as)?.ok_or(GatewayError::NoSuchUpload)?;
                change.remove_upload(&name, &begun_as).map(drop)
            })
            .await?;
        pass.check()
    }

    /// Parts that are there, in order, behind one of them.
    ///
    /// # Errors
    /// When there is no such upload.
    pub fn list_parts(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        after: u16,
        most: usize,
    ) -> GatewayResult<(Vec<PartSummary>, bool)> {
        self.upload(bucket, key, upload)?;
        let mut parts: Vec<PartSummary> = self
            .metadata
            .view()?
            .parts(upload, after, most + 1)?
            .into_iter()
            .map(|(number, part)| PartSummary {
                number,
                size_bytes: part.size_bytes,
                etag: part.etag,
                modified_ms: part.modified_ms,
                checksums: part.checksums,
            })
            .collect();
        let is_truncated = parts.len() > most;
        parts.truncate(most);
        Ok((parts, is_truncated))
    }

    /// Uploads of keys with a prefix, behind a key and one of its uploads.
    ///
    /// # Errors
    /// When the bucket is not there.
    pub async fn list_uploads(
        &self,
        bucket: &str,
        prefix: &str,
        after: Option<(&str, Option<&str>)>,
        most: usize,
    ) -> GatewayResult<(Vec<UploadSummary>, bool)> {
        let Some(shares) = self.shares(bucket, prefix)? else {
            return self.uploads_in_slots(bucket, prefix, after, most, None);
        };
        let (mut uploads, mut is_truncated) = (Vec::new(), false);
        for OwnerShare { owner, slots } in shares {
            let (theirs, are_truncated) = match owner {
                None => self.uploads_in_slots(bucket, prefix, after, most, Some(&slots))?,
                Some(owner) => {
                    let question = PeerQuestion::ListUploads {
                        bucket: bucket.to_owned(),
                        prefix: prefix.to_owned(),
                        after: after.map(|(key, upload)| (key.to_owned(), upload.map(str::to_owned))),
                        most: most as u64,
                        slots,
                    };
                    match self.ask(&owner, &question).await? {
                        PeerAnswer::Uploads(uploads, is_truncated) => (uploads, is_truncated),
                        _ => return Err(confused()),
                    }
                }
            };
            uploads.extend(theirs);
            is_truncated |= are_truncated;
        }
        uploads.sort_by(|a, b| (&a.key, &a.upload).cmp(&(&b.key, &b.upload)));
        is_truncated |= uploads.len() > most;
        uploads.truncate(most);
        Ok((uploads, is_truncated))
    }

    /// The same, grouped: the uploads of all keys that have the delimiter at the same place behind the prefix are one
    /// entry.
    ///
    /// # Errors
    /// When the bucket is not there.
    pub async fn list_grouped_uploads(
        &self,
        bucket: &str,
        request: &UploadsRequest,
    ) -> GatewayResult<UploadListing> {
        if request.most == 0 {
            self.bucket(bucket)?;
            return Ok(UploadListing::default());
        }
        let mut entries: Vec<UploadEntry> = Vec::new();
        let (mut after, mut after_upload) = (request.after.clone(), request.after_upload.clone());
        loop {
            let from = after.as_deref().map(|key| (key, after_upload.as_deref()));
            let (uploads, has_more) =
                self.list_uploads(bucket, &request.prefix, from, request.most.max(UPLOADS_A_STEP)).await?;
            if let Some(last) = uploads.last() {
                (after, after_upload) = (Some(last.key.clone()), Some(last.upload.clone()));
            }
            let is_over = !has_more || uploads.is_empty();
            for upload in uploads {
                match request.group_of(&upload.key) {
                    None => entries.push(UploadEntry::Upload(upload)),
                    // The page before ended with it.
                    Some(group) if request.after.as_deref() == Some(group) => {}
                    Some(group) => {
                        let entry = UploadEntry::Prefix(group.to_owned());
                        if entries.last() != Some(&entry) {
                            entries.push(entry);
                        }
                    }
                }
                // One more tells whether there are more.
                if entries.len() > request.most {
                    entries.truncate(request.most);
                    return Ok(UploadListing { entries, is_truncated: true });
                }
            }
            if is_over {
                return Ok(UploadListing { entries, is_truncated: false });
            }
        }
    }

    /// Those in slots that are this gateway's; all of them without.
    pub(super) fn uploads_in_slots(
        &self,
        bucket: &str,
        prefix: &str,
        after: Option<(&str, Option<&str>)>,
        most: usize,
        slots: Option<&[(u16, u64)]>,
    ) -> GatewayResult<(Vec<UploadSummary>, bool)> {
        self.bucket(bucket)?;
        let pass = self.to_read_slots(slots.unwrap_or_default())?;
        let wanted: Option<HashSet<u16>> = slots.map(|slots| slots.iter().map(|(slot, _)| *slot).collect());
        let start = match after {
            Some((key, Some(upload))) => crate::meta::upload_key(&ObjectName::new(bucket, key), upload),
            // Behind all uploads of the key.
            Some((key, None)) => crate::meta::upload_key(&ObjectName::new(bucket, key), "\u{7f}"),
            None => ObjectName::new(bucket, prefix).to_bytes(),
        };
        let mut uploads = Vec::new();
        self.metadata.view()?.uploads(bucket, &start, |name, upload, record| {
            let is_wanted =
                wanted.as_ref().is_none_or(|wanted| wanted.contains(&self.slot_of_key(bucket, &name.key)));
            if is_wanted && name.key.starts_with(prefix) {
                uploads.push(summary(&name.key, &upload, record));
            }
            Ok(uploads.len() <= most)
        })?;
        pass.check()?;
        let is_truncated = uploads.len() > most;
        uploads.truncate(most);
        Ok((uploads, is_truncated))
    }
}

/// A client whose answer was lost asks again, for the object that its upload has made. It lists the same parts.
fn completed_before(record: Option<ObjectRecord>, parts: &[CompletedPart]) -> GatewayResult<WriteReceipt> {
    let record = record.filter(|_| !parts.is_empty()).ok_or(GatewayError::NoSuchUpload)?;
    // An ETag that no MD5 can be is one of another upload.
    match multipart_etag(parts.iter().map(|part| bare(&part.etag))) {
        Ok(etag) if etag == record.etag => {
            Ok(WriteReceipt { etag, checksums: record.checksums, modified_ms: record.modified_ms })
        }
        _ => Err(GatewayError::NoSuchUpload),
    }
}

fn summary(key: &str, upload: &str, record: UploadRecord) -> UploadSummary {
    UploadSummary {
        key: key.to_owned(),
        upload: upload.to_owned(),
        begun_ms: record.begun_ms,
        checksum_algorithm: record.checksum_algorithm,
        coverage: record.coverage,
    }
}

/// # Errors
/// When a part would be longer than S3's may be, also one that moves no bytes: the copy could not be repeated at S3.
fn check_copied_part(range: &Range<u64>) -> GatewayResult<()> {
    match range.end - range.start {
        ..=MAX_PART_BYTES => Ok(()),
        _ => Err(GatewayError::InvalidRequest(
            "a part has at most 5 GiB: copy the source in several parts".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::super::copy::CopyRequest;
    use super::*;
    use crate::config::{ConfigSecrets, GatewayConfig};
    use crate::serving::setup_of;

    /// An engine with an object that an upload of one part has made.
    struct CompletedGround {
        engine: Arc<GatewayEngine>,
        upload: String,
        part: WriteReceipt,
        _directory: tempfile::TempDir,
    }

    impl CompletedGround {
        async fn new() -> CompletedGround {
            let directory = tempfile::tempdir().unwrap();
            let text = format!(
                "listen = \"127.0.0.1:9000\"\n[local]\ndirectory = \"{0}/local\"\n\
                 [new_buckets]\nstore = \"{0}/store\"\n[key.test]\nid = \"TEST\"\nsecret_env = \"NONE\"\n\
                 allow = [{{ bucket = \"*\", may = [\"read\"] }}]\n",
                directory.path().display(),
            );
            let config = GatewayConfig::parse("gateway.toml", &text).unwrap();
            let engine =
                GatewayEngine::open(setup_of(&config, &ConfigSecrets::default(), None)).await.unwrap();
            engine.create_bucket("lake").await.unwrap();
            let upload =
                engine.create_upload("lake", "a", ObjectHeaders::default(), Vec::new(), None).await.unwrap();
            let body = futures_util::stream::iter([Ok(Bytes::from_static(b"part"))]).boxed();
            let verify: VerifyBody = Box::new(|_, _| Ok(()));
            let part = engine.upload_part("lake", "a", &upload, 1, 4, &[], body, verify).await.unwrap();
            let ground = CompletedGround { engine, upload, part, _directory: directory };
            ground.complete(&ground.part.etag).await.unwrap();
            ground
        }

        async fn complete(&self, etag: &str) -> GatewayResult<WriteReceipt> {
            let (etag, checksums) = (etag.to_owned(), ObjectChecksums::default());
            let parts = vec![CompletedPart { number: 1, etag, checksums: checksums.clone() }];
            let conditions = WriteConditions::default();
            self.engine.complete_upload("lake", "a", &self.upload, parts, conditions, checksums, None).await
        }
    }

    /// The answer to a completion may be lost just when the gateway is replaced by this version, which alone notes who
    /// has made an object.
    #[tokio::test]
    async fn completion_repeated_after_upgrade_is_answered_by_etag() {
        let ground = CompletedGround::new().await;
        let first = ground.complete(&ground.part.etag).await.unwrap();
        let name = ObjectName::new("lake", "a");
        ground.engine.committer.commit(Vec::new(), move |change| change.forget_maker(&name)).await.unwrap();
        assert_eq!(ground.complete(&ground.part.etag).await.as_ref(), Ok(&first));
        assert_eq!(ground.complete(&"0".repeat(32)).await, Err(GatewayError::NoSuchUpload));
    }

    /// A copy has the parts and their ETag, as if an earlier version had completed it.
    #[tokio::test]
    async fn completion_repeated_onto_copy_is_no_success() {
        let ground = CompletedGround::new().await;
        let first = ground.complete(&ground.part.etag).await.unwrap();
        for (from, to) in [("a", "b"), ("b", "a")] {
            let named = |key: &str| ("lake".to_owned(), key.to_owned());
            let request = CopyRequest { from: named(from), to: named(to), ..CopyRequest::default() };
            assert_eq!(ground.engine.copy(request).await.unwrap().etag, first.etag);
        }
        assert_eq!(ground.complete(&ground.part.etag).await, Err(GatewayError::NoSuchUpload));
        let unnamed = CompletedGround { upload: String::new(), ..ground };
        assert_eq!(unnamed.complete(&unnamed.part.etag).await, Err(GatewayError::NoSuchUpload));
    }
}
