//! Objects that the store does not return as the metadata have them, below a prefix that is ours alone: changed by
//! others, or withheld.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt as _;

use super::{BucketState, GatewayEngine};
use crate::digests::DigestSet;
use crate::errors::{GatewayError, GatewayResult};
use crate::meta::ObjectName;
use crate::model::{ContentExtent, ContentId, ContentPlace, ContentRecord, ObjectRecord};
use crate::store::{BackendKind, StoredInfo, bare};

/// Objects that the log speaks of, each once: behind so many it speaks of no more.
const MAX_LOGGED: usize = 10_000;
/// Before the store is asked a second time of what it says is another's change.
const BETWEEN: Duration = Duration::from_millis(50);

/// The longest object of one PUT: longer ones are sent in parts, and what has made an object of these once does not
/// do it again.
const MAX_REPEATED_BYTES: u64 = 8 << 20;

/// The meaning of the store's answer about an object.
#[derive(Debug, PartialEq, Eq)]
enum StoreMeaning {
    /// It has what the metadata speak of.
    AsKnown,
    /// Somebody else has changed or deleted it.
    Changed,
    /// It has nothing there, where only a listing told of something that nobody has asked for since: that listing may
    /// have been behind.
    Unseen,
    /// It was stored there, and the store says something that nobody else's change would explain.
    Withheld(&'static str),
}

fn meaning_of(content: &ContentRecord, found: Option<&StoredInfo>) -> StoreMeaning {
    let ContentPlace::Remote { etag, .. } = &content.place else { return StoreMeaning::AsKnown };
    let is_as_known = found.is_some_and(|found| {
        found.size_bytes == content.size_bytes && found.etag.as_deref().map(bare) == etag.as_deref().map(bare)
    });
    match (is_as_known, content.confirmed_ms, found) {
        (true, ..) => StoreMeaning::AsKnown,
        // Also where only a listing told of it: nobody else deletes here, and what is forgotten is lost for good.
        (false, _, None) => StoreMeaning::Withheld("has nothing there"),
        // Anything that others wrote there since then is later than this.
        (false, Some(confirmed_ms), Some(found)) if found.modified_ms <= confirmed_ms => {
            StoreMeaning::Withheld("has an older version there")
        }
        _ => StoreMeaning::Changed,
    }
}

/// Whether the store has said the same twice.
fn is_alike(one: &StoredInfo, other: &StoredInfo) -> bool {
    (one.size_bytes, &one.etag, one.modified_ms) == (other.size_bytes, &other.etag, other.modified_ms)
}

/// Whether a directory has the same file under another inode, as after it was moved to another disk, or mounted anew:
/// an ETag there is inode, time of change in microseconds and size.
pub(super) fn is_same_file(content: &ContentRecord, found: &StoredInfo) -> bool {
    let ContentPlace::Remote { etag, .. } = &content.place else { return false };
    let without_inode = |etag: &Option<String>| Some(bare(etag.as_deref()?).split_once('-')?.1.to_owned());
    let recorded = without_inode(etag);
    found.size_bytes == content.size_bytes && recorded.is_some() && recorded == without_inode(&found.etag)
}

fn with_etag(place: &ContentPlace, found: &StoredInfo) -> ContentPlace {
    let mut place = place.clone();
    if let ContentPlace::Remote { etag, .. } = &mut place {
        etag.clone_from(&found.etag);
    }
    place
}

impl GatewayEngine {
    /// The store does not give what the metadata have of this version of an object. If others have changed it, it is
    /// taken as it is now, once the store has said so twice. Where the store has nothing, or what is older, it stays
    /// known, however: to forget it since a store is not mounted, is another one, or is a little behind, would lose it
    /// for good. An object known only from a listing is answered with 404 if another listing lacks it.
    ///
    /// # Errors
    /// When it is withheld, or the store does not say what it has.
    pub(super) async fn refresh(
        &self,
        state: &BucketState,
        name: &ObjectName,
        version: u64,
    ) -> GatewayResult<()> {
        let (mut before, mut is_missed): (Option<StoredInfo>, bool) = (None, false);
        loop {
            let found = match state.backend.head(&name.key).await {
                Ok(found) => Some(found),
                Err(GatewayError::NoSuchKey) => None,
                Err(error) => return Err(error),
            };
            let is_sure = matches!((&before, &found), (Some(before), Some(found)) if is_alike(before, found));
            let (content, meaning) = self.compare(state, name, version, found.clone(), is_sure).await?;
            if let (StoreMeaning::Changed | StoreMeaning::Withheld(_), Some(content), Some(found), None) =
                (&meaning, content, &found, &before)
                && self.take_repeated_put(state, name, (version, content), found).await?
            {
                return Ok(());
            }
            match meaning {
                StoreMeaning::Unseen if !std::mem::replace(&mut is_missed, true) => {
                    tokio::time::sleep(BETWEEN).await;
                }
                StoreMeaning::Unseen if state.backend.lists(&name.key).await? => {
                    return Err(self.withheld(name, content, "has nothing there"));
                }
                // It stays known: a store that is behind may have it again, and a deletion through the gateway takes it
                // away.
                StoreMeaning::Unseen => return Err(GatewayError::NoSuchKey),
                StoreMeaning::AsKnown => return Ok(()),
                StoreMeaning::Changed if is_sure => {
                    self.counters.strangers.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(
                        "{name} was changed in the store behind the gateway's back: taking it as it is now"
                    );
                    return Ok(());
                }
                StoreMeaning::Changed if before.is_some() => {
                    return Err(GatewayError::StoreAway(format!(
                        "the store says now this and now that of {name}: it stays as it is known here"
                    )));
                }
                StoreMeaning::Changed => {
                    before = found;
                    tokio::time::sleep(BETWEEN).await;
                }
                StoreMeaning::Withheld(reason) => return Err(self.withheld(name, content, reason)),
            }
        }
    }

