//! The JSON Schema of a study's file, for editors: which keys there are, what they take, and what they mean.
//!
//! The reader of studies has the last word: it knows what goes together. `tests/study_schema.rs` holds the keys here
//! against those that it knows.

mod sections;
mod storage;
mod systems;
mod values;
mod workload;

use serde_json::{Value, json};

use values::{StudyKey, key, named, table, text};

/// The whole schema.
pub(super) fn schema() -> Value {
    let name = json!({
        "type": "string",
        "pattern": "^[a-z0-9][a-z0-9-]*$",
        "maxLength": 40,
    });
    let keys: Vec<StudyKey> = vec![
        key("name", name, "Names the run's directory: lowercase letters, digits and hyphens."),
        key("title", text(), "The report's heading."),
        key("baseline", text(), "The storage that ratios are against; needed where there are several."),
        key("system", systems::all(), "Data systems, one section each: [system.NAME]."),
        key("storage", named(storage::storage()), "What the systems stand on: [storage.NAME]."),
        key(
            "pool",
            named(storage::pool()),
            "Devices of volume servers, for storages that are volumes: [pool.NAME].",
        ),
        key("workload", named(workload::workload()), "What is asked of the systems: [workload.NAME]."),
        key("run", sections::run(), "How often and how long each cell is measured."),
        key("machine", sections::machine(), "What each node of a system runs on."),
        key(
            "scale",
            sections::scale(),
            "How the modelled machine becomes this one; the report divides both factors out.",
        ),
        key(
            "fault",
            named(sections::fault()),
            "What goes wrong while a cell is measured: [fault.NAME], one fault each.",
        ),
        key(
            "event",
            named(sections::event()),
            "Nodes that go away while a cell is measured: [event.NAME], one node each.",
        ),
        key("short", sections::short(), "What `--short` changes."),
        key("reference", sections::reference(), "Published figures to print beside the study's own."),
    ];
    let mut schema = table(&["name", "system", "storage", "workload"], keys);
    let about = [
        ("$schema", "https://json-schema.org/draft/2020-12/schema"),
        ("title", "A study of Underlay"),
        ("description", "Systems, storages and workloads; each combination is a cell: docs/study.md."),
    ];
    for (name, value) in about {
        schema[name] = json!(value);
    }
    schema["$defs"] = Value::Object(systems::definitions());
    schema
}
