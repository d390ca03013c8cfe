use std::collections::BTreeSet;

use underlay_config::keys::KeyDefault;

use super::*;

#[test]
fn rows_of_keys_read_their_examples_and_defaults() {
    for section in STUDY_SECTIONS {
        for key in section.keys {
            assert_eq!(key.check(), Ok(()), "[{}] {}", section.path, key.name());
        }
    }
}

#[test]
fn rows_of_keys_end_their_sentences() {
    for section in STUDY_SECTIONS {
        assert!(section.meaning.ends_with('.'), "[{}]", section.path);
        for key in section.keys {
            let (path, meaning) = (section.path, key.meaning());
            assert!(meaning.ends_with('.'), "[{path}] {}: {meaning}", key.name());
            assert!(!key.describe_values().is_empty(), "[{path}] {}", key.name());
        }
    }
}

#[test]
fn sections_have_each_key_once() {
    let mut paths = BTreeSet::new();
    for section in STUDY_SECTIONS {
        assert!(paths.insert(section.path), "[{}] twice", section.path);
        let names: BTreeSet<&str> = section.names().into_iter().collect();
        assert_eq!(names.len(), section.keys.len(), "[{}]", section.path);
    }
}

/// Run with UPDATE_DOCS=1 to update it.
#[test]
fn study_keys_data_matches_rows() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/data/study-keys.json");
    let expected = keys_data();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &expected).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap();
    assert!(
        written == expected,
        "docs/data/study-keys.json is out of date: UPDATE_DOCS=1 cargo test writes it"
    );
}

/// In the format of `scripts/data_tables.py`: one row per line.
fn keys_data() -> String {
    let columns = [
        r#"{"key": "section", "heading": "section", "kind": "code"}"#,
        r#"{"key": "name", "heading": "key", "kind": "code"}"#,
        r#"{"key": "meaning", "heading": "meaning", "kind": "text"}"#,
        r#"{"key": "values", "heading": "takes", "kind": "text"}"#,
        r#"{"key": "default", "heading": "when left out", "kind": "text", "optional": true}"#,
        r#"{"key": "example", "heading": "example", "kind": "code"}"#,
    ];
    let mut rows = Vec::new();
    for section in STUDY_SECTIONS {
        for key in section.keys {
            let default = match key.default() {
                KeyDefault::Required => Some("refused"),
                KeyDefault::Nothing => None,
                KeyDefault::Value(text) | KeyDefault::Described(text) => Some(text),
            };
            let cells = [
                ("section", json!(if section.path.is_empty() { "the file" } else { section.path })),
                ("name", json!(key.name())),
                ("meaning", json!(key.meaning())),
                ("values", json!(key.describe_values())),
                ("default", json!(default)),
                ("example", json!(key.example())),
            ];
            let cells: Vec<String> =
                cells.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
            rows.push(format!("{{{}}}", cells.join(", ")));
        }
    }
    let list = |lines: &[String]| lines.join(",\n        ");
    format!(
        "{{\n  \"head\": {{}},\n  \"tables\": {{\n    \"keys\": {{\n      \"columns\": [\n        {}\n      ],\n      \
         \"rows\": [\n        {}\n      ]\n    }}\n  }}\n}}\n",
        list(&columns.map(str::to_owned)),
        list(&rows)
    )
}
