//! A system's storage: whether independent servers can share a study, the part of each, and the data outside the
//! compared storage configuration.

use underlay_config::{Diagnostic, Diagnostics, UnknownName};
use underlay_systems::system::ElsewhereSetting;
use underlay_workload::{OperationKind, OperationMix};

use super::nodes;
use crate::spec::model::StorageSource;
use crate::spec::read::{SectionSites, SystemSite, WorkloadSite, check_settings, with_nodes};

/// The number of servers of the system with the fewest: each of those holds the largest share.
pub(super) fn fewest(sites: &SectionSites) -> u64 {
    sites.systems.iter().map(|system| u64::from(system.spec.servers)).min().unwrap_or(1).max(1)
}

/// The number of servers of the system with the most: each of those has its own storage.
pub(super) fn most(sites: &SectionSites) -> u64 {
    sites.systems.iter().map(|system| u64::from(system.spec.servers)).max().unwrap_or(1).max(1)
}

pub(super) fn check(system: &SystemSite, sites: &SectionSites, findings: &mut Diagnostics) {
    let (servers, Some(span)) = (system.spec.servers, &system.servers_span) else { return };
    if servers <= 1 {
        return;
    }
    if system.capabilities.is_some_and(|capabilities| capabilities.by_command) {
        let message = format!("[system.{}] is run by commands, which know one server", system.spec.name);
        findings.push(Diagnostic::error(span.clone(), message, "expected `servers = 1`"));
        return;
    }
    if system.capabilities.is_some_and(|capabilities| capabilities.spreads_data) {
        let message = format!("{} is a cluster that spreads its data by itself", system.spec.kind);
        findings.push(
            Diagnostic::error(span.clone(), message, "expected one server")
                .with_help("`nodes` says how many nodes it has"),
        );
        // Everything below would refer to servers that it can't have.
        return;
    }
    // A job reads the output of another one, but each server has its own data.
    if let Some(workload) = sites.workloads.iter().find(|workload| workload.is_batch) {
        let message = format!("the jobs of [workload.{}] can't be shared by several servers", workload.name);
        findings.push(
            Diagnostic::error(span.clone(), message, "expected one server")
                .with_context(workload.key_span.clone(), "the jobs")
                .with_help("`nodes` makes a cluster of one system"),
        );
    }
    for storage in &sites.storages {
        if !storage.spec.is_modelled() {
            let message = format!(
                "[storage.{}] is real storage, but [system.{}] has {servers} servers",
                storage.spec.name, system.spec.name
            );
            findings.push(
                Diagnostic::error(
                    storage.layout_span.clone(),
                    message,
                    "each server needs a storage of its own: expected `devices` or `pool`",
                )
                .with_context(span.clone(), "the servers"),
            );
        }
    }
    for fault in &sites.faults {
        let message = format!(
            "[fault.{}] is for one storage, but [system.{}] has {servers} servers with one each",
            fault.spec.name, system.spec.name
        );
        findings.push(
            Diagnostic::error(fault.act_span.clone(), message, "expected a study of one server")
                .with_context(span.clone(), "the servers"),
        );
    }
    for workload in &sites.workloads {
        check_workload(system, workload, findings);
    }
}

