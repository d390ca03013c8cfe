//! Prefixes that others write to as well: the store has the truth, and every write goes through.

use std::sync::Arc;

use futures_util::StreamExt as _;

use super::conditions::WriteConditions;
use super::to_its_end::to_its_end;
use super::write::{PutRequest, WriteReceipt};
use super::{BucketState, GatewayEngine};
use crate::blocks::BlockOrigin;
use crate::config::StoreConsistency;
use crate::digests::DigestResults;
use crate::errors::{GatewayError, GatewayResult};
use crate::journal::WrittenContent;
use crate::meta::ObjectName;
use crate::model::{ContentPlace, ObjectChecksums, ObjectHeaders, ObjectRecord, now_ms};
use crate::ownership::WritePass;
use crate::store::{BackendKind, RequestEffect, StoreBackend, StoreCondition, StoredInfo, bare};

impl GatewayEngine {
    /// The store's answer about an object, or a recent one where the rule has a TTL.
    pub(super) async fn head_shared(&self, state: &BucketState, key: &str) -> GatewayResult<StoredInfo> {
        let rule = state.rule(key);
        let StoreConsistency::Ttl(ttl) = rule.rule.consistency else { return state.backend.head(key).await };
        let asked_in = match rule.fresh.find(key) {
            Ok(found) => return Ok(StoredInfo::clone(&found)),
            Err(generation) => generation,
        };
        let found = state.backend.head(key).await?;
        rule.fresh.keep(key, asked_in, ttl, &found);
        Ok(found)
    }

    /// Forgets what the store said of a key, since it was written to.
    pub(super) fn forget_found(&self, state: &BucketState, key: &str) {
        state.rule(key).fresh.forget(key);
    }

    /// Where blocks of such an object come from. Its ETag is a part of what they are known by.
    pub(super) fn shared_origin(&self, state: &BucketState, key: &str, found: &StoredInfo) -> BlockOrigin {
        let etag = found.etag.clone();
        let owner = self.block_owner(&[
            b"shared",
            &self.identity.to_le_bytes(),
            state.name.as_bytes(),
            key.as_bytes(),
            etag.as_deref().unwrap_or("").as_bytes(),
            &found.size_bytes.to_le_bytes(),
            &found.modified_ms.to_le_bytes(),
        ]);
        BlockOrigin {
            backend: state.backend.clone(),
            key: key.to_owned(),
            etag,
            size_bytes: found.size_bytes,
            whose: owner,
            counts: state.rule(key).counts.clone(),
            missed: None,
        }
    }

    pub(super) async fn put_shared(
        self: &Arc<Self>,
        state: Arc<BucketState>,
        name: ObjectName,
        request: PutRequest,
        written: Option<WrittenContent>,
        sums: DigestResults,
        pass: WritePass,
    ) -> GatewayResult<WriteReceipt> {
        if !request.tags.is_empty() {
            return Err(refuse_feature("tags"));
        }
        check_headers(&state.backend, &request.headers)?;
        let turn = state.backend.turn(&name.key).await;
        let claim = self.claim_shared(&state, &name.key)?;
        let effect = RequestEffect::put(
            &base16ct::lower::encode_string(&sums.md5),
            request.size_bytes,
            &request.headers,
        );
        let following = state.backend.follow_within(&name.key, effect, self.setup.patience).await?;
        let only = only_of(&state, &name.key, &request.conditions).await?;
        let engine = Arc::clone(self);
        let sending = async move {
            let _open = state.enter().await?;
            let body = match &written {
                Some(written) => engine.written_body(written),
                None => futures_util::stream::empty().boxed(),
            };
            let may_go_on = || pass.check();
            let put =
                state.backend.put(&name.key, &request.headers, request.size_bytes, &only, body, &may_go_on);
            let etag = following.watch(put).await;
            engine.forget_found(&state, &name.key);
            let is_unclear = following.may_land();
            drop((following, claim, turn));
            let etag = hide_unclear_verdict(etag, is_unclear)?
                .map_or_else(|| base16ct::lower::encode_string(&sums.md5), |etag| bare(&etag).to_owned());
            pass.check()?;
            Ok(WriteReceipt { etag, checksums: sums.checksums, modified_ms: now_ms() })
        };
        to_its_end(sending).await
    }

