//! Which keys are this gateway's, where several share a store. Keys belong to *slots* by their beginning, and a slot
//! has one owner. Here is what the gateway believes of that, and what it may do by it; [`cluster`](crate::cluster)
//! keeps it in step with etcd.
//!
//! Two things keep two gateways apart. Nothing is written before etcd has the slot down as *dirty*, and nobody takes
//! over a dirty slot whose owner is gone. So writes and flushes need no clock to be safe. Reads do: they are answered
//! only while the lease lasts by our own clock, which began before etcd's and ends sooner.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};
use underlay_sync::{Mutex, RwLock};

use crate::errors::{GatewayError, GatewayResult};
use crate::placement::{SLOTS, slot_of};

/// A write waits for so long while its slot is being settled.
const MAX_SETTLE_WAIT: Duration = Duration::from_secs(5);

/// A gateway that others can see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VisiblePeer {
    pub(crate) address: String,
}

/// A slot's record in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnedSlot {
    /// Identity of the owner's local directory.
    pub(crate) owner: String,
    pub(crate) name: String,
    pub(crate) epoch: u64,
}

/// The last state of etcd.
#[derive(Default)]
struct SlotMap {
    peers: HashMap<String, VisiblePeer>,
    slots: Vec<Option<OwnedSlot>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotPhase {
    /// Another's or nobody's, as far as is known.
    Foreign,
    /// Ours, and its objects are being listed.
    Taking,
    Serving,
    /// Ours and readable; nothing new is written, so that it comes to rest.
    Closing,
}

struct SlotState {
    phase: SlotPhase,
    epoch: u64,
    /// Etcd has it down as having what its owner alone has.
    is_dirty: bool,
    wants_dirty: bool,
    writers: usize,
    /// When the last writer left.
    idle_since: Instant,
}

/// See the module.
pub struct SlotOwnership {
    /// Of this gateway's local directory: known once that is open.
    id: OnceLock<String>,
    /// So many segments of a key say where it belongs; 0 for all of it.
    segments: usize,
    slots: Mutex<Vec<SlotState>>,
    map: RwLock<SlotMap>,
    /// Since the machine's start, in milliseconds: the lease holds until then.
    lease_until_ms: AtomicU64,
    changes: watch::Sender<u64>,
    /// Told when a slot has to become dirty.
    asked: Notify,
}

/// Where a key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyRoute {
    Here,
    There {
        owner: String,
        address: String,
    },
    /// And why.
    Nowhere(String),
}

/// Slots of one owner, with their epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerShare {
    /// `None` for this gateway.
    pub(crate) owner: Option<String>,
    pub(crate) slots: Vec<(u16, u64)>,
}

/// Slots with their epochs.
type SlotEpochs = Vec<(u16, u64)>;

/// While it lives, writes to these slots are in flight. Without a cluster it is of nothing.
pub(crate) struct WritePass {
    of: Option<(Arc<SlotOwnership>, SlotEpochs)>,
    is_writing: bool,
}

/// Milliseconds since the machine's start. It counts while the machine sleeps, and nobody sets it.
pub(crate) fn boot_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

impl SlotOwnership {
    pub(crate) fn new(segments: usize) -> SlotOwnership {
        let slot = || SlotState {
            phase: SlotPhase::Foreign,
            epoch: 0,
            is_dirty: false,
            wants_dirty: false,
            writers: 0,
            idle_since: Instant::now(),
        };
        SlotOwnership {
            id: OnceLock::new(),
            segments,
            slots: Mutex::new((0..SLOTS).map(|_| slot()).collect()),
            map: RwLock::new(SlotMap::default()),
            lease_until_ms: AtomicU64::new(0),
            changes: watch::channel(0).0,
            asked: Notify::new(),
        }
    }

    /// Says who this gateway is. Counts once.
    pub(crate) fn be(&self, id: String) {
        let _ = self.id.set(id);
    }

    pub(crate) fn id(&self) -> &str {
        self.id.get().map_or("", String::as_str)
    }

    pub(crate) fn slot_of(&self, bucket: &str, key: &str) -> u16 {
        slot_of(bucket, key, self.segments)
    }

