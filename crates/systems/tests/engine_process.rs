//! RocksDB's process: killed, stopped, starved, sent nonsense.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustix::process::{Pid, Signal, getpgid, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tempfile::TempDir;
use underlay_systems::rocksdb::Rocksdb;
use underlay_systems::system::{
    RunningSystem, StoragePaths, System, SystemError, SystemResources, SystemSettings,
};
use underlay_systems::wire::{
    FrameBuffer, MAX_FRAME_BYTES, WireOpcode, WireReply, WireStatus, encode_request,
};
use underlay_workload::client::{ClientError, FieldSelection, FieldValues, OperationOutcome};

struct Bench {
    directory: TempDir,
    resources: SystemResources,
    settings: SystemSettings,
}

impl Bench {
    fn new(settings: &[(&str, &str)]) -> Bench {
        let settings = SystemSettings {
            values: settings.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
            fields: 1,
            field_bytes: 100,
            timeout: Duration::from_secs(30),
            ..SystemSettings::default()
        };
        let resources = SystemResources::with_budget(32 << 20);
        Bench { directory: TempDir::new().unwrap(), resources, settings }
    }

    fn scratch(&self) -> PathBuf {
        self.directory.path().join("scratch")
    }

    fn try_start(&self) -> Result<Box<dyn RunningSystem>, SystemError> {
        self.try_start_with([].into())
    }

    fn try_start_with(
        &self,
        roles: BTreeMap<String, PathBuf>,
    ) -> Result<Box<dyn RunningSystem>, SystemError> {
        let paths = StoragePaths {
            data: vec![self.directory.path().into()],
            scratch: self.scratch(),
            roles,
            ..StoragePaths::default()
        };
        Rocksdb::with_program(env!("CARGO_BIN_EXE_underlay-engine")).start(
            &paths,
            &self.resources,
            &self.settings,
        )
    }

    fn start(&self) -> Box<dyn RunningSystem> {
        self.try_start().unwrap()
    }

    fn socket(&self) -> PathBuf {
        let mut files = std::fs::read_dir(self.scratch()).unwrap().map(|file| file.unwrap().path());
        files.find(|path| path.extension().is_some_and(|extension| extension == "sock")).unwrap()
    }
}

fn signal(running: &dyn RunningSystem, signal: Signal) {
    let pid = i32::try_from(running.processes()[0]).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// A signal is on its way for a while: until each thread shows the state `T`.
fn wait_until_stopped(pid: u32) {
    let state = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next())
    };
    while !std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|task| state(task) == Some('T')) {
        std::thread::yield_now();
    }
}

fn value(bytes: &[u8]) -> FieldValues {
    let mut values = FieldValues::default();
    values.push(0, bytes);
    values
}

#[test]
fn killed_engine_keeps_acknowledged_writes() {
    let bench = Bench::new(&[("wal", "sync")]);
    let mut acknowledged = 0u32;
    for round in 0..20u32 {
        let running = bench.start();
        let mut client = running.connect().unwrap();
        let mut values = FieldValues::default();
        for number in 0..acknowledged {
            let outcome = client.read(&number.to_be_bytes(), FieldSelection::All, &mut values);
            assert_eq!(outcome, Ok(OperationOutcome::Found), "record {number} in round {round}");
            assert_eq!(values, value(&number.to_le_bytes()));
        }
        let first = acknowledged;
        acknowledged = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut count = first;
                while client.insert(&count.to_be_bytes(), &value(&count.to_le_bytes())).is_ok() {
                    count += 1;
                }
                count
            });
            std::thread::sleep(Duration::from_millis(u64::from(round) % 7));
            signal(running.as_ref(), Signal::KILL);
            writer.join().unwrap()
        });
    }
    assert!(acknowledged > 0);
}

