//! Taking over what is in a store already: a prefix that is ours alone is listed once, and from then on the metadata
//! are the truth.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt as _;

use super::listed::{BATCH, enter_listed};
use super::regions::PrefixRegions;
use super::{BucketState, GatewayEngine, slots};
use crate::config::StoreConsistency;
use crate::errors::{GatewayError, GatewayResult};
use crate::meta::{MetadataChange, ObjectName};
use crate::model::{ContentPlace, StoredRecord};
use crate::staged::is_staged;
use crate::store::{STORE_TIMEOUT, StoreBackend};

/// Under which the metadata have the prefixes of a bucket whose names are being forgotten.
fn forgetting_key(bucket: &str) -> Vec<u8> {
    format!("forgetting {bucket}").into_bytes()
}

/// How far a gateway is that is being opened. Most of the time it takes goes by with listing.
#[derive(Debug, Default)]
pub(crate) struct ImportProgress {
    listed: AtomicU64,
}

impl ImportProgress {
    /// Objects that stores have listed so far.
    pub(crate) fn listed(&self) -> u64 {
        self.listed.load(Ordering::Relaxed)
    }
}

/// Under which the metadata have the endpoint at which a bucket's store was last.
fn endpoint_key(bucket: &str) -> Vec<u8> {
    format!("endpoint {bucket}").into_bytes()
}

/// Removes the notes of a bucket that has gone: of its endpoint, and of prefixes whose names were being forgotten.
pub(super) fn forget_listing(change: &mut MetadataChange<'_>, bucket: &str) -> GatewayResult<()> {
    change.remove_state(&endpoint_key(bucket))?;
    change.remove_state(&forgetting_key(bucket))
}

impl GatewayEngine {
    /// Brings the metadata in line with the rules: prefixes that are new to us are listed, and those that are no longer
    /// ours alone are forgotten.
    pub(super) async fn take_over(&self, progress: &ImportProgress) -> std::result::Result<(), String> {
        for state in self.bucket_states().into_iter().filter(|state| !state.is_going()) {
            self.forget_rest(&state).await?;
            for rule in state.rules.iter().filter(|rule| rule.rule.consistency != StoreConsistency::Exclusive)
            {
                self.forget(&state, &ObjectName::new(&state.name, &rule.rule.prefix)).await?;
            }
            self.check_endpoint(&state).await?;
            let wanted = PrefixRegions::wanted(&state.rules);
            let regions = self.metadata.view().and_then(|view| PrefixRegions::known(&view, &state.name));
            let regions = regions.map_err(|error| error.to_string())?;
            let is_missing = !regions.missing(&wanted).is_empty() && self.lists_missing()?;
            // Its contents are unknown before it is mounted.
            if state.backend.is_awaited() && is_missing {
                state.is_unlisted.store(true, Ordering::Relaxed);
                continue;
            }
            self.list_missing(&state, &state.backend, progress).await?;
        }
        Ok(())
    }

    /// A store that is reached at another endpoint than before may be another one of the same name: what it has is
    /// listed anew.
    async fn check_endpoint(&self, state: &BucketState) -> std::result::Result<(), String> {
        let Some(endpoint) = state.backend.endpoint().map(str::to_owned) else { return Ok(()) };
        let (bucket, key) = (state.name.clone(), endpoint_key(&state.name));
        let checked = self.committer.commit(Vec::new(), move |change| {
            let former = change.state::<String>(&key)?;
            if former.as_ref() == Some(&endpoint) {
                return Ok(());
            }
            if let Some(former) = former {
                tracing::warn!(
                    "bucket {bucket} was at {former} and is at {endpoint} now: the gateway lists it again"
                );
                PrefixRegions::note(change, &bucket, |_| PrefixRegions::default())?;
            }
            change.set_state(&key, &endpoint)
        });
        checked.await.map_err(|error| error.to_string())
    }

    /// Whether what the rules have made ours is listed at all. Several gateways list what they take, slot by slot: only
    /// what one has already lacks it.
    fn lists_missing(&self) -> std::result::Result<bool, String> {
        let held_slots = slots::held_of(&self.metadata).map_err(|error| error.to_string())?;
        Ok(self.setup.sharing.is_none() || !held_slots.is_empty())
    }

    /// Of a bucket that was away until now: lists in `backend` what is not known of it.
    pub(super) async fn import_late(
        &self,
        state: &BucketState,
        backend: &StoreBackend,
    ) -> std::result::Result<(), String> {
        self.list_missing(state, backend, &ImportProgress::default()).await
    }