    /// The meaning of the store's answer, which is carried out if it `is_sure`.
    async fn compare(
        &self,
        state: &BucketState,
        name: &ObjectName,
        version: u64,
        found: Option<StoredInfo>,
        is_sure: bool,
    ) -> GatewayResult<(Option<ContentId>, StoreMeaning)> {
        let (target, numbers, kind) = (name.clone(), (self.number(), self.number()), state.backend.kind);
        self.committer
            .commit(Vec::new(), move |change| {
                let record = change.object(&target)?.filter(|record| record.version == version);
                let record = match record {
                    Some(record) if change.pending(&target)?.is_none() => record,
                    // It has changed here meanwhile, or will there.
                    _ => return Ok((None, StoreMeaning::AsKnown)),
                };
                let content = match record.extents.first() {
                    Some(extent) => change.content(extent.content)?.map(|content| (extent.content, content)),
                    None => None,
                };
                let meaning = match &content {
                    Some((_, content)) => meaning_of(content, found.as_ref()),
                    None => meaning_of_empty(&record, found.as_ref()),
                };
                let meaning = match (&content, &found) {
                    (_, None) if record.only_listed && meaning != StoreMeaning::AsKnown => {
                        StoreMeaning::Unseen
                    }
                    (Some((id, recorded)), Some(found))
                        if meaning != StoreMeaning::AsKnown
                            && kind == BackendKind::Directory
                            && is_same_file(recorded, found) =>
                    {
                        change.set_place(*id, with_etag(&recorded.place, found))?;
                        StoreMeaning::AsKnown
                    }
                    _ => meaning,
                };
                if meaning == StoreMeaning::Changed && is_sure {
                    change.set_object(&target, None)?;
                    change.set_stored(&target, None)?;
                    if let Some(found) = &found {
                        super::listed::enter(change, &target, found, numbers, kind)?;
                    }
                }
                Ok((content.map(|(id, _)| id), meaning))
            })
            .await
    }