#[test]
fn write_ahead_log_is_on_its_role_storage() {
    let bench = Bench::new(&[("wal", "sync")]);
    let storage = TempDir::new().unwrap();
    let logs_below = |directory: &Path| {
        let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|extension| extension == "log")).count()
    };
    let start =
        || bench.try_start_with([("wal_storage".to_owned(), storage.path().to_owned())].into()).unwrap();
    for round in 0..3u32 {
        let running = start();
        let mut client = running.connect().unwrap();
        let mut values = FieldValues::default();
        for earlier in 0..round {
            let outcome = client.read(&earlier.to_be_bytes(), FieldSelection::All, &mut values);
            assert_eq!(outcome, Ok(OperationOutcome::Found), "record {earlier} in round {round}");
        }
        client.insert(&round.to_be_bytes(), &value(&round.to_le_bytes())).unwrap();
        assert_eq!(logs_below(&bench.directory.path().join("rocksdb")), 0);
        assert!(logs_below(&storage.path().join("rocksdb-wal")) > 0);
        // What was acknowledged is in the log alone.
        signal(running.as_ref(), Signal::KILL);
    }
    let refused = bench.try_start_with([("wal".to_owned(), storage.path().to_owned())].into());
    let refused = refused.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused.contains("no role called 'wal'"), "{refused}");
}

#[test]
fn dead_engine_is_named_with_cause_of_death() {
    let bench = Bench::new(&[]);
    let running = bench.start();
    let mut client = running.connect().unwrap();
    signal(running.as_ref(), Signal::TERM);
    let lost = loop {
        match client.delete(b"user") {
            Ok(_) => {}
            Err(error) => break error.to_string(),
        }
    };
    assert!(lost.contains("rocksdb (process ") && lost.contains("was killed by signal 15"), "{lost}");
    assert_eq!(client.delete(b"user").unwrap_err().to_string(), lost, "it stays lost");
    for error in [running.health(), running.connect().map(drop), running.figures().map(drop)] {
        let text = error.unwrap_err().to_string();
        assert!(text.contains("was killed by signal 15"), "{text}");
    }
    assert!(running.processes().is_empty());
    assert!(running.stop().unwrap_err().to_string().contains("signal 15"));
}

#[test]
fn oom_kill_is_distinguished_from_others() {
    for killed_by_budget in [true, false] {
        let mut bench = Bench::new(&[]);
        // What the kernel shows in a cgroup's directory, in a directory of ours.
        let cgroup = bench.directory.path().join("cgroup");
        std::fs::create_dir(&cgroup).unwrap();
        let (procs, events) = (cgroup.join("cgroup.procs"), cgroup.join("memory.oom_control"));
        std::fs::write(&procs, "").unwrap();
        std::fs::write(&events, "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n").unwrap();
        bench.resources.join_files.push(procs.clone());
        let running = bench.start();
        assert_eq!(std::fs::read_to_string(&procs).unwrap(), "0", "the engine joined before it ran");
        if killed_by_budget {
            std::fs::write(&events, "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n").unwrap();
        }
        signal(running.as_ref(), Signal::KILL);
        let text = loop {
            if let Err(error) = running.health() {
                break error.to_string();
            }
        };
        assert_eq!(text.contains("is its memory budget of 32 MiB too small?"), killed_by_budget, "{text}");
    }
}

#[test]
fn unenforceable_budget_is_an_error() {
    let mut bench = Bench::new(&[]);
    bench.resources.join_files.push(bench.directory.path().join("missing/cgroup.procs"));
    let error = bench.try_start().err().unwrap().to_string();
    assert!(error.contains("missing/cgroup.procs"), "{error}");
}

