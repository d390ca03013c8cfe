//! Directories as stores: whether one is mounted that should be. While the gateway runs, the store itself looks ([`Backend::check_there`]);
//! here it is looked at the start, and for one that comes back.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{BucketState, Engine};
use crate::errors::Error;
use crate::meta::{Name, View};
use crate::store::{Backend, Identity, OWNERS};

/// How often it is looked whether a directory is there.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What the metadata say that a store has, held against it.
#[derive(Default)]
struct Recorded {
    /// Names at which it has an object for sure.
    sure: usize,
    /// Those, and names at which it may have one: it is to be overwritten or deleted, or was about to be stored.
    any: usize,
    /// Whether it has something at one of these names, where there are any, or says whose it is.
    has_some: bool,
    is_empty: bool,
}

/// Under which the metadata have the directory that a bucket was over last.
fn key_of(bucket: &str) -> Vec<u8> {
    format!("root {bucket}").into_bytes()
}

/// Blocks. Of several gateways each knows of objects that others have deleted since; there the marker of their cluster says that it is their store.
fn look(view: &View, bucket: &str, backend: &Backend, root: &Path) -> Result<Recorded, Error> {
    let has_some = root.join(OWNERS).symlink_metadata().is_ok();
    let mut recorded = Recorded { has_some, ..Recorded::default() };
    view.stored_in(bucket, |name| {
        recorded.any += 1;
        recorded.sure += usize::from(view.pending(name)?.is_none());
        let path = backend.path(&name.key).map(|path| root.join(path.as_ref()));
        recorded.has_some |= path.is_ok_and(|path| path.symlink_metadata().is_ok());
        Ok(!recorded.has_some)
    })?;
    recorded.is_empty = std::fs::read_dir(root).is_ok_and(|mut entries| entries.next().is_none());
    Ok(recorded)
}

impl Engine {
    /// At the start: a directory with nothing of what was stored there is most likely one that something has to be mounted on. To go on would
    /// store into it, and take what is deleted meanwhile for deleted there.
    ///
    /// # Errors
    /// When there is such a directory, unless [`Setup::into_empty`](super::Setup::into_empty) says that it is right.
    pub(super) async fn check_mounted(&self) -> Result<(), String> {
        for state in self.bucket_states() {
            self.check_mounted_of(&state)
                .await
                .map_err(|why| format!("the store of bucket {}: {why}", state.name))?;
        }
        Ok(())
    }

    async fn check_mounted_of(&self, state: &BucketState) -> Result<(), String> {
        let Some((root, identity)) = state.backend.root() else { return Ok(()) };
        let failed = |error: Error| error.to_string();
        let view = self.metadata.view().map_err(failed)?;
        let key = key_of(&state.name);
        let former: Option<Identity> = view.state(&key).map_err(failed)?;
        let (bucket, backend, at) = (state.name.clone(), state.backend.clone(), root.to_owned());
        let looked = tokio::task::spawn_blocking(move || look(&view, &bucket, &backend, &at)).await;
        let recorded = looked.map_err(|error| error.to_string())?.map_err(failed)?;
        // It has looked at the one that was opened.
        state.backend.check_there().await.map_err(failed)?;
        let is_another = former.is_some_and(|former| former != identity);
        let expected = match recorded.sure {
            // Of one that is the same as before, that which is pending may never have got there.
            0 if is_another => recorded.any,
            sure => sure,
        };
        if expected > 0 && !recorded.has_some {
            let root = root.display();
            let what = if recorded.is_empty { "is empty" } else { "has none of them" };
            let why = format!("{expected} objects are recorded in {root}, and the directory {what}");
            if !self.setup.into_empty {
                return Err(format!(
                    "{why}: is it mounted?\n  what to do: mount it, or bring the objects back, and start the gateway again; if they are lost for good, see \"A directory that is not mounted\" in docs/gateway.md"
                ));
            }
            tracing::warn!(
                "{why}: what is not stored yet is stored there all the same, as --into-empty says"
            );
        }
        if former == Some(identity) {
            return Ok(());
        }
        // Where nothing is known of this one, nobody has listed it: what was listed may have been what it is mounted on.
        let is_unknown = is_another && recorded.any == 0;
        let prefixes = state.rules.iter().map(|rule| Name::new(&state.name, &rule.rule.prefix));
        let listed: Vec<Name> = prefixes.filter(|_| is_unknown).collect();
        self.committer
            .commit(Vec::new(), move |change| {
                listed.iter().try_for_each(|prefix| change.forget_imported(prefix))?;
                change.set_state(&key, &identity)
            })
            .await
            .map_err(failed)
    }

    /// Buckets whose directory is not there, or is another one than was opened.
    pub(crate) fn away_stores(&self) -> Vec<String> {
        let states = self.bucket_states();
        states.iter().filter(|state| state.backend.is_away()).map(|state| state.name.clone()).collect()
    }

    /// Looks at each directory now and then, for as long as the engine lives. What waits for one that has come back goes there at once.
    pub(super) fn start_watching(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut returns: HashMap<String, u64> = HashMap::new();
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let Some(engine) = engine.upgrade() else { return };
                for state in engine.bucket_states() {
                    // Its log says what became of it.
                    let _ = state.backend.check_there().await;
                    let Some(now) = state.backend.returns() else { continue };
                    if returns.insert(state.name.clone(), now).unwrap_or(0) != now {
                        engine.queue.hasten_bucket(&state.name);
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::journal::Noted;
    use crate::meta::{Committer, Metadata};
    use crate::model::StoredRecord;
    use crate::store::Kind;

    #[tokio::test]
    async fn what_is_recorded_is_looked_for() {
        let (local, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let metadata = Metadata::open(&local.path().join("metadata"), 1 << 20, Noted::default()).unwrap();
        let committer = Committer::start(metadata.database(), |_| {}).unwrap();
        let name = |bucket: &str, key: &str| Name::new(bucket, key);
        let enter = committer.commit(Vec::new(), move |change| {
            for name in [name("lake", "a"), name("lake", "dir/b"), name("other", "c")] {
                change.set_stored(&name, Some(&StoredRecord { content: None }))?;
            }
            change.mark_pending(&name("lake", "a"))
        });
        enter.await.unwrap();
        let store = Arc::new(object_store::memory::InMemory::new());
        let backend = Backend::new(store, Kind::Directory).at(root.path()).unwrap();
        let look = |bucket: &str| {
            let found = look(&metadata.view().unwrap(), bucket, &backend, root.path()).unwrap();
            (found.sure, found.any, found.has_some, found.is_empty)
        };
        assert_eq!((look("lake"), look("none")), ((1, 2, false, true), (0, 0, false, true)));
        std::fs::create_dir(root.path().join("dir")).unwrap();
        assert_eq!(look("lake"), (1, 2, false, false));
        std::fs::write(root.path().join(OWNERS), "a cluster").unwrap();
        assert_eq!((look("lake").2, look("none").2), (true, true));
        std::fs::remove_file(root.path().join(OWNERS)).unwrap();
        std::fs::write(root.path().join("dir/b"), "b").unwrap();
        assert_eq!(look("lake"), (1, 2, true, false));
    }
}