    async fn list_missing(
        &self,
        state: &BucketState,
        backend: &StoreBackend,
        progress: &ImportProgress,
    ) -> std::result::Result<(), String> {
        let failed = |error: GatewayError| error.to_string();
        let wanted = PrefixRegions::wanted(&state.rules);
        let regions =
            self.metadata.view().and_then(|view| PrefixRegions::known(&view, &state.name)).map_err(failed)?;
        let divided = regions.divided_by(&wanted);
        let missing = if self.lists_missing()? { regions.missing(&wanted) } else { Vec::new() };
        for prefix in missing {
            self.import(state, backend, &prefix, &divided, progress).await?;
        }
        if regions == wanted {
            return Ok(());
        }
        // Prefixes that decide nothing any more are left out.
        let (bucket, whose) = (state.name.clone(), state.identity());
        let noted = self.committer.commit(Vec::new(), move |change| {
            whose.check(change)?;
            PrefixRegions::note(change, &bucket, |_| wanted)?;
            // By which an earlier version would believe that it knows what it may not.
            change.forget_imported(&bucket)
        });
        noted.await.map_err(failed)
    }

    async fn import(
        &self,
        state: &BucketState,
        backend: &StoreBackend,
        prefix: &str,
        divided: &PrefixRegions,
        progress: &ImportProgress,
    ) -> std::result::Result<(), String> {
        let by_slots = self.setup.sharing.is_some();
        let failed = |error: &dyn std::fmt::Display| {
            format!("cannot list the store of bucket {}: {error}", state.name)
        };
        self.check_whose_at(state, backend).await.map_err(|error| failed(&error))?;
        let mut listed = backend.list(prefix).map_err(|error| failed(&error))?;
        let (mut batch, mut count) = (Vec::new(), 0_u64);
        loop {
            // A directory that hangs would keep the gateway from ever being open, and from saying so.
            let next = tokio::time::timeout(STORE_TIMEOUT, listed.next()).await;
            let next = next.map_err(|_| failed(&format!("no answer for {} s", STORE_TIMEOUT.as_secs())))?;
            let entry = next.transpose().map_err(|error| failed(&error))?;
            let is_over = entry.is_none();
            if let Some((key, found)) = entry
                && divided.decides(prefix, &key)
            {
                let name = ObjectName::new(&state.name, key);
                let slot = by_slots.then(|| self.slot_of_key(&name.bucket, &name.key));
                batch.push((name, found, (self.number(), self.number()), slot));
                progress.listed.fetch_add(1, Ordering::Relaxed);
            }
            if batch.len() >= BATCH || is_over {
                count += batch.len() as u64;
                let rows = std::mem::take(&mut batch);
                let (done, kind) =
                    (is_over.then(|| (divided.clone(), prefix.to_owned())), state.backend.kind);
                let (bucket, whose) = (state.name.clone(), state.identity());
                self.committer
                    .commit(Vec::new(), move |change| {
                        // A bucket that was removed meanwhile gets no rows any more, nor does one made anew.
                        whose.check(change)?;
                        for (name, found, numbers, slot) in &rows {
                            if slot.map_or(Ok(false), |slot| {
                                slots::is_held(change, slot).map(|is_ours| !is_ours)
                            })? {
                                continue;
                            }
                            // Clients' earlier changes take precedence, and have to get there: also a deletion.
                            if change.object(name)?.is_none() && change.pending(name)?.is_none() {
                                enter_listed(change, name, found, *numbers, kind)?;
                            } else if change.stored(name)?.is_none() {
                                change.set_stored(name, Some(&StoredRecord { content: None }))?;
                                change.mark_pending(name)?;
                            }
                        }
                        done.map_or(Ok(()), |(divided, prefix)| {
                            PrefixRegions::note(change, &bucket, |regions| {
                                regions.divided_by(&divided).with(&prefix)
                            })
                        })
                    })
                    .await
                    .map_err(|error| failed(&error))?;
                if count > 0 && (is_over || count.is_multiple_of(100_000)) {
                    let of_prefix = ObjectName::new(&state.name, prefix);
                    tracing::info!("took over {count} objects of {of_prefix}");
                }
            }
            if is_over {
                return Ok(());
            }
        }
    }

    /// How many contents that lie in the store under names of `predicate` are used by objects of other names, or by
    /// parts.
    pub(super) fn needed_elsewhere(&self, predicate: impl Fn(&ObjectName) -> bool) -> GatewayResult<usize> {
        let view = self.metadata.view()?;
        let mut used = HashMap::new();
        view.each_content(|id, record| {
            if let ContentPlace::Remote { bucket, key, .. } = &record.place
                && predicate(&ObjectName::new(bucket, key))
            {
                used.insert(id, record.references);
            }
            Ok(())
        })?;
        if used.is_empty() {
            return Ok(0);
        }
        view.each_object(|name, record| {
            if predicate(&name) {
                for extent in &record.extents {
                    if let Some(references) = used.get_mut(&extent.content) {
                        *references = references.saturating_sub(1);
                    }
                }
            }
            Ok(())
        })?;
        Ok(used.values().filter(|references| **references > 0).count())
    }

