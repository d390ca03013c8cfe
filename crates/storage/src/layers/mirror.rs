//! RAID-1: the same bytes on several devices.

mod resync;
mod roles;
mod state;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use underlay_sync::planted::{PlantedBug, is_planted};
use underlay_sync::{Mutex, MutexGuard};

use super::join::GatherJoin;
use super::ranges::{DeviceRanges, LockAccess};
use crate::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};
use crate::journal::{Journal, JournalError, JournalSnapshot};
use resync::FailureReport;
use roles::{MemberRole, MirrorState, PersistCallback};
use state::MirrorSnapshot;

const KIND: crate::journal::format::JournalKind = *b"mirror  ";
const BLOCK_BYTES: u64 = 4096;
/// How much is copied by one request.
const PIECE_BYTES: u64 = 1 << 20;
const MAX_REGIONS: u64 = 4096;
/// A member that is out is looked for at every flush, and once in this many requests.
const LOOK_INTERVAL: u64 = 64;

/// Writes to every member, reads from the one with the fewest requests in flight.
///
/// **A member that fails** a write or a flush, or is gone, is left out, as long as another one has the data; the failed
/// request is answered by the others. Writes meanwhile are noted by region. When the member answers again, those
/// regions are copied to it, and it is read from only after they are on it durably. A read that fails is answered by
/// another member.
///
/// **A power cut** leaves members that differ where writes were in flight. So a region is marked in a journal
/// on every member before it is first written, and unmarked some time after it was flushed; opening copies
/// the marked regions from one member to the others. The journals also say who was left out, and no write is
/// answered before they do.
pub struct Mirror {
    inner: Arc<MirrorInner>,
}

#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    #[error("a mirror has 2 to 255 members")]
    Members,
    #[error(
        "the smallest member has {capacity_bytes} bytes, but a mirror needs {reserved_bytes} for its journal alone"
    )]
    TooSmall { capacity_bytes: u64, reserved_bytes: u64 },
    #[error("no member of the mirror that has data can be opened; the first reports: {0}")]
    NoMember(#[source] JournalError),
    #[error(
        "member {number} of the mirror (counted from 1) was left out and lacks later writes, and the one that \
             has them is not available ({problem}): put that one back"
    )]
    OnlyStale { number: usize, problem: String },
    #[error(
        "member {number} of the mirror (counted from 1) belonged to a mirror with other members, or of another \
             size: put back the ones that it had, or start with new devices"
    )]
    OtherMirror { number: usize },
    #[error("the members of the mirror could not be brought up to date: {0}")]
    Resync(#[from] DeviceError),
}

/// The trade-off: smaller regions are brought up to date faster and marked more often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorSettings {
    /// The unit of a resync, if a single byte of it may differ; more on a large volume.
    pub region_bytes: u64,
    /// How many regions stay marked as being written; when there are more, a flush clears what it can.
    pub marked_regions: usize,
}

impl Default for MirrorSettings {
    fn default() -> Self {
        MirrorSettings { region_bytes: 1 << 20, marked_regions: 64 }
    }
}

/// How a mirror fares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorHealth {
    /// Members that have all data and are read from.
    pub in_sync: usize,
    /// Members that are left out.
    pub out: usize,
    /// Members that answer again and are being brought up to date.
    pub resyncing: usize,
    /// Copied to members that came back, since the mirror was opened.
    pub resynced_bytes: u64,
}

impl MirrorHealth {
    /// All members have all data.
    pub fn is_whole(&self) -> bool {
        self.out == 0 && self.resyncing == 0
    }
}

struct MirrorInner {
    members: Vec<MirrorMember>,
    geometry: DeviceGeometry,
    reserved_bytes: u64,
    region_bytes: u64,
    marked_regions: usize,
    ranges: Arc<DeviceRanges>,
    requests: AtomicU64,
    resynced_bytes: AtomicU64,
    state: Mutex<MirrorState>,
}

struct MirrorMember {
    device: Arc<dyn BlockDevice>,
    /// Absent where the member could not be opened: it stays out.
    journal: Option<Journal>,
    under_way: AtomicUsize,
}

