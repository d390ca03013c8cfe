//! The Java child process, with its driver in memory: what operations mean, and how it ends when things go wrong.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use underlay_systems::java::ClassPath;
use underlay_systems::jvm::{JvmChild, JvmClient, JvmSpec, MAY_CONNECT, MEMORY_DRIVER};
use underlay_systems::system::{SystemError, SystemResources};
use underlay_systems::wire::{
    FrameBuffer, MAX_FRAME_BYTES, WireOpcode, WireReply, WireRequest, WireStatus, append_values,
    encode_request,
};
use underlay_workload::MemoryStore;
use underlay_workload::client::{
    Client, ClientError, FieldSelection, FieldValues, FoundRecords, OperationOutcome,
};

const FIELDS: u32 = 3;
const LIMIT: Duration = Duration::from_secs(120);

struct Bench {
    scratch: TempDir,
    child: JvmChild,
}

fn try_start(
    scratch: &TempDir,
    driver: &str,
    properties: &[(&str, &str)],
    heap_bytes: u64,
    timeout: Duration,
) -> Result<JvmChild, SystemError> {
    JvmChild::start(&JvmSpec {
        system: "memory",
        part: None,
        driver,
        class_path: ClassPath::new(),
        properties: properties.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect(),
        options: Vec::new(),
        scratch: scratch.path(),
        heap_bytes,
        resources: &SystemResources::with_budget(heap_bytes),
        namespace: None,
        timeout,
        start_limit: LIMIT,
        give_up: None,
    })
}

impl Bench {
    fn new(timeout: Duration) -> Bench {
        Bench::with_heap(64 << 20, timeout)
    }

    fn with_heap(heap_bytes: u64, timeout: Duration) -> Bench {
        let scratch = TempDir::new().unwrap();
        let child = try_start(&scratch, MEMORY_DRIVER, &[], heap_bytes, timeout).unwrap();
        Bench { scratch, child }
    }

    fn connect(&self) -> JvmClient {
        self.child.connect(&[]).unwrap()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.state().pid()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// A signal is on its way for a while.
    fn wait_until_stopped(&self) {
        let stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        };
        let tasks = format!("/proc/{}/task", self.child.state().pid());
        while !std::fs::read_dir(&tasks).unwrap().all(stopped) {
            std::thread::yield_now();
        }
    }

    fn socket(&self) -> PathBuf {
        let files = std::fs::read_dir(self.scratch.path()).unwrap().map(|file| file.unwrap().path());
        files.into_iter().find(|path| path.extension().is_some_and(|end| end == "sock")).unwrap()
    }

    fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.state().pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }
}

fn record(fields: &[(u32, Vec<u8>)]) -> FieldValues {
    let mut values = FieldValues::default();
    fields.iter().for_each(|(field, value)| values.push(*field, value));
    values
}

