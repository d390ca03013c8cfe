//! The end of an upload below a prefix that others write to: the store gets the object at once, and no record of ours
//! speaks of it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt as _;
use underlay_sync::Mutex;

use super::conditions::WriteConditions;
use super::parts::{CompletedPart, check_same, listed_parts};
use super::read::pieces;
use super::shared::{hide_unclear_verdict, only_of};
use super::to_its_end::to_its_end;
use super::write::WriteReceipt;
use super::{BucketState, GatewayEngine};
use crate::digests::multipart_etag;
use crate::errors::{GatewayError, GatewayResult};
use crate::meta::ObjectName;
use crate::model::{ObjectRecord, PartRecord};
use crate::ownership::WritePass;
use crate::store::{RequestEffect, StoreCondition, bare};

/// Bytes that remembered uploads may take, for clients that ask again, which they do within minutes.
const MAX_BYTES: usize = 4 << 20;
/// One takes so much besides its texts.
const UPLOAD_BYTES: usize = 512;

/// Uploads that became objects lately below prefixes that others write to, whose objects no record of ours speaks of.
/// All prefixes together have room for so many bytes: the oldest makes room for what comes.
#[derive(Debug, Default)]
pub(super) struct CompletedUploads(Mutex<RememberedUploads>);

#[derive(Debug, Default)]
struct RememberedUploads {
    uploads: HashMap<Arc<str>, CompletedUpload>,
    /// By age.
    ids: VecDeque<Arc<str>>,
    bytes: usize,
}

/// An upload that has become an object: the store's ETag of it says whether it is that still.
#[derive(Clone, Debug)]
struct CompletedUpload {
    name: ObjectName,
    /// The ETag that its parts make.
    made_of: String,
    stored: WriteReceipt,
}

impl CompletedUpload {
    fn bytes(&self, upload: &str) -> usize {
        let sums = &self.stored.checksums;
        let sums = [&sums.crc32, &sums.crc32c, &sums.crc64nvme, &sums.sha1, &sums.sha256];
        let sum_bytes: usize = sums.into_iter().flatten().map(String::len).sum();
        let name_bytes = self.name.bucket.len() + self.name.key.len();
        UPLOAD_BYTES + name_bytes + upload.len() + self.made_of.len() + self.stored.etag.len() + sum_bytes
    }
}

impl CompletedUploads {
    fn remember(&self, upload: &str, completed: CompletedUpload) {
        let mut guard = self.0.lock();
        let (state, upload) = (&mut *guard, Arc::<str>::from(upload));
        state.bytes += completed.bytes(&upload);
        if let Some(former) = state.uploads.insert(Arc::clone(&upload), completed) {
            state.bytes -= former.bytes(&upload);
        } else {
            state.ids.push_back(upload);
        }
        while state.bytes > MAX_BYTES
            && let Some(oldest) = state.ids.pop_front()
        {
            state.bytes -= state.uploads.remove(&oldest).map_or(0, |former| former.bytes(&oldest));
        }
    }

    /// The answer to an upload of this object, made of parts with this ETag.
    fn find(&self, upload: &str, name: &ObjectName, made_of: &str) -> Option<WriteReceipt> {
        let state = self.0.lock();
        let found = state.uploads.get(upload);
        let found = found.filter(|found| found.name == *name && found.made_of == made_of);
        found.map(|found| found.stored.clone())
    }
}

/// A part of an object to be made.
pub(super) struct ListedPart {
    pub(super) upload: String,
    pub(super) parts: Vec<CompletedPart>,
    /// The parts, as they were when they were looked for.
    pub(super) found: Vec<(u16, PartRecord)>,
}

