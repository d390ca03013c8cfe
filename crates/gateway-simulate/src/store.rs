//! The store behind the gateways: objects in memory by S3's rules, and requests that take their time, fail, get no
//! answer, or are carried out after the one who sent them has been killed. The world decides a request's effect, never
//! the caller's future.

mod directory;
mod objects;
mod reached;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use object_store::local::LocalFileSystem;
use object_store::{Attributes, Error, ObjectMeta, ObjectStore, Result};
use tokio::sync::oneshot;
use underlay_sync::Mutex;

use crate::script::{StoreFaults, StoreKind, StoreSetup};
use crate::world::SimulatedWorld;
use directory::InDirectory;
use objects::{BucketObjects, PutPrecondition};

pub(crate) use directory::FoldingMedium;

pub(crate) use objects::StoredObject;
/// The name that others know an object by.
pub(crate) use objects::key_of as name_of;

/// 2027: when the virtual world begins.
const EPOCH_S: i64 = 1_800_000_000;
/// Of a request and of its answer on their way.
const MIN_LATENCY: Duration = Duration::from_millis(2);
const MAX_LATENCY: Duration = Duration::from_millis(20);
/// A request that was never answered is carried out until then, if at all. The gateway waits for an answer for 120 s,
/// and for as long after that.
const HANGING_LANDS_WITHIN: Duration = Duration::from_secs(200);
/// After it was given up or answered by a failure. The gateway counts on 120 s.
const LANDS_WITHIN: Duration = Duration::from_secs(110);
/// Requests that a gateway sent so shortly before it died are carried out at once or never. The documentation excepts
/// what is carried out later.
const JUST_BEGUN: Duration = Duration::from_millis(2_500);

/// Work on a bucket's objects, which answers the caller.
type StoreWork = Box<dyn FnOnce(&mut BucketObjects, DateTime<Utc>) + Send>;

/// A change that was sent and is not carried out yet.
struct UnderWay {
    gateway: usize,
    bucket: String,
    /// When it was sent, or when its sender heard that it failed.
    since: Duration,
    work: StoreWork,
}

struct StoresState {
    setup: StoreSetup,
    faults: StoreFaults,
    /// Where the objects are, if not in memory.
    directory: Option<(PathBuf, Arc<LocalFileSystem>)>,
    buckets: BTreeMap<String, BucketObjects>,
    under_way: BTreeMap<u64, UnderWay>,
    next_number: u64,
    /// Bytes that each gateway holds in requests now.
    held_bytes: BTreeMap<usize, u64>,
    most_held_bytes: u64,
    held_limit_bytes: Option<u64>,
    /// Gateways that have died at least once.
    died: BTreeSet<usize>,
    failure: Option<String>,
    counts: StoreCounts,
}

/// Counts of faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    pub requests: u64,
}

/// See the module. Its clones are one.
#[derive(Clone)]
pub struct SimulatedStores {
    world: SimulatedWorld,
    state: Arc<Mutex<StoresState>>,
}

/// How one request fares.
struct RequestPlan {
    arrives_after: Duration,
    answers_after: Duration,
    fate: RequestFate,
}

enum RequestFate {
    Fine,
    FailsBefore,
    FailsAfter,
    LandsLate(Duration),
    /// Nobody answers. It may land.
    Hangs(Option<Duration>),
}

fn failure(reason: &str) -> Error {
    Error::Generic { store: "S3", source: reason.into() }
}

impl SimulatedStores {
    pub fn new(world: SimulatedWorld, setup: &StoreSetup) -> SimulatedStores {
        let state = StoresState {
            setup: setup.clone(),
            faults: StoreFaults::default(),
            directory: None,
            buckets: BTreeMap::new(),
            under_way: BTreeMap::new(),
            next_number: 0,
            held_bytes: BTreeMap::new(),
            most_held_bytes: 0,
            held_limit_bytes: None,
            died: BTreeSet::new(),
            failure: None,
            counts: StoreCounts::default(),
        };
        SimulatedStores { world, state: Arc::new(Mutex::new(state)) }
    }

