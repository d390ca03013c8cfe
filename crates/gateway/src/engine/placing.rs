//! Directories, which have no place for both `a` and `a/b`. Below prefixes that are ours alone the metadata know both
//! names. Where others write as well, and what others have put there, only the store knows: it is looked at before a
//! write is acknowledged that it could never take.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use underlay_sync::Mutex;

use super::write::taken;
use super::{BucketState, GatewayEngine};
use crate::errors::{GatewayError, GatewayResult};
use crate::meta::{MetadataView, ObjectName};
use crate::store::{BackendKind, FolderContents, PlaceFinding};

/// How long a directory that is being emptied is left alone.
const PAUSE: Duration = Duration::from_millis(50);

/// Keys of writes on their way, where others write below some prefixes of a directory and not below all.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyClaims(Arc<Mutex<BTreeMap<String, ClaimCounts>>>);

/// Writes of one key.
#[derive(Clone, Copy, Debug, Default)]
struct ClaimCounts {
    exclusive: usize,
    shared: usize,
}

impl ClaimCounts {
    fn count_mut(&mut self, is_exclusive: bool) -> &mut usize {
        if is_exclusive { &mut self.exclusive } else { &mut self.shared }
    }
}

/// While it lives, no write of the other kind begins above or below its key.
#[must_use]
#[derive(Debug)]
pub(super) struct KeyClaim {
    claims: KeyClaims,
    key: String,
    is_exclusive: bool,
}

impl Drop for KeyClaim {
    fn drop(&mut self) {
        let mut claims = self.claims.0.lock();
        let Some(counts) = claims.get_mut(&self.key) else { return };
        *counts.count_mut(self.is_exclusive) -= 1;
        if counts.exclusive + counts.shared == 0 {
            claims.remove(&self.key);
        }
    }
}

impl KeyClaims {
    /// # Errors
    /// `Busy` while a write of the other kind is on its way above or below the key.
    fn claim(&self, key: &str, is_exclusive: bool) -> GatewayResult<KeyClaim> {
        let mut claims = self.0.lock();
        let is_other = |counts: &mut ClaimCounts| *counts.count_mut(!is_exclusive) > 0;
        let has_above =
            key.match_indices('/').any(|(end, _)| claims.get_mut(&key[..end]).is_some_and(is_other));
        let folder = format!("{key}/");
        let below = claims.range_mut::<str, _>((Bound::Included(folder.as_str()), Bound::Unbounded));
        let mut below = below.take_while(|(other, _)| other.starts_with(&folder));
        if has_above || below.any(|(_, counts)| is_other(counts)) {
            return Err(GatewayError::Busy(
                "another write is about to make the key a directory, or a part of the key an object: try again later"
                    .to_owned(),
            ));
        }
        *claims.entry(key.to_owned()).or_default().count_mut(is_exclusive) += 1;
        drop(claims);
        Ok(KeyClaim { claims: self.clone(), key: key.to_owned(), is_exclusive })
    }
}

impl BucketState {
    /// Claims a key, where writes of both kinds can meet in one directory.
    fn claim(&self, key: &str, is_exclusive: bool) -> GatewayResult<Option<KeyClaim>> {
        let is_mixed = !self.is_exclusive_below("")
            && self.rules.iter().any(|state| self.is_exclusive(&state.rule.prefix));
        match is_mixed && self.backend.kind == BackendKind::Directory {
            true => self.claims.claim(key, is_exclusive).map(Some),
            false => Ok(None),
        }
    }
}

