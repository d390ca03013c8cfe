//! What was stopped while it was measured is not certified. Each test really stops processes; only verdicts are
//! asserted, since how much a stop costs depends on the host.

mod support;

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use support::{Playground, can_mount, records, wait_for};
use underlay_record::live::{FEED_FILE, feed_line};
use underlay_record::{CertificateVerdict, CheckId, FeedEntry, RunRecord};

const LIMIT: Duration = Duration::from_secs(300);
/// Longer than a twentieth of the window, even on a busy host.
const STOPPED_FOR: Duration = Duration::from_millis(1200);

/// A run as a shell with job control starts it: in a process group of its own.
struct Run(Child);

impl Run {
    fn start(playground: &Playground, study: &str) -> Run {
        playground.write("study.toml", study);
        let mut command = playground.underlay(&["run", "study.toml", "--out", "out"]);
        let log = std::fs::File::create(playground.path("log")).unwrap();
        command.stdout(Stdio::null()).stderr(log).process_group(0);
        Run(command.spawn().unwrap())
    }

    /// What a terminal sends at Ctrl-Z and `fg`.
    fn signal_group(&self, signal: libc::c_int) {
        // SAFETY: the child has not been waited for, so its group is still its own.
        unsafe { libc::kill(-(self.0.id() as libc::pid_t), signal) };
    }

    fn ended(mut self, playground: &Playground) -> Vec<RunRecord> {
        let status = self.0.wait().unwrap();
        let log = std::fs::read_to_string(playground.path("log")).unwrap();
        assert!(status.success(), "{log}");
        records(&playground.path("out"))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|status| status.is_none()) {
            self.signal_group(libc::SIGCONT);
            self.signal_group(libc::SIGTERM);
            let _ = self.0.wait();
        }
    }
}

/// Whether the feed has told that this phase began.
fn is_in(playground: &Playground, phase: &str) -> bool {
    let feed = std::fs::read_to_string(playground.path("out").join(FEED_FILE)).unwrap_or_default();
    let mut lines = feed.lines().filter_map(feed_line);
    lines.any(|line| matches!(line.entry, FeedEntry::Sample(sample) if sample.phase == phase))
}

/// Stops processes of a run's that have this in their command lines, and lets them go on.
fn stop_others(playground: &Playground, word: &str) -> usize {
    let folder = playground.folder.path().to_str().unwrap();
    let mut stopped = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<libc::pid_t>().ok()) else {
            continue;
        };
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let (line, environment) = (read("cmdline"), read("environ"));
        let contains_word =
            |text: &[u8], word: &str| text.windows(word.len()).any(|part| part == word.as_bytes());
        if contains_word(&line, word) && (contains_word(&line, folder) || contains_word(&environment, folder))
        {
            // SAFETY: signals to processes of this test.
            unsafe { libc::kill(pid, libc::SIGSTOP) };
            stopped.push(pid);
        }
    }
    std::thread::sleep(STOPPED_FOR);
    for pid in &stopped {
        // SAFETY: as above.
        unsafe { libc::kill(*pid, libc::SIGCONT) };
    }
    stopped.len()
}

fn is_doubtful_for(record: &RunRecord, check: CheckId) -> bool {
    let certificate = record.certificate.as_ref().expect("it completed");
    certificate.verdict == CertificateVerdict::Doubtful
        && certificate.failed().any(|failed| failed.id == Some(check))
}

fn null_study(workload: &str) -> String {
    format!(
        "name = \"stopped\"\nbaseline = \"here\"\n[system.null]\n[storage.here]\npaths = [\"disk\"]\n{workload}\n\
         [run]\nwarmup = \"0 s\"\nduration = \"6 s\"\nrepetitions = 1\n"
    )
}

const READS: &str =
    "[workload.w]\nrecords = 1_000\nrecord = { fields = 1, bytes = 100 }\nmixes = [\"c\"]\nthreads = 1";

#[test]
fn run_paused_inside_window_is_doubtful() {
    let playground = Playground::new();
    std::fs::create_dir_all(playground.path("disk")).unwrap();
    let run = Run::start(&playground, &null_study(READS));
    wait_for("the measurement", LIMIT, || is_in(&playground, "measuring"));
    run.signal_group(libc::SIGSTOP);
    std::thread::sleep(STOPPED_FOR);
    run.signal_group(libc::SIGCONT);
    let records = run.ended(&playground);
    assert!(is_doubtful_for(&records[0], CheckId::ProcessPauses), "{:?}", records[0].certificate);
    let pauses = records[0].pauses.as_ref().expect("it was watched");
    assert!(pauses.own.pauses > 0 && pauses.own.longest_wall_s > 0.5, "{pauses:?}");
}

