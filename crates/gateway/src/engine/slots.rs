//! Slots that come and go, where several gateways share a store: objects of one that comes are listed from the store, and those of one
//! that has gone are forgotten. A slot moves only when its store has everything.

use std::collections::{HashMap, HashSet};

use futures_util::StreamExt as _;

use super::Engine;
use super::import::{BATCH, enter};
use crate::config::Consistency;
use crate::errors::Result;
use crate::meta::Name;
use crate::placement::SLOTS;

/// Under which the metadata have the cluster that the local directory belongs to.
pub(super) const CLUSTER: &[u8] = b"cluster";

/// Under which number the metadata have the epoch of a slot whose objects they know; 0 is none.
fn epoch_key(slot: u16) -> Vec<u8> {
    format!("slot {slot}").into_bytes()
}

impl Engine {
    /// How often the local directory was opened.
    pub(crate) fn openings(&self) -> u64 {
        self.metadata.epoch
    }

    /// The cluster that the local directory belongs to.
    ///
    /// # Errors
    /// When the metadata can't be read.
    pub(crate) fn cluster(&self) -> Result<Option<u64>> {
        self.metadata.view()?.number(CLUSTER)
    }

    /// # Errors
    /// When it can't be written.
    pub(crate) async fn join(&self, cluster: u64) -> Result<()> {
        self.committer.commit(Vec::new(), move |change| change.set_number(CLUSTER, cluster)).await
    }

    /// The epochs of slots whose objects are known here.
    ///
    /// # Errors
    /// When the metadata can't be read.
    pub(crate) fn known_slots(&self) -> Result<HashMap<u16, u64>> {
        let view = self.metadata.view()?;
        let mut known = HashMap::new();
        for slot in 0..SLOTS {
            if let Some(epoch) = view.number(&epoch_key(slot))?.filter(|epoch| *epoch > 0) {
                known.insert(slot, epoch);
            }
        }
        Ok(known)
    }

    fn slot_of(&self, name: &Name) -> u16 {
        self.slot_of_key(&name.bucket, &name.key)
    }

    pub(super) fn slot_of_key(&self, bucket: &str, key: &str) -> u16 {
        self.setup.sharing.as_ref().map_or(0, |sharing| sharing.ownership.slot_of(bucket, key))
    }

    /// Slots with something that the store does not have: names to be flushed, and unfinished uploads.
    ///
    /// # Errors
    /// When the metadata can't be read.
    pub(crate) async fn unsettled_slots(&self) -> Result<HashSet<u16>> {
        // Whoever wrote may be gone while its change still waits for its commit: this one comes behind it.
        self.committer.commit(Vec::new(), |_| Ok(())).await?;
        let mut slots = HashSet::new();
        self.queue.each_name(|name| {
            slots.insert(self.slot_of(name));
        });
        slots.extend(self.slots_with_uploads()?);
        Ok(slots)
    }

    /// # Errors
    /// When the metadata can't be read.
    pub(crate) fn slots_with_uploads(&self) -> Result<HashSet<u16>> {
        let uploads = self.metadata.view()?.all_uploads()?;
        Ok(uploads.iter().map(|((name, _), _)| self.slot_of(name)).collect())
    }

    /// What is pending in these slots is flushed at once.
    pub(crate) fn hasten_slots(&self, slots: &HashSet<u16>) {
        self.queue.hasten_some(|name| slots.contains(&self.slot_of(name)));
    }

    /// Forgets the objects of slots. They have nothing that the store does not have.
    ///
    /// # Errors
    /// When the metadata can't be written.
    pub(crate) async fn forget_slots(&self, slots: &HashSet<u16>) -> Result<()> {
        if slots.is_empty() {
            return Ok(());
        }
        let gone: Vec<u16> = slots.iter().copied().collect();
        self.committer
            .commit(Vec::new(), move |change| {
                gone.iter().try_for_each(|slot| change.set_number(&epoch_key(*slot), 0))
            })
            .await?;
        let mut names = HashSet::new();
        let view = self.metadata.view()?;
        let mut take = |name: Name| -> Result<()> {
            if slots.contains(&self.slot_of(&name)) {
                names.insert(name);
            }
            Ok(())
        };
        view.each_object(|name, _| take(name))?;
        view.each_stored(take)?;
        drop(view);
        let names: Vec<Name> = names.into_iter().collect();
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

    /// Learns what the stores have in slots of these epochs, by listing every bucket once.
    ///
    /// # Errors
    /// When a store can't be listed, or the metadata can't be written.
    pub(crate) async fn take_slots(&self, slots: &HashMap<u16, u64>) -> Result<()> {
        // An earlier attempt may have ended half-way.
        self.forget_slots(&slots.keys().copied().collect()).await?;
        for state in self.bucket_states() {
            if state.rules.iter().all(|rule| rule.rule.consistency != Consistency::Exclusive) {
                continue;
            }
            let mut listed = state.backend.list("", None)?;
            let mut batch = Vec::new();
            loop {
                let entry = listed.next().await.transpose()?;
                let is_over = entry.is_none();
                if let Some((key, found)) = entry {
                    let name = Name::new(&state.name, key);
                    if state.is_exclusive(&name.key) && slots.contains_key(&self.slot_of(&name)) {
                        batch.push((name, found, (self.number(), self.number())));
                    }
                }
                if batch.len() >= BATCH || (is_over && !batch.is_empty()) {
                    let (rows, kind) = (std::mem::take(&mut batch), state.backend.kind);
                    self.committer
                        .commit(Vec::new(), move |change| {
                            rows.iter().try_for_each(|(name, found, numbers)| {
                                enter(change, name, found, *numbers, kind)
                            })
                        })
                        .await?;
                }
                if is_over {
                    break;
                }
            }
        }
        let taken: Vec<(u16, u64)> = slots.iter().map(|(slot, epoch)| (*slot, *epoch)).collect();
        self.committer
            .commit(Vec::new(), move |change| {
                taken.iter().try_for_each(|(slot, epoch)| change.set_number(&epoch_key(*slot), *epoch))
            })
            .await
    }
}