#[derive(Clone, Debug)]
enum Step {
    Read(u8, FieldSelection),
    Scan(u8, u32, FieldSelection),
    Update(u8, Vec<(u32, Vec<u8>)>),
    Insert(u8, Vec<(u32, Vec<u8>)>),
    Delete(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0..12u8;
    let values = || prop::collection::vec((0..FIELDS, prop::collection::vec(any::<u8>(), 0..20)), 0..5);
    let fields = || {
        prop_oneof![
            Just(FieldSelection::All),
            (0..FIELDS + 1).prop_map(FieldSelection::One),
            Just(FieldSelection::One(u32::MAX - 1))
        ]
    };
    prop_oneof![
        8 => (key(), fields()).prop_map(|(key, fields)| Step::Read(key, fields)),
        4 => (key(), 0..15u32, fields()).prop_map(|(key, limit, fields)| Step::Scan(key, limit, fields)),
        6 => (key(), values()).prop_map(|(key, values)| Step::Update(key, values)),
        6 => (key(), values()).prop_map(|(key, values)| Step::Insert(key, values)),
        3 => key().prop_map(Step::Delete),
    ]
}

/// Signed bytes would sort half of these keys elsewhere.
fn key_of(number: u8) -> Vec<u8> {
    vec![b'k', number.wrapping_mul(23)]
}

#[test]
fn operations_mean_what_they_mean_in_a_map() {
    let bench = Bench::new(LIMIT);
    let mut runner =
        TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) });
    let round = std::cell::Cell::new(0);
    let outcome = runner.run(&prop::collection::vec(step(), 1..60), |steps| {
        // One process for all cases, so each has keys of its own. No scan may look into the next one's.
        round.set(round.get() + 1);
        let prefix = format!("{:06}", 999_999 - round.get());
        let mut client = bench.child.connect(&[("prefix", &prefix)]).unwrap();
        let store = MemoryStore::new();
        let mut reference = store.client();
        let (mut values, mut expected) = (FieldValues::default(), FieldValues::default());
        let (mut records, mut expected_records) = (FoundRecords::default(), FoundRecords::default());
        for step in &steps {
            match step {
                Step::Read(key, fields) => {
                    let outcome = client.read(&key_of(*key), *fields, &mut values);
                    prop_assert_eq!(outcome, reference.read(&key_of(*key), *fields, &mut expected));
                    prop_assert_eq!(&values, &expected);
                }
                Step::Scan(key, limit, fields) => {
                    let found = store.keys().into_iter().filter(|found| *found >= key_of(*key)).count();
                    let limit = (*limit).min(found as u32);
                    let outcome = client.scan(&key_of(*key), limit, *fields);
                    prop_assert_eq!(outcome, reference.scan(&key_of(*key), limit, *fields));
                    let outcome = client.scan_records(&key_of(*key), limit, *fields, &mut records);
                    let expected =
                        reference.scan_records(&key_of(*key), limit, *fields, &mut expected_records);
                    prop_assert_eq!(outcome, expected);
                    prop_assert!(records.iter().eq(expected_records.iter()), "{records:?}");
                }
                Step::Update(key, changes) => {
                    let changes = record(changes);
                    let outcome = client.update(&key_of(*key), &changes);
                    prop_assert_eq!(outcome, reference.update(&key_of(*key), &changes));
                }
                Step::Insert(key, fields) => {
                    let fields = record(fields);
                    let outcome = client.insert(&key_of(*key), &fields);
                    prop_assert_eq!(outcome, reference.insert(&key_of(*key), &fields));
                }
                Step::Delete(key) => {
                    prop_assert_eq!(client.delete(&key_of(*key)), reference.delete(&key_of(*key)));
                }
            }
        }
        Ok(())
    });
    outcome.unwrap();
    assert_eq!(bench.connect().scan(b"", 0, FieldSelection::All), Ok((OperationOutcome::Missing, 0)));
    let Bench { scratch, child } = bench;
    child.stop(LIMIT).unwrap();
    // The socket goes with it.
    drop(child);
    let left: Vec<_> =
        std::fs::read_dir(scratch.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert!(left.len() == 1 && left[0].to_string_lossy().ends_with(".log"), "the log alone: {left:?}");
}

