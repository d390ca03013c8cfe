//! One of several gateways that is to store what is left in it, while etcd can't be relied on and all the others are
//! stopped.

use std::collections::HashSet;

use super::GatewayEngine;
use super::slots::{ClusterMembership, held_of, membership_of};
use crate::meta::{MetadataStore, ObjectName};
use crate::ownership::OwnedSlot;
use crate::placement::{SLOTS, slot_of};
use crate::staged::placing_key;

/// The evidence that it goes by.
#[derive(Clone)]
pub struct OfflineDrain {
    pub(crate) segments: usize,
    /// The cluster in etcd; `None` if etcd does not answer, or has no such cluster.
    pub(crate) recorded: Option<RecordedCluster>,
    /// The operator knows that none of its keys were given to others.
    pub(crate) is_trusted: bool,
}

/// The cluster as etcd has it.
#[derive(Clone)]
pub(crate) struct RecordedCluster {
    pub(crate) cluster: u64,
    pub(crate) revision: u64,
    pub(crate) is_halted: bool,
    pub(crate) slots: Vec<Option<OwnedSlot>>,
}

impl RecordedCluster {
    /// Whether these are all slots that somebody can have got.
    fn is_whole(&self, membership: &ClusterMembership) -> bool {
        !self.is_halted && self.revision >= membership.revision
    }
}

impl OfflineDrain {
    /// Slots that others have got after this local directory had them. Its data there may be older than theirs in the
    /// store.
    ///
    /// # Errors
    /// When nobody knows.
    pub(super) fn others(
        &self,
        metadata: &MetadataStore,
        id: &str,
    ) -> std::result::Result<HashSet<u16>, String> {
        let failed = |error: crate::errors::GatewayError| error.to_string();
        let Some(membership) = membership_of(metadata).map_err(failed)? else {
            return Err("the local directory has never been in a cluster\n  what to do: run `underlay-gateway drain` without --without-etcd, and take [cluster] out of the configuration for it".to_owned());
        };
        let recorded = self.recorded.as_ref().filter(|recorded| recorded.cluster == membership.cluster);
        if !self.is_trusted && recorded.is_none_or(|recorded| !recorded.is_whole(&membership)) {
            return Err("etcd does not say who has which keys, or says what is older than what this local directory knows: if `underlay-gateway abandon` has given this gateway's keys to others, to store what it has would overwrite what they have stored since\n  what to do: if you know that it was not given up, repeat this with --not-abandoned; if it was, leave it out".to_owned());
        }
        let Some(recorded) = recorded else { return Ok(HashSet::new()) };
        let held_slots = held_of(metadata).map_err(failed)?;
        let epoch_of = |slot: &u16| held_slots.get(slot).map_or(0, |held_slot| held_slot.epoch());
        let is_others = |slot: &u16| {
            let owned = recorded.slots.get(usize::from(*slot)).and_then(Option::as_ref);
            owned.is_some_and(|owned| owned.owner != id && owned.epoch > epoch_of(slot))
        };
        Ok((0..SLOTS).filter(is_others).collect())
    }
}

impl GatewayEngine {
    /// Whether what is here of this name is kept back, since others have its slot.
    pub(super) fn is_kept_back(&self, name: &ObjectName) -> bool {
        let alone = self.setup.alone.as_ref();
        let key = placing_key(&name.key);
        alone.is_some_and(|alone| self.others.contains(&slot_of(&name.bucket, key, alone.segments)))
    }

    /// Names that the store does not have as they are here, and never gets from here.
    ///
    /// # Errors
    /// When the metadata can't be read.
    pub(crate) fn kept_back(&self) -> crate::errors::GatewayResult<usize> {
        self.metadata.view()?.count_pending(|name| self.is_kept_back(name))
    }
}