    /// The slots in which keys with this prefix can be.
    fn slots_below(&self, bucket: &str, prefix: &str) -> Vec<u16> {
        match self.segments {
            0 => (0..SLOTS).collect(),
            count if prefix.matches('/').count() >= count => vec![self.slot_of(bucket, prefix)],
            _ => (0..SLOTS).collect(),
        }
    }

    fn tell(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Whether the lease holds, by our own clock.
    pub(crate) fn has_lease(&self) -> bool {
        boot_ms() < self.lease_until_ms.load(Ordering::Acquire)
    }

    pub(crate) fn lease_left(&self) -> Duration {
        Duration::from_millis(self.lease_until_ms.load(Ordering::Acquire).saturating_sub(boot_ms()))
    }

    /// The lease holds until then, in milliseconds since the machine's start.
    pub(crate) fn hold_until(&self, until_ms: u64) {
        self.lease_until_ms.store(until_ms, Ordering::Release);
        self.tell();
    }

    /// The lease is gone, or another one begins: nothing is ours before etcd has been asked.
    pub(crate) fn let_go(&self) {
        self.lease_until_ms.store(0, Ordering::Release);
        for slot in self.slots.lock().iter_mut() {
            (slot.phase, slot.is_dirty) = (SlotPhase::Foreign, false);
        }
        self.tell();
    }

    /// Takes the present state of etcd.
    pub(crate) fn learn(&self, peers: HashMap<String, VisiblePeer>, slots: Vec<Option<OwnedSlot>>) {
        *self.map.write() = SlotMap { peers, slots };
        self.tell();
    }

    fn busy(&self, reason: &str) -> GatewayError {
        GatewayError::Busy(format!("{reason}: try again later"))
    }

    /// Where a request for this key has to go.
    pub(crate) fn route(&self, bucket: &str, key: &str) -> KeyRoute {
        self.route_slot(self.slot_of(bucket, key))
    }

    fn route_slot(&self, slot: u16) -> KeyRoute {
        let map = self.map.read();
        let Some(owned) = map.slots.get(usize::from(slot)).and_then(Option::as_ref) else {
            return KeyRoute::Nowhere("no gateway has these keys yet".to_owned());
        };
        if owned.owner == self.id() {
            return KeyRoute::Here;
        }
        match map.peers.get(&owned.owner) {
            Some(peer) => KeyRoute::There { owner: owned.owner.clone(), address: peer.address.clone() },
            None => KeyRoute::Nowhere(format!(
                "gateway {}, which has these keys, is gone, and may have data that the store lacks",
                owned.name
            )),
        }
    }

    pub(crate) fn address_of(&self, owner: &str) -> Option<String> {
        self.map.read().peers.get(owner).map(|peer| peer.address.clone())
    }

    /// Returns once this gateway is no longer there.
    pub(crate) async fn gone(&self, owner: &str) {
        let mut changes = self.changes.subscribe();
        while self.address_of(owner).is_some() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Who has the keys with this prefix. Every one of their slots is in it once.
    ///
    /// # Errors
    /// `Busy` while one of them is nowhere: leaving it out would hide objects.
    pub(crate) fn shares(&self, bucket: &str, prefix: &str) -> GatewayResult<Vec<OwnerShare>> {
        let mut shares: HashMap<Option<String>, Vec<(u16, u64)>> = HashMap::new();
        for slot in self.slots_below(bucket, prefix) {
            let owner = match self.route_slot(slot) {
                KeyRoute::Here => None,
                KeyRoute::There { owner, .. } => Some(owner),
                KeyRoute::Nowhere(reason) => return Err(self.busy(&reason)),
            };
            let map = self.map.read();
            let epoch =
                map.slots.get(usize::from(slot)).and_then(Option::as_ref).map_or(0, |owned| owned.epoch);
            shares.entry(owner).or_default().push((slot, epoch));
        }
        Ok(shares.into_iter().map(|(owner, slots)| OwnerShare { owner, slots }).collect())
    }

    /// To read what is in the slot of this key.
    ///
    /// # Errors
    /// `Busy` when it is not ours now.
    pub(crate) fn read(self: &Arc<Self>, bucket: &str, key: &str) -> GatewayResult<WritePass> {
        let slot = self.slot_of(bucket, key);
        let epoch = self.slots.lock()[usize::from(slot)].epoch;
        self.read_slots(vec![(slot, epoch)])
    }

    /// The same for slots of these epochs.
    ///
    /// # Errors
    /// `Busy` when one is not ours now, or another epoch's.
    pub(crate) fn read_slots(self: &Arc<Self>, slots: Vec<(u16, u64)>) -> GatewayResult<WritePass> {
        let pass = WritePass { of: Some((Arc::clone(self), slots)), is_writing: false };
        pass.check().map(|()| pass)
    }

    /// To write to the slots of these keys, which are dirty by then.
    ///
    /// # Errors
    /// `Busy` when one is not ours, or does not become so in time.
    pub(crate) async fn write(self: &Arc<Self>, bucket: &str, keys: &[&str]) -> GatewayResult<WritePass> {
        let wanted: BTreeSet<u16> = keys.iter().map(|key| self.slot_of(bucket, key)).collect();
        let deadline = Instant::now() + MAX_SETTLE_WAIT;
        let mut changes = self.changes.subscribe();
        loop {
            if let Some(pass) = self.try_write(&wanted)? {
                return Ok(pass);
            }
            if !matches!(timeout_at(deadline, changes.changed()).await, Ok(Ok(()))) {
                return Err(
                    self.busy("these keys are being handed to another gateway, or etcd does not answer")
                );
            }
        }
    }

    /// All of them or none: a writer that held one and waited for another could keep both from coming to rest.
    fn try_write(self: &Arc<Self>, wanted: &BTreeSet<u16>) -> GatewayResult<Option<WritePass>> {
        if !self.has_lease() {
            return Err(self.busy("this gateway has lost touch with etcd"));
        }
        let mut slots = self.slots.lock();
        let mut is_free = true;
        for slot in wanted {
            let slot = &mut slots[usize::from(*slot)];
            match slot.phase {
                SlotPhase::Foreign => return Err(self.busy("these keys have moved to another gateway")),
                SlotPhase::Taking => return Err(self.busy("this gateway is taking these keys over")),
                SlotPhase::Closing => is_free = false,
                SlotPhase::Serving if slot.is_dirty => {}
                SlotPhase::Serving => {
                    (slot.wants_dirty, is_free) = (true, false);
                    self.asked.notify_one();
                }
            }
        }
        if !is_free {
            return Ok(None);
        }
        let mut epochs = Vec::with_capacity(wanted.len());
        for number in wanted {
            let slot = &mut slots[usize::from(*number)];
            slot.writers += 1;
            epochs.push((*number, slot.epoch));
        }
        Ok(Some(WritePass { of: Some((Arc::clone(self), epochs)), is_writing: true }))
    }

    /// Whether the store may be brought up to date at keys of this slot.
    pub(crate) fn may_flush(&self, slot: u16) -> bool {
        let slots = self.slots.lock();
        let slot = &slots[usize::from(slot)];
        matches!(slot.phase, SlotPhase::Serving | SlotPhase::Closing) && slot.is_dirty && self.has_lease()
    }

    /// Waits until a slot has to become dirty.
    pub(crate) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Slots that have to become dirty.
    pub(crate) fn wanting_dirty(&self) -> Vec<u16> {
        self.those(|slot| slot.phase == SlotPhase::Serving && slot.wants_dirty && !slot.is_dirty)
    }

    fn those(&self, predicate: impl Fn(&SlotState) -> bool) -> Vec<u16> {
        let slots = self.slots.lock();
        (0..SLOTS).filter(|number| predicate(&slots[usize::from(*number)])).collect()
    }

    /// Etcd has these down as dirty, or no longer so.
    pub(crate) fn set_dirty(&self, numbers: &[u16], is_dirty: bool) {
        let mut slots = self.slots.lock();
        for number in numbers {
            let slot = &mut slots[usize::from(*number)];
            (slot.is_dirty, slot.wants_dirty) = (is_dirty, false);
        }
        drop(slots);
        self.tell();
    }

    /// Takes a finding: the slot is ours, and whether its objects are known here.
    pub(crate) fn set_ours(&self, number: u16, epoch: u64, is_dirty: bool, is_known: bool) {
        let mut slots = self.slots.lock();
        let slot = &mut slots[usize::from(number)];
        let is_ours = slot.phase != SlotPhase::Foreign && slot.epoch == epoch;
        slot.is_dirty = is_dirty;
        match (is_ours, is_known) {
            (true, true) if slot.phase == SlotPhase::Taking => slot.phase = SlotPhase::Serving,
            (true, false) if slot.phase != SlotPhase::Taking => slot.phase = SlotPhase::Taking,
            (true, _) => return,
            (false, true) => (slot.phase, slot.epoch) = (SlotPhase::Serving, epoch),
            (false, false) => (slot.phase, slot.epoch) = (SlotPhase::Taking, epoch),
        }
        slot.idle_since = Instant::now();
        drop(slots);
        self.tell();
    }

    /// The slot is another's, or may be.
    pub(crate) fn set_foreign(&self, number: u16) {
        let mut slots = self.slots.lock();
        let slot = &mut slots[usize::from(number)];
        if slot.phase == SlotPhase::Foreign {
            return;
        }
        (slot.phase, slot.is_dirty, slot.wants_dirty) = (SlotPhase::Foreign, false, false);
        drop(slots);
        self.tell();
    }

    /// Of these, the ones that are served, dirty, and that nobody has written to for so long: they are closed.
    pub(crate) fn close_idle(&self, idle: Duration) -> Vec<u16> {
        let mut slots = self.slots.lock();
        let mut closed = Vec::new();
        for (number, slot) in (0..SLOTS).zip(slots.iter_mut()) {
            let is_idle = slot.writers == 0 && slot.idle_since.elapsed() >= idle;
            if slot.phase == SlotPhase::Serving && slot.is_dirty && is_idle {
                slot.phase = SlotPhase::Closing;
                closed.push(number);
            }
        }
        closed
    }

    /// Lets nothing new be written to a slot that is to be handed on. Returns whether all writes have ended.
    pub(crate) fn close(&self, number: u16) -> bool {
        let mut slots = self.slots.lock();
        let slot = &mut slots[usize::from(number)];
        if slot.phase == SlotPhase::Serving {
            slot.phase = SlotPhase::Closing;
        }
        // A slot that is only being taken has no data of its own.
        slot.phase == SlotPhase::Taking || (slot.phase == SlotPhase::Closing && slot.writers == 0)
    }

    pub(crate) fn reopen(&self, numbers: &[u16]) {
        let mut slots = self.slots.lock();
        for number in numbers {
            let slot = &mut slots[usize::from(*number)];
            if slot.phase == SlotPhase::Closing {
                slot.phase = SlotPhase::Serving;
            }
        }
        drop(slots);
        self.tell();
    }

    /// Whether nothing of the slot is answered now.
    pub(crate) fn is_foreign(&self, number: u16) -> bool {
        self.slots.lock()[usize::from(number)].phase == SlotPhase::Foreign
    }

    /// How many slots are served here, are dirty, and are nowhere.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let served = self.those(|slot| matches!(slot.phase, SlotPhase::Serving | SlotPhase::Closing)).len();
        let dirty = self.those(|slot| slot.is_dirty).len();
        let nowhere =
            (0..SLOTS).filter(|slot| matches!(self.route_slot(*slot), KeyRoute::Nowhere(_))).count();
        (served, dirty, nowhere)
    }
}

impl WritePass {
    /// Where there is no cluster.
    pub(crate) fn empty() -> WritePass {
        WritePass { of: None, is_writing: false }
    }

