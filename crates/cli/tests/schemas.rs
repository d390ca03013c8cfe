//! What scripts may rely on: the schemas that the program prints are sound, and what it prints keeps to them.

mod support;

use std::collections::BTreeSet;

use serde_json::Value;
use support::schemas::{departs, keeps_to, published};
use support::{Playground, TINY_STUDY, stdout};

/// An editor, or a script, reads them by the standard.
#[test]
fn schemas_compile_as_json_schema() {
    let playground = Playground::new();
    stdout(&playground.output(&["schema", "--dir", "schemas"]));
    let names = playground.path("schemas").read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let names: BTreeSet<String> = names.map(|name| name.into_string().unwrap()).collect();
    assert!(
        names.len() > 10 && names.contains("study.json") && names.contains("advise-memory.json"),
        "{names:?}"
    );
    for name in &names {
        let text = std::fs::read_to_string(playground.path("schemas").join(name)).unwrap();
        let schema: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(published(name.strip_suffix(".json").unwrap()), schema, "{name}");
        let mut compiler = boon::Compiler::new();
        compiler.add_resource(name, schema).unwrap();
        compiler.compile(name, &mut boon::Schemas::new()).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    assert_eq!(stdout(&playground.output(&["schema"])), stdout(&playground.output(&["schema", "record"])));
}

#[test]
fn printed_json_matches_schema() {
    let playground = Playground::new();
    playground.write("sound.toml", TINY_STUDY);
    playground.write("broken.toml", &TINY_STUDY.replace("hdd-7200-sata", "hdd-7200-stata"));
    for study in ["sound.toml", "broken.toml", "absent.toml"] {
        keeps_to("check", &stdout(&playground.output(&["check", study, "--json"])));
    }
    keeps_to("doctor", &stdout(&playground.output(&["doctor", "--json"])));
    let schema = published("check");
    for wrong in [r#"{"errors": [{"file": null}]}"#, r#"{"errors": 1}"#, "[1]", r#"{"error": []}"#] {
        assert!(departs(&serde_json::from_str(wrong).unwrap(), &schema, &schema).is_some(), "{wrong}");
    }
}