    async fn forget(&self, state: &BucketState, prefix: &ObjectName) -> std::result::Result<(), String> {
        let view = self.metadata.view().map_err(|error| error.to_string())?;
        let is_theirs = |name: &ObjectName| {
            name.bucket == state.name
                && name.key.starts_with(&prefix.key)
                && !state.is_exclusive(&name.key)
                // Parts of uploads belong to no rule.
                && !is_staged(&name.key)
        };
        let left = view.count_pending(is_theirs).map_err(|error| error.to_string())?;
        drop(view);
        if left > 0 {
            return Err(format!(
                "{prefix} is no longer exclusive, and {left} of its objects are not in the store yet\n  what to do: set consistency = \"exclusive\" again, run `underlay-gateway drain`, and change it then"
            ));
        }
        let target = prefix.clone();
        let listed =
            self.committer.commit(Vec::new(), move |change| change.names_below(&target, usize::MAX)).await;
        let theirs: Vec<ObjectName> =
            listed.map_err(|error| error.to_string())?.into_iter().filter(|name| is_theirs(name)).collect();
        if !theirs.is_empty() {
            let set: HashSet<&ObjectName> = theirs.iter().collect();
            let needed =
                self.needed_elsewhere(|name| set.contains(name)).map_err(|error| error.to_string())?;
            if needed > 0 {
                return Err(format!(
                    "{prefix} is no longer exclusive, and copies or unfinished uploads elsewhere need the bytes of {needed} of its objects\n  what to do: set consistency = \"exclusive\" again, complete or abort those uploads, run `underlay-gateway drain`, and change it then"
                ));
            }
        }
        // Noted first: if this ends half-way, they are listed before they count again, and the next start forgets the
        // rest before that.
        let (bucket, wanted) = (state.name.clone(), PrefixRegions::wanted(&state.rules));
        let prefix = prefix.key.clone();
        let noted = self.committer.commit(Vec::new(), move |change| {
            if !theirs.is_empty() {
                let mut prefixes: Vec<String> = change.state(&forgetting_key(&bucket))?.unwrap_or_default();
                prefixes.push(prefix);
                change.set_state(&forgetting_key(&bucket), &prefixes)?;
            }
            PrefixRegions::note(change, &bucket, |regions| regions.without_unwanted(&wanted))
        });
        noted.await.map_err(|error| error.to_string())?;
        self.forget_rest(state).await
    }

