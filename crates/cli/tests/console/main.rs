//! The console in a browser: a real run watched from its start to its report, a cell skipped, a disk slowed down; a
//! study mistyped, corrected and started; and what else of ours is up. Pages keep axe's rules.

mod access;
mod axe;
mod browser;
mod crowd;
mod elsewhere;
mod pools;
mod services;
mod skipped;
mod stays;
#[path = "../support/mod.rs"]
mod support;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use axe::Axe;
use browser::Browser;
use support::{Playground, can_mount, records, wait_for};
use underlay_record::CellStatus;

const LIMIT: Duration = Duration::from_secs(240);

const STUDY: &str = r#"
name = "watched"
title = "Two storages <b>side by side</b>"
baseline = "hdd"

[system.rocksdb]
memory = "64 MiB"

[storage.hdd]
devices = [{ medium = "hdd-7200-sata", capacity = "1 GiB" }]

[storage.flash]
devices = [{ medium = "ssd-sata", count = 2, capacity = "512 MiB" }]
layout = "stripe"

[workload.ycsb]
records = 50_000
record = { fields = 10, bytes = 100 }
mixes = ["a", "c"]
distribution = "uniform"
threads = 4

[run]
warmup = "1 s"
duration = "8 s"
repetitions = 1
seed = 7

[scale]
time = 2
"#;

/// A system of several nodes, each a process.
const NODES: &str = r#"
name = "nodes"

[system.je-ha]
memory = "560 MiB"
nodes = 3

[storage.here]
paths = ["disk"]

[workload.ycsb]
records = 1_000
record = { fields = 2, bytes = 100 }
mixes = ["a"]
distribution = "uniform"
threads = 4

[run]
warmup = "0 s"
duration = "60 s"
repetitions = 1
"#;

/// A process that is ended when the test is, however that ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if let (Ok(None), Ok(pid)) = (self.0.try_wait(), libc::pid_t::try_from(self.0.id())) {
            // SAFETY: the child has not been waited for, so its id is still its own.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
        let _ = self.0.wait();
    }
}

/// A console over `runs`, and the address that opens it. There is no terminal, so that it is in a file.
fn console(playground: &Playground, more: &[&str]) -> (Running, String) {
    let arguments: Vec<&str> =
        ["console", "runs", "--listen", "127.0.0.1:0"].iter().chain(more).copied().collect();
    let mut child = playground.underlay(&arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let child = Running(child);
    (child, address_in(&line))
}

/// What is in the file that a console names.
fn address_in(line: &str) -> String {
    let file = line.split_once(" is in ").and_then(|(_, rest)| rest.rsplit_once(" for "));
    let (file, _) = file.unwrap_or_else(|| panic!("{line}"));
    std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}")).trim().to_owned()
}

/// Where pictures go, if somebody wants them.
fn keep_pictures(browser: &mut Browser, name: &str, height: u32) {
    let Some(folder) = std::env::var_os("UNDERLAY_SCREENSHOTS") else { return };
    for (scheme, width) in [("light", 1280), ("dark", 1280), ("light", 390)] {
        let file = Path::new(&folder).join(format!("{name}-{scheme}-{width}.png"));
        browser.picture(width, if width < 500 { 2600 } else { height }, scheme, &file);
    }
}

fn without_query(url: &str) -> &str {
    url.split_once("?token=").unwrap().0.trim_end_matches('/')
}

