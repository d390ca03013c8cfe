//! An etcd in memory, as the tests want it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use underlay_sync::Mutex;

use crate::cluster::etcd::{EtcdError, EtcdKv, EtcdPut, EtcdResult, EtcdRow, TransactionGuard};
use crate::cluster::records::{EtcdKeys, SlotRecord};
use crate::placement::SLOTS;

pub(super) const PREFIX: &str = "/test";

#[derive(Clone, Debug)]
struct Value {
    bytes: Vec<u8>,
    mod_revision: u64,
    lease: i64,
}

/// The contents of etcd.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    revision: u64,
    rows: BTreeMap<String, Value>,
    leases: BTreeSet<i64>,
    next_lease: i64,
}

/// The fate of a transaction whose sender gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Lost,
    Done,
    /// It is carried out when the test says so.
    Late,
}

/// See the module.
#[derive(Default)]
pub(super) struct Fake {
    model: Mutex<Model>,
    /// Of the next transactions that are about slots.
    fates: Mutex<VecDeque<Fate>>,
    late: Mutex<Vec<(Vec<TransactionGuard>, Vec<EtcdPut>)>>,
}

/// As a member sees it.
pub(super) struct At(pub(super) Arc<Fake>);

impl Model {
    fn holds(&self, compare: &TransactionGuard) -> bool {
        match compare {
            TransactionGuard::Absent(key) => !self.rows.contains_key(key),
            TransactionGuard::Present(key) => self.rows.contains_key(key),
            TransactionGuard::Unchanged(key, revision) => {
                self.rows.get(key).is_some_and(|value| value.mod_revision == *revision)
            }
            TransactionGuard::Leased(key, lease) => {
                self.rows.get(key).is_some_and(|value| value.lease == *lease)
            }
        }
    }

    fn transact(&mut self, compares: &[TransactionGuard], puts: &[EtcdPut]) -> EtcdResult<Option<u64>> {
        if !compares.iter().all(|compare| self.holds(compare)) {
            return Ok(None);
        }
        if puts.iter().any(|put| put.lease != 0 && !self.leases.contains(&put.lease)) {
            return Err(EtcdError::unknown("requested lease not found"));
        }
        self.revision += 1;
        for put in puts {
            let value = Value { bytes: put.value.clone(), mod_revision: self.revision, lease: put.lease };
            self.rows.insert(put.key.clone(), value);
        }
        Ok(Some(self.revision))
    }
}

impl Fake {
    pub(super) fn will(&self, fates: &[Fate]) {
        *self.fates.lock() = fates.iter().copied().collect();
    }

    pub(super) fn fates_left(&self) -> usize {
        self.fates.lock().len()
    }

    /// Carries out late transactions now, as far as they still fit.
    pub(super) fn carry_out_late(&self) {
        let late = std::mem::take(&mut *self.late.lock());
        let mut model = self.model.lock();
        for (compares, puts) in late {
            let _ = model.transact(&compares, &puts);
        }
    }

    pub(super) fn expire(&self, lease: i64) {
        let mut model = self.model.lock();
        if model.leases.remove(&lease) {
            model.revision += 1;
            model.rows.retain(|_, value| value.lease != lease);
        }
    }

    /// Ends the lease that a gateway had before.
    pub(super) fn expire_member(&self, id: &str) {
        let lease = self.model.lock().rows.get(&EtcdKeys::new(PREFIX).member(id)).map(|value| value.lease);
        if let Some(lease) = lease {
            self.expire(lease);
        }
    }

    pub(super) fn snapshot(&self) -> Model {
        self.model.lock().clone()
    }

    pub(super) fn restore(&self, snapshot: &Model) {
        *self.model.lock() = snapshot.clone();
    }

    pub(super) fn wipe(&self) {
        *self.model.lock() = Model::default();
    }

    /// Others have changed so many keys.
    pub(super) fn advance(&self, revisions: u64) {
        self.model.lock().revision += revisions;
    }

    pub(super) fn find_slot(&self, slot: u16) -> Option<SlotRecord> {
        let model = self.model.lock();
        let value = model.rows.get(&EtcdKeys::new(PREFIX).slot(slot))?;
        Some(serde_json::from_slice(&value.bytes).unwrap())
    }

    pub(super) fn slot(&self, slot: u16) -> SlotRecord {
        self.find_slot(slot).unwrap()
    }

    pub(super) fn change_slot(&self, slot: u16, change: impl FnOnce(&mut SlotRecord)) {
        let mut record = self.slot(slot);
        change(&mut record);
        let put = crate::cluster::records::put(EtcdKeys::new(PREFIX).slot(slot), &record, 0);
        self.model.lock().transact(&[], &[put]).unwrap();
    }

    pub(super) fn write(&self, put: EtcdPut) {
        self.model.lock().transact(&[], &[put]).unwrap();
    }

    /// How many slots are dirty.
    pub(super) fn dirty(&self) -> usize {
        (0..SLOTS).filter_map(|slot| self.find_slot(slot)).filter(|record| record.is_dirty).count()
    }
}

#[async_trait]
impl EtcdKv for At {
    async fn range(&self, prefix: &str) -> EtcdResult<(Vec<EtcdRow>, u64)> {
        let model = self.0.model.lock();
        let of_it = model.rows.iter().filter(|(key, _)| key.starts_with(prefix));
        let rows = of_it.map(|(key, value)| EtcdRow {
            key: key.clone(),
            value: value.bytes.clone(),
            mod_revision: value.mod_revision,
            lease: value.lease,
        });
        Ok((rows.collect(), model.revision.max(1)))
    }

    async fn transact(&self, compares: &[TransactionGuard], puts: &[EtcdPut]) -> EtcdResult<Option<u64>> {
        let is_of_slots = puts.iter().any(|put| put.key.contains("/slots/"));
        let fate = if is_of_slots { self.0.fates.lock().pop_front() } else { None };
        let outcome = match fate {
            None => return self.0.model.lock().transact(compares, puts),
            Some(Fate::Done) => self.0.model.lock().transact(compares, puts).map(drop),
            Some(Fate::Late) => {
                self.0.late.lock().push((compares.to_vec(), puts.to_vec()));
                Ok(())
            }
            Some(Fate::Lost) => Ok(()),
        };
        outcome.and(Err(EtcdError::unknown("no answer in time")))
    }

    async fn grant(&self, ttl: Duration) -> EtcdResult<(i64, Duration)> {
        let mut model = self.0.model.lock();
        model.next_lease += 1;
        // A restored etcd must not give one again that somebody still believes to have.
        let lease = model.next_lease + i64::try_from(model.revision).unwrap() * 1000;
        model.leases.insert(lease);
        Ok((lease, ttl))
    }

    async fn keep_alive(&self, lease: i64) -> EtcdResult<Option<Duration>> {
        Ok(self.0.model.lock().leases.contains(&lease).then_some(Duration::from_secs(3600)))
    }

    async fn revoke(&self, lease: i64) -> EtcdResult<()> {
        self.0.expire(lease);
        Ok(())
    }
}
