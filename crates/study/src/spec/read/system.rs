//! `[system.NAME]`: a data system, its memory and its own settings.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use underlay_config::{Diagnostic, Diagnostics, Section, Spanned, UnknownName, closest, named_sections};
use underlay_systems::system::{System, SystemCapabilities};

use crate::spec::model::SystemSpec;

/// More nodes than anyone starts on one host.
const MAX_NODES: u32 = 1024;
/// The budget of a system that keeps nothing and names none.
const NO_MEMORY_BYTES: u64 = 64 << 20;
/// Each has its own processes, storage and budget on this one machine.
pub(in crate::spec) const MAX_SERVERS: u32 = 64;
/// The keys of a system's section that are the study's own.
const OWN_KEYS: [&str; 5] = ["kind", "memory", "fixed_memory", "nodes", "servers"];

/// A system with the places that later checks point at.
#[derive(Clone)]
pub(in crate::spec) struct SystemSite {
    pub spec: SystemSpec,
    pub key_span: Range<usize>,
    pub memory_span: Range<usize>,
    /// `servers` where it is written.
    pub servers_span: Option<Range<usize>>,
    /// The storages that it names for parts of what it stores, by role.
    pub roles: BTreeMap<&'static str, Spanned<String>>,
    /// Absent when the kind is not known, which has been reported.
    pub capabilities: Option<SystemCapabilities>,
}

impl SystemSite {
    /// Whether its system stores nothing of what is written.
    pub(in crate::spec) fn keeps_nothing(&self) -> bool {
        self.capabilities.is_some_and(|capabilities| capabilities.keeps_nothing)
    }
}

/// What the sections of all systems say.
#[derive(Default)]
pub(in crate::spec) struct SystemSections {
    /// All of them, also those that could not be read.
    pub names: Vec<String>,
    pub sites: Vec<SystemSite>,
    /// The storages that they name for roles, also those that could not be read.
    pub role_storages: BTreeSet<String>,
}

pub(in crate::spec) fn read(root: &mut Section<'_>, findings: &mut Diagnostics) -> SystemSections {
    let mut systems = SystemSections::default();
    for (name, section) in named_sections(root, "system", "rocksdb", findings) {
        systems.names.push(name.clone());
        let site = read_system(name, section, &mut systems.role_storages, findings);
        systems.sites.extend(site);
    }
    systems
}

fn read_system(
    name: String,
    mut section: Section<'_>,
    role_storages: &mut BTreeSet<String>,
    findings: &mut Diagnostics,
) -> Option<SystemSite> {
    let key_span = section.span.clone();
    let kind = match section.take("kind") {
        Some(field) => field.text("the name of a system", findings),
        None => Some(Spanned::new(name.clone(), key_span.clone())),
    };
    // A system without storage needs no memory for it.
    let found = kind.as_ref().and_then(|kind| underlay_systems::find(&kind.value));
    let keeps_nothing = found.is_some_and(|system| system.capabilities().keeps_nothing);
    let memory = match section.has("memory") {
        false if keeps_nothing => {
            section.take("memory");
            Some(Spanned::new(NO_MEMORY_BYTES, key_span.clone()))
        }
        _ => {
            section.require("memory", "memory = \"2 GiB\"", findings).and_then(|field| field.bytes(findings))
        }
    };
    let fixed_memory = match section.take("fixed_memory") {
        Some(field) => field.bytes(findings).map(|fixed| fixed.value),
        None => Some(0),
    };
    let nodes = match section.take("nodes") {
        Some(field) => field.count(1..=MAX_NODES, findings),
        None => Some(Spanned::new(1, key_span.clone())),
    };
    let servers = section.take("servers").map(|field| field.count(1..=MAX_SERVERS, findings));
    let system = kind.as_ref().and_then(|kind| find_system(kind, findings));
    let mut roles = BTreeMap::new();
    for &(role, _) in system.map_or(&[][..], |system| system.capabilities().roles) {
        let name = section.take(role).and_then(|field| field.text("the name of a storage", findings));
        role_storages.extend(name.as_ref().map(|name| name.value.clone()));
        roles.extend(name.map(|name| (role, name)));
    }
    let node_count = nodes.as_ref().map_or(1, |nodes| nodes.value);
    let settings = read_own_settings(system, node_count, section, findings);

    let (kind, nodes) = (kind?, nodes?);
    let (servers, servers_span) = match servers {
        Some(servers) => servers.map(|servers| (servers.value, Some(servers.span)))?,
        None => (1, None),
    };
    if let Some(system) = system
        && nodes.value != 1
        && !system.capabilities().many_nodes
    {
        findings.push(Diagnostic::error(
            nodes.span,
            format!("{} runs inside one process, so it has one node", system.name()),
            "expected 1",
        ));
    }
    let (memory, fixed_memory_bytes) = (memory?, fixed_memory?);
    Some(SystemSite {
        spec: SystemSpec {
            name,
            kind: kind.value,
            memory_bytes: memory.value,
            fixed_memory_bytes,
            nodes: nodes.value,
            servers,
            roles: roles.iter().map(|(role, name)| ((*role).to_owned(), name.value.clone())).collect(),
            settings: settings.into_iter().map(|(key, (value, _))| (key, value)).collect(),
        },
        key_span,
        servers_span,
        roles,
        memory_span: memory.span,
        capabilities: system.map(System::capabilities),
    })
}