fn check_workload(system: &SystemSite, workload: &WorkloadSite, findings: &mut Diagnostics) {
    let (servers, Some(span)) = (system.spec.servers, &system.servers_span) else { return };
    for threads in workload.threads.iter().filter(|threads| threads.value % servers != 0) {
        let up = threads.value.div_ceil(servers) * servers;
        findings.push(
            Diagnostic::error(
                threads.span.clone(),
                format!("{} threads can't be shared evenly by {servers} servers", threads.value),
                format!("expected a multiple of {servers}, as in {up}"),
            )
            .with_context(span.clone(), "the servers"),
        );
    }
    if let Some(background) =
        workload.beside.as_ref().filter(|background| background.value.threads % servers != 0)
    {
        let message = format!(
            "{} threads beside can't be shared evenly by {servers} servers",
            background.value.threads
        );
        let label = format!("expected a multiple of {servers}");
        findings.push(
            Diagnostic::error(background.span.clone(), message, label)
                .with_context(span.clone(), "the servers"),
        );
    }
    for mix in &workload.all_mixes() {
        // A mix that can't be read has its own finding.
        let changes = |kind| OperationMix::parse(&mix.value).is_ok_and(|mix| mix.share(kind) > 0.0);
        if changes(OperationKind::Insert) || changes(OperationKind::Delete) {
            findings.push(
                Diagnostic::error(
                    mix.span.clone(),
                    format!("mix \"{}\" changes which records there are", mix.value),
                    "expected a mix of reads and updates: `a`, `b`, `c` or `f`",
                )
                .with_context(span.clone(), "servers that share no data")
                .with_help("a record that one server got is not on the others"),
            );
        }
    }
}

/// Whether the storage configurations that roles name can be used in every cell.
pub(super) fn check_roles(system: &SystemSite, sites: &SectionSites, findings: &mut Diagnostics) {
    for (role, name) in &system.roles {
        let place = format!("`{role}` in [system.{}]", system.spec.name);
        let names = sites.storage_names.iter().map(String::as_str);
        if !sites.storage_names.contains(&name.value) {
            let message =
                format!("{place} names a storage `{}`, which does not exist", name.value.escape_debug());
            let expected = format!("expected one of {}", sites.storage_names.join(", "));
            findings.push(Diagnostic::unknown(
                name.span.clone(),
                message,
                UnknownName::Value(&name.value),
                names,
                expected,
            ));
            continue;
        }
        // It has a section that could not be read, which is already reported.
        let Some(storage) = sites.storages.iter().find(|storage| storage.spec.name == name.value) else {
            continue;
        };
        if let Some(apart) = nodes::apart(system, sites) {
            let message =
                format!("{place} is for all nodes together, but [storage.{}] is not", apart.spec.name);
            let label = "a role needs `per = \"server\"` on every storage";
            findings.push(
                Diagnostic::error(name.span.clone(), message, label)
                    .with_context(apart.source_span.clone(), "each node has this one to itself"),
            );
        }
        if storage.spec.per_node {
            let message =
                format!("{place} names [storage.{}], which has `per = \"node\"`", storage.spec.name);
            findings.push(
                Diagnostic::error(name.span.clone(), message, "expected a storage that all nodes share")
                    .with_context(storage.source_span.clone(), "this one is each node's"),
            );
        }
        if !matches!(storage.spec.source, StorageSource::Modelled { .. }) || storage.directories() != 1 {
            let message = format!("{place} names [storage.{}]", storage.spec.name);
            let label = "expected a storage of `devices` that is one directory";
            findings.push(
                Diagnostic::error(name.span.clone(), message, label)
                    .with_context(storage.layout_span.clone(), "this one is not"),
            );
        }
        if sites.baseline_name().as_deref() == Some(name.value.as_str()) {
            let message = format!("{place} names the baseline");
            let label = "a storage that a role names is not compared: expected another one";
            findings.push(
                Diagnostic::error(name.span.clone(), message, label)
                    .with_help("describe the same devices once more under another name"),
            );
        }
    }
}

