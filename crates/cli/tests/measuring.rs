//! `underlay media measure` and `verify` as a user types them.

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use support::{Playground, stderr, stdout};
use underlay_storage::catalogue::{CatalogueMedium, MediumKind};
use underlay_storage::fit::DeviceProfile;

fn probe_files(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("underlay-probe")).count()
}

#[test]
fn harmful_or_senseless_measurement_is_refused() {
    let playground = Playground::new();
    playground.write("there.toml", "not ours");
    playground.write("small", "a few bytes");
    let cases: [(&[&str], &str); 8] = [
        (&["media", "measure", "absent", "-o", "disk.toml"], "absent"),
        (&["media", "measure", "/dev/null", "-o", "disk.toml"], "neither a directory"),
        (&["media", "measure", ".", "--destroy", "-o", "disk.toml"], "--destroy"),
        (&["media", "measure", ".", "-o", "there.toml"], "exists"),
        (&["media", "measure", ".", "-o", "no/such/folder.toml"], "no/such is not a directory"),
        (&["media", "measure", ".", "-o", "disk.toml", "--time", "1 s"], "5 s"),
        (&["media", "measure", "small", "-o", "disk.toml"], "small"),
        (&["media", "verify", "hdd-7200-stat", "--virtual"], "hdd-7200-sata"),
    ];
    for (arguments, expected) in cases {
        let output = playground.output(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
    assert!(!playground.path("disk.toml").exists());
    assert_eq!(std::fs::read_to_string(playground.path("there.toml")).unwrap(), "not ours");
}

#[test]
fn measured_directory_becomes_medium_and_stays_unchanged() {
    let playground = Playground::new();
    let output = playground.output(&[
        "media",
        "measure",
        ".",
        "--quick",
        "--time",
        "5 s",
        "--size",
        "16 MiB",
        "--price",
        "99",
        "-o",
        "our_disk.toml",
    ]);
    // A file system without direct I/O can't be measured, and says so.
    if stderr(&output).contains("no direct I/O") {
        assert_eq!(output.status.code(), Some(2));
        return;
    }
    // On a busy machine five seconds make a poor fit, which is advised against.
    let is_poor = stderr(&output).contains("Do not use this medium");
    assert_eq!(output.status.code(), Some(i32::from(is_poor)), "{}", stderr(&output));
    assert!(stdout(&output).contains("held out"), "{}", stdout(&output));
    let text = std::fs::read_to_string(playground.path("our_disk.toml")).unwrap();
    assert_eq!(text.contains("# A poor fit"), is_poor, "{text}");
    let medium = CatalogueMedium::parse("our_disk.toml", &text).unwrap();
    assert_eq!(
        (medium.name.as_str(), medium.kind, medium.price_usd()),
        ("our-disk", MediumKind::Measured, 99.0)
    );
    let points = std::fs::read_to_string(playground.path("our_disk.points.json")).unwrap();
    let profile: DeviceProfile = serde_json::from_str(&points).unwrap();
    assert!(profile.points.len() > 30 && profile.span_bytes == 16 << 20);
    assert_eq!(probe_files(playground.folder.path()), 0);
}

#[test]
fn stopped_measurement_leaves_nothing() {
    let playground = Playground::new();
    let mut child = playground
        .underlay(&["media", "measure", ".", "--size", "16 MiB", "-o", "disk.toml"])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while probe_files(playground.folder.path()) == 0 && child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it never began");
        std::thread::sleep(Duration::from_millis(20));
    }
    // SAFETY: the child has not been waited for unless it ended, when the signal goes nowhere.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
    let output = child.wait_with_output().unwrap();
    if !stderr(&output).contains("no direct I/O") {
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    }
    assert_eq!(probe_files(playground.folder.path()), 0);
    assert!(!playground.path("disk.toml").exists());
}

#[test]
fn published_figures_are_verified_in_virtual_time() {
    let playground = Playground::new();
    let output = playground.output(&["media", "verify", "hdd-7200-sata", "--virtual", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["off"], 0);
    assert!(
        found["published"].as_array().unwrap().len() >= 5 && found["loads"].as_array().unwrap().len() == 8
    );
}
