//! JSON Schemas of tables and lists.

use serde_json::{Map, Value, json};

use super::{KeyDefault, SectionKey};
use crate::names::{MAX_NAME_CHARACTERS, NAME_PATTERN};

/// A table of these keys and no others.
pub fn table_schema(keys: &[&dyn SectionKey]) -> Value {
    let properties: Map<String, Value> =
        keys.iter().map(|key| (key.name().to_owned(), key.schema())).collect();
    let mut table = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    let required: Vec<&str> =
        keys.iter().filter(|key| key.default() == KeyDefault::Required).map(|key| key.name()).collect();
    if !required.is_empty() {
        table["required"] = json!(required);
    }
    table
}

/// One section or several, under names of the user's.
pub fn named_schema(section: Value) -> Value {
    json!({ "type": "object", "minProperties": 1, "propertyNames": name_schema(), "additionalProperties": section })
}

/// The name of a section or a study.
pub fn name_schema() -> Value {
    json!({ "type": "string", "pattern": NAME_PATTERN, "maxLength": MAX_NAME_CHARACTERS })
}

pub fn words_schema<'a>(words: impl IntoIterator<Item = &'a str>) -> Value {
    json!({ "enum": words.into_iter().collect::<Vec<_>>() })
}

/// A value, or a list of such.
pub fn one_or_many_schema(value: Value) -> Value {
    json!({ "anyOf": [value, list_schema(value.clone())] })
}

pub fn list_schema(value: Value) -> Value {
    json!({ "type": "array", "items": value, "minItems": 1 })
}
