//! Buckets: those of the configuration, and those that clients make and remove.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use underlay_files::{Access, Folder};
use underlay_sync::Mutex;
use underlay_sync::rate_limited_log::RateLimitedLog;

use super::list::FOLDER_STEPS;
use super::placing::KeyClaims;
use super::regions::PrefixRegions;
use super::sent::OfBucket;
use super::suitable::StoreAge;
use super::to_its_end::to_its_end;
use super::{BucketState, GatewayEngine, RuleState};
use crate::config::{PrefixRule, StorePlace};
use crate::disk_room::DiskNeed;
use crate::errors::{GatewayError, GatewayResult};
use crate::model::{BucketRecord, now_ms};
use crate::store::{BackendKind, StorePlaces};

/// Of one gateway, as S3 gives an account by default.
pub(crate) const MAX_BUCKETS: usize = 10_000;

/// How many buckets there may be.
pub(super) struct BucketLimits {
    /// The directory of each stays open, and connections need descriptors as well.
    most_directories: AtomicUsize,
    refusals: RateLimitedLog,
}

impl Default for BucketLimits {
    fn default() -> BucketLimits {
        BucketLimits { most_directories: AtomicUsize::new(usize::MAX), refusals: RateLimitedLog::default() }
    }
}

impl GatewayEngine {
    /// Has clients make no bucket in a directory once so many directories are stores.
    pub fn limit_directories(&self, most: usize) {
        self.bucket_limits.most_directories.store(most, Ordering::Relaxed);
    }

    /// # Errors
    /// `TooManyBuckets` where there may be no more of those that clients make.
    fn check_count(&self, under: &StorePlace) -> GatewayResult<()> {
        let (buckets, directories) = (self.served.buckets.read().len(), self.count_directories());
        let most_directories = self.bucket_limits.most_directories.load(Ordering::Relaxed);
        let what_to_do = match under {
            _ if buckets >= MAX_BUCKETS => "remove buckets that nobody needs",
            StorePlace::Directory(_) if directories >= most_directories => {
                "raise the limit of open files (`ulimit -n`, or LimitNOFILE= of the service): each bucket takes one"
            }
            _ => return Ok(()),
        };
        if let Some(count) = self.bucket_limits.refusals.count() {
            tracing::warn!(
                "{count} buckets were not made: there are {buckets} and may be no more\n  what to do: {what_to_do}"
            );
        }
        Err(GatewayError::TooManyBuckets(format!(
            "the gateway has {buckets} buckets, and may have no more: remove some, or ask its administrator"
        )))
    }

    fn state_of(
        &self,
        name: &str,
        place: &StorePlace,
        rules: &[PrefixRule],
        record: &BucketRecord,
    ) -> std::result::Result<BucketState, String> {
        let backend = (self.setup.open_store)(place)
            .map_err(|problem| format!("the store of bucket {name}: {problem}"))?
            .with_memory(self.storing.clone());
        backend.late().limit_by(match backend.kind {
            BackendKind::S3 => Arc::clone(&self.s3_late_places),
            BackendKind::Directory => StorePlaces::new(Arc::clone(&self.late_places)),
        });
        // Requests to a directory end with the gateway.
        if backend.kind == BackendKind::S3 {
            let (log, bucket) = (Arc::clone(&self.sent), name.to_owned());
            backend.late().note_sent_in(Arc::new(OfBucket { log, bucket }));
        }
        let rules = rules
            .iter()
            .map(|rule| RuleState { rule: rule.clone(), counts: Arc::default(), fresh: self.fresh.prefix() })
            .collect();
        Ok(BucketState {
            name: name.to_owned(),
            backend,
            created_ms: record.created_ms,
            is_created: record.is_created,
            place: place.clone(),
            rules,
            looked: Mutex::default(),
            is_unlisted: AtomicBool::new(false),
            is_going: AtomicBool::new(false),
            gate: tokio::sync::RwLock::default(),
            claims: KeyClaims::default(),
            folder_steps: tokio::sync::Semaphore::new(FOLDER_STEPS),
        })
    }