#[test]
fn engine_runs_on_own_cpus_despite_confined_thread() {
    let before = sched_getaffinity(None).unwrap();
    let mut available = (0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu));
    let (Some(own), Some(other)) = (available.next(), available.next()) else {
        assert!(std::env::var_os("CI").is_none(), "this host has one CPU only");
        return eprintln!("SKIPPED: this host has one CPU only");
    };
    // Threads and processes inherit it; this thread ends with the test.
    let mut confined = CpuSet::new();
    confined.set(own);
    sched_setaffinity(None, &confined).unwrap();
    let mut bench = Bench::new(&[]);
    for (processors, expected) in [(None, own), (Some(vec![u32::try_from(other).unwrap()]), other)] {
        bench.resources.processors = processors;
        let running = bench.start();
        let status = std::fs::read_to_string(format!("/proc/{}/status", running.processes()[0])).unwrap();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        assert_eq!(allowed.trim(), expected.to_string());
        running.stop().unwrap();
    }
    for (processors, expected) in [(vec![1 << 20], "on CPU 1048576"), (Vec::new(), "on the CPUs []")] {
        bench.resources.processors = Some(processors);
        let error = bench.try_start().err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn stuck_engine_times_out_and_late_answer_is_ignored() {
    let mut bench = Bench::new(&[]);
    bench.settings.timeout = Duration::from_millis(200);
    let running = bench.start();
    let mut client = running.connect().unwrap();
    client.insert(b"a", &value(b"first")).unwrap();
    client.insert(b"b", &value(b"second")).unwrap();
    signal(running.as_ref(), Signal::STOP);
    wait_until_stopped(running.processes()[0]);
    let mut values = FieldValues::default();
    assert!(matches!(client.read(b"a", FieldSelection::All, &mut values), Err(ClientError::Timeout(_))));
    let text = running.health().unwrap_err().to_string();
    assert!(text.contains("rocksdb") && text.contains("did not answer"), "{text}");
    signal(running.as_ref(), Signal::CONT);
    // A busy machine may take longer than the timeout to wake it up.
    while client.read(b"b", FieldSelection::All, &mut values).is_err() {}
    assert_eq!(values, value(b"second"));
    running.stop().unwrap();
}

#[test]
fn engine_outlives_starting_thread() {
    let bench = Bench::new(&[]);
    let running = std::thread::scope(|scope| scope.spawn(|| bench.start()).join().unwrap());
    running.health().unwrap();
    running.stop().unwrap();
}

#[test]
fn terminal_interrupt_does_not_reach_engine() {
    let bench = Bench::new(&[]);
    let running = bench.start();
    let pid = Pid::from_raw(i32::try_from(running.processes()[0]).unwrap()).unwrap();
    assert_eq!(getpgid(Some(pid)), Ok(pid));
}

#[test]
fn scratch_path_too_long_for_socket_works() {
    let bench = Bench::new(&[]);
    let scratch = bench.directory.path().join("s".repeat(120));
    let paths =
        StoragePaths { data: vec![bench.directory.path().into()], scratch, ..StoragePaths::default() };
    let system = Rocksdb::with_program(env!("CARGO_BIN_EXE_underlay-engine"));
    let running = system.start(&paths, &bench.resources, &bench.settings).unwrap();
    running.health().unwrap();
    running.stop().unwrap();
    let ours = format!("underlay-rocksdb-{}-", std::process::id());
    let left = std::fs::read_dir(std::env::temp_dir()).unwrap().filter(|file| {
        let file = file.as_ref().unwrap();
        // Other tests of this process have short paths and leave no directory there.
        file.file_name().to_string_lossy().starts_with(&ours)
    });
    assert_eq!(left.count(), 0);
}

#[test]
fn unstartable_program_is_explained() {
    let bench = Bench::new(&[]);
    let paths = StoragePaths {
        data: vec![bench.directory.path().into()],
        scratch: bench.scratch(),
        ..StoragePaths::default()
    };
    let start = |program: &str| {
        let error = Rocksdb::with_program(program).start(&paths, &bench.resources, &bench.settings);
        error.err().unwrap().to_string()
    };
    assert!(start("/nowhere/underlay").contains("can't run /nowhere/underlay"));
    let text = start("/bin/ls");
    assert!(text.contains("exited with status 2") && text.contains("its last words"), "{text}");
}

#[test]
fn database_in_use_is_refused_with_rocksdb_message() {
    let bench = Bench::new(&[]);
    let first = bench.start();
    let text = bench.try_start().err().unwrap().to_string();
    assert!(text.contains("LOCK"), "{text}");
    first.health().unwrap();
}

#[test]
fn unavailable_compression_is_missing_not_failed() {
    let mut accepted = 0;
    for compression in ["none", "lz4", "zstd", "snappy"] {
        let bench = Bench::new(&[("compression", compression), ("io", "buffered")]);
        match bench.try_start() {
            Ok(running) => {
                let mut client = running.connect().unwrap();
                client.insert(b"user", &value(&[b'x'; 10_000])).unwrap();
                running.settle(Duration::from_secs(60)).unwrap();
                let mut values = FieldValues::default();
                client.read(b"user", FieldSelection::One(0), &mut values).unwrap();
                assert_eq!(values, value(&[b'x'; 10_000]));
                accepted += 1;
            }
            Err(error) => assert!(matches!(error, SystemError::Missing { .. }), "{error}"),
        }
    }
    assert!(accepted > 0, "none at least is always there");
}

#[test]
fn load_beyond_memory_stays_within_it() {
    let bench = Bench::new(&[("wal", "off")]);
    let running = bench.start();
    let mut client = running.connect().unwrap();
    let record = value(&[b'x'; 16 << 10]);
    for number in 0..4096u32 {
        client.insert(&number.to_be_bytes(), &record).unwrap();
    }
    running.settle(Duration::from_secs(60)).unwrap();
    let figures = running.figures().unwrap();
    let config = running.applied_settings();
    let bytes = |name: &str| config[name].parse::<f64>().unwrap();
    assert!(figures["flush_write_bytes"] > 32e6, "{figures:?}");
    assert!(figures["current_memtables_bytes"] <= bytes("write_buffers_bytes"), "{figures:?}");
    assert!(figures["current_block_cache_bytes"] <= bytes("block_cache_bytes"), "{figures:?}");
    assert_eq!(figures["current_background_errors"], 0.0);
    // It has settled.
    let gauges = ["current_compactions_running", "current_writes_delayed", "current_writes_stopped"];
    assert_eq!(running.gauges().unwrap(), gauges.map(|gauge| (gauge.to_owned(), 0.0)).into());
    assert_eq!(
        client.scan(&0u32.to_be_bytes(), 10_000, FieldSelection::All),
        Ok((OperationOutcome::Found, 4096))
    );
    // What was written without a log is there after an orderly stop.
    running.stop().unwrap();
    let running = bench.start();
    assert_eq!(
        running.connect().unwrap().scan(b"", 10_000, FieldSelection::All),
        Ok((OperationOutcome::Found, 4096))
    );
}

fn answer_to(socket: &Path, bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // It may hang up before it has taken everything.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => answer,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "it hangs up, one way or another");
            answer
        }
    }
}

