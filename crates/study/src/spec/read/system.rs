//! `[system.NAME]`: a data system, its memory and its own settings.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde_json::{Map, Value, json};
use underlay_config::keys::{
    AnyText, BytesKind, CountKind, KeyKind, KeyRow, KeySection, name_schema, one_or_many_schema, table_schema,
};
use underlay_config::{Diagnostic, Diagnostics, Section, Spanned, UnknownName, closest, named_sections};
use underlay_systems::system::{System, SystemCapabilities};

use crate::spec::model::SystemSpec;

/// More nodes than one host can start.
const MAX_NODES: u32 = 1024;
/// The budget of a system that stores nothing and has no budget in the study.
const NO_MEMORY_BYTES: u64 = 64 << 20;
/// Each has its own processes, storage and budget on this one machine.
pub(in crate::spec) const MAX_SERVERS: u32 = 64;
const KIND: KeyRow<AnyText> =
    KeyRow::new("kind", AnyText("the name of a system"), "\"cassandra\"", "Which system it is.")
        .or_else("the section's name");
const MEMORY: KeyRow<BytesKind> = KeyRow::new(
    "memory",
    BytesKind,
    "\"2 GiB\"",
    "A server's own memory and its page cache together, on the modelled machine.",
)
.required();
const FIXED_MEMORY: KeyRow<BytesKind> = KeyRow::new(
    "fixed_memory",
    BytesKind,
    "\"1.4 GB\"",
    "What the processes need however small the data is: beside `memory`, and not scaled.",
);
const NODES: KeyRow<CountKind> = KeyRow::new(
    "nodes",
    CountKind { min: 1, max: MAX_NODES },
    "3",
    "Nodes of one system that spreads its data over them; they share the memory.",
)
.or("1");
const SERVERS: KeyRow<CountKind> = KeyRow::new(
    "servers",
    CountKind { min: 1, max: MAX_SERVERS },
    "2",
    "Stand-alone servers, which know nothing of each other.",
)
.or("1");

/// `[system.NAME]`: the study's own keys.
pub(in crate::spec) const SYSTEM: KeySection = KeySection {
    path: "system.NAME",
    meaning: "A data system. Other keys are its roles and settings.",
    keys: &[&KIND, &MEMORY, &FIXED_MEMORY, &NODES, &SERVERS],
};

/// The systems of a study. A section with a system's name has that system's settings; any other section names its
/// system with `kind`.
pub(in crate::spec) fn schema() -> Value {
    let names = underlay_systems::names();
    let reference = |name: &str| format!("#/$defs/{name}");
    let own: Map<String, Value> =
        names.iter().map(|name| ((*name).to_owned(), json!({ "$ref": reference(name) }))).collect();
    let other: Vec<Value> =
        names.iter().map(|name| json!({ "$ref": reference(name), "required": ["kind"] })).collect();
    json!({
        "type": "object",
        "minProperties": 1,
        "propertyNames": name_schema(),
        "properties": own,
        "additionalProperties": { "anyOf": other },
    })
}

/// The definitions that [`schema`] refers to.
pub(in crate::spec) fn definitions() -> Map<String, Value> {
    let systems = underlay_systems::all();
    systems.map(|system| (system.name().to_owned(), section_schema(system))).collect()
}

/// A system's setting: text, a number, or a list of these.
pub(super) fn setting_schema() -> Value {
    one_or_many_schema(json!({ "type": ["string", "number", "boolean"] }))
}

fn section_schema(system: &dyn System) -> Value {
    let capabilities = system.capabilities();
    let mut section = table_schema(SYSTEM.keys);
    section["properties"][KIND.name]["const"] = json!(system.name());
    if !capabilities.many_nodes {
        section["properties"][NODES.name]["const"] = json!(1);
    }
    if capabilities.keeps_nothing {
        section.as_object_mut().map(|section| section.remove("required"));
    }
    for (role, contents) in capabilities.roles {
        let meaning = format!("The storage for this part of what it stores: {contents}.");
        section["properties"][role] = json!({ "type": "string", "description": meaning });
    }
    for (name, meaning) in capabilities.settings {
        // If a key has both meanings, the study's own description says more.
        if *name != NODES.name {
            let mut setting = setting_schema();
            setting["description"] = json!(meaning);
            section["properties"][name] = setting;
        }
    }
    section
}

