//! Slots that come and go, where several gateways share a store: objects of one that comes are listed from the store,
//! and those of one that has gone are forgotten. A slot moves only when its store has everything.

use std::collections::{HashMap, HashSet};

use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};

use super::GatewayEngine;
use super::listed::{BATCH, enter_listed};
use crate::config::StoreConsistency;
use crate::errors::{GatewayError, GatewayResult};
use crate::meta::{MetadataChange, MetadataStore, ObjectName};
use crate::ownership::WritePass;
use crate::placement::SLOTS;
use crate::staged::placing_key;
use crate::store::{BackendKind, OWNERS, STORE_TIMEOUT};

/// Under which the metadata have the cluster that the local directory belongs to.
const CLUSTER: &[u8] = b"cluster";

/// A local directory's record of its cluster, to compare etcd with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClusterMembership {
    pub(crate) cluster: u64,
    /// Possible tokens of this directory in etcd: the last confirmed one, and those of attempts with an unknown
    /// outcome.
    pub(crate) tokens: Vec<u64>,
    /// Whether etcd has had one of them for sure.
    pub(crate) is_registered: bool,
    /// The highest revision of etcd that anything here was founded on.
    pub(crate) revision: u64,
}

/// The metadata of a slot that is ours, or was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldSlot {
    /// Of the slot when its objects became known here; 0 if they are not.
    epoch: u64,
    /// Possible marks of the slot in etcd: the one it had, and the one it was to get.
    marks: Vec<u64>,
}

impl HeldSlot {
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether it is the slot that etcd speaks of, and not an older copy's.
    pub(crate) fn is(&self, epoch: u64, mark: u64) -> bool {
        self.epoch == epoch && self.epoch > 0 && self.marks.contains(&mark)
    }
}

pub(super) fn membership_of(metadata: &MetadataStore) -> GatewayResult<Option<ClusterMembership>> {
    metadata.view()?.state(CLUSTER)
}

/// Slots whose objects are known here.
pub(super) fn held_of(metadata: &MetadataStore) -> GatewayResult<HashMap<u16, HeldSlot>> {
    let view = metadata.view()?;
    let mut slots = HashMap::new();
    for slot in 0..SLOTS {
        if let Some(held_slot) =
            view.state::<HeldSlot>(&key_of(slot))?.filter(|held_slot| held_slot.epoch > 0)
        {
            slots.insert(slot, held_slot);
        }
    }
    Ok(slots)
}

fn key_of(slot: u16) -> Vec<u8> {
    format!("slot {slot}").into_bytes()
}

fn epoch_of(change: &MetadataChange<'_>, slot: u16) -> GatewayResult<u64> {
    Ok(change.state::<HeldSlot>(&key_of(slot))?.map_or(0, |held_slot| held_slot.epoch))
}

/// Whether the objects of a slot are known here.
pub(super) fn is_held(change: &MetadataChange<'_>, slot: u16) -> GatewayResult<bool> {
    Ok(epoch_of(change, slot)? > 0)
}

/// The condition of a change of the metadata when it is carried out. Its caller may have waited while a slot went to
/// another gateway and came back.
#[derive(Clone)]
pub(super) struct CommitFence(Vec<(u16, u64)>);

impl CommitFence {
    pub(super) fn from_pass(pass: &WritePass) -> CommitFence {
        CommitFence(pass.slots().to_vec())
    }

    /// # Errors
    /// `Busy` if a slot has been lost since. To be asked before anything is changed.
    pub(super) fn check(&self, change: &MetadataChange<'_>) -> GatewayResult<()> {
        for (slot, epoch) in &self.0 {
            if epoch_of(change, *slot)? != *epoch {
                return Err(GatewayError::Busy(
                    "these keys have moved to another gateway: try again".to_owned(),
                ));
            }
        }
        Ok(())
    }
}

/// Under which the metadata have the cluster that a bucket's store was marked for.
pub(super) fn marked_key(bucket: &str) -> Vec<u8> {
    format!("marked {bucket}").into_bytes()
}