/// A program that is measured by a command of its own goes on while the run is stopped.
#[test]
fn command_of_paused_run_is_doubtful() {
    let playground = Playground::new();
    std::fs::create_dir_all(playground.path("disk")).unwrap();
    let study = "name = \"stopped\"\nbaseline = \"here\"\n[system.s]\nkind = \"command\"\nmemory = \"64 MiB\"\n\
                 [storage.here]\npaths = [\"disk\"]\n[workload.w]\nkind = \"command\"\n\
                 run = \"echo x > {data}/x; sleep 6; echo speed 7\"\n\
                 [workload.w.figures.speed]\nunit = \"MB/s\"\nbetter = \"higher\"\npattern = 'speed ([0-9]+)'\n\
                 [run]\nwarmup = \"0 s\"\nduration = \"6 s\"\nrepetitions = 1\n";
    let run = Run::start(&playground, study);
    wait_for("the measurement", LIMIT, || is_in(&playground, "measuring"));
    run.signal_group(libc::SIGSTOP);
    std::thread::sleep(STOPPED_FOR);
    run.signal_group(libc::SIGCONT);
    let records = run.ended(&playground);
    assert!(is_doubtful_for(&records[0], CheckId::ProcessPauses), "{:?}", records[0].certificate);
}

/// Of two cells, the engine of one is stopped, and the process behind the devices of the other: each alone, while the
/// run itself goes on.
#[test]
fn paused_system_or_devices_make_cell_doubtful() {
    if !can_mount() {
        return;
    }
    for word in ["\0engine\0", "device-daemon"] {
        let playground = Playground::new();
        let study = support::TINY_STUDY
            .replace("mixes = [\"a\", \"c\"]", "mixes = [\"c\"]")
            .replace("duration = \"1 s\"", "duration = \"8 s\"");
        let run = Run::start(&playground, &study);
        wait_for("the measurement", LIMIT, || is_in(&playground, "measuring"));
        assert!(stop_others(&playground, word) > 0, "no process has {word:?} in its command line");
        let records = run.ended(&playground);
        assert!(
            is_doubtful_for(&records[0], CheckId::ProcessPauses),
            "{word:?}: {:?}",
            records[0].certificate
        );
        let stopped = &records[0].pauses.as_ref().expect("it was watched").stopped;
        assert!(!stopped.is_empty(), "{word:?}");
        assert_eq!(playground.left_behind(), Vec::<String>::new());
    }
}

/// The engine of an embedded system is a process of its own: stopped alone, it is no less than the generator.
#[test]
fn load_with_paused_engine_is_incomplete() {
    let playground = Playground::new();
    let dir = playground.path("data");
    let dir = dir.to_str().unwrap();
    let data = ["rocksdb", "--dir", dir, "-p", "recordcount=1000"];
    let load = playground.output(&[&["ycsb", "load"][..], &data].concat());
    assert!(load.status.success(), "{load:?}");
    let mut command = playground.underlay(&[&["ycsb", "run"][..], &data, &["--duration", "6"]].concat());
    let log = playground.path("log");
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap()).process_group(0);
    let mut run = Run(command.spawn().unwrap());
    std::thread::sleep(Duration::from_secs(2));
    assert!(stop_others(&playground, "\0engine\0") > 0);
    let status = run.0.wait().unwrap();
    let log_text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(status.code(), Some(1), "{log_text}");
    assert!(log_text.contains(" was stopped for "), "{log_text}");
}

/// The figures that `underlay ycsb` prints are of a generator that ran.
#[test]
fn paused_load_is_incomplete() {
    let playground = Playground::new();
    let mut command = playground.underlay(&["ycsb", "run", "null", "--duration", "6", "--rate", "100"]);
    let log = playground.path("log");
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap()).process_group(0);
    let mut run = Run(command.spawn().unwrap());
    std::thread::sleep(Duration::from_secs(2));
    run.signal_group(libc::SIGSTOP);
    std::thread::sleep(STOPPED_FOR);
    run.signal_group(libc::SIGCONT);
    let status = run.0.wait().unwrap();
    let log_text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(status.code(), Some(1), "{log_text}");
    assert!(log_text.contains("note: the measuring process stood still for"), "{log_text}");
}