/// The system that somebody means who calls it something else.
fn find_alias(kind: &str) -> Option<&'static str> {
    let kind = kind.to_ascii_lowercase();
    let found = underlay_systems::all().find(|system| system.profile().aliases.contains(&kind.as_str()));
    found.map(System::name)
}

fn find_system(kind: &Spanned<String>, findings: &mut Diagnostics) -> Option<&'static dyn System> {
    let found = underlay_systems::find(&kind.value);
    if found.is_none() {
        let names = underlay_systems::names();
        let list = format!("expected one of {}", names.join(", "));
        let message = format!("unknown system `{}`", kind.value.escape_debug());
        let meant = find_alias(&kind.value).or_else(|| closest(&kind.value, names.iter().copied()));
        findings.push(match meant {
            Some(meant) => Diagnostic::error(kind.span.clone(), message, format!("did you mean `{meant}`?"))
                .with_help(list),
            None => Diagnostic::error(kind.span.clone(), message, list)
                .with_help("a section may have any name if `kind` says which system it is"),
        });
    }
    found
}

/// Settings as they were written: `key -> (value, where)`.
pub(in crate::spec) type SettingsSite = BTreeMap<String, (String, Range<usize>)>;

/// The remaining keys of a system's section.
fn read_own_settings(
    system: Option<&'static dyn System>,
    nodes: u32,
    mut section: Section<'_>,
    findings: &mut Diagnostics,
) -> SettingsSite {
    let Some(system) = system else {
        let fields = section.take_rest();
        return fields
            .into_iter()
            .filter_map(|field| Some((field.key.clone(), (field.setting(findings)?, field.span))))
            .collect();
    };
    let roles = system.capabilities().roles.iter().map(|&(role, _)| role);
    let own_keys: Vec<&'static str> = OWN_KEYS.into_iter().chain(roles).collect();
    let settings = read_settings(system, &own_keys, &mut section, findings);
    check_settings(system, nodes, &settings, &section.title, &section.span, findings);
    settings
}

/// The keys of a section that are none of `own_keys`: settings of the system.
fn read_settings(
    system: &'static dyn System,
    own_keys: &[&'static str],
    section: &mut Section<'_>,
    findings: &mut Diagnostics,
) -> SettingsSite {
    let setting_names: Vec<&'static str> =
        system.capabilities().settings.iter().map(|&(name, _)| name).collect();
    let mut settings = BTreeMap::new();
    for field in section.take_rest() {
        if !setting_names.contains(&field.key.as_str()) {
            // `nodes` is both.
            let further = setting_names.iter().filter(|name| !own_keys.contains(name));
            let all: Vec<_> = own_keys.iter().chain(further).copied().collect();
            let message = format!("unknown key `{}` in {}", field.key, section.title);
            let expected = format!("expected one of {}", all.join(", "));
            findings.push(Diagnostic::unknown(
                field.key_span,
                message,
                UnknownName::Key(&field.key),
                all.iter().copied(),
                expected,
            ));
            continue;
        }
        if let Some(value) = field.setting(findings) {
            settings.insert(field.key, (value, field.span));
        }
    }
    settings
}

/// `values` with the number of nodes, by which a system judges others. Where a cluster may run already, it has its own
/// number.
pub(in crate::spec) fn with_nodes(
    system: &dyn System,
    nodes: u32,
    mut values: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let capabilities = system.capabilities();
    // A cluster that runs already has its own, and a system that may be one takes a single node without being told.
    let is_told = capabilities.elsewhere.is_none() || (nodes > 1 && !capabilities.runs_elsewhere(&values));
    if capabilities.many_nodes && is_told {
        values.insert("nodes".to_owned(), nodes.to_string());
    }
    values
}

/// The system's own check of values; `span` is for a setting that the study does not have.
pub(in crate::spec) fn check_settings(
    system: &dyn System,
    nodes: u32,
    settings: &SettingsSite,
    title: &str,
    span: &Range<usize>,
    findings: &mut Diagnostics,
) {
    let values = settings.iter().map(|(key, (value, _))| (key.clone(), value.clone())).collect();
    for (key, expected) in system.check_settings(&with_nodes(system, nodes, values)) {
        let span = settings.get(&key).map_or_else(|| span.clone(), |(_, span)| span.clone());
        let message = format!("wrong value for `{key}` in {title}");
        findings.push(Diagnostic::error(span, message, expected));
    }
}
