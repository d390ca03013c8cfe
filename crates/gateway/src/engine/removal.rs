//! Removing a bucket. One commit makes it a bucket that is *going*: clients find none of that name, also behind a
//! restart. The parts of its unfinished uploads in its store are deleted after that, however long the store takes. Then
//! the name is free.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::RwLockReadGuard;
use tokio::time::{Instant, sleep, timeout};

use super::import::forget_listing;
use super::mounted::forget_root;
use super::regions::PrefixRegions;
use super::slots::marked_key;
use super::to_its_end::to_its_end;
use super::{BucketState, GatewayEngine};
use crate::config::{StoreConsistency, StorePlace};
use crate::disk_room::DiskNeed;
use crate::errors::{GatewayError, GatewayResult};
use crate::meta::{MetadataChange, ObjectName};
use crate::model::BucketRecord;

/// Under which the metadata have the buckets that are going.
const GOING: &[u8] = b"going";
/// How long a client waits for its store, before the bucket is going and then until it has gone.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);
/// Uploads that end in one commit, and their parts; the last upload may have 9,999 more. Other changes wait for it.
const MAX_UPLOADS_PER_STEP: usize = 500;
const MAX_PARTS_PER_STEP: usize = 10_000;
/// How often it is looked whether those that are going can go.
const LOOK_EVERY: Duration = Duration::from_millis(500);

type GoingBuckets = Vec<(String, BucketRecord)>;

/// Names of buckets that were removed lately.
#[derive(Debug, Default)]
pub(super) struct RecentRemovals {
    pub(super) count: u64,
    names: VecDeque<String>,
}

/// Removals whose names are remembered.
const MAX_REMOVALS: usize = 1024;

impl RecentRemovals {
    fn note(&mut self, name: &str) {
        self.count += 1;
        self.names.push_back(name.to_owned());
        if self.names.len() > MAX_REMOVALS {
            self.names.pop_front();
        }
    }

    /// Whether one of this name was removed since there were so many. Where too many have been since then, it may
    /// have been.
    pub(super) fn have_had(&self, name: &str, since: u64) -> bool {
        let new = (self.count - since) as usize;
        new > self.names.len() || self.names.iter().rev().take(new).any(|removed| removed == name)
    }
}

/// Which bucket of its name a change is about: a client may have removed it since the change was planned, and made
/// another one.
#[derive(Clone, Debug)]
pub(super) struct BucketIdentity {
    name: String,
    created_ms: i64,
}

impl BucketIdentity {
    /// # Errors
    /// `NoSuchBucket` where the bucket has gone, or is going.
    pub(super) fn check(&self, change: &MetadataChange<'_>) -> GatewayResult<()> {
        let record = change.bucket(&self.name)?.filter(|record| record.created_ms == self.created_ms);
        record.map(drop).ok_or(GatewayError::NoSuchBucket)
    }

    /// The same, for what a bucket that is going needs, too.
    ///
    /// # Errors
    /// `NoSuchBucket` where the bucket has gone.
    pub(super) fn check_with_going(&self, change: &MetadataChange<'_>) -> GatewayResult<()> {
        let is_going = |(name, record): &(String, BucketRecord)| {
            *name == self.name && record.created_ms == self.created_ms
        };
        if going_in(change)?.iter().any(is_going) { Ok(()) } else { self.check(change) }
    }
}

impl BucketState {
    pub(super) fn identity(&self) -> BucketIdentity {
        BucketIdentity { name: self.name.clone(), created_ms: self.created_ms }
    }

    pub(super) fn is_going(&self) -> bool {
        self.is_going.load(Ordering::Relaxed)
    }

    /// For a request that changes the store and no row of ours: the bucket stays while the guard lives.
    ///
    /// # Errors
    /// `NoSuchBucket` once it is going.
    pub(super) async fn enter(&self) -> GatewayResult<RwLockReadGuard<'_, ()>> {
        let guard = self.gate.read().await;
        if self.is_going() { Err(GatewayError::NoSuchBucket) } else { Ok(guard) }
    }
}