#[test]
fn watched_run_skips_cell_and_slows_disk_until_report() {
    if !can_mount() || !browser::is_there() {
        return;
    }
    let playground = Playground::new();
    playground.write("watched.toml", STUDY);
    std::fs::create_dir(playground.path("runs")).unwrap();
    let (_console, url) = console(&playground, &[]);
    let place = without_query(&url).to_owned();
    let mut browser = Browser::start();
    let axe = Axe::fetched();
    browser.go(&url);
    // The token is not in the address any more, and there is nothing yet.
    assert_eq!(browser.value("location.search"), "");
    assert!(browser.text().contains("There is no run"), "{}", browser.text());

    let mut run = playground.underlay(&["run", "watched.toml", "--out", "runs/one", "--quiet"]);
    let mut run = run.stdout(Stdio::null()).spawn().map(Running).unwrap();
    // The list tells of it by itself.
    browser.wait_for("document.querySelector('a[href=\"/runs/one\"]')");
    browser.follow("a[href='/runs/one']");
    // Figures of clients and devices come without loading the page again.
    browser.wait_long_for("document.querySelector('#c-throughput svg')", LIMIT);
    browser.wait_long_for("document.querySelector('#c-fidelity svg')", LIMIT);
    browser.wait_for("document.querySelector('.chip.cell-running')");
    browser.wait_for("document.querySelector('#picture svg.topology')");
    assert!(browser.text().contains("Two storages <b>side by side</b>"));
    assert_eq!(browser.value("document.querySelector('b')"), serde_json::Value::Null);
    // Two tabs, one stream.
    let updates =
        |browser: &mut Browser| browser.value("Number(document.body.dataset.updates || 0)").as_u64().unwrap();
    let before = updates(&mut browser);
    browser.wait_for(&format!("Number(document.body.dataset.updates) > {}", before + 1));

    // The last cell of the plan is skipped before it begins.
    let last = browser.value("[...document.querySelectorAll('[id^=skip-]')].map(b => b.id).sort().at(-1)");
    let last = last.as_str().unwrap().to_owned();
    browser.follow(&format!("#{last}"));
    assert!(browser.text().contains("Skip rocksdb/"), "{}", browser.text());
    browser.follow("button.danger");
    // At once, in the row of its cell and in the matrix.
    browser.wait_for("document.querySelector('#event-list').innerText.includes('to be skipped, on command')");
    browser.wait_for("document.querySelector('.chip.cell-skipped')");

    // A disk of the cell that runs is slowed down, and is red. The cell may just end: then that of the next one.
    let is_bad = "document.querySelector('#picture g.thing.bad')";
    let slow_down = |browser: &mut Browser| {
        browser.wait_long_for("document.querySelector('#controls button[value=slow]')", LIMIT);
        browser.follow("#controls button[value=slow]");
        assert!(
            browser.text().contains("take 10 times as long, until its faults are cleared?"),
            "{}",
            browser.text()
        );
        browser.follow("button.danger");
        if browser.comes_true(is_bad, Duration::from_secs(5)) {
            return true;
        }
        browser.go(&format!("{place}/runs/one"));
        false
    };
    assert!((0..3).any(|_| slow_down(&mut browser)), "no device could be slowed down: {}", browser.text());
    axe.check(&mut browser, "a run under way");
    keep_pictures(&mut browser, "run", 2400);

    // To the end: its report can be read, and everything is on record.
    browser.wait_long_for("document.querySelector('.badge.state-complete')", LIMIT);
    assert!(run.0.wait().unwrap().code().is_some());
    assert_eq!(browser.value("document.querySelectorAll('.chip.cell-skipped').length"), 1);
    axe.check(&mut browser, "a run that has ended");
    keep_pictures(&mut browser, "ended", 1400);
    browser.follow("a[href^='/runs/one/cells/']");
    axe.check(&mut browser, "a cell");
    browser.go(&format!("{place}/runs/one/logs"));
    axe.check(&mut browser, "the logs");
    browser.go(&format!("{place}/runs/one"));
    browser.follow("nav.sections a[href$='/report']");
    assert!(browser.text().contains("ops/s"), "{}", browser.text());
    browser.go(&format!("{place}/"));
    axe.check(&mut browser, "the runs");
    keep_pictures(&mut browser, "runs", 700);
    let found = records(&playground.path("runs/one"));
    assert_eq!(found.len(), 4);
    assert_eq!(found.iter().filter(|record| matches!(record.status, CellStatus::Skipped { .. })).count(), 1);
    let slowed =
        |record: &underlay_record::RunRecord| record.devices.iter().any(|device| !device.faults.is_empty());
    assert!(found.iter().any(slowed), "the fault is on record");
    let measured = found.iter().filter(|record| record.status == CellStatus::Completed).count();
    assert!(measured >= 2, "{found:?}");
    // Who is in already may open the address that was printed again: it leads on, though it opens no other session.
    browser.go(&url);
    assert_eq!(browser.value("location.search"), "");
    browser.go(&format!("{place}/nothing"));
    axe.check(&mut browser, "a problem");
    // The report's sandbox keeps its one script from running, which the browser tells.
    let own = |complaint: &&String| {
        !complaint.contains("/report") && !complaint.contains("favicon") && !complaint.contains("/nothing")
    };
    let complaints: Vec<&String> = browser.complaints.iter().filter(own).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    assert!(
        playground.left_behind().iter().all(|left| left.contains("console")),
        "{:?}",
        playground.left_behind()
    );
}