impl GatewayEngine {
    /// Before a write is acknowledged below a prefix that is ours alone: whether the store could ever take it, besides
    /// what the metadata know. To be kept until the write is committed.
    ///
    /// # Errors
    /// `NameTaken` or `AccessDenied` if it could not, and `Busy` while nobody knows.
    pub(super) async fn claim_place(
        &self,
        state: &BucketState,
        name: &ObjectName,
    ) -> GatewayResult<Option<KeyClaim>> {
        if state.backend.kind != BackendKind::Directory {
            return Ok(None);
        }
        let deadline = tokio::time::Instant::now() + self.setup.patience;
        loop {
            let claim = state.claim(&name.key, true)?;
            if state.backend.look_at_place(&name.key).await? == PlaceFinding::Free {
                return Ok(claim);
            }
            // Before it is looked at again: what is deleted meanwhile must not look as if it were others'.
            let view = self.metadata.view()?;
            match state.backend.look_at_place(&name.key).await? {
                PlaceFinding::Free => return Ok(claim),
                PlaceFinding::ObjectAbove(above) if goes(&view, state, &above)? => {
                    self.hasten_removal(&view, &name.bucket, [above])?;
                    return Ok(claim);
                }
                PlaceFinding::ObjectAbove(above) => return Err(taken(&above, &name.key)),
                PlaceFinding::Folder(contents) => {
                    check_nothing_inside(&view, state, &name.key)?;
                    if contents.is_empty {
                        return Ok(claim);
                    }
                    if stays(&view, state, name, &contents)? {
                        let inside = contents.keys.first().cloned();
                        return Err(taken(&name.key, &inside.unwrap_or_else(|| format!("{}/...", name.key))));
                    }
                    self.hasten_removal(&view, &name.bucket, contents.keys)?;
                    if !contents.is_unsettled {
                        return Ok(claim);
                    }
                }
            }
            drop((view, claim));
            if tokio::time::Instant::now() + PAUSE > deadline {
                return Err(GatewayError::Busy(
                    "the store has a directory of this name, which is being emptied: try again later"
                        .to_owned(),
                ));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// What is in the way of an acknowledged write and only waits for its deletion has no more time for it.
    fn hasten_removal(
        &self,
        view: &MetadataView,
        bucket: &str,
        keys: impl IntoIterator<Item = String>,
    ) -> GatewayResult<()> {
        for key in keys {
            let name = ObjectName::new(bucket, &key);
            if view.object(&name)?.is_none() {
                self.queue.hasten_waiting(&name);
            }
        }
        Ok(())
    }

    /// Before a write goes to a directory in which others write as well: an acknowledged object above or below its key
    /// could never be stored after that. To be kept until the store has answered.
    ///
    /// # Errors
    /// `NameTaken` if there is one, `Busy` if one is about to be.
    pub(super) fn claim_shared(&self, state: &BucketState, key: &str) -> GatewayResult<Option<KeyClaim>> {
        let Some(claim) = state.claim(key, false)? else { return Ok(None) };
        let view = self.metadata.view()?;
        for (end, _) in key.match_indices('/') {
            let above = ObjectName::new(&state.name, &key[..end]);
            // The marker of a directory has a name of its own in it.
            if !above.key.is_empty() && view.object(&above)?.is_some() {
                return Err(taken(&above.key, key));
            }
        }
        check_nothing_inside(&view, state, key)?;
        Ok(Some(claim))
    }
}

/// That no acknowledged object needs a directory where the key's object would be.
fn check_nothing_inside(view: &MetadataView, state: &BucketState, key: &str) -> GatewayResult<()> {
    let folder = format!("{key}/");
    match view.first_key_from(&state.name, &folder)? {
        Some(inside) if inside.starts_with(&folder) => Err(taken(key, &inside)),
        _ => Ok(()),
    }
}

/// Whether the store's object is ours: then it is deleted, or the commit of another write says that it is there.
fn goes(view: &MetadataView, state: &BucketState, key: &str) -> GatewayResult<bool> {
    Ok(state.is_exclusive(key) && view.stored(&ObjectName::new(&state.name, key))?.is_some())
}

/// Whether a directory of this name has something that is not about to be deleted, or nobody here has made it.
fn stays(
    view: &MetadataView,
    state: &BucketState,
    name: &ObjectName,
    contents: &FolderContents,
) -> GatewayResult<bool> {
    for key in &contents.keys {
        if !goes(view, state, key)? {
            return Ok(true);
        }
    }
    let inside = ObjectName::new(&name.bucket, format!("{}/", name.key));
    Ok(contents.has_others || (contents.keys.is_empty() && !view.has_stored_below(&inside)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_keys_of_both_kinds_exclude_each_other() {
        let claims = KeyClaims::default();
        let (first, second) = (claims.claim("a/b", false).unwrap(), claims.claim("a/b", false).unwrap());
        // Of one kind, the metadata or the store decide.
        drop(claims.claim("a", false).unwrap());
        for key in ["a", "a/b/c", "a/b/c/d"] {
            assert!(matches!(claims.claim(key, true), Err(GatewayError::Busy(_))), "{key}");
        }
        for key in ["a/b", "a/c", "a/bc", "b"] {
            drop(claims.claim(key, true).unwrap());
        }
        drop(first);
        assert!(claims.claim("a", true).is_err());
        drop(second);
        let above = claims.claim("a", true).unwrap();
        assert!(claims.claim("a/b", false).is_err());
        drop(above);
        assert!(claims.0.lock().is_empty());
    }
}
