//! What scripts may rely on: the published schemas are those that the program prints by, and what it prints keeps to
//! them.

mod support;

use serde_json::Value;
use support::schemas::{departs, keeps_to, published};
use support::{Playground, TINY_STUDY, stdout};

const ALL: [&str; 11] = [
    "study",
    "record",
    "report",
    "comparison",
    "check",
    "doctor",
    "predict",
    "held-out",
    "explain",
    "advise-storage",
    "advise-memory",
];

/// `make schema` renews them.
#[test]
fn published_schemas_are_current() {
    let playground = Playground::new();
    for name in ALL {
        let printed: Value = serde_json::from_str(&stdout(&playground.output(&["schema", name]))).unwrap();
        assert!(
            published(name) == printed,
            "docs/schemas/{name}.json is not what `underlay schema {name}` prints"
        );
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