impl GatewayEngine {
    pub(super) async fn complete_shared(
        self: &Arc<Self>,
        state: Arc<BucketState>,
        name: ObjectName,
        listed: ListedPart,
        (record, mut stored): (ObjectRecord, WriteReceipt),
        conditions: &WriteConditions,
        pass: WritePass,
    ) -> GatewayResult<WriteReceipt> {
        let turn = state.backend.turn(&name.key).await;
        let (engine, conditions) = (Arc::clone(self), conditions.clone());
        let sending = async move {
            // Until the upload is gone: the next one in turn must not find it.
            let _turn = turn;
            let _open = state.enter().await?;
            let found = {
                let view = engine.metadata.view()?;
                match view.upload(&name, &listed.upload)? {
                    Some(_) => Some(listed_parts(&view, &listed.upload, &listed.parts)?),
                    None => None,
                }
            };
            let Some(found) = found else {
                // Somebody has completed it, or given it up, while the turn was waited for.
                return engine.completed_lately(&state, &name.key, &listed.upload, &listed.parts).await;
            };
            for ((_, now), (number, before)) in found.iter().zip(&listed.found) {
                check_same(*number, Some(now), before)?;
            }
            let effect = RequestEffect::put(&record.etag, record.size_bytes, &record.headers);
            let following = state.backend.follow_within(&name.key, effect, engine.setup.patience).await?;
            let only = only_of(&state, &name.key, &conditions).await?;
            let claim = engine.claim_shared(&state, &name.key)?;
            let sent = following.watch(engine.send_completed(&state, &name, &record, &only, &pass)).await;
            drop(claim);
            engine.forget_found(&state, &name.key);
            if let Some(etag) = hide_unclear_verdict(sent, following.may_land())? {
                stored.etag = bare(&etag).to_owned();
            }
            let completed =
                CompletedUpload { name: name.clone(), made_of: record.etag, stored: stored.clone() };
            engine.completed.remember(&listed.upload, completed);
            let upload = listed.upload;
            engine
                .committer
                .commit(Vec::new(), move |change| change.remove_upload(&name, &upload).map(drop))
                .await?;
            pass.check()?;
            Ok(stored)
        };
        to_its_end(sending).await
    }

    async fn send_completed(
        &self,
        state: &BucketState,
        name: &ObjectName,
        record: &ObjectRecord,
        only: &StoreCondition,
        pass: &WritePass,
    ) -> GatewayResult<Option<String>> {
        let (_pins, runs) = self.journal.pin(|| {
            let view = self.metadata.view()?;
            let runs = self.runs_of(&view, state, &record.extents)?;
            Ok((record.extents.iter().map(|extent| extent.content).collect(), runs))
        })?;
        let ranges = pieces(&(0..record.size_bytes), self.blocks.block_bytes());
        let body = futures_util::stream::iter(ranges).then(|range| self.read_runs(&runs, range)).boxed();
        let may_go_on = || pass.check();
        state.backend.put(&name.key, &record.headers, record.size_bytes, only, body, &may_go_on).await
    }

    /// As S3 answers a client that asks again, since the answer was lost: as before, if the object is still the one.
    ///
    /// # Errors
    /// `NoSuchUpload` if it is not, or nobody remembers.
    pub(super) async fn completed_lately(
        &self,
        state: &BucketState,
        key: &str,
        upload: &str,
        parts: &[CompletedPart],
    ) -> GatewayResult<WriteReceipt> {
        let made_of = multipart_etag(parts.iter().map(|part| bare(&part.etag))).unwrap_or_default();
        let remembered = self.completed.find(upload, &ObjectName::new(&state.name, key), &made_of);
        let stored = remembered.ok_or(GatewayError::NoSuchUpload)?;
        match state.backend.head(key).await {
            Ok(found) if found.etag.as_deref().map(bare) == Some(stored.etag.as_str()) => Ok(stored),
            Ok(_) | Err(GatewayError::NoSuchKey) => Err(GatewayError::NoSuchUpload),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ObjectChecksums;

    fn completed(key: &str) -> CompletedUpload {
        let stored =
            WriteReceipt { etag: "etag".to_owned(), checksums: ObjectChecksums::default(), modified_ms: 1 };
        CompletedUpload { name: ObjectName::new("lake", key), made_of: "made".to_owned(), stored }
    }

    #[test]
    fn remembered_uploads_are_bounded_for_all_prefixes_together() {
        let uploads = CompletedUploads::default();
        let long = "k".repeat(1000);
        for number in 0..10_000 {
            uploads
                .remember(&format!("upload{number}"), completed(&format!("prefix{}/{long}", number % 100)));
            assert!(uploads.0.lock().bytes <= MAX_BYTES);
        }
        let find = |upload: &str, key: &str| uploads.find(upload, &ObjectName::new("lake", key), "made");
        assert!(find("upload9999", &format!("prefix99/{long}")).is_some());
        assert!(find("upload0", &format!("prefix0/{long}")).is_none(), "the oldest are forgotten");
        uploads.remember("again", completed("a"));
        uploads.remember("again", completed("b"));
        assert!(find("again", "a").is_none() && find("again", "b").is_some());
        assert!(uploads.find("again", &ObjectName::new("other", "b"), "made").is_none());
        let state = uploads.0.lock();
        assert_eq!(state.bytes, state.uploads.iter().map(|(id, upload)| upload.bytes(id)).sum::<usize>());
        assert!(state.ids.len() == state.uploads.len() && state.ids.len() > 2000);
    }
}
