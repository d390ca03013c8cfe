//! An etcd of the world: keys with revisions, leases in virtual time, requests that get no answer, and transactions
//! that are carried out late.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use underlay_gateway::in_process::{EtcdError, EtcdKv, EtcdPut, EtcdResult, EtcdRow, TransactionGuard};
use underlay_sync::Mutex;

use crate::world::SimulatedWorld;

const MIN_LATENCY: Duration = Duration::from_millis(1);
const MAX_LATENCY: Duration = Duration::from_millis(6);
/// A transaction without an answer is carried out until then, if at all.
const LATE_WITHIN: Duration = Duration::from_secs(20);
/// Of a thousand transactions, so many get no answer.
const UNANSWERED: u64 = 20;

struct EtcdValue {
    bytes: Vec<u8>,
    mod_revision: u64,
    lease: i64,
}

struct EtcdLease {
    ttl: Duration,
    ends: Duration,
}

#[derive(Default)]
struct EtcdState {
    revision: u64,
    rows: BTreeMap<String, EtcdValue>,
    leases: BTreeMap<i64, EtcdLease>,
    next_lease: i64,
    is_stopped: bool,
}

/// See the module. Its clones are one.
#[derive(Clone)]
pub(crate) struct SimulatedEtcd {
    world: SimulatedWorld,
    state: Arc<Mutex<EtcdState>>,
}

/// As one gateway reaches it.
pub(crate) struct EtcdConnection {
    etcd: SimulatedEtcd,
    lives: Arc<AtomicBool>,
    patience: Duration,
}

impl EtcdState {
    fn end_leases(&mut self, now: Duration) {
        let over: Vec<i64> =
            self.leases.iter().filter(|(_, lease)| lease.ends <= now).map(|(id, _)| *id).collect();
        for id in over {
            self.end_lease(id);
        }
    }

    fn end_lease(&mut self, id: i64) {
        if self.leases.remove(&id).is_some() {
            let count = self.rows.len();
            self.rows.retain(|_, value| value.lease != id);
            self.revision += u64::from(self.rows.len() < count);
        }
    }

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
        if puts.iter().any(|put| put.lease != 0 && !self.leases.contains_key(&put.lease)) {
            return Err(EtcdError::not_done("requested lease not found"));
        }
        self.revision += 1;
        for put in puts {
            let value = EtcdValue { bytes: put.value.clone(), mod_revision: self.revision, lease: put.lease };
            self.rows.insert(put.key.clone(), value);
        }
        Ok(Some(self.revision))
    }
}

impl SimulatedEtcd {
    pub(crate) fn new(world: SimulatedWorld) -> SimulatedEtcd {
        SimulatedEtcd { world, state: Arc::default() }
    }

    pub(crate) fn set_stopped(&self, is_stopped: bool) {
        let mut state = self.state.lock();
        // Leases don't end while nobody counts, and are as long as ever behind that.
        if state.is_stopped && !is_stopped {
            let now = self.world.now();
            state.leases.values_mut().for_each(|lease| lease.ends = now + lease.ttl);
        }
        state.is_stopped = is_stopped;
    }

    /// A request from a gateway that waits for its answer for so long.
    pub(crate) fn reached(&self, patience: Duration, lives: Arc<AtomicBool>) -> Box<dyn EtcdKv> {
        Box::new(EtcdConnection { etcd: self.clone(), lives, patience })
    }

    fn carry_out<T>(&self, work: impl FnOnce(&mut EtcdState, Duration) -> T) -> Option<T> {
        let now = self.world.now();
        let mut state = self.state.lock();
        if state.is_stopped {
            return None;
        }
        state.end_leases(now);
        Some(work(&mut state, now))
    }
}

impl EtcdConnection {
    async fn ask<T: Send + 'static>(
        &self,
        changes: bool,
        work: impl FnOnce(&mut EtcdState, Duration) -> EtcdResult<T> + Send + 'static,
    ) -> EtcdResult<T> {
        if !self.lives.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let (sender, receiver) = oneshot::channel();
        let (arrives, answers, late) = self.etcd.world.with_random(|random| {
            let late = (changes && random.is_one_of_thousand(UNANSWERED))
                .then(|| random.delay(Duration::ZERO, LATE_WITHIN));
            (random.delay(MIN_LATENCY, MAX_LATENCY), random.delay(MIN_LATENCY, MAX_LATENCY), late)
        });
        let etcd = self.etcd.clone();
        self.etcd.world.call_after(arrives + late.unwrap_or_default(), move || {
            let outcome = etcd.carry_out(work);
            if late.is_some() {
                etcd.world.note("etcd: a transaction comes late");
                return;
            }
            if let Some(outcome) = outcome {
                etcd.world.call_after(answers, move || drop(sender.send(outcome)));
            }
        });
        match tokio::time::timeout(self.patience, receiver).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => {
                tokio::time::sleep(self.patience).await;
                Err(EtcdError::unknown("no answer in time"))
            }
            Err(_) => Err(EtcdError::unknown("no answer in time")),
        }
    }
}

#[async_trait]
impl EtcdKv for EtcdConnection {
    async fn range(&self, prefix: &str) -> EtcdResult<(Vec<EtcdRow>, u64)> {
        let prefix = prefix.to_owned();
        self.ask(false, move |state, _| {
            let rows =
                state.rows.iter().filter(|(key, _)| key.starts_with(&prefix)).map(|(key, value)| EtcdRow {
                    key: key.clone(),
                    value: value.bytes.clone(),
                    mod_revision: value.mod_revision,
                    lease: value.lease,
                });
            Ok((rows.collect(), state.revision.max(1)))
        })
        .await
    }

    async fn transact(&self, compares: &[TransactionGuard], puts: &[EtcdPut]) -> EtcdResult<Option<u64>> {
        let (compares, puts) = (compares.to_vec(), puts.to_vec());
        self.ask(true, move |state, _| state.transact(&compares, &puts)).await
    }

    async fn grant(&self, ttl: Duration) -> EtcdResult<(i64, Duration)> {
        self.ask(false, move |state, now| {
            state.next_lease += 1;
            let lease = state.next_lease;
            state.leases.insert(lease, EtcdLease { ttl, ends: now + ttl });
            Ok((lease, ttl))
        })
        .await
    }

    async fn keep_alive(&self, lease: i64) -> EtcdResult<Option<Duration>> {
        self.ask(false, move |state, now| {
            Ok(state.leases.get_mut(&lease).map(|found| {
                found.ends = now + found.ttl;
                found.ttl
            }))
        })
        .await
    }

    async fn revoke(&self, lease: i64) -> EtcdResult<()> {
        self.ask(true, move |state, _| {
            state.end_lease(lease);
            Ok(())
        })
        .await
    }
}