#[test]
fn many_connections_with_long_records_need_little_memory() {
    const THREADS: usize = 256;
    // For the long ones.
    let bench = Bench::with_heap(128 << 20, LIMIT);
    let together = Arc::new(Barrier::new(THREADS));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (bench, together) = (&bench, Arc::clone(&together));
            scope.spawn(move || {
                let mut client = bench.connect();
                // Every one of them is connected before the first goes on.
                together.wait();
                let mut values = FieldValues::default();
                for round in 0..20u32 {
                    let key = format!("thread{thread}");
                    let fields: Vec<_> =
                        (0..10).map(|field| (field, vec![thread as u8 ^ round as u8; 100])).collect();
                    assert_eq!(client.insert(key.as_bytes(), &record(&fields)), Ok(OperationOutcome::Found));
                    assert_eq!(
                        client.read(key.as_bytes(), FieldSelection::All, &mut values),
                        Ok(OperationOutcome::Found)
                    );
                    assert_eq!(values, record(&fields));
                }
            });
        }
    });
    let figures = bench.child.figures().unwrap();
    assert_eq!((figures["writes"], figures["client_calls"]), (256.0 * 20.0, 256.0 * 40.0), "{figures:?}");
    assert_eq!(figures["current_records"], 256.0);
    assert_eq!(bench.child.gauges().unwrap().into_keys().collect::<Vec<_>>(), ["current_connections"]);
    let (hop, driver) = (figures["client_hop_seconds"], figures["client_driver_seconds"]);
    assert!(hop > 0.0 && driver > 0.0, "{figures:?}");
    assert!(figures["current_client_hop_p99_us"] >= figures["current_client_hop_p50_us"], "{figures:?}");
    assert!(bench.resident_bytes() < 320 << 20, "{} bytes", bench.resident_bytes());

    let mut client = bench.connect();
    let mut values = FieldValues::default();
    let long = record(&[(0, vec![7; 5 << 20]), (65_535, b"end".to_vec())]);
    client.insert(b"long", &long).unwrap();
    client.read(b"long", FieldSelection::All, &mut values).unwrap();
    assert_eq!(values, long);
    let all: Vec<_> = (0..3000).map(|field| (field, vec![1])).collect();
    client.insert(b"wide", &record(&all)).unwrap();
    client.read(b"wide", FieldSelection::All, &mut values).unwrap();
    assert_eq!(values, record(&all));
    // Two that fit one by one, and not together.
    client.insert(b"too long", &record(&[(0, vec![0; 9 << 20])])).unwrap();
    client.update(b"too long", &record(&[(1, vec![0; 9 << 20])])).unwrap();
    let error = client.read(b"too long", FieldSelection::All, &mut values).unwrap_err();
    assert!(matches!(&error, ClientError::System(text) if text.contains("is longer than")), "{error}");
    client.read(b"too long", FieldSelection::One(1), &mut values).unwrap();
    bench.child.stop(LIMIT).unwrap();
}

#[test]
fn driver_commands_pass_and_its_output_returns() {
    let bench = Bench::new(LIMIT);
    let command = |name: &str, argument: &str| bench.child.command("testing", name, argument, LIMIT);
    assert_eq!(command("echo", "gr\u{fc}n\n\"x\"").unwrap(), "gr\u{fc}n\n\"x\"");
    let error = command("fly", "").unwrap_err().to_string();
    assert_eq!(
        error, "memory failed while testing: UnsupportedOperationException: there is no command 'fly'",
        "without a log that is of other things"
    );
    bench.child.settle(LIMIT).unwrap();
    bench.child.health().unwrap();
    bench.child.stop(LIMIT).unwrap();
}

#[test]
fn connections_go_only_to_allowlist() {
    let [one, other, six] = ["127.0.0.1:0", "127.0.0.1:0", "[::1]:0"].map(TcpListener::bind);
    let (one, other) = (one.unwrap(), other.unwrap());
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    let listed = format!("127.0.0.1 {},::1 0", port(&one));
    let scratch = TempDir::new().unwrap();
    let properties = [(MAY_CONNECT, listed.as_str())];
    let child = try_start(&scratch, MEMORY_DRIVER, &properties, 64 << 20, LIMIT).unwrap();
    let connect = |host: &str, listener: &TcpListener| {
        child.command("testing", "connect", &format!("{host} {}", port(listener)), LIMIT)
    };
    assert_eq!(connect("127.0.0.1", &one).unwrap(), "connected");
    assert_eq!(connect("localhost", &one).unwrap(), "connected");
    if let Ok(six) = six {
        assert_eq!(connect("::1", &six).unwrap(), "connected");
    }
    other.set_nonblocking(true).unwrap();
    for host in ["127.0.0.1", "localhost"] {
        let error = connect(host, &other).unwrap_err().to_string();
        assert!(error.contains(&format!("--may-connect 127.0.0.1:{}", port(&other))), "{error}");
    }
    assert!(other.accept().is_err(), "somebody has connected");
    child.stop(LIMIT).unwrap();
}