#[test]
fn nonsense_ends_a_connection_and_never_the_engine() {
    let bench = Bench::new(&[]);
    let running = bench.start();
    let socket = bench.socket();
    let mut runner =
        TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) });
    let body = prop::collection::vec(any::<u8>(), 0..80);
    let opcode = prop::sample::select(vec![0u8, 1, 2, 3, 4, 5, 6, 7, 10, 255]);
    let outcome = runner.run(&(body, opcode, any::<bool>()), |(mut body, opcode, framed)| {
        if framed {
            // A right length, and an opcode that is none, or one but for a stop or a long wait.
            if let Some(byte) = body.get_mut(4) {
                *byte = opcode;
            }
            body.splice(0..0, (body.len() as u32).to_le_bytes());
        } else if body.len() >= 9 {
            body[8] = opcode;
        }
        answer_to(&socket, &body);
        Ok(())
    });
    outcome.unwrap();
    running.health().unwrap();
    assert_eq!(running.processes().len(), 1);
    running.stop().unwrap();
}

#[test]
fn malformed_request_is_answered_with_error() {
    let bench = Bench::new(&[]);
    let running = bench.start();
    let mut frame = Vec::new();
    encode_request(&mut frame, 77, WireOpcode::Read, FieldSelection::All, 0, b"user", None).unwrap();
    frame[8] = 99;
    let too_long = (MAX_FRAME_BYTES as u32 + 1).to_le_bytes();
    for (bytes, id, problem) in [(&frame[..], 77, "unknown opcode 99"), (&too_long[..], 0, "is longer than")]
    {
        let answer = answer_to(&bench.socket(), bytes);
        let mut frames = FrameBuffer::new();
        assert!(frames.receive(&mut &answer[..]).unwrap());
        let reply = WireReply::decode(frames.body()).unwrap();
        assert_eq!((reply.id, reply.status), (id, WireStatus::Failed));
        assert!(reply.text().contains(problem), "{}", reply.text());
    }
    running.health().unwrap();
}