fn layout(capacity_bytes: u64, members: usize, region_bytes: u64) -> (u64, u64) {
    // Bounds the number of regions, and with it the length of each record.
    let smallest_bytes = capacity_bytes.div_ceil(MAX_REGIONS).next_power_of_two();
    let region_bytes = region_bytes.next_multiple_of(BLOCK_BYTES).max(smallest_bytes);
    let snapshot_bytes = MirrorSnapshot::encoded_bytes(members, capacity_bytes.div_ceil(region_bytes));
    // Each record is a whole state: there is room for eight between two checkpoints.
    (region_bytes, Journal::range_bytes(snapshot_bytes, 8 * snapshot_bytes))
}

type FoundMember = Option<(MirrorSnapshot, (u64, u64))>;

/// Whether a member has all data, as far as the journals tell that could be opened. It may say so of itself and not
/// know that it was left out: one that is as new or newer does. The latest records alone are no sign: a member that is
/// being brought up to date has them as well.
fn has_data(index: usize, found: &[FoundMember]) -> bool {
    let Some((own, _)) = &found[index] else { return false };
    if is_planted(PlantedBug::StaleCopyServed) {
        return !own.out[index];
    }
    let is_out = |other: &MirrorSnapshot| other.epoch >= own.epoch && other.out[index];
    let is_blank = |other: &MirrorSnapshot| own.epoch == 0 && other.epoch > 0;
    !found.iter().flatten().any(|(other, _)| is_out(other) || is_blank(other))
}