impl GatewayEngine {
    /// The cluster that the local directory belongs to.
    ///
    /// # Errors
    /// When the metadata can't be read.
    pub(crate) fn membership(&self) -> GatewayResult<Option<ClusterMembership>> {
        membership_of(&self.metadata)
    }

    /// Notes something of it, durably.
    ///
    /// # Errors
    /// When it can't be written.
    pub(crate) async fn note_membership(
        &self,
        note: impl FnOnce(&mut ClusterMembership) + Send + 'static,
    ) -> GatewayResult<()> {
        self.committer
            .commit(Vec::new(), move |change| {
                let mut membership = change.state::<ClusterMembership>(CLUSTER)?.unwrap_or_default();
                note(&mut membership);
                change.set_state(CLUSTER, &membership)
            })
            .await
    }

    /// Slots whose objects are known here.
    ///
    /// # Errors
    /// When the metadata can't be read.
    pub(crate) fn known_slots(&self) -> GatewayResult<HashMap<u16, HeldSlot>> {
        held_of(&self.metadata)
    }

    /// Notes that each of these slots may get another mark, in the place of the one that etcd has now; and how far etcd
    /// was then. It is durable before etcd learns of it.
    ///
    /// # Errors
    /// When it can't be written, or one of them is not known here.
    pub(crate) async fn mark_slots(
        &self,
        marks: HashMap<u16, (u64, u64)>,
        revision: u64,
    ) -> GatewayResult<()> {
        self.committer
            .commit(Vec::new(), move |change| {
                let mut held_slots = Vec::new();
                for (slot, (former, next)) in marks {
                    let recorded =
                        change.state::<HeldSlot>(&key_of(slot))?.filter(|held_slot| held_slot.epoch > 0);
                    let recorded = recorded.ok_or_else(|| {
                        GatewayError::Busy("keys that are to be written to have moved: try again".to_owned())
                    })?;
                    let mut marks = match recorded.marks.contains(&former) {
                        true => vec![former],
                        false => recorded.marks,
                    };
                    if !marks.contains(&next) {
                        marks.push(next);
                    }
                    held_slots.push((slot, HeldSlot { marks, ..recorded }));
                }
                let mut membership = change.state::<ClusterMembership>(CLUSTER)?.unwrap_or_default();
                membership.revision = membership.revision.max(revision);
                change.set_state(CLUSTER, &membership)?;
                held_slots
                    .iter()
                    .try_for_each(|(slot, held_slot)| change.set_state(&key_of(*slot), held_slot))
            })
            .await
    }

    /// For what is to be flushed at this name: it is ours, at this epoch.
    pub(super) fn fence_of(&self, name: &ObjectName) -> GatewayResult<CommitFence> {
        if self.setup.sharing.is_none() {
            return Ok(CommitFence(Vec::new()));
        }
        let slot = self.slot_of(name);
        let held_slot = self.metadata.view()?.state::<HeldSlot>(&key_of(slot))?;
        Ok(CommitFence(vec![(slot, held_slot.map_or(0, |held| held.epoch))]))
    }

    /// Objects with something that neither the store nor several gateways could keep: with the first that is listed
    /// anew it is gone.
    ///
    /// # Errors
    /// When the metadata can't be read.
    pub(crate) fn count_unkeepable(&self) -> GatewayResult<usize> {
        let mut count = 0;
        self.metadata.view()?.each_object(|name, record| {
            let state = self.bucket(&name.bucket).ok();
            let is_kept =
                state.is_none_or(|state| self.check_keepable(&state, &record.headers, &record.tags).is_ok());
            // Earlier versions kept this one from the store.
            count += usize::from(!is_kept || record.headers.expires.is_some());
            Ok(())
        })?;
        Ok(count)
    }

    /// Whether the store may be brought up to date at this name.
    pub(super) fn may_flush(&self, name: &ObjectName) -> bool {
        let sharing = self.setup.sharing.as_ref();
        sharing.is_none_or(|sharing| sharing.ownership.may_flush(self.slot_of(name)))
    }

