//! A gateway that is being opened, and one that is about to end: what it says of itself meanwhile.

use std::time::{Duration, Instant};

use crate::own_s3::{OwnS3, PAGE};
use crate::program::{Program, command};
use crate::signed::ask;

/// Waits for something that takes a while on a busy machine.
fn wait_for(condition: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{condition}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A large bucket takes hours to list: the gateway tells its supervisor that it is alive, and how far it has got.
#[test]
fn opening_gateway_reports_its_progress() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(2 * PAGE + 1);
    let mut program =
        Program::start_without_waiting(directory.path(), "", &store.sections(directory.path(), ""));
    let shows = |path: &str, header: &str, text: &str| {
        program.ask(path, header).is_some_and(|answer| answer.contains(text))
    };
    wait_for("it does not open its admin port", || {
        shows("/health/ready", "", "opening: stores have listed 0 objects")
    });
    store.may_list(1);
    wait_for("it does not say how far it is", || shows("/health/ready", "", "have listed 3 objects so far"));
    for (path, status) in [("/health/ready", 503), ("/health/live", 200), ("/metrics", 401), ("/status", 401)]
    {
        assert!(shows(path, "", &format!("HTTP/1.1 {status}")), "{path}");
    }
    let token = format!("Authorization: Bearer {}\r\n", program.token());
    assert!(shows("/status", &token, "HTTP/1.1 503"));
    for line in ["underlay_gateway_opening 1\n", "underlay_gateway_taken_over_objects_total 3\n"] {
        assert!(shows("/metrics", &token, line), "{line}");
    }
    let top = command().args(["top", "--once"]).arg(program.config()).output().unwrap();
    let stderr = String::from_utf8_lossy(&top.stderr).into_owned();
    assert!(!top.status.success() && stderr.contains("opening"), "{stderr}");
    store.may_list(usize::MAX);
    program.wait_ready();
    let metrics = program.ask("/metrics", &token).unwrap();
    for line in [
        "underlay_gateway_opening 0\n",
        "underlay_gateway_taken_over_objects_total 7\n",
        "_journal_bytes 0\n",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert_eq!(ask(program.address, "GET", "/lake/there/006", &[], b"").unwrap().body, [b'x'; 16]);
    let (status, log) = program.stop();
    assert!(status.success(), "{log}");
}

#[test]
fn opening_gateway_ends_on_signal() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(1);
    let program = Program::start_without_waiting(directory.path(), "", &store.sections(directory.path(), ""));
    wait_for("it does not open its admin port", || {
        program.ask("/health/ready", "").is_some_and(|answer| answer.contains("opening"))
    });
    let (status, log) = program.stop();
    assert!(status.success(), "{log}");
}

/// On SIGTERM it says what it waits for, and in the end whether anything is left; and the next start goes on.
#[test]
fn drain_reports_progress_and_remainder() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.may_list(usize::MAX);
    store.refuse_puts(true);
    let of_bucket = "write = \"back\"\nflush_after = \"1 h\"\n[limits]\ndrain = \"5 s\"";
    let mut program = Program::start(directory.path(), &store.sections(directory.path(), of_bucket));
    for key in ["a", "b"] {
        assert_eq!(ask(program.address, "PUT", &format!("/lake/{key}"), &[], b"bytes").unwrap().status, 200);
    }
    program.terminate();
    let (status, log) = program.wait_end();
    // Nothing is lost, and before the machine is taken away somebody has to see to it.
    assert_eq!(status.code(), Some(1), "{log}");
    for line in [
        "stopping: no new requests are taken",
        "waiting for 2 objects to be stored; lake/",
        "2 objects are not in their store yet: they are safe in the journal, and the next start goes on",
        "not stored: lake/a: denied for ",
        "not stored: lake/b: denied for ",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
    assert!(!log.contains("the stores have everything"), "{log}");

    let config = std::fs::read_to_string(program.config()).unwrap();
    std::fs::write(program.config(), config.replace("drain = \"5 s\"", "drain = \"60 s\"")).unwrap();
    program.start_again();
    program.terminate();
    // It is waiting when the store takes objects again.
    let log_file = directory.path().join("gateway.toml.log");
    wait_for("it does not say what it waits for", || {
        std::fs::read_to_string(&log_file).unwrap().matches("waiting for 2 objects").count() > 1
    });
    store.refuse_puts(false);
    let (status, log) = program.wait_end();
    assert!(status.success() && log.contains("the stores have everything"), "{log}");
    assert_eq!((store.object("a"), store.object("b")), (Some(b"bytes".to_vec()), Some(b"bytes".to_vec())));
}
