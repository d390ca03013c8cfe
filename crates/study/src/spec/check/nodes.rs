//! Storage that each node of a system has to itself.

use underlay_config::{Diagnostic, Diagnostics};

use crate::spec::model::SystemSpec;
use crate::spec::read::{SectionSites, StorageSite, SystemSite};

/// More devices than a single host can usefully model.
const MAX_DEVICES: u64 = 256;

/// The share of a data set on the fullest node with its own storage, for the system where it is largest; 1 where nodes
/// share.
pub(super) fn share_of_a_node(storage: &StorageSite, sites: &SectionSites) -> f64 {
    let shares = sites.systems.iter().map(|system| share(storage, &system.spec));
    shares.fold(0.0, f64::max).clamp(f64::MIN_POSITIVE, 1.0)
}

fn share(storage: &StorageSite, system: &SystemSpec) -> f64 {
    let nodes = u64::from(storage.spec.under(system).nodes);
    if nodes <= 1 {
        return 1.0;
    }
    let Some(kind) = underlay_systems::find(&system.kind) else { return 1.0 / nodes as f64 };
    kind.share_of_fullest_node(&system.with_nodes(storage.spec.settings_of(system)), nodes)
}

/// The storage that each node of this system would have to itself.
pub(super) fn apart<'a>(system: &SystemSite, sites: &'a SectionSites) -> Option<&'a StorageSite> {
    let mut compared = sites.storages.iter().filter(|storage| !sites.is_for_a_role(storage));
    compared.find(|storage| storage.spec.under(&system.spec).nodes > 1)
}

/// Whether `per = "node"` has a meaning, and whether the systems support it.
pub(super) fn check(sites: &SectionSites, findings: &mut Diagnostics) {
    for storage in sites.storages.iter().filter(|storage| storage.spec.per_node) {
        let title = format!("[storage.{}]", storage.spec.name);
        let most =
            sites.systems.iter().map(|system| storage.spec.under(&system.spec).nodes).max().unwrap_or(1);
        let of_a_node: u64 = storage.spec.devices().iter().map(|one| u64::from(one.count)).sum();
        if of_a_node.saturating_mul(u64::from(most)) > MAX_DEVICES {
            let message =
                format!("{title} comes to {} devices for {most} nodes", of_a_node * u64::from(most));
            let label = format!("expected {MAX_DEVICES} at most");
            findings.push(Diagnostic::error(storage.source_span.clone(), message, label));
        }
        if most <= 1 {
            let message = format!("{title} has `per = \"node\"`, but no system has several nodes");
            let note =
                Diagnostic::note(storage.source_span.clone(), message, "there is one set of these devices");
            findings.push(note.with_help("`nodes = 3` in a system's section says how many it has"));
        }
        for system in &sites.systems {
            check_datanodes(storage, &title, system, findings);
        }
    }
}

/// In HDFS only DataNodes have storage of their own, however many nodes run above it.
fn check_datanodes(storage: &StorageSite, title: &str, system: &SystemSite, findings: &mut Diagnostics) {
    let settings = system.spec.with_nodes(storage.spec.settings_of(&system.spec));
    let nodes = storage.spec.under(&system.spec).nodes;
    let kind = underlay_systems::find(&system.spec.kind);
    let Some(datanodes) = kind.and_then(|kind| kind.datanodes_with_own_storage(&settings)) else { return };
    if datanodes == u64::from(nodes) {
        return;
    }
    let (message, help) = match datanodes {
        0 => (
            format!(
                "{title} is for each node, but the DataNodes of [system.{}] share their storage",
                system.spec.name
            ),
            "leave `per` out: each DataNode has directories of its own on all devices".to_owned(),
        ),
        _ => (
            format!(
                "{title} is for each of {nodes} nodes, but [system.{}] has {datanodes} DataNodes",
                system.spec.name
            ),
            format!("give the system `nodes = {datanodes}` and as many `datanodes`, or leave `per` out"),
        ),
    };
    findings.push(
        Diagnostic::error(storage.source_span.clone(), message, "expected a storage that all of them share")
            .with_context(system.key_span.clone(), "the system")
            .with_help(help),
    );
}