#[test]
fn mistyped_study_is_corrected_started_and_stopped() {
    if !browser::is_there() {
        return;
    }
    let playground = Playground::new();
    let study = support::NULL_STUDY.replace("300 ms", "20 s");
    playground.write("null.toml", &study);
    std::fs::create_dir_all(playground.path("disk")).unwrap();
    let (_console, url) = console(&playground, &["--studies", "."]);
    let mut browser = Browser::start();
    browser.go(&url);
    browser.go(&format!("{}/studies/edit?file=null.toml", without_query(&url)));
    assert!(browser.text().contains("4 cells"), "{}", browser.text());
    let type_in = |browser: &mut Browser, from: &str, to: &str| {
        browser.value(&format!(
            "(() => {{ const text = document.getElementById('text'); text.value = text.value.replace({}, {}); text.dispatchEvent(new \
             Event('input')); }})()",
            serde_json::json!(from),
            serde_json::json!(to)
        ));
    };
    type_in(&mut browser, "records = 1_000", "recods = 1_000");
    browser.wait_for("document.querySelector('#check li[data-line=\"9\"]')");
    assert!(browser.text().contains("did you mean"), "{}", browser.text());
    let axe = Axe::fetched();
    axe.check(&mut browser, "the editor");
    keep_pictures(&mut browser, "editor", 1100);
    // What has mistakes is not started.
    browser.follow("button[value=start]");
    assert!(browser.text().contains("It was not started"), "{}", browser.text());
    type_in(&mut browser, "recods = 1_000", "records = 1_000");
    browser.wait_for("document.querySelector('#check .sound')");
    browser.follow("button[value=start]");
    browser.wait_for("location.pathname.startsWith('/runs/null-')");
    browser.wait_for("document.querySelector('#c-throughput svg')");
    // It is measured, so that it is as important as any other program; the console is not.
    let script = "fetch(location.pathname.replace('/runs/', '/api/runs/')).then(told => told.json()).then(told => told.process)";
    let process = browser.value(script).as_u64().unwrap();
    // SAFETY: it touches no memory.
    assert_eq!(unsafe { libc::getpriority(libc::PRIO_PROCESS, libc::id_t::try_from(process).unwrap()) }, 0);
    browser.follow("#stop");
    axe.check(&mut browser, "a question");
    browser.follow("button.danger");
    browser.wait_long_for("document.querySelector('.badge.state-stopped')", LIMIT);
    assert!(browser.text().contains("--resume"), "{}", browser.text());
    // The browser tells of the answer that refused to start it.
    browser.complaints.retain(|complaint| !complaint.contains("/studies/save"));
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    wait_for("the run to end", LIMIT, || playground.left_behind().iter().all(|left| !left.contains(" run ")));
}