    /// The store of a bucket, as this gateway reaches it.
    /// Once it does not live any more, it begins nothing, and hears nothing.
    pub fn open(&self, bucket: &str, gateway: usize, lives: Arc<AtomicBool>) -> Arc<dyn ObjectStore> {
        let (directory, folds) = {
            let state = self.state.lock();
            (state.directory.clone(), state.setup.kind == StoreKind::Folding)
        };
        match directory {
            None => Arc::new(reached::GatewayStore::new(self.clone(), bucket.to_owned(), gateway, lives)),
            Some((_, files)) => Arc::new(InDirectory::new(self.clone(), files, gateway, lives, folds)),
        }
    }

    /// From now on the store is this directory, which is there.
    ///
    /// # Errors
    /// When it can't be opened.
    pub(crate) fn use_directory(&self, directory: &Path) -> Result<()> {
        let files = directory::open_files(directory)?;
        self.state.lock().directory = Some((directory.to_owned(), Arc::new(files)));
        Ok(())
    }

    pub fn set_faults(&self, faults: StoreFaults) {
        self.state.lock().faults = faults;
    }

    /// More bytes of a gateway's requests at once than this are a failure.
    pub fn limit_held_bytes(&self, bytes: u64) {
        self.state.lock().held_limit_bytes = Some(bytes);
    }

    /// The failure that the store itself has found.
    pub fn failure(&self) -> Option<String> {
        self.state.lock().failure.clone()
    }

    pub fn counts(&self) -> StoreCounts {
        self.state.lock().counts
    }

    pub fn most_held_bytes(&self) -> u64 {
        self.state.lock().most_held_bytes
    }

    pub fn contents(&self, bucket: &str) -> BTreeMap<String, StoredObject> {
        let directory = self.state.lock().directory.clone();
        let Some((_, files)) = directory else {
            return self
                .state
                .lock()
                .buckets
                .get(bucket)
                .map(|objects| objects.all().clone())
                .unwrap_or_default();
        };
        let object = |(path, meta, bytes): (object_store::path::Path, ObjectMeta, Bytes)| {
            let etag = meta.e_tag.unwrap_or_default();
            let object =
                StoredObject { bytes, attributes: Attributes::new(), etag, modified: meta.last_modified };
            (name_of(&path), object)
        };
        directory::all(&files).map(|all| all.into_iter().map(object).collect()).unwrap_or_default()
    }

    /// Files in the directory that nobody will ever need.
    pub(crate) fn unfinished_files(&self) -> Vec<PathBuf> {
        let directory = self.state.lock().directory.clone();
        directory.map(|(path, _)| directory::unfinished(&path)).unwrap_or_default()
    }

    /// Keys of uploads that a gateway has left without an excuse.
    pub fn left_uploads(&self, bucket: &str) -> Vec<String> {
        let state = self.state.lock();
        let Some(objects) = state.buckets.get(bucket) else { return Vec::new() };
        let is_left =
            |upload: &&objects::OpenUpload| !upload.is_excused && !state.died.contains(&upload.gateway);
        objects.uploads.values().filter(is_left).map(|upload| upload.key.clone()).collect()
    }

    /// Changes that were sent and may still be carried out.
    pub fn are_changes_under_way(&self) -> bool {
        !self.state.lock().under_way.is_empty()
    }

    /// Somebody else puts an object, or deletes one.
    pub fn change(&self, bucket: &str, key: &str, bytes: Option<Bytes>, attributes: Attributes) {
        let now = self.wall_now();
        let directory = self.state.lock().directory.clone();
        if let Some((_, files)) = directory {
            if let Err(error) = directory::change(&files, key, bytes) {
                self.state.lock().failure.get_or_insert(format!("others can't change {key:?}: {error}"));
            }
            return;
        }
        self.with(bucket, |objects| match bytes {
            // Without a condition there is nothing that could fail.
            Some(bytes) => drop(objects.put(key, bytes, attributes, &PutPrecondition::Anything, now)),
            None => objects.delete(key),
        });
        self.world.note(format_args!("others change {key:?}"));
    }

