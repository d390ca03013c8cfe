//! Programs that commands start: a whole life, and every way of going wrong, with nothing left behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use underlay_record::{BenchmarkRecord, BetterDirection, MetricDilation};
use underlay_systems::benchmark::{BenchmarkPlan, FigurePlan, MetricReading, MetricSource, ValueChoice};
use underlay_systems::command::CommandSystem;
use underlay_systems::system::{
    BenchmarkRequest, LoadRequest, RunningSystem, StoragePaths, System as _, SystemError, SystemResources,
    SystemSettings,
};

/// A storage and a place for what is not data.
struct Ground {
    folder: tempfile::TempDir,
}

impl Ground {
    fn new() -> Ground {
        use std::os::unix::fs::PermissionsExt as _;
        // Closed to others, as a run's directory is.
        let private = std::fs::Permissions::from_mode(0o700);
        let folder =
            tempfile::Builder::new().prefix("underlay-command-").permissions(private).tempdir().unwrap();
        std::fs::create_dir(folder.path().join("disk")).unwrap();
        Ground { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Each start has a scratch directory of its own, as each cell has.
    fn start(&self, settings: &[(&str, &str)]) -> Result<Box<dyn RunningSystem>, SystemError> {
        let scratch = tempfile::tempdir_in(self.folder.path()).unwrap().keep();
        let paths = StoragePaths { data: vec![self.path("disk")], scratch, ..StoragePaths::default() };
        let values: BTreeMap<String, String> =
            settings.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        let settings = SystemSettings { values, ..SystemSettings::default() };
        CommandSystem.start(&paths, &SystemResources::with_budget(64 << 20), &settings)
    }

    /// Processes that have to do with this ground.
    fn processes(&self) -> Vec<String> {
        let folder = self.folder.path().to_str().unwrap();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let file_of = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
            let text = [file_of("cmdline"), file_of("environ")].concat();
            let own = entry.file_name().to_str().and_then(|pid| pid.parse().ok()) == Some(std::process::id());
            if !own && String::from_utf8_lossy(&text).contains(folder) {
                found.push(String::from_utf8_lossy(&file_of("cmdline")).replace('\0', " "));
            }
        }
        found
    }
}

fn benchmark(run: &str) -> BenchmarkRequest {
    let figure = FigurePlan {
        name: "speed".to_owned(),
        unit: "tps".to_owned(),
        better: BetterDirection::Higher,
        slow_motion: MetricDilation::Rate,
        file: None,
        reading: MetricReading::Pattern("speed ([0-9.]+)".to_owned()),
        progress: None,
        take: ValueChoice::Last,
    };
    BenchmarkRequest {
        name: "b".to_owned(),
        plan: BenchmarkPlan {
            run: run.to_owned(),
            job: None,
            in_budget: Some(false),
            limit: Duration::from_secs(60),
            figures: MetricSource::Planned(vec![figure]),
            marks: Vec::new(),
        },
        data_bytes: 1000,
        seed: 7,
        duration: Duration::from_millis(2500),
        warmup: Duration::from_secs(1),
    }
}

fn measure(running: &dyn RunningSystem, run: &str) -> Result<BenchmarkRecord, SystemError> {
    running.run_benchmark(&benchmark(run), &|_| true).unwrap()
}

#[test]
fn program_runs_by_its_commands() {
    let ground = Ground::new();
    let settings = [
        ("version", "echo 'program 1.2'; echo more"),
        ("prepare", "echo prepared > {data}/story; echo {memory_mib} > {data}/memory"),
        // By its number: others may have one of the same name.
        (
            "start",
            "echo started >> {data}/story; echo $$ > {scratch}/pid; sleep 1; touch {scratch}/ready; exec sleep 1000",
        ),
        ("ready", "test -e {scratch}/ready"),
        ("load", "echo loaded {data_bytes} {seed} >> {data}/story"),
        ("settle", "echo settled >> {data}/story"),
        ("figures", "echo rows 12; echo nonsense"),
        ("stop", "echo stopped >> {data}/story; kill $(cat {scratch}/pid)"),
    ];
    let running = ground.start(&settings).unwrap();
    let load = LoadRequest { data_bytes: 1000, seed: 7 };
    running.load_data(&load, &|| true).unwrap().unwrap();
    running.settle(Duration::from_secs(60)).unwrap();
    assert_eq!(running.figures().unwrap(), [("rows".to_owned(), 12.0)].into());
    assert_eq!(running.applied_settings()["program_version"], "program 1.2");
    let record = measure(
        running.as_ref(),
        "echo speed $UNDERLAY_SEED; echo speed {duration_s}.5 {warmup_s}; awk 'BEGIN { print \"{{seed}}\" }'",
    );
    let record = record.unwrap();
    assert_eq!((record.figures[0].value, record.output_tail.as_str()), (3.5, "speed 7\nspeed 3.5 1\n{seed}"));
    running.health().unwrap();
    running.stop().unwrap();
    let story = std::fs::read_to_string(ground.path("disk/program/data/story")).unwrap();
    assert_eq!(story, "prepared\nstarted\nloaded 1000 7\nsettled\nstopped\n");
    // What was prepared stays so.
    let again = ground.start(&settings).unwrap();
    drop(again);
    let story = std::fs::read_to_string(ground.path("disk/program/data/story")).unwrap();
    assert!(story.ends_with("stopped\nstarted\n") && story.matches("prepared").count() == 1, "{story}");
    assert_eq!(ground.processes(), Vec::<String>::new());
}

/// What went wrong, in a message that has the end of the log.
#[test]
fn failing_command_reports_its_output() {
    let ground = Ground::new();
    let failed = ground.start(&[("prepare", "echo about to; echo no such thing >&2; exit 3")]).err().unwrap();
    let message = failed.to_string();
    assert!(message.contains("`prepare` failed") && message.contains("no such thing"), "{message}");
    let failed = ground.start(&[("start", "echo port in use; exit 1"), ("ready", "false")]).err().unwrap();
    let message = failed.to_string();
    assert!(message.contains("`start` failed") && message.contains("port in use"), "{message}");
    let running = ground.start(&[]).unwrap();
    let message = measure(running.as_ref(), "echo speed is unknown").unwrap_err().to_string();
    assert!(message.contains("matches nothing") && message.contains("speed is unknown"), "{message}");
    let message = measure(running.as_ref(), "echo speed 12e; false").unwrap_err().to_string();
    assert!(message.contains("`benchmark` failed") && message.contains("speed 12e"), "{message}");
    assert_eq!(ground.processes(), Vec::<String>::new());
}

#[test]
fn hanging_command_is_killed_at_limit() {
    let ground = Ground::new();
    let error = ground.start(&[("prepare", "echo waiting; sleep 1000"), ("limit", "1 s")]).err().unwrap();
    let message = error.to_string();
    assert!(message.contains("not done after 1 s") && message.contains("`limit`"), "{message}");
    let settings = [("start", "sleep 1000"), ("ready", "echo not yet; false"), ("limit", "1 s")];
    let message = ground.start(&settings).err().unwrap().to_string();
    assert!(message.contains("not `ready` after 1 s") && message.contains("not yet"), "{message}");
    assert_eq!(ground.processes(), Vec::<String>::new());
}

#[test]
fn endlessly_printing_command_is_killed() {
    let ground = Ground::new();
    let endless = "echo so it begins; yes";
    let message = ground.start(&[("prepare", endless), ("limit", "60 s")]).err().unwrap().to_string();
    assert!(
        message.contains("`prepare` was killed") && message.contains("printed more than 256 MiB"),
        "{message}"
    );
    let message =
        ground.start(&[("start", endless), ("ready", "false"), ("limit", "60 s")]).err().unwrap().to_string();
    assert!(message.contains("printed more than 256 MiB") && message.contains("start.log"), "{message}");
    // The program's own output counts as well, beside that of any command.
    let later = format!("sleep 1; {endless} and on");
    let running = ground.start(&[("start", later.as_str()), ("limit", "60 s")]).unwrap();
    let message = measure(running.as_ref(), "sleep 60").unwrap_err().to_string();
    assert!(message.contains("`benchmark` was killed") && message.contains("start.log"), "{message}");
    drop(running);
    assert_eq!(ground.processes(), Vec::<String>::new());
}

#[test]
fn children_in_another_session_are_found_and_killed() {
    let ground = Ground::new();
    let running = ground.start(&[]).unwrap();
    let away = "setsid sleep 1000 > /dev/null 2>&1 & sleep 0.3; echo speed 1";
    let message = measure(running.as_ref(), away).unwrap_err().to_string();
    assert!(message.contains("left processes behind") && message.contains("sleep ("), "{message}");
    assert_eq!(ground.processes(), Vec::<String>::new());
    // A server that goes into the background is a server; its end is the system's end.
    let settings = [("start", "setsid sleep 1000 > /dev/null 2>&1 &"), ("ready", "true")];
    let server = ground.start(&settings).unwrap();
    server.health().unwrap();
    assert!(ground.processes().iter().any(|line| line.contains("sleep 1000")));
    drop(server);
    assert_eq!(ground.processes(), Vec::<String>::new());
    // The error names one that dies.
    let settings = [("start", "setsid sleep 1 > /dev/null 2>&1 &"), ("ready", "true")];
    let server = ground.start(&settings).unwrap();
    let begun = std::time::Instant::now();
    while server.health().is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody noticed");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn stopped_benchmark_leaves_nothing() {
    let ground = Ground::new();
    let running = ground.start(&[]).unwrap();
    let outcome = running.run_benchmark(&benchmark("sleep 1000"), &|_| false).unwrap();
    assert!(outcome.unwrap_err().to_string().contains("was stopped"));
    assert_eq!(ground.processes(), Vec::<String>::new());
}

/// A program that a user may not start as another one, or that asks for what is not there.
#[test]
fn missing_prerequisite_is_reported() {
    let ground = Ground::new();
    let error = ground.start(&[("user", "nobody-of-that-name")]).err().unwrap();
    assert!(matches!(error, SystemError::Missing { .. }), "{error}");
    let message = ground.start(&[("wal_directory", "2")]).err().unwrap().to_string();
    assert!(message.contains("wal_directory") && message.contains("1 directories"), "{message}");
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Its data lies in directories that the user can't enter outside.
#[test]
fn program_of_another_user_reaches_only_its_storage() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    std::fs::write(ground.path("secret"), "ours").unwrap();
    let secret = ground.path("secret");
    let prepare = format!(
        "id -un > {{data}}/who; cat {} > {{data}}/stolen 2>&1; env > {{data}}/environment; true",
        secret.display()
    );
    let running = ground.start(&[("prepare", &prepare), ("user", "nobody")]).unwrap();
    let data = ground.path("disk/program/data");
    let read = |name: &str| std::fs::read_to_string(data.join(name)).unwrap();
    assert_eq!(read("who").trim(), "nobody");
    assert!(!read("stolen").contains("ours"), "{}", read("stolen"));
    assert!(!read("environment").contains("CARGO"), "{}", read("environment"));
    let mode = |path: &Path| {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(path).unwrap().mode() & 0o777
    };
    assert_eq!(mode(&data), 0o700);
    running.stop().unwrap();
}

/// A program that is killed leaves no shared memory.
#[test]
fn shared_memory_ends_with_the_program() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let name = format!("underlay-test-{}", std::process::id());
    let start = format!("echo here > /dev/shm/{name}; ipcmk -M 4096 -p 0600 > /dev/null; exec sleep 1000");
    let ready = "test -e {scratch}/go || { sleep 0.2; touch {scratch}/go; false; }";
    let segments = || std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let before = segments();
    let running = ground.start(&[("start", &start), ("ready", ready)]).unwrap();
    assert!(!Path::new("/dev/shm").join(&name).exists());
    drop(running);
    assert_eq!(segments(), before);
}