#[test]
fn start_failure_is_explained() {
    let scratch = TempDir::new().unwrap();
    let start = |driver: &str, properties: &[(&str, &str)], heap| {
        try_start(&scratch, driver, properties, heap, LIMIT).unwrap_err().to_string()
    };
    let refused = start(MEMORY_DRIVER, &[("refuse", "no instance '\u{fc}'")], 64 << 20);
    assert!(refused.contains("its client: memory (process "), "{refused}");
    assert!(refused.contains("exited with status 1"), "{refused}");
    assert!(refused.trim_end().ends_with("IllegalArgumentException: no instance '\u{fc}'"), "{refused}");
    let unknown = start("no.such.Driver", &[], 64 << 20);
    assert!(unknown.contains("ClassNotFoundException: no.such.Driver"), "{unknown}");
    let small = start(MEMORY_DRIVER, &[], 1 << 20);
    assert!(small.contains("1.0 MiB is too small") && small.contains("16 MiB"), "{small}");
    let left = std::fs::read_dir(scratch.path()).unwrap().map(|file| file.unwrap().path());
    let kinds: Vec<_> = left.map(|path| path.extension().unwrap().to_owned()).collect();
    assert!(kinds.iter().all(|kind| kind == "log"), "{kinds:?}");
}

#[test]
fn killed_child_is_named_with_cause_of_death() {
    let bench = Bench::new(LIMIT);
    let mut client = bench.connect();
    client.insert(b"key", &record(&[(0, b"x".to_vec())])).unwrap();
    bench.signal(Signal::KILL);
    let lost = client.delete(b"key").unwrap_err();
    assert!(matches!(lost, ClientError::Lost(_)), "{lost}");
    let words = lost.to_string();
    assert!(words.contains("memory (process ") && words.contains("was killed (SIGKILL)"), "{words}");
    for error in [
        bench.child.health(),
        bench.child.connect(&[]).map(drop),
        bench.child.figures().map(drop),
        bench.child.settle(LIMIT),
    ] {
        let text = error.unwrap_err().to_string();
        assert!(text.contains("its client") && text.contains("was killed (SIGKILL)"), "{text}");
    }
    assert!(bench.child.stop(LIMIT).is_err());
}

#[test]
fn child_out_of_memory_ends_and_reports_it() {
    let bench = Bench::new(LIMIT);
    let mut client = bench.connect();
    let record = record(&[(0, vec![0; 4 << 20])]);
    let lost = (0..64u32).find_map(|number| client.insert(&number.to_be_bytes(), &record).err()).unwrap();
    assert!(matches!(lost, ClientError::Lost(_)), "{lost}");
    let text = bench.child.health().unwrap_err().to_string();
    assert!(
        text.contains("exited with status 3, because Java ran out of memory (Java heap space)"),
        "{text}"
    );
}

#[test]
fn stuck_child_times_out_and_late_answer_is_ignored() {
    let bench = Bench::new(Duration::from_millis(500));
    let mut client = bench.connect();
    let (first, second) = (record(&[(0, b"first".to_vec())]), record(&[(0, b"second".to_vec())]));
    client.insert(b"a", &first).unwrap();
    client.insert(b"b", &second).unwrap();
    bench.signal(Signal::STOP);
    bench.wait_until_stopped();
    let mut values = FieldValues::default();
    assert!(matches!(client.read(b"a", FieldSelection::All, &mut values), Err(ClientError::Timeout(_))));
    let text = bench.child.health().unwrap_err().to_string();
    assert!(
        text.contains("memory failed while running") && text.contains("did not answer within 0.5 s"),
        "{text}"
    );
    assert!(text.contains(&bench.child.state().pid().to_string()), "{text}");
    bench.signal(Signal::CONT);
    // A busy machine may take longer than the timeout to wake it up.
    while client.read(b"b", FieldSelection::All, &mut values).is_err() {}
    assert_eq!(values, second);

    // One client that waits in the driver is not the child's end: it takes others, and stops on command.
    let slow = bench.child.command("waiting", "wait", "", Duration::from_millis(1)).unwrap();
    assert_eq!(slow, "");
    let mut frame = Vec::new();
    encode_request(&mut frame, 1, WireOpcode::Command, FieldSelection::All, 3_600_000, b"wait", None)
        .unwrap();
    let mut waiting = UnixStream::connect(bench.socket()).unwrap();
    waiting.write_all(&frame).unwrap();
    while bench.child.health().is_err() {}
    bench.child.stop(LIMIT).unwrap();
}

