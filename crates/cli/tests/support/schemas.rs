//! Whether JSON keeps to a schema that `underlay schema` prints.

use std::process::Command;

use serde_json::Value;

pub(crate) fn published(name: &str) -> Value {
    let printed = Command::new(env!("CARGO_BIN_EXE_underlay")).args(["schema", name]).output().unwrap();
    assert!(printed.status.success(), "{name}: {}", String::from_utf8_lossy(&printed.stderr));
    serde_json::from_slice(&printed.stdout).unwrap()
}

/// What of `value` is not as `schema`, a part of `whole`, has it: as much of JSON Schema as ours use.
pub(crate) fn departs(value: &Value, schema: &Value, whole: &Value) -> Option<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let subschema =
            whole.pointer(reference.trim_start_matches('#')).expect("what is referred to is there");
        let Some(tag) = schema["properties"].as_object() else { return departs(value, subschema, whole) };
        // A variant: what is referred to, with its tag.
        let mut variant = subschema.clone();
        variant["properties"].as_object_mut().expect("it has fields").extend(tag.clone());
        return departs(value, &variant, whole);
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(ways) = schema[key].as_array() {
            // What all of them have stands beside them.
            let common = |part: &str| schema[part].clone();
            let whole_way = |way: &Value| {
                let mut way = way.clone();
                if let (Some(own), Value::Object(common)) =
                    (way["properties"].as_object_mut(), common("properties"))
                {
                    own.extend(common);
                }
                if let (Some(own), Value::Array(common)) =
                    (way["required"].as_array_mut(), common("required"))
                {
                    own.extend(common);
                }
                way
            };
            let ways: Vec<Value> = ways.iter().map(whole_way).collect();
            let all: Vec<String> = ways.iter().filter_map(|way| departs(value, way, whole)).collect();
            return (all.len() == ways.len()).then(|| all.join(" or "));
        }
    }
    if let Some(only) = schema.get("const") {
        return (only != value).then(|| format!("{value} is not {only}"));
    }
    if let Some(some) = schema["enum"].as_array() {
        return (!some.contains(value)).then(|| format!("{value} is none of {some:?}"));
    }
    let is_of = |name: &Value| match name.as_str().unwrap_or_default() {
        "null" => value.is_null(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("the schema has the type '{other}'"),
    };
    let is_right = match &schema["type"] {
        Value::Null => true,
        Value::Array(some) => some.iter().any(is_of),
        one => is_of(one),
    };
    if !is_right {
        return Some(format!("{value} is no {}", schema["type"]));
    }
    match value {
        Value::Array(items) => items.iter().find_map(|item| departs(item, &schema["items"], whole)),
        Value::Object(fields) => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            if let Some(lacking) = required.into_iter().find(|name| !fields.contains_key(*name)) {
                return Some(format!("{lacking} is missing"));
            }
            fields.iter().find_map(|(name, field)| {
                let subschema = match schema["properties"].get(name) {
                    Some(subschema) => subschema,
                    None if schema.get("additionalProperties").is_some() => &schema["additionalProperties"],
                    None => return Some(format!("{name} is in no schema")),
                };
                departs(field, subschema, whole).map(|problem| format!("{name}: {problem}"))
            })
        }
        _ => None,
    }
}

#[track_caller]
pub(crate) fn keeps_to(name: &str, text: &str) {
    let (schema, value) = (published(name), serde_json::from_str(text).unwrap());
    assert_eq!(departs(&value, &schema, &schema), None, "{text}");
}