impl Mirror {
    /// Opens the members' journals and copies what may differ, so it waits for the devices. New members are
    /// taken to be alike, as devices that read as zeros are.
    ///
    /// # Errors
    /// When the members are too few or too small, or none of them can be opened that has all data.
    pub fn open(devices: Vec<Arc<dyn BlockDevice>>, settings: MirrorSettings) -> Result<Mirror, MirrorError> {
        if !(2..256).contains(&devices.len()) {
            return Err(MirrorError::Members);
        }
        let geometries: Vec<DeviceGeometry> = devices.iter().map(|device| device.geometry()).collect();
        let smallest = geometries.iter().map(|g| g.capacity_bytes).min().unwrap_or(0);
        let (region_bytes, reserved_bytes) = layout(smallest, devices.len(), settings.region_bytes);
        if smallest < reserved_bytes + BLOCK_BYTES {
            return Err(MirrorError::TooSmall { capacity_bytes: smallest, reserved_bytes });
        }
        let capacity_bytes = (smallest - reserved_bytes) / BLOCK_BYTES * BLOCK_BYTES;
        let geometry = DeviceGeometry {
            capacity_bytes,
            block_bytes: geometries.iter().map(|g| g.block_bytes).max().unwrap_or(0),
            optimal_io_bytes: geometries.iter().map(|g| g.optimal_io_bytes).max().unwrap_or(0),
        };
        let regions = capacity_bytes.div_ceil(region_bytes) as usize;
        let count = devices.len();
        let mut members = Vec::new();
        let mut found: Vec<FoundMember> = Vec::new();
        let mut first_error = None;
        for device in devices {
            // One that can be read tells who was left out, whether it can be written or not.
            let opened = Journal::open_unconfirmed(Arc::clone(&device), 0..reserved_bytes, KIND);
            let journal = match opened {
                Ok((journal, recovered)) => {
                    let last = recovered.records.last().unwrap_or(&recovered.snapshot);
                    let snapshot = match MirrorSnapshot::decode(last, count, regions) {
                        Some(snapshot) => snapshot,
                        None if last.is_empty() => MirrorSnapshot::new(count),
                        None => return Err(MirrorError::OtherMirror { number: found.len() + 1 }),
                    };
                    found.push(Some((snapshot, recovered.version)));
                    Some(journal)
                }
                Err(error) => {
                    first_error = first_error.or(Some(error));
                    found.push(None);
                    None
                }
            };
            members.push(MirrorMember { device, journal, under_way: AtomicUsize::new(0) });
        }
        let has_data: Vec<bool> = (0..count).map(|index| has_data(index, &found)).collect();
        let opened = || found.iter().enumerate().filter_map(|(index, found)| Some((index, found.as_ref()?)));
        let newest = opened()
            .max_by_key(|(index, (snapshot, version))| (has_data[*index], snapshot.epoch, *version))
            .map(|(index, found)| (index, found.clone()));
        let Some((newest, (mut snapshot, _))) = newest else {
            let gone_error = JournalError::Device(DeviceError::Gone);
            return Err(MirrorError::NoMember(first_error.unwrap_or(gone_error)));
        };
        if !has_data[newest] && !is_planted(PlantedBug::StaleCopyServed) {
            let problem = first_error.map_or("it was left out as well".into(), |error| error.to_string());
            return Err(MirrorError::OnlyStale { number: newest + 1, problem });
        }
        let fresh = snapshot.epoch == 0;
        if let Some(error) = first_error.filter(|_| fresh) {
            // The one that can't be opened may have all the data, and the new one has none.
            return Err(MirrorError::NoMember(error));
        }
        // Regions that any of them had marked may differ, and so may those that any has written without another one.
        for (other, _) in found.iter().flatten() {
            snapshot.marked.extend(&other.marked);
            other.missed.iter().for_each(|missed| snapshot.marked.extend(missed));
        }
        for (index, found) in found.iter().enumerate() {
            match found {
                _ if fresh => {}
                Some((other, _)) if other.epoch == 0 => snapshot.miss_all(index, regions as u32),
                Some((other, _))
                    if has_data[index] && other.epoch == snapshot.epoch && !snapshot.out[index] => {}
                _ => snapshot.out[index] = true,
            }
        }
        let mut roles = vec![MemberRole::InSync; count];
        for (index, role) in roles.iter_mut().enumerate() {
            if snapshot.out[index] || members[index].journal.is_none() {
                *role = MemberRole::Out { looking: false };
                snapshot.out[index] = true;
            }
        }
        let state = MirrorState {
            attempts: vec![0; roles.len()],
            roles,
            kept: snapshot,
            regions: HashMap::new(),
            version: 1,
            persisted: 0,
            persisting: false,
            membership: 1,
            waiters: Vec::new(),
            writes: 0,
            unheard: None,
            unheard_number: 0,
        };
        let inner = Arc::new(MirrorInner {
            members,
            geometry,
            reserved_bytes,
            region_bytes,
            marked_regions: settings.marked_regions,
            ranges: Arc::new(DeviceRanges::default()),
            requests: AtomicU64::new(0),
            resynced_bytes: AtomicU64::new(0),
            state: Mutex::new(state),
        });
        for (index, member) in inner.members.iter().enumerate() {
            let weak = Arc::downgrade(&inner);
            let Some(journal) = &member.journal else { continue };
            // Every record is the whole state, so a snapshot may be newer than its number says.
            journal.set_source(move || {
                let Some(inner) = weak.upgrade() else { return JournalSnapshot::default() };
                let covers = inner.members[index].journal.as_ref().map_or(0, Journal::appended);
                let state = inner.lock().kept.encode();
                JournalSnapshot { state, covers }
            });
        }
        inner.agree()?;
        Ok(Mirror { inner })
    }

    pub fn health(&self) -> MirrorHealth {
        let state = self.inner.lock();
        let count = |wanted: fn(&MemberRole) -> bool| state.roles.iter().filter(|role| wanted(role)).count();
        MirrorHealth {
            in_sync: count(|role| *role == MemberRole::InSync),
            out: count(|role| matches!(role, MemberRole::Out { .. })),
            resyncing: count(|role| *role == MemberRole::Resyncing),
            resynced_bytes: self.inner.resynced_bytes.load(Ordering::Relaxed),
        }
    }
}