/// An external cluster has its own storage, and no other can be put under it.
pub(super) fn check_endpoints(sites: &SectionSites, findings: &mut Diagnostics) {
    for storage in sites.storages.iter().filter(|storage| !sites.is_for_a_role(storage)) {
        for system in &sites.systems {
            let settings = storage.spec.settings_of(&system.spec);
            let cluster_setting = system.capabilities.and_then(|capabilities| capabilities.elsewhere);
            let written = cluster_setting.and_then(|setting| settings.get(setting.key));
            // From a storage configuration's own settings, since these may differ from the system's.
            let has_endpoints = written.is_some_and(|list| !list.trim().is_empty());
            let (title, key) = (format!("[storage.{}]", storage.spec.name), system.key_span.clone());
            match (storage.spec.is_elsewhere(), has_endpoints) {
                (true, false) => findings.push(
                    Diagnostic::error(
                        storage.source_span.clone(),
                        format!(
                            "{title} is that of a running cluster, but [system.{}] is not one",
                            system.spec.name
                        ),
                        match cluster_setting {
                            Some(ElsewhereSetting { key, example }) => {
                                format!("expected `system = {{ {key} = {example} }}` beside it")
                            }
                            None => format!("{} runs inside one process", system.spec.kind),
                        },
                    )
                    .with_context(key, "this system is started by the study"),
                ),
                (false, true) => findings.push(
                    Diagnostic::error(
                        storage.source_span.clone(),
                        format!("{title} can't be put under a cluster that is already running"),
                        "expected `elsewhere = \"what its storage is\"`",
                    )
                    .with_context(
                        key,
                        format!(
                            "`{}` makes this system one",
                            cluster_setting.map_or("", |setting| setting.key)
                        ),
                    ),
                ),
                _ => {}
            }
        }
        // One is enough to name: the storage configuration is the obstacle.
        let Some(workload) = sites.workloads.iter().find(|workload| {
            storage.spec.is_elsewhere()
                && workload.mixes.iter().any(|mix| matches!(mix.value.as_str(), "load" | "delete"))
        }) else {
            continue;
        };
        findings.push(
            Diagnostic::error(
                workload.key_span.clone(),
                format!("[workload.{}] loads or deletes on a cluster that is already running", workload.name),
                "expected mixes of a to f",
            )
            .with_context(storage.source_span.clone(), "its former state can't be restored"),
        );
    }
}

/// A setting that belongs only into a system's own section.
const NODES: &str = "nodes";

/// `[storage.NAME.system]`: settings that every system of the study must know and accept in addition to its own.
pub(super) fn check_settings_of_storages(sites: &SectionSites, findings: &mut Diagnostics) {
    for storage in sites.storages.iter().filter(|storage| !storage.settings.is_empty()) {
        let title = format!("`system` in [storage.{}]", storage.spec.name);
        if let Some((_, span)) = storage.settings.get(NODES) {
            // The numbers of devices and cores and the memory depend on it.
            let message = format!("`{NODES}` does not go into {title}");
            let label = "a system has the same nodes on every storage";
            let finding = Diagnostic::error(span.clone(), message, label);
            let help = "say it in the system's own section; a second section with a `kind` compares another number of nodes";
            findings.push(finding.with_help(help));
            continue;
        }
        for site in &sites.systems {
            let Some(kind) = underlay_systems::find(&site.spec.kind) else { continue };
            let names: Vec<&str> = kind.capabilities().settings.iter().map(|&(name, _)| name).collect();
            let mut all_known = true;
            for (key, (_, span)) in &storage.settings {
                if names.contains(&key.as_str()) {
                    continue;
                }
                all_known = false;
                let message = format!("unknown key `{key}` in {title}");
                let expected = match names.as_slice() {
                    [] => format!("{} has no settings", site.spec.kind),
                    names => format!("expected one of {}", names.join(", ")),
                };
                let finding = Diagnostic::unknown(
                    span.clone(),
                    message,
                    UnknownName::Key(key),
                    names.iter().copied(),
                    expected,
                );
                findings.push(finding.with_context(site.key_span.clone(), "the system"));
            }
            if all_known {
                // Together with its own, since some may be wrong only in this combination.
                let merged = storage.spec.settings_of(&site.spec);
                let spans = merged.into_iter().map(|(key, value)| {
                    let place = storage.settings.get(&key).map(|(_, span)| span.clone());
                    (key, (value, place.unwrap_or_else(|| storage.settings_span.clone())))
                });
                let nodes = site.spec.nodes;
                let own = with_nodes(kind, nodes, site.spec.settings.clone());
                if kind.check_settings(&own).is_empty() {
                    let (merged, span) = (spans.collect(), &storage.settings_span);
                    check_settings(kind, nodes, &merged, &title, span, findings);
                }
            }
        }
    }
}
