//! The cluster's records in etcd, and a gateway's view of them.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::etcd::{EtcdPut, EtcdRow, TransactionGuard};
use crate::ownership::{OwnedSlot, VisiblePeer};
use crate::placement::SLOTS;

/// The cluster itself. It is written once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClusterRecord {
    /// Random: etcd that has lost everything must not be taken for a new cluster's.
    pub(super) id: u64,
    pub(super) segments: usize,
}

/// A gateway that is there, as long as its lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MemberRecord {
    pub(super) name: String,
    pub(super) address: String,
    /// The fingerprint of its buckets: all members have to have the same.
    pub(super) buckets: String,
    /// It gives away what it has, and is given nothing more.
    #[serde(default)]
    pub(super) is_leaving: bool,
}

/// Of each local directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HomeRecord {
    /// The token that its last process drew. An older copy of the directory does not know it.
    pub(super) token: u64,
    /// Random, another one with each transaction of its gateway: an older etcd does not have the last.
    pub(super) serial: u64,
}

/// Who has a slot. It stays when its owner goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SlotRecord {
    /// Identity of a local directory.
    pub(super) owner: String,
    pub(super) name: String,
    /// One more with each owner.
    pub(super) epoch: u64,
    /// Whether the owner may have what the store does not have.
    pub(super) is_dirty: bool,
    /// Random, another one each time that the slot becomes dirty; 0 before the first. An older copy of the owner's
    /// directory does not know it.
    pub(super) mark: u64,
}

/// The names of keys.
#[derive(Clone, Debug)]
pub(super) struct EtcdKeys {
    prefix: String,
}

impl EtcdKeys {
    pub(super) fn new(prefix: &str) -> EtcdKeys {
        EtcdKeys { prefix: prefix.trim_end_matches('/').to_owned() }
    }

    pub(super) fn all(&self) -> String {
        format!("{}/", self.prefix)
    }

    pub(super) fn cluster(&self) -> String {
        format!("{}/cluster", self.prefix)
    }

    /// Why nobody may go on, once somebody has seen that.
    pub(super) fn halted(&self) -> String {
        format!("{}/halted", self.prefix)
    }

    pub(super) fn member(&self, id: &str) -> String {
        format!("{}/members/{id}", self.prefix)
    }

    /// Whether it is the key of a member, which goes with its lease.
    pub(super) fn is_member(&self, key: &str) -> bool {
        key.strip_prefix(&self.prefix).is_some_and(|rest| rest.starts_with("/members/"))
    }

    pub(super) fn home(&self, id: &str) -> String {
        format!("{}/homes/{id}", self.prefix)
    }

    pub(super) fn slot(&self, slot: u16) -> String {
        format!("{}/slots/{slot:03}", self.prefix)
    }
}

/// A record, and the revision of its last change.
pub(super) type FoundRecord<T> = (T, u64);

/// The contents of etcd.
#[derive(Clone, Debug, Default)]
pub(super) struct ClusterView {
    /// Of etcd as a whole. It never goes back, unless etcd's data do.
    pub(super) revision: u64,
    pub(super) halted: Option<String>,
    pub(super) cluster: Option<ClusterRecord>,
    pub(super) members: HashMap<String, MemberRecord>,
    /// Leases of the members.
    pub(super) leases: HashMap<String, i64>,
    pub(super) homes: HashMap<String, FoundRecord<HomeRecord>>,
    pub(super) slots: Vec<Option<FoundRecord<SlotRecord>>>,
}

impl ClusterView {
    /// # Errors
    /// When a key is not what a gateway writes: going on could make it worse.
    pub(super) fn read(keys: &EtcdKeys, rows: &[EtcdRow], revision: u64) -> Result<ClusterView, String> {
        let mut view =
            ClusterView { revision, slots: vec![None; usize::from(SLOTS)], ..ClusterView::default() };
        for row in rows {
            let Some(name) = row.key.strip_prefix(&keys.all()) else { continue };
            let wrong = |error: &dyn std::fmt::Display| {
                format!("etcd has something at {} that no gateway wrote: {error}", row.key.escape_debug())
            };
            fn decode<T: for<'de> Deserialize<'de>>(row: &EtcdRow) -> Result<T, serde_json::Error> {
                serde_json::from_slice(&row.value)
            }
            match name.split_once('/') {
                None if name == "cluster" => view.cluster = Some(decode(row).map_err(|error| wrong(&error))?),
                None if name == "halted" => {
                    // No matter who wrote it, or in which form.
                    let text = || String::from_utf8_lossy(&row.value).into_owned();
                    view.halted = Some(decode(row).unwrap_or_else(|_| text()));
                }
                Some(("members", id)) => {
                    view.members.insert(id.to_owned(), decode(row).map_err(|error| wrong(&error))?);
                    view.leases.insert(id.to_owned(), row.lease);
                }
                Some(("homes", id)) => {
                    let home = decode(row).map_err(|error| wrong(&error))?;
                    view.homes.insert(id.to_owned(), (home, row.mod_revision));
                }
                Some(("slots", number)) => {
                    let slot = number.parse::<usize>().ok().and_then(|number| view.slots.get_mut(number));
                    let slot = slot.ok_or_else(|| wrong(&"no such slot"))?;
                    *slot = Some((decode(row).map_err(|error| wrong(&error))?, row.mod_revision));
                }
                _ => {}
            }
        }
        Ok(view)
    }