fn answer_to(socket: &std::path::Path, bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
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

fn replies(bytes: &[u8]) -> Vec<(u32, WireStatus, String)> {
    let (mut stream, mut frames, mut replies) = (bytes, FrameBuffer::new(), Vec::new());
    while frames.receive(&mut stream).unwrap() {
        let reply = WireReply::decode(frames.body()).expect("what the child sends can be read");
        replies.push((reply.id, reply.status, reply.text()));
    }
    replies
}

#[test]
fn jvm_agrees_with_rust_about_arbitrary_requests() {
    let bench = Bench::new(LIMIT);
    let socket = bench.socket();
    let mut runner =
        TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) });
    // All but a stop, and a command that waits.
    let opcode = prop::sample::select(vec![0u8, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 13, 14, 255]);
    let tail = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        // Well formed behind the head but for a few bytes.
        (
            prop::collection::vec(any::<u8>(), 0..9),
            prop::collection::vec((0..4u16, prop::collection::vec(any::<u8>(), 0..9)), 0..4),
            any::<Option<prop::sample::Index>>(),
            any::<u8>()
        )
            .prop_map(|(key, fields, changed, byte)| {
                let mut values = FieldValues::default();
                fields.iter().for_each(|(field, value)| values.push(u32::from(*field), value));
                let mut tail = vec![0xFF; 4];
                tail.extend_from_slice(&5u64.to_le_bytes());
                tail.extend_from_slice(&(key.len() as u16).to_le_bytes());
                tail.extend_from_slice(&key);
                append_values(&values, &mut tail).unwrap();
                if let Some(changed) = changed {
                    let index = changed.index(tail.len());
                    tail[index] = byte;
                }
                tail
            }),
    ];
    let outcome = runner.run(&(any::<u32>(), opcode, tail), |(id, opcode, tail)| {
        let mut body = id.to_le_bytes().to_vec();
        body.push(opcode);
        body.extend_from_slice(&tail);
        let mut framed = (body.len() as u32).to_le_bytes().to_vec();
        framed.extend_from_slice(&body);
        let answers = replies(&answer_to(&socket, &framed));
        prop_assert_eq!(answers.len(), 1);
        let (answered, status, text) = &answers[0];
        prop_assert_eq!(*answered, id);
        // Java and Rust agree on what a message is.
        let refused = *status == WireStatus::Failed && text.starts_with("malformed request: ");
        prop_assert_eq!(refused, WireRequest::decode(&body).is_err(), "{}", text);
        Ok(())
    });
    outcome.unwrap();

    let mut runner =
        TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) });
    let outcome = runner.run(&prop::collection::vec(any::<u8>(), 0..60), |mut bytes| {
        if let Some(byte) = bytes.get_mut(8).filter(|byte| [9, 11].contains(*byte)) {
            *byte = 0;
        }
        replies(&answer_to(&socket, &bytes));
        Ok(())
    });
    outcome.unwrap();

    let too_long = (MAX_FRAME_BYTES as u32 + 1).to_le_bytes();
    for (bytes, problem) in
        [(too_long, "is longer than"), (u32::MAX.to_le_bytes(), "4294967295 bytes is longer than")]
    {
        let answers = replies(&answer_to(&socket, &bytes));
        assert!(
            matches!(&answers[..], [(0, WireStatus::Failed, text)] if text.contains(problem)),
            "{answers:?}"
        );
    }
    // Requests in one write are answered one by one, and a frame that never ends is no harm.
    let (mut frame, mut many) = (Vec::new(), Vec::new());
    for id in 0..50 {
        encode_request(&mut frame, id, WireOpcode::Ping, FieldSelection::All, 0, b"", None).unwrap();
        many.extend_from_slice(&frame);
    }
    many.extend_from_slice(&frame[..frame.len() - 1]);
    let ids: Vec<u32> = replies(&answer_to(&socket, &many)).iter().map(|reply| reply.0).collect();
    assert_eq!(ids, (0..50).collect::<Vec<_>>());
    bench.child.health().unwrap();
    bench.child.stop(LIMIT).unwrap();
}