    /// A PUT that got no answer may have been carried out after the one that repeated it. Many stores then have another
    /// ETag for the same object, as S3 has with keys of KMS. Its bytes and headers tell, and are worth one look: it is
    /// nobody else's change, and keeps its tags. Returns whether it is such a one.
    async fn take_repeated_put(
        &self,
        state: &BucketState,
        name: &ObjectName,
        (version, content): (u64, ContentId),
        found: &StoredInfo,
    ) -> GatewayResult<bool> {
        let view = self.metadata.view()?;
        let record = view.object(name)?.filter(|record| record.version == version);
        let (Some(record), Some(stored)) = (record, view.content(content)?) else { return Ok(false) };
        drop(view);
        let ContentPlace::Remote { headers_hash, .. } = &stored.place else { return Ok(false) };
        let whole = ContentExtent { content, offset_bytes: 0, length_bytes: stored.size_bytes };
        let is_alike = record.extents == [whole]
            && record.part_sizes_bytes.is_empty()
            && found.size_bytes == stored.size_bytes
            && found.size_bytes <= MAX_REPEATED_BYTES
            && *headers_hash == Some(found.headers.hash_code());
        if state.backend.kind != BackendKind::S3 || !is_alike {
            return Ok(false);
        }
        let range = 0..found.size_bytes;
        let got = state.backend.get(&name.key, found.etag.as_deref(), found.size_bytes, range).await;
        // What can't be read now says nothing.
        let Ok((_, mut body)) = got else { return Ok(false) };
        let mut digests = DigestSet::new(&[])?;
        while let Some(piece) = body.next().await {
            let Ok(piece) = piece else { return Ok(false) };
            digests.update(&piece)?;
        }
        if base16ct::lower::encode_string(&digests.finish()?.md5) != record.etag {
            return Ok(false);
        }
        let (target, place) = (name.clone(), with_etag(&stored.place, found));
        self.committer
            .commit(Vec::new(), move |change| {
                let now = change.object(&target)?.filter(|now| now.version == version);
                let is_there = change.content(content)?.is_some_and(|now| now.place == stored.place);
                // Otherwise the caller looks again, at what it is by now.
                if now.is_some() && is_there {
                    change.set_place(content, place)?;
                }
                Ok(true)
            })
            .await
    }

    fn withheld(&self, name: &ObjectName, content: Option<ContentId>, reason: &str) -> GatewayError {
        self.counters.withheld.fetch_add(1, Ordering::Relaxed);
        let is_new = {
            let mut logged = self.told.lock();
            content.is_some_and(|content| logged.len() < MAX_LOGGED && logged.insert(content))
        };
        if is_new {
            tracing::warn!(
                "{name} is known here and can't be read: it was stored there, and the store {reason}\n  what to do: see that the store is the right one, mounted and whole; if the object is lost, delete it through the gateway"
            );
        }
        GatewayError::StoreAway(format!(
            "the store behind {reason}, where {name} was stored: it stays known, and can be read once the store gives it again"
        ))
    }
}

/// The same of an object without bytes. The store is asked of one only for its headers, where a listing told of it.
fn meaning_of_empty(record: &ObjectRecord, found: Option<&StoredInfo>) -> StoreMeaning {
    match found {
        Some(found) if found.size_bytes == 0 && found.etag.as_deref().map_or("", bare) == record.etag => {
            StoreMeaning::AsKnown
        }
        None => StoreMeaning::Withheld("has nothing there"),
        // Its time is the store's.
        Some(found) if found.modified_ms < record.modified_ms => {
            StoreMeaning::Withheld("has an older version there")
        }
        Some(_) => StoreMeaning::Changed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ObjectHeaders;

    #[test]
    fn stored_object_is_replaced_only_by_newer_one() {
        let content = |confirmed_ms| ContentRecord {
            size_bytes: 5,
            references: 1,
            place: ContentPlace::Remote {
                bucket: "lake".to_owned(),
                key: "a".to_owned(),
                etag: Some("\"e\"".to_owned()),
                headers_hash: None,
                cached_as: ContentId(1),
            },
            confirmed_ms,
        };
        let found = |size_bytes, etag: &str, modified_ms| StoredInfo {
            size_bytes,
            etag: Some(etag.to_owned()),
            modified_ms,
            headers: ObjectHeaders::default(),
        };
        let (ours, earlier) = (content(Some(1000)), content(None));
        for content in [&ours, &earlier] {
            assert_eq!(meaning_of(content, Some(&found(5, "e", 1))), StoreMeaning::AsKnown);
            assert_eq!(meaning_of(content, Some(&found(5, "f", 1001))), StoreMeaning::Changed);
        }
        for other in [found(5, "f", 1000), found(6, "e", 999)] {
            assert!(matches!(meaning_of(&ours, Some(&other)), StoreMeaning::Withheld(_)));
            // Of what earlier gateways took over, nobody knows since when it was there.
            assert_eq!(meaning_of(&earlier, Some(&other)), StoreMeaning::Changed);
        }
        for content in [&ours, &earlier] {
            assert!(matches!(meaning_of(content, None), StoreMeaning::Withheld(_)));
        }
    }
}
