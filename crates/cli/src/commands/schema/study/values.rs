//! What keys take.

use serde_json::{Map, Value, json};

/// A key, what it takes, and what it means.
pub struct Key {
    name: &'static str,
    value: Value,
}

pub fn key(name: &'static str, mut value: Value, meaning: &str) -> Key {
    value["description"] = json!(meaning);
    Key { name, value }
}

/// A table of these keys and no others.
pub fn table(required: &[&str], keys: Vec<Key>) -> Value {
    let properties: Map<String, Value> =
        keys.into_iter().map(|key| (key.name.to_owned(), key.value)).collect();
    let mut table = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if !required.is_empty() {
        table["required"] = json!(required);
    }
    table
}

/// One section or several, under names of the user's.
pub fn named(section: Value) -> Value {
    json!({ "type": "object", "minProperties": 1, "propertyNames": name(), "additionalProperties": section })
}

/// The name of a section.
pub fn name() -> Value {
    json!({ "pattern": "^[a-z0-9][a-z0-9-]*$", "maxLength": 40 })
}

pub fn text() -> Value {
    json!({ "type": "string" })
}

pub fn yes_or_no() -> Value {
    json!({ "type": "boolean" })
}

/// `true`, whose opposite would say nothing.
pub fn yes() -> Value {
    json!({ "const": true })
}

pub fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Value {
    json!({ "enum": words.into_iter().collect::<Vec<_>>() })
}

pub fn whole(smallest: u64, largest: Option<u64>) -> Value {
    let mut value = json!({ "type": "integer", "minimum": smallest });
    if let Some(largest) = largest {
        value["maximum"] = json!(largest);
    }
    value
}

pub fn number(smallest: f64, largest: f64) -> Value {
    json!({ "type": "number", "minimum": smallest, "maximum": largest })
}

/// `2 GiB`, `450 GB`
pub fn size() -> Value {
    quantity("[KkMGTP]i?B|B", "450 GB")
}

/// `20 s`, `500 ms`
pub fn duration() -> Value {
    quantity("h|min|s|ms|us|ns", "20 s")
}

/// `25 Gbit/s`, `120 MB/s`
pub fn bandwidth() -> Value {
    quantity("[GM]bit/s|[kMG]i?B/s", "25 Gbit/s")
}

fn quantity(units: &str, example: &str) -> Value {
    json!({ "type": "string", "pattern": format!(r"^\s*[0-9][0-9_.]*\s*({units})\s*$"), "examples": [example] })
}

/// A value, or a list of such.
pub fn one_or_many(value: Value) -> Value {
    json!({ "anyOf": [value, list(value)] })
}

pub fn list(value: Value) -> Value {
    json!({ "type": "array", "items": value, "minItems": 1 })
}

/// What a setting is handed on as.
pub fn setting() -> Value {
    let scalar = json!({ "type": ["string", "number", "boolean"] });
    one_or_many(scalar)
}

/// A table whose keys are others' affair.
pub fn settings() -> Value {
    json!({ "type": "object", "additionalProperties": setting() })
}