    /// The slots with their epochs.
    pub(crate) fn slots(&self) -> &[(u16, u64)] {
        self.of.as_ref().map_or(&[], |(_, slots)| slots)
    }

    /// Whether it may be answered still: to be asked last.
    ///
    /// # Errors
    /// `Busy` if the slots may be another's by now.
    pub(crate) fn check(&self) -> GatewayResult<()> {
        let Some((ownership, numbers)) = &self.of else { return Ok(()) };
        {
            let slots = ownership.slots.lock();
            for (number, epoch) in numbers {
                let slot = &slots[usize::from(*number)];
                if !matches!(slot.phase, SlotPhase::Serving | SlotPhase::Closing) || slot.epoch != *epoch {
                    return Err(ownership.busy("these keys are not this gateway's now"));
                }
            }
        }
        match ownership.has_lease() {
            true => Ok(()),
            false => Err(ownership.busy("this gateway has lost touch with etcd")),
        }
    }
}

impl Drop for WritePass {
    fn drop(&mut self) {
        let Some((ownership, numbers)) = self.of.take().filter(|_| self.is_writing) else { return };
        let mut slots = ownership.slots.lock();
        for (number, _) in numbers {
            let slot = &mut slots[usize::from(number)];
            slot.writers = slot.writers.saturating_sub(1);
            slot.idle_since = Instant::now();
        }
        drop(slots);
        ownership.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that has slots of its own, served and with a lease.
    fn serving(is_dirty: bool) -> Arc<SlotOwnership> {
        let ownership = Arc::new(SlotOwnership::new(1));
        ownership.be("us".to_owned());
        ownership.hold_until(boot_ms() + 60_000);
        for slot in 0..SLOTS {
            ownership.set_ours(slot, 1, is_dirty, true);
        }
        ownership
    }

    #[tokio::test]
    async fn write_waits_until_slot_is_dirty() {
        let ownership = serving(false);
        let waiting = Arc::clone(&ownership);
        let write = tokio::spawn(async move { waiting.write("lake", &["a"]).await });
        ownership.asked().await;
        let asked = ownership.wanting_dirty();
        assert_eq!(asked, [ownership.slot_of("lake", "a")]);
        assert!(!ownership.may_flush(asked[0]));
        ownership.set_dirty(&asked, true);
        let pass = write.await.unwrap().unwrap();
        assert!(ownership.may_flush(asked[0]));
        // While somebody writes it does not come to rest.
        assert!(ownership.close_idle(Duration::ZERO).is_empty() && !ownership.close(asked[0]));
        drop(pass);
        assert!(ownership.close(asked[0]));
    }

    #[tokio::test]
    async fn closed_slot_is_readable_and_not_writable() {
        let ownership = serving(true);
        let slot = ownership.slot_of("lake", "a");
        assert!(ownership.close(slot));
        ownership.read("lake", "a").unwrap().check().unwrap();
        let keys = ["a"];
        let mut write = Box::pin(ownership.write("lake", &keys));
        assert!(futures_util::poll!(&mut write).is_pending());
        drop(write);
        ownership.reopen(&[slot]);
        assert!(ownership.write("lake", &["a"]).await.is_ok());
    }

    #[tokio::test]
    async fn without_a_lease_nothing_is_answered() {
        let ownership = serving(true);
        let (read, write) =
            (ownership.read("lake", "a").unwrap(), ownership.write("lake", &["a"]).await.unwrap());
        // As after a pause of the whole process: nobody has said anything, only the time is over.
        ownership.lease_until_ms.store(boot_ms(), Ordering::Release);
        assert!(read.check().is_err() && write.check().is_err());
        assert!(ownership.read("lake", "a").is_err() && ownership.write("lake", &["a"]).await.is_err());
        assert!(!ownership.may_flush(ownership.slot_of("lake", "a")));
        // A lease that comes later does not make good what was asked under the former one.
        ownership.let_go();
        ownership.hold_until(boot_ms() + 60_000);
        assert!(read.check().is_err());
        ownership.set_ours(ownership.slot_of("lake", "a"), 3, false, true);
        assert!(read.check().is_err() && ownership.read("lake", "a").is_ok());
    }

    #[test]
    fn listing_covers_all_slots_or_fails() {
        let ownership = serving(true);
        let owned =
            |owner: &str| Some(OwnedSlot { owner: owner.to_owned(), name: owner.to_owned(), epoch: 1 });
        let peers = || HashMap::from([("them".to_owned(), VisiblePeer { address: "x".to_owned() })]);
        let mut slots: Vec<Option<OwnedSlot>> =
            (0..SLOTS).map(|index| owned(if index % 2 == 0 { "us" } else { "them" })).collect();
        ownership.learn(peers(), slots.clone());
        let shares = ownership.shares("lake", "").unwrap();
        assert_eq!(shares.iter().map(|share| share.slots.len()).sum::<usize>(), usize::from(SLOTS));
        assert_eq!(ownership.shares("lake", "t/x").unwrap().len(), 1);
        slots[7] = owned("dead");
        ownership.learn(peers(), slots.clone());
        assert!(matches!(ownership.shares("lake", ""), Err(GatewayError::Busy(why)) if why.contains("dead")));
        slots[7] = None;
        ownership.learn(peers(), slots);
        assert!(ownership.shares("lake", "").is_err());
    }
}