    /// The bytes of a content that no commit speaks of.
    pub(super) fn written_body(
        &self,
        written: &WrittenContent,
    ) -> futures_util::stream::BoxStream<'static, GatewayResult<bytes::Bytes>> {
        let ContentPlace::Local { segment, offset_bytes } = written.place() else {
            return futures_util::stream::empty().boxed();
        };
        let (journal, content, size) = (self.journal.clone(), written.content(), written.size_bytes());
        let step = self.blocks.block_bytes();
        let ranges = (0..size.div_ceil(step)).map(move |index| index * step..((index + 1) * step).min(size));
        futures_util::stream::iter(ranges)
            .then(move |range| {
                let journal = journal.clone();
                async move {
                    crate::blocking::spawn_blocking(move || {
                        journal.read(content, size, (segment, offset_bytes), range)
                    })
                    .await
                    .unwrap_or_else(|error| Err(GatewayError::local("cannot read the journal", error)))
                }
            })
            .boxed()
    }

    pub(super) async fn delete_shared(
        self: &Arc<Self>,
        state: &Arc<BucketState>,
        key: &str,
        conditions: &WriteConditions,
        pass: &Arc<WritePass>,
    ) -> GatewayResult<()> {
        let turn = state.backend.turn(key).await;
        let following = state.backend.follow_within(key, RequestEffect::Delete, self.setup.patience).await?;
        if conditions.is_about_former() {
            match state.backend.head(key).await {
                Ok(found) => check_found(conditions, &found)?,
                Err(GatewayError::NoSuchKey) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        let (engine, state, pass, key) =
            (Arc::clone(self), Arc::clone(state), Arc::clone(pass), key.to_owned());
        let sending = async move {
            let _open = state.enter().await?;
            let outcome = following.watch(state.delete_durably(&key, &|| pass.check())).await;
            engine.forget_found(&state, &key);
            drop((following, turn));
            outcome
        };
        to_its_end(sending).await
    }
}

/// The condition that the store is to check as it writes. The other conditions are checked here: the caller has the
/// key's turn, so no other client of this gateway comes between.
pub(super) async fn only_of(
    state: &BucketState,
    key: &str,
    conditions: &WriteConditions,
) -> GatewayResult<StoreCondition> {
    if conditions.if_none_match {
        return Ok(StoreCondition::IfAbsent);
    }
    if !conditions.is_about_former() {
        return Ok(StoreCondition::Always);
    }
    if let WriteConditions {
        if_match: Some(wanted),
        unless_etag: None,
        size_bytes: None,
        modified_s: None,
        ..
    } = conditions
        && let Some(etag) = wanted.single()
        && state.backend.kind == BackendKind::S3
    {
        return Ok(StoreCondition::IfMatch(quoted(etag)));
    }
    match state.backend.head(key).await {
        Ok(found) => check_found(conditions, &found)?,
        Err(GatewayError::NoSuchKey) if conditions.if_match.is_none() => {}
        Err(error) => return Err(error),
    }
    Ok(StoreCondition::Always)
}

/// A condition that fails after an unanswered attempt may have failed because of that attempt: nobody knows.
pub(super) fn hide_unclear_verdict<T>(outcome: GatewayResult<T>, is_unclear: bool) -> GatewayResult<T> {
    match outcome {
        Err(GatewayError::PreconditionFailed) if is_unclear => Err(GatewayError::Store(
            "a condition does not hold, and an attempt before that got no answer and may have succeeded"
                .to_owned(),
        )),
        outcome => outcome,
    }
}

fn check_found(conditions: &WriteConditions, found: &StoredInfo) -> GatewayResult<()> {
    let etag = found.etag.as_deref().map_or("", bare);
    conditions.check_against(etag, found.size_bytes, found.modified_ms)
}

fn quoted(etag: &str) -> String {
    format!("\"{}\"", bare(etag))
}

pub(super) fn refuse_feature(feature: &str) -> GatewayError {
    GatewayError::NotImplemented(format!(
        "{feature} have no place below this prefix, which others write to as well: it needs consistency = \"exclusive\""
    ))
}

/// A directory that others write to keeps no headers; to lose them without a word would be worse.
pub(super) fn check_headers(backend: &StoreBackend, headers: &ObjectHeaders) -> GatewayResult<()> {
    if backend.kind == BackendKind::Directory && !headers.user.is_empty() {
        return Err(refuse_feature("user metadata"));
    }
    Ok(())
}

/// As an object that the gateway has no record of.
pub(super) fn record_of(found: &StoredInfo) -> ObjectRecord {
    ObjectRecord {
        version: 0,
        size_bytes: found.size_bytes,
        etag: found.etag.as_deref().map_or("", bare).to_owned(),
        modified_ms: found.modified_ms,
        extents: Vec::new(),
        headers: found.headers.clone(),
        tags: Vec::new(),
        checksums: ObjectChecksums::default(),
        part_sizes_bytes: Vec::new(),
        part_checksums: Vec::new(),
        only_listed: false,
    }
}
