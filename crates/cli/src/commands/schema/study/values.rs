//! The values of keys.

use serde_json::{Map, Value, json};

/// A key, what it takes, and what it means.
pub(super) struct StudyKey {
    name: &'static str,
    value: Value,
}

pub(super) fn key(name: &'static str, mut value: Value, meaning: &str) -> StudyKey {
    value["description"] = json!(meaning);
    StudyKey { name, value }
}

/// A table of these keys and no others.
pub(super) fn table(required: &[&str], keys: Vec<StudyKey>) -> Value {
    let properties: Map<String, Value> =
        keys.into_iter().map(|key| (key.name.to_owned(), key.value)).collect();
    let mut table = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if !required.is_empty() {
        table["required"] = json!(required);
    }
    table
}

/// One section or several, under names of the user's.
pub(super) fn named(section: Value) -> Value {
    json!({ "type": "object", "minProperties": 1, "propertyNames": name(), "additionalProperties": section })
}

/// The name of a section.
pub(super) fn name() -> Value {
    json!({ "pattern": "^[a-z0-9][a-z0-9-]*$", "maxLength": 40 })
}

pub(super) fn text() -> Value {
    json!({ "type": "string" })
}

pub(super) fn yes_or_no() -> Value {
    json!({ "type": "boolean" })
}

/// `true`, whose opposite would say nothing.
pub(super) fn yes() -> Value {
    json!({ "const": true })
}

pub(super) fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Value {
    json!({ "enum": words.into_iter().collect::<Vec<_>>() })
}

pub(super) fn whole(smallest: u64, largest: Option<u64>) -> Value {
    let mut value = json!({ "type": "integer", "minimum": smallest });
    if let Some(largest) = largest {
        value["maximum"] = json!(largest);
    }
    value
}

pub(super) fn number(smallest: f64, largest: f64) -> Value {
    json!({ "type": "number", "minimum": smallest, "maximum": largest })
}

/// `2 GiB`, `450 GB`
pub(super) fn size() -> Value {
    quantity("[KkMGTP]i?B|B", "450 GB")
}

/// `20 s`, `500 ms`
pub(super) fn duration() -> Value {
    quantity("h|min|s|ms|us|ns", "20 s")
}

/// `25 Gbit/s`, `120 MB/s`
pub(super) fn bandwidth() -> Value {
    quantity("[GM]bit/s|[kMG]i?B/s", "25 Gbit/s")
}

fn quantity(units: &str, example: &str) -> Value {
    json!({ "type": "string", "pattern": format!(r"^\s*[0-9][0-9_.]*\s*({units})\s*$"), "examples": [example] })
}

/// A value, or a list of such.
pub(super) fn one_or_many(value: Value) -> Value {
    json!({ "anyOf": [value, list(value)] })
}

pub(super) fn list(value: Value) -> Value {
    json!({ "type": "array", "items": value, "minItems": 1 })
}

/// A setting's value.
pub(super) fn setting() -> Value {
    let scalar = json!({ "type": ["string", "number", "boolean"] });
    one_or_many(scalar)
}

/// A table whose keys are others' affair.
pub(super) fn settings() -> Value {
    json!({ "type": "object", "additionalProperties": setting() })
}