    pub(super) async fn open_buckets(&self) -> std::result::Result<(), String> {
        let recorded =
            self.metadata.view().and_then(|view| view.all_buckets()).map_err(|error| error.to_string())?;
        let going = self.going_buckets().map_err(|error| error.to_string())?;
        self.open_under(recorded.iter().chain(&going).any(|(_, record)| record.is_created));
        let mut states = HashMap::new();
        for bucket in &self.setup.buckets {
            let place = bucket.store.to_string();
            let former =
                recorded.iter().find(|(name, _)| *name == bucket.name).map(|(_, record)| record.clone());
            if let Some(former) = &former
                && former.store != place
            {
                return Err(format!(
                    "bucket {} was over {} and is now over {place}, so the gateway's metadata of its objects are wrong\n  what to do: give the new store a new bucket name, or another directory in [local]",
                    bucket.name, former.store
                ));
            }
            if let (None, Some((_, going))) = (&former, going.iter().find(|(name, _)| *name == bucket.name)) {
                return Err(format!(
                    "a client has removed its bucket {}, and parts of uploads are still to be deleted from {}\n  \
                     what to do: keep [new_buckets] and leave out [bucket.{}] until the log reports that its name is \
                     free, or give the bucket another name",
                    bucket.name, going.store, bucket.name
                ));
            }
            let record = former.unwrap_or_else(|| BucketRecord {
                created_ms: now_ms(),
                store: place,
                is_created: false,
            });
            let (name, row) = (bucket.name.clone(), record.clone());
            self.committer
                .commit(Vec::new(), move |change| match change.bucket(&name)? {
                    Some(_) => Ok(()),
                    None => change.set_bucket(&name, &row),
                })
                .await
                .map_err(|error| error.to_string())?;
            states.insert(
                bucket.name.clone(),
                Arc::new(self.state_of(&bucket.name, &bucket.store, &bucket.rules, &record)?),
            );
        }
        // Of one that is going and was made anew, nothing is left to go.
        let is_known = |name: &String| recorded.iter().any(|(other, _)| other == name);
        let going = going.iter().filter(|(name, _)| !is_known(name)).map(|row| (row, true));
        for ((name, record), is_going) in recorded.iter().map(|row| (row, false)).chain(going) {
            if states.contains_key(name) {
                continue;
            }
            match (&self.setup.new_buckets, record.is_created) {
                (Some(new), true) => {
                    let place = StorePlace::parse(&record.store).ok_or_else(|| {
                        format!("bucket {name} is over {}, which is no store", record.store)
                    })?;
                    let state = self.state_of(name, &place, std::slice::from_ref(&new.rule), record)?;
                    state.is_going.store(is_going, Ordering::Relaxed);
                    states.insert(name.clone(), Arc::new(state));
                }
                _ => {
                    let section =
                        if record.is_created { "new_buckets".to_owned() } else { format!("bucket.{name}") };
                    self.check_left_out(name, &section)?;
                }
            }
        }
        *self.served.buckets.write() = states;
        Ok(())
    }

    /// Opens the directory below which clients make buckets. It is made only where nothing was made in it yet: later it
    /// is one to be mounted.
    fn open_under(&self, has_created: bool) {
        let Some(new) = &self.setup.new_buckets else { return };
        let StorePlace::Directory(directory) = &new.under else { return };
        if !has_created && let Err(error) = Folder::make(directory, Access::Private) {
            tracing::debug!("{}: {error}", directory.display());
        }
        match (self.setup.open_store)(&new.under) {
            // It is opened once.
            Ok(backend) => drop(self.under.set(backend)),
            Err(reason) => tracing::warn!(
                "clients can make no buckets, since the directory of [new_buckets] can't be used: {reason}\n  what to do: mount it, or make it, and start the gateway again"
            ),
        }
    }

    /// # Errors
    /// When the directory below which clients make buckets is not there now.
    async fn check_under(&self, under: &StorePlace) -> GatewayResult<()> {
        match (under, self.under.get()) {
            (StorePlace::S3 { .. }, _) => Ok(()),
            (StorePlace::Directory(_), Some(under)) => under.check_there().await,
            (StorePlace::Directory(_), None) => Err(GatewayError::StoreAway(
                "the directory for new buckets was not there when the gateway started: is it mounted?"
                    .to_owned(),
            )),
        }
    }

    /// A bucket that the configuration no longer has may be left out only when its store has everything.
    fn check_left_out(&self, bucket: &str, section: &str) -> std::result::Result<(), String> {
        let view = self.metadata.view().map_err(|error| error.to_string())?;
        let pending = view.count_pending(|name| name.bucket == bucket);
        match pending.map_err(|error| error.to_string())? {
            0 => match self.needed_elsewhere(|name| name.bucket == bucket) {
                Ok(0) => Ok(()),
                Ok(count) => Err(format!(
                    "the configuration no longer has bucket {bucket}, and copies or unfinished uploads of other buckets need the bytes of {count} of its objects\n  what to do: put [{section}] back, complete or abort those uploads, and run `underlay-gateway drain` before you remove it"
                )),
                Err(error) => Err(error.to_string()),
            },
            count => Err(format!(
                "the configuration no longer has bucket {bucket}, and {count} of its objects are not in its store yet\n  what to do: put [{section}] back, and run `underlay-gateway drain` before you remove it"
            )),
        }
    }

    pub(crate) fn bucket(&self, name: &str) -> GatewayResult<Arc<BucketState>> {
        self.any_bucket(name)
            .and_then(|state| if state.is_going() { Err(GatewayError::NoSuchBucket) } else { Ok(state) })
    }

    /// The same, also of a bucket that is [going](super::removal): what it has in its store has to be deleted, and
    /// may be needed until then.
    pub(super) fn any_bucket(&self, name: &str) -> GatewayResult<Arc<BucketState>> {
        let state = self.served.buckets.read().get(name).cloned().ok_or(GatewayError::NoSuchBucket)?;
        if state.is_unlisted.load(Ordering::Relaxed) {
            return Err(GatewayError::StoreAway(
                "the bucket's objects are unknown until its directory is there and listed: is it mounted?"
                    .to_owned(),
            ));
        }
        state.check_ours().map(|()| state)
    }