    /// Forgets what is left of what was being forgotten. By now the rule may be back, and others may have written there
    /// meanwhile.
    async fn forget_rest(&self, state: &BucketState) -> std::result::Result<(), String> {
        let failed = |error: GatewayError| error.to_string();
        let (prefixes, regions) = {
            let view = self.metadata.view().map_err(failed)?;
            let prefixes: Option<Vec<String>> = view.state(&forgetting_key(&state.name)).map_err(failed)?;
            (prefixes.unwrap_or_default(), PrefixRegions::known(&view, &state.name).map_err(failed)?)
        };
        if prefixes.is_empty() {
            return Ok(());
        }
        for prefix in prefixes {
            let target = ObjectName::new(&state.name, prefix);
            let below =
                self.committer.commit(Vec::new(), move |change| change.names_below(&target, usize::MAX));
            let below = below.await.map_err(failed)?;
            // Parts of uploads belong to no rule.
            let is_left = |name: &ObjectName| !regions.covers(&name.key) && !is_staged(&name.key);
            let left: Vec<ObjectName> = below.into_iter().filter(is_left).collect();
            for names in left.chunks(BATCH) {
                let names = names.to_vec();
                let forgotten = self.committer.commit(Vec::new(), move |change| {
                    for name in &names {
                        // The store does not decide about writes made here.
                        if change.pending(name)?.is_none() {
                            change.set_object(name, None)?;
                            change.set_stored(name, None)?;
                        }
                    }
                    Ok(())
                });
                forgotten.await.map_err(failed)?;
            }
        }
        let key = forgetting_key(&state.name);
        let done =
            self.committer.commit(Vec::new(), move |change| change.set_state(&key, &Vec::<String>::new()));
        done.await.map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use object_store::memory::InMemory;
    use object_store::{ObjectStore, ObjectStoreExt as _};

    use super::*;
    use crate::config::{BucketConfig, LocalConfig, PrefixRule, StorePlace, WriteMode};
    use crate::engine::{EngineSetup, ListRequest};
    use crate::store::BackendKind;

    async fn open(local: &Path, store: &Arc<InMemory>, consistency: StoreConsistency) -> Arc<GatewayEngine> {
        let shared: Arc<dyn ObjectStore> = store.clone();
        let backend = StoreBackend::new(shared, BackendKind::S3);
        let rule = |prefix: &str, consistency| PrefixRule {
            prefix: prefix.to_owned(),
            write: WriteMode::Through,
            consistency,
        };
        let setup = || EngineSetup {
            local: LocalConfig {
                directory: local.to_owned(),
                journal_bytes: 64 << 20,
                memory_bytes: 8 << 20,
                flash_bytes: 0,
                block_bytes: 64 << 10,
                metadata_bytes: 4 << 20,
                encryption: None,
            },
            patience: Duration::from_secs(5),
            flushes: 2,
            uploads_expire: Duration::from_secs(3600),
            buckets: vec![BucketConfig {
                name: "lake".to_owned(),
                store: StorePlace::Directory("/the/store/of/the/test".into()),
                rules: vec![rule("tmp/", consistency), rule("", StoreConsistency::Exclusive)],
            }],
            new_buckets: None,
            open_store: Box::new({
                let backend = backend.clone();
                move |_| Ok(backend.clone())
            }),
            create_place: Box::new(|_, _| Err("not here".to_owned())),
            sharing: None,
            alone: None,
            at_rest: None,
            into_empty: Vec::new(),
        };
        // The thread of the one before closes the metadata a moment after its engine has gone.
        let begun = std::time::Instant::now();
        loop {
            match GatewayEngine::open(setup()).await {
                Ok(engine) => return engine,
                Err(reason) => assert!(begun.elapsed() < Duration::from_secs(60), "{reason}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn close(engine: Arc<GatewayEngine>) {
        engine.close().await;
        // Its loops let go of the directory one by one.
        let weak = Arc::downgrade(&engine);
        drop(engine);
        let begun = std::time::Instant::now();
        while weak.strong_count() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is still there");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A bucket that was removed while it was listed, and made anew, gets no rows of the former.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn listing_of_former_bucket_enters_nothing_in_new_one() {
        let directory = tempfile::tempdir().unwrap();
        let (local, store) = (directory.path().join("local"), Arc::new(InMemory::new()));
        let engine = open(&local, &store, StoreConsistency::Exclusive).await;
        let former = engine.bucket("lake").unwrap();
        store.put(&"stale".into(), "bytes".into()).await.unwrap();
        let remade = engine.committer.commit(Vec::new(), move |change| {
            let record = change.bucket("lake")?.ok_or(GatewayError::NoSuchBucket)?;
            PrefixRegions::forget(change, "lake")?;
            let created_ms = record.created_ms + 1;
            change.set_bucket("lake", &crate::model::BucketRecord { created_ms, ..record })
        });
        remade.await.unwrap();
        assert!(engine.import_late(&former, &former.backend).await.is_err());
        let name = ObjectName::new("lake", "stale");
        assert!(engine.metadata.view().unwrap().object(&name).unwrap().is_none());
        close(engine).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn half_forgotten_prefix_is_relisted_when_rule_returns() {
        let directory = tempfile::tempdir().unwrap();
        let (local, store) = (directory.path().join("local"), Arc::new(InMemory::new()));
        for key in ["tmp/a", "tmp/b", "other"] {
            store.put(&key.into(), "bytes".into()).await.unwrap();
        }
        close(open(&local, &store, StoreConsistency::Exclusive).await).await;
        // The rule lets others write; and as a kill in the middle would, this leaves one of the names.
        let engine = open(&local, &store, StoreConsistency::Revalidate).await;
        let found = engine.bucket("lake").unwrap().backend.head("tmp/b").await.unwrap();
        let numbers = (engine.number(), engine.number());
        let left = engine.committer.commit(Vec::new(), move |change| {
            enter_listed(change, &ObjectName::new("lake", "tmp/b"), &found, numbers, BackendKind::S3)?;
            change.set_state(&forgetting_key("lake"), &vec!["tmp/".to_owned()])
        });
        left.await.unwrap();
        close(engine).await;
        // Others write there, and then the rule is taken back.
        store.delete(&"tmp/b".into()).await.unwrap();
        store.put(&"tmp/c".into(), "bytes".into()).await.unwrap();
        let engine = open(&local, &store, StoreConsistency::Exclusive).await;
        let request = ListRequest { most: 9, ..ListRequest::default() };
        let listed = engine.list("lake", &request).await.unwrap();
        let names: Vec<&str> = listed.entries.iter().map(|entry| entry.name()).collect();
        assert_eq!(names, ["other", "tmp/a", "tmp/c"]);
        let left: Option<Vec<String>> =
            engine.metadata.view().unwrap().state(&forgetting_key("lake")).unwrap();
        assert_eq!(left, Some(Vec::new()));
        close(engine).await;
    }
}