/// A system with the positions that later checks need.
#[derive(Clone)]
pub(in crate::spec) struct SystemSite {
    pub spec: SystemSpec,
    pub key_span: Range<usize>,
    pub memory_span: Range<usize>,
    /// The position of `servers`, if present.
    pub servers_span: Option<Range<usize>>,
    /// The storage configurations that it names for parts of its data, by role.
    pub roles: BTreeMap<&'static str, Spanned<String>>,
    /// Absent when the kind is unknown, which has been reported.
    pub capabilities: Option<SystemCapabilities>,
}

impl SystemSite {
    /// Whether its system stores nothing that is written.
    pub(in crate::spec) fn keeps_nothing(&self) -> bool {
        self.capabilities.is_some_and(|capabilities| capabilities.keeps_nothing)
    }
}

/// The contents of all systems' sections.
#[derive(Default)]
pub(in crate::spec) struct SystemSections {
    /// All of them, including those that could not be read.
    pub names: Vec<String>,
    pub sites: Vec<SystemSite>,
    /// The storage configurations that they name for roles, including those that could not be read.
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
    let kind = match section.take_key(&KIND, findings) {
        Some(field) => KIND.kind.read(&field, findings),
        None => Some(Spanned::new(name.clone(), key_span.clone())),
    };
    // A system without storage needs no memory for it.
    let found = kind.as_ref().and_then(|kind| underlay_systems::find(&kind.value));
    let keeps_nothing = found.is_some_and(|system| system.capabilities().keeps_nothing);
    let memory = match section.has(MEMORY.name) {
        false if keeps_nothing => {
            section.take(MEMORY.name);
            Some(Spanned::new(NO_MEMORY_BYTES, key_span.clone()))
        }
        _ => section.read(&MEMORY, findings),
    };
    let fixed_memory = section.read_optional(&FIXED_MEMORY, findings);
    let nodes = section
        .read_optional(&NODES, findings)
        .map(|nodes| nodes.unwrap_or_else(|| Spanned::new(NODES.default_value(), key_span.clone())));
    let servers = section.read_optional(&SERVERS, findings);
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
    let (servers, servers_span) = match servers? {
        Some(servers) => (servers.value, Some(servers.span)),
        None => (SERVERS.default_value(), None),
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
    let (memory, fixed_memory_bytes) = (memory?, fixed_memory?.map_or(0, |fixed| fixed.value));
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

/// The system that is meant by another name.
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

/// Settings as written: `key -> (value, where)`.
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
    let own_keys: Vec<&'static str> = SYSTEM.names().into_iter().chain(roles).collect();
    let settings = read_settings(system, &own_keys, &mut section, findings);
    check_settings(system, nodes, &settings, &section.title, &section.span, findings);
    settings
}

/// The keys of a section that are not in `own_keys`: settings of the system.
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

/// `values` with the number of nodes, which a system needs to judge other settings. An external cluster has its own
/// number.
pub(in crate::spec) fn with_nodes(
    system: &dyn System,
    nodes: u32,
    mut values: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let capabilities = system.capabilities();
    // An external cluster has its own number, and a system that may be external takes a single node by default.
    let is_told = capabilities.elsewhere.is_none() || (nodes > 1 && !capabilities.runs_elsewhere(&values));
    if capabilities.many_nodes && is_told {
        values.insert("nodes".to_owned(), nodes.to_string());
    }
    values
}

/// The system's own check of values; `span` is for a setting that is missing in the study.
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