    /// A gateway's process has ended, in any way.
    pub fn gateway_died(&self, gateway: usize) {
        let now = self.world.now();
        let young: Vec<u64> = {
            let mut state = self.state.lock();
            state.died.insert(gateway);
            state.held_bytes.remove(&gateway);
            // In a directory it is the process itself that does it.
            let is_directory = state.directory.is_some();
            let is_young = |under_way: &UnderWay| {
                under_way.gateway == gateway
                    && (is_directory || now.saturating_sub(under_way.since) < JUST_BEGUN)
            };
            state.under_way.iter().filter(|(_, found)| is_young(found)).map(|(number, _)| *number).collect()
        };
        for number in young {
            match self.world.with_random(|random| random.below(2)) {
                0 => drop(self.state.lock().under_way.remove(&number)),
                _ => self.carry_out(number),
            }
        }
    }

    /// By the store's own clock, which nobody sets, in whole seconds.
    fn wall_now(&self) -> DateTime<Utc> {
        let now_s = EPOCH_S + i64::try_from(self.world.now().as_secs()).unwrap_or(0);
        DateTime::from_timestamp(now_s, 0).unwrap_or_default()
    }

    fn with<T>(&self, bucket: &str, work: impl FnOnce(&mut BucketObjects) -> T) -> T {
        let mut state = self.state.lock();
        let setup = state.setup.clone();
        work(state.buckets.entry(bucket.to_owned()).or_insert_with(|| BucketObjects::new(setup)))
    }

    fn plan(&self, changes: bool) -> RequestPlan {
        let (mut faults, is_directory) = {
            let state = self.state.lock();
            (state.faults.clone(), state.directory.is_some())
        };
        if is_directory {
            // It has failed by the time it says so.
            faults.failing_before += faults.landing_late + faults.hanging;
            (faults.landing_late, faults.hanging) = (0, 0);
        }
        self.world.with_random(|random| {
            let mut arrives_after = random.delay(MIN_LATENCY, MAX_LATENCY);
            let mut answers_after = random.delay(MIN_LATENCY, MAX_LATENCY);
            if random.is_one_of_thousand(faults.stalling) {
                let stall = random.delay(Duration::ZERO, Duration::from_millis(faults.stall_ms));
                let delay = if random.below(2) == 0 { &mut arrives_after } else { &mut answers_after };
                *delay += stall;
            }
            let draw = random.below(1000);
            let before = faults.failing_before;
            let after = before + faults.failing_after;
            let late = after + if changes { faults.landing_late } else { 0 };
            let hanging = late + faults.hanging;
            let fate = if faults.is_down || draw < before {
                RequestFate::FailsBefore
            } else if draw < after {
                RequestFate::FailsAfter
            } else if draw < late {
                RequestFate::LandsLate(random.delay(Duration::ZERO, Duration::from_millis(faults.late_ms)))
            } else if draw < hanging {
                let lands = random.delay(Duration::ZERO, HANGING_LANDS_WITHIN);
                RequestFate::Hangs((changes && random.below(3) > 0).then_some(lands))
            } else {
                RequestFate::Fine
            };
            RequestPlan { arrives_after, answers_after, fate }
        })
    }

