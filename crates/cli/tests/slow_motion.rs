//! A run whose factor of slow motion is left to the host, on devices whose answers arrive late by a known amount.

mod support;

use std::cell::Cell;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use support::{Playground, TINY_STUDY, can_mount, records};
use underlay_attach::{ResourceRegistry, ServedStorage};
use underlay_record::{CellStatus, CertificateVerdict, RunHeader};

/// What of a delay is dated back at most.
const DATED_BACK_US: f64 = 250.0;
/// What the SSD takes for a read, about: of that many modelled microseconds a part is too much.
const READ_US: f64 = 150.0;

/// Late by this part of a read, on the clock of a host in slow motion by `time`.
fn late_by(part: f64, time: f64) -> Duration {
    Duration::from_secs_f64((DATED_BACK_US + part * READ_US * time) / 1e6)
}

/// Ends with the test, even if that fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the program to its end. Every device that it attaches once the run has begun answers as late as `delay` says
/// for the run's factor.
fn delayed(
    playground: &Playground,
    arguments: &[&str],
    out: &Path,
    delay: impl Fn(f64) -> Duration,
) -> (i32, String) {
    let log = playground.path("log");
    let child = playground
        .underlay(arguments)
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn();
    let mut child = Running(child.unwrap());
    let registry = ResourceRegistry::open_at(&playground.path("runtime")).unwrap();
    let status = loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        if out.join("run.json").exists() {
            let delay = delay(head(out).scale.time);
            for served in ServedStorage::all(&registry) {
                // It may be about to end.
                let _ = served.delay_answers(delay);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    (status.code().unwrap_or(-1), std::fs::read_to_string(log).unwrap())
}

fn head(run: &Path) -> RunHeader {
    serde_json::from_str(&std::fs::read_to_string(run.join("run.json")).unwrap()).unwrap()
}

#[test]
fn slow_motion_too_fast_restarts_run_and_keeps_cells() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let hdd = "[storage.hdd]\ndevices = [{ medium = \"hdd-7200-sata\", capacity = \"1 GiB\" }]\n";
    let study = TINY_STUDY
        .replace(hdd, "")
        .replace("\"hdd\"", "\"flash\"")
        .replace("[scale]\ntime = 2\n", "[machine]\ncores = 1\n")
        .replace("warmup = \"200 ms\"\nduration = \"1 s\"", "warmup = \"50 ms\"\nduration = \"100 ms\"");
    playground.write("tiny.toml", &study);
    let out = playground.path("out");

    let limited = ["run", "tiny.toml", "--out", "out", "--only", "mix=c"];
    // At the first factor alone: slower motion makes up for it.
    let first = Cell::new(None);
    let (code, log) = delayed(&playground, &limited, &out, |time| {
        first.set(first.get().or(Some(time)));
        if first.get() == Some(time) { late_by(0.6, time) } else { Duration::ZERO }
    });
    assert_eq!(code, 0, "{log}");
    let run = head(&out);
    let slow_motion = run.slow_motion.as_ref().unwrap();
    let [first, ..] = slow_motion.given_up.as_slice() else { panic!("it did not begin again:\n{log}") };
    assert!(run.scale.time > first.time && log.contains("restart 1 of 3"), "{log}");
    // The certificate says by how much: the delay, less what was taken off for the way.
    let late_us = first.late_us.unwrap() * first.time;
    let delay_us = late_by(0.6, first.time).as_secs_f64() * 1e6;
    assert!(late_us > 0.8 * (delay_us - DATED_BACK_US), "{late_us} µs, {first:?}");
    assert_eq!(run.plan.len(), 1, "what the run was limited to");
    let only = records(&out);
    assert!(only.iter().all(|record| record.scale.time == run.scale.time), "of the last factor alone");
    assert_eq!(only.iter().filter(|record| record.status == CellStatus::Completed).count(), 1);

    // A cell that this call does not measure is not thrown away for one that it does.
    let more = ["run", "--resume", "out", "--only", "mix=a"];
    let (code, log) = delayed(&playground, &more, &out, |time| late_by(3.0, time));
    assert_eq!(code, 0, "{log}");
    let resumed = head(&out);
    assert_eq!((resumed.scale, resumed.plan.len()), (run.scale, 2), "{log}");
    let both = records(&out);
    assert_eq!(both.len(), 2);
    assert!(both.iter().any(|record| record.started_at == only[0].started_at), "{log}");
    let late = both.iter().find(|record| record.started_at != only[0].started_at).unwrap();
    assert_eq!(late.certificate.as_ref().unwrap().verdict, CertificateVerdict::Doubtful);

    let whole = playground.output(&["run", "--resume", "out"]);
    assert!(whole.status.success(), "{}", support::stderr(&whole));
    assert_eq!(playground.left_behind(), [""; 0]);
}
