//! Events: whether each meets a node, in time, and its consequences.

use underlay_config::{Diagnostic, Diagnostics, UnknownName};
use underlay_record::{NodeChoice, NodeRole, NodeShard};
use underlay_systems::nodes::PlannedNode;
use underlay_systems::system::System;

use super::fault::check_time;
use crate::spec::model::{EventSpec, StorageSource};
use crate::spec::read::{EventSite, SectionSites, SystemSite};

pub(super) fn check_all(sites: &SectionSites, findings: &mut Diagnostics) {
    for site in &sites.events {
        check(site, sites, findings);
    }
    for system in &sites.systems {
        note_what_happens(system, sites, findings);
    }
}

fn title(spec: &EventSpec) -> String {
    format!("[event.{}]", spec.name)
}

fn check(site: &EventSite, sites: &SectionSites, findings: &mut Diagnostics) {
    let spec = &site.spec;
    check_time(&title(spec), spec.at, &site.at_span, sites, findings);
    if let (Some(name), Some(span)) = (&spec.system, &site.system_span) {
        let names: Vec<&str> = sites.system_names.iter().map(String::as_str).collect();
        if !names.contains(&name.as_str()) {
            let message =
                format!("{} is for a system `{}`, which does not exist", title(spec), name.escape_debug());
            let expected = format!("expected one of {}", names.join(", "));
            findings.push(Diagnostic::unknown(
                span.clone(),
                message,
                UnknownName::Value(name),
                names,
                expected,
            ));
            return;
        }
    }
    let concerned: Vec<&SystemSite> =
        sites.systems.iter().filter(|system| spec.concerns(&system.spec.name)).collect();
    let of_several: Vec<(&SystemSite, Vec<PlannedNode>)> = concerned
        .iter()
        .map(|system| (*system, system.spec.planned_nodes()))
        .filter(|(_, nodes)| !nodes.is_empty())
        .collect();
    if of_several.is_empty() {
        // An unknown kind of system has been reported, and so has a wrong setting, without which there might be nodes.
        // A system that could not be read might have nodes, too.
        let is_understood = |system: &&SystemSite| {
            let settings = system.spec.with_nodes(system.spec.settings.clone());
            let kind = underlay_systems::find(&system.spec.kind);
            kind.is_some_and(|kind| kind.check_settings(&settings).is_empty())
        };
        let could_have_nodes = spec.system.is_none() && !sites.has_all_systems();
        if !could_have_nodes && concerned.iter().any(is_understood) {
            findings.push(report_no_nodes(site, &concerned));
        }
        return;
    }
    for (system, nodes) in of_several {
        check_for(site, system, &nodes, sites, findings);
    }
}

/// Reports that the systems have no nodes that could go down one by one.
fn report_no_nodes(site: &EventSite, concerned: &[&SystemSite]) -> Diagnostic {
    let names: Vec<String> =
        concerned.iter().map(|system| format!("[system.{}]", system.spec.name)).collect();
    let span = site.system_span.clone().unwrap_or(site.node_span.clone());
    let verb = if names.len() == 1 { "has" } else { "have" };
    let is_external = concerned.iter().any(|system| {
        system.capabilities.is_some_and(|capabilities| capabilities.runs_elsewhere(&system.spec.settings))
    });
    let (message, help) = if is_external {
        (
            format!("{} is for a cluster that runs already: {}", title(&site.spec), names.join(", ")),
            "underlay stops and kills only what it has started".to_owned(),
        )
    } else {
        (
            format!(
                "{} needs a system of several nodes, which {} {verb} not",
                title(&site.spec),
                names.join(", ")
            ),
            help_with_nodes(),
        )
    };
    Diagnostic::error(span, message, "expected a system whose nodes can go away one by one").with_help(help)
}

/// The systems that can have several nodes, with the setting for their number.
fn help_with_nodes() -> String {
    let has_datanodes = |system: &&dyn System| {
        let capabilities = system.capabilities();
        !capabilities.many_nodes && capabilities.settings.iter().any(|(key, _)| *key == "datanodes")
    };
    let names =
        |systems: Vec<&dyn System>| systems.iter().map(|one| one.name()).collect::<Vec<_>>().join(", ");
    format!(
        "give a system that can have them `nodes = 3`: {}; or `datanodes`: {}",
        names(underlay_systems::all().filter(|system| system.capabilities().many_nodes).collect()),
        names(underlay_systems::all().filter(has_datanodes).collect())
    )
}

