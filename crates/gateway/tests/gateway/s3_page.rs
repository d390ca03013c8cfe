//! The data that say which rule each answer follows: their tests have to be there.

use std::collections::HashSet;
use std::path::Path;

use serde_json::Value;

/// Every name in the lists `tests` of the rows of all tables.
fn list_tests(data: &Value) -> Vec<String> {
    let tables = data["tables"].as_object().expect("tables by name");
    let rows = tables.values().flat_map(|table| table["rows"].as_array().expect("a list of rows"));
    rows.flat_map(|row| row["tests"].as_array().unwrap_or_else(|| panic!("a row without tests: {row}")))
        .map(|name| name.as_str().expect("the name of a test").to_owned())
        .collect()
}

/// Names of functions in the files of this directory and below.
fn functions(directory: &Path) -> HashSet<String> {
    let mut found = HashSet::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(functions(&path));
            continue;
        }
        let word = if path.extension().is_some_and(|extension| extension == "py") { "def " } else { "fn " };
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        found.extend(text.split(word).skip(1).filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())));
    }
    found
}

#[test]
fn tests_named_by_rules_exist() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(here.join("../../docs/data/gateway-s3.json")).unwrap();
    let data = serde_json::from_str(&text).unwrap();
    let mut defined = functions(&here.join("tests/gateway"));
    defined.extend(functions(&here.join("src")));
    let named = list_tests(&data);
    assert!(named.len() > 60, "only {} tests are named", named.len());
    for name in named {
        assert!(
            defined.contains(&name),
            "docs/data/gateway-s3.json names the test `{name}`, which is not there"
        );
    }
}
