//! `[system.NAME]`: a data system, its memory and its own settings.

use std::collections::BTreeMap;
use std::ops::Range;

use underlay_systems::system::{Capabilities, System};

use super::reader::{Section, Spanned, named_sections};
use super::{SystemSpec, suggest};
use crate::diagnostics::{Diagnostic, Diagnostics};

/// More nodes than anyone starts on one host.
const NODES_MAX: u32 = 1024;

/// A system with the places that later checks point at.
#[derive(Clone)]
pub(super) struct SystemSite {
    pub spec: SystemSpec,
    pub key_span: Range<usize>,
    pub memory_span: Range<usize>,
    /// Absent when the kind is not known, which has been reported.
    pub capabilities: Option<Capabilities>,
}

pub(super) fn read(root: &mut Section<'_>, findings: &mut Diagnostics) -> Vec<SystemSite> {
    named_sections(root, "system", "rocksdb", findings)
        .into_iter()
        .filter_map(|(name, section)| read_system(name, section, findings))
        .collect()
}

fn read_system(name: String, mut section: Section<'_>, findings: &mut Diagnostics) -> Option<SystemSite> {
    let key_span = section.span.clone();
    let kind = match section.take("kind") {
        Some(field) => field.text("the name of a system", findings),
        None => Some(Spanned::new(name.clone(), key_span.clone())),
    };
    let memory =
        section.require("memory", "memory = \"2 GiB\"", findings).and_then(|field| field.bytes(findings));
    let nodes = match section.take("nodes") {
        Some(field) => field.count(1..=NODES_MAX, findings),
        None => Some(Spanned::new(1, key_span.clone())),
    };
    let system = kind.as_ref().and_then(|kind| find_system(kind, findings));
    let settings = read_settings(system, section, findings);

    let (kind, nodes) = (kind?, nodes?);
    if let Some(system) = system
        && nodes.value != 1
    {
        findings.push(Diagnostic::error(
            nodes.span,
            format!("{} runs inside one process, so it has one node", system.name()),
            "expected 1",
        ));
    }
    let memory = memory?;
    Some(SystemSite {
        spec: SystemSpec {
            name,
            kind: kind.value,
            memory_bytes: memory.value,
            nodes: nodes.value,
            settings: settings.into_iter().map(|(key, (value, _))| (key, value)).collect(),
        },
        key_span,
        memory_span: memory.span,
        capabilities: system.map(System::capabilities),
    })
}

fn find_system(kind: &Spanned<String>, findings: &mut Diagnostics) -> Option<&'static dyn System> {
    let found = underlay_systems::find(&kind.value);
    if found.is_none() {
        let names = underlay_systems::names();
        let list = format!("expected one of {}", names.join(", "));
        let message = format!("unknown system `{}`", kind.value.escape_debug());
        findings.push(match suggest::closest(&kind.value, names.iter().copied()) {
            Some(meant) => Diagnostic::error(kind.span.clone(), message, format!("did you mean `{meant}`?"))
                .with_help(list),
            None => Diagnostic::error(kind.span.clone(), message, list)
                .with_help("a section may have any name if `kind` says which system it is"),
        });
    }
    found
}

/// The remaining keys are the system's own: `key -> (value, where)`.
fn read_settings(
    system: Option<&'static dyn System>,
    mut section: Section<'_>,
    findings: &mut Diagnostics,
) -> BTreeMap<String, (String, Range<usize>)> {
    let own_keys = ["kind", "memory", "nodes"];
    let known: Vec<&'static str> = system
        .map(|system| system.capabilities().settings.iter().map(|&(name, _)| name).collect())
        .unwrap_or_default();
    let mut settings = BTreeMap::new();
    for field in section.take_rest() {
        if system.is_some() && !known.contains(&field.key.as_str()) {
            let all: Vec<_> = own_keys.iter().chain(&known).copied().collect();
            let message = format!("unknown key `{}` in {}", field.key, section.title);
            let expected = format!("expected one of {}", all.join(", "));
            findings.push(match suggest::closest(&field.key, all.iter().copied()) {
                Some(meant) => Diagnostic::error(field.key_span, message, format!("did you mean `{meant}`?"))
                    .with_help(expected),
                None => Diagnostic::error(field.key_span, message, "").with_help(expected),
            });
            continue;
        }
        if let Some(value) = field.scalar(findings) {
            settings.insert(field.key, (value, field.span));
        }
    }
    if let Some(system) = system {
        let values = settings.iter().map(|(key, (value, _))| (key.clone(), value.clone())).collect();
        for (key, expected) in system.check_settings(&values) {
            let span = settings.get(&key).map_or_else(|| section.span.clone(), |(_, span)| span.clone());
            let message = format!("wrong value for `{key}` in {}", section.title);
            findings.push(Diagnostic::error(span, message, expected));
        }
    }
    settings
}