    /// The same, before each step of it. Requests in flight go on to their end: dropping them would not take them back
    /// from the store.
    ///
    /// # Errors
    /// When it may not.
    pub(super) fn check_flush(&self, name: &ObjectName) -> GatewayResult<()> {
        match self.may_flush(name) {
            true => Ok(()),
            false => {
                Err(GatewayError::Busy("the lease has ended: it is stored once there is another".to_owned()))
            }
        }
    }

    /// The cluster marker in each bucket's store.
    ///
    /// # Errors
    /// When a store does not answer.
    pub(crate) async fn store_markers(&self) -> GatewayResult<Vec<(String, Option<String>)>> {
        let mut markers = Vec::new();
        for state in self.bucket_states() {
            markers.push((state.name.clone(), state.backend.marker().await?));
        }
        Ok(markers)
    }

    /// Has each store that says nothing of a cluster say that it belongs to this one. A directory that has said so to
    /// this gateway before and does not any more is not the one that it was.
    ///
    /// # Errors
    /// When a store does not take it.
    pub(crate) async fn mark_stores(&self, text: &str) -> GatewayResult<()> {
        for state in self.bucket_states() {
            let key = marked_key(&state.name);
            let was_marked = self.metadata.view()?.state::<String>(&key)?.is_some_and(|mark| mark == text);
            if was_marked
                && state.backend.kind == BackendKind::Directory
                && state.backend.marker().await?.is_none()
            {
                return Err(GatewayError::Store(format!(
                    "the directory of bucket {} no longer says which cluster it belongs to ({OWNERS} is not there): is it mounted?",
                    state.name
                )));
            }
            state.backend.mark(text).await?;
            if !was_marked {
                let text = text.to_owned();
                self.committer.commit(Vec::new(), move |change| change.set_state(&key, &text)).await?;
            }
        }
        Ok(())
    }

    fn slot_of(&self, name: &ObjectName) -> u16 {
        self.slot_of_key(&name.bucket, &name.key)
    }

    pub(super) fn slot_of_key(&self, bucket: &str, key: &str) -> u16 {
        let key = placing_key(key);
        self.setup.sharing.as_ref().map_or(0, |sharing| sharing.ownership.slot_of(bucket, key))
    }

    /// Slots with something that the store does not have: names to be flushed, and unfinished uploads.
    ///
    /// # Errors
    /// When the metadata can't be read.
    pub(crate) async fn unsettled_slots(&self) -> GatewayResult<HashSet<u16>> {
        // A writer may be gone while its change still waits for its commit: this one comes behind it.
        self.committer.commit(Vec::new(), |_| Ok(())).await?;
        let mut slots = HashSet::new();
        self.queue.each_name(|name| {
            slots.insert(self.slot_of(name));
        });
        slots.extend(self.slots_with_uploads()?);
        Ok(slots)
    }

    /// Slots that can't be another's yet: those, and what the store may still do for us without having answered. The
    /// next owner must not be overtaken by that.
    ///
    /// # Errors
    /// When the metadata can't be read.
    pub(crate) async fn slots_to_keep(&self) -> GatewayResult<HashSet<u16>> {
        let mut slots = self.unsettled_slots().await?;
        for (bucket, late) in self.late_of_all() {
            slots.extend(late.names().iter().map(|key| self.slot_of_key(&bucket, key)));
        }
        Ok(slots)
    }

    /// # Errors
    /// When the metadata can't be read.
    pub(crate) fn slots_with_uploads(&self) -> GatewayResult<HashSet<u16>> {
        let mut slots = HashSet::new();
        self.metadata.view()?.each_upload(|name, _, _| {
            slots.insert(self.slot_of(&name));
        })?;
        Ok(slots)
    }

    /// Pending names in these slots are flushed at once.
    pub(crate) fn hasten_slots(&self, slots: &HashSet<u16>) {
        self.queue.hasten_some(|name| slots.contains(&self.slot_of(name)));
    }