impl GatewayEngine {
    /// Removes an empty bucket that a client created. Its unfinished uploads end with it.
    ///
    /// # Errors
    /// When it is not empty, or the configuration's. Then it keeps its uploads.
    pub async fn delete_bucket(self: &Arc<Self>, name: &str) -> GatewayResult<()> {
        self.disk.check(DiskNeed::Deletion)?;
        let state = self.bucket(name)?;
        if !state.is_created {
            return Err(GatewayError::NotImplemented(format!(
                "bucket {name} is the configuration's: remove [bucket.{name}] there"
            )));
        }
        let until = Instant::now() + PATIENCE;
        // Deleted objects have to be gone from the store first. It is hastened once: asking often makes no store
        // faster.
        self.queue.hasten_new_in(name);
        while !self.begin_removal(&state).await? {
            if Instant::now() >= until {
                return Err(GatewayError::Busy(
                    "objects of the bucket are still being deleted from its store: try again".to_owned(),
                ));
            }
            sleep(PAUSE).await;
        }
        // From here on it has been removed, even if later steps fail. Who waits a moment finds the name free.
        loop {
            match self.finish_removal(&state).await {
                Ok(true) => return Ok(()),
                Ok(false) if Instant::now() < until => sleep(PAUSE).await,
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!("bucket {name} is removed, and its name not free yet: {error}");
                    return Ok(());
                }
            }
        }
        tracing::info!(
            "bucket {name} is removed, and its name is free once its store has deleted the parts of uploads"
        );
        Ok(())
    }

    /// Makes the bucket one that is going, if nothing but uploads is left of it. Returns whether it is.
    async fn begin_removal(self: &Arc<Self>, state: &Arc<BucketState>) -> GatewayResult<bool> {
        let (engine, state) = (Arc::clone(self), Arc::clone(state));
        to_its_end(async move {
            let Ok(_closed) = timeout(PATIENCE, state.gate.write()).await else { return Ok(false) };
            // Of what others write there, the metadata know nothing.
            if state.rules.iter().any(|rule| rule.rule.consistency != StoreConsistency::Exclusive)
                && !state.backend.is_empty().await?
            {
                return Err(GatewayError::BucketNotEmpty);
            }
            // Another bucket may be waiting for its store, and requests of this one wait behind its closed gate.
            let turn = timeout(PATIENCE, Arc::clone(&engine.making).lock_owned()).await;
            let Ok(_turn) = turn else { return Ok(false) };
            // A former removal may have gone further meanwhile, and a client may have made the bucket anew.
            if state.is_going() || !engine.serves(&state) {
                return Err(GatewayError::NoSuchBucket);
            }
            let bucket = state.name.clone();
            let begun = engine.committer.commit(Vec::new(), move |change| {
                let record = change.bucket(&bucket)?.ok_or(GatewayError::NoSuchBucket)?;
                if change.first_key_from(&ObjectName::new(&bucket, ""))?.is_some() {
                    return Err(GatewayError::BucketNotEmpty);
                }
                if change.bucket_has_more_than_uploads(&bucket)? {
                    return Ok(false);
                }
                let mut going = going_in(change)?;
                going.retain(|(other, _)| *other != bucket);
                going.push((bucket.clone(), record));
                change.set_state(GOING, &going)?;
                PrefixRegions::note(change, &bucket, |_| PrefixRegions::default())?;
                change.remove_bucket(&bucket).map(|()| true)
            });
            let has_begun = begun.await?;
            state.is_going.fetch_or(has_begun, Ordering::Relaxed);
            Ok(has_begun)
        })
        .await
    }

    /// Ends uploads of a bucket that is going, and removes it once nothing is left of it. Returns whether it has gone.
    async fn finish_removal(self: &Arc<Self>, state: &Arc<BucketState>) -> GatewayResult<bool> {
        let (engine, state) = (Arc::clone(self), Arc::clone(state));
        to_its_end(async move {
            // Nobody makes it anew, in the directory that goes, before it has gone.
            let mut removals = Arc::clone(&engine.making).lock_owned().await;
            if !engine.serves(&state) {
                return Ok(true);
            }
            let bucket = state.name.clone();
            let ended = engine.committer.commit(Vec::new(), move |change| {
                let mut parts = 0;
                for (name, upload) in change.uploads_in(&bucket, MAX_UPLOADS_PER_STEP)? {
                    parts += change.remove_upload(&name, &upload)?;
                    if parts >= MAX_PARTS_PER_STEP {
                        break;
                    }
                }
                if change.bucket_has_rows(&bucket)? {
                    return Ok(false);
                }
                let mut going = going_in(change)?;
                going.retain(|(other, _)| *other != bucket);
                // Clients that make and remove ever new names leave nothing here.
                PrefixRegions::forget(change, &bucket)?;
                forget_root(change, &bucket)?;
                forget_listing(change, &bucket)?;
                change.remove_state(&marked_key(&bucket))?;
                change.set_state(GOING, &going).map(|()| true)
            });
            if !ended.await? {
                return Ok(false);
            }
            removals.note(&state.name);
            engine.late_of_removed.lock().insert(state.name.clone(), Arc::clone(state.backend.late()));
            engine.served.buckets.write().remove(&state.name);
            // A directory that is not mounted is left alone.
            if let StorePlace::Directory(directory) = &state.place
                && state.backend.check_there().await.is_ok()
            {
                remove_empty(directory);
                if directory.exists() {
                    tracing::warn!(
                        "bucket {} is removed, and {} stays: most likely there is something in it that is none of its objects",
                        state.name,
                        directory.display()
                    );
                }
            }
            Ok(true)
        })
        .await
    }

    /// Buckets that were going when the last start ended.
    pub(super) fn going_buckets(&self) -> GatewayResult<GoingBuckets> {
        Ok(self.metadata.view()?.state(GOING)?.unwrap_or_default())
    }

    /// Goes on with buckets that are going, for as long as the engine lives.
    pub(super) fn start_removing(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        self.supervisor.run("remover of buckets", move || {
            let engine = engine.clone();
            async move {
                loop {
                    sleep(LOOK_EVERY).await;
                    let Some(engine) = engine.upgrade().filter(|engine| !engine.queue.is_stopped()) else {
                        return;
                    };
                    for state in engine.bucket_states().iter().filter(|state| state.is_going()) {
                        match engine.finish_removal(state).await {
                            Ok(true) => {
                                tracing::info!("the name of the removed bucket {} is free", state.name)
                            }
                            Ok(false) => {}
                            Err(error) => tracing::warn!(
                                "bucket {} is removed, and its name not free yet: {error}",
                                state.name
                            ),
                        }
                    }
                }
            }
        });
    }
}

fn going_in(change: &MetadataChange<'_>) -> GatewayResult<GoingBuckets> {
    Ok(change.state(GOING)?.unwrap_or_default())
}

/// Directories that are left when their objects have gone, from the innermost outwards.
fn remove_empty(directory: &std::path::Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    // One that is not empty stays.
    let _ = std::fs::remove_dir(directory);
}
