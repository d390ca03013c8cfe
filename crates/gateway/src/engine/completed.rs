//! The end of an upload below a prefix that others write to: the store gets the object at once, and no record of ours
//! speaks of it.

use std::sync::Arc;

use futures_util::StreamExt as _;

use super::conditions::WriteConditions;
use super::parts::{CompletedPart, check_same, listed_parts};
use super::read::pieces;
use super::shared::{hide_unclear_verdict, only_of};
use super::to_its_end::to_its_end;
use super::write::WriteReceipt;
use super::{BucketState, CompletedUpload, GatewayEngine};
use crate::digests::multipart_etag;
use crate::errors::{GatewayError, GatewayResult};
use crate::meta::ObjectName;
use crate::model::{ObjectRecord, PartRecord};
use crate::ownership::WritePass;
use crate::store::{RequestEffect, StoreCondition, bare};

/// For clients that ask again, which they do within minutes.
const MAX_COMPLETED: usize = 1_000;

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
            let (key, upload) = (name.key.clone(), listed.upload.clone());
            remember(&state, CompletedUpload { key, upload, made_of: record.etag, stored: stored.clone() });
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
        let remembered = {
            let completed = state.rule(key).completed.lock();
            let is_it = |candidate: &&CompletedUpload| {
                candidate.key == key && candidate.upload == upload && candidate.made_of == made_of
            };
            completed.iter().find(is_it).map(|candidate| candidate.stored.clone())
        };
        let stored = remembered.ok_or(GatewayError::NoSuchUpload)?;
        match state.backend.head(key).await {
            Ok(found) if found.etag.as_deref().map(bare) == Some(stored.etag.as_str()) => Ok(stored),
            Ok(_) | Err(GatewayError::NoSuchKey) => Err(GatewayError::NoSuchUpload),
            Err(error) => Err(error),
        }
    }
}

fn remember(state: &BucketState, completed: CompletedUpload) {
    let mut lately = state.rule(&completed.key).completed.lock();
    if lately.len() >= MAX_COMPLETED {
        lately.pop_front();
    }
    lately.push_back(completed);
}
