//! `[system.NAME]`: keys of the study's, roles, and the settings that each system says it has.

use serde_json::{Map, Value, json};
use underlay_systems::system::System;

use super::values::{StudyKey, key, name, setting, size, table, text, whole};

/// A section that is called as its system has that system's settings; any other says by `kind` which system it is.
pub(super) fn all() -> Value {
    let names = underlay_systems::names();
    let reference = |name: &str| format!("#/$defs/{name}");
    let own: Map<String, Value> =
        names.iter().map(|name| ((*name).to_owned(), json!({ "$ref": reference(name) }))).collect();
    let other: Vec<Value> =
        names.iter().map(|name| json!({ "$ref": reference(name), "required": ["kind"] })).collect();
    json!({
        "type": "object",
        "minProperties": 1,
        "propertyNames": name(),
        "properties": own,
        "additionalProperties": { "anyOf": other },
    })
}

/// The definitions that [`all`] refers to.
pub(super) fn definitions() -> Map<String, Value> {
    let systems = underlay_systems::names().into_iter().filter_map(underlay_systems::find);
    systems.map(|system| (system.name().to_owned(), section(system))).collect()
}

fn section(system: &dyn System) -> Value {
    let capabilities = system.capabilities();
    let nodes = match capabilities.many_nodes {
        true => whole(1, Some(1024)),
        false => json!({ "const": 1 }),
    };
    let mut keys: Vec<StudyKey> = vec![
        key(
            "kind",
            json!({ "const": system.name() }),
            "Which system it is, where the section's name does not say it.",
        ),
        key("memory", size(), "A server's own memory and its page cache together, on the modelled machine."),
        key(
            "fixed_memory",
            size(),
            "What the processes need however small the data are: beside `memory`, and not scaled.",
        ),
        key("nodes", nodes, "Nodes of one system that spreads its data over them; they share the memory."),
        key("servers", whole(1, Some(64)), "Stand-alone servers, which know nothing of each other."),
    ];
    for (role, contents) in capabilities.roles {
        keys.push(key(role, text(), &format!("The storage for this part of what it stores: {contents}.")));
    }
    for (name, meaning) in capabilities.settings {
        // Of those that are named twice the study's own says more.
        if *name != "nodes" {
            keys.push(key(name, setting(), meaning));
        }
    }
    table(if capabilities.keeps_nothing { &[] } else { &["memory"] }, keys)
}