fn check_for(
    site: &EventSite,
    system: &SystemSite,
    nodes: &[PlannedNode],
    sites: &SectionSites,
    findings: &mut Diagnostics,
) {
    let spec = &site.spec;
    let section = format!("[system.{}]", system.spec.name);
    if let Some(span) = system.servers_span.clone().filter(|_| system.spec.servers > 1) {
        let message = format!("{} is for one server, but {section} has {}", title(spec), system.spec.servers);
        findings.push(
            Diagnostic::error(site.node_span.clone(), message, "expected a study of one server")
                .with_context(span, "the servers"),
        );
    }
    for storage in &sites.storages {
        if let StorageSource::Elsewhere(_) = &storage.spec.source {
            let message = format!(
                "{} is for a cluster that runs already, [storage.{}]",
                title(spec),
                storage.spec.name
            );
            findings.push(
                Diagnostic::error(site.node_span.clone(), message, "expected nodes that this study starts")
                    .with_context(storage.source_span.clone(), "it is there")
                    .with_help("underlay stops and kills only what it has started"),
            );
        }
    }
    let allows = |node: &PlannedNode, role: Option<NodeRole>| {
        let shards: Vec<NodeShard> = node.shards.iter().map(|&shard| NodeShard { shard, role }).collect();
        spec.node.allows(&node.name, role, &shards)
    };
    // Roles are taken while the system runs: a node fits if it may have one of the event's roles.
    let fits = |node: &PlannedNode| match node.roles {
        [] => allows(node, None),
        roles => roles.iter().any(|role| allows(node, Some(*role))),
    };
    if nodes.iter().any(fits) {
        return;
    }
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let message = format!("{} names a node that {section} does not have: `{}`", title(spec), spec.node);
    let expected = format!("expected one of {}", names.join(", "));
    findings.push(match &spec.node {
        NodeChoice::Named(name) => {
            Diagnostic::unknown(site.node_span.clone(), message, UnknownName::Value(name), names, expected)
        }
        NodeChoice::First { .. } => {
            let mut roles: Vec<&str> =
                nodes.iter().flat_map(|node| node.roles).map(|role| role.word()).collect();
            roles.sort_unstable();
            roles.dedup();
            let shards = nodes.iter().flat_map(|node| &node.shards).max();
            let shards = shards.map_or_else(String::new, |shards| format!(" of shard 1 to {shards}"));
            Diagnostic::error(site.node_span.clone(), message, expected)
                .with_help(format!("its nodes can be: {}{shards}", roles.join(", ")))
        }
    });
}

/// Notes the effect on clients where more nodes are down at once than the system can do without. Users try this on
/// purpose, so it is allowed.
fn note_what_happens(system: &SystemSite, sites: &SectionSites, findings: &mut Diagnostics) {
    let nodes = system.spec.planned_nodes();
    let Some(kind) = underlay_systems::find(&system.spec.kind).filter(|_| !nodes.is_empty()) else { return };
    let settings = system.spec.with_nodes(system.spec.settings.clone());
    for caution in kind.cautions(&settings) {
        let message = format!("[system.{}]: {caution}", system.spec.name);
        findings.push(Diagnostic::note(system.key_span.clone(), message, "this system"));
    }
    // If a node has copies of several shards, all of these lack one.
    let has_one_each = nodes.iter().all(|node| node.shards.len() == 1);
    let shard_of = |spec: &EventSpec| match &spec.node {
        _ if !has_one_each => None,
        NodeChoice::Named(name) => nodes.iter().find(|node| node.name == *name)?.shards.first().copied(),
        NodeChoice::First { shard, .. } => *shard,
    };
    let events: Vec<&EventSite> =
        sites.events.iter().filter(|site| site.spec.concerns(&system.spec.name)).collect();
    let mut reported: Vec<String> = Vec::new();
    for site in &events {
        let shard = shard_of(&site.spec);
        let mut away: Vec<&NodeChoice> = Vec::new();
        for other in events.iter().filter(|other| other.spec.is_under_way_at(site.spec.at)) {
            let same_shard = match (shard, shard_of(&other.spec)) {
                (Some(own), Some(others)) => own == others,
                _ => true,
            };
            let is_counted =
                matches!(other.spec.node, NodeChoice::Named(_)) && away.contains(&&other.spec.node);
            if same_shard && !is_counted {
                away.push(&other.spec.node);
            }
        }
        let Some(effect) = kind.without_nodes(&settings, shard, away.len()) else { continue };
        if !reported.contains(&effect) {
            let message = format!("while {} lasts: {effect}", title(&site.spec));
            let label = format!("{} away at once", quantity(away.len()));
            findings.push(Diagnostic::note(site.node_span.clone(), message, label));
            reported.push(effect);
        }
    }
}

fn quantity(nodes: usize) -> String {
    if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") }
}