    /// Members that slots are given to.
    pub(super) fn staying(&self) -> impl Iterator<Item = (&String, &MemberRecord)> {
        self.members.iter().filter(|(_, member)| !member.is_leaving)
    }

    pub(super) fn slot(&self, slot: u16) -> Option<&FoundRecord<SlotRecord>> {
        self.slots.get(usize::from(slot)).and_then(Option::as_ref)
    }

    /// Of the slot's last change; 0 if it never was.
    pub(super) fn revision_of(&self, slot: u16) -> u64 {
        self.slot(slot).map_or(0, |(_, revision)| *revision)
    }

    /// For [`SlotOwnership::learn`](crate::ownership::SlotOwnership::learn).
    pub(super) fn map(&self) -> (HashMap<String, VisiblePeer>, Vec<Option<OwnedSlot>>) {
        let peer = |(id, member): (&String, &MemberRecord)| {
            (id.clone(), VisiblePeer { address: member.address.clone() })
        };
        let owned = |found: &Option<FoundRecord<SlotRecord>>| {
            found.as_ref().map(|(record, _)| OwnedSlot {
                owner: record.owner.clone(),
                name: record.name.clone(),
                epoch: record.epoch,
            })
        };
        (self.members.iter().map(peer).collect(), self.slots.iter().map(owned).collect())
    }

    /// The condition for changing this slot by this view.
    pub(super) fn unchanged(&self, keys: &EtcdKeys, slot: u16) -> TransactionGuard {
        match self.slot(slot) {
            Some((_, revision)) => TransactionGuard::Unchanged(keys.slot(slot), *revision),
            None => TransactionGuard::Absent(keys.slot(slot)),
        }
    }
}

/// A key with a record.
pub(super) fn put(key: String, record: &impl Serialize, lease: i64) -> EtcdPut {
    EtcdPut { key, value: serde_json::to_vec(record).unwrap_or_default(), lease }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(key: &str, value: &str, lease: i64) -> EtcdRow {
        EtcdRow { key: key.to_owned(), value: value.as_bytes().to_vec(), mod_revision: 9, lease }
    }

    #[test]
    fn written_records_are_read_back() {
        let keys = EtcdKeys::new("/test/");
        let (owner, name) = ("a1".to_owned(), "one".to_owned());
        let slot = SlotRecord { owner, name, epoch: 3, is_dirty: true, mark: u64::MAX };
        let member = MemberRecord {
            name: "one".to_owned(),
            address: "10.0.0.1:1".to_owned(),
            buckets: "x".to_owned(),
            is_leaving: true,
        };
        let puts = [
            put(keys.slot(255), &slot, 0),
            put(keys.member("a1"), &member, 5),
            put(keys.cluster(), &ClusterRecord { id: 1, segments: 1 }, 0),
        ];
        let rows: Vec<EtcdRow> = puts
            .into_iter()
            .map(|put| EtcdRow { key: put.key, value: put.value, mod_revision: 9, lease: put.lease })
            .collect();
        let view = ClusterView::read(&keys, &rows, 9).unwrap();
        assert_eq!(view.slot(255), Some(&(slot, 9)));
        assert_eq!((view.leases["a1"], &view.members["a1"]), (5, &member));
        assert_eq!(view.unchanged(&keys, 255), TransactionGuard::Unchanged("/test/slots/255".to_owned(), 9));
        assert_eq!(view.unchanged(&keys, 0), TransactionGuard::Absent("/test/slots/000".to_owned()));
        assert!(ClusterView::read(&keys, &[row("/test/slots/256", "{}", 0)], 9).is_err());
        assert!(ClusterView::read(&keys, &[row("/test/cluster", "x", 0)], 9).is_err());
        assert!(ClusterView::read(&keys, &[row("/tester/cluster", "x", 0)], 9).is_ok());
        for (value, text) in [("\"stop\"", "stop"), ("stop", "stop")] {
            let view = ClusterView::read(&keys, &[row("/test/halted", value, 0)], 9).unwrap();
            assert_eq!(view.halted.as_deref(), Some(text));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_row_never_panics(key in "(slots|members|homes|cluster|halted)/?[0-9a-f]{0,6}", value in "\\PC{0,60}") {
            let _ = ClusterView::read(&EtcdKeys::new("/t"), &[row(&format!("/t/{key}"), &value, 0)], 9);
        }
    }
}
