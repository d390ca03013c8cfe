//! A study on volumes of a pool, in a browser: the pool's devices are in the picture, and get faults.

use std::process::Stdio;
use std::time::Duration;

use underlay_record::CellStatus;

use crate::axe::Axe;
use crate::browser::{self, Browser};
use crate::elsewhere::{own_socket, request};
use crate::support::{Playground, can_mount, records, wait_for};
use crate::{LIMIT, Running, console, keep_pictures, without_query};

const STUDY: &str = r#"
name = "pool"

[system.rocksdb]
memory = "64 MiB"

[pool.shared]
devices = [{ medium = "ssd-sata", count = 2, capacity = "1 GiB" }]
initial = "fresh"
power_cut = true

[storage.remote]
pool = "shared"
capacity = "768 MiB"
mirror = true

[workload.ycsb]
records = 20_000
record = { fields = 10, bytes = 100 }
mixes = ["a"]
distribution = "uniform"
threads = 4

[run]
warmup = "1 s"
duration = "75 s"
repetitions = 1
seed = 7

[scale]
time = 2
"#;

/// The child of a run that serves its volumes.
fn volume_server_of(run: u32) -> u32 {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let is_it = |process: &u32| {
        let read =
            |file: &str| std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
        let parent = read("status").lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
        parent == Some(run) && read("cmdline").contains("volume\0serve")
    };
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.find(is_it).expect("the run has a volume server")
}

#[test]
fn pool_device_faults_are_injected_and_cleared_from_page() {
    if !can_mount() || !browser::is_there() {
        return;
    }
    let playground = Playground::new();
    playground.write("pool.toml", STUDY);
    std::fs::create_dir(playground.path("runs")).unwrap();
    let (_console, url) = console(&playground, &[]);
    let place = without_query(&url).to_owned();
    let mut run = playground.underlay(&["run", "pool.toml", "--out", "runs/one", "--quiet"]);
    let mut run = run.stdout(Stdio::null()).spawn().map(Running).unwrap();
    wait_for("the run to begin", LIMIT, || playground.path("runs/one/run.json").is_file());
    let mut browser = Browser::start();
    browser.go(&url);
    browser.go(&format!("{place}/runs/one"));
    // The volume stands between the server's directory and both devices.
    // In one expression: the picture may be drawn again between two.
    let words = ["directories", "volumes", "server-0", "devices of the pool"];
    let picture = "document.querySelector('#picture svg')?.textContent.includes";
    let has_words = words.map(|word| format!("{picture}('{word}')")).join(" && ");
    let has_things = "document.querySelectorAll('#picture g.thing').length === 6";
    browser.wait_long_for(&format!("{has_things} && {has_words}"), LIMIT);
    // While it is measured, so that it is in the record of the cell.
    browser.wait_long_for("document.querySelector('#now')?.innerText.includes('measuring')", LIMIT);
    let device = "#controls form:has([name=device][value='ssd-sata.1'])";
    let act = |browser: &mut Browser, action: &str| {
        browser.follow(&format!("{device} button[value={action}]"));
        browser.follow("button.danger");
    };
    let red = "[...document.querySelectorAll('#picture g.thing.bad')].some(one => one.textContent.includes('ssd-sata.1'))";
    act(&mut browser, "slow");
    browser.wait_for(red);
    // The list says the same as the picture, each with its next update.
    browser.wait_for("Boolean(document.querySelector(\"#controls li:has([value='ssd-sata.1']) .bad\"))");
    act(&mut browser, "clear");
    browser.wait_for(&format!("document.querySelector('#picture g.thing') && !{red}"));
    act(&mut browser, "vanish");
    browser.wait_for(
        "document.querySelector('#event-list').innerText.includes('degraded: not all copies are up to date')",
    );
    browser.wait_for(red);
    Axe::fetched().check(&mut browser, "a run on a pool that is degraded");
    keep_pictures(&mut browser, "pool", 2600);
    act(&mut browser, "return");
    browser.wait_for(
        "document.querySelector('#event-list').innerText.includes('all copies are up to date again')",
    );
    browser.wait_for(&format!("document.querySelector('#picture g.thing') && !{red}"));
    // It loses its power, and what it had not made durable: the pool goes on with the other one, until it is brought up
    // to date.
    browser.follow(&format!("{device} button[value=power-cut]"));
    assert!(browser.text().contains("Cut the power of ssd-sata.1?"), "{}", browser.text());
    browser.follow("button.danger");
    browser.wait_for(red);
    browser.wait_for("document.querySelector('#controls').innerText.includes('no power')");
    browser.wait_for("document.querySelector('#event-list').innerText.includes('ssd-sata.1: no power')");
    act(&mut browser, "return");
    browser.wait_for(&format!("document.querySelector('#picture g.thing') && !{red}"));
    // The volume server belongs to the run: nobody stops it beneath.
    let server = volume_server_of(run.0.id());
    let stop = format!("process={server}");
    let refused =
        request(&mut own_socket(&playground, &url), "POST /host/stop HTTP/1.1", "localhost", &[], &stop);
    assert!(refused.starts_with("HTTP/1.1 409") && refused.contains("serves a run"), "{refused}");
    browser.go(&format!("{place}/host"));
    browser.wait_for("document.querySelector('#host-storages')?.innerText.includes('Pool pool')");
    assert_eq!(
        browser.value("document.querySelectorAll('[aria-label^=\"Stop the volume server\"]').length"),
        0,
        "{}",
        browser.text()
    );
    browser.go(&format!("{place}/runs/one"));
    browser.wait_long_for("document.querySelector('.badge.state-complete')", LIMIT + Duration::from_secs(60));
    assert!(run.0.wait().unwrap().code().is_some());
    let found = records(&playground.path("runs/one"));
    assert_eq!(found[0].status, CellStatus::Completed);
    let faults: Vec<usize> = found[0].devices.iter().map(|device| device.faults.len()).collect();
    assert!(faults.iter().sum::<usize>() >= 3, "the faults are on record: {faults:?}");
    let recorded_faults = found[0].devices.iter().flat_map(|device| &device.faults);
    let cuts: Vec<_> = recorded_faults.filter(|fault| fault.what.starts_with("power cut")).collect();
    assert!(matches!(cuts[..], [cut] if cut.until_s.is_some()), "{cuts:?}");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}