impl MirrorInner {
    fn lock(&self) -> MutexGuard<'_, MirrorState> {
        self.state.lock()
    }

    fn region_extent(&self, region: u32) -> (u64, u64) {
        let offset_bytes = u64::from(region) * self.region_bytes;
        (offset_bytes, self.region_bytes.min(self.geometry.capacity_bytes - offset_bytes))
    }

    fn regions_of(&self, offset_bytes: u64, length_bytes: u64) -> std::ops::Range<u32> {
        let end = (offset_bytes + length_bytes).div_ceil(self.region_bytes);
        (offset_bytes / self.region_bytes) as u32..end as u32
    }

    /// Calls `then` once the journals have change `version`. A member that can't take it down is left out.
    fn run_when_persisted(self: &Arc<Self>, version: u64, then: PersistCallback) {
        {
            let mut state = self.lock();
            if state.persisted < version {
                state.waiters.push((version, then));
                drop(state);
                return self.persist();
            }
        }
        then(Ok(()));
    }

    fn persist(self: &Arc<Self>) {
        let (version, record, targets) = {
            let mut state = self.lock();
            if state.persisting || state.persisted >= state.version {
                return;
            }
            state.persisting = true;
            let in_use = |index: &usize| !matches!(state.roles[*index], MemberRole::Out { .. });
            let targets: Vec<usize> = (0..self.members.len()).filter(in_use).collect();
            (state.version, state.kept.encode(), targets)
        };
        let inner = Arc::clone(self);
        let indices = targets.clone();
        let gather = GatherJoin::new(targets.len(), move |results: Vec<Result<(), DeviceError>>| {
            let failed = indices.into_iter().zip(results);
            let failed = failed.filter_map(|(index, result)| Some((index, result.err()?)));
            inner.persisted(version, failed.collect());
        });
        for (part, index) in targets.into_iter().enumerate() {
            let gather = Arc::clone(&gather);
            match &self.members[index].journal {
                Some(journal) => {
                    journal.append(record.clone());
                    let inner = Arc::clone(self);
                    journal.commit(Box::new(move |result| {
                        inner.heed(index, &result);
                        gather.arrive(part, result);
                    }));
                }
                None => gather.arrive(part, Err(DeviceError::Gone)),
            }
        }
    }

    /// A member that fails is no longer read from, even while others are still at the same request: if it
    /// comes back at once it may have lost what it had.
    fn heed<T>(&self, index: usize, answer: &Result<T, DeviceError>) {
        if answer.is_err() {
            self.lock().leave_out(index);
        }
    }

    fn persisted(self: &Arc<Self>, version: u64, failed: Vec<(usize, DeviceError)>) {
        let (result, ready) = {
            let mut state = self.lock();
            state.persisting = false;
            let before = state.version;
            let mut result = Ok(());
            for (index, error) in failed {
                if !state.leave_out(index) {
                    // One that is gone has carried out no flush, and lost nothing by one.
                    if error != DeviceError::Gone {
                        state.unheard = Some(error.clone());
                        state.unheard_number += 1;
                    }
                    result = Err(error);
                }
            }
            if result.is_ok() && state.version == before {
                state.persisted = version;
            }
            // The last member can't write it down: those that wait for it would wait in vain.
            let (persisted, stuck) = (state.persisted, result.is_err());
            let ready: Vec<_> = state.waiters.extract_if(.., |w| stuck || w.0 <= persisted).collect();
            (result, ready)
        };
        for (_, then) in ready {
            then(result.clone());
        }
        if result.is_ok() {
            // More has changed since, or someone was left out.
            self.persist();
        }
    }

    fn submit_read(
        self: &Arc<Self>,
        offset_bytes: u64,
        buffer: Vec<u8>,
        tried: Vec<usize>,
        done: CompletionCallback,
    ) {
        let member = {
            let state = self.lock();
            let able = |i: &usize| state.roles[*i] == MemberRole::InSync && !tried.contains(i);
            // Of equals the one whose turn it is, so that all of them work.
            let turn = self.requests.load(Ordering::Relaxed) as usize;
            let count = self.members.len();
            let in_turn = (0..count).map(|i| (i + turn) % count).filter(able);
            // Relaxed is enough: a guess spreads the reads as well.
            let idlest = in_turn.min_by_key(|index| self.members[*index].under_way.load(Ordering::Relaxed));
            idlest.map(|index| (index, state.attempts[index]))
        };
        let Some((index, attempt)) = member else {
            return done(Err(DeviceError::Io("no member of the mirror can read this".into())));
        };
        let member = &self.members[index];
        member.under_way.fetch_add(1, Ordering::Relaxed);
        let (inner, length, mut tried) = (Arc::clone(self), buffer.len(), tried);
        let answered = move |completion: DeviceCompletion| {
            inner.members[index].under_way.fetch_sub(1, Ordering::Relaxed);
            // A member that was left out meanwhile may have lost what it had before it answered.
            let stayed = inner.lock().attempts[index] == attempt;
            match completion.and_then(|bytes| if stayed { Ok(bytes) } else { Err(DeviceError::Gone) }) {
                Ok(bytes) => done(Ok(bytes)),
                Err(error) => {
                    if error == DeviceError::Gone && inner.lock().leave_out(index) {
                        inner.persist();
                    }
                    tried.push(index);
                    if tried.len() == inner.members.len() {
                        return done(Err(error));
                    }
                    inner.submit_read(offset_bytes, vec![0; length], tried, done);
                }
            }
        };
        let offset_bytes = self.reserved_bytes + offset_bytes;
        member.device.submit(DeviceRequest::Read { offset_bytes, buffer }, Box::new(answered));
    }

    /// A write or a discard: one at a time on the same blocks, or members would end up different.
    fn change(self: &Arc<Self>, request: DeviceRequest, done: CompletionCallback) {
        let (offset_bytes, length_bytes) = request.extent();
        let blocks = offset_bytes / BLOCK_BYTES..(offset_bytes + length_bytes).div_ceil(BLOCK_BYTES);
        let inner = Arc::clone(self);
        self.ranges.claim((), blocks, LockAccess::Exclusive, move |claim| {
            let regions = inner.regions_of(offset_bytes, length_bytes);
            let version = inner.lock().mark(regions);
            let next = Arc::clone(&inner);
            let marked = move |result: Result<(), DeviceError>| {
                if let Err(error) = result {
                    next.lock().written(next.regions_of(offset_bytes, length_bytes));
                    drop(claim);
                    return done(Err(error));
                }
                let changed = move |completion| {
                    // The next one on these blocks may begin before this one's caller goes on.
                    drop(claim);
                    done(completion);
                };
                next.to_members(request, FailureReport::Now, Box::new(changed));
            };
            match is_planted(PlantedBug::MarkSkipped) {
                true => marked(Ok(())),
                false => inner.run_when_persisted(version, Box::new(marked)),
            }
        });
    }

    /// Sends a change or a flush to every member in use, and answers once the journals know who failed it.
    fn to_members(self: &Arc<Self>, request: DeviceRequest, heard: FailureReport, done: CompletionCallback) {
        let (offset_bytes, length_bytes) = request.extent();
        let regions = (length_bytes > 0).then(|| self.regions_of(offset_bytes, length_bytes));
        let (targets, attempts, writes, unheard_before) = {
            let state = self.lock();
            let in_use = |index: &usize| !matches!(state.roles[*index], MemberRole::Out { .. });
            let mut targets: Vec<usize> = (0..self.members.len()).filter(in_use).collect();
            if regions.is_none() && is_planted(PlantedBug::OneMemberFlushed) {
                targets.truncate(1);
            }
            let unheard_before = state.unheard.is_some().then_some(state.unheard_number);
            (targets, state.attempts.clone(), state.writes, unheard_before)
        };
        let (inner, indices) = (Arc::clone(self), targets.clone());
        let end = move |completions: Vec<DeviceCompletion>| {
            let mut answer = Err(DeviceError::Gone);
            let membership = {
                let mut state = inner.lock();
                for (index, completion) in indices.into_iter().zip(completions) {
                    // A member that was left out meanwhile holds what was copied to it since, not what it
                    // answered for.
                    let stayed = state.attempts[index] == attempts[index];
                    match completion {
                        Ok(_) if stayed && state.roles[index] == MemberRole::InSync => {
                            answer = Ok(Vec::new())
                        }
                        Ok(_) => {}
                        Err(error) => {
                            if !state.leave_out(index) && answer.is_err() {
                                answer = Err(error);
                            }
                        }
                    }
                }
                if regions.is_none()
                    && heard == FailureReport::Now
                    && let Some(error) = state.unheard.clone()
                {
                    answer = Err(error);
                    // It stays to be heard by flushes that begin after it: this one may have begun before.
                    if unheard_before == Some(state.unheard_number) {
                        state.unheard = None;
                    }
                }
                match regions {
                    Some(regions) => state.written(regions),
                    None if answer.is_ok() && state.unheard.is_none() => {
                        state.flushed(writes, inner.marked_regions)
                    }
                    None => {}
                }
                state.membership
            };
            inner.run_when_persisted(membership, Box::new(move |result| done(result.and(answer))));
        };
        let gather = GatherJoin::new(targets.len(), end);
        let mut request = Some(request);
        for (part, index) in targets.iter().enumerate() {
            let own = match request.as_ref() {
                Some(_) if part + 1 == targets.len() => request.take(),
                Some(request) => Some(copy(request)),
                None => None,
            };
            let Some(own) = own else { break };
            let (gather, inner, index) = (Arc::clone(&gather), Arc::clone(self), *index);
            self.members[index].under_way.fetch_add(1, Ordering::Relaxed);
            let arrived = move |completion: DeviceCompletion| {
                inner.members[index].under_way.fetch_sub(1, Ordering::Relaxed);
                inner.heed(index, &completion);
                gather.arrive(part, completion);
            };
            self.members[index].device.submit(shifted(own, self.reserved_bytes), Box::new(arrived));
        }
    }
}

