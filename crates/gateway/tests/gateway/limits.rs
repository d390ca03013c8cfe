//! What clients can make as often as they like: answers that are kept, requests without an answer, buckets,
//! connections. There is a limit for each, and others go on beside it.

use std::io::Read as _;
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use object_store::{Attribute, Attributes, ObjectStore as _, PutOptions};
use underlay_gateway::config::{StoreConsistency, WriteMode};
use underlay_gateway::engine::WriteConditions;
use underlay_gateway::errors::GatewayError;
use underlay_gateway::store::BackendKind;

use crate::program::Program;
use crate::rig::{BUCKET, Ground, content, in_memory, put};
use crate::signed::{ask, exchange_over, sign};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

fn shared_ground(consistency: StoreConsistency) -> Ground {
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    (ground.write, ground.consistency) = (WriteMode::Through, consistency);
    ground
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ttl_answers_beyond_memory_are_asked_anew() {
    let directory = tempfile::tempdir().unwrap();
    let ground = shared_ground(StoreConsistency::Ttl(LONG));
    let key = |number: usize| format!("key{number}");
    let long = Attribute::Metadata("long".into());
    let attributes: Attributes = [(long, "x".repeat(8000))].into_iter().collect();
    for number in 0..600 {
        let options = PutOptions { attributes: attributes.clone(), ..PutOptions::default() };
        let path = object_store::path::Path::from(key(number));
        ground.store.put_opts(&path, "bytes".into(), options).await.unwrap();
    }
    let engine = ground.open(directory.path()).await;
    let gets = || ground.mood.gets.load(Ordering::Relaxed);
    for number in 0..600 {
        let found = engine.resolve(BUCKET, &key(number)).await.unwrap();
        assert_eq!(found.record.headers.user, [("long".to_owned(), "x".repeat(8000))]);
    }
    // Together they are longer than the 4 MiB that answers have beside 8 MiB for blocks.
    for (number, is_kept) in [(599, true), (300, true), (0, false)] {
        let before = gets();
        engine.resolve(BUCKET, &key(number)).await.unwrap();
        assert_eq!(gets() == before, is_kept, "{number}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unanswered_writes_beyond_limit_answer_slow_down() {
    /// Half of what there is with as little memory as the engine has here: other stores find the rest.
    const MAX_NAMES: usize = 2048;
    let directory = tempfile::tempdir().unwrap();
    let mut ground = shared_ground(StoreConsistency::Revalidate);
    (ground.landing, ground.patience) = (LONG, Duration::ZERO);
    let engine = ground.open(directory.path()).await;
    ground.mood.lands_late.store(true, Ordering::Relaxed);
    let (mut unanswered, mut refused) = (0, 0);
    for request in 0..5 {
        let keys = (0..1000).map(|number| (format!("{request}/{number}"), WriteConditions::default()));
        for outcome in engine.delete(BUCKET, keys.collect()).await.unwrap() {
            match outcome {
                Err(GatewayError::Store(_)) => unanswered += 1,
                Err(GatewayError::Busy(_)) => refused += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((unanswered, refused), (MAX_NAMES, 5000 - MAX_NAMES));
    assert_eq!(ground.mood.deletes.load(Ordering::Relaxed), MAX_NAMES as u64);
    // The same request again is no other name.
    let again = vec![("0/0".to_owned(), WriteConditions::default())];
    assert!(matches!(engine.delete(BUCKET, again).await.unwrap()[..], [Err(GatewayError::Store(_))]));
    ground.mood.lands_late.store(false, Ordering::Relaxed);
    engine.close().await;
    drop(engine);
    // The next start knows all of them, and has a place for none either.
    let engine = ground.open(directory.path()).await;
    for key in ["0/0", "1/999", "another"] {
        let written = put(&engine, key, &content(1, 10), WriteConditions::default()).await;
        assert!(matches!(written, Err(GatewayError::Busy(_))), "{key}: {written:?}");
    }
    let again = vec![("1/999".to_owned(), WriteConditions::default())];
    assert_eq!(engine.delete(BUCKET, again).await.unwrap(), [Ok(())]);
}

fn new_buckets(directory: &Path) -> String {
    let make = |name: &str| {
        let path = directory.join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    };
    format!(
        "[bucket.lake]\nstore = \"{}\"\nwrite = \"back\"\n[new_buckets]\nstore = \"{}\"\nwrite = \"back\"\n",
        make("objects").display(),
        make("new").display()
    )
}

/// The last descriptors are not for buckets: others go on, and so does the next start.
#[test]
fn bucket_beyond_descriptors_is_refused() {
    const CONNECTIONS: u64 = 16;
    /// As few as it starts with: of those 256 are for other things.
    const FILES: u64 = CONNECTIONS + 512;
    let directory = tempfile::tempdir().unwrap();
    let mut sections = new_buckets(directory.path());
    sections.push_str(&format!("[limits]\nconnections = {CONNECTIONS}\n"));
    let mut program = Program::start_with_files(directory.path(), FILES, &sections);
    assert_eq!(ask(program.address, "PUT", "/lake/a", &[], b"bytes").unwrap().status, 200);
    let make = |program: &Program, number: u64| {
        ask(program.address, "PUT", &format!("/made-{number}"), &[], b"").unwrap()
    };
    let mut made = 0;
    let refused = loop {
        let answer = make(&program, made);
        match answer.status {
            200 => made += 1,
            _ => break answer,
        }
        assert!(made < FILES, "there is no limit");
    };
    assert_eq!((refused.status, refused.code().as_str()), (400, "TooManyBuckets"), "{refused:?}");
    // With the one of the configuration.
    assert_eq!(made, 256 - 1);
    for _ in 0..2 {
        assert_eq!(ask(program.address, "GET", "/lake/a", &[], b"").unwrap().body, b"bytes");
        assert_eq!(ask(program.address, "PUT", "/made-0/b", &[], b"more").unwrap().status, 200);
        assert_eq!(make(&program, made).code(), "TooManyBuckets");
        // One that is there already is none more.
        assert_eq!(make(&program, 0).status, 200);
        program.kill_and_start();
    }
    // A bucket that goes makes room for another one.
    assert_eq!(ask(program.address, "DELETE", "/made-1", &[], b"").unwrap().status, 204);
    assert_eq!(make(&program, made).status, 200);
}

/// Where no more files may be open, idle connections make room, and writes are asked to come again.
#[test]
fn client_without_descriptor_takes_that_of_idle_connection() {
    let directory = tempfile::tempdir().unwrap();
    let sections = new_buckets(directory.path());
    let program = Program::start(directory.path(), &sections);
    let idle: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(program.address).unwrap()).collect();
    let before = program.count_open_files();
    // All of them have been accepted once a request that came behind them is answered.
    assert_eq!(ask(program.address, "GET", "/", &[], b"").unwrap().status, 200);
    assert!(program.count_open_files() >= 20, "{before}");
    program.limit_open_files(program.limit_with_free(0));
    // What a look around may have closed meanwhile is taken as well.
    let more: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(program.address).unwrap()).collect();
    for _ in 0..3 {
        assert_eq!(ask(program.address, "GET", "/", &[], b"").unwrap().status, 200);
    }
    let is_closed = |mut stream: &TcpStream| {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        matches!(stream.read(&mut [0]), Ok(0) | Err(_))
    };
    assert!(is_closed(&idle[0]), "the one that has been idle longest");
    program.limit_open_files(1024);
    // A connection that is there already: one that came without a descriptor would have an idle one closed, which would
    // make room for the journal's file as well.
    let connection = TcpStream::connect(program.address).unwrap();
    assert_eq!(ask(program.address, "GET", "/", &[], b"").unwrap().status, 200);
    // Those that were answered are being closed, and a look around opens a directory for a moment.
    let limits = (0..60).map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        program.limit_with_free(0)
    });
    program.limit_open_files(limits.min().unwrap());
    let signed = sign(program.address, ("PUT", "/lake/a", "/lake/a"), &[], "UNSIGNED-PAYLOAD", 5);
    // The journal needs a file for its first segment.
    let refused = exchange_over(connection, &signed.head, b"bytes").unwrap();
    assert_eq!((refused.status, refused.code().as_str()), (503, "SlowDown"), "{refused:?}");
    program.limit_open_files(1024);
    assert_eq!(ask(program.address, "PUT", "/lake/a", &[], b"bytes").unwrap().status, 200);
    drop(more);
    let (_, log) = program.stop();
    let lines = log.lines().filter(|line| line.contains("cannot accept a connection")).count();
    assert!((1..=5).contains(&lines), "{log}");
    // Not those alone that ended by themselves made room.
    assert!(log.contains("idle ones are closed for others"), "{log}");
}