    /// Whether this is the bucket of its name, and not one that has been removed, and perhaps made anew, since.
    pub(super) fn serves(&self, state: &Arc<BucketState>) -> bool {
        self.served.buckets.read().get(&state.name).is_some_and(|served| Arc::ptr_eq(served, state))
    }

    /// All buckets in order, with when they came.
    pub fn list_buckets(&self) -> Vec<(String, i64)> {
        let served = self.served.buckets.read();
        let served = served.values().filter(|state| !state.is_going());
        let mut buckets: Vec<(String, i64)> =
            served.map(|state| (state.name.clone(), state.created_ms)).collect();
        buckets.sort();
        buckets
    }

    pub(crate) fn bucket_states(&self) -> Vec<Arc<BucketState>> {
        let mut states: Vec<_> = self.served.buckets.read().values().cloned().collect();
        states.sort_by(|a, b| a.name.cmp(&b.name));
        states
    }

    /// # Errors
    /// When the gateway serves no such bucket.
    pub fn check_bucket(&self, name: &str) -> GatewayResult<()> {
        self.bucket(name).map(drop)
    }

    /// Makes a bucket below the configured place.
    ///
    /// # Errors
    /// When it exists, or the configuration has no place for new ones.
    pub async fn create_bucket(self: &Arc<Self>, name: &str) -> GatewayResult<()> {
        self.disk.check(DiskNeed::Change)?;
        let turn = self.making.lock().await;
        let check_free = || match self.served.buckets.read().get(name) {
            None => Ok(()),
            Some(former) if former.is_going() => {
                Err(GatewayError::Busy("a bucket of this name is still being removed: try again".to_owned()))
            }
            Some(_) => Err(GatewayError::BucketExists),
        };
        check_free()?;
        let Some(new) = &self.setup.new_buckets else {
            return Err(GatewayError::NotImplemented(
                "this gateway has no place for new buckets: its configuration needs [new_buckets]".to_owned(),
            ));
        };
        self.check_count(&new.under)?;
        self.check_under(&new.under).await?;
        let place =
            (self.setup.create_place)(&new.under, name).map_err(|reason| refuse_bucket(name, &reason))?;
        self.check_under(&new.under).await?;
        let record = BucketRecord { created_ms: now_ms(), store: place.to_string(), is_created: true };
        let state = self.state_of(name, &place, std::slice::from_ref(&new.rule), &record);
        let state = state.map_err(|reason| refuse_bucket(name, &reason))?;
        let looked = self.check_suitable(name, &state.backend, StoreAge::New).await;
        looked.map_err(|problem| refuse_bucket(name, &problem.into_text()))?;
        // A store that takes its time keeps no other bucket from being made or removed.
        let removed_before = turn.count;
        drop(turn);
        let is_empty = state.backend.is_empty().await;
        let removals = Arc::clone(&self.making).lock_owned().await;
        check_free()?;
        self.check_count(&new.under)?;
        if removals.have_had(name, removed_before) {
            // With its directory, and what the store said is of another time.
            return Err(GatewayError::Busy(
                "a bucket of this name was removed meanwhile: try again".to_owned(),
            ));
        }
        state.backend.check_there().await?;
        if !is_empty? {
            tracing::warn!("bucket {name} is not made: there are objects in {place} already");
            return Err(GatewayError::NameTaken(
                "there are objects already where this bucket would be: give it another name, or ask the gateway's administrator"
                    .to_owned(),
            ));
        }
        let (bucket, row) = (name.to_owned(), record.clone());
        let (engine, wanted) = (Arc::clone(self), PrefixRegions::wanted(&state.rules));
        // A client that goes away meanwhile leaves no row without a bucket.
        to_its_end(async move {
            let _turn = removals;
            let made = engine.committer.commit(Vec::new(), move |change| match change.bucket(&bucket)? {
                Some(_) => Err(GatewayError::BucketExists),
                None => {
                    change.set_bucket(&bucket, &row)?;
                    // It is new: there is nothing to take over.
                    PrefixRegions::note(change, &bucket, |_| wanted)
                }
            });
            made.await?;
            let mut state = state;
            if let Some(late) = engine.late_of_removed.lock().remove(&state.name) {
                state.backend = state.backend.clone().behind(late);
            }
            engine.served.buckets.write().insert(state.name.clone(), Arc::new(state));
            Ok(())
        })
        .await
    }
}

/// Why no bucket of this name can be made stands in the log: where the store is, is not for clients.
fn refuse_bucket(name: &str, reason: &str) -> GatewayError {
    tracing::warn!("bucket {name} is not made: {reason}");
    GatewayError::StoreAway("there is no place for this bucket, and the gateway's log says why".to_owned())
}