    /// Forgets the objects of slots. They have nothing that the store does not have.
    ///
    /// # Errors
    /// When the metadata can't be written.
    pub(crate) async fn forget_slots(&self, slots: &HashSet<u16>) -> GatewayResult<()> {
        if slots.is_empty() {
            return Ok(());
        }
        let removed: Vec<u16> = slots.iter().copied().collect();
        self.committer
            .commit(Vec::new(), move |change| {
                removed.iter().try_for_each(|slot| change.set_state(&key_of(*slot), &HeldSlot::default()))
            })
            .await?;
        // The store's answers about them may be older than the next owner's writes, and they may come back.
        for state in self.bucket_states() {
            for rule in &state.rules {
                rule.fresh.forget_those(|key| slots.contains(&self.slot_of_key(&state.name, key)));
            }
        }
        let mut names = HashSet::new();
        let view = self.metadata.view()?;
        let mut take = |name: ObjectName| -> GatewayResult<()> {
            if slots.contains(&self.slot_of(&name)) {
                names.insert(name);
            }
            Ok(())
        };
        view.each_object(|name, _| take(name))?;
        view.each_stored(take)?;
        drop(view);
        let names: Vec<ObjectName> = names.into_iter().collect();
        for names in names.chunks(BATCH) {
            let names = names.to_vec();
            self.committer
                .commit(Vec::new(), move |change| {
                    for name in &names {
                        change.set_object(name, None)?;
                        change.set_stored(name, None)?;
                    }
                    Ok(())
                })
                .await?;
        }
        Ok(())
    }

    /// Learns what the stores have in slots of these epochs and marks, by listing every bucket once.
    ///
    /// # Errors
    /// When a store can't be listed, or the metadata can't be written.
    pub(crate) async fn take_slots(&self, slots: &HashMap<u16, (u64, u64)>) -> GatewayResult<()> {
        // An earlier attempt may have ended half-way.
        self.forget_slots(&slots.keys().copied().collect()).await?;
        for state in self.bucket_states() {
            if state.rules.iter().all(|rule| rule.rule.consistency != StoreConsistency::Exclusive) {
                continue;
            }
            let mut listed = state.backend.list("")?;
            let mut batch = Vec::new();
            loop {
                // A directory that hangs would keep every slot away that comes later.
                let next = tokio::time::timeout(STORE_TIMEOUT, listed.next()).await;
                let next = next.map_err(|_| {
                    GatewayError::Store(format!(
                        "listing {}: no answer for {} s",
                        state.name,
                        STORE_TIMEOUT.as_secs()
                    ))
                })?;
                let entry = next.transpose()?;
                let is_over = entry.is_none();
                if let Some((key, found)) = entry {
                    let name = ObjectName::new(&state.name, key);
                    if state.is_exclusive(&name.key) && slots.contains_key(&self.slot_of(&name)) {
                        batch.push((name, found, (self.number(), self.number())));
                    }
                }
                if batch.len() >= BATCH || (is_over && !batch.is_empty()) {
                    let (rows, kind) = (std::mem::take(&mut batch), state.backend.kind);
                    self.committer
                        .commit(Vec::new(), move |change| {
                            rows.iter().try_for_each(|(name, found, numbers)| {
                                enter_listed(change, name, found, *numbers, kind)
                            })
                        })
                        .await?;
                }
                if is_over {
                    break;
                }
            }
        }
        let to_held = |(slot, (epoch, mark)): (&u16, &(u64, u64))| {
            (*slot, HeldSlot { epoch: *epoch, marks: vec![*mark] })
        };
        let entries: Vec<(u16, HeldSlot)> = slots.iter().map(to_held).collect();
        self.committer
            .commit(Vec::new(), move |change| {
                entries.iter().try_for_each(|(slot, held_slot)| change.set_state(&key_of(*slot), held_slot))
            })
            .await
    }
}
