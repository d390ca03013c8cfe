//! A cell that is skipped on command: a state of its own in the record, the API, the terminal, the report and the exit
//! code, until a resumed run measures it.

use std::process::Stdio;

use serde_json::Value;
use underlay_record::CellStatus;

use crate::elsewhere::{Plain, own_socket, request};
use crate::support::{self, NULL_STUDY, Playground, records, secret, wait_for};
use crate::{LIMIT, console};

const TOKEN: &str = "correct-horse-battery-staple";

#[test]
fn skipped_cell_counts_once_and_resume_measures_it() {
    let playground = Playground::new();
    // Long enough that the last cell has not begun when it is skipped.
    playground.write("null.toml", &NULL_STUDY.replace("300 ms", "4 s"));
    secret(&playground, "token", TOKEN);
    std::fs::create_dir_all(playground.path("disk")).unwrap();
    std::fs::create_dir(playground.path("runs")).unwrap();
    let (_console, url) = console(&playground, &["--token-file", "token"]);
    let server = Plain::from_url(&url);
    let json = |answer: &str| -> Value {
        let body = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}")).1;
        serde_json::from_str(body).unwrap_or(Value::Null)
    };
    // As a monitor reads it.
    let read = |path: &str| -> Value {
        let bearer = format!("Authorization: Bearer {TOKEN}");
        json(&request(&mut server.connect(), &format!("GET {path} HTTP/1.1"), &server.host(), &[&bearer], ""))
    };
    let run = ["run", "null.toml", "--out", "runs/one", "--quiet"];
    let run = playground.underlay(&run).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let running = || read("/api/runs/one")["running_position"].as_u64();
    wait_for("the first cell to run", LIMIT, || running() == Some(0));
    let skip = "POST /runs/one/skip HTTP/1.1";
    let done = json(&request(&mut own_socket(&playground, &url), skip, "localhost", &[], "position=3"));
    assert!(done["done"].as_str().unwrap().contains("null/here/"), "{done}");
    // Seen at once, by its name.
    let is_asked = || read("/api/runs/one")["cells"][3]["skip_asked"] == true;
    wait_for("the skip to be seen", LIMIT, is_asked);
    let events = read("/api/runs/one/events");
    let event = events.as_array().unwrap().iter().find(|event| event["what"] == "to be skipped, on command");
    let event = event.unwrap_or_else(|| panic!("{events}"));
    assert_eq!((&event["position"], &event["repetition"]), (&3.into(), &1.into()), "{event}");
    assert!(event["cell"].as_str().unwrap().starts_with("null/here/"), "{event}");

    let output = run.wait_with_output().unwrap();
    let message = support::stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("1 cell was skipped on command;") && !message.contains("failed"), "{message}");
    let printed = support::stdout(&output);
    assert!(!printed.contains("failed"), "{printed}");
    let found = records(&playground.path("runs/one"));
    let skipped: Vec<_> =
        found.iter().filter(|record| record.status == CellStatus::Skipped { failure: None }).collect();
    let [skipped] = skipped.as_slice() else { panic!("{found:?}") };
    assert_eq!((skipped.position, skipped.wall_s, &skipped.wall), (3, 0.0, &None));
    let listed = read("/api/runs");
    let cells = &listed[0]["cells"];
    // On a busy host what is measured may be doubtful.
    let count = |state: &str| cells[state].as_u64().unwrap_or_else(|| panic!("{state}: {cells}"));
    assert_eq!((count("skipped"), count("failed"), count("done") + count("doubtful")), (1, 0, 3), "{cells}");
    let report = playground.output(&["report", "runs/one", "--json"]);
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let states: Vec<&str> =
        report["cells"].as_array().unwrap().iter().filter_map(|cell| cell["state"].as_str()).collect();
    assert_eq!(states.iter().filter(|state| **state == "skipped").count(), 1, "{states:?}");
    assert_eq!(states.iter().filter(|state| **state == "completed").count(), 3, "{states:?}");

    let resumed = playground.output(&["run", "--resume", "runs/one", "--quiet"]);
    assert!(resumed.status.success(), "{}", support::stderr(&resumed));
    let found = records(&playground.path("runs/one"));
    assert!(found.iter().all(|record| record.status == CellStatus::Completed), "{found:?}");
}