    /// Sends a request: its work is done when it arrives, and its outcome comes back, unless it does not.
    async fn ask<T: Send + 'static>(
        &self,
        (bucket, gateway, lives): (&str, usize, &AtomicBool),
        label: String,
        changes: bool,
        work: impl FnOnce(&mut BucketObjects, DateTime<Utc>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if !lives.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let (sender, receiver) = oneshot::channel();
        let RequestPlan { arrives_after, answers_after, fate } = self.plan(changes);
        self.state.lock().counts.requests += 1;
        let world = self.world.clone();
        // How the outcome gets to the caller, and what it is.
        let answer = move |outcome: Result<T>| {
            world.call_after(answers_after, move || drop(sender.send(outcome)));
        };
        let (lands_after, work): (Option<Duration>, StoreWork) = match fate {
            RequestFate::Fine => {
                (Some(arrives_after), Box::new(move |objects, now| answer(work(objects, now))))
            }
            RequestFate::FailsAfter => (
                Some(arrives_after),
                Box::new(move |objects, now| {
                    let _ = work(objects, now);
                    answer(Err(failure("502 Bad Gateway, after it was carried out")));
                }),
            ),
            RequestFate::FailsBefore => {
                self.world.call_after(arrives_after, move || answer(Err(failure("503 Service Unavailable"))));
                (None, Box::new(|_, _| {}))
            }
            RequestFate::LandsLate(late) => {
                let fails_after = arrives_after + answers_after;
                self.world.call_after(arrives_after, move || {
                    answer(Err(failure("504 Gateway Timeout, and it may still be carried out")));
                });
                let work: StoreWork = Box::new(move |objects, now| drop(work(objects, now)));
                (Some(fails_after + late), work)
            }
            RequestFate::Hangs(lands) => {
                // Kept, so that nobody hears anything.
                self.world.call_after(Duration::from_secs(100_000), move || drop(answer));
                let work: StoreWork = Box::new(move |objects, now| drop(work(objects, now)));
                (lands, work)
            }
        };
        let number = lands_after.map(|lands_after| self.send(bucket, gateway, label, lands_after, work));
        let mut given_up = GivenUp { stores: self.clone(), number };
        match receiver.await {
            Ok(outcome) => {
                if outcome.is_ok() {
                    given_up.number = None;
                }
                outcome
            }
            // The sender lives as long as the world.
            Err(_) => std::future::pending().await,
        }
    }

    fn send(&self, bucket: &str, gateway: usize, label: String, after: Duration, work: StoreWork) -> u64 {
        let number = {
            let mut state = self.state.lock();
            state.next_number += 1;
            let number = state.next_number;
            let start = self.world.now();
            // An answer of a failure on its way counts from when it comes, which is soon.
            let under_way = UnderWay { gateway, bucket: bucket.to_owned(), since: start, work };
            state.under_way.insert(number, under_way);
            number
        };
        let stores = self.clone();
        self.world.call_after(after, move || {
            stores.world.note(format_args!("store: {label}"));
            stores.carry_out(number);
        });
        number
    }

    /// Requests that nobody waits for any more land soon, if at all.
    fn hurry(&self, number: u64) {
        if self.state.lock().under_way.contains_key(&number) {
            let delay = self.world.with_random(|random| random.delay(Duration::ZERO, LANDS_WITHIN));
            let stores = self.clone();
            self.world.call_after(delay, move || stores.carry_out(number));
        }
    }

    fn carry_out(&self, number: u64) {
        let Some(UnderWay { bucket, work, .. }) = self.state.lock().under_way.remove(&number) else { return };
        let now = self.wall_now();
        self.with(&bucket, |objects| work(objects, now));
    }

    /// Counts bytes that a gateway has in a request, for as long as what is returned lives.
    fn hold(&self, gateway: usize, bytes: u64) -> StoreHold {
        let mut state = self.state.lock();
        let held_bytes = state.held_bytes.entry(gateway).or_default();
        *held_bytes += bytes;
        let held_bytes = *held_bytes;
        state.most_held_bytes = state.most_held_bytes.max(held_bytes);
        if let Some(limit) = state.held_limit_bytes
            && held_bytes > limit
            && state.failure.is_none()
        {
            state.failure = Some(format!(
                "gateway {gateway} holds {held_bytes} bytes in requests to the store, of {limit} that it may"
            ));
        }
        StoreHold { stores: self.clone(), gateway, bytes }
    }
}

/// A request that nobody waits for any more when this goes.
struct GivenUp {
    stores: SimulatedStores,
    number: Option<u64>,
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.number.into_iter().for_each(|number| self.stores.hurry(number));
    }
}

/// See [`SimulatedStores::hold`].
struct StoreHold {
    stores: SimulatedStores,
    gateway: usize,
    bytes: u64,
}

impl Drop for StoreHold {
    fn drop(&mut self) {
        let mut state = self.stores.state.lock();
        if let Some(held_bytes) = state.held_bytes.get_mut(&self.gateway) {
            *held_bytes = held_bytes.saturating_sub(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests;