fn copy(request: &DeviceRequest) -> DeviceRequest {
    match request {
        DeviceRequest::Read { offset_bytes, buffer } => {
            DeviceRequest::Read { offset_bytes: *offset_bytes, buffer: vec![0; buffer.len()] }
        }
        DeviceRequest::Write { offset_bytes, data, fua } => {
            DeviceRequest::Write { offset_bytes: *offset_bytes, data: data.clone(), fua: *fua }
        }
        DeviceRequest::Flush => DeviceRequest::Flush,
        DeviceRequest::Discard { offset_bytes, length_bytes } => {
            DeviceRequest::Discard { offset_bytes: *offset_bytes, length_bytes: *length_bytes }
        }
    }
}

fn shifted(mut request: DeviceRequest, by_bytes: u64) -> DeviceRequest {
    match &mut request {
        DeviceRequest::Read { offset_bytes, .. }
        | DeviceRequest::Write { offset_bytes, .. }
        | DeviceRequest::Discard { offset_bytes, .. } => *offset_bytes += by_bytes,
        DeviceRequest::Flush => {}
    }
    request
}

impl BlockDevice for Mirror {
    fn geometry(&self) -> DeviceGeometry {
        self.inner.geometry
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        if let Err(error) = request.check(&self.inner.geometry) {
            return done(Err(error));
        }
        let requests = self.inner.requests.fetch_add(1, Ordering::Relaxed);
        if matches!(request, DeviceRequest::Flush) || requests % LOOK_INTERVAL == LOOK_INTERVAL - 1 {
            self.inner.look_for_the_lost();
        }
        match request {
            DeviceRequest::Read { buffer, .. } if buffer.is_empty() => done(Ok(buffer)),
            DeviceRequest::Read { offset_bytes, buffer } => {
                self.inner.submit_read(offset_bytes, buffer, Vec::new(), done);
            }
            DeviceRequest::Flush => self.inner.to_members(DeviceRequest::Flush, FailureReport::Now, done),
            request if request.extent().1 == 0 => done(Ok(Vec::new())),
            request => self.inner.change(request, done),
        }
    }
}
