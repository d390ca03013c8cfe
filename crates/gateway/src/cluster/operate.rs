//! Commands for a cluster's administrator: who is there, and giving up a gateway that does not come back.

use std::fmt::Write as _;

use super::etcd::{EtcdClient, EtcdKv as _, TransactionGuard};
use super::records::{ClusterView, EtcdKeys, SlotRecord, put};
use super::{chosen_for, etcd_of, halted, other_segments};
use crate::config::{ConfigSecrets, GatewayConfig};
use crate::engine::{OfflineDrain, RecordedCluster};
use crate::placement::SLOTS;

const SLOTS_AT_ONCE: usize = 40;

async fn look(config: &GatewayConfig) -> Result<(EtcdClient, EtcdKeys, ClusterView), String> {
    let Some(cluster) = &config.cluster else {
        return Err("the configuration has no [cluster]".to_owned());
    };
    let etcd = etcd_of(cluster, &ConfigSecrets::read(config)?)?;
    let keys = EtcdKeys::new(&cluster.prefix);
    let (rows, revision) = etcd.range(&keys.all()).await.map_err(|error| error.to_string())?;
    let view = ClusterView::read(&keys, &rows, revision)?;
    Ok((etcd, keys, view))
}

/// Every gateway that is there or that has slots, one a line.
///
/// # Errors
/// When etcd does not answer.
pub(crate) async fn members(config: &GatewayConfig) -> Result<String, String> {
    let (_, _, view) = look(config).await?;
    let mut rows: Vec<(String, String, String)> = view
        .members
        .iter()
        .map(|(id, member)| {
            let leaves = if member.is_leaving { " (leaving)" } else { "" };
            (member.name.clone(), id.clone(), format!("{}{leaves}", member.address))
        })
        .collect();
    for (record, _) in view.slots.iter().flatten() {
        if !rows.iter().any(|(_, id, _)| *id == record.owner) {
            rows.push((record.name.clone(), record.owner.clone(), "gone".to_owned()));
        }
    }
    rows.sort();
    let mut text = String::new();
    if let Some(reason) = &view.halted {
        // Writing to a string can't fail.
        let _ = writeln!(text, "{}", halted(reason));
    }
    for (name, id, address) in rows {
        let of_it = |is_wanted: &dyn Fn(&SlotRecord) -> bool| {
            view.slots.iter().flatten().filter(|(record, _)| record.owner == id && is_wanted(record)).count()
        };
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "{name}  {address}  {} slots, {} of them with data that the store may lack",
            of_it(&|_| true),
            of_it(&|record| record.is_dirty)
        );
    }
    let free = view.slots.iter().filter(|slot| slot.is_none()).count();
    if free > 0 {
        let _ = writeln!(text, "{free} slots are nobody's yet");
    }
    Ok(text)
}

/// For a gateway that is to store what it has without joining: what etcd can say, if it says anything. `is_trusted` if
/// the administrator vouches for the rest.
///
/// # Errors
/// When etcd knows of a gateway that is there, or the configuration is not that of the cluster.
pub(crate) async fn alone(config: &GatewayConfig, is_trusted: bool) -> Result<OfflineDrain, String> {
    let Some(cluster) = &config.cluster else {
        return Err("--without-etcd is for one of several gateways, and the configuration has no [cluster]\n  what to do: leave it out".to_owned());
    };
    let view = match look(config).await {
        Ok((_, _, view)) => Some(view),
        Err(reason) => {
            tracing::warn!("{reason}");
            None
        }
    };
    alone_by(view.as_ref(), cluster.segments, is_trusted)
}

pub(super) fn alone_by(
    view: Option<&ClusterView>,
    segments: usize,
    is_trusted: bool,
) -> Result<OfflineDrain, String> {
    if let Some(member) = view.and_then(|view| view.members.values().next()) {
        return Err(format!(
            "gateway {} is there, at {}: stop all gateways first, and wait until their leases have ended",
            member.name, member.address
        ));
    }
    let Some((view, cluster)) = view.and_then(|view| Some((view, view.cluster.as_ref()?))) else {
        return Ok(OfflineDrain { segments, recorded: None, is_trusted });
    };
    if cluster.segments != segments {
        return Err(other_segments(cluster.segments, segments));
    }
    let recorded = RecordedCluster {
        cluster: cluster.id,
        revision: view.revision,
        is_halted: view.halted.is_some(),
        slots: view.map().1,
    };
    Ok(OfflineDrain { segments, recorded: Some(recorded), is_trusted })
}

/// Gives the slots of a gateway that is gone to the others. Its data that the store lacks is lost.
///
/// # Errors
/// When it is there, or etcd does not answer.
pub(crate) async fn abandon(config: &GatewayConfig, name: &str) -> Result<String, String> {
    let (etcd, keys, view) = look(config).await?;
    if let Some(reason) = &view.halted {
        return Err(halted(reason));
    }
    // As long as its lease lives it serves these slots, and a second owner would serve them too.
    if let Some((_, member)) = view.members.iter().find(|(_, member)| member.name == name) {
        return Err(format!(
            "gateway {name} is there, at {}: stop it first, and wait until its lease has ended",
            member.address
        ));
    }
    let theirs: Vec<(u16, &SlotRecord)> = (0..SLOTS)
        .filter_map(|slot| view.slot(slot).map(|(record, _)| (slot, record)))
        .filter(|(_, record)| record.name == name && !view.members.contains_key(&record.owner))
        .collect();
    if theirs.is_empty() {
        return Err(format!(
            "no gateway of the name {name} has slots: `underlay-gateway members` says which do"
        ));
    }
    let (count, dirty) = (theirs.len(), theirs.iter().filter(|(_, record)| record.is_dirty).count());
    let mut changes = Vec::new();
    for (slot, record) in theirs {
        // Before the first slot is given: with nobody to take one, all stay as they are.
        let Some((owner, name)) = chosen_for(&view, slot) else {
            return Err("no other gateway is there that could take its slots".to_owned());
        };
        let former = record.owner.clone();
        // The new owner has nothing that the store lacks, so it begins clean.
        let record = SlotRecord { owner, name, epoch: record.epoch + 1, is_dirty: false, mark: 0 };
        changes.push((slot, former, record));
    }
    for changes in changes.chunks(SLOTS_AT_ONCE) {
        let mut compares: Vec<TransactionGuard> =
            changes.iter().map(|(slot, _, _)| view.unchanged(&keys, *slot)).collect();
        let mut former: Vec<&String> = changes.iter().map(|(_, former, _)| former).collect();
        // A former owner that has come back in the meantime keeps its slots.
        former.sort();
        former.dedup();
        compares.extend(former.into_iter().map(|id| TransactionGuard::Absent(keys.member(id))));
        let puts: Vec<_> = changes.iter().map(|(slot, _, record)| put(keys.slot(*slot), record, 0)).collect();
        if etcd.transact(&compares, &puts).await.map_err(|error| format!("{error}: some slots may have been given up, or may yet be; look by `underlay-gateway members`, and repeat this"))?.is_none() {
            return Err(
                "something has changed in etcd at the same time: look again by `underlay-gateway members`"
                    .to_owned(),
            );
        }
    }
    Ok(format!(
        "gave {count} slots of gateway {name} to others; {dirty} of them may have had writes that the store does not have, and those are lost"
    ))
}