#[test]
fn killed_node_is_restarted_from_page_and_recorded() {
    if !browser::is_there() {
        return;
    }
    let playground = Playground::new();
    playground.write("nodes.toml", NODES);
    std::fs::create_dir_all(playground.path("disk")).unwrap();
    std::fs::create_dir(playground.path("runs")).unwrap();
    let (_console, url) = console(&playground, &[]);
    let mut run = playground.underlay(&["run", "nodes.toml", "--out", "runs/one", "--quiet"]);
    let mut run = run.stdout(Stdio::null()).spawn().map(Running).unwrap();
    wait_for("the run to begin", LIMIT, || playground.path("runs/one/run.json").is_file());
    let mut browser = Browser::start();
    browser.go(&url);
    browser.go(&format!("{}/runs/one", without_query(&url)));
    browser.wait_long_for("document.querySelector('#controls button[value=kill]')", LIMIT);
    let a_replica =
        "[...document.querySelectorAll('#controls li')].find(one => one.innerText.includes('replica'))";
    browser.wait_for(a_replica);
    // Each member is in the box of its machine, with what it is to its shard.
    browser.wait_for("[...document.querySelectorAll('#picture g.thing')].some(one => /node2.*shard1-node2: (master|replica), shard 1/.test(one.textContent))");
    let node = browser.value(&format!("{a_replica}.querySelector('[name=node]').value"));
    let form = format!("#controls form:has([value='{}'])", node.as_str().unwrap());
    browser.follow(&format!("{form} button[value=kill]"));
    assert!(browser.text().contains("Kill node shard1-node"), "{}", browser.text());
    browser.follow("button.danger");
    // It is red until it serves again.
    browser.wait_for("document.querySelector('#picture g.thing.bad')");
    keep_pictures(&mut browser, "nodes", 2400);
    browser.follow(&format!("{form} button[value=start]"));
    browser.follow("button.danger");
    browser.wait_for(
        "document.querySelector('#picture g.thing') && !document.querySelector('#picture g.thing.bad')",
    );
    browser.wait_for("document.querySelector('#event-list [data-event=node]')");
    // Without its master the shard elects another one, which is an event.
    let master =
        "[...document.querySelectorAll('#controls li')].find(one => one.innerText.includes('master'))";
    browser.wait_for(master);
    let master = browser.value(&format!("{master}.querySelector('[name=node]').value"));
    let of_master = format!("#controls form:has([value='{}'])", master.as_str().unwrap());
    browser.follow(&format!("{of_master} button[value=kill]"));
    browser.follow("button.danger");
    browser.wait_for(
        "document.querySelector('#event-list').innerText.includes('was elected master of shard 1')",
    );
    browser.follow(&format!("{of_master} button[value=start]"));
    browser.follow("button.danger");
    browser.wait_for(
        "document.querySelector('#picture g.thing') && !document.querySelector('#picture g.thing.bad')",
    );
    browser.wait_long_for("document.querySelector('.badge.state-complete')", LIMIT);
    // A cell that somebody disturbed by hand is no plain result.
    assert_eq!(run.0.wait().unwrap().code(), Some(1));
    let found = records(&playground.path("runs/one"));
    let [event, _] = found[0].node_events.as_slice() else { panic!("{:?}", found[0].node_events) };
    assert_eq!((&event.event, event.node.as_deref()), (&None, node.as_str()));
    assert!(event.away_s.is_some() && event.served_s.is_some(), "{event:?}");
}

#[test]
fn run_serves_own_console_until_end() {
    let playground = Playground::new();
    playground.write("null.toml", support::NULL_STUDY);
    std::fs::create_dir_all(playground.path("disk")).unwrap();
    let run = ["run", "null.toml", "--out", "runs/one", "--console", "--console-stays", "0 s"];
    let output = playground.output(&run);
    let message = support::stderr(&output);
    assert!(output.status.success() && message.contains("console  127.0.0.1:"), "{message}");
    // Standard error may be kept.
    assert!(message.contains("its address is in ") && !message.contains("token="), "{message}");
    // Its socket and its file went with it.
    let left = std::fs::read_dir(playground.path("runtime")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.starts_with("console-")), "{left:?}");
    assert!(playground.left_behind().is_empty(), "{:?}", playground.left_behind());
    // What a run tells of itself stays beside its records.
    assert!(playground.path("runs/one/feed.jsonl").is_file());
    // A place that everybody reaches is refused with what to do instead.
    let output = playground.output(&["console", "--listen", "0.0.0.0:0"]);
    assert!(output.status.code() == Some(2) && support::stderr(&output).contains("ssh -L"), "{output:?}");
    let output = playground.output(&["console", "null.toml"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    // How long it stays is read before anything is run.
    let output =
        playground.output(&["run", "null.toml", "--out", "runs/two", "--console", "--console-stays", "soon"]);
    assert!(output.status.code() == Some(2) && support::stderr(&output).contains("--console-stays soon"));
    assert!(!playground.path("runs/two").exists());
}
